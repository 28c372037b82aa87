"""The command's errors are one line and exit code 1; its output is what the options say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raylay.services.client.events import (
    ClockDiffers,
    Connected,
    Disconnected,
    WaitingForSafeInstance,
    WaitingForServer,
)
from raylay.services.commands.events import event_line
from raylay.services.commands.shared.connection_log import STEADY_S, ConnectionLog
from raylay.services.commands.status import (
    action_lines,
    destination_row,
    disconnected_lines,
    front_log_lines,
    logged,
    print_status,
    security_file_lines,
    slow_client_lines,
    unavailable_lines,
)


def run(*arguments: str, runtime: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raylay.services.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        # Not in the checkout, where somebody may have a fabric in data/.
        cwd=runtime,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(runtime)},
    )


def test_version(tmp_path: Path) -> None:
    done = run("--version", runtime=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("raylay 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "missing.yaml"), "missing.yaml: No such file"),
        (("status",), "raylay up FILE"),
        (("down", "--fabric", "x"), "no fabric x runs here"),
        (("publish", "t", "{}"), "raylay up FILE"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments, runtime=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("raylay: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("fabric: f\nregions:\n  A: none\n")
    done = run("up", str(path), runtime=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path}:3: ")


def test_an_event_is_one_line() -> None:
    line = event_line(
        {"instance": "A-1", "number": 3, "time_us": 1_500_000, "event": "downgraded", "age_ms": 7}
    )
    assert line == "1970-01-01 00:00:01.500 A-1            downgraded age_ms=7"


def test_a_destinations_row_tells_its_mode_and_its_way() -> None:
    found = {"connected": True, "sync": False, "downgraded": True, "unacked": 1200, "age_ms": 30}
    assert destination_row("B", found) == ("B", "", "async (downgraded)", "1,200", "30 ms")
    found = {"connected": False, "sync": True, "unacked": 0}
    assert destination_row("B", found) == ("B", "", "sync, disconnected", "0", "")
    found = {"connected": True, "sync": True, "unacked": 0, "address": "over B's connection"}
    assert destination_row("B", found) == ("B", "over B's connection", "sync", "0", "")


def test_notes_are_named_apart_from_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged({"messages": 1200, "notes": 3, "committed_txid": 1203}) == ("1,200", "3")
    assert logged({"messages": 2, "notes": 0, "committed_txid": 2}) == ("2", "")
    assert logged({}) == ("", ""), "it does not serve yet"
    told = {"name": "A-1", "group": "A", "ready": True, "messages": 1200, "notes": 3}
    destinations = {name: {"connected": True, "sync": True} for name in ("A-2", "A-3")}
    print_status({"fabric": "f", "instances": [{**told, "destinations": destinations}]}, False)
    _, head, _, row, *_ = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert head.split()[4:6] == ["messages", "notes"]
    assert row.split()[:5] == ["A-1", "A", "ready", "1,200", "3"]


def test_why_a_destination_is_not_connected_stands_below_the_table() -> None:
    refused = {"connected": False, "why": "b:1: validation: txlog: …"}
    there = {"connected": True, "why": ""}
    instances = [{"name": "A", "destinations": {"B": refused, "C": there}}, {"name": "C"}]
    assert disconnected_lines(instances) == ["A to B: b:1: validation: txlog: …"]


def test_what_is_unavailable_is_said_below_the_status() -> None:
    instances = [{"name": "A", "unavailable": 0}, {"name": "B", "unavailable": 1200}, {"name": "C"}]
    assert unavailable_lines(instances) == [
        "B: 1,200 messages are unavailable: no upstream has them any more"
    ]


def test_where_the_front_log_is_not_used_is_said_below_the_status() -> None:
    instances = [{"name": "A", "front_log_failure": ""}, {"name": "B"}]
    assert front_log_lines(instances) == []
    instances[1]["front_log_failure"] = "/data/B/journal: the front log cannot be used: …"
    assert front_log_lines(instances) == ["B: /data/B/journal: the front log cannot be used: …"]


def test_files_of_users_that_are_not_in_use_as_they_stand_are_named() -> None:
    transports = [{"name": "client", "problem": ""}, {"name": "desks", "problem": "who: line 1 …"}]
    instances = [
        {"name": "A"},
        {"name": "B", "transports": transports, "control_problem": ""},
        {"name": "C", "transports": [], "control_problem": "may: line 2 …"},
    ]
    assert security_file_lines(instances) == [
        "B: transport desks: who: line 1 …",
        "C: admin: may: line 2 …",
    ]


def test_what_waits_for_slow_clients_is_said_below_the_status() -> None:
    pool = {
        "pool": "clients", "memory_bytes": 1_500_000, "memory_bytes_max": 1 << 30,
        "disk_bytes": 700, "disk_bytes_max": 3 << 40, "behind": 12, "offline": 11,
        "offline_clients": [
            {"client": "desk", "peer": "h:1", "unsent_bytes": 2048, "age_ms": 61_400},
            {"client": "", "peer": "h:2", "unsent_bytes": 5, "age_ms": 0},
        ],
    }  # fmt: skip
    quiet = {**pool, "pool": "clients/web", "behind": 0, "offline": 0, "offline_clients": []}
    first = (
        "pool clients: 1.4 MiB of 1.0 GiB in memory, 700 B of 3.0 TiB on disk for 12 slow "
        "clients, 11 offline"
    )
    assert slow_client_lines([{"name": "A"}, {"name": "B", "capacity": [quiet, pool]}]) == [
        f"B, {first}",
        "  desk is offline: 2.0 KiB wait for it, the oldest for 61.4 s",
        "  h:2 is offline: 5 B wait for it, the oldest for 0.0 s",
        "  and 9 more",
    ]


def test_a_client_that_waits_says_why_once_and_how_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    tell = ConnectionLog(lambda: now_s)
    tried = (("a:1", "connection refused"), ("b:2", "no answer within 3.0 s"))
    for _ in range(3):
        tell(WaitingForServer(0.1, tried))
        tell(WaitingForSafeInstance((("A-2", "it was downgraded"),), 0.1))
    tell.finish()
    tell(WaitingForServer(0.1))
    assert capsys.readouterr().err.splitlines() == [
        "raylay: no server answers, trying again (a:1: connection refused; b:2: no answer within "
        "3.0 s)",
        "raylay: waiting for an instance that is safe to use (A-2: it was downgraded)",
        "raylay: no server answers, trying again (a:1: connection refused; b:2: no answer within "
        "3.0 s) (3 times)",
        "raylay: waiting for an instance that is safe to use (A-2: it was downgraded) (3 times)",
        "raylay: no server answers, trying again",
    ]


def test_a_clock_that_differs_from_the_instances_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell = ConnectionLog(lambda: 0.0)
    tell(ClockDiffers("A-1", -3_600.4))
    tell(ClockDiffers("A-1", 61.0))
    behind, ahead = capsys.readouterr().err.splitlines()
    assert behind.startswith("raylay: the clock of this host is 3600 s behind that of A-1: set it")
    assert "61 s ahead of that of A-1" in ahead


def test_a_server_that_takes_clients_and_loses_them_again_is_a_line_with_a_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    tell = ConnectionLog(lambda: now_s)
    for number in range(120):
        tell(Connected("A-1", "A", "host:1", 7))
        tell(Disconnected("A-1", "host:1", "storage_full", f"no space for {number} bytes"))
    lost = "raylay: lost A-1 at host:1: storage_full"
    assert capsys.readouterr().err.splitlines() == [
        f"{lost}: no space for 0 bytes",
        f"{lost} (10 times)",
        f"{lost} (100 times)",
    ]
    # A connection that lasted ends the count: the next loss is news.
    tell(Connected("A-1", "A", "host:1", 7))
    now_s = STEADY_S
    tell(Disconnected("A-1", "host:1", "storage_full"))
    assert capsys.readouterr().err.splitlines() == [f"{lost} (120 times)", lost]


def test_actions_that_do_not_run_well_are_told() -> None:
    quiet = {"runs": 5, "failures": 0, "dropped": 0, "chains_stopped": 0, "waiting": 0}
    failed = {**quiet, "runs": 1_200, "failures": 2, "waiting": 3, "last_error": "publish: no room"}
    cut = {**quiet, "chains_stopped": 1, "dropped": 4, "last_error": ""}
    instances = [
        {"name": "A"},
        {"name": "B", "actions": {"pid": 7, "dropped": 0, "actions": {"copy": quiet}}},
        {"name": "C", "actions": {"pid": 7, "dropped": 9, "actions": {"a": failed, "b": cut}}},
    ]
    assert action_lines(instances) == [
        "C: 9 occurrences did not reach the process of the actions",
        "C: action a: 1,200 runs, 2 failed, 3 waiting: publish: no room",
        "C: action b: 5 runs, 4 not begun, 1 cut as a circle",
    ]
