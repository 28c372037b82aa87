"""The data path of a link: reads its instance's journal, sends batches, takes acks.

What goes and when is decided in services/replication/link/outbound.py.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.plugins.filters import filter_language
from raylay.services.processes.link.downstream import Ack, Downstream
from raylay.services.processes.link.filtered_out_store import FilteredOutStore
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.child import control
from raylay.services.protocol.client.compression import compressor
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.protocol.link.replication import (
    batch_front,
    lacks_frames,
    pack_rooted,
    read_ack,
    sent_at_ns,
)
from raylay.services.replication.effects import (
    EventReport,
    LinkAnswered,
    LinkEffect,
    LinkLacks,
    LinkProgress,
    LinkReport,
    Rooted,
    SendBatch,
)
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.report_coalescer import ReportCoalescer
from raylay.services.replication.values import LinkStart
from raylay.services.telemetry.link_traces import LinkTraces
from raylay.services.telemetry.tracing import start_tracing
from raylay.storage.journal_reader import LmdbJournalReader

READ_BYTES = 512 * 1024
HEADERS_IN_STEP = 1024
COMPRESSED_BYTES_MIN = 256
EARLY_ACKS_MAX = 16_384
"""The number of acknowledgments that are kept while the instance is asked how to start. That takes
some milliseconds, or some seconds with very many publishers."""
LENDS_WITHIN_S = 1.0
DIRECT_PUBLISHERS_MAX = 4_096
DIRECT_BYTES_MAX = 1024 * 1024
"""The size, in bytes, of the largest frame with which the connection is handed over. The frame
tells the instance which messages the destination has; the instance keeps these in memory."""
REMEMBER_S = 5.0
"""The pause, in seconds, between two writes of the record of messages that the filters left out. If
the process is killed, messages evaluated since the last write are evaluated again."""
REREAD_S = 0.002
"""The pause, in seconds, before a reader that does not see an announced commit yet reads again."""


class Pump:
    """See the file's docstring. Owner: the link's event loop.

    Lifecycle: `open` once, `close` once; between them for each connection `begin` once its instance
    said how, `stop` when it is lost.
    """

    def __init__(self, runtime: LinkRuntime) -> None:
        self._runtime = runtime
        config = runtime.config
        self.machine = OutboundLink(
            config.destination.destination(),
            config.destination.window_bytes,
            self._removed,
            filter_language(config.destination.topics, config.type_definitions),
        )
        self.reader: LmdbJournalReader
        self._verdicts: FilteredOutStore | None = None
        self._remembers_s = 0.0
        self.downstream: Downstream | None = None
        """The present connection, from before its logon on."""
        self.is_started = False
        """Whether the connection has started to carry messages and their acknowledgments."""
        self.peer = ""
        """The name of the server that was reached last."""
        self.epoch = 0
        """The epoch of the last connection."""
        self._seeking = False
        self._pump_scheduled = False
        self._compression = (
            config.destination.compression_type if config.destination.compression else ""
        )
        self._compress = compressor(self._compression) if self._compression else None
        self.tracing = start_tracing(config.process_name, config.tracing)
        self._traces = LinkTraces(self.tracing, config.instance, "", 0)
        self._sent_wire_bytes = 0
        self._telling = ReportCoalescer(
            self._tell,
            lambda delay_s, call: runtime.loop.call_later(delay_s, call),
            waited_for=config.destination.sync,
        )
        self._unsent: list[Run] = []
        """The runs that were read and that the machine has not taken yet."""
        self.is_direct = False
        """Whether the link is direct: the instance reads and writes the connection, and this
        process does not."""
        self._lends_until_s = 0.0
        """The time by which the link answers the instance's request for the connection; 0: there is
        no request."""
        self._lend_scheduled = False
        self._due_timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Opens the instance's journal.

        Raises:
            StorageError: it cannot be opened.
        """
        config = self._runtime.config
        self.reader = LmdbJournalReader(config.journal_directory, config.archive_directory)
        if self.machine.router.has_filter:
            rules = self.machine.router.contents.carried
            directory = Path(config.journal_directory)
            try:
                self._verdicts = FilteredOutStore(directory, config.destination.name, rules)
                self._verdicts.load(self.machine.beside)
            except StorageError as error:
                self._forgets(error)

    def remember(self) -> None:
        """Writes down the sequences that the filters left out, unless that was done within
        `REMEMBER_S`."""
        now_s = self._runtime.loop.time()
        if self._verdicts is not None and now_s >= self._remembers_s:
            self._remembers_s = now_s + REMEMBER_S
            try:
                self._verdicts.save(self.machine.beside)
            except StorageError as error:
                self._forgets(error)

    def judged(self, stretch: int, beside: PublisherRanges) -> None:
        """Takes sequences that the instance's filters left out while it had the connection."""
        self.machine.beside.update(stretch, beside)

    def _forgets(self, error: StorageError) -> None:
        """Goes on without a store of what was left out: after a restart those messages are read
        again."""
        self._runtime.event("link_verdicts_not_kept", text=str(error))
        self._verdicts = None

    def close(self) -> None:
        self._remembers_s = 0.0
        self.remember()
        if self._verdicts is not None:
            self._verdicts.close()
        self.reader.close()
        self.tracing.close()

    # -- connections -------------------------------------------------------------------------
    def begin(self, downstream: Downstream, held: PublisherRanges, start: LinkStart) -> None:
        """Starts the connection as the instance says. `held`: the messages that the destination
        has."""
        assert downstream.accepted is not None
        self.is_started = self._seeking = True
        self._unsent = []
        self._traces = LinkTraces(
            self.tracing, self._runtime.config.instance, self.peer, self.epoch
        )
        self._perform(
            self.machine.connected(
                downstream.accepted.incarnation, held, start, self.reader.first_txid
            )
        )
        early, downstream.early = downstream.early, []
        for ack in early:
            self._take_ack(ack)

    def stop(self) -> None:
        self.is_started = self.is_direct = False
        self._lends_until_s = 0.0
        self._telling.disconnected()
        self.machine.disconnected()

    def drop(self) -> Downstream | None:
        downstream, self.downstream = self.downstream, None
        self.stop()
        return downstream

    def notice(self, awaited: Rooted, last_txid: int) -> None:
        self._perform(self.machine.notice(awaited, last_txid))

    def counts(self) -> dict[str, Any]:
        """Returns the numbers of records and bytes that were sent so far, for the instance's
        status."""
        machine = self.machine
        return {
            "cursor_txid": machine.cursor,
            "sent_records": machine.sent_records,
            "sent_bytes": machine.sent_bytes,
            "sent_wire_bytes": self._sent_wire_bytes,
            "epoch": self.epoch,
        }

    # -- the data path -----------------------------------------------------------------------
    def pump(self) -> None:
        """Reads one batch of messages for the destination, and sends it."""
        if not self.is_started or not self.machine.wants:
            return
        downstream = self.downstream
        if downstream is not None and downstream.carried is not None and not downstream.may_write:
            # The acknowledgments that the stream carries must not wait behind a window of data.
            return
        if self._seeking and self._seek():
            self._pump_soon()
            return
        machine = self.machine
        if machine.cursor < machine.told_txid:
            try:
                runs = self._read()
            except StorageError as error:
                self._cannot_read(error)
                return
            if not runs:
                self._runtime.loop.call_later(REREAD_S, self.pump)
                return
        else:
            runs = []
        sent_before = machine.sent_records
        self._perform(machine.take(runs, self._now_us()))
        if runs and runs[-1].last_txid > machine.cursor:
            self._unsent = runs
            self._wait_until_due()
        if machine.resyncing and machine.sent_records == sent_before:
            # The destination had all of it already, so reading headers is enough to look further.
            self._seeking = True
        self._runtime.outbox.flush()
        if machine.wants:
            self._pump_soon()
        elif self._lends_until_s:
            self._lend_soon()

    def _pump_soon(self) -> None:
        """Continues in the next turn of the loop, so that acknowledgments and beats are handled in
        between."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._runtime.loop.call_soon(self._pump_scheduled_now)

    def _pump_scheduled_now(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def _now_us(self) -> int:
        return int(self._runtime.loop.time() * 1e6)

    def _wait_until_due(self) -> None:
        due_us = self.machine.due_us
        if due_us is not None and self._due_timer is None:
            delay_s = max(0, due_us - self._now_us()) / 1e6
            self._due_timer = self._runtime.loop.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        self._due_timer = None
        due_us = self.machine.due_us
        if due_us is None:
            return
        if due_us > self._now_us():
            # Other messages are deferred by now, until a later time.
            self._wait_until_due()
            return
        self.machine.look_again()
        self.pump()

    def _read(self) -> list[Run]:
        machine = self.machine
        unsent, self._unsent = self._unsent, []
        rest = [run for run in unsent if run.last_txid > machine.cursor]
        if rest:
            # These runs were read before and not taken: they wait, or waited, for another path.
            return rest
        runs = self.reader.read(machine.cursor, READ_BYTES)
        told_txid = machine.told_txid
        # The journal may be ahead of the commits that the instance announced.
        while runs and runs[-1].last_txid > told_txid:
            runs.pop()
        return runs

    def _seek(self) -> bool:
        """Skips, in one step, messages that the destination already has. Returns whether to skip
        further."""
        machine = self.machine
        if not machine.resyncing:
            self._seeking = False
            return False
        before_txid = machine.cursor
        try:
            machine.skip_segments(self.reader.segment_summaries())
            headers = self.reader.read_headers(machine.cursor, HEADERS_IN_STEP)
        except StorageError as error:
            self._cannot_read(error)
            return True
        told_txid = machine.told_txid
        headers = [run for run in headers if run.last_txid <= told_txid]
        if not headers or not machine.skip_headers(headers) or machine.cursor == before_txid:
            self._seeking = False
        return self._seeking

    def _removed(self) -> PublisherRanges:
        try:
            return self.reader.removed()
        except StorageError as error:
            self._cannot_read(error)
            return PublisherRanges()

    def _cannot_read(self, error: StorageError) -> None:
        """Reports that the journal cannot be read, and ends the connection. The next one tries
        again."""
        self._runtime.event("link_cannot_read", text=str(error))
        if self.downstream is not None:
            self.downstream.why = str(error)
            self.downstream.abort(str(error))

    def acked(self, downstream: Downstream, header: Header, body: bytes) -> None:
        """Takes an acknowledgment.

        Raises:
            RemoteProtocolError: it is none, or of something that was not sent, or too many came
                before the link could begin.
        """
        if downstream is not self.downstream:
            return
        ack = *read_ack(header, body), sent_at_ns(header)
        if self.is_started:
            self._take_ack(ack)
        elif len(downstream.early) < EARLY_ACKS_MAX and not ack[0]:
            downstream.early.append(ack)
        else:
            raise RemoteProtocolError(
                f"more than {EARLY_ACKS_MAX} acks, or one of batch {ack[0]}, came before anything "
                "was sent",
                "bad_command",
            )

    def _take_ack(self, ack: Ack) -> None:
        number, held, persisted, conflicts, at_ns = ack
        self._traces.acked(number, persisted, at_ns)
        for effect in self.machine.acked(number, held, persisted, conflicts):
            self._perform_one(effect, at_ns)
        self._runtime.outbox.flush()
        self.pump()
        if self._lends_until_s:
            self._lend_soon()

    def _tell(self, told: LinkReport, at_ns: int) -> None:
        if isinstance(told, LinkAnswered):
            self._runtime.tell(control.answered(told, at_ns))
        elif isinstance(told, LinkProgress):
            self._runtime.tell(control.progress(told))
        else:
            self._runtime.tell(control.lacks(told))

    def _perform(self, effects: list[LinkEffect]) -> None:
        for effect in effects:
            self._perform_one(effect, 0)

    def _perform_one(self, effect: LinkEffect, at_ns: int) -> None:
        if isinstance(effect, SendBatch):
            self._send(effect)
        elif isinstance(effect, LinkAnswered):
            self._telling.answered(effect, at_ns)
        elif isinstance(effect, LinkProgress):
            self._telling.progress(effect)
        elif isinstance(effect, LinkLacks):
            self._telling.lacks(effect)
        elif isinstance(effect, EventReport):
            self._runtime.event(effect.event, **effect.details)

    def _send(self, batch: SendBatch) -> None:
        downstream = self.downstream
        if downstream is None:
            return
        if batch.lacks is not None:
            for frame in lacks_frames(batch.lacks, batch.whole):
                downstream.send(frame)
        awaited = pack_rooted(batch.awaited)
        parts = [run.raw if run.raw is not None else run.encode() for run in batch.runs]
        size_bytes = sum(map(len, parts))
        compression = ""
        if self._compress is not None and size_bytes > COMPRESSED_BYTES_MIN:
            compression = self._compression
            parts = [self._compress(b"".join(parts))]
            size_bytes = len(parts[0])
        front = batch_front(
            batch.number,
            batch.marked,
            batch.caught_up,
            awaited,
            compression,
            size_bytes,
            batch.yours,
        )
        self._sent_wire_bytes += len(front) + size_bytes
        downstream.send_parts((front, *parts), len(front) + size_bytes)
        self._traces.sent(batch.number, batch.runs)

    # -- handing over the connection --------------------------------------------------------------
    def hand_over(self) -> None:
        """Handles the instance's request for the connection. The connection is handed over when
        nothing is on its way, provided that this is soon and the connection is a plain one."""
        downstream, destination = self.downstream, self._runtime.config.destination
        if downstream is None or not self.is_started:
            # The connection was lost while the request was on its way.
            self._keep(for_good=False)
            return
        if (
            downstream.is_carried
            or destination.share_connection
            or self._compress is not None
            or self._runtime.config.drills
            # With TLS the descriptor is useless without the session, which lies in this process.
            or destination.tls is not None
        ):
            self._keep(for_good=True)
            return
        self._lends_until_s = self._runtime.loop.time() + LENDS_WITHIN_S
        self._runtime.loop.call_later(LENDS_WITHIN_S, self._lends_no_more)
        self.pump()
        self._lend_soon()

    def _lends_no_more(self) -> None:
        if self._lends_until_s and self._runtime.loop.time() >= self._lends_until_s:
            self._keep(for_good=False)

    def pass_on(self, frame: bytes) -> None:
        """Sends a queue's request to the destination if it can be written at once. Otherwise it is
        dropped: the requester repeats it if necessary."""
        downstream = self.downstream
        if downstream is None or not self.is_started:
            return
        if self.is_direct:
            # The instance writes to the connection, and a frame of this process might come within
            # one of its frames.
            return
        if downstream.is_open and not downstream.unsent_bytes:
            downstream.send(frame)

    def tell_names(self, frame: bytes) -> None:
        """Sends the names of publishers to the destination. Where the connection is gone, the next
        one tells them. While the instance itself has the connection, and before, the instance
        hands none to this process."""
        downstream = self.downstream
        if downstream is not None and self.is_started and not self.is_direct:
            downstream.send(frame)

    def _keep(self, *, for_good: bool) -> None:
        self._lends_until_s = 0.0
        self._runtime.tell(encode_frame({"c": "keeps", "for_good": for_good}))

    def _lend_soon(self) -> None:
        """Hands the connection over once everything read from either side is taken. Later frames of
        the same read still belong to this process."""
        if not self._lend_scheduled:
            self._lend_scheduled = True
            self._runtime.loop.call_soon(self._lend)

    def _lend(self) -> None:
        self._lend_scheduled = False
        if not self._lends_until_s:
            return
        downstream, machine = self.downstream, self.machine
        transport = downstream.transport if downstream is not None else None
        if downstream is None or transport is None or not self.is_started:
            return
        if downstream.carried is not None or downstream.unsent_bytes or downstream.reader.buffered:
            return
        state = machine.hand_over()
        if state is None:
            return
        frame = b""
        if len(state.held.sets) <= DIRECT_PUBLISHERS_MAX:
            frame = control.hand_over(state, self.epoch, self.peer)
        fits = 0 < len(frame) <= DIRECT_BYTES_MAX
        if not fits or not self._hand_over(transport):
            machine.take_over(state)
            # If only the socket is full, because other links hand over theirs just now, the
            # instance asks again.
            self._keep(for_good=not fits)
            return
        transport.pause_reading()
        self._lends_until_s = 0.0
        self.is_direct = True
        self._telling.flush()
        self._runtime.tell(frame)

    def _hand_over(self, transport: asyncio.Transport) -> bool:
        """Sends the connection's descriptor, before the frame that describes it."""
        config = self._runtime.config
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            try:
                way.connect(config.unix_path + control.DIRECT_SUFFIX)
                socket.send_fds(
                    way,
                    [control.handed_over(config.destination.name, config.start_number)],
                    [transport.get_extra_info("socket").fileno()],
                )
            except OSError:
                return False
        return True

    def returned(self, why: str) -> None:
        if self.is_direct and self.downstream is not None:
            self.downstream.abort(why)
