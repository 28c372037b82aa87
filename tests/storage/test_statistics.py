"""storage/statistics.py: samples in SQLite, bounded by age and size."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from raylay.services.errors import StorageError
from raylay.storage.statistics import DAY_US, MEMORY, SAMPLES_BETWEEN_TRIMS, StatisticsStore


def sample(count: int, name: str = "billing") -> list[tuple[str, str, dict[str, object]]]:
    return [("ICLIENTS", "7", {"client_name": name, "bytes_in": count, "share": count / 2})]


def test_numbers_are_kept_for_each_sample_and_texts_once(tmp_path: Path) -> None:
    path = tmp_path / "statistics.db"
    store = StatisticsStore(path)
    store.append(1, sample(10))
    store.append(2, sample(20, "invoices"))
    assert store.history("ICLIENTS", "7", "bytes_in", None, None) == [(1, 10), (2, 20)]
    assert store.history("ICLIENTS", "7", "share", 2, None) == [(2, 10.0)]
    assert store.timestamps(None, 1) == [1]
    store.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT id, client_name FROM ICLIENTS_STATIC").fetchall() == [
            ("7", "invoices")
        ]


def test_it_goes_on_where_it_was_closed_with_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "statistics.db"
    store = StatisticsStore(path)
    store.append(1, sample(10))
    store.close()
    store = StatisticsStore(path)
    store.append(
        2, [("ICLIENTS", "7", {"bytes_in": 20, "bytes_out": 1}), ("IMEMORY", "", {"rss": 5})]
    )
    assert store.history("ICLIENTS", "7", "bytes_in", None, None) == [(1, 10), (2, 20)]
    assert store.history("ICLIENTS", "7", "bytes_out", None, None) == [(2, 1)]
    assert store.history("IMEMORY", "", "rss", None, None) == [(2, 5)]
    store.close()


@pytest.mark.parametrize(
    "place", [("INOTHING", "7", "bytes_in"), ("ICLIENTS", "8", "bytes_in"), ("ICLIENTS", "7", "x")]
)
def test_what_there_is_not_has_no_history(place: tuple[str, str, str]) -> None:
    store = StatisticsStore(MEMORY)
    store.append(1, sample(10))
    assert store.history(*place, None, None) == []


def test_a_sample_is_added_whole_or_not_at_all() -> None:
    store = StatisticsStore(MEMORY)
    store.append(1, sample(10))
    with pytest.raises(ValueError):
        store.append(2, [("INEW", "1", {"count": 1}), ("ICLIENTS", "7", {"no; name": 1})])
    assert store.timestamps(None, None) == [1]
    store.append(3, [("INEW", "1", {"count": 1}), *sample(30)])
    assert store.history("INEW", "1", "count", None, None) == [(3, 1)]
    assert store.history("ICLIENTS", "7", "bytes_in", None, None) == [(1, 10), (3, 30)]


def test_old_samples_leave_and_those_who_were_only_in_them() -> None:
    store = StatisticsStore(MEMORY, retention_us=DAY_US)
    store.append(0, [("ICLIENTS", "old", {"client_name": "gone", "bytes_in": 1}), *sample(1)])
    for number in range(1, SAMPLES_BETWEEN_TRIMS + 1):
        store.append(2 * DAY_US + number, sample(number))
    assert store.timestamps(None, None)[0] == 2 * DAY_US + 1
    assert store.history("ICLIENTS", "old", "bytes_in", None, None) == []
    assert store.history("ICLIENTS", "7", "bytes_in", None, None)[0] == (2 * DAY_US + 1, 1)
    rows = store._database.execute("SELECT id FROM ICLIENTS_STATIC").fetchall()
    assert rows == [("7",)]


def test_the_file_stays_within_its_bound(tmp_path: Path) -> None:
    bytes_max = 512 * 1024
    store = StatisticsStore(tmp_path / "statistics.db", bytes_max=bytes_max)
    clients = [("ICLIENTS", str(each), {"bytes_in": each}) for each in range(100)]
    for number in range(10 * SAMPLES_BETWEEN_TRIMS + 1):
        store.append(number, clients)
    assert store.file_bytes <= bytes_max
    times = store.timestamps(None, None)
    assert times[-1] == 10 * SAMPLES_BETWEEN_TRIMS and times[0] > 0
    store.close()
    assert (tmp_path / "statistics.db").stat().st_size <= 2 * bytes_max


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "statistics.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match=str(path)):
        StatisticsStore(path)
