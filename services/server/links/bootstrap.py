"""An empty instance copies the log of another one before it serves (behaviour.md 1.7).

Its transports listen meanwhile, and refuse everybody with the reason: a second empty instance that
would copy from this one learns that both would wait for ever. A marker file lies in the data
directory from before the first copied record until the last one is on disk: a log found beside it
is half a copy, and is begun again.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import split_address
from raylay.services.errors import CorruptRecord, RaylayError, RemoteProtocolError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.net.dialling import connect
from raylay.services.net.framed import FramedConnection
from raylay.services.plugins.own_credentials import OwnCredentials
from raylay.services.protocol.frames import FrameReader, Header
from raylay.services.protocol.link import bootstrap as protocol
from raylay.services.protocol.link.link_credentials import RETRY, read_said
from raylay.services.protocol.link.replication import REPLICATION_FRAME_BYTES_MAX, PartReader
from raylay.services.replication.instance import Identity
from raylay.services.replication.link_batch_parts import decode_replicated_runs
from raylay.services.replication.membership.bootstrap import BootstrapCopy
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY, open_journal
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.copy import SowCopy
from raylay.storage.files import PRIVATE_FILE_MODE, sync_directory
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.wipe import wipe_journal

MARKER_FILE = "bootstrap.unfinished"
CONNECT_TIMEOUT_S = 5.0
SILENCE_S_MAX = 60.0
"""Silence of a source, in seconds, after which the copy is given up. A source that opens a
compressed segment sends nothing for a while."""
PROGRESS_S = 1.0


class _SourceConnection(FramedConnection):
    """The connection to a source."""

    def __init__(self, copying: BootstrapRun) -> None:
        reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        super().__init__(copying.runtime.outbox, copying.runtime.loop, reader)
        self.copying = copying
        self.is_paused = False
        self.challenge: tuple[str, str] | None = None
        """User id and text of the source's challenge, after which the request is sent again."""
        self.done: asyncio.Future[None] = self.loop.create_future()

    def frame_received(self, header: Header, body: bytes) -> None:
        if header["c"] == "refused":
            self.fail(RemoteProtocolError(str(header.get("text")), str(header.get("reason"))))
        elif header["c"] == RETRY:
            self.challenge = read_said(header)
        elif protocol.is_end(header):
            if not self.done.done():
                self.done.set_result(None)
        else:
            try:
                self.copying.frame_received(header, body)
            except (CorruptRecord, StorageError) as error:
                self.fail(error)

    def broken(self, error: RemoteProtocolError) -> None:
        self.fail(error)

    def ended(self, why: str) -> None:
        self.fail(ConnectionError(why))

    def fail(self, error: Exception) -> None:
        """Ends the copy with this error."""
        if not self.done.done():
            self.done.set_exception(error)
            # Marks the error as retrieved: the waiter may have given up before.
            self.done.exception()

    def hold(self, paused: bool) -> None:
        """Pauses reading while the disk has too much to write, or resumes it."""
        if self.transport is None or paused == self.is_paused or not self.is_open:
            return
        self.is_paused = paused
        self.received_at_s = self.loop.time()
        (self.transport.pause_reading if paused else self.transport.resume_reading)()


class BootstrapJournal:
    """The journal of an instance before its recovery, which a bootstrap may fill: it is wiped after
    half a copy, and opened again after a copy.

    Owner: the instance's event loop. Lifecycle: until the instance has recovered.

    Attributes:
        journal: the journal, open.
    """

    def __init__(self, runtime: InstanceRuntime, journal: LmdbJournal) -> None:
        self._runtime = runtime
        self.journal = journal

    @property
    def marker(self) -> Path:
        """Path of the file that exists while the journal holds half a copy."""
        return self._runtime.directory / MARKER_FILE

    async def is_due(self) -> bool:
        """Returns whether the journal is empty, so that a copy is due. Removes half a copy."""
        runtime = self._runtime
        if await runtime.in_thread(self.marker.exists):
            runtime.report("bootstrap_begins_again", text="an earlier copy was not finished")
            await self.start_over()
            return True
        if self.journal.recovered.next_txid == 1 and not self.journal.recovered.held:
            return True
        runtime.report(
            "bootstrap_not_needed",
            text=f"{runtime.config.name} has a log of its own: nothing is copied into it",
        )
        return False

    async def start_over(self) -> None:
        """Wipes the journal, and opens it again."""
        runtime = self._runtime
        await runtime.in_thread(self.journal.close)
        archive = runtime.config.journal.archive_directory
        await runtime.in_thread(
            wipe_journal, runtime.directory / JOURNAL_DIRECTORY, Path(archive) if archive else None
        )
        await self._open()

    async def finish(self) -> None:
        """Opens the journal again, from its files, with a whole copy in it."""
        await self._runtime.in_thread(self.journal.close)
        await self._open()
        await self._runtime.in_thread(self._unmark)

    async def _open(self) -> None:
        runtime = self._runtime
        self.journal = await runtime.in_thread(open_journal, runtime.config, runtime.directory)

    # -- the marker --------------------------------------------------------------------------
    def mark(self) -> None:
        """Makes the file that says that the journal holds half a copy."""
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
        descriptor = os.open(self.marker, flags, PRIVATE_FILE_MODE)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self.marker.parent)

    def _unmark(self) -> None:
        self.marker.unlink()
        sync_directory(self.marker.parent)


