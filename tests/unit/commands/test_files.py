"""`raylay dump`, `identify`, `find` and `statistics`: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.journal_cases import StepJournal, a_run
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands.dump import PARTS, line_of
from raylay.services.commands.statistics import time_us
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import publisher_id
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.sow.records import SowRecord, encoded
from raylay.storage.queue import LmdbQueueStore, StoredQueue, store_path
from raylay.storage.sow import LmdbSowStore
from raylay.storage.state import LmdbStateStore
from raylay.storage.statistics import StatisticsStore

START_US = 1_700_000_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data directory of a stopped instance."""
    directory = tmp_path / "solo"
    InstanceConfig("solo", "g").save(directory)
    journal = StepJournal(directory / "journal")
    journal.stage(a_run(1, range(1, 6), publisher=publisher_id("desk")))
    journal.commit()
    journal.close()
    state = LmdbStateStore(directory / "state.lmdb")
    state.put({"incarnation": bytes(7) + b"\x05"})
    state.close()
    sow = LmdbSowStore(directory / "sow.lmdb")
    body = b"\x1b[31m red \xff" + b"x" * 200
    records: dict[bytes, bytes | None] = {
        b"v" + key: encoded(SowRecord(key, 3, 7, 3, START_US, START_US + 5, body))
        for key in (b"a", b"b")
    }
    sow.commit({"json/prices": (records, 5)})
    sow.close()
    held = PublisherRanges()
    held.add(publisher_id("desk"), 1, 5)
    early = {"removals": [(7, 9, 9, START_US)], "moves": [(8, 4, 5, 1, 0xAB)]}
    queue = LmdbQueueStore(store_path(directory, "json/work"))
    found = QueueCheckpoint(3, 5, early, held, {})
    queue.save(StoredQueue(3, b'[5, "json/work"]', found.to_bytes()))
    queue.close()
    with closing(StatisticsStore(directory / "statistics.db")) as statistics:
        statistics.add_lifetime(START_US, "start", "0.1.0")
        for number in (0, 1):
            rows = [("ICLIENTS", "7", {"client_name": "desk", "bytes_in": number})]
            statistics.append(START_US + number, rows)
    (directory / "a.log").write_bytes(b"2026-01-02T03:04:05Z info solo 07-0001 logon client=desk\n")
    return directory


def run(*arguments: object) -> tuple[int, str]:
    """Runs a command. Returns its exit code, and what it prints on both streams."""
    found = CliRunner().invoke(app, [str(each) for each in arguments])
    return found.exit_code, found.output


def rows(*arguments: object) -> list[dict[str, Any]]:
    code, output = run(*arguments, "--json")
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.covers("Utilities", "a dump of a whole data directory")
def test_a_dump_of_a_directory_has_all_parts(home: Path) -> None:
    found = rows("dump", home)
    assert {row["part"] for row in found} == set(PARTS)
    code, output = run("dump", home)
    assert code == 0
    for line in (
        f"== {home}/sow.lmdb",
        "prices (json): ? records, up to transaction 5",
        f"{publisher_id('desk'):>20}  5 messages, last 5: 1-5",
        "work (json): 5 messages of 1 clients had been in it at transaction 3",
        "removed before they came: 9-9",
        "transferred to 00000000000000ab before they came: 4-5",
        "orders (json)",
        "2 samples, 2023-11-14T22:13:20.000000Z to",
    ):
        assert line in output
    column = "ICLIENTS  7/desk  bytes_in: min 0, mean 0.5, max 1, last 1"
    assert column not in output and column in run("dump", home, "--what", "statistics")[1]
    assert "\x1b" not in output, "a body is no command to the terminal"


@pytest.mark.parametrize("part", PARTS)
def test_one_part_is_a_directorys_or_a_files(home: Path, part: str) -> None:
    wanted = rows("dump", home, "--what", part)
    assert {row["part"] for row in wanted} == {part}
    names = {
        "clients": "state.lmdb",
        "queues": store_path(home, "json/work").relative_to(home),
        "sow": "sow.lmdb",
        "topics": "journal",
        "statistics": "statistics.db",
    }
    assert rows("dump", home / names[part]) == wanted


def test_a_dump_of_a_part_of_the_rows(home: Path) -> None:
    assert [row["row"] for row in rows("dump", home / "sow.lmdb", "--key", "a")] == [
        "topic", "record",
    ]  # fmt: skip
    assert [row["row"] for row in rows("dump", home, "--what", "clients", "--client", "desk")] == [
        "instance", "client",
    ]  # fmt: skip
    assert len(rows("dump", home, "-n", "3")) == 3
    assert rows("dump", home / "sow.lmdb", "--topic", "other") == []


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
def test_a_damaged_part_does_not_hide_the_others(home: Path) -> None:
    (home / "sow.lmdb").write_bytes(b"\xee" * 9_000)
    code, output = run("dump", home)
    assert code == 1 and f"raylay: {home}/sow.lmdb is damaged" in output
    assert "5 messages, last 5: 1-5" in output and "orders (json)" in output


