"""The client's decisions: values in, values out.

The shell (client.py, or the simulator) feeds events to `step` and performs the effects in order.
Two paths stay outside of `step`, because they are walked for every message or batch: `publish`
and `next_batch` on the way out, `arrived` on the way in.

    publish → publish store, and the tail that was not sent yet
    next_batch → what to send: after a logon first what the store holds and the server lacks
    persisted acks → the publish store forgets
    deliveries → `arrived`, which leaves out what came before

Publishing. A publisher's sequences ascend without end: behind the highest that its store or any
server saw. A client whose store does not know its past begins at the clock in microseconds, since
some instance that it does not ask may have seen more than the one it asks.

Invariants:
- a record leaves the publish store only when the server said that it is durable, or refused it;
- on one connection sequences are sent in ascending order, and each once;
- nothing is sent or taken off the store on a connection whose instance the chooser refuses;
- effects of an old connection's events are none.

Owner: one shell, on one thread. Lifecycle: `Started` … `Stopped` or `Failed`; it is not started
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from raylay.services.client.events import (
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnect,
    Disconnected,
    Effect,
    Event,
    Fail,
    FrameReceived,
    PauseAnswered,
    PauseWanted,
    PeerBecameSafe,
    PeerBecameUnsafe,
    PublishFailed,
    ResolveServers,
    ResumeWanted,
    SendFrame,
    SendPublishes,
    ServerRefused,
    ServersResolved,
    Settled,
    Started,
    Stopped,
    SubscriptionAccepted,
    SubscriptionCompleted,
    SubscriptionFailed,
    SubscriptionPersisted,
    SubscriptionUnwanted,
    SubscriptionWanted,
    Tell,
    TimePassed,
    WaitingForSafeInstance,
    WaitingForServer,
)
from raylay.services.client.failover import (
    Backoff,
    FailoverRule,
    Server,
    ServerChooser,
    read_peers,
)
from raylay.services.client.messages import MessageBatch
from raylay.services.client.publish_store import PublishStore
from raylay.services.client.resumption import Resumption, read_have
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConnectionLost,
    LocalProtocolError,
    LogonRefused,
    RaylayError,
    RemoteProtocolError,
    SequenceConflict,
)
from raylay.services.messages.records import (
    EXPIRATION_S_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    SEQUENCE_MAX,
    RecordBuilder,
    publisher_id,
)
from raylay.services.protocol.frames import PROTOCOL_VERSION, Header

BUILDERS_MAX = 10_000
"""Topics whose record builders are kept; a client that uses more builds them anew."""
STABLE_AFTER_S = 1.0
"""A connection that lasted as long ends the growth of the reconnect pauses."""
FAILURES_MAX = 1_000
"""Refused publishes remembered until somebody asks."""

_LOGON = "logon"
ASK_AFTER_ROUNDS = 3
"""In which nobody was found: then those are asked where others live who may not be used."""
_TRY_ELSEWHERE = frozenset(
    (
        "not_ready",
        "shutting_down",
        "logon_timeout",
        "storage_full",
        "storage_error",
        "heartbeat",
        "slow_client",
    )
)
"""Reasons that end a connection and may be gone at another server or a little later. Every other
refusal of a logon, and `name_in_use` at any time, would only come again."""


@dataclass(slots=True)
class ClientOptions:
    """What does not change while a client lives."""

    client_name: str
    servers: tuple[Server, ...] = ()
    resolves: bool = False
    """Whether servers are looked up anew (`ResolveServers`) for every round of attempts."""
    group: str = ""
    allow_other_groups: bool = False
    failover: FailoverRule = "safe"
    user_id: str = ""
    password: str = field(default="", repr=False)
    heartbeat_s: float = 5.0
    """A server that is silent as long is taken for dead; 0: never."""
    ack_conflation_ms: int = 0
    connect_timeout_s: float = 3.0
    """For connecting and logging on together."""
    pause_min_ms: int = 50
    pause_max_ms: int = 3_000
    clock_us: int = 0
    """Microseconds since 1970 when the client was made."""
    seed: int = 0


class State(Enum):
    """Where the client stands."""

    NEW = "new"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    LOGGING_ON = "logging on"
    READY = "ready"
    PAUSING = "pausing"
    ENDED = "ended"


def check_values(expiration_s: int, key: bytes, correlation: bytes) -> None:
    """Raises LocalProtocolError where a value of a publish has no place in a record."""
    if not 0 <= expiration_s <= EXPIRATION_S_MAX:
        raise LocalProtocolError(
            f"expiration of {expiration_s} s: give one of 0 to {EXPIRATION_S_MAX}"
        )
    for what, value in (("SOW key", key), ("correlation id", correlation)):
        if len(value) > KEY_BYTES_MAX:
            raise LocalProtocolError(
                f"{what} is {len(value)} bytes long: give one of at most {KEY_BYTES_MAX}"
            )


class PublishBatch(NamedTuple):
    """What one `pb` frame takes: records with ascending sequences."""

    first: int
    last: int
    records: list[bytes]


class ClientMachine:
    """See the top of this file."""

    def __init__(self, options: ClientOptions, store: PublishStore) -> None:
        self.options = options
        self.store = store
        self.publisher = publisher_id(options.client_name)
        self.chooser = ServerChooser(
            options.servers,
            group=options.group,
            allow_other_groups=options.allow_other_groups,
            failover=options.failover,
        )
        self.chooser.recall(store.words)
        self.state = State.NEW
        self.ended = False
        self.connection = 0
        """Number of the current stream; events of others are void."""
        self.instance = ""
        """The instance logged on to; empty while there is none."""
        self.incarnation: object = None
        self.subscriptions: dict[str, Resumption] = {}
        self.failures: deque[PublishFailed] = deque(maxlen=FAILURES_MAX)
        self.unjournaled = 0
        """Publishes that went to live subscribers only, as far as the server said so."""
        self._refused_for = ("", "")
        """Reason and text of the last refusal: of several at once only the first has the text."""
        self.next_sequence = 0
        """The next publish's; 0 until the first logon told where to begin."""
        self.heard_s = 0.0
        """When the server was last heard. The shell sets it: a step a read would cost more."""
        self.reading_paused = False
        """Set by the shell while it does not read: silence then proves nothing."""
        self._backoff = Backoff(options.pause_min_ms, options.pause_max_ms, options.seed)
        self._untried: deque[str] = deque()
        self._asks: frozenset[str] = frozenset()
        """Of these, who may not be used and is only asked where others live."""
        self._address = ""
        self._deadline_s: float | None = None
        self._beat_due_s: float | None = None
        self._ready_since_s = 0.0
        self._commands: dict[str, str] = {}
        self._command_number = 0
        # Pauses and resumes on their way: command id to the number of the question.
        self._asked: dict[str, int] = {}
        self._group_number = 0
        self._builders: dict[tuple[str, str], RecordBuilder] = {}
        # Records not sent on this connection: first what the store held at the logon up to
        # `_resend_upto`, then `_tail`, which grows by every publish.
        self._resend: Iterator[tuple[int, bytes]] | None = None
        self._resend_upto = 0
        self._sent_upto = 0
        self._resend_next: tuple[int, bytes] | None = None
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._tail_first = 0
        self._settled_upto = 0
        self._handlers: dict[type[Any], Callable[[Any, float, list[Effect]], None]] = {
            Started: self._started,
            ServersResolved: self._servers_resolved,
            ConnectionOpened: self._connection_opened,
            ConnectionEnded: self._connection_ended,
            FrameReceived: self._frame_received,
            SubscriptionWanted: self._subscription_wanted,
            SubscriptionUnwanted: self._subscription_unwanted,
            PauseWanted: self._pause_wanted,
            ResumeWanted: self._resume_wanted,
            TimePassed: self._time_passed,
            Stopped: self._stopped,
        }

    # -- publishing --------------------------------------------------------------------------
    def builder(self, topic: str, message_type: str) -> RecordBuilder:
        """The record builder of a topic and type, made when there is none.

        Raises:
            LocalProtocolError: topic or type is empty or too long.
        """
        found = self._builders.get((topic, message_type))
        if found is None:
            if len(self._builders) >= BUILDERS_MAX:
                self._builders.clear()
            found = RecordBuilder(self.publisher, topic, message_type)
            self._builders[topic, message_type] = found
        return found

    def publish(
        self,
        topic: str,
        body: bytes,
        message_type: str,
        origin_time_us: int,
        trace: bytes = b"",
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> int:
        """Numbers, stores and queues one message. Returns its sequence.

        Raises:
            PublishStoreFull: the store is at its limit; nothing was done.
            ConnectionLost: the client was never connected, or is closed.
            LocalProtocolError: topic, type or size break a limit; nothing was done.
        """
        builder = self._builders.get((topic, message_type))
        if builder is None:
            builder = self.builder(topic, message_type)
        sequence = self.next_sequence
        if self.ended:
            raise ConnectionLost(f"client {self.options.client_name} is closed")
        if not 0 < sequence <= SEQUENCE_MAX:
            raise self._unnumbered()
        if expiration_s or key or correlation:
            check_values(expiration_s, key, correlation)
            record = builder.build(
                sequence,
                body,
                origin_time_us,
                trace,
                expiration_s=expiration_s,
                key=key,
                correlation=correlation,
            )
        else:
            record = builder.build(sequence, body, origin_time_us, trace)
        if len(record) > RECORD_BYTES_MAX:
            raise LocalProtocolError(
                f"message of {len(body)} bytes on {topic} is a record of {len(record)}: "
                f"a record may have {RECORD_BYTES_MAX} with topic, type, key and correlation id"
            )
        self.store.put(sequence, record)
        self._tail.append(record)
        self._tail_bytes += len(record)
        self.next_sequence = sequence + 1
        return sequence

    def _unnumbered(self) -> Exception:
        if not self.next_sequence:
            return ConnectionLost("connect before the first publish: a server must say the number")
        return LocalProtocolError(
            f"client {self.options.client_name} has no sequence left, the highest is "
            f"{SEQUENCE_MAX}: choose another client name"
        )

    def next_batch(self, bytes_max: int) -> PublishBatch | None:
        """What to send next, up to `bytes_max` of records; a single larger record still goes. None
        when nothing waits or nobody listens. The caller has flushed the store before: a crash must
        not leave a server with a sequence that the store would give out again."""
        if self.state is not State.READY:
            return None
        if self._resend_next is not None:
            return self._next_resend(bytes_max)
        tail = self._tail
        first = self._tail_first
        if not tail:
            return None
        records: list[bytes] = []
        if self._tail_bytes <= bytes_max:
            records.extend(tail)
            tail.clear()
            self._tail_bytes = 0
        else:
            size = 0
            while tail and (not records or size + len(tail[0]) <= bytes_max):
                record = tail.popleft()
                size += len(record)
                records.append(record)
            self._tail_bytes -= size
        self._tail_first = first + len(records)
        self._sent_upto = self._tail_first - 1
        return PublishBatch(first, self._sent_upto, records)

    def _next_resend(self, bytes_max: int) -> PublishBatch:
        """A batch of what the store held at the logon, from `_resend_next` on."""
        entry = self._resend_next
        assert entry is not None and self._resend is not None
        first = last = entry[0]
        records: list[bytes] = []
        size = 0
        while entry is not None and (not records or size + len(entry[1]) <= bytes_max):
            last = entry[0]
            records.append(entry[1])
            size += len(entry[1])
            entry = next(self._resend, None)
            if entry is not None and entry[0] > self._resend_upto:
                entry = None
        self._resend_next = entry
        if entry is None:
            self._resend = None
        self._sent_upto = last
        return PublishBatch(first, last, records)

    @property
    def unsent(self) -> bool:
        """Whether `next_batch` may have something on this connection."""
        return self.state is State.READY and (bool(self._tail) or self._resend_next is not None)

    @property
    def unsent_messages(self) -> int:
        """Publishes not handed to a connection yet, those resent not counted."""
        return len(self._tail)

    @property
    def settled_upto(self) -> int:
        """Every publish up to this sequence is durable or was refused. 0 before the first logon."""
        lowest = self.store.lowest
        return (lowest or self.next_sequence) - 1 if self.next_sequence else 0

    @property
    def waits_for_safe_instance(self) -> bool:
        """Whether it is not connected, and some servers must not be failed over to."""
        return self.state not in (State.READY, State.ENDED) and bool(self.chooser.refused())

    @property
    def status(self) -> str:
        """Where it stands, in words."""
        if self.state is State.READY:
            return f"connected to {self.instance} at {self._address}"
        refused = "; ".join(f"{name}: {why}" for name, why in self.chooser.refused().items())
        waiting = f", not usable: {refused}" if refused and self.state is not State.ENDED else ""
        return f"not connected ({self.state.value}){waiting}"

    # -- deliveries --------------------------------------------------------------------------
    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """The messages of a delivery that are to be handed out; None when there are none."""
        subscription = self.subscriptions.get(header.get("sub", ""))
        return subscription.arrived(header, payload) if subscription is not None else None

    # -- events ------------------------------------------------------------------------------
    def step(self, event: Event, now_s: float) -> list[Effect]:
        """Takes one event. `now_s` is a clock in seconds that never goes back."""
        effects: list[Effect] = []
        self._handlers[type(event)](event, now_s, effects)
        return effects

    @property
    def wake_s(self) -> float | None:
        """When `TimePassed` is due, in `now_s`; None: not before another event."""
        due = self._deadline_s
        if self.state is State.READY and self._beat_due_s is not None:
            due = self._beat_due_s if due is None else min(due, self._beat_due_s)
        return due

    def _started(self, _: Started, now_s: float, effects: list[Effect]) -> None:
        assert self.state is State.NEW
        self._begin_round(now_s, effects)

    def _stopped(self, _: Stopped, now_s: float, effects: list[Effect]) -> None:
        if self.connection and self.state is not State.ENDED:
            effects.append(Disconnect(self.connection))
        self._end()

    def _end(self) -> None:
        self.state = State.ENDED
        self.ended = True
        self.instance = ""
        self._deadline_s = self._beat_due_s = None
        self.connection += 1

    # -- finding a server --------------------------------------------------------------------
    def _begin_round(self, now_s: float, effects: list[Effect]) -> None:
        if self.options.resolves:
            self.state = State.RESOLVING
            self._deadline_s = None
            effects.append(ResolveServers())
            return
        self._list_servers()
        self._next_server(now_s, effects)

    def _list_servers(self) -> None:
        asks = self.chooser.to_ask() if self._backoff.tries >= ASK_AFTER_ROUNDS else []
        self._asks = frozenset(asks)
        self._untried = deque((*self.chooser.candidates(), *asks))

    def _servers_resolved(
        self, event: ServersResolved, now_s: float, effects: list[Effect]
    ) -> None:
        if event.servers is not None:
            self.chooser.set_servers(event.servers)
        if self.state is State.RESOLVING:
            self._list_servers()
            self._next_server(now_s, effects)

    def _next_server(self, now_s: float, effects: list[Effect]) -> None:
        if not self._untried:
            self._pause(now_s, effects)
            return
        self.connection += 1
        self.state = State.CONNECTING
        self._address = self._untried.popleft()
        self._deadline_s = now_s + self.options.connect_timeout_s
        effects.append(Connect(self.connection, self._address))

    def _pause(self, now_s: float, effects: list[Effect]) -> None:
        self.state = State.PAUSING
        pause_s = self._backoff.next_pause_s()
        self._deadline_s = now_s + pause_s
        refused = tuple(self.chooser.refused().items())
        effects.append(
            Tell(WaitingForSafeInstance(refused, pause_s) if refused else WaitingForServer(pause_s))
        )

    def _connection_opened(
        self, event: ConnectionOpened, now_s: float, effects: list[Effect]
    ) -> None:
        if event.connection != self.connection or self.state is not State.CONNECTING:
            return
        self.state = State.LOGGING_ON
        options = self.options
        header: Header = {
            "c": "logon",
            "v": PROTOCOL_VERSION,
            "client_name": options.client_name,
            "low": self.store.lowest or 0,
            "cid": _LOGON,
            "o": {"ack_conflation_ms": options.ack_conflation_ms},
        }
        if options.user_id:
            header["user_id"] = options.user_id
        if options.password:
            header["pw"] = options.password
        effects.append(SendFrame(header))

    def _connection_ended(
        self, event: ConnectionEnded, now_s: float, effects: list[Effect]
    ) -> None:
        if event.connection == self.connection:
            if self.state is State.LOGGING_ON:
                effects.append(Tell(ServerRefused("", self._address, event.reason)))
            self._lost(event.reason, now_s, effects)

    def _lost(self, reason: str, now_s: float, effects: list[Effect], text: str = "") -> None:
        """The stream is gone or given up: on to the next server."""
        was = self.state
        if was in (State.CONNECTING, State.LOGGING_ON):
            self._next_server(now_s, effects)
            return
        if was is not State.READY:
            return
        effects.append(Tell(Disconnected(self.instance, self._address, reason, text)))
        self.instance = ""
        self._beat_due_s = None
        self._commands.clear()
        # What was not sent is in the store and is found there after the next logon.
        self._drop_tail()
        self._resend = self._resend_next = None
        for subscription in self.subscriptions.values():
            subscription.active = False
        # What was asked is remembered, and holds again at the next connection.
        effects.extend(PauseAnswered(number) for number in self._asked.values())
        self._asked.clear()
        if now_s - self._ready_since_s >= STABLE_AFTER_S:
            self._backoff.reset()
            self._begin_round(now_s, effects)
        elif self._backoff.tries:
            # Logged on and thrown out, again: not in a tight loop.
            self.connection += 1
            self._pause(now_s, effects)
        else:
            self._backoff.tries = 1
            self._begin_round(now_s, effects)

    def _give_up(self, reason: str, now_s: float, effects: list[Effect], text: str = "") -> None:
        effects.append(Disconnect(self.connection))
        self._lost(reason, now_s, effects, text)

    def _fail(self, error: RaylayError, effects: list[Effect]) -> None:
        effects.append(Disconnect(self.connection))
        self._end()
        effects.append(Fail(error))

    def _time_passed(self, _: TimePassed, now_s: float, effects: list[Effect]) -> None:
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            if self.state is State.PAUSING:
                self._begin_round(now_s, effects)
            elif self.state in (State.CONNECTING, State.LOGGING_ON):
                reason = f"no answer within {self.options.connect_timeout_s} s"
                effects.append(Tell(ServerRefused("", self._address, reason)))
                self._give_up(reason, now_s, effects)
            return
        if self.state is not State.READY or self._beat_due_s is None or now_s < self._beat_due_s:
            return
        if self.reading_paused:
            self.heard_s = now_s
        if now_s - self.heard_s >= self.options.heartbeat_s:
            self._give_up("heartbeat", now_s, effects)
            return
        self._beat_due_s = now_s + self.options.heartbeat_s / 2
        effects.append(SendFrame({"c": "heartbeat"}))

    # -- frames ------------------------------------------------------------------------------
    def _frame_received(self, event: FrameReceived, now_s: float, effects: list[Effect]) -> None:
        if event.connection != self.connection:
            return
        header = event.header
        command = header["c"]
        if self.state is State.READY:
            if command == "ack":
                self._acknowledged(header, event.body, now_s, effects)
            elif command == "safety":
                self._hear(header, effects)
        elif self.state is State.LOGGING_ON and command == "ack":
            if header.get("status") != "success":
                self._logon_refused(header, now_s, effects)
            elif header.get("cid") == _LOGON:
                self._logged_on(header, now_s, effects)

    def _logon_refused(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        instance = str(header.get("instance") or "")
        effects.append(Tell(ServerRefused(instance, self._address, text or reason)))
        if reason in _TRY_ELSEWHERE or self._address in self._asks:
            self._give_up(reason, now_s, effects)
        else:
            self._fail(LogonRefused("logon", reason, text), effects)

    def _logged_on(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        instance, group = str(header.get("instance") or ""), str(header.get("group") or "")
        chooser = self.chooser
        chooser.found(self._address, instance, group)
        refusal = chooser.refusal(instance, group)
        if refusal:
            effects.append(Tell(ServerRefused(instance, self._address, refusal)))
            chooser.told_where(read_peers(header.get("peers")))
            self._give_up("not safe", now_s, effects)
            return
        if header.get("v") != PROTOCOL_VERSION:
            version = header.get("v")
            text = f"{instance} speaks protocol version {version!r}, not {PROTOCOL_VERSION}"
            self._fail(LogonRefused("logon", "bad_version", text), effects)
            return
        chooser.use(self._address, instance)
        self.state = State.READY
        self.instance = instance
        self.incarnation = header.get("incarnation")
        self._deadline_s = None
        self._ready_since_s = self.heard_s = now_s
        self._hear(header, effects)
        first = not self.next_sequence
        self._take_durable(header)
        resent = self.store.messages
        effects.append(Tell(Connected(instance, group, self._address, resent)))
        heartbeat_s = self.options.heartbeat_s
        if heartbeat_s > 0:
            self._beat_due_s = now_s + heartbeat_s / 2
            effects.append(SendFrame({"c": "heartbeat", "o": {"start_s": heartbeat_s}}))
        if first:
            # What is settled at the first logon was not published by this client.
            self._settled_upto = self.settled_upto
        self._settle(effects)
        if resent:
            effects.append(SendPublishes())
        for subscription in self.subscriptions.values():
            self._subscribe(subscription, effects)

    def _take_durable(self, header: Header) -> None:
        """Numbers behind what was seen, and sets what must be sent again."""
        store = self.store
        durable = header.get("durable")
        if isinstance(durable, list) and durable:
            store.drop([(int(first), int(last)) for first, last in durable])
        highest = max(int(header.get("highest") or 0), store.highest)
        if not self.next_sequence and not store.highest:
            highest = max(highest, self.options.clock_us - 1)
        self.next_sequence = max(self.next_sequence, highest + 1)
        store.advance(self.next_sequence - 1)
        self._resend_upto = self.next_sequence - 1
        self._sent_upto = 0
        lowest = store.lowest
        self._resend = store.replay(lowest or 0)
        self._resend_next = next(self._resend, None)
        self._drop_tail()

    def _drop_tail(self) -> None:
        self._tail.clear()
        self._tail_bytes = 0
        self._tail_first = self.next_sequence

    def _hear(self, header: Header, effects: list[Effect]) -> None:
        speaker = self.instance
        unsafe, safe = self.chooser.heard(speaker, read_peers(header.get("peers")))
        # Before the acks that the news is sent ahead of: a restarted client must know it too.
        self._remember()
        effects.extend(Tell(PeerBecameUnsafe(name, speaker)) for name in unsafe)
        effects.extend(Tell(PeerBecameSafe(name, speaker)) for name in safe)

    def _remember(self) -> None:
        words = self.chooser.remembered()
        if words != self.store.words:
            self.store.words = words

    def trust(self, instance: str) -> None:
        """See `ServerChooser.trust`; it holds for a later life with this store as well."""
        self.chooser.trust(instance)
        self._remember()

    def _acknowledged(
        self, header: Header, body: bytes, now_s: float, effects: list[Effect]
    ) -> None:
        kind = header.get("a")
        failed = header.get("status") == "failure"
        if kind == "persisted" and "s" in header:
            sequence = int(header["s"])
            if failed:
                self._publish_failed(sequence, header, effects)
            else:
                # Never more than was sent here, whatever the server says: law 1.
                self.store.acknowledge(min(sequence, self._sent_upto))
                if "unjournaled" in header:
                    self.unjournaled += int(header["unjournaled"])
            self._settle(effects)
            return
        asked = self._asked.pop(header.get("cid") or "", None)
        if asked is not None:
            self._pause_answered(asked, header, effects)
            return
        subscription_id = header.get("sub") or self._commands.get(header.get("cid") or "", "")
        subscription = self.subscriptions.get(subscription_id)
        if subscription is not None:
            self._subscription_ack(subscription, kind, header, body, effects)
        elif failed and "cid" not in header and "sub" not in header:
            self._ended_by_server(header, now_s, effects)

    def _publish_failed(self, sequence: int, header: Header, effects: list[Effect]) -> None:
        if sequence > self._sent_upto:
            return
        found = next(iter(self.store.replay(sequence)), None)
        record = found[1] if found is not None and found[0] == sequence else b""
        self.store.drop([(sequence, sequence)])
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        if not text and reason == self._refused_for[0]:
            text = self._refused_for[1]
        self._refused_for = reason, text
        kind = SequenceConflict if reason == "sequence_conflict" else CommandFailed
        failure = PublishFailed(sequence, kind("publish", reason, text), record)
        self.failures.append(failure)
        effects.append(Tell(failure))

    def _settle(self, effects: list[Effect]) -> None:
        upto = self.settled_upto
        if upto != self._settled_upto:
            self._settled_upto = upto
            effects.append(Settled(upto))

    def _ended_by_server(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        if reason == "name_in_use":
            # Going back would throw the other out, which would come back in turn.
            self._fail(LogonRefused("logon", reason, text), effects)
        else:
            self._give_up(reason, now_s, effects, text)

    # -- subscriptions -----------------------------------------------------------------------
    def _subscription_wanted(
        self, event: SubscriptionWanted, now_s: float, effects: list[Effect]
    ) -> None:
        subscription = event.subscription
        if subscription.id in self.subscriptions:
            raise LocalProtocolError(
                f"subscription id {subscription.id!r} is in use: give each its own",
                "sub_id_in_use",
            )
        self.subscriptions[subscription.id] = subscription
        if self.state is State.READY:
            self._subscribe(subscription, effects)

    def _subscription_unwanted(
        self, event: SubscriptionUnwanted, now_s: float, effects: list[Effect]
    ) -> None:
        subscription = self.subscriptions.pop(event.subscription_id, None)
        if subscription is not None and self.state is State.READY:
            effects.append(SendFrame({"c": "unsubscribe", "sub": subscription.id}))
            # The others of its group may have waited for it.
            self._resume_groups(effects)

    def _subscribe(self, subscription: Resumption, effects: list[Effect]) -> None:
        self._command_number += 1
        command_id = f"s{self._command_number}"
        self._commands[command_id] = subscription.id
        effects.append(SendFrame(*subscription.subscribe_frame(command_id)))

    def _replays(self, subscription_ids: tuple[str, ...]) -> list[Resumption]:
        """Those that can be paused.

        Raises:
            LocalProtocolError: one is unknown, ordinary or live; nothing was changed.
        """
        found = []
        for name in subscription_ids:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                raise LocalProtocolError(
                    f"subscription {name!r} has ended: subscribe again", "no_such_subscription"
                )
            if not subscription.bookmark or subscription.options.get("live"):
                raise LocalProtocolError(
                    f"subscription {name!r} is {'live' if subscription.bookmark else 'ordinary'}: "
                    "only a replay of the log can be paused and resumed"
                )
            found.append(subscription)
        return found

    def _pause_wanted(self, event: PauseWanted, now_s: float, effects: list[Effect]) -> None:
        wanted = self._replays(event.subscription_ids)
        for subscription in wanted:
            subscription.paused = True
            subscription.group = 0
        told = [one for one in wanted if one.active and not one.held]
        if not told:
            effects.append(PauseAnswered(event.number))
            return
        self._asked[self._ask("pause", told, effects)] = event.number

    def _resume_wanted(self, event: ResumeWanted, now_s: float, effects: list[Effect]) -> None:
        wanted = self._replays(event.subscription_ids)
        running = [one.id for one in wanted if not one.paused]
        if running:
            raise LocalProtocolError(
                f"subscription {running[0]!r} is not paused: subscribe it with pause=True, or "
                "pause it, to resume it with others"
            )
        self._group_number += 1
        for subscription in wanted:
            subscription.paused = False
            subscription.group = self._group_number if len(wanted) > 1 else 0
        if all(one.active and one.held for one in wanted):
            self._asked[self._ask("resume", wanted, effects)] = event.number
        else:
            effects.append(PauseAnswered(event.number))

    def _ask(self, option: str, subscriptions: list[Resumption], effects: list[Effect]) -> str:
        self._command_number += 1
        command_id = f"h{self._command_number}"
        for subscription in subscriptions:
            subscription.held = option == "pause"
        names = [subscription.id for subscription in subscriptions]
        effects.append(
            SendFrame({"c": "subscribe", "cid": command_id, "sub": names, "o": {option: True}})
        )
        return command_id

    def _pause_answered(self, number: int, header: Header, effects: list[Effect]) -> None:
        error: RaylayError | None = None
        if header.get("status") == "failure":
            reason = str(header.get("reason") or "refused")
            error = CommandFailed("subscribe", reason, str(header.get("text") or ""))
        effects.append(PauseAnswered(number, error))

    def _resume_groups(self, effects: list[Effect]) -> None:
        """After a reconnect: what was wanted meanwhile, and those that go on together once all of
        them are accepted."""
        late = [
            one for one in self.subscriptions.values() if one.active and one.paused and not one.held
        ]
        if late:
            self._ask("pause", late, effects)
        groups: dict[int, list[Resumption]] = {}
        for one in self.subscriptions.values():
            if not one.paused and one.bookmark:
                groups.setdefault(one.group, []).append(one)
        for one in groups.pop(0, []):
            if one.active and one.held:
                self._ask("resume", [one], effects)
        for group in groups.values():
            if all(one.active for one in group) and any(one.held for one in group):
                self._ask("resume", [one for one in group if one.held], effects)

    def _subscription_ack(
        self,
        subscription: Resumption,
        kind: object,
        header: Header,
        body: bytes,
        effects: list[Effect],
    ) -> None:
        name = subscription.id
        if header.get("status") == "failure":
            del self.subscriptions[name]
            reason = str(header.get("reason") or "refused")
            text = str(header.get("text") or "")
            error = BookmarkNotFound if reason == "bookmark_not_found" else CommandFailed
            effects.append(SubscriptionFailed(name, error("subscribe", reason, text)))
            self._resume_groups(effects)
            return
        try:
            have = read_have(header, body)
        except RemoteProtocolError:
            have = None  # It only makes a resumption cheaper; the connection stays of use.
        if kind == "processed":
            later = subscription.accepted(have)
            effects.append(SubscriptionAccepted(name, have if later else None))
            if subscription.bookmark:
                self._resume_groups(effects)
        elif kind == "persisted" and have is not None:
            subscription.named_persisted(have)
            effects.append(SubscriptionPersisted(name, have))
        elif kind == "completed":
            subscription.completed = True
            if subscription.bounded:
                del self.subscriptions[name]
            effects.append(SubscriptionCompleted(name, subscription.bounded))

    # -- for tests and the simulator ---------------------------------------------------------
    def check_invariants(self) -> None:
        """Raises AssertionError when an invariant of this file's top does not hold."""
        assert self._sent_upto < max(self.next_sequence, 1)
        if self.state is State.READY:
            assert not self.chooser.refusal(self.instance)
            assert self._tail_first + len(self._tail) == self.next_sequence
            if self._tail:
                held = [sequence for sequence, _ in islice(self.store.replay(self._tail_first), 1)]
                assert held == [self._tail_first]
