"""The records of a view as a store that a topic's state reads: each is made of its group when
somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.records import NEVER, SowRecord, encoded
from raylay.services.sow.state import VALUE, VALUE_END
from raylay.services.views.groups import RECORD_BYTES, GroupTable, ViewGroup

_SEQUENCE_BITS = 63
_tuple_of = tuple.__new__


class GroupRecords:
    """The `StoreReader` of a view's topic.

    Owner: the view. Lifecycle: as long as the view is in service, and a query of it runs.

    Args:
        groups: the groups of the view.
        kind: type of the view's messages.
    """

    def __init__(self, groups: GroupTable, kind: MessageType) -> None:
        self._groups = groups
        self._kind = kind

    def of(self, group: ViewGroup) -> SowRecord:
        """Returns the record of a group as it is now. It is kept until the group changes."""
        found = group.record
        if found is None:
            body = _body_of(self._kind, self._groups.fields_of(group))
            sequence = checksum64(body) >> (64 - _SEQUENCE_BITS)
            at_us = group.at_us
            # Each of its fields: a named tuple is made of a tuple in half the time.
            found = group.record = _tuple_of(
                SowRecord, (group.key, group.txid, 0, sequence, at_us, NEVER, body, at_us, b"")
            )
            self._groups.records_bytes += RECORD_BYTES + len(body)
        return found

    # -- the store's part (services/sow/store_reader.py) -------------------------------------------
    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key of the store; None: there is none."""
        group = self._groups.by_key.get(key[1:]) if key[:1] == VALUE else None
        return None if group is None else encoded(self.of(group))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns None: a view keeps no versions, of which the last one could be asked for."""
        return None

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` (key, value) from `start` on and before `end`, by key."""
        if end <= VALUE or start >= VALUE_END:
            return []
        by_key = self._groups.by_key
        low = start[1:] if start[:1] == VALUE else b""
        high = end[1:] if end[:1] == VALUE else _ABOVE_KEYS
        return [
            (VALUE + key, encoded(self.of(by_key[key]))) for key in by_key.keys(low, high, most)
        ]


_ABOVE_KEYS = b"\xff"
"""A key above those of all groups, which are digits."""


def _body_of(kind: MessageType, fields: Tree) -> bytes:
    """Returns the body of a record. A value that messages of the type cannot have, such as bytes of
    a FIX message that are no UTF-8 in JSON, is NULL there."""
    try:
        return kind.serialize(fields)
    except MessageTypeError:
        return kind.serialize({name: _writable(kind, name, fields[name]) for name in fields})


def _writable(kind: MessageType, name: str, value: Any) -> Any:
    try:
        kind.serialize({name: value})
    except MessageTypeError:
        if isinstance(value, dict):
            return {inner: _writable(kind, inner, value[inner]) for inner in value}
        return kind.empty
    return value
