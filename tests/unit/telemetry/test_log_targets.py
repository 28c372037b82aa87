"""services/telemetry/logs.py with several targets: real files, gzip, sockets and pipes."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry import bounded_files, log_targets, logs
from raylay.services.telemetry.logs import LogOptions, LogTarget

PREAMBLE = """
import os, signal, sys
from raylay.services.telemetry import bounded_files, log_targets, logs
from raylay.services.telemetry.logs import LogOptions, LogTarget
"""


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    logs.configure("", LogOptions(level="warning"))


@pytest.fixture
def retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that failed is tried again, and looked at, at each write."""
    monkeypatch.setattr(bounded_files, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(log_targets, "LOOK_EVERY_S", 0.0)


def lines_of(text: str) -> list[str]:
    """Returns each line from the level on."""
    return [line.split(" ", 1)[1] for line in text.splitlines()]


def readable(path: Path) -> str:
    """Returns what of a gzip file can be read, whether it has an end or not."""
    return zlib.decompressobj(wbits=31).decompress(path.read_bytes()).decode()


def process(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-B", "-c", PREAMBLE + program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ended(child: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    return out, err


# -- which line goes where -------------------------------------------------------------------------
@pytest.mark.covers("Logging", "`Logging`, several `Target`")
def test_each_target_gets_its_own_lines_in_its_own_format(tmp_path: Path) -> None:
    options = LogOptions(
        "warning",
        "file",
        str(tmp_path),
        file_name="a.log",
        exclude=("07",),
        also=(
            LogTarget("none", "gzip", str(tmp_path), "json", file_name="b", include=("07-.*",)),
            LogTarget("none", "file", str(tmp_path), file_name="c", levels=("info", "developer")),
            LogTarget(target="none"),
        ),
    )
    logs.configure("A-1", options)
    logger = logs.get("instance")
    assert logger.debugging
    logger.debug("x")
    logger.event("client_connected", client="one")
    logger.warning("client_disconnected", client="one")
    logger.error("link_failed")
    logger.critical("storage_failed")
    logger.emergency("fatal")
    assert lines_of((tmp_path / "a.log").read_text()) == [
        "error A-1 instance 21-0016 link_failed",
        "critical A-1 instance 1D-0001 storage_failed",
        "emergency A-1 instance 00-0005 fatal",
    ]
    clients = [json.loads(line) for line in readable(tmp_path / "b.gz").splitlines()]
    assert [(each["event"], each["code"], each["level"]) for each in clients] == [
        ("client_connected", "07-0001", "info"),
        ("client_disconnected", "07-0002", "warning"),
    ]
    assert lines_of((tmp_path / "c").read_text()) == [
        "developer A-1 instance x",
        "info A-1 instance 07-0001 client_connected client=one",
    ]
    assert [(each["target"], each["level"]) for each in logs.status()] == [
        ("file", "warning"),
        ("gzip", "none"),
        ("file", "none"),
    ]


@pytest.mark.covers("Logging", "`stdout` is stdout, `stderr` is stderr")
def test_stdout_means_stdout() -> None:
    out, err = ended(
        process(
            "logs.configure('A-1', LogOptions(target='stdout', also=(LogTarget('error'),)))\n"
            "logs.get('x').event('ready'); logs.get('x').error('link_failed')\n"
        )
    )
    assert lines_of(out) == ["info A-1 x 00-0002 ready", "error A-1 x 21-0016 link_failed"]
    assert lines_of(err) == ["error A-1 x 21-0016 link_failed"]


def test_a_stream_without_a_descriptor_gets_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("A-1", LogOptions(target="stdout"))
    logs.get("x").event("ready", name="é")
    assert capsys.readouterr().out.endswith("info A-1 x 00-0002 ready name=é\n")


def test_a_process_without_a_stream_logs_nothing_and_goes_on() -> None:
    out, _ = ended(
        process(
            "logs.configure('A-1', LogOptions())\nsys.stderr = None\n"
            "logs.get('x').error('ready')\nprint(logs.lost_lines())"
        )
    )
    assert out == "0\n"


@pytest.mark.covers("Logging", "a pipe that nobody reads")
def test_a_pipe_that_nobody_reads_holds_up_nothing_and_is_told_of() -> None:
    child = process(
        "logs.configure('A-1', LogOptions(target='stdout'))\n"
        "logger = logs.get('x')\n"
        "for count in range(3_000): logger.event('ready', count=count, pad='x' * 900)\n"
        "logger.event('ready', pad='y' * 300_000)\n"
        "print(logs.status()[0]['lost'] == logs.lost_lines() > 0, file=sys.stderr, flush=True)\n"
        "sys.stdin.readline()\n"  # the reader has emptied the pipe
        "logger.event('ready', last=1)\n"
        "print(logs.lost_lines(), file=sys.stderr)\n"
    )
    assert child.stdout is not None and child.stderr is not None and child.stdin is not None
    # It got to its end although nobody read: nothing waited.
    ready, _, _ = select.select([child.stderr], [], [], 60)
    if not ready:
        child.kill()
        pytest.fail("the process waits for whoever reads its stdout")
    assert child.stderr.readline() == "True\n"
    descriptor = child.stdout.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK)
    held = b""
    while True:
        try:
            held += os.read(descriptor, 1 << 16)
        except BlockingIOError:
            break
    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    child.stdin.write("\n")
    child.stdin.flush()
    lost = int(child.stderr.readline())
    rest, _ = ended(child)
    whole = [line for line in held.decode().splitlines() if line.endswith("x" * 900)]
    assert len(whole) == 3_001 - lost
    note, last = lines_of(rest.lstrip("\n"))
    assert note == (
        f"warning A-1 log 00-0019 log_lines_lost lines={lost} target=stdout "
        'text="[Errno 11] nobody reads stdout"'
    )
    assert last == "info A-1 x 00-0002 ready last=1"


# -- files -----------------------------------------------------------------------------------------
def to_files(directory: Path, **options: Any) -> None:
    where: dict[str, Any] = {"target": "file", "directory": str(directory)}
    logs.configure("A-1", LogOptions(**where | options))


@pytest.mark.covers("Logging", "`RotationThreshold`")
@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("a-%n.log", [f"a-0000{number}.log" for number in range(4)]),
        ("a.log", ["a.1.log", "a.2.log", "a.3.log", "a.log"]),
    ],
)
def test_a_file_of_the_threshold_is_followed_by_the_next(
    tmp_path: Path, mask: str, names: list[str]
) -> None:
    for _ in range(2):
        # The second process goes on with the file of the first one: nothing is written over.
        to_files(tmp_path, file_name=mask, rotation_bytes=200, kept_bytes=0)
        for count in range(5):
            logs.get("x").event("ready", count=count)
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    found = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert len(found) == 10


