"""Reads of an instance's own journal while it serves, in the one thread for them.

Pages that come from the disk must not hold up the event loop. The thread reads for replays, for
bootstraps that other instances make from here, and for messages that are sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.journal_lookup import LookupTask
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.turns import CommandTurns
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal

TURN_S = 0.002
PAUSE_S = 0.0005
"""Time, in seconds, until a part that may not be taken yet is tried again: the writer thread needs
the interpreter."""
LOOKED_AT_ONCE = 64
"""Largest number of records between two looks at the clock."""

IN_THREAD = 2
"""Reads that the thread is given at once: the second begins while the loop takes the result of the
first."""

Result = TypeVar("Result")


class _Read(NamedTuple):
    """A read that waits for the thread."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: asyncio.Future[Any]


class LookupConnection(Protocol):
    """A connection whose arriving frames need reads of the journal (`ClientConnection`,
    `UpstreamConnection`)."""

    arrivals: InboundQueue
    is_open: bool

    @property
    def takes_parts(self) -> bool:
        """True where the next part of a long batch may be taken now."""

    def waits_for(self, go_on: Callable[[], None]) -> bool:
        """Returns whether the next part has to wait for anything but its turn: then `go_on` is
        called when it may be taken."""

    def unreadable(self, error: StorageError) -> None:
        """Ends the connection, as the journal cannot be read for its frames."""

    def broken(self, error: RemoteProtocolError) -> None:
        """Ends the connection, as a waiting frame breaks the protocol."""

    def failed(self, error: Exception) -> None:
        """Ends the connection, as a fault kept a waiting frame from being taken."""

    def went_on(self, is_waiting: bool) -> None:
        """Goes on after a waiting frame was taken; `is_waiting`: another one waits."""


class _NextPart:
    """A connection whose arriving batch is taken in parts, in one turn after another."""

    def __init__(self, reading: JournalReads, connection: LookupConnection) -> None:
        self._reading = reading
        self._connection = connection

    def take_one(self) -> bool:
        """Takes the next part. Returns whether another one follows in a turn."""
        connection = self._connection
        if not connection.is_open:
            return False
        if not connection.takes_parts:
            self._reading.take_later(self)
            return False
        if connection.waits_for(self._go_on):
            return False
        try:
            fetch = connection.arrivals.fetched()
        except RemoteProtocolError as error:
            connection.broken(error)
            return False
        except Exception as error:
            connection.failed(error)
            return False
        if fetch is not None and fetch.waits_for_turn:
            return True
        if fetch is not None:
            self._reading.read_for(connection, fetch)
        connection.went_on(fetch is not None)
        return False

    def _go_on(self) -> None:
        self._reading.turns.add(self)


