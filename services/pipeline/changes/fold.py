"""The changes of one SOW topic, from the runs of a journal in their order.

A change is what an instance made of a journal record (services/sow/apply.py). Deltas are journaled
as whole messages, and deletes with their keys, so the journal is all that is needed. Expirations
are in no journal: each instance removes expired records by its own clock. Here a record expires
with the first run that the instance received after its time, so that a stretch of a journal has the
same changes whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Command, Kind, Record, Run
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.sow import sow_book
from raylay.services.sow import apply
from raylay.services.sow.definition import SowTopicDefinition, recovery_from_us
from raylay.services.sow.records import SowRecord
from raylay.services.sow.state import RecordChange, SowRules
from raylay.services.sow.topic import SowTopic
from raylay.storage.sow import SowStore

EVERY: Final = 1 << 62
"""More records than there can be."""
SNAPSHOT: Final = "snapshot"
"""Reason of an insert that is no change: the record was there when the reading began."""
_ROW_KINDS: Final = {
    SNAPSHOT: "insert",
    "inserted": "insert",
    "updated": "update",
    "deleted": "delete",
    "expired": "delete",
}


class TopicChange(NamedTuple):
    """One change of a record, or one record of a snapshot.

    Attributes:
        txid: transaction id of the journal record that caused it; of an expired record, of the run
            that showed that its time was over; of a snapshot, of the record's last message.
        reason: `snapshot`, `inserted`, `updated`, `deleted` or `expired`.
        topic: topic of the record.
        before, after: the record before and after; None: there was, or is, none.
        publisher, sequence: identity of the message or delete that caused it; 0: it has expired.
        origin_us: publish time of that; 0: it has expired.
        received_us: time at which the instance received it; of an expired record, its end.
    """

    txid: int
    reason: str
    key: bytes
    topic: bytes
    before: SowRecord | None
    after: SowRecord | None
    publisher: int
    sequence: int
    origin_us: int
    received_us: int

    @property
    def row_kind(self) -> str:
        """Returns `insert`, `update` or `delete`."""
        return _ROW_KINDS[self.reason]


class TopicFold:
    """The records of one SOW topic at a place of a journal, which advances run by run.

    Invariant: `topic.state` is the fold of the journal up to `txid`.
    Owner: one task. Lifecycle: as long as its store.

    Args:
        definitions: the SOW topics of the instance, in the order of its configuration.
        types: the message types of the configuration.
        stored_as: the topic, by its name in the store.
        store: the store of the topic's records.

    Raises:
        ConfigurationError: a definition cannot be used.
        StorageError: the store cannot be used.
    """

    def __init__(
        self,
        definitions: Sequence[SowTopicDefinition],
        types: Sequence[TypeDefinition],
        stored_as: str,
        store: SowStore,
    ) -> None:
        # Journaled messages are complete: nothing is computed here. The others only say which
        # messages are theirs.
        plain = [
            replace(
                each,
                rules=SowRules(each.rules.expires, each.rules.lifetime_us),
                preprocessing=(),
                enrichment=(),
                transient=each.stored_as != stored_as,
            )
            for each in definitions
        ]
        self._book = sow_book(plain, types, store)
        self.topic: SowTopic = next(
            each for each in self._book.topics if each.stored_as == stored_as
        )
        self._from_us = recovery_from_us(self.topic.definition.recovery_point) or 0
        self._store = store

    @property
    def txid(self) -> int:
        """Returns the transaction id up to which the journal is folded."""
        return self.topic.state.txid

    @property
    def pending_bytes(self) -> int:
        """Returns the approximate bytes that are not stored yet."""
        return self.topic.state.pending_bytes

    def records(self) -> Iterator[TopicChange]:
        """Yields every record as a row of a snapshot, by key."""
        for record in self.topic.state.records():
            yield TopicChange(
                record.txid,
                SNAPSHOT,
                record.key,
                record.topic or self.topic.name,
                None,
                record,
                record.publisher,
                record.sequence,
                record.stamp_us,
                record.updated_us,
            )

    def changes(self, run: Run, last_txid: int) -> Iterator[TopicChange]:
        """Folds a run, and yields the changes in the order of the log. Records up to `txid`, and
        those behind `last_txid`, are left out."""
        state = self.topic.state
        folded_txid = state.txid
        if run.last_txid <= folded_txid or run.first_txid > last_txid:
            return
        if run.first_txid > folded_txid:
            # The rest of a run that was folded in parts comes at the same time.
            yield from self._expired(run)
        if self._keeps(run):
            for at, record in readable_records(run):
                txid = run.first_txid + at
                if txid > last_txid:
                    break
                if txid > folded_txid:
                    for change in self._applied(run, record, txid):
                        yield self._of_record(run, record, txid, change)
        state.seen(min(run.last_txid, last_txid))

    def _keeps(self, run: Run) -> bool:
        return (
            run.kind == Kind.RECORDS
            and run.receive_time_us >= self._from_us
            and self._book.find_kept(run.topic, run.message_type) is self.topic
        )

    def _expired(self, run: Run) -> Iterator[TopicChange]:
        if not self.topic.state.rules.expires:
            return
        for change in self.topic.state.expire(run.receive_time_us, EVERY):
            before = change.previous
            assert before is not None
            yield TopicChange(
                run.first_txid,
                change.reason,
                change.key,
                before.topic or self.topic.name,
                before,
                None,
                0,
                0,
                0,
                before.expires_us,
            )

    def _applied(self, run: Run, record: Record, txid: int) -> Iterator[RecordChange]:
        """Applies one record. One without a key changes nothing, as at the instance."""
        topic, state = self.topic, self.topic.state
        if record.command == Command.DELETE:
            keys = apply.deleted_keys(record.body) or []
            yield from apply.apply_delete(state, record, keys, txid, run.receive_time_us)
        elif record.command in (Command.PUBLISH, Command.DELTA_PUBLISH):
            try:
                key = topic.key_of(record)
            except (SowKeyError, MessageTypeError):
                return
            logical = topic.logical(run.topic)
            change = apply.apply_put(state, record, key, txid, run.receive_time_us, logical)
            if change is not None:
                yield change

    def _of_record(self, run: Run, record: Record, txid: int, change: RecordChange) -> TopicChange:
        held = change.current or change.previous
        assert held is not None
        return TopicChange(
            txid,
            change.reason,
            change.key,
            held.topic or self.topic.name,
            change.previous,
            change.current,
            record.publisher,
            record.sequence,
            record.origin_time_us,
            run.receive_time_us,
        )

    def save(self) -> None:
        """Writes what was folded into the store, with the transaction id.

        Raises:
            StorageError: the store cannot be written; it is as before.
        """
        entries, txid = self.topic.state.pending()
        self._store.commit({self.topic.stored_as: (entries, txid)})
        self.topic.state.saved()
