"""Named readers: readers from outside, such as a Spark query, for which an instance keeps segments
until they have read them. Decisions only; services/server/clients/named_readers.py keeps them on
disk.

A reader says which messages it holds. The first sealed segment with another message, and every one
behind it, stays until the reader has said more, or has not been heard of for the time that it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.subscriptions.reader_counts import LackedMessages

READERS_MAX = 256
"""Number of named readers of an instance."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Memory, in bytes, of what all named readers of an instance hold."""

Summary = tuple[int, int, PublisherRanges]
"""A sealed segment: its first and last transaction id, and the messages in it."""


@dataclass(slots=True)
class NamedReader:
    """One reader.

    Attributes:
        name: its name.
        user: id of the user who named it; empty: no user is known.
        topic: what it reads, a topic or a regular expression: shown, and no limit of what is kept.
        have: the messages that it does not need any more.
        expires_s: seconds after which it is forgotten when nothing is heard of it.
        told_us: time when it was heard of last, by the clock that stored data ages by.
        floor_txid: segments that end below this transaction id hold nothing that it needs.
        message_type: message type that it reads; empty: any.
        filter: filter of what it reads; empty: none.
    """

    name: str
    user: str
    topic: str
    have: PublisherRanges
    expires_s: int
    told_us: int
    floor_txid: int = 0
    message_type: str = ""
    filter: str = ""

    def pack(self) -> bytes:
        """Returns the reader for the disk."""
        packed: bytes = msgpack.packb(
            [
                *(self.name, self.user, self.topic, self.have.to_wire()),
                *(self.expires_s, self.told_us, self.message_type, self.filter),
            ]
        )
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> NamedReader:
        """Returns the reader that `pack` wrote; its floor is not known yet."""
        values = msgpack.unpackb(data, strict_map_key=False)
        name, user, topic, have, expires_s, told_us, message_type, filter_ = values
        place = PublisherRanges.from_wire(have)
        return cls(name, user, topic, place, expires_s, told_us, 0, message_type, filter_)

    @property
    def terms(self) -> tuple[str, str, str]:
        """Returns what it reads: topic, message type and filter."""
        return self.topic, self.message_type, self.filter

    def place(self) -> bytes:
        """Returns what it reads and which messages it holds, as msgpack."""
        packed: bytes = msgpack.packb([*self.terms, self.have.to_wire()])
        return packed

    def is_expired(self, now_us: int) -> bool:
        """Returns whether nothing was heard of the reader for too long."""
        return now_us - self.told_us > self.expires_s * 1_000_000

    def measure(self, summaries: Iterable[Summary]) -> None:
        """Takes the sealed segments, oldest first, and finds the first one that is needed."""
        floor_txid = 0
        for first_txid, last_txid, content in summaries:
            if floor_txid and first_txid != floor_txid:
                break  # A segment between them is not sealed yet.
            floor_txid = first_txid
            if not all(self.have.covers(key, ranges) for key, ranges in content.sets.items()):
                break
            floor_txid = last_txid + 1
        self.floor_txid = floor_txid


class NamedReaders:
    """The readers of an instance. Owner: the instance's event loop."""

    def __init__(self, readers: Iterable[NamedReader] = ()) -> None:
        self._readers = {each.name: each for each in readers}

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[NamedReader]:
        return iter(self._readers.values())

    def check(self, reader: NamedReader) -> None:
        """Raises RemoteProtocolError where a reader may not be taken: it is another user's, or
        there are too many."""
        before = self.check_user(reader.name, reader.user)
        if before is None and len(self._readers) >= READERS_MAX:
            raise RemoteProtocolError(
                f"there are {READERS_MAX} named readers already: drop those that are not used "
                "any more (`raylay reader drop`)",
                "too_many",
            )
        others = sum(
            each.have.memory_bytes for each in self._readers.values() if each.name != reader.name
        )
        if others + reader.have.memory_bytes > HELD_BYTES_MAX:
            raise RemoteProtocolError(
                f"what the named readers hold takes more than {HELD_BYTES_MAX:,} bytes: drop "
                "those that are not used any more (`raylay reader drop`)",
                "too_many",
            )

    def check_user(self, name: str, user: str) -> NamedReader | None:
        """Returns the reader of a name; None: there is none. Raises RemoteProtocolError where it
        is another user's."""
        found = self._readers.get(name)
        if found is not None and found.user and found.user != user:
            raise RemoteProtocolError(
                f"reader {name!r} is another user's: give yours another name, or have an operator "
                "drop that one (`raylay reader drop --any-user`)",
                "not_entitled",
            )
        return found

    def find(self, name: str) -> NamedReader | None:
        """Returns the reader of a name, of any user; None: there is none."""
        return self._readers.get(name)

    def added(self, reader: NamedReader) -> NamedReader:
        """Returns a reader with what it holds and what its name holds already. Raises
        RemoteProtocolError where the name reads something else, or is another user's."""
        before = self.check_user(reader.name, reader.user)
        if before is None:
            return reader
        if before.terms != reader.terms:
            raise RemoteProtocolError(
                f"reader {reader.name!r} reads {described(*before.terms)}, and not "
                f"{described(*reader.terms)}: give yours another name, or drop that one "
                "(`raylay reader drop`)",
                "bad_command",
            )
        have = before.have.copy()
        have.update(reader.have)
        return replace(reader, have=have)

    def take(self, reader: NamedReader) -> None:
        """Takes a reader, or its new place."""
        before = self._readers.get(reader.name)
        if before is not None and _is_in(before.have, reader.have):
            # What it did not need it does not need now.
            reader.floor_txid = before.floor_txid
        self._readers[reader.name] = reader

    def forget(self, name: str) -> None:
        """Forgets a reader; nothing happens where there is none."""
        self._readers.pop(name, None)

    def expired(self, now_us: int) -> list[NamedReader]:
        """Returns the readers of which nothing was heard for too long."""
        return [each for each in self._readers.values() if each.is_expired(now_us)]

    def measure(self, summaries: list[Summary]) -> None:
        """Takes the sealed segments, oldest first."""
        for each in self._readers.values():
            each.measure(summaries)

    def holding(self, before_txid: int) -> NamedReader | None:
        """Returns the reader that needs the most of the journal below this transaction id; None:
        none needs any of it."""
        found = min(self._readers.values(), key=lambda each: each.floor_txid, default=None)
        return None if found is None or found.floor_txid >= before_txid else found

    def status(
        self, lacked: Callable[[NamedReader], LackedMessages], now_us: int
    ) -> list[dict[str, Any]]:
        """Returns the readers for the status of the instance.

        Args:
            lacked: returns how many messages a reader lacks.
        """
        found = [(each, lacked(each)) for each in self._readers.values()]
        return [
            {
                "name": each.name,
                "user": each.user,
                "topic": each.topic,
                "behind": lacking.messages,
                "at_most": lacking.at_most,
                "needs_from_txid": each.floor_txid,
                "told_s": max(0, now_us - each.told_us) // 1_000_000,
                "expires_s": each.expires_s,
            }
            for each, lacking in found
        ]


def described(topic: str, message_type: str, filter: str) -> str:
    """Returns what a reader reads, for people."""
    of_type = f" of type {message_type}" if message_type else ""
    return f"{topic}{of_type}" + (f" with the filter {filter}" if filter else "")


def _is_in(one: PublisherRanges, other: PublisherRanges) -> bool:
    return all(other.covers(key, ranges) for key, ranges in one.sets.items())


__all__ = ["NamedReader", "NamedReaders", "described"]
