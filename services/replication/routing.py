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

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Flag
from raylay.services.messages.topic_pattern import PatternError, TopicPattern

_REGEX_CHARACTERS = frozenset("^$*+?()[]{}|\\")
TOPIC_CACHE_MAX = 65_536
SYNC_DESTINATIONS_MAX = 64


def is_regex(topic: str) -> bool:
    """Whether a topic is a regular expression: it has a character that only those have.

    A dot alone does not make one: topics such as `orders.eu` are names.
    """
    return not _REGEX_CHARACTERS.isdisjoint(topic)


def compile_regex(pattern: str, where: str) -> TopicPattern:
    """A compiled, unanchored pattern: publishers choose the topics it meets.

    Raises:
        ConfigurationError: naming the pattern, the place and what is wrong.
    """
    try:
        return TopicPattern(pattern)
    except PatternError as error:
        raise ConfigurationError(
            f"{where}: {pattern!r} cannot be used as a regular expression: {error}"
        ) from None


def not_of_transport(message_type: str, allowed: frozenset[bytes]) -> str:
    """The sentence of a client that uses a transport for other types."""
    names = ", ".join(sorted(kind.decode("utf-8", "replace") for kind in allowed))
    return (
        f"this transport takes messages of type {names} only, not of {message_type[:200]!r}: "
        "connect to another one, or change its MessageType"
    )


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One `Topic` element: a literal name or a regular expression, and a message type.

    Attributes:
        message_type: `*` takes any type.
        filter: content filter of a Destination's Topic, as written; empty: none. It is compared at
            connect and does not run yet.
        include_validation: checks at connect (validation.py); None: all.
        exclude_validation: checks left out; wins over `include_validation`.
    """

    name: str
    message_type: str = "*"
    filter: str = ""
    include_validation: tuple[str, ...] | None = None
    exclude_validation: tuple[str, ...] = ()


class TopicMatcher:
    """Whether a topic of a type matches one of several rules. Answers are kept per topic."""

    __slots__ = ("_cache", "_literals", "_patterns", "rules")

    def __init__(self, rules: tuple[TopicRule, ...], where: str = "Topic") -> None:
        self.rules = rules
        self._literals = {(rule.name, rule.message_type) for rule in rules}
        self._patterns = [
            (compile_regex(rule.name, where), rule.message_type)
            for rule in rules
            if is_regex(rule.name)
        ]
        self._cache: dict[tuple[bytes, bytes], bool] = {}

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        """Whether messages of this topic and type match."""
        key = (topic, message_type)
        found = self._cache.get(key)
        if found is None:
            found = self._matches(
                topic.decode("utf-8", "replace"), message_type.decode("utf-8", "replace")
            )
            if len(self._cache) >= TOPIC_CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def _matches(self, topic: str, message_type: str) -> bool:
        if (topic, message_type) in self._literals or (topic, "*") in self._literals:
            return True
        return any(
            kind in ("*", message_type) and pattern.search(topic)
            for pattern, kind in self._patterns
        )


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
