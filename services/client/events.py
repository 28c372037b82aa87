"""Inputs and outputs of the client's machine: events in the past tense, effects in the
imperative."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raylay.services.client.failover import Server
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.errors import CommandFailed, RaylayError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header


# -- events ------------------------------------------------------------------------------------
@dataclass(slots=True)
class StartRequested:
    """The client shall connect."""


@dataclass(slots=True)
class ServersResolved:
    """The look-up of servers ended. None: it failed, and the last answer stays in force."""

    servers: list[Server] | None


@dataclass(slots=True)
class ConnectionOpened:
    """The stream is there."""

    connection: int


@dataclass(slots=True)
class ConnectionEnded:
    """The stream could not be opened, or is gone."""

    connection: int
    reason: str


@dataclass(slots=True)
class FrameReceived:
    """Any frame but a delivery."""

    connection: int
    header: Header
    body: bytes = b""


@dataclass(slots=True)
class SubscriptionWanted:
    """The application wants a subscription."""

    subscription: SubscriptionState


@dataclass(slots=True)
class SubscriptionUnwanted:
    """The application has enough of it."""

    subscription_id: str


@dataclass(slots=True)
class PauseWanted:
    """The application wants these paused. `number`: of the question, for `PauseAnswered`."""

    number: int
    subscription_ids: tuple[str, ...]


@dataclass(slots=True)
class ResumeWanted:
    """The application wants these to go on, together where there are several."""

    number: int
    subscription_ids: tuple[str, ...]


@dataclass(slots=True)
class CommandWanted:
    """The application asks something of whoever is there (pending_commands.py). `number`: of the
    question, for `CommandAnswered`."""

    number: int
    header: Header
    body: bytes = b""


@dataclass(slots=True)
class ReplaceWanted:
    """The application wants another filter, or other keys, of a subscription. `number`: of the
    question, for `ReplaceAnswered`; `focus`: the options `filter` and `keys`, where they are
    given."""

    number: int
    subscription_id: str
    focus: dict[str, Any]


@dataclass(slots=True)
class TimePassed:
    """`wake_s` is reached."""


@dataclass(slots=True)
class ClientStopped:
    """The client is closed. `failed`: by an error of its own."""

    failed: bool = False


Event = (
    StartRequested
    | ServersResolved
    | ConnectionOpened
    | ConnectionEnded
    | FrameReceived
    | SubscriptionWanted
    | SubscriptionUnwanted
    | PauseWanted
    | ResumeWanted
    | ReplaceWanted
    | CommandWanted
    | TimePassed
    | ClientStopped
)


# -- what the application is told ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Connected:
    """Logged on. `resent_messages` are sent again, because the instance does not have them."""

    instance: str
    group: str
    address: str
    resent_messages: int


@dataclass(frozen=True, slots=True)
class ClockDiffers:
    """The clock of this host and that of the instance's host differ by more than a minute.

    Until they agree, what this client publishes bears a time that is wrong for others: records of
    a SOW topic with a lifetime end sooner or later than meant, and a topic with
    `conflict: last_writer` refuses what is ahead.

    Attributes:
        ahead_s: what the clock here is ahead, in seconds; negative: it is behind.
    """

    instance: str
    ahead_s: float


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The client's event loop stood still for longer than the heartbeat, usually because a handler
    computed, slept or waited without `await`.

    Nothing was sent or read meanwhile. The instance takes such a client for dead: it ends the
    connection, and gives what the client held of queues to other consumers, so that messages are
    handled twice. Run such a handler with `asyncio.to_thread`, use `SyncClient`, whose connection
    has a thread of its own, or give the client a longer `heartbeat_s`.

    Attributes:
        blocked_s: for how long, in seconds, at least.
    """

    blocked_s: float


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an instance ended. `text`: what the instance said of it, if anything."""

    instance: str
    address: str
    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class PeerBecameUnsafe:
    """`by` called a peer unsafe: this client does not fail over to it until `by` says otherwise."""

    instance: str
    by: str


@dataclass(frozen=True, slots=True)
class PeerBecameSafe:
    """`by` called a peer safe to fail over to."""

    instance: str
    by: str


@dataclass(frozen=True, slots=True)
class ServerRefused:
    """A server was not used: it must not be failed over to, refused the logon for now, or did not
    answer it. `instance` is empty where it did not say who it is."""

    instance: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class WaitingForServer:
    """Every server that may be used is down; the next attempt comes after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class WaitingForSafeInstance:
    """Every server that may be used is down, and some may not be used: instance and reason."""

    refused: tuple[tuple[str, str], ...]
    pause_s: float


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The server refused one publish. It is out of the store; the record is handed back."""

    sequence: int
    error: CommandFailed
    record: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MessagesMissing:
    """Retention removed messages at the instance that a durable subscription has not received:
    while it was away, or while it was paused or slower than what is published.

    They may be of other topics: what topic a removed message had is not known. The subscription
    goes on with the oldest message that is left. It fails with `BookmarkNotFound` instead where it
    was asked for with `bookmark_not_found="fail"`.

    Attributes:
        messages: how many.
        publishers: of each publisher, at most 100: how many, the first and the last sequence.
    """

    subscription: str
    instance: str
    messages: int
    publishers: dict[int, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A store could not write. Nothing is lost: it is tried again."""

    error: StorageError


