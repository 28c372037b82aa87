"""Runs the steps of a drill: each injects its fault, keeps it on and heals it at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from raylay.services.configuration.model import FabricSettings
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
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.loads.queue_load import KillConsumers, QueueLoad
from raylay.services.drills.measure import InjectedFault
from raylay.services.drills.scenario import DrillScenario, FaultHit, FaultStep, Targets
from raylay.services.drills.step_conflicts import LINE_FAULTS, Part, lines, meet, parts, undoing
from raylay.services.errors import FabricError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ImpairedLines:
    """The lines (instance, destination) that a step impaired between two moments."""

    injected: InjectedFault
    lines: list[tuple[str, str]]
    since_us: int
    until_us: int


class StepRunner:
    """Runs the steps of one drill. Owner: the drill's event loop; injectors run in threads.

    Args:
        injectors: the injector of each fault.
        crowd: the load's clients. The first publisher's server decides what `serving` hits.
        tell: called with a line of text when a step begins and when it is over.

    Attributes:
        injected: the faults that were injected.
        impaired: the lines that steps impaired.
    """

    def __init__(
        self,
        scenario: DrillScenario,
        settings: FabricSettings,
        injectors: Mapping[str, Injector],
        crowd: LoadClients,
        tell: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._settings = settings
        self._injectors = injectors
        self._crowd = crowd
        self._tell = tell
        self._held: dict[int, tuple[frozenset[Part], asyncio.Event]] = {}
        """The parts that each running step breaks, by the step's number, and an event that is set
        when the step has healed them."""
        self.injected: list[InjectedFault] = []
        self.impaired: list[ImpairedLines] = []

    def check(self) -> None:
        """Checks, before anything is broken, that Ray's head may be hit where a step does that.

        Raises:
            FabricError: Ray's head runs on another host, or would not come back.
        """
        for step in self._scenario.steps:
            injector = self._injectors[step.fault]
            if isinstance(injector, HeadFault):
                injector.check()

    async def run(self, number: int, step: FaultStep) -> None:
        """Runs one step from its beginning to its end, and heals it also when it is cancelled.

        Args:
            number: the step's number in the scenario, from 1.

        Raises:
            FabricError: the fault could not be injected, or meets a step on the same part.
        """
        await asyncio.sleep(step.at_ms / 1000)
        hit = Targets(self._settings, self._crowd.serving).resolve(step)
        injector = self._injectors[step.fault]
        injected = InjectedFault(
            number, step.fault, hit.text, step.sentence(hit.text), now_us(),
            instances=hit.instances, unacknowledged=self._crowd.unacknowledged,
        )  # fmt: skip
        await self.reserve(number, parts(step, hit, self._settings))
        injected.began_us = now_us()
        self._tell(f"{number}. {injected.text}")
        try:
            injected.notes += await to_the_end(injector.inject, step, hit)
            self.injected.append(injected)
            since_us = now_us()
            await self._last(injector, step, hit)
            if isinstance(injector, InternalFault):
                self.impaired.append(ImpairedLines(injected, lines(step, hit), since_us, now_us()))
        except FabricError as error:
            raise FabricError(f"step {number}, {injected.text}: {error}") from None
        finally:
            notes = await to_the_end(injector.heal, step, hit)
            injected.notes += notes or []
            injected.ended_us = now_us()
            self.release(number)
        if step.lasts_ms:
            self._tell(f"{number}. over")

    async def reserve(self, number: int, wanted: frozenset[Part]) -> None:
        """Reserves the parts that a step breaks. Waits for steps that break the same parts and
        should be over by now.

        Raises:
            FabricError: another step that breaks one of them is not due to end yet. Which instance
                serves decided that the two meet.
        """
        steps = self._scenario.steps
        while others := [other for other, (held, _) in self._held.items() if held & wanted]:
            held, mended = self._held[others[0]]
            if meet(steps[number - 1], steps[others[0] - 1]):
                raise FabricError(undoing(others[0], number, min(held & wanted)))
            await mended.wait()
        self._held[number] = wanted, asyncio.Event()

    def release(self, number: int) -> None:
        """Releases the parts that a step reserved, and wakes the steps that wait for them."""
        _, mended = self._held.pop(number)
        mended.set()

    async def _last(self, injector: Injector, step: FaultStep, hit: FaultHit) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + step.lasts_ms / 1000
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(RENEW_S, left_s))
            if end_s - loop.time() > RENEW_S / 2:
                await to_the_end(injector.renew, step, hit, end_s - loop.time())


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


def make_injectors(
    places: FaultPlaces,
    disks: LoseDisk,
    crowd: LoadClients,
    queue: QueueLoad,
    replaced: Mapping[str, Injector],
) -> dict[str, Injector]:
    """Returns the injector of each fault.

    Args:
        replaced: injectors of the caller's own, by fault, in place of the built-in ones.
    """
    inside = InternalFault(places)
    made: dict[str, Injector] = {
        "kill_instance": KillInstances(places),
        "kill_node": KillInstances(places, links_too=True),
        "kill_link": KillLink(places),
        "kill_gcs": HeadFault(places, kill=True),
        "stop_gcs": HeadFault(places, kill=False),
        "stop": StopProcess(places),
        "stop_link": StopProcess(places, link=True),
        "lose_disk": disks,
        "slow_consumer": SlowConsumer(crowd, inside),
        "kill_consumers": KillConsumers(queue),
    }
    made |= dict.fromkeys((*LINE_FAULTS, "full_disk", "clock_jump"), inside)
    return {**made, **replaced}


class SlowConsumer:
    """Stops a subscriber of the load from reading, and lowers the limits of slow clients meanwhile.

    Args:
        inside: the injector that sets the limits.
    """

    def __init__(self, crowd: LoadClients, inside: InternalFault) -> None:
        self._crowd = crowd
        self._inside = inside

    def _set(self, hit: FaultHit, reads: bool) -> None:
        for subscriber in self._crowd.slow(hit.region):
            subscriber.set_reading(reads)

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        notes = self._inside.inject(step, hit)
        self._set(hit, False)
        return notes

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Renews the limits, which expire. The subscriber stays stopped without that."""
        self._inside.renew(step, hit, left_s)

    def heal(self, step: FaultStep, hit: FaultHit) -> list[str]:
        self._set(hit, True)
        return self._inside.heal(step, hit)
