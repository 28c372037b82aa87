"""The look-up of runs against a brute-force scan, over random journals of both kinds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sim.mistakes import FindsWhatWasRemoved, HolesTakenAsHeld
from support.journal_cases import StepJournal, a_note, a_run

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Kind, Run
from raylay.services.replication.run_lookup import RunLookup
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers("Replication", "what is held is found by the ranges of its runs")

PUBLISHERS = (7, 8, 9)
TOPICS = (b"orders", b"trades", b"rare")
SEQUENCES = 400
COMMITS = 40
SEGMENT_BYTES = 8 * 1024
AnyJournal = MemoryJournal | StepJournal


def places(runs: list[Run], publisher: int, ranges: list[tuple[int, int]]) -> dict[int, int]:
    """Sequence to transaction id, of those records of the publisher that lie in the ranges."""
    wanted = SequenceSet(ranges)
    found: dict[int, int] = {}
    for run in runs:
        if run.kind == Kind.RECORDS and run.publisher == publisher:
            sequences = [s for first, last in run.ranges() for s in range(first, last + 1)]
            for at, sequence in enumerate(sequences):
                if sequence in wanted:
                    assert found.setdefault(sequence, run.first_txid + at) == run.first_txid + at
    return found


def looked_up(lookup: RunLookup, publisher: int, wanted: SequenceSet) -> list[Run]:
    """All of it, part after part: each brings something, or says that it is not here."""
    found: list[Run] = []
    while wanted:
        before = wanted.count
        found += lookup.part(publisher, wanted)
        assert wanted.count < before
    return found


class Comparison:
    """A journal that grows at random, a look-up in it, and what differs from a scan."""

    def __init__(self, seed: int, journal: AnyJournal, lookup: type[RunLookup]) -> None:
        self.rng = random.Random(seed)
        self.journal = journal
        self.held = PublisherRanges()
        self.lookup = lookup(journal, stretch_bytes=self.rng.choice((1, 500, 4_000)))
        self.differences: list[str] = []
        self.late = self.removed = self.with_holes = 0

    def read_all(self) -> list[Run]:
        found: list[Run] = []
        while runs := self.journal.read(found[-1].last_txid if found else 0):
            found += runs
        return found

    def grow(self) -> None:
        """Stages a run of anything that is not held yet: late, with holes, filling holes."""
        rng = self.rng
        txid = self.held_txid + 1
        if rng.random() < 0.1:
            self.journal.stage(a_note(txid))
            self.held_txid = txid
            return
        publisher = rng.choice(PUBLISHERS)
        held = self.held.of(publisher)
        first = rng.randint(1, SEQUENCES)
        sequences = range(first, first + rng.randint(1, 30))
        fresh = [s for s in sequences if s not in held and rng.random() < rng.choice((1, 1, 0.5))]
        if not fresh:
            return
        self.late += fresh[0] < (held.last() or 0)
        self.with_holes += fresh[-1] - fresh[0] >= len(fresh)
        (topic,) = rng.choices(TOPICS, (10, 10, 1))
        run = a_run(
            txid,
            fresh,
            publisher=publisher,
            body_bytes=rng.choice((8, 100)),
            topic=topic.decode(),
        )
        self.journal.stage(run)
        self.held.add_ranges(publisher, run.ranges())
        self.held_txid = run.last_txid

    held_txid = 0

    def ask(self) -> None:
        """Looks a few things up, and scans for them."""
        rng = self.rng
        scanned = self.read_all()
        self.lookup.look_anew()
        for _ in range(rng.randint(1, 6)):
            publisher = rng.choice(PUBLISHERS)
            first = rng.randint(1, SEQUENCES)
            last = first + rng.choice((0, 5, 40, SEQUENCES))
            wanted = [(first, last)]
            held_here = self.held.of(publisher).within(first, last)
            read = looked_up(self.lookup, publisher, SequenceSet(held_here))
            found = places(read, publisher, wanted)
            here = places(scanned, publisher, wanted)
            if here != found:
                self.differences.append(f"{publisher}: {here} here, {found} found")
            self.ask_highest(scanned, publisher, SequenceSet(held_here))

    def ask_highest(self, scanned: list[Run], publisher: int, wanted: SequenceSet) -> None:
        """The highest on a topic, or in no segment."""
        lowest, topic = wanted.first(), self.rng.choice(TOPICS)
        if lowest is None:
            return
        theirs = [run for run in scanned if run.publisher == publisher]
        gone = wanted.copy()
        for run in theirs:
            gone.difference_update(SequenceSet(run.ranges()))
        on_topic = [run.last_sequence for run in theirs if run.topic == topic]
        highest = max([each for each in on_topic if each >= lowest] + [gone.last() or 0])
        found = self.lookup.highest_on_topic(publisher, topic, wanted)
        self.on_topic += highest > (gone.last() or 0)
        if found != highest:
            self.differences.append(f"{publisher}, {topic!r}: {highest} is highest, {found} found")

    on_topic = 0

    def run(self) -> None:
        journal = self.journal
        for _ in range(COMMITS):
            for _ in range(self.rng.randint(1, 4)):
                self.grow()
            # A writer thread takes what is staged at any time, also between a scan and a look-up.
            if self.rng.random() < 0.8 or isinstance(journal, StepJournal):
                journal.commit()
            self.ask()
            if self.rng.random() < 0.05:
                journal.commit()
                if isinstance(journal, StepJournal):
                    journal.settle()
                before_txid = self.rng.randint(1, self.held_txid + 1)
                journal.removable(before_txid)
                self.removed += any(outcome.done for outcome in journal.remove(before_txid))
                self.ask()


def compared(
    seeds: range, kind: str, path: Path, lookup: type[RunLookup] = RunLookup
) -> list[Comparison]:
    """Runs the seeds, each on a journal of its own."""
    found = []
    for seed in seeds:
        journal: AnyJournal
        if kind == "lmdb":
            journal = StepJournal(path / str(seed), segment_bytes=SEGMENT_BYTES)
        else:
            journal = MemoryJournal(SEGMENT_BYTES, encode=kind == "memory-encoded")
            journal.start(lambda last, ns: None, lambda first, error: None)
        found.append(Comparison(seed, journal, lookup))
        found[-1].run()
        if isinstance(journal, StepJournal):
            journal.close()
    return found


@pytest.mark.parametrize(("kind", "seeds"), [("memory", 20), ("memory-encoded", 5), ("lmdb", 3)])
def test_finds_exactly_what_a_scan_finds(kind: str, seeds: int, tmp_path: Path) -> None:
    """Late, with holes, filled later, staged, behind removed segments, and all of it at once."""
    found = compared(range(seeds), kind, tmp_path)
    assert [each.differences for each in found if each.differences] == []
    assert all(
        sum(getattr(each, what) for each in found) for what in ("late", "removed", "on_topic")
    )
    assert sum(each.with_holes for each in found) > 10 * seeds


class StopsAtWhatIsGone(RunLookup):
    """Does not look for what is behind a message that is not here."""

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        first = wanted.first()
        if first is not None and self._source.find_sequence(publisher, first) is None:
            wanted.clear()
            return []
        return super().part(publisher, wanted)


class TakesTheLogForOrdered(RunLookup):
    """Believes that what stands later in the log has the higher sequence."""

    def _stretch_at(self, publisher: int, sequence: int) -> dict:  # type: ignore[type-arg]
        stretch = super()._stretch_at(publisher, sequence)
        for pieces in stretch.values():
            pieces.sort(key=lambda piece: (piece.run.first_txid, piece.first))
        return stretch


@pytest.mark.parametrize(
    "mistake", [HolesTakenAsHeld, StopsAtWhatIsGone, TakesTheLogForOrdered, FindsWhatWasRemoved]
)
def test_the_comparison_sees_a_planted_mistake(mistake: type[RunLookup], tmp_path: Path) -> None:
    found = compared(range(6), "memory", tmp_path, mistake)
    assert any(each.differences for each in found)
