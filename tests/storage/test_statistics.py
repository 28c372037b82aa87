"""storage/statistics.py: samples in SQLite, bounded by age and size."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from raylay.services.errors import StorageError
from raylay.storage import statistics
from raylay.storage.statistics import (
    DAY_US,
    MEMORY,
    SAMPLES_BETWEEN_TRIMS,
    StatisticsDamage,
    StatisticsStore,
    move_aside,
)


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


@pytest.mark.covers("Actions", "Manage the Statistics Database")
def test_samples_of_before_a_time_are_removed_when_asked() -> None:
    store = StatisticsStore(MEMORY)
    for time_us in (1, 2, 3):
        store.append(time_us, sample(time_us))
    assert store.truncate(3) == 2
    assert store.timestamps(None, None) == [3]
    assert store.truncate(3) == 0


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


def test_a_sample_is_found_whole_with_the_texts_as_they_were_last() -> None:
    store = StatisticsStore(MEMORY)
    store.append(1, [*sample(10), ("IMEMORY", "", {"rss": 5, "group": "g", "nothing": None})])
    store.append(2, sample(20, "invoices"))
    assert store.sample(3) is None
    assert store.sample(2) == {
        "ICLIENTS": {"7": {"client_name": "invoices", "bytes_in": 20, "share": 10.0}}
    }
    found = store.sample(1)
    assert found is not None and found["IMEMORY"] == {"": {"rss": 5, "group": "g"}}
    assert found["ICLIENTS"]["7"]["bytes_in"] == 10


def test_numbers_beyond_those_of_sqlite_are_kept_roughly() -> None:
    store = StatisticsStore(MEMORY)
    store.append(1, [("ICLIENTS", "7", {"hash": (1 << 64) - 1, "least": -(1 << 63)})])
    assert store.history("ICLIENTS", "7", "hash", None, None) == [(1, float((1 << 64) - 1))]
    assert store.history("ICLIENTS", "7", "least", None, None) == [(1, -(1 << 63))]


@pytest.mark.covers("Administration", "`instance`: clients, subscriptions with seconds behi")
def test_starts_are_kept_once_each_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "LIFETIMES_MAX", 2)
    store = StatisticsStore(MEMORY)
    for time_us in (10, 20_000_000, 20_000_900, 40_000_000):
        store.add_lifetime(time_us, "start", "1.0")
    assert store.lifetimes() == [(20_000_000, "start", "1.0"), (40_000_000, "start", "1.0")]


@pytest.mark.covers("Administration", "the statistics database: documented tables; a week s")
def test_a_full_disk_costs_only_the_samples_of_that_time(tmp_path: Path) -> None:
    store = StatisticsStore(tmp_path / "statistics.db")
    store.append(1, sample(1))
    ((pages,),) = store._database.execute("PRAGMA page_count").fetchall()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    much = [("ICLIENTS", str(each), {"client_name": "x" * 500}) for each in range(500)]
    with pytest.raises(StorageError, match="make room on its disk") as told:
        store.append(2, much)
    assert not isinstance(told.value, StatisticsDamage)
    store._database.execute("PRAGMA max_page_count = 1000000")
    store.append(3, much)
    assert store.timestamps(None, None) == [1, 3]
    store.close()


@pytest.mark.covers("Administration", "the statistics database: documented tables; a week s")
def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "statistics.db"
    path.write_bytes(b"no database at all" * 100)
    (tmp_path / "statistics.db-wal").write_bytes(b"of it")
    with pytest.raises(StatisticsDamage, match="file is not a database"):
        StatisticsStore(path)
    assert move_aside(path).read_bytes().startswith(b"no database")
    store = StatisticsStore(path)
    store.append(1, sample(1))
    store.close()
    with pytest.raises(StorageError, match="cannot be moved away"):
        move_aside(tmp_path / "none.db")


@pytest.mark.covers("Administration", "the statistics database: documented tables; a week s")
def test_a_week_of_samples_stays_within_its_bound(tmp_path: Path) -> None:
    """A sample a minute instead of each ten seconds: their number is not the point."""
    bytes_max, minute_us = 2 * 1024 * 1024, 60_000_000
    store = StatisticsStore(tmp_path / "statistics.db", bytes_max=bytes_max)
    rows = [("ICLIENTS", str(each), {"bytes_in": each << 40, "age": 0.5}) for each in range(8)]
    for number in range(7 * 24 * 60):
        store.append(number * minute_us, rows)
        if number % 1000 == 0:
            assert store.file_bytes <= bytes_max + SAMPLES_BETWEEN_TRIMS * 1024
    times = store.timestamps(None, None)
    assert times[-1] == (7 * 24 * 60 - 1) * minute_us
    assert len(times) > 2_000, "what is removed is a part, not all"
    assert len(store.history("ICLIENTS", "3", "bytes_in", None, None)) == len(times)
    store.close()
    assert (tmp_path / "statistics.db").stat().st_size <= 1.5 * bytes_max
