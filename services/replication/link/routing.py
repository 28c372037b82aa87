"""Routing of messages to destinations (design.md 4; seed: "Replication Message Routing").

A message is routed to a destination when it is in the local log, its topic, message type and
content filter match, it was published here or came from an instance whose group matches
PassThrough, and the downstream incarnation is not in its path. All but the filter is equal for all
records of a run (`routed`); a filter may let some of them through (`part`, content.py).

PassThrough asks only who sent a message last. Between regions of several instances that lets a part
of a region's messages go round: London-2 to Chicago-1 to Chicago-2, whose PassThrough `Chicago`
takes what Chicago-1 sent, and back to London-1, which may then have a later message before an
earlier one. `own_group_only` asks for the whole way instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.messages.topics import TopicMatcher, TopicRule, compile_regex
from raylay.services.replication.link.content import DestinationFilters, FilteredTopics

SYNC_DESTINATIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class DestinationRoute:
    """One `DestinationRoute` of an instance (behaviour.md 1.1).

    Attributes:
        name: unique in the instance; shown in logs and status.
        group: must equal the remote instance's group, else no connection is made.
        sync: whether persisted acks wait for it.
        topics: union of matches.
        pass_through: regular expression over the group of the direct sender; None passes only
            what clients published here.
        addresses: `host:port` in priority order; where it does not dial, the names of the servers,
            if they are known.
        own_group_only: only what was published in the instance's own group and never left it, in
            addition to what PassThrough asks (Raylay's own; docs/deviations.md).
        resync_pass_through: what PassThrough does not let on is let on when this expression matches
            the sender's group, as long as a resync lasts; `own_group_only` does not bind it.
        dials: whether it has addresses to dial; else it waits until one of its servers connects,
            and pushes over that connection.
        share_connection: whether a connection that one of the servers made is used before any is
            dialled.
        wide_ip: whether several servers may answer at one of its addresses.
        waits, waits_for: whether it uses, beside those that it dials, a server that connects: one
            of these names; without any the one of its own name, else any of the group that no
            other destination names.
    """

    name: str
    group: str
    sync: bool
    topics: tuple[TopicRule, ...] = (TopicRule(".*"),)
    pass_through: str | None = None
    addresses: tuple[str, ...] = ()
    compression: bool = False
    ack_conflation_ms: int = 0
    own_group_only: bool = False
    resync_pass_through: str | None = None
    dials: bool = True
    share_connection: bool = False
    wide_ip: bool = False
    waits: bool = False
    waits_for: tuple[str, ...] = ()

    @property
    def has_several_servers(self) -> bool:
        """Returns whether it may reach another server than last time."""
        return (
            self.wide_ip
            or self.waits
            or len(self.addresses) > 1
            or not (self.dials or self.addresses)
        )


class Routable(Protocol):
    """The properties of a run that a router reads."""

    @property
    def topic(self) -> bytes:
        """The topic of all its records."""

    @property
    def message_type(self) -> bytes:
        """The message type of all its records."""

    @property
    def path(self) -> tuple[int, ...]:
        """The incarnations that it came through."""

    @property
    def group(self) -> str:
        """The group of the last sender."""

    @property
    def flags(self) -> int:
        """Flags of `Flag`."""


class JudgedRun(Routable, Protocol):
    """The properties of a run's part that are needed when its records are gone."""

    @property
    def passed(self) -> tuple[str, ...]:
        """The content filters that it passes, of those that look at its topic."""


class Router:
    """The conditions of one destination.

    Args:
        contents: the filters of this destination, and perhaps of others; None: filters do not run.

    Attributes:
        has_filter: whether any runs. Asked for each run: a plain value, no call.
    """

    __slots__ = (
        "_filtered",
        "_groups",
        "_pass_through",
        "_resync_pass_through",
        "_stopping_flags",
        "_topics",
        "contents",
        "destination",
        "has_filter",
    )

    def __init__(
        self, destination: DestinationRoute, contents: DestinationFilters | None = None
    ) -> None:
        self.destination = destination
        self.contents = contents if contents else DestinationFilters()
        self.has_filter = bool(contents)
        self._filtered = FilteredTopics(destination.topics) if self.has_filter else None
        where = f"Destination {destination.name}"
        self._topics = TopicMatcher(destination.topics, f"{where} Topic")
        self._pass_through = (
            compile_regex(destination.pass_through, f"{where} PassThrough")
            if destination.pass_through is not None
            else None
        )
        self._resync_pass_through = (
            compile_regex(destination.resync_pass_through, f"{where} ResyncPassThrough")
            if destination.resync_pass_through is not None
            else None
        )
        self._stopping_flags = Flag.CROSSED if destination.own_group_only else 0
        self._groups: dict[str, bool] = {}

    def passes(self, group: str) -> bool:
        """Returns whether PassThrough lets messages received from this group on."""
        found = self._groups.get(group)
        if found is None:
            found = self._pass_through is not None and self._pass_through.search(group)
            self._groups[group] = found
        return found

    def routed(self, run: Routable, downstream: int) -> bool:
        """Returns whether a journaled run goes there by all that is equal for its records. A
        content filter is asked besides: by `part`, `passing` or `takes`.

        Args:
            run: its topic, message type, path, sender's group (which counts only when there is a
                path) and flags are asked for.
            downstream: incarnation of the downstream instance, 0 while it is unknown.
        """
        path = run.path
        return (
            downstream not in path
            and (not path or self.passes(run.group))
            and not run.flags & self._stopping_flags
            and self._topics.matches(run.topic, run.message_type)
        )

    def part(self, run: Run, downstream: int, ranges: list[Range]) -> list[Range]:
        """Returns the part of a journaled run that goes there: the very same list where all of it
        does.

        Args:
            run: with its records, where a filter looks at them.
            downstream: as in `routed`, which this says again: it stands in the way of each publish.
            ranges: what of the run is asked.
        """
        path = run.path
        if (
            downstream in path
            or (path and not self.passes(run.group))
            or run.flags & self._stopping_flags
            or not self._topics[run.topic, run.message_type]
        ):
            return []
        return ranges if self._filtered is None else self.passing(run, ranges)

    def passing(self, run: Run, ranges: list[Range]) -> list[Range]:
        """Returns the part of the ranges that passes the content filter, wherever else the run
        goes: the very same list where all of it does."""
        filtered = self._filtered
        texts = filtered[run.topic, run.message_type] if filtered is not None else ()
        return self.contents.passing(run, texts, ranges) if texts else ranges

    def takes(self, judged: JudgedRun, downstream: int) -> bool:
        """Returns whether what was judged when it was committed goes there."""
        if not self.routed(judged, downstream):
            return False
        filtered = self._filtered
        texts = filtered[judged.topic, judged.message_type] if filtered is not None else ()
        return not texts or not set(texts).isdisjoint(judged.passed)

    def routed_in_resync(self, run: Routable, downstream: int) -> bool:
        """`routed`, while a resync lasts: what is owed to the destination is sent in any case, and
        what ResyncPassThrough lets on is sent in addition, owed to nobody."""
        if self.routed(run, downstream):
            return True
        found = self._resync_pass_through
        return (
            found is not None
            and downstream not in run.path
            and bool(found.search(run.group))
            and self._topics.matches(run.topic, run.message_type)
        )


def came_from(runs: list[Run], incarnation: int, upto_txid: int) -> int:
    """The last transaction id of committed runs that follow `upto_txid` without a gap, where each
    of them was sent here by this instance itself; 0 where one was not, or is a note."""
    for run in runs:
        path = run.path
        if (
            not path
            or path[-1] != incarnation
            or run.first_txid != upto_txid + 1
            or run.kind != Kind.RECORDS
        ):
            return 0
        upto_txid += run.count
    return upto_txid
