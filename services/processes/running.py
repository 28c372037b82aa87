"""The two ways to run a child program of an instance: on a thread of an actor, or as a process
without Ray."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from raylay.services.errors import RaylayError
from raylay.services.messages.plain_text import plain_lines
from raylay.services.server.process import FATAL_EXIT_CODE, prepare_process, run_on_loop
from raylay.services.telemetry import logs
from raylay.services.telemetry.logs import LogOptions


class ProgramConfig(Protocol):
    """The values that an instance gives to every child program, in addition to those of its
    kind."""

    log: LogOptions

    @property
    def process_name(self) -> str:
        """The name of the process in logs and status."""


Config = TypeVar("Config", bound=ProgramConfig)


class ProgramThread(Generic[Config]):
    """A program on a thread of its own, for a process whose main thread belongs to Ray. When the
    program ends, for whatever reason, the process ends.

    Owner: the program's actor.

    Args:
        kind: the kind of the program, for logs and the thread's name.
        config: the configuration of the program.
        serve: a coroutine function that runs the program until its instance is gone.
    """

    def __init__(
        self, kind: str, config: Config, serve: Callable[[Config], Coroutine[Any, Any, None]]
    ) -> None:
        self._kind = kind
        self._config = config
        self._serve = serve
        self._thread = threading.Thread(target=self._run, name=f"raylay-{kind}", daemon=True)

    def start(self) -> None:
        """Starts the thread. Does not wait and does not raise."""
        self._thread.start()

    def _run(self) -> None:
        code = FATAL_EXIT_CODE
        try:
            logs.configure(self._config.process_name, self._config.log, is_child=True)
            prepare_process()
            run_on_loop(self._serve(self._config))
            code = 0
        except BaseException as error:
            logs.get(self._kind).report(
                f"{self._kind}_ended", name=self._config.process_name, text=repr(error)
            )
        finally:
            logs.close()
            os._exit(code)


def run_program(
    kind: str,
    read: Callable[[str], Config],
    serve: Callable[[Config], Coroutine[Any, Any, None]],
) -> int:
    """Runs a program without Ray. Its configuration comes on standard input, as JSON.

    Args:
        kind: the kind of the program, for the error message when it cannot run.
        read: a function that decodes the configuration.
        serve: a coroutine function that runs the program until its instance is gone.

    Returns:
        The exit code.
    """
    # The instance holds the other end of the terminal, and alone reacts to a Ctrl-C there.
    os.setsid()
    config = read(sys.stdin.read())
    logs.configure(config.process_name, config.log, is_child=True)
    prepare_process()
    try:
        run_on_loop(serve(config))
    except (OSError, RaylayError) as error:
        print(plain_lines(f"error: {kind} {config.process_name}: {error}"), file=sys.stderr)
        return 1
    return 0
