"""`raylay top` on a pseudo-terminal: its keys, another size, and the terminal as it was on every
way out; and its pictures where there is no terminal."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner
from unit.commands.test_top_screen import DOCUMENT
from unit.fabric.test_by_interface import Interface, serving

from raylay.services.cli import app
from raylay.services.commands import top
from raylay.services.commands.shared.terminal import ENDING
from raylay.services.commands.top import Fetcher, after_keys, stale_text
from raylay.services.commands.top_screen import Screen, TopState
from raylay.services.errors import FabricError

DEADLINE_S = 60.0
TAKEN = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
GIVEN_BACK = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
STATUS = {
    "name": "NY-1",
    "ready": True,
    "subscribers": [{"client": "desk", "delivered": 5, "behind": 7, "unsent_bytes": 9}],
}
FAILING = """
from raylay.services import cli
from raylay.services.commands import top
def screen(*_, **__):
    raise ZeroDivisionError("a mistake")
top.screen = screen
cli.main()
"""
RUNNING = "from raylay.services import cli; cli.main()"


@pytest.fixture
def at() -> Iterator[Interface]:
    answers = {
        "/amps/instance/name.json": {"amps": {"instance": {"name": "NY-1"}}},
        "/raylay/fabric.json": DOCUMENT,
        "/raylay/status.json": STATUS,
    }
    with serving(**answers) as found:
        yield found


def _begin() -> None:
    """Makes the pseudo-terminal the child's own, and lets it hear all signals: where the tests run
    in the background some are ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (*ENDING, signal.SIGTSTP, signal.SIGWINCH):
        signal.signal(number, signal.SIG_DFL)


class OnTerminal:
    """The command on a pseudo-terminal of its own."""

    def __init__(self, address: str, code: str = RUNNING, *options: str) -> None:
        self.master, self._slave = os.openpty()
        self.resize(100, 30)
        self.before = self.settings()
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "top", "--http", address, *options],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_begin,
            env={**os.environ, "TERM": "xterm", "PYTHONFAULTHANDLER": ""},
        )

    def settings(self) -> list[Any]:
        found: list[Any] = termios.tcgetattr(self._slave)
        return found

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, *parts: bytes) -> bytes:
        """Waits until all of these were shown since the last call. Returns what was."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not all(part in self.shown for part in parts):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"not shown: {parts!r}; but: {self.shown[-2_000:]!r}"
            if select.select([self.master], [], [], left_s)[0]:
                self.shown += os.read(self.master, 65_536)
        found, self.shown = self.shown, b""
        return found

    def wait_end(self) -> tuple[int, bytes]:
        """Waits until it has ended. Returns its exit code, and what it showed last."""
        # What it writes has to be read, or it waits; the test's own end keeps the terminal.
        done = threading.Event()

        def read() -> None:
            while not done.is_set() or select.select([self.master], [], [], 0)[0]:
                if select.select([self.master], [], [], 0.05)[0]:
                    self.shown += os.read(self.master, 65_536)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            code = self.process.wait(DEADLINE_S)
        finally:
            done.set()
            reader.join()
        return code, self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self.master, self._slave):
            os.close(end)


@pytest.fixture
def run(
    at: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., OnTerminal]]:
    monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(tmp_path))
    made: list[OnTerminal] = []

    def start(code: str = RUNNING, *options: str) -> OnTerminal:
        made.append(OnTerminal(at.address, code, *options))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.covers("Utilities", "`raylay top` on a terminal")
def test_keys_and_another_size_change_the_screen(run: Callable[..., OnTerminal]) -> None:
    screen = run()
    shown = screen.wait_for(b"every 2 s")
    assert shown.count(TAKEN) == 1
    screen.wait_for(b"NY-1 ready".replace(b" ", b"      "), b"[1 overview]")
    screen.type(b"3")
    assert b"disconnected since 1 m" in screen.wait_for(b"[3 links]", b"every 2 s")
    screen.type(b"5")
    screen.wait_for(b"[5 clients]", b"desk")
    screen.type(b"?")
    screen.wait_for(b"q, Ctrl-C")
    screen.type(b"?-")
    screen.wait_for(b"every 5 s")
    screen.type(b" ")
    screen.wait_for(b"HELD  q quit")
    screen.resize(22, 8)
    screen.wait_for("HELD  q quit  ? help …".encode())
    assert screen.settings() != screen.before, "typing is read letter by letter, and not shown"
    screen.type(b"q")
    code, last = screen.wait_end()
    assert code == 0 and last.endswith(GIVEN_BACK)
    assert screen.settings() == screen.before


@pytest.mark.covers("Utilities", "`raylay top` on a terminal")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (b"q", 0),
        (b"\x03", 128 + signal.SIGINT),
        (b"\x1c", 128 + signal.SIGQUIT),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
    ],
)
def test_every_way_out_gives_the_terminal_back(
    end: bytes | int, code: int, run: Callable[..., OnTerminal]
) -> None:
    screen = run()
    screen.wait_for(b"every 2 s")
    if isinstance(end, bytes):
        screen.type(end)
    else:
        screen.process.send_signal(end)
    found, last = screen.wait_end()
    assert found == code and last.endswith(GIVEN_BACK)
    assert screen.settings() == screen.before


@pytest.mark.covers("Utilities", "`raylay top` on a terminal")
def test_a_mistake_of_ours_gives_it_back_too(run: Callable[..., OnTerminal]) -> None:
    screen = run(FAILING)
    code, last = screen.wait_end()
    assert code == 1 and screen.settings() == screen.before
    assert last.index(GIVEN_BACK) < last.index(b"ZeroDivisionError"), "it is read afterwards"


@pytest.mark.covers("Utilities", "`raylay top` on a terminal")
def test_whoever_stops_it_has_the_terminal_meanwhile(run: Callable[..., OnTerminal]) -> None:
    screen = run()
    screen.wait_for(b"every 2 s")
    # It leads its session, so that the kernel does not stop it, but goes on at once.
    screen.type(b"\x1a")
    shown = screen.wait_for(GIVEN_BACK, TAKEN, b"every 2 s")
    assert shown.index(GIVEN_BACK) < shown.index(TAKEN)
    screen.type(b"q")
    assert screen.wait_end()[0] == 0 and screen.settings() == screen.before


def test_one_whose_terminal_is_gone_ends(run: Callable[..., OnTerminal]) -> None:
    screen = run()
    screen.wait_for(b"every 2 s")
    os.close(screen.master)
    screen.master = os.open("/dev/null", os.O_RDONLY)
    assert screen.process.wait(DEADLINE_S) == 128 + signal.SIGHUP


def test_an_interface_that_ends_is_said_and_the_last_values_stay(
    run: Callable[..., OnTerminal], at: Interface
) -> None:
    screen = run(RUNNING, "--interval", "0.2")
    screen.wait_for(b"fabric orders")
    at.answers["/raylay/fabric.json"] = (500, {"error": "it is torn"})
    shown = screen.wait_for(b"s: it is torn", b"every 0.2 s")
    assert b"fabric orders" in shown
    screen.type(b"q")
    assert screen.wait_end()[0] == 0


# -- without a terminal ----------------------------------------------------------------------------
def raylay(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["top", *arguments])


@pytest.mark.covers("Utilities", "`raylay top` draws")
def test_without_a_terminal_it_is_one_picture(at: Interface) -> None:
    done = raylay("--http", at.address)
    assert done.exit_code == 0 and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "fabric orders  22:13:20 UTC  by NY-1"
    assert lines[-1].split() == ["desk", "NY-1", "1", "5", "7", "9"]
    links = raylay("--http", at.address, "--view", "links").stdout
    assert "NY-1 → LN-1" in links and "desk" not in links


def test_values_for_programs_and_a_view_that_is_none(at: Interface) -> None:
    assert json.loads(raylay("--http", at.address, "--json").stdout) == DOCUMENT
    wrong = raylay("--http", at.address, "--view", "all")
    assert wrong.exit_code == 1
    assert "give one of overview, instances" in str(wrong.exception)


# -- parts -----------------------------------------------------------------------------------------
class Looks:
    """A look that answers when it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun, self.may = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def document(self) -> dict[str, Any]:
        self.asked += 1
        self.begun.set()
        self.may.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return DOCUMENT

    def statuses(self) -> list[dict[str, Any]]:
        return [STATUS]


