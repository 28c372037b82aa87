"""A drill on a running fabric: load, faults, healing, verdict.

    with Fabric.attach("flights") as fabric:
        result = Drill(fabric, find("kill-instance")).run()
    print(result.valid, result.summary)

It ends by itself, and mends what it broke when it is interrupted. A fabric that is not marked for
drills is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.drills.faults import (
    Head,
    Injector,
    Inside,
    KillInstances,
    KillLink,
    LoseDisk,
    Places,
    Stop,
    bring_head_back,
    mend,
)
from raylay.services.drills.judging import (
    Judgement,
    judge_laws,
    judged,
    reaching,
    read_journal,
    seen,
    unjudged,
)
from raylay.services.drills.lease import RENEW_S
from raylay.services.drills.load import Crowd
from raylay.services.drills.measure import (
    Downgrade,
    Failover,
    Injected,
    Recovery,
    Sample,
    acked_while_downgraded,
    caused,
    downgrades,
    ended_unasked,
    not_whole_again,
    open_meanwhile,
    recovery,
    until_whole,
)
from raylay.services.drills.overlap import (
    LINE_FAULTS,
    Part,
    lines,
    meet,
    parts,
    refuse_overlaps,
    undoing,
)
from raylay.services.drills.recorded import ALARMS, Clock, Recording, alarms, members_of, now_us
from raylay.services.drills.scenario import Hit, Scenario, Step, Targets
from raylay.services.drills.verdict import Record
from raylay.services.drills.watching import Watcher, sample_of
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric, registry
from raylay.services.fabric.plan import instance_config
from raylay.services.fabric.registry import process_start
from raylay.services.messages.records import Kind, Run, publisher_id
from raylay.services.server.injected import REFUSED

MARK_FILE = "drill.json"
"""In the fabric's directory while a drill goes on."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
EARLIER_TXIDS = 100_000
THREADS = 64
HEAL_S_MAX = 120.0
"""From the last fault's end until everything must be whole again."""
START_S_MAX = 60.0
LOOK_S = 0.1
REGISTERED_S = 1.0
"""How often it is looked whether the fabric was stopped."""

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Result:
    """What a drill came to."""

    fabric: str
    number: str
    scenario: Scenario
    began_us: int
    quiet_us: int = 0
    """When publishing ended."""
    ended_us: int = 0
    topic: str = ""
    groups: dict[str, list[str]] = field(default_factory=dict)
    injected: list[Injected] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    downgrades: list[Downgrade] = field(default_factory=list)
    acked_at_risk: int = 0
    samples: list[Sample] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    crowd: Crowd | None = None
    judgement: Judgement | None = None
    traces: Path | None = None
    kept: list[str] = field(default_factory=list)
    """What was put aside and is still there."""

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        return self.judgement is not None and self.judgement.valid


