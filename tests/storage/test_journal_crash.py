"""SIGKILL at any instant: every commit whose callback ran is there, in order, content intact."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.journal_cases import numbered_run

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.storage.archive import POINTER_FILE
from raylay.storage.files import FAULT_VARIABLE
from raylay.storage.lmdb_journal import LmdbJournal, LmdbJournalReader

pytestmark = [
    pytest.mark.covers("Journal", "the front log: an entry's bytes"),
    pytest.mark.covers(
        "Journal",
        "what is prepared while the disk writes a commit leaves",
        note="SIGKILL in between",
    ),
]

CHILD = Path(__file__).with_name("journal_child.py")
CHILD_TIMEOUT_S = 60

FAULT_POINTS = [
    "commit.begin:200",
    "commit.synced:200",
    "spare.begin:3",
    "rotate.lock_renamed:4",
    "rotate.renamed:1",
    "rotate.renamed:5",
    "seal.begin:4",
    "seal.synced:4",
    "seal.renamed:4",
    "compress.written:3",
    "copy.written:3",
    "replace.renamed:2",
    "replace.renamed:5",
    "replace.unlinked:4",
    "remove.unlinked:2",
]

FRONT_FAULT_POINTS = [
    "front.made:1",
    "front.made:3",
    "front.begin:1",
    "front.begin:150",
    "front.prepared:1",
    "front.prepared:100",
    "front.written:1",
    "front.written:2",
    "front.written:150",
    "move.begin:1",
    "move.begin:5",
    "move.synced:1",
    "move.synced:5",
    "move.told:5",
    "rotate.renamed:5",
    "seal.synced:4",
]


def start(directory: Path, runs: int, fault: str = "", front: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, CHILD, directory / "journal", directory / "archive", str(runs), front],
        stdout=subprocess.PIPE,
        env={**os.environ, FAULT_VARIABLE: fault},
    )


def committed_by(output: bytes) -> int:
    """The highest id that was acknowledged; a line cut by the kill was not."""
    lines = [line.split() for line in output.decode().split("\n")[:-1]]
    assert all(words[0] == "committed" for words in lines), lines[-1]
    return int(lines[-1][1]) if lines else 0


def check(directory: Path, acknowledged: int) -> int:
    """Opens the journal as a restart does; returns its last id."""
    journal = LmdbJournal(directory / "journal", archive_directory=directory / "archive")
    try:
        last = journal.last_txid
        assert last >= acknowledged
        assert journal.recovered.next_txid == last + 1
        assert journal.recovered.held == PublisherRanges(
            {7: SequenceSet([(1, last)])} if last else {}
        )
        at = journal.first_txid - 1
        while runs := journal.read(at):
            for run in runs:
                expected = numbered_run(run.first_txid)
                assert run.first_txid == at + 1
                assert run.encode() == expected.encode()
                at = run.last_txid
        assert at == last
        names = {path.name for path in (directory / "journal").iterdir()}
        assert not [name for name in names if name.endswith(".aside")]
        stems = [name.split(".")[0] for name in names if not name.endswith("-lock")]
        archived = directory / "archive"
        if archived.exists():
            stems += [path.stem for path in archived.iterdir()]
        segments = [stem for stem in stems if stem.startswith("journal-")]
        assert len(segments) == len(set(segments)), "one form of each segment"
    finally:
        journal.close()
    return last


@pytest.mark.covers("Journal", "SIGKILL at every step and at random instants")
@pytest.mark.parametrize(
    ("front", "fault"),
    [
        *(("", fault) for fault in FAULT_POINTS),
        *(("front", fault) for fault in FRONT_FAULT_POINTS),
        ("retired", "move.begin:5"),
        ("retired", "move.synced:4"),
    ],
)
def test_killed_at(front: str, fault: str, tmp_path: Path) -> None:
    child = start(tmp_path, 0, fault, front)
    try:
        output, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL, f"{fault} was never reached"
    last = check(tmp_path, committed_by(output))
    # And it goes on from there.
    child = start(tmp_path, 50, front=front)
    output, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
    assert child.returncode == 0
    assert check(tmp_path, committed_by(output)) > last


def test_killed_while_it_moves_what_the_kill_before_left_in_front(tmp_path: Path) -> None:
    child = start(tmp_path, 0, "move.begin:3", "front")
    output, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
    copy = tmp_path / "copy"
    for fault in ("front.recovered:1", "move.begin:1", "move.synced:1"):
        shutil.copytree(tmp_path / "journal", copy / fault / "journal")
        pointer = copy / fault / "journal" / POINTER_FILE
        if pointer.exists():  # It may have come so far. The copy has its own archive.
            archive = copy / fault / "archive"
            if (tmp_path / "archive").exists():
                shutil.copytree(tmp_path / "archive", archive)
            pointer.write_text(
                json.dumps(json.loads(pointer.read_text()) | {"directory": str(archive)})
            )
        again = start(copy / fault, 1, fault, "front")
        again.communicate(timeout=CHILD_TIMEOUT_S)
        assert again.returncode == -signal.SIGKILL, f"{fault} was never reached"
        check(copy / fault, committed_by(output))


@pytest.mark.covers("Journal", "SIGKILL at every step and at random instants")
@pytest.mark.parametrize("front", ["", "front"])
def test_killed_again_and_again(front: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(5):
        child = start(tmp_path, 0, front=front)
        assert child.stdout is not None
        output = b""
        for _ in range(rng.randrange(1, 120)):
            output += child.stdout.readline()
        child.kill()
        output += child.stdout.read()
        child.stdout.close()
        child.wait(CHILD_TIMEOUT_S)
        check(tmp_path, committed_by(output))


@pytest.mark.slow
@pytest.mark.covers("Journal", "rotation, compression")
@pytest.mark.parametrize("front", ["", "front", "retired"])
def test_a_reader_in_another_process_follows_everything(front: str, tmp_path: Path) -> None:
    child = start(tmp_path, 1_500, front=front)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        reader = LmdbJournalReader(tmp_path / "journal", tmp_path / "archive")
        at = 0
        looked_up = 0
        while line:
            acknowledged = int(line.split()[1])
            assert reader.last_txid >= acknowledged, "visible as soon as the callback ran"
            while at < acknowledged:
                runs = reader.read(at, 20_000)
                assert runs, f"nothing behind {at}, {acknowledged} was committed"
                for run in runs:
                    assert run.first_txid == at + 1
                    assert run.encode() == numbered_run(run.first_txid).encode()
                    at = run.last_txid
            if at > looked_up + 5_000:
                looked_up = at
                wanted = at - 2_500
                assert reader.find_sequence(7, wanted) == wanted
                assert reader.find_time(10 * numbered_run(at + 1).first_txid) >= at
                reader.segment_summaries()
            line = child.stdout.readline()
        reader.close()
        assert child.wait(CHILD_TIMEOUT_S) == 0
    finally:
        child.kill()
