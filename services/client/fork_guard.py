"""Ends clients in a forked child process, where neither their thread nor their connection may be
used.

A fork copies the memory of a client but not its threads, and both processes would write to one
socket. Each client registers here, and in the child it is told at once, before any code can call
it.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from raylay.services.errors import ForkedClient


class ForkAware(Protocol):
    """A client that can be told that this process is a forked child of the one that made it."""

    def _forked(self, error: ForkedClient) -> None: ...


_CLIENTS: WeakSet[ForkAware] = WeakSet()
_PROCESS = os.getpid()


def guard(client: ForkAware) -> None:
    """Registers a client, so that it is told when this process is forked."""
    _CLIENTS.add(client)


def _after_fork() -> None:
    global _PROCESS
    parent, _PROCESS = _PROCESS, os.getpid()
    for client in list(_CLIENTS):
        client._forked(
            ForkedClient(
                f"this client was made in process {parent} and cannot be used in its forked child "
                f"{_PROCESS}: make a client of its own there, or start the child with the "
                "multiprocessing method 'spawn'"
            )
        )
    _CLIENTS.clear()


os.register_at_fork(after_in_child=_after_fork)
