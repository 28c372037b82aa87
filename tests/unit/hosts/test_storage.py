"""The conclusions of `raylay check storage` from measured syncs, and its measuring of this disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands.storage import size_of
from raylay.services.errors import ConfigurationError
from raylay.services.hosts.check import HostFacts
from raylay.services.hosts.storage import (
    SyncMeasurement,
    acks_lines,
    as_json,
    judge,
    size_text,
)
from raylay.storage import sync_speed

pytestmark = pytest.mark.covers("Utilities", "Storage Performance Testing")

SMALL = SyncMeasurement(4096, [1.0] * 98 + [3.0, 8.0])
LARGE = SyncMeasurement(1024 * 1024, [4.0, 6.0])


def test_a_measurement_counts_commits_and_bytes() -> None:
    assert SMALL.commits_per_s == pytest.approx(100 / 0.109)
    assert SMALL.bytes_per_s == pytest.approx(4096 * 100 / 0.109)
    assert as_json(SMALL) == {
        "write_bytes": 4096,
        "writes": 100,
        "commits_per_second": 917.4,
        "bytes_per_second": 3757798,
        "p50_ms": 1.0,
        "p99_ms": 3.0,
        "max_ms": 8.0,
    }
    assert SyncMeasurement(4096, [0.0]).commits_per_s > 0, "a clock that does not move divides"


def test_acks_are_explained_by_one_sync_and_two_and_by_the_most_bytes() -> None:
    alone, with_sync, waiting, together = acks_lines([LARGE, SMALL])
    assert "waits for one sync: 1.00 ms, and 3.00 ms for one in a hundred" in alone
    assert "2.00 ms and the round trip" in with_sync
    assert "at most 917 messages/s without a sync destination, 459 with one" in waiting
    assert "at 1 MiB a commit the disk takes 209.7 MB/s" in together
    assert "204,800 messages/s of 1 KiB" in together
    slow = SyncMeasurement(4096, [25.0])
    assert "one sync: 25 ms" in acks_lines([slow])[0]


@pytest.mark.parametrize(("took_ms", "level"), [(0.5, "ok"), (8.0, "change"), (80.0, "wrong")])
def test_a_disk_is_judged_by_the_99th_percentile_of_the_smallest_write(
    took_ms: float, level: str
) -> None:
    measured = [SyncMeasurement(4096, [0.1] * 50 + [took_ms] * 2), LARGE]
    (found,) = judge(HostFacts(), measured)
    assert (found.what, found.level) == ("fsync", level)


def test_a_disk_that_cannot_be_written_is_told() -> None:
    (found,) = judge(HostFacts(disk_error="/x: Permission denied"), [])
    assert (found.what, found.level) == ("data directory", "wrong")


def test_sizes_are_whole_pages() -> None:
    assert [size_text(size_of(text)) for text in ("4KiB", "64KiB", "8MiB")] == [
        "4 KiB",
        "64 KiB",
        "8 MiB",
    ]
    for text in ("5KiB", "0", "16MiB", "4 apples"):
        with pytest.raises(ConfigurationError, match="--size"):
            size_of(text)


def raylay(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", "storage", *arguments])


def test_the_command_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = raylay(
        "--directory", str(tmp_path / "not" / "there"), "--seconds", "0.01", "--size", "4KiB",
        "--json",
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["directory"] == str(tmp_path)
    (commit,) = told["commits"]
    assert commit["write_bytes"] == 4096 and commit["writes"] > 0
    assert commit["commits_per_second"] > 0 and commit["p50_ms"] <= commit["max_ms"]
    assert len(told["acks"]) == 4 and os.listdir(tmp_path) == []
    wrong = [each for each in told["findings"] if each["level"] == "wrong"]
    assert done.exit_code == (1 if wrong else 0)


def test_the_table_has_a_row_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_speed, "measure_syncs", lambda *_: [80.0, 90.0])
    done = raylay("--directory", str(tmp_path))
    assert done.exit_code == 1, "syncs of 80 ms are wrong for a journal"
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["4", "KiB", "12", "0.0", "80.00", "90.00", "90.00"] in lines
    assert [line[0] for line in lines if line[1:2] == ["KiB"]] == ["4", "64"]
    assert "WRONG  fsync: 90.00 ms" in done.stdout


def test_a_directory_that_cannot_be_written_is_an_answer() -> None:
    done = raylay("--directory", "/proc/raylay", "--seconds", "0.01")
    assert done.exit_code == 1
    assert "WRONG  data directory: /proc: " in done.stdout