def test_a_question_that_waits_is_not_asked_twice_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(top, "LAST_ANSWER_S", 0.001)
    look, woken = Looks(), threading.Semaphore(0)
    fetcher = Fetcher(look, woken.release)
    fetcher.ask(with_clients=False)
    assert look.begun.wait(DEADLINE_S)
    fetcher.ask(with_clients=True)
    fetcher.close()
    assert fetcher.is_asking and fetcher.document is None, "close did not wait for it"
    look.may.set()
    assert woken.acquire(timeout=DEADLINE_S)
    assert (fetcher.document, fetcher.clients, look.asked) == (DOCUMENT, [], 1)


@pytest.mark.parametrize("error", [FabricError("away"), ZeroDivisionError("a mistake")])
def test_an_error_is_said_and_a_mistake_is_raised(error: Exception) -> None:
    look, woken = Looks(), threading.Semaphore(0)
    look.may.set()
    fetcher = Fetcher(look, woken.release)
    try:
        fetcher.ask(with_clients=True)
        assert woken.acquire(timeout=DEADLINE_S)
        assert fetcher.clients[0]["client"] == "desk" and fetcher.document == DOCUMENT
        look.error = error
        fetcher.ask(with_clients=False)
        assert woken.acquire(timeout=DEADLINE_S)
        assert (fetcher.error, fetcher.failure) in [("away", None), ("", error)]
        assert fetcher.document == DOCUMENT
    finally:
        fetcher.close()


def test_old_values_are_called_old() -> None:
    def told(answered_s: float, error: str = "", *, is_held: bool = False) -> str:
        fetcher: Any = SimpleNamespace(answered_s=answered_s, error=error)
        return stale_text(fetcher, TopState(is_held=is_held), 100.0)

    assert told(0.0) == told(98.0) == told(50.0, is_held=True) == ""
    assert told(50.0) == "the values are 50 s old: the answer takes long"
    assert told(50.0, "torn") == "no answer for 50 s: torn" and told(0.0, "torn") == "torn"


def test_all_that_was_typed_counts_until_it_ends() -> None:
    page = Screen([], 0, 10)
    state = after_keys(TopState(), b"3s", page)
    assert state is not None and (state.view, state.sort) == ("links", "by name")
    assert after_keys(TopState(), b"3qs", page) is None
    assert after_keys(TopState(), b"", page) == TopState()
