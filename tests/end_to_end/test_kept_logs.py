"""`raylay logs` and `raylay events` from the shell, on the files of real instances: while one runs,
after it was killed, behind rotation, a torn line and a full disk."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Client
from support.small_disk import small_disk_at

from raylay.services.fabric import Fabric, plan
from raylay.services.fabric.records import registry
from raylay.services.telemetry.kept_log import kept_log_directory

pytestmark = pytest.mark.covers("Logging", "every instance keeps a log on its disk")
DEADLINE_S = 60.0


class Shell:
    """A fabric of one instance without Ray, and the shell of a user of its host."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.directory = place / "data" / "solo"
        settings = (
            Fabric("solo", topics=["orders"], admin={"enabled": True})
            .region("here", instances=1)
            .settings()
        )
        record = plan.record_of(settings, self.directory)
        record.save()
        (declared,) = settings.instances
        self.admin_address = plan.admin_address(settings, record, declared)
        self.data = plan.data_directory(record, declared)
        self.data.mkdir(parents=True)
        plan.instance_config(settings, record, declared).save(self.data)
        self.log = kept_log_directory(self.directory, "here-1")
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY")},
            registry.REGISTRY_VARIABLE: str(place / "runtime"),
        }
        self.client_address = ""
        self.started: list[subprocess.Popen[str]] = []

    def instance(self) -> subprocess.Popen[str]:
        """Starts the instance, and waits until it serves."""
        command = [sys.executable, "-m", "raylay.services.server.run_instance", str(self.data)]
        child = self._begun(command, stderr=subprocess.DEVNULL)
        assert child.stdout is not None
        self.client_address = json.loads(child.stdout.readline())["client_address"]
        return child

    def _begun(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=self.place, env=self._environment,
            **options,
        )  # fmt: skip
        self.started.append(child)
        return child

    def raylay(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "raylay.services.cli", *arguments],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=self.place,
            env=self._environment,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    def follow(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "raylay.services.cli", "logs", "here-1", "--follow"]
        return self._begun([*command, *arguments], stderr=subprocess.PIPE)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for child in made.started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def lost_lines(shell: Shell) -> int:
    """Lines that the log did not take, as the instance's metrics say; 0 before they are served."""
    try:
        with urllib.request.urlopen(f"http://{shell.admin_address}/metrics") as answer:
            told = answer.read().decode()
    except urllib.error.URLError:
        return 0
    found = re.search(r"^raylay_log_lines_lost_total\{.*\} (\d+)", told, re.MULTILINE)
    assert found is not None
    return int(found[1])


