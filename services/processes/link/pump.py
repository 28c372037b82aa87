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
"""Acks that are kept while the instance is asked how to begin: a few milliseconds, some seconds
where there are very many publishers."""
LENDS_WITHIN_S = 1.0
DIRECT_PUBLISHERS_MAX = 4_096
DIRECT_BYTES_MAX = 1024 * 1024
"""Bytes of what the destination has that go to the instance in one frame, and are kept there."""
REMEMBER_S = 5.0
"""Time between two stores of verdicts: what was judged in less before the process is killed is
judged once more."""
REREAD_S = 0.002
"""A reader that does not see yet what its instance told of is asked again so soon."""


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
        """The connection of now, from before its logon on."""
        self.is_started = False
        """Whether what comes and goes over it is messages and their acks."""
        self.peer = ""
        """Name of the server that was reached last."""
        self.epoch = 0
        """Epoch of the connection that was made last."""
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
        """Read, and not taken by the machine yet."""
        self.is_direct = False
        """Whether the instance sends and reads over the connection, and this process does not."""
        self._lends_until_s = 0.0
        """Time by which it answers the request for its connection; 0: it was not asked."""
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
        """Writes down what the filters left out, where that was not done just before. Called now
        and then."""
        now_s = self._runtime.loop.time()
        if self._verdicts is not None and now_s >= self._remembers_s:
            self._remembers_s = now_s + REMEMBER_S
            try:
                self._verdicts.save(self.machine.beside)
            except StorageError as error:
                self._forgets(error)

    def judged(self, stretch: int, beside: PublisherRanges) -> None:
        """The instance left this out over the connection that the link handed over."""
        self.machine.beside.update(stretch, beside)

    def _forgets(self, error: StorageError) -> None:
        """Goes on without stored verdicts: after a restart messages are read again."""
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
        """The instance said how to begin; `held`: what the destination has."""
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
        """The counts of what was sent so far, for the instance's status."""
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
        """Reads what the destination is to be sent, one batch, and sends it."""
        if not self.is_started or not self.machine.wants:
            return
        downstream = self.downstream
        if downstream is not None and downstream.carried is not None and not downstream.may_write:
            # What the stream carries, acknowledgments, must not stand behind a window of data.
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
            # All of it was there already: headers are enough to look further.
            self._seeking = True
        self._runtime.outbox.flush()
        if machine.wants:
            self._pump_soon()
        elif self._lends_until_s:
            self._lend_soon()

    def _pump_soon(self) -> None:
        """Goes on in the next turn of the loop, so that acks and beats come in between."""
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
            # Others were shown meanwhile.
            self._wait_until_due()
            return
        self.machine.look_again()
        self.pump()

    def _read(self) -> list[Run]:
        machine = self.machine
        unsent, self._unsent = self._unsent, []
        rest = [run for run in unsent if run.last_txid > machine.cursor]
        if rest:
            # Read before, and not taken: it waits, or waited, for another way.
            return rest
        runs = self.reader.read(machine.cursor, READ_BYTES)
        told_txid = machine.told_txid
        # The journal may be ahead of what the instance told of.
        while runs and runs[-1].last_txid > told_txid:
            runs.pop()
        return runs

    def _seek(self) -> bool:
        """One step over what the destination has already. Whether to go on like that."""
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
        """The journal cannot be read: said aloud, and tried again with a new connection."""
        self._runtime.event("link_cannot_read", text=str(error))
        if self.downstream is not None:
            self.downstream.why = str(error)
            self.downstream.abort(str(error))

    def acked(self, downstream: Downstream, header: Header, body: bytes) -> None:
        """An ack came.

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
        """The instance asks for the connection. It gets it once nothing is on its way, if that is
        soon, and if the connection is a plain one."""
        downstream, destination = self.downstream, self._runtime.config.destination
        if downstream is None or not self.is_started:
            # It was lost while the instance asked.
            self._keep(for_good=False)
            return
        if (
            downstream.is_carried
            or destination.share_connection
            or self._compress is not None
            or self._runtime.config.drills
            # Its descriptor is nothing without the session that lies in this process.
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
        """A request of a queue goes to the destination, where it can be written at once: it is made
        again if it has to be."""
        downstream = self.downstream
        if downstream is None or not self.is_started:
            return
        if self.is_direct:
            # The instance writes to the connection: behind a part of its frame ours would break it.
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
        """Once all that was read from either side is taken: what comes behind in the same read is
        for this process."""
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
            # Where only the way is full, as others hand over theirs just now, it is asked again.
            self._keep(for_good=not fits)
            return
        transport.pause_reading()
        self._lends_until_s = 0.0
        self.is_direct = True
        self._telling.flush()
        self._runtime.tell(frame)

    def _hand_over(self, transport: asyncio.Transport) -> bool:
        """Sends the connection's descriptor, ahead of the frame that tells of it."""
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
