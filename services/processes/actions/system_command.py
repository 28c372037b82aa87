"""System commands of actions: each in a process group of its own, with an end.

At its end, or when its time is over, a command is killed with all that it has started, unless that
has left its process group; its output is bounded. A thread runs it, because the loop of an actor
cannot wait for child processes.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

COMMAND_S_MAX = 10.0
"""Time, in seconds, after which a command is killed."""
OUTPUT_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024
LOOK_S = 0.05
"""Time, in seconds, between two checks whether a command whose output stays open has ended."""


class CommandOutcome(NamedTuple):
    """The result of a command.

    Attributes:
        code: exit code; negative: number of the signal that ended it.
        output: the beginning of what it wrote to stdout and stderr.
        is_late: whether it was killed because it did not end.
    """

    code: int
    output: bytes
    is_late: bool


class SystemCommands:
    """Runs commands. Methods may be called from any thread.

    Owner: the process that runs actions. Lifecycle: until `close`, which kills what still runs.

    Args:
        directory: working directory of the commands.
        seconds_max: seconds after which a command is killed.
    """

    def __init__(self, directory: Path, seconds_max: float = COMMAND_S_MAX) -> None:
        self._directory = directory
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._is_closed = False

    def run(self, command: str, parameters: Mapping[str, str] | None = None) -> CommandOutcome:
        """Runs a command of the shell to its end. Blocks.

        Args:
            parameters: parameters of the shell that the command has besides those of this process.

        Raises:
            OSError: the command cannot be started.
            ValueError: a parameter has a zero byte.
        """
        environment: dict[bytes, bytes] = dict(os.environb)
        for name, text in (parameters or {}).items():
            environment[name.encode()] = text.encode("utf-8", "surrogateescape")
        with self._lock:
            if self._is_closed:
                raise OSError("the actions end")
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=environment,
                start_new_session=True,
            )
            self._running.add(process.pid)
        try:
            output, is_late = self._read(process)
            # Kill the group before the process is reaped: until then no other group can get its id.
            _kill_group(process.pid)
            return CommandOutcome(process.wait(), output, is_late)
        finally:
            assert process.stdout is not None
            process.stdout.close()
            with self._lock:
                self._running.discard(process.pid)

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        """Reads what a command writes until it ends. Returns the beginning, and whether its time is
        over."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        deadline_s = time.monotonic() + self._seconds_max
        output = bytearray()
        is_open = True
        has_ended = False
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while time.monotonic() < deadline_s:
                has_ended = _has_ended(process.pid)
                left_s = max(0.0, min(LOOK_S, deadline_s - time.monotonic()))
                if is_open and (has_ended or selector.select(left_s)):
                    is_open = _took(descriptor, output)
                    if not is_open:
                        selector.unregister(descriptor)
                elif not is_open and not has_ended:
                    time.sleep(left_s)
                if has_ended:
                    # Something that it left behind may hold the output open.
                    return bytes(output), False
        return bytes(output), not _has_ended(process.pid)

    def close(self) -> None:
        """Kills the commands that still run, and starts no further ones."""
        with self._lock:
            self._is_closed = True
            for pid in self._running:
                _kill_group(pid)


def _took(descriptor: int, output: bytearray) -> bool:
    """Reads the output that is available. Returns whether more may come later."""
    while True:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        output += data[: OUTPUT_BYTES_MAX - len(output)]
        if len(data) < READ_BYTES:
            return True


def _has_ended(pid: int) -> bool:
    """Returns whether a process has ended, without reaping it: `wait` still has to be called."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
