"""Run as a process by the crash tests: writes `numbered_run`s until it is killed.

    journal_child.py DIRECTORY ARCHIVE RUNS FRONT

Prints `committed <last txid>` from the writer's callback, and nothing before that. The writer
thread commits, or this one where that has nothing to do.
With RUNS 0 it goes on for ever. FRONT: `front` has a front log, with `retired` its first file fails
at the 30th write. A second thread compresses, archives and removes all the while.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from raylay.storage import front as front_module
from raylay.storage.lmdb_journal import LmdbJournal

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.journal_cases import TellsAtOnce, numbered_run

SEGMENT_BYTES = 128 * 1024
STAGED_MAX = 64
STAGED_IN_FRONT_MAX = 4
"""What is larger goes to the store."""


def fail_once(journal: LmdbJournal) -> None:
    """The 30th write into the front is torn, and says so."""
    journal.settle()
    real, writes = os.pwrite, iter(range(1, 30))

    def write(descriptor: int, content: bytes | memoryview, offset: int) -> int:
        if not isinstance(content, memoryview) or next(writes, None) is not None:
            return real(descriptor, content, offset)
        os.pwrite = real
        real(descriptor, content[:4096], offset)
        raise OSError(5, "torn")

    os.pwrite = write


def main(directory: str, archive: str, runs: int, front: str) -> None:
    # So small that each is used again and again.
    front_module.FILE_BYTES = 128 * 1024
    journal = LmdbJournal(
        directory,
        segment_bytes=SEGMENT_BYTES,
        archive_directory=archive,
        front_log=front != "",
    )
    room = threading.Semaphore(STAGED_IN_FRONT_MAX if front else STAGED_MAX)
    committed = threading.Condition()
    staged_ends: list[int] = []

    def on_committed(last_txid: int, commit_ns: int) -> None:
        os.write(1, f"committed {last_txid}\n".encode())
        while staged_ends and staged_ends[0] <= last_txid:
            staged_ends.pop(0)
            room.release()
        with committed:
            committed.notify_all()

    def on_failed(first_txid: int, error: Exception) -> None:
        os.write(1, f"failed {first_txid} {error!r}\n".encode())
        os._exit(3)

    def maintain() -> None:
        last = 0
        while True:
            with committed:
                while journal.last_txid <= last + 3_000:
                    committed.wait()
            last = journal.last_txid
            journal.compress(last - 3_000)
            journal.archive(last - 6_000)
            journal.removable(max(1, last - 12_000))
            journal.remove(last - 12_000)

    journal.start(on_committed, on_failed)
    if front == "retired":
        fail_once(journal)
    threading.Thread(target=maintain, daemon=True).start()
    ahead = TellsAtOnce(journal, lambda txid: os.write(1, f"committed {txid}\n".encode()))
    txid = journal.recovered.next_txid
    written = 0
    while not runs or written < runs:
        run = numbered_run(txid)
        room.acquire()
        staged_ends.append(run.last_txid)
        journal.keep(run)
        if journal.is_thread_idle:
            # The writes that fail there are those of `pwrite`.
            journal.commit_here(None if front == "retired" else ahead)
        elif written % 3:
            journal.hand_over()
        txid = run.last_txid + 1
        written += 1
    journal.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
