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
    """The application wants the client to connect."""


@dataclass(slots=True)
class ServersResolved:
    """The look-up of servers has ended. None: it failed, and the last answer stays valid."""

    servers: list[Server] | None


@dataclass(slots=True)
class ConnectionOpened:
    """The stream is open."""

    connection: int


@dataclass(slots=True)
class ConnectionEnded:
    """The stream could not be opened, or has ended. `lasting`: whether another one to the server
    would end in the same way, until a file or a setting of either side changes."""

    connection: int
    reason: str
    lasting: bool = False


@dataclass(slots=True)
class FrameReceived:
    """A frame other than a delivery has arrived."""

    connection: int
    header: Header
    body: bytes = b""


@dataclass(slots=True)
class SubscriptionWanted:
    """The application wants a subscription."""

    subscription: SubscriptionState


@dataclass(slots=True)
class SubscriptionUnwanted:
    """The application does not need the subscription any more.

    Attributes:
        header, body: what a consumer of a queue says of the messages that it holds, for the
            `unsubscribe` command.
    """

    subscription_id: str
    header: Header = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True)
class PauseWanted:
    """The application wants these subscriptions paused. `number`: number of the request, for
    `PauseAnswered`."""

    number: int
    subscription_ids: tuple[str, ...]


@dataclass(slots=True)
class ResumeWanted:
    """The application wants these subscriptions to continue, together if there are several."""

    number: int
    subscription_ids: tuple[str, ...]


@dataclass(slots=True)
class CommandWanted:
    """The application sends a command to whichever server is connected (pending_commands.py).
    `number`: number of the request, for `CommandAnswered`."""

    number: int
    header: Header
    body: bytes = b""


@dataclass(slots=True)
class ReplaceWanted:
    """The application wants another filter, or other keys, for a subscription. `number`: number of
    the request, for `ReplaceAnswered`; `focus`: the options `filter` and `keys`, as far as they are
    given."""

    number: int
    subscription_id: str
    focus: dict[str, Any]


@dataclass(slots=True)
class TimePassed:
    """The time `wake_s` has come."""


@dataclass(slots=True)
class ClientStopped:
    """The client was closed. `failed`: by an error of its own."""

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
    """The client is logged on. `resent_messages` is the number of publishes that are sent again
    because the instance lacks them."""

    instance: str
    group: str
    address: str
    resent_messages: int


@dataclass(frozen=True, slots=True)
class ClockDiffers:
    """The clock of this host and that of the instance's host differ by more than a minute.

    Until they agree, messages that this client publishes bear a wrong time for other processes:
    records of a SOW topic with a lifetime expire sooner or later than meant, and a topic with
    `conflict: last_writer` refuses messages whose time is ahead.

    Attributes:
        ahead_s: seconds by which the clock here is ahead; negative: behind.
    """

    instance: str
    ahead_s: float


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The client's event loop stood still for longer than the heartbeat, usually because a handler
    computed, slept or waited without `await`.

    Nothing was sent or read meanwhile. The instance takes such a client for dead: it ends the
    connection, and gives the queue messages that the client held to other consumers, so that they
    are handled twice. Run such a handler with `asyncio.to_thread`, use `SyncClient`, whose
    connection has a thread of its own, or give the client a longer `heartbeat_s`.

    Attributes:
        blocked_s: seconds for which the loop stood still, at least.
    """

    blocked_s: float


@dataclass(frozen=True, slots=True)
class UnacknowledgedMessages:
    """A warning about an ordinary subscription that was given a message of a queue, which this
    client has not acknowledged for as long as its lease, or for 30 s where leases do not end. It
    comes once for each subscription.

    An ordinary subscription acknowledges nothing: it holds the message, is given no further one
    where its backlog is 1, as is usual, and the message comes again at the end of each lease.
    Consume the queue with `Client.queue`, or call `Client.acknowledge` for each message.

    Attributes:
        queue: topic of the subscription.
        held_s: seconds since the message arrived.
    """

    queue: str
    held_s: float


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an instance has ended. `text`: the reason that the instance gave, if
    any."""

    instance: str
    address: str
    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class PeerBecameUnsafe:
    """The instance `by` has called a peer unsafe: this client does not fail over to the peer until
    `by` calls it safe."""

    instance: str
    by: str


