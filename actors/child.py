"""The actors that run child programs: links, queue owners, buffers of slow clients,
administrator's interfaces, runners of actions.

A program runs on a thread of its own and ends the process when its instance's Unix socket closes.
Its instance starts it again; Ray must not. The modules of a program are imported by the process
that runs it, and by no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any

import ray

from raylay.actors.titles import carry_name
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig
from raylay.services.processes.running import Config, ProgramThread


class ChildActor:
    """One program. Lifecycle: child of its Instance actor, max_restarts=0.

    Args:
        plain: the actor's class as it is written.
        title: title of the process, for people.
        kind: kind of the program, for logs.
        config: configuration of the program.
        serve: runs the program until its instance is gone.
    """

    def __init__(
        self,
        plain: type,
        title: str,
        kind: str,
        config: Config,
        serve: Callable[[Config], Coroutine[Any, Any, None]],
    ) -> None:
        self._thread = ProgramThread(kind, config, serve)
        self._thread.start()
        carry_name(self, plain, title)

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """The id of the process."""
        return os.getpid()


class DestinationLink(ChildActor):
    """One destination's link.

    Args:
        config: a LinkConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        from raylay.services.processes.link.run_link import serve

        made = LinkConfig.from_json(config)
        title = f"{made.instance}→{made.destination.name}"
        super().__init__(DestinationLink, title, "link", made, serve)


class QueueOwner(ChildActor):
    """One queue's owner.

    Args:
        config: a QueueOwnerConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        from raylay.services.processes.queue_owner.run_queue_owner import serve

        made = QueueOwnerConfig.from_json(config)
        title = f"{made.instance}/{made.definition.name}"
        super().__init__(QueueOwner, title, "queue_owner", made, serve)


class SlowClientBuffer(ChildActor):
    """The messages that wait for the slow clients of one capacity pool.

    Args:
        config: a SlowClientBufferConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        from raylay.services.processes.slow_client_buffer.run_slow_client_buffer import serve

        made = SlowClientBufferConfig.from_json(config)
        title = f"{made.instance}/{made.pool}"
        super().__init__(SlowClientBuffer, title, "slow_client_buffer", made, serve)


class AdministratorInterface(ChildActor):
    """The administrator's interface of one instance, over HTTP.

    Args:
        config: an AdminProcessConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        from raylay.services.processes.admin.run_admin import serve

        made = AdminProcessConfig.from_json(config)
        title = f"{made.instance}/admin"
        super().__init__(AdministratorInterface, title, "admin_interface", made, serve)


class ActionRunner(ChildActor):
    """The process that runs the actions of one instance.

    Args:
        config: an ActionRunnerConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        from raylay.services.processes.actions.run_actions import serve

        made = ActionRunnerConfig.from_json(config)
        title = f"{made.instance}/actions"
        super().__init__(ActionRunner, title, "actions", made, serve)
