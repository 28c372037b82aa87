"""Run as a process by test_unsynced_disk.py: writes, and says what it takes to be on disk.

    unsynced_child.py DIRECTORY WHAT MISTAKE

MISTAKE leaves one sync out; empty: none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.journal_cases import StepJournal, TellsAtOnce, numbered_run

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.storage import compressed, files, front, lmdb_journal, maintenance, spare, state
from raylay.storage.state import LmdbStateStore
from raylay.storage.stores import LmdbBookmarkStore, LmdbPublishStore
from raylay.storage.wipe import wipe_journal

SEGMENT_BYTES = 12 * 1024
COMMITS = 60
ROUNDS = 25
COPIED_RUNS = 35
"""Of a whole copy: more than of the one that is given up before."""


def say(text: str) -> None:
    """What was told is the promise that a power cut must not break."""
    os.write(1, f"{text}\n".encode())


# -- what it writes ------------------------------------------------------------------------------
class Journal(StepJournal):
    """Tells of each commit from the writer's callback, as an instance does."""

    def _on_committed(self, last_txid: int, commit_ns: int) -> None:
        say(f"committed {last_txid}")
        super()._on_committed(last_txid, commit_ns)


def journal(directory: Path, *, front_log: bool = False) -> None:
    """Commits, rotations, and all that maintenance does to sealed segments."""
    made = Journal(
        directory / "instance" / "journal",
        segment_bytes=3 * SEGMENT_BYTES if front_log else SEGMENT_BYTES,
        archive_directory=directory / "archive",
        front_log=front_log,
    )
    ahead = TellsAtOnce(made, lambda txid: say(f"committed {txid}"))
    txid = 1
    for commit in range(COMMITS):
        run = numbered_run(txid)
        made.keep(run)
        if run.first_txid % 2 and made.is_thread_idle:
            made.commit_here(ahead)
        else:
            made.hand_over()
        made.commit()
        txid = run.last_txid + 1
        if commit % 12 == 11:
            made.settle()
            firsts = [segment.first_txid for segment in made.segments()]
            made.compress(firsts[-2:][0])
            made.archive(firsts[-min(5, len(firsts))])
            made.removable(firsts[-min(8, len(firsts))])
            made.write_floor()
            say(f"floor {made._floor_written}")
            say("removing")
            for outcome in made.remove(made.last_txid):
                if outcome.done:
                    say(f"removed {outcome.last_txid}")
            made.removable(0)
            made.write_floor()
            say("floor 0")
    made.close()


def fronted(directory: Path) -> None:
    """The same behind a front log, whose files are so small that they are used again."""
    front.FILE_BYTES, front.END_BYTES = 32 * 1024, 64 * 1024
    journal(directory, front_log=True)


def state_store(directory: Path) -> None:
    store = LmdbStateStore(directory / "instance" / "state.lmdb")
    for number in range(1, ROUNDS):
        store.put({"epoch": str(number).encode(), f"key/{number}": b"x" * 700})
        say(f"state {number}")
    store.close()


def publish_store(directory: Path) -> None:
    store = LmdbPublishStore(directory / "client" / "publishes.lmdb")
    for number in range(1, ROUNDS):
        store.put(number, f"record {number}".encode().ljust(700))
        store.flush()
        say(f"published {number}")
        if number % 5 == 0:
            store.words = f"words {number}".encode()
            store.acknowledge(number - 4)
            store.flush()
            say(f"words {number}")
    store.close()


def bookmark_store(directory: Path) -> None:
    store = LmdbBookmarkStore(directory / "client" / "bookmarks.lmdb")
    for number in range(1, ROUNDS):
        store.seen("subscription", 7, number, number)
        store.persisted("subscription", PublisherRanges({8: SequenceSet([(1, number)])}))
        store.flush()
        say(f"seen {number}")
    store.close()


