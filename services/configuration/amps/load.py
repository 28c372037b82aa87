"""Reader of an AMPSConfig file: gives its model, or one error line for each thing that is wrong."""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from raylay.services.configuration.amps.checks import problems
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.tree import (
    ROOT,
    Element,
    TreeReader,
    Variables,
    stray_text,
)
from raylay.services.configuration.amps.types import Options, Stanza
from raylay.services.errors import ConfigurationError
from raylay.services.messages.spelling import did_you_mean

_ORIGIN = re.compile(r"(.*?):(\d+): ")
Path = tuple[str | int, ...]
"""Path of an element: tags, each repeatable one followed by its number from 0."""


@dataclass(slots=True)
class Document:
    """The configuration of one instance, with the place of each element."""

    file: str
    config: AmpsConfig
    origins: dict[Path, str]

    def origin(self, path: Path) -> str:
        """Returns the place `file:line` of an element; if the element is not in the file, that of
        the nearest element around it."""
        for length in range(len(path), -1, -1):
            found = self.origins.get(path[:length])
            if found is not None:
                return found
        return self.file


class Slot(typing.NamedTuple):
    """The place in the model to which an element's value goes.

    Attributes:
        tag: the documented name, which synonyms stand for.
        many: whether the element may be repeated.
        stanza: model of the element's own elements; None: the element holds a text.
    """

    tag: str
    many: bool
    stanza: type[Stanza] | None


