"""The history of a fabric, as plain values in order of time: the input of the checkers.

Times are microseconds. An operation is written down when it takes effect: a record when it is on
disk, an acknowledgment when the instance gives it. A publish that is never acknowledged is
*unknown*: it may be in the logs or not.
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
"""A filter as it is written, and what it sees of a message: whether that one passes."""


class InstanceStarted(NamedTuple):
    """An instance came up."""

    time_us: int
    instance: str
    incarnation: int
    ready: bool


class InstanceCrashed(NamedTuple):
    """An instance died; `lost`: its disk with it."""

    time_us: int
    instance: str
    incarnation: int
    lost: bool


class RunJournaled(NamedTuple):
    """A run is on disk. The records have the transaction ids from `txid` on."""

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
    """Digests of the contents, in the order of `sequences`; empty: nobody has published others
    under these identities."""
    contents: tuple[str, ...] = ()
    """Content of each as content filters see it, in the words of `Topology.passes`, in that
    order."""
    behind: tuple[str, ...] | None = None
    """Message that each says to come before it on its topic, as `publisher|sequence|`; empty: it
    says nothing; "nothing": it is the first. None: its topic has no state."""


class OldCopyHeld(NamedTuple):
    """An old copy of a disk that was put back says that it had these, and has removed them."""

    time_us: int
    instance: str
    incarnation: int
    publisher: int
    sequences: Sequences


class WaiterNoted(NamedTuple):
    """A waiter is on disk: `sender` (incarnation, 0 a client) waits for these there, for
    `root`."""

    time_us: int
    instance: str
    incarnation: int
    root: int
    sender: int
    publisher: int
    sequences: Sequences


class InstanceRecovered(NamedTuple):
    """An instance came up from what it had written down and its journal. `again`: (root, publisher,
    sequence) of what was durable when it was written down, and waits for answers again."""

    time_us: int
    instance: str
    again: tuple[tuple[int, int, int], ...]


class LackNoted(NamedTuple):
    """Note, on disk, that these are not here and no upstream had them any more."""

    time_us: int
    instance: str
    incarnation: int
    publisher: int
    sequences: Sequences


class LinkModeSet(NamedTuple):
    """A change by which persisted acks of the instance wait for the destination from now on, or do
    not. `pending`: (root, publisher, sequence) of what an upgrade finds unacknowledged and asks
    again."""

    time_us: int
    instance: str
    destination: str
    sync: bool
    pending: tuple[tuple[int, int, int], ...] = ()


class LinkReached(NamedTuple):
    """A link has reached this server and compares what is here and there. What that one holds
    counts as its answer from now on, whether or not the link ever begins: until it does, the server
    before is the one that acks wait for and that is called safe. `incarnation`: of the server."""

    time_us: int
    instance: str
    destination: str
    server: str
    incarnation: int


class LinkConnected(NamedTuple):
    """A destination of the instance is connected to this server from now on. `incarnation`: of the
    server, 0 where nobody tells. `pending`: (root, publisher, sequence) of what waits then: where
    it is another incarnation than before, that one is asked for it, too."""

    time_us: int
    instance: str
    destination: str
    server: str
    incarnation: int = 0
    pending: tuple[tuple[int, int, int], ...] = ()


class CatchUpEnded(NamedTuple):
    """The messages that an instance had when a destination connected are there: at this incarnation
    of it."""

    time_us: int
    instance: str
    destination: str
    incarnation: int


class MessagesPublished(NamedTuple):
    """A client's program called publish. `digest`: of the content, 0 where none is compared."""

    time_us: int
    client: str
    publisher: int
    sequence: int
    topic: str
    digest: int = 0


class AckGiven(NamedTuple):
    """An instance gave a client a persisted ack for everything up to `sequence` that was sent, or
    named `sequences` durable at a logon."""

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
    """A client was told by the instance that it uses which of the others are safe."""

    time_us: int
    client: str
    instance: str
    safe: tuple[str, ...]


