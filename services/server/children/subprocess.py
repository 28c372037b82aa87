"""Links, owners of queues, buffers of slow clients, administrator's interfaces and runners of
actions as subprocesses: for instances that run without Ray, and for tests."""

from __future__ import annotations

import subprocess
import sys

from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig
from raylay.services.server.children.supervisor import ChildConfig

KILL_TIMEOUT_S = 5.0
PROGRAMS: dict[type, str] = {
    LinkConfig: "link.run_link",
    QueueOwnerConfig: "queue_owner.run_queue_owner",
    ActionRunnerConfig: "actions.run_actions",
    AdminProcessConfig: "admin.run_admin",
    SlowClientBufferConfig: "slow_client_buffer.run_slow_client_buffer",
}
"""Modules of the child programs in `services/processes`, by the type of the configuration that
starts each."""


class ChildSubprocess:
    """The process of a link, of a queue's owner, of a pool's buffer, of an administrator's
    interface, or of a runner of actions. It ends itself when its instance's Unix socket closes."""

    def __init__(self, config: ChildConfig) -> None:
        program = f"raylay.services.processes.{PROGRAMS[type(config)]}"
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
        return self._process.pid

    def kill(self) -> None:
        """Ends the process at once if it still runs."""
        self._process.kill()
        self._process.wait(KILL_TIMEOUT_S)
