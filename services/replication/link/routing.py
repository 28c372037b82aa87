"""Routing of messages to destinations (design.md 4; seed: "Replication Message Routing").

A message is routed to a destination when it is in the local log, its topic, message type and
content filter match, it was published here or came from an instance whose group matches
PassThrough, and the downstream incarnation is not in its path. All conditions but the filter are
equal for all records of a run (`routed`); a filter may let some of them through (`part`,
content.py).

PassThrough reads only the group of the last sender. Between regions of several instances, this lets
some messages of a region go round: London-2 to Chicago-1 to Chicago-2, whose PassThrough `Chicago`
accepts messages from Chicago-1, and back to London-1, which may then get a later message before an
earlier one. `own_group_only` also demands that the message never left its group.
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
        name: name of the destination, unique in the instance; shown in logs and status.
        group: group that the remote instance must have, otherwise no connection is made.
        sync: whether persisted acks wait for this destination.
        topics: topic rules; a message that matches one of them is sent.
        pass_through: regular expression over the group of the direct sender; None: only messages
            that clients published here are sent.
        addresses: `host:port` of the servers in priority order; with `dials` False, the names of
            the servers as far as they are known.
        own_group_only: whether only messages that were published in the instance's own group and
            never left it are sent, in addition to PassThrough (Raylay's own; docs/deviations.md).
        resync_pass_through: regular expression over the sender's group: as long as a resync lasts,
            messages that match are sent although PassThrough does not let them; `own_group_only`
            does not restrict them.
        dials: whether the destination has addresses to dial; otherwise the link waits until one of
            its servers connects, and sends over that connection.
        share_connection: whether a connection that one of the servers made is used before any is
            dialled.
        wide_ip: whether several servers may answer at one of the addresses.
        waits, waits_for: whether the link also uses a connection from a server that is not among
            those it dials: one with a name in `waits_for`; with an empty `waits_for`, the server
            named as the destination, else any of the group that no other destination names.
        starts_downgraded: whether the instance begins with this destination downgraded by hand,
            because the servers of the destination are stopped on purpose.
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
    starts_downgraded: bool = False

    @property
    def has_several_servers(self) -> bool:
        """Returns whether the link may reach another server than last time."""
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
        """Returns the topic of all records."""

    @property
    def message_type(self) -> bytes:
        """Returns the message type of all records."""

    @property
    def path(self) -> tuple[int, ...]:
        """Returns the incarnations through which the run came."""

    @property
    def group(self) -> str:
        """Returns the group of the last sender."""

    @property
    def flags(self) -> int:
        """Returns the flags of the run (`Flag`)."""


class JudgedRun(Routable, Protocol):
    """The properties of a part of a run that a router needs when the records are gone."""

    @property
    def passed(self) -> tuple[str, ...]:
        """Returns the content filters that the part passes, of those that its topic has."""


class Router:
    """Decides which messages are routed to one destination.

    Args:
        contents: the content filters of this destination, possibly with those of others; None:
            content filters do not run.

    Attributes:
        has_filter: whether any content filter runs. A plain attribute, because it is read for each
            run.
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
        found = self._groups.get(group)
        if found is None:
            found = self._pass_through is not None and self._pass_through.search(group)
            self._groups[group] = found
        return found

    def routed(self, run: Routable, downstream: int) -> bool:
        """Returns whether a journaled run is routed to the destination, by all conditions that are
        equal for its records. The content filter is separate: `part`, `passing`, `takes`.

        Args:
            run: a run, of which topic, message type, path, flags and the sender's group (only with
                a path) are read.
            downstream: incarnation of the downstream instance, 0 while it is unknown.
        """
        path = run.path
        return (
            downstream not in path
            and (not path or self.passes(run.group))
            and not run.flags & self._stopping_flags
            and self._topics[run.topic, run.message_type]
        )

    def part(self, run: Run, downstream: int, ranges: list[Range]) -> list[Range]:
        """Returns the part of a journaled run that is routed to the destination; the same list
        object where all of it is.

        Args:
            run: a run, with its records where a content filter needs them.
            downstream: as in `routed`, whose conditions are repeated here because this runs for
                each publish.
            ranges: the ranges of the run to decide on.
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
        """Returns the part of the ranges that passes the content filter, whatever the other
        conditions say; the same list object where all of it passes."""
        filtered = self._filtered
        texts = filtered[run.topic, run.message_type] if filtered is not None else ()
        return self.contents.passing(run, texts, ranges) if texts else ranges

    def takes(self, judged: JudgedRun, downstream: int) -> bool:
        """Returns whether messages that were judged when they were committed are routed to the
        destination."""
        if not self.routed(judged, downstream):
            return False
        filtered = self._filtered
        texts = filtered[judged.topic, judged.message_type] if filtered is not None else ()
        return not texts or not set(texts).isdisjoint(judged.passed)

    def routed_in_resync(self, run: Routable, downstream: int) -> bool:
        """Returns whether a run is sent while a resync lasts: runs that are routed (`routed`), and
        in addition those that ResyncPassThrough lets through. The latter do not count as
        unacknowledged."""
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
    """Returns the last transaction id of committed runs that follow `upto_txid` without a gap,
    where all of them were sent here by this instance itself; 0 where one of them was not, or is a
    note."""
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
