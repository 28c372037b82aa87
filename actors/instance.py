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
    """Returns the address of this process's node; empty where Ray does not tell it."""
    try:
        util: Any = ray.util
        return str(util.get_node_ip_address())
    except Exception:  # called by the constructor, which must not raise
        return ""


class Instance:
    """One instance of a fabric. Lifecycle: named and detached; Ray restarts it.

    What changes something takes `said`, who asks for it: the instance judges that where its
    configuration has `admin`, and raises ControlRefused.

    Args:
        directory: data directory of the instance, which holds its configuration.
        name: name of the instance.
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
        """Returns the status of the instance."""
        return self._thread.status()

    @ray.method(num_returns=1)
    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Returns the last events after number `after`."""
        return self._thread.events(after, limit)

    @ray.method(num_returns=1)
    def authorize(self, call: str, said: Caller | None, details: dict[str, Any]) -> None:
        """Judges a control call that another process performs."""
        self._thread.authorize(call, said, details)

    @ray.method(num_returns=1)
    def downgrade(self, destination: str, force: bool = False, said: Caller | None = None) -> None:
        """Downgrades a destination: persisted acks do not wait for it any more."""
        self._thread.downgrade(destination, force, said)

    @ray.method(num_returns=1)
    def upgrade(self, destination: str, said: Caller | None = None) -> None:
        """Upgrades a destination: persisted acks wait for it again."""
        self._thread.upgrade(destination, said)

    @ray.method(num_returns=1)
    def inject(
        self, kind: str, seconds: float, options: dict[str, Any], said: Caller | None = None
    ) -> None:
        """Injects a fault for a while, for a drill."""
        self._thread.inject(kind, seconds, options, said)

    @ray.method(num_returns=1)
    def placed(self, told: list[list[Any]], said: Caller | None = None) -> None:
        """Takes placements of moved instances: name, generation, replication address and client
        address of each."""
        self._thread.placed(told, said)

    @ray.method(num_returns=1)
    def admit(
        self, senders: Sequence[str], force: bool = False, said: Caller | None = None
    ) -> None:
        """Admits clients although no peer of the group has brought what it has."""
        self._thread.admit(senders, force, said)

    @ray.method(num_returns=1)
    def proxied(self, queue: str, on: bool, said: Caller | None = None) -> str:
        """Lets a queue take over messages of instances that cannot be reached, or ends that."""
        return self._thread.proxied(queue, on, said)

    @ray.method(num_returns=1)
    def switch_transport(self, name: str, on: bool, said: Caller | None = None) -> str:
        """Enables or disables a transport for clients. Returns what was done."""
        return self._thread.switch_transport(name, on, said)

    @ray.method(num_returns=1)
    def reset_entitlement(self, user: str, said: Caller | None = None) -> int:
        """Asks the entitlement module anew about a user, or everybody. Returns how many sessions
        ended."""
        return self._thread.reset_entitlement(user, said)

    @ray.method(num_returns=1)
    def maintenance(
        self,
        action: str,
        before_txid: int | None = None,
        force: bool = False,
        said: Caller | None = None,
    ) -> list[dict[str, Any]]:
        """Compresses, archives or removes sealed segments."""
        return self._thread.maintenance(action, before_txid, force, said)

    @ray.method(num_returns=1)
    def stop(
        self, said: Caller | None = None, call: str = "stop", details: dict[str, Any] | None = None
    ) -> bool:
        """Stops gracefully; the process lives on until Ray ends it. Returns whether it stopped in
        time."""
        return self._thread.stop(said=said, call=call, **(details or {}))

    @ray.method(num_returns=1)
    def pid(self) -> int:
        """Returns the id of the process."""
        return os.getpid()
