"""A journal's directory is emptied whole, and only when nobody has it open."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.errors import StorageLocked
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.wipe import wipe_journal


def test_a_wiped_journal_is_an_empty_one(tmp_path: Path) -> None:
    directory, archive = tmp_path / "journal", tmp_path / "archive"
    journal = StepJournal(directory, segment_bytes=2_000, archive_directory=archive)
    for first in range(1, 200, 10):
        journal.stage(a_run(first, range(first, first + 10)))
        journal.commit()
    journal.settle()
    journal.compress(60)
    assert any(outcome.done for outcome in journal.archive(40))
    with pytest.raises(StorageLocked):
        wipe_journal(directory, archive)
    journal.close()
    assert wipe_journal(directory, archive) > 4
    assert not list(archive.glob("journal-*"))
    again = LmdbJournal(directory, archive_directory=archive)
    assert again.recovered.next_txid == 1 and not again.recovered.held
    assert not again.removed()
    again.close()
