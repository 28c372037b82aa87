"""The Instance actor: a thin shell. The server runs on a thread of its own; nothing per message
passes through a method of this class, because Ray wraps every method in tracing code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray

from raylay.actors.launch_program import start_buffer, start_link, start_queue_owner
from raylay.actors.titles import carry_name
from raylay.services.security.control import Caller
from raylay.services.server.runner import InstanceThread


def node_address() -> str:
    """The address of this process's node; empty where Ray does not say it."""
    try:
        util: Any = ray.util
        return str(util.get_node_ip_address())
    except Exception:  # the constructor calls it, which may not raise
        return ""


class Instance:
    """One instance of a fabric. Lifecycle: named and detached; Ray restarts it.

    What changes something takes `said`, who asks for it: the instance judges that where its
    configuration has `admin`, and raises ControlRefused.

    Args:
        directory: its data directory, which holds its configuration.
        name: of the instance.
    """

    def __init__(self, directory: str, name: str) -> None:
        # Nothing here may raise: Ray never retries a failed constructor.
        self._thread = InstanceThread(
            directory, name, start_link, node_address(), start_queue_owner, start_buffer
        )
        self._thread.start()
        carry_name(self, Instance, name)

    @ray.method(num_returns=1)
    def status(self) -> dict[str, Any]:
        """The status of the instance."""
        return self._thread.status()

    @ray.method(num_returns=1)
    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The last events behind number `after`."""
        return self._thread.events(after, limit)

    @ray.method(num_returns=1)
    def authorize(self, call: str, said: Caller | None, details: dict[str, Any]) -> None:
        """Judges a call that is performed by another process than this one."""
        self._thread.authorize(call, said, details)

    @ray.method(num_returns=1)
    def downgrade(self, destination: str, force: bool = False, said: Caller | None = None) -> None:
        """Persisted acks wait no more for this destination."""
        self._thread.downgrade(destination, force, said)

    @ray.method(num_returns=1)
    def upgrade(self, destination: str, said: Caller | None = None) -> None:
        """Persisted acks wait for this destination again."""
        self._thread.upgrade(destination, said)

    @ray.method(num_returns=1)
    def inject(
        self, kind: str, seconds: float, options: dict[str, Any], said: Caller | None = None
    ) -> None:
        """Breaks something for a while, for a drill."""
        self._thread.inject(kind, seconds, options, said)

    @ray.method(num_returns=1)
    def placed(self, told: list[list[Any]], said: Caller | None = None) -> None:
        """Instances were moved: name, generation, replication and client address each."""
        self._thread.placed(told, said)

    @ray.method(num_returns=1)
    def admit(
        self, senders: Sequence[str], force: bool = False, said: Caller | None = None
    ) -> None:
        """Admits clients although no peer of the group has brought what it has."""
        self._thread.admit(senders, force, said)

    @ray.method(num_returns=1)
    def proxied(self, queue: str, on: bool, said: Caller | None = None) -> str:
        """Lets a queue take over messages of instances that are not reachable, or no more."""
        return self._thread.proxied(queue, on, said)

    @ray.method(num_returns=1)
    def switch_transport(self, name: str, on: bool, said: Caller | None = None) -> str:
        """Enables or disables a transport for clients. What was done."""
        return self._thread.switch_transport(name, on, said)

    @ray.method(num_returns=1)
    def reset_entitlement(self, user: str, said: Caller | None = None) -> int:
        """Asks anew what a user, or everybody, may do. How many sessions ended."""
        return self._thread.reset_entitlement(user, said)

    @ray.method(num_returns=1)
    def maintenance(
        self,
        action: str,
        before_txid: int | None = None,
        force: bool = False,
        said: Caller | None = None,
    ) -> list[dict[str, Any]]:
        """`compress`, `archive` or `remove` of sealed segments."""
        return self._thread.maintenance(action, before_txid, force, said)

    @ray.method(num_returns=1)
    def stop(
        self, said: Caller | None = None, call: str = "stop", details: dict[str, Any] | None = None
    ) -> bool:
        """Stops gracefully; the process lives on until Ray ends it. Whether it stopped in time."""
        return self._thread.stop(said=said, call=call, **(details or {}))

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """The id of the process."""
        return os.getpid()
