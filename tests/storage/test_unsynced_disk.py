"""A power cut at any instant loses what was not synced, and nothing that was told.

Each process is recorded once and cut at many instants; what it told by then, an opened store must
have. A sync left out, at each point where one makes something durable, must show.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.journal_cases import numbered_run
from support.unsynced_disk import Disk, Entry, compiled, record, tear

from raylay.services.errors import RaylayError
from raylay.services.server.links.bootstrap import MARKER_FILE
from raylay.storage.front import END_NAME
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.maintenance import read_floor
from raylay.storage.state import LmdbStateStore
from raylay.storage.stores import LmdbBookmarkStore, LmdbPublishStore
from raylay.storage.wipe import wipe_journal

CHILD = Path(__file__).with_name("unsynced_child.py")
CUTS = 60
CUTS_WITH_MISTAKE = 400
CUT_TIMEOUT_S = 200
LOST = 3
"""Exit code where something is lost."""

pytestmark = [
    pytest.mark.skipif(
        shutil.which("cc") is None,
        reason="no C compiler for unsynced_disk.c: sudo apt-get install gcc libc6-dev",
    ),
    pytest.mark.covers("Journal", "the front log: an entry's bytes"),
    pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves"),
]


class _Whole(random.Random):
    """Chance that leaves all of it."""

    def random(self) -> float:
        return 0.0


KILLED = _Whole()


class Lost(AssertionError):
    """What was told is not there."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("unsynced"))


def last_told(told: bytes, word: str) -> int:
    """The number that was told last."""
    found = re.findall(rf"^{word} (\d+)$", told.decode(), re.MULTILINE)
    return int(found[-1]) if found else 0


def must(sound: bool, what: str) -> None:
    if not sound:
        raise Lost(what)


# -- what must be there --------------------------------------------------------------------------
def check_journal(directory: Path, told: bytes) -> None:
    """As a restart opens it: every commit that was told of, in order, contents intact."""
    acknowledged, removed = last_told(told, "committed"), last_told(told, "removed")
    place = directory / "instance" / "journal"
    floors = [int(found) for found in re.findall(r"^floor (\d+)$", told.decode(), re.MULTILINE)]
    if floors:
        # The one being written may be there already.
        must(read_floor(place) <= max(floors[-1], acknowledged), f"floor {read_floor(place)}")
        if floors[-1] == 0 and told.endswith(b"floor 0\n"):
            must(read_floor(place) == 0, f"the floor is {read_floor(place)} again")
    journal = LmdbJournal(place, archive_directory=directory / "archive")
    try:
        last = journal.last_txid
        must(last >= acknowledged, f"committed {acknowledged}, found {last}")
        must(journal.first_txid <= removed + 1 or b"removing" in told, "the oldest are gone")
        at = journal.first_txid - 1
        while runs := journal.read(at):
            for run in runs:
                must(run.first_txid == at + 1, f"{at + 1} is not there")
                must(run.encode() == numbered_run(run.first_txid).encode(), f"{run} is another")
                at = run.last_txid
        must(at == last, f"read up to {at} of {last}")
        held = journal.recovered.held.of(7)
        must(not last or list(held) == [(1, last)], f"held is {held}")
    finally:
        journal.close()


def check_state(directory: Path, told: bytes) -> None:
    number = last_told(told, "state")
    store = LmdbStateStore(directory / "instance" / "state.lmdb")
    try:
        found = int(store.get("epoch") or b"0")
        must(found in (number, number + 1), f"told {number}, found {found}")
        must(len(list(store.items("key/"))) == found, "a put is there in part")
    finally:
        store.close()


def check_publishes(directory: Path, told: bytes) -> None:
    number, words = last_told(told, "published"), last_told(told, "words")
    store = LmdbPublishStore(directory / "client" / "publishes.lmdb")
    try:
        must(store.highest in (number, number + 1), f"told {number}, highest {store.highest}")
        gone = store.lowest - 1 if store.lowest else 0
        must(gone in (max(0, words - 4), max(0, number - 4)), f"lowest is {store.lowest}")
        must(not words or int(store.words.split()[1]) >= words, f"{store.words!r} after {words}")
        found = [sequence for sequence, _ in store.replay()]
        must(found == list(range(gone + 1, store.highest + 1)), f"{found} of {number}")
    finally:
        store.close()


