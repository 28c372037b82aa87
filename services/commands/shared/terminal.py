"""The terminal as a whole screen: taken, drawn on, and given back as it was on every way out.

A process that ends without giving it back leaves a terminal that shows no typing. So the signals
that end a process only set a mark here, and the block that has the screen ends by itself.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from raylay.services.messages.plain_text import plain

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Control sequences that switch to the other screen, hide the cursor, and cut long lines off."""
_GIVE_BACK = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_STYLES: Mapping[str, str] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "working": "36",
    "attention": "33",
    "act": "1;31",
    "unknown": "35",
}
READ_BYTES = 1024
WIDTH_DEFAULT, HEIGHT_DEFAULT = 80, 24


def is_interactive() -> bool:
    """Returns whether a person looks at the output of this process, and types."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class FullScreen:
    """The whole terminal. For the main thread, whose signals it takes meanwhile.

    Attributes:
        ended_by: number of the signal that asked the process to end; 0: none came.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._colours = "NO_COLOR" not in os.environ
        self._encoding = sys.stdout.encoding or "utf-8"
        self._saved: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._wakeup_before = -1
        self._heard = self._told = -1
        self._suspended = False
        self.ended_by = 0

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._input)
        self._heard, self._told = os.pipe()
        for end in (self._heard, self._told):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        try:
            for number in ENDING:
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:  # as behind nohup
                    self._handlers[number] = before
                    signal.signal(number, self._end)
            for number, handler in (
                (signal.SIGWINCH, _nothing),
                (signal.SIGTSTP, self._suspend),
            ):
                self._handlers[number] = signal.getsignal(number)
                signal.signal(number, handler)
            self._take()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._heard)
        os.close(self._told)
        self._heard = self._told = -1

    def _take(self) -> None:
        tty.setcbreak(self._input, termios.TCSADRAIN)
        self._write(_TAKE)

    def _give_back(self) -> None:
        # A terminal that is gone takes nothing back.
        with suppress(OSError):
            self._write(_GIVE_BACK)
        with suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)

    def _end(self, number: int, _: object) -> None:
        self.ended_by = self.ended_by or number

    def _suspend(self, *_: object) -> None:
        self._suspended = True

    def size(self) -> tuple[int, int]:
        """Returns columns and lines of the terminal now."""
        try:
            found = os.get_terminal_size(self._output)
        except OSError:
            return WIDTH_DEFAULT, HEIGHT_DEFAULT
        # A terminal that does not know its size says 0.
        return found.columns or WIDTH_DEFAULT, found.lines or HEIGHT_DEFAULT

    def draw(self, lines: Sequence[tuple[str, str]]) -> None:
        """Draws the screen anew.

        Args:
            lines: text and style of each line, from the top.
        """
        parts = ["\x1b[H"]
        for at, (text, style) in enumerate(lines):
            safe = plain(text)
            code = _STYLES.get(style, "") if self._colours else ""
            styled = f"\x1b[{code}m{safe}\x1b[0m" if code else safe
            parts.append(f"{styled}\x1b[K" + ("\r\n" if at < len(lines) - 1 else ""))
        parts.append("\x1b[J")
        self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._output, data) :]

    def wake(self) -> None:
        """Ends a `wait`. For any thread."""
        with suppress(OSError):  # It is full, and so wakes anyway; or the screen was given back.
            os.write(self._told, b"\0")

    def wait(self, timeout_s: float) -> bytes:
        """Waits until a key, a signal or `wake` comes, or the time has passed. Returns what was
        typed."""
        typed = b""
        if not self.ended_by:
            ready, _, _ = select.select([self._input, self._heard], [], [], max(0.0, timeout_s))
            if self._heard in ready:
                with suppress(BlockingIOError):
                    while os.read(self._heard, READ_BYTES):
                        pass
            if self._input in ready:
                typed = self._read()
        if self._suspended:
            self._stop()
        return typed

    def _read(self) -> bytes:
        try:
            typed = os.read(self._input, READ_BYTES)
        except OSError:
            typed = b""
        if not typed:
            # The terminal is gone.
            self.ended_by = self.ended_by or signal.SIGHUP
        return typed

    def _stop(self) -> None:
        """Gives the terminal to the shell until the user brings this process back."""
        self._suspended = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on after SIGCONT.
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()


def _nothing(*_: object) -> None:
    """Handles a signal that only ends the wait."""
