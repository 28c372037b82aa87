"""services/inspection/search.py: bookmarks, transaction ids, clients, topics and texts."""

from __future__ import annotations

import gzip
import os
import random
import zlib
from pathlib import Path
from typing import IO, Any

import pytest
from support.journal_cases import StepJournal, a_note, a_run

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.inspection import search
from raylay.services.inspection.identification import identify
from raylay.services.inspection.journal_rows import journal_place
from raylay.services.inspection.search import (
    LINE_BYTES_MAX,
    journal_search_rows,
    log_rows,
    search_places,
    search_query,
)
from raylay.services.messages.records import publisher_id

LINES = (
    b"2026-01-02T03:04:05.123456Z info A instance 07-0001 client_logon client=desk\n"
    b"2026-01-02T03:04:06.123456Z warning A instance 31-0004 queue_message_expired bookmark=7|12|\n"
    b"2026-01-02T03:04:07.123456Z info A instance journal first_txid=120 records=12\n"
    b'{"time":"2026-01-02T03:04:08Z","level":"info","event":"x","txid": 12}\n'
    b"torn \xff\xfe Desk"
)


def found(path: Path, *arguments: Any, **options: Any) -> list[int]:
    return [row["line"] for row in log_rows(path, search_query(*arguments, **options))]


@pytest.mark.covers("Utilities", "Find Information in Error Log")
@pytest.mark.parametrize(
    ("what", "options", "lines"),
    [
        ("7|12|", {}, [2]),
        ("7|12", {}, [2]),
        ("7|1", {}, []),
        ("12", {}, [4]),
        ("120", {}, [3]),
        ("desk", {}, [1]),
        ("desk", {"ignore_case": True}, [1, 5]),
        ("client=.*k$", {}, []),
        ("client=.*k$", {"pattern": True}, [1]),
        ("records=12", {}, [3]),
        ("12", {"kind": "text"}, [1, 2, 3, 4]),
        ("nothing", {}, []),
    ],
)
def test_lines_of_a_log(
    tmp_path: Path, what: str, options: dict[str, Any], lines: list[int]
) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_bytes(LINES)
    packed.write_bytes(gzip.compress(LINES))
    assert found(plain, what, **options) == found(packed, what, **options) == lines


def test_a_line_says_its_time_and_code(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LINES)
    (row,) = log_rows(tmp_path / "a.log", search_query("7|12|"))
    assert row["time"] == "2026-01-02T03:04:06.123456Z" and row["code"] == "31-0004"
    (row,) = log_rows(tmp_path / "a.log", search_query("Desk"))
    assert "time" not in row and row["text"] == "torn \\xff\\xfe Desk"


