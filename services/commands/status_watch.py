"""`raylay status --watch`: the status of a fabric again and again, in place on a terminal, and as a
line for each change elsewhere."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from raylay.services.commands.shared.options import stop_signals
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import RaylayError

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_S = 0.1
"""Time, in seconds, after which a signal is noticed at the latest."""
LAST_ANSWER_S = 1.0
"""Time, in seconds, that a question which still runs has when the user ends the command."""
Status = dict[str, Any]


class StatusLooks:
    """Asks for the status in a thread, so that Ctrl-C is heard while a question waits.

    Args:
        ask: asks for the status.
        interval_s: time between the beginnings of two questions.
    """

    def __init__(self, ask: Callable[[], Status], interval_s: float) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._ending = threading.Event()
        self.answers: queue.Queue[Status | BaseException] = queue.Queue()
        """Statuses, and errors of those that were not answered."""
        self._thread = threading.Thread(target=self._run, name="raylay-status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            began_s = time.monotonic()
            try:
                self.answers.put(self._ask())
            except BaseException as error:  # the main thread raises what is a mistake of ours
                self.answers.put(error)
            self._ending.wait(max(0.0, began_s + self._interval_s - time.monotonic()))

    def close(self) -> None:
        """Ends the thread, which may wait for an answer, and then ends with the process."""
        self._ending.set()
        self._thread.join(LAST_ANSWER_S)


@contextmanager
def _looks(ask: Callable[[], Status], interval_s: float) -> Iterator[StatusLooks]:
    looks = StatusLooks(ask, interval_s)
    try:
        yield looks
    finally:
        looks.close()


def watch_status(
    ask: Callable[[], Status],
    picture: Callable[[Status], tuple[RenderableType, Sequence[str]]],
    facts: Callable[[Status], dict[str, str]],
    *,
    interval_s: float,
    as_json: bool,
    now_us: Callable[[], int],
) -> None:
    """Shows a fabric's status until Ctrl-C or SIGTERM.

    Args:
        ask: asks for the status; a RaylayError of it is shown, and it is asked again.
        picture: returns the table of a status and the lines below it.
        facts: returns what a status says of each thing, without what changes at each look.
        now_us: returns the time, in microseconds since 1970.
    """
    stopping = threading.Event()
    with stop_signals(stopping), _looks(ask, interval_s) as looks:
        if sys.stdout.isatty() and not as_json:
            _show_in_place(looks, stopping, picture, now_us)
        else:
            _show_changes(looks, stopping, facts, as_json, now_us)


def _answers(looks: StatusLooks, stopping: threading.Event) -> Iterator[Status | RaylayError]:
    while True:
        try:
            # What was answered before the signal is still shown.
            answer = looks.answers.get(timeout=0.001 if stopping.is_set() else LOOK_S)
        except queue.Empty:
            if stopping.is_set():
                return
            continue
        if isinstance(answer, BaseException) and not isinstance(answer, RaylayError):
            raise answer
        yield answer


def _show_in_place(
    looks: StatusLooks,
    stopping: threading.Event,
    picture: Callable[[Status], tuple[RenderableType, Sequence[str]]],
    now_us: Callable[[], int],
) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from raylay.services.messages.plain_text import plain

    last: list[RenderableType] = []
    with Live(Text("asking …"), console=Console(), auto_refresh=False) as shown:
        for answer in _answers(looks, stopping):
            moment = f"{clock_text(now_us())} UTC, Ctrl-C ends"
            if isinstance(answer, RaylayError):
                shown.update(
                    Group(*last, Text(plain(f"no answer at {moment}: {answer}"))), refresh=True
                )
                continue
            table, lines = picture(answer)
            last = [table, *(Text(plain(line)) for line in lines)]
            shown.update(Group(*last, Text(moment, style="dim")), refresh=True)


def _show_changes(
    looks: StatusLooks,
    stopping: threading.Event,
    facts: Callable[[Status], dict[str, str]],
    as_json: bool,
    now_us: Callable[[], int],
) -> None:
    before: dict[str, str] = {}
    fabric = ""
    for answer in _answers(looks, stopping):
        if isinstance(answer, RaylayError):
            present = {**before, "fabric": f"no answer: {answer}"}
        else:
            fabric, present = answer["fabric"], {**facts(answer), "fabric": "answers"}
        for subject, was, is_now in changes_of(before, present):
            if as_json:
                told = {"time_us": now_us(), "fabric": fabric, "subject": subject}
                echo_json({**told, "was": was, "is": is_now})
            else:
                came_from = "" if was is None else f" (was {was})"
                echo(f"{clock_text(now_us())} {subject}: {is_now or 'is gone'}{came_from}")
        sys.stdout.flush()
        before = present


def changes_of(
    before: dict[str, str], present: dict[str, str]
) -> list[tuple[str, str | None, str | None]]:
    """Returns (subject, former text, present text) of each fact that differs; None: there is no
    such fact."""
    return [
        (subject, before.get(subject), present.get(subject))
        for subject in dict.fromkeys((*before, *present))
        if before.get(subject) != present.get(subject)
    ]


def clock_text(time_us: int) -> str:
    """Returns the date and time of day, in UTC, of a time in microseconds since 1970."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
