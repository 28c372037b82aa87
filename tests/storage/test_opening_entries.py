"""What a segment opens with, prepared beside: whatever was prepared when, it is what is held."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, publisher_id, run_of, scan
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.segment_index import HELD_PREFIX, OpeningEntries, ranges_from_entries

PUBLISHERS = 40


def test_is_what_is_held_however_late_it_was_prepared() -> None:
    draw = random.Random(1)
    held, opening = PublisherRanges(), OpeningEntries()
    waiting: list[PublisherRanges] = []
    for number in range(1, 200):
        for _ in range(draw.randint(0, 5)):
            first = draw.randint(1, 50)
            held.add(draw.randint(1, 9), first, first + draw.randint(0, 5))
        waiting.append(held.copy())
        if draw.random() < 0.5:
            # The thread that prepares comes to an older one, after a newer one perhaps.
            opening.prepare(waiting.pop(draw.randrange(len(waiting))))
        if draw.random() < 0.5:
            entries = dict(opening.of(number, held.copy()))
            assert ranges_from_entries(entries, HELD_PREFIX, "here") == held
            assert len(entries) == 1 + len(held.sets)


@pytest.mark.parametrize("segments", [1, 4])
def test_a_journal_opens_each_segment_with_all_that_is_held(tmp_path: Path, segments: int) -> None:
    """Read back from the newest segment alone: the others are removed."""
    sequences = dict.fromkeys(range(PUBLISHERS), 0)
    txid = 1
    for life in range(segments):
        journal = LmdbJournal(tmp_path / "journal", segment_bytes=64 * 1024)
        journal.start(lambda *_: None, lambda *_: None)
        for number in range(PUBLISHERS // (life + 1)):
            sequences[number] += 1
            record = RecordBuilder(publisher_id(f"p{number}"), "t", "json").build(
                sequences[number], b"x" * 8_000, 0
            )
            run = run_of(scan(record)[0], record)
            run.first_txid, txid = txid, txid + 1
            journal.stage(run)
        journal.close()
    journal = LmdbJournal(tmp_path / "journal", segment_bytes=64 * 1024)
    journal.start(lambda *_: None, lambda *_: None)
    journal.settle()
    journal.remove(txid, force=True)
    journal.close()
    reopened = LmdbJournal(tmp_path / "journal", segment_bytes=64 * 1024)
    held = reopened.recovered.held
    assert {publisher: list(ranges) for publisher, ranges in held.sets.items()} == {
        publisher_id(f"p{number}"): [(1, last)] for number, last in sequences.items() if last
    }
    reopened.close()