def load_amps(
    path: str | FilePath,
    *,
    defines: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> Document:
    """Reads one instance's configuration.

    Args:
        defines: values of `${VAR}` that go before those of the environment.
        environment: None: that of this process.
        text: text of the file, if it was read before.

    Raises:
        ConfigurationError: one line for each thing that is wrong: file, line, what was expected.
    """
    path = FilePath(path)
    variables = Variables(defines or {}, os.environ if environment is None else environment, path)
    reader = TreeReader(variables)
    root = reader.read(path, text)
    errors = reader.errors
    if root is None:
        raise ConfigurationError("\n".join(errors))
    builder = _Builder(errors)
    values = builder.stanza(root, AmpsConfig, ())
    document = None
    try:
        document = Document(str(path), AmpsConfig.model_validate(values), builder.origins)
    except ValidationError as error:
        errors += _explained(error, builder)
    if document is not None and not errors:
        # What concerns several elements makes sense once each of them does.
        errors += [f"{document.origin(at)}: {text}" for at, text in problems(document.config)]
    if errors or document is None:
        raise ConfigurationError("\n".join(sorted(dict.fromkeys(errors), key=_place)))
    return document


def _place(error: str) -> tuple[str, int]:
    match = _ORIGIN.match(error)
    return (match[1], int(match[2])) if match else ("", 0)


class _Builder:
    """Turns elements into the values of models, and keeps their places and the errors."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        self.origins: dict[Path, str] = {}
        self._position = 0

    def stanza(self, element: Element, model: type[Stanza], path: Path) -> dict[str, Any]:
        self.origins[path] = element.origin
        self._position += 1
        self._no_attributes(element)
        values: dict[str, Any] = {"position": self._position}
        if model is Options:
            return {**values, "entries": self._options(element, path)}
        if element.text and not element.children:
            if not model.text_element:
                self.errors.append(f"{element.origin}: {element.tag}: {stray_text(element.text)}")
            else:
                values[model.text_element] = element.text
        self.errors += [f"{origin}: {stray_text(text)}" for origin, text in element.stray]
        known = slots(model)
        for child in element.children:
            slot = known.get(child.tag)
            if slot is None:
                self.errors.append(f"{child.origin}: {_unknown(child.tag, element.tag, model)}")
            else:
                self._child(child, slot, path, values)
        return values

    def _child(self, child: Element, slot: Slot, path: Path, values: dict[str, Any]) -> None:
        here: Path = (*path, slot.tag)
        if slot.many:
            here = (*here, len(values.get(slot.tag, ())))
        elif slot.tag in values:
            self.errors.append(
                f"{child.origin}: {child.tag} is there twice, first at {self.origins[here]}"
            )
            return
        if slot.stanza is not None:
            value: Any = self.stanza(child, slot.stanza, here)
        else:
            self.origins[here] = child.origin
            value = self._scalar(child)
        if slot.many:
            values.setdefault(slot.tag, []).append(value)
        else:
            values[slot.tag] = value

    def _scalar(self, element: Element) -> str:
        self._no_attributes(element)
        if element.children:
            inner = element.children[0]
            self.errors.append(
                f"{inner.origin}: {element.tag} holds a value, got the element {inner.tag} in it"
            )
        return element.text

    def _options(self, element: Element, path: Path) -> list[dict[str, Any]]:
        entries = []
        for child in element.children:
            self.origins.setdefault((*path, child.tag), child.origin)
            self._position += 1
            value = self._scalar(child)
            entries.append({"name": child.tag, "value": value, "position": self._position})
        self.errors += [f"{origin}: {stray_text(text)}" for origin, text in element.stray]
        if element.text and not element.children:
            self.errors.append(f"{element.origin}: Options: {stray_text(element.text)}")
        return entries

    def _no_attributes(self, element: Element) -> None:
        for name in element.attributes:
            self.errors.append(
                f"{element.origin}: {element.tag} has the attribute {name}: it takes none"
            )


@cache
def slots(model: type[Stanza]) -> dict[str, Slot]:
    """Returns where the value of each tag of a stanza goes, synonyms included."""
    found = {}
    for info in model.model_fields.values():
        if info.alias is None:
            continue
        extra = info.json_schema_extra
        synonyms = extra["synonyms"] if isinstance(extra, dict) else []
        slot = Slot(info.alias, _is_many(info), _stanza_in(info.annotation))
        found[info.alias] = slot
        if isinstance(synonyms, list):
            found.update({str(synonym): slot for synonym in synonyms})
    return found


def _is_many(info: FieldInfo) -> bool:
    extra = info.json_schema_extra
    return isinstance(extra, dict) and bool(extra["many"])


def _stanza_in(annotation: Any) -> type[Stanza] | None:
    if isinstance(annotation, type) and issubclass(annotation, Stanza):
        return annotation
    if typing.get_origin(annotation) in (tuple, types.UnionType, typing.Union, typing.Annotated):
        for inner in typing.get_args(annotation):
            found = _stanza_in(inner)
            if found is not None:
                return found
    return None


@cache
def places() -> dict[str, tuple[str, ...]]:
    """Returns, for each tag, the stanzas that it may stand in. A stanza whose tag stands for
    different ones (a Topic) has the tag of its own stanza before it: `Destination/Topic`."""
    found: dict[str, list[tuple[str, str]]] = {}
    models: dict[str, set[type[Stanza]]] = {}
    seen: set[tuple[type[Stanza], str]] = set()

    def walk(model: type[Stanza], name: str, parent: str) -> None:
        models.setdefault(name, set()).add(model)
        if (model, name) in seen:
            return
        seen.add((model, name))
        for tag, slot in slots(model).items():
            if (name, parent) not in found.setdefault(tag, []):
                found[tag].append((name, parent))
            if slot.stanza is not None:
                walk(slot.stanza, slot.tag, name)

    walk(AmpsConfig, ROOT, "")
    return {
        tag: tuple(
            dict.fromkeys(
                f"{parent}/{name}" if parent and len(models[name]) > 1 else name
                for name, parent in names
            )
        )
        for tag, names in found.items()
    }


def _unknown(tag: str, parent: str, model: type[Stanza]) -> str:
    known = [alias for alias in slots(model)]
    elsewhere = places().get(tag)
    if elsewhere:
        *most, last = elsewhere
        places_of = f"{', '.join(most)} or {last}" if most else last
        return f"{tag} is misplaced in {parent}: it belongs in {places_of}"
    hint = did_you_mean(tag, known)
    return f"{tag} is unknown in {parent}: {hint or 'expected ' + (', '.join(known) or 'nothing')}"


def _explained(error: ValidationError, builder: _Builder) -> Iterator[str]:
    for entry in error.errors(include_url=False):
        path = tuple(entry["loc"])
        tags = [part for part in path if isinstance(part, str)]
        if entry["type"] == "missing":
            parent = tags[-2] if len(tags) > 1 else ROOT
            text = f"{parent} has no {tags[-1]}: it needs one"
        else:
            message = entry["msg"].removeprefix("Value error, ")
            if entry["type"] == "literal_error":
                message = f"expected {entry['ctx']['expected']}, got {entry['input']!r}"
            elif entry["type"] == "string_too_short":
                message = "expected a value, got nothing"
            text = f"{tags[-1] if tags else ROOT}: {message}"
        found = next(
            builder.origins[path[:length]]
            for length in range(len(path), -1, -1)
            if path[:length] in builder.origins
        )
        yield f"{found}: {text}"
