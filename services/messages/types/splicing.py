"""Bodies that are written anew with some other fields, while all other values keep their bytes.

An enrichment, a select list or a delta names some fields. If the rest were written from parsed
values, it would change: a number would lose its zeros, and a type that expressions do not have
would become a text. So each value that the body already has is copied from there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.trees import ABSENT, Tree, same

Raw = TypeVar("Raw")
"""The bytes of one value, in the form that the type needs to write them again."""


class SplicedType(MessageType, Generic[Raw]):
    """A type in whose bodies each value has bytes of its own."""

    @abstractmethod
    def _raws(self, body: bytes | memoryview) -> Mapping[str, Raw]:
        """Returns the bytes of a body's values by name; of a name that occurs twice, those of the
        last value."""

    @abstractmethod
    def _inner_raws(self, raw: Raw) -> Mapping[str, Raw] | None:
        """Returns the bytes of the fields within a value, by name; None: the value has no
        fields."""

    @abstractmethod
    def _raw_of(self, value: Any) -> Raw:
        """Returns the bytes for a value that no known body has."""

    @abstractmethod
    def _joined(self, raws: Mapping[str, Raw]) -> Raw:
        """Returns the bytes of a value that has these fields."""

    @abstractmethod
    def _body(self, raws: Mapping[str, Raw]) -> bytes:
        """Returns the body that has these fields."""

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
