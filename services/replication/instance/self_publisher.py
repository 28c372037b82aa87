"""Records that the instance itself makes: ownership transfers, grants, expirations.

They are journaled and replicated like a client's, in batches, under a publisher id made from the
author's name, the incarnation and the life of the process. The life is part of it because an old
copy of the data directory that was put back would otherwise reuse the numbers of its lost tail.

The author is not called back. A record takes effect when the committed run is read back
(`committed`), like every other record, whoever made it: so a restart, which reads the same journal,
reaches the same state. Where the append fails, all drafts that were not committed are undone
(`failed`), since each draft relies on those before it. The author then drafts again by what is true
at that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.errors import LocalProtocolError
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    Command,
    Kind,
    RecordBuilder,
    Run,
    author_publisher_id,
    run_of,
    scan,
)
from raylay.services.replication.values import Identity

RUN_BYTES_MAX = 256 * 1024
"""Bytes of drafts in one run; further drafts make another run. A single record may be larger."""
BUILDERS_MAX = 1_024
"""Number of topics whose record builders are kept."""


class PendingRecord(NamedTuple):
    """A record that was made and is not in the journal yet.

    Attributes:
        sequence: its sequence, which no other draft gets.
        record: its bytes.
    """

    sequence: int
    topic: str
    message_type: str
    record: bytes


class SelfPublisher:
    """Publishes the records that one part of the instance writes into the journal.

    Invariants: each draft is committed or undone exactly once, in the order of the sequences; no
    sequence is given twice, not even that of an undone draft, since a failed write may have reached
    the disk.
    Owner: the part of the instance that drafts, on its loop. Lifecycle: one life of the instance.

    Args:
        name: name of the author; unique in the instance.
        identity: identity of the instance in this life.

    Attributes:
        publisher: publisher id of the records.
    """

    __slots__ = ("_builders", "_drafts", "_last", "_under_way", "publisher")

    def __init__(self, name: str, identity: Identity) -> None:
        self.publisher = author_publisher_id(name, identity.incarnation, identity.life)
        self._last = 0
        self._builders: dict[tuple[str, str], RecordBuilder] = {}
        self._drafts: list[PendingRecord] = []
        self._under_way: deque[tuple[Run, list[PendingRecord]]] = deque()
        """Runs that were handed out and are not committed yet, with the records that they hold."""

    def __len__(self) -> int:
        """Returns the number of drafts that are neither committed nor undone."""
        return len(self._drafts) + sum(len(drafts) for _, drafts in self._under_way)

    def draft(
        self,
        topic: str,
        message_type: str,
        body: bytes,
        now_us: int,
        *,
        command: int = Command.PUBLISH,
        key: bytes = b"",
        correlation: bytes = b"",
        expiration_s: int = 0,
        bytes_max: int = RECORD_BYTES_MAX,
    ) -> int:
        """Drafts a record, which has no effect yet. Returns its sequence.

        Args:
            now_us: origin time of the record, by the wall clock.
            bytes_max: limit on the bytes of the record.

        Raises:
            LocalProtocolError: it can be no record; nothing was drafted.
        """
        of = topic, message_type
        builder = self._builders.get(of)
        if builder is None:
            if len(self._builders) >= BUILDERS_MAX:
                self._builders.clear()
            builder = self._builders[of] = RecordBuilder(self.publisher, *of)
        sequence = self._last + 1
        record = builder.build(
            sequence,
            body,
            now_us,
            command=command,
            expiration_s=expiration_s,
            key=key,
            correlation=correlation,
        )
        if len(record) > bytes_max:
            raise LocalProtocolError(
                f"a record of {len(record)} bytes was drafted on topic {topic!r}: the limit is "
                f"{bytes_max}"
            )
        self._last = sequence
        self._drafts.append(PendingRecord(sequence, *of, record))
        return sequence

    def runs(self) -> list[Run]:
        """Returns the drafts since the last call, to be journaled at once, in this order."""
        made: list[tuple[Run, list[PendingRecord]]] = []
        together: list[PendingRecord] = []
        size = 0
        for draft in self._drafts:
            size += len(draft.record)
            if together and (together[-1][1:3] != draft[1:3] or size > RUN_BYTES_MAX):
                made += _runs(together)
                together, size = [], len(draft.record)
            together.append(draft)
        if together:
            made += _runs(together)
        self._drafts = []
        self._under_way += made
        return [run for run, _ in made]

    def committed(self, runs: Iterable[Run]) -> list[PendingRecord]:
        """Takes committed runs. Returns this author's records in them, in order: they take effect
        now."""
        found: list[PendingRecord] = []
        for run in runs:
            if run.publisher == self.publisher and run.kind == Kind.RECORDS:
                under_way, drafts = self._under_way[0]
                # A commit that is folded in slices brings a run in parts.
                assert run.last_txid <= under_way.last_txid, "runs are committed in their order"
                if run.last_txid == under_way.last_txid:
                    self._under_way.popleft()
                    found += drafts
        return found

    def failed(self, committed_txid: int) -> list[PendingRecord]:
        """Takes an append failure: the journal could not write anything behind this transaction id.
        Returns this author's undone records, including those drafted later, in order. Records on
        disk come through `committed`, before this call or after it."""
        undone: list[PendingRecord] = []
        while self._under_way and self._under_way[-1][0].first_txid > committed_txid:
            undone[:0] = self._under_way.pop()[1]
        undone += self._drafts
        self._drafts = []
        return undone


def _runs(drafts: list[PendingRecord]) -> list[tuple[Run, list[PendingRecord]]]:
    """Returns the runs of the drafts of one topic and message type: one run for each stretch of
    plain messages, or of records with the same command."""
    payload = b"".join(draft.record for draft in drafts)
    made: list[tuple[Run, list[PendingRecord]]] = []
    at = 0
    for chunk in scan(payload):
        run = run_of(chunk, payload)
        made.append((run, drafts[at : at + run.count]))
        at += run.count
    return made
