"""Field types of the configuration model: names, patterns, ports; and the base of its parts.

Names in files have no units (`segment_size: 64MiB`), attributes have them (`segment_bytes`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from raylay.services.errors import ConfigurationError
from raylay.services.messages.event_topics import EVENT_TOPICS, EVENTS
from raylay.services.messages.topics import RESERVED, compile_regex, is_regex

PORT_MAX = 65_535
TOPIC_BYTES_MAX = 1024
MESSAGE_TYPE_LENGTH_MAX = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a refusal of a value into a ValueError, to which pydantic adds the place. The place in
    the refusal's own text is dropped."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"expected a name of letters, digits, '.', '_' and '-' (at most 64), got {value!r}"
        )
    return value


def _pattern(value: str) -> str:
    try:
        compile_regex(value, "")
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
    return value


def _topic_name(value: str) -> str:
    if not value or len(value.encode()) > TOPIC_BYTES_MAX:
        raise ValueError(f"expected a topic name of 1 to {TOPIC_BYTES_MAX:,} bytes")
    return _pattern(value) if is_regex(value) else value


def definition_name(option: str) -> Callable[[str], str]:
    """Returns a check of the name of a SOW topic or a queue.

    Args:
        option: name of the option that takes an expression over topics, for the error.
    """

    def checked(value: str) -> str:
        if is_regex(value):
            raise ValueError(
                f"expected a name, got the expression {value!r}: give it as {option}, beside a "
                "name for all of these topics together"
            )
        if value.startswith(RESERVED):
            raise ValueError(
                f"topics that begin with {RESERVED} are Raylay's own: take another name"
            )
        if value.startswith(EVENTS) and not (option == "pattern" and value in EVENT_TOPICS):
            raise ValueError(
                f"topics that begin with {EVENTS} are events of the instance, of which SOW topics "
                f"keep {' and '.join(EVENT_TOPICS)}: take another name"
            )
        return _topic_name(value)

    return checked


def _recovery_point(value: Any) -> Any:
    # YAML reads an instant without quotes as one.
    return value.isoformat() if isinstance(value, dt.date) else value


Name = Annotated[str, AfterValidator(_name)]
Port = Annotated[int, Field(ge=0, le=PORT_MAX)]
"""0: a free one is chosen at the first start and kept in the data directory."""
TopicName = Annotated[str, AfterValidator(_topic_name)]
Pattern = Annotated[str, AfterValidator(_pattern)]
RecoveryPoint = Annotated[str, BeforeValidator(_recovery_point)]
MessageType = Annotated[str, Field(min_length=1, max_length=MESSAGE_TYPE_LENGTH_MAX)]


_UNITS = ("_bytes_max", "_bytes", "_ms_max", "_ms")
_NAMES = {"segment_bytes": "segment_size"}


def name_in_files(field: str) -> str:
    """Returns the name that files have for a field: without its unit, as the value has one."""
    unit = next((each for each in _UNITS if field.endswith(each)), "")
    return _NAMES.get(field) or field.removesuffix(unit)


class Section(BaseModel):
    """The base of all parts of the model: immutable, no unknown keys, names without units in files.

    Dataclasses in it, which processes start with as they are, are read by the same rules.
    """

    def shared_with(self, record: type) -> dict[str, Any]:
        """Returns the values of the fields that a dataclass has under the same names."""
        names = [each.name for each in dataclasses.fields(record)]
        return {name: getattr(self, name) for name in names if name in type(self).model_fields}

    model_config = ConfigDict(
        defer_build=True,  # validators of 70 classes: 0.3 s a command, few are used
        frozen=True,
        extra="forbid",
        strict=False,
        alias_generator=name_in_files,
        populate_by_name=True,
        str_strip_whitespace=True,
    )
