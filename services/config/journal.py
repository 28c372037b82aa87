"""The configuration of an instance's transaction log: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import AtLeast, Bytes, Milliseconds
from raylay.services.replication.timetable import JournalAction
from raylay.storage.journal import SEGMENT_BYTES_DEFAULT

SEGMENT_BYTES_MIN = 1024 * 1024
"""Least size that a file may give a segment."""


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """The limits above which journal segments are removed, oldest first; never before every
    destination has what is routed to it. By default nothing is removed."""

    age_ms: Milliseconds | None = None
    size_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The transaction log of an instance.

    Attributes:
        durability: `fsync` commits at once; `interval` waits up to `flush_interval_ms` to fill a
            commit. Both sync before anything is acknowledged.
        front_log: whether small commits become durable in the front log (docs/journal.md).
        disk_timeout_ms: time that a commit may wait for the disk before clients are sent to other
            instances; 0: for ever.
        archive_directory: the directory of archived segments, which stay part of the log; below the
            data directory if relative.
        actions: scheduled work on old segments, in this order. `retention`, in contrast, is checked
            all the time.
    """

    durability: Literal["fsync", "interval"] = "fsync"
    flush_interval_ms: Milliseconds = 10
    front_log: bool = True
    disk_timeout_ms: Milliseconds = 10_000
    archive_directory: str | None = None
    segment_bytes: Annotated[Bytes, AtLeast(SEGMENT_BYTES_MIN)] = SEGMENT_BYTES_DEFAULT
    retention: RetentionConfig = RetentionConfig()
    actions: tuple[JournalAction, ...] = ()

    def check(self, where: str) -> None:
        """Raises ConfigurationError where values do not fit together."""
        if self.durability not in ("fsync", "interval"):
            raise ConfigurationError(
                f"{where}: durability is {self.durability!r}: give fsync or interval"
            )
        for action in self.actions:
            action.check(f"{where}: journal action")
        if self.archive_directory is None and any(each.do == "archive" for each in self.actions):
            raise ConfigurationError(
                f"{where}: segments are to be archived and there is no archive directory: give "
                "`archive_directory` (JournalArchiveDirectory)"
            )