class JournalReads:
    """The queue of reads, and the thread that performs them.

    Owner: the instance's event loop. Lifecycle: `opened_journal_reads`, then `run` and `read_for`,
    then `close`.

    Args:
        journal: the journal, open.
        reader: the reader with which the thread reads.

    Attributes:
        turns: the turns in which commands of clients are performed, and parts of long batches
            taken.
    """

    def __init__(
        self, runtime: InstanceRuntime, journal: LmdbJournal, reader: LmdbJournalReader
    ) -> None:
        self._runtime = runtime
        self._journal = journal
        self.turns = CommandTurns(runtime)
        self._thread = ThreadPoolExecutor(1, "raylay-replay")
        self._waiting: OrderedDict[Hashable, deque[_Read]] = OrderedDict()
        """Waiting reads by their asker; the first asker is next."""
        self._in_thread = 0
        self.reader = reader
        self.lookup = RunLookup(journal)
        self.first_txid = 1
        """The oldest transaction id in the journal at the last look."""
        self._is_stale = True
        """Whether the last look could not read the oldest transaction id."""
        self._looking = asyncio.Lock()
        self.copy_readers: set[LmdbJournalReader] = set()
        """Readers of the bootstraps that other instances make from here, until they are closed."""
        self._is_closed = False

    async def run(
        self, work: Callable[..., Result], *arguments: Any, of: Hashable = None
    ) -> Result:
        """Performs some work that reads old parts of the log with `reader`, in the thread.

        Args:
            of: the asker. Askers take turns: one with many reads holds up only its own.
        """
        done: asyncio.Future[Result] = self._runtime.loop.create_future()
        self._waiting.setdefault(of, deque()).append(_Read(work, arguments, done))
        self._begin()
        return await done

    def _begin(self) -> None:
        """Gives the thread the next reads."""
        waiting = self._waiting
        while waiting and self._in_thread < IN_THREAD:
            of, reads = waiting.popitem(last=False)
            read = reads.popleft()
            if reads:
                waiting[of] = reads
            if read.done.done():
                # The asker does not wait for this read any more.
                continue
            self._in_thread += 1
            begun = self._runtime.loop.run_in_executor(self._thread, read.work, *read.arguments)
            begun.add_done_callback(partial(self._ended, read.done))

    def _ended(self, done: asyncio.Future[Any], begun: asyncio.Future[Any]) -> None:
        self._in_thread -= 1
        if begun.cancelled():
            done.cancel()
        elif (error := begun.exception()) is not None:
            if not done.done():
                done.set_exception(error)
        elif not done.done():
            done.set_result(begun.result())
        if self._is_closed:
            return
        self._begin()

    def keep_tidy(self) -> None:
        """Releases segments that no read uses any more, and looks for the oldest one where some
        were removed. Called each second: an instance that reads nothing wakes no thread for it."""
        if self._is_stale or self.reader.is_untidy or self._journal.is_untidy:
            self._runtime.spawn(self.tidy())

    async def tidy(self) -> None:
        """Releases removed segments, and finds the oldest one that is left."""
        await self.run(self._tidy)

    def _tidy(self) -> None:
        """Releases removed segments, in the reading thread, because the release takes a lock and
        lists the directory."""
        journal = self._journal
        self.reader.tidy()
        journal.tidy()
        self._is_stale = True
        with suppress(StorageError):  # The journal is closed or keeps changing: tried again.
            self.first_txid = journal.first_txid
            self._is_stale = False
            if not journal.topics.is_current(self.first_txid):
                journal.topics.refresh()

    def read_for(self, connection: LookupConnection, fetch: LookupTask) -> None:
        """Reads what a connection's next frame needs of the journal, then goes on with the
        connection. A task that only waits for its turn is given the connection's next one."""
        if fetch.waits_for_turn:
            self.turns.add(_NextPart(self, connection))
        else:
            self._runtime.spawn(self._read_for(connection, fetch), connection.failed)

    def take_later(self, part: _NextPart) -> None:
        """Tries a part again in a moment, as it may not be taken now."""
        self._runtime.loop.call_later(PAUSE_S, self.turns.add, part)

    async def _read_for(self, connection: LookupConnection, first: LookupTask) -> None:
        fetch: LookupTask | None = first
        while fetch is not None:
            try:
                while not await self.run(fetch.step, self.lookup, of=id(connection)):
                    if not connection.is_open:
                        return
                await self._look(connection, fetch)
            except StorageError as error:
                connection.unreadable(error)
                return
            if not connection.is_open:
                return
            try:
                fetch = connection.arrivals.fetched()
            except RemoteProtocolError as error:
                connection.broken(error)
                return
            connection.went_on(fetch is not None)
            if fetch is not None and fetch.waits_for_turn:
                self.read_for(connection, fetch)
                return

    async def _look(self, connection: LookupConnection, fetch: LookupTask) -> None:
        """Looks up what topics with state need: one connection at a time, in turns."""
        if fetch.look(0):
            return
        async with self._looking:
            clock, most = time.perf_counter, 1
            before_s = clock()
            until_s = before_s + TURN_S
            while connection.is_open and not fetch.look(most):
                now_s = clock()
                # Where records take long, fewer are examined before the next look at the clock.
                is_quick = now_s - before_s < TURN_S / 4
                most = min(LOOKED_AT_ONCE, 2 * most) if is_quick else max(1, most // 2)
                before_s = now_s
                if now_s >= until_s:
                    await asyncio.sleep(0)
                    before_s = clock()
                    until_s = before_s + TURN_S

    async def close(self) -> None:
        """Ends the thread, then closes its readers."""
        self._is_closed = True
        for reads in self._waiting.values():
            for read in reads:
                read.done.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._runtime.in_thread(self._thread.shutdown)
        for reader in (self.reader, *self.copy_readers):
            reader.close()


async def opened_journal_reads(runtime: InstanceRuntime, journal: LmdbJournal) -> JournalReads:
    """Opens a reader of the journal, and returns the reads that use it.

    Raises:
        StorageError: the journal cannot be read.
    """
    reading = JournalReads(runtime, journal, await runtime.in_thread(journal.reader))
    try:
        await reading.tidy()
    except BaseException:
        await reading.close()
        raise
    return reading