@pytest.mark.covers("Logging", "what is kept is bounded")
def test_the_oldest_files_of_a_mask_are_removed(tmp_path: Path) -> None:
    (tmp_path / "b-00000.log").write_text("another's")
    to_files(tmp_path, file_name="a-%n.log", rotation_bytes=200, kept_bytes=500)
    for count in range(50):
        logs.get("x").event("ready", count=count)
    own = list(tmp_path.glob("a-*.log"))
    assert sum(path.stat().st_size for path in own) <= 500
    assert any("count=49" in path.read_text() for path in own)
    assert (tmp_path / "b-00000.log").exists()


@pytest.mark.covers("Logging", "rotation by an action")
def test_rotate_ends_the_files(tmp_path: Path) -> None:
    zipped = LogTarget(target="gzip", directory=str(tmp_path), file_name="z-%n.log")
    to_files(tmp_path, file_name="a.log", also=(zipped, LogTarget(level="error")))
    assert logs.rotate() == []
    logs.get("x").event("ready", count=1)
    assert logs.rotate() == [tmp_path / "a.log", tmp_path / "z-00000.log.gz"]
    assert logs.rotate() == []
    with gzip.open(tmp_path / "z-00000.log.gz", "rt") as file:  # it has its end
        assert lines_of(file.read()) == ["info A-1 x 00-0002 ready count=1"]
    logs.get("x").event("ready", count=2)
    assert "count=2" in (tmp_path / "a.1.log").read_text()
    assert "count=2" in readable(tmp_path / "z-00001.log.gz")


