"""What an instance asks of the messages of a queue: those that are available, or which it has."""

from __future__ import annotations

import asyncio
import json

import msgpack

from raylay.services.errors import ExpressionError, RaylayError
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, expression, refusal
from raylay.services.expressions.functions.registry import Functions
from raylay.services.programs.queue_owner.bodies import Bodies
from raylay.services.protocol import queue_control as control
from raylay.services.protocol.frames import Header
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.records import keys_of
from raylay.services.transports.framed import FramedConnection, Outbox

LOOKED_AT_ONCE = 200
RANGES_AT_ONCE = 2_048
"""Of messages that are acknowledged by a filter: an instance takes as many in 3 ms."""
ROWS_BYTES = 256 * 1024
PAUSE_S = 0.005
"""While the instance does not read."""


def key_parts(keys: list[tuple[int, int]]) -> list[tuple[dict[int, list[int]], int]]:
    """These messages in answers of so few ranges that an instance acknowledges each in one turn.

    Returns:
        Of each answer: publisher to first, last, first, last, …; and how many messages it is of.
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


class Answering:
    """See the file's docstring. Owner: the queue's owner."""

    def __init__(
        self,
        machine: QueueMachine,
        bodies: Bodies,
        functions: Functions,
        instance: FramedConnection,
        outbox: Outbox,
    ) -> None:
        self._machine = machine
        self._bodies = bodies
        self._functions = functions
        self._instance = instance
        self._outbox = outbox

    async def answer(self, header: Header) -> None:
        """Answers one question, in turns."""
        number = control.whole(header, "id")
        what = control.text(header, "what")
        try:
            wanted = self._wanted(control.text(header, "filter"))
            if what == "status":
                body = json.dumps(self._machine.status()).encode()
                self._instance.send(control.answer(number, body, count=0))
            elif what == "keys":
                await self._keys(number, wanted)
            else:
                await self._rows(number, wanted)
        except RaylayError as error:
            self._instance.send(control.answer(number, b"", count=0, error=str(error)))
        self._outbox.flush()

    def _wanted(self, text: str) -> Expression | None:
        if not text:
            return None
        try:
            return expression(text, SUBSCRIPTION, self._functions)
        except ExpressionError as error:
            raise RaylayError(refusal(text, error)) from None

    async def _keys(self, number: int, wanted: Expression | None) -> None:
        found: list[tuple[int, int]] = []
        for at, message in enumerate(self._machine.found(wanted), 1):
            found.append(message.key)
            if not at % LOOKED_AT_ONCE:
                await asyncio.sleep(0)
        parts = key_parts(found)
        for at, (flat, count) in enumerate(parts, 1):
            more = at < len(parts)
            body = msgpack.packb(flat)
            self._instance.send(control.answer(number, body, count=count, more=more))
            self._outbox.flush()
            if more:
                # Each part is a turn of the instance, between which it does everything else.
                await asyncio.sleep(PAUSE_S)

    async def _rows(self, number: int, wanted: Expression | None) -> None:
        rows: list[bytes] = []
        size_bytes = 0
        for at, message in enumerate(self._machine.found(wanted, available=True), 1):
            record = self._bodies.record(message.txid)
            if rows and size_bytes + len(record) > ROWS_BYTES:
                self._say(number, rows, more=True)
                rows, size_bytes = [], 0
                while self._instance.is_open and not self._instance.may_write:
                    await asyncio.sleep(PAUSE_S)
            rows.append(record)
            size_bytes += len(record)
            if not at % LOOKED_AT_ONCE:
                await asyncio.sleep(0)
        self._say(number, rows, more=False)

    def _say(self, number: int, rows: list[bytes], *, more: bool) -> None:
        frame = control.answer(number, b"".join(rows), count=len(rows), more=more)
        self._instance.send(frame)
        self._outbox.flush()
