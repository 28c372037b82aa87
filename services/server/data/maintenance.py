"""Maintenance of old segments of an instance's journal, by hand and by its schedule."""

from __future__ import annotations

import asyncio
from typing import Any

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.replication.timetable import JournalAction, JournalSchedule
from raylay.services.security.control import NAME_SHOWN_MAX
from raylay.services.server.clients.named_readers import ReaderHolds
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.storage.journal import written_before

NAMES_SHOWN_MAX = 20


class Maintenance:
    """Compresses, archives and removes sealed segments, on request and on schedule, and reports
    what holds retention back. Owner: the instance's event loop."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        reading: JournalReads,
        holds: ReaderHolds,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._reading = reading
        self._holds = holds
        self._schedule = JournalSchedule(runtime.config.journal.actions)
        self._working = asyncio.Lock()
        self._held = ""

    async def perform(
        self, action: str, before_txid: int | None = None, *, force: bool = False
    ) -> list[dict[str, Any]]:
        """Performs `compress`, `archive` or `remove` on sealed segments below `before_txid` (None:
        all).

        Raises:
            ConfigurationError: there is no such action.
            StorageError: a file cannot be changed; the log stays whole.
        """
        runtime = self._runtime
        journal = self._instance.journal
        if action == "compress":
            outcomes = await runtime.in_thread(journal.compress, before_txid)
        elif action == "archive":
            outcomes = await runtime.in_thread(journal.archive, before_txid)
        elif action == "remove":
            limit_txid = self._instance.machine.next_txid if before_txid is None else before_txid
            outcomes = await runtime.in_thread(lambda: journal.remove(limit_txid, force=force))
        else:
            raise ConfigurationError(f"no maintenance {action!r}: compress, archive or remove")
        await self._reading.tidy()
        return [
            {
                "first_txid": each.first_txid,
                "last_txid": each.last_txid,
                "done": each.done,
                "note": each.note,
                "outcome": str(each),
            }
            for each in outcomes
        ]

    async def end_of(self, journal: str) -> int:
        """Returns the transaction id behind a full segment.

        Args:
            journal: the segment's first transaction id.

        Raises:
            ConfigurationError: there is no such segment, or it is being written.
        """
        name = self._runtime.config.name
        segments = await self._runtime.in_thread(self._instance.journal.segments)
        full = {str(each.first_txid): each.last_txid for each in segments if each.state != "live"}
        if journal in full:
            return full[journal] + 1
        known = ", ".join([*full][-NAMES_SHOWN_MAX:]) or "none"
        if any(str(each.first_txid) == journal for each in segments):
            raise ConfigurationError(
                f"journal {journal} of {name} is being written: give a full one; it has {known}"
            )
        raise ConfigurationError(
            f"{name} has no journal {journal[:NAME_SHOWN_MAX]!r}: its full ones are {known}"
        )

    async def perform_by_age(self, action: str, age_ms: int) -> list[dict[str, Any]]:
        """Performs `compress`, `archive` or `remove` on sealed segments that were last written to
        longer ago than `age_ms`. Raises as `perform`."""
        async with self._working:
            return await self._perform_by_age(action, age_ms)

    async def _perform_by_age(self, action: str, age_ms: int) -> list[dict[str, Any]]:
        runtime = self._runtime
        now_us = runtime.aging_us()
        before_txid = written_before(
            await runtime.in_thread(self._instance.journal.segments),
            now_us - age_ms * 1000,
            now_us,
        )
        return await self.perform(action, before_txid)

    def look_at_retention(self) -> None:
        """Reports that something keeps the journal above its limits of size or age, and when the
        journal is within them again. Called each second."""
        held = self._holds.retention_held
        if held == self._held:
            return
        self._held = held
        if held:
            self._runtime.report("retention_held", text=held)
        else:
            self._runtime.report("retention_goes_on")

    def check(self) -> None:
        """Called now and then. Begins the actions that are due by the schedule."""
        runtime = self._runtime
        due = self._schedule.due(runtime.steady_us(), runtime.now_us())
        if due:
            runtime.spawn(self._tend(due))

    async def _tend(self, due: list[JournalAction]) -> None:
        """Performs scheduled actions on old segments, one after the other."""
        runtime = self._runtime
        async with self._working:
            for action in due:
                try:
                    outcomes = await self._perform_by_age(action.do, action.age_ms)
                except RaylayError as error:
                    runtime.report("journal_action_failed", action=action.do, text=str(error))
                    continue
                runtime.report(
                    "journal_action", action=action.do, outcomes=[o["outcome"] for o in outcomes]
                )
