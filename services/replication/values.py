"""Values that an instance's machine, its links and its shells hand to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.replication.acknowledgment import RootedRanges


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an instance. `incarnation`: 64 random bits, made with its data directory.
    `generation`: the number of its moves when that was made. `in_fabric`: instances of its fabric
    prove who they are, and what would end this incarnation counts from no other. `life`: random
    bits, drawn anew at each start of its process."""

    name: str
    group: str
    incarnation: int
    generation: int = 0
    in_fabric: bool = False
    life: int = 0


class LogonAnswer(NamedTuple):
    """The answer to a client's logon. `unused`: the sequences that an earlier life of it left,
    which it goes on with."""

    publisher: int
    durable: list[Range]
    highest: int
    unused: Range | None = None


class UpstreamAnswer(NamedTuple):
    """The answer to an upstream link's logon: what is stored here, and the part of it for which
    this upstream still waits."""

    held: PublisherRanges
    waited: RootedRanges


class LinkStart(NamedTuple):
    """The state that a link is given when it has connected.

    Attributes:
        sync: whether it marks what it sends.
        notice: awaited messages that the destination has and has not answered: sent as a notice.
        mark: awaited messages that it has not: marked when they are sent, whatever their run says.
        own_root: of what clients published at the link's instance.
        last_txid: committed up to here.
        unavailable: what this instance itself never got, as no upstream has it any more.
        whole: whether everything journaled here goes there.
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
        downstream: incarnation of the server that is connected.
        held: what is stored there.
        cursor: everything up to here is stored there, or is not routed there.
        number: of the last batch.
        own_root, sync, unavailable, whole: as in LinkStart, but of now.
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
    """Counts since the start, for status and metrics."""

    published: int = 0
    replicated_in: int = 0
    duplicates: int = 0
    late: int = 0
    conflicts: int = 0
    passed_over: int = 0
    """Messages of topics that are not in the log here."""
    commits: int = 0
    persisted: int = 0
    downgrades: int = 0
    upgrades: int = 0
