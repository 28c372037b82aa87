"""The queries of an instance about the messages of a queue: the rows of available messages, the
keys of all, and the status."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgpack

from raylay.services.errors import ExpressionError, RaylayError, RemoteProtocolError
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, expression, refusal
from raylay.services.expressions.functions.registry import Functions
from raylay.services.messages.types.base import MessageType
from raylay.services.net.framed import FramedConnection, WriteQueue
from raylay.services.processes.queue_owner.bodies import Bodies
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.frames import Header
from raylay.services.queues.lease_age import with_lease_age
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import AVAILABLE, GONE, QueuedMessage
from raylay.services.queues.records import keys_of
from raylay.services.sow.query.queue_rows import QueueRows, RowTerms

READ_AT_ONCE = 100
"""The number of messages that one turn reads and evaluates a filter on. Deliveries are made between
turns."""
RANGES_AT_ONCE = 2_048
"""The number of ranges in one part of an acknowledgment by a filter. An instance takes as many in 3
ms."""
KEYS_AT_ONCE = 4_096
"""The number of messages found by a filter that are reported together."""
ROWS_BYTES = 256 * 1024
ORDERED_AT_ONCE = 2
"""The number of queries at one time whose rows wait to be ordered. Each may keep 64 MiB of rows."""
PAUSE_S = 0.005
"""The pause, in seconds, while the instance does not read."""


def key_parts(keys: list[tuple[int, int]]) -> list[tuple[dict[int, list[int]], int]]:
    """Divides messages into answers of so few ranges that an instance acknowledges each in one
    turn.

    Returns:
        For each answer, a map of publisher to first, last, first, last, …, and the number of its
        messages.
    """
    parts: list[tuple[dict[int, list[int]], int]] = []
    flat: dict[int, list[int]] = {}
    count = ranges = 0
    for publisher, found in keys_of(keys).items():
        for first, last in found:
            if ranges == RANGES_AT_ONCE:
                parts.append((flat, count))
                flat, count, ranges = {}, 0, 0
            flat.setdefault(publisher, []).extend((first, last))
            count += last - first + 1
            ranges += 1
    return [*parts, (flat, count)]


class QueueQueries:
    """See the file's docstring. Owner: the queue's owner.

    Args:
        now_us: returns the time by the clock by which leases end, in microseconds.
    """

    def __init__(
        self,
        machine: QueueMachine,
        bodies: Bodies,
        kind: MessageType,
        functions: Functions,
        instance: FramedConnection,
        outbox: WriteQueue,
        now_us: Callable[[], int],
    ) -> None:
        self._now_us = now_us
        self._machine = machine
        self._bodies = bodies
        self._kind = kind
        self._functions = functions
        self._turns = _Turns()
        self._ordering = asyncio.Semaphore(ORDERED_AT_ONCE)
        self._instance = instance
        self._outbox = outbox

    async def answer(self, header: Header) -> None:
        number, question = control.read_ask(header)
        try:
            wanted = self._wanted(question.filter)
            if question.what == "status":
                body = json.dumps(with_lease_age(self._machine.status(), self._now_us())).encode()
                self._instance.send(control.answer(number, body, count=0))
            elif question.what == "keys":
                await self._keys(number, wanted)
            else:
                terms = RowTerms(question.select, question.order_by, question.top, question.skip)
                rows = QueueRows(terms, self._kind)
                if question.order_by:
                    async with self._ordering:
                        await self._rows(number, wanted, rows)
                else:
                    await self._rows(number, wanted, rows)
        except RaylayError as error:
            reason = getattr(error, "reason", "") or "storage_error"
            self._instance.send(
                control.answer(number, b"", count=0, error=str(error), reason=reason)
            )
        self._outbox.flush()

    def _wanted(self, text: str) -> Expression | None:
        if not text:
            return None
        try:
            return expression(text, SUBSCRIPTION, self._functions)
        except ExpressionError as error:
            raise RemoteProtocolError(refusal(text, error), "bad_filter") from None

    async def _each(
        self, wanted: Expression | None, *, available: bool, reads: Callable[[], bool]
    ) -> AsyncIterator[QueuedMessage]:
        """Yields the messages that the queue has when each is reached. Works in short turns,
        however many messages there are.

        Args:
            reads: a function that tells whether the caller reads a message that passes.
        """
        state, seen = self._machine.state, 0
        through_txid = state.folded_txid
        await self._turns.next()
        part = state.part()
        while part:
            for message in part:
                if wanted is not None or reads():
                    seen += 1
                    if seen % READ_AT_ONCE == 0:
                        await self._turns.next()
                if message.txid > through_txid:
                    return
                if message.state == GONE or (available and message.state != AVAILABLE):
                    continue
                if wanted is None or state.fits(message, wanted):
                    yield message
            await self._turns.next()
            part = state.part(part[-1].txid)

    async def _keys(self, number: int, wanted: Expression | None) -> None:
        found: list[tuple[int, int]] = []
        async for message in self._each(wanted, available=False, reads=bool):
            if not self._machine.state.may_be_said(message):
                continue
            found.append(message.key)
            if len(found) >= KEYS_AT_ONCE:
                await self._say_keys(number, found, more=True)
                found = []
        await self._say_keys(number, found, more=False)

    async def _say_keys(self, number: int, found: list[tuple[int, int]], *, more: bool) -> None:
        parts = key_parts(found)
        for at, (flat, count) in enumerate(parts, 1):
            is_more = more or at < len(parts)
            body = msgpack.packb(flat)
            self._instance.send(control.answer(number, body, count=count, more=is_more))
            self._outbox.flush()
            if is_more:
                # The instance takes each part in one turn, and does its other work in between.
                await asyncio.sleep(PAUSE_S)

    async def _rows(self, number: int, wanted: Expression | None, rows: QueueRows) -> None:
        sending = _RowStream(self, number)
        async for message in self._each(wanted, available=True, reads=lambda: rows.reads):
            if not rows.reads:
                rows.passed()
                continue
            row = rows.put(message.txid, self._bodies.record(message.txid))
            if row is not None:
                await sending.put(row)
        while rest := rows.rest():
            for row in rest:
                await sending.put(row)
            await self._turns.next()
        sending.say(more=False, matches=rows.matches)

    def say(self, frame: bytes) -> None:
        self._instance.send(frame)
        self._outbox.flush()

    async def until_it_reads(self) -> None:
        """Waits until the instance reads what it was sent."""
        while self._instance.is_open and not self._instance.may_write:
            await asyncio.sleep(PAUSE_S)


class _Turns:
    """Lets one query go on in each pass of the loop, so that a pass is short however many queries
    there are.

    Invariant: while a query waits, a call of `_next` is scheduled.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        mine = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        if not mine.done():
            mine.set_result(None)


class _RowStream:
    """The rows of one query on their way to the instance."""

    def __init__(self, answering: QueueQueries, number: int) -> None:
        self._answering = answering
        self._number = number
        self._rows: list[bytes] = []
        self._size_bytes = 0

    async def put(self, row: bytes) -> None:
        if self._rows and self._size_bytes + len(row) > ROWS_BYTES:
            self.say(more=True)
            await self._answering.until_it_reads()
        self._rows.append(row)
        self._size_bytes += len(row)

    def say(self, *, more: bool, matches: int = 0) -> None:
        rows, self._rows, self._size_bytes = self._rows, [], 0
        self._answering.say(
            control.answer(
                self._number, b"".join(rows), count=len(rows), more=more, matches=matches
            )
        )