def names(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def is_logged(shell: Shell, event: str, times: int = 1) -> bool:
    files = shell.log.glob("here-1-*.log")
    return sum(path.read_text().count(f'"event":"{event}"') for path in files) >= times


def test_the_log_of_a_killed_instance_is_read_and_its_events_survive(shell: Shell) -> None:
    assert "has none before its first start" in shell.raylay("logs", "here-1", code=1).stderr
    first = shell.instance()
    until(lambda: is_logged(shell, "started"))
    first.send_signal(signal.SIGKILL)
    first.wait()
    shown = shell.raylay("logs", "here-1")
    (line,) = [each for each in shown.stdout.splitlines() if " started " in each]
    assert line.split()[1:6] == ["info", "here-1", "instance", "00-0001", "started"]
    assert line.startswith(time.strftime("%Y-", time.gmtime()))
    told = shell.raylay("events", "--kind", "started")
    assert " started " in told.stdout and "fabric solo is stopped" in told.stderr
    second = shell.instance()
    until(lambda: is_logged(shell, "started", times=2))
    second.terminate()
    second.wait(DEADLINE_S)
    lives = names(shell.raylay("events", "--json").stdout)
    assert lives.count("started") == 2
    moments = [json.loads(each)["time_us"] for each in
               shell.raylay("events", "--json").stdout.splitlines()]  # fmt: skip
    assert moments == sorted(moments)


@pytest.mark.covers("Logging", "the kept log of an instance of another host")
def test_from_another_host_the_log_is_read_over_the_interface(shell: Shell) -> None:
    shell.instance()
    until(lambda: is_logged(shell, "admin_interface_serves"))
    there = shell.raylay("logs", "here-1", "--json", "--http", shell.admin_address).stdout
    here = shell.raylay("logs", "here-1", "--json").stdout
    assert there and here.startswith(there)
    last = shell.raylay("logs", "here-1", "-n", "1", "--http", shell.admin_address).stdout
    assert len(last.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.covers("Logging", "events of an earlier life of an instance of another host")
def test_from_another_host_events_of_an_earlier_life_are_read_over_the_interface(
    shell: Shell,
) -> None:
    first = shell.instance()
    until(lambda: is_logged(shell, "admin_interface_serves"))
    first.kill()
    first.wait()
    shell.instance()
    until(lambda: is_logged(shell, "admin_interface_serves", times=2))
    there = ("events", "--json", "--http", shell.admin_address)
    lives = [json.loads(line) for line in shell.raylay(*there).stdout.splitlines()]
    assert [each["event"] for each in lives].count("started") == 2
    moments = [each["time_us"] for each in lives]
    assert moments == sorted(moments) and {each["instance"] for each in lives} == {"here-1"}
    second_us = [each["time_us"] for each in lives if each["event"] == "started"][1]
    second = datetime.fromtimestamp(second_us / 1e6, UTC).isoformat()
    assert names(shell.raylay(*there, "--since", second).stdout).count("started") == 1


@pytest.mark.slow
def test_lines_are_chosen_by_level_time_and_number(shell: Shell) -> None:
    shell.instance()
    until(lambda: is_logged(shell, "admin_interface_serves"))
    with (shell.log / "here-1-00000.log").open("a") as file:
        for second, level in ((1, "info"), (2, "error"), (3, "critical")):
            line = {
                "time": f"2100-01-01T00:00:0{second}.000000Z", "level": level, "process": "here-1",
                "logger": "instance", "code": "", "event": f"planted_{level}",
            }  # fmt: skip
            file.write(f"{json.dumps(line)}\n")
    severe = shell.raylay("logs", "here-1", "--level", "error", "--json").stdout
    assert names(severe) == ["planted_error", "planted_critical"]
    later = shell.raylay("logs", "here-1", "--since", "2100-01-01T00:00:02", "--json").stdout
    assert names(later) == ["planted_error", "planted_critical"]
    last = shell.raylay("logs", "here-1", "-n", "1", "--json").stdout
    assert names(last) == ["planted_critical"]
    wrong = shell.raylay("logs", "here-1", "--level", "loud", code=1).stderr
    assert "--level loud: give one of developer" in wrong
    wrong = shell.raylay("logs", "hear-1", code=1).stderr
    assert "no instance 'hear-1': did you mean here-1?" in wrong


@pytest.mark.slow
def test_a_follower_sees_new_lines_rotation_and_the_next_life_and_ends_quietly(
    shell: Shell,
) -> None:
    first = shell.instance()
    until(lambda: is_logged(shell, "started"))
    follower = shell.follow("--json")
    assert follower.stdout is not None
    seen: list[str] = []

    def until_seen(event: str) -> None:
        while not seen or seen[-1] != event:
            line = follower.stdout.readline()
            assert line, seen
            seen.append(json.loads(line)["event"])

    until_seen("started")
    # A line that is written in two parts is shown once, when it is whole.
    line = json.dumps({
        "time": "2100-01-01T00:00:01.000000Z", "level": "info", "process": "here-1",
        "logger": "instance", "code": "", "event": "planted",
    })  # fmt: skip
    with (shell.log / "here-1-00001.log").open("a") as file:
        file.write(line[:30])
        file.flush()
        file.write(f"{line[30:]}\n")
    until_seen("planted")
    first.kill()
    first.wait()
    shell.instance()
    until_seen("started")
    follower.send_signal(signal.SIGINT)
    assert follower.wait(DEADLINE_S) == 0
    assert follower.stderr is not None and follower.stderr.read() == ""
    assert seen.count("planted") == 1


@pytest.mark.slow
def test_a_torn_last_line_hides_nothing_and_is_told_when_the_next_life_goes_on(
    shell: Shell,
) -> None:
    first = shell.instance()
    until(lambda: is_logged(shell, "started"))
    first.kill()
    first.wait()
    path = shell.log / "here-1-00000.log"
    path.write_bytes(path.read_bytes()[:-7])
    before = shell.raylay("logs", "here-1", "--json")
    shell.instance()
    until(lambda: is_logged(shell, "started", times=2))
    after = shell.raylay("logs", "here-1", "--json")
    assert names(after.stdout)[: len(names(before.stdout))] == names(before.stdout)
    assert len(names(after.stdout)) > len(names(before.stdout))
    assert "1 line cannot be read: cut off where a process was killed" in after.stderr


@pytest.mark.slow
def test_what_is_kept_is_bounded(shell: Shell) -> None:
    program = """
import sys
from pathlib import Path
from raylay.services.config.instance import InstanceConfig
from raylay.services.telemetry import logs
config = InstanceConfig.load(Path(sys.argv[1]))
logs.configure("here-1", config.log)
for number in range(30_000):
    logs.get("instance").event("ready", count=number, text="x" * 500)
    if not number % 1_000:
        logs.close()
logs.close()
assert not logs.status()[-1]['lost'], logs.status()[-1]
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(shell.data)], capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    sizes = [path.stat().st_size for path in shell.log.iterdir()]
    assert 6 * 1024 * 1024 < sum(sizes) <= 8 * 1024 * 1024 and max(sizes) <= 2 * 1024 * 1024
    shown = shell.raylay("logs", "here-1", "--json").stdout.splitlines()
    counts = [json.loads(line)["count"] for line in shown]
    assert counts == [*range(counts[0], 30_000)] and counts[0] > 10_000


def test_a_full_disk_stops_no_instance_and_what_is_missing_is_told(
    tmp_path: Path, shell: Shell
) -> None:
    with small_disk_at(tmp_path / "small", 1) as disk:
        shell.log.parent.mkdir(parents=True)
        shell.log.symlink_to(disk)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4_096):
                    pass
            except OSError:
                pass
        first = shell.instance()  # It serves although no line of it can be kept.
        until(lambda: lost_lines(shell))
        assert first.poll() is None and not is_logged(shell, "started")
        ballast.unlink()
        Client(shell.client_address, "desk").close()
        until(lambda: is_logged(shell, "client_left"))
        shown = [json.loads(each) for each in
                 shell.raylay("logs", "here-1", "--json").stdout.splitlines()]  # fmt: skip
        assert shown[0]["event"] == "log_lines_lost" and shown[0]["lines"] >= 1
        assert "No space left on device" in shown[0]["text"]
        assert "desk" in {each.get("client") for each in shown}
