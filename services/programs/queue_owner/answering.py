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
ROWS_BYTES = 256 * 1024
PAUSE_S = 0.005
"""While the instance does not read."""


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
        flat = {
            publisher: [each for pair in ranges for each in pair]
            for publisher, ranges in keys_of(found).items()
        }
        self._instance.send(control.answer(number, msgpack.packb(flat), count=len(found)))

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
