"""The verdict of a drill: every journal and every subscriber compared with the publishers' record,
and the recorded history checked against the laws.

Journals are read from the position that they had when the drill began. Under the fabric's own load,
or none, the journals themselves show what was published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raylay.services.drills.history_builder import HistoryBuilder, LostDisk
from raylay.services.drills.verdict import (
    PlaceVerdict,
    PublishRecord,
    SequenceStretch,
    Verdict,
    judge,
    stretches_of_run,
)
from raylay.services.errors import RaylayError
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.replication.link.routing import Router
from raylay.services.verification import checkers
from raylay.services.verification.history import HistoryMember, RunHistory
from raylay.services.verification.laws.queue_delivery import QueueVerdict
from raylay.services.verification.laws.slow_clients import SlowVerdict
from raylay.services.verification.laws.sow_topics import SowVerdict
from raylay.storage.journal_reader import LmdbJournalReader

COPIES_MAX = 400_000
"""Most copies in a history that is checked against the laws, because more take minutes. The
comparison of each place has no such limit."""


READS_MAX = 5
"""Most attempts to read a journal that changes meanwhile."""


@dataclass(slots=True)
class RunJudgement:
    """The judgement on everything that was published."""

    verdict: Verdict
    broken: list[checkers.Violation] = field(default_factory=list)
    """Laws that the history breaks."""
    separate: list[checkers.Violation] = field(default_factory=list)
    """Violations that are known and reported, and do not make the run fail."""
    laws_judged: bool = True
    late: int = 0
    """Number of copies that were journaled behind a higher sequence and flagged as late, which law
    3 allows where paths split."""
    complaints: list[str] = field(default_factory=list)
    """Other faults: an instance not whole, a client without its acks, …"""
    sow: SowVerdict | None = None
    """Verdict on the load on the drills' SOW topic; None: there was no such load. Its violations
    are in `broken` too."""
    queue: QueueVerdict | None = None
    """Verdict on the load on the drills' queue; None: there was no such load."""
    slow: SlowVerdict | None = None
    """Verdict on the subscribers that a step kept from reading; None: no step did."""

    @property
    def valid(self) -> bool:
        """Returns whether the verdict, the laws and the drill found no fault."""
        return self.verdict.valid and not self.broken and not self.complaints


def read_journal(
    directory: Path, after_txid: int, publishers: Iterable[int] = (), archive: Path | None = None
) -> tuple[list[Run], str]:
    """Returns the runs of a journal behind a transaction id, in order; and the reason why the
    journal cannot be read any further, empty where it was read to its end. Records are left out
    where a run's header names all its messages. Runs on the journal's host.

    Args:
        directory: the instance's data directory.
        publishers: the publishers whose runs are returned; none: all.
        archive: the directory of archived segments, if there is one.
    """
    wanted = frozenset(publishers)
    held: list[Run] = []

    def take(run: Run) -> None:
        if wanted and run.publisher not in wanted:
            return
        if run.kind == Kind.RECORDS and run.contiguous and run.topic:
            run = replace(run, payload=b"", raw=None)
        held.append(run)

    why = read_runs(directory, after_txid, archive, take)
    return held, why


def read_runs(
    directory: Path, after_txid: int, archive: Path | None, take: Callable[[Run], None]
) -> str:
    """Passes each run of a journal behind a transaction id to `take`, in order. Returns the reason
    why the journal cannot be read any further; empty: it was read to its end."""
    for left in reversed(range(READS_MAX)):
        try:
            with LmdbJournalReader(directory / "journal", archive) as reader:
                while runs := reader.read(after_txid):
                    for run in runs:
                        take(run)
                    after_txid = runs[-1].last_txid
            break
        except (RaylayError, OSError, ValueError) as error:
            # The directory may change under a reader: it goes on where it was.
            if not left or not getattr(error, "retriable", False):
                return str(error)
    return ""


def reaching(
    members: Mapping[str, HistoryMember], topic: str, message_type: str
) -> dict[str, set[str]]:
    """Returns, by region, the regions whose messages on a topic reach all instances of the region,
    whichever instance they are published at, over the links as they are declared.

    Args:
        members: the members of the recorded topology, with instance names for addresses.
    """
    met_from = {name: _met_from(name, members, topic, message_type) for name in members}
    groups = list(dict.fromkeys(member.group for member in members.values()))
    of = {group: {n for n, member in members.items() if member.group == group} for group in groups}
    return {
        group: {
            source
            for source in groups
            if source == group or all(of[group] <= met_from[name] for name in of[source])
        }
        for group in groups
    }


def _met_from(
    start: str, members: Mapping[str, HistoryMember], topic: str, message_type: str
) -> set[str]:
    """Returns the instances that a message published at `start` can reach over the destinations,
    with `start` itself."""
    # (where it is, the group it came from last, whether it was ever in another group)
    waiting = [(start, "", False)]
    met = set(waiting)
    while waiting:
        name, sender, crossed = waiting.pop()
        here = members[name]
        run = Run(
            0, 0, 0, 0, b"", topic.encode(), message_type.encode(),
            path=(1,) if sender else (), group=sender,
            flags=Flag.CROSSED if crossed else 0,
        )  # fmt: skip
        for destination in here.destinations:
            if not Router(destination).routed(run, -1):
                continue
            for server in destination.addresses:
                away = crossed or members[server].group != here.group
                state = (server, here.group, away)
                if state not in met:
                    met.add(state)
                    waiting.append(state)
    return {name for name, _, _ in met}