def test_a_process_beside_the_instance_has_files_of_its_own(tmp_path: Path) -> None:
    options = LogOptions(target="file", directory=str(tmp_path), file_name="a.log")
    logs.configure("A-1.London", options, is_child=True)
    logs.get("link").event("ready")
    assert [path.name for path in tmp_path.iterdir()] == ["a.A-1.London.log"]


@pytest.mark.covers("Logging", "rotation by an action")
@pytest.mark.usefixtures("retried_at_once")
def test_a_file_that_was_moved_is_begun_again(tmp_path: Path) -> None:
    to_files(tmp_path, file_name="a.log")
    logs.get("x").event("ready", count=1)
    (tmp_path / "a.log").rename(tmp_path / "old")
    logs.get("x").event("ready", count=2)
    (tmp_path / "a.log").unlink()
    logs.get("x").event("ready", count=3)
    os.truncate(tmp_path / "a.log", 0)
    logs.get("x").event("ready", count=4)
    assert "count=1" in (tmp_path / "old").read_text()
    assert lines_of((tmp_path / "a.log").read_text()) == ["info A-1 x 00-0002 ready count=4"]


@pytest.mark.covers("Logging", "what is kept is bounded")
@pytest.mark.usefixtures("retried_at_once")
def test_a_file_that_was_emptied_has_room_again(tmp_path: Path) -> None:
    to_files(tmp_path, file_name="a.log", rotation_bytes=200)
    for count in range(6):
        if count == 3:
            os.truncate(tmp_path / "a.log", 0)
        logs.get("x").event("ready", count=count)
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    program = (
        "logs.configure('A', LogOptions(target=sys.argv[2], directory=sys.argv[1], "
        "file_name='a.log'))\n"
        "for count in range(100): logs.get('x').event('ready', count=count)\n"
        "print('written', flush=True); sys.stdin.readline()\n"
    )
    for target in ("file", "gzip"):
        directory = tmp_path / target
        children = [process(program, directory, target) for _ in range(2)]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "written\n"
        for child in children:
            ended(child)
        found = list(directory.iterdir())
        texts = [
            gzip.decompress(path.read_bytes()).decode() if target == "gzip" else path.read_text()
            for path in found
        ]
        assert [len(lines_of(text)) for text in texts] == [100, 100]


