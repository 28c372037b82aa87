"""The run of a drill: opens the load, runs the steps, waits until all is whole, and judges."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from raylay.services.drills.evidence import DrillResult, EvidenceCollector, FinalState
from raylay.services.drills.faults import LoseDisk
from raylay.services.drills.history_builder import now_us
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.loads.queue_load import QueueLoad
from raylay.services.drills.loads.sow_load import SowLoad
from raylay.services.drills.measure import Sample
from raylay.services.drills.scenario import DrillScenario
from raylay.services.drills.step_runner import StepRunner
from raylay.services.drills.watcher import Watcher, sample_of
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

HEAL_S_MAX = 120.0
"""Most time from the last fault's end until the fabric is whole again."""
START_S_MAX = 60.0
"""Most time that a drill waits for its fabric to be whole before it begins."""
LOOK_S = 0.1
"""Time between two looks whether the fabric is whole."""


class WholenessCheck:
    """Waits until a fabric is whole: every instance serves, every link is connected and caught up,
    and nothing is owed.

    Args:
        busy: whether publishers other than the drill's publish; acknowledgments may then be
            outstanding.
    """

    def __init__(self, fabric: Fabric, *, busy: bool) -> None:
        self._fabric = fabric
        self._busy = busy

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """Returns the status of every instance that answers, by its name."""
        found = await asyncio.to_thread(self._fabric.status)
        return {status["name"]: status for status in found["instances"]}

    async def await_whole(self, wait_s: float, when: str) -> dict[str, dict[str, Any]]:
        """Waits until the fabric is whole, and returns its statuses of that moment.

        Args:
            when: the moment as the error names it, such as `before the drill`.

        Raises:
            FabricError: it is not whole within `wait_s`; the error names what is missing.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            statuses = await self.statuses()
            wrong = unwhole(statuses, busy=self._busy)
            if not wrong:
                return statuses
            if loop.time() > deadline_s:
                raise FabricError(
                    f"the fabric is not whole {when}, after {wait_s:.0f} s: {'; '.join(wrong[:5])}"
                )
            await asyncio.sleep(LOOK_S)

    async def await_replicated(self, upto: Mapping[str, Mapping[str, Any]], wait_s: float) -> None:
        """Waits until every destination has stored what its instance had journaled at the moment of
        the statuses `upto`.

        Raises:
            FabricError: a destination has not within `wait_s`.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            behind = [
                f"{name} to {destination}"
                for name, status in (await self.statuses()).items()
                for destination, to in status.get("destinations", {}).items()
                if to["stored_txid"] < upto[name]["committed_txid"] and to["lag"]
            ]
            if not behind:
                return
            if loop.time() > deadline_s:
                raise FabricError(
                    f"after {wait_s:.0f} s these links have not sent everything that was journaled "
                    f"when the fabric was whole: {', '.join(behind)}"
                )
            await asyncio.sleep(LOOK_S)