class StoreState(NamedTuple):
    """The safety that a client was told of, and the instance that it used last, are on its disk."""

    time_us: int
    client: str


class MessagesSent(NamedTuple):
    """A client sent these on a connection, in this order."""

    time_us: int
    client: str
    publisher: int
    connection: int
    sequences: Sequences


class ClientCrashed(NamedTuple):
    """A client died. What was not on its disk is lost, `lost` with it: published, and gone."""

    time_us: int
    client: str
    publisher: int
    lost: Sequences


class InstanceReady(NamedTuple):
    """An instance that had to catch up admits clients from now on; `by_hand`: by force."""

    time_us: int
    instance: str
    incarnation: int
    by_hand: bool


class ServerUsed(NamedTuple):
    """A client goes on at this instance; `previous` is empty for its first."""

    time_us: int
    client: str
    instance: str
    previous: str


class PublishesDropped(NamedTuple):
    """A client's store dropped these as persisted."""

    time_us: int
    client: str
    publisher: int
    sequences: Sequences


class SegmentsRemoved(NamedTuple):
    """Segments up to a transaction id were removed; `servers`: the server that each destination
    was connected to."""

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
    """An instance reads where a subscriber goes on that says what it has."""

    time_us: int
    instance: str
    subscriber: str


class SubscriptionResumed(NamedTuple):
    """A subscriber heard that an instance has accepted its subscription."""

    time_us: int
    subscriber: str
    instance: str


class MissingHeard(NamedTuple):
    """A subscriber heard what retention removed at an instance that it has not received."""

    time_us: int
    subscriber: str
    instance: str
    messages: int
    publishers: tuple[tuple[int, tuple[int, int, int]], ...]
    """Number of messages, and the first and the last sequence, of each publisher."""


class InstanceMoved(NamedTuple):
    """An instance was moved to another host: from now on what it was goes by the name `former`."""

    time_us: int
    instance: str
    former: str
    incarnation: int


class FiltersChanged(NamedTuple):
    """An instance starts, and what its destinations carry is said otherwise from now on."""

    time_us: int
    instance: str
    destinations: tuple[DestinationRoute, ...]


class MoveKnown(NamedTuple):
    """Note, on this instance's disk, that `peer` was moved: what is of a lower generation is
    retired."""

    time_us: int
    instance: str
    peer: str
    generation: int


class BatchTaken(NamedTuple):
    """An instance let this incarnation in, took a batch from it, or began to send to it."""

    time_us: int
    instance: str
    incarnation: int
    salvages: bool


class BatchReturned(NamedTuple):
    """A batch brought an incarnation what has it in its path: it came from there."""

    time_us: int
    instance: str
    incarnation: int
    sender: int
    publisher: int
    sequences: Sequences
    path: tuple[int, ...]


class RetirementLearnt(NamedTuple):
    """A former instance has learnt that it is over."""

    time_us: int
    instance: str
    incarnation: int


class DiskSalvaged(NamedTuple):
    """The messages of a retired disk are where they were routed to."""

    time_us: int
    instance: str
    incarnation: int


class RecordsDrafted(NamedTuple):
    """An instance wrote records itself, of which nothing is true yet."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class MessagesApplied(NamedTuple):
    """Messages that take effect there."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class MessagesUndone(NamedTuple):
    """Messages that could not be journaled, and never take effect there."""

    time_us: int
    instance: str
    publisher: int
    sequences: Sequences


class FeatureFolded(NamedTuple):
    """A feature of an instance has folded what was committed, up to a transaction id."""

    time_us: int
    instance: str
    feature: str
    last_txid: int
    messages: tuple[tuple[int, int], ...] = ()
    """Messages that it delivered of it: (publisher, sequence), in order."""
    kept_back: tuple[str, ...] = ()
    """Clients whose publishes count as acked and who were not told yet."""


class SowDiffers(NamedTuple):
    """A SOW topic of an instance is not what its journal says, when it begins or in the end."""

    time_us: int
    instance: str
    text: str


