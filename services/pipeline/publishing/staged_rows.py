"""The rows of a staged write, as a client's publish store reads them.

Files of a staged write are in Arrow's format, with the columns `STAGED`. Their rows have
consecutive sequences, in the order of the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pyarrow as pa

from raylay.services.errors import PublishStoreFull
from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Command, RecordBuilder, publisher_id
from raylay.services.pipeline.dead_letters import DeadLetter
from raylay.storage.files import fault_point

STAGED = pa.schema(
    [
        ("topic", pa.string()),
        ("message_type", pa.string()),
        ("body", pa.binary()),
        ("key", pa.binary()),
        ("correlation_id", pa.binary()),
        ("expiration_s", pa.int64()),
        ("command", pa.uint8()),
    ]
)
"""Columns of a staged row. `command` is a number (`records.Command`); null: a publish."""
COMMAND_NAMES = {
    Command.PUBLISH: "publish",
    Command.DELTA_PUBLISH: "delta_publish",
    Command.DELETE: "sow_delete",
}
"""Values of a written table's column `command`."""


@dataclass(slots=True)
class PendingWrite:
    """A write whose rows have their sequences, and may not be published yet.

    Attributes:
        origin_time_us: the origin time of all its messages, so that a second attempt sends the same
            bytes.
        run: the run of the query whose micro-batch it is.
        plan: tells this micro-batch from another one with its number; empty: unknown.
        checksum: the checksum of its rows (`rows_checksum`).
        asked: whether the servers are known not to have had its sequences before. Nothing of it is
            sent until then.
        dead_files: files of the rows that tasks refused, as dead letters.
        dead_rows: their number.
        refused: number of its rows that an instance refused.
    """

    key: str
    first_sequence: int
    rows: int
    origin_time_us: int
    files: list[str]
    run: str = ""
    plan: str = ""
    checksum: int = 0
    asked: bool = True
    dead_files: list[str] = field(default_factory=list)
    dead_rows: int = 0
    refused: int = 0


def read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a staged file."""
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """An instance's refusal of one row.

    Attributes:
        reason: the reason word.
        text: the reason in words.
    """

    sequence: int
    reason: str
    text: str


class StagedRows:
    """The rows of a pending write as a client's publish store (`client.PublishStore`): rows that
    the server lacks are sent, rows that it has are dropped. No row can be put into it.

    Invariant: the record of a sequence is the same bytes in every process. Owner: one client.

    Attributes:
        first, last: the sequences of the first and the last row.
        refused: the rows that an instance refused, in the order of the refusals.
    """

    words = b""
    pending: PendingWrite
    refused: list[RowRefusal]

    def __init__(self, publisher: str, pending: PendingWrite) -> None:
        self.publisher = publisher
        self._publisher_id = publisher_id(publisher)
        self.take(pending)
        self._builders: dict[tuple[str, str], RecordBuilder] = {}

    def take(self, pending: PendingWrite) -> None:
        """Replaces the pending write by another one, none of whose rows is known durable."""
        self.pending = pending
        self.refused = []
        self.first = pending.first_sequence
        self.last = pending.first_sequence + pending.rows - 1
        self._gone = SequenceSet()

    @property
    def durable(self) -> int:
        """Returns the number of rows that are known durable."""
        return self._gone.count

    @property
    def full(self) -> bool:
        """Returns true, because no row can be put into the store."""
        return True

    @property
    def messages(self) -> int:
        """Returns the number of rows that are not known durable."""
        return self.pending.rows - self._gone.count

    @property
    def bytes(self) -> int:
        """Returns the size of the files in bytes."""
        return sum(os.stat(path).st_size for path in self.pending.files)

    @property
    def lowest(self) -> int:
        """Returns the lowest sequence that is not known durable; 0: all are durable."""
        left = self._gone.missing(self.first, self.last)
        return left[0][0] if left else 0

    @property
    def highest(self) -> int:
        """Returns the sequence of the last row."""
        return self.last

    def put(self, sequence: int, record: Any) -> None:
        """Refuses the record.

        Raises:
            PublishStoreFull: always.
        """
        raise PublishStoreFull("a staged write takes no further rows")

    def flush(self) -> None:
        """Does nothing, because the rows are on disk."""

    def advance(self, highest: int) -> None:
        """Nothing to do: the sequences are given."""

    def refuse(self, sequence: int, reason: str, text: str) -> None:
        """Notes that an instance refused a row. The client drops it itself."""
        self.refused.append(RowRefusal(sequence, reason, text))

    def letters(self, source: str, refused: Sequence[RowRefusal]) -> Iterator[DeadLetter]:
        """Yields refused rows as dead letters, in the order of their sequences."""
        wanted = {each.sequence: each for each in refused}
        sequences = iter(sorted(wanted))
        at = next(sequences, None)
        following = self.first
        for path in self.pending.files:
            for batch in read_batches(path):
                first, following = following, following + batch.num_rows
                while at is not None and at < following:
                    (row,) = batch.slice(at - first, 1).to_pylist()
                    yield _letter(row, wanted[at], source, self.pending.key)
                    at = next(sequences, None)

    def acknowledge(self, upto: int) -> None:
        self.drop([(self.first, upto)])

    def drop(self, ranges: Iterable[Range]) -> None:
        for first, last in ranges:
            first, last = max(first, self.first), min(last, self.last)
            if first <= last:
                self._gone.add(first, last)

    def replay(self, first: int = 0) -> Iterator[tuple[int, Any]]:
        sequence = self.first
        for path in self.pending.files:
            for batch in read_batches(path):
                following = sequence + batch.num_rows
                if following > first and not self._gone.covers(sequence, following - 1):
                    yield from self._records(batch, sequence, first)
                sequence = following

    def _records(self, batch: pa.RecordBatch, sequence: int, first: int) -> Iterator[Any]:
        origin_time_us = self.pending.origin_time_us
        gone = self._gone
        columns = [batch[name].to_pylist() for name in STAGED.names]
        for at, row in enumerate(zip(*columns, strict=True), sequence):
            if at < first or at in gone:
                continue
            topic, message_type, body, key, correlation, expiration_s, command = row
            builder = self._builders.get((topic, message_type))
            if builder is None:
                builder = RecordBuilder(self._publisher_id, topic, message_type)
                self._builders[topic, message_type] = builder
            yield (
                at,
                builder.build(
                    at,
                    body,
                    origin_time_us,
                    command=command or Command.PUBLISH,
                    key=key or b"",
                    correlation=correlation or b"",
                    expiration_s=expiration_s or 0,
                ),
            )
            fault_point("staging.record")

    def close(self) -> None:
        """Nothing to give back."""


def _letter(row: dict[str, Any], refusal: RowRefusal, source: str, write: str) -> DeadLetter:
    command = Command(row["command"] or Command.PUBLISH)
    body, key = row["body"], row["key"]
    if command == Command.DELETE:
        deleted = msgpack.unpackb(body)
        body, key = deleted.get("data"), next(iter(deleted.get("keys", ())), None)
    return DeadLetter(
        source,
        f"{refusal.reason}: {refusal.text}",
        refusal.sequence,
        row["topic"],
        body,
        row["message_type"],
        COMMAND_NAMES[command],
        key,
        row["correlation_id"],
        row["expiration_s"],
        write,
    )
