"""The kept log is read while it is written, after a kill, and behind what was read before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raylay.services.telemetry.kept_log import (
    KeptLog,
    is_at_least,
    kept_events,
    kept_log_directory,
    line_text,
    parsed_line,
)

pytestmark = pytest.mark.covers("Logging", "every instance keeps a log on its disk")


def line(second: int, event: str = "ready", process: str = "A-1", **fields: Any) -> bytes:
    values = {
        "time": f"1970-01-01T00:00:{second:02}.000001Z", "level": "info", "process": process,
        "logger": "instance", "code": "00-0001", "event": event, **fields,
    }  # fmt: skip
    return json.dumps(values).encode() + b"\n"


def write(directory: Path, name: str, *lines: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("ab") as file:
        file.write(b"".join(lines))
    return directory / name


def counts(found: Any) -> list[int]:
    return [each["count"] for each in found]


def test_lines_of_all_processes_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    write(tmp_path, "A-1-00000.log", line(1, count=1), line(4, count=4))
    write(tmp_path, "A-1-00001.log", line(5, count=5))
    write(tmp_path, "A-1.B-1-00007.log", line(2, count=2), line(6, count=6))
    write(tmp_path, "notes.txt", b"not one of them")
    assert counts(KeptLog(tmp_path).look()) == [1, 2, 4, 5, 6]
    assert counts(KeptLog(tmp_path, "A-1").look()) == [1, 4, 5], "of the instance alone"


def test_the_next_look_goes_on_behind_the_last_one(tmp_path: Path) -> None:
    log = KeptLog(tmp_path / "log")
    assert not [*log.look()], "the directory may come later"
    write(tmp_path / "log", "A-1-00000.log", line(1, count=1))
    assert counts(log.look()) == [1]
    assert counts(log.look()) == []
    write(tmp_path / "log", "A-1-00000.log", line(2, count=2))
    write(tmp_path / "log", "A-1-00001.log", line(3, count=3))
    assert counts(log.look()) == [2, 3]


def test_a_file_that_was_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    log = KeptLog(tmp_path)
    write(tmp_path, "A-1-00000.log", line(1, count=1))
    assert counts(log.look()) == [1]
    (tmp_path / "A-1-00000.log").unlink()
    write(tmp_path, "A-1-00003.log", line(2, count=2))
    assert counts(log.look()) == [2]


def test_a_line_that_is_being_written_is_told_when_it_is_whole(tmp_path: Path) -> None:
    log = KeptLog(tmp_path)
    whole = line(2, count=2)
    path = write(tmp_path, "A-1-00000.log", line(1, count=1), whole[:20])
    assert counts(log.look()) == [1]
    with path.open("ab") as file:
        file.write(whole[20:])
    assert counts(log.look()) == [2] and log.damaged == 0


def test_a_torn_line_of_a_killed_process_is_counted_and_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path, "A-1-00000.log", line(1, count=1), line(2, count=2)[:30])
    write(tmp_path, "A-1-00000.log", b"\n", line(3, count=3), b"[1]\n", b'{"time": 3}\n', b"\0\n")
    write(tmp_path, "A-1-00000.log", line(4, count=4)[:9])
    write(tmp_path, "A-1-00001.log", line(5, count=5))
    log = KeptLog(tmp_path)
    assert counts(log.look()) == [1, 3, 5]
    assert log.damaged == 5


def test_a_file_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = KeptLog(tmp_path)
    path = write(tmp_path, "A-1-00000.log", line(1, count=1), line(2, count=2))
    assert counts(log.look()) == [1, 2]
    path.write_bytes(line(3, count=3))
    assert counts(log.look()) == [3]


def test_a_line_is_shown_as_the_text_of_a_log(tmp_path: Path) -> None:
    told = parsed_line(line(1, text="two words\x1b[2J", code=""))
    assert told is not None and told["time_us"] == 1_000_001
    assert line_text(told) == (
        '1970-01-01T00:00:01.000001Z info A-1 instance ready text="two words\\u001b[2J"'
    )


@pytest.mark.parametrize(
    "data", [b"", b"x\n", b"7\n", b"{}\n", line(1).replace(b'"info"', b"7"), b"\xff\n"]
)
def test_what_is_no_line_is_damaged(data: bytes) -> None:
    assert parsed_line(data) is None


def test_levels_are_compared() -> None:
    assert is_at_least({"level": "error"}, "warning")
    assert not is_at_least({"level": "info"}, "warning")
    assert is_at_least({"level": "of another release"}, "warning")


def test_events_are_the_instances_own(tmp_path: Path) -> None:
    place = kept_log_directory(tmp_path, "A-1")
    write(
        place, "A-1-00000.log", line(1, "downgraded", destination="B"),
        line(2, "log_lines_lost", logger="log"), line(3, "diagnostics", text="x"),
    )  # fmt: skip
    write(place, "A-1.B-1-00000.log", line(2, "link_failed", process="A-1.B-1"))
    assert [*kept_events(place, "A-1")] == [
        {"time_us": 1_000_001, "instance": "A-1", "event": "downgraded", "destination": "B"}
    ]


def test_no_name_leads_out_of_the_directory(tmp_path: Path) -> None:
    assert kept_log_directory(tmp_path, "a/../../b").parent == tmp_path / "log"
    assert kept_log_directory(tmp_path, "..").parent == tmp_path / "log"
