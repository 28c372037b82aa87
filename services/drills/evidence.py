"""A drill's knowledge of its fabric, and the evidence that it collects for the verdict and the
report."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raylay.services.drills.drill_lock import check_allowed
from raylay.services.drills.faults import (
    FaultPlaces,
    Injector,
    LoseDisk,
)
from raylay.services.drills.history_builder import (
    ALARMS,
    ClockOffset,
    HistoryBuilder,
    alarms,
    members_of,
    now_us,
)
from raylay.services.drills.judgement import (
    RunJudgement,
    judge_laws,
    judged,
    reaching,
    read_journal,
    seen,
    unjudged,
)
from raylay.services.drills.load import LoadClients
from raylay.services.drills.measure import (
    DowngradePeriod,
    FailoverTime,
    InjectedFault,
    RecoveryTimes,
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
from raylay.services.drills.queue_load import QueueLoad
from raylay.services.drills.queue_reading import Read, read_queue, with_names
from raylay.services.drills.scenario import OF_A_LOAD, DrillScenario, Targets
from raylay.services.drills.sow_load import SowLoad, read_changes
from raylay.services.drills.step_conflicts import (
    Part,
    refuse_overlaps,
)
from raylay.services.drills.verdict import PublishRecord
from raylay.services.drills.watcher import Watcher
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import instance_config
from raylay.services.messages.records import Kind, Run, publisher_id
from raylay.services.messages.topics import DRILL_QUEUE, DRILL_WORK_TOPIC
from raylay.services.verification.laws.queue_delivery import ExcusedPeriod, QueueVerdict
from raylay.services.verification.laws.slow_clients import (
    PoolUse,
    Reconnection,
    SlowEvidence,
    SlowVerdict,
    Stall,
    told_of,
)
from raylay.services.verification.laws.slow_clients import judge as judge_slow
from raylay.services.verification.laws.sow_topics import SowVerdict, SowWrite

EARLIER_TXIDS = 100_000
THREADS = 64
SLOW_TO_ACT = ("stop", "full_disk", "clock_jump")
"""Faults during which an instance does not act on what came to it, or says another time."""


@dataclass(slots=True)
class DrillResult:
    """The result of a drill."""

    fabric: str
    number: str
    scenario: DrillScenario
    began_us: int
    quiet_us: int = 0
    """Time at which publishing ended."""
    ended_us: int = 0
    topic: str = ""
    groups: dict[str, list[str]] = field(default_factory=dict)
    injected: list[InjectedFault] = field(default_factory=list)
    recoveries: list[RecoveryTimes] = field(default_factory=list)
    downgrades: list[DowngradePeriod] = field(default_factory=list)
    acked_at_risk: int = 0
    samples: list[Sample] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    failovers: list[FailoverTime] = field(default_factory=list)
    crowd: LoadClients | None = None
    queue: QueueLoad | None = None
    judgement: RunJudgement | None = None
    traces: Path | None = None
    kept: list[str] = field(default_factory=list)
    """Directories that were put aside and are still there."""

    @property
    def valid(self) -> bool:
        """Returns whether nothing is wrong."""
        return self.judgement is not None and self.judgement.valid


class EvidenceCollector:
    """A drill as far as it only looks. `Drill` says when. Arguments as there."""

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
        """Steps that are on, by number: what each breaks, and the event that is set when that is
        mended."""
        self._places: FaultPlaces
        self._crowd: LoadClients
        self._sow: SowLoad
        self._queue: QueueLoad
        self._watcher: Watcher
        self._injectors: dict[str, Injector] = {}
        self._last_look: list[Sample] = []
        """Samples of the look at which the fabric was whole in the end; empty: it was not."""
        self._disks: LoseDisk
        self._unread: list[str] = []
        """Journals that could not be read to their end."""
        self._aside: list[Path] = []
        self._over = threading.Event()
        self._impaired: list[tuple[InjectedFault, list[tuple[str, str]], int, int]] = []
        """Steps with the lines that they impaired, from when until when."""
        self._first_statuses: dict[str, dict[str, Any]] = {}
        self._logged_before: dict[str, dict[str, dict[str, Any]]] = {}
        self._result = DrillResult(
            fabric.name, self.number, scenario, now_us(), groups=self._groups
        )

    def _records(self) -> dict[str, PublishRecord]:
        """Returns, by region, the record of those whose messages reach it."""
        reach = reaching(self._members(), self._crowd.topic, self._crowd.kind)
        return {group: self._record_of(reach[group]) for group in self._groups}

    def _record_of(self, groups: set[str]) -> PublishRecord:
        record = PublishRecord()
        for each in self._crowd.publishers:
            if each.published:
                # What reaches a place without being owed there is no mistake.
                owed_upto = each.persisted if each.group in groups else 0
                record.add(publisher_id(each.name), each.first, each.published, owed_upto)
        return record

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
        """Returns the directory of the archived segments of an instance whose data is in
        `directory` now."""
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
        """Reads the journal of a disk that was lost."""
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
    ) -> RunJudgement:
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
        sow = None if own_load else self._judge_sow(after_txid, members)
        if sow is not None:
            found += sow.broken
            complaints += self._sow.complaints
        queue = None if own_load else self._judge_queue(after_txid, statuses)
        if queue is not None:
            found += queue.broken
            complaints += self._queue.complaints
        slow = self._judge_slow()
        if slow is not None:
            found += slow.broken
        complaints += self._unread + crowd.complaints
        complaints += self._alarms()
        first = {name: int(told["pid"]) for name, told in self._first_statuses.items()}
        complaints += ended_unasked(first, watcher.samples, self._result.injected)
        return RunJudgement(
            verdict,
            [each for each in found if not each.separate],
            [each for each in found if each.separate],
            history is not None,
            late,
            complaints,
            sow,
            queue,
            slow,
        )

    def _judge_slow(self) -> SlowVerdict | None:
        """Judges, by events and samples, how subscribers fared that were kept from reading."""
        crowd, injected = self._crowd, self._result.injected
        steps = {n: step for n, step in enumerate(self.scenario.steps, 1)}
        stalls = [
            Stall(
                each.number, subscriber.name, subscriber.group, each.began_us, each.ended_us,
                steps[each.number].memory_bytes, steps[each.number].disk_bytes,
            )
            for each in sorted(injected, key=lambda each: each.began_us)
            if each.fault == "slow_consumer"
            for subscriber in crowd.slow(each.target)
        ]  # fmt: skip
        if not stalls:
            return None
        slow = {each.client for each in stalls}
        recorders = [each.recorder for each in crowd.subscribers if each.name in slow]
        return judge_slow(
            SlowEvidence(
                f"drill-{self.number}-",
                stalls,
                told_of(self._watcher.events, self._result.began_us),
                [
                    PoolUse(each.time_us, each.instance, *each.waiting)
                    for each in self._watcher.samples
                    if each.waiting is not None
                ],
                [
                    Reconnection(each.client, each.left_us, each.back_us, each.after, each.reason)
                    for each in crowd.failovers
                    if each.left_us
                ],
                {
                    each.name: [
                        (time_us, last - first + 1) for time_us, _, _, first, last in each.stretches
                    ]
                    for each in recorders
                    if each is not None
                },
                is_alone=all(each.fault in OF_A_LOAD for each in injected),
            )
        )

    def _judge_sow(self, after_txid: Mapping[str, int], members: Mapping[str, Any]) -> SowVerdict:
        """Compares the instances' answers about the drills' SOW topic with their journals."""
        new = {lost.instance for lost in self._disks.lost}
        journals: dict[str, list[SowWrite]] = {}
        for name in list(self._sow.rows):
            directory = self._places.directory(name)
            try:
                journals[name], why = self._places.errand(
                    name, read_changes, directory, 0 if name in new else after_txid[name],
                    self._sow.publishers, self._archive(name, directory),
                )  # fmt: skip
            except FabricError as error:
                why = str(error)
            if why:
                # What it has behind that is not known: nothing is compared.
                self._unread.append(f"the journal of {name} cannot be read further: {why}")
                del self._sow.rows[name]
        since = [e for e in self._watcher.events if e["time_us"] >= self._result.began_us]
        return self._sow.judge(journals, members, new, is_excused=bool(new or downgrades(since)))

    def _judge_queue(
        self, after_txid: Mapping[str, int], statuses: Mapping[str, Mapping[str, Any]]
    ) -> QueueVerdict:
        """Compares the deliveries from the drills' queue with its publishers' records and the
        journals."""
        new = {lost.instance for lost in self._disks.lost}
        read: dict[str, Read] = {}
        for name in self._queue.names:
            directory = self._places.directory(name)
            try:
                read[name], why = self._places.errand(
                    name, read_queue, directory, 0 if name in new else after_txid[name],
                    DRILL_WORK_TOPIC, DRILL_QUEUE, self._queue.publishers,
                    self._archive(name, directory),
                )  # fmt: skip
            except FabricError as error:
                why = str(error)
            if why:
                self._unread.append(f"the journal of {name} cannot be read further: {why}")
                read.pop(name, None)
        incarnations = {
            name: [
                int(told[name]["incarnation"], 16)
                for told in (self._first_statuses, statuses)
                if "incarnation" in told.get(name, {})
            ]
            for name in self._names
        }
        excuses = [
            ExcusedPeriod(name, each.began_us, each.ended_us)
            for each in self._result.injected
            if each.fault in SLOW_TO_ACT
            for name in each.instances
        ]
        return self._queue.judge(
            with_names(read, incarnations),
            new,
            excuses,
            is_undisturbed={each.fault for each in self._result.injected} == {"kill_consumers"},
        )

    def _first_journaled_us(
        self,
        recording: HistoryBuilder,
        journals: Mapping[str, list[Run]],
        after_txid: Mapping[str, int],
    ) -> list[int]:
        """Returns the times at which an instance was the first to journal something, since the
        drill began."""
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
        """Lists the events that no instance should ever report and that were reported during the
        drill, in answers and in logs."""
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
        """Returns, by instance, the alarms in its logs, where they can be read here."""
        logs = self._logs()
        return {name: alarms(logs, name) if logs else {} for name in self._names}

    def _logs(self) -> Path | None:
        settings, record = self.fabric._known()
        logs = settings.logs
        if logs.target != "file" or logs.format != "json":
            return None
        return Path(record.directory) / (logs.directory or "logs")

    def _recording(self, members: Mapping[str, Any]) -> HistoryBuilder:
        crowd = self._crowd
        # Links over several addresses carry different parts while they change over.
        recording = HistoryBuilder(members, None, crowd.topic, uniform=len(self._groups) == 1)
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
            ClockOffset(name, each.began_us, each.ended_us, steps[each.number - 1].offset_ms * 1000)
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


_FRAME = ("number", "time_us", "event", "instance", "time", "level", "process", "logger")


def _details(event: Mapping[str, Any]) -> str:
    # As the log has it: of an event that is told twice one line is shown.
    plain = json.loads(json.dumps(event, default=str))
    return ", ".join(f"{key} {value}" for key, value in plain.items() if key not in _FRAME)