def test_a_torn_line_of_a_killed_process_is_ended(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("2026 info A-1 x ready tor")
    to_files(tmp_path, file_name="a.log")
    logs.get("x").event("ready")
    assert (tmp_path / "a.log").read_text().startswith("2026 info A-1 x ready tor\n20")


def test_a_directory_that_cannot_be_used_is_named_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    logs.configure("A-1", LogOptions())
    wrong = LogTarget(target="file", directory=str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="cannot write to the directory"):
        to_files(tmp_path, also=(wrong,))
    logs.get("x").event("ready")
    assert "ready" in capsys.readouterr().err


# -- gzip ------------------------------------------------------------------------------------------
@pytest.mark.covers("Logging", "`Protocol` `gzip`")
def test_a_gzip_file_is_read_while_it_grows_and_after_a_kill(tmp_path: Path) -> None:
    child = process(
        "logs.configure('A-1', LogOptions(target='gzip', directory=sys.argv[1], "
        "file_name='a.log'))\n"
        "for count in range(500):\n"
        "    logs.get('x').event('ready', count=count)\n"
        "    if count % 100 == 0: print(count, flush=True); sys.stdin.readline()\n"
        "print('all', flush=True); sys.stdin.readline()\n",
        tmp_path,
    )
    assert child.stdout is not None and child.stdin is not None
    path = tmp_path / "a.log.gz"
    for count in range(0, 500, 100):
        assert child.stdout.readline() == f"{count}\n"
        assert lines_of(readable(path))[-1] == f"info A-1 x 00-0002 ready count={count}"
        child.stdin.write("\n")
        child.stdin.flush()
    assert child.stdout.readline() == "all\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    assert len(lines_of(readable(path))) == 500
    tool = shutil.which("gzip")
    if tool is not None:
        done = subprocess.run([tool, "-dc", str(path)], capture_output=True, text=True, check=False)
        assert len(lines_of(done.stdout)) == 500 and "unexpected end of file" in done.stderr
    # 500 lines of 60 bytes compress, although each can be read at once.
    assert path.stat().st_size < len(readable(path)) / 2
    # The next process begins another file: behind an unfinished stream nothing could be read.
    logs.configure("A-1", LogOptions(target="gzip", directory=str(tmp_path), file_name="a.log"))
    logs.get("x").event("ready", again=True)
    logs.close()
    assert "again=true" in gzip.decompress((tmp_path / "a.1.log.gz").read_bytes()).decode()


def test_a_gzip_file_is_rotated_by_the_size_of_its_lines(tmp_path: Path) -> None:
    logs.configure(
        "A-1",
        LogOptions(target="gzip", directory=str(tmp_path), file_name="%n", rotation_bytes=10_000),
    )
    for _ in range(25):
        logs.get("x").event("ready", pad="x" * 1_000)
    logs.close()
    sizes = [len(gzip.decompress(path.read_bytes())) for path in sorted(tmp_path.iterdir())]
    assert len(sizes) == 3 and all(size <= 10_000 for size in sizes)


# -- a full disk -----------------------------------------------------------------------------------
FULL = """
target, directory = sys.argv[1:]
bounded_files.LOOK_EVERY_S = log_targets.LOOK_EVERY_S = 0.0
logs.configure('A-1', LogOptions(target=target, directory=directory, file_name='a-%n.log', also=(
    LogTarget(target='stdout', format='json'),)))
logger = logs.get('x')
count = 0
while not logs.lost_lines():
    count += 1
    logger.event('ready', count=count, pad=os.urandom(300))
for _ in range(9):
    count += 1
    logger.event('ready', count=count, pad=os.urandom(300))
lost, failure = logs.lost_lines(), logs.status()[0]['failure']
{free}
logger.event('ready', count=count + 1)
logs.close()
print(count, lost, logs.lost_lines(), failure, file=sys.stderr)
"""


def what_is_left(directory: Path, target: str) -> list[str]:
    found: list[str] = []
    for path in sorted(directory.glob("a*")):
        if path.stat().st_size:
            text = readable(path) if target == "gzip" else path.read_text()
            assert text.endswith("\n")
            found += lines_of(text)
    return found


def check_full(directory: Path, target: str, err: str, out: str, why: str) -> None:
    count, lost, lost_then, failure = err.strip().split(" ", 3)
    assert lost == lost_then == "10" and why in failure
    # The other target has all lines.
    assert len(out.splitlines()) == int(count) + 1
    lines = what_is_left(directory, target)
    note = next(at for at, line in enumerate(lines) if "log_lines_lost" in line)
    assert f"lines={lost} target={target}" in lines[note]
    assert lines[note].startswith("warning A-1 log 00-0019 log_lines_lost ")
    numbers = [int(re.findall(r"count=(\d+)", line)[0]) for line in lines if "count=" in line]
    whole = int(count) - int(lost)
    assert numbers == [*range(1, whole + 1), int(count) + 1]
    assert note == whole


@pytest.mark.covers("Logging", "a full disk")
@pytest.mark.parametrize("target", ["file", "gzip"])
def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path, target: str) -> None:
    # A limit of the process stands for a full disk: the write that crosses it is cut short.
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    free = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, "
        "(resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    )
    child = process(FULL.format(free=free), target, tmp_path, preexec_fn=limit)
    out, err = ended(child)
    if target == "file":
        check_full(tmp_path, target, err, out, "")
    else:
        # Another file has room here until it is as large: only the line that crossed was lost.
        assert what_is_left(tmp_path, target)


