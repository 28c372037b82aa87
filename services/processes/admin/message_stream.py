"""The stream of `/raylay/messages`: lines of JSON with rows, progress, and why it ended.

A filter is evaluated here and not at the instance, so that a search through a long log costs the
instance's loop no more than handing out the log, and so that it is known how much was read.

A replay waits for the browser: the client then reads no more, and the instance reads no further in
its journal. While it follows, a stream waits for nobody: 200 rows a second are sent, as far as the
browser takes them, and the others are counted. So nothing is kept anywhere for a slow browser.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from raylay.services.admin.message_rows import (
    PANEL_BYTES,
    ROW_BYTES,
    MessagesRequest,
    body_text,
    header_text,
    values_text,
)
from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.expressions.expression import ANYWHERE, Expression, expression, refusal
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.bookmarks import format_bookmark
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.plugins.functions import functions

if TYPE_CHECKING:
    from raylay.services.client.messages import Message, MessageBatch
    from raylay.services.client.subscriptions.subscription import Subscription
    from raylay.services.processes.admin.message_clients import Reader

FOLLOWED_ROWS_PER_S = 200
TICK_S = 0.25
"""Time between two lines of progress while something is read."""
SLICE_S = 0.01
"""Time after which reading lets the loop do other work."""
CHECKED_MESSAGES = 64
"""Messages between two looks at the clock."""
READ_S_MAX = 60.0
"""Time that a replay or a query may take; the page offers to go on."""
LOOK_S = 2.0
"""Time, in seconds, between two looks at the rows of a query that is followed."""
FOLLOW_S_MAX = 3_600.0
SENT_BYTES_MAX = 64 * 1024 * 1024
WRITE_BYTES = 32 * 1024
"""Size, in bytes, of the blocks in which lines are written. A stream that follows leaves rows out
while the browser has still more than this to take."""
TEXT_KINDS = frozenset(("json", "xml", "fix", "nvfix"))


def filter_of(text: str) -> Expression | None:
    """Compiles a filter; None: there is none.

    Raises:
        ConfigurationError: it is no filter; says where.
    """
    if not text:
        return None
    try:
        return expression(text, ANYWHERE, functions())
    except ExpressionError as error:
        raise ConfigurationError(refusal(text, error)) from None


def row_of(
    message: Message, body_bytes: int = ROW_BYTES, *, is_sow: bool = False
) -> dict[str, Any]:
    """Returns a message as a row. Numbers of 64 bits are texts: JavaScript would round them.

    Args:
        body_bytes: bytes of the body at most.
    """
    record = message.record
    text, is_text, is_cut = body_text(record.body, body_bytes)
    headers = {}
    if record.key:
        headers["SOW key"] = header_text(record.key)
    if record.correlation:
        headers["correlation id"] = header_text(record.correlation)
    if record.expiration_s:
        headers["expiration"] = f"{record.expiration_s} s"
    if message.reason:
        headers["reason"] = message.reason
    return {
        "bookmark": message.bookmark,
        "topic": record.topic,
        "message_type": record.message_type,
        "publisher": str(record.publisher),
        "sequence": str(record.sequence),
        "timestamp_us": message.timestamp_us or record.origin_time_us,
        "published_us": record.origin_time_us,
        "size": len(record.body),
        "headers": headers,
        "traced": bool(record.trace),
        "body": text,
        "is_text": is_text,
        "is_cut": is_cut,
        "sow_key": record.key.hex() if is_sow and record.key else None,
    }


def values_of(message: Message, types: MessageTypes) -> str | None:
    """Returns the fields of a body in a binary format as JSON; None: it is a text, or its type says
    nothing of its fields."""
    body = message.body
    if message.message_type in TEXT_KINDS or len(body) > PANEL_BYTES:
        return None
    try:
        found = types[message.message_type].parse(body)
    except MessageTypeError:
        return None
    return values_text(found) if found else None


@dataclass(slots=True)
class _Budget:
    """The rows that may be sent now, while a stream follows."""

    rows: float = FOLLOWED_ROWS_PER_S
    at_s: float = 0.0

    def take(self, now_s: float) -> bool:
        risen = (now_s - self.at_s) * FOLLOWED_ROWS_PER_S
        self.rows, self.at_s = min(float(FOLLOWED_ROWS_PER_S), self.rows + risen), now_s
        if self.rows < 1:
            return False
        self.rows -= 1
        return True


class MessageStream:
    """One answer to a request for messages.

    Owner: its request. Lifecycle: `replay` or `query`, once.

    Args:
        types: message types of the instance.
        read_s: as `READ_S_MAX`.
    """

    def __init__(
        self,
        asked: MessagesRequest,
        request: web.Request,
        response: web.StreamResponse,
        reader: Reader,
        types: MessageTypes,
        clock: Callable[[], float] = time.monotonic,
        read_s: float = READ_S_MAX,
    ) -> None:
        self._asked = asked
        self._request = request
        self._response = response
        self._reader = reader
        self._types = types
        self._clock = clock
        self._filter = filter_of(asked.filter) if asked.source != "sow" else None
        self._lines = bytearray()
        self._sent_bytes = 0
        self._budget = _Budget(at_s=clock())
        self._slice_s = self._tick_s = self._began_s = clock()
        self._until_s = self._began_s + (FOLLOW_S_MAX if asked.follow else read_s)
        self._follows = asked.source == "live"
        self._progress = ""
        self.found = self.read = self.dropped = self.unreadable = 0
        self.at_us = 0
        self.position = ""
        """Bookmark of the last message that was read."""
        self.why = ""
        """Reason for which the stream ends; empty: it does not yet."""

    async def replay(self, subscription: Subscription) -> None:
        """Sends what a subscription brings, up to the limit or, where it follows, until the browser
        leaves.

        Raises:
            ConnectionError: the browser has left.
            FabricError: the connection to the instance has ended.
            RaylayError: what ended the subscription.
        """
        coming: asyncio.Task[MessageBatch | None] | None = None
        try:
            while not self.why:
                coming = coming or asyncio.ensure_future(subscription.next_batch())
                done, _ = await asyncio.wait([coming], timeout=TICK_S)
                if done:
                    batch, coming = coming.result(), None
                    if batch is None:
                        self.why = "end"
                    else:
                        await self._batch(batch)
                        if self._follows and self._lines:
                            await self._write()
                    # The client has thousands of deliveries at hand when it is far behind.
                    await self._let_others_work()
                elif subscription.caught_up.is_set() and not subscription.queued_messages:
                    self._follows = True
                    if not self._asked.follow:
                        self.why = "end"
                if self._clock() - self._tick_s >= TICK_S:
                    await self._tick()
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            subscription.unsubscribe()
        await self._end()

    async def query(
        self,
        rows: Subscription,
        batch: MessageBatch | None,
        again: Callable[[], Subscription] | None = None,
    ) -> None:
        """Sends the rows of a query; raises as `replay`.

        Args:
            batch: the first ones; None: there are none.
            again: asks the query again, which is done every `LOOK_S` until the browser leaves. A
                line with `look` is behind the rows of each. None: it is asked once.
        """
        look = 1
        while True:
            await self._rows(rows, batch)
            if again is None or self.why:
                break
            self._add({"look": look})
            await self._write()
            look += 1
            await self._wait(LOOK_S)
            if self.why:
                break
            self.found = 0
            rows = again()
            batch = await rows.next_batch()
        self.why = self.why or ("limit" if self.found > self._asked.limit else "end")
        await self._end()

    async def _wait(self, seconds: float) -> None:
        """Waits, and looks meanwhile whether the browser is still there."""
        until_s = self._clock() + seconds
        while not self.why and (left_s := until_s - self._clock()) > 0:
            await asyncio.sleep(min(left_s, TICK_S))
            if self._clock() - self._tick_s >= TICK_S:
                await self._tick()

    async def _rows(self, rows: Subscription, batch: MessageBatch | None) -> None:
        try:
            while batch is not None and not self.why:
                for message in batch.messages():
                    self.found += 1
                    await self._send(row_of(message, is_sow=True))
                await self._let_others_work()
                batch = await rows.next_batch()
        finally:
            rows.unsubscribe()
        matches = getattr(rows, "matches", None)
        if matches is not None:
            self.found = matches

    async def _batch(self, batch: MessageBatch) -> None:
        follows, limit = self._follows, self._asked.limit
        self.at_us = batch.timestamp_us
        for count, message in enumerate(batch.messages(), 1):
            self.read += 1
            if self._filter is None or self._passes(message, self._filter):
                self.found += 1
                if not follows or (self._budget.take(self._clock()) and self._has_room()):
                    await self._send(row_of(message))
                else:
                    self.dropped += 1
            if count % CHECKED_MESSAGES == 0:
                await self._let_others_work()
            if self.why or (not follows and self.found >= limit):
                self.why = self.why or "limit"
                self.position = message.bookmark
                return
        if batch.ranges:
            publisher, _, last = batch.ranges[-1]
            self.position = format_bookmark(publisher, last)

    def _passes(self, message: Message, wanted: Expression) -> bool:
        record = message.record
        try:
            body = self._types[record.message_type].parse(record.body)
        except MessageTypeError:
            self.unreadable += 1
            return False
        around = EvalContext(
            topic=record.topic,
            size_bytes=len(record.body),
            correlation_id=header_text(record.correlation) if record.correlation else None,
            bookmark=record.bookmark,
            sow_key=header_text(record.key) if record.key else None,
            last_updated=message.timestamp_us / 1e6,
            now_s=time.time(),
            random_bytes=secrets.token_bytes,
        )
        return bool(wanted.matches(body, around))

    # -- lines -------------------------------------------------------------------------------
    async def _send(self, row: dict[str, Any]) -> None:
        self._add({"row": row})
        if len(self._lines) >= WRITE_BYTES:
            await self._write()
        if self._sent_bytes >= SENT_BYTES_MAX:
            self.why = "bytes"

    def _add(self, line: dict[str, Any]) -> None:
        self._lines += json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "backslashreplace"
        )
        self._lines += b"\n"

    async def _write(self) -> None:
        lines, self._lines = bytes(self._lines), bytearray()
        self._sent_bytes += len(lines)
        await self._response.write(lines)

    def _has_room(self) -> bool:
        """Returns whether the browser has taken what was written before."""
        transport = self._request.transport
        return transport is not None and transport.get_write_buffer_size() <= WRITE_BYTES

    async def _let_others_work(self) -> None:
        now_s = self._clock()
        if now_s - self._slice_s >= SLICE_S:
            await asyncio.sleep(0)
            self._slice_s = self._clock()
        if now_s - self._tick_s >= TICK_S:
            await self._tick()

    async def _tick(self) -> None:
        """Sends what is ready, and how far it is; ends what has taken too long."""
        self._tick_s = self._clock()
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the browser has left")
        self._reader.check()
        if self._tick_s >= self._until_s:
            self.why = self.why or "time"
        if self._follows and not self._has_room():
            return
        self._add({"progress": self._state()})
        await self._write()

    def _state(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "read": None if self._asked.source == "sow" else self.read,
            "at_us": self.at_us or None,
            "dropped": self.dropped,
            "unreadable": self.unreadable,
            "follows": self._follows,
            "position": self.position,
            "seconds": round(self._clock() - self._began_s, 2),
        }

    async def _end(self) -> None:
        self._add({"progress": self._state()})
        self._add({"end": {"why": self.why, "position": self.position}})
        await self._write()