def check_bookmarks(directory: Path, told: bytes) -> None:
    number = last_told(told, "seen")
    store = LmdbBookmarkStore(directory / "client" / "bookmarks.lmdb")
    try:
        have = store.load("subscription")
        for publisher in (7, 8):
            found = have.of(publisher).last() or 0
            must(found in (number, number + 1), f"told {number}, found {found}")
    finally:
        store.close()


def check_marker(directory: Path, told: bytes) -> None:
    """Whatever is there of a copy that is not whole, the marker lies beside it; and it can be
    begun again: opened, thrown away, opened."""
    place = directory / "instance" / "journal"
    if (directory / "instance" / MARKER_FILE).exists():
        LmdbJournal(place).close()
        wipe_journal(place, None)
        journal = LmdbJournal(place)
        found = journal.recovered.next_txid
        journal.close()
        must(found == 1, f"begins at {found}")
    elif b"marked\n" in told:
        # It may be gone before that is told.
        whole = last_told(told, "committed")
        must(whole == _whole_copy(), f"a copy up to {whole} without its marker")
        check_journal(directory, told)


@cache
def _whole_copy() -> int:
    txid = 1
    for _ in range(COPIED_RUNS):
        txid = numbered_run(txid).last_txid + 1
    return txid - 1


COPIED_RUNS = 35
"""As in unsynced_child.py."""
CHECKS: dict[str, Callable[[Path, bytes], None]] = {
    "journal": check_journal,
    "front": check_journal,
    "state": check_state,
    "publishes": check_publishes,
    "bookmarks": check_bookmarks,
    "marker": check_marker,
}


def cuts(entries: list[Entry], wanted: int, rng: random.Random) -> list[int]:
    """Instants: behind what was told, before and behind syncs and changes of names, anywhere."""
    if wanted >= len(entries):
        return list(range(len(entries) + 1))
    told = [at + 1 for at, entry in enumerate(entries) if entry.operation == "O"]
    syncs, names = (
        [
            at + behind
            for at, entry in enumerate(entries)
            if entry.operation in operations
            for behind in (0, 1)
        ]
        for operations in ("S", "RUCM")
    )
    fronted = [at for at, entry in enumerate(entries) if in_front(entry)]
    found = {len(entries)}
    for instants, share in (
        (told, 0.2),
        (syncs, 0.3),
        (names, 0.4),
        (fronted, 0.2),
        (range(len(entries)), 0.1),
    ):
        found.update(rng.sample(list(instants), min(len(instants), int(wanted * share))))
    return sorted(found)


def in_front(entry: Entry) -> bool:
    """Whether it is a commit in the front log."""
    return entry.operation == "W" and entry.flags == 1 and "/front-" in entry.path


def recorded(what: str, mistake: str, library: Path, directory: Path) -> list[Entry]:
    """What a process did to `directory/disk`, which is out of the way then: the images of it lie
    where it lay, since a journal names its archive."""
    entries = record(library, directory / "disk", directory / "record", CHILD, what, mistake)
    (directory / "disk").rename(directory / "left")
    return entries


def cut_often(
    what: str, entries: list[Entry], directory: Path, wanted: int, seed: int, by_chance: int = 2
) -> None:
    """Raises Lost, naming the instant, where something told is not there after a power cut, or
    after a SIGKILL, which loses nothing that was written."""
    rng = random.Random(seed)
    instants = cuts(entries, wanted, rng)
    disk = Disk()
    taken = 0
    image = directory / "disk"
    for instant in instants:
        for entry in entries[taken:instant]:
            disk.take(entry)
        taken = instant
        by_chance_here = [random.Random(rng.random()) for _ in range(by_chance)]
        for chance in (None, KILLED, *by_chance_here):
            disk.write(image, chance)
            if chance is not None and instant < len(entries) and in_front(entries[instant]):
                tear(image, entries[instant], chance)
            try:
                CHECKS[what](image, disk.told)
            except (Lost, RaylayError, OSError) as error:
                how = {None: "nothing that was not synced", KILLED: "all of it"}.get(chance, "some")
                raise Lost(
                    f"seed {seed}, cut behind entry {instant} of {len(entries)} "
                    f"({entries[instant - 1][:4] if instant else ''}), {how}: {error!r}"
                ) from error
            finally:
                shutil.rmtree(image)


