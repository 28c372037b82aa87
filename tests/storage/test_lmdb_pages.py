"""storage/lmdb_pages.py: the same values as LMDB, and an error for every damaged page."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from raylay.services.errors import CorruptRecord
from raylay.storage.lmdb_pages import VALUE_BYTES_MAX, LmdbPages, starts_like_lmdb


def a_file(path: Path, entries: dict[bytes, bytes]) -> None:
    env = lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False, mode=0o600)
    # Several transactions: both meta pages are used, and pages are freed.
    keys = sorted(entries)
    for at in range(0, len(keys), 500):
        with env.begin(write=True) as transaction:
            for key in keys[at : at + 500]:
                transaction.put(key, entries[key])
    env.close()


@contextmanager
def opened(path: Path) -> Iterator[LmdbPages]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield LmdbPages(descriptor, str(path))
    finally:
        os.close(descriptor)


def test_values_are_those_of_lmdb(tmp_path: Path) -> None:
    rng = random.Random(7)
    entries = {
        rng.randbytes(rng.randrange(1, 200)): rng.randbytes(rng.choice((0, 5, 1_000, 9_000)))
        for _ in range(3_000)
    }
    entries[b"long"] = b"x" * (VALUE_BYTES_MAX + 5)
    path = tmp_path / "file"
    a_file(path, entries)
    with opened(path) as pages:
        assert pages.summary.depth > 1 and pages.summary.entries == len(entries)
        for key, value in entries.items():
            assert pages.get(key) == value[:VALUE_BYTES_MAX]
        assert pages.get(b"") is None and pages.get(b"\xff" * 300) is None
        first = pages.first_keys(5)
        assert first == sorted(entries)[: len(first)] and first


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    a_file(path, {})
    with opened(path) as pages:
        assert pages.get(b"key") is None and pages.first_keys(3) == []
        assert pages.summary.entries == 0


def test_other_files_and_short_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"no LMDB at all")
    assert not starts_like_lmdb(b"") and not starts_like_lmdb(bytes(4096))
    with pytest.raises(CorruptRecord, match="no LMDB meta page"), opened(path):
        pass
    a_file(tmp_path / "sound", {b"%d" % each: bytes(3_000) for each in range(50)})
    path.write_bytes((tmp_path / "sound").read_bytes()[:20_000])
    with pytest.raises(CorruptRecord, match="cut short: 20,000 bytes"), opened(path):
        pass


def test_damage_is_an_error_and_never_a_wait(tmp_path: Path) -> None:
    keys = [b"key-%04d" % each for each in range(400)]
    a_file(tmp_path / "sound", {key: bytes(each) for each, key in enumerate(keys)})
    sound = (tmp_path / "sound").read_bytes()
    path = tmp_path / "file"
    rng = random.Random(3)
    errors = 0
    for _ in range(150):
        content = bytearray(sound)
        for _ in range(20):
            content[rng.randrange(len(content))] = rng.randrange(256)
        page = rng.randrange(len(content) // 4096)
        content[page * 4096 : page * 4096 + 16] = rng.randbytes(16)
        path.write_bytes(content)
        try:
            with opened(path) as pages:
                for key in (keys[0], keys[200], keys[-1]):
                    pages.get(key)
                pages.first_keys(9)
        except (CorruptRecord, struct.error):
            errors += 1
    assert errors > 20
