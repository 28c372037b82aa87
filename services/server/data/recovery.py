"""The identity and the recovery of an instance from its data directory, and the recovery points
that it writes so that a restart need not read the whole journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgpack

from raylay.services.core.compose import Composition, compose
from raylay.services.errors import RaylayError, SowDamaged
from raylay.services.messages.suspects import Suspects
from raylay.services.messages.topic_book import TopicBook
from raylay.services.plugins.filters import filter_language
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.link.content import FilterLanguage
from raylay.services.replication.membership.placement import Placements
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.replication.staged import RECENT_BYTES_MAX
from raylay.services.server.data.data_directory import (
    FORMER_KEY,
    GENERATION_KEY,
    RESTORED_KEY,
    DataDirectory,
)
from raylay.services.server.data.data_files import (
    NAME_KEYS,
    STATE_FILE,
    name_key,
    publisher_of,
)
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.queues.manager import QueueControl, journaled_topics, opened_queues
from raylay.services.server.recovered_instance import OpenedData, RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.stored_topics import StoredSowTopics
from raylay.storage.in_hand import InHand
from raylay.storage.lmdb_journal import LmdbJournal

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.core.queues import Queues

_NOWHERE = (-1, -1)


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state of an instance, as recovered from its data directory.

    Attributes:
        machine: the machine.
        log: writes the recovery points from which later lives begin.
        filters: language of the content filters of destinations; None: no destination has a filter.
        sow: the SOW topics, opened and folded.
        queues: the queues, folded; None: the instance has none.
        queue_controls: the table that the queues acknowledge messages through, empty.
        is_restored: whether the data directory is a copy that has not caught up with its peers.
    """

    machine: InstanceMachine
    log: RecoveryLog
    filters: FilterLanguage | None
    sow: StoredSowTopics
    queues: Queues | None
    queue_controls: dict[str, QueueControl]
    is_restored: bool


class InstanceRecovery:
    """The identity of an instance and its recovery from the data directory.

    Owner: the instance's event loop; `recover` runs in a thread. Lifecycle: `incarnation`,
    `recover`; `close` at the end of the instance.

    Args:
        state: the state store of the data directory.
    """

    def __init__(self, runtime: InstanceRuntime, state: StateThread) -> None:
        self._runtime = runtime
        self._state = state
        self.directory = DataDirectory(state, runtime.directory / STATE_FILE)
        """The entries of the state store about the directory itself."""
        self._in_hand = self._note()
        """Note of the messages that the process works on; None: there is no shared memory."""

    def _note(self) -> InHand | None:
        runtime = self._runtime
        try:
            note = InHand(runtime.directory)
        except OSError as error:
            runtime.report("no_shared_memory", text=f"no note of messages in hand is kept: {error}")
            return None
        suspect = note.just_left
        if suspect is not None:
            runtime.report(
                "messages_suspected",
                publisher=f"{suspect.publisher:016x}",
                first=suspect.first,
                last=suspect.last,
                deaths=suspect.deaths,
                text="the process before this one ended while it worked on these messages: they "
                "are taken one at a time, and one that ends this process too is refused",
            )
        return note

    def close(self) -> None:
        if self._in_hand is not None:
            self._in_hand.close()

    def forget(self) -> None:
        """Removes the identity that the directory had before, as a bootstrap begins in it."""
        keys = "incarnation", "ready", RESTORED_KEY, FORMER_KEY
        self._state.put_now(dict.fromkeys((*keys, *self.directory.hints())))

    def incarnation(self, journal: LmdbJournal) -> int:
        """Returns the incarnation of the data directory. Makes one for a new directory, and another
        one for a copy."""
        runtime, directory = self._runtime, self.directory
        found = directory.incarnation
        if not found:
            generation = max(runtime.config.generation, self._state.get_number(GENERATION_KEY))
            return directory.begin({GENERATION_KEY: generation.to_bytes(8, "big")})
        last_txid = journal.recovered.next_txid - 1
        why = directory.why_another(last_txid)
        if why:
            directory.begin_anew(last_txid)
            runtime.report(
                "data_directory_copied",
                former=f"{found:016x}",
                text=f"{runtime.directory} {why}: {runtime.config.name} begins anew as another "
                "incarnation and takes from its peers what it lacks",
            )
        return directory.incarnation

    def recover(
        self, data: OpenedData, placements: Placements, lookup: RunLookup
    ) -> RecoveredState:
        """Builds the machine from the journal, beginning at the last recovery point. Blocks.

        Args:
            placements: the placements that the instance knows.
            lookup: look-up into the journal.

        Raises:
            ConfigurationError: a definition of the configuration cannot be used.
            StorageError: the journal, the state or the SOW store cannot be used.
        """
        sow = StoredSowTopics(self._runtime, data.journal)
        try:
            return self._recovered(data, placements, lookup, sow)
        except SowDamaged as error:
            if sow.feature is None:
                raise
            sow.set_aside(str(error))
        except BaseException:
            sow.close()
            raise
        sow = StoredSowTopics(self._runtime, data.journal)
        try:
            return self._recovered(data, placements, lookup, sow)
        except BaseException:
            sow.close()
            raise

    def _recovered(
        self, data: OpenedData, placements: Placements, lookup: RunLookup, sow: StoredSowTopics
    ) -> RecoveredState:
        runtime, directory = self._runtime, self.directory
        config, state = runtime.config, self._state
        peers: dict[str, int] = {}
        servers: dict[str, list[str]] = {}
        for destination in config.destinations:
            known = state.get(f"peer/{destination.name}")
            if known is not None:
                peers[destination.name] = msgpack.unpackb(known)[0]
                met = state.get(f"servers/{destination.name}")
                servers[destination.name] = [] if met is None else msgpack.unpackb(met)
        is_restored = directory.is_restored
        alone = not any(item.group == config.group for item in config.destinations)
        filters = filter_language(
            (rule for each in config.destinations for rule in each.topics), config.type_definitions
        )
        note = self._in_hand
        feature = sow.feature
        stateful = () if feature is None else feature.book.stateful()
        controls: dict[str, QueueControl] = {}
        queues = opened_queues(config, data.identity, controls)
        composition = Composition(
            data.identity,
            [item.destination() for item in config.destinations],
            TopicBook(
                journaled_topics(config),
                f"{config.name} Topic",
                config.unjournaled,
                config.name,
                stateful,
                () if queues is None else queues.topics(),
                config.computed_topics(),
            ),
            peers=peers,
            servers=servers,
            placements=placements.copy(),
            former=directory.former,
            ready=alone or (config.first and not is_restored) or state.get("ready") is not None,
            policy=config.policy,
            recent_bytes_max=RECENT_BYTES_MAX,
            filters=filters,
            suspects=None if note is None else Suspects(note, note.left),
            names=PublisherNames((publisher_of(key), name) for key, name in state.items(NAME_KEYS)),
            sow=feature,
            sow_folded=(lambda: None) if feature is None else partial(sow.folded, feature),
        )
        machine, log = compose(
            composition,
            data.journal,
            lookup,
            directory.hints(),
            runtime.steady_us(),
        )
        if machine.ready and state.get("ready") is None:
            state.put_now({"ready": b"1", RESTORED_KEY: None})
        return RecoveredState(machine, log, filters, sow, queues, controls, is_restored)


