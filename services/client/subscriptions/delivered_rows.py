"""The rows that a `sow_and_subscribe` has handed out, so that it continues at another instance
without a gap or a duplicate.

After a failover the query is repeated, and the new instance's rows are compared with those that the
consumer holds: for each SOW key, the identity (publisher and sequence) of the message that was
handed out last. A row with the same identity is left out. A row with another one is handed out: it
is newer, or it is the state of the new instance. For a key that the new instance lacks, an
out-of-focus message is made, if the subscription asked for those.

So at the end of each group the consumer holds exactly the state of the instance: later messages
never correct its view, and no row is handed out that it already holds. An instance that lacks
messages of the last one, because a link lags, gives its older row, and the newer one when it
arrives.

Where the filter is replaced, the group has only rows that are new in the focus, and out-of-focus
messages for those that leave it: all of them are handed out, and no other row is removed.

Where a delivery has no key (`no_sowkey`, or a topic without SOW), the identity of the message is
kept instead: a row with the same identity is not handed out again, but its removal cannot be
noticed.

Memory: about 200 bytes for each row that the consumer holds, for its key, its topic and its
message; during the comparison, 130 bytes more for each row of the group. Identities without key:
ranges of sequences.

Invariant: `_held` has a key exactly if the last message handed out for it is no out-of-focus
message. Pure: no socket, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from raylay.services.client.messages import ranges_of
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder

# The needed fields of a record (services/messages/records.py): the lengths of its names, publisher
# and sequence, and the names: topic, message type, key.
_LENGTHS = struct.Struct("<I10xBxHH")  # of the record; of type, topic and key
_NAME_LENGTHS = struct.Struct("<HH")  # of topic and key
_NAME_LENGTHS_AT, _NAME_LENGTHS_END = 16, 20
_IDENTITY = struct.Struct("<QQ")
_IDENTITY_AT, _IDENTITY_END = 28, 44
_NAMES_AT = 60

Handed = tuple[bytes, int]
"""Records that are handed out, and their number."""


class DeliveredRows:
    """The rows that a consumer holds.

    Owner: the client's machine, as part of one subscription. Lifecycle: as long as the
    subscription.
    """

    __slots__ = ("_group", "_held", "_is_part", "_loose", "suppressed")

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        """Identity (publisher and sequence) of the last message, by topic, type and key with their
        lengths."""
        self._loose = PublisherRanges()
        """Messages without a key that were handed out since the last group."""
        self._group: set[bytes] | None = None
        """Names of the rows in the present group; None: there is no group, or one that removes
        nothing."""
        self._is_part = False
        """Whether the present group has only rows that are new in the focus."""
        self.suppressed = 0
        """Number of messages that were left out because the consumer holds them."""

    def __len__(self) -> int:
        """Returns the number of rows that the consumer holds, among those with a key."""
        return len(self._held)

    def begin(self, is_part: bool = False) -> None:
        """Begins a group. Rows of an earlier group without an end count as handed out.

        Args:
            is_part: whether the group has only rows that are new in the focus.
        """
        self._is_part = is_part
        self._group = set() if self._held and not is_part else None

    def rows(self, payload: bytes, count: int) -> Handed:
        """Returns the rows of a group that the consumer does not hold. Of a group with only new
        rows, returns all: a subscription without out-of-focus messages does not know which rows
        left."""
        held, group, loose, is_part = self._held, self._group, self._loose, self._is_part

        def new(name: bytes, identity: bytes) -> bool:
            if group is not None:
                group.add(name)
            if held.get(name) == identity and not is_part:
                return False
            held[name] = identity
            return is_part or not (loose and _holds(loose, identity))

        return self._kept(payload, count, new)

    def delivered(self, payload: bytes, count: int) -> Handed:
        """Returns the messages of a delivery that the consumer does not hold."""
        held = self._held
        keyless = 0

        def new(name: bytes, identity: bytes) -> bool:
            nonlocal keyless
            if name[2:4] == b"\0\0":
                keyless += 1
                return True
            if held.get(name) == identity:
                return False
            held[name] = identity
            return True

        kept = self._kept(payload, count, new)
        if keyless == count:
            self._loosen(payload, count)
        elif keyless:
            for start, end, name, _ in _entries(payload, count):
                if name[2:4] == b"\0\0":
                    self._loosen(payload[start:end], 1)
        return kept

    def _loosen(self, payload: bytes, count: int) -> None:
        for publisher, first, last in ranges_of(payload, count):
            self._loose.add(publisher, first, last)

    def left(self, payload: bytes, count: int) -> Handed:
        """Takes out-of-focus messages: the consumer does not hold these rows any more."""
        held = self._held

        def new(name: bytes, _: bytes) -> bool:
            held.pop(name, None)
            return True

        return self._kept(payload, count, new)

    def end(self) -> Handed:
        """Ends a group of rows, the answer to one query. The consumer may hold rows that the group
        lacks: they are gone.

        Returns:
            one out-of-focus message for each of these rows, and how many there are. Each has
            the row's key, an empty body, and the identity of the last message that was handed
            out for the key."""
        gone: list[bytes] = []
        if self._group is not None:
            held = self._held
            for name in [name for name in held if name not in self._group]:
                gone.append(_out_of_focus(name, held.pop(name)))
        self._group = None
        if not self._is_part:
            self._loose = PublisherRanges()
        self._is_part = False
        return b"".join(gone), len(gone)

    def _kept(self, payload: bytes, count: int, new: Callable[[bytes, bytes], bool]) -> Handed:
        kept: list[bytes] | None = None
        for start, end, name, identity in _entries(payload, count):
            if new(name, identity):
                if kept is not None:
                    kept.append(payload[start:end])
                continue
            if kept is None:
                kept = [payload[:start]] if start else []
                left = 0
            left += 1
        if kept is None:
            return payload, count
        self.suppressed += left
        return b"".join(kept), count - left


def _entries(payload: bytes, count: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yields (start, end, name, identity) of each record."""
    offset = 0
    unpack = _LENGTHS.unpack_from
    for _ in range(count):
        length, typ, topic, key = unpack(payload, offset)
        if length < _NAMES_AT:
            raise struct.error(f"a record of {length} bytes: unpack needs {_NAMES_AT}")
        names_at = offset + _NAMES_AT
        name = (
            payload[offset + _NAME_LENGTHS_AT : offset + _NAME_LENGTHS_END]
            + payload[names_at : names_at + topic + typ + key]
        )
        identity = payload[offset + _IDENTITY_AT : offset + _IDENTITY_END]
        yield offset, offset + length, name, identity
        offset += length


def _holds(ranges: PublisherRanges, identity: bytes) -> bool:
    publisher, sequence = _IDENTITY.unpack(identity)
    found = ranges.get(publisher)
    return found is not None and sequence in found


def _out_of_focus(name: bytes, identity: bytes) -> bytes:
    topic, key = _NAME_LENGTHS.unpack_from(name)
    names = name[_NAME_LENGTHS.size :]
    publisher, sequence = _IDENTITY.unpack(identity)
    builder = RecordBuilder(
        publisher,
        names[:topic].decode("utf-8", "replace"),
        names[topic : len(names) - key].decode("utf-8", "replace"),
    )
    return builder.build(sequence, b"", 0, key=names[len(names) - key :])
