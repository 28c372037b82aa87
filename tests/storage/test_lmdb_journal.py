"""What only a disk has: limits, locks, torn and damaged files, readers beside maintenance."""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.breaking_disk import meta_page_not_writable
from support.journal_cases import COMMIT_TIMEOUT_S, StepJournal, a_run, numbered_run
from support.small_disk import small_disk_at
from typer.testing import CliRunner

from raylay.services.commands.journal import journal_app
from raylay.services.errors import CorruptRecord, StorageError, StorageFull, StorageLocked
from raylay.services.messages.records import iterate_records
from raylay.storage import maintenance, read_holds
from raylay.storage.active_segment import ActiveSegment
from raylay.storage.lmdb_journal import LmdbJournal, LmdbJournalReader
from raylay.storage.maintenance import SegmentMaintenance, read_floor
from raylay.storage.read_holds import HOLD_S, hold_read
from raylay.storage.segment_index import with_checksum
from raylay.storage.segments import (
    META_PREFIX,
    Environment,
    SegmentFile,
    all_files,
    open_environment,
    run_at,
)
from raylay.storage.state import StoreFile
from raylay.storage.verify import VerifyResult, verify_journal

SEGMENT_BYTES = 48 * 1024
RUNS = 300


def fill(journal: StepJournal, runs: int = RUNS) -> int:
    """Many segments; returns the last transaction id."""
    txid = journal.last_txid + 1
    for at in range(runs):
        run = numbered_run(txid)
        journal.stage(run)
        txid = run.last_txid + 1
        if at % 20 == 19:
            journal.commit()
    journal.commit()
    journal.settle()
    return txid - 1


