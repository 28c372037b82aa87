"""Views and conflated topics of a fabric: how they are declared (behaviour.md 4.5, 4.6)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raylay.services.configuration.fields import MessageType, Section, definition_name
from raylay.services.configuration.sow_topics import Expression, Index
from raylay.services.messages.units import Bytes, Milliseconds
from raylay.services.views.definition import (
    INTERVAL_US_DEFAULT,
    INTERVAL_US_MIN,
    MEMORY_BYTES_MAX_DEFAULT,
    ConflatedTopicDefinition,
    ViewDefinition,
)

ViewName = Annotated[str, AfterValidator(definition_name("topic"))]


class ViewSettings(Section):
    """Records that are computed from those of SOW topics and other views (docs/views.md)."""

    name: ViewName
    message_type: MessageType
    topic: str = ""
    """Name of the SOW topic or the view that this one is over. Empty: several are joined."""
    topic_type: str = ""
    """Message type of that topic. Empty: the view's own, or the only one of that name."""
    joins: tuple[Expression, ...] = ()
    """Joins of several topics, each as `[orders]./customer = [customers]./id`."""
    projection: Annotated[tuple[Expression, ...], Field(min_length=1)]
    """The view's fields, each as `expression AS /field`."""
    grouping: tuple[Expression, ...] = ()
    """Identifiers of the fields by which records are grouped. None: each record is one of the
    view."""
    key_domain: str = ""
    """Goes into each key of the view. Empty: the view's name."""
    conflation: Literal["none", "inline"] = "none"
    """`inline`: a group that several messages of one commit change is given once."""
    filter: str = ""
    """Content filter of the records that count. Empty: all count."""
    hash_indexes: tuple[Index, ...] = ()
    """Hash indexes, each the identifiers of fields that queries ask for by exact value."""
    join_null_equivalency: bool = False
    """Whether records without a value are joined to one another."""
    memory_bytes_max: Annotated[Bytes, Field(gt=0)] = MEMORY_BYTES_MAX_DEFAULT
    """Approximate memory of the view above which it goes out of service: it is then neither queried
    nor followed, and publishing goes on."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        return self

    def definition(self) -> ViewDefinition:
        """Returns the definition that an instance reads.

        Raises:
            ValueError: two of its values do not go together.
        """
        values: dict[str, Any] = dict(iter(self))
        values["inline"] = values.pop("conflation") == "inline"
        values["null_equals"] = values.pop("join_null_equivalency")
        return ViewDefinition(**values)


class ConflatedTopicSettings(Section):
    """A topic that gives each record of another one at most once an interval (docs/views.md)."""

    name: ViewName
    message_type: MessageType
    topic: Expression
    """Name of the SOW topic, view or conflated topic of the same message type under it."""
    interval_ms: Annotated[Milliseconds, Field(ge=INTERVAL_US_MIN // 1000)] = (
        INTERVAL_US_DEFAULT // 1000
    )
    """Time between two values of a record."""
    filter: str = ""
    """Content filter of the records that it has. Empty: all."""
    hash_indexes: tuple[Index, ...] = ()
    """Hash indexes, each the identifiers of fields that queries ask for by exact value."""
    enrichment: tuple[Expression, ...] = ()
    """Fields that are computed when a record is given, each as `expression AS /field`."""
    topic_format: str = ""
    """Name of the topic of each record, with `%n` for its topic underneath. For a topic underneath
    that has a pattern."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        return self

    def definition(self) -> ConflatedTopicDefinition:
        """Returns the definition that an instance reads."""
        values: dict[str, Any] = dict(iter(self))
        values["interval_us"] = values.pop("interval_ms") * 1000
        return ConflatedTopicDefinition(**values)
