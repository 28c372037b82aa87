"""The JSON schema of a fabric's file, for editors, and the descriptions of its settings.

It is made from the model that reads the file (yaml_file.py), with what a file may write in short:
times and sizes with units, a topic by its name, a region by its number of instances.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from raylay.services.configuration.fields import name_in_files
from raylay.services.configuration.yaml_file import FILE_MODEL
from raylay.services.messages.units import (
    format_bytes,
    format_milliseconds,
    format_share,
    parse_bytes,
    parse_milliseconds,
    parse_share,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER = r"^\s*\d+(\.\d+)?\s*"
_TIME = {"type": "string", "pattern": _NUMBER + r"(ms|s|m|min|h|d)\s*$", "examples": ["10s"]}
_SIZE = {
    "type": "string",
    "pattern": _NUMBER + r"(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\s*$",
    "examples": ["64MiB"],
}
_SHARE = {"type": "string", "pattern": _NUMBER + r"%?\s*$", "examples": ["50%"]}
_NOTHING = {"type": "null"}
_WRITTEN: dict[Callable[[Any], Any], tuple[list[JsonSchemaValue], str]] = {
    parse_milliseconds: ([_TIME, {"const": 0}], "time"),
    parse_bytes: ([_SIZE, {"type": "integer", "minimum": 0}], "size"),
    parse_share: ([_SHARE, {"type": "number"}], "share"),
}
"""The forms that a file may have for a value that is kept as a number, and the value's kind."""
_SHOWN: dict[str, Callable[[Any], str]] = {
    "time": format_milliseconds,
    "size": format_bytes,
    "share": format_share,
}
KIND = "x-raylay-kind"
"""Key of a schema that says of which kind a written value is."""
_SHORT: dict[str, list[JsonSchemaValue]] = {
    "_from_text": [{"type": "string"}],
    "_module": [{"type": "string"}],
    "_index": [{"type": "string"}],
    "_several": [{"type": "string"}, {"type": "object"}],
    "_from_nothing": [_NOTHING],
    "_from_list": [{"type": "array", "items": {"type": "object"}}],
    "_from_short": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "string"}},
        _NOTHING,
    ],
}
"""The short forms of a section in a file, by the name of the function that reads them."""
_MODULES_OF_ACTIONS = frozenset(("_read_on", "_read_step"))
"""Functions that read a module of an action: its name, or its name with options."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "ge", "gt", "le", "lt")
_ITEM = re.compile(r"([\w, ]+): (.*)")


class _Generator(GenerateJsonSchema):
    """Makes the schema of what a file has, and not of what is kept."""

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        function = schema["function"]["function"]
        parse = getattr(getattr(function, "__self__", None), "parse", None)
        if parse in _WRITTEN:
            forms, kind = _WRITTEN[parse]
            return {"anyOf": [dict(form) for form in forms], KIND: kind}
        if function.__name__ in _MODULES_OF_ACTIONS:
            return {"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]}
        short = _SHORT.get(function.__name__)
        return inner if short is None else {"anyOf": [*short, inner]}

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        return _described(found, schema["cls"])

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().model_schema(schema)
        return _described(found, schema["cls"])


def file_schema() -> dict[str, Any]:
    """Returns the JSON schema of a fabric's file."""
    made = FILE_MODEL.model_json_schema(by_alias=True, schema_generator=_Generator)
    _tidy(made)
    return {
        "$schema": DIALECT,
        "title": "A fabric of Raylay",
        **{key: value for key, value in made.items() if key not in ("title", "$schema")},
    }


def _described(found: JsonSchemaValue, owner: type) -> JsonSchemaValue:
    """Adds the descriptions of the fields of a class to its schema."""
    if "properties" not in found and "additionalProperties" in found:
        # Where a section also has a short form, pydantic closes all forms.
        closed = found.pop("additionalProperties")
        for each in found.get("anyOf", ()):
            if "properties" in each:
                _described(each, owner)
                each["additionalProperties"] = closed
    about = field_texts(owner)
    for name, field in found.get("properties", {}).items():
        if name in about:
            field["description"] = about[name]
    text = inspect.cleandoc(owner.__doc__ or "")
    first = text.split("\n\n")[0].replace("\n", " ")
    if first and not first.startswith(f"{owner.__name__}("):
        found["description"] = first
    else:
        found.pop("description", None)
    return found


def field_texts(owner: type) -> dict[str, str]:
    """Returns what is said of each field of a class, by its name in files: the text behind the
    field, or in the class's list of attributes."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if each in (object, BaseModel) or each.__module__.startswith("pydantic"):
            continue
        found |= _listed(inspect.cleandoc(each.__dict__.get("__doc__") or ""))
        found |= _behind(each)
    # A file has no numbers of milliseconds: its values have units.
    return {
        name_in_files(name): re.sub(r"^Milliseconds ", "Time ", text)
        for name, text in found.items()
    }


def _behind(owner: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for first, second in pairwise(body):
        if (
            isinstance(first, ast.AnnAssign)
            and isinstance(first.target, ast.Name)
            and isinstance(second, ast.Expr)
            and isinstance(second.value, ast.Constant)
            and isinstance(second.value.value, str)
        ):
            found[first.target.id] = " ".join(second.value.value.split())
    return found


def _listed(docstring: str) -> dict[str, str]:
    """Returns the texts of the sections `Attributes` and `Args` of a docstring."""
    found: dict[str, str] = {}
    names: list[str] = []
    is_listing = False
    for line in docstring.splitlines():
        if not line.startswith(" "):
            is_listing = line.strip() in ("Attributes:", "Args:") or (is_listing and not line)
        elif is_listing and (item := _ITEM.fullmatch(line.removeprefix("    "))):
            names = [name.strip() for name in item[1].split(",")]
            found |= dict.fromkeys(names, item[2])
        elif is_listing:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _tidy(schema: Any) -> None:
    """Removes what an editor has no use for, and shows defaults as a file has them."""
    if isinstance(schema, list):
        for each in schema:
            _tidy(each)
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    kind = _kind(schema)
    if kind:
        for bound in _BOUNDS:  # of the number that is kept
            schema.pop(bound, None)
    if "default" in schema and not isinstance(schema.get("properties"), dict):
        value = schema["default"]
        if isinstance(value, dict | list) or value is None:
            del schema["default"]
        elif kind and isinstance(value, int | float) and not isinstance(value, bool):
            schema["default"] = _SHOWN[kind](value)
    for key, value in schema.items():
        if key == "properties":
            for each in value.values():
                _tidy(each)
        elif key not in ("default", "examples", "enum", "const"):
            _tidy(value)


def _kind(schema: dict[str, Any]) -> str:
    if KIND in schema:
        return str(schema[KIND])
    inside = (each for each in schema.get("anyOf", ()) if isinstance(each, dict))
    return next((str(each[KIND]) for each in inside if KIND in each), "")
