"""Links as subprocesses: for instances that run without Ray, and for tests."""

from __future__ import annotations

import subprocess
import sys

from raylay.services.server.config import LinkConfig

KILL_TIMEOUT_S = 5.0


class LinkSubprocess:
    """A link's process. It ends itself when its instance's Unix socket closes."""

    def __init__(self, config: LinkConfig) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "raylay.services.programs.link.run_link"],
            stdin=subprocess.PIPE,
            close_fds=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(config.to_json().encode())
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """Ends it at once if it still runs."""
        self._process.kill()
        self._process.wait(KILL_TIMEOUT_S)


def start_link_process(config: LinkConfig) -> LinkSubprocess:
    """The LinkFactory of subprocesses."""
    return LinkSubprocess(config)
