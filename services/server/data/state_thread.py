"""The state store behind one thread, so that its syncs never hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from raylay.storage.journal import StateStore

Result = TypeVar("Result")


class StateThread:
    """A state store whose work is done by a thread of its own.

    Owner: the instance. Work is done in the order in which it was requested.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(1, "raylay-state")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs some work on the thread.

        Raises:
            StorageError: the store cannot be written.
            Exception: whatever else `work` raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def put(self, values: dict[str, bytes | None]) -> None:
        """Writes values; they are on disk when this returns."""
        await self.run(lambda: self._store.put(values))

    def get(self, key: str) -> bytes | None:
        """Returns the value of a key; None: there is none."""
        return self._store.get(key)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Returns all values whose keys begin with the prefix."""
        return self._store.items(prefix)

    def get_number(self, key: str) -> int:
        """Returns a number; 0: there is none."""
        value = self._store.get(key)
        return int.from_bytes(value, "big") if value is not None else 0

    def put_number(self, key: str, number: int) -> None:
        """Writes a number of up to 64 bits. For work on the thread, and before the event loop
        runs."""
        self._store.put({key: number.to_bytes(8, "big")})

    def put_now(self, values: dict[str, bytes | None]) -> None:
        """Writes values from the calling thread: for work on the thread, before the event loop
        serves, and at its end."""
        self._store.put(values)

    def close(self) -> None:
        """Ends the thread and closes the store."""
        self._executor.shutdown(wait=True)
        self._store.close()
