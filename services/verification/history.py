"""The history of a run, as plain values in order of time: the input of the checkers.

Times are microseconds. An operation is recorded when it takes effect: a record when it is on disk,
an acknowledgment when the instance gives it. A publish that is never acknowledged is *unknown*: it
may be in the logs or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.queue_history import QueueOperation, SharedQueue

Sequences = tuple[int, ...]
Passes = Callable[[str, str], bool]
"""Returns whether a message content (second argument) passes a filter as it is written (first
argument)."""


class InstanceStarted(NamedTuple):
    """An instance started."""

    time_us: int
    instance: str
    incarnation: int
    ready: bool


class InstanceCrashed(NamedTuple):
    """An instance crashed. `lost`: whether it lost its disk too."""

    time_us: int
    instance: str
    incarnation: int
    lost: bool


class RunJournaled(NamedTuple):
    """A run was written to an instance's journal. Its records have the transaction ids from `txid`
    on."""

    time_us: int
    instance: str
    incarnation: int
    txid: int
    publisher: int
    sequences: Sequences
    topic: str
    path: tuple[int, ...]
    group: str
    awaited: bool
    late: bool
    digests: tuple[int, ...] = ()
    """Content digests, in the order of `sequences`; empty: no other content was published under
    these identities."""
    contents: tuple[str, ...] = ()
    """Content of each message as content filters see it, in the words of `Topology.passes` and the
    order of `sequences`."""
    behind: tuple[str, ...] | None = None
    """The message that each record names as its predecessor on its topic, as `publisher|sequence|`;
    empty: it names none; "nothing": it is the first. None: its topic has no state."""


class OldCopyHeld(NamedTuple):
    """A restored old copy of a disk reports that it had these messages and has removed them."""

    time_us: int
    instance: str
    incarnation: int
    publisher: int
    sequences: Sequences


class WaiterNoted(NamedTuple):
    """A waiter was written to disk: `sender` (an incarnation; 0: a client) waits for these messages
    at the instance, on behalf of `root`."""

    time_us: int
    instance: str
    incarnation: int
    root: int
    sender: int
    publisher: int
    sequences: Sequences


class InstanceRecovered(NamedTuple):
    """An instance started from its recovery point and its journal. `again`: (root, publisher,
    sequence) of messages that were durable at the recovery point and wait for answers again."""

    time_us: int
    instance: str
    again: tuple[tuple[int, int, int], ...]


class LackNoted(NamedTuple):
    """A note was written to disk: the instance lacks these messages, and no upstream had them any
    more."""

    time_us: int
    instance: str
    incarnation: int
    publisher: int
    sequences: Sequences


class LinkModeSet(NamedTuple):
    """The mode of a link changed: from now on persisted acks of the instance wait for the
    destination, or do not. `pending`: (root, publisher, sequence) of messages that an upgrade finds
    unacknowledged and asks for again."""

    time_us: int
    instance: str
    destination: str
    sync: bool
    pending: tuple[tuple[int, int, int], ...] = ()


class LinkReached(NamedTuple):
    """A link reached this server and compares both sides. The messages that the server holds count
    as answered from now on, whether or not the link ever begins. Until it begins, acks wait for the
    server before, and that one is called safe. `incarnation`: the server's."""

    time_us: int
    instance: str
    destination: str
    server: str
    incarnation: int


class LinkConnected(NamedTuple):
    """A destination of the instance is connected to this server from now on. `incarnation`: the
    server's; 0: unknown. `pending`: (root, publisher, sequence) of messages that wait at that
    moment. A new incarnation is asked for them too."""

    time_us: int
    instance: str
    destination: str
    server: str
    incarnation: int = 0
    pending: tuple[tuple[int, int, int], ...] = ()


class CatchUpEnded(NamedTuple):
    """A link has caught up: the messages that the instance had when it connected are at this
    incarnation of the destination."""

    time_us: int
    instance: str
    destination: str
    incarnation: int


class MessagesPublished(NamedTuple):
    """A client's program called publish. `digest`: the content's digest; 0: none is compared."""

    time_us: int
    client: str
    publisher: int
    sequence: int
    topic: str
    digest: int = 0


class AckGiven(NamedTuple):
    """An instance gave a client a persisted ack for everything up to `sequence`, or named
    `sequences` as durable at a logon."""

    time_us: int
    instance: str
    client: str
    publisher: int
    session: int
    sequences: Sequences
    by: str
    """`ack` or `logon`."""


class PublishRefused(NamedTuple):
    """An instance refused a publish for good."""

    time_us: int
    instance: str
    client: str
    publisher: int
    session: int
    sequence: int
    reason: str


class SafetySent(NamedTuple):
    """An instance told a session which of its peers are safe to fail over to."""

    time_us: int
    instance: str
    client: str
    session: int
    safe: tuple[str, ...]


class SafetyHeard(NamedTuple):
    """A client heard from its instance which other instances are safe."""

    time_us: int
    client: str
    instance: str
    safe: tuple[str, ...]


class StoreState(NamedTuple):
    """A client's store has on disk which instances are safe and which instance the client used
    last."""

    time_us: int
    client: str