@pytest.mark.timeout(60)
def test_what_cannot_be_dumped_says_what_it_is(home: Path) -> None:
    os.mkfifo(home / "pipe", 0o600)
    for name, text in (
        ("pipe", "named pipe"),
        ("a.log", "has nothing to dump"),
        ("nothing", "no such file"),
        ("journal/lock", "lock of a process"),
    ):
        found = CliRunner().invoke(app, ["dump", str(home / name)])
        assert isinstance(found.exception, ConfigurationError) and text in str(found.exception)
    found = CliRunner().invoke(app, ["dump", str(home), "--what", "x"])
    assert "give one of clients" in str(found.exception)
    found = CliRunner().invoke(app, ["dump", str(home / "sow.lmdb"), "--what", "queues"])
    assert "has nothing of `queues`" in str(found.exception)


@pytest.mark.covers("Utilities", "Identify Type of AMPS File")
def test_identify_says_what_would_be_lost(home: Path) -> None:
    code, output = run("identify", home)
    assert code == 0
    assert "journal-0000000000000001.live: segment of a journal; " in output
    assert "it holds messages: their only copy here" in output
    assert "sow.lmdb: records of SOW topics; " in output and "topics json/prices" in output
    with open(home / "sow.lmdb", "r+b") as file:
        file.truncate(10 * 1024**3)
    (row,) = rows("identify", home / "sow.lmdb")
    assert row["kind"] == "sow_store" and row["loss"] == "rebuilt"
    assert "10,737,418,240 bytes (" in run("identify", home / "sow.lmdb")[1]
    assert len(run("identify", "--alone", home)[1].splitlines()) == 1
    code, output = run("identify", home / "nothing")
    assert code == 1 and "PROBLEM: there is no such file" in output
    (home / "state.lmdb").write_bytes(b"")
    assert run("identify", home)[0] == 1


@pytest.mark.covers("Utilities", "Find Information in Error Log")
def test_find_looks_into_logs_and_journals(home: Path) -> None:
    code, output = run("find", "desk", home)
    assert code == 0
    first, *others = output.splitlines()
    assert first.startswith(f"{home}/a.log:1: 2026-01-02T03:04:05Z info")
    assert len(others) == 5 and others[0].startswith(f"{home}/journal: ")
    assert len(rows("find", "desk", home, "-n", "2")) == 2
    (row,) = rows("find", f"{publisher_id('desk')}|3|", home)
    assert row["txid"] == 3 and row["file"] == f"{home}/journal" and row["body"].strip() == "3"
    assert "body" not in rows("find", "3", home, "--no-body")[0]
    assert run("find", "nobody", home) == (1, "")
    code, output = run("find", "desk", home / "nothing", home / "a.log")
    assert code == 2 and "client=desk" in output and "no such file" in output


@pytest.mark.covers("Utilities", "Query Statistics Database")
def test_statistics_as_csv_and_json(home: Path) -> None:
    code, output = run("statistics", "query", home)
    assert code == 0 and output.splitlines()[0] == "name" and "ICLIENTS_STATIC" in output
    query = "SELECT id, client_name, x'ff' AS b FROM ICLIENTS_STATIC"
    assert rows("statistics", "query", home, query) == [
        {"id": "7", "client_name": "desk", "b": "/w=="}
    ]
    assert run("statistics", "query", home, query)[1] == "id,client_name,b\n7,desk,/w==\n"
    assert run("statistics", "query", home, "SELECT 1", "-n", "0")[1] == "1\n"


@pytest.mark.covers("Utilities", "Statistics Database Report")
def test_a_report_of_a_period(home: Path) -> None:
    report = rows("statistics", "report", home, "--table", "ICLIENTS", "--id", "7")
    assert [row["row"] for row in report] == ["period", "start", "column"]
    early = run("statistics", "report", home, "--to", "2000-01-01")
    assert early[1] == "no samples\n"
    found = CliRunner().invoke(
        app, ["statistics", "report", str(home), "--from", "2030-01-01", "--to", "2029-01-01"]
    )
    assert "is behind" in str(found.exception)


def test_times_are_in_utc_unless_they_say_otherwise() -> None:
    assert time_us("2023-11-14T22:13:20") == START_US
    assert time_us("2023-11-14T23:13:20+01:00") == START_US
    with pytest.raises(ConfigurationError, match="is no time"):
        time_us("soon")


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (156_656_616, "156,656,616"), (156_656_615.6, "156,656,616"), (0.4821, "0.4821"),
     (20.0, "20"), (None, "-"), ("x", "-")],
)  # fmt: skip
def test_numbers_of_a_report_can_be_read(value: object, text: str) -> None:
    column = {"row": "column", "table": "T", "id": "", "name": "", "column": "c"}
    assert f"last {text}" in line_of(column | dict.fromkeys(("min", "mean", "max", "last"), value))