@pytest.mark.parametrize(
    ("what", "options", "text"),
    [
        ("", {}, "empty"),
        ("x", {"kind": "y"}, "no kind"),
        ("x", {"kind": "bookmark"}, "no bookmark"),
        ("x", {"kind": "txid"}, "no txid"),
        ("(", {"pattern": True}, "not a valid regular expression"),
        ("x", {"kind": "client", "pattern": True}, "leave out --regex"),
    ],
)
def test_what_cannot_be_found_is_refused(what: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        search_query(what, **options)


@pytest.mark.timeout(120)
@pytest.mark.covers("Utilities", "sockets, pipes, sparse and random files")
def test_a_hole_of_ten_gigabytes_and_a_line_without_end_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    with open(path, "wb") as file:
        file.write(b"x" * (3 * LINE_BYTES_MAX) + b"needle\n")
        file.truncate(10 * 1024**3)
        file.seek(0, os.SEEK_END)
        file.write(b"\nneedle again\n")
    with open(path, "rb") as file:
        if os.lseek(file.fileno(), 1024**3, os.SEEK_DATA) == 1024**3:
            pytest.skip("this file system does not tell where holes are")
    holes: list[int] = []
    skip = search._skip_hole

    def counting(file: IO[bytes], descriptor: int) -> bool:
        holes.append(file.tell())
        return skip(file, descriptor)

    monkeypatch.setattr(search, "_skip_hole", counting)
    rows = list(log_rows(path, search_query("needle")))
    assert [row["line"] for row in rows] == [1, 3]
    assert max(len(row["text"]) for row in rows) < 5_000
    assert 1 <= len(holes) < 100


@pytest.mark.covers("Utilities", "beside a running instance")
@pytest.mark.parametrize("name", ["a.log.gz", "amps-20260102-00001"])
def test_a_compressed_log_that_is_being_written_is_read_up_to_its_last_line(
    tmp_path: Path, name: str
) -> None:
    """An open file has no end mark, and neither has that of a process that was killed."""
    made = zlib.compressobj(wbits=31)
    packed = gzip.compress(LINES) + made.compress(LINES) + made.flush(zlib.Z_SYNC_FLUSH)
    (tmp_path / name).write_bytes(packed)
    found_at = identify(tmp_path / name)
    assert (found_at.kind, found_at.problem) == ("log", "")
    assert found_at.details["first_time"] == "2026-01-02T03:04:05.123456Z"
    assert found(tmp_path / name, "7|12") == [2, 6]
    assert [place.kind for place in search_places(tmp_path)] == ["log"]


def test_a_compressed_log_with_wrong_bytes_is_an_error(tmp_path: Path) -> None:
    rng = random.Random(1)
    packed = bytearray(
        gzip.compress(b"".join(rng.randbytes(50).hex().encode() for _ in range(999)))
    )
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    (tmp_path / "a.log.gz").write_bytes(packed)
    with pytest.raises(StorageError, match=r"a\.log\.gz is damaged"):
        list(log_rows(tmp_path / "a.log.gz", search_query("7|12")))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    made = StepJournal(tmp_path / "journal")
    made.stage(a_run(1, range(1, 6), publisher=publisher_id("desk")))
    made.stage(a_note(6))
    made.stage(a_run(7, [9, 12], publisher=7, topic="trades"))
    made.commit()
    made.close()
    return tmp_path


@pytest.mark.covers("Utilities", "Find Bookmark or Transaction ID")
@pytest.mark.parametrize(
    ("what", "options", "txids"),
    [
        ("7|12|", {}, [8]),
        ("7|13|", {}, []),
        ("3", {}, [3]),
        ("6", {}, []),
        ("99", {}, []),
        ("desk", {}, [1, 2, 3, 4, 5]),
        ("trades", {}, [7, 8]),
        ("Trades", {}, []),
        ("Trades", {"ignore_case": True}, [7, 8]),
        ("trade", {}, []),
        ("tra.*s", {"pattern": True}, [7, 8]),
        ("^12 ", {"pattern": True, "kind": "text"}, [8]),
        ("^12 ", {"pattern": True, "kind": "topic"}, []),
        ("desk", {"kind": "topic"}, []),
        ("trades", {"kind": "client"}, []),
        ("9", {"kind": "text"}, [7]),
    ],
)
def test_messages_of_a_journal(
    journal: Path, what: str, options: dict[str, Any], txids: list[int]
) -> None:
    query = search_query(what, **options)
    for path in (journal, journal / "journal"):
        rows = list(journal_search_rows(journal_place(path, None), query, True))
        assert [row["txid"] for row in rows] == txids
        assert all("body" in row for row in rows)


def test_only_segments_that_may_have_it_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StepJournal(tmp_path / "journal", segment_bytes=64 * 1024)
    at = 1
    while len(list((tmp_path / "journal").glob("*.sealed"))) < 3:
        # A segment has 300 records or so: each has a topic of its own, and the middle a client.
        publisher = publisher_id("desk") if 400 <= at < 500 else 7
        run = a_run(at, range(at, at + 100), publisher=publisher, body_bytes=200, topic=f"t{at}")
        made.stage(run)
        at = made.commit() + 1
        made.settle()
    made.close()
    read: list[int] = []
    records_of = search.records_of

    def recorded(reader: Any, first: int, end: int | None, *more: Any) -> Any:
        read.append(first)
        return records_of(reader, first, end, *more)

    monkeypatch.setattr(search, "records_of", recorded)
    place = journal_place(tmp_path, None)
    for what, txids in (
        ("desk", range(401, 501)),
        ("t401", range(401, 501)),
        ("t1", range(1, 101)),
    ):
        read.clear()
        rows = list(journal_search_rows(place, search_query(what), False))
        assert [row["txid"] for row in rows] == list(txids)
        # One sealed segment, and the live one.
        assert len(read) == 2
    read.clear()
    list(journal_search_rows(place, search_query("x", "text"), False))
    assert read == [1]


def test_places_below_a_directory(journal: Path) -> None:
    (journal / "a.log").write_bytes(LINES)
    (journal / "notes.txt").write_bytes(b"desk")
    (journal / "b.log").symlink_to("nowhere")
    assert [(each.path.name, each.kind) for each in search_places(journal)] == [
        ("a.log", "log"), ("journal", "journal"),
    ]  # fmt: skip
    assert next(search_places(journal / "notes.txt")).kind == "log"
    segment = next((journal / "journal").glob("*.live"))
    assert next(search_places(segment)).kind == "journal"
    os.mkfifo(journal / "pipe", 0o600)
    (place,) = search_places(journal / "pipe")
    assert place.kind == "problem" and "fifo" in place.problem
