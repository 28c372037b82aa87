"""Ctrl-C and SIGTERM are answered at once, say what is left, and leave nothing that goes on
unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import typer

from raylay.services.commands import admin, lifecycle
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.locks import starting
from raylay.services.fabric.plan import FabricRecord, record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.rollout import Progress, Rollout

pytestmark = pytest.mark.covers("Fabrics and tracing", "Ctrl-C ends a start")

FILE = "fabric: f\ntopics: [notes]\nregions: {here: 2}\n"
ANSWERED_S = 20.0
"""What is not answered sleeps for a minute. A busy machine may take its time for the rest."""
# Where the signal does nothing, as in a library's call that does not come back.
DEAF = """
import signal, sys, time
from raylay.services.commands.shared.interrupts import interruptible
with interruptible("it is ending", float(sys.argv[1])):
    signal.signal(signal.SIGINT, lambda *_: None)
    print("begun", flush=True)
    time.sleep(60)
"""
# A program that runs `up`, whose start takes a minute.
SLOW_UP = """
import sys, time
from raylay.services import entry
from raylay.services.fabric import Fabric
def start(self, *arguments, **options):
    print("begun", flush=True)
    time.sleep(60)
Fabric.start = start
sys.argv = ["raylay", "up", *sys.argv[1:]]
entry.main()
"""
# The signal goes to another thread than the main one, so it does not wake the event loop.
ELSEWHERE = """
import asyncio, signal, threading
from raylay.services.commands.shared.interrupts import run_async
def interrupt():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
async def idle():
    print("begun", flush=True)
    threading.Timer(0.1, interrupt).start()
    await asyncio.sleep(60)
try:
    run_async(idle())
except KeyboardInterrupt:
    print("ended", flush=True)
"""
# A command that waits as a client does. Argument 1 says whether Ctrl-C is ignored, as in programs
# that a script starts with `&`.
WAITING = """
import asyncio, signal, sys
from raylay.services import cli, entry
from raylay.services.commands.shared.interrupts import run_async
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
async def waits():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("closed", flush=True)
cli.main = lambda: run_async(waits())
try:
    entry.main()
except KeyboardInterrupt:
    print("ended", flush=True)
