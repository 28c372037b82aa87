"""Which records a delete by filter takes away: looked for among those that are folded, a part at a
time, while others are folded; at the end what has changed meanwhile is judged as it is staged."""

from __future__ import annotations

from collections.abc import Callable, Collection

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import Expression, nodes
from raylay.services.expressions.functions.registry import NOWHERE, Surroundings
from raylay.services.expressions.tree import Identifier
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.planning import keys_to_look_at
from raylay.services.sow.records import NEVER, SowRecord, decoded
from raylay.services.sow.topic import SowTopic


class Finding:
    """See the file's docstring.

    Invariant: each record that is folded was judged as it was at the begin, or is in `_changed`.
    Owner: who folds the topic. Lifecycle: until `close`.

    Args:
        logical: of these records alone, where the topic has a pattern; else nothing.
        now_us: by the clock on the wall: what has expired is no record any more.
    """

    __slots__ = (
        "_around",
        "_changed",
        "_filter",
        "_found",
        "_logical",
        "_now_us",
        "_parse",
        "_source",
        "_topic",
        "_unwatch",
    )

    def __init__(self, topic: SowTopic, logical: bytes, filter_: Expression, now_us: int) -> None:
        self._topic = topic
        self._logical = logical
        self._filter = filter_
        self._now_us = now_us
        self._around = filter_.asks_around
        names = {each.steps[0] for each in nodes(filter_.tree) if isinstance(each, Identifier)}
        self._parse = topic.type.parser_of(frozenset(map(str, names)))
        indexes = topic.indexes if isinstance(topic.indexes, SowIndexes) else None
        keys = keys_to_look_at(filter_, None, indexes)
        state = topic.state
        self._source = state.query() if keys is None else state.query_keys(keys)
        self._found: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._unwatch: Callable[[], None] = state.watch(self)

    @property
    def done(self) -> bool:
        """Whether all that is folded was looked at."""
        return self._source.done

    def take(self, most: int) -> None:
        """Looks at the next records, so many at most."""
        for entry, value in self._source.take(most):
            key = entry[1:]
            if self._matches(decoded(key, value)):
                self._found.add(key)

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """An entry of the topic is about to be changed."""
        self._changed.add(key[1:])

    def keys(
        self, value: Callable[[bytes], SowRecord | None], touched: Collection[bytes]
    ) -> list[bytes]:
        """What is found, sorted. Behind `done`.

        Args:
            value: the record of a key as it is staged.
            touched: the keys of all that is staged and not folded.
        """
        again = self._changed.union(touched)
        found = self._found - again
        for key in again:
            record = value(key)
            if record is not None and self._matches(record):
                found.add(key)
        return sorted(found)

    def close(self) -> None:
        """Nothing more is looked for."""
        self._source.close()
        self._unwatch()

    def _matches(self, record: SowRecord) -> bool:
        if self._logical and record.topic != self._logical:
            return False
        if NEVER < record.expires_us <= self._now_us and self._topic.state.rules.expires:
            return False
        body = record.body or b""
        try:
            tree = self._parse(body)
        except MessageTypeError:
            return False
        around = NOWHERE
        if self._around:
            around = Surroundings(
                topic=(record.topic or self._topic.name).decode("utf-8", "surrogateescape"),
                size_bytes=len(body),
                bookmark=f"{record.publisher}|{record.sequence}|",
                last_updated=record.updated_us / 1e6,
                sow_key=record.key.decode("utf-8", "surrogateescape"),
                sow_key_hash=checksum64(record.key),
                now_s=self._now_us / 1e6,
            )
        return bool(self._filter.matches(tree, around))