@pytest.mark.slow
@pytest.mark.covers("Journal", "a power cut at any instant")
@pytest.mark.parametrize("what", CHECKS)
def test_what_was_told_outlives_a_power_cut(what: str, library: Path, tmp_path: Path) -> None:
    entries = recorded(what, "", library, tmp_path)
    assert sum(entry.operation == "S" for entry in entries) > 10
    seed = random.SystemRandom().randrange(1 << 32)
    cut_often(what, entries, tmp_path, CUTS, seed)


@pytest.mark.covers("Journal", "a power cut at any instant", note="that it sees every write")
@pytest.mark.parametrize("what", CHECKS)
def test_the_record_is_whole(what: str, library: Path, tmp_path: Path) -> None:
    """With everything synced the rebuilt directory is the one that the process left: nothing that
    it did to a file was missed. (Lock files and `front-end` are written through mappings, too, and
    mean nothing after a cut.)"""
    entries = recorded(what, "", library, tmp_path)
    disk = Disk()
    for entry in entries:
        disk.take(entry)
    disk.sync_all()
    disk.write(tmp_path / "rebuilt")

    def contents(place: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file() and not path.name.endswith("-lock") and path.name != END_NAME
        }

    assert contents(tmp_path / "rebuilt") == contents(tmp_path / "left")


MISTAKES = [
    ("journal", "commit not synced"),
    ("journal", "commit's meta page not synced"),
    ("journal", "rotation's directory"),
    ("journal", "next segment's file"),
    ("journal", "compressed file"),
    ("journal", "maintenance's directories"),
    ("journal", "archived file"),
    ("front", "commit not synced"),
    ("front", "commit's meta page not synced"),
    ("front", "front not synced"),
    ("front", "front's directory"),
    ("front", "front's file used again too early"),
    ("journal", "names of new directories and of small files"),
    ("state", "store not synced"),
    ("state", "store's meta page not synced"),
    ("state", "store's directory"),
    ("state", "new store's file"),
    ("publishes", "store not synced"),
    ("publishes", "store's meta page not synced"),
    ("publishes", "store's directory"),
    ("bookmarks", "store not synced"),
    ("bookmarks", "store's meta page not synced"),
    ("bookmarks", "store's directory"),
    ("marker", "marker's directory"),
]


@pytest.mark.covers(
    "Journal",
    "a power cut at any instant",
    note="that each sync is needed, one left out at a time, "
    "MDB_NOSYNC and MDB_NOMETASYNC among them",
)
@pytest.mark.slow
@pytest.mark.parametrize(("what", "mistake"), MISTAKES)
def test_a_sync_left_out_shows(what: str, mistake: str, library: Path, tmp_path: Path) -> None:
    entries = recorded(what, mistake, library, tmp_path)

    def cut() -> None:
        try:
            for wanted, by_chance in ((12, 0), (CUTS, 1), (CUTS_WITH_MISTAKE, 4)):
                cut_often(what, entries, tmp_path, wanted, seed=1, by_chance=by_chance)
        except Lost as lost:
            print(lost)
            os._exit(LOST)

    # In a process of its own: what is left of a file that was never synced may end it (SIGBUS).
    process = multiprocessing.get_context("fork").Process(target=cut)
    process.start()
    process.join(CUT_TIMEOUT_S)
    assert process.exitcode in (LOST, -signal.SIGBUS, -signal.SIGSEGV), "nobody saw it"
