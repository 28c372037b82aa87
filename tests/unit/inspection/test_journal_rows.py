"""services/inspection/journal_rows.py: a journal's place, and its topic index."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.inspection.journal_rows import (
    RANGES_SHOWN,
    journal_place,
    ranges_row,
    records_of,
    time_text,
    topic_index_rows,
)
from raylay.services.messages.sequence_set import SequenceSet
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_structure import BRANCH, LEAF
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.segments import SegmentFile


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


def test_a_segment_that_is_compressed_or_removed_meanwhile(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = LmdbJournalReader.segment_files
    looks = 0

    def changing(reader: LmdbJournalReader) -> list[SegmentFile]:
        nonlocal looks
        found = listed(reader)
        looks += 1
        if looks == 1:
            maintenance = SegmentMaintenance(journal / "journal", None)
            maintenance.compress()
            assert maintenance.remove(found[1].first_txid, force=True)[0].done
        return found

    monkeypatch.setattr(LmdbJournalReader, "segment_files", changing)
    rows = list(topic_index_rows(journal_place(journal, None)))
    assert [row["state"] for row in rows] == ["compressed", "live"]


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The live segment of a journal whose tree has two levels."""
    made = StepJournal(tmp_path / "journal")
    at = 1
    for _ in range(150):
        made.stage(a_run(at, [at], body_bytes=100))
        at = made.commit() + 1
    made.close()
    return next((tmp_path / "journal").glob("*.live"))


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
@pytest.mark.parametrize("command", [["dump"], ["grep", "x"]], ids=str)
def test_a_page_at_which_lmdb_gives_up_is_an_error(live: Path, command: list[str]) -> None:
    """LMDB ends the process by an assertion where a leaf says that it is a branch."""
    content = bytearray(live.read_bytes())
    leaves = [
        page
        for page in range(2, len(content) // 4096)
        if struct.unpack_from("<QHH", content, page * 4096) == (page, 0, LEAF)
    ]
    # The first one stays sound: the reader is under way when it meets the others.
    assert len(leaves) > 4
    for page in leaves[len(leaves) // 2 :]:
        struct.pack_into("<H", content, page * 4096 + 10, BRANCH)
    live.write_bytes(content)
    # In a process of its own, which may end by a signal where this fails.
    done = subprocess.run(
        [sys.executable, "-m", "raylay.services.cli", "journal", *command, str(live.parent)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{live.parent}") and "is damaged" in line


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
def test_a_key_that_is_no_transaction_id_is_damage(live: Path) -> None:
    env = lmdb.open(str(live), subdir=False, map_size=1 << 28, mode=0o600)
    with env.begin(write=True) as transaction:
        transaction.put(b"\0\0\0\0\0\0\0\x05odd", b"x")
    env.close()
    with (
        LmdbJournalReader(live.parent) as reader,
        pytest.raises(CorruptRecord, match=r"journal-0000000000000001\.live"),
    ):
        list(records_of(reader, 1, None))


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
