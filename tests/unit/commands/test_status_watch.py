"""`raylay status --watch`: a line for each change, a picture in place, and a quiet end."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from typing import Any

import pytest

from raylay.services.commands import status_watch
from raylay.services.commands.status import status_facts, status_lines, status_table
from raylay.services.commands.status_watch import changes_of, watch_status
from raylay.services.errors import FabricError


def status(state: str = "", **destination: Any) -> dict[str, Any]:
    instance = {
        "name": "A-1", "group": "A", "ready": not state, "phase": state, "reason": "",
        "destinations": {"B": {"connected": True, "sync": True, **destination}},
    }  # fmt: skip
    return {"fabric": "orders", "instances": [instance]}


def watch(answers: list[Any], as_json: bool = False) -> None:
    """Shows these answers, and then gets the signal that a terminal sends for Ctrl-C."""
    left = iter(answers)
    ended = threading.Event()

    def ask() -> dict[str, Any]:
        found = next(left, None)
        if found is None:
            # The signal comes while a question waits for its answer.
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait()
            raise FabricError("it has ended")
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    try:
        watch_status(
            ask,
            lambda found: (status_table(found), status_lines(found)),
            status_facts,
            interval_s=0.0,
            as_json=as_json,
            now_us=lambda: 1_000_000,
        )
    finally:
        ended.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_watch, "LAST_ANSWER_S", 0.01)


def test_elsewhere_than_on_a_terminal_there_is_a_line_for_each_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    watch([status(), status(), status("catching_up"), status(connected=False, why="refused")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("1970-01-01 00:00:01 ") for line in lines][:6] == [
        "A-1: ready",
        "A-1 to B: sync",
        "fabric: answers",
        "A-1: catching_up (was ready)",
        "A-1: ready (was catching_up)",
        "A-1 to B: sync, disconnected: refused (was sync)",
    ]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_look_that_is_not_answered_is_a_change_and_it_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch([status(), FabricError("silence"), FabricError("silence"), status()], as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = [(each["subject"], each["was"], each["is"]) for each in told]
    assert said[2:5] == [
        ("fabric", None, "answers"),
        ("fabric", "answers", "no answer: silence"),
        ("fabric", "no answer: silence", "answers"),
    ]


def test_a_mistake_of_ours_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        watch([ZeroDivisionError()])


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_picture_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    watch([status(), status("recovering")])
    text = out.getvalue()
    assert "fabric orders" in text and "recovering" in text
    assert "\x1b[2K" in text and "\x1b[1A" in text, "the former picture is taken away"


def test_facts_leave_out_what_changes_at_each_look() -> None:
    one = status_facts(status(unacked=3, age_ms=5))
    assert changes_of(one, status_facts(status(unacked=99, age_ms=7))) == []
    gone = {name: text for name, text in one.items() if name == "A-1"}
    assert changes_of(one, gone) == [("A-1 to B", "sync", None)]
    assert status_watch.clock_text(0) == "1970-01-01 00:00:00"
