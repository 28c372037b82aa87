"""The segment that is being written, and how runs become the blocks that are put into it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from raylay.services.errors import StorageError, StorageFull
from raylay.services.messages.records import Run
from raylay.storage.environment import is_full
from raylay.storage.journal import BLOCK_BYTES_MAX
from raylay.storage.segment_index import SegmentIndex
from raylay.storage.segments import Environment

MEASURE_COMMITS = 64
MEASURE_BYTES = 1024 * 1024
"""Commits, or bytes, after which the segment's file is measured again."""


_KEY = struct.Struct(">Q")


class ActiveSegment:
    """The segment that is being written, or was until it is sealed."""

    __slots__ = (
        "file_bytes",
        "first_txid",
        "index",
        "opened",
        "path",
        "shared",
        "unmeasured_bytes",
        "unmeasured_commits",
    )

    def __init__(self, shared: Environment, path: Path, first_txid: int) -> None:
        self.shared = shared
        self.path = path
        self.first_txid = first_txid
        self.index = SegmentIndex()
        self.opened = False
        """Whether its first commit, with the opening entries, is on disk."""
        self.file_bytes = 0
        """The size of the file, in bytes, when it was last measured. Measuring costs as much as a
        small transaction."""
        self.unmeasured_bytes = self.unmeasured_commits = 0
        """The bytes, and the number of commits, written since then."""

    def take(self, runs: Sequence[Run], lengths: Sequence[int]) -> None:
        """Adds committed runs, which are in the segment or in front of it, with their lengths in
        bytes."""
        self.index.add_all(runs, lengths)

    def is_full(self, segment_bytes: int, file_bytes: int) -> bool:
        """Returns whether the segment holds `segment_bytes`, or its file has `file_bytes`."""
        return self.opened and (
            self.index.bytes_used >= segment_bytes or self.file_bytes >= file_bytes
        )

    def grew(self, size_bytes: int, *, exactly: bool) -> None:
        """Notes that so many bytes were written. With `exactly`, measures the file at once."""
        self.unmeasured_commits += 1
        self.unmeasured_bytes += size_bytes
        if (
            exactly
            or self.unmeasured_commits >= MEASURE_COMMITS
            or self.unmeasured_bytes >= MEASURE_BYTES
        ):
            self.measure()

    def measure(self) -> None:
        self.file_bytes = self.shared.file_bytes()
        self.unmeasured_bytes = self.unmeasured_commits = 0


def pack_blocks(runs: list[Run]) -> tuple[list[tuple[bytes, bytes]], list[int], int]:
    """Returns (key, block) for each block, the length of each run in bytes, and the sum of
    these."""
    if len(runs) == 1:
        run = runs[0]
        head = run.head = run.encode_head()
        block = head + run.payload
        length = len(block)
        return [(_KEY.pack(run.first_txid), block)], [length], length
    blocks: list[tuple[bytes, bytes]] = []
    lengths: list[int] = []
    parts: list[bytes] = []
    block_bytes = total_bytes = 0
    first_txid = 0
    for run in runs:
        # The header is kept, so that a link that sends the run does not encode it again.
        head = run.head = run.encode_head()
        length = len(head) + len(run.payload)
        if parts and block_bytes + length > BLOCK_BYTES_MAX:
            blocks.append((_KEY.pack(first_txid), b"".join(parts)))
            parts.clear()
            block_bytes = 0
        if not parts:
            first_txid = run.first_txid
        parts += (head, run.payload)
        block_bytes += length
        total_bytes += length
        lengths.append(length)
    blocks.append((_KEY.pack(first_txid), b"".join(parts)))
    return blocks, lengths, total_bytes


def explained(error: Exception, path: Path) -> Exception:
    """Returns the error that kept a segment from being written as a `StorageError`."""
    if isinstance(error, StorageError):
        return error
    if is_full(error, path):
        return StorageFull(f"{path}: no space left: {error}", str(path))
    return StorageError(f"{path} cannot be written: {error}", str(path))
