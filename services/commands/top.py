"""`raylay top`: a live screen of a fabric."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.shared.options import (
    FILE_COLUMNS,
    FabricOption,
    HttpOption,
    running,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.commands.shared.terminal import FullScreen, is_interactive
from raylay.services.commands.top_screen import (
    VIEWS,
    Screen,
    TopState,
    client_rows,
    keys_of,
    picture,
    pressed,
    screen,
)
from raylay.services.errors import ConfigurationError, RaylayError

if TYPE_CHECKING:
    from raylay.services.fabric.look import FabricLook

REDRAWN_S = 1.0
"""Time after which the screen is drawn again although nothing came: ages grow."""
STALE_S = 1.0
"""Time by which an answer may be late before the screen says so."""
LAST_ANSWER_S = 1.0
"""Time that a question which still runs has when the user ends the command."""


def top(
    fabric: FabricOption = "",
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    view: Annotated[str, typer.Option(help=f"What to show first: {', '.join(VIEWS)}.")] = VIEWS[0],
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture, as where no terminal is.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the values once, as one JSON object.")
    ] = False,
    http: HttpOption = None,
) -> None:
    """Watch a fabric: its instances, links, queues and clients on one screen, what is wrong first.

    The values come from an instance's administrator's interface where one answers, and from Ray
    where not; Ray tells neither the times of acks nor the free space of disks. Without a terminal
    it prints one picture. `?` shows the keys, q ends it.
    """
    if view not in VIEWS:
        raise ConfigurationError(f"--view {view[:40]}: give one of {', '.join(VIEWS)}")
    entry = None if http else running(fabric)
    # Imported late: a fabric that is not found is reported without loading these modules.
    from raylay.services.fabric.look import look_at

    state = TopState(view=view, interval_s=interval_s)
    ended_by = 0
    with look_at(entry, http or (), lambda text: echo(f"raylay: {text}", err=True)) as look:
        if as_json:
            echo_json(look.document(), default=str)
        elif once or not is_interactive():
            clients = client_rows(look.statuses())
            for line in picture(look.document(), clients, state, FILE_COLUMNS):
                echo(line.text)
        else:
            ended_by = watch(look, state)
    if ended_by:
        raise typer.Exit(128 + ended_by)


class Fetcher:
    """Asks for the values in a thread, so that keys are heard while a question waits.

    Args:
        wake: function that is called in that thread when an answer is there.
    """

    def __init__(self, look: FabricLook, wake: Callable[[], None]) -> None:
        self._look = look
        self._wake = wake
        self._wanted = threading.Event()
        self._with_clients = False
        self._ending = False
        self.document: dict[str, Any] | None = None
        self.clients: list[dict[str, Any]] = []
        self.error = ""
        """Why the last question was not answered; empty: it was."""
        self.answered_s = 0.0
        """Time of the last answer, by the monotonic clock; 0: there was none."""
        self.failure: BaseException | None = None
        """A mistake of ours: it ends the command."""
        self.is_asking = False
        self._thread = threading.Thread(target=self._run, name="raylay-top", daemon=True)
        self._thread.start()

    def ask(self, *, with_clients: bool) -> None:
        """Asks, unless a question waits already."""
        if not self.is_asking:
            self.is_asking, self._with_clients = True, with_clients
            self._wanted.set()

    def close(self) -> None:
        """Ends the thread, which may wait for an answer, and then ends with the process."""
        self._ending = True
        self._wanted.set()
        self._thread.join(LAST_ANSWER_S)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ending:
                return
            try:
                if self._with_clients:
                    self.clients = client_rows(self._look.statuses())
                self.document = self._look.document()
                self.error, self.answered_s = "", time.monotonic()
            except RaylayError as error:
                self.error = str(error)
            except BaseException as error:  # the main thread raises it
                self.failure = error
            self.is_asking = False
            self._wake()


@contextmanager
def _fetching(look: FabricLook, wake: Callable[[], None]) -> Any:
    fetcher = Fetcher(look, wake)
    try:
        yield fetcher
    finally:
        fetcher.close()


def watch(look: FabricLook, state: TopState) -> int:
    """Shows the screen until the user ends it. Returns the signal that ended it; 0: a key did."""
    with FullScreen() as terminal, _fetching(look, terminal.wake) as fetcher:
        asked_s, hurried = 0.0, state.hurried
        view = state.view
        # A terminal that is gone takes no picture, and the wait says so.
        while not terminal.ended_by:
            now_s = time.monotonic()
            changed = state.hurried != hurried or (state.view != view and state.view == "clients")
            is_due = not state.is_held and now_s - asked_s >= state.interval_s
            if not fetcher.is_asking and (not asked_s or changed or is_due):
                hurried, view, asked_s = state.hurried, state.view, now_s
                fetcher.ask(with_clients=state.view == "clients")
            drawn = screen(
                fetcher.document,
                fetcher.clients,
                state,
                *terminal.size(),
                stale=stale_text(fetcher, state, now_s),
            )
            with suppress(OSError):
                terminal.draw(drawn.lines)
            left_s = REDRAWN_S if state.is_held else asked_s + state.interval_s - now_s
            typed = terminal.wait(min(REDRAWN_S, max(0.05, left_s)))
            if fetcher.failure is not None:
                raise fetcher.failure
            after = after_keys(state, typed, drawn)
            if after is None:
                return 0
            state = after
        return terminal.ended_by


def after_keys(state: TopState, typed: bytes, drawn: Screen) -> TopState | None:
    """Returns the state after all that was typed; None: the user wants to end."""
    for key in keys_of(typed):
        after = pressed(state, key, drawn)
        if after is None:
            return None
        state = after
    return state


def stale_text(fetcher: Fetcher, state: TopState, now_s: float) -> str:
    """Returns why the values on the screen are not of now; empty: they are."""
    age_s = now_s - fetcher.answered_s
    if fetcher.error:
        since = f"no answer for {age_s:.0f} s: " if fetcher.answered_s else ""
        return f"{since}{fetcher.error}"
    if fetcher.answered_s and not state.is_held and age_s > state.interval_s + STALE_S:
        return f"the values are {age_s:.0f} s old: the answer takes long"
    return ""
