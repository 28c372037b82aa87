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
"""Publisher ranges by root (see `acknowledgment.py`). Root 0 holds messages for which no instance
is awaited."""


@dataclass(slots=True)
class Append:
    """Request to stage this run for the next commit; its transaction ids are assigned."""

    run: Run


@dataclass(slots=True)
class RunsCommitted:
    """Report that these runs are on disk now, in order: the shell delivers them and wakes the
    links."""

    runs: list[Run]
    last_txid: int


@dataclass(slots=True)
class AckClient:
    """Persisted ack to a client session: everything of the session up to `sequence` is durable.

    With `reason`, `sequence` alone is refused instead. With `command_id`, the ack answers one
    publish that the server numbered. `unjournaled` counts the messages first covered by this ack
    that went to live subscribers only.
    """

    session: int
    sequence: int
    reason: str = ""
    text: str = ""
    command_id: str = ""
    unjournaled: int = 0


@dataclass(slots=True)
class RefuseClient:
    """Refusal of each sequence of these ranges of a session; precedes the ack that covers them."""

    session: int
    ranges: list[Range]
    reason: str
    text: str


@dataclass(slots=True)
class AckUpstream:
    """Answer to one upstream connection: batches up to `number` are stored; the messages in `held`
    came here by other paths; those in `persisted` are answered; those in `conflicts` are refused
    for good."""

    connection: int
    number: int
    held: Ranges = field(default_factory=dict)
    persisted: Rooted = field(default_factory=dict)
    conflicts: Ranges = field(default_factory=dict)


@dataclass(slots=True)
class CloseUpstream:
    """Request to end an upstream connection and to tell the upstream the reason."""

    connection: int
    reason: str
    text: str


@dataclass(slots=True)
class CloseSession:
    """Request to end a client session and to tell the client the reason."""

    session: int
    reason: str
    text: str


@dataclass(slots=True)
class NotifyLink:
    """Request to one link to ask its destination about the messages in `awaited`, which are all
    committed here up to `last_txid`."""

    destination: str
    awaited: Rooted
    last_txid: int


@dataclass(slots=True)
class SetLinkMode:
    """Instruction to one link: mark the messages it sends as awaited (`sync`), or leave them
    unmarked. Holds for transaction ids above all those that the link was told of so far."""

    destination: str
    sync: bool


@dataclass(slots=True)
class SafetyChanged:
    """Request to tell every client session which peers are safe to fail over to. Precedes the acks
    that the change releases."""


@dataclass(slots=True)
class RemovalBound:
    """Law 4: the journal may remove entries below this transaction id, and no others. A bound lower
    than the one before holds at once, because a destination may have come back with less."""

    before_txid: int


@dataclass(slots=True)
class PlacementsChanged:
    """Report that instances were moved: links dial the new addresses, and all connected clients and
    peers are told."""

    news: dict[str, InstancePlacement]


@dataclass(slots=True)
class InstanceRetirement:
    """Report that this instance was moved while it ran, so that this incarnation has ended for
    good. Its sessions and upstream connections are closed already."""

    text: str


@dataclass(slots=True)
class StaleCopyDetected:
    """Report that this instance's data directory is an older copy of itself: the instance begins
    anew as another incarnation. Its sessions and upstream connections are closed already."""

    text: str


@dataclass(slots=True)
class BecameReady:
    """Report that the instance is ready: clients may be admitted from now on."""


@dataclass(slots=True)
class EventReport:
    """An event for people, which appears in the logs and in `fabric.events()`."""

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
        number: number of the batch in this connection, from 1.
        runs: whole runs, in journal order.
        marked: whether the runs' AWAITED flags count (the link is sync); a flagged run's root is
            the first incarnation of its path, or the sender where the path is empty.
        awaited: messages awaited beyond the flags: those of runs in this batch, or of a notice.
        caught_up: whether this batch ends the resync that began with the connection.
        lacks: messages that the sender once had or heard of, has no more, and that the destination
            lacks; known once a resync ends.
        whole: whether everything that the sender has is routed to the destination.
        yours: some of the messages that passed through the destination's own incarnation, came here
            through others since the connect, and that the destination did not say it holds.
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
    """Report of a link machine to its instance: the destination answered for these messages."""

    persisted: Rooted
    conflicts: Ranges


@dataclass(slots=True)
class LinkProgress:
    """Report of a link machine to its instance on its progress.

    Attributes:
        stored_txid: transaction id up to which everything routed is on disk at the connected
            server.
        resending: messages that a resync found missing and sends; they are unacknowledged again.
        caught_up: whether the resync is over.
        skipped: number of surplus records that were not sent because the receiver was seen to hold
            them.
    """

    stored_txid: int
    resending: Ranges
    caught_up: bool
    skipped: int


@dataclass(slots=True)
class LinkLacks:
    """Report of a link machine to its instance: these messages will never be sent, because they are
    removed here."""

    ranges: Ranges


LinkReport = LinkAnswered | LinkProgress | LinkLacks
"""A report of a link about its destination."""
LinkEffect = SendBatch | LinkReport | EventReport


def ranges_of(sets: PublisherRanges) -> Ranges:
    return {publisher: ranges.ranges() for publisher, ranges in sets.sets.items() if ranges}


def rooted_of(sets: dict[int, PublisherRanges]) -> Rooted:
    return {root: ranges_of(ranges) for root, ranges in sets.items() if ranges}
