"""The type `binary`: bytes without fields, which nothing reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree

_INSTEAD = "publish them whole, and give each its SOW key; or use a type with fields"


class Binary(MessageType):
    """Bodies without fields: no filter, view or delta applies, and SOW keys come only from the
    publisher."""

    kind = "binary"
    lacks: ClassVar[Mapping[Ability, str]] = dict.fromkeys(Ability, _INSTEAD)

    def parse(self, body: bytes | memoryview) -> Tree:
        """Refuses: there are no fields."""
        self.require(Ability.FIELDS)
        raise AssertionError("binary lacks FIELDS")

    def serialize(self, tree: Tree) -> bytes:
        """Refuses: there are no fields."""
        self.require(Ability.FIELDS)
        raise AssertionError("binary lacks FIELDS")