@pytest.mark.covers("Logging", "a full disk")
@pytest.mark.parametrize("target", ["file", "gzip"])
def test_a_full_file_system_loses_lines_and_says_how_many(tmp_path: Path, target: str) -> None:
    tool = shutil.which("unshare")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    enter = [str(tool), "--mount", "--map-root-user"]
    mount = f"mount -t tmpfs -o size=64k tmpfs {mounted}"
    if tool is None or subprocess.run([*enter, "sh", "-c", mount], check=False).returncode:
        pytest.skip("this system gives no mount namespace")
    free = "os.unlink(directory + '/ballast')"
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + FULL.format(free=free))
    command = (
        f"{mount} && head -c 20000 /dev/zero > {mounted}/ballast && "
        f"{sys.executable} -B {script} {target} {mounted} && cp {mounted}/a* {kept}"
    )
    done = subprocess.run(
        [*enter, "sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    check_full(kept, target, done.stderr, done.stdout, "No space left on device")


@pytest.mark.usefixtures("retried_at_once")
def test_a_directory_that_is_gone_is_made_again(tmp_path: Path) -> None:
    to_files(tmp_path / "l", file_name="a.log")
    logs.get("x").event("ready", count=1)
    shutil.rmtree(tmp_path / "l")
    (tmp_path / "l").write_text("in the way")
    logs.get("x").event("ready", count=2)
    assert logs.lost_lines() == 1
    (tmp_path / "l").unlink()
    logs.get("x").event("ready", count=3)
    note, line = lines_of((tmp_path / "l" / "a.log").read_text())
    assert "log_lines_lost lines=1 target=file" in note and line.endswith("count=3")


def test_what_cannot_be_opened_is_not_tried_for_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_files(tmp_path / "l", file_name="a.log")
    (tmp_path / "l").rmdir()
    (tmp_path / "l").write_text("in the way")
    tried: list[Path] = []

    def refused(directory: Path) -> None:
        tried.append(directory)
        raise NotADirectoryError(20, "in the way")

    monkeypatch.setattr(bounded_files, "make_directory", refused)
    monkeypatch.setattr(log_targets, "LOOK_EVERY_S", 3_600.0)
    for _ in range(100):
        logs.get("x").event("ready")
    assert logs.lost_lines() == 100 and len(tried) == 1


# -- syslog ----------------------------------------------------------------------------------------
class Daemon:
    """A syslog: a datagram socket as /dev/log is one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def received(self) -> list[str]:
        self._socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(self._socket.recv(1 << 16).decode())
            except BlockingIOError:
                return found

    def ends(self) -> None:
        self._socket.close()
        self.path.unlink()


def to_syslog(path: Path, level: str = "developer", **options: Any) -> None:
    logs.configure("A-1", LogOptions(level, "syslog", socket=str(path), **options))


@pytest.mark.covers("Logging", "`Protocol` `syslog`")
def test_the_syslog_gets_each_line_with_its_severity(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "log")
    to_syslog(daemon.path, facility="LOG_LOCAL2", options=("LOG_PID",), ident="amps dma")
    logger = logs.get("x")
    for write in (
        logger.debug,
        logger.event,
        logger.warning,
        logger.error,
        logger.critical,
        logger.emergency,
    ):
        write("ready", text="é\n")
    lines = daemon.received()
    # The severities of LOG_DEBUG, INFO, WARNING, ERR, CRIT and EMERG, above LOG_LOCAL2 (18).
    assert [line.partition(">")[0] for line in lines] == [
        f"<{18 * 8 + severity}" for severity in (7, 6, 4, 3, 2, 0)
    ]
    assert re.fullmatch(
        rf"<150>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d amps dma\[{os.getpid()}\]: "
        r'\S+Z info A-1 x 00-0002 ready text="é\\n"',
        lines[1],
    )
    to_syslog(daemon.path)
    logger.event("ready")
    (line,) = daemon.received()
    assert line.startswith("<14>") and " A-1: " in line  # LOG_USER, the process's name
    daemon.ends()


@pytest.mark.covers("Logging", "a syslog that is away")
def test_a_syslog_that_is_away_loses_lines_and_is_told_of(
    tmp_path: Path, retried_at_once: None
) -> None:
    path = tmp_path / "log"
    to_syslog(path, options=("LOG_NDELAY", "LOG_CONS"))  # away from the beginning
    logger = logs.get("x")
    logger.event("ready", count=0)
    daemon = Daemon(path)
    logger.event("ready", count=1)
    note, line = daemon.received()
    assert "A-1 log 00-0019 log_lines_lost lines=1 target=syslog" in note
    assert line.endswith("count=1")
    daemon.ends()
    for count in range(2, 7):
        logger.event("ready", count=count)
    assert logs.lost_lines() == 6 and logs.status()[0]["failure"]
    daemon = Daemon(path)
    logger.event("ready", count=7)
    note, line = daemon.received()
    assert "log_lines_lost lines=5 target=syslog" in note and line.endswith("count=7")
    # One that was started again has another socket, and loses nothing.
    daemon.ends()
    daemon = Daemon(path)
    logger.event("ready", count=8)
    (line,) = daemon.received()
    assert line.endswith("count=8") and logs.lost_lines() == 6
    assert logs.status()[0]["failure"] == ""
    daemon.ends()


def test_a_syslog_that_is_away_is_not_tried_for_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_targets, "LOOK_EVERY_S", 3_600.0)
    to_syslog(tmp_path / "log")
    logs.get("x").event("ready")
    daemon = Daemon(tmp_path / "log")
    logs.get("x").event("ready")
    assert daemon.received() == [] and logs.lost_lines() == 2
    daemon.ends()


@pytest.mark.covers("Logging", "a syslog that is away")
def test_a_syslog_that_does_not_read_holds_up_nothing(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "log")
    to_syslog(daemon.path)
    logger = logs.get("x")
    count = 0
    while not logs.lost_lines():
        count += 1
        logger.event("ready", count=count)
    logger.event("ready", count=count + 1)
    assert "[Errno 11]" in logs.status()[0]["failure"], "it waited"
    assert len(daemon.received()) == count - 1
    logger.event("ready", count=count + 2)
    note, line = daemon.received()
    assert "log_lines_lost lines=2" in note and line.endswith(f"count={count + 2}")
    daemon.ends()


def test_a_long_line_is_cut_for_the_syslog(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "log")
    to_syslog(daemon.path)
    logs.get("x").event("ready", text="é" * 100_000)
    (line,) = daemon.received()
    assert line.endswith("éé…") and len(line.encode()) <= log_targets.SYSLOG_BYTES_MAX + 3
    daemon.ends()


def test_perror_copies_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = Daemon(tmp_path / "log")
    to_syslog(daemon.path, options=("LOG_PERROR",))
    logs.get("x").event("ready")
    assert capsys.readouterr().err.endswith("info A-1 x 00-0002 ready\n")
    assert len(daemon.received()) == 1
    daemon.ends()


def test_a_note_that_is_taken_alone_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retried_at_once: None
) -> None:
    to_syslog(tmp_path / "log")
    logger = logs.get("x")
    logger.event("ready", count=1)
    daemon = Daemon(tmp_path / "log")
    send = log_targets.SyslogPlace._send

    def notes_only(place: log_targets.SyslogPlace, level: int, line: bytes) -> None:
        if b"log_lines_lost" not in line:
            raise BlockingIOError(11, "full")
        send(place, level, line)

    with monkeypatch.context() as patch:
        patch.setattr(log_targets.SyslogPlace, "_send", notes_only)
        logger.event("ready", count=2)
    logger.event("ready", count=3)
    first, second, line = daemon.received()
    assert "lines=1 " in first and "lines=1 " in second and line.endswith("count=3")
    assert logs.lost_lines() == 2
    daemon.ends()


def test_a_line_that_is_excluded_tells_of_no_loss(tmp_path: Path, retried_at_once: None) -> None:
    to_syslog(tmp_path / "log", exclude=("00-0019",))
    logs.get("x").event("ready")
    daemon = Daemon(tmp_path / "log")
    logs.get("x").event("ready")
    assert len(daemon.received()) == 1
    daemon.ends()


# -- files in the background -----------------------------------------------------------------------
def in_background(directory: Path, **values: Any) -> LogOptions:
    return LogOptions(
        target="file", directory=str(directory), file_name="%p-%n.log", in_background=True, **values
    )


class Hung:
    """A place whose disk hangs until it goes on; it may refuse lines, too."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.is_reached = threading.Event()
        self.refuses: set[bytes] = set()
        self.lines: list[bytes] = []

    def write(self, lines: Sequence[tuple[int, bytes]]) -> int:
        self.is_reached.set()
        assert self.goes_on.wait(60)
        if any(line in self.refuses for _, line in lines):
            raise OSError(28, "No space left on device")
        self.lines += (line for _, line in lines)
        return len(lines)

    def rotate(self) -> None:
        return None

    def close(self) -> None:
        self.lines.append(b"closed")


def background(place: Hung) -> log_targets.BackgroundPlace:
    return log_targets.BackgroundPlace(
        lambda: place, lambda lost, why: (0, f"{lost} lost: {why}".encode())
    )


@pytest.mark.covers("Logging", "a disk that hangs holds up nothing that logs in the background")
def test_a_disk_that_hangs_holds_up_nothing_and_what_is_lost_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_targets, "WAITING_BYTES_MAX", 30)
    place = Hung()
    tested = background(place)
    tested.write([(20, b"first")])
    assert place.is_reached.wait(60)
    # The thread waits for the disk: these wait in memory, and the last two have no room.
    for number in range(5):
        tested.write([(20, b"line %05d" % number)])
    assert tested.lost == 2 and tested.failure == "the disk of the log hangs"
    place.goes_on.set()
    tested.close()
    assert place.lines == [
        b"first",
        b"2 lost: the disk of the log hangs",
        b"line 00000",
        b"line 00001",
        b"line 00002",
        b"closed",
    ]
    assert tested.failure == "" and tested.lost == 2


def test_of_lines_that_are_refused_together_those_are_written_for_which_there_is_room() -> None:
    place = Hung()
    place.refuses.add(b"large")
    tested = background(place)
    tested.write([(20, b"first")])
    assert place.is_reached.wait(60)
    tested.write([(20, b"small"), (20, b"large"), (20, b"behind")])
    place.goes_on.set()
    tested.close()
    assert place.lines == [b"first", b"small", b"closed"]
    assert tested.lost == 2 and "No space" in tested.failure
    tested.write([(20, b"later")])
    tested.close()
    assert place.lines[3:] == [b"2 lost: [Errno 28] No space left on device", b"later", b"closed"]


def test_the_end_of_a_process_waits_for_a_disk_that_hangs_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_targets, "CLOSE_S", 0.01)
    place = Hung()
    tested = background(place)
    tested.write([(20, b"first")])
    assert place.is_reached.wait(60)
    tested.close()
    assert place.lines == [], "it returned although nothing is written"
    place.goes_on.set()


