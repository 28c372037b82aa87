"""The named readers of an instance: kept in its state, measured against its segments, and obeyed
when the journal is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

from raylay.services.errors import ConfigurationError, RemoteProtocolError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.spelling import did_you_mean
from raylay.services.protocol.client.commands import ReaderCommand
from raylay.services.security.control import NAME_SHOWN_MAX
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.subscriptions.named_readers import NamedReader, NamedReaders
from raylay.services.subscriptions.reader_counts import ReaderCounts

READER_KEY = "reader/"
CHECK_INTERVAL_S = 5.0
"""Time between two looks at the segments, in seconds: new ones are sealed, and readers expire."""
CHECKED_RUNS = 4096
"""Number of runs of the journal that one look reads to count what readers lack. The rest is read
by later ones: a header costs some microseconds."""
LISTED_RUNS = 65_536
"""The same where somebody asks."""
NAMES_SHOWN_MAX = 20
TELLING_MAX = 64
"""Number of commands of readers that wait for the disk; above it they are refused."""


class ReaderHolds:
    """Keeps segments for named readers.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        removable: called with the transaction id below which neither a reader nor anything before
            it in the chain needs the journal.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        removable: Callable[[int], None],
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._next = removable
        self._before_txid: int | None = None
        self._working = asyncio.Lock()
        self._telling = 0
        self._status: list[dict[str, Any]] = []
        self._counts = ReaderCounts()
        self.readers = NamedReaders(
            NamedReader.unpack(value) for _, value in instance.state.items(READER_KEY)
        )

    # -- the journal -------------------------------------------------------------------------
    def removable(self, before_txid: int) -> None:
        """Notes that links and SOW topics need nothing of the journal below this transaction id.
        It is released as far as no reader needs it."""
        self._before_txid = before_txid
        self._release()

    def _release(self) -> None:
        before_txid = self._before_txid
        if before_txid is None:
            return
        holding = self.readers.holding(before_txid)
        self._next(before_txid if holding is None else holding.floor_txid)

    @property
    def retention_held(self) -> str:
        """Returns what keeps the journal above its limits, with the reader where it is one; empty
        where nothing does."""
        held: str = self._instance.journal.retention_held
        holding = self.readers.holding(self._before_txid or 0)
        if not held or holding is None:
            return held
        return (
            f"{held}; reader {holding.name!r} needs the messages from transaction id "
            f"{holding.floor_txid}: let it go on, or drop it (`raylay reader drop`)"
        )

    # -- commands ----------------------------------------------------------------------------
    async def tell(self, command: ReaderCommand, user: str) -> None:
        """Takes the place of a reader, or forgets the reader; on disk when this returns.

        Raises:
            RemoteProtocolError: it is another user's, or there are too many.
            StorageError: it cannot be written.
        """
        if self._telling >= TELLING_MAX:
            raise RemoteProtocolError(
                f"{TELLING_MAX} commands of readers wait for the disk: say less often what a "
                "reader holds",
                "too_many",
            )
        self._telling += 1
        try:
            async with self._working:
                await self._tell(command, user)
        finally:
            self._telling -= 1

    async def _tell(self, command: ReaderCommand, user: str) -> None:
        if command.release:
            self.readers.check_user(command.name, user)
            await self._forget(command.name)
        else:
            reader = NamedReader(
                command.name,
                user,
                command.topic,
                command.have,
                command.expires_s,
                self._runtime.aging_us(),
                message_type=command.message_type,
                filter=command.filter,
            )
            if command.adds:
                reader = self.readers.added(reader)
            self.readers.check(reader)
            await self._instance.state.put({READER_KEY + reader.name: reader.pack()})
            self.readers.take(reader)
        # Nothing that it needs goes from here on; what it does not need goes when that is known.
        self._release()
        await self._measure()

    async def _forget(self, name: str) -> None:
        await self._instance.state.put({READER_KEY + name: None})
        self.readers.forget(name)

    async def drop(self, reader: str) -> str:
        """Forgets a reader of any user, as a control call; on disk when this returns. Returns a
        sentence.

        Raises:
            ConfigurationError: there is no reader of this name.
            StorageError: it cannot be written.
        """
        name = self._runtime.config.name
        async with self._working:
            found = self.readers.find(reader)
            if found is None:
                known = [each.name for each in self.readers]
                have = f"it has {', '.join(sorted(known)[:NAMES_SHOWN_MAX]) or 'none'}"
                hint = did_you_mean(reader, known) or have
                raise ConfigurationError(
                    f"{name} has no reader {reader[:NAME_SHOWN_MAX]!r}: {hint}"
                )
            await self._forget(reader)
            await self._measure()
        of_user = f" of user {found.user}" if found.user else ""
        return f"{name} keeps nothing for reader {reader}{of_user}"

    async def _measure(self) -> None:
        await self._count(CHECKED_RUNS)
        if len(self.readers):
            summaries = await self._runtime.in_thread(self._instance.journal.segment_summaries)
            self.readers.measure(summaries)
        self._release()
        self._look()

    async def _count(self, runs_max: int) -> None:
        readers = list(self.readers)
        journal = self._instance.journal
        try:
            await self._runtime.in_thread(self._counts.read, journal, readers, runs_max)
        except StorageError:
            pass  # The counts stay upper bounds, and who serves the journal reports the failure.

    def _look(self) -> None:
        held = self._instance.machine.held() if len(self.readers) else PublisherRanges()
        self._status = self.readers.status(
            lambda reader: self._counts.lacked(reader, held), self._runtime.aging_us()
        )

    async def place(self, name: str, user: str) -> bytes:
        """Returns what a reader reads and holds, as msgpack; nil: there is none of this name.

        Raises:
            RemoteProtocolError: it is another user's.
        """
        async with self._working:  # Behind what was told before.
            found = self.readers.check_user(name, user)
        packed: bytes = msgpack.packb(None) if found is None else found.place()
        return packed

    # -- now and then ------------------------------------------------------------------------
    def check(self) -> None:
        """Called now and then. Looks at new segments, and forgets readers that have expired."""
        if len(self.readers) and not self._working.locked():
            self._runtime.spawn(self._check())

    async def _check(self) -> None:
        async with self._working:
            for each in self.readers.expired(self._runtime.aging_us()):
                try:
                    await self._forget(each.name)
                except StorageError:
                    return  # It is tried again, and the disk's failure is reported by commits.
                self._runtime.report("reader_expired", reader=each.name, expires_s=each.expires_s)
            await self._measure()

    async def listed(self, user: str | None) -> bytes:
        """Returns the readers as msgpack; where a user is given, only that user's."""
        async with self._working:  # Behind what was told before.
            if len(self.readers):
                await self._count(LISTED_RUNS)
            self._look()
        found = [each for each in self._status if user is None or each["user"] == user]
        packed: bytes = msgpack.packb(found)
        return packed

    def status(self) -> list[dict[str, Any]]:
        """Returns the readers as of the last check."""
        return self._status