def judged(
    groups: Mapping[str, Sequence[str]],
    journals: Mapping[str, Sequence[Run]],
    received: Mapping[str, Mapping[str, Sequence[SequenceStretch]]],
    records: Mapping[str, PublishRecord],
    total: PublishRecord,
    splits: bool,
) -> tuple[Verdict, int]:
    """Judges every journal and subscriber of each region against the publishers' record. Returns
    the verdict, and the number of messages that were flagged as late, which is allowed.

    Args:
        groups: the instances of each region.
        received: the messages that each subscriber of each region received.
        records: the record of the publishers whose messages reach a region, by region.
        total: the record of all publishers.
        splits: whether paths split, so that messages may be late.
    """
    places: list[PlaceVerdict] = []
    late = 0
    for group, names in groups.items():
        held = {
            f"journal {name}": [s for run in journals[name] for s in stretches_of_run(run)]
            for name in names
        }
        flagged = max(
            (
                sum(r.count for r in journals[n] if r.kind == Kind.RECORDS and r.flags & Flag.LATE)
                for n in names
            ),
            default=0,
        )
        held |= {f"subscriber {name}": list(got) for name, got in received[group].items()}
        one = judge(held, records[group])
        for place in one.places:
            if splits:
                allowed = min(place.out_of_order, flagged)
                place.out_of_order -= allowed
                late += allowed
            places.append(place)
    return Verdict(places, total.published_messages, total.persisted_messages), late


def seen(
    journals: Mapping[str, Sequence[Run]],
    after_txid: Mapping[str, int],
    upto_txid: Mapping[str, int],
    members: Mapping[str, HistoryMember],
    lost: Sequence[LostDisk] = (),
) -> tuple[dict[str, PublishRecord], PublishRecord]:
    """Returns the messages that are owed to each region, and to all, under a load of which there is
    no record: every message that an instance was the first to journal between two of its
    transaction ids.

    Args:
        after_txid: the last transaction id before the drill on each instance's first disk; a new
            disk counts from 1 again.
        upto_txid: the last transaction id of each instance's last disk.
        lost: disks that were taken away, in order of time. Messages that were journaled there first
            are owed like all others.
    """
    total = PublishRecord()
    records = {member.group: PublishRecord() for member in members.values()}
    reach: dict[tuple[bytes, bytes], dict[str, set[str]]] = {}
    for name, final in journals.items():
        gone = [(disk.runs, disk.upto_txid) for disk in lost if disk.instance == name]
        disks: list[tuple[Sequence[Run], int]] = [*gone, (final, upto_txid[name])]
        for number, (runs, last_txid) in enumerate(disks):
            first_txid = 0 if number else after_txid[name]
            _add_seen(runs, first_txid, last_txid, name, members, records, total, reach)
    return records, total


def _add_seen(
    runs: Sequence[Run],
    after_txid: int,
    upto_txid: int,
    name: str,
    members: Mapping[str, HistoryMember],
    records: Mapping[str, PublishRecord],
    total: PublishRecord,
    reach: dict[tuple[bytes, bytes], dict[str, set[str]]],
) -> None:
    for run in runs:
        for publisher, first, last, topic in stretches_of_run(run):
            total.published.add(publisher, first, last)
            for record in records.values():
                record.published.add(publisher, first, last)
            if run.path or not after_txid < run.first_txid <= upto_txid:
                continue
            key = (topic, run.message_type)
            if key not in reach:
                reach[key] = reaching(members, topic.decode(), run.message_type.decode())
            total.persisted.add(publisher, first, last)
            for group, sources in reach[key].items():
                if members[name].group in sources:
                    records[group].persisted.add(publisher, first, last)


def unjudged(
    times_us: Mapping[str, Sequence[int]], faults: Iterable[tuple[int, str]], word: str
) -> list[str]:
    """Returns the reasons why a verdict would mean nothing: nothing can be wrong where nothing was
    published. Messages that were acknowledged only after a fault count as well, as they show that
    the fabric survived the fault.

    Args:
        times_us: the times at which messages of a publisher were `word`, by publisher.
        faults: (time of injection, description) of each fault.
        word: `acknowledged` or `journaled`.
    """
    silent = [who for who, us in times_us.items() if not us]
    found = [f"could not judge: nothing of {who} was {word}" for who in silent]
    last_us = max((max(us) for us in times_us.values() if us), default=0)
    if last_us:
        found += [
            f"could not judge the effect of this fault, as nothing was {word} from then on: {text}"
            for began_us, text in faults
            if last_us < began_us
        ]
    return found


def judge_laws(
    recording: HistoryBuilder,
    journals: Mapping[str, list[Run]],
    statuses: Mapping[str, Mapping[str, Any]],
    unacked: Mapping[str, int],
    *,
    own_load: bool = False,
) -> tuple[list[checkers.Violation], RunHistory | None]:
    """Checks the history against the laws. Returns the violations and the history; no history where
    it is too long to be checked.

    Args:
        own_load: whether clients were not recorded and journals begin in the middle. Only laws that
            need neither are checked then.
    """
    copies = sum(run.count for runs in journals.values() for run in runs)
    if copies > COPIES_MAX:
        return [], None
    history = recording.history(journals, statuses, unacked)
    if own_load:
        return [*checkers.once(history), *checkers.loops(history)], history
    return checkers.check_all(history), history
