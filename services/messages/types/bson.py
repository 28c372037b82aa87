"""The type `bson`: one document, read by the bson package of pymongo (extra `bson`).

Expressions see its values as numbers, texts and bytes: a date as milliseconds since 1970, an
ObjectId in hexadecimal, a decimal number, a regular expression and code as their texts, a
timestamp as its 64 bits, the least and the greatest key as `MinKey` and `MaxKey`, a reference as
a document. Deltas are merged with the values as the document has them: none loses its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylay.services.messages.types.base import MessageType, missing
from raylay.services.messages.types.trees import FieldPath, Tree, changes, merged


class Bson(MessageType):
    """Bodies that are one BSON document.

    Raises:
        MessageTypeError: the bson package of pymongo is not installed.
    """

    kind = "bson"
    empty = None

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        try:
            import bson
            from bson import codec_options, max_key, min_key
        except ImportError:
            missing(self.name, "pymongo", "bson")
        self._bson: Any = bson
        # Dates as whole numbers: the calendar of Python ends where that of BSON does not.
        self._options: Any = codec_options.CodecOptions(
            document_class=dict,
            datetime_conversion=codec_options.DatetimeConversion.DATETIME_MS,
        )
        self._ends: dict[Any, str] = {max_key.MaxKey: "MaxKey", min_key.MinKey: "MinKey"}

    def parse(self, body: bytes | memoryview) -> Tree:
        """The values of the document by name."""
        return {name: self._plain(value) for name, value in self._document(body).items()}

    def serialize(self, tree: Tree) -> bytes:
        """The document in the order of the tree; whole numbers as int32 where they fit."""
        errors = self._bson.errors
        try:
            return bytes(self._bson.encode(tree, codec_options=self._options))
        except (errors.BSONError, OverflowError, ValueError, TypeError, RecursionError) as error:
            raise self.wrong(f"BSON cannot say this: {_line(error)}") from None

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """The stored document with the fields of a delta in it."""
        return self.serialize(merged(self._document(stored), self._document(delta)))

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """The delta that leads from one document to another."""
        one, other = self._document(before), self._document(after)
        return self.serialize(changes(one, other, keys, self.empty if empties else ...))

    def _document(self, body: bytes | memoryview) -> Tree:
        self.bounded(body)
        errors = self._bson.errors
        try:
            tree: Tree = self._bson.decode(bytes(body), self._options)
        except (errors.BSONError, OverflowError, ValueError, TypeError, RecursionError) as error:
            raise self.wrong(_line(error)) from None
        self.shallow(tree)
        return tree

    def _plain(self, value: Any) -> Any:
        bson = self._bson
        match value:
            case float() | bool() | None:
                return value
            case str():
                return str(value)
            case int():
                return int(value)
            case dict():
                return {name: self._plain(each) for name, each in value.items()}
            case list():
                return [self._plain(each) for each in value]
            case bytes():
                return bytes(value)
            case bson.DatetimeMS():
                return int(value)
            case bson.Timestamp():
                return (value.time << 32) | value.inc
            case bson.Regex():
                return str(value.pattern)
            case bson.DBRef():
                return self._plain(dict(value.as_doc()))
        return self._ends.get(type(value)) or str(value)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160] or type(error).__name__
