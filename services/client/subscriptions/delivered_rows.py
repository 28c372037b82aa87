"""The rows that a `sow_and_subscribe` handed out, so that it goes on at another instance as if
nothing had happened.

After a failover the query is asked again, and the new instance's rows are compared with what the
consumer holds: of each SOW key which message (publisher and sequence) brought the value handed out
last. A row that is the same is left out. One that differs is handed out: it is newer, or it is what
the new instance has. Of a key that the new instance has not, an out-of-focus message is made, where
the subscription asked for those.

So at the end of each group the consumer holds exactly what the instance has: its view is never
corrected by what comes later, and nothing is handed out that it holds. An instance that lacks what
the last one gave, since a link lags, gives its older row, and the newer one when it comes.

Where the filter is replaced the group has only what is newly in focus, and out-of-focus messages
for what leaves: all of them are handed out, and nothing else is gone.

Where a delivery says no key (`no_sowkey`, or a topic without SOW), its identity is kept instead: a
row that it brought is not handed out again, but nobody can tell that it is gone.

Memory: about 200 bytes a row that the consumer holds, of its key, its topic and its message; at the
comparison, 130 bytes more for each row of the group. Identities without key: ranges of sequences.

Invariant: `_held` has a key exactly if the last thing handed out of it is no out-of-focus message.
Pure: no socket, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from raylay.services.client.messages import ranges_of
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder

# Of a record (services/messages/records.py): what says how long its names are, publisher and
# sequence, and the names: topic, message type, key.
_LENGTHS = struct.Struct("<I10xBxHH")  # of the record; of type, topic and key
_NAME_LENGTHS = struct.Struct("<HH")  # of topic and key
_NAME_LENGTHS_AT, _NAME_LENGTHS_END = 16, 20
_IDENTITY = struct.Struct("<QQ")
_IDENTITY_AT, _IDENTITY_END = 28, 44
_NAMES_AT = 60

Handed = tuple[bytes, int]
"""Records, and how many they are."""


class DeliveredRows:
    """See the top of this file.

    Owner: the client's machine, as part of one subscription. Lifecycle: as long as that.
    """

    __slots__ = ("_group", "_held", "_is_part", "_loose", "suppressed")

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        """Topic, type and key, with their lengths, to publisher and sequence."""
        self._loose = PublisherRanges()
        """Messages that were handed out without key since the last group."""
        self._group: set[bytes] | None = None
        """The names of this group; None: there is none, or nothing can be gone in it."""
        self._is_part = False
        """Whether this group has no more than what is newly in focus."""
        self.suppressed = 0
        """Messages that were left out since the consumer holds them."""

    def __len__(self) -> int:
        """The rows that the consumer holds, as far as keys are known."""
        return len(self._held)

    def begin(self, is_part: bool = False) -> None:
        """A group begins; what came of one before that had no end counts as handed out.

        Args:
            is_part: it has what is newly in focus, and no other rows.
        """
        self._is_part = is_part
        self._group = set() if self._held and not is_part else None

    def rows(self, payload: bytes, count: int) -> Handed:
        """Returns the rows of a group that the consumer does not hold; of one that has only what is
        newly in focus, all: who asked for no out-of-focus messages does not know what left."""
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
        """Out-of-focus messages: the consumer does not hold these any more."""
        held = self._held

        def new(name: bytes, _: bytes) -> bool:
            held.pop(name, None)
            return True

        return self._kept(payload, count, new)

    def end(self) -> Handed:
        """A group ended. What the consumer holds and is not in it is gone: out-of-focus messages
        with an empty body, the key, and publisher and sequence of what was handed out last."""
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
    """(start, end, name, identity) of each record."""
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
