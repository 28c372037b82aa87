"""Links, owners of queues and buffers of slow clients as subprocesses: for instances that run
without Ray, and for tests."""

from __future__ import annotations

import subprocess
import sys

from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig

KILL_TIMEOUT_S = 5.0
LINK = "raylay.services.processes.link.run_link"
QUEUE_OWNER = "raylay.services.processes.queue_owner.run_queue_owner"
SLOW_CLIENT_BUFFER = "raylay.services.processes.slow_client_buffer.run_slow_client_buffer"


class LinkSubprocess:
    """The process of a link, of a queue's owner, or of a pool's buffer. It ends itself when its
    instance's Unix socket closes."""

    def __init__(
        self, config: LinkConfig | QueueOwnerConfig | SlowClientBufferConfig, program: str = LINK
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", program],
            stdin=subprocess.PIPE,
            close_fds=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(config.to_json().encode())
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def kill(self) -> None:
        """Ends it at once if it still runs."""
        self._process.kill()
        self._process.wait(KILL_TIMEOUT_S)


def start_link_process(config: LinkConfig) -> LinkSubprocess:
    """The LinkFactory of subprocesses."""
    return LinkSubprocess(config)


def start_queue_process(config: QueueOwnerConfig) -> LinkSubprocess:
    """The QueueFactory of subprocesses."""
    return LinkSubprocess(config, QUEUE_OWNER)


def start_buffer_process(config: SlowClientBufferConfig) -> LinkSubprocess:
    """The BufferFactory of subprocesses."""
    return LinkSubprocess(config, SLOW_CLIENT_BUFFER)
