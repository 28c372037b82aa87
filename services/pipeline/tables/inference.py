"""Infers a schema from a sample of bodies, as DDL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.tables.fields import NumberText
from raylay.services.pipeline.tables.values import json_tree

DEPTH_MAX = 12
"""Depth below which values are declared as STRING, which has them as JSON."""
LONG_MAX = (1 << 63) - 1
DECIMAL_MAX = 10**38


@dataclass(slots=True)
class InferredType:
    """The type that holds all values seen so far.

    Attributes:
        name: a type of Spark's DDL; `ARRAY` and `STRUCT` have inner types; empty: only nulls.
    """

    name: str = ""
    element: InferredType | None = None
    fields: dict[str, InferredType] = field(default_factory=dict)

    def see(self, value: Any, depth: int = 0) -> None:
        """Widens the type so that it holds a value of a body's tree as well."""
        name = _name_of(value)
        if name in ("ARRAY", "STRUCT") and depth >= DEPTH_MAX:
            name = "STRING"
        self.name = _wider(self.name, name)
        if self.name == "ARRAY" and name:
            self.element = self.element or InferredType()
            for each in value:
                self.element.see(each, depth + 1)
        if self.name == "STRUCT" and name:
            for key, each in value.items():
                self.fields.setdefault(key, InferredType()).see(each, depth + 1)

    def ddl(self) -> str:
        """Returns the type as DDL. What has no fields is a STRING, which holds any value."""
        if self.name == "ARRAY" and self.element is not None:
            return f"ARRAY<{self.element.ddl()}>"
        if self.name == "STRUCT":
            inner = ", ".join(f"{name}: {kind.ddl()}" for name, kind in self._named())
            return f"STRUCT<{inner}>" if inner else "STRING"
        return self.name or "STRING"

    def columns(self) -> str:
        """Returns the fields of a struct as the columns of DDL."""
        return ", ".join(f"{name} {kind.ddl()}" for name, kind in self._named())

    def _named(self) -> list[tuple[str, InferredType]]:
        """Returns the fields that Spark can tell apart, in the order of their first occurrence."""
        found: dict[str, tuple[str, InferredType]] = {}
        for name, kind in self.fields.items():
            if name:
                quoted = name.replace("`", "``")
                found.setdefault(name.casefold(), (f"`{quoted}`", kind))
        return list(found.values())


def _name_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        if -LONG_MAX - 1 <= value <= LONG_MAX:
            return "BIGINT"
        return "DECIMAL(38,0)" if abs(value) < DECIMAL_MAX else "STRING"
    if isinstance(value, float | NumberText):
        return "DOUBLE"
    if isinstance(value, bytes):
        return "BINARY"
    if isinstance(value, list):
        return "ARRAY"
    return "STRUCT" if isinstance(value, dict) else "STRING"


_WIDER = {
    frozenset(("BIGINT", "DOUBLE")): "DOUBLE",
    frozenset(("BIGINT", "DECIMAL(38,0)")): "DECIMAL(38,0)",
    frozenset(("DECIMAL(38,0)", "DOUBLE")): "DOUBLE",
    frozenset(("BINARY", "STRING")): "BINARY",
}


def _wider(one: str, other: str) -> str:
    if one == other or not other:
        return one
    return _WIDER.get(frozenset((one, other)), "STRING") if one else other


def infer(batches: Iterable[tuple[pa.RecordBatch, MessageTypes]], limit: int) -> InferredType:
    """Returns the type of the first `limit` bodies that can be parsed.

    Args:
        batches: rows with the columns `body` and `message_type`, and their message types.
    """
    found = InferredType()
    seen = 0
    for rows, types in batches:
        for body, name in zip(
            rows["body"].to_pylist(), rows["message_type"].to_pylist(), strict=True
        ):
            if seen >= limit:
                return found
            try:
                kind = types[name]
                if not body or Ability.FIELDS in kind.lacks:
                    continue
                tree = json_tree(kind, body) if isinstance(kind, Json) else kind.parse(body)
            except MessageTypeError:
                continue
            found.see(tree)
            seen += 1
    return found