def open_journal(tmp_path: Path, **options: Any) -> StepJournal:
    options.setdefault("segment_bytes", SEGMENT_BYTES)
    options.setdefault("archive_directory", tmp_path / "archive")
    return StepJournal(tmp_path / "journal", **options)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[StepJournal]:
    made = open_journal(tmp_path)
    yield made
    made.close()


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The directory of a journal of several segments that nobody has open."""
    journal = open_journal(tmp_path)
    fill(journal)
    journal.close()
    return tmp_path / "journal"


def check_all(reader: LmdbJournalReader | LmdbJournal, last: int) -> None:
    at = reader.first_txid - 1
    while runs := reader.read(at):
        for run in runs:
            assert run.first_txid == at + 1
            assert run.encode() == numbered_run(run.first_txid).encode()
            at = run.last_txid
    assert at == last


def raylay_journal(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(journal_app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


# -- one owner -----------------------------------------------------------------------------------
@pytest.mark.covers("Journal", "one process a directory")
def test_a_second_process_is_refused(journal: StepJournal) -> None:
    with pytest.raises(StorageLocked, match=rf"{journal.directory}.*pid {os.getpid()}"):
        LmdbJournal(journal.directory)
    script = (
        "import sys\n"
        "from raylay.services.errors import StorageLocked\n"
        "from raylay.storage.lmdb_journal import LmdbJournal\n"
        "try: LmdbJournal(sys.argv[1])\n"
        "except StorageLocked as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, journal.directory], capture_output=True, text=True
    )
    assert f"{journal.directory} is in use" in done.stdout
    assert f"pid {os.getpid()}" in done.stdout
    journal.stage(a_run(1, [1]))
    assert journal.commit() == 1, "the owner does not notice"


def test_a_closed_one_gives_the_directory_back(journal: StepJournal) -> None:
    last = fill(journal)
    again = journal.reopen()
    check_all(again, last)
    again.close()


# -- disk full -----------------------------------------------------------------------------------
@pytest.mark.covers("Journal", "a full disk refuses and recovers")
def test_a_full_directory_refuses_and_recovers(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, storage_bytes_max=1024 * 1024)
    txid = 1
    while not journal.failures:
        run = numbered_run(txid)
        journal.stage(run)
        journal.commit()
        txid = run.last_txid + 1
    first_txid, error = journal.failures[0]
    assert isinstance(error, StorageFull)
    assert error.retriable
    assert error.path.endswith(".live") and error.path in str(error)
    assert journal.commits[-1] == journal.last_txid == first_txid - 1
    check_all(journal, first_txid - 1)
    # With space again the same ids are taken.
    journal.settle()
    journal.removable(journal.last_txid + 1)
    assert journal.remove(journal.last_txid)[0].done
    journal.stage(numbered_run(first_txid))
    assert journal.commit() == numbered_run(first_txid).last_txid
    check_all(journal, journal.last_txid)
    again = journal.reopen()
    check_all(again, journal.last_txid)
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", 4) as disk:
        yield disk


@pytest.mark.covers("Journal", "a full disk refuses and recovers")
def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    journal = open_journal(small_disk, segment_bytes=1024 * 1024)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1024 * 1024))
    txid = 1
    while not journal.failures:
        run = numbered_run(txid)
        journal.stage(run)
        journal.commit()
        txid = run.last_txid + 1
    first_txid, error = journal.failures[0]
    assert isinstance(error, StorageFull), error
    assert str(small_disk) in str(error)
    assert journal.last_txid == first_txid - 1
    check_all(journal, first_txid - 1)
    ballast.unlink()
    for _ in range(20):
        run = numbered_run(journal.last_txid + 1)
        journal.stage(run)
        assert journal.commit() == run.last_txid
    last = journal.last_txid
    check_all(journal, last)
    again = journal.reopen()
    assert again.recovered.held.covers(7, [(1, last)])
    check_all(again, last)
    again.close()


@pytest.mark.parametrize("error", [lmdb.MapFullError, lmdb.ReadersFullError])
def test_a_full_map_or_lock_table_rotates(
    error: type[Exception], journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.stage(numbered_run(1))
    journal.commit()
    put = journal._put
    calls: list[Any] = []

    def full_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise error("full")
        put(*arguments)

    monkeypatch.setattr(journal, "_put", full_once)
    next_run = numbered_run(journal.last_txid + 1)
    journal.stage(next_run)
    assert journal.commit() == next_run.last_txid
    assert not journal.failures
    assert [segment.first_txid for segment in journal.segments()] == [1, next_run.first_txid]
    check_all(journal, next_run.last_txid)


def live_segment(journal: StepJournal) -> Path:
    return journal.segments()[-1].path


def test_it_goes_on_when_its_meta_page_could_not_be_written(journal: StepJournal) -> None:
    """Drill full-disk, in the full run: LMDB gave the segment up, every commit
    went into one more segment, and whoever asked what was in this one got an error until the
    instance was started again."""
    journal.stage(numbered_run(1))
    journal.commit()
    last = journal.last_txid
    with meta_page_not_writable(live_segment(journal)):
        journal.stage(numbered_run(last + 1))
        assert journal.commit() == last
        assert [txid for txid, _ in journal.failures] == [last + 1]
    check_all(journal, last)
    run = numbered_run(last + 1)
    journal.stage(run)
    assert journal.commit() == run.last_txid
    check_all(journal, run.last_txid)
    assert len(journal.segments()) == 1
    fill(journal)
    assert journal.maintenance_error is None
    again = journal.reopen()
    check_all(again, again.last_txid)
    again.close()


def test_a_segment_whose_seal_could_not_be_written_is_sealed_later(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal, 1)
    while not journal._must_rotate():
        fill(journal, 1)
    seal = journal._seal
    refused: list[Exception] = []

    def watched(active: ActiveSegment) -> None:
        try:
            seal(active)
        except lmdb.Error as error:
            refused.append(error)
            raise

    monkeypatch.setattr(journal, "_seal", watched)
    with meta_page_not_writable(live_segment(journal)):
        last = fill(journal, 1)
    assert len(refused) == 1
    assert journal.maintenance_error is None
    assert [segment.state for segment in journal.segments()] == ["sealed", "live"]
    check_all(journal, last)


def test_a_block_that_is_not_behind_the_last_one_fails_its_commit(journal: StepJournal) -> None:
    """LMDB says so by its answer alone, and the commit would pass for one that is durable."""
    fill(journal, 40)
    active = journal._active
    assert active is not None
    before, again = journal.last_txid, active.first_txid
    with pytest.raises(StorageError, match=f"transaction id {again} is not behind the last one"):
        journal._put(active, [(struct.pack(">Q", again), b"block")])
    assert journal.last_txid == before
    check_all(journal, before)


def test_what_lmdb_gave_up_is_not_closed_beneath_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "state.lmdb"
    environment = StoreFile(path)
    with environment.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    values: list[bytes] = []
    failed = threading.Event()

    def write() -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"key", b"other")

    def write_and_read() -> None:
        with meta_page_not_writable(path), pytest.raises(lmdb.Error):
            write()
        values.append(b"failed")
        failed.set()
        write()
        with environment.begin() as transaction:
            values.append(transaction.get(b"key"))

    other = threading.Thread(target=write_and_read)
    with environment.begin(buffers=True) as transaction:
        held = transaction.get(b"key")
        other.start()
        assert failed.wait(COMMIT_TIMEOUT_S)
        other.join(0.2)
        # It waits for this one: LMDB's environment, and the map, are those of the beginning.
        assert values == [b"failed"]
        assert bytes(held) == b"value"
        del held
    other.join(COMMIT_TIMEOUT_S)
    assert values == [b"failed", b"other"]
    environment.close()


def test_a_run_larger_than_a_block_or_segment(journal: StepJournal) -> None:
    journal.stage(a_run(1, range(1, 11), body_bytes=400_000))
    journal.stage(a_run(11, range(11, 13), body_bytes=10))
    assert journal.commit() == 12
    # A writer that was faster commits the second one apart, in the next segment: a read ends there.
    counts: list[int] = []
    while runs := journal.read(sum(counts), 1 << 30):
        counts += [run.count for run in runs]
    assert counts == [10, 2]
    assert journal.read(4, 1)[0].first_txid == 5


def test_interval_fills_a_commit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, durability="interval", flush_interval_ms=1_500)
    runs = [a_run(txid, [txid]) for txid in range(1, 31)]
    started_s = time.monotonic()
    for run in runs:
        journal.stage(run)
    assert journal.commit() == 30
    assert journal.commits == [30]
    assert time.monotonic() - started_s > 1.0
    journal.stage(a_run(31, [31]))
    journal.close()
    assert journal.last_txid == 31


# -- damage --------------------------------------------------------------------------------------
def newest(directory: Path, suffix: str) -> Path:
    return max(directory.glob(f"journal-*{suffix}"))


def hurt(path: Path, content: bytes) -> None:
    """Changes one byte in the middle of each place of `content`.

    A small block is copied with its page at each commit, so that an older copy may be in the file.
    """
    data = bytearray(path.read_bytes())
    at = data.find(content)
    assert at > 0
    while at > 0:
        data[at + len(content) // 2] ^= 0x41
        at = data.find(content)
    path.write_bytes(data)


def test_a_segment_that_grows_while_it_is_opened_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path, segment_bytes=1 << 30)
    fill(journal, 20)
    early, path = newest(journal.directory, ".live").read_bytes(), tmp_path / "segment.live"
    fill(journal)
    late = newest(journal.directory, ".live").read_bytes()
    journal.close()
    path.write_bytes(early)
    stat = os.stat

    def before_it_grows(asked: Any, **more: Any) -> os.stat_result:
        found = stat(asked, **more)
        if asked == path:
            with path.open("r+b") as file:
                file.write(late)
        return found

    monkeypatch.setattr(os, "stat", before_it_grows)
    environment = Environment(path, writable=False, map_bytes=0, create=False)
    monkeypatch.undo()
    assert len(early) < stat(path).st_size == len(late)
    super(Environment, environment).close()  # Nobody shares it.


def test_a_segment_that_is_sealed_while_it_is_opened_can_be_opened(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB opens no file twice: what was opened by the name that went is closed at once."""
    live = newest(closed, ".live")
    sealed = live.with_suffix(".sealed")
    stat = os.stat

    def behind_its_renaming(asked: Any, **more: Any) -> os.stat_result:
        if asked == live:
            live.rename(sealed)
        return stat(asked, **more)

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", behind_its_renaming)
            with pytest.raises(FileNotFoundError):
                Environment(live, writable=False, map_bytes=0, create=False)
        open_environment(sealed).close()
    finally:
        gc.enable()


