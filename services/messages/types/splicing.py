"""Bodies that are written anew with some other fields, in which all other values keep their bytes.

An enrichment, a select list or a delta names some fields. To write the rest from what was parsed
would make another message of it: a number loses its zeros, a type that expressions do not have
becomes a text. So a value that a body has as well is copied from there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.trees import ABSENT, Tree, same

Raw = TypeVar("Raw")
"""The bytes of one value, as the type needs them to write them again."""


class SplicedType(MessageType, Generic[Raw]):
    """A type whose values stand each by themselves in their bytes."""

    @abstractmethod
    def _raws(self, body: bytes | memoryview) -> Mapping[str, Raw]:
        """The bytes of the values of a body by name; of a name that is there twice the last."""

    @abstractmethod
    def _inner_raws(self, raw: Raw) -> Mapping[str, Raw] | None:
        """Returns the bytes of the fields of a value by name; None: it has none."""

    @abstractmethod
    def _raw_of(self, value: Any) -> Raw:
        """The bytes of a value that is in no body."""

    @abstractmethod
    def _joined(self, raws: Mapping[str, Raw]) -> Raw:
        """The bytes of a value that has these fields."""

    @abstractmethod
    def _body(self, raws: Mapping[str, Raw]) -> bytes:
        """The body that has these fields."""

    def _spliced(self, tree: Tree, known: Sequence[ParsedBody]) -> bytes:
        sources = [(self._raws(each.body), each.tree) for each in reversed(known)]
        return self._body(self._spliced_fields(tree, sources))

    def _spliced_fields(
        self, tree: Tree, sources: Sequence[tuple[Mapping[str, Raw], Tree]]
    ) -> dict[str, Raw]:
        found: dict[str, Raw] = {}
        for name, value in tree.items():
            found[name] = self._spliced_value(name, value, sources)
        return found

    def _spliced_value(
        self, name: str, value: Any, sources: Sequence[tuple[Mapping[str, Raw], Tree]]
    ) -> Raw:
        inner = []
        for raws, fields in sources:
            there = fields.get(name, ABSENT)
            if there is ABSENT:
                continue
            if there is value or same(there, value):
                return raws[name]
            if type(there) is dict and type(value) is dict:
                below = self._inner_raws(raws[name])
                if below is not None:
                    inner.append((below, there))
        if inner:
            return self._joined(self._spliced_fields(value, inner))
        return self._raw_of(value)
