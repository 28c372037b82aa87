"""Records of generated keys: the blocks that hold them, the index that finds them, and the bound on
what dead records take."""

from __future__ import annotations

import random
import struct
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from support.breaking_disk import meta_page_not_writable

from raylay.services.errors import SowDamaged, StorageError
from raylay.services.sow.state import SowRecord, SowRules, SowState
from raylay.storage import sow as sow_module
from raylay.storage import sow_blocks
from raylay.storage.environment import read_only
from raylay.storage.sow import LmdbSowStore
from raylay.storage.sow_blocks import (
    BLOCK,
    KeyIndex,
    TopicBlocks,
    blocks_of,
    generated,
    read_head,
    split_entries,
)
from raylay.storage.sow_reading import reading

SMALL = {"BLOCK_BYTES": 2_000, "DEAD_BYTES_MIN": 4_000, "SMALL_BLOCKS_MAX": 6, "MERGED_AT_ONCE": 4}


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(sow_blocks, name, value)


def made(number: int) -> bytes:
    return b"v" + blake2b(b"%d" % number, digest_size=16).hexdigest().encode()


def test_only_lower_case_digests_are_generated_keys() -> None:
    key = made(1)
    digest = generated(key)
    assert digest is not None and b"v" + digest.hex().encode() == key
    for other in (
        b"v" + key[1:].upper(),
        b"h" + key[1:],
        key[:-1],
        key[:-1] + b"g",
        key + b"0",
        b"v" + b"\xff" * 32,
        b"v" + b" 0" * 16,
    ):
        assert generated(other) is None


@pytest.mark.parametrize("odd", [b"v" + b"A" * 32, b"v" + b"v" * 32, b"v" + b"g" * 32, None])
def test_entries_are_split_by_their_keys(odd: bytes | None) -> None:
    records = {made(number): b"%d" % number for number in range(5)}
    others: dict[bytes, bytes | None] = {b"c": b"counts", b"dk": None}
    if odd is not None:
        others[odd] = b"odd"
    found, rest = split_entries({**records, **others})
    assert {b"v" + key.hex().encode(): value for key, value in found.items()} == records
    assert rest == others
    assert split_entries(records) == (found, {})
    assert split_entries({b"c": b""}) == ({}, {b"c": b""})


