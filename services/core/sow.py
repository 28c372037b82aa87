"""The state of the world of an instance: the fold of its journal, by topic and key.

It is folded after the commits, so it never has anything that the journal lacks; parts that a crash
loses are folded again (`recover`). The code that stores it takes `pending` and reports when that is
`saved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from raylay.services.core.feature import CommitBatch
from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.messages.plain_records import plain_records
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Command,
    Kind,
    Record,
    Run,
    iterate_records,
)
from raylay.services.sow import apply
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import recovery_from_us
from raylay.services.sow.records import body_of
from raylay.services.sow.topic import SowChange, SowTopic

READ_BYTES = 4 * 1024 * 1024
"""Bytes of the journal that a recovery reads at once."""
EXPIRED_AT_ONCE = 200
LOOKED_AT_ONCE = 500
"""Number of versions, or tombstones, that one tick looks at: the next tick continues."""
TOMBSTONE_US = 60 * 1_000_000
"""Shortest time for which a deletion is remembered, even if every destination has it."""
LAST_WRITER_TOMBSTONE_US = 7 * 24 * 3600 * 1_000_000
"""Shortest time for which a deletion is remembered where the last writer counts: for that long, an
earlier publish of a client that comes back is deleted everywhere, or nowhere."""

SowPending = Mapping[str, tuple[Mapping[bytes, "bytes | None"], int]]
"""Entries of topics by their names in the store, each with the transaction to which they
correspond."""


class SowJournal(Protocol):
    """The part of the journal that a recovery reads."""

    def read(self, after_txid: int, bytes_max: int) -> list[Run]:
        """Returns committed runs behind `after_txid`, in order, about `bytes_max` bytes of them."""


class SowProblem(NamedTuple):
    """An event about a topic when it begins.

    Attributes:
        event: name in the event log.
    """

    event: str
    topic: str
    text: str


class SowFeature:
    """The SOW topics of an instance.

    Invariant: a topic's state is the fold of the journal up to its `txid`; the store's is that of
        some point before.
    Owner: the instance's loop; before the instance serves, the code that composes it. Lifecycle:
    one life of the instance.

    Args:
        book: the topics.

    Attributes:
        delivered_txid: transaction id up to which every destination has everything.
        unreadable: number of records without a key here, because they are older than the topic's
            configuration, or from an instance with another one.
        first_unreadable: the first of them, and the reason; empty: there is none.
        is_urgent: see `begin`.
        deleted, expired: number of records, by the topic's name in the store.
        put: number of messages that made or changed a record, by the topic's name in the store.
    """

    name = "sow"
    may_be_ahead = False

    def __init__(self, book: SowBook) -> None:
        self.book = book
        self.delivered_txid = 0
        self.unreadable = 0
        self.deleted: dict[str, int] = dict.fromkeys((topic.stored_as for topic in book.topics), 0)
        self.expired = dict(self.deleted)
        self.put = dict(self.deleted)
        self._began_with: dict[str, int] = {}
        self._kept = [topic for topic in book.topics if not topic.definition.transient]
        self._saved_txid = {id(each): each.state.txid for each in self._kept}
        self._taken: list[tuple[SowTopic, int]] = []
        self.is_urgent = False
        self._from_us: dict[int, int] = {}
        self.first_unreadable = ""
        self._is_wanted: Callable[[SowTopic], bool] = lambda _: True

    # -- beginning -----------------------------------------------------------------------------
    def begin(self, first_txid: int, last_txid: int) -> list[SowProblem]:
        """Finds where each topic continues; called before `recover`. If `is_urgent` is set
        afterwards, the pending entries must be saved before anything is folded: a later life could
        not determine them again.

        Args:
            first_txid: oldest transaction in the journal.
            last_txid: last transaction in the journal.
        """
        found = []
        for topic in self.book.topics:
            state = topic.state
            from_us = recovery_from_us(topic.definition.recovery_point)
            if from_us:
                self._from_us[id(topic)] = from_us
            if state.txid > last_txid:
                found.append(
                    SowProblem(
                        "sow_ahead",
                        topic.stored_as,
                        f"the store has transaction {state.txid}, the journal ends with {last_txid}"
                        ": the store belongs to another journal; its records are kept",
                    )
                )
                state.txid = last_txid
                self.is_urgent = True
            elif from_us is None and state.begin_behind(last_txid):
                self.is_urgent = True
            elif state.txid and first_txid > state.txid + 1:
                found.append(
                    SowProblem(
                        "sow_gap",
                        topic.stored_as,
                        f"the store has transaction {state.txid}, the journal begins with "
                        f"{first_txid}: what was published between them is missing",
                    )
                )
        return found

    @property
    def recovered_txid(self) -> int | None:
        """Returns the transaction behind which `recover` needs the runs; None: there is no
        topic."""
        return min((topic.state.txid for topic in self.book.topics), default=None)

    def recover(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._fold_run(run, None)
            for topic in self.book.topics:
                topic.state.seen(run.last_txid)

    def recover_from(
        self, journal: SowJournal, last_txid: int, folded: Callable[[], None] = lambda: None
    ) -> None:
        """Folds the part of a journal that the topics lack.

        Args:
            journal: the journal that `begin` was given.
            last_txid: last transaction of the journal.
            folded: called after each part, to write it down.

        Raises:
            SowDamaged: an entry of the store is no record.
            StorageError: the journal cannot be read.
        """
        after_txid = self.recovered_txid
        while after_txid is not None and after_txid < last_txid:
            runs = journal.read(after_txid, READ_BYTES)
            if not runs:
                break
            self.recover(runs)
            after_txid = runs[-1].last_txid
            folded()
        for topic in self.book.topics:
            topic.state.seen(last_txid)
            topic.index()

    # -- folding -------------------------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Folds a commit, and adds the changes to the batch."""
        for run in batch.runs:
            self._fold_run(run, batch.changes)
        last_txid = batch.last_txid
        for topic in self.book.topics:
            topic.state.seen(last_txid)
            if topic.staging is not None:
                topic.staging.committed(last_txid)

    def failed(self, committed_txid: int) -> None:
        """Does nothing: staged runs are not folded."""

    def keep(self, runs: Iterable[Run]) -> list[SowChange]:
        """Keeps events of this instance, which are in no journal, and returns the changes. Events
        that the topic's store does not have yet are lost when the process dies.

        Args:
            runs: messages on event topics.
        """
        found: list[SowChange] = []
        for run in runs:
            topic = self.book.find(run.topic, run.message_type)
            if topic is None:
                continue
            for record in iterate_records(run.payload):
                key = self._key_of(topic, record)
                if key is None:
                    continue
                change = apply.apply_put(topic.state, record, key, 0, run.receive_time_us, b"")
                if change is not None:
                    self.put[topic.stored_as] += 1
                    self._changed(SowChange(topic, run.topic, change, record), found)
        return found

    def _fold_run(self, run: Run, changes: list[SowChange] | None) -> None:
        if run.kind != Kind.RECORDS:
            return
        topic = self.book.find_kept(run.topic, run.message_type)
        if topic is None or run.last_txid <= topic.state.txid:
            return
        if run.receive_time_us < self._from_us.get(id(topic), 0):
            return
        if (changes is None or not self._is_wanted(topic)) and self._fold_plain(topic, run):
            return
        txid = run.first_txid - 1
        folded_txid = topic.state.txid
        logical = topic.logical(run.topic)
        keys = None if topic.staging is None else topic.staging.keys_of(run)
        put = 0
        for at, record in readable_records(run, partial(self._leave_run, topic, run)):
            txid += 1
            if txid <= folded_txid:
                continue
            if record.command == Command.PUBLISH or record.command == Command.DELTA_PUBLISH:
                key = keys[at] if keys is not None else None
                if key is None:
                    key = self._key_of(topic, record)
                if key is None:
                    continue
                change = apply.apply_put(
                    topic.state, record, key, txid, run.receive_time_us, logical
                )
                if change is not None:
                    put += 1
                    self._changed(SowChange(topic, run.topic, change, record), changes)
            elif record.command == Command.DELETE:
                self._delete(topic, record, txid, run, changes)
        self.put[topic.stored_as] += put

    def _fold_plain(self, topic: SowTopic, run: Run) -> bool:
        """Folds a run of plain messages at once, where nobody needs the changes of its records.
        Returns whether it did."""
        state = topic.state
        if not topic.keeps_plainly or not state.takes_runs or run.first_txid <= state.txid:
            return False
        plain = plain_records(run)
        if plain is None:
            return False
        keys = None if topic.staging is None else topic.staging.keys_of(run)
        if keys is None:
            try:
                keys = topic.keys_of(plain.bodies)
            except Exception:
                # One of them has no key, and is left out.
                return False
        known = [key for key in keys if key is not None]
        if len(known) != len(plain.bodies):
            return False
        changes = state.put_run(known, plain, run.first_txid, run.receive_time_us)
        self.put[topic.stored_as] += len(changes)
        if topic.indexes is not None and changes:
            topic.indexes.changed_run(changes, body_of)
        return True

    def wanted_by(self, is_wanted: Callable[[SowTopic], bool]) -> None:
        """Sets a function that returns whether anybody needs the changes of a topic's records.
        Where nobody does, a commit's batch lacks some of them."""
        self._is_wanted = is_wanted

    def _key_of(self, topic: SowTopic, record: Record) -> bytes | None:
        try:
            return topic.key_of(record)
        except (SowKeyError, MessageTypeError) as error:
            self._leave(topic, record, str(error))
            return None

    def _leave(self, topic: SowTopic, record: Record, why: str) -> None:
        """Leaves out a record that is journaled and belongs to no topic; all instances do the
        same."""
        self.unreadable += 1
        if not self.first_unreadable:
            self.first_unreadable = (
                f"message {record.bookmark} on {record.topic} is in the log and not in SOW topic "
                f"{topic.definition.name}: {why}"
            )

    def _leave_run(self, topic: SowTopic, run: Run, why: str) -> None:
        self.unreadable += 1
        if not self.first_unreadable:
            self.first_unreadable = (
                f"transactions {run.first_txid} to {run.last_txid} are not all in SOW topic "
                f"{topic.definition.name}: {why}; `raylay journal verify` names the damage"
            )

    def _delete(
        self,
        topic: SowTopic,
        record: Record,
        txid: int,
        run: Run,
        changes: list[SowChange] | None,
    ) -> None:
        keys = apply.deleted_keys(record.body)
        if keys is None:
            self._leave(topic, record, "it is a delete that does not say which keys")
            return
        for change in apply.apply_delete(topic.state, record, keys, txid, run.receive_time_us):
            assert change.previous is not None
            self.deleted[topic.stored_as] += 1
            name = change.previous.topic or topic.name
            self._changed(SowChange(topic, name, change, record), changes)

    def _changed(self, change: SowChange, changes: list[SowChange] | None) -> None:
        if change.topic.indexes is not None:
            change.topic.indexes.changed(change.change)
        if changes is not None:
            changes.append(change)

    # -- what is due ---------------------------------------------------------------------------
    def tick(self, now_us: int, *, only_due: bool = False) -> list[SowChange]:
        """Removes expired records, and histories and deletions that are not needed any more.

        Args:
            now_us: time by the clock that measures the age of stored data (`AgingClock`).
            only_due: whether topics with little to do are left out.

        Returns:
            Of what has expired, `EXPIRED_AT_ONCE` of a topic at most: `is_due` says whether there
            is more to do.
        """
        found: list[SowChange] = []
        for topic in self.book.topics:
            state = topic.state
            if only_due and not state.is_due(now_us):
                continue
            for change in state.expire(now_us, EXPIRED_AT_ONCE):
                assert change.previous is not None
                self.expired[topic.stored_as] += 1
                name = change.previous.topic or topic.name
                self._changed(SowChange(topic, name, change, None), found)
            state.prune(now_us, LOOKED_AT_ONCE)
            kept_us = LAST_WRITER_TOMBSTONE_US if state.last_writer else TOMBSTONE_US
            state.forget(self.delivered_txid, now_us - kept_us, LOOKED_AT_ONCE)
        return found

    def is_due(self, now_us: int) -> bool:
        """Returns whether `tick` has more to do at once, in another turn."""
        return any(topic.state.is_due(now_us) for topic in self.book.topics)

    # -- what goes to disk ---------------------------------------------------------------------
    @property
    def floor_txid(self) -> int | None:
        """Returns the transaction id up to which no topic needs the journal; None: the journal is
        not needed at all."""
        return min(self._saved_txid.values(), default=None)

    def removable(self, before_txid: int) -> int:
        """Returns the transaction below which the journal may be removed.

        Args:
            before_txid: transaction below which every destination has everything.
        """
        self.delivered_txid = before_txid - 1
        floor_txid = self.floor_txid
        return before_txid if floor_txid is None else min(before_txid, floor_txid + 1)

    @property
    def pending_bytes(self) -> int:
        """Returns the approximate bytes that are not stored yet."""
        return sum(each.state.pending_bytes for each in self._kept)

    @property
    def unsaved_bytes(self) -> int:
        """Returns the approximate bytes that are not stored yet, including those being written."""
        return sum(each.state.unsaved_bytes for each in self._kept)

    def pending(self) -> SowPending:
        """Returns the entries that the store is to commit. Nothing more is returned before `saved`
        or `not_saved`."""
        assert not self._taken, "a commit is under way"
        found = {}
        for topic in self._kept:
            changes, txid = topic.state.pending()
            found[topic.stored_as] = changes, txid
            self._taken.append((topic, txid))
        return found

    def saved(self) -> None:
        for topic, txid in self._taken:
            topic.state.saved()
            self._saved_txid[id(topic)] = txid
        self._taken = []

    def not_saved(self) -> None:
        """Makes entries that could not be written pending again."""
        for topic, _ in self._taken:
            topic.state.not_saved()
        self._taken = []

    def begin_counting(self) -> None:
        """Counts changes from now on: what recovery folded was counted by an earlier life."""
        for topic in self.book.topics:
            name = topic.stored_as
            self._began_with[name] = topic.state.count
            self.put[name] = self.deleted[name] = self.expired[name] = 0

    def _changes(self, topic: SowTopic) -> dict[str, int]:
        name = topic.stored_as
        grown = topic.state.count - self._began_with.get(name, 0)
        # Every record came by an insert, and leaves when it is deleted or expires.
        inserted = max(0, grown + self.deleted[name] + self.expired[name])
        return {"inserted": inserted, "updated": max(0, self.put[name] - inserted)}

    def status(self) -> dict[str, dict[str, int]]:
        """Returns the status of each topic, for the instance's status."""
        return {
            topic.stored_as: {
                "records": topic.state.count,
                "txid": topic.state.txid,
                "saved_txid": self._saved_txid.get(id(topic), 0),
                "pending_bytes": topic.state.pending_bytes,
                "tombstones": topic.state.tombstones,
                "deleted": self.deleted[topic.stored_as],
                "expired": self.expired[topic.stored_as],
                **self._changes(topic),
            }
            for topic in self.book.topics
        }
