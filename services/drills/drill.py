"""A drill on a running fabric: load, faults, healing, verdict.

    with Fabric.attach("flights") as fabric:
        result = Drill(fabric, find("kill-instance")).run()
    print(result.valid, result.summary)

It ends by itself, and mends what it broke when it is interrupted. A fabric that is not marked for
drills is refused.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, TypeVar

from raylay.services.drills.drill_lock import (
    MARK_FILE,
    DrillLock,
    check_allowed,
    clean,
    refuse_running,
)
from raylay.services.drills.evidence import THREADS, DrillResult, EvidenceCollector
from raylay.services.drills.faults import (
    FaultPlaces,
    Injector,
    InternalFault,
    KillInstances,
    KillLink,
    LoseDisk,
    StopProcess,
)
from raylay.services.drills.head import HeadFault
from raylay.services.drills.history_builder import now_us
from raylay.services.drills.lease import RENEW_S
from raylay.services.drills.load import LoadClients
from raylay.services.drills.measure import (
    InjectedFault,
)
from raylay.services.drills.queue_load import KillConsumers, QueueLoad
from raylay.services.drills.scenario import FaultHit, FaultStep, Targets
from raylay.services.drills.sow_load import SowLoad
from raylay.services.drills.step_conflicts import (
    LINE_FAULTS,
    Part,
    lines,
    meet,
    parts,
    undoing,
)
from raylay.services.drills.watcher import Watcher, sample_of
from raylay.services.errors import FabricError
from raylay.services.fabric import registry

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HEAL_S_MAX = 120.0
"""Time from the last fault's end until everything must be whole again."""
START_S_MAX = 60.0
LOOK_S = 0.1
REGISTERED_S = 1.0
"""Time between two looks whether the fabric was stopped."""
Answer = TypeVar("Answer")


