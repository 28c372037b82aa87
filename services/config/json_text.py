"""JSON of the records that Raylay keeps or gives to its processes, read into their dataclasses.

The types of the fields say how a text is read, nested records too: a new field needs nothing here.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from raylay.services.errors import ConfigurationError, RaylayError

VERSION = 1
"""The version of the format of these texts; a text of another version is refused."""

Record = TypeVar("Record")


class JsonText:
    """The JSON of a dataclass: what an instance, a link, a queue owner or a buffer starts with."""

    __slots__ = ()

    def to_json(self) -> str:
        return written(self)

    @classmethod
    def from_json(cls, text: str, where: str = "") -> Self:
        """Returns the configuration in a text that `to_json` wrote.

        Args:
            where: place of the text, with which an error begins.

        Raises:
            ConfigurationError: the text is no such configuration, or of another version; names the
                key.
        """
        advice = "use the release that wrote it, or have `raylay up` or `raylay apply` write it"
        return read(cls, text, where or cls.__name__, f"{advice} again")


def written(record: object) -> str:
    """Returns a record's JSON, with the version of the format."""
    values = {"version": VERSION, **msgspec.to_builtins(record)}
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode()


def read(kind: type[Record], text: str, where: str, advice: str) -> Record:
    """Reads what `written` wrote.

    Args:
        advice: sentence on what to do with a text of another version.

    Raises:
        ConfigurationError: the text is no such record; says where in it the fault is.
    """
    try:
        values = msgspec.json.decode(text)
    except ValueError as error:
        raise ConfigurationError(f"{where} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where} is no mapping of {kind.__name__} values")
    found = values.pop("version", None)
    if found != VERSION:
        raise ConfigurationError(
            f"{where} has version {str(found)[:20]}, this software reads {VERSION}: {advice}"
        )
    try:
        made = msgspec.convert(values, kind)
    except (ValueError, RaylayError) as error:
        text, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        raise ConfigurationError(
            f"{where}: {place}: {text}" if place else f"{where}: {text}"
        ) from None
    unknown = _unknown(values, msgspec.to_builtins(made))
    if unknown:
        raise ConfigurationError(f"{where}: {unknown[1:]} is no value of {kind.__name__}")
    return made


def _unknown(given: Any, known: Any) -> str:
    """Returns the path of the first key that a record does not have; empty: it has all."""
    if isinstance(given, dict):
        pairs = {f".{key}": (value, known.get(key, _MISSING)) for key, value in given.items()}
    elif isinstance(given, list):
        pairs = {f"[{at}]": pair for at, pair in enumerate(zip(given, known, strict=True))}
    else:
        return ""
    for place, (value, kept) in pairs.items():
        if kept is _MISSING:
            return place
        if inside := _unknown(value, kept):
            return place + inside
    return ""


_MISSING = object()
