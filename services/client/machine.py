"""The client's decisions: values in, values out.

The shell (client.py, or the simulator) feeds events to `step` and performs the effects in order.
Two paths stay outside of `step`, because they are walked for every message or batch: `publish`
and `next_batch` on the way out (publishing/outbox.py), `arrived` on the way in. Here is which
server is used, from the first attempt to the last; which one may be: failover.py; what is asked of
it: subscriptions/subscription_registry.py.

Invariants, beside those of the outbox:
- nothing is sent or taken off the store on a connection whose instance the chooser refuses;
- effects of an old connection's events are none.

Owner: one shell, on one thread. Lifecycle: `StartRequested` … `ClientStopped` or `Failed`; it is
not started again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from raylay.services.client.events import (
    ClientStopped,
    ClockDiffers,
    CommandWanted,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnected,
    DropStream,
    Effect,
    Event,
    Fail,
    FrameReceived,
    LoopBlocked,
    Notify,
    PauseWanted,
    PeerBecameSafe,
    PeerBecameUnsafe,
    ReplaceWanted,
    ResolveServers,
    ResumeWanted,
    SendFrame,
    SendPublishes,
    ServerRefused,
    ServersResolved,
    StartRequested,
    SubscriptionUnwanted,
    SubscriptionWanted,
    TimePassed,
    WaitingForSafeInstance,
    WaitingForServer,
)
from raylay.services.client.fabric_types import FabricTypes
from raylay.services.client.failover import (
    Backoff,
    FailoverRule,
    Server,
    ServerChooser,
    read_peers,
)
from raylay.services.client.messages import (
    MessageBatch,
    last_origin_time_us,
    latest_origin_time_us,
)
from raylay.services.client.pending_commands import PendingCommands
from raylay.services.client.publishing.outbox import (
    CLOCK_AHEAD_US_MAX,
    RECORDS_REFUSED,
    PublishOutbox,
)
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.client.subscriptions.subscription_registry import SubscriptionRegistry
from raylay.services.errors import (
    ConfigurationError,
    LogonRefused,
    NoUsableServer,
    RaylayError,
)
from raylay.services.protocol.frames import PROTOCOL_VERSION, Header

STABLE_AFTER_S = 1.0
"""Seconds after which a connection counts as stable, and the reconnect pauses begin again at the
shortest."""
WALKED_MESSAGES_MAX = 16
"""Number of messages up to which every delivery is searched for the latest origin time, for a
client that has not published yet. For a larger one, the first message's origin time is taken for
all, unless equal lengths tell where the last one is."""
_LOGON = "logon"
_ADVICE = {
    "auth": "set user_id and password, or the certificate of tls (in the shell: --user and "
    "--password-file, or --certificate and --private-key)",
    "tls_required": "set tls (in the shell: --ca-file)",
}
"""Options to set, by the reason of a refused logon."""
ASK_AFTER_ROUNDS = 3
"""Number of rounds without a usable server after which servers that may not be used are asked for
the addresses of others."""
_TRY_ELSEWHERE = frozenset(
    (
        "not_ready",
        "shutting_down",
        "logon_timeout",
        "storage_full",
        "storage_error",
        "heartbeat",
        "slow_client",
        "too_many",
    )
)
"""Reasons that end a connection and may not apply at another server or a little later. Any other
refusal of a logon, and `name_in_use` at any time, would only be repeated."""


@dataclass(slots=True)
class ClientOptions:
    """The settings of a client, which do not change while it lives."""

    client_name: str
    servers: tuple[Server, ...] = ()
    resolves: bool = False
    """Whether servers are looked up anew (`ResolveServers`) for every round of attempts."""
    group: str = ""
    allow_other_groups: bool = False
    failover: FailoverRule = "safe"
    user_id: str = ""
    password: str = field(default="", repr=False)
    answers: Callable[[str, str], tuple[str, str]] | None = None
    """Returns user id and password for a server that answers a logon by a challenge; called with
    the user id that the server wants and its question."""
    heartbeat_s: float = 5.0
    """Seconds after which a silent server counts as dead; 0: never."""
    ack_conflation_ms: int = 0
    connect_timeout_s: float = 3.0
    """Seconds for connecting and logging on together."""
    pause_min_ms: int = 50
    pause_max_ms: int = 3_000
    clock_us: int = 0
    """Time when the client was made, in microseconds since 1970."""
    owns_store: bool = False
    """Whether the publish store ends with the client: no later client of its name then knows its
    sequences, so the next one takes over those that this one has not used."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigurationError where a value would mean something else than the caller
        thinks."""
        where = f"client {self.client_name}"
        if self.failover not in ("safe", "any"):
            raise ConfigurationError(
                f"{where}: failover is {self.failover!r}: give 'safe' or 'any'"
            )
        if self.pause_min_ms > self.pause_max_ms:
            raise ConfigurationError(
                f"{where}: pause_min_ms is {self.pause_min_ms} and pause_max_ms "
                f"{self.pause_max_ms}: give a longest pause that is not below the shortest"
            )
        for name in ("user_id", "password"):
            value = getattr(self, name)
            if not isinstance(value, str):
                # The value itself is never shown: it may be a password.
                raise ConfigurationError(
                    f"{where}: {name} is of type {type(value).__name__}: give a text, or leave it "
                    "out"
                )


class ClientState(Enum):
    """The state of a client's connection."""

    NEW = "new"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    LOGGING_ON = "logging on"
    READY = "ready"
    PAUSING = "pausing"
    ENDED = "ended"


