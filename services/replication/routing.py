"""Which messages go to which destination (design.md 4; seed: "Replication Message Routing").

A message is routed to a destination when it is in the local log, its topic and message type match,
it was published here or came from an instance whose group matches PassThrough, and the downstream
incarnation is not in its path. The content filter is a fourth predicate that comes later.

PassThrough asks only who sent a message last. Between regions of several instances that lets a part
of a region's messages go round: London-2 to Chicago-1 to Chicago-2, whose PassThrough `Chicago`
takes what Chicago-1 sent, and back to London-1, which may then have a later message before an
earlier one. `own_group_only` asks for the whole way instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raylay.services.messages.records import Flag
from raylay.services.messages.topics import TopicMatcher, TopicRule, compile_regex

SYNC_DESTINATIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Destination:
    """One `Destination` of an instance (behaviour.md 1.1).

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
        """Whether it may reach another server than last time."""
        return (
            self.wide_ip
            or self.waits
            or len(self.addresses) > 1
            or not (self.dials or self.addresses)
        )


class Routable(Protocol):
    """What a router asks of a run."""

    @property
    def topic(self) -> bytes:
        """Of all its records."""

    @property
    def message_type(self) -> bytes:
        """Of all its records."""

    @property
    def path(self) -> tuple[int, ...]:
        """The incarnations that it came through."""

    @property
    def group(self) -> str:
        """Of the last one of them."""

    @property
    def flags(self) -> int:
        """Those of `Flag`."""


class Router:
    """The four conditions of one destination."""

    __slots__ = (
        "_groups",
        "_pass_through",
        "_resync_pass_through",
        "_stopping_flags",
        "_topics",
        "destination",
    )

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
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
        """Whether PassThrough lets messages received from this group on."""
        found = self._groups.get(group)
        if found is None:
            found = self._pass_through is not None and self._pass_through.search(group)
            self._groups[group] = found
        return found

    def routed(self, run: Routable, downstream: int) -> bool:
        """Whether a journaled run goes there: what decides is equal for all its records.

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
