"""services/inspection/journal_rows.py: a journal's place, and its topic index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.inspection.journal_rows import (
    RANGES_SHOWN,
    journal_place,
    ranges_row,
    time_text,
    topic_index_rows,
)
from raylay.services.messages.sequence_set import SequenceSet


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of three segments, the first compressed, the last live."""
    made = StepJournal(tmp_path / "journal", segment_bytes=64 * 1024)
    at = 1
    while len(list((tmp_path / "journal").glob("*.sealed"))) < 2:
        made.stage(a_run(at, range(at, at + 100), body_bytes=200, topic=f"t{at // 400}"))
        at = made.commit() + 1
        made.settle()
    first = min((tmp_path / "journal").glob("*.sealed"))
    second_txid = int(max((tmp_path / "journal").glob("*.sealed")).name[8:24], 16)
    assert made.compress(second_txid)[0].done and not first.exists()
    made.stage(a_run(at, [1], publisher=9, topic="last"))
    made.commit()
    made.close()
    return tmp_path


@pytest.mark.covers("Utilities", "Dump Journal Topic Index File")
def test_topics_of_each_segment(journal: Path) -> None:
    rows = list(topic_index_rows(journal_place(journal, None)))
    assert [row["state"] for row in rows] == ["compressed", "sealed", "live"]
    assert rows[0]["first_txid"] == 1 and rows[1]["first_txid"] == rows[0]["last_txid"] + 1
    assert ["last", "json"] in rows[2]["topics"] and ["t0", "json"] in rows[0]["topics"]
    assert all(row["extents"] and row["publishers"] for row in rows)
    place = journal_place(journal, None)
    assert [row["state"] for row in topic_index_rows(place, topic="last")] == ["live"]
    assert [row["state"] for row in topic_index_rows(place, client=9)] == ["live"]
    one = next((journal / "journal").glob("*.sealed"))
    assert [row["segment"] for row in topic_index_rows(journal_place(one, None))] == [one.name]


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
def test_a_damaged_segment_does_not_hide_the_others(journal: Path) -> None:
    path = next((journal / "journal").glob("*.zst"))
    path.write_bytes(path.read_bytes()[:-3])
    rows = list(topic_index_rows(journal_place(journal, None)))
    assert [row["row"] for row in rows] == ["damage", "segment_index", "segment_index"]
    assert path.name in rows[0]["text"]


def test_other_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        journal_place(tmp_path / "nothing", None)
    with pytest.raises(ConfigurationError, match="does not hold a journal"):
        journal_place(tmp_path, None)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="not a segment"):
        journal_place(tmp_path / "file", None)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigurationError, match="no directory"):
        journal_place(tmp_path / "pipe", None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["journal-00000000000000ff.live", "front-0"])
def test_a_pipe_among_segments_is_not_waited_for(journal: Path, name: str) -> None:
    (journal / "journal" / name).unlink(missing_ok=True)
    os.mkfifo(journal / "journal" / name, 0o600)
    with pytest.raises(StorageError, match="no regular file"):
        journal_place(journal, None)


def test_ranges_are_bounded() -> None:
    many = SequenceSet([(each, each) for each in range(1, 1_000, 2)])
    row = ranges_row(many)
    assert (row["first"], row["last"], row["count"], row["stretches"]) == (1, 999, 500, 500)
    assert row["ranges"].count(",") == RANGES_SHOWN and row["ranges"].endswith(",…")
    assert ranges_row(SequenceSet())["ranges"] == ""


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert time_text(0) == "0" and time_text(1 << 63) == str(1 << 63)
    assert time_text(1) == "1970-01-01T00:00:00.000001Z"
