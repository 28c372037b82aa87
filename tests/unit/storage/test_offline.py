"""What waits on disk for slow clients: in order, once, and gone when nobody wants it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.errors import StorageError, StorageFull
from raylay.storage import offline
from raylay.storage.offline import (
    PIECE_BYTES,
    LmdbOfflineStore,
    MemoryOfflineStore,
    OfflineStore,
    joined,
)

pytestmark = pytest.mark.covers(
    "Clients and protocol", "an offlined client gets all in order and once"
)

MIB = 1024 * 1024


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OfflineStore]:
    made: OfflineStore = MemoryOfflineStore()
    if request.param == "lmdb":
        made = LmdbOfflineStore(tmp_path / "pool.lmdb", 8 * MIB)
    yield made
    made.close()


def test_all_of_a_client_comes_back_in_order_and_once(store: OfflineStore) -> None:
    draw = random.Random(3)
    put: dict[int, bytes] = {1: b"", 2: b"", 3: b""}
    came: dict[int, bytes] = {1: b"", 2: b"", 3: b""}
    for _ in range(120):
        if draw.random() < 0.5:
            frames = [
                (draw.randint(1, 3), draw.randbytes(draw.choice((1, 300, 5_000, 200_000))))
                for _ in range(draw.randint(1, 5))
            ]
            if store.held_bytes < 4 * MIB:
                store.put(frames)
                for client, frame in frames:
                    put[client] += frame
        else:
            client, most = draw.randint(1, 3), draw.choice((1, 70_000, MIB))
            taken = b"".join(store.take(client, most))
            assert len(taken) < most + PIECE_BYTES
            came[client] += taken
        for client in put:
            assert put[client].startswith(came[client])
            assert store.bytes_of(client) == len(put[client]) - len(came[client])
        assert store.held_bytes == sum(map(store.bytes_of, put))
    for client in put:
        came[client] += b"".join(store.take(client, 100 * MIB))
    assert came == put and store.held_bytes == 0


def test_what_is_dropped_is_gone_and_nothing_else(store: OfflineStore) -> None:
    store.put([(1, b"a" * 100_000), (2, b"b" * 10)])
    store.drop(1)
    store.drop(7)
    assert store.take(1, MIB) == [] and store.held_bytes == 10
    store.put([(1, b"anew")])
    assert store.take(1, MIB) == [b"anew"] and store.take(2, MIB) == [b"b" * 10]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "ROOM_BYTES", MIB)
    store = LmdbOfflineStore(tmp_path / "pool.lmdb", 0)
    store.put([(1, b"x" * 100_000)])
    with pytest.raises(StorageFull, match=r"pool\.lmdb: no space left"):
        store.put([(1, b"y"), (2, b"y" * 2 * MIB)])
    assert store.held_bytes == 100_000 == store.bytes_of(1)
    assert b"".join(store.take(1, MIB)) == b"x" * 100_000
    store.put([(2, b"z" * 500_000)])  # There is room again.
    assert b"".join(store.take(2, MIB)) == b"z" * 500_000
    store.close()


def test_space_is_taken_again_and_given_back_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "pool.lmdb"
    store = LmdbOfflineStore(path, 64 * MIB)
    for _ in range(30):
        store.put([(1, b"x" * 2 * MIB)])
        if store.held_bytes > 6 * MIB:
            store.take(1, 2 * MIB)
    assert store.file_bytes < 16 * MIB, "60 MiB went through it, 8 MiB at a time"
    store.put([(2, b"y" * 20 * MIB)])
    assert store.file_bytes > offline.GIVEN_BACK_BYTES
    store.drop(2)
    while store.take(1, 4 * MIB):
        pass
    assert store.file_bytes < MIB
    store.put([(3, b"on it goes")])
    assert store.take(3, MIB) == [b"on it goes"]
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_what_lies_there_from_before_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "pool.lmdb"
    path.write_bytes(b"of another life, and no LMDB file at all")
    store = LmdbOfflineStore(path, MIB)
    store.put([(1, b"x")])
    store._env.close()  # As a kill leaves it.
    again = LmdbOfflineStore(path, MIB)
    assert again.held_bytes == 0 and again.take(1, MIB) == []
    again.close()
    assert MemoryOfflineStore().crash().held_bytes == 0


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "no-directory").write_text("")
    with pytest.raises(StorageError, match="no-directory"):
        LmdbOfflineStore(tmp_path / "no-directory" / "pool.lmdb", MIB)


def test_small_frames_of_a_client_share_a_piece() -> None:
    assert joined([(1, b"a"), (2, b"b"), (1, b"c")]) == [(1, b"ac"), (2, b"b")]
    pieces = joined([(1, bytes(PIECE_BYTES + 1)), (1, b"end")])
    assert [len(piece) for _, piece in pieces] == [PIECE_BYTES, 4]
