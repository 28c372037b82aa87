"""services/telemetry/logs.py with real processes' stderr and real files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry import logs
from raylay.services.telemetry.logs import LogOptions


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    logs.configure("", LogOptions(level="warning"))
    yield
    logs.configure("", LogOptions(level="warning"))


def lines_in(directory: Path) -> list[str]:
    return [line for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]


def to_file(
    directory: Path, level: str = "info", format: str = "text", file_bytes_max: int = 1 << 20
) -> None:
    options = LogOptions(level, "file", str(directory), format, file_bytes_max)
    logs.configure("A1", options)


@pytest.mark.covers("Logging", "a line is fields")
def test_an_event_is_one_line_of_fields(tmp_path: Path) -> None:
    to_file(tmp_path)
    logger = logs.get("instance")
    logger.event("downgrade", destination="London 1", age_ms=512, ratio=0.25, sync=True)
    logger.event("odd", text='a"b=c\nd', empty="", raw=b"\x01\xff", none=None)
    first, second = lines_in(tmp_path)
    stamp, rest = first.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    assert rest == (
        'info A1 instance downgrade destination="London 1" age_ms=512 ratio=0.25 sync=true'
    )
    assert second.endswith(r'odd text="a\"b=c\nd" empty="" raw=01ff none=None')


@pytest.mark.covers("Logging", "a line is fields")
def test_json_lines(tmp_path: Path) -> None:
    to_file(tmp_path, format="json")
    logs.get("link").warning("late", count=3, level="mine", path=tmp_path)
    found = json.loads(lines_in(tmp_path)[0])
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "process": "A1",
        "logger": "link",
        "code": "1D-0014",
        "event": "late",
        "count": 3,
        "level_": "mine",
        "path": str(tmp_path),
    }


@pytest.mark.parametrize(
    ("level", "written"),
    [("developer", 4), ("info", 3), ("warning", 2), ("error", 1), ("none", 0)],
)
def test_levels(tmp_path: Path, level: str, written: int) -> None:
    to_file(tmp_path, level=level)
    logger = logs.get("client")
    logger.debug("a")
    logger.event("b")
    logger.warning("c")
    logger.error("d")
    assert len(lines_in(tmp_path)) == written
    assert logger.debugging is (level == "developer")


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from raylay.services.telemetry import logs\n" + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )


def test_stderr_unconfigured_has_warnings_only() -> None:
    done = run_python("l = logs.get('x'); l.event('a'); l.warning('b', n=1); print('out')")
    assert done.stdout == "out\n"
    (line,) = done.stderr.splitlines()
    assert line.endswith(" warning x b n=1")


def test_the_environment_configures_a_process(tmp_path: Path) -> None:
    program = "logs.configure('A1'); logs.get('x').debug('a', n=1)"
    done = run_python(program, RAYLAY_LOGS='{"level": "developer", "format": "json"}')
    assert json.loads(done.stderr)["event"] == "a"
    options = LogOptions(level="developer", target="file", directory=str(tmp_path))
    assert logs.from_environment(logs.to_environment(options)) == options
    assert run_python(program, **logs.to_environment(options)).stderr == ""
    assert lines_in(tmp_path)[0].endswith("developer A1 x a n=1")
    assert run_python(program, RAYLAY_LOGS='{"target": "none"}').stderr == ""
    assert logs.from_environment({}) == LogOptions(level="info", target="stderr")


def test_captured_stderr_gets_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.get("x").error("failed", reason="é")
    assert capsys.readouterr().err.endswith("error x failed reason=é\n")


@pytest.mark.parametrize(
    "wrong", [{"level": "loud"}, {"target": "syslogd"}, {"format": "xml"}, {"target": "file"}]
)
def test_wrong_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        LogOptions(**wrong)  # type: ignore[arg-type]


def test_an_unusable_directory_is_named_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file"):
        to_file(tmp_path / "file")
    logs.get("x").warning("still here")
    assert "still here" in capsys.readouterr().err


def test_lines_of_threads_do_not_mix(tmp_path: Path) -> None:
    to_file(tmp_path)
    logger = logs.get("x")

    def work(number: int) -> None:
        for count in range(200):
            logger.event("e", thread=number, count=count, pad="x" * 300)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = lines_in(tmp_path)
    assert len(lines) == 800
    assert all(line.endswith("x" * 300) and line.count(" e ") == 1 for line in lines)


def test_files_are_bounded(tmp_path: Path) -> None:
    to_file(tmp_path, file_bytes_max=1_000)
    for count in range(200):
        logs.get("x").event("e", count=count)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 4_000
    assert any(line.endswith("count=199") for line in lines_in(tmp_path))
    assert not any(line.endswith("count=0") for line in lines_in(tmp_path))


def test_a_lost_line_is_counted_and_never_raises(tmp_path: Path) -> None:
    device = Path("/dev/full")
    if not device.exists():
        pytest.skip("this system has no /dev/full")
    done = run_python(
        "import os\n"
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"
        "logs.get('x').error('a'); logs.get('x').error('b')\n"
        "print(logs.lost_lines())"
    )
    assert done.stdout == "2\n"


def test_off_costs_next_to_nothing() -> None:
    logs.configure("A1", LogOptions(target="none"))
    calls = 0

    class Counting:
        def __str__(self) -> str:
            nonlocal calls
            calls += 1
            return "x"

    logs.get("x").error("e", value=Counting())
    assert calls == 0


@pytest.mark.covers("Logging", "a line is fields")
@pytest.mark.parametrize("format", ["text", "json"])
def test_nothing_of_others_is_a_command_or_a_line(tmp_path: Path, format: str) -> None:
    to_file(tmp_path, format=format)
    hostile = "a\x1b[2J\x9b31m\x7f\u2028\u202eb\n2026-01-02T03:04:05.000000Z info A1 forged\ud800"
    logs.get("instance").warning("logon_denied", client=hostile)
    (path,) = tmp_path.iterdir()
    written = path.read_bytes().decode()
    assert written.endswith("\n") and written[:-1].isprintable()
    assert "\\u202e" in written and "\\ud800" in written
