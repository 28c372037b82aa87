"""A link's batch that takes long, decoded a slice at a time and taken in parts, so that a turn of
the loop stays short.

Nothing of a batch is taken before all of it is decoded, as of one that is decoded at once: what is
wrong in its last run refuses its first one, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylay.services.messages.records import Run, check_records, decode_run
from raylay.services.replication.effects import Rooted

SLICE_BYTES = 256 * 1024
"""Bytes of runs that are decoded in one turn; a run is decoded at once."""
PART_RUNS = 200
"""Runs that are decoded, or taken, in one turn: 3 ms, with their commit."""
PART_RANGES = 500
"""Ranges for which answers are asked that are looked up in one turn."""
Part = tuple[list[Run], Rooted]


def is_long(block: bytes, awaited: Rooted) -> bool:
    """Returns whether a batch takes more than one turn.

    Args:
        block: its runs, as bytes.
        awaited: the ranges for which it asks answers.
    """
    if len(block) > SLICE_BYTES:
        return True
    return bool(awaited) and _count(awaited) > PART_RANGES


def _count(awaited: Rooted) -> int:
    return sum(len(ranges) for asked in awaited.values() for ranges in asked.values())


class LinkBatchParts:
    """See the file's docstring. Lifecycle: `decode` until `is_decoded`; then `part` is taken and
    `go_on` called, until the part that is taken `is_last`.

    Args:
        block: the batch's runs, as bytes.
        awaited: the ranges for which it asks answers.
        checks: whether each record is compared with its run's header (`check_records`).

    Attributes:
        runs: those that are decoded.
        is_decoded: whether all are.
        part: what is to be taken now.
        is_last: whether nothing comes behind that part.
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
        """True where nothing comes behind the part that is to be taken."""
        return self._next is None

    def decode(self) -> None:
        """Decodes the next slice.

        Raises:
            CorruptRecord: nothing of the batch may be taken.
        """
        block, offset = self._block, self._offset
        until, found = min(offset + SLICE_BYTES, len(block)), 0
        while offset < until and found < PART_RUNS:
            run = decode_run(block, offset)
            if self._checks:
                check_records(run)
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
        """The part was taken: the next one is to be taken."""
        self.part = self._next or ([], {})
        self._next = next(self._parts, None)

    def _cut(self) -> Iterator[Part]:
        runs = self.runs
        for at in range(0, len(runs), PART_RUNS):
            yield runs[at : at + PART_RUNS], {}
        # Behind the runs: it may ask for answers of these.
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
