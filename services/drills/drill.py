"""A drill on a running fabric: load, faults, healing, verdict.

    with Fabric.attach("flights") as fabric:
        result = Drill(fabric, find("kill-instance")).run()
    print(result.valid, result.summary)

A drill ends by itself, and heals its faults when it is interrupted. It refuses a fabric that is not
marked for drills.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from raylay.services.drills.drill_lock import (
    MARK_FILE,
    DrillLock,
    check_allowed,
    clean,
    refuse_running,
)
from raylay.services.drills.drill_run import START_S_MAX, DrillRun, WholenessCheck
from raylay.services.drills.evidence import (
    AlarmLog,
    DrillResult,
    EvidenceCollector,
    logs_of,
    members_of_fabric,
    regions_of,
)
from raylay.services.drills.faults import FaultPlaces, Injector, LoseDisk
from raylay.services.drills.history_builder import now_us
from raylay.services.drills.journal_collector import JournalCollector
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.loads.queue_load import QueueLoad
from raylay.services.drills.loads.sow_load import SowLoad
from raylay.services.drills.scenario import DrillScenario, Targets
from raylay.services.drills.step_conflicts import refuse_overlaps
from raylay.services.drills.step_runner import StepRunner, make_injectors
from raylay.services.drills.watcher import Watcher
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.records import registry

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REGISTERED_S = 1.0
"""Time between two looks whether the fabric was stopped."""
THREADS = 64
"""Threads for what blocks: injectors, and questions to instances."""


class Drill:
    """One drill. Owner: the process that runs it. Lifecycle: `run`, once.

    Args:
        fabric: a fabric that is marked for drills, started here or attached to.
        scenario: the load and the faults.
        topic: the topic of the load's messages; empty: the drills' own, `raylay/drill`.
        injectors: injectors of the caller's own, by fault, in place of those of `faults.py`.
        tell: called with a line of text at each step.

    Raises:
        ConfigurationError: the fabric is not marked for drills, a step has a target that the fabric
            does not have, or two steps would undo each other.
    """

    def __init__(
        self,
        fabric: Fabric,
        scenario: DrillScenario,
        *,
        topic: str = "",
        injectors: Mapping[str, Injector] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        check_allowed(fabric)
        self.fabric = fabric
        self.scenario = scenario
        self.number = f"{now_us() // 1000:x}"[-7:]
        self._topic = topic
        self._replaced = dict(injectors or {})
        self._tell = tell
        self._over = threading.Event()
        targets = Targets(fabric.declared, fabric.declared.instances[0].name)
        hits = [(step.fault, targets.resolve(step)) for step in scenario.steps]
        self._slow_regions = {hit.region for fault, hit in hits if fault == "slow_consumer"}
        refuse_overlaps(scenario, fabric.declared)
        self._result = DrillResult(
            fabric.name, self.number, scenario, now_us(), groups=regions_of(fabric.declared)
        )

    def run(self) -> DrillResult:
        """Runs the drill, from the first look to the verdict. Blocks.

        Raises:
            FabricError: the fabric is not whole, another drill runs, an instance refuses the drill
                (nothing was broken then), or a fault could not be injected. Every fault is healed.
            KeyboardInterrupt: SIGINT or SIGTERM interrupted the drill. Every fault is healed.
        """
        self.fabric.authorize(
            [instance.name for instance in self.fabric.declared.instances],
            "drill",
            kind=self.scenario.name,
        )
        with DrillLock(self.fabric, self.number, self.scenario), _handlers_kept():
            try:
                return asyncio.run(self._main())
            finally:
                self.fabric.end_errands()

    async def _main(self) -> DrillResult:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS))
        task = asyncio.current_task()
        assert task is not None
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self._over.set()
            task.cancel()

        with suppress(ValueError, RuntimeError):  # not on the main thread
            for number in SIGNALS:
                loop.add_signal_handler(number, interrupt)
        try:
            return await self._while_it_runs(self._drill())
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise

    async def _while_it_runs(self, course: Coroutine[Any, Any, DrillResult]) -> DrillResult:
        """Runs a drill until it ends or its fabric is stopped, and returns its result.

        Raises:
            FabricError: the fabric was stopped from outside.
        """
        drill = asyncio.create_task(course)
        stopped = asyncio.create_task(self._await_stopped())
        try:
            await asyncio.wait((drill, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not drill.done():
                raise FabricError(
                    f"fabric {self.fabric.name} was stopped while the drill went on: nothing was "
                    "judged; start the fabric and run the drill again"
                )
            return drill.result()
        finally:
            drill.cancel()
            stopped.cancel()
            await asyncio.gather(drill, stopped, return_exceptions=True)

    async def _await_stopped(self) -> None:
        """Waits until the fabric is no longer registered on this host. Never returns for a fabric
        that was not registered here at first (it was started on another host), nor once the drill
        only judges."""
        first = await asyncio.to_thread(registry.find, self.fabric.name)
        while True:
            await asyncio.sleep(REGISTERED_S)
            # The registry is a file: Ray's head may be what the drill has broken.
            now = await asyncio.to_thread(registry.find, self.fabric.name)
            if first is not None and now is None and not self._result.ended_us:
                return

    async def _drill(self) -> DrillResult:
        fabric, scenario, result = self.fabric, self.scenario, self._result
        self._tell(f"drill {scenario.name} on fabric {fabric.name}: looking at it")
        wholeness = WholenessCheck(fabric, busy=scenario.own_load)
        before = await wholeness.await_whole(START_S_MAX, "before the drill")
        watcher = Watcher(fabric, before)
        places = await asyncio.to_thread(FaultPlaces, fabric, self._over, watcher.statuses)
        crowd = LoadClients(fabric, scenario.load, self.number, self._topic)
        result.crowd, result.topic = crowd, crowd.topic
        groups = result.groups if crowd.topic else {}
        sow = SowLoad(self.number, groups, before)
        queue = QueueLoad(self.number, groups, before, members_of_fabric(fabric))
        result.queue = queue
        targets = Targets(fabric.declared, crowd.serving)
        for step in scenario.steps:
            if step.fault == "kill_consumers":
                queue.check(targets.resolve(step).region)
        journals = JournalCollector(fabric, places)
        disks = LoseDisk(places, self.number, journals.lost_runs, keep=scenario.own_load)
        injectors = make_injectors(places, disks, crowd, queue, self._replaced)
        steps = StepRunner(scenario, fabric.declared, injectors, crowd, self._tell)
        steps.check()
        alarms = await asyncio.to_thread(AlarmLog, list(before), logs_of(fabric))
        evidence = EvidenceCollector(
            fabric,
            scenario,
            result,
            before,
            crowd=crowd,
            sow=sow,
            queue=queue,
            watcher=watcher,
            journals=journals,
            disks=disks,
            steps=steps,
            alarms=alarms,
        )
        run = DrillRun(
            fabric,
            scenario,
            result,
            slow_regions=self._slow_regions,
            crowd=crowd,
            sow=sow,
            queue=queue,
            steps=steps,
            watcher=watcher,
            wholeness=wholeness,
            disks=disks,
            evidence=evidence,
            tell=self._tell,
        )
        try:
            return await run.run()
        except BaseException:
            for aside in disks.aside:
                self._tell(f"nothing was judged; the content of the lost disk is in {aside}")
            raise


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restores the signal handlers that were set before. An event loop that took a signal leaves
    the default handler behind."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        with suppress(ValueError):  # not on the main thread: no handler was replaced
            for number, handler in before.items():
                signal.signal(number, handler)


__all__ = [
    "Drill",
    "MARK_FILE",
    "DrillLock",
    "DrillResult",
    "check_allowed",
    "clean",
    "refuse_running",
]
