"""The configuration of message types. Values only: reading one loads no parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENTRY_POINTS = "raylay.message_types"
"""The group of entry points. Each is called with a name and a dict of options, and gives a
MessageType."""
KIND_NAMES = frozenset(
    (
        "json",
        "xml",
        "bson",
        "msgpack",
        "binary",
        "fix",
        "nvfix",
        "composite-local",
        "composite-global",
        "protobuf",
        "struct",
    )
)
"""Kinds of a definition, beside entry points."""
REFUSED = {
    "bflat": "its bytes are documented nowhere; use msgpack or bson",
}
"""Types of the documents that there are not, and what to do (docs/deviations.md)."""


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A message type that a configuration defines.

    Attributes:
        name: as messages carry it.
        kind: what it is: one of `KIND_NAMES`, or the name of an entry point.
        options: of that kind.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