class NemesisFault(NamedTuple):
    """The nemesis did something. Checkers ignore it, people read it."""

    time_us: int
    what: str


class EventSeen(NamedTuple):
    """An event that an instance reports. Checkers ignore it, people read it."""

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
    """An instance of a topology. Addresses of destinations are instance names, or those of several
    servers (`Topology.wide`)."""

    name: str
    group: str
    destinations: tuple[DestinationRoute, ...]
    without: tuple[str, ...] = ()
    """Topics that are not in its transaction log: messages of them that links bring are passed
    over there, where the check `txlog` is left out."""


@dataclass(slots=True)
class Topology:
    """The links between instances.

    Attributes:
        uniform: every link that brings a topic to an instance carries the same part of it, so that
            nothing may come late.
        wide: addresses at which several instances answer in turn (wide IP).
        passes: whether a content passes a filter as it is written; None: no filter runs.
    """

    name: str
    members: dict[str, HistoryMember]
    uniform: bool = False
    wide: dict[str, tuple[str, ...]] = field(default_factory=dict)
    passes: Passes | None = None

    def servers(self, destination: DestinationRoute) -> tuple[str, ...]:
        """The instances that a destination may reach."""
        found = (self.wide.get(address, (address,)) for address in destination.addresses)
        return tuple(name for names in found for name in names)

    def replicating_to(self, name: str) -> list[str]:
        """The other instances of its group that replicate to this one."""
        return [
            other.name
            for other in self.members.values()
            if other.name != name
            and other.group == self.members[name].group
            and any(name in self.servers(each) for each in other.destinations)
        ]


class DestinationDebt(NamedTuple):
    """The messages that a destination has not acknowledged in the end, or nobody in particular
    (`destination` empty): of one publisher, from the first to the last of them."""

    destination: str
    publisher: int
    messages: int
    first: int
    last: int


@dataclass(slots=True)
class FinalLog:
    """The log of an instance when all is over."""

    incarnation: int
    present: frozenset[tuple[int, int]]
    """(publisher, sequence) that are in its segments."""
    ever: frozenset[tuple[int, int]]
    """Messages in the log, and in segments since removed."""
    servers: dict[str, str]
    """Destination to the instance that it is connected to; empty when to none."""
    owed: int
    """Messages that destinations still owe it."""
    pending: int
    unavailable: frozenset[tuple[int, int]] = frozenset()
    """Messages that it says no upstream has any more."""
    owing: tuple[DestinationDebt, ...] = ()
    """Messages that are owed or pending, as far as is known."""


@dataclass(slots=True)
class RunHistory:
    """One run."""

    topology: Topology
    operations: list[Operation] = field(default_factory=list)
    final: dict[str, FinalLog] = field(default_factory=dict)
    unacked: dict[str, int] = field(default_factory=dict)
    """Client to what was left in its publish store at the end."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Description of what each of those clients waits for, and where."""
    subscribed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Subscriber to (the instance it ended at, its topic or `.*`)."""
    passes: dict[str, Callable[[str], bool]] = field(default_factory=dict)
    """Test of each subscriber with a content filter: whether a content passes it."""
    unretired: list[str] = field(default_factory=list)
    """Former instances that are still alive at the end."""
    unstarted: dict[str, str] = field(default_factory=dict)
    """Instances that had not begun at the end, to what they waited to be copied from."""
    journaled: tuple[TopicRule, ...] = (TopicRule(".*"),)
    """Topics that all instances have in their transaction logs."""
    transient: frozenset[str] = frozenset()
    """Topics that no instance journals."""
    deletions: set[tuple[int, int]] = field(default_factory=set)
    """Publishes that delete records, or are of a queue's own: nobody is delivered them."""
    queues: tuple[SharedQueue, ...] = ()

    def tail(self, lines: int) -> str:
        """The last operations, a line each."""
        return "\n".join(describe(operation) for operation in self.operations[-lines:])


def describe(operation: Operation) -> str:
    """An operation as one line."""
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
