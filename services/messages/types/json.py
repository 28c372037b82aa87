"""The type `json`: one object, parsed whole by orjson, the fastest available parser to a dict.

Measured on a flight of 301 bytes and 19 fields, per body: orjson 0.73 us, msgspec 0.91 us, the
standard library 3.1 us (Python 3.11). On 7 KB of nested objects the first two are equal.

Whole numbers beyond 64 bits become floating-point ones, as the type system has them; of a name
that an object has twice the last value counts (docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import msgspec
import orjson

from raylay.services.messages.types.base import DEPTH_MAX, VALUES_MAX, ParsedBody, shown
from raylay.services.messages.types.splicing import SplicedType
from raylay.services.messages.types.trees import Tree

FEW_FIELDS = 8
"""Number of fields up to which reading them alone is cheaper than reading the whole body."""
VALUE_BYTES_MIN = 2
"""Fewest bytes of each value but the last: the value itself, and a comma or bracket."""
FEW_QUOTES = 1_000
"""Number of quotes up to which a body is split at them to count its commas: long texts have many
commas, and the few pieces between quotes are counted alone."""
_BRACES = bytes.maketrans(b"[]", b"{}")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'{}[]"'))
COUNTED_FROM_BYTES = VALUES_MAX * VALUE_BYTES_MIN
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode_raw = msgspec.json.Encoder().encode
_PLAIN = str | float | bool | None | Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Json(SplicedType[msgspec.Raw]):
    """Bodies that are one JSON object in UTF-8."""

    kind = "json"
    empty = None
    parsers_refuse = True
    value_bytes_min = VALUE_BYTES_MIN

    def parse(self, body: bytes | memoryview) -> Tree:
        if len(body) > COUNTED_FROM_BYTES:
            self.bounded(body)
        raw = body if type(body) is bytes else bytes(body)
        try:
            tree = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise self.wrong(*_reason(error, raw)) from None
        if type(tree) is not dict:
            raise self.wrong(f"expected an object, {{…}}, got {shown(tree)}", 0)
        # A body with few brackets cannot be deep, and is not walked through. Most bodies have one
        # bracket: searching for a second takes half of the time of counting.
        if (
            (raw.find(b"{", 1) > 0 or b"[" in raw)
            and raw.count(b"{") + raw.count(b"[") > DEPTH_MAX
            and not is_surely_shallow(raw)
        ):
            self.shallow(tree)
        return tree

    def parse_all(self, bodies: Sequence[bytes]) -> list[Tree]:
        together = b"".join(bodies)
        # Flat objects, none of them long: none needs to be looked at by itself.
        if (
            type(self).parse is Json.parse  # A derived type may read bodies in another way.
            and max(map(len, bodies), default=0) <= COUNTED_FROM_BYTES
            and together.count(b"{") == len(bodies)
            and b"[" not in together
        ):
            try:
                trees = list(map(orjson.loads, bodies))
            except orjson.JSONDecodeError:
                return super().parse_all(bodies)
            if all(type(tree) is dict for tree in trees):
                return trees
        return super().parse_all(bodies)

    def count_values(self, body: bytes | memoryview) -> int:
        """Returns the number of commas and opening brackets; where there are many, only of those
        outside of strings."""
        raw = body if type(body) is bytes else bytes(body)
        is_escaped = b"\\" in raw
        quotes = raw.count(b'"')
        if is_escaped or quotes > FEW_QUOTES:
            found = _separators(raw)
            if found <= VALUES_MAX:
                return found
        if is_escaped:
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
            quotes = raw.count(b'"')
        if quotes > 4 * VALUES_MAX:
            # A field takes two strings: that many strings are too many values, and would make as
            # many pieces.
            return VALUES_MAX + 1
        return _separators(b"".join(raw.split(b'"')[::2]))

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], Tree]:
        """Returns a parser that reads only these few fields, in a third of the time. Where one of
        them is an object or array, the whole body is read."""
        if not 0 < len(names) <= FEW_FIELDS or type(self).parse is not Json.parse:
            return self.parse
        decode, parse, bounded = _decoder(names), self.parse, self.bounded

        def parsed(body: bytes) -> Tree:
            # msgspec does not find a name that is written with an escape.
            if b"\\" in body:
                return parse(body)
            if len(body) > COUNTED_FROM_BYTES:
                bounded(body)
            try:
                return decode(body)
            except Exception:  # Read whole instead, which refuses an invalid body.
                return parse(body)

        return parsed

    def reader_of(self, names: frozenset[str]) -> Callable[[Sequence[bytes]], list[Tree | None]]:
        """Returns a reader that takes half the time for bodies without an escape whose fields are
        plain values, because it decodes them together."""
        one_by_one = super().reader_of(names)
        if not 0 < len(names) <= FEW_FIELDS or type(self).parse is not Json.parse:
            return one_by_one
        decode = _decoder(names)

        def read(bodies: Sequence[bytes]) -> list[Tree | None]:
            together = b"".join(bodies)
            if b"\\" not in together and len(together) <= COUNTED_FROM_BYTES:
                try:
                    return list(map(decode, bodies))
                except Exception:
                    pass  # One of the bodies is invalid, and is found below.
            return one_by_one(bodies)

        return read

    def serialize(self, tree: Tree) -> bytes:
        """Returns the object as text, without spaces."""
        try:
            return orjson.dumps(tree)
        except orjson.JSONEncodeError as error:
            raise self.wrong(f"JSON cannot say this: {error}") from None

    def joined(self, stored: ParsedBody, delta: ParsedBody, tree: Tree) -> bytes:
        """Returns the values of both as they are written, without a look at each, where the delta
        has no object that could be merged into one of the stored body."""
        # A derived type may write values in another way.
        if type(self) is Json and dict not in map(type, delta.tree.values()):
            try:
                return _encode_raw(_decode_raw(stored.body) | _decode_raw(delta.body))
            except (msgspec.MsgspecError, UnicodeError):
                pass  # A text that this decoder refuses.
        return super().joined(stored, delta, tree)

    def _raws(self, body: bytes | memoryview) -> dict[str, msgspec.Raw]:
        return _decode_raw(body)

    def _inner_raws(self, raw: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
        return _decode_raw(raw) if _is_object(raw) else None

    def _raw_of(self, value: Any) -> msgspec.Raw:
        try:
            return msgspec.Raw(orjson.dumps(value))
        except orjson.JSONEncodeError as error:
            raise self.wrong(f"JSON cannot say this: {error}") from None

    def _joined(self, raws: Mapping[str, msgspec.Raw]) -> msgspec.Raw:
        return msgspec.Raw(self._body(raws))

    def _body(self, raws: Mapping[str, msgspec.Raw]) -> bytes:
        return _encode_raw(raws)


def is_surely_shallow(raw: bytes) -> bool:
    """Returns whether the brackets of a valid body show that it is nested no deeper than it may be;
    False: its tree has to be walked through, which takes up to four times as long.

    Without its values a body is brackets and quotes. Each round removes the innermost pairs of
    brackets, so the number of rounds is the depth. A string is two quotes, which are removed before
    that; a string that contains brackets keeps its quotes, and the answer is False.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = raw.translate(_BRACES, _ALL_BUT_BRACKETS_AND_QUOTES).replace(b'""', b"")
    if b'"' in left:
        return False
    for _ in range(DEPTH_MAX):
        left = left.replace(b"{}", b"")
        if not left:
            return True
    return False


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _decoder(names: frozenset[str]) -> Callable[[bytes], Tree]:
    """Returns a decoder that reads only these fields of a body."""
    plain = dict.fromkeys(names, _PLAIN)
    fields = TypedDict("fields", plain, total=False)  # type: ignore[misc]
    return msgspec.json.Decoder(fields).decode  # type: ignore[return-value]


def _reason(error: orjson.JSONDecodeError, body: bytes) -> tuple[str, int]:
    try:
        text = body.decode()
    except UnicodeDecodeError as not_utf8:
        return "it is not UTF-8", not_utf8.start
    return error.msg.partition(": line ")[0], len(text[: error.pos].encode())
