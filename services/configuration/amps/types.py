"""Field types of the AMPSConfig model: texts, intervals, sizes, switches, names.

Values come as the text of an element and are kept with their unit in the attribute's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer

from raylay.services.actions.option_text import words
from raylay.services.configuration.fields import PORT_MAX, Pattern, Section, TopicName
from raylay.services.messages.documented_units import (
    format_interval,
    format_size,
    parse_count,
    parse_interval_ns,
    parse_size_bytes,
)

MESSAGE_TYPE_CHARACTERS_MAX = 255
ON_WORDS = frozenset(("enabled", "true", "yes", "on", "1"))
OFF_WORDS = frozenset(("disabled", "false", "no", "off", "0"))
_FILE_MASK = re.compile(r"0?[0-7]{3}")
_INSTANCE_NAME = re.compile(r"[^\s/$~]+")


def element(
    tag: str,
    default: Any = ...,
    *,
    synonyms: tuple[str, ...] = (),
    text: bool = False,
    many: bool = False,
) -> Any:
    """Returns a model's field for an element.

    Args:
        tag: its name in the file.
        default: the documented default; without one the element is required.
        synonyms: other names that are accepted.
        text: whether the text of one element holds the whole value, though that is a tuple.
        many: the element may be given any number of times (and is required without a default).
    """
    return Field(
        default,
        alias=tag,
        json_schema_extra={"synonyms": list(synonyms), "text": text, "many": many},
    )


class Stanza(Section):
    """An element that has child elements."""

    model_config = ConfigDict(alias_generator=None)  # elements have the documented names
    text_element: ClassVar[str] = ""
    """Tag of the child element that is meant if the element holds only a text."""
    position: int = Field(default=0, exclude=True, repr=False)
    """Position of the element among all of its file; order matters for definitions and actions."""


class Option(Stanza):
    """One element of `Options`."""

    name: str
    value: str


class Options(Stanza):
    """The options of a module: elements of any name, in their order."""

    entries: tuple[Option, ...] = ()

    def get(self, name: str) -> str | None:
        """Returns the last value of an option; None: the option is not given."""
        return next((entry.value for entry in reversed(self.entries) if entry.name == name), None)


class ModuleUse(Stanza):
    """A module and its options, as in `Authentication`, `On` or `Authenticator`."""

    module: str = element("Module")
    options: Options = element("Options", Options())


def _text(parse: Callable[[str], Any]) -> Callable[[object], Any]:
    def convert(value: object) -> Any:
        return parse(value) if isinstance(value, str) else value

    return convert


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in ON_WORDS or word in OFF_WORDS:
        return word in ON_WORDS
    raise ValueError(f"expected enabled or disabled (or true or false), got {text!r}")


def _interval_list(text: str) -> tuple[int, ...]:
    return tuple(parse_interval_ns(part) for part in text.split(","))


def _percentage(text: str) -> int:
    number = text.strip().removesuffix("%").strip()
    if not text.strip().endswith("%") or not number.isdigit() or not 0 < int(number) <= 100:
        raise ValueError(f"expected a percentage from 1% to 100%, got {text!r}")
    return int(number)


def _expiration(text: str) -> int | str:
    return text if text in ("enabled", "disabled") else parse_interval_ns(text)


def _instance_name(text: str) -> str:
    if not _INSTANCE_NAME.fullmatch(text):
        raise ValueError(f"expected a name without spaces, '/', '$' and '~', got {text!r}")
    return text


def _file_mask(text: str) -> str:
    if not _FILE_MASK.fullmatch(text):
        raise ValueError(f"expected an octal file mask such as 0640, got {text!r}")
    return text


def split_listen_address(text: str) -> tuple[str, int]:
    """Returns the host and port of `10004`, `host:10004` or `[::]:10004`; without a host: 0.0.0.0.

    Raises:
        ValueError: it is none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdigit() or not 0 < int(port) <= PORT_MAX or (colon and not host):
        raise ValueError(f"expected a port, or host:port (port 1 to {PORT_MAX}), got {text!r}")
    return host or "0.0.0.0", int(port)


def _listen_address(text: str) -> str:
    split_listen_address(text)
    return text


def _dial_address(text: str) -> str:
    split_listen_address(text)
    if ":" not in text:
        raise ValueError(f"expected host:port of the other instance, got {text!r}")
    return text


def between(least: str, most: str = "") -> Callable[[int], int]:
    """Returns a check of an interval against documented limits."""
    least_ns, most_ns = parse_interval_ns(least), parse_interval_ns(most) if most else None

    def check(value_ns: int) -> int:
        if value_ns < least_ns or (most_ns is not None and value_ns > most_ns):
            raise ValueError(
                f"expected an interval from {least}"
                + (f" to {most}" if most else " on")
                + f", got {format_interval(value_ns)}"
            )
        return value_ns

    return check


def at_least(least: int, most: int | None = None) -> Callable[[int], int]:
    """Returns a check of a number against documented limits."""

    def check(value: int) -> int:
        if value < least or (most is not None and value > most):
            raise ValueError(
                f"expected a number from {least}"
                + (f" to {most}" if most is not None else " on")
                + f", got {value}"
            )
        return value

    return check


def _joined_intervals(values_ns: tuple[int, ...]) -> str:
    return ",".join(format_interval(value_ns) for value_ns in values_ns)


def _shown_expiration(value: int | str) -> str:
    return value if isinstance(value, str) else format_interval(value)


Text = Annotated[str, Field(min_length=1)]
TypeName = Annotated[str, Field(min_length=1, max_length=MESSAGE_TYPE_CHARACTERS_MAX)]
Nanoseconds = Annotated[
    int, BeforeValidator(_text(parse_interval_ns)), PlainSerializer(format_interval)
]
NanosecondsList = Annotated[
    tuple[int, ...], BeforeValidator(_text(_interval_list)), PlainSerializer(_joined_intervals)
]
SizeBytes = Annotated[int, BeforeValidator(_text(parse_size_bytes)), PlainSerializer(format_size)]
Count = Annotated[int, BeforeValidator(_text(parse_count))]
Percent = Annotated[
    int, BeforeValidator(_text(_percentage)), PlainSerializer(lambda value: f"{value}%")
]
Switch = Annotated[
    bool,
    BeforeValidator(_text(_switch)),
    PlainSerializer(lambda value: "enabled" if value else "disabled"),
]
Truth = Annotated[
    bool,
    BeforeValidator(_text(_switch)),
    PlainSerializer(lambda value: "true" if value else "false"),
]
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_text(words)),
    PlainSerializer(lambda value: ",".join(value)),
]
Expiration = Annotated[
    int | str, BeforeValidator(_text(_expiration)), PlainSerializer(_shown_expiration)
]
InstanceName = Annotated[str, AfterValidator(_instance_name)]
FileMask = Annotated[str, AfterValidator(_file_mask)]
ListenAddress = Annotated[str, AfterValidator(_listen_address)]
DialAddress = Annotated[str, AfterValidator(_dial_address)]
Regex = Pattern
Topic = TopicName
