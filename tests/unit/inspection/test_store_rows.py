"""services/inspection/store_rows.py: what stores hold, whole and damaged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.errors import CorruptRecord, RaylayError
from raylay.services.inspection import separate_reading
from raylay.services.inspection.separate_reading import read_separately
from raylay.services.inspection.store_rows import client_rows, queue_rows, sow_rows
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.sequence_set import SequenceSet
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.sow.records import (
    RecordAuthor,
    SowRecord,
    Tombstone,
    encoded,
    encoded_tombstone,
)
from raylay.storage.queue import LmdbQueueStore, StoredQueue
from raylay.storage.sow import LmdbSowStore
from raylay.storage.state import LmdbStateStore

HOLDER = """
import sys, lmdb
env = lmdb.open(sys.argv[1], subdir=False, readonly=True, map_size=1 << 30, mode=0o600)
print("open", flush=True)
sys.stdin.readline()
print(env.reader_check(), "dead readers")
"""
DAY_US = 86_400_000_000


def a_record(key: bytes, body: bytes | None, txid: int = 4, **values: Any) -> bytes:
    return encoded(SowRecord(key, txid, 7, txid, 20_000 * DAY_US, 0, body, **values))


@pytest.fixture
def sow(tmp_path: Path) -> Path:
    store = LmdbSowStore(tmp_path / "sow.lmdb")
    at = (20_000 * DAY_US).to_bytes(8, "big")
    gone = Tombstone(9, 20_000 * DAY_US, RecordAuthor(1, 7, 3))
    prices = {
        b"c": (2).to_bytes(8, "little") + (1).to_bytes(8, "little"),
        b"va": a_record(b"a", b'{"id":1}'),
        b"vab": a_record(b"ab", b"\xff\xfe", topic=b"prices-x"),
        b"ha" + at: a_record(b"a", None),
        b"dgone": encoded_tombstone(gone),
    }
    store.commit({"json/prices": (prices, 12), "json/orders": ({b"vz": a_record(b"z", b"1")}, 5)})
    store.close()
    return tmp_path / "sow.lmdb"


@pytest.mark.covers("Utilities", "Dump SOW File")
def test_records_of_each_topic(sow: Path) -> None:
    rows = list(sow_rows(sow))
    assert [(each["row"], each["topic"]) for each in rows] == [
        ("topic", "orders"), ("record", "orders"), ("topic", "prices"), ("record", "prices"),
        ("record", "prices-x"),
    ]  # fmt: skip
    assert rows[2] == {
        "row": "topic", "topic": "prices", "message_type": "json", "txid": 12, "records": 2,
        "deleted": 1,
    }  # fmt: skip
    assert rows[3]["body"] == '{"id":1}' and rows[3]["time"] == "2024-10-04T00:00:00.000000Z"
    assert rows[3]["bookmark"] == "7|4|" and rows[4]["body_base64"] == "//4="


def test_one_topic_one_key_and_its_history(sow: Path) -> None:
    for name in ("prices", "json/prices"):
        assert {each["row"] for each in sow_rows(sow, name)} == {"topic", "record"}
    assert [each["key"] for each in sow_rows(sow, "prices", b"a") if "key" in each] == ["a"]
    rows = list(sow_rows(sow, "prices", history=True))
    assert [each["row"] for each in rows] == ["topic", "deletion", "version", "record", "record"]
    assert rows[1]["key"] == "gone" and rows[1]["txid"] == 9 and rows[1]["bookmark"] == "7|3|"
    assert rows[2]["deleted"] and rows[2]["key"] == "a"
    assert [each["row"] for each in sow_rows(sow, "prices", b"a", history=True)] == [
        "topic", "version", "record",
    ]  # fmt: skip


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
def test_a_damaged_record_does_not_hide_the_others(tmp_path: Path) -> None:
    store = LmdbSowStore(tmp_path / "sow.lmdb")
    broken: dict[bytes, bytes | None] = {b"va": b"short", b"vb": a_record(b"b", b"1"), b"hx": b"y"}
    store.commit({"json/t": (broken, 3)})
    store.close()
    rows = list(sow_rows(tmp_path / "sow.lmdb", history=True))
    assert [each["row"] for each in rows] == ["topic", "damage", "damage", "record"]
    assert rows[0]["records"] is None


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    journal = StepJournal(tmp_path / "journal")
    journal.stage(a_run(1, range(1, 11)))
    journal.stage(a_run(11, [1, 3, 5], publisher=8))
    journal.commit()
    journal.close()
    state = LmdbStateStore(tmp_path / "state.lmdb")
    waiting = [[5, b"orders", b"json", [], "", 0, []]]
    packed = [[*each, SequenceSet([(4, 6)]).to_bytes()] for each in waiting]
    state.put(
        {
            "incarnation": bytes(7) + b"\x05",
            "generation": bytes(7) + b"\x02",
            "ready": b"1",
            "port/client": b"\x10",
            "name/0000000000000007": b"digest",
            "epoch/x": b"1",
            "recovery/point": msgpack.packb([9, 13, 5, []]),
            "recovery/w/0000000000000005/0000000000000007": msgpack.packb(packed),
            "recovery/r/0000000000000009": SequenceSet([(2, 2)]).to_bytes(),
        }
    )
    state.close()
    return tmp_path


@pytest.mark.covers("Utilities", "Dump clients.ack File")
def test_sequences_of_clients_and_what_they_wait_for(instance: Path) -> None:
    first, *rows = client_rows(instance / "state.lmdb", instance / "journal")
    assert first == {
        "row": "instance", "incarnation": "0000000000000005", "generation": 2,
        "admits_clients": True, "is_copy": False, "committed_txid": 13, "durable_txid": 9,
        "others": {"port/client": "10"}, "names": 1,
    }  # fmt: skip
    assert [(each["publisher"], each["count"], each["ranges"]) for each in rows] == [
        ("7", 10, "1-10"), ("8", 3, "1,3,5"), ("9", 0, ""),
    ]  # fmt: skip
    assert rows[0]["waiting"] == "4-6" and rows[2]["refused"] == "2"
    only = list(client_rows(instance / "state.lmdb", instance / "journal", publisher=8))
    assert [each.get("publisher") for each in only] == [None, "8"]
    assert next(client_rows(None, None))["committed_txid"] == 0


def test_removed_segments_count_too(tmp_path: Path) -> None:
    journal = StepJournal(tmp_path / "journal", segment_bytes=64 * 1024)
    at = 1
    while len(list((tmp_path / "journal").glob("journal-*.sealed"))) < 2:
        journal.stage(a_run(at, range(at, at + 100), body_bytes=200))
        at = journal.commit() + 1
        journal.settle()
    journal.removable(at)
    assert any(each.done for each in journal.remove(at))
    journal.close()
    row = list(client_rows(None, tmp_path / "journal"))[1]
    assert (row["first"], row["last"], row["count"]) == (1, at - 1, at - 1)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    held = PublisherRanges()
    held.add(7, 1, 5)
    held.add(8, 2, 2)
    early = {"removals": [(7, 9, 9, 20_000 * DAY_US)], "moves": [(8, 4, 5, 1, 0xAB)]}
    found = QueueCheckpoint(10, 20, early, held, {0xAB: "Paris-1"})
    store = LmdbQueueStore(tmp_path / "queue.lmdb")
    store.save(StoredQueue(10, b'[5, "json/work"]', found.to_bytes()))
    store.close()
    return tmp_path / "queue.lmdb"


@pytest.mark.covers("Utilities", "Dump queues.ack File")
def test_messages_that_have_been_in_a_queue(queue: Path) -> None:
    first, *rows = queue_rows(queue)
    assert first == {
        "row": "queue", "queue": "work", "message_type": "json", "after_txid": 10,
        "folded_txid": 20, "messages": 6, "publishers": 2, "early_removals": 1,
        "early_transfers": 1, "owners": {"00000000000000ab": "Paris-1"},
    }  # fmt: skip
    assert [(each["row"], each["publisher"]) for each in rows] == [
        ("queue_client", "7"), ("queue_client", "8"), ("early_removal", "7"),
        ("early_transfer", "8"),
    ]  # fmt: skip
    assert rows[0]["ranges"] == "1-5" and rows[3]["owner"] == "00000000000000ab"
    assert [each["row"] for each in queue_rows(queue, 7)] == [
        "queue", "queue_client", "early_removal",
    ]  # fmt: skip


def test_a_queue_that_was_never_stored_and_one_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "queue.lmdb"
    LmdbQueueStore(path).close()
    assert list(queue_rows(path)) == []
    store = LmdbQueueStore(path)
    store.save(StoredQueue(1, b"no JSON", QueueCheckpoint().to_bytes()))
    store.close()
    assert next(queue_rows(path))["queue"] == "?"
    store = LmdbQueueStore(path)
    store.save(StoredQueue(1, b"[]", b"no snapshot"))
    store.close()
    with pytest.raises(CorruptRecord, match="no snapshot"):
        list(queue_rows(path))


def test_a_reader_that_stops_early_leaves_no_slot_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead reader's slot keeps the pages of its moment, and the file grows."""
    # On a busy machine, too, it ends by itself.
    monkeypatch.setattr(separate_reading, "END_S", 600.0)
    store = LmdbSowStore(tmp_path / "sow.lmdb")
    many: dict[bytes, bytes | None] = {
        b"v%04d" % each: a_record(b"%04d" % each, bytes(4_000)) for each in range(500)
    }
    store.commit({"json/t": (many, 3)})
    store.close()
    path = tmp_path / "sow.lmdb"
    # Another process has the file open, as an instance has: else the table begins anew.
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        reading = read_separately(lambda: sow_rows(path), str(path))
        assert next(reading)["row"] == "topic"
        reading.close()
        found, _ = holder.communicate("look\n", timeout=60)
    assert found == "0 dead readers\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", [sow_rows, queue_rows, lambda path: client_rows(path, None)])
def test_other_files_are_refused_and_get_no_lock_table(
    tmp_path: Path, read: Callable[[Path], Iterator[Any]]
) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "text").write_bytes(b"text")
    for name in ("pipe", "text"):
        with pytest.raises((RaylayError, OSError), match=name):
            list(read(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["pipe", "text"]


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
@pytest.mark.parametrize("seed", range(25))
def test_random_damage_is_rows_or_an_error(
    sow: Path, queue: Path, instance: Path, seed: int
) -> None:
    rng = random.Random(seed)
    readers: list[tuple[Path, Callable[[], Iterator[Any]]]] = [
        (sow, lambda: sow_rows(sow, history=True)),
        (queue, lambda: queue_rows(queue)),
        (instance / "state.lmdb", lambda: client_rows(instance / "state.lmdb", None)),
    ]
    for path, rows in readers:
        content = bytearray(path.read_bytes())
        for _ in range(40):
            content[rng.randrange(4096, len(content))] = rng.randrange(256)
        path.write_bytes(content)
        try:
            for row in read_separately(rows, str(path)):
                assert row["row"]
        except RaylayError as error:
            assert "fault of Raylay" not in str(error)