@pytest.mark.covers("Logging", "a disk that hangs holds up nothing that logs in the background")
def test_a_directory_that_cannot_be_written_keeps_no_process_from_its_start(
    tmp_path: Path, retried_at_once: None
) -> None:
    (tmp_path / "log").write_text("in the way")
    logs.configure("A-1", in_background(tmp_path / "log", format="json"))
    logs.get("instance").event("ready", count=1)
    logs.close()
    assert logs.lost_lines() == 1
    (status,) = logs.status()
    assert status["lost"] == 1 and "cannot write to the directory" in status["failure"]
    (tmp_path / "log").unlink()
    logs.get("instance").event("ready", count=2)
    logs.close()
    lines = (tmp_path / "log" / "A-1-00000.log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["log_lines_lost", "ready"]
    assert json.loads(lines[0])["lines"] == 1


def test_a_process_beside_the_instance_keeps_a_part_of_what_the_instance_keeps(
    tmp_path: Path,
) -> None:
    for name, is_child in (("A-1", False), ("A-1.B-1", True)):
        options = in_background(tmp_path, rotation_bytes=256 * 1024, kept_bytes=1024 * 1024)
        logs.configure(name, options, is_child=is_child)
        for number in range(2_500):
            logs.get("instance").event("ready", count=number, text="x" * 1_000)
        logs.close()
    sizes = {
        name: sum(path.stat().st_size for path in tmp_path.glob(f"{name}-0*.log"))
        for name in ("A-1", "A-1.B-1")
    }
    assert 512 * 1024 < sizes["A-1"] <= 1024 * 1024
    assert 128 * 1024 < sizes["A-1.B-1"] <= 256 * 1024


@pytest.mark.covers("Logging", "a disk that hangs holds up nothing that logs in the background")
def test_lines_that_were_logged_in_the_background_are_there_after_a_kill(tmp_path: Path) -> None:
    program = """
    logs.configure("A-1", LogOptions(target="file", directory=sys.argv[1], format="json",
                                     file_name="%p-%n.log", in_background=True))
    for number in range(1000):
        logs.get("instance").event("ready", count=number)
    print("logged", flush=True)
    sys.stdin.readline()
    """
    child = process(textwrap.dedent(program), tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "logged\n"
    path = tmp_path / "A-1-00000.log"
    deadline_s = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < 1000:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    child.kill()
    child.communicate()
    assert [json.loads(line)["count"] for line in path.read_text().splitlines()] == [*range(1000)]
