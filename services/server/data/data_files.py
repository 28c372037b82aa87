"""The files of a data directory, and how its journal is opened."""

from __future__ import annotations

from pathlib import Path

from raylay.services.config.instance import InstanceConfig
from raylay.storage.lmdb_journal import LmdbJournal

STATE_FILE = "state.lmdb"
JOURNAL_DIRECTORY = "journal"
AGING_KEY = "aging behind"
"""Entry of the state store: the lag of the clock that data ages by behind the wall clock."""
NAME_KEYS = "name/"
"""Prefix of the entries of the state store that hold the digest of a publisher's name by its id."""


def name_key(publisher: int) -> str:
    """The key of the digest of a publisher's name."""
    return f"{NAME_KEYS}{publisher:016x}"


def publisher_of(key: str) -> int:
    """The id of the publisher in a key of `name_key`."""
    return int(key.removeprefix(NAME_KEYS), 16)


def open_journal(config: InstanceConfig, directory: Path) -> LmdbJournal:
    """Opens the journal of a data directory. Blocks.

    Raises:
        StorageLocked: another process owns the directory.
        StorageError: the journal cannot be used; the error names the file.
    """
    journal = config.journal
    age_ms = journal.retention.age_ms
    return LmdbJournal(
        directory / JOURNAL_DIRECTORY,
        segment_bytes=journal.segment_bytes,
        durability=journal.durability,
        flush_interval_ms=journal.flush_interval_ms,
        retention_bytes=journal.retention.size_bytes,
        retention_age_s=None if age_ms is None else age_ms / 1000,
        archive_directory=journal.archive_directory,
        storage_bytes_max=config.storage_bytes_max,
        front_log=journal.front_log,
    )
