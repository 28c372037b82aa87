"""services/processes/admin/statistics_thread.py: statistics go on whatever happens to their
file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from raylay.services.admin.statistics import Place
from raylay.services.admin.tree import Branch
from raylay.services.errors import StorageError
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.storage.statistics import StatisticsDamage, StatisticsStore

TREE: Branch = {"instance": {"memory": {"rss": 5}}}
RSS = Place("IMEMORY", "", "rss")


def using(
    path: Path,
    act: Callable[[StatisticsThread], Awaitable[None]],
    make: Callable[[str], StatisticsStore] = StatisticsStore,
) -> None:
    async def run() -> None:
        thread = StatisticsThread(make, str(path), 2.5)
        await thread.open()
        try:
            await act(thread)
        finally:
            await thread.close()

    asyncio.run(run())


def test_it_tells_of_itself(tmp_path: Path) -> None:
    async def act(thread: StatisticsThread) -> None:
        await thread.append(1, TREE)
        await thread.began(7, "1.0")
        assert await thread.history(RSS, None, None) == [(1, 5)]
        assert await thread.timestamps(None, None) == [1]
        assert await thread.sample(1) == {"IMEMORY": {"": {"rss": 5}}}
        found = thread.status()
        assert found["lifetimes"] == [(7, "start", "1.0")]
        statistics = found["statistics"]
        assert statistics["file_name"] == str(tmp_path / "s.db")
        assert (statistics["total_samples"], statistics["queries"]) == (1, 3)
        assert statistics["interval"] == 2.5 and statistics["file_size"] > 0
        assert statistics["total_time"] >= statistics["total_commit_time"] > 0

    using(tmp_path / "s.db", act)


@pytest.mark.covers("Administration", "the statistics database: documented tables; a week s")
def test_what_cannot_be_used_is_replaced_by_memory(tmp_path: Path) -> None:
    async def act(thread: StatisticsThread) -> None:
        assert "are kept in memory" in thread.problem
        await thread.append(1, TREE)
        assert await thread.history(RSS, None, None) == [(1, 5)]
        statistics = thread.status()["statistics"]
        assert statistics["file_name"] == ":memory:" and statistics["memory_used"] > 0

    using(tmp_path / "there is no such folder" / "s.db", act)


def test_a_file_that_is_damaged_meanwhile_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    fails: list[Exception] = []

    class Store(StatisticsStore):
        def append(self, *given: object) -> None:
            if fails:
                raise fails.pop()
            super().append(*given)  # type: ignore[arg-type]

    async def act(thread: StatisticsThread) -> None:
        await thread.append(1, TREE)
        fails.append(StatisticsDamage("it is malformed"))
        with pytest.raises(StorageError):
            await thread.append(2, TREE)
        assert "it is malformed" in thread.problem and "begin anew" in thread.problem
        await thread.append(3, TREE)
        assert await thread.timestamps(None, None) == [3]
        assert (tmp_path / "s.db.damaged").exists()

    using(path, act, Store)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), OverflowError("too large")])
def test_a_sample_that_cannot_be_kept_is_told_until_one_can(
    tmp_path: Path, error: Exception
) -> None:
    fails = [error]

    class Store(StatisticsStore):
        def append(self, *given: object) -> None:
            if fails:
                raise fails.pop()
            super().append(*given)  # type: ignore[arg-type]

    async def act(thread: StatisticsThread) -> None:
        with pytest.raises(StorageError):
            await thread.append(1, TREE)
        assert f"{error}" in thread.problem and "are missing" in thread.problem
        await thread.append(2, TREE)
        assert not thread.problem
        assert await thread.timestamps(None, None) == [2]

    using(tmp_path / "s.db", act, Store)