def _untimed(
    handler: Callable[[Any, list[Effect]], None],
) -> Callable[[Any, float, list[Effect]], None]:
    return lambda event, now_s, effects: handler(event, effects)


Outbox = TypeVar("Outbox", bound=PublishOutbox)


def outbox_for(options: ClientOptions, store: PublishStoreProtocol, kind: type[Outbox]) -> Outbox:
    """Returns the outbox of a client with these options."""
    return kind(
        options.client_name,
        store,
        options.clock_us,
        gathers=not options.ack_conflation_ms,
        takes_over=options.owns_store,
    )


def client_machine(options: ClientOptions, store: PublishStoreProtocol) -> ClientMachine:
    """Returns the machine of a client, with an outbox of its own."""
    return ClientMachine(options, outbox_for(options, store, PublishOutbox))


class ClientMachine:
    """The connection, the logon, the failover and the subscriptions of a client.

    Args:
        options: options of the client.
        outbox: publishes of the client. The shell publishes and sends through it; the machine tells
            it of logons and acknowledgments.
    """

    def __init__(self, options: ClientOptions, outbox: PublishOutbox) -> None:
        self.options = options
        self.outbox = outbox
        self.types = FabricTypes()
        self.chooser = ServerChooser(
            options.servers,
            group=options.group,
            allow_other_groups=options.allow_other_groups,
            failover=options.failover,
        )
        self.chooser.recall(outbox.store.words)
        self.state = ClientState.NEW
        self.connection = 0
        """Number of the current stream; events of other streams are ignored."""
        self.instance = ""
        """Name of the instance to which the client is logged on; empty: none."""
        self.incarnation: object = None
        self._resumptions = SubscriptionRegistry()
        self.subscriptions = self._resumptions.by_id
        self.reading_paused = False
        """Whether the shell does not read at present, so that silence proves nothing. Set by the
        shell."""
        self._backoff = Backoff(options.pause_min_ms, options.pause_max_ms, options.seed)
        self._untried: deque[str] = deque()
        self._asks: frozenset[str] = frozenset()
        """Addresses in this round of servers that may not be used and are only asked for the
        addresses of others."""
        self.address = ""
        """Address of the current stream, or of the attempt."""
        self._attempts = 0
        """Number of attempts in this round."""
        self._lasting: dict[str, str] = {}
        """The lasting reasons for failed attempts of this round, by the server's address."""
        self._tried: dict[str, str] = {}
        """The reasons for failed attempts of this round, by the server's address."""
        self._stuck: tuple[int, str] | None = None
        """The sequence up to which publishes were settled when a server last ended a connection for
        a reason that does not pass, with publishes in the store, and the server's words."""
        self._deadline_s: float | None = None
        self._beat_due_s: float | None = None
        self._started_s = self._ready_since_s = 0.0
        asked = self._resumptions
        self._commands = PendingCommands()
        self._handlers: dict[type[Any], Callable[[Any, float, list[Effect]], None]] = {
            StartRequested: self._started,
            ServersResolved: self._servers_resolved,
            ConnectionOpened: self._connection_opened,
            ConnectionEnded: self._connection_ended,
            FrameReceived: self._frame_received,
            SubscriptionWanted: _untimed(asked.wanted),
            SubscriptionUnwanted: _untimed(asked.unwanted),
            PauseWanted: _untimed(asked.pause_wanted),
            ResumeWanted: _untimed(asked.resume_wanted),
            ReplaceWanted: _untimed(asked.replace_wanted),
            CommandWanted: self._command_wanted,
            TimePassed: self._time_passed,
            ClientStopped: self._stopped,
        }

    @property
    def waits_for_safe_instance(self) -> bool:
        """Returns whether the client is not connected because failover to some servers is not
        safe."""
        return self.state not in (ClientState.READY, ClientState.ENDED) and bool(
            self.chooser.refused()
        )

    @property
    def status(self) -> str:
        """Returns the client's state, as text."""
        if self.state is ClientState.READY:
            return f"connected to {self.instance} at {self.address}{self._stuck_text()}"
        refused = "; ".join(f"{name}: {why}" for name, why in self.chooser.refused().items())
        waiting = (
            f", not usable: {refused}" if refused and self.state is not ClientState.ENDED else ""
        )
        return f"not connected ({self.state.value}){waiting}{self._stuck_text()}"

    def _stuck_text(self) -> str:
        """Returns why a server ended the last connection for good, where nothing was settled since;
        empty: there is no such reason."""
        if self._stuck is None or self._stuck[0] != self.outbox.settled_upto:
            return ""
        return (
            f"; {self._stuck[1]}. So it does each time, while the publishes from "
            f"{self.outbox.store.lowest} on are what it does not take: let the instance take them, "
            "or give the client a new publish store"
        )

    # -- deliveries --------------------------------------------------------------------------
    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """Returns the messages of a delivery that are to be handed out; None: there are none."""
        subscription = self.subscriptions.get(header.get("sub", ""))
        batch = subscription.arrived(header, payload) if subscription is not None else None
        if batch is not None:
            batch.types = self.types
            # The last of one publisher's messages is the latest. A search through many is costly,
            # and only useful to a client that publishes after them.
            walk = batch.count <= WALKED_MESSAGES_MAX or self.outbox.publishes
            stamp_us = last_origin_time_us(batch.payload, batch.count, walk)
            if stamp_us > self.outbox.stamp_us:
                self.outbox.heard_stamp(stamp_us, batch.timestamp_us)
        return batch

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """Returns the messages to hand out of a frame with rows of a query, or with out-of-focus
        notices."""
        subscription = self.subscriptions.get(header.get("sub", ""))
        batches = subscription.grouped(header, payload) if subscription is not None else []
        for batch in batches:
            batch.types = self.types
            self.outbox.heard_stamp(latest_origin_time_us(batch.payload, batch.count), 0)
        return batches

    # -- events ------------------------------------------------------------------------------
    def step(self, event: Event, now_s: float) -> list[Effect]:
        """Takes one event, and returns the effects. `now_s` is a clock in seconds that never goes
        back."""
        effects: list[Effect] = []
        beat_due_s = self._beat_due_s
        if beat_due_s is not None and now_s - beat_due_s > self.options.heartbeat_s / 2:
            # The heartbeat timer was due half a heartbeat after the last one.
            self._beat_due_s = now_s
            if self.state is ClientState.READY:
                blocked_s = now_s - beat_due_s
                effects.append(Notify(LoopBlocked(blocked_s)))
        self._handlers[type(event)](event, now_s, effects)
        return effects

    @property
    def wake_s(self) -> float | None:
        """Returns the time at which `TimePassed` is due, by the clock of `now_s`; None: not before
        another event."""
        due = self._deadline_s
        if self.state is ClientState.READY and self._beat_due_s is not None:
            due = self._beat_due_s if due is None else min(due, self._beat_due_s)
        return due

    def _started(self, _: StartRequested, now_s: float, effects: list[Effect]) -> None:
        assert self.state is ClientState.NEW
        self._started_s = now_s
        self._begin_round(now_s, effects)

    def _stopped(self, event: ClientStopped, now_s: float, effects: list[Effect]) -> None:
        if self.connection and self.state is not ClientState.ENDED:
            if self.state is ClientState.READY and not event.failed:
                # The steady clock measures the time, because the wall clock may have been set.
                lasted_us = int((now_s - self._started_s) * 1e6)
                unused = self.outbox.unused(self.options.clock_us + lasted_us)
                if unused is not None:
                    effects.append(SendFrame({"c": "logoff", "unused": list(unused)}))
            effects.append(DropStream(self.connection))
        self._end()

    def _end(self) -> None:
        self.state = ClientState.ENDED
        self.outbox.ended = True
        self.outbox.sending = self._resumptions.connected = False
        self.instance = ""
        self._deadline_s = self._beat_due_s = None
        self.connection += 1

    # -- finding a server --------------------------------------------------------------------
    def _begin_round(self, now_s: float, effects: list[Effect]) -> None:
        if self.options.resolves:
            self.state = ClientState.RESOLVING
            self._deadline_s = None
            effects.append(ResolveServers())
            return
        self._list_servers()
        self._next_server(now_s, effects)

    def _list_servers(self) -> None:
        asks = self.chooser.to_ask() if self._backoff.tries >= ASK_AFTER_ROUNDS else []
        self._asks = frozenset(asks)
        self._untried = deque((*self.chooser.candidates(), *asks))
        self._attempts = 0
        self._lasting.clear()
        self._tried.clear()

    def _servers_resolved(
        self, event: ServersResolved, now_s: float, effects: list[Effect]
    ) -> None:
        if event.servers is not None:
            self.chooser.set_servers(event.servers)
        if self.state is ClientState.RESOLVING:
            self._list_servers()
            self._next_server(now_s, effects)

    def _next_server(self, now_s: float, effects: list[Effect]) -> None:
        if not self._untried:
            if not self.chooser.current and 0 < self._attempts == len(self._lasting):
                self._fail(self._unusable(), effects)
            else:
                self._pause(now_s, effects)
            return
        self.connection += 1
        self._attempts += 1
        self.state = ClientState.CONNECTING
        self.address = self._untried.popleft()
        self._deadline_s = now_s + self.options.connect_timeout_s
        effects.append(Connect(self.connection, self.address))

    def _unusable(self) -> NoUsableServer:
        name, reasons = self.options.client_name, self._lasting.items()
        which = "its server" if len(reasons) == 1 else "any of its servers"
        why = "; ".join(f"{address}: {reason}" for address, reason in reasons)
        return NoUsableServer(f"client {name} cannot use {which}: {why}")

    def _pause(self, now_s: float, effects: list[Effect]) -> None:
        self.state = ClientState.PAUSING
        for address, reason in self._lasting.items():
            effects.append(Notify(ServerRefused("", address, reason)))
        pause_s = self._backoff.next_pause_s()
        self._deadline_s = now_s + pause_s
        refused = tuple(self.chooser.refused().items())
        waits = (
            WaitingForSafeInstance(refused, pause_s)
            if refused
            else WaitingForServer(pause_s, tuple(self._tried.items()))
        )
        effects.append(Notify(waits))

    def _connection_opened(
        self, event: ConnectionOpened, now_s: float, effects: list[Effect]
    ) -> None:
        if event.connection != self.connection or self.state is not ClientState.CONNECTING:
            return
        self.state = ClientState.LOGGING_ON
        self._send_logon(self.options.user_id, self.options.password, effects)

    def _send_logon(self, user_id: str, password: str, effects: list[Effect]) -> None:
        options = self.options
        header: Header = {
            "c": "logon",
            "v": PROTOCOL_VERSION,
            "client_name": options.client_name,
            "low": self.outbox.store.lowest or 0,
            "cid": _LOGON,
            "o": {"ack_conflation_ms": options.ack_conflation_ms},
        }
        if self.outbox.asks_for_unused:
            header["takes_unused"] = True
        if user_id:
            header["user_id"] = user_id
        if password:
            header["pw"] = password
        effects.append(SendFrame(header))

    def _connection_ended(
        self, event: ConnectionEnded, now_s: float, effects: list[Effect]
    ) -> None:
        if event.connection == self.connection:
            if event.lasting and self.state in (ClientState.CONNECTING, ClientState.LOGGING_ON):
                self._lasting[self.address] = event.reason
            elif self.state is ClientState.LOGGING_ON:
                effects.append(Notify(ServerRefused("", self.address, event.reason)))
            self._lost(event.reason, now_s, effects)

    def _lost(self, reason: str, now_s: float, effects: list[Effect], text: str = "") -> None:
        """Notes that the stream has ended or was given up, and goes on to the next server."""
        was = self.state
        self._tried[self.address] = reason
        if was in (ClientState.CONNECTING, ClientState.LOGGING_ON):
            self._next_server(now_s, effects)
            return
        if was is not ClientState.READY:
            return
        effects.append(Notify(Disconnected(self.instance, self.address, reason, text)))
        self.instance = ""
        self._beat_due_s = None
        self.outbox.stop_sending()
        self._resumptions.lose(effects)
        self._commands.lose(effects)
        if now_s - self._ready_since_s >= STABLE_AFTER_S:
            self._backoff.reset()
            self._begin_round(now_s, effects)
        elif self._backoff.tries:
            # The client was logged on and ended again: waits, to avoid a tight loop.
            self.connection += 1
            self._pause(now_s, effects)
        else:
            self._backoff.tries = 1
            self._begin_round(now_s, effects)

    def _give_up(self, reason: str, now_s: float, effects: list[Effect], text: str = "") -> None:
        effects.append(DropStream(self.connection))
        self._lost(reason, now_s, effects, text)

    def _fail(self, error: RaylayError, effects: list[Effect]) -> None:
        effects.append(DropStream(self.connection))
        self._end()
        effects.append(Fail(error))

    def _time_passed(self, _: TimePassed, now_s: float, effects: list[Effect]) -> None:
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            if self.state is ClientState.PAUSING:
                self._begin_round(now_s, effects)
            elif self.state in (ClientState.CONNECTING, ClientState.LOGGING_ON):
                reason = f"no answer within {self.options.connect_timeout_s} s"
                effects.append(Notify(ServerRefused("", self.address, reason)))
                self._give_up(reason, now_s, effects)
            return
        if (
            self.state is not ClientState.READY
            or self._beat_due_s is None
            or now_s < self._beat_due_s
        ):
            return
        if self.reading_paused:
            self.outbox.heard_s = now_s
        if now_s - self.outbox.heard_s >= self.options.heartbeat_s:
            self._give_up("heartbeat", now_s, effects)
            return
        self._beat_due_s = now_s + self.options.heartbeat_s / 2
        effects.append(SendFrame({"c": "heartbeat"}))

    def _command_wanted(self, event: CommandWanted, now_s: float, effects: list[Effect]) -> None:
        self._commands.wanted(
            event, effects, "" if self.state is ClientState.READY else self.status
        )

    # -- frames ------------------------------------------------------------------------------
    def _frame_received(self, event: FrameReceived, now_s: float, effects: list[Effect]) -> None:
        if event.connection != self.connection:
            return
        header = event.header
        command = header["c"]
        if self.state is ClientState.READY:
            if command == "ack":
                self._acknowledged(header, event.body, now_s, effects)
            elif command == "safety":
                self._hear(header, effects)
        elif self.state is ClientState.LOGGING_ON and command == "ack":
            if header.get("status") != "success":
                self._logon_refused(header, now_s, effects)
            elif header.get("cid") == _LOGON:
                self.types.hear(event.body)
                self._logged_on(header, now_s, effects)

    def _logon_refused(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        instance = str(header.get("instance") or "")
        if reason == "retry" and self.options.answers is not None:
            # The client answers as often as it is asked, until its time to log on is over.
            asked = str(header.get("user_id") or ""), str(header.get("pw") or "")
            self._send_logon(*self.options.answers(*asked), effects)
            return
        if reason in _TRY_ELSEWHERE or self.address in self._asks:
            effects.append(Notify(ServerRefused(instance, self.address, text or reason)))
            self._give_up(reason, now_s, effects)
        else:
            self._fail(self._refusal(reason, text), effects)

    def _refusal(self, reason: str, text: str) -> LogonRefused:
        advice = f". Please {_ADVICE[reason]}" if reason in _ADVICE else ""
        where = f"{self.address} refused the logon of client {self.options.client_name}"
        return LogonRefused("logon", reason, f"{where}: {text or reason}{advice}")

    def _logged_on(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        instance, group = str(header.get("instance") or ""), str(header.get("group") or "")
        chooser = self.chooser
        chooser.found(self.address, instance, group)
        refusal = chooser.refusal(instance, group)
        if refusal:
            effects.append(Notify(ServerRefused(instance, self.address, refusal)))
            chooser.told_where(read_peers(header.get("peers")))
            self._give_up("not safe", now_s, effects)
            return
        if header.get("v") != PROTOCOL_VERSION:
            version = header.get("v")
            text = f"{instance} speaks protocol version {version!r}, not {PROTOCOL_VERSION}"
            self._fail(self._refusal("bad_version", text), effects)
            return
        chooser.use(self.address, instance)
        self.state = ClientState.READY
        self.outbox.sending = True
        self.instance = instance
        self.incarnation = header.get("incarnation")
        self._deadline_s = None
        self._ready_since_s = self.outbox.heard_s = now_s
        self._hear(header, effects)
        first = not self.outbox.next_sequence
        self.outbox.hear_clock(int(header.get("now") or 0), now_s)
        self.outbox.take_durable(header)
        resent = self.outbox.store.messages
        effects.append(Notify(Connected(instance, group, self.address, resent)))
        if abs(self.outbox.clock_ahead_us) > CLOCK_AHEAD_US_MAX:
            effects.append(Notify(ClockDiffers(instance, self.outbox.clock_ahead_us / 1e6)))
        heartbeat_s = self.options.heartbeat_s
        if heartbeat_s > 0:
            self._beat_due_s = now_s + heartbeat_s / 2
            effects.append(SendFrame({"c": "heartbeat", "o": {"start_s": heartbeat_s}}))
        if first:
            # Publishes that are settled at the first logon are not this client's.
            self.outbox.begin_settled()
        self.outbox.settle(effects)
        if resent:
            effects.append(SendPublishes())
        self._resumptions.instance = self.instance
        self._resumptions.begin(effects)

    def _hear(self, header: Header, effects: list[Effect]) -> None:
        speaker = self.instance
        unsafe, safe = self.chooser.heard(speaker, read_peers(header.get("peers")))
        # The news is stored before the acks that it concerns: a restarted client needs it, too.
        self._remember()
        effects.extend(Notify(PeerBecameUnsafe(name, speaker)) for name in unsafe)
        effects.extend(Notify(PeerBecameSafe(name, speaker)) for name in safe)

    def _remember(self) -> None:
        words = self.chooser.remembered()
        if words != self.outbox.store.words:
            self.outbox.store.words = words

    def trust(self, instance: str) -> None:
        """Marks an instance as safe, see `ServerChooser.trust`; also holds for later clients with
        this store.

        Raises:
            TypeError: it is no name.
        """
        if not isinstance(instance, str):
            raise TypeError(
                f"trust(): instance is of type {type(instance).__name__}: give an instance's name"
            )
        self.chooser.trust(instance)
        self._remember()

    def _acknowledged(
        self, header: Header, body: bytes, now_s: float, effects: list[Effect]
    ) -> None:
        if header.get("a") == "persisted" and "s" in header:
            self.outbox.persisted(header, effects)
        elif (
            not self._commands.answered(header, body, effects)
            and not self._resumptions.answered(header, body, effects)
            and header.get("status") == "failure"
            and "cid" not in header
            and "sub" not in header
        ):
            self._ended_by_server(header, now_s, effects)

    def _ended_by_server(self, header: Header, now_s: float, effects: list[Effect]) -> None:
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        if reason == "name_in_use":
            # Reconnecting would end the other client's connection, which would then do the same.
            self._fail(self._refusal(reason, text), effects)
            return
        refused = 0
        if reason in RECORDS_REFUSED:
            refused = self.outbox.refuse_sent(reason, header.get("types"), effects)
        self._stuck = None
        if not refused and reason not in _TRY_ELSEWHERE and self.outbox.store.messages:
            said = f"{self.instance} ended the connection with {reason}: {text or 'no text'}"
            self._stuck = self.outbox.settled_upto, said
        self._give_up(reason, now_s, effects, text)

    # -- for tests and the simulator ---------------------------------------------------------
    def check_invariants(self) -> None:
        """Raises AssertionError when an invariant of this module does not hold."""
        self.outbox.check_invariants()
        assert self.outbox.sending is (self.state is ClientState.READY)
        if self.outbox.sending:
            assert not self.chooser.refusal(self.instance)
