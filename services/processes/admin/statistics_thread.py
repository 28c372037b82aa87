"""The thread of the statistics database: SQLite's files are read and written beside the loop that
answers requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from raylay.services.admin.statistics import Place, rows_of
from raylay.services.admin.tree import Branch
from raylay.services.errors import StorageError
from raylay.storage.statistics import (
    MEMORY,
    Number,
    StatisticsDamage,
    StatisticsStore,
    move_aside,
)

Result = TypeVar("Result")
Sample = dict[str, dict[str, dict[str, str | Number]]]


class StatisticsThread:
    """Keeps statistics whatever happens to their file: one that is damaged is moved aside, and one
    that cannot be used is replaced by memory; `problem` says so. A full disk costs the samples of
    that time.

    Owner: the process's event loop. Lifecycle: `open` once, `close` once.

    Args:
        make: opens the database in a file, or in `MEMORY`; called in the thread.
        path: the file.
        interval_s: time between two samples, for the values of the statistics themselves.
    """

    def __init__(
        self,
        make: Callable[[str], StatisticsStore],
        path: str = MEMORY,
        interval_s: float = 10.0,
    ) -> None:
        self._make = make
        self._path = path
        self._interval_s = interval_s
        self._pool = ThreadPoolExecutor(1, "raylay-statistics")
        self._store: StatisticsStore
        self._samples = self._queries = 0
        self._spent_s = self._committing_s = 0.0
        self._file_bytes = 0
        self._lifetimes: list[tuple[int, str, str]] = []
        self.problem = ""
        """Reason why some samples are not in the file, as a sentence; empty: all are."""

    async def open(self) -> None:
        """Opens the database, or another one in its place."""
        await self._run(self._open)

    def _open(self) -> None:
        try:
            self._store = self._make(self._path)
        except StatisticsDamage as error:
            self._begin_anew(error)
        except StorageError as error:
            self._keep_in_memory(error)
        self._lifetimes = self._store.lifetimes()

    def _begin_anew(self, error: StatisticsDamage) -> None:
        try:
            aside = move_aside(self._path)
            self._store = self._make(self._path)
        except StorageError as another:
            self._keep_in_memory(another)
            return
        self.problem = f"{error}; it was moved to {aside}, and statistics begin anew"

    def _keep_in_memory(self, error: StorageError) -> None:
        self.problem = f"{error}; statistics are kept in memory until the interface restarts"
        self._store = self._make(MEMORY)

    async def append(self, time_us: int, tree: Branch) -> None:
        """Adds a sample of `/instance` and `/host`.

        Raises:
            StorageError: it cannot be written.
        """
        await self._run(lambda: self._append(time_us, tree))

    def _append(self, time_us: int, tree: Branch) -> None:
        began_s = time.perf_counter()
        rows = list(rows_of(tree))
        commits_s = time.perf_counter()
        try:
            self._store.append(time_us, rows)
            self._file_bytes = self._store.file_bytes
        except StatisticsDamage as error:
            self._store.close()
            self._begin_anew(error)
            raise
        except Exception as error:
            # Whatever it is, an interface without statistics is better than none.
            self.problem = f"{error}; the samples since then are missing"
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"a sample cannot be kept: {error!r}") from error
        if self.problem.endswith("are missing"):
            self.problem = ""
        ends_s = time.perf_counter()
        self._samples += 1
        self._committing_s += ends_s - commits_s
        self._spent_s += ends_s - began_s

    async def history(
        self, place: Place, first_us: int | None, last_us: int | None
    ) -> list[tuple[int, Number]]:
        """Returns the numbers of a leaf, ascending by time, within a closed period.

        Raises:
            StorageError: they cannot be read.
        """
        self._queries += 1
        return await self._run(lambda: self._store.history(*place, first_us, last_us))

    async def timestamps(self, first_us: int | None, last_us: int | None) -> list[int]:
        """Returns the times of the samples, ascending, within a closed period.

        Raises:
            StorageError: they cannot be read.
        """
        self._queries += 1
        return await self._run(lambda: self._store.timestamps(first_us, last_us))

    async def sample(self, time_us: int) -> Sample | None:
        """Returns the sample of a time by table and id; None: there is none.

        Raises:
            StorageError: it cannot be read.
        """
        self._queries += 1
        return await self._run(lambda: self._store.sample(time_us))

    async def truncate(self, before_us: int) -> str:
        """Removes the samples that are older than a time. Returns a sentence.

        Raises:
            StorageError: they cannot be removed.
        """
        removed = await self._run(lambda: self._store.truncate(before_us))
        return f"{removed:,} samples were removed from the statistics"

    # -- about itself --------------------------------------------------------------------------
    async def began(self, time_us: int, version: str) -> None:
        """Notes a start of the instance, unless it is known.

        Raises:
            StorageError: it cannot be written.
        """
        self._lifetimes = await self._run(partial(self._began, time_us, version))

    def _began(self, time_us: int, version: str) -> list[tuple[int, str, str]]:
        self._store.add_lifetime(time_us, "start", version)
        return self._store.lifetimes()

    def status(self) -> dict[str, Any]:
        """Returns the values of the statistics themselves, and the starts of the instance, for the
        resource tree."""
        in_memory = self._store.path == MEMORY
        return {
            "lifetimes": self._lifetimes,
            "statistics": {
                "file_name": self._store.path,
                "file_size": 0 if in_memory else self._file_bytes,
                "memory_used": self._file_bytes if in_memory else 0,
                "interval": self._interval_s,
                "queries": self._queries,
                "time_per_sample": round(self._spent_s / max(1, self._samples), 6),
                "total_commit_time": round(self._committing_s, 6),
                "total_samples": self._samples,
                "total_time": round(self._spent_s, 6),
                "raylay": {"problem": self.problem},
            },
        }

    async def close(self) -> None:
        """Closes the database and ends the thread."""
        await self._run(self._store.close)
        self._pool.shutdown()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
