"""The events of a fabric as they come: `/raylay/events`, as server-sent events.

A reader begins with the latest events, or after the one that it names (`Last-Event-ID`). One that
reads too slowly is told how many it missed; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import hdrs, web

from raylay.services.admin.fabric_events import MISSED, FabricEvent, FabricEventBook
from raylay.services.processes.admin.answers import error_answer

SUBSCRIBERS_MAX = 64
FIRST_EVENTS = 200
"""Events with which a reader begins."""
POLL_S = 1.0
HEARTBEAT_S = 10.0
WRITE_S_MAX = 30.0
"""Seconds within which a reader must take the written bytes."""


class EventStreams:
    """The readers of events. Owner: the process's event loop. Lifecycle: `close` ends them."""

    def __init__(self, poll_s: float = POLL_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._token = secrets.token_hex(4)
        """Names the books of this process: positions of another one mean nothing here."""
        self._ended = asyncio.Event()
        self.count = 0

    def close(self) -> None:
        """Ends all streams."""
        self._ended.set()

    async def serve(
        self,
        request: web.Request,
        book: FabricEventBook,
        refresh: Callable[[], Awaitable[None]],
    ) -> web.StreamResponse:
        """Writes events until the reader is gone.

        Args:
            book: the user's book of events.
            refresh: brings new events into the book.
        """
        if self.count >= SUBSCRIBERS_MAX:
            response = error_answer(
                503, f"{SUBSCRIBERS_MAX} readers of events are there: close a page of the console"
            )
            response.headers[hdrs.RETRY_AFTER] = "10"
            return response
        self.count += 1
        try:
            await refresh()
            stream = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await stream.prepare(request)
            await self._write(stream, b"retry: 2000\n\n")
            position, missed = self._start(request, book)
            await self._follow(stream, book, position, missed, refresh)
        finally:
            self.count -= 1
        return stream

    def _start(self, request: web.Request, book: FabricEventBook) -> tuple[int, bool]:
        """Returns the position behind which the reader begins, and whether it may have missed
        events."""
        token, _, number = request.headers.get("Last-Event-ID", "").partition("-")
        if token == self._token and number.isdecimal() and len(number) <= 18:
            return min(int(number), book.position), False
        return max(0, book.position - FIRST_EVENTS), bool(token)

    async def _follow(
        self,
        stream: web.StreamResponse,
        book: FabricEventBook,
        position: int,
        missed: bool,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        if missed:
            await self._write(stream, self._gap(0, position))
        beat_s = loop.time() + self._heartbeat_s
        while not self._ended.is_set():
            lost = book.missed_before(position)
            if lost:
                position += lost
                await self._write(stream, self._gap(lost, position))
            parts = []
            for at, event in book.after(position):
                position = at
                parts.append(self._frame(at, event))
            if parts:
                await self._write(stream, b"".join(parts))
                beat_s = loop.time() + self._heartbeat_s
            elif loop.time() >= beat_s:
                await self._write(stream, b": still here\n\n")
                beat_s = loop.time() + self._heartbeat_s
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._ended.wait()
            except TimeoutError:
                await refresh()

    def _frame(self, position: int, event: FabricEvent) -> bytes:
        # JSON has no line breaks: one line of data is one event.
        data = msgspec.json.encode(event)
        return b"id: %s-%d\ndata: %s\n\n" % (self._token.encode(), position, data)

    def _gap(self, count: int, position: int) -> bytes:
        how_many = f"{count:,} events" if count else "Some events"
        text = f"{how_many} were not read in time: `raylay events` has the latest of each instance"
        details: dict[str, str | float | int | bool | None] = {"missed": count}
        return self._frame(position, FabricEvent("", 0, 0, MISSED, text, "attention", details))

    @staticmethod
    async def _write(stream: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S_MAX):
            await stream.write(data)