@pytest.mark.parametrize("seed", range(5))
def test_the_index_is_a_dict_in_order(seed: int) -> None:
    chance = random.Random(seed)
    index, model = KeyIndex(), {}
    place = struct.Struct("<III")
    keys = [chance.randbytes(16) for _ in range(300)]
    # Keys that begin alike, and one that another one's place could be taken for.
    keys += [keys[0][:12] + bytes([number] * 4) for number in range(60)]
    keys.append(b"\0" * 16)
    for step in range(2_000):
        key = chance.choice(keys)
        if chance.random() < 0.7:
            model[key] = (step, 0, 0)
            index.put(key, place.pack(step, 0, 0), *index.locate(key))
        else:
            model.pop(key, None)
            index.remove(key)
        assert index.count == len(model)
        if step % 20:
            continue
        low, high = sorted(chance.choice(keys) for _ in range(2))
        cut = chance.randint(0, 32)
        start = chance.choice(
            [b"", b"v", b"v" + low.hex().encode()[:cut], b"v" + low.hex().encode()]
        )
        end = b"v" + high.hex().encode() + chance.choice([b"", b"\0"])
        end = chance.choice([end, end[: cut + 1], b"w", b"\xff", b"v", end[: cut + 1] + b"z"])
        ordered = sorted((b"v" + each.hex().encode(), *spot) for each, spot in model.items())
        within = [each for each in ordered if start <= each[0] < end]
        most = chance.choice([1, 7, 1_000])
        found, places = index.entries(start, end, most)
        assert [(each, *spot) for each, spot in zip(found, places, strict=True)] == within[:most]
        assert index.last(start, end) == (within[-1][0] if within else None)
        assert index.find(key) == model.get(key)
    assert index.entries(b"w", b"x", 5) == ([], []) and index.last(b"w", b"x") is None


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("seed", range(8))
def test_a_topic_is_a_dict_whatever_is_moved(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    store = LmdbSowStore(tmp_path / "sow")
    model: dict[bytes, bytes] = {}
    for txid in range(1, 150):
        entries: dict[bytes, bytes | None] = {}
        for _ in range(chance.randrange(6)):
            key = made(chance.randrange(60)) if chance.random() < 0.9 else b"v%d" % (txid % 9)
            value = chance.randbytes(chance.randrange(900)) if chance.random() < 0.75 else None
            entries[key] = value
            model.pop(key, None)
            if value is not None:
                model[key] = value
        store.commit({"a": (entries, txid), "b": ({}, txid)})
        if chance.random() < 0.05:
            store.compact()
        if chance.random() < 0.1:
            store.close()
            store = LmdbSowStore(tmp_path / "sow")
        topic = store.topic("a")
        assert dict(topic.chunk(b"", b"\xff", 100)) == model
        assert list(topic.scan(b"", b"\xff")) == sorted(model.items())
        low, high = sorted(made(chance.randrange(60)) for _ in range(2))
        within = sorted(pair for pair in model.items() if low <= pair[0] < high)
        assert topic.chunk(low, high, 5) == within[:5]
        assert topic.last(low, high) == (within[-1][0] if within else None)
        key = made(chance.randrange(60))
        assert topic.get(key) == model.get(key)
        held = sum(topic.blocks.size_bytes.values())
        live = sum(topic.blocks.live_bytes.values())
        # A block more than the bound at most: the surplus is looked at before the new block.
        assert held <= 2 * live + SMALL["DEAD_BYTES_MIN"] + 2 * 6_000
        assert len(topic.blocks.size_bytes) < 60
    store.close()
    with reading(tmp_path / "sow") as there:
        assert list(there.entries("a", b"", b"\xff")) == sorted(model.items())
        assert {key: there.get("a", key) for key in model} == model
        assert there.get("a", made(1_000)) is None and there.get("none", made(1)) is None
        assert list(there.entries("none", b"", b"\xff")) == []
    store = LmdbSowStore(tmp_path / "sow")
    store.drop("a")
    assert store.topic("a").chunk(b"", b"\xff", 100) == []
    store.close()
    again = LmdbSowStore(tmp_path / "sow")
    assert again.topic("a").chunk(b"", b"\xff", 100) == [] and again.topic("b").txid == 149
    again.close()


def test_a_block_that_was_emptied_leaves_the_file(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    for txid in range(1, 5):
        store.commit({"a": ({made(n): b"%d" % txid * 100 for n in range(50)}, txid)})
    topic = store.topic("a")
    assert list(topic.blocks.size_bytes) == [4]
    store.close()
    with read_only(tmp_path / "sow", buffers=True, map_size=1 << 30) as transaction:
        numbers = [number for number, _ in blocks_of(transaction, topic.number)]
    # The one before it is dead, and read no more; the next commit removes it.
    assert numbers == [3, 4]


def test_a_compacted_file_has_no_dead_records(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    for first in range(0, 2_000, 100):
        entries = {made(n): b"%d" % n * 1_000 for n in range(first, first + 100)}
        store.commit({"a": (entries, first + 1)})
    gone: dict[bytes, bytes | None] = {made(n): None for n in range(2_000) if n % 10}
    store.commit({"a": (gone, 2_001)})
    kept = {made(n): b"%d" % n * 1_000 for n in range(0, 2_000, 10)}
    before, after = store.compact()
    live_bytes = sum(map(len, kept.values()))
    assert after < before / 4 and after < 1.3 * live_bytes
    assert dict(store.topic("a").scan(b"", b"\xff")) == kept and store.topic("a").txid == 2_001
    store.close()
    again = LmdbSowStore(tmp_path / "sow")
    assert dict(again.topic("a").scan(b"", b"\xff")) == kept
    again.close()


def test_records_are_read_while_they_are_written(tmp_path: Path) -> None:
    """A commit is under way in a thread of its own: the loop reads all the time."""
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"a": ({made(n): b"1" for n in range(100)}, 1)})
    topic = store.topic("a")
    assert topic.get(made(7)) == b"1"
    seen: list[Any] = []
    apply = TopicBlocks.apply

    def applied(self: TopicBlocks, plan: Any, locked: Any) -> None:
        # The file has the new blocks, the index the old places.
        seen.append((topic.get(made(7)), len(topic.chunk(b"v", b"w", 1_000))))
        apply(self, plan, locked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicBlocks, "apply", applied)
        store.commit({"a": ({made(n): b"2" for n in range(100)}, 2)})
    assert seen == [(b"1", 100)] and topic.get(made(7)) == b"2"
    store.close()


def test_a_failed_commit_changes_no_index(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"a": ({made(n): b"1" for n in range(10)}, 1)})
    topic = store.topic("a")
    assert topic.get(made(3)) == b"1"
    with meta_page_not_writable(tmp_path / "sow"), pytest.raises(StorageError):
        store.commit({"a": ({made(n): b"2" for n in range(20)}, 2)})
    assert topic.get(made(3)) == b"1" and topic.get(made(15)) is None and topic.txid == 1
    store.commit({"a": ({made(n): b"3" for n in range(20)}, 3)})
    assert topic.get(made(15)) == b"3" and len(topic.chunk(b"", b"\xff", 99)) == 20
    store.close()


