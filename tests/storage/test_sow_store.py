"""One contract, both implementations of the store of SOW topics; and what LMDB adds to it."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from support.breaking_disk import meta_page_not_writable

from raylay.services.errors import StorageError, StorageFull
from raylay.services.sow.state import SowRecord, SowRules, SowState
from raylay.storage import sow as sow_module
from raylay.storage.sow import ENTRY_BYTES, LmdbSowStore, MemorySowStore, SowStore


def opened(kind: str, path: Path) -> SowStore:
    return MemorySowStore() if kind == "memory" else LmdbSowStore(path / "sow")


def restarted(store: SowStore, path: Path) -> SowStore:
    if isinstance(store, MemorySowStore):
        return store.crash()
    store.close()
    return LmdbSowStore(path / "sow")


BOTH = pytest.mark.parametrize("kind", ["memory", "lmdb"])


@pytest.mark.covers("SOW", "what is folded is read before it is on disk")
@BOTH
def test_contract(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    orders, trades = store.topic("orders"), store.topic("trades")
    assert orders.txid == 0 and orders.get(b"va") is None and orders.last(b"", b"\xff") is None
    store.commit(
        {
            "orders": ({b"va": b"1", b"vb": b"2", b"hb": b""}, 5),
            "trades": ({b"va": b"other", b"never": None}, 6),
        }
    )
    assert (orders.txid, trades.txid) == (5, 6)
    assert store.topic("orders").get(b"hb") == b"" and trades.get(b"va") == b"other"
    store.commit({"orders": ({b"va": None, b"vc": b"3"}, 7)})
    again = restarted(store, tmp_path)
    orders, trades = again.topic("orders"), again.topic("trades")
    assert (orders.txid, trades.txid) == (7, 6)
    assert list(orders.scan(b"", b"\xff")) == [(b"hb", b""), (b"vb", b"2"), (b"vc", b"3")]
    assert list(orders.scan(b"v", b"vc")) == [(b"vb", b"2")]
    assert list(trades.scan(b"", b"\xff")) == [(b"va", b"other")]
    assert orders.last(b"v", b"w") == b"vc" and orders.last(b"h", b"v") == b"hb"
    assert orders.last(b"w", b"x") is None and orders.last(b"v", b"vb") is None
    again.close()


@BOTH
def test_a_topic_that_is_dropped_is_new(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sow_module, "DROPPED_AT_ONCE", 3)
    store = opened(kind, tmp_path)
    entries: dict[bytes, bytes | None] = {b"v%d" % each: b"x" for each in range(10)}
    store.commit({name: (entries, 5) for name in ("a", "b", "c")})
    store.drop("b")
    assert store.topic("b").txid == 0 and store.topic("b").get(b"v1") is None
    for each in (store, restarted(store, tmp_path)):
        if each is store and kind == "lmdb":
            continue  # closed by now
        assert each.topic("b").txid == 0 and list(each.topic("b").scan(b"", b"\xff")) == []
        for name in "ac":
            assert each.topic(name).txid == 5
            assert len(list(each.topic(name).scan(b"", b"\xff"))) == 10
        each.close()


@BOTH
def test_all_or_nothing(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    for bad in (b"", b"x" * 512):
        with pytest.raises(ValueError, match="a key has 1 to 506 bytes"):
            store.commit({"a": ({b"good": b"1"}, 1), "b": ({bad: b"1"}, 1)})
    assert store.topic("a").txid == 0 and store.topic("a").get(b"good") is None
    store.commit({"a" * 1024: ({b"x" * 506: b"1"}, 1), "a" * 1023: ({}, 2)})
    again = restarted(store, tmp_path)
    assert again.topic("a" * 1024).txid == 1 and again.topic("a" * 1023).txid == 2
    again.close()


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_dict(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    store = opened(kind, tmp_path)
    model: dict[str, dict[bytes, bytes]] = {"a": {}, "b": {}}
    for txid in range(1, 60):
        changes: dict[str, tuple[dict[bytes, bytes | None], int]] = {}
        for name in model:
            entries: dict[bytes, bytes | None] = {}
            for _ in range(chance.randrange(4)):
                key = b"%d" % chance.randrange(20)
                value = chance.randbytes(chance.randrange(5)) if chance.random() < 0.7 else None
                entries[key] = value
                model[name].pop(key, None)
                if value is not None:
                    model[name][key] = value
            changes[name] = entries, txid
        store.commit(changes)
        if chance.random() < 0.1:
            store = restarted(store, tmp_path)
        for name, entries_now in model.items():
            topic = store.topic(name)
            low, high = sorted((b"%d" % chance.randrange(20), b"%d" % chance.randrange(20)))
            within = sorted(pair for pair in entries_now.items() if low <= pair[0] < high)
            assert list(topic.scan(low, high)) == within
            most = chance.randint(1, 5)
            assert topic.chunk(low, high, most) == within[:most]
            assert topic.last(low, high) == (within[-1][0] if within else None)
            key = b"%d" % chance.randrange(20)
            assert topic.get(key) == entries_now.get(key)
    store.close()


@BOTH
def test_a_state_on_a_store(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    rules = SowRules(window_us=1_000)
    state = SowState(rules, store.topic("orders"))
    for txid in range(1, 30):
        state.put(SowRecord(b"%d" % (txid % 7), txid, 1, txid, txid, 0, b"%d" % txid))
        if txid % 5 == 0:
            store.commit({"orders": state.pending()})
            state.saved()
    expected = {each.key: each.body for each in state.records()}
    assert len(expected) == 7
    store.commit({"orders": state.pending()})
    state.saved()
    again = restarted(store, tmp_path)
    topic = again.topic("orders")
    found = SowState(rules, topic, topic.txid)
    assert {each.key: each.body for each in found.records()} == expected and found.txid == 29
    assert {each.body for each in found.as_of(3, 100)} == {b"1", b"2", b"3"}
    again.close()


def test_a_store_in_memory_can_fail() -> None:
    store = MemorySowStore()
    store.commit({"a": ({b"k": b"1"}, 1)})
    store.fail_next(StorageFull("full"))
    with pytest.raises(StorageFull):
        store.commit({"a": ({b"k": b"2"}, 2)})
    assert store.topic("a").get(b"k") == b"1" and store.topic("a").txid == 1
    store.commit({"a": ({b"k": b"3"}, 3)})
    assert store.crash().topic("a").get(b"k") == b"3"


@pytest.mark.covers("SOW", "the cache keeps to its limit")
def test_a_full_store_refuses_and_changes_nothing(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow", map_bytes=128 * 1024)
    store.commit({"a": ({b"k": b"1"}, 1)})
    with pytest.raises(StorageFull, match="sow: no space left"):
        store.commit({"a": ({b"%d" % each: bytes(1000) for each in range(1000)}, 2)})
    assert store.topic("a").txid == 1 and dict(store.topic("a").scan(b"", b"\xff")) == {b"k": b"1"}
    store.commit({"a": ({b"k": b"3"}, 3)})
    assert store.topic("a").get(b"k") == b"3"
    store.close()


@pytest.mark.covers("SOW", "the cache keeps to its limit")
def test_the_cache_keeps_to_its_limit_and_to_the_disk(tmp_path: Path) -> None:
    limit = 20 * (1000 + ENTRY_BYTES)
    store = LmdbSowStore(tmp_path / "sow", cache_bytes_max=limit)
    topic = store.topic("a")
    for each in range(100):
        store.commit({"a": ({b"%d" % each: bytes(1000)}, each)})
        assert store.cache_bytes <= limit
    assert store.cache_bytes > limit // 2
    for each in range(100):
        assert topic.get(b"%d" % each) == bytes(1000) and store.cache_bytes <= limit
    store.commit({"a": ({b"99": None, b"98": b"new", b"large": bytes(limit)}, 101)})
    assert topic.get(b"99") is None and topic.get(b"98") == b"new"
    assert topic.get(b"large") == bytes(limit) and store.cache_bytes <= limit
    store.drop("a")
    assert store.cache_bytes == 0 and topic.get(b"98") is None
    store.close()
    without = LmdbSowStore(tmp_path / "sow", cache_bytes_max=0)
    without.commit({"a": ({b"k": b"1"}, 1)})
    assert without.topic("a").get(b"k") == b"1" and without.cache_bytes == 0
    without.close()


def test_what_is_replaced_or_taken_away_counts_no_more_in_the_cache(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    topic = store.topic("a")
    for each in range(1, 6):
        store.commit({"a": ({b"k": bytes(100 * each)}, each)})
        key_bytes = len(topic.front + b"k")
        assert store.cache_bytes == key_bytes + 100 * each + ENTRY_BYTES
    store.commit({"a": ({b"k": None}, 6)})
    assert store.cache_bytes == 0
    store.close()


def test_what_lmdb_gave_up_is_opened_anew(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"a": ({b"k": b"1"}, 1)})
    with meta_page_not_writable(tmp_path / "sow"), pytest.raises(StorageError):
        store.commit({"a": ({b"k": b"2"}, 2)})
    assert store.topic("a").txid == 1
    store.commit({"a": ({b"k": b"3"}, 3)})
    assert store.topic("a").get(b"k") == b"3"
    store.close()


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "sow").write_bytes(b"x" * 10_000)
    with pytest.raises(StorageError, match="sow is damaged"):
        LmdbSowStore(tmp_path / "sow")


def test_a_compacted_file_has_its_records_and_no_more(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"orders": ({b"v%d" % n: b"x" * 4_000 for n in range(500)}, 1)})
    store.commit({"orders": ({b"v%d" % n: None for n in range(1, 500)}, 2)})
    before, after = store.compact()
    assert after < before / 2 and after == (tmp_path / "sow").stat().st_size
    assert (tmp_path / "sow").stat().st_mode & 0o077 == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sow", "sow-lock"]
    topic = store.topic("orders")
    assert topic.txid == 2 and list(topic.scan(b"", b"\xff")) == [(b"v0", b"x" * 4_000)]
    store.commit({"orders": ({b"v1": b"new"}, 3)})
    store.close()
    again = LmdbSowStore(tmp_path / "sow")
    assert again.topic("orders").txid == 3 and again.topic("orders").get(b"v1") == b"new"
    again.close()


def test_a_file_that_queries_read_for_long_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sow_module, "COMPACT_WAIT_S", 0.01)
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"orders": ({b"va": b"1", b"vb": b"2"}, 1)})
    scan = store.topic("orders").scan(b"", b"\xff")
    assert next(scan) == (b"va", b"1")
    with pytest.raises(StorageError, match=r"queries read it for longer.*nothing was changed"):
        store.compact()
    assert list(scan) == [(b"vb", b"2")]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sow", "sow-lock"]
    store.compact()
    store.close()


def test_a_file_without_room_for_a_second_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"orders": ({b"va": b"1"}, 1)})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("raylay.storage.environment.os.fsync", full)
        with pytest.raises(StorageFull, match="sow"):
            store.compact()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sow", "sow-lock"]
    assert store.topic("orders").get(b"va") == b"1"
    store.compact()
    store.close()
