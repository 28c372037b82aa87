"""SOW topics of a fabric: how they are declared (behaviour.md 4.1)."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from raylay.services.configuration.fields import MessageType, Milliseconds, Pattern, Section
from raylay.services.configuration.units import format_milliseconds, parse_milliseconds
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import RESERVED, is_regex
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

NAME_BYTES_MAX = 1024


def _sow_name(value: str) -> str:
    if not value or len(value.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"expected a topic name of 1 to {NAME_BYTES_MAX:,} bytes")
    if is_regex(value):
        raise ValueError(
            f"expected the name of one topic, got the expression {value!r}: give it as pattern, "
            "beside a name for all of these topics together"
        )
    if value.startswith(RESERVED):
        raise ValueError(f"topics that begin with {RESERVED} are Raylay's own: take another name")
    return value


def _expiration(value: object) -> int | str:
    if value in ("enabled", "disabled"):
        return str(value)
    try:
        found = parse_milliseconds(value, "")
    except ConfigurationError:
        raise ValueError(
            f"expected disabled, enabled, or a time such as 10s or 7d, got {value!r}"
        ) from None
    if not found:
        raise ValueError("expected disabled, or a time above 0: nothing lives for no time")
    return found


def _shown_expiration(value: int | str) -> str:
    return value if isinstance(value, str) else format_milliseconds(value)


def _recovery_point(value: Any) -> Any:
    # YAML reads an instant without quotes as one.
    return value.isoformat() if isinstance(value, dt.date) else value


def _index(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


SowName = Annotated[str, AfterValidator(_sow_name)]
Expiration = Annotated[
    int | str, BeforeValidator(_expiration), PlainSerializer(_shown_expiration, return_type=str)
]
"""`disabled`: what messages say is kept, and nothing expires; `enabled`: what they say holds; a
time in milliseconds: that of messages that say none."""
Index = Annotated[tuple[str, ...], BeforeValidator(_index), Field(min_length=1)]
Expression = Annotated[str, Field(min_length=1)]


class HistorySettings(Section):
    """The window and granularity of former values."""

    window_ms: Annotated[Milliseconds, Field(gt=0)] = Field(alias="window")
    granularity_ms: Milliseconds = Field(default=0, alias="granularity")
    """Interval of which only the last value is kept. 0: every value."""


class SowTopicSettings(Section):
    """A topic whose last message of each key is kept (docs/sow-topics.md)."""

    name: SowName
    message_type: MessageType
    pattern: Pattern = ""
    """Messages of all topics that it fits are in this one, which nobody publishes to."""
    keys: tuple[str, ...] = ()
    """Identifiers of the key fields. None, and no generator: publishers give the keys."""
    key_domain: str = ""
    """Topics of one give equal values equal keys. Empty: the topic's name."""
    key_generator: str = ""
    """An entry point of the group `raylay.key_generators`."""
    key_generator_options: dict[str, str] = Field(default={})
    durability: Literal["persistent", "transient"] = "persistent"
    """`transient`: in memory alone, made anew from the journal at each start."""
    recovery_point: Annotated[str, BeforeValidator(_recovery_point)] = "epoch"
    """Point from which the journal is read if there is no store: `epoch`, `now`, or an instant."""
    expiration: Expiration = "disabled"
    history: HistorySettings | None = None
    hash_indexes: tuple[Index, ...] = ()
    """Hash indexes, each the identifiers of fields that queries ask for by exact value."""
    preprocessing: tuple[Expression, ...] = ()
    """`expression AS /field`: fields that are computed before the key."""
    enrichment: tuple[Expression, ...] = ()
    """Expressions like those of `preprocessing`, computed behind the key: `/field OF PREVIOUS` is
    of the message before."""
    conflict: Literal["none", "last_writer"] = "none"
    """`last_writer`: where two publishers wrote one key at once, all instances take the later."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        return self

    def definition(self) -> SowTopicDefinition:
        """Returns the definition that an instance reads.

        Raises:
            ValueError: two of its values do not go together.
        """
        history = self.history
        return SowTopicDefinition(
            name=self.name,
            message_type=self.message_type,
            pattern=self.pattern,
            keys=self.keys,
            key_domain=self.key_domain,
            key_generator=self.key_generator,
            key_generator_options=self.key_generator_options,
            transient=self.durability == "transient",
            recovery_point=self.recovery_point,
            rules=SowRules(
                expires=self.expiration != "disabled",
                lifetime_us=self.expiration * 1000 if isinstance(self.expiration, int) else 0,
                window_us=history.window_ms * 1000 if history else 0,
                granularity_us=history.granularity_ms * 1000 if history else 0,
            ),
            hash_indexes=self.hash_indexes,
            preprocessing=self.preprocessing,
            enrichment=self.enrichment,
            last_writer=self.conflict == "last_writer",
        )
