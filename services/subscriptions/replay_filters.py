"""Content filters of bookmark subscriptions: which records of a run pass (bookmark.py).

A replay reads every message behind its start, so it may have to parse the whole log. It does so in
pieces (replay_group.py), to keep each turn of the loop short. The messages of the last parsed
pieces are kept: replays at the same place, for instance all those at the end of the log, parse each
message once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.budgets import FilterHold
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.readable import UNREADABLE, told
from raylay.services.messages.records import RECORD_HEADER_BYTES, Run, decode_record
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.subscriptions.filtered import around, surroundings_of
from raylay.services.subscriptions.matching import FilterOwner, TopicFilter
from raylay.services.subscriptions.replay_group import PIECE_BYTES

KEPT_PIECES = 4

_RECORD = struct.Struct("<I10xBBHHH14xQ")
"""Fields of a record (services/messages/records.py): its length, the lengths of type, trace, topic,
key and correlation id, its sequence."""
Place = tuple[int, int, int, int]
"""Place of a record in its run: the number of records before it, the offsets of its begin and end,
its sequence."""
_Message = tuple[Place, Any]


class ReplayFilters:
    """The content filters of an instance's bookmark subscriptions.

    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
        instance, group: name of the instance and of its group.
    """

    __slots__ = ("_functions", "_group", "_instance", "_parsed", "_types")

    def __init__(
        self, types: MessageTypeTable, functions: Functions, instance: str, group: str
    ) -> None:
        self._types = types
        self._functions = functions
        self._instance = instance
        self._group = group
        self._parsed: list[tuple[int, bytes, list[_Message]]] = []
        """The last parsed pieces: first transaction id, payload and messages of each."""

    def made(self, text: str, asker: FilterOwner) -> ReplayFilter:
        """Returns the filter of this client with this text.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, the column and what to do.
        """
        found = filter_of(text, SUBSCRIPTION, self._functions, surroundings_of(asker), asker.budget)
        payers = () if asker.budget is None else (asker.budget,)
        return ReplayFilter(text, found.own(*payers), self, found.hold)

    def limited(self, wanted: TopicFilter, own: ReplayFilter | None) -> LimitedReplayFilter:
        """Returns the filter of a client that may read only some messages of some topics.

        Args:
            own: the client's own filter; None: it has none.
        """
        return LimitedReplayFilter(wanted, own, self)

    def messages(self, run: Run) -> list[_Message]:
        """Returns the parsed records of a run; unreadable ones are left out."""
        for first_txid, payload, found in self._parsed:
            # The payload is compared as well, since an earlier run with this transaction id may
            # have been staged and failed.
            if first_txid == run.first_txid and payload == run.payload:
                return found
        found = self._read(run)
        if len(run.payload) <= PIECE_BYTES:
            self._parsed.append((run.first_txid, run.payload, found))
            del self._parsed[:-KEPT_PIECES]
        return found

    def _read(self, run: Run) -> list[_Message]:
        found: list[_Message] = []
        try:
            parse = self._types[run.message_type.decode("utf-8", "replace")].parse
        except MessageTypeError:
            return found
        for place, body in self.bodies(run):
            try:
                found.append((place, parse(body)))
            except MessageTypeError:
                pass
        return found

    def bodies(self, run: Run) -> Iterator[tuple[Place, bytes]]:
        """Yields the places and bodies of a run's records."""
        payload, offset, unpack = run.payload, 0, _RECORD.unpack_from
        for at in range(run.count):
            if offset + RECORD_HEADER_BYTES > len(payload):
                UNREADABLE.note(run, told(run, at, "the run ends before them"))
                break
            length, type_, trace, topic, key, correlation, sequence = unpack(payload, offset)
            end = offset + length
            body_at = offset + RECORD_HEADER_BYTES + topic + type_ + key + correlation
            if end > len(payload) or body_at > end - trace:
                UNREADABLE.note(run, told(run, at, "a record has lengths that do not fit"))
                break
            yield (at, offset, end, sequence), payload[body_at : end - trace]
            offset = end

    def around(self, run: Run, place: Place) -> EvalContext:
        """Returns the context that a filter can read besides the message."""
        record = decode_record(run.payload, place[1], verify=False)
        return around(record, run, self._instance, self._group)


class ReplayFilter:
    """The content filter of one bookmark subscription. `text`: as written."""

    __slots__ = ("_asks_around", "_effort", "_filters", "_hold", "_matches", "text")

    def __init__(
        self, text: str, found: Expression, filters: ReplayFilters, hold: FilterHold | None = None
    ) -> None:
        self._hold = hold
        self.text = text
        self._matches = found.matches
        self._effort = found.effort
        self._asks_around = found.asks_around
        self._filters = filters

    @property
    def has_given_up(self) -> bool:
        """Returns whether the filter was stopped for using too much work
        (services/expressions/work.py)."""
        return self._effort.given_up > 0

    def admits(self, run: Run) -> bool:
        """Returns False: the filter has no row filter of the client's permissions."""
        return False

    def passes(self, message: Any, around: EvalContext) -> bool:
        """Returns whether a parsed message passes."""
        return bool(self._matches(message, around))

    def passing(self, run: Run) -> list[Place]:
        """Returns the places of the records that pass, in order."""
        matches, filters = self._matches, self._filters
        if self._asks_around:
            return [
                place
                for place, message in filters.messages(run)
                if matches(message, filters.around(run, place))
            ]
        return [place for place, message in filters.messages(run) if matches(message, NO_CONTEXT)]


class LimitedReplayFilter:
    """The content filter of a bookmark subscription by a regular expression, of a client that may
    read only some messages of some topics. Their row filter is evaluated first, so that the
    client's own filter sees no other message.

    Args:
        own: the client's own filter; None: it has none.
    """

    __slots__ = ("_filters", "_own", "_wanted")

    def __init__(
        self, wanted: TopicFilter, own: ReplayFilter | None, filters: ReplayFilters
    ) -> None:
        self._wanted = wanted
        self._own = own
        self._filters = filters

    @property
    def text(self) -> str:
        """Returns the client's own filter as written; empty: it has none."""
        return "" if self._own is None else self._own.text

    @property
    def has_given_up(self) -> bool:
        """Returns whether the client's own filter was stopped for using too much work."""
        return self._own is not None and self._own.has_given_up

    def _limit(self, run: Run) -> Expression | None:
        return self._wanted.limits(run.topic, run.message_type, SUBSCRIPTION)

    def admits(self, run: Run) -> bool:
        """Returns whether the client may read some records of the run's topic, and not all."""
        return self._limit(run) is not None

    def passing(self, run: Run) -> list[Place]:
        """Returns the places of the records that pass, in order."""
        own, filters = self._own, self._filters
        if self._wanted.matches(run.topic, run.message_type):
            if own is not None:
                return own.passing(run)
            return [place for place, _ in filters.bodies(run)]
        limit = self._limit(run)
        if limit is None:
            return []
        found = []
        for place, message in filters.messages(run):
            around = filters.around(run, place)
            if limit.matches(message, around) and (own is None or own.passes(message, around)):
                found.append(place)
        return found
