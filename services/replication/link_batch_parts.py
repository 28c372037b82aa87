"""A long batch of a link, decoded a slice at a time and taken in parts, so that a turn of the loop
stays short.

Nothing of the batch is taken before all of it is decoded, exactly as in a batch that is decoded at
once: a fault in the last run refuses the first one, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import RUN_BYTES_MAX, Run, check_records, decode_run
from raylay.services.replication.effects import Rooted

SLICE_BYTES = 256 * 1024
"""Bytes of runs that are decoded in one turn; a single run is decoded at once."""
PART_RUNS = 200
"""Number of runs that are decoded, or taken, in one turn: 3 ms, with their commit."""
PART_RANGES = 500
"""Number of awaited ranges that are looked up in one turn."""
Part = tuple[list[Run], Rooted]


def is_long(block: bytes, awaited: Rooted) -> bool:
    """Returns whether a batch needs more than one turn.

    Args:
        block: the runs of the batch, as bytes.
        awaited: the ranges for which the batch asks answers.
    """
    if len(block) > SLICE_BYTES:
        return True
    return bool(awaited) and _count(awaited) > PART_RANGES


def _count(awaited: Rooted) -> int:
    return sum(len(ranges) for asked in awaited.values() for ranges in asked.values())


class LinkBatchParts:
    """Decodes one batch in slices, and hands it out in parts.

    Lifecycle: `decode` until `is_decoded`; then, until the part `is_last`: take `part`, call
    `go_on`.

    Args:
        block: the runs of the batch, as bytes.
        awaited: the ranges for which the batch asks answers.
        checks: whether each record is compared with its run's header (`check_records`).

    Attributes:
        runs: the decoded runs.
        is_decoded: whether all runs are decoded.
        part: the part that is to be taken now.
        is_last: whether no part follows that one.
    """

    __slots__ = (
        "_awaited",
        "_block",
        "_checks",
        "_next",
        "_offset",
        "_parts",
        "is_decoded",
        "part",
        "runs",
    )

    def __init__(self, block: bytes, awaited: Rooted, checks: bool) -> None:
        self._block = block
        self._awaited = awaited
        self._checks = checks
        self._offset = 0
        self._parts = self._cut()
        self._next: Part | None = None
        self.runs: list[Run] = []
        self.is_decoded = False
        self.part: Part = [], {}

    @property
    def is_last(self) -> bool:
        """Returns whether no part follows the one that is to be taken."""
        return self._next is None

    def decode(self) -> None:
        """Decodes the next slice.

        Raises:
            CorruptRecord: nothing of the batch may be taken.
        """
        block, offset = self._block, self._offset
        until, found = min(offset + SLICE_BYTES, len(block)), 0
        while offset < until and found < PART_RUNS:
            run = decode_replicated(block, offset, checks=self._checks)
            assert run.raw is not None
            offset += len(run.raw)
            self.runs.append(run)
            found += 1
        self._offset = offset
        self.is_decoded = offset >= len(block)
        if self.is_decoded:
            self._next = next(self._parts, None)
            self.go_on()

    def go_on(self) -> None:
        """Moves to the next part, after the current one was taken."""
        self.part = self._next or ([], {})
        self._next = next(self._parts, None)

    def _cut(self) -> Iterator[Part]:
        runs = self.runs
        for at in range(0, len(runs), PART_RUNS):
            yield runs[at : at + PART_RUNS], {}
        # After the runs, because the batch may ask for answers of its own messages.
        part: Rooted = {}
        left = PART_RANGES
        for root, asked in self._awaited.items():
            for publisher, ranges in asked.items():
                at = 0
                while at < len(ranges):
                    taken = ranges[at : at + left]
                    part.setdefault(root, {})[publisher] = taken
                    at += len(taken)
                    left -= len(taken)
                    if not left:
                        yield [], part
                        part, left = {}, PART_RANGES
        if part:
            yield [], part


def decode_replicated(block: bytes | memoryview, offset: int, *, checks: bool) -> Run:
    """Returns the run at `offset` of a batch that another instance sent.

    Args:
        checks: whether each record is compared with the run's header (`check_records`).

    Raises:
        CorruptRecord: the bytes are no run that may be taken.
    """
    run = decode_run(block, offset)
    if len(run.payload) > RUN_BYTES_MAX:
        raise CorruptRecord(
            f"run at byte {offset} has {len(run.payload):,} bytes of records: at most "
            f"{RUN_BYTES_MAX:,} are one run",
            offset=offset,
        )
    if checks:
        check_records(run)
    return run


def decode_replicated_runs(block: bytes | memoryview, *, checks: bool) -> list[Run]:
    """All runs of a block that another instance sent; see `decode_replicated`."""
    runs: list[Run] = []
    offset = 0
    end = len(block)
    while offset < end:
        run = decode_replicated(block, offset, checks=checks)
        runs.append(run)
        assert run.raw is not None
        offset += len(run.raw)
    return runs
