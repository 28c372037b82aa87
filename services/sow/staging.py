"""The preparation of a SOW topic's messages before they are journaled (behaviour.md 4.1, 4.2, 4.7,
4.9): a message gets its key, a delta becomes the whole message, and a delete becomes the keys of
the records that it removes.

The preparation uses the values as *staged*: the folded records, overlaid by those on their way to
the disk. To keep plain publishes cheap, staged values are computed only when one is needed:
everything staged until then is then folded over the topic, once and in order. Messages of other
instances cost nothing before that.

Where a filter limits the records that a client may write, each of its messages is judged here, by
the record as it is and as it would become. The message alone shows neither: a delta names a key and
a field, and keeps the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from raylay.services.errors import (
    CorruptRecord,
    ExpressionError,
    MessageTooLarge,
    MessageTypeError,
    SowKeyError,
)
from raylay.services.expressions.expression import Expression, ExpressionUse, expression, refusal
from raylay.services.expressions.functions.registry import Functions
from raylay.services.messages.plain_records import plain_records
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    Command,
    Record,
    Run,
    iterate_records,
)
from raylay.services.messages.stateful import PreparedRun, RefusedRecords, WritePermission, left_of
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.trees import Tree, merged
from raylay.services.sow import apply
from raylay.services.sow.delete_scan import DeleteScan, said_by
from raylay.services.sow.enrichment import tell, written
from raylay.services.sow.keys import SOW_KEY_BYTES_MAX
from raylay.services.sow.records import NEVER, SowRecord
from raylay.services.sow.state import TOMBSTONE, VALUE, SowRules, SowState
from raylay.services.sow.topic import SowTopic

AHEAD_US_MAX = 60 * 1_000_000
"""Microseconds by which the time of a message may be ahead of the clock here, where the last writer
counts: a message from far in the future would stay for ever."""
BATCH_BYTES_MAX, BATCH_EACH_US = 64 * 1024 * 1024, 250_000
"""Limit on the bytes that deltas become in one interval, and the length of the interval: more than
an instance could merge in that time, so only a batch of small deltas to large records meets the
limit, which would block the loop."""
LOOKED_MAX, LOOKS_EACH_US = 2_000, 50_000
"""Limit on the records that deletes by filter scan at once, for deletes that their publisher does
not number, and the interval after which it begins anew."""
PUBLISH_SUCH, CHANGE_PRESENT = "publish such a message to", "change the record of this key in"
DELETE_BY_KEY = "delete, except by a filter, from"
"""Beginnings of the sentence that says what a client may not do; the topic follows."""
DELETE = ExpressionUse("the filter of a delete", frozenset(("message", "state", "clock")))


class _RefusalError(Exception):
    """The reason why one record is refused."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _AsStaged(SowState):
    """A topic's records with the staged ones over the folded ones.

    Args:
        folded: the folded records, which are read where there is no staged one.
    """

    def __init__(self, folded: SowState) -> None:
        rules = SowRules(folded.rules.expires, folded.rules.lifetime_us)
        super().__init__(rules, last_writer=folded.last_writer)
        self._folded = folded
        self._over: dict[bytes, bytes | None] = {}

    def _value(self, key: bytes) -> bytes | None:
        return self._over[key] if key in self._over else self._folded._value(key)

    def _set(self, entry: bytes, value: bytes | None) -> None:
        self._over[entry] = value

    def _note_expiration(self, record: SowRecord) -> None:
        """Ignores expirations: nothing expires here."""

    @property
    def tombstones(self) -> int:
        """Returns a number that keeps look-ups of tombstones on: there may be one for each key."""
        return 1

    @tombstones.setter
    def tombstones(self, count: int) -> None:
        """Ignores tombstones: they are not counted."""

    def let_go(self, key: bytes) -> None:
        """Drops the staged entry of a key, so that the folded one counts."""
        self._over.pop(VALUE + key, None)
        self._over.pop(TOMBSTONE + key, None)