class Drill(EvidenceCollector):
    """One drill. Owner: the process that runs it. Lifecycle: `run`, once.

    Args:
        fabric: started here or attached to, and marked for drills.
        scenario: what to do.
        topic: for the load's messages; empty: the drills' own, `raylay/drill`.
        injectors: by fault, in place of those of `faults.py`.
        tell: given a line for people at each step.
    """

    def run(self) -> DrillResult:
        """Runs it, from the first look to the verdict. Blocks.

        Raises:
            FabricError: the fabric is not whole, another drill runs, an instance refuses it (then
                nothing was broken), or something could not be broken. What was broken is mended.
            KeyboardInterrupt: it was interrupted, by SIGINT or SIGTERM. What was broken is mended.
        """
        self.fabric.authorize(
            [each.name for each in self.fabric.declared.instances],
            "drill",
            kind=self.scenario.name,
        )
        with DrillLock(self.fabric, self.number, self.scenario), _handlers_kept():
            try:
                return asyncio.run(self._main())
            except BaseException:
                for aside in self._aside:
                    self._tell(f"what was on the lost disk is in {aside}: nothing was judged")
                raise
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
        """Runs a drill on a fabric that nobody stops meanwhile, and returns its result.

        Raises:
            FabricError: somebody does.
        """
        drill = asyncio.create_task(course)
        stopped = asyncio.create_task(self._await_stopped())
        try:
            await asyncio.wait((drill, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not drill.done():
                raise FabricError(f"fabric {self.fabric.name} was stopped while the drill went on")
            return drill.result()
        finally:
            drill.cancel()
            stopped.cancel()
            await asyncio.gather(drill, stopped, return_exceptions=True)

    async def _await_stopped(self) -> None:
        """Waits until the fabric is registered here no more. Of one that never was (it was started
        elsewhere) nothing is known: this does not end, nor for a drill that only judges."""
        first = await asyncio.to_thread(registry.find, self.fabric.name)
        while True:
            await asyncio.sleep(REGISTERED_S)
            # Asked of a file: Ray's head may be what is broken.
            now = await asyncio.to_thread(registry.find, self.fabric.name)
            if first is not None and now is None and not self._result.ended_us:
                return

    # -- the course ------------------------------------------------------------------------------
    async def _drill(self) -> DrillResult:
        scenario, result = self.scenario, self._result
        self._tell(f"drill {scenario.name} on fabric {self.fabric.name}: looking at it")
        self._places = await asyncio.to_thread(FaultPlaces, self.fabric, self._over)
        before = self._first_statuses = await self._await_whole(START_S_MAX, "before the drill")
        after_txid = {name: int(status["committed_txid"]) for name, status in before.items()}
        self._crowd = result.crowd = LoadClients(
            self.fabric, scenario.load, self.number, self._topic
        )
        result.topic = self._crowd.topic
        groups = self._groups if result.topic else {}
        self._sow = SowLoad(self.number, groups, before)
        self._queue = result.queue = QueueLoad(self.number, groups, before, self._members())
        targets = Targets(self.fabric.declared, self._crowd.serving)
        for step in scenario.steps:
            if step.fault == "kill_consumers":
                self._queue.check(targets.resolve(step).region)
        self._injectors = self._make_injectors()
        for step in scenario.steps:
            head = self._injectors[step.fault]
            if isinstance(head, HeadFault):
                head.check()
        self._logged_before = await asyncio.to_thread(self._logged)
        self._watcher = Watcher(self.fabric, before)
        self._places.known = self._watcher.statuses
        self._watcher.start()
        steps: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._crowd.close)
                stack.push_async_callback(self._sow.close)
                stack.push_async_callback(self._queue.close)
                stack.push_async_callback(_cancelled, steps)
                result.began_us = now_us()
                await self._crowd.open(self._slow_regions)
                await self._sow.open(self._crowd.options)
                await self._queue.open(self._crowd.options)
                self._tell(
                    f"{len(self._crowd.publishers)} publishers, {len(self._crowd.subscribers)} "
                    f"subscribers; {scenario.before_ms / 1000:g} s before the first fault"
                )
                await asyncio.sleep(scenario.before_ms / 1000)
                steps += [
                    asyncio.create_task(self._perform(number, step))
                    for number, step in enumerate(scenario.steps, 1)
                ]
                await asyncio.gather(*steps)
                await asyncio.sleep(scenario.after_ms / 1000)
                self._tell("healed; waiting until everything owed has come")
                result.quiet_us = now_us()
                await asyncio.gather(
                    self._crowd.settle(HEAL_S_MAX),
                    self._sow.settle(HEAL_S_MAX),
                    self._queue.settle(HEAL_S_MAX, self._statuses),
                )
                if not scenario.own_load:
                    await self._crowd.await_subscribers(
                        {group: owed.persisted for group, owed in self._records().items()},
                        HEAL_S_MAX,
                    )
                complaints: list[str] = []
                try:
                    statuses = await self._await_whole(HEAL_S_MAX, "after it")
                    whole_us = now_us()
                    self._last_look = [
                        sample_of(whole_us, name, status) for name, status in statuses.items()
                    ]
                    await self._await_carried(statuses, HEAL_S_MAX)
                    self._queue.note_left(statuses)
                    await self._sow.ask(self.fabric.servers(), self._crowd.options)
                except FabricError as error:
                    complaints.append(str(error))
                    statuses = await self._statuses()
                unacked = {each.name: each.store.messages for each in self._crowd.publishers}
                result.ended_us = now_us()
        finally:
            await asyncio.to_thread(self._watcher.stop)
        self._tell("judging")
        result.judgement = await asyncio.to_thread(
            self._judge, after_txid, statuses, unacked, complaints
        )
        await asyncio.to_thread(self._measure)
        self._clear_disks()
        return result

    def _make_injectors(self) -> dict[str, Injector]:
        places = self._places
        inside = InternalFault(places)
        self._disks = LoseDisk(
            places,
            self.number,
            self._read_lost,
            keep=self.scenario.own_load,
        )
        self._aside = self._disks.aside
        made: dict[str, Injector] = {
            "kill_instance": KillInstances(places),
            "kill_node": KillInstances(places, links_too=True),
            "kill_link": KillLink(places),
            "kill_gcs": HeadFault(places, kill=True),
            "stop_gcs": HeadFault(places, kill=False),
            "stop": StopProcess(places),
            "stop_link": StopProcess(places, link=True),
            "lose_disk": self._disks,
            "slow_consumer": _SlowConsumer(self, inside),
            "kill_consumers": KillConsumers(self._queue),
        }
        made |= dict.fromkeys((*LINE_FAULTS, "full_disk", "clock_jump"), inside)
        return {**made, **self._given}

    async def _perform(self, number: int, step: FaultStep) -> None:
        await asyncio.sleep(step.at_ms / 1000)
        hit = Targets(self.fabric.declared, self._crowd.serving).resolve(step)
        injector = self._injectors[step.fault]
        injected = InjectedFault(
            number, step.fault, hit.text, step.sentence(hit.text), now_us(),
            instances=hit.instances, unacknowledged=self._crowd.unacknowledged,
        )  # fmt: skip
        await self._hold(number, parts(step, hit, self.fabric.declared))
        injected.began_us = now_us()
        self._tell(f"{number}. {injected.text}")
        try:
            injected.notes += await to_the_end(injector.inject, step, hit)
            self._result.injected.append(injected)
            since_us = now_us()
            await self._last(injector, step, hit)
            if isinstance(injector, InternalFault):
                self._impaired.append((injected, lines(step, hit), since_us, now_us()))
        except FabricError as error:
            raise FabricError(f"step {number}, {injected.text}: {error}") from None
        finally:
            notes = await to_the_end(injector.heal, step, hit)
            injected.notes += notes or []
            injected.ended_us = now_us()
            _, mended = self._held.pop(number)
            mended.set()
        if step.lasts_ms:
            self._tell(f"{number}. over")

    async def _hold(self, number: int, wanted: frozenset[Part]) -> None:
        """Waits for steps that break the same and should be over by now.

        Raises:
            FabricError: one is on as it should be; who serves decided that they meet.
        """
        steps = self.scenario.steps
        while others := [each for each, (held, _) in self._held.items() if held & wanted]:
            held, mended = self._held[others[0]]
            if meet(steps[number - 1], steps[others[0] - 1]):
                raise FabricError(undoing(others[0], number, min(held & wanted)))
            await mended.wait()
        self._held[number] = wanted, asyncio.Event()

    async def _last(self, injector: Injector, step: FaultStep, hit: FaultHit) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + step.lasts_ms / 1000
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(RENEW_S, left_s))
            if end_s - loop.time() > RENEW_S / 2:
                await to_the_end(injector.renew, step, hit, end_s - loop.time())

    # -- how it is -------------------------------------------------------------------------------
    async def _statuses(self) -> dict[str, dict[str, Any]]:
        found = await asyncio.to_thread(self.fabric.status)
        return {status["name"]: status for status in found["instances"]}

    async def _await_whole(self, wait_s: float, when: str) -> dict[str, dict[str, Any]]:
        """Statuses of a fabric in which nothing is owed and all links are caught up.

        Raises:
            FabricError: it is not whole within so long; says what is missing.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            statuses = await self._statuses()
            wrong = unwhole(statuses, busy=self.scenario.own_load)
            if not wrong:
                return statuses
            if loop.time() > deadline_s:
                raise FabricError(
                    f"the fabric is not whole {when}, after {wait_s:.0f} s: {'; '.join(wrong[:5])}"
                )
            await asyncio.sleep(LOOK_S)

    async def _await_carried(self, upto: Mapping[str, Mapping[str, Any]], wait_s: float) -> None:
        """Waits until every destination has what its instance had journaled then. Of a load of the
        drill's own nothing is left by now.

        Raises:
            FabricError: one has not within so long.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            behind = [
                f"{name} to {destination}"
                for name, status in (await self._statuses()).items()
                for destination, to in status.get("destinations", {}).items()
                if to["stored_txid"] < upto[name]["committed_txid"] and to["lag"]
            ]
            if not behind:
                return
            if loop.time() > deadline_s:
                raise FabricError(f"after {wait_s:.0f} s these are behind: {', '.join(behind)}")
            await asyncio.sleep(LOOK_S)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """An event loop leaves the default handlers of the signals that it took."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        with suppress(ValueError):  # not on the main thread: nothing was taken
            for number, handler in before.items():
                signal.signal(number, handler)


async def to_the_end(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Returns the result of a function that runs in a thread. A cancelled caller still waits for
    the thread: an injector that still breaks something must not be overtaken by what mends it."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        running.exception()  # it was looked at
        raise asyncio.CancelledError
    return running.result()


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Ends steps that are still on; each mends what it broke, whatever else interrupts it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _SlowConsumer:
    """A subscriber of the load that stops reading, while slow clients may take less.

    Args:
        inside: sets the limits.
    """

    def __init__(self, drill: Drill, inside: InternalFault) -> None:
        self._drill = drill
        self._inside = inside

    def _set(self, hit: FaultHit, reads: bool) -> None:
        crowd = self._drill._crowd
        for subscriber in crowd.slow(hit.region):
            subscriber.set_reading(reads)

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Stops the subscriber."""
        notes = self._inside.inject(step, hit)
        self._set(hit, False)
        return notes

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Renews the limits, which are for a time; the subscriber needs no more than to be stopped
        once."""
        self._inside.renew(step, hit, left_s)

    def heal(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Lets the subscriber go on."""
        self._set(hit, True)
        return self._inside.heal(step, hit)


def unwhole(statuses: Mapping[str, Mapping[str, Any]], *, busy: bool = False) -> list[str]:
    """Lists everything that differs from an intact fabric on which nobody publishes. `busy`:
    somebody publishes, and acknowledgments may be outstanding at any moment."""
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


__all__ = [
    "Drill",
    "MARK_FILE",
    "DrillLock",
    "DrillResult",
    "check_allowed",
    "clean",
    "refuse_running",
    "unwhole",
]
