"""Repairs a journal whose front log is damaged: undamaged commits go into the journal, and the
files of the front log are set aside."""

from __future__ import annotations

import os
from pathlib import Path

from raylay.services.errors import StorageError
from raylay.storage.files import sync_directory
from raylay.storage.front import front_files, recovered
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal

ASIDE = ".damaged"


def repair_front(directory: Path, archive: Path | None) -> str:
    """Stores the undamaged commits of the front log and renames its files. No process may have the
    journal open. Returns a sentence about the result.

    Args:
        archive: the directory of archived segments; None: there is none.

    Raises:
        StorageLocked: another process has the journal open.
        StorageError: the commits could not be stored, or a file cannot be renamed.
    """
    journal = LmdbJournal(directory, archive_directory=archive, take_damaged_front=True)
    try:
        last_txid = journal.last_txid
    finally:
        journal.close()
    with LmdbJournalReader(directory, archive) as reader:
        lost_after_txid = recovered(directory, reader._stored_txid()).lost_after_txid
    if not lost_after_txid:
        return f"{directory}: nothing to repair, the log ends with transaction id {last_txid}"
    moved = []
    for path in front_files(directory):
        try:
            os.replace(path, path.with_name(path.name + ASIDE))
        except OSError as error:
            raise StorageError(f"{path} cannot be renamed: {error}", str(path)) from error
        moved.append(path.name)
    sync_directory(directory)
    return (
        f"{directory}: the log ends with transaction id {last_txid}, what followed it is lost "
        f"here; {', '.join(moved)} are kept as *{ASIDE}. Peers hold what this instance "
        "acknowledged: start it again, and it takes that back from them"
    )
