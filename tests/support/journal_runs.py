"""Every run of a journal. One `read` gives some of what is there, and at least one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from raylay.services.messages.records import Run


class ReadableJournal(Protocol):
    """A journal, or a reader of one."""

    def read(self, after_txid: int) -> list[Run]: ...


def every_run(journal: ReadableJournal) -> Iterator[Run]:
    """All that is in a journal, in its order, notes included."""
    after_txid = 0
    while runs := journal.read(after_txid):
        yield from runs
        after_txid = runs[-1].last_txid
