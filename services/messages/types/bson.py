"""The type `bson`: one document, read by the bson package of pymongo (extra `bson`).

Expressions see its values as numbers, texts and bytes: a date as milliseconds since 1970; an
ObjectId in hexadecimal; a decimal number, a regular expression and code as their texts; a timestamp
as its 64 bits; the least and the greatest key as `MinKey` and `MaxKey`; a reference as a document.
Deltas are merged from the original values, so no value loses its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raylay.services.messages.types.base import VALUES_MAX, missing
from raylay.services.messages.types.splicing import SplicedType
from raylay.services.messages.types.trees import FieldPath, Tree, changes, merged

Raw = tuple[int, bytes]
"""The type byte of a value, and its bytes."""
_DOCUMENT = 0x03


class Bson(SplicedType[Raw]):
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
        # Dates as whole numbers, because Python's calendar ends before BSON's.
        self._options: Any = codec_options.CodecOptions(
            document_class=dict,
            datetime_conversion=codec_options.DatetimeConversion.DATETIME_MS,
        )
        self._ends: dict[Any, str] = {max_key.MaxKey: "MaxKey", min_key.MinKey: "MinKey"}

    def parse(self, body: bytes | memoryview) -> Tree:
        return {name: self._plain(value) for name, value in self._document(body).items()}

    def count_values(self, body: bytes | memoryview) -> int:
        """Counts the values of a document. Each name ends with a zero byte; where there are many of
        these, the elements are read by their first bytes, until there are too many or they make no
        sense."""
        raw = bytes(body)
        found = raw.count(0)
        return found if found <= VALUES_MAX else _count(raw)

    def serialize(self, tree: Tree) -> bytes:
        """Returns the document in the order of the tree; whole numbers are int32 where they fit."""
        errors = self._bson.errors
        try:
            return bytes(self._bson.encode(tree, codec_options=self._options))
        except (errors.BSONError, OverflowError, ValueError, TypeError, RecursionError) as error:
            raise self.wrong(f"BSON cannot say this: {_line(error)}") from None

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """Returns the stored document with the fields of a delta merged into it."""
        return self.serialize(merged(self._document(stored), self._document(delta)))

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """Returns the delta that leads from one document to another."""
        one, other = self._document(before), self._document(after)
        return self.serialize(changes(one, other, keys, self.empty if empties else ...))

    def _raws(self, body: bytes | memoryview) -> dict[str, Raw]:
        return _elements(bytes(body))

    def _inner_raws(self, raw: Raw) -> dict[str, Raw] | None:
        kind, data = raw
        return _elements(data) if kind == _DOCUMENT else None

    def _raw_of(self, value: Any) -> Raw:
        whole = self.serialize({"": value})
        return whole[4], whole[6:-1]

    def _joined(self, raws: Mapping[str, Raw]) -> Raw:
        return _DOCUMENT, self._body(raws)

    def _body(self, raws: Mapping[str, Raw]) -> bytes:
        inner = b"".join(
            b"%c%b\0%b" % (kind, name.encode(), data) for name, (kind, data) in raws.items()
        )
        return (len(inner) + 5).to_bytes(4, "little") + inner + b"\0"

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
        kind = type(value)
        if kind is list:
            return [each if type(each) in _PLAIN else self._plain(each) for each in value]
        if kind is dict:
            return {
                name: each if type(each) in _PLAIN else self._plain(each)
                for name, each in value.items()
            }
        bson = self._bson
        match value:
            case float() | bool() | None:
                return value
            # The remaining subclasses, such as Int64 and Code, are types of their own.
            case str():
                return str(value)
            case int():
                return int(value)
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


_PLAIN = frozenset((str, int, float, bool, type(None), bytes))
_SIZES = {
    **{0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16},
    **dict.fromkeys((0x06, 0x0A, 0x7F, 0xFF), 0),
}
"""Length of a value in bytes, for the types of fixed length."""
_SIZED = {0x02: 4, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0}
"""Length of a value in bytes in addition to the number in its first four bytes, for the types that
have that number."""


def _after(raw: bytes, kind: int, at: int) -> int:
    """Returns the offset behind a value that begins at `at`; for a document, behind its length
    field; 0: unknown type."""
    step = _SIZES.get(kind)
    if step is not None:
        return at + step
    if kind in _SIZED:
        return at + _SIZED[kind] + int.from_bytes(raw[at : at + 4], "little")
    if kind == 0x0B:
        # A regular expression consists of two texts.
        return raw.find(0, raw.find(0, at) + 1) + 1
    return at + 4 if kind in (_DOCUMENT, 0x04) else 0


def _elements(document: bytes) -> dict[str, Raw]:
    found: dict[str, Raw] = {}
    at = 4
    while document[at]:
        kind = document[at]
        end = document.index(0, at + 1)
        name = document[at + 1 : end].decode()
        begin = end + 1
        if kind in (_DOCUMENT, 0x04):
            at = begin + int.from_bytes(document[begin : begin + 4], "little")
        else:
            at = _after(document, kind, begin)
        found[name] = kind, document[begin:at]
    return found


def _count(raw: bytes) -> int:
    """Returns the number of elements and documents; the end of a document that is no element is not
    counted."""
    size, at, found = len(raw), 4, 0
    while at < size and found <= VALUES_MAX:
        kind = raw[at]
        if not kind:
            at += 1  # The end of an inner document: the outer one continues.
            continue
        found += 1
        at = raw.find(0, at + 1) + 1
        at = at and _after(raw, kind, at)
        if not at:
            break
    return found


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160] or type(error).__name__
