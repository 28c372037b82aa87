"""services/inspection/statistics_queries.py: only reading, and only for so long."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.inspection.statistics_queries import (
    StatisticsSelection,
    query_rows,
    report_rows,
    statistics_file,
)
from raylay.storage.statistics import StatisticsStore

START_US = 1_700_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StatisticsStore]:
    """An open one, as beside a running instance."""
    made = StatisticsStore(tmp_path / "statistics.db")
    made.add_lifetime(START_US, "start", "0.1.0")
    for number in range(5):
        made.append(
            START_US + number * 1_000_000,
            [
                ("ICLIENTS", "7", {"client_name": "desk", "bytes_in": number * 10, "lost": 0}),
                ("ICLIENTS", "8", {"client_name": "pub", "bytes_in": 1}),
                ("IMEMORY", "", {"rss": 5 - number}),
            ],
        )
    yield made
    made.close()


@pytest.mark.covers("Utilities", "Query Statistics Database")
def test_a_query_reads_beside_the_instance(store: StatisticsStore) -> None:
    path = Path(store.path)
    assert statistics_file(path.parent) == statistics_file(path) == path
    columns, *rows = query_rows(path, "SELECT static_id, id FROM ICLIENTS_STATIC ORDER BY 1")
    assert list(columns) == ["static_id", "id"] and rows == [(1, "7"), (2, "8")]
    store.append(START_US + 9_000_000, [])  # It can go on writing.
    assert list(query_rows(path, "SELECT count(*) FROM SAMPLES"))[1] == (6,)


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM SAMPLES",
        "DROP TABLE SAMPLES",
        "ATTACH 'other.db' AS other",
        "PRAGMA journal_mode = DELETE",
        "VACUUM INTO 'copy.db'",
        "SELECT 1; DELETE FROM SAMPLES",
        "CREATE TABLE x (y)",
    ],
)
def test_a_query_that_does_more_is_refused(
    store: StatisticsStore, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises((ConfigurationError, StorageError)):
        list(query_rows(Path(store.path), text))
    assert {path.name for path in tmp_path.iterdir()} == before
    assert store.timestamps(None, None)


def test_a_query_without_end_is_ended(store: StatisticsStore) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    with pytest.raises(StorageError, match=r"longer than 0\.05 s"):
        list(query_rows(Path(store.path), endless, 0.05))
    with pytest.raises(StorageError, match="too big"):
        list(query_rows(Path(store.path), "SELECT zeroblob(1000000000)"))


def test_a_wrong_query_says_why(store: StatisticsStore) -> None:
    with pytest.raises(StorageError, match="no such table: MISSING"):
        list(query_rows(Path(store.path), "SELECT * FROM MISSING"))


@pytest.mark.covers("Utilities", "Statistics Database Report")
def test_a_report_has_the_range_of_each_column(store: StatisticsStore) -> None:
    rows = list(report_rows(Path(store.path), StatisticsSelection()))
    assert rows[0] == {
        "row": "period", "samples": 5, "first_time_us": START_US,
        "last_time_us": START_US + 4_000_000, "interval_s": 1.0,
    }  # fmt: skip
    assert rows[1]["event"] == "start"
    assert [(r["table"], r["name"], r["column"], r["min"], r["mean"], r["max"], r["last"])
            for r in rows[2:]] == [
        ("ICLIENTS", "desk", "bytes_in", 0, 20.0, 40, 40),
        ("ICLIENTS", "pub", "bytes_in", 1, 1.0, 1, 1),
        ("IMEMORY", "", "rss", 1, 3.0, 5, 1),
    ]  # fmt: skip


def test_a_part_of_a_report(store: StatisticsStore) -> None:
    def columns(**values: object) -> list[tuple[str, str]]:
        wanted = StatisticsSelection(**values)  # type: ignore[arg-type]
        rows = report_rows(Path(store.path), wanted)
        return [(row["id"], row["column"]) for row in rows if row["row"] == "column"]

    assert columns(table="iclients", id="7") == [("7", "bytes_in")]
    assert columns(table="ICLIENTS", with_constant=True)[:2] == [("7", "bytes_in"), ("7", "lost")]
    assert columns(column="rss") == [("", "rss")]
    assert columns(last_us=START_US - 1) == []
    assert columns(first_us=START_US + 4_000_000, table="IMEM") == [("", "rss")]


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content in (("empty.db", b""), ("torn", b"SQLite format 3\0" + bytes(900))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match="no statistics database"):
            statistics_file(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"no statistics\.db"):
        statistics_file(tmp_path)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE x (y)")
    assert statistics_file(tmp_path / "other.db")
    with pytest.raises(ConfigurationError, match="it has no samples"):
        list(report_rows(tmp_path / "other.db", StatisticsSelection()))


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
def test_a_damaged_page_is_an_error(store: StatisticsStore, tmp_path: Path) -> None:
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = bytearray(Path(store.path).read_bytes())
    content[4096:] = b"\xee" * (len(content) - 4096)
    (tmp_path / "damaged.db").write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged\.db is damaged"):
        list(report_rows(tmp_path / "damaged.db", StatisticsSelection()))
