"""The rows of one stretch in a task, for jobs that read journals without Spark's tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raylay.services.errors import CorruptRecord, RaylayError, StorageError
from raylay.services.pipeline.journals import JournalStretch, OnCorrupt, StretchReader
from raylay.services.pipeline.tables.columns import Batches, Rows
from raylay.services.pipeline.tables.predicates import Predicate

JOINED_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The error of a task as a value. Spark turns an exception into a page of text."""

    corrupt: bool
    text: str

    @classmethod
    def of(cls, error: RaylayError) -> TaskFailure:
        return cls(isinstance(error, CorruptRecord), str(error))

    def error(self) -> StorageError:
        return CorruptRecord(self.text) if self.corrupt else StorageError(self.text)


class StretchRows:
    """The rows of one stretch. Lifecycle: iterated once.

    Attributes:
        batches: makes the rows; knows their names and, on request, the notes between them.
        damaged: a sentence for each place that was left out; complete once all rows were taken.
    """

    def __init__(
        self,
        stretch: JournalStretch,
        on_corrupt: OnCorrupt = "stop",
        predicate: Predicate | None = None,
    ) -> None:
        self.damaged: list[str] = []
        self._reader = StretchReader(stretch, on_corrupt)
        self.batches = Batches(
            stretch.place.instance,
            stretch.segment,
            stretch.first_txid,
            stretch.last_txid,
            (),
            predicate or Predicate(),
            self._note_damage,
            on_corrupt=on_corrupt,
        )

    def _note_damage(self, key: int, error: CorruptRecord) -> CorruptRecord:
        made = self._reader.damaged(key, error)
        self.damaged.append(str(made))
        return made

    def __iter__(self) -> Iterator[Rows]:
        """Yields the rows of a few blocks at a time.

        Raises:
            CorruptRecord: a record is damaged, and `on_corrupt` is `stop`.
            StorageError: the segment cannot be read.
        """
        try:
            for blocks in self._reader.blocks():
                for few in _divided(blocks):
                    rows = self.batches.rows(few)
                    if rows is not None:
                        yield rows
        finally:
            self._reader.close()
        self.damaged += self._reader.left_out


def _divided(blocks: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yields the blocks in lists of about JOINED_BYTES; joining more of them costs more than it
    saves."""
    few: list[tuple[int, bytes]] = []
    taken_bytes = 0
    for block in blocks:
        if few and taken_bytes + len(block[1]) > JOINED_BYTES:
            yield few
            few, taken_bytes = [], 0
        few.append(block)
        taken_bytes += len(block[1])
    yield few