class BootstrapRun:
    """The copy of a source's log. Owner: an instance that does not serve yet. Lifecycle: `run`
    once.

    Args:
        config: the sources, and the topics that are copied.
        identity: the identity of the instance.
        files: the journal, which is empty.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        config: BootstrapConfig,
        identity: Identity,
        files: BootstrapJournal,
    ) -> None:
        self.runtime = runtime
        self.config = config
        self._identity = identity
        self._files = files
        self.source = ""
        self.why = ""
        self.done = False
        self._begin: protocol.BootstrapBegin | None = None
        self._copy: BootstrapCopy | None = None
        self._lacks = PartReader()
        self._sow: SowCopy | None = None
        self._connection: _SourceConnection | None = None
        self._staged_bytes = 0
        self._staged: deque[tuple[int, int]] = deque()
        """Runs that are not on disk yet: (last transaction id, bytes)."""
        self._commit_error: Exception | None = None
        self._settled = asyncio.Event()
        self._told_s = 0.0
        self._failures: dict[str, str] = {}

    # -- trying the sources ------------------------------------------------------------------
    async def run(self) -> None:
        """Copies from the first source that can serve, however long it takes until there is one.

        Raises:
            StorageError: the data directory cannot be used.
        """
        runtime, config = self.runtime, self.config
        await runtime.in_thread(self._files.mark)
        runtime.report("bootstrap_started", sources=", ".join(config.sources))
        pause_ms = config.retry_ms_min
        while not await self._from_any():
            runtime.phase = "waiting for a source to copy from"
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, config.retry_ms_max)
        # The copy is recovered like any other log, from its files.
        await self._files.finish()
        self.done = True
        self._report("bootstrap_finished")

    async def _from_any(self) -> bool:
        for address in self.config.sources:
            self.source = address
            try:
                await self._from(address)
                return True
            except (OSError, RaylayError, TimeoutError) as error:
                self._failed(address, str(error) or type(error).__name__)
            finally:
                if self._connection is not None:
                    self._connection.abort("the copy ended")
                    self._connection = None
                if self._sow is not None:
                    await self.runtime.in_thread(self._sow.abandon)
                    self._sow = None
            if self._copy is not None:
                self._copy = self._begin = None
                await self._files.start_over()
        return False

    def _failed(self, address: str, why: str) -> None:
        self.why = f"{address}: {why}"
        if self._failures.get(address) != why:
            self._failures[address] = why
            self.runtime.report("bootstrap_failed", source=address, why=why)

    async def _from(self, address: str) -> None:
        runtime = self.runtime
        loop = runtime.loop
        runtime.phase = f"connecting to {address} to copy from"
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await connect(
                lambda: _SourceConnection(self), host, port, self.config.tls
            )
        self._connection = connection
        self._sow = await runtime.in_thread(SowCopy, runtime.config, runtime.directory)
        rules = runtime.config.topics
        wanted = self.config.topics or (TopicRule(".*"),)
        credentials = OwnCredentials(
            self.config.authenticator_of(address) or runtime.config.authenticator,
            f"{runtime.config.name}: bootstrap from {address}",
        )
        who = await credentials.say()
        request = partial(protocol.request, self._identity, wanted, rules, self._sow.wanted)
        connection.send(request(who))
        while not connection.done.done():
            await asyncio.wait((connection.done,), timeout=PROGRESS_S)
            if connection.challenge is not None and self._copy is None:
                who = await credentials.say(connection.challenge)
                connection.challenge = None
                connection.send(request(who))
            silent_s = loop.time() - connection.received_at_s
            if not connection.is_paused and silent_s > SILENCE_S_MAX:
                raise TimeoutError(f"nothing came for {SILENCE_S_MAX:g} s")
            self._progress()
        await connection.done
        copy = self._copy
        if copy is None:
            raise RemoteProtocolError("it ended before it began", "bad_command")
        await runtime.in_thread(self._sow.finish)
        self._tell_sow(self._sow)
        self._sow = None
        self._stage(copy.end(runtime.now_us()))
        while self._staged:
            self._settled.clear()
            await self._settled.wait()
            if self._commit_error is not None:
                raise self._commit_error

    # -- frames from the source --------------------------------------------------------------
    def frame_received(self, header: Header, body: bytes) -> None:
        """Takes a frame of the source.

        Raises:
            RemoteProtocolError, CorruptRecord: the source breaks the protocol.
        """
        runtime = self.runtime
        command, copy = header["c"], self._copy
        if command == protocol.BEGIN and copy is None:
            self._begin = protocol.read_begin(header)
            self._copy = BootstrapCopy(
                self._identity, TopicBook(runtime.config.topics), self._begin.source
            )
            self._lacks = PartReader()
            self._commit_error = None
            self._staged.clear()
            self._staged_bytes = 0
            self._files.journal.start(self._committed_in_thread, self._failed_in_thread)
        elif command == protocol.LACKS and copy is not None:
            lacks = PublisherRanges()
            self._lacks.read(body, lacks)
            copy.lacks(lacks)
        elif command == protocol.RUNS and copy is not None:
            # A source does not prove that it is of the fabric.
            runs = decode_replicated_runs(body, checks=True)
            self._stage(copy.take(runs, protocol.read_runs(header)))
            self._progress()
        elif command == protocol.SOW and self._sow is not None:
            size_bytes = len(body)
            self._staged_bytes += size_bytes
            self._sow.take(
                *protocol.read_sow(header, body),
                lambda work: self._call_soon(self._sow_written, work, size_bytes),
            )
            self._hold_if_much()
        elif command != "beat":
            raise RemoteProtocolError(f"{command[:64]} came in a bootstrap", "bad_command")

    def _stage(self, runs: list[Run]) -> None:
        journal = self._files.journal
        for run in runs:
            journal.stage(run)
            self._staged.append((run.last_txid, len(run.payload)))
            self._staged_bytes += len(run.payload)
        self._hold_if_much()

    def _hold_if_much(self) -> None:
        if self._staged_bytes > self.runtime.config.staged_bytes_max and self._connection:
            self._connection.hold(True)

    def _sow_written(self, work: Future[None], size_bytes: int) -> None:
        self._staged_bytes -= size_bytes
        error = None if work.cancelled() else work.exception()
        if isinstance(error, Exception):
            self._take_failed(error)
        else:
            self._take_committed(0)

    def _tell_sow(self, sow: SowCopy) -> None:
        """Reports the SOW records that the source sent from before its log, where the log does not
        reach back to its first transaction."""
        begin = self._begin
        if begin is not None and begin.first_txid > 1 and sow.wanted:
            self.runtime.report(
                "bootstrap_sow",
                source=begin.source.name,
                records=sow.records,
                text=f"the log of {begin.source.name} begins with transaction {begin.first_txid}: "
                f"{sow.records} records of SOW topics from before came with it",
            )

    def _committed_in_thread(self, last_txid: int, _: int) -> None:
        self._call_soon(self._take_committed, last_txid)

    def _failed_in_thread(self, _: int, error: Exception) -> None:
        self._call_soon(self._take_failed, error)

    def _call_soon(self, call: Any, *arguments: Any) -> None:
        try:
            self.runtime.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            pass  # the loop is closed: nothing waits for the call

    def _take_committed(self, last_txid: int) -> None:
        while self._staged and self._staged[0][0] <= last_txid:
            self._staged_bytes -= self._staged.popleft()[1]
        if self._connection and self._staged_bytes < self.runtime.config.staged_bytes_max // 2:
            self._connection.hold(False)
        self._settled.set()

    def _take_failed(self, error: Exception) -> None:
        self._commit_error = error
        if self._connection is not None:
            self._connection.fail(error)
        self._settled.set()

    # -- progress ----------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """The progress of the copy. `of_messages` counts the source's whole log, with what is not
        copied."""
        begin, copy = self._begin, self._copy
        found: dict[str, Any] = {"source": self.source, "done": self.done, "why": self.why}
        if begin is not None and copy is not None:
            whole = begin.last_txid - begin.first_txid + 1
            found |= {
                "source_name": begin.source.name,
                "messages": copy.messages,
                "bytes": copy.bytes,
                "of_messages": whole,
                "percent": round(
                    100 * (max(0, copy.source_txid - begin.first_txid + 1)) / max(1, whole), 1
                ),
            }
        return found

    def _progress(self) -> None:
        now_s = self.runtime.loop.time()
        if self._copy is None or self._begin is None:
            return
        found = self.status()
        self.runtime.phase = (
            f"copying from {found['source_name']}: {found['messages']:,} messages, "
            f"{found['percent']} % of its log"
        )
        if now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            self._report("bootstrap_progress")

    def _report(self, event: str) -> None:
        told = {key: value for key, value in self.status().items() if key not in ("done", "why")}
        self.runtime.report(event, **told)
