"""Content filters of bookmark subscriptions: which records of a run pass (bookmark.py).

A replay reads every message behind its start, so it may have to parse the whole log. It does so in
pieces (replay_group.py), to keep each turn of the loop short. The messages of the last parsed
pieces are kept: replays at the same place, for instance all those at the end of the log, parse each
message once.
"""

from __future__ import annotations

import struct
from typing import Any

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.budgets import FilterHold
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.readable import UNREADABLE, told
from raylay.services.messages.records import RECORD_HEADER_BYTES, Run, decode_record
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.subscriptions.filtered import around, surroundings_of
from raylay.services.subscriptions.matching import FilterOwner
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
            try:
                message = parse(payload[body_at : end - trace])
            except MessageTypeError:
                pass
            else:
                found.append(((at, offset, end, sequence), message))
            offset = end
        return found

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