class MessagesSent(NamedTuple):
    """A client sent these messages on a connection, in this order."""

    time_us: int
    client: str
    publisher: int
    connection: int
    sequences: Sequences


class ClientCrashed(NamedTuple):
    """A client crashed and lost everything that was not on its disk. `lost`: published messages
    that were lost with it."""

    time_us: int
    client: str
    publisher: int
    lost: Sequences


class InstanceReady(NamedTuple):
    """An instance that had to catch up admits clients from now on. `by_hand`: whether an operator
    forced it."""

    time_us: int
    instance: str
    incarnation: int
    by_hand: bool


class ServerUsed(NamedTuple):
    """A client goes on at this instance. `previous`: the instance before; empty: this is the
    client's first."""

    time_us: int
    client: str
    instance: str
    previous: str


class PublishesDropped(NamedTuple):
    """A client's publish store dropped these messages as persisted."""

    time_us: int
    client: str
    publisher: int
    sequences: Sequences


class SegmentsRemoved(NamedTuple):
    """An instance removed the segments up to a transaction id. `servers`: the server to which each
    destination was connected."""

    time_us: int
    instance: str
    incarnation: int
    up_to_txid: int
    servers: tuple[tuple[str, str], ...]


class MessagesOffered(NamedTuple):
    """An instance sent messages to a fully durable subscriber."""

    time_us: int
    instance: str
    subscriber: str
    publisher: int
    sequences: Sequences


class MessagesDelivered(NamedTuple):
    """A subscriber received messages of one publisher."""

    time_us: int
    subscriber: str
    instance: str
    publisher: int
    sequences: Sequences


class ResumeRead(NamedTuple):
    """An instance starts to read where a subscriber resumes, by the subscriber's report of what it
    has."""

    time_us: int
    instance: str
    subscriber: str


class SubscriptionResumed(NamedTuple):
    """A subscriber was told that an instance accepted its subscription."""

    time_us: int
    subscriber: str
    instance: str


class MissingHeard(NamedTuple):
    """A subscriber was told which messages retention removed at an instance before the subscriber
    received them."""

    time_us: int
    subscriber: str
    instance: str
    messages: int
    publishers: tuple[tuple[int, tuple[int, int, int]], ...]
    """Number of messages, first and last sequence of each publisher, by its id."""


class InstanceMoved(NamedTuple):
    """An instance was moved to another host. Its old data directory goes by the name `former` from
    now on."""

    time_us: int
    instance: str
    former: str
    incarnation: int


class FiltersChanged(NamedTuple):
    """An instance starts with changed filters: its destinations carry other messages from now
    on."""

    time_us: int
    instance: str
    destinations: tuple[DestinationRoute, ...]


class MoveKnown(NamedTuple):
    """A note was written to this instance's disk: `peer` was moved, and everything of a lower
    generation is retired."""

    time_us: int
    instance: str
    peer: str
    generation: int


class BatchTaken(NamedTuple):
    """An instance let this incarnation connect, took a batch from it, or began to send to it."""

    time_us: int
    instance: str
    incarnation: int
    salvages: bool


class BatchReturned(NamedTuple):
    """A batch brought an incarnation a message whose path names that incarnation: the message came
    from there."""

    time_us: int
    instance: str
    incarnation: int
    sender: int
    publisher: int
    sequences: Sequences
    path: tuple[int, ...]


class RetirementLearnt(NamedTuple):
    """A former instance has learnt that it is retired."""

    time_us: int
    instance: str
    incarnation: int


class DiskSalvaged(NamedTuple):
    """The messages of a retired disk have arrived wherever they are routed."""

    time_us: int
    instance: str
    incarnation: int


