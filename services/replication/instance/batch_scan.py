"""A long batch of a client, checked a slice at a time, so that a turn of the loop stays short.

Nothing of the batch is taken before all of it is checked, exactly as in a batch that is checked at
once: a fault in the last record refuses the first one, too.
"""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.messages.ranges import Range
from raylay.services.messages.records import (
    COMMAND_AT,
    PUBLISHED,
    RECORD_BYTES_MAX,
    Chunk,
    Run,
    run_of,
    scan,
)
from raylay.services.messages.topic_book import TopicBook

SLICE_BYTES = 128 * 1024
"""Bytes of a slice: about 0.5 ms of the loop; 4 ms where each record is a run of its own."""
Gaps = tuple[list[Range], list[Range], list[Range]]
"""The sequences of a batch, in three groups: on journaled topics, on topics declared as not
journaled, and on undeclared topics."""


class BatchScan:
    """Checks a client's batch slice by slice. Lifecycle: `take` until it returns that all is
    checked; then `end`.

    Args:
        payload: the records of the batch.
        topics: the rules that say which topics are journaled.
        check: checks the content of each slice; raises what refuses the batch.
        check_end: checks the number of the batch's records and their sequences; raises as well.
    """

    __slots__ = (
        "_check",
        "_check_end",
        "_count",
        "_gaps",
        "_offset",
        "_open",
        "_payload",
        "_runs",
        "_topics",
    )

    def __init__(
        self,
        payload: bytes,
        topics: TopicBook,
        check: Callable[[list[Chunk]], None],
        check_end: Callable[[int, Gaps], None],
    ) -> None:
        self._payload = payload
        self._topics = topics
        self._check = check
        self._check_end = check_end
        self._offset = 0
        self._count = 0
        self._open: Chunk | None = None
        """The last chunk, which the next slice may extend."""
        self._runs: list[Run] = []
        self._gaps: Gaps = [], [], []

    def take(self) -> bool:
        """Checks the next slice, which has at least one record. Returns whether it was the last
        one.

        Raises:
            CorruptRecord, RemoteProtocolError: nothing of the batch may be taken.
        """
        payload, begin = self._payload, self._offset
        chunks = scan(
            payload,
            record_bytes_max=RECORD_BYTES_MAX,
            commands=PUBLISHED,
            begin=begin,
            until=min(begin + SLICE_BYTES, len(payload)),
        )
        self._check(chunks)
        for chunk in chunks:
            self._count += chunk.records
            self._note_ranges(chunk)
            before = self._open
            if before is None:
                self._open = chunk
            elif self._goes_on(before, chunk):
                self._open = before._replace(
                    last_sequence=chunk.last_sequence,
                    records=before.records + chunk.records,
                    end=chunk.end,
                    traced=before.traced or chunk.traced,
                )
            else:
                self._add(before)
                self._open = chunk
        self._offset = chunks[-1].end
        return self._offset >= len(payload)

    def end(self) -> list[Run]:
        """Returns the runs of the batch, once all of it is checked.

        Raises:
            RemoteProtocolError: nothing of the batch may be taken.
        """
        if self._open is not None:
            self._add(self._open)
            self._open = None
        self._check_end(self._count, self._gaps)
        return self._runs

    def _goes_on(self, before: Chunk, chunk: Chunk) -> bool:
        payload = self._payload
        return (
            chunk.first_sequence > before.last_sequence
            and chunk[:3] == before[:3]
            and chunk.commands == before.commands
            and (
                not chunk.commands
                or payload[chunk.start + COMMAND_AT] == payload[before.start + COMMAND_AT]
            )
        )

    def _note_ranges(self, chunk: Chunk) -> None:
        entry = self._topics[chunk.topic, chunk.message_type]
        ranges = self._gaps[0 if entry.journaled else 1 if entry.declared else 2]
        span = chunk.last_sequence - chunk.first_sequence + 1
        if span != chunk.records:
            ranges.extend(run_of(chunk, self._payload).ranges())
        elif ranges and ranges[-1][1] + 1 == chunk.first_sequence:
            ranges[-1] = ranges[-1][0], chunk.last_sequence
        else:
            ranges.append((chunk.first_sequence, chunk.last_sequence))

    def _add(self, chunk: Chunk) -> None:
        run = run_of(chunk, self._payload)
        if self._topics.has_targets:
            self._runs += self._topics.routed(run)
        else:
            self._runs.append(run)