class RecoveryPoints:
    """The recovery points that a serving instance writes, and other notes for its next life.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        log: keeps what the state store has of the last recovery point.
        directory: the entries of the state store about the directory itself.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        log: RecoveryLog,
        directory: DataDirectory,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._log = log
        self._directory = directory
        self._hinted = _NOWHERE
        """Position of the machine when the recovery point was last written."""

    def keep_refused(self) -> None:
        """Writes the recovery point together with messages that were refused for good: the refusals
        must not be lost once the recovery point moves beyond them."""
        self._hinted = _NOWHERE
        self.write_point()

    def write_point(self) -> None:
        """Called now and then. Writes the recovery point, from which a restart begins, if it has
        moved."""
        machine = self._instance.machine
        now = machine.committed_txid, machine.settlements
        if now == self._hinted:
            return
        self._hinted = now
        self._runtime.spawn(self._write_point(machine.recovery_point()))

    async def _write_point(self, point: RecoveryPoint) -> None:
        runtime = self._runtime
        if await self._write_quietly(self._writes(point)) and runtime.is_serving:
            self._instance.perform(self._instance.machine.recovery_written(point))

    async def write_last_point(self) -> None:
        """Writes the last recovery point, after the last commit, and the names of publishers that
        are not written yet.

        Raises:
            StorageError: the point cannot be written; a restart reads more of the journal.
        """
        names = self._instance.machine.publisher_names
        await self._instance.state.put(
            {name_key(each): names.get(each) for each in names.unwritten}
        )
        await self._instance.state.run(self._writes(self._instance.machine.recovery_point()))

    def _writes(self, point: RecoveryPoint) -> Callable[[], None]:
        """Returns the work with which the state's thread writes a recovery point."""

        def write() -> None:
            self._instance.state.put_now(self._log.changes(point))
            self._log.written(point)

        return write

    async def _write_quietly(self, write: Callable[[], None]) -> bool:
        try:
            await self._instance.state.run(write)
        except RaylayError as error:
            # The point is a hint only: without it, a restart reads more of the journal.
            self._hinted = _NOWHERE
            self._runtime.report("state_failed", text=str(error))
            return False
        return True

    async def note_ready(self) -> None:
        """Writes that the instance has caught up, so that it admits clients at once after a
        restart."""
        state = self._instance.state
        await self._write_quietly(lambda: state.put_now({"ready": b"1", RESTORED_KEY: None}))
        self._runtime.report("ready")

    async def begin_anew(self) -> None:
        """Has the next life in this directory begin as another incarnation."""
        try:
            await self._instance.state.run(self._directory.begin_anew)
        except RaylayError as error:
            # The next life meets the same state, and tries again.
            self._runtime.report("state_failed", text=str(error))