@pytest.mark.covers("Journal", "torn, damaged, missing")
def test_a_torn_segment_is_named(closed: Path) -> None:
    live = newest(closed, ".live")
    os.truncate(live, live.stat().st_size // 2)
    with pytest.raises(CorruptRecord, match=f"{live} is torn"):
        LmdbJournal(closed)
    os.truncate(live, 0)
    with pytest.raises(CorruptRecord, match=f"{live} is torn"):
        LmdbJournal(closed)
    live.write_bytes(b"this is no environment" * 1000)
    with pytest.raises(StorageError, match=str(live)):
        LmdbJournal(closed)


@pytest.mark.covers("Journal", "torn, damaged, missing")
def test_another_version_is_refused(closed: Path) -> None:
    live = newest(closed, ".live")
    with lmdb.open(str(live), subdir=False, map_size=1 << 28) as env, env.begin(write=True) as txn:
        txn.put(META_PREFIX + b"header", with_checksum(b"\x02\x00" + bytes(14)))
    with pytest.raises(StorageError, match=f"{live} has version 2, this software reads 1"):
        LmdbJournal(closed)


def test_a_damaged_run_is_named(closed: Path) -> None:
    first = numbered_run(1)
    segment = min(closed.glob("journal-*.sealed"))
    hurt(segment, first.payload)
    with LmdbJournalReader(closed) as reader, pytest.raises(CorruptRecord, match=str(segment)):
        reader.read(0)
    live = newest(closed, ".live")
    header = numbered_run(int(live.stem.split("-")[1], 16)).encode()[12:70]
    hurt(live, header)
    with pytest.raises(CorruptRecord, match=str(live)):
        LmdbJournal(closed)


VERIFY_HURT = """
import random, sys
from pathlib import Path
from raylay.storage.state import StoreFile
from raylay.storage.verify import VerifyResult, verify_journal
segment = Path(sys.argv[1])
sound = segment.read_bytes()
rng = random.Random(int(sys.argv[2]))
noticed = 0
for _ in range(60):
    hurt = bytearray(sound)
    for _ in range(rng.choice([1, 4, 20])):
        page = rng.randrange(len(hurt) // 4096) * 4096
        hurt[page + rng.choice([rng.randrange(32), rng.randrange(4096)])] = rng.randrange(256)
    segment.unlink()
    segment.write_bytes(hurt)
    damages = list(verify_journal(segment.parent, None, VerifyResult()))
    noticed += any(damage.path == segment for damage in damages)
print(noticed)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "byte", "value"),
    [(3, 0, 1), (-1, 0, 255), (-1, 7, 2), (-1, slice(0, 8), b"\xff" * 8)],
    ids=["of an entry", "leaps", "by one", "is the last"],
)
def test_a_damaged_key_does_not_keep_verify_for_ever(
    closed: Path, number: int, byte: Any, value: Any
) -> None:
    """A search among keys that are in no order found the same ones again and again; and there is
    no key behind the last."""
    segment = min(closed.glob("journal-*.sealed"))
    with (
        lmdb.open(str(segment), subdir=False, readonly=True, max_dbs=0) as opened,
        opened.begin() as transaction,
        transaction.cursor() as cursor,
    ):
        key = list(cursor.iternext(values=False))[number]
    node = len(key).to_bytes(2, "little") + key
    hurt = bytearray(key)
    hurt[byte] = value
    content = segment.read_bytes()
    assert node in content
    segment.write_bytes(content.replace(node, node[:2] + hurt))
    damages = list(verify_journal(closed, None, VerifyResult()))
    assert any(damage.path == segment for damage in damages)


def test_damaged_pages_are_errors_and_do_not_end_the_process(closed: Path) -> None:
    segment = min(closed.glob("journal-*.sealed"))
    seed = int.from_bytes(os.urandom(4), "big")
    done = subprocess.run(
        [sys.executable, "-c", VERIFY_HURT, segment, str(seed)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout) > 20, "most of it is noticed; the rest lies in free pages"


def test_a_missing_segment_is_named(closed: Path) -> None:
    sealed = sorted(closed.glob("journal-*.sealed"))
    sealed[1].unlink()
    with LmdbJournalReader(closed) as reader:
        at = 0
        with pytest.raises(StorageError, match="is missing"):
            while runs := reader.read(at):
                at = runs[-1].last_txid
        assert at + 1 == int(sealed[1].stem.split("-")[1], 16), "what is before it can be read"


@pytest.mark.covers("Journal", "torn, damaged, missing")
def test_verify_names_each_damage_and_goes_on(closed: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert SegmentMaintenance(closed, archive).compress(1500)
    code, output = raylay_journal("verify", closed)
    assert (code, "sound" in output) == (0, True)
    sealed = sorted(closed.glob("journal-*.sealed"))
    starts = [numbered_run(int(path.stem.split("-")[1], 16)) for path in sealed]
    hurt(sealed[0], starts[0].payload)
    hurt(sealed[1], starts[1].encode()[20:60])
    compressed = min(closed.glob("journal-*.zst"))
    compressed_data = bytearray(compressed.read_bytes())
    compressed_data[1000] ^= 1
    compressed.write_bytes(compressed_data)
    code, output = raylay_journal("verify", closed, "--json")
    assert code == 1
    lines = [json.loads(line) for line in output.splitlines()]
    damages: dict[str, list[int]] = {}
    for line in lines[:-1]:
        damages.setdefault(line["path"], []).append(line["offset"])
    assert set(damages) == {str(sealed[0]), str(sealed[1]), str(compressed)}
    assert damages[str(compressed)] == [32], "the group"
    # Where the damage was said to be there is the hurt record, and the hurt run.
    data = sealed[0].read_bytes()
    assert any(
        sum(a != b for a, b in zip(data[at:], record.raw, strict=False)) == 1
        for record in iterate_records(starts[0].payload)
        for at in damages[str(sealed[0])]
    )
    data = sealed[1].read_bytes()
    at = damages[str(sealed[1])][0]
    assert sum(a != b for a, b in zip(data[at:], starts[1].encode()[:60], strict=False)) == 1
    assert lines[-1]["records"] > 1000, "it went on behind the damage"


def test_a_run_is_found_in_its_block_by_each_of_its_ids() -> None:
    runs = [a_run(first, range(first, last + 1)) for first, last in ((5, 7), (8, 8), (9, 12))]
    block, begins = b"", list[int]()
    for run in runs:
        begins.append(len(block))
        block += run.encode()
    for run, begin in zip(runs, begins, strict=True):
        for txid in range(run.first_txid, run.last_txid + 1):
            assert run_at(block, txid) == begin
    assert run_at(block, 1) == 0 and run_at(block, 13) == len(block)


@pytest.mark.covers("Filters by content", "retention waits for reads that other processes")
def test_retention_waits_for_a_planned_read_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path, retention_bytes=1)
    last = fill(journal)
    ends = [segment.last_txid for segment in journal.segments()]
    assert len(ends) > 3
    hold_read(journal.directory, "spark", ends[1])
    journal.removable(last + 1)
    journal._retry_retention()
    journal.settle()
    assert journal.first_txid == ends[0] + 1, "the last message of the next one is to be read"
    hold_read(journal.directory, "spark", ends[1] + 1)
    journal.removable(last + 1)
    journal._retry_retention()
    journal.settle()
    assert journal.first_txid == ends[1] + 1, "what is before it goes"
    assert "a read has planned it" in journal.retention_held
    assert SegmentMaintenance(journal.directory).remove(last, force=True)[0].done, "who insists"
    now_s = time.time()
    monkeypatch.setattr(read_holds.time, "time", lambda: now_s + HOLD_S + 1)
    journal._retry_retention()
    journal.settle()
    assert journal.first_txid == ends[-2] + 1 and not journal.retention_held
    check_all(journal, last)
    journal.close()


# -- readers beside maintenance ------------------------------------------------------------------
def test_a_reader_that_comes_while_a_segment_is_compressed_keeps_its_form(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = fill(journal)
    first = journal.segments()[0]
    readers: list[LmdbJournalReader] = []

    def reader_comes(point: str) -> None:
        if point == "replace.renamed" and not readers:
            readers.append(LmdbJournalReader(journal.directory))
            assert readers[0].read(0, 1)[0].first_txid == 1

    monkeypatch.setattr(maintenance, "fault_point", reader_comes)
    outcomes = SegmentMaintenance(journal.directory).compress(first.last_txid + 1)
    assert [(outcome.done, outcome.note[:6]) for outcome in outcomes] == [(False, "in use")]
    forms = [file for file in all_files(journal.directory, None) if file.first_txid == 1]
    assert [file.suffix for file in forms] == [".sealed"]
    check_all(readers[0], last)
    readers[0].close()


def test_a_segment_in_use_is_passed_over(journal: StepJournal) -> None:
    last = fill(journal)
    journal.removable(last + 1)
    segments = journal.segments()
    reader = LmdbJournalReader(journal.directory)
    assert reader.read(0, 1)[0].first_txid == 1
    outcomes = journal.compress()
    assert [outcome.done for outcome in outcomes] == [False] + [True] * (len(segments) - 2)
    assert "in use" in outcomes[0].note
    assert [outcome.note for outcome in journal.remove(last)] == ["in use by a reader"]
    check_all(reader, last)
    assert all(outcome.done for outcome in journal.compress()), "at the tail it holds no old one"
    assert reader.read(0, 1)[0].first_txid == 1
    reader.close()
    outcomes = journal.remove(last + 1)
    assert len(outcomes) == len(segments) - 1
    assert all(outcome.done for outcome in outcomes)
    check_all(journal, last)


@pytest.mark.covers("Fabrics and tracing", "a reader at the end of the log holds up")
def test_a_reader_that_came_to_the_end_lets_go_of_what_is_behind_it(journal: StepJournal) -> None:
    last = fill(journal)
    with LmdbJournalReader(journal.directory) as reader:
        after_txid = 0
        while after_txid < last:  # as a link: it reads no more when it has what it was told of
            after_txid = reader.read(after_txid, 1)[-1].last_txid
        held = [outcome.first_txid for outcome in journal.compress() if not outcome.done]
        assert len(held) > 1
        reader.tidy()
        assert reader.read(held[0] - 1, 1)[0].first_txid == held[0]
        reader.tidy()
        kept = [outcome.first_txid for outcome in journal.compress() if not outcome.done]
        assert kept == held[:1], "asked for since the last time"
        reader.tidy()
        assert all(outcome.done for outcome in journal.compress())
        check_all(reader, last)


def test_a_segment_that_was_the_newest_to_an_idle_reader_is_let_go(tmp_path: Path) -> None:
    """A link that has caught up and is given what is new by its instance, and the instance's own
    reader behind one replay: the segment that was live at their last read is sealed meanwhile."""
    journal = open_journal(tmp_path)
    fill(journal, 1)
    readers = [LmdbJournalReader(journal.directory), journal.reader()]
    for reader in readers:
        assert reader.read(0)
        reader.tidy()
        reader.tidy()
        assert not reader.is_untidy, "the live segment stays open, so that a read is cheap"
    last = fill(journal)
    journal.settle()
    for reader in readers:
        assert reader.is_untidy, "somebody has to call tidy"
        reader.tidy()
        assert not reader.is_untidy
    assert all(outcome.done for outcome in journal.compress())
    for reader in readers:
        check_all(reader, last)
        reader.close()
    journal.close()


def test_what_holds_retention_is_named_and_it_goes_on_when_that_is_done(tmp_path: Path) -> None:
    """A reader of another process, killed at the end; and the floor of a destination."""
    journal = open_journal(tmp_path, retention_bytes=1)
    fill(journal, 1)
    script = (
        "import sys; from raylay.storage.journal_reader import LmdbJournalReader as Reader; "
        "reader = Reader(sys.argv[1]); reader.read(0); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(journal.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"open\n"
        last = fill(journal)
        journal.settle()
        oldest = journal.segments()[0].path
        assert journal.retention_held == f"{oldest}: in use by a reader (process {other.pid})"
        for _ in range(2):
            assert journal.is_untidy, "it is tried again"
            journal.tidy()
            journal.settle()
            assert journal.retention_held
        other.kill()
    journal.tidy()
    journal.settle()
    assert journal.retention_held.startswith(f"{oldest}: still needed: the instance released")
    journal.removable(last + 1)
    journal.settle()
    journal.tidy()
    assert not journal.retention_held and not journal.is_untidy
    assert [info.state for info in journal.segments()] == ["live"]
    journal.close()


def test_compressed_and_archived_segments_stay_in_the_log(journal: StepJournal) -> None:
    last = fill(journal)
    middle = journal.segments()[3].first_txid
    assert all(outcome.done for outcome in journal.compress(middle))
    assert all(outcome.done for outcome in journal.archive(journal.segments()[5].first_txid))
    states = [(segment.state, segment.archived) for segment in journal.segments()]
    assert states[:5] == [("compressed", True)] * 3 + [("sealed", True)] * 2
    assert states[5] == ("sealed", False)
    assert states[-1] == ("live", False)
    with LmdbJournalReader(journal.directory, journal.options["archive_directory"]) as reader:
        check_all(reader, last)
        for txid in range(1, last, 97):
            assert reader.find_sequence(7, txid) == txid
            assert reader.read(txid - 1, 1)[0].first_txid == txid
        assert reader.find_time(10) == 1
        assert reader.segment_summaries()[0][0] == 1
    again = journal.reopen()
    assert again.recovered.held.covers(7, [(1, last)])
    check_all(again, last)
    again.close()


@pytest.mark.covers("Journal", "archived segments stay in the log")
def test_segments_archived_by_hand_stay_in_the_log_of_an_instance_that_was_not_told(
    tmp_path: Path,
) -> None:
    """The command moved them: the instance, running or started again, and all tools find them."""
    journal = open_journal(tmp_path, archive_directory=None)
    last = fill(journal)
    with LmdbJournalReader(journal.directory) as reader:
        code, output = raylay_journal(
            "archive", journal.directory, "--archive", tmp_path / "archive", "--before", str(last)
        )
        assert code == 0 and "archived" in output
        check_all(reader, last)
    check_all(journal, last)
    code, output = raylay_journal("verify", journal.directory)
    assert (code, f"{last} records: sound" in output) == (0, True)
    again = journal.reopen()
    assert again.first_txid == 1
    check_all(again, last)
    again.close()
    assert [path.suffix for path in (tmp_path / "archive").glob("journal-*")].count(".sealed") > 1
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="archive is not there"):
        journal.reopen()


@pytest.mark.covers("Journal", "archived segments stay in the log")
def test_an_archive_takes_segments_of_one_journal(tmp_path: Path) -> None:
    """Those of two have the same names: the second's would take the place of the first's."""
    archive = tmp_path / "archive"
    directories = []
    for name in ("one", "two"):
        journal = open_journal(tmp_path / name, archive_directory=None)
        last = fill(journal)
        directories.append(journal.directory)
        journal.close()
    one, two = directories
    assert raylay_journal("archive", one, "--archive", archive)[0] == 0
    before = {path.name: path.read_bytes() for path in archive.iterdir()}
    code, output = raylay_journal("archive", two, "--archive", archive)
    assert code == 1 and "archive of another journal" in output
    with pytest.raises(StorageError, match="archive of another journal"):
        open_journal(tmp_path / "two", archive_directory=archive)
    code, output = raylay_journal("archive", one, "--archive", tmp_path / "other")
    assert code == 1 and f"archived segments in {archive}" in output
    assert before == {path.name: path.read_bytes() for path in archive.iterdir()}
    code, output = raylay_journal("verify", two)
    assert (code, f"{last} records: sound" in output) == (0, True)


@pytest.mark.covers("Replication", "a wall clock that is set both ways")
def test_a_clock_that_is_set_forward_removes_nothing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path, retention_age_s=3600.0)
    now_ns, real_ns = time.time_ns(), time.time_ns
    for txid in range(1, 11):
        journal.stage(a_run(txid, [txid], body_bytes=SEGMENT_BYTES, time_us=now_ns // 1000))
        journal.commit()
    journal.settle()
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 7_200 * 10**9)
    journal.removable(11)
    journal.settle()
    assert journal.first_txid == 1
    steady_ns = time.monotonic_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: steady_ns() + 3_600 * 10**9)
    journal.removable(10)
    journal.removable(11)
    journal.settle()
    assert journal.first_txid > 1
    journal.close()


def test_receive_times_of_the_future_keep_nothing_for_longer_than_the_next_segment(
    tmp_path: Path,
) -> None:
    journal = open_journal(tmp_path, retention_age_s=3600.0)
    now_us = time.time_ns() // 1000
    year_us = 365 * 86_400 * 10**6
    for txid in range(1, 11):
        time_us = now_us + year_us if txid < 4 else 1_000 if txid < 6 else now_us
        journal.stage(a_run(txid, [txid], body_bytes=SEGMENT_BYTES, time_us=time_us))
        journal.commit()
    journal.settle()
    journal.removable(11)
    journal.settle()
    assert journal.first_txid == 6
    journal.close()


def test_retention_by_age(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, retention_age_s=3600.0)
    now_us = time.time_ns() // 1000
    for txid in range(1, 11):
        old = txid < 6
        run = a_run(txid, [txid], body_bytes=SEGMENT_BYTES, time_us=1_000 if old else now_us)
        journal.stage(run)
        journal.commit()
    journal.settle()
    assert journal.first_txid == 1, "nothing before the first call"
    journal.removable(11)
    journal.settle()
    assert journal.first_txid == 6
    journal.close()


@pytest.mark.covers("Laws", "4 safe removal", note="on real processes")
@pytest.mark.parametrize("by_tool", [False, True])
def test_a_removal_under_way_stops_where_the_floor_moves_back(
    journal: StepJournal, by_tool: bool
) -> None:
    """Each segment is measured when nothing but its unlink is left to do: a destination may come
    back with less while a hundred are removed."""
    last = fill(journal)
    ends = [segment.last_txid for segment in journal.segments()]
    journal.removable(last + 1)
    journal.settle()
    asked: list[int] = []

    def keep(file: SegmentFile, last_txid: int) -> bool:
        asked.append(last_txid)
        if len(asked) == 3:
            journal.removable(0)
            journal.write_floor()
        return False

    if by_tool:
        outcomes = SegmentMaintenance(journal.directory).remove(last, keep=keep)
    else:
        outcomes = journal.remove(last, keep=keep)
    assert [outcome.done for outcome in outcomes] == [True, True, False]
    assert "still needed" in outcomes[-1].note
    assert journal.first_txid == ends[1] + 1


@pytest.mark.covers("Journal", "a serving instance writes nothing on its event loop")
def test_a_floor_is_told_without_touching_the_disk(
    journal: StepJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop tells it, at each loss of a link."""
    last = fill(journal)
    told_by = threading.get_ident()
    written: list[int] = []

    def watched(call: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            written.append(threading.get_ident())
            return call(*arguments, **named)

        return wrapped

    for name in ("fsync", "replace", "rename", "unlink", "open"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    journal.removable(last + 1)
    journal.settle()
    assert read_floor(journal.directory) == last + 1
    for before_txid in (last, 5, 0, last + 1, 0):
        journal.removable(before_txid)
    monkeypatch.undo()
    journal.settle()
    assert read_floor(journal.directory) == 0
    assert written and told_by not in written


def test_the_floor_that_tools_know_goes_with_its_life(journal: StepJournal) -> None:
    """Released by an instance that stopped, it holds until one starts: whoever comes back to that
    one may have lost what it had."""
    last = fill(journal)
    journal.removable(last + 1)
    journal.close()
    assert read_floor(journal.directory) == last + 1
    again = LmdbJournal(journal.directory, archive_directory=journal.options["archive_directory"])
    tool = SegmentMaintenance(journal.directory)
    assert read_floor(journal.directory) == 0
    assert [outcome.done for outcome in tool.remove(last)] == [False]
    again.close()
    assert read_floor(journal.directory) == 0


def test_the_floor_is_on_disk_for_tools(journal: StepJournal) -> None:
    last = fill(journal)
    tool = SegmentMaintenance(journal.directory)
    ends = [segment.last_txid for segment in journal.segments()]
    assert [outcome.done for outcome in tool.remove(last)] == [False]
    journal.removable(ends[1] + 1)
    journal.settle()
    assert read_floor(journal.directory) == ends[1] + 1
    journal.removable(ends[0] + 1)
    journal.write_floor()
    assert journal.floor_is_written
    assert read_floor(journal.directory) == ends[0] + 1, "a lower one before anybody acts on it"
    assert [outcome.done for outcome in tool.remove(last)] == [True, False]
    assert [outcome.done for outcome in tool.remove(ends[2] + 1, force=True)] == [True, True]
    check_all(journal, last)


def test_what_is_kept_begins_exactly_where_it_is_asked_for(journal: StepJournal) -> None:
    """Not a segment more is removed: neither one that ends where removal ends, nor one that ends
    where the instance's floor is."""
    last = fill(journal)
    tool = SegmentMaintenance(journal.directory)
    ends = [segment.last_txid for segment in journal.segments()]
    assert tool.remove(ends[0], force=True) == [], "the message at the bound stays"
    (outcome,) = tool.remove(ends[1], lambda: ends[0])
    assert not outcome.done and "still needed" in outcome.note
    (outcome,) = tool.remove(ends[1], lambda: ends[0] + 1)
    assert outcome.done
    check_all(journal, last)


# -- commands ------------------------------------------------------------------------------------
@pytest.mark.covers("Journal", "rotation, compression")
def test_commands_beside_a_running_instance(journal: StepJournal, tmp_path: Path) -> None:
    last = fill(journal)
    archive = tmp_path / "archive"
    code, output = raylay_journal("dump", tmp_path, "--segments", "--json")
    segments = [json.loads(line) for line in output.splitlines()]
    assert (code, segments[-1]["state"], segments[-1]["last_txid"]) == (0, "live", last)

    code, output = raylay_journal("dump", tmp_path, "--from", "5", "--to", "9", "--json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["txid"] for line in lines] == [5, 6, 7, 8, 9]
    assert [line["bookmark"] for line in lines] == [f"7|{txid}|" for txid in range(5, 10)]
    assert [line["body"].strip() for line in lines] == ["5", "6", "7", "8", "9"]
    assert lines[0]["path"] == ["00000000000000a1", "00000000000000b2"]

    code, output = raylay_journal("compress", tmp_path, "--before", str(last))
    assert (code, "compressed" in output) == (0, True)
    code, output = raylay_journal(
        "archive", tmp_path, "--archive", archive, "--before", segments[2]["first_txid"]
    )
    assert (code, output.count("archived")) == (0, 2)
    assert len(list(archive.glob("journal-*"))) == 2

    code, output = raylay_journal("verify", tmp_path, "--archive", archive)
    assert (code, f"{last} records: sound" in output) == (0, True)
    code, output = raylay_journal("grep", "7|42|", tmp_path, "--archive", archive, "--json")
    assert (code, json.loads(output)["txid"]) == (0, 42)
    code, output = raylay_journal("grep", "^77 *$", tmp_path, "--archive", archive, "--json")
    assert (code, json.loads(output)["txid"]) == (0, 77)
    assert raylay_journal("grep", "7|4000000|", tmp_path)[0] == 1
    assert raylay_journal("grep", "no such body", tmp_path)[0] == 1

    code, output = raylay_journal(
        "remove", tmp_path, "--archive", archive, "--before", segments[1]["first_txid"]
    )
    assert (code, "still needed" in output) == (2, True)
    code, output = raylay_journal(
        "remove", tmp_path, "--archive", archive, "--before", segments[1]["first_txid"], "--force"
    )
    assert (code, "removed" in output) == (0, True)
    assert journal.first_txid == segments[1]["first_txid"]
    check_all(journal, last)


def test_commands_say_what_is_wrong(tmp_path: Path) -> None:
    code, output = raylay_journal("dump", tmp_path)
    assert (code, "does not hold a journal" in output) == (1, True)
    code, output = raylay_journal("dump", tmp_path / "none")
    assert (code, "does not exist" in output) == (1, True)


def test_a_run_is_committed_with_the_next_one_however_late_that_is_handed_over(
    tmp_path: Path,
) -> None:
    """The writer takes what is there; a dead letter alone is nothing that it may commit."""
    journal = LmdbJournal(tmp_path / "journal")
    committed: list[int] = []
    any_commit, both = threading.Event(), threading.Event()
    first = numbered_run(1)
    last = numbered_run(first.last_txid + 1)
    first.with_next = True

    def told(txid: int, _: int) -> None:
        committed.append(txid)
        any_commit.set()
        if txid == last.last_txid:
            both.set()

    journal.start(told, lambda txid, error: None)
    journal.stage(first)
    assert not any_commit.wait(0.2)
    journal.stage(last)
    assert both.wait(COMMIT_TIMEOUT_S)
    assert committed == [last.last_txid]
    journal.close()
