"""services/sow/store_reader.py: a look at all entries holds little of them, however large they
are."""

from __future__ import annotations

from raylay.services.sow.store_reader import READ_AT_ONCE, READ_BYTES, entries_of


class Store:
    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries
        self.asked: list[int] = []

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        self.asked.append(most)
        return [(k, v) for k, v in sorted(self.entries.items()) if start <= k < end][:most]


def test_small_ones_are_read_many_at_once() -> None:
    store = Store({b"%05d" % number: b"x" for number in range(5_000)})
    assert dict(entries_of(store.chunk, b"00001", b"9")).keys() == store.entries.keys() - {b"00000"}
    assert max(store.asked) == READ_AT_ONCE


def test_of_large_ones_few_are_in_memory() -> None:
    store = Store({b"%05d" % number: bytes(READ_BYTES // 4) for number in range(100)})
    assert len(dict(entries_of(store.chunk, b"", b"9"))) == 100
    assert max(store.asked[1:]) <= 4 and len(store.asked) < 40
    store = Store({b"%05d" % number: bytes(2 * READ_BYTES) for number in range(20)})
    assert len(dict(entries_of(store.chunk, b"", b"9"))) == 20 and set(store.asked[1:]) == {1}


def test_nothing_is_nothing() -> None:
    assert not list(entries_of(Store({}).chunk, b"", b"z"))
