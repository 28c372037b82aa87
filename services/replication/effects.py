"""Effects: the requests of the instance and link machines to their shells, which perform them in
order.

Effects carry values only. Performing one twice does no harm: acknowledgments only ever grow, and
batches are numbered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.messages.records import Run
from raylay.services.replication.membership.placement import InstancePlacement

Ranges = dict[int, list[Range]]
"""Publisher to inclusive ranges."""

Rooted = dict[int, Ranges]
"""Root to ranges: see `acknowledgment.py`. Root 0 is what nobody is awaited for."""


@dataclass(slots=True)
class Append:
    """Stage this run for the next commit; its transaction ids are assigned."""

    run: Run


@dataclass(slots=True)
class RunsCommitted:
    """Report that these runs are on disk now, in order: deliver them, wake the links."""

    runs: list[Run]
    last_txid: int


@dataclass(slots=True)
class AckClient:
    """Persisted ack: everything of this session up to `sequence` is durable.

    With `reason`, `sequence` alone is refused instead. With `command_id`, the ack answers one
    publish that the server numbered. Of those that it covers and no ack did before, `unjournaled`
    went to live subscribers only.
    """

    session: int
    sequence: int
    reason: str = ""
    text: str = ""
    command_id: str = ""
    unjournaled: int = 0


@dataclass(slots=True)
class RefuseClient:
    """Each sequence of these ranges of a session is refused, before the ack that covers them."""

    session: int
    ranges: list[Range]
    reason: str
    text: str


@dataclass(slots=True)
class AckUpstream:
    """Answer to one upstream connection: batches up to `number` are stored; `held` came here by
    other ways; `persisted` is answered; `conflicts` is refused for good."""

    connection: int
    number: int
    held: Ranges = field(default_factory=dict)
    persisted: Rooted = field(default_factory=dict)
    conflicts: Ranges = field(default_factory=dict)


@dataclass(slots=True)
class CloseUpstream:
    """End an upstream connection and tell it why."""

    connection: int
    reason: str
    text: str


@dataclass(slots=True)
class CloseSession:
    """End a client session and tell it why."""

    session: int
    reason: str
    text: str


@dataclass(slots=True)
class NotifyLink:
    """Notice to one link: ask the destination about `awaited`, all of it committed here up to
    `last_txid`."""

    destination: str
    awaited: Rooted
    last_txid: int


@dataclass(slots=True)
class SetLinkMode:
    """Instruction to one link: mark what it sends as awaited (`sync`) or not. Holds for every
    transaction id above those it was told of so far."""

    destination: str
    sync: bool


@dataclass(slots=True)
class SafetyChanged:
    """Tell every client session which peers are safe to fail over to. Comes before the acks that
    the change releases."""


@dataclass(slots=True)
class RemovalBound:
    """Law 4: the journal may remove what lies below this transaction id, and nothing else. One that
    is lower than the one before holds at once: a destination may have come back with less."""

    before_txid: int


@dataclass(slots=True)
class PlacementsChanged:
    """Instances were moved: dial them where they live now, and tell all who are connected."""

    news: dict[str, InstancePlacement]


@dataclass(slots=True)
class InstanceRetirement:
    """Report that this instance was moved while it ran: it is over here, for good. Its sessions and
    upstream connections are closed already."""

    text: str


@dataclass(slots=True)
class StaleCopyDetected:
    """Report that this instance's data directory is an older state of what it was: it begins anew
    as another incarnation. Its sessions and upstream connections are closed already."""

    text: str


@dataclass(slots=True)
class BecameReady:
    """Clients may be admitted now."""


@dataclass(slots=True)
class EventReport:
    """An event for people: logs, `fabric.events()`."""

    event: str
    details: dict[str, Any] = field(default_factory=dict)


Effect = (
    Append
    | RunsCommitted
    | AckClient
    | RefuseClient
    | AckUpstream
    | CloseUpstream
    | CloseSession
    | NotifyLink
    | SetLinkMode
    | SafetyChanged
    | RemovalBound
    | PlacementsChanged
    | InstanceRetirement
    | StaleCopyDetected
    | BecameReady
    | EventReport
)


@dataclass(slots=True)
class SendBatch:
    """Request of a link machine: send this batch downstream.

    Attributes:
        number: running number in this connection, from 1.
        runs: whole runs, in journal order.
        marked: whether the runs' AWAITED flags count (the link is sync); a flagged run's root is
            the first incarnation of its path, or the sender where the path is empty.
        awaited: awaited arrivals beyond the flags: of runs in this batch, or notices.
        caught_up: the resync that began with the connection ends with this batch.
        lacks: what the sender once had or heard of, has no more, and the destination has not;
            known once a resync ends.
        whole: everything that the sender has is routed there.
        yours: some of what came by way of the destination's own incarnation, and of which the
            destination did not say that it holds it; since the connect, what came here by others.
    """

    number: int
    runs: list[Run]
    marked: bool
    awaited: Rooted
    caught_up: bool
    lacks: PublisherRanges | None = None
    whole: bool = False
    yours: Ranges = field(default_factory=dict)


@dataclass(slots=True)
class LinkAnswered:
    """Report of a link machine to its instance: the destination answered these."""

    persisted: Rooted
    conflicts: Ranges


@dataclass(slots=True)
class LinkProgress:
    """Report of a link machine to its instance on how far it is.

    Attributes:
        stored_txid: everything routed up to here is on disk at the connected server.
        resending: what a resync found missing and sends: owed again.
        caught_up: the resync is over.
        skipped: surplus records not sent because the receiver was seen to hold them.
    """

    stored_txid: int
    resending: Ranges
    caught_up: bool
    skipped: int


@dataclass(slots=True)
class LinkLacks:
    """Report of a link machine to its instance: these will never be sent, they are removed here."""

    ranges: Ranges


LinkEffect = SendBatch | LinkAnswered | LinkProgress | LinkLacks | EventReport


def ranges_of(sets: PublisherRanges) -> Ranges:
    """Returns the sets as plain ranges."""
    return {publisher: ranges.ranges() for publisher, ranges in sets.sets.items() if ranges}


def rooted_of(sets: dict[int, PublisherRanges]) -> Rooted:
    """Returns the sets as plain ranges, root by root."""
    return {root: ranges_of(ranges) for root, ranges in sets.items() if ranges}