@dataclass(slots=True)
class _StagedRun:
    """A run on its way to the disk.

    Attributes:
        keys: key of each record that is a message; None for one without a key. None as a whole: not
            computed yet.
        applied: number of its records that lie over the folded ones.
        touched: keys of these records.
        folded: number of its records that are folded.
    """

    run: Run
    keys: list[bytes | None] | None = None
    applied: int = 0
    touched: list[bytes] = field(default_factory=list)
    folded: int = 0


@dataclass(slots=True)
class _RunDraft:
    """The state of a run that is being prepared."""

    made: list[tuple[Record, bytes]] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    refused: list[RefusedRecords] = field(default_factory=list)
    changed: bool = False


class SowStaging:
    """Prepares one topic's messages from the values as staged (implements `Stateful`).

    Invariant: `_runs` is what is staged and not folded, in order; the records of the first of them,
        up to one that is applied in part or not at all, lie over what is folded (`_over`), behind
        them what is being prepared (`_ready`, `_making`). `_touched` counts, by key, how many of
        those that lie there have it.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        functions: functions that the filters of deletes may use.
    """

    __slots__ = (
        "_by_txid",
        "_findings",
        "_functions",
        "_looks_from_us",
        "_looks_left",
        "_made_from_us",
        "_made_left",
        "_making",
        "_over",
        "_parses",
        "_permission",
        "_ready",
        "_runs",
        "_steady_us",
        "_topic",
        "_touched",
        "_writes_topic",
    )

    def __init__(self, topic: SowTopic, functions: Functions) -> None:
        self._topic = topic
        self._functions = functions
        self._parses = Ability.FIELDS not in topic.type.lacks
        self._runs: deque[_StagedRun] = deque()
        self._by_txid: dict[int, _StagedRun] = {}
        self._ready: deque[_StagedRun] = deque()
        """Prepared runs for which `staged` is still to be called."""
        self._making: tuple[_StagedRun, _RunDraft, int] | None = None
        self._over: _AsStaged | None = None
        self._findings: dict[tuple[int, int], DeleteScan] = {}
        """Scans in progress, by publisher and sequence of the delete."""
        self._steady_us = 0
        """Steady time of the run that is being prepared; the limits on work done at once are
        measured by it."""
        self._permission: WritePermission | None = None
        """Permission of the client whose run is prepared, where it may not write everything of the
        topic; otherwise None."""
        self._writes_topic = False
        """Whether that client may write all of the run's own topic, so that only other topics of a
        pattern must be judged."""
        self._looks_from_us, self._looks_left = 0, LOOKED_MAX
        self._made_from_us, self._made_left = 0, BATCH_BYTES_MAX
        self._touched: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Returns the number of runs that are staged and not folded."""
        return len(self._runs)

    # -- what is staged ------------------------------------------------------------------------
    def staged(self, run: Run) -> None:
        if self._ready and self._ready[0].run is run:
            found = self._ready.popleft()
        else:
            found = _StagedRun(run)
            self._forget_ready()
        self._runs.append(found)
        self._by_txid[run.first_txid] = found

    def committed(self, last_txid: int) -> None:
        """Notes that everything up to this transaction id is folded."""
        while self._runs and self._runs[0].run.last_txid <= last_txid:
            self._take_out(self._runs.popleft())
        if self._runs and self._runs[0].run.first_txid <= last_txid:
            first = self._runs[0]  # Folded in parts: its records stay in the overlay.
            first.folded = last_txid - first.run.first_txid + 1
            if not first.applied:
                first.applied = first.folded
            elif first.applied < first.folded:
                self._forget_over()
        if not self._runs and not self._ready:
            # The whole overlay is folded and no longer needed.
            self._forget_over()

    def failed(self, committed_txid: int) -> None:
        while self._runs and self._runs[-1].run.first_txid > committed_txid:
            del self._by_txid[self._runs.pop().run.first_txid]
        self._ready.clear()
        self._forget_over()

    def keys_of(self, run: Run) -> Sequence[bytes | None] | None:
        """Returns the keys of a staged run's records, where they are already known, for the
        fold."""
        found = self._by_txid.get(run.first_txid)
        if found is not None and found.run.count == run.count:
            return found.keys
        if not self._runs:
            return None
        # The rest of the first run, which is folded in parts.
        first, at = self._runs[0], run.first_txid - self._runs[0].run.first_txid
        is_part = first.keys is not None and 0 <= at <= first.run.count - run.count
        return first.keys[at : at + run.count] if first.keys is not None and is_part else None

    def _forget_over(self) -> None:
        self._over = None
        self._touched.clear()
        for run in self._runs:
            run.applied = run.folded
            run.touched.clear()

    def _forget_ready(self) -> None:
        """Forgets prepared runs for which `staged` was never called: they were refused, or their
        session ended."""
        if self._ready:
            self._ready.clear()
            self._forget_over()

    def _take_out(self, staged: _StagedRun) -> None:
        del self._by_txid[staged.run.first_txid]
        over, touched = self._over, self._touched
        for key in staged.touched:
            left = touched[key] - 1
            if left:
                touched[key] = left
            else:
                del touched[key]
                assert over is not None
                over.let_go(key)

    # -- values as staged ----------------------------------------------------------------------
    def value(self, key: bytes, now_us: int) -> SowRecord | None:
        """Returns the record of a key as it is staged; None: there is none, or it has expired.

        Raises:
            CorruptRecord: the entry on disk is no record.
        """
        record = self._caught_up().get(key)
        if record is None or not self._topic.state.rules.expires:
            return record
        return None if NEVER < record.expires_us <= now_us else record

    def _caught_up(self) -> _AsStaged:
        """Returns the state with everything that is staged, and the run that is being prepared."""
        over = self._over
        if over is None:
            over = self._over = _AsStaged(self._topic.state)
        for each in self._unapplied():
            if each.keys is None:
                each.keys = [self._key(record) for _, record in readable_records(each.run)]
            for (at, record), key in zip(readable_records(each.run), each.keys, strict=True):
                if at >= each.applied:
                    self._apply(over, each, record, key, each.run.receive_time_us)
        if self._making is not None:
            staged, making, now_us = self._making
            while staged.applied < len(making.made):
                record, body = making.made[staged.applied]
                key = making.keys[staged.applied]
                self._apply(over, staged, record._replace(body=body), key, now_us)
        return over

    def _unapplied(self) -> list[_StagedRun]:
        found = []
        for run in reversed(self._runs):
            if run.applied == run.run.count:
                break
            found.append(run)
        return found[::-1]

    def _apply(
        self, over: _AsStaged, staged: _StagedRun, record: Record, key: bytes | None, now_us: int
    ) -> None:
        staged.applied += 1
        touched: list[bytes] = []
        if record.command == Command.DELETE:
            touched = apply.deleted_keys(record.body) or []
            for _ in apply.apply_delete(over, record, touched, 0, now_us):
                pass
        elif key is not None:
            touched = [key]
            logical = self._topic.logical(record.topic.encode())
            apply.apply_put(over, record, key, 0, now_us, logical)
        for each in touched:
            self._touched[each] = self._touched.get(each, 0) + 1
        staged.touched += touched

    def _key(self, record: Record) -> bytes | None:
        """Returns the key of a record staged as it came; None: it has none, and is not folded."""
        if record.command not in (Command.PUBLISH, Command.DELTA_PUBLISH):
            return None
        try:
            return self._topic.key_of(record)
        except (SowKeyError, MessageTypeError):
            return None

    # -- what a client publishes ---------------------------------------------------------------
    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        """See `Stateful`.

        Raises:
            CorruptRecord: the entry on disk is no record.
        """
        self._forget_ready()
        self._steady_us = steady_us
        if permission is None and self._topic.keeps_plainly:
            keys = self._plain_keys(run)
            if keys is not None:
                self._ready.append(_StagedRun(run, keys))
                return PreparedRun((run,))
        making = _RunDraft()
        staged = _StagedRun(run, making.keys)
        self._making = staged, making, now_us
        if permission is not None:
            self._writes_topic = permission.writes_all(run.topic)
            if not self._writes_topic or self._topic.logical(run.topic):
                self._permission = permission
        try:
            for record in iterate_records(run.payload):
                try:
                    key, body = self._made(record, now_us)
                    self._check_size(record, body)
                except _RefusalError as error:
                    ranges = [(record.sequence, record.sequence)]
                    making.refused.append(RefusedRecords(ranges, error.reason, str(error)))
                    continue
                making.changed = making.changed or body is not record.body
                making.made.append((record, body))
                making.keys.append(key)
        finally:
            self._making = self._permission = None
            self._writes_topic = False
        if not making.changed and not making.refused:
            prepared = PreparedRun((run,))
        else:
            prepared = left_of(run, making.made, making.refused)
        self._get_ready(staged, prepared)
        return prepared

    def _plain_keys(self, run: Run) -> list[bytes | None] | None:
        """Returns the keys of a run that is journaled as it came; None: its records are to be
        prepared one by one."""
        if self._topic.state.last_writer or not self._parses:
            return None
        plain = plain_records(run)
        if plain is None or plain.has_deltas or plain.bytes_max > RECORD_BYTES_MAX:
            return None
        try:
            return list(self._topic.keys_of(plain.bodies))
        except Exception:
            # One of them is refused, with its reason.
            return None

    def _get_ready(self, staged: _StagedRun, prepared: PreparedRun) -> None:
        if len(prepared.runs) == 1:
            staged.run = prepared.runs[0]
            self._ready.append(staged)
            return
        at = 0
        for run in prepared.runs:
            assert staged.keys is not None
            self._ready.append(_StagedRun(run, staged.keys[at : at + run.count]))
            at += run.count
        if staged.applied:
            # Dropped as a whole, because it is not known which of its parts were applied: it is
            # made anew.
            self._forget_over()

    def _check_size(self, record: Record, body: bytes) -> None:
        size_bytes = len(record.raw) - len(record.body) + len(body)
        if size_bytes > RECORD_BYTES_MAX:
            raise _RefusalError(
                "too_large",
                f"topic {record.topic}: {_what(record)} makes a record of {size_bytes:,} bytes, "
                f"the limit is {RECORD_BYTES_MAX:,}: {_advice(record)}",
            )
        if body is record.body:
            return
        most = self._topic.type.parsed_bytes_max
        if record.command != Command.DELETE and len(body) > most:
            raise _RefusalError(
                "too_large",
                f"topic {record.topic}: {_what(record)} makes a message of {len(body):,} bytes, of "
                f"type {record.message_type} the limit is {most:,}: {_advice(record)}",
            )
        if self._steady_us >= self._made_from_us + BATCH_EACH_US:
            self._made_from_us, self._made_left = self._steady_us, BATCH_BYTES_MAX
        if size_bytes > self._made_left:
            raise _RefusalError(
                "too_large",
                f"topic {record.topic}: {_what(record)} and what came before it in one batch make "
                f"more than {BATCH_BYTES_MAX:,} bytes: wait for acks after fewer",
            )
        self._made_left -= size_bytes

    def _made(self, record: Record, now_us: int) -> tuple[bytes | None, bytes]:
        """Returns the key of a record, and the body to journal.

        Raises:
            _RefusalError: whatever the message made a type, a key generator, a function, an
                enrichment or a filter raise.
            CorruptRecord: the entry on disk is no record.
        """
        try:
            if record.command == Command.DELETE:
                self._check_time(record, now_us)
                return None, self._delete(record, now_us)
            return self._kept(record, now_us)
        except SowKeyError as error:
            raise _RefusalError("bad_key", str(error)) from None
        except MessageTypeError as error:
            raise _refused_by_type(record, error) from None
        except (_RefusalError, CorruptRecord):
            raise
        except Exception as error:
            # Nothing of the record is kept yet. Any error is the message's own fault, and must not
            # end the instance, which would be given the message again.
            raise _RefusalError(
                "bad_message",
                f"topic {record.topic}: {_what(record)} met {type(error).__name__}: "
                f"{str(error)[:200]}",
            ) from error

    def _kept(self, record: Record, now_us: int) -> tuple[bytes, bytes]:
        """Prepares a record that is no delete; returns its key and its body."""
        topic, permission = self._topic, self._permission
        if permission is not None and not (self._parses or self._writes_topic):
            # A filter cannot be evaluated on it.
            raise _RefusalError(*permission.refusal(record.topic.encode(), PUBLISH_SUCH))
        self._check_time(record, now_us)
        is_delta = record.command == Command.DELTA_PUBLISH
        if is_delta:
            self._check_delta(record)
        tree = topic.type.parse(record.body) if self._parses else None
        is_plain = not is_delta and topic.preprocess is None and topic.enrich is None
        if is_plain and permission is None:
            return topic.key_of(record, tree), record.body
        if is_plain and self._writes_topic:
            key = topic.key_of(record, tree)
            previous = self.value(key, now_us)
            if previous is not None:
                self._check_topic(record, previous)
            return key, record.body
        assert tree is not None
        return self._computed(record, tree, is_delta, now_us)

    def _computed(
        self, record: Record, tree: Tree, is_delta: bool, now_us: int
    ) -> tuple[bytes, bytes]:
        """Returns the key and the body after preprocessing, enrichment, and the merge of a delta,
        in that order. The client needs permission for the present record before it is used, and for
        the record that is journaled."""
        topic, kind, body = self._topic, self._topic.type, record.body
        permission = None if self._writes_topic else self._permission
        if topic.around is not None:
            tell(topic.around, record, now_us)
        whole = tree
        if topic.preprocess is not None:
            whole = topic.preprocess(whole)
        key = topic.key_of(record, whole)
        previous = stored = before = None
        # Key fields of a delta are in what it is merged to, as they are.
        has_key = topic.keeps_plainly and type(kind).merge is MessageType.merge
        if is_delta or topic.enrich is not None or self._permission is not None:
            previous = self.value(key, now_us)
        if previous is not None:
            self._check_topic(record, previous)
            stored = previous.body
            before = self._before(record, previous, permission)
        if topic.enrich is not None:
            whole = topic.enrich(whole, before)
        if whole is not tree:
            body = written(kind, ParsedBody(body, tree), whole)
        if is_delta and stored is not None:
            if type(kind).merge is MessageType.merge:
                assert before is not None
                known = ParsedBody(stored, before), ParsedBody(body, whole)
                whole = merged(before, whole)
                body = kind.joined(*known, whole)
            else:
                body = kind.merge(stored, body)
                whole = kind.parse(body)
        if not has_key and topic.key_of(record._replace(body=body), whole) != key:
            # Otherwise the record would be folded under another key.
            raise _RefusalError(
                "bad_key",
                f"topic {record.topic}: what is computed of the message changes its key: compute "
                "no key field in an enrichment, and let a key generator ask only what stays",
            )
        if permission is not None:
            # Parsed again, as later readers will parse it.
            journaled = tree if body is record.body else kind.parse(body)
            name = record.topic.encode()
            if not permission.passes(name, journaled):
                raise _RefusalError(*permission.refusal(name, PUBLISH_SUCH))
        return key, body

    def _check_topic(self, record: Record, previous: SowRecord) -> None:
        """Refuses a message whose key belongs to a record of another topic of the pattern, unless
        the client may write that record: a key generator may give one key to messages of two
        topics."""
        permission, name = self._permission, previous.topic
        if permission is None or not self._writes_topic or name in (b"", record.topic.encode()):
            return
        if not permission.writes_all(name):
            self._before(record, previous, permission)

    def _before(
        self, record: Record, previous: SowRecord, permission: WritePermission | None
    ) -> Tree | None:
        """Returns the fields of the present record.

        Args:
            permission: permission that the client needs for it; None: the client may write
                everything.
        """
        kind, body = self._topic.type, previous.body
        if body is None:
            return None
        if permission is None:
            return kind.parse(body)
        name = previous.topic or record.topic.encode()
        try:
            before = kind.parse(body)
            if permission.passes(name, before):
                return before
        except MessageTypeError:
            # The content is unknown, so the record passes no filter.
            pass
        raise _RefusalError(*permission.refusal(name, CHANGE_PRESENT))

    def _check_time(self, record: Record, now_us: int) -> None:
        if not self._topic.state.last_writer:
            return
        # A clock here that was set back does not make other clocks wrong.
        ahead_us = record.origin_time_us - max(now_us, self._steady_us)
        if ahead_us > AHEAD_US_MAX:
            raise _RefusalError(
                "clock_ahead",
                f"topic {record.topic} keeps what was published last, and this bears a time that "
                f"is {ahead_us / 1e6:.0f} s ahead of the clock here: set the clock of the client's "
                "host",
            )

    def _check_delta(self, record: Record) -> None:
        lacks = self._topic.type.lacks
        if Ability.DELTA in lacks:
            why = f"messages of type {record.message_type}: {lacks[Ability.DELTA]}"
        elif self._topic.state.last_writer:
            why = "the last writer counts there, so each message must be whole: publish those"
        else:
            return
        text = f"topic {record.topic} takes no delta publishes: {why}"
        raise _RefusalError("not_supported", text)

    # -- deletes -------------------------------------------------------------------------------
    def _delete(self, record: Record, now_us: int) -> bytes:
        """Returns the body of a delete as it is journaled: the keys that it removes."""
        said = said_by(record)
        limit = None if self._writes_topic else self._permission
        if limit is not None and "filter" not in said:
            # Whether a record was deleted would tell whether it passes the client's filter.
            raise _RefusalError(*limit.refusal(record.topic.encode(), DELETE_BY_KEY))
        if "filter" in said:
            keys = self._found(record, said, limit)
        elif "data" in said:
            keys = self._of_topic(record, [self._key_of_data(record, said["data"], now_us)])
        elif "keys" in said:
            keys = self._of_topic(record, self._given(record, said["keys"]))
        else:
            raise _RefusalError(
                "bad_message",
                f"topic {record.topic}: a delete has a msgpack map with one of filter (text), keys "
                "(a list of bytes) and data (bytes), or with a filter and keys",
            )
        return bytes(msgpack.packb({"keys": keys}))

    def _given(self, record: Record, keys: list[Any]) -> list[bytes]:
        if len(keys) > apply.DELETED_MAX:
            raise _RefusalError(
                "too_many",
                f"topic {record.topic}: a delete takes away {apply.DELETED_MAX:,} records at "
                f"most, this one names {len(keys):,}: delete in several parts",
            )
        for key in keys:
            if type(key) is not bytes or not 0 < len(key) <= SOW_KEY_BYTES_MAX:
                raise _RefusalError(
                    "bad_key",
                    f"topic {record.topic}: expected SOW keys, each 1 to {SOW_KEY_BYTES_MAX} bytes,"
                    f" got {repr(key)[:60]}",
                )
        return sorted(set(keys))

    def _of_topic(self, record: Record, keys: list[bytes]) -> list[bytes]:
        """Returns the keys without those of other topics' records, where a pattern collects several
        topics: a permission to delete from one topic does not cover the others."""
        logical = self._topic.logical(record.topic.encode())
        if not logical:
            return keys
        over = self._caught_up()
        return [
            key
            for key in keys
            if (present := over.get(key)) is None or present.topic in (b"", logical)
        ]

    def _key_of_data(self, record: Record, data: bytes, now_us: int) -> bytes:
        topic = self._topic
        if not topic.makes_keys:
            raise _RefusalError(
                "bad_key",
                f"topic {record.topic} has neither Key nor KeyGenerator, so a message does not say "
                "its key: delete by keys, or by a filter",
            )
        tree = topic.type.parse(data) if self._parses else None
        if tree is not None and topic.preprocess is not None:
            if topic.around is not None:
                tell(topic.around, record._replace(body=data), now_us)
            tree = topic.preprocess(tree)
        return topic.key_of(record._replace(body=data), tree)

    def looks_for(self, run: Run, permission: WritePermission | None = None) -> list[DeleteScan]:
        """Returns the scans of the run's deletes by filter; see `Stateful`."""
        found = []
        limit = None if permission is None or permission.writes_all(run.topic) else permission
        for record in iterate_records(run.payload):
            identity = record.publisher, record.sequence
            finding = self._findings.get(identity)
            if finding is None:
                said = said_by(record)
                if "filter" not in said:
                    continue
                try:
                    finding = self._finding(record, said, limit)
                except _RefusalError:
                    continue
                self._findings[identity] = finding
            found.append(finding)
        return found

    def _found(
        self, record: Record, said: dict[str, Any], limit: WritePermission | None
    ) -> list[bytes]:
        finding = self._findings.get((record.publisher, record.sequence))
        if finding is None or finding.permission is not limit:
            if finding is not None:
                finding.close()
            finding = self._finding(record, said, limit)
            if limit is not None:
                # The limit below would tell of the number of all records.
                finding.close()
                raise _RefusalError(
                    "not_supported",
                    f"topic {record.topic}: a client that may delete only some records numbers its "
                    "deletes",
                )
            # No scan ran before: does as much as can be done at once.
            if self._steady_us >= self._looks_from_us + LOOKS_EACH_US:
                self._looks_from_us, self._looks_left = self._steady_us, LOOKED_MAX
            finding.take(self._looks_left)
            self._looks_left -= min(finding.looked + 1, self._looks_left)
        try:
            if finding.given_up or not finding.done:
                why = finding.given_up or (
                    f"a delete without a sequence looks at {LOOKED_MAX:,} records at most, with "
                    "others of the same moment: number your publishes"
                )
                raise _RefusalError("too_many", f"topic {record.topic}: {why}")
            over = self._caught_up()
            keys = finding.keys(over.get, self._touched)
            if finding.given_up:
                raise _RefusalError("too_many", f"topic {record.topic}: {finding.given_up}")
            return keys
        finally:
            finding.close()

    def _finding(
        self, record: Record, said: dict[str, Any], limit: WritePermission | None
    ) -> DeleteScan:
        topic, text = self._topic, said["filter"]
        if not self._parses:
            why = topic.type.lacks[Ability.FIELDS]
            raise _RefusalError("not_supported", f"topic {record.topic} cannot be filtered: {why}")
        try:
            asked: Expression = expression(text, DELETE, self._functions)
        except ExpressionError as error:
            raise _RefusalError("bad_filter", refusal(text, error)) from None
        keys = frozenset(self._given(record, said["keys"])) if "keys" in said else None
        identity = record.publisher, record.sequence

        def closed() -> None:
            self._findings.pop(identity, None)

        logical = topic.logical(record.topic.encode())
        name = record.topic.encode()
        return DeleteScan(topic, logical, asked, record.origin_time_us, closed, keys, name, limit)


def _refused_by_type(record: Record, error: MessageTypeError) -> _RefusalError:
    is_large = isinstance(error, MessageTooLarge)
    text = f"{error}: {_advice(record)}" if is_large else str(error)
    return _RefusalError(
        "too_large" if is_large else "bad_message", f"topic {record.topic}: {text}"
    )


def _what(record: Record) -> str:
    return {Command.DELETE: "a delete", Command.DELTA_PUBLISH: "a delta"}.get(
        Command(record.command), "a message"
    )


def _advice(record: Record) -> str:
    if record.command == Command.DELETE:
        return "delete in several parts, each by a narrower filter or fewer keys"
    return "keep less in one record"