class Drill:
    """One drill. Owner: the process that runs it. Lifecycle: `run`, once.

    Args:
        fabric: started here or attached to, and marked for drills.
        scenario: what to do.
        topic: for the load's messages; empty: one that the fabric journals.
        injectors: by fault, in place of those of `faults.py`.
        tell: given a line for people at each step.
    """

    def __init__(
        self,
        fabric: Fabric,
        scenario: Scenario,
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
        self._given = dict(injectors or {})
        self._tell = tell
        self._names = [instance.name for instance in fabric.declared.instances]
        self._groups: dict[str, list[str]] = {}
        for instance in fabric.declared.instances:
            self._groups.setdefault(instance.group, []).append(instance.name)
        # A wrong target is told before anything runs.
        targets = Targets(fabric.declared, self._names[0])
        self._slow_regions = {
            targets.resolve(step).region for step in scenario.steps if step.fault == "slow_consumer"
        }
        for step in scenario.steps:
            targets.resolve(step)
        refuse_overlaps(scenario, fabric.declared)
        self._held: dict[int, tuple[frozenset[Part], asyncio.Event]] = {}
        """By number of a step that is on: what it breaks, and when that is mended."""
        self._places: Places
        self._crowd: Crowd
        self._watcher: Watcher
        self._injectors: dict[str, Injector] = {}
        self._last_look: list[Sample] = []
        """At the fabric when it was whole in the end; empty: it was not."""
        self._disks: LoseDisk
        self._unread: list[str] = []
        """Journals that could not be read to their end."""
        self._aside: list[Path] = []
        self._over = threading.Event()
        self._impaired: list[tuple[Injected, list[tuple[str, str]], int, int]] = []
        """Steps with the lines that they impaired, from when until when."""
        self._first_statuses: dict[str, dict[str, Any]] = {}
        self._logged_before: dict[str, dict[str, dict[str, Any]]] = {}
        self._result = Result(fabric.name, self.number, scenario, now_us(), groups=self._groups)

    def run(self) -> Result:
        """Runs it, from the first look to the verdict. Blocks.

        Raises:
            FabricError: the fabric is not whole, another drill runs, or something could not be
                broken. What was broken is mended.
            KeyboardInterrupt: it was interrupted, by SIGINT or SIGTERM. What was broken is mended.
        """
        with Mark(self.fabric, self.number, self.scenario), _handlers_kept():
            try:
                return asyncio.run(self._main())
            except BaseException:
                for aside in self._aside:
                    self._tell(f"what was on the lost disk is in {aside}: nothing was judged")
                raise
            finally:
                self.fabric.end_errands()

    async def _main(self) -> Result:
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

    async def _while_it_runs(self, course: Coroutine[Any, Any, Result]) -> Result:
        """What a drill comes to, on a fabric that nobody stops meanwhile.

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
        """Until the fabric is registered here no more. Of one that never was (it was started
        elsewhere) nothing is known: this does not end, nor for a drill that only judges."""
        first = await asyncio.to_thread(registry.find, self.fabric.name)
        while True:
            await asyncio.sleep(REGISTERED_S)
            # Asked of a file: Ray's head may be what is broken.
            now = await asyncio.to_thread(registry.find, self.fabric.name)
            if first is not None and now is None and not self._result.ended_us:
                return

    # -- the course ------------------------------------------------------------------------------
    async def _drill(self) -> Result:
        scenario, result = self.scenario, self._result
        self._tell(f"drill {scenario.name} on fabric {self.fabric.name}: looking at it")
        self._places = await asyncio.to_thread(Places, self.fabric, self._over)
        before = self._first_statuses = await self._await_whole(START_S_MAX, "before the drill")
        after_txid = {name: int(status["committed_txid"]) for name, status in before.items()}
        self._injectors = self._make_injectors()
        for step in scenario.steps:
            head = self._injectors[step.fault]
            if isinstance(head, Head):
                head.check()
        self._crowd = result.crowd = Crowd(self.fabric, scenario.load, self.number, self._topic)
        result.topic = self._crowd.topic
        self._logged_before = await asyncio.to_thread(self._logged)
        self._watcher = Watcher(self.fabric, before)
        self._places.known = self._watcher.statuses
        self._watcher.start()
        steps: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._crowd.close)
                stack.push_async_callback(_cancelled, steps)
                result.began_us = now_us()
                await self._crowd.open(self._slow_regions)
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
                await self._crowd.settle(HEAL_S_MAX)
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

    def _records(self) -> dict[str, Record]:
        """By region the record of those whose messages reach it."""
        reach = reaching(self._members(), self._crowd.topic, self._crowd.kind)
        return {group: self._record_of(reach[group]) for group in self._groups}

    def _record_of(self, groups: set[str]) -> Record:
        record = Record()
        for each in self._crowd.publishers:
            if each.published:
                # What reaches a place without being owed there is no mistake.
                owed_upto = each.persisted if each.group in groups else 0
                record.add(publisher_id(each.name), each.first, each.published, owed_upto)
        return record

    def _make_injectors(self) -> dict[str, Injector]:
        places = self._places
        inside = Inside(places)
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
            "kill_gcs": Head(places, kill=True),
            "stop_gcs": Head(places, kill=False),
            "stop": Stop(places),
            "stop_link": Stop(places, link=True),
            "lose_disk": self._disks,
            "slow_consumer": _SlowConsumer(self),
        }
        made |= dict.fromkeys((*LINE_FAULTS, "full_disk", "clock_jump"), inside)
        return {**made, **self._given}

    async def _perform(self, number: int, step: Step) -> None:
        await asyncio.sleep(step.at_ms / 1000)
        hit = Targets(self.fabric.declared, self._crowd.serving).resolve(step)
        injector = self._injectors[step.fault]
        injected = Injected(
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
            if isinstance(injector, Inside):
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

    async def _last(self, injector: Injector, step: Step, hit: Hit) -> None:
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
        """Until every destination has what its instance had journaled then. Of a load of the
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

    def _members(self) -> dict[str, Any]:
        settings, record = self.fabric._known()
        return members_of(
            (
                instance.name,
                instance.group,
                [
                    (found.destination(), found.server_names)
                    for found in instance_config(settings, record, instance).destinations
                ],
            )
            for instance in settings.instances
        )

    def _archive(self, name: str, directory: Path) -> Path | None:
        """Where archived segments lie of an instance whose data is in `directory` now."""
        settings, record = self.fabric._known()
        chosen = instance_config(settings, record, settings.instance(name)).archive_directory
        if chosen is None:
            return None
        own = self.fabric.data_directory(name)
        path = Path(chosen)
        return directory / path.relative_to(own) if path.is_relative_to(own) else path

    # -- the verdict -----------------------------------------------------------------------------
    def _journals(self, after_txid: Mapping[str, int]) -> dict[str, list[Run]]:
        publishers = [publisher_id(each.name) for each in self._crowd.publishers]
        new = {lost.instance for lost in self._disks.lost}
        # What others journaled just before the drill may have come here just after it began.
        earlier = EARLIER_TXIDS if self.scenario.own_load else 0
        journals: dict[str, list[Run]] = {}
        for name in self._names:
            directory = self._places.directory(name)
            after = 0 if name in new else max(0, after_txid[name] - earlier)
            try:
                journals[name], why = self._places.errand(
                    name, read_journal, directory, after, publishers,
                    self._archive(name, directory),
                )  # fmt: skip
            except FabricError as error:
                journals[name], why = [], str(error)
            if why:
                self._unread.append(f"the journal of {name} cannot be read further: {why}")
        return journals

    def _read_lost(self, name: str, aside: Path) -> list[Run]:
        """What was on a disk that was lost."""
        runs, why = read_journal(aside, 0, archive=self._archive(name, aside))
        if why:
            self._unread.append(f"the journal that {name} lost cannot be read further: {why}")
        return runs

    def _judge(
        self,
        after_txid: Mapping[str, int],
        statuses: Mapping[str, Mapping[str, Any]],
        unacked: Mapping[str, int],
        complaints: list[str],
    ) -> Judgement:
        crowd, watcher = self._crowd, self._watcher
        journals = self._journals(after_txid)
        members = self._members()
        own_load = self.scenario.own_load
        if own_load:
            # Of one that does not answer, what it said last.
            upto = {
                name: int({**watcher.statuses.get(name, {}), **found}.get("committed_txid", 0))
                for name, found in statuses.items()
            }
            records, total = seen(journals, after_txid, upto, members, self._disks.lost)
        else:
            records, total = self._records(), crowd.record()
        splits = bool(self._disks.lost) or any(
            not destination.own_group_only and instance.group != destination.group
            for instance, destination in self.fabric.declared.links()
        )
        verdict, late = judged(
            self._groups,
            journals,
            {
                group: {s.name: s.received for s in crowd.subscribers if s.group == group}
                for group in self._groups
            },
            records,
            total,
            splits,
        )
        recording = self._recording(members)
        if own_load:
            us = self._first_journaled_us(recording, journals, after_txid)
            times_us = {"the fabric's own load": us}
        else:
            times_us = {each.name: [ack.time_us for ack in each.acks] for each in crowd.publishers}
        complaints += unjudged(
            times_us, recording.faults, "journaled" if own_load else "acknowledged"
        )
        found, history = judge_laws(recording, journals, statuses, unacked, own_load=own_load)
        complaints += self._unread + crowd.complaints
        complaints += self._alarms()
        first = {name: int(told["pid"]) for name, told in self._first_statuses.items()}
        complaints += ended_unasked(first, watcher.samples, self._result.injected)
        return Judgement(
            verdict,
            [each for each in found if not each.separate],
            [each for each in found if each.separate],
            history is not None,
            late,
            complaints,
        )

    def _first_journaled_us(
        self,
        recording: Recording,
        journals: Mapping[str, list[Run]],
        after_txid: Mapping[str, int],
    ) -> list[int]:
        """When an instance journaled something as the first, since the drill began."""
        found: list[int] = []
        lost = [(each.instance, each.runs) for each in self._disks.lost]
        new = {name for name, _ in lost}
        for name, runs in (*lost, *journals.items()):
            after = 0 if name in new and runs is journals[name] else after_txid[name]
            for run in runs:
                if run.kind != Kind.RECORDS or run.path or run.first_txid <= after:
                    continue
                time_us = run.receive_time_us
                for clock in recording.clocks:
                    if clock.instance == name:
                        time_us = clock.true_us(time_us)
                found.append(time_us)
        return found

    def _alarms(self) -> list[str]:
        """What instances reported during the drill and never should, in answers and in logs."""
        found = [
            (event["instance"], event) for event in self._watcher.events if event["event"] in ALARMS
        ]
        # The last that one said before it ended is in its log alone.
        for name, told in self._logged().items():
            found += [
                (name, event)
                for line, event in told.items()
                if line not in self._logged_before[name]
            ]
        return list(
            dict.fromkeys(f"{name} reports {e['event']}: {_details(e)}" for name, e in found)
        )

    def _logged(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By instance the alarms in its logs, where they can be read here."""
        logs = self._logs()
        return {name: alarms(logs, name) if logs else {} for name in self._names}

    def _logs(self) -> Path | None:
        settings, record = self.fabric._known()
        logs = settings.logs
        if logs.target != "file" or logs.format != "json":
            return None
        return Path(record.directory) / (logs.directory or "logs")

    def _recording(self, members: Mapping[str, Any]) -> Recording:
        crowd = self._crowd
        # Links over several addresses carry different parts while they change over.
        recording = Recording(members, None, crowd.topic, uniform=len(self._groups) == 1)
        recording.since_us = self._result.began_us - 1
        recording.logs = self._logs()
        recording.said = crowd.said
        for each in crowd.subscribers:
            if each.recorder is not None:
                each.recorder.instance = each.ended_at
                each.recorder.topic = crowd.topic
                recording.subscribers.append(each.recorder)
        recording.lost = self._disks.lost
        recording.faults = [(each.began_us, each.text) for each in self._result.injected]
        steps = self.scenario.steps
        recording.clocks = [
            Clock(name, each.began_us, each.ended_us, steps[each.number - 1].offset_ms * 1000)
            for each in self._result.injected
            if each.fault == "clock_jump"
            for name in each.instances
        ]
        recording.missed = [*self._as_it_was(), *self._watcher.events]
        return recording

    def _as_it_was(self) -> list[dict[str, Any]]:
        """Every instance as if it had started when the drill began, its links connected then."""
        began_us = self._result.began_us
        found: list[dict[str, Any]] = []
        for name in self._names:
            first = self._first_statuses[name]
            told = {"instance": name, "time_us": began_us}
            found.append({**told, "event": "started", "incarnation": first["incarnation"]})
            found += [
                {
                    **told,
                    "event": "link_connected",
                    "destination": destination,
                    "incarnation": int(to["incarnation"], 16),
                }
                for destination, to in first["destinations"].items()
            ]
        return found

    def _measure(self) -> None:
        result, crowd, watcher = self._result, self._crowd, self._watcher
        result.samples, result.events = watcher.samples, watcher.events
        result.failovers = crowd.failovers
        since = [e for e in watcher.events if e["time_us"] >= result.began_us]
        result.downgrades = downgrades(since)
        acks = [ack for each in crowd.publishers for ack in each.acks]
        result.acked_at_risk = acked_while_downgraded(acks, result.downgrades)
        for injected, impaired, since_us, until_us in self._impaired:
            injected.notes += [
                f"the line of {name} to {destination} was open for {open_ms / 1000:.1f} s of it"
                for (name, destination), open_ms in open_meanwhile(
                    watcher.events, impaired, since_us, until_us
                ).items()
            ]
        result.injected.sort(key=lambda each: each.began_us)
        looks = until_whole(result.samples, self._last_look)
        moved = caused(result.injected, crowd.failovers)
        for injected in result.injected:
            until_us = max(injected.ended_us, injected.began_us) + self.scenario.after_ms * 1000
            result.recoveries.append(
                recovery(
                    injected,
                    min(until_us, result.quiet_us),
                    acks={
                        group: {
                            p.name: [ack.time_us for ack in p.acks]
                            for p in crowd.publishers
                            if p.group == group
                        }
                        for group in self._groups
                    },
                    deliveries={
                        group: {
                            s.name: [time_us for time_us, _ in s.times]
                            for s in crowd.subscribers
                            if s.group == group and not s.name.endswith("-slow")
                        }
                        for group in self._groups
                    },
                    failovers=moved.get(injected.number, ()),
                    samples=looks,
                    names=self._names,
                )
            )
        if result.judgement is not None:
            result.judgement.complaints += not_whole_again(result.injected, result.recoveries)
        settings, record = self.fabric._known()
        if settings.tracing.directory:
            result.traces = Path(record.directory) / settings.tracing.directory

    def _clear_disks(self) -> None:
        for aside in self._disks.aside:
            # Of a load of the fabric's own it may be the only copy of what was never acknowledged.
            if self._result.valid and not self.scenario.own_load:
                shutil.rmtree(aside, ignore_errors=True)
            else:
                self._result.kept.append(str(aside))


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
    """What a function gives that runs in a thread. Cancelled, it waits for it all the same: an
    injector that still breaks something must not be overtaken by what mends it."""
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
    """A subscriber of the load that stops reading."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill

    def _set(self, hit: Hit, reads: bool) -> None:
        crowd = self._drill._crowd
        for subscriber in crowd.slow(hit.region):
            subscriber.set_reading(reads)

    def inject(self, step: Step, hit: Hit) -> list[str]:
        """It stops."""
        self._set(hit, False)
        return []

    def renew(self, step: Step, hit: Hit, left_s: float) -> None:
        """It needs no more than to be stopped once."""

    def heal(self, step: Step, hit: Hit) -> None:
        """It goes on."""
        self._set(hit, True)


class Mark:
    """One drill at a time: a file in the fabric's directory that names the process.

    Raises (on entering):
        FabricError: another one runs.
    """

    def __init__(self, fabric: Fabric, number: str, scenario: Scenario) -> None:
        self._path = fabric.directory / MARK_FILE
        self._fabric = fabric.name
        self._text = json.dumps(
            {
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "number": number,
                "scenario": scenario.name,
            }
        )

    def __enter__(self) -> None:
        # A link of a whole file: nobody sees one that is being written.
        aside = self._path.with_name(f".{MARK_FILE}.{os.getpid()}")
        aside.write_text(self._text, encoding="utf-8")
        try:
            os.link(aside, self._path)
        except FileExistsError:
            refuse_running(self._path.parent, self._fabric)
            raise FabricError(
                f"drill {_marked(self._path).get('scenario', '(unknown)')} on {self._fabric} did "
                "not end in good order: its faults end by themselves; mend what is left with "
                f"`raylay drill --clean --fabric {self._fabric}`"
            ) from None
        finally:
            aside.unlink()

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _marked(path: Path) -> dict[str, Any]:
    """What a mark says; nothing where there is none, or it is torn."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def refuse_running(directory: Path, fabric: str) -> None:
    """Refuses a fabric on which a drill goes on.

    Raises:
        FabricError: one does; says which, and its process.
    """
    told = _marked(directory / MARK_FILE)
    try:
        running = process_start(int(told["pid"])) == int(told["start"]) > 0
    except (KeyError, ValueError, TypeError):
        return
    if running:
        raise FabricError(
            f"drill {told.get('scenario', '(unknown)')} runs on {fabric} already, as process "
            f"{told['pid']}: one at a time; Ctrl-C or SIGTERM ends it and mends what it broke"
        )


def check_allowed(fabric: Fabric) -> None:
    """Refuses a fabric that is not marked for drills.

    Raises:
        ConfigurationError: it is not.
    """
    if fabric.declared.drills != "allowed":
        raise ConfigurationError(f"fabric {fabric.name}: {REFUSED}")


def clean(fabric: Fabric) -> list[str]:
    """Mends at once what a drill left that was killed: nothing of it would last for long. Returns
    what was done.

    Raises:
        ConfigurationError: the fabric is not marked for drills.
        FabricError: the drill goes on.
    """
    check_allowed(fabric)
    refuse_running(fabric.directory, fabric.name)
    done = bring_head_back(fabric.directory) + mend(Places(fabric))
    fabric.end_errands()
    path = fabric.directory / MARK_FILE
    if path.exists():
        path.unlink()
        done.append(f"{path} removed")
    return done


def unwhole(statuses: Mapping[str, Mapping[str, Any]], *, busy: bool = False) -> list[str]:
    """What is not as it should be when nothing is broken and nobody publishes; `busy`: somebody
    does, and something may be owed at any moment."""
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
                "owed": to["owed"] if busy else 0,
                "sync": to["configured_sync"],
                "safe": to["configured_sync"],
            }
            found = {key: to[key] for key in expected}
            if found != expected:
                owed = ", ".join(to["owed_examples"])
                wrong.append(f"{name} to {destination}: {found}, {to['why']} {owed}".rstrip())
    return wrong


_FRAME = ("number", "time_us", "event", "instance", "time", "level", "process", "logger")


def _details(event: Mapping[str, Any]) -> str:
    # As the log has it: of an event that is told twice one line is shown.
    plain = json.loads(json.dumps(event, default=str))
    return ", ".join(f"{key} {value}" for key, value in plain.items() if key not in _FRAME)