class DrillRun:
    """The run of one drill on a fabric that is whole. Owner: the drill's event loop. Lifecycle:
    `run`, once.

    Args:
        result: takes times, verdict and measurements.
        slow_regions: the regions in which a step stops a subscriber.
        tell: called with a line of text at each step.
    """

    def __init__(
        self,
        fabric: Fabric,
        scenario: DrillScenario,
        result: DrillResult,
        *,
        slow_regions: set[str],
        crowd: LoadClients,
        sow: SowLoad,
        queue: QueueLoad,
        steps: StepRunner,
        watcher: Watcher,
        wholeness: WholenessCheck,
        disks: LoseDisk,
        evidence: EvidenceCollector,
        tell: Callable[[str], None],
    ) -> None:
        self._fabric = fabric
        self._scenario = scenario
        self._result = result
        self._slow_regions = slow_regions
        self._crowd = crowd
        self._sow = sow
        self._queue = queue
        self._steps = steps
        self._watcher = watcher
        self._wholeness = wholeness
        self._disks = disks
        self._evidence = evidence
        self._tell = tell

    async def run(self) -> DrillResult:
        """Runs the drill to its verdict.

        Raises:
            FabricError: a fault could not be injected.
        """
        self._watcher.start()
        try:
            async with AsyncExitStack() as stack:
                final = await self._under_load(stack)
        finally:
            await asyncio.to_thread(self._watcher.stop)
        self._tell("judging")
        result = self._result
        result.judgement = await asyncio.to_thread(self._evidence.judge, final)
        await asyncio.to_thread(self._evidence.measure, final.look)
        self._clear_disks()
        return result

    async def _under_load(self, stack: AsyncExitStack) -> FinalState:
        """Opens the load, runs the steps and waits until the fabric has settled.

        Args:
            stack: closes the load, and ends steps that are still on.
        """
        scenario, result, crowd = self._scenario, self._result, self._crowd
        steps: list[asyncio.Task[None]] = []
        stack.push_async_callback(crowd.close)
        stack.push_async_callback(self._sow.close)
        stack.push_async_callback(self._queue.close)
        stack.push_async_callback(_cancelled, steps)
        result.began_us = now_us()
        await crowd.open(self._slow_regions)
        await self._sow.open(crowd.options)
        await self._queue.open(crowd.options)
        self._tell(
            f"{len(crowd.publishers)} publishers, {len(crowd.subscribers)} "
            f"subscribers; {scenario.before_ms / 1000:g} s before the first fault"
        )
        await asyncio.sleep(scenario.before_ms / 1000)
        steps += [
            asyncio.create_task(self._steps.run(number, step))
            for number, step in enumerate(scenario.steps, 1)
        ]
        await asyncio.gather(*steps)
        await asyncio.sleep(scenario.after_ms / 1000)
        self._tell(
            "healed; waiting until every message and acknowledgment that is owed has arrived"
        )
        result.quiet_us = now_us()
        await asyncio.gather(
            crowd.settle(HEAL_S_MAX),
            self._sow.settle(HEAL_S_MAX),
            self._queue.settle(HEAL_S_MAX, self._wholeness.statuses),
        )
        if not scenario.own_load:
            await crowd.await_subscribers(
                {
                    group: record.persisted
                    for group, record in self._evidence.publish_records().items()
                },
                HEAL_S_MAX,
            )
        return await self._final_state()

    async def _final_state(self) -> FinalState:
        crowd = self._crowd
        complaints: list[str] = []
        look: list[Sample] = []
        try:
            statuses = await self._wholeness.await_whole(HEAL_S_MAX, "after it")
            whole_us = now_us()
            look = [sample_of(whole_us, name, status) for name, status in statuses.items()]
            await self._wholeness.await_replicated(statuses, HEAL_S_MAX)
            self._queue.note_left(statuses)
            await self._sow.ask(self._fabric.servers(), crowd.options)
        except FabricError as error:
            complaints.append(str(error))
            statuses = await self._wholeness.statuses()
        unacked = {publisher.name: publisher.store.messages for publisher in crowd.publishers}
        self._result.ended_us = now_us()
        return FinalState(statuses, look, unacked, complaints)

    def _clear_disks(self) -> None:
        for aside in self._disks.aside:
            # Under a load of the fabric's own it may be the only copy of unacknowledged messages.
            if self._result.valid and not self._scenario.own_load:
                shutil.rmtree(aside, ignore_errors=True)
            else:
                self._result.kept.append(str(aside))


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels steps that are still on, and waits until each has healed its fault."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def unwhole(statuses: Mapping[str, Mapping[str, Any]], *, busy: bool = False) -> list[str]:
    """Returns a sentence for everything that differs from an intact fabric without publishers.

    Args:
        busy: whether publishers are at work; acknowledgments may then be outstanding at any moment.
    """
    wrong = []
    for name, status in statuses.items():
        if not status["ready"]:
            wrong.append(f"{name} is not ready: {status['reason']}")
            continue
        if status["pending"] and not busy:
            wrong.append(f"{name} has {status['pending']} ranges pending")
        for destination, to in status["destinations"].items():
            expected = {
                "connected": True,
                "caught_up": True,
                "unacked": to["unacked"] if busy else 0,
                "sync": to["configured_sync"],
                "safe": to["configured_sync"],
            }
            found = {key: to[key] for key in expected}
            if found != expected:
                examples = ", ".join(to["unacked_examples"])
                wrong.append(f"{name} to {destination}: {found}, {to['why']} {examples}".rstrip())
    return wrong
