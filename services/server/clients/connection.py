"""A client's connection: it takes the client's commands, and sends the instance's answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from raylay.services.core.fold_backlog import PublishInParts, another_turn
from raylay.services.errors import CorruptRecord, RemoteProtocolError, StorageError
from raylay.services.messages.records import (
    MESSAGES,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordBuilder,
    Run,
    run_of,
    scan,
)
from raylay.services.messages.topics import not_of_transport
from raylay.services.protocol.client.codec import CodecFactory, NativeCodec
from raylay.services.protocol.client.commands import (
    Command,
    CommandRefused,
    Flush,
    Heartbeat,
    Logoff,
    Logon,
    Pause,
    Ping,
    Publish,
    PublishBatchCommand,
    QueueAck,
    QueueCancel,
    QueueStatus,
    ReaderCommand,
    Resume,
    SowAndSubscribe,
    SowCommand,
    Subscribe,
    Unsubscribe,
)
from raylay.services.protocol.client.session import FRAMES_AT_ONCE
from raylay.services.protocol.client.subscribe import SUBSCRIPTION_ID_BYTES_MAX
from raylay.services.protocol.frames import LOGON_TIMEOUT_S, FrameReader
from raylay.services.replication.effects import RefuseClient
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.instance.batch_scan import SLICE_BYTES, BatchScan
from raylay.services.replication.instance.publishers import Judge
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult
from raylay.services.replication.values import LogonAnswer
from raylay.services.security.connection_shares import ShareHolder, ShareRefusal
from raylay.services.security.incomplete_frames import TOO_MANY, IncompleteFrame
from raylay.services.security.logon_turns import network_of
from raylay.services.security.permissions import Permissions
from raylay.services.security.publishing import NOT_ENTITLED
from raylay.services.security.reading import readable
from raylay.services.server.clients.buffered_connection import BufferedConnection, OfflineBuffer
from raylay.services.server.clients.client_occurrences import CONNECTION_CLOSED, DELETE
from raylay.services.server.clients.deliver_occurrences import DELIVER
from raylay.services.server.clients.logon import ClientLogon
from raylay.services.server.clients.publisher_acks import FLUSHES_MAX, PublisherAcks
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.clients.slow_clients import SLOW_CLIENT
from raylay.services.server.clients.subscriptions import ClientSubscriptions
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.read_backpressure import ReadBackpressure
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries
from raylay.services.subscriptions.delivery import DeliveryContent, DeliverySink
from raylay.services.subscriptions.matching import LiveSubscription, TopicFilter

if TYPE_CHECKING:
    # Most instances have no filters, and need not load their language.
    from raylay.services.security.row_filters import RowFilters

_BEHIND_FOLDS = (Subscribe, SowCommand, SowAndSubscribe, Unsubscribe)
"""Commands that wait for the folds, because they read or change a subscription's view of folded
state."""
_UNUSED = FrameReader()
"""Reader that the base class demands and this class does not use: the codec cuts the bytes into
commands."""
SHORT_FILTER_CHARACTERS = 512
"""Length up to which a filter is compiled at once, whatever compile time its user has spent."""
FILTER_WAIT_MAX_S = 1.0
"""Longest time, in seconds, until a connection with a long filter checks again whether the filter
may be compiled."""
UNREAD_S = 0.05
"""Time, in seconds, that the loop needs to read the bytes which already lie in its sockets."""


class ClientConnection(BufferedConnection, ReadBackpressure):
    """The connection of one client. Owner: the instance's event loop. Lifecycle: one connection."""

    def __init__(
        self,
        clients: ClientSessions,
        accepted_by: ClientTransport,
        codec: CodecFactory = NativeCodec,
    ) -> None:
        self.accepted_by = accepted_by
        self.message_types = accepted_by.message_types
        """Message types of the client's transport; none: any."""
        self.incomplete = IncompleteFrame(self._holds_too_much)
        self.codec = codec(partial(clients.incomplete.holds, self.incomplete))
        runtime = clients.runtime
        pools, name = clients.pools, accepted_by.name
        super().__init__(
            runtime.outbox, runtime.loop, _UNUSED, pools.of(name), pools.policy_of(name)
        )
        self.sink: DeliverySink = self
        """Sink of the client's deliveries: the connection itself, or a holder that keeps them while
        a query runs."""
        self._delivery = self.codec.delivery
        self._clients = clients
        self._commits = clients.commits
        self._runtime = runtime
        self._instance = clients.instance
        self.number = clients.connection_limit.next_number()
        self.client_name = ""
        self.user_id = ""
        self.permissions: Permissions | None = None
        """Permissions of the client; None: everything."""
        self._rows: RowFilters | None = None
        self.judge: Judge | None = None
        self.in_hand = IncompleteFrame(self._holds_too_much)
        self._logon = ClientLogon(self, clients, runtime.outbox.flush)
        self.publisher = 0
        self.subscriptions: dict[str, LiveSubscription | BookmarkSubscription] = {}
        self.resolving: dict[str, Subscribe] = {}
        """Subscribe commands that do not run yet, because their start is being looked up or their
        query waits."""
        self._asking = ClientSubscriptions(self, clients)
        self.published_upto = 0
        self.published_from = 0
        """Sequence of the first publish of this connection; 0: there was none."""
        self.connected_us = self._runtime.now_us()
        self.end_reason = CONNECTION_CLOSED
        """Reason for which the connection ends, once it does."""
        self.bytes_in = 0
        self.messages_in = 0
        self.messages_out = 0
        """Messages delivered to the client's subscriptions, without rows of queries."""
        self.denied_reads = 0
        self.arrivals = InboundQueue(self._perform)
        self._said: deque[Command] = deque()
        """Commands that wait for a turn, or for an earlier command's look into the journal."""
        self._is_behind = False
        """Whether the codec may hold more commands."""
        self._acks = PublisherAcks(
            self.send,
            self.loop.call_later,
            self.codec,
            self._slow_down,
            lambda: self.resume_reading("outstanding"),
            accepted_by.config.outstanding_publishes_max,
            self._commits.ack_latency.record,
        )
        # The machine's replies to this client's publishes go straight to the acks, without one
        # more call.
        self.persisted = self._acks.persisted
        self._builders: dict[tuple[int, str, str], RecordBuilder] = {}
        self._logon_timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = 0.0
        self._suspected_s = -1.0
        """Time of the last arrival at the moment when the silence after it became too long."""
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def publisher_acks(self) -> PublisherAcks:
        """Returns the replies to the client's publishes, for its status."""
        return self._acks

    # -- the connection ----------------------------------------------------------------------
    def opened(self) -> None:
        """Starts the time limit for the logon."""
        self._clients.connected.add(self)
        self._clients.occurrences.connected(self)
        self._clients.incomplete.belongs(self.incomplete, ShareHolder("", network_of(self.peer)))
        self._clients.connection_limit.came(self)
        if self.is_open:
            self.accepted_by.came(self)
        if not self.is_open:
            return
        self._logon_timer = self.loop.call_later(LOGON_TIMEOUT_S, self._logon_late)

    def turn_away(self, text: str) -> None:
        self.end(TOO_MANY, text)

    def _holds_too_much(self, refusal: ShareRefusal) -> None:
        """Ends the connection: of all connections with incomplete frames, or frames not yet taken,
        it holds the most bytes."""
        self._runtime.over_share(
            "client",
            "frames",
            client=self.client_name[:200],
            user=self.user_id[:200],
            peer=self.peer,
            transport=self.accepted_by.name,
            text=refusal.text,
        )
        self.end(TOO_MANY, refusal.text)

    def _logon_late(self) -> None:
        self.end("logon_timeout", f"no logon within {LOGON_TIMEOUT_S:g} s")

    def data_received(self, data: bytes) -> None:
        """Takes bytes: performs the commands that they complete. Many commands go on in further
        turns."""
        self.received_at_s = self.loop.time()
        self.bytes_in += len(data)
        try:
            said = self._said
            if said or self._is_behind:
                # These bytes were on their way when reading was paused.
                self._read(data)
                return
            self._read(data)
            if len(said) == 1 and type(said[0]) is PublishBatchCommand:
                self._take_command(said.popleft())
                return
            turns = self._clients.turns
            while said or self._is_behind:
                if turns.is_over():
                    self._wait_for_turn()
                    return
                if not self._take_next():
                    return
        except Exception as error:
            self.failed(error)

    def _read(self, data: bytes) -> None:
        try:
            commands = self.codec.receive(data)
        except RemoteProtocolError as error:
            self._is_behind = False
            if self.is_open:
                self.end(error.reason, str(error))
            return
        self._is_behind = len(commands) >= FRAMES_AT_ONCE
        self._said.extend(commands)

    def _take_command(self, command: Command) -> bool:
        fetch = self.arrivals.came(command)
        if fetch is None:
            return True
        # Messages that are sent again are looked up in the journal. Later commands wait, most of
        # them still in the socket.
        self.pause_reading("journal")
        if type(command) is PublishBatchCommand and len(command.payload) > SLICE_BYTES:
            with suppress(RemoteProtocolError):  # The connection has been ended then.
                self._clients.in_hand.holds(self.in_hand, len(command.payload))
            if not self.is_open:
                return False
        self._clients.reading.read_for(self, fetch)
        return False

    def _take_next(self) -> bool:
        """Performs the next command. Returns whether another one may be taken now."""
        if not self.is_open:
            self._said.clear()
            self._is_behind = False
            return False
        if not self._said:
            self._read(b"")
            return True
        if self._has_long_filter(self._said[0]):
            wait_s = self._clients.filter_wait_s(self.number)
            if wait_s:
                self.pause_reading("turn")
                self.loop.call_later(min(wait_s, FILTER_WAIT_MAX_S), self._clients.turns.add, self)
                return False
        return self._take_command(self._said.popleft())

    def _has_long_filter(self, command: Command) -> bool:
        if isinstance(command, SowAndSubscribe):
            command = command.sow
        if not isinstance(command, Subscribe | SowCommand):
            return False
        return len(command.filter) > SHORT_FILTER_CHARACTERS

    def _wait_for_turn(self) -> None:
        self.pause_reading("turn")
        self._clients.turns.add(self)

    def take_one(self) -> bool:
        """Performs one of the waiting commands. Returns whether another one may be taken now."""
        try:
            if not self._take_next():
                return False
        except Exception as error:
            self.failed(error)
            return False
        if self._said or self._is_behind:
            return True
        self.resume_reading("turn")
        return False

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in performing one of its commands."""
        who = f"{self.client_name} at {self.peer}" if self.client_name else self.peer
        self._instance.contain(error, who, self.end)

    @property
    def takes_parts(self) -> bool:
        """True where the next part of a long batch may be taken."""
        return self._commits.takes_parts

    def waits_for(self, go_on: Callable[[], None]) -> bool:
        """Returns whether the next part has to wait for anything but its turn: never."""
        return False

    def went_on(self, is_waiting: bool) -> None:
        """Goes on after the command that waited for the journal was taken; `is_waiting`: another
        one waits for it."""
        if is_waiting:
            return
        if self.in_hand.bytes:
            self._clients.in_hand.holds(self.in_hand, 0)
        if self._said or self._is_behind:
            self._wait_for_turn()
        else:
            self.resume_reading("turn")
        self.resume_reading("journal")

    def unreadable(self, error: StorageError) -> None:
        self.end("storage_error", str(error))

    def writable(self) -> None:
        self._clients.queries.connection_writable(self)
        self._clients.replays.connection_writable(self)
        self._clients.queued.writable(self)

    def go_offline(self, buffer: OfflineBuffer) -> None:
        """Sends to the buffer what the client's socket does not take. Queues give the client
        nothing meanwhile."""
        super().go_offline(buffer)
        self._clients.queued.went_offline(self)
        self._clients.occurrences.went_offline(self)

    def came_online(self) -> None:
        """Tells the listeners that the client has caught up."""
        self._clients.occurrences.came_online(self)

    def room(self) -> None:
        """Continues queries, as there is room again for bytes on their way to the disk."""
        self._clients.queries.connection_writable(self)

    def end(self, reason: str, text: str, **said: Any) -> None:
        if not self.is_open:
            return
        self.end_reason = reason
        if self.client_name:
            self._runtime.report(
                "client_disconnected", client=self.client_name, peer=self.peer, reason=reason
            )
        self.send(self.codec.acknowledgment("processed", "", reason, text, **said))
        if reason == SLOW_CLIENT:
            # A slow client may never read: a close that waits for it would keep its buffer in use.
            self.write_collected()
            self.abort(text)
        else:
            self.close(text)

    def ended(self, why: str) -> None:
        self.codec.closed()
        self.arrivals.clear()
        self._said.clear()
        self._is_behind = False
        self._clients.connection_limit.left(self)
        self.accepted_by.left(self)
        for timer in (self._logon_timer, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()
        if self.client_name and self.end_reason == CONNECTION_CLOSED:
            self._runtime.report(
                "client_left", client=self.client_name, peer=self.peer, reason="connection_closed"
            )
        self._clients.occurrences.disconnected(self, self.end_reason)
        self._clients.gone(self)

    def _slow_down(self) -> None:
        """Pauses reading, as too many of the client's publishes wait for their persisted acks."""
        self.pause_reading("outstanding")
        if self._acks.times_slowed == 1:  # A client may be slowed again and again.
            self._runtime.report(
                "publisher_slowed",
                client=self.client_name,
                peer=self.peer,
                transport=self.accepted_by.name,
                outstanding=len(self._acks.outstanding),
            )

    # -- commands ----------------------------------------------------------------------------
    def _perform(self, command: Command, answers: LookupResult) -> LookupRequest | None:
        if not self.is_open:
            return None
        decoded = answers.decoded
        if decoded is not None and decoded is not command:
            if isinstance(decoded, PublishInParts):
                return self._take_parts(decoded, answers)
            if isinstance(decoded, BatchScan):
                resent = command.resent if type(command) is PublishBatchCommand else None
                return self._scan_on(decoded, answers, resent)
            runs, processed, resent = decoded
            return self._take_now(runs, processed, answers, resent)
        if type(command) is PublishBatchCommand:
            return self._publish_batch(command, answers)
        if isinstance(command, Publish):
            return self._publish(command, answers)
        if isinstance(command, _BEHIND_FOLDS):
            questions = self._behind_folds(command, answers)
            if questions is not None:
                return questions
        if isinstance(command, Subscribe):
            self._asking.subscribe(command)
        elif isinstance(command, SowCommand | SowAndSubscribe):
            self._asking.query(command)
        elif isinstance(command, Unsubscribe):
            self._asking.unsubscribe(command)
        elif isinstance(command, Pause | Resume):
            self._asking.pause_or_resume(command)
        elif isinstance(command, Flush):
            self._flush(command)
        elif isinstance(command, Heartbeat):
            self._heartbeat(command)
        elif isinstance(command, Ping):
            self.send(self.codec.acknowledgment("processed", command.command_id))
        elif isinstance(command, QueueCancel | QueueAck | QueueStatus):
            self._asking.queue(command)
        elif isinstance(command, ReaderCommand):
            self._asking.reader(command)
        elif isinstance(command, CommandRefused):
            self._refused(command)
        elif isinstance(command, Logon):
            self._logon.ask(command)
        elif isinstance(command, Logoff):
            runtime = self._runtime
            self._instance.machine.client_logged_off(
                self.number, command.unused, runtime.steady_us()
            )
        return None

    def _behind_folds(self, command: Command, answers: LookupResult) -> LookupRequest | None:
        """Returns a look-up that waits until everything is folded that was committed when the
        command came; None once it has waited. Later commits do not matter."""
        if answers.decoded is command:
            return None
        behind = self._clients.folds.behind()
        if behind is None:
            return None
        answers.decoded = command
        questions = LookupRequest()
        questions.looking.append(behind)
        return questions

    def _refused(self, command: CommandRefused) -> None:
        sequence = command.header.get("s")
        if command.header["c"] == "p" and type(sequence) is int:
            self.send(self.codec.persisted_ack(sequence, command.reason, command.text))
        else:
            subscription = command.header.get("sub")
            extras: dict[str, Any] = {}
            if isinstance(subscription, str) and len(subscription) <= SUBSCRIPTION_ID_BYTES_MAX:
                extras["sub"] = subscription
            self.send(
                self.codec.acknowledgment(
                    "processed",
                    command.command_id or ("-" if not extras else ""),
                    command.reason,
                    command.text,
                    **extras,
                )
            )

    def _refused_as(self, command_id: str, reason: str, text: str) -> None:
        self.send(self.codec.acknowledgment("processed", command_id or "-", reason, text))

    @property
    def readable(self) -> Callable[[bytes], bool] | None:
        """Returns the test whether the client may read a topic that a regular expression matches;
        None: it may read all."""
        return None if self.permissions is None else partial(readable, self.permissions)

    def keeps_back(self, wanted: TopicFilter) -> bool:
        """Returns whether the client may read only some messages of a topic, or of a topic that a
        regular expression may match."""
        permissions = self.permissions
        if permissions is None or wanted.pattern is not None:
            return wanted.is_limited
        return bool(permissions.read(wanted.topic).filter)

    @property
    def rows(self) -> RowFilters | None:
        """Returns the row filters of topics that the client may read in part; None: there are
        none."""
        permissions, found = self.permissions, self._rows
        if permissions is None or not permissions.restricts_rows:
            return None
        if found is None or found.permissions is not permissions:
            found = self._rows = self._clients.row_filters(self, permissions)
        return found

    def began(
        self, subscription: LiveSubscription | BookmarkSubscription, *, replaces: bool = False
    ) -> None:
        """Tells the listeners that a subscription has begun."""
        self._clients.occurrences.subscribed(self, subscription, replaces=replaces)

    def stopped(self, subscription: LiveSubscription | BookmarkSubscription, reason: str) -> None:
        """Tells the listeners that a subscription ends."""
        self._clients.occurrences.unsubscribed(self, subscription, reason)

    def logged_on(self, logon: Logon, answer: LogonAnswer) -> None:
        runtime, clients = self._runtime, self._clients
        self._acks.conflation_s = logon.ack_conflation_ms / 1000
        self.publisher = answer.publisher
        self.codec.logged_on()
        if self._logon_timer is not None:
            self._logon_timer.cancel()
        clients.connection_limit.admitted(self)
        self.accepted_by.admitted(self)
        clients.admitted(self)
        identity = self._instance.identity
        self.send(
            self.codec.logon_answer(
                logon.command_id,
                instance=identity.name,
                group=identity.group,
                incarnation=identity.incarnation,
                publisher=answer.publisher,
                durable=answer.durable,
                highest=answer.highest,
                peers=clients.peers(),
                now_us=runtime.now_us(),
                unused=answer.unused,
                types=clients.told_types,
            )
        )
        clients.occurrences.logged_on(self)

    # -- publishing --------------------------------------------------------------------------
    def _publish_batch(
        self, command: PublishBatchCommand, answers: LookupResult
    ) -> LookupRequest | None:
        if len(command.payload) < RECORD_HEADER_BYTES:
            self.end("bad_record", "a publish batch holds no whole record")
            return None
        self._acks.wants_persisted = True
        return self._take_records(command.payload, command.count, b"", answers, command.resent)

    def _take_records(
        self,
        payload: bytes,
        count: int,
        processed: bytes,
        answers: LookupResult,
        resent: str | None = None,
    ) -> LookupRequest | None:
        # The sequence lies at byte 36 of a record (services/messages/records.py).
        first = int.from_bytes(payload[36:44], "little")
        if first <= self.published_upto:
            self.end(
                "sequence_order",
                f"sequence {first} came on one connection after {self.published_upto}",
            )
            return None
        if not self.published_upto:
            self.published_from = first
        machine, types = self._instance.machine, self.message_types
        if len(payload) > SLICE_BYTES and not processed:
            return self._scan_on(
                machine.batch_scan(self.number, payload, count, types), answers, resent
            )
        try:
            runs = machine.client_runs(self.number, payload, count, types)
        except (CorruptRecord, RemoteProtocolError) as error:
            self._end_for(error)
            return None
        return self._take_runs(runs, processed, answers, resent)

    def _end_for(self, error: CorruptRecord | RemoteProtocolError) -> None:
        """Ends the session for a batch that cannot be taken at all."""
        reason = error.reason if isinstance(error, RemoteProtocolError) else "bad_record"
        # The client tells by them which of its publishes are refused.
        takes = sorted(kind.decode() for kind in self.message_types)
        said = {"types": takes} if reason == "bad_message_type" else {}
        self.end(reason, str(error), **said)

    def _scan_on(
        self, scan: BatchScan, answers: LookupResult, resent: str | None
    ) -> LookupRequest | None:
        """Checks one slice of a long batch, and the next one in another turn. The batch is taken
        after the last."""
        try:
            runs = scan.end() if scan.take() else None
        except (CorruptRecord, RemoteProtocolError) as error:
            self._end_for(error)
            return None
        if runs is not None:
            return self._take_runs(runs, b"", answers, resent)
        answers.decoded = scan
        return another_turn()

    def _take_runs(
        self, runs: list[Run], processed: bytes, answers: LookupResult, resent: str | None
    ) -> LookupRequest | None:
        """Takes runs of publishes. `processed`: the frame that acknowledges them, sent if any are
        taken."""
        in_parts = self._clients.in_parts(runs, self.judge)
        if in_parts is not None:
            in_parts.resent = resent
            return self._take_parts(in_parts, answers)
        return self._take_now(runs, processed, answers, resent)

    def _take_now(
        self, runs: list[Run], processed: bytes, answers: LookupResult, resent: str | None
    ) -> LookupRequest | None:
        runtime = self._runtime
        if self._commits.cycle.failure is not None:
            self.end(*self._commits.cycle.failure)
            return None
        questions = self._instance.machine.asks(runs, answers)
        if questions:
            answers.decoded = runs, processed, resent
            return questions
        effects, transient = self._instance.machine.client_published(
            self.number, runs, runtime.steady_us(), answers, resent
        )
        self.published_upto = self._instance.machine.received_of(self.number)
        count = 0
        for run in runs:
            count += run.count
        self.messages_in += count
        self._acks.batch(self.published_upto)
        if self._acks.counts:
            self._acks.taken(self.published_upto, count)
        self._instance.perform(effects)
        if transient:
            self._clients.live.transient(transient)
        self._commits.check_staged(self)
        self._clients.slowed.check(self, is_link=False)
        if DELETE in runtime.occurrences.listened:
            self._clients.occurrences.deleted(self, runs)
        if processed and not any(type(effect) is RefuseClient for effect in effects):
            self.send(processed)
        return None

    def _take_parts(self, published: PublishInParts, answers: LookupResult) -> LookupRequest | None:
        """Takes one part of a batch, and the next one in another turn."""
        part = published.part
        if part is None:
            return None
        questions = self._take_now(part, b"", answers, published.resent)
        if questions is None and self.is_open:
            # Look-ups for this part are not reused for the next one.
            answers.close()
            answers.clear()
            published.go_on()
            if published.part is not None:
                questions = another_turn()
        if questions is not None:
            answers.decoded = published
        return questions

    def _publish(self, command: Publish, answers: LookupResult) -> LookupRequest | None:
        runtime = self._runtime
        acks = command.acks
        sequence = command.sequence
        publisher = self.publisher
        refusal = self._why_not(command)
        if refusal is not None:
            self._not_taken(command, *refusal)
            return None
        if not sequence:
            try:
                publisher, sequence = self._instance.machine.number_for(self.client_name)
            except RemoteProtocolError as error:
                self._refused_as(command.command_id, error.reason, str(error))
                return None
        now_us = runtime.now_us()
        record = self._builder(publisher, command.topic, command.message_type).build(
            sequence,
            command.body,
            now_us,
            command=command.command,
            expiration_s=command.expiration_s,
            key=command.key,
            correlation=command.correlation,
        )
        if len(record) > RECORD_BYTES_MAX:
            text = (
                f"message of {len(command.body)} bytes is a record of {len(record)}: "
                f"a record may have {RECORD_BYTES_MAX} with topic, type, key and correlation id"
            )
            self._not_taken(command, "bad_record", text)
            return None
        if "received" in acks:
            self.send(self.codec.acknowledgment("received", command.command_id))
        processed = b""
        if "processed" in acks:
            processed = self.codec.acknowledgment(
                "processed", command.command_id, s=sequence, bm=f"{publisher}|{sequence}|"
            )
        if command.sequence:
            if "persisted" in acks:
                self._acks.wants_persisted = True
            return self._take_records(record, 1, processed, answers)
        if self._take_unnumbered(record, command, now_us) and processed:
            self.send(processed)
        return None

    def _not_taken(self, command: Publish, reason: str, text: str) -> None:
        if command.sequence:
            # The refusal is sent by itself: the persisted ack of the next message would cover it.
            self.send(self.codec.persisted_ack(command.sequence, reason, text))
        else:
            self._refused_as(command.command_id, reason, text)

    def _why_not(self, command: Publish) -> tuple[str, str] | None:
        """Returns the reason and the sentence with which a message is refused; None: it is
        taken."""
        size_bytes = len(command.body) + len(command.topic) + 256
        if size_bytes > RECORD_BYTES_MAX:
            return (
                "bad_record",
                f"message of {len(command.body)} bytes: at most {RECORD_BYTES_MAX} with topic",
            )
        types = self.message_types
        message_type = command.message_type.encode()
        if types and message_type not in types:
            return "bad_message_type", not_of_transport(command.message_type, types)
        topics, topic = self._instance.machine.topics, command.topic.encode()
        entry = topics[topic, message_type]
        if not entry.declared:
            return topics.undeclared(topic, message_type)
        if command.command not in MESSAGES and entry.changed_by(command.command) is None:
            return topics.unchanged(topic, message_type, command.command)
        return None

    def _builder(self, publisher: int, topic: str, message_type: str) -> RecordBuilder:
        key = (publisher, topic, message_type)
        found = self._builders.get(key)
        if found is None:
            if len(self._builders) >= 1024:
                self._builders.clear()
            found = self._builders[key] = RecordBuilder(publisher, topic, message_type)
        return found

    def _take_unnumbered(self, record: bytes, command: Publish, now_us: int) -> bool:
        runtime = self._runtime
        if self._commits.cycle.failure is not None:
            self.end(*self._commits.cycle.failure)
            return False
        self.messages_in += 1
        (run,) = self._instance.machine.topics.routed(run_of(scan(record, verify=False)[0], record))
        entry = self._instance.machine.topics[run.topic, run.message_type]
        if self.judge is not None:
            judged = self.judge(run, by_record=entry.judges_records)
            if judged.authored:
                self._instance.perform(
                    self._instance.machine.authored(judged.authored, runtime.steady_us())
                )
            if judged.refused:
                self._acks.denied += 1
                self._publish_denied(command.topic, command.message_type, judged.refused[0].text)
                self._refused_as(command.command_id, *judged.refused[0][1:])
                return False
        wanted = command.command_id if "persisted" in command.acks else ""
        if DELETE in runtime.occurrences.listened:
            self._clients.occurrences.deleted(self, [run])
        if not entry.journaled:
            run.receive_time_us = now_us
            self._clients.live.transient([run])
            if wanted:
                self.send(self.codec.acknowledgment("persisted", wanted, unjournaled=1))
            return True
        effects, refused = self._instance.machine.client_published_unnumbered(
            self.number, run, self._acks.unnumbered(wanted), runtime.steady_us()
        )
        if refused is not None:
            self._acks.unnumbered_refused()
            self._refused_as(command.command_id, refused.reason, refused.text)
        self._instance.perform(effects)
        self._commits.check_staged(self)
        self._clients.slowed.check(self, is_link=False)
        return refused is None

    def _flush(self, command: Flush) -> None:
        acks, command_id = command.acks, command.command_id
        if "persisted" in acks and not self._acks.flush(self.published_upto, command_id):
            self._refused_as(
                command_id,
                TOO_MANY,
                f"{FLUSHES_MAX} flushes of this connection wait for persisted acks: wait for "
                "one of them first",
            )
            return
        if "completed" in acks:
            self.send(self.codec.acknowledgment("completed", command.command_id))
        if "processed" in acks or not acks:
            self.send(self.codec.acknowledgment("processed", command.command_id))

    def refused(self, refusal: RefuseClient) -> None:
        """Sends the refusal of publishes that the machine refuses for good."""
        if refusal.reason == NOT_ENTITLED:
            self._publish_denied("", "", refusal.text)
        self._acks.refused(refusal)

    def _publish_denied(self, topic: str, message_type: str, text: str) -> None:
        self._clients.occurrences.denied(self, "publish", topic, message_type, text)

    # -- deliveries --------------------------------------------------------------------------
    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        """Sends one delivery; its bytes are shared with other subscribers."""
        self.messages_out += delivery.count
        self.send_parts(*self._delivery(subscription, delivery))
        if DELIVER in self._runtime.occurrences.listened:
            self._clients.deliver_occurrences.delivered(
                self.client_name, delivery.bodies, journaled=delivery.first_txid > 0
            )

    def out_of_focus(self, subscription: str, reason: str, left: DeliveryContent) -> None:
        self.send_parts(*self.codec.oof(subscription, reason, left))

    def hold(self, behind: DeferredDeliveries | None) -> None:
        """Sends the client's deliveries to this holder from now on; None: to the client itself,
        behind those that were held."""
        before, self.behind = self.behind, behind
        self.sink = behind or self
        if before is not None:
            before.release(self.sink)
        if behind is None and self.may_write:
            self._clients.replays.connection_writable(self)

    @property
    def takes_replays(self) -> bool:
        """Returns whether more of a replay is to be sent now."""
        return self.may_write and self.behind is None and self.is_open

    # -- heartbeat ---------------------------------------------------------------------------
    def _heartbeat(self, command: Heartbeat) -> None:
        if command.start_s is None:
            return
        self._heartbeat_s = float(command.start_s)
        if command.command_id:
            self.send(self.codec.acknowledgment("processed", command.command_id))
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._beat()

    def _beat(self) -> None:
        heard_s = self.received_at_s
        silent_s = self.loop.time() - heard_s
        is_silent = silent_s > self._heartbeat_s and self.reading
        if is_silent and self._suspected_s == heard_s:
            self.end("heartbeat", f"nothing came for {silent_s:.1f} s")
            return
        if is_silent:
            # This loop may have been blocked as long as the silence: bytes that lie unread are
            # read first.
            self._suspected_s = heard_s
            self._heartbeat_timer = self.loop.call_later(UNREAD_S, self._beat)
            return
        self.send(self.codec.heartbeat)
        self._heartbeat_timer = self.loop.call_later(self._heartbeat_s / 2, self._beat)
