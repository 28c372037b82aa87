"""The configuration of one view and of one conflated topic, as values from YAML or AMPSConfig
(behaviour.md 4.5, 4.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MEMORY_BYTES_MAX_DEFAULT = 512 * 1024 * 1024
INTERVAL_US_MIN = 100_000
INTERVAL_US_DEFAULT = 5_000_000


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """The configuration of one view.

    Attributes:
        name: name of the view, to which no client publishes.
        message_type: name of the view's message type.
        topic: name of the only topic under the view; empty: topics are joined.
        topic_type: message type of that topic; empty: the view's, or the only one of that name.
        joins: `[topic]./field = [topic]./field` of each join; empty: there is one topic.
        projection: `expression AS /field` of each field, in order.
        grouping: identifiers of the grouping fields; none: each record is a group.
        key_domain: domain of the view's SOW keys; empty: the view's name.
        inline: whether a group that several messages of one commit change is given once.
        filter: content filter of the records; empty: all count. Not for joins.
        hash_indexes: identifiers of each index for exact matches.
        null_equals: whether records without a value are joined to one another.
        memory_bytes_max: approximate memory of the view above which it goes out of service.

    Raises:
        ValueError: two of these do not go together; says which and what to do.
    """

    name: str
    message_type: str
    topic: str = ""
    topic_type: str = ""
    joins: tuple[str, ...] = ()
    projection: tuple[str, ...] = ()
    grouping: tuple[str, ...] = ()
    key_domain: str = ""
    inline: bool = False
    filter: str = ""
    hash_indexes: tuple[tuple[str, ...], ...] = ()
    null_equals: bool = False
    memory_bytes_max: int = MEMORY_BYTES_MAX_DEFAULT

    def __post_init__(self) -> None:
        if bool(self.topic) == bool(self.joins):
            raise ValueError(f"view {self.name}: give the topic under it, or the joins of several")
        if self.joins and self.filter:
            raise ValueError(
                f"view {self.name} joins topics: it cannot have a filter. Make a view with the "
                "filter of one of them, and join that"
            )
        if self.joins and self.topic_type:
            raise ValueError(
                f"view {self.name} joins topics: write their types in the joins, as "
                "[type].[topic].[/field]"
            )
        if not self.projection:
            raise ValueError(f"view {self.name} has no projection: say which fields it has")

    @property
    def stored_as(self) -> str:
        """Returns the name by which the view is told from one of another type."""
        return f"{self.message_type}/{self.name}"


@dataclass(frozen=True, slots=True)
class ConflatedTopicDefinition:
    """The configuration of one conflated topic.

    Attributes:
        name: name of the topic, to which no client publishes.
        message_type: name of its message type, which is that of the topic under it.
        topic: name of the SOW topic, view or conflated topic under it.
        interval_us: time between two values of a key, in microseconds.
        filter: content filter of the records that it has; empty: all.
        hash_indexes: identifiers of each index for exact matches.
        enrichment: `expression AS /field` of each field that is computed when a record is given.
        topic_format: name of the topic of each record, with `%n` for its topic underneath, where
            that one has a pattern; empty: the topic underneath has none.

    Raises:
        ValueError: the interval is too short, or the format cannot be.
    """

    name: str
    message_type: str
    topic: str
    interval_us: int = INTERVAL_US_DEFAULT
    filter: str = ""
    hash_indexes: tuple[tuple[str, ...], ...] = ()
    enrichment: tuple[str, ...] = ()
    topic_format: str = ""

    def __post_init__(self) -> None:
        if self.topic_format and (self.topic_format.count("%n") != 1 or self.topic_format == "%n"):
            raise ValueError(
                f"conflated topic {self.name}: topic_format {self.topic_format[:200]!r} needs %n "
                f"once, and other text, such as {self.name}/%n"
            )
        if self.interval_us < INTERVAL_US_MIN:
            raise ValueError(
                f"conflated topic {self.name}: the interval is {self.interval_us / 1000:g} ms: "
                f"give at least {INTERVAL_US_MIN // 1000} ms"
            )

    @property
    def stored_as(self) -> str:
        """Returns the name by which the topic is told from one of another type."""
        return f"{self.message_type}/{self.name}"

    @property
    def pattern(self) -> str:
        """Returns the expression that the names of its topics match; empty: it has one topic."""
        if not self.topic_format:
            return ""
        return "^" + ".+".join(map(re.escape, self.topic_format.split("%n"))) + "$"

    def topic_of(self, under: bytes) -> bytes:
        """Returns the name of the topic of records whose topic underneath is `under`."""
        return self.topic_format.encode().replace(b"%n", under)
