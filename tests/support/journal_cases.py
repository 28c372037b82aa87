"""Runs for the journal tests, and a LMDB journal driven one commit at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.messages.records import Flag, Kind, RecordBuilder, Run
from raylay.storage.journal import Journal
from raylay.storage.lmdb_journal import LmdbJournal

COMMIT_TIMEOUT_S = 30


def a_run(
    first_txid: int,
    sequences: range | list[int],
    *,
    publisher: int = 7,
    body_bytes: int = 16,
    time_us: int | None = None,
    topic: str = "orders",
) -> Run:
    """A run of the sequences; each body names its sequence."""
    builder = RecordBuilder(publisher, topic, "json")
    numbers = list(sequences)
    payload = b"".join(
        builder.build(number, str(number).encode().ljust(body_bytes), 1_000 + number)
        for number in numbers
    )
    contiguous = numbers[-1] - numbers[0] + 1 == len(numbers)
    return Run(
        publisher,
        numbers[0],
        numbers[-1],
        len(numbers),
        payload,
        topic.encode(),
        b"json",
        path=(0xA1, 0xB2),
        group="Chicago",
        flags=int(Flag.CONTIGUOUS) if contiguous else 0,
        first_txid=first_txid,
        receive_time_us=first_txid * 10 if time_us is None else time_us,
    )


def a_note(first_txid: int, payload: bytes = b"who waits for what") -> Run:
    """A note, which uses one transaction id."""
    return Run(
        0,
        0,
        0,
        1,
        payload,
        kind=Kind.WAITER,
        first_txid=first_txid,
        receive_time_us=first_txid * 10,
    )


class StepJournal(LmdbJournal):
    """A LMDB journal whose `commit` waits for the writer thread, as the in-memory twin's does."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self.directory = directory
        self.options = options
        self.commits: list[int] = []
        self.failures: list[tuple[int, Exception]] = []
        self._gate = threading.Condition()
        self._wanted_txid = 0
        self._failures_seen = 0
        self.start(self._on_committed, self._on_failed)
        if options.get("front_log"):
            # Small commits go there from the first one on.
            self.settle()

    def _on_committed(self, last_txid: int, commit_ns: int) -> None:
        assert commit_ns >= 0
        with self._gate:
            self.commits.append(last_txid)
            self._gate.notify_all()

    def _on_failed(self, first_txid: int, error: Exception) -> None:
        with self._gate:
            self.failures.append((first_txid, error))
            self._gate.notify_all()

    def keep(self, run: Run) -> None:
        super().keep(run)
        self._wanted_txid = run.last_txid

    def commit(self) -> int:
        """Waits until what was staged is committed or has failed."""
        with self._gate:
            # It may have failed before this call.
            assert self._gate.wait_for(
                lambda: (
                    self.last_txid >= self._wanted_txid or len(self.failures) > self._failures_seen
                ),
                COMMIT_TIMEOUT_S,
            )
            self._failures_seen = len(self.failures)
        return self.last_txid

    def reopen(self) -> StepJournal:
        """Closes it and opens it anew."""
        self.close()
        return StepJournal(self.directory, **self.options)


def numbered_run(first_txid: int) -> Run:
    """The run that has this id: all journals of the crash tests hold the same, whoever wrote it.

    Sequence and transaction id are equal, so what is held is 1 to the last id.
    """
    count = 1 + (first_txid * 2_654_435_761 >> 7) % 40
    return a_run(first_txid, range(first_txid, first_txid + count), body_bytes=100)


AnyJournal = TypeVar("AnyJournal", bound=Journal)


def when_idle(journal: AnyJournal) -> AnyJournal:
    """The writer thread is done with a run a moment after it has told of it."""
    deadline_s = time.monotonic() + 60
    while not journal.is_thread_idle and time.monotonic() < deadline_s:
        time.sleep(0)
    assert journal.is_thread_idle
    return journal


class TellsAtOnce:
    """Tells of a commit as early as it may."""

    def __init__(self, journal: Journal, tell: Callable[[int], None]) -> None:
        self._journal = journal
        self._tell = tell
        self._last_txid = 0

    def prepare(self, last_txid: int) -> None:
        assert self._journal.last_txid < last_txid
        self._last_txid = last_txid

    def durable(self) -> None:
        if self._last_txid:
            self._tell(self._last_txid)
            self._last_txid = 0
