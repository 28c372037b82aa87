"""The rows of a query of a queue: which messages, in which order, with which fields.

The options are parsed by the code of SOW queries, and mean the same. The differences: a queue's
rows are records of the journal, and rows without an order are in the queue's order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.messages.records import Record, RecordBuilder, decode_record
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.query.ordering import SortedRows, placing, read_order
from raylay.services.sow.query.projection import Projection
from raylay.services.sow.query.query_execution import HELD_BYTES_MAX

ROWS_AT_ONCE = 256
_TXID = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class RowTerms:
    """The options of a query besides its filter.

    Attributes:
        select, order_by: the text of each as written; empty: none.
        top: limit on the number of rows; None: no limit.
        skip: number of rows that are left out at the start.
    """

    select: str = ""
    order_by: str = ""
    top: int | None = None
    skip: int = 0


class QueueRows:
    """Turns messages into rows: at once, or, where they are to be ordered, when all are in.

    Owner: the caller that runs the query. Lifecycle: one query.

    Args:
        kind: type of the queue's messages.
        held_bytes_max: limit on the bytes of rows that wait to be ordered.

    Attributes:
        matches: number of messages so far, whether they became rows or not.
        reads: whether the next message must be read; otherwise `passed` is enough.

    Raises:
        RemoteProtocolError: with reason `bad_order_by` or `bad_select`: the terms are not valid;
            with `not_supported`: fields cannot be cut out of messages of that type.
    """

    def __init__(
        self, terms: RowTerms, kind: MessageType, held_bytes_max: int = HELD_BYTES_MAX
    ) -> None:
        order = read_order(terms.order_by) if terms.order_by else ()
        self._select = Projection(terms.select, kind) if terms.select else None
        self._place = placing(order)
        self._parse = kind.parser_of(frozenset(str(term.steps[0]) for term in order))
        wanted = None if terms.top is None else terms.top + terms.skip
        self._ordered = SortedRows(wanted) if order else None
        self._left = terms.top
        self._to_skip = terms.skip
        self._held_bytes_max = held_bytes_max
        self.matches = 0

    @property
    def reads(self) -> bool:
        """Returns whether the next message must be read; otherwise it is enough to count it by
        `passed`."""
        return self._ordered is not None or (self._left != 0 and not self._to_skip)

    def passed(self) -> None:
        """Counts a message that need not be read."""
        self.matches += 1
        if self._to_skip:
            self._to_skip -= 1

    def put(self, txid: int, raw: bytes) -> bytes | None:
        """Takes a message; returns its row, where it is to be sent at once.

        Args:
            txid: transaction id of the message: of messages that are equal in the order, the older
                one is first.
            raw: record of the message, as in the journal.

        Raises:
            RemoteProtocolError: more rows wait for their order than may: `too_large`.
        """
        self.matches += 1
        ordered = self._ordered
        if ordered is None:
            if self._left is not None:
                self._left -= 1
            return self._row(raw)
        place = self._place(self._tree(raw), _TXID.pack(txid))
        if ordered.takes(place):
            ordered.put(place, self._row(raw))
            if ordered.held_bytes > self._held_bytes_max:
                raise RemoteProtocolError(
                    "the rows that wait for their order have more than "
                    f"{self._held_bytes_max} bytes: ask for fewer, with top_n or a filter, or "
                    "leave out order_by",
                    "too_large",
                )
        return None

    def rest(self) -> list[bytes]:
        """Returns, after the last message, the next rows in order; none: there are no more."""
        if self._ordered is None:
            return []
        while True:
            rows = self._ordered.take(ROWS_AT_ONCE)
            skipped = min(self._to_skip, len(rows))
            self._to_skip -= skipped
            if skipped < len(rows) or not rows:
                return rows[skipped:]

    def _tree(self, raw: bytes) -> Tree:
        try:
            return self._parse(decode_record(raw, verify=False).body)
        except MessageTypeError:
            # An unreadable message is ordered like one without fields.
            return {}

    def _row(self, raw: bytes) -> bytes:
        return raw if self._select is None else _with_body(raw, self._select)


def _with_body(raw: bytes, select: Projection) -> bytes:
    found: Record = decode_record(raw, verify=False)
    return RecordBuilder(found.publisher, found.topic, found.message_type).build(
        found.sequence,
        select.of_body(found.body),
        found.origin_time_us,
        found.trace,
        command=found.command,
        expiration_s=found.expiration_s,
        key=found.key,
        correlation=found.correlation,
    )
