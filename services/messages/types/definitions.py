"""The configuration of message types. Values only: importing this module loads no parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENTRY_POINTS = "raylay.message_types"
"""The group of entry points for message types. Each is called with a name and a dict of options,
and returns a MessageType."""
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
"""Kinds that a definition may have, besides entry points."""
REFUSED = {
    "bflat": "its bytes are documented nowhere; use msgpack or bson",
}
"""Message types that the documents describe and Raylay lacks, each with what to do instead
(docs/deviations.md)."""


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A message type that a configuration defines.

    Attributes:
        name: name of the type in messages.
        kind: one of `KIND_NAMES`, or the name of an entry point.
        options: the options of the kind.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
