"""Values that an instance's machine, its links and its shells exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.replication.acknowledgment import RootedRanges


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an instance. `incarnation`: 64 random bits, drawn with its data directory.
    `generation`: number of times that the instance had been moved when the directory was made.
    `in_fabric`: whether the instances of its fabric prove their identity; then only proved ones can
    end this incarnation. `life`: random bits, drawn at each start of the process."""

    name: str
    group: str
    incarnation: int
    generation: int = 0
    in_fabric: bool = False
    life: int = 0


class LogonAnswer(NamedTuple):
    """The answer to a client's logon. `unused`: the sequences that an earlier life of the client
    left, with which it continues."""

    publisher: int
    durable: list[Range]
    highest: int
    unused: Range | None = None


class UpstreamAnswer(NamedTuple):
    """The answer to an upstream link's logon: the messages that are stored here, and those of them
    for which this upstream still waits."""

    held: PublisherRanges
    waited: RootedRanges


class LinkStart(NamedTuple):
    """The state that a link is given when it has connected.

    Attributes:
        sync: whether the link marks what it sends as awaited.
        notice: awaited messages that the destination has and has not answered: a notice asks for
            their answers.
        mark: awaited messages that the destination lacks: marked when they are sent, whatever their
            run says.
        own_root: the root of messages that clients published at the link's instance.
        last_txid: transaction id up to which the journal is committed.
        unavailable: messages that this instance never got, as no upstream has them any more.
        whole: whether everything journaled here is routed to the destination.
    """

    sync: bool
    notice: RootedRanges
    mark: RootedRanges
    own_root: int
    last_txid: int
    unavailable: PublisherRanges = PublisherRanges()
    whole: bool = False


class DirectLinkState(NamedTuple):
    """The state that a link's machine hands over with its connection, when nothing is on its way.

    Attributes:
        downstream: incarnation of the connected server.
        held: messages that are stored there.
        cursor: transaction id up to which everything is stored there, or is not routed there.
        number: number of the last batch.
        own_root, sync, unavailable, whole: the present values of the attributes of LinkStart.
    """

    downstream: int
    held: PublisherRanges
    cursor: int
    number: int
    own_root: int
    sync: bool
    unavailable: PublisherRanges
    whole: bool


@dataclass(slots=True)
class Counters:
    """Counts since the start of the process, for status and metrics."""

    published: int = 0
    replicated_in: int = 0
    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    passed_over: int = 0
    """Number of messages passed over because the log here does not take their topics."""
    commits: int = 0
    persisted: int = 0
    downgrades: int = 0
    upgrades: int = 0
    publisher_conflicts: int = 0
    """Number of client names that were refused, or came over a link, with the publisher id of
    another name."""
