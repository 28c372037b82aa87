"""SOW topics of a fabric: how they are declared (behaviour.md 4.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from raylay.services.configuration.fields import (
    MessageType,
    Pattern,
    RecoveryPoint,
    Section,
    definition_name,
)
from raylay.services.errors import ConfigurationError
from raylay.services.messages.event_topics import CLIENT_STATUS, EVENT_TOPICS, event_key
from raylay.services.messages.units import Milliseconds, format_milliseconds, parse_milliseconds
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules


def _expiration(value: object) -> int | str:
    if value in ("enabled", "disabled"):
        return str(value)
    try:
        found = parse_milliseconds(value)
    except ConfigurationError:
        raise ValueError(
            f"expected disabled, enabled, or a time such as 10s or 7d, got {value!r}"
        ) from None
    if not found:
        raise ValueError("expected disabled, or a time above 0: nothing lives for no time")
    return found


def _shown_expiration(value: int | str) -> str:
    return value if isinstance(value, str) else format_milliseconds(value)


def _index(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


SowName = Annotated[str, AfterValidator(definition_name("pattern"))]
Expiration = Annotated[
    int | str, BeforeValidator(_expiration), PlainSerializer(_shown_expiration, return_type=str)
]
"""`disabled`: what messages say is kept, and nothing expires; `enabled`: what they say holds; a
time in milliseconds: that of messages that say none."""
Index = Annotated[tuple[str, ...], BeforeValidator(_index), Field(min_length=1)]
Expression = Annotated[str, Field(min_length=1)]
_NOT_OF_EVENTS = ("pattern", "key_generator", "preprocessing", "enrichment", "conflict")
"""Options that an event topic cannot have."""


class HistorySettings(Section):
    """The window and granularity of former values."""

    window_ms: Annotated[Milliseconds, Field(gt=0)] = Field(alias="window")
    granularity_ms: Milliseconds = 0
    """Interval of which only the last value is kept. 0: every value."""


class SowTopicSettings(Section):
    """A topic whose last message of each key is kept (docs/sow-topics.md)."""

    name: SowName
    message_type: MessageType
    pattern: Pattern = ""
    """The messages of all topics that the expression matches are in this topic, to which no client
    publishes."""
    keys: tuple[str, ...] = ()
    """Identifiers of the key fields. None, and no generator: publishers give the keys."""
    key_domain: str = ""
    """Goes into each key: in topics with the same domain, equal values of the key fields give equal
    keys. Empty: the topic's name."""
    key_generator: str = ""
    """Name of an entry point in the group `raylay.key_generators`. Empty: none."""
    key_generator_options: dict[str, str] = Field(default={})
    durability: Literal["persistent", "transient"] = "persistent"
    """Where the records are kept. `transient`: only in memory, made anew from the journal at each
    start."""
    recovery_point: RecoveryPoint = "epoch"
    """Point from which the journal is read if there is no store: `epoch`, `now`, or an instant."""
    expiration: Expiration = "disabled"
    history: HistorySettings | None = None
    hash_indexes: tuple[Index, ...] = ()
    """Hash indexes, each the identifiers of fields that queries ask for by exact value."""
    preprocessing: tuple[Expression, ...] = ()
    """Fields that are computed before the key, each as `expression AS /field`."""
    enrichment: tuple[Expression, ...] = ()
    """Expressions like those of `preprocessing`, computed after the key. `/field OF PREVIOUS` is
    the field in the record that the key had before this message."""
    conflict: Literal["none", "last_writer"] = "none"
    """`last_writer`: where two publishers wrote one key at once, all instances take the later."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        for name in _NOT_OF_EVENTS if self.name in EVENT_TOPICS else ():
            if getattr(self, name) != type(self).model_fields[name].get_default():
                raise ValueError(
                    f"{name} cannot be given for the event topic {self.name}: its messages are "
                    "kept as the instance publishes them"
                )
        if self.name in EVENT_TOPICS and not self.keys:
            raise ValueError(
                f"the event topic {self.name} needs keys, such as "
                f"{'/client_name' if self.name == CLIENT_STATUS else '/topic'}"
            )
        return self

    def definition(self) -> SowTopicDefinition:
        """Returns the definition that an instance reads.

        Raises:
            ValueError: two of its values do not go together.
        """
        values: dict[str, Any] = dict(iter(self))
        values["keys"] = tuple(event_key(self.name, key) for key in self.keys)
        history, expiration = values.pop("history"), values.pop("expiration")
        transient = values.pop("durability") == "transient"
        last_writer = values.pop("conflict") == "last_writer"
        rules = SowRules(
            expires=expiration != "disabled",
            lifetime_us=expiration * 1000 if isinstance(expiration, int) else 0,
            window_us=history.window_ms * 1000 if history else 0,
            granularity_us=history.granularity_ms * 1000 if history else 0,
        )
        return SowTopicDefinition(
            **values, transient=transient, last_writer=last_writer, rules=rules
        )
