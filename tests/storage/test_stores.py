"""One contract, both implementations: state, publish and bookmark stores."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.breaking_disk import meta_page_not_writable

from raylay.services.errors import (
    CorruptRecord,
    PublishStoreFull,
    StorageError,
    StorageFull,
    StorageLocked,
)
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.storage.journal import StateStore
from raylay.storage.state import LmdbStateStore, MemoryStateStore
from raylay.storage.stores import (
    BookmarkStore,
    LmdbBookmarkStore,
    LmdbPublishStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    PublishStore,
)

pytestmark = pytest.mark.covers("Clients and protocol", "publish store: bounded")


# -- state ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_state(kind: str, tmp_path: Path) -> None:
    store: StateStore = MemoryStateStore() if kind == "memory" else LmdbStateStore(tmp_path / "s")
    assert store.get("epoch/a") is None
    store.put({"epoch/a": b"1", "epoch/b": b"2", "floor": b"", "epoch": b"0"})
    store.put({"epoch/b": None, "epoch/c": b"3", "never": None})
    assert store.get("epoch/a") == b"1"
    assert store.get("floor") == b""
    assert list(store.items("epoch/")) == [("epoch/a", b"1"), ("epoch/c", b"3")]
    assert [key for key, _ in store.items("")] == ["epoch", "epoch/a", "epoch/c", "floor"]
    with pytest.raises(ValueError):
        store.put({"good": b"1", "": b"2"})
    assert store.get("good") is None, "all or none"
    if isinstance(store, MemoryStateStore):
        again: StateStore = store.crash()
    else:
        store.close()
        again = LmdbStateStore(tmp_path / "s")
    assert list(again.items("epoch/")) == [("epoch/a", b"1"), ("epoch/c", b"3")]
    again.close()


def test_a_state_store_in_memory_can_fail() -> None:
    store = MemoryStateStore()
    store.put({"a": b"1"})
    store.fail_next(StorageFull("full"))
    with pytest.raises(StorageFull):
        store.put({"a": b"2"})
    assert store.get("a") == b"1"
    store.put({"a": b"3"})
    assert store.crash().get("a") == b"3"


# -- publishes -----------------------------------------------------------------------------------
@pytest.fixture(params=["memory", "lmdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., PublishStore]]:
    made: list[PublishStore] = []

    def _make(**limits: int) -> PublishStore:
        store: PublishStore
        if request.param == "memory":
            store = MemoryPublishStore(**limits)
        else:
            store = LmdbPublishStore(tmp_path / "publishes", **limits)
        made.append(store)
        return store

    yield _make
    for store in made:
        store.close()


def body(sequence: int) -> bytes:
    return b"%d" % sequence * (sequence % 5 + 1)


def test_words_outlive_the_process(tmp_path: Path) -> None:
    store = LmdbPublishStore(tmp_path / "publishes")
    assert store.words == b""
    store.words = b"A is unsafe"
    store.put(1, b"record")
    store.flush()
    store.put(2, b"record")
    store.flush()
    store.words = b"B is unsafe"
    store.close()
    again = LmdbPublishStore(tmp_path / "publishes")
    assert (again.words, again.lowest, again.highest) == (b"B is unsafe", 1, 2)
    again.close()


def test_an_empty_publish_store(make: Callable[..., PublishStore]) -> None:
    store = make()
    assert (store.messages, store.bytes, store.lowest, store.highest) == (0, 0, 0, 0)
    assert not store.full
    assert list(store.replay()) == []
    store.acknowledge(10)
    store.drop([(1, 3)])
    store.flush()
    store.advance(40)
    with pytest.raises(ValueError, match="40"):
        store.put(40, b"x")
    store.put(41, b"x")
    assert (store.lowest, store.highest) == (41, 41)


def test_limits(make: Callable[..., PublishStore]) -> None:
    store = make(messages_max=3, bytes_max=100)
    for sequence in (1, 2, 3):
        assert not store.full
        store.put(sequence, b"x" * 10)
    assert store.full
    with pytest.raises(PublishStoreFull, match="3 messages"):
        store.put(4, b"x")
    assert (store.messages, store.highest) == (3, 3)
    store.acknowledge(2)
    store.put(4, b"x" * 90)
    assert store.full
    with pytest.raises(PublishStoreFull, match="100 bytes"):
        store.put(5, b"")
    store.drop([(4, 4)])
    store.put(5, b"")
    assert [sequence for sequence, _ in store.replay()] == [3, 5]


@pytest.mark.parametrize("seed", range(12))
def test_behaves_as_a_dictionary(make: Callable[..., PublishStore], seed: int) -> None:
    rng = random.Random(seed)
    store = make()
    plain: dict[int, bytes] = {}
    highest = 0
    for _ in range(150):
        action = rng.randrange(8)
        if action < 4:
            highest += rng.choice([1, 1, 1, 4])
            store.put(highest, body(highest))
            plain[highest] = body(highest)
        elif action == 4:
            upto = rng.randrange(highest + 2) if rng.random() < 0.2 else min(plain, default=0) + 2
            store.acknowledge(upto)
            plain = {key: value for key, value in plain.items() if key > upto}
        elif action == 5:
            first = rng.randrange(highest + 1)
            ranges = [(first, first + 2), (first + 9, first + 12)]
            store.drop(ranges)
            for low, high in ranges:
                for key in range(low, high + 1):
                    plain.pop(key, None)
        elif action == 6:
            store.flush()
        elif isinstance(store, LmdbPublishStore) and rng.random() < 0.3:
            store.close()
            store = make()
        assert store.messages == len(plain)
        assert store.bytes == sum(map(len, plain.values()))
        assert store.lowest == min(plain, default=0)
        assert store.highest == highest
        first = rng.randrange(highest + 2)
        assert list(store.replay(first)) == [(k, v) for k, v in plain.items() if k >= first]


def test_what_was_flushed_survives(tmp_path: Path) -> None:
    store = LmdbPublishStore(tmp_path / "publishes")
    for sequence in range(1, 11):
        store.put(sequence, body(sequence))
    store.flush()
    store.acknowledge(4)
    store.put(11, body(11))
    store._file.close()  # a crash: neither the acknowledgment nor 11 was flushed
    store = LmdbPublishStore(tmp_path / "publishes")
    assert [sequence for sequence, _ in store.replay()] == list(range(1, 11))
    store.acknowledge(10)
    store.flush()
    store._file.close()
    store = LmdbPublishStore(tmp_path / "publishes")
    assert (store.messages, store.lowest, store.highest) == (0, 0, 10)
    store.put(11, b"x")
    store.close()


def test_a_damaged_publish_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "publishes"
    store = LmdbPublishStore(path)
    store.put(1, b"abc")
    store.flush()
    with store._file.begin(write=True) as transaction:
        transaction.put((1).to_bytes(8, "big"), b"cut short")
    store._file.close()
    with pytest.raises(CorruptRecord, match=str(path)):
        LmdbPublishStore(path)


# -- bookmarks -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_bookmarks(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bookmarks"
    store: BookmarkStore = MemoryBookmarkStore() if kind == "memory" else LmdbBookmarkStore(path)
    assert not store.load("orders")
    store.seen("orders", 7, 1, 3)
    store.seen("orders", 7, 6, 6)
    store.seen("orders", 8, 9, 9)
    store.seen("trades", 7, 1, 1)
    store.flush()
    expected = PublisherRanges({7: SequenceSet([(1, 3), (6, 6)]), 8: SequenceSet([(9, 9)])})
    assert store.load("orders") == expected
    store.load("orders").add(7, 100, 100)
    assert store.load("orders") == expected, "a copy"
    store.persisted("orders", PublisherRanges({7: SequenceSet([(1, 6)]), 9: SequenceSet([(1, 1)])}))
    store.discard("trades")
    store.seen("late", 7, 2, 2)
    store.flush()
    if isinstance(store, LmdbBookmarkStore):
        store.seen("orders", 7, 50, 50)  # never flushed
        store._file.close()
        store = LmdbBookmarkStore(path)
    assert list(store.load("orders").of(7)) == [(1, 6)]
    assert list(store.load("orders").of(9)) == [(1, 1)]
    assert not store.load("trades")
    assert store.load("late") == PublisherRanges({7: SequenceSet([(2, 2)])})
    store.discard("late")
    store.seen("late", 7, 4, 4)
    assert store.load("late") == PublisherRanges({7: SequenceSet([(4, 4)])})
    store.close()
    if kind == "lmdb":
        store = LmdbBookmarkStore(path)
        assert store.load("late") == PublisherRanges({7: SequenceSet([(4, 4)])})
        store.close()


# -- a disk that breaks for a moment -------------------------------------------------------------
def test_a_state_store_comes_back_when_its_meta_page_could_not_be_written(tmp_path: Path) -> None:
    """Drill full-disk, seed 707130094: every later use was MDB_PANIC, an instance was ready and
    refused every link."""
    store = LmdbStateStore(tmp_path / "state.lmdb")
    store.put({"a": b"1"})
    with meta_page_not_writable(tmp_path / "state.lmdb"), pytest.raises(StorageError):
        store.put({"a": b"2"})
    assert store.get("a") == b"1"
    store.put({"b": b"3"})
    assert dict(store.items("")) == {"a": b"1", "b": b"3"}
    store.close()


def test_client_stores_come_back_as_well(tmp_path: Path) -> None:
    publishes = LmdbPublishStore(tmp_path / "publish.lmdb")
    publishes.put(1, b"one")
    publishes.flush()
    publishes.put(2, b"two")
    with meta_page_not_writable(tmp_path / "publish.lmdb"), pytest.raises(StorageError):
        publishes.flush()
    publishes.flush()
    assert list(publishes.replay()) == [(1, b"one"), (2, b"two")]
    publishes.close()
    again = LmdbPublishStore(tmp_path / "publish.lmdb")
    assert list(again.replay()) == [(1, b"one"), (2, b"two")]
    again.close()
    bookmarks = LmdbBookmarkStore(tmp_path / "bookmarks.lmdb")
    bookmarks.seen("s", 1, 1, 5)
    with meta_page_not_writable(tmp_path / "bookmarks.lmdb"), pytest.raises(StorageError):
        bookmarks.flush()
    bookmarks.flush()
    bookmarks.close()


HOLDS = """
import sys
from raylay.storage import stores
store = getattr(stores, sys.argv[1])(sys.argv[2])
print("holds it", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", [LmdbPublishStore, LmdbBookmarkStore])
def test_one_client_uses_a_file_at_a_time(
    kind: type[LmdbPublishStore | LmdbBookmarkStore], tmp_path: Path
) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", HOLDS, kind.__name__, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None and it.stdout.readline() == "holds it\n"
        with pytest.raises(StorageLocked, match=rf"in use by another client \(pid {it.pid}\): giv"):
            kind(path)
        it.kill()
    store = kind(path)
    with pytest.raises(StorageError, match="already open in this process"):
        kind(path)
    store.close()
    store.close()
    kind(path).close()


def test_a_store_that_nobody_closed_gives_its_file_back(tmp_path: Path) -> None:
    unclosed = LmdbPublishStore(tmp_path / "p")
    unclosed.put(1, b"x")
    unclosed.flush()
    del unclosed
    again = LmdbPublishStore(tmp_path / "p")
    assert again.messages == 1
    again.close()


def test_a_store_of_another_kind_is_refused_and_unchanged(tmp_path: Path) -> None:
    bookmarks, publishes, state = (tmp_path / name for name in ("b", "p", "s"))
    kept = LmdbBookmarkStore(bookmarks)
    kept.seen("s", 1, 1, 5)
    kept.close()
    written = LmdbPublishStore(publishes)
    written.put(1, b"x")
    written.close()
    other = LmdbStateStore(state)
    other.put({"epoch/a": b"1"})
    other.close()
    for path, kind in ((bookmarks, LmdbPublishStore), (state, LmdbPublishStore)):
        with pytest.raises(StorageError, match="is another store of Raylay's and no publish store"):
            kind(path)
    for path in (publishes, state):
        with pytest.raises(StorageError, match="another store of Raylay's and no bookmark store"):
            LmdbBookmarkStore(path)
    assert LmdbPublishStore(publishes).messages == 1
    again = LmdbBookmarkStore(bookmarks)
    again.seen("s", 1, 6, 6)
    again.close()
    assert LmdbBookmarkStore(bookmarks).load("s").sets[1] == SequenceSet([(1, 6)])


def test_nothing_is_left_beside_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_bytes(b"Dear Sir, " * 1_000)
    for kind in (LmdbPublishStore, LmdbBookmarkStore, LmdbStateStore):
        with pytest.raises(StorageError, match="letter cannot be used"):
            kind(path)
    assert [each.name for each in tmp_path.iterdir()] == ["letter"]
