"""The source of a bootstrap: sends its log, up to the last committed transaction, to an empty
instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Kind
from raylay.services.net.framed import WriteQueue
from raylay.services.protocol.frames import Header
from raylay.services.protocol.link import bootstrap as protocol
from raylay.services.replication.membership.bootstrap import BootstrapChoice
from raylay.services.security.permissions import Permissions
from raylay.services.security.publishing import NOT_ENTITLED
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.commits import Commits
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.server.sow.stored_topics import fingerprints
from raylay.services.sow.copying import START, older_entries, topics_of
from raylay.storage.journal_reader import LmdbJournalReader

READ_BYTES = 512 * 1024
SOW_ENTRIES_MIN, SOW_ENTRIES_MAX = 4, 1000
"""Bounds of the number of SOW entries that are read in one turn of the event loop."""


class BootstrapHost(Protocol):
    """The parts of the instance that a bootstrap source needs beside the runtime (`Upstreams`)."""

    runtime: InstanceRuntime
    instance: RecoveredInstance
    admission: ClientAdmission
    commits: Commits
    reading: JournalReads
    sow: SowManager


class BootstrapConnection(Protocol):
    """The connection of the instance that asks for the copy (`UpstreamConnection`)."""

    is_open: bool
    may_write: bool
    outbox: WriteQueue
    permissions: Permissions | None
    """Permissions of the other instance to replicate and copy; None: everything."""

    def send(self, frame: bytes) -> None:
        """Sends a frame."""

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """Sends a frame that lies in several pieces."""

    def refuse(self, reason: str, text: str) -> None:
        """Ends the connection and tells the other side why."""


class BootstrapSource:
    """One copy that another instance asks for. Owner: its connection. Lifecycle: `run` once."""

    def __init__(
        self, connection: BootstrapConnection, host: BootstrapHost, header: Header, body: bytes
    ) -> None:
        self._connection = connection
        self._runtime = host.runtime
        self._instance = host.instance
        self._host = host
        self._asks = protocol.read_request(header)
        self._header, self._body = header, body
        self._writable = asyncio.Event()

    @property
    def asked_by(self) -> str:
        return self._asks.name

    def refusal(self) -> tuple[str, str] | None:
        """Returns why nothing can be copied from here now; None: a copy can begin."""
        runtime = self._runtime
        name = runtime.config.name
        if not runtime.is_serving:
            return "not_ready", f"{name} is {runtime.phase}"
        if self._asks.incarnation == self._instance.identity.incarnation:
            return "self", f"{name} would copy from itself: correct the address of its Bootstrap"
        if not self._instance.machine.ready:
            return "not_ready", self._not_caught_up()
        return None

    def _not_caught_up(self) -> str:
        runtime, asks = self._runtime, self._asks
        name, group = runtime.config.name, runtime.config.group
        text = f"{name} has not caught up itself: {self._host.admission.reason()}"
        has_peers = any(of == group for _, of, _ in self._instance.machine.upstreams())
        if has_peers or asks.group != group:
            return text
        # The peer does not replicate to anybody before it has its copy.
        return (
            f"{text}; where {asks.name} is the peer that is to come, both wait for ever: give "
            f"{asks.name} another source, or start it without Bootstrap"
        )

    def writable(self) -> None:
        self._writable.set()

    async def run(self) -> None:
        """Sends the log, or the reason of a refusal."""
        connection, runtime = self._connection, self._runtime
        refused = self.refusal()
        if refused is None:
            try:
                # A thread compiles the regular expressions, because another instance chose them.
                choice, is_whole = await runtime.in_thread(self._read_choice)
            except RemoteProtocolError as error:
                refused = error.reason, str(error)
        if refused is not None:
            runtime.report("bootstrap_refused", peer=self._asks.name, text=refused[1])
            connection.refuse(*refused)
            return
        reader = await runtime.in_thread(self._instance.journal.reader)
        # If the instance stops meanwhile, it closes the reader after its thread has ended.
        self._host.reading.copy_readers.add(reader)
        try:
            await self._send(reader, choice, is_whole)
        except StorageError as error:
            connection.refuse("storage_error", str(error))
        self._host.reading.copy_readers.discard(reader)
        await self._host.reading.run(reader.close)

    def _read_choice(self) -> tuple[BootstrapChoice, bool]:
        """Returns the topics asked for, and whether those are all of this instance's log."""
        choice = protocol.read_choice(self._body)
        return choice, choice.is_whole(self._runtime.config.topics)

    async def _send(
        self, reader: LmdbJournalReader, choice: BootstrapChoice, is_whole: bool
    ) -> None:
        connection, runtime, asks = self._connection, self._runtime, self._asks
        machine = self._instance.machine
        self._host.commits.cycle.catch_up()
        last_txid = machine.committed_txid
        first_txid, lacks = await self._host.reading.run(_begin, reader)
        runtime.report("bootstrap_serves", peer=asks.name, last_txid=last_txid)
        connection.send(
            protocol.begin(protocol.BootstrapBegin(self._instance.identity, first_txid, last_txid))
        )
        if is_whole:
            lacks.update(machine.missing.ranges)
            for frame in protocol.lacks_frames(lacks):
                connection.send(frame)
        if first_txid > 1:
            await self._send_sow(first_txid)  # ends the connection if a topic is not allowed
        cursor_txid = first_txid - 1
        while cursor_txid < last_txid and connection.is_open:
            runs = await self._host.reading.run(reader.read, cursor_txid, READ_BYTES)
            if not runs or runs[0].first_txid > cursor_txid + 1:
                connection.refuse(
                    "removed", f"{runtime.config.name} removed segments meanwhile: begin again"
                )
                return
            runs = [run for run in runs if run.first_txid <= last_txid]
            cursor_txid = runs[-1].last_txid
            # The thread matches each new topic against all regular expressions.
            runs = await self._host.reading.run(choice.of, runs)
            if self._is_kept_out(run.topic for run in runs if run.kind == Kind.RECORDS):
                return
            parts = [run.raw if run.raw is not None else run.encode() for run in runs]
            size_bytes = sum(map(len, parts))
            front = protocol.runs_front(cursor_txid, size_bytes)
            connection.send_parts((front, *parts), len(front) + size_bytes)
            await self._written()
        if connection.is_open:
            connection.send(protocol.END)
            runtime.report("bootstrap_served", peer=asks.name, last_txid=cursor_txid)

    async def _send_sow(self, first_txid: int) -> None:
        """Sends the entries of SOW topics that are older than the log."""
        connection, sow = self._connection, self._host.sow
        wanted = protocol.sow_wanted(self._header, fingerprints(self._runtime.config))
        for topic in sow.book.topics:
            if topic.stored_as not in wanted:
                continue
            start, most = START, SOW_ENTRIES_MIN
            while start and connection.is_open:
                older, looked_bytes, start = older_entries(topic.state, start, first_txid, most)
                is_asked = bool(older) and connection.permissions is not None
                if is_asked and self._is_kept_out(topics_of(topic.name, older)):
                    return
                for frame in protocol.sow_frames(topic.stored_as, older):
                    connection.send(frame)
                # Keeps turns of the loop about equally long, however large the records are.
                fitting = most * protocol.SOW_BYTES // max(looked_bytes, 1)
                most = max(SOW_ENTRIES_MIN, min(fitting, 2 * most, SOW_ENTRIES_MAX))
                await self._written()
                await asyncio.sleep(0)

    def _is_kept_out(self, topics: Iterable[bytes]) -> bool:
        """Returns whether one of these topics may not be copied. The copy then ends: a copy without
        a topic would be taken for a whole one."""
        connection, runtime = self._connection, self._runtime
        permissions = connection.permissions
        if permissions is None:
            return False
        topic = next((each for each in topics if not permissions.copies(each)), None)
        if topic is None:
            return False
        name, asks = topic.decode("utf-8", "replace"), self._asks.name
        text = (
            f"{asks} may not copy topic {name!r} from {runtime.config.name}: allow it in "
            "`replicated-topics` of its user, or name the topics that are to be copied in its "
            "bootstrap"
        )
        runtime.report("bootstrap_refused", peer=asks, text=text)
        connection.refuse(NOT_ENTITLED, text)
        return True

    async def _written(self) -> None:
        connection = self._connection
        connection.outbox.flush()
        while not connection.may_write and connection.is_open:
            self._writable.clear()
            await self._writable.wait()


def _begin(reader: LmdbJournalReader) -> tuple[int, PublisherRanges]:
    """Returns the first transaction id of the log, and the messages that were removed before it."""
    while True:
        first_txid = reader.first_txid
        removed = reader.removed()
        if reader.first_txid == first_txid:
            return first_txid, removed