ClientEvent = (
    Connected
    | ClockDiffers
    | LoopBlocked
    | Disconnected
    | PeerBecameUnsafe
    | PeerBecameSafe
    | ServerRefused
    | WaitingForServer
    | WaitingForSafeInstance
    | PublishFailed
    | MessagesMissing
    | StoreFailed
)


# -- effects -----------------------------------------------------------------------------------
@dataclass(slots=True)
class ResolveServers:
    """Look the servers up, then feed `ServersResolved`."""


@dataclass(slots=True)
class Connect:
    """Open a stream, then feed `ConnectionOpened` or `ConnectionEnded`."""

    connection: int
    address: str


@dataclass(slots=True)
class DropStream:
    """Drop the stream at once. `ConnectionEnded` need not be fed."""

    connection: int


@dataclass(slots=True)
class SendFrame:
    """Send one frame on the current stream."""

    header: Header
    body: bytes = b""


@dataclass(slots=True)
class SendPublishes:
    """`next_batch` has something again."""


@dataclass(slots=True)
class Settled:
    """Every publish up to here is durable or refused."""

    upto: int


@dataclass(slots=True)
class SubscriptionAccepted:
    """The server accepted a subscription. `have` is to be passed on like a persisted ack's."""

    subscription_id: str
    have: PublisherRanges | None


@dataclass(slots=True)
class SubscriptionPersisted:
    """Position for `SubscriptionState.passed`, once the consumer has taken what came before."""

    subscription_id: str
    have: PublisherRanges


@dataclass(slots=True)
class SubscriptionCompleted:
    """The replay has reached the log's end as it was; a bounded subscription has ended."""

    subscription_id: str
    ended: bool


@dataclass(slots=True)
class QueryInterrupted:
    """The connection ended before anything of a query was handed out: what came of it is void, and
    it is asked again."""

    subscription_id: str


@dataclass(slots=True)
class PauseAnswered:
    """A pause or resume is in force, or will be from the next connection on. With an error: the
    server refused it."""

    number: int
    error: RaylayError | None = None


@dataclass(slots=True)
class ReplaceAnswered:
    """The server took the new filter: what comes into focus comes next. With an error: it refused
    it, and the subscription goes on with what it had."""

    number: int
    subscription_id: str
    error: RaylayError | None = None


@dataclass(slots=True)
class CommandAnswered:
    """The answer to a question. With an error: it was refused, or nobody answered."""

    number: int
    header: Header
    body: bytes
    error: RaylayError | None = None


@dataclass(slots=True)
class SubscriptionFailed:
    """The server refused or ended a subscription. It is gone."""

    subscription_id: str
    error: RaylayError


@dataclass(slots=True)
class Notify:
    """Tell the application."""

    event: ClientEvent


@dataclass(slots=True)
class Fail:
    """The client is of no further use."""

    error: RaylayError


Effect = (
    ResolveServers
    | Connect
    | DropStream
    | SendFrame
    | SendPublishes
    | Settled
    | SubscriptionAccepted
    | SubscriptionPersisted
    | SubscriptionCompleted
    | QueryInterrupted
    | PauseAnswered
    | ReplaceAnswered
    | CommandAnswered
    | SubscriptionFailed
    | Notify
    | Fail
)