class RecordsDrafted(NamedTuple):
    """An instance drafted records of its own, which do not take effect yet."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class MessagesApplied(NamedTuple):
    """Messages took effect at an instance."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class MessagesUndone(NamedTuple):
    """Messages could not be journaled, were undone, and never take effect."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class FeatureFolded(NamedTuple):
    """A feature of an instance has folded the committed messages up to a transaction id."""

    time_us: int
    instance: str
    feature: str
    last_txid: int
    messages: tuple[tuple[int, int], ...] = ()
    """Messages that the feature delivered of them: (publisher, sequence), in order."""
    kept_back: tuple[str, ...] = ()
    """Clients whose publishes count as acked and whose acks were not sent yet."""


class SowDiffers(NamedTuple):
    """A SOW topic of an instance differs from what its journal says, at a start or in the end."""

    time_us: int
    instance: str
    text: str


class NemesisFault(NamedTuple):
    """The nemesis did something. Checkers ignore it; it is there for readers."""

    time_us: int
    what: str


class EventSeen(NamedTuple):
    """An instance reported an event. Checkers ignore it; it is there for readers."""

    time_us: int
    instance: str
    what: str


Operation = (
    InstanceStarted
    | InstanceCrashed
    | RunJournaled
    | OldCopyHeld
    | WaiterNoted
    | LackNoted
    | InstanceRecovered
    | LinkModeSet
    | LinkReached
    | LinkConnected
    | CatchUpEnded
    | MessagesPublished
    | AckGiven
    | PublishRefused
    | SafetySent
    | SafetyHeard
    | StoreState
    | MessagesSent
    | ClientCrashed
    | InstanceReady
    | ServerUsed
    | PublishesDropped
    | SegmentsRemoved
    | MessagesOffered
    | MessagesDelivered
    | ResumeRead
    | SubscriptionResumed
    | MissingHeard
    | InstanceMoved
    | FiltersChanged
    | MoveKnown
    | BatchTaken
    | BatchReturned
    | RetirementLearnt
    | DiskSalvaged
    | RecordsDrafted
    | FeatureFolded
    | MessagesApplied
    | MessagesUndone
    | NemesisFault
    | EventSeen
    | SowDiffers
    | QueueOperation
)


@dataclass(frozen=True, slots=True)
class HistoryMember:
    """An instance of a topology. Its destinations have instance names for addresses, or addresses
    that several servers share (`Topology.wide`)."""

    name: str
    group: str
    destinations: tuple[DestinationRoute, ...]
    without: tuple[str, ...] = ()
    """Topics that are not in the instance's transaction log. The instance skips messages on them
    that links bring, where the check `txlog` is left out."""


@dataclass(slots=True)
class Topology:
    """The links between instances.

    Attributes:
        uniform: whether every link that brings a topic to an instance carries the same part of it,
            so that no message may be late.
        wide: addresses at which several instances answer in turn (wide IP).
        passes: whether a content passes a filter as it is written; None: there are no filters.
    """

    name: str
    members: dict[str, HistoryMember]
    uniform: bool = False
    wide: dict[str, tuple[str, ...]] = field(default_factory=dict)
    passes: Passes | None = None

    def servers(self, destination: DestinationRoute) -> tuple[str, ...]:
        found = (self.wide.get(address, (address,)) for address in destination.addresses)
        return tuple(name for names in found for name in names)

    def replicating_to(self, name: str) -> list[str]:
        """Returns the other instances of the group that replicate to this one."""
        return [
            other.name
            for other in self.members.values()
            if other.name != name
            and other.group == self.members[name].group
            and any(name in self.servers(destination) for destination in other.destinations)
        ]


class DestinationDebt(NamedTuple):
    """Messages of one publisher, between two sequences, that a destination has not acknowledged in
    the end. `destination` empty: no particular one."""

    destination: str
    publisher: int
    messages: int
    first: int
    last: int


@dataclass(slots=True)
class FinalLog:
    """The journal of an instance in the end."""

    incarnation: int
    present: frozenset[tuple[int, int]]
    """(publisher, sequence) of the messages in its segments."""
    ever: frozenset[tuple[int, int]]
    """Messages in the journal, and in segments that were removed."""
    servers: dict[str, str]
    """The instance to which each destination is connected; empty: to none."""
    owed: int
    """Number of messages that destinations have not acknowledged."""
    pending: int
    unavailable: frozenset[tuple[int, int]] = frozenset()
    """Messages that the instance reports as lost at every upstream."""
    owing: tuple[DestinationDebt, ...] = ()
    """Messages that are unacknowledged or pending, as far as is known."""


@dataclass(slots=True)
class RunHistory:
    """The history of one run: its operations and its final state."""

    topology: Topology
    operations: list[Operation] = field(default_factory=list)
    final: dict[str, FinalLog] = field(default_factory=dict)
    unacked: dict[str, int] = field(default_factory=dict)
    """Number of messages left in each client's publish store in the end."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Descriptions, by client that waits in the end, of what it waits for and where."""
    subscribed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Instance to which each subscriber was connected in the end, and its topic or `.*`, by
    name."""
    passes: dict[str, Callable[[str], bool]] = field(default_factory=dict)
    """Content filters, by subscriber that has one: whether a content passes."""
    unretired: list[str] = field(default_factory=list)
    """Former instances that still run in the end."""
    unstarted: dict[str, str] = field(default_factory=dict)
    """Instances that had not started in the end, each with the instance that it was to be copied
    from."""
    journaled: tuple[TopicRule, ...] = (TopicRule(".*"),)
    """Topics that all instances journal."""
    transient: frozenset[str] = frozenset()
    """Topics that no instance journals."""
    deletions: set[tuple[int, int]] = field(default_factory=set)
    """Publishes that delete records or are internal to a queue. No subscriber receives them."""
    queues: tuple[SharedQueue, ...] = ()

    def tail(self, lines: int) -> str:
        """Returns the last operations, one on each line."""
        return "\n".join(describe(operation) for operation in self.operations[-lines:])


def describe(operation: Operation) -> str:
    names = operation._fields[1:]
    values = [f"{name}={_short(value)}" for name, value in zip(names, operation[1:], strict=True)]
    return f"{operation[0] / 1000:10.3f} ms  {type(operation).__name__:<10} {' '.join(values)}"


def _short(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 12:
        return f"({len(value)} values)"
    if isinstance(value, int) and not isinstance(value, bool) and value > 1 << 32:
        return f"{value & 0xFFFF:04x}"
    if isinstance(value, tuple):
        return "(" + ",".join(_short(item) for item in value) + ")"
    return str(value)