def marker(directory: Path) -> None:
    """Of a bootstrap: what is copied may not be taken for a whole log."""
    from types import SimpleNamespace

    from raylay.services.server.links.bootstrap import BootstrapJournal

    place = directory / "instance"
    made = Journal(place / "journal", segment_bytes=SEGMENT_BYTES)
    runtime: Any = SimpleNamespace(directory=place)
    copying = BootstrapJournal(runtime, made)  # type: ignore[arg-type]
    copying.mark()
    say("marked")
    copy(made, 30)
    made.close()
    # The source is gone: another one is copied from, from the beginning.
    wipe_journal(place / "journal", None)
    made = Journal(place / "journal", segment_bytes=SEGMENT_BYTES)
    copy(made, COPIED_RUNS)
    made.close()
    copying._unmark()
    say("unmarked")


def copy(made: StepJournal, runs: int) -> None:
    txid = 1
    for _ in range(runs):
        run = numbered_run(txid)
        made.keep(run)
        if run.first_txid % 2 and made.is_thread_idle:
            made.commit_here()
        else:
            made.hand_over()
        made.commit()
        txid = run.last_txid + 1


# -- syncs left out ------------------------------------------------------------------------------
def _opened_with(module: Any, **options: Any) -> Callable[[], None]:
    def plant() -> None:
        real = lmdb.open

        def opened(*arguments: Any, **named: Any) -> Any:
            return real(*arguments, **named, **({} if named.get("readonly") else options))

        module.lmdb = type("lmdb", (), {**vars(lmdb), "open": staticmethod(opened)})

    return plant


def _without(module: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(module, name, lambda path: None)


def _fsync_left_out(module: Any, name: str = "fsync") -> Callable[[], None]:
    def plant() -> None:
        module.os = type("os", (), {**vars(os), name: staticmethod(lambda fd: None)})

    return plant


def _used_again_early() -> None:
    lmdb_journal.MOVE_S = 60.0  # nothing else moves them before
    front.FrontSpace.holds_nothing = property(lambda self: True)  # type: ignore[assignment]
    front.FrontSpace.moved = (  # type: ignore[method-assign]
        lambda self, upto: setattr(self, "_moved", 1 << 60)
    )
    real = front.FrontSpace.__init__

    def begun(self: front.FrontSpace, *arguments: int) -> None:
        real(self, *arguments)
        self.moved(0)

    front.FrontSpace.__init__ = begun  # type: ignore[method-assign]


WHAT: dict[str, Callable[[Path], None]] = {
    "journal": journal,
    "front": fronted,
    "state": state_store,
    "publishes": publish_store,
    "bookmarks": bookmark_store,
    "marker": marker,
}


def mistakes() -> dict[str, Callable[[], None]]:
    """By name: what leaves one sync out."""
    from raylay.services.server.links import bootstrap
    from raylay.storage import segments

    return {
        "": lambda: None,
        "commit not synced": _opened_with(segments, sync=False),
        "commit's meta page not synced": _opened_with(segments, metasync=False),
        "rotation's directory": _without(lmdb_journal, "sync_directory"),
        "next segment's file": _without(spare, "sync_file"),
        "compressed file": _fsync_left_out(compressed),
        "maintenance's directories": _without(maintenance, "sync_directory"),
        "archived file": _without(files, "sync_file"),
        "names of new directories and of small files": _without(files, "sync_directory"),
        "small file": _fsync_left_out(files),
        "front not synced": _fsync_left_out(front, "fdatasync"),
        "front's directory": _without(front, "sync_directory"),
        "front's file used again too early": _used_again_early,
        "store not synced": _opened_with(state, sync=False),
        "store's meta page not synced": _opened_with(state, metasync=False),
        "store's directory": _without(state, "sync_directory"),
        "new store's file": _without(state, "sync_file"),
        "marker's directory": _without(bootstrap, "sync_directory"),
    }


if __name__ == "__main__":
    mistakes()[sys.argv[3]]()
    WHAT[sys.argv[2]](Path(sys.argv[1]))
