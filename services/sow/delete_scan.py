"""The scan for the records that a delete by filter removes: it runs in slices while commits are
folded; at the end, records that have changed meanwhile are judged as they are staged.

A scan is given up when records change faster than it can judge them, so that its end is always
short. It starts with its first slice: many deletes may wait for their turn without a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import Expression, nodes
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.tree import Identifier
from raylay.services.messages.bounded_msgpack import unpack_values
from raylay.services.messages.lossless_text import text_of
from raylay.services.messages.records import Flag, Record, Run
from raylay.services.messages.stateful import WritePermission
from raylay.services.sow.apply import DELETE_VALUES_MAX, DELETED_MAX
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.query.planning import keys_to_look_at
from raylay.services.sow.query.record_scan import KeyScan, RecordScan
from raylay.services.sow.records import SowRecord, decoded
from raylay.services.sow.topic import SowTopic

CHANGED_MAX = 2_000
"""Number of changed records that the end judges, besides those that are on their way to the
disk."""
FOUND_MAX = DELETED_MAX
"""Number of keys that a scan may find: more would not fit into one record."""
_SAID = {"filter": str, "keys": list, "data": bytes}
FINDINGS_AT_ONCE = 8
"""Number of one client's scans that are prepared before its next ones begin."""


def may_ask(run: Run) -> bool:
    """Returns whether a run may have deletes by filter: a quick check that may say yes for no, but
    never no for yes."""
    return bool(run.flags & Flag.COMMANDS) and b"filter" in run.payload


def said_by(record: Record) -> dict[str, Any]:
    """Returns the content of a client's delete: `filter` (a text), `keys` (a list), both, or `data`
    (bytes). Empty: the record is no valid delete."""
    try:
        said = unpack_values(record.body, DELETE_VALUES_MAX, strict_map_key=True)
    except (ValueError, msgpack.UnpackException):
        return {}
    if type(said) is not dict or (len(said) != 1 and said.keys() != {"filter", "keys"}):
        return {}
    sound = all(type(value) is _SAID.get(name) for name, value in said.items())
    return said if sound else {}


_TOO_COSTLY = (
    "the filter works too much for one of the records: ask for shorter texts and arrays, use fewer "
    "functions, or delete by keys"
)


