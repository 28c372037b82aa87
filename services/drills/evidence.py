"""The evidence that a drill collects for its verdict and its report, and the result of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.drills.faults import LoseDisk
from raylay.services.drills.history_builder import (
    ALARMS,
    ClockOffset,
    HistoryBuilder,
    alarms,
    members_of,
)
from raylay.services.drills.journal_collector import JournalCollector
from raylay.services.drills.judgement import (
    RunJudgement,
    judge_laws,
    judged,
    reaching,
    seen,
    unjudged,
)
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.loads.queue_load import QueueLoad
from raylay.services.drills.loads.sow_load import SowLoad
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
from raylay.services.drills.queue_reading import Read, with_names
from raylay.services.drills.scenario import OF_A_LOAD, DrillScenario
from raylay.services.drills.step_runner import StepRunner
from raylay.services.drills.verdict import PublishRecord
from raylay.services.drills.watcher import Watcher
from raylay.services.fabric import Fabric
from raylay.services.messages.records import Kind, Run, publisher_id
from raylay.services.verification.history import HistoryMember
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
SLOW_TO_ACT = ("stop", "full_disk", "clock_jump")
"""Faults during which an instance does not act on what it received, or reports a wrong time."""

Statuses = Mapping[str, Mapping[str, Any]]
"""The status of each instance that answered, by its name."""


@dataclass(slots=True)
class DrillResult:
    """The result of a drill. Times are microseconds since 1970; 0: not reached yet."""

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
    """Directories with the content of lost disks that were not removed."""

    @property
    def valid(self) -> bool:
        """Returns whether the verdict found no fault."""
        return self.judgement is not None and self.judgement.valid


def regions_of(settings: FabricSettings) -> dict[str, list[str]]:
    regions: dict[str, list[str]] = {}
    for instance in settings.instances:
        regions.setdefault(instance.group, []).append(instance.name)
    return regions


def members_of_fabric(fabric: Fabric) -> dict[str, HistoryMember]:
    """Returns the members of a fabric that was started, with instance names for addresses."""
    return members_of(
        (
            instance.name,
            instance.group,
            [
                (found.destination(), found.server_names)
                for found in fabric.instance_config(instance.name).destinations
            ],
        )
        for instance in fabric.declared.instances
    )


def logs_of(fabric: Fabric) -> Path | None:
    """Returns the directory of the instances' logs; None where they are not JSON files, or have
    names of their own."""
    for options in fabric.declared.logs.targets:
        if (options.target, options.format, options.file_name) == ("file", "json", ""):
            return fabric.directory / (options.directory or "logs")
    return None


class AlarmLog:
    """The alarms that instances report during a drill.

    Args:
        logs: the directory of the instances' logs; None where they cannot be read here. What they
            hold when this is created is left out.
    """

    def __init__(self, names: Iterable[str], logs: Path | None) -> None:
        self._names = list(names)
        self._logs = logs
        self._before = self._read()

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        logs = self._logs
        return {name: alarms(logs, name) if logs else {} for name in self._names}

    def report(self, events: Iterable[Mapping[str, Any]]) -> list[str]:
        """Returns a sentence for each alarm since this was created, each once.

        Args:
            events: the events that the instances reported in their answers.
        """
        found = [(event["instance"], event) for event in events if event["event"] in ALARMS]
        # The last alarm of a process that ended is in its log alone.
        for name, logged in self._read().items():
            found += [
                (name, event) for line, event in logged.items() if line not in self._before[name]
            ]
        return list(
            dict.fromkeys(f"{name} reports {e['event']}: {_details(e)}" for name, e in found)
        )


_FRAME = ("number", "time_us", "event", "instance", "time", "level", "process", "logger")
"""Fields of every event, which an alarm's sentence leaves out."""