"""
# A program that runs `up --detach`. Argument 1 is the program of the start, which takes a minute.
DETACHED = """
import sys
from raylay.services import entry
from raylay.services.commands import lifecycle
lifecycle.UP_PROGRAM = [sys.executable, "-c", sys.argv[1]]
sys.argv = ["raylay", "up", "f.yaml", "--detach"]
print("begun", flush=True)
entry.main()
"""
UP = """
import pathlib, sys, time
from raylay.services.fabric.locks import StartLocks
holds = StartLocks("f", pathlib.Path(sys.argv[-1]))
print("begun", flush=True)
time.sleep(60)
"""


def begun(program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A process that runs the program and has said so."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_a_program_that_hears_nothing_is_ended_by_the_second_one() -> None:
    process = begun(DEAF, "60")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == "it is ending\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=ANSWERED_S)[1] == "raylay: ended at once\n"
    assert process.returncode == 130


def test_a_program_that_hears_nothing_has_some_seconds() -> None:
    process = begun(DEAF, "0.1")
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=ANSWERED_S)[1]
    assert (told, process.returncode) == ("it is ending\nraylay: ended at once\n", 130)


def test_who_waits_hears_of_it_whenever_it_comes() -> None:
    assert begun(ELSEWHERE).communicate(timeout=ANSWERED_S)[0] == "ended\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_in_the_foreground_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FILE)
    runtime = {**os.environ, registry.REGISTRY_VARIABLE: str(tmp_path / "runtime")}
    process = begun(SLOW_UP, "f.yaml", cwd=tmp_path, env=runtime)
    process.send_signal(number)
    assert process.communicate(timeout=ANSWERED_S)[1].splitlines() == [
        "raylay: interrupted: ending the start of f",
        "raylay: f is not started; its data is in data/f",
    ]
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_detached_start_ends_with_the_command(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    (tmp_path / "f.yaml").write_text(FILE)
    process = begun(DETACHED, UP, cwd=tmp_path)
    log = tmp_path / "data" / "f" / "up.log"
    while not (log.exists() and "begun" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    told = process.communicate(timeout=ANSWERED_S)[1].splitlines()
    assert told[-2:] == [
        "raylay: interrupted: ending the start of f",
        "raylay: f is not started; its data is in data/f",
    ]
    assert process.returncode == 130
    assert starting() == [], "nothing goes on unseen"


@pytest.mark.parametrize(
    ("number", "ctrl_c"),
    [(signal.SIGINT, "heard"), (signal.SIGTERM, "heard"), (signal.SIGTERM, "ignored")],
)
def test_a_client_is_closed_before_the_command_ends(number: signal.Signals, ctrl_c: str) -> None:
    process = begun(WAITING, ctrl_c)
    process.send_signal(number)
    assert process.communicate(timeout=ANSWERED_S) == ("closed\nended\n", "")


class Applied:
    """The handle, control and instances of a running pair without Ray, which another instance joins
    and whose topics change; what is done, until somebody interrupts it."""

    def __init__(self, running: FabricRecord, topics: Collection[str], stop_at: str = "") -> None:
        self.record = running
        self.settings = declared(2, ["notes"]).settings()
        self.wanted = declared(3, topics).settings()
        self.stop_at = stop_at
        self.launched: list[str] = []
        parts: Any = self
        self.rollout = Rollout(parts, parts, parts, parts)

    def refresh(self) -> None: ...

    def known(self) -> Any:
        return self.settings, self.record

    def keep(self, record: FabricRecord) -> None:
        self.record = record

    def actor(self, name: str) -> Any:
        return object() if name in ("here-1", "here-2", *self.launched) else None

    def authorize(self, names: Any, call: str) -> None: ...

    def caller_for(self, name: str) -> None: ...

    def settle(self) -> None: ...

    def check_ports(self, *arguments: Any) -> None: ...

    def check_tls(self, *arguments: Any) -> None: ...

    def launch(self, instance: Any) -> None:
        self.launched.append(instance.name)

    def status(self) -> dict[str, Any]:
        return {"instances": []}

    def wait_ready(self, name: str | None = None, timeout_s: float = 0) -> None:
        self._do(f"ready {name}")

    def wait_running(self, name: str, timeout_s: float = 0) -> None:
        self._do(f"running {name}")

    def wait_connected(self, timeout_s: float = 0, *, only: Any = None) -> None: ...

    def restart(self, name: str, timeout_s: float, **more: Any) -> None:
        self._do(f"restart {name}")

    def _do(self, what: str) -> None:
        if what == self.stop_at:
            raise KeyboardInterrupt


def declared(instances: int, topics: Collection[str]) -> Fabric:
    return Fabric("f", topics=list(topics)).region("here", instances=instances)


def test_an_apply_that_is_interrupted_says_what_is_left_and_goes_on_with_that(
    tmp_path: Path,
) -> None:
    running = record_of(declared(2, ["notes"]).settings(), tmp_path)
    fabric = Applied(running, ["notes", "letters"], "restart here-2")
    progress = Progress()
    with pytest.raises(KeyboardInterrupt):
        fabric.rollout.apply(fabric.wanted, progress=progress)
    assert progress.line() == (
        "started: none; restarted: here-1; left: here-3, here-2; the same command again goes on "
        "with what is left"
    )
    fabric.stop_at = ""
    again = Progress()
    done = fabric.rollout.apply(fabric.wanted, progress=again)
    # here-3 was begun before: it is not claimed to be started now.
    assert (done.started, done.restarted) == ((), ("here-2",))
    assert (again.started, again.restarted, again.left) == ([], ["here-2"], [])
    nothing = fabric.rollout.apply(fabric.wanted)
    assert (nothing.started, nothing.restarted) == ((), ())
    assert Progress().line() == "nothing was changed"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FabricError("here-2 did not come back")])
def test_apply_says_what_is_done_and_what_is_left_whatever_ends_it(
    error: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Attached:
        def __enter__(self) -> Attached:
            return self

        def __exit__(self, *_: object) -> None: ...

        def apply(self, settings: object, *, progress: Progress, **_: object) -> None:
            progress.restarted.append("here-1")
            progress.left.append("here-2")
            raise error

    path = tmp_path / "f.yaml"
    path.write_text(FILE)
    monkeypatch.setattr(lifecycle, "running", lambda name: registry.RegistryEntry(name, "", ""))
    monkeypatch.setattr(Fabric, "attach", lambda name: Attached())
    with pytest.raises((typer.Exit, FabricError)):
        lifecycle.apply([path])
    assert capsys.readouterr().err.startswith(
        "raylay: started: none; restarted: here-1; left: here-2"
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FabricError("here-2 did not come back")])
def test_restart_says_what_is_done_and_what_is_left_whatever_ends_it(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Attached:
        def __enter__(self) -> Attached:
            return self

        def __exit__(self, *_: object) -> None: ...

        def rolling_restart(self, names: object, timeout_s: float, *, progress: Progress) -> None:
            progress.restarted.append("here-1")
            progress.left[:] = ["here-2", "here-3"]
            raise error

    monkeypatch.setattr(admin, "running", lambda name: registry.RegistryEntry(name, "", ""))
    monkeypatch.setattr(Fabric, "attach", lambda name: Attached())
    with pytest.raises((typer.Exit, FabricError)):
        admin.restart([])
    assert capsys.readouterr().err.startswith(
        "raylay: restarted: here-1; left: here-2, here-3: `raylay restart here-2 here-3` goes on"
    )
    assert Progress().restart_line() == "nothing was restarted"
    assert Progress(restarted=["a"]).restart_line() == "restarted: a"


def test_imports_are_interrupted_without_a_traceback(tmp_path: Path) -> None:
    """A module of the command line is replaced by one that is interrupted while it loads."""
    (tmp_path / "typer.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "raylay.services.entry", "--help"],
        capture_output=True,
        text=True,
        timeout=ANSWERED_S,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_program_imports_nothing_before_it_is_safe() -> None:
    code = "import sys; from raylay.services import entry; print('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