def test_a_state_on_blocks(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    state = SowState(SowRules(), store.topic("a"))
    keys = [made(number)[1:] for number in range(7)]
    for txid in range(1, 30):
        state.put(SowRecord(keys[txid % 7], txid, 1, txid, txid, 0, b"%d" % txid))
        if txid % 5 == 0:
            store.commit({"a": state.pending()})
            state.saved()
    state.delete(keys[0], 30, 30)
    expected = {each.key: each.body for each in state.records()}
    assert sorted(expected) == sorted(keys[1:])
    store.commit({"a": state.pending()})
    state.saved()
    assert {each.key: each.body for each in state.records()} == expected
    store.close()


def test_the_number_of_records_is_told_while_the_index_is_read(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    for txid in range(1, 4):
        store.commit({"a": ({made(n): b"1" for n in range(10 * txid - 10, 10 * txid)}, txid)})
    store.close()
    told: list[tuple[str, int]] = []
    again = LmdbSowStore(tmp_path / "sow", loaded=lambda name, count: told.append((name, count)))
    assert len(again.topic("a").chunk(b"", b"\xff", 99)) == 30
    assert told == [("a", 10), ("a", 20), ("a", 30)]
    again.close()


@pytest.mark.parametrize(
    "cut", [lambda block: block[:4], lambda block: block[:30], lambda block: block[:-1]]
)
def test_a_block_that_is_cut_short_is_damage(cut: Any, tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"a": ({made(n): b"1" for n in range(10)}, 1)})
    topic = store.topic("a")
    with store._file.begin(write=True) as transaction:
        key = topic.block_key(1)
        transaction.put(key, cut(transaction.get(key)))
    store.close()
    with pytest.raises(SowDamaged, match="a block of the SOW store"):
        LmdbSowStore(tmp_path / "sow").topic("a")


def test_a_block_that_is_gone_is_damage(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow")
    store.commit({"a": ({made(n): b"1" for n in range(10)}, 1)})
    topic = store.topic("a")
    with store._file.begin(write=True) as transaction:
        transaction.delete(topic.block_key(1))
    with pytest.raises(SowDamaged, match="lacks a block of records"):
        topic.get(made(1))
    store.close()


def test_a_plan_without_changes_writes_no_block() -> None:
    blocks = TopicBlocks()
    plan = blocks.plan({bytes(16): None}, lambda number: b"")
    assert not plan.blocks and not plan.deleted and not plan.killed
    blocks.apply(plan, nullcontext())
    assert blocks.index.count == 0


def test_the_head_of_a_block_is_read_back() -> None:
    blocks = TopicBlocks()
    first = blocks.plan({bytes(16): b"one", b"\1" * 16: b"two"}, lambda number: b"")
    blocks.apply(first, nullcontext())
    second = blocks.plan({bytes(16): b"three"}, lambda number: first.blocks[number])
    head = read_head(second.blocks[2])
    assert head.keys == [bytes(16)] and head.lengths == (5,)
    assert head.kills == [(1, read_head(first.blocks[1]).values_at)]
    assert second.blocks[2][head.values_at :] == b"three"
    assert BLOCK == b"\2" and sow_module.BLOCK == BLOCK