class DeleteScan:
    """Finds the keys of the records that a delete by filter removes.

    Invariant: once it has begun, each record that is folded was judged as it was at the begin, or
        since its last change, or is in `_changed`.
    Owner: the code that folds the topic. Lifecycle: until `close`.

    Args:
        logical: the topic of the records, where the SOW topic has a pattern; otherwise empty.
        now_us: time that the filter sees as the current time.
        closed: called when the scan ends.
        keys: keys to which the scan is limited; None: all records.
        name: topic of the delete, for `permission`.
        permission: permission of the client that deletes: only records that it may write are found,
            and the filter is asked of no others. None: it may write every record.

    Attributes:
        looked: number of records that were looked at.
        given_up: reason why the scan was given up, with what to do; empty: it was not.
    """

    __slots__ = (
        "_around",
        "_changed",
        "_closed",
        "_filter",
        "_found",
        "_is_closed",
        "_keys",
        "_logical",
        "_looks_left",
        "_name",
        "_now_us",
        "_parse",
        "_source",
        "_topic",
        "_unwatch",
        "_waiting",
        "given_up",
        "looked",
        "permission",
    )

    def __init__(
        self,
        topic: SowTopic,
        logical: bytes,
        filter_: Expression,
        now_us: int,
        closed: Callable[[], None] = lambda: None,
        keys: frozenset[bytes] | None = None,
        name: bytes = b"",
        permission: WritePermission | None = None,
    ) -> None:
        self._name = name
        self.permission = permission
        self._topic = topic
        self._logical = logical
        self._filter = filter_ = filter_.own()
        self._now_us = now_us
        self._closed = closed
        self._keys = keys
        self._around = filter_.asks_around
        self._source: RecordScan | KeyScan | None = None
        self._found: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._looks_left = 0
        self._waiting: list[tuple[bytes, bytes]] = []
        """Records that were taken and not judged yet, because judging those before them took
        long."""
        self._unwatch: Callable[[], None] | None = None
        self._is_closed = False
        self.given_up = ""
        self.looked = 0

    def _begin(self) -> RecordScan | KeyScan:
        topic, filter_ = self._topic, self._filter
        names = {each.steps[0] for each in nodes(filter_.tree) if isinstance(each, Identifier)}
        self._parse = topic.type.parser_of(frozenset(map(str, names)))
        indexes = topic.indexes if isinstance(topic.indexes, SowIndexes) else None
        keys = keys_to_look_at(filter_, self._keys, indexes)
        state = topic.state
        self._looks_left = 2 * state.count + 10 * CHANGED_MAX
        self._unwatch = state.watch(self)
        return state.query() if keys is None else state.query_keys(keys)

    @property
    def done(self) -> bool:
        """Returns whether only a little work is left, for `keys`."""
        if self._source is None:
            return False
        if self.given_up:
            return True
        is_read = self._source.done and not self._waiting
        return is_read and len(self._changed) <= CHANGED_MAX

    def take(self, most: int) -> None:
        """Judges the next records, `most` at most."""
        if self.done or most <= 0 or self._is_closed:
            return
        if self._source is None:
            self._source = self._begin()
        if self._waiting or not self._source.done:
            entries, self._waiting = self._waiting or self._source.take(most), []
            before, judged = self._filter.effort.steps, 0
            for entry, value in entries:
                judged += 1
                if self._matches(decoded(entry[1:], value)):
                    self._found.add(entry[1:])
                if self._filter.effort.steps != before:
                    # Slow judgements are made one by one.
                    self._waiting = entries[judged:]
                    break
            self.looked += judged
        else:
            get = self._topic.state.get
            before, again = self._filter.effort.steps, 0
            for _ in range(min(most, len(self._changed))):
                self._judge(self._changed.pop(), get)
                again += 1
                if self._filter.effort.steps != before:
                    break
            self.looked += again
            self._looks_left -= again
        if self._filter.effort.given_up:
            self.given_up = _TOO_COSTLY
        elif len(self._found) > FOUND_MAX:
            self.given_up = (
                f"more than {FOUND_MAX:,} records pass: delete in parts, as `raylay delete` and "
                "Client.sow_delete_in_parts do, or by a narrower filter"
            )
        elif self._looks_left < 0:
            self.given_up = (
                "records change faster than a filter can be asked: let it ask for what an index "
                "finds, or delete by keys"
            )

    def _judge(self, key: bytes, value: Callable[[bytes], SowRecord | None]) -> None:
        record = value(key)
        if record is not None and self._matches(record):
            self._found.add(key)
        else:
            self._found.discard(key)

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """Notes that an entry of the topic is about to change."""
        if self._keys is None or key[1:] in self._keys:
            self._changed.add(key[1:])

    def keys(
        self, value: Callable[[bytes], SowRecord | None], touched: Collection[bytes]
    ) -> list[bytes]:
        """Returns the found keys, sorted; none where the scan was `given_up`. To be called when
        `done`.

        Args:
            value: returns the record of a key as it is staged.
            touched: keys of everything that is staged and not folded.
        """
        if self._keys is not None:
            touched = [key for key in self._keys if key in touched]
        for key in self._changed.union(touched):
            self._judge(key, value)
            if self._filter.effort.given_up:
                self.given_up = _TOO_COSTLY
                return []
        return sorted(self._found)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._source is not None and self._unwatch is not None:
            self._source.close()
            self._unwatch()
        self._closed()

    def _matches(self, record: SowRecord) -> bool:
        if self._logical and record.topic != self._logical:
            return False
        body = record.body or b""
        try:
            permission = self.permission
            if permission is not None and not permission.passes(
                self._name, self._topic.type.parse(body)
            ):
                return False
            tree = self._parse(body)
        except MessageTypeError:
            return False
        around = NO_CONTEXT
        if self._around:
            around = EvalContext(
                topic=text_of(record.topic or self._topic.name),
                size_bytes=len(body),
                bookmark=f"{record.publisher}|{record.sequence}|",
                last_updated=record.updated_us / 1e6,
                sow_key=text_of(record.key),
                sow_key_hash=checksum64(record.key),
                now_s=self._now_us / 1e6,
            )
        return bool(self._filter.matches(tree, around))
