"""The thread of the statistics database: SQLite's files are read and written beside the loop that
answers requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from raylay.services.admin.statistics import Place, rows_of
from raylay.services.admin.tree import Branch
from raylay.storage.statistics import Number, StatisticsStore

Result = TypeVar("Result")


class StatisticsThread:
    """Owner: the process's event loop. Lifecycle: `open` once, `close` once.

    Args:
        make: opens the database; called in the thread.
    """

    def __init__(self, make: Callable[[], StatisticsStore]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, "raylay-statistics")
        self._store: StatisticsStore

    async def open(self) -> None:
        """Opens the database.

        Raises:
            StorageError: it cannot be used; names the file.
        """
        self._store = await self._run(self._make)

    async def append(self, time_us: int, tree: Branch) -> None:
        """Adds a sample of `/instance` and `/host`.

        Raises:
            StorageError: it cannot be written.
        """
        await self._run(lambda: self._store.append(time_us, rows_of(tree)))

    async def history(
        self, place: Place, first_us: int | None, last_us: int | None
    ) -> list[tuple[int, Number]]:
        """Returns the numbers of a leaf, ascending by time, within a closed period.

        Raises:
            StorageError: they cannot be read.
        """
        return await self._run(partial(self._store.history, *place, first_us, last_us))

    async def close(self) -> None:
        """Closes the database and ends the thread."""
        await self._run(self._store.close)
        self._pool.shutdown()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
