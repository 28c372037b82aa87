"""What an instance that has nothing to do does: it wakes up as seldom as it can."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import StorageError
from raylay.services.server.data.data_files import open_journal
from raylay.services.server.data.journal_reads import JournalReads, opened_journal_reads
from raylay.services.server.process import new_loop
from raylay.services.server.runtime import InstanceRuntime
from raylay.storage.lmdb_journal import LmdbJournal

DEADLINE_S = 30.0


def on_its_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on the loop that instances have."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**fixtures))

    return run


@on_its_loop
async def test_what_is_due_at_once_is_done_in_one_turn(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    runtime.begin()
    turn = 0
    often: list[int] = []
    seldom: list[int] = []
    enough = asyncio.Event()

    def at_seldom() -> None:
        seldom.append(turn)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        # What is late is done once: a loop that was held up may have them in two turns.
        if len(seldom) >= 3 and set(seldom[-3:]) <= set(often):
            enough.set()
        runtime.loop.call_soon(next_turn)

    def at_often() -> None:
        often.append(turn)

    next_turn()
    runtime.every(0.01, at_often)
    await asyncio.sleep(0.003)  # Each begins at a time of its own.
    runtime.every(0.05, at_seldom)
    async with asyncio.timeout(DEADLINE_S):  # Each finds the other in its turn.
        await enough.wait()
    runtime.cancel_timers()
    assert len(often) > len(seldom)


@on_its_loop
async def test_what_is_late_is_done_once(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    runtime.begin()
    done_s: list[float] = []
    enough = asyncio.Event()
    interval_s = 0.04  # The loop's timers come up to a millisecond early.

    def work() -> None:
        done_s.append(runtime.loop.time())
        if len(done_s) == 2:
            # Somebody holds up the loop for five intervals and a half.
            time.sleep(5.5 * interval_s)
        if len(done_s) == 4:
            enough.set()

    began_s = runtime.loop.time()
    runtime.every(interval_s, work)
    async with asyncio.timeout(DEADLINE_S):
        await enough.wait()
    runtime.cancel_timers()
    passed = [int((at_s - began_s) / interval_s + 0.05) for at_s in done_s]
    assert passed[2] - passed[1] >= 5 and passed[3] > passed[2], (
        "what was missed is not made up for"
    )


class Clock:
    """A loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, work: Callable[[], None]) -> Any:
        timer = Timer(self._timers)
        self._timers[timer] = when_s, work
        return timer

    def until(self, now_s: float) -> None:
        """All that is due by then is done when it is due."""
        while self._timers:
            timer, (when_s, work) = min(self._timers.items(), key=lambda each: each[1][0])
            if when_s > now_s:
                break
            del self._timers[timer]
            self.now_s = max(self.now_s, when_s)
            work()
        self.now_s = now_s


class Timer:
    def __init__(self, timers: dict[object, Any]) -> None:
        self._timers = timers

    def cancel(self) -> None:
        del self._timers[self]


class Pausing:
    """Something that is done each second, or each fifth one where nothing goes on."""

    def __init__(self, runtime: InstanceRuntime) -> None:
        self.clock = Clock()
        runtime.loop = cast(asyncio.AbstractEventLoop, self.clock)
        runtime._began_s = 0.0
        self.seconds = 5
        self.reports_at_s = -1.0
        self._done_s: list[float] = []
        self._runtime = runtime
        runtime.every(1.0, self._work, lambda: self.seconds)

    def _work(self) -> None:
        self._done_s.append(self.clock.now_s)
        if self.clock.now_s == self.reports_at_s:
            self._runtime.report("link_connected", destination="b")

    def until(self, now_s: float) -> list[float]:
        """When it was done until then."""
        self.clock.until(now_s)
        done, self._done_s = self._done_s, []
        return done


@on_its_loop
async def test_what_pauses_is_done_at_multiples_of_its_pause(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    pausing = Pausing(runtime)
    assert pausing.until(0.5) == [] and not runtime.is_resting
    assert pausing.until(21.5) == [1.0, 5.0, 10.0, 15.0, 20.0] and runtime.is_resting
    # Somebody holds up the loop.
    pausing.clock.now_s = 37.5
    assert pausing.until(46.0) == [37.5, 40.0, 45.0]
    pausing.seconds = 1
    assert pausing.until(53.5) == [50.0, 51.0, 52.0, 53.0] and not runtime.is_resting
    pausing.seconds = 5
    assert pausing.until(61.0) == [54.0, 55.0, 60.0] and runtime.is_resting


@on_its_loop
async def test_what_begins_ends_a_pause(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    pausing = Pausing(runtime)
    assert pausing.until(7.5) == [1.0, 5.0]
    runtime.hurry()
    runtime.hurry()
    assert not runtime.is_resting
    assert pausing.until(12.5) == [8.0, 10.0], "nothing goes on after all"
    runtime.report("link_connected", destination="b")
    pausing.seconds = 1
    assert pausing.until(15.5) == [13.0, 14.0, 15.0]
    runtime.hurry()
    runtime.cancel_timers()
    assert pausing.until(99.0) == []


@on_its_loop
async def test_work_that_reports_something_is_repeated_as_often_as_before(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    pausing = Pausing(runtime)
    pausing.reports_at_s = 10.0
    assert pausing.until(21.5) == [1.0, 5.0, 10.0, 15.0, 20.0]
    assert runtime.is_resting, "the next activity ends the pause"
    runtime.hurry()
    assert pausing.until(25.5) == [22.0, 25.0]


async def tidied(reading: JournalReads, runtime: InstanceRuntime) -> bool:
    """Whether a second's call had a thread do something; waits for it."""
    reading.keep_tidy()
    worked = runtime.tasks_running > 0
    async with asyncio.timeout(DEADLINE_S):
        while runtime.tasks_running:
            await asyncio.sleep(0)
    return worked


def unsettled(_: LmdbJournal) -> int:
    raise StorageError("it changes all the time")


@on_its_loop
async def test_who_reads_nothing_wakes_no_thread(tmp_path: Path) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    runtime.begin()
    journal = open_journal(runtime.config, runtime.directory)
    reading = await opened_journal_reads(runtime, journal)
    try:
        for reader in (reading.reader, journal):
            assert not await tidied(reading, runtime)
            assert not reader.removed()
            assert await tidied(reading, runtime)
        assert not await tidied(reading, runtime)
        journal.remove(1)  # As the journal does by itself, by age or size.
        assert await tidied(reading, runtime), "the oldest may be another one"
        assert not await tidied(reading, runtime)
    finally:
        await reading.close()
        journal.close()


@on_its_loop
async def test_where_the_oldest_is_not_found_it_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = InstanceRuntime(InstanceConfig("A", "G"), tmp_path)
    runtime.begin()
    journal = open_journal(runtime.config, runtime.directory)
    reading = await opened_journal_reads(runtime, journal)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(LmdbJournal, "first_txid", property(unsettled))
            await reading.tidy()
        assert await tidied(reading, runtime)
        assert not await tidied(reading, runtime)
    finally:
        await reading.close()
        journal.close()
