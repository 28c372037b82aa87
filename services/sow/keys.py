"""The key by which a message belongs to a record of a SOW topic (behaviour.md 4.1).

The key is 128 bits of BLAKE2b, in hexadecimal, over the topic's key domain and the values of the
key fields. With the 64 bits of the documents, two of 5,000,000,000 records would have the same key
as often as not. Publishers choose the values, and some may write only some records: nobody may find
values that give the key of another record, and so replace it. Topics of one key domain give the
same key to the same values.
"""

from __future__ import annotations

import re
import struct
from binascii import hexlify
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from raylay.services.errors import SowKeyError
from raylay.services.messages.digests import DIGEST_BYTES, SOW_KEY
from raylay.services.messages.types.trees import FieldPath, Tree, field_path

SOW_KEY_BYTES_MAX = 255
"""Longest key that a publisher may give: each key of the store includes it."""
_LENGTH = struct.Struct("<I")
_GIVEN = re.compile(rb"[A-Za-z0-9+/=_-]+")
_INT64 = 1 << 63


class KeyRule:
    """Makes the key of a message on one topic. Immutable.

    Args:
        topic: name of the topic.
        identifiers: identifiers of the key fields, such as `/order/@id`, in the order of the
            configuration.
        domain: the key domain; empty: the topic's name.

    Raises:
        MessageTypeError: an identifier names no field.
    """

    __slots__ = ("_begun", "_paths", "domain", "identifiers", "topic")

    def __init__(self, topic: str, identifiers: Sequence[str], domain: str = "") -> None:
        self.topic = topic
        self.identifiers = tuple(identifiers)
        self.domain = domain or topic
        self._paths = tuple(field_path(identifier) for identifier in identifiers)
        # The part that is equal for all records is digested once: copying the state is cheaper than
        # a new digest.
        self._begun = blake2b(digest_size=DIGEST_BYTES, person=SOW_KEY)
        self._begun.update(_counted(self.domain.encode("utf-8", "surrogateescape")))

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        return self._paths

    def key_of(self, tree: Tree) -> bytes:
        """Returns the key of a message with these fields.

        Raises:
            SowKeyError: a key field is missing, empty, or not one value.
        """
        parts: list[bytes] = []
        for path in self._paths:
            value: Any = tree
            for name in path:
                if type(value) is not dict:
                    break
                value = value.get(name)
            try:
                # Bytes that are no UTF-8 have the key of the text as which expressions read them.
                text = (
                    value.encode("utf-8", "surrogateescape")
                    if type(value) is str
                    else key_text(value)
                )
            except UnicodeEncodeError:
                text = value.encode("utf-8", "surrogatepass")
            if not text:
                raise SowKeyError(self._wrong(path, value))
            parts += (_LENGTH.pack(len(text)), text)
        made = self._begun.copy()
        made.update(b"".join(parts))
        return made.hexdigest().encode()

    def keys_of(self, trees: Sequence[Tree]) -> list[bytes]:
        """Returns the key of each of many messages, as `key_of` does.

        Raises:
            SowKeyError: of one of them a key field is missing, empty, or not one value.
        """
        if len(self._paths) != 1 or len(self._paths[0]) != 1:
            return list(map(self.key_of, trees))
        (name,) = self._paths[0]
        begun, length_of = self._begun.copy, _LENGTH.pack
        digests: list[bytes] = []
        for tree in trees:
            value = tree.get(name)
            if type(value) is str and value and value.isascii():
                text = value.encode()
            elif type(value) is int:
                text = key_text(value)
                if not text:
                    return list(map(self.key_of, trees))
            else:
                return list(map(self.key_of, trees))
            made = begun()
            made.update(length_of(len(text)) + text)
            digests.append(made.digest())
        keys = hexlify(b"".join(digests))
        step = 2 * DIGEST_BYTES
        return [keys[at : at + step] for at in range(0, len(keys), step)]

    def _wrong(self, path: FieldPath, value: object) -> str:
        identifier = self.identifiers[self._paths.index(path)]
        if isinstance(value, list | dict):
            what = "an array" if isinstance(value, list) else "an object"
            why = f"is {what}: a key needs one value"
        else:
            why = "is missing or empty: give it a value"
        return (
            f"topic {self.topic} keeps its messages by {', '.join(self.identifiers)}, and "
            f"{identifier} of this one {why}"
        )


def key_of(tree: Tree, key_fields: Sequence[str], domain: str) -> bytes:
    """Returns the key of a message; for callers that need only one.

    Args:
        key_fields: identifiers, such as `/id`.
        domain: the key domain; by default the topic's name.

    Raises:
        SowKeyError: a key field is missing, empty, or not one value.
        MessageTypeError: an identifier names no field.
    """
    return KeyRule(domain, key_fields, domain).key_of(tree)


def given_key(key: bytes, topic: str) -> bytes:
    """Returns the key that a publisher gives to a message of a topic without key fields.

    Raises:
        SowKeyError: there is none, it is too long, or has other characters than those of Base64.
    """
    if not key:
        raise SowKeyError(
            f"topic {topic} has neither Key nor KeyGenerator: give each message its SOW key"
        )
    if len(key) > SOW_KEY_BYTES_MAX or not _GIVEN.fullmatch(key):
        raise SowKeyError(
            f"topic {topic}: expected a SOW key of at most {SOW_KEY_BYTES_MAX} letters, digits and "
            f"'+', '/', '-', '_', '=', got {key[:60]!r}"
        )
    return key


def _counted(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


def key_text(value: Any) -> bytes:
    """Returns a value as text, equal where expressions compare values as equal: 1, 1.0 and true;
    b"" for NULL. XML and FIX have texts only, so the text of a number gives the same key as the
    number."""
    kind = type(value)
    if kind is bytes:
        return bytes(value)
    if kind is bool:
        return b"1" if value else b"0"
    if kind is float:
        if value == value // 1 and abs(value) < _INT64:
            return b"%d" % int(value)
        return repr(value).encode()
    if kind is int:
        return b"%d" % value if abs(value) < _INT64 << 1 else b""
    return b""