def _details(event: Mapping[str, Any]) -> str:
    # Through JSON, as in the log: an event that is reported in both ways gives one sentence.
    plain = json.loads(json.dumps(event, default=str))
    return ", ".join(f"{key} {value}" for key, value in plain.items() if key not in _FRAME)


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state of a fabric at the end of a drill.

    Attributes:
        statuses: the last status of each instance that answered.
        look: samples of the moment at which the fabric was whole; empty: it never was.
        unacked: the number of messages left in each publish store, by client.
        complaints: the faults that were found while the fabric settled.
    """

    statuses: Statuses
    look: Sequence[Sample]
    unacked: Mapping[str, int]
    complaints: Sequence[str]


class EvidenceCollector:
    """Collects the evidence of one drill, and judges and measures by it.

    Args:
        before: the status of each instance before the drill.
        alarms: created before the drill's load began.
        result: takes the verdict and the measurements.
    """

    def __init__(
        self,
        fabric: Fabric,
        scenario: DrillScenario,
        result: DrillResult,
        before: Statuses,
        *,
        crowd: LoadClients,
        sow: SowLoad,
        queue: QueueLoad,
        watcher: Watcher,
        journals: JournalCollector,
        disks: LoseDisk,
        steps: StepRunner,
        alarms: AlarmLog,
    ) -> None:
        self._fabric = fabric
        self._scenario = scenario
        self._result = result
        self._before = before
        self._after_txid = {name: int(found["committed_txid"]) for name, found in before.items()}
        self._crowd = crowd
        self._sow = sow
        self._queue = queue
        self._watcher = watcher
        self._journals = journals
        self._disks = disks
        self._steps = steps
        self._alarms = alarms
        self._members = members_of_fabric(fabric)

    def publish_records(self) -> dict[str, PublishRecord]:
        """Returns, by region, the record of the publishers whose messages reach it."""
        reach = reaching(self._members, self._crowd.topic, self._crowd.kind)
        return {group: self._record_of(reach[group]) for group in self._result.groups}

    def _record_of(self, groups: set[str]) -> PublishRecord:
        record = PublishRecord()
        for publisher in self._crowd.publishers:
            if publisher.published:
                # A message may reach a region that it is not owed to.
                owed_upto = publisher.persisted if publisher.group in groups else 0
                record.add(
                    publisher_id(publisher.name), publisher.first, publisher.published, owed_upto
                )
        return record

    # -- the verdict -----------------------------------------------------------------------------
    @property
    def _new(self) -> set[str]:
        """Instances that lost their disks, and so begin at transaction id 1 again."""
        return {lost.instance for lost in self._disks.lost}

    def _begin_txid(self, name: str, earlier: int = 0) -> int:
        """The transaction id behind which an instance's journal is read.

        Args:
            earlier: the number of transactions before the drill that are read too.
        """
        return 0 if name in self._new else max(0, self._after_txid[name] - earlier)

    def judge(self, final: FinalState) -> RunJudgement:
        """Judges the load, the laws, and the special loads. Blocks."""
        crowd, watcher, members = self._crowd, self._watcher, self._members
        own_load = self._scenario.own_load
        publishers = [publisher_id(publisher.name) for publisher in crowd.publishers]
        # What others journaled just before the drill may have arrived just after it began.
        earlier = EARLIER_TXIDS if own_load else 0
        journals = {
            name: self._journals.runs(name, self._begin_txid(name, earlier), publishers)
            for names in self._result.groups.values()
            for name in names
        }
        if own_load:
            # An instance that does not answer counts with its last report.
            upto = {
                name: int({**watcher.statuses.get(name, {}), **found}.get("committed_txid", 0))
                for name, found in final.statuses.items()
            }
            records, total = seen(journals, self._after_txid, upto, members, self._disks.lost)
        else:
            records, total = self.publish_records(), crowd.record()
        splits = bool(self._disks.lost) or any(
            not destination.own_group_only and instance.group != destination.group
            for instance, destination in self._fabric.declared.links()
        )
        verdict, late = judged(
            self._result.groups,
            journals,
            {
                group: {s.name: s.received for s in crowd.subscribers if s.group == group}
                for group in self._result.groups
            },
            records,
            total,
            splits,
        )
        recorded = self._history_builder()
        if own_load:
            times_us = {"the fabric's own load": self._first_journaled_us(recorded, journals)}
        else:
            times_us = {
                publisher.name: [ack.time_us for ack in publisher.acks]
                for publisher in crowd.publishers
            }
        complaints = list(final.complaints)
        complaints += unjudged(
            times_us, recorded.faults, "journaled" if own_load else "acknowledged"
        )
        found, history = judge_laws(
            recorded, journals, final.statuses, final.unacked, own_load=own_load
        )
        sow = None if own_load else self._judge_sow()
        if sow is not None:
            found += sow.broken
            complaints += self._sow.complaints
        queue = None if own_load else self._judge_queue(final.statuses)
        if queue is not None:
            found += queue.broken
            complaints += self._queue.complaints
        slow = self._judge_slow()
        if slow is not None:
            found += slow.broken
        complaints += self._journals.unread + crowd.complaints
        complaints += self._alarms.report(watcher.events)
        first = {name: int(status["pid"]) for name, status in self._before.items()}
        complaints += ended_unasked(first, watcher.samples, self._steps.injected)
        return RunJudgement(
            verdict,
            [violation for violation in found if not violation.separate],
            [violation for violation in found if violation.separate],
            history is not None,
            late,
            complaints,
            sow,
            queue,
            slow,
        )

    def _judge_slow(self) -> SlowVerdict | None:
        """Judges, by events and samples, the subscribers that a step kept from reading; None: no
        step did."""
        crowd, injected = self._crowd, self._steps.injected
        steps = {n: step for n, step in enumerate(self._scenario.steps, 1)}
        stalls = [
            Stall(
                fault.number, subscriber.name, subscriber.group, fault.began_us, fault.ended_us,
                steps[fault.number].memory_bytes, steps[fault.number].disk_bytes,
            )
            for fault in sorted(injected, key=lambda each: each.began_us)
            if fault.fault == "slow_consumer"
            for subscriber in crowd.slow(fault.target)
        ]  # fmt: skip
        if not stalls:
            return None
        slow = {stall.client for stall in stalls}
        recorders = [each.recorder for each in crowd.subscribers if each.name in slow]
        return judge_slow(
            SlowEvidence(
                f"drill-{self._result.number}-",
                stalls,
                told_of(self._watcher.events, self._result.began_us),
                [
                    PoolUse(sample.time_us, sample.instance, *sample.waiting)
                    for sample in self._watcher.samples
                    if sample.waiting is not None
                ],
                [
                    Reconnection(
                        failover.client,
                        failover.left_us,
                        failover.back_us,
                        failover.after,
                        failover.reason,
                    )
                    for failover in crowd.failovers
                    if failover.left_us
                ],
                {
                    recorder.name: [
                        (time_us, last - first + 1)
                        for time_us, _, _, first, last in recorder.stretches
                    ]
                    for recorder in recorders
                    if recorder is not None
                },
                is_alone=all(fault.fault in OF_A_LOAD for fault in injected),
            )
        )

    def _judge_sow(self) -> SowVerdict:
        """Compares the instances' answers about the drills' SOW topic with their journals."""
        journals: dict[str, list[SowWrite]] = {}
        for name in list(self._sow.rows):
            writes = self._journals.sow_writes(name, self._begin_txid(name), self._sow.publishers)
            if writes is None:
                # The answer cannot be compared with a journal that is known in part.
                del self._sow.rows[name]
            else:
                journals[name] = writes
        since = [e for e in self._watcher.events if e["time_us"] >= self._result.began_us]
        return self._sow.judge(
            journals, self._members, self._new, is_excused=bool(self._new or downgrades(since))
        )

    def _judge_queue(self, statuses: Statuses) -> QueueVerdict:
        """Compares the deliveries from the drills' queue with its publishers' records and the
        journals."""
        read: dict[str, Read] = {}
        for name in self._queue.names:
            found = self._journals.queue(name, self._begin_txid(name), self._queue.publishers)
            if found is not None:
                read[name] = found
        incarnations = {
            name: [
                int(known[name]["incarnation"], 16)
                for known in (self._before, statuses)
                if "incarnation" in known.get(name, {})
            ]
            for name in self._before
        }
        excuses = [
            ExcusedPeriod(name, injected.began_us, injected.ended_us)
            for injected in self._steps.injected
            if injected.fault in SLOW_TO_ACT
            for name in injected.instances
        ]
        return self._queue.judge(
            with_names(read, incarnations),
            self._new,
            excuses,
            is_undisturbed={fault.fault for fault in self._steps.injected} == {"kill_consumers"},
        )

    def _first_journaled_us(
        self,
        recorded: HistoryBuilder,
        journals: Mapping[str, list[Run]],
    ) -> list[int]:
        """Returns the times at which an instance was the first to journal something, since the
        drill began."""
        found: list[int] = []
        lost = [(disk.instance, disk.runs) for disk in self._disks.lost]
        new = {name for name, _ in lost}
        for name, runs in (*lost, *journals.items()):
            after = 0 if name in new and runs is journals[name] else self._after_txid[name]
            for run in runs:
                if run.kind != Kind.RECORDS or run.path or run.first_txid <= after:
                    continue
                time_us = run.receive_time_us
                for clock in recorded.clocks:
                    if clock.instance == name:
                        time_us = clock.true_us(time_us)
                found.append(time_us)
        return found

    def _history_builder(self) -> HistoryBuilder:
        crowd, injected = self._crowd, self._steps.injected
        steps = self._scenario.steps
        recorders = []
        for subscriber in crowd.subscribers:
            if subscriber.recorder is not None:
                subscriber.recorder.instance = subscriber.ended_at
                subscriber.recorder.topic = crowd.topic
                recorders.append(subscriber.recorder)
        return HistoryBuilder(
            self._members,
            logs_of(self._fabric),
            crowd.topic,
            # Links over several addresses carry different parts while they change over.
            uniform=len(self._result.groups) == 1,
            since_us=self._result.began_us - 1,
            notices=crowd.notices,
            subscribers=recorders,
            lost=self._disks.lost,
            faults=[(fault.began_us, fault.text) for fault in injected],
            clocks=[
                ClockOffset(
                    name, fault.began_us, fault.ended_us, steps[fault.number - 1].offset_ms * 1000
                )
                for fault in injected
                if fault.fault == "clock_jump"
                for name in fault.instances
            ],
            missed=[*self._initial_events(), *self._watcher.events],
        )

    def _initial_events(self) -> list[dict[str, Any]]:
        """Returns events as if every instance had started, and its links had connected, when the
        drill began."""
        began_us = self._result.began_us
        found: list[dict[str, Any]] = []
        for name, first in self._before.items():
            common = {"instance": name, "time_us": began_us}
            found.append({**common, "event": "started", "incarnation": first["incarnation"]})
            found += [
                {
                    **common,
                    "event": "link_connected",
                    "destination": destination,
                    "incarnation": to["incarnation"],
                }
                for destination, to in first["destinations"].items()
            ]
        return found

    # -- the measurements ------------------------------------------------------------------------
    def measure(self, look: Sequence[Sample]) -> None:
        """Fills the result with what was watched and measured. Call after `judge`. Blocks.

        Args:
            look: see `FinalState`.
        """
        result, crowd, watcher = self._result, self._crowd, self._watcher
        result.samples, result.events = watcher.samples, watcher.events
        result.failovers = crowd.failovers
        result.injected = self._steps.injected
        since = [e for e in watcher.events if e["time_us"] >= result.began_us]
        result.downgrades = downgrades(since)
        acks = [ack for publisher in crowd.publishers for ack in publisher.acks]
        result.acked_at_risk = acked_while_downgraded(acks, result.downgrades)
        for impaired in self._steps.impaired:
            impaired.injected.notes += [
                f"the line of {name} to {destination} was open for {open_ms / 1000:.1f} s of it"
                for (name, destination), open_ms in open_meanwhile(
                    watcher.events, impaired.lines, impaired.since_us, impaired.until_us
                ).items()
            ]
        result.injected.sort(key=lambda injected: injected.began_us)
        looks = until_whole(result.samples, look)
        moved = caused(result.injected, crowd.failovers)
        for injected in result.injected:
            until_us = max(injected.ended_us, injected.began_us) + self._scenario.after_ms * 1000
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
                        for group in result.groups
                    },
                    deliveries={
                        group: {
                            s.name: [time_us for time_us, _ in s.times]
                            for s in crowd.subscribers
                            if s.group == group and not s.name.endswith("-slow")
                        }
                        for group in result.groups
                    },
                    failovers=moved.get(injected.number, ()),
                    samples=looks,
                    names=list(self._before),
                )
            )
        if result.judgement is not None:
            result.judgement.complaints += not_whole_again(result.injected, result.recoveries)
        tracing = self._fabric.declared.tracing
        if tracing.directory:
            result.traces = self._fabric.directory / tracing.directory