@dataclass(frozen=True, slots=True)
class PeerBecameSafe:
    """The instance `by` has called a peer safe to fail over to."""

    instance: str
    by: str


@dataclass(frozen=True, slots=True)
class ServerRefused:
    """A server was not used: failover to it is not safe, it refused the logon for now, it did not
    answer, or TLS to it failed and another server may do. `instance` is empty where the server's
    name is not known. A refusal that ends the client is its error, and no event."""

    instance: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class WaitingForServer:
    """Every server that may be used is down; the next attempt comes after a pause. `tried` has the
    address of each server that was tried, and why that failed."""

    pause_s: float
    tried: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingForSafeInstance:
    """Every server that may be used is down, and others must not be used: `refused` has the
    instance and the reason of each."""

    refused: tuple[tuple[str, str], ...]
    pause_s: float


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The server refused one publish. It is removed from the store; `record` has it."""

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
        messages: number of the messages.
        publishers: number of messages, and first and last sequence, for each of at most 100
            publishers.
    """

    subscription: str
    instance: str
    messages: int
    publishers: dict[int, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A store could not write. Nothing is lost: the write is tried again."""

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
    | UnacknowledgedMessages
    | StoreFailed
)


# -- effects -----------------------------------------------------------------------------------
@dataclass(slots=True)
class ResolveServers:
    """Request to look the servers up, then to feed `ServersResolved`."""


@dataclass(slots=True)
class Connect:
    """Request to open a stream, then to feed `ConnectionOpened` or `ConnectionEnded`."""

    connection: int
    address: str


@dataclass(slots=True)
class DropStream:
    """Request to drop the stream at once. `ConnectionEnded` need not be fed."""

    connection: int


@dataclass(slots=True)
class SendFrame:
    """Request to send one frame on the current stream."""

    header: Header
    body: bytes = b""


@dataclass(slots=True)
class SendPublishes:
    """Report that `next_batch` has messages to send again."""


@dataclass(slots=True)
class Settled:
    """Report that every publish up to this sequence is durable or refused."""

    upto: int


@dataclass(slots=True)
class SubscriptionAccepted:
    """Report that the server accepted a subscription. `have` is to be passed on like the `have` of
    a persisted ack."""

    subscription_id: str
    have: PublisherRanges | None


@dataclass(slots=True)
class SubscriptionPersisted:
    """Position for `SubscriptionState.passed`, once the consumer has taken everything before it."""

    subscription_id: str
    have: PublisherRanges


@dataclass(slots=True)
class SubscriptionCompleted:
    """Report that the replay has reached the end that the log had at its start, or that a bounded
    subscription has ended."""

    subscription_id: str
    ended: bool


@dataclass(slots=True)
class QueryInterrupted:
    """Report that the connection ended before any row of a query was handed out: rows that arrived
    are dropped, and the query is repeated."""

    subscription_id: str


@dataclass(slots=True)
class PauseAnswered:
    """Report that a pause or resume is in force, or will be from the next connection on. With an
    error: the server refused it."""

    number: int
    error: RaylayError | None = None


@dataclass(slots=True)
class ReplaceAnswered:
    """Report that the server took a new filter: records that are new in the focus follow. With an
    error: the server refused it, and the subscription continues unchanged."""

    number: int
    subscription_id: str
    error: RaylayError | None = None


@dataclass(slots=True)
class CommandAnswered:
    """Report of the answer to a command. With an error: the command was refused, or no server
    answered."""

    number: int
    header: Header
    body: bytes
    error: RaylayError | None = None


@dataclass(slots=True)
class SubscriptionFailed:
    """Report that the server refused or ended a subscription, which is removed."""

    subscription_id: str
    error: RaylayError


@dataclass(slots=True)
class Notify:
    """Request to give the application an event."""

    event: ClientEvent


@dataclass(slots=True)
class Fail:
    """Report that the client has failed and cannot be used any more."""

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
