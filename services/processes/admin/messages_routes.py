"""`/raylay/messages`, `/raylay/message/…`, `/raylay/publish` and `/raylay/trace/…`: the message
browser of the console, and the way of a message."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import hdrs, web

from raylay.services.admin.message_rows import (
    CUT_BYTES,
    PANEL_BYTES,
    TEXT_CHARACTERS_MAX,
    read_bookmark,
    read_messages_request,
)
from raylay.services.admin.message_way import (
    SPANS_MAX,
    InstanceTrace,
    StoredMessage,
    WaySpan,
    message_way,
    told_as_json,
    told_of,
)
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConfigurationError,
    ControlRefused,
    FlushTimeout,
    RaylayError,
)
from raylay.services.messages.plain_text import plain
from raylay.services.messages.records import publisher_id
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.processes.admin.bodies import read_json
from raylay.services.processes.admin.message_clients import (
    MessageClients,
    Reader,
    TooManyReaders,
    said_plainly,
)
from raylay.services.processes.admin.message_stream import (
    MessageStream,
    filter_of,
    row_of,
    values_of,
)
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.telemetry import logs

if TYPE_CHECKING:
    from raylay.services.client.messages import Message, MessageBatch
    from raylay.services.client.subscriptions.subscription import Subscription

ANSWER_S = 10.0
"""Time, in seconds, that one message may take to come."""
PEER_S = 3.0
PUBLISH_S = 10.0
NO_TOPIC = ".*"
TRACE_PATH = "/raylay/trace"
log = logs.get("admin_interface")

ViewerOf = Callable[[web.Request], Awaitable[Viewer]]
AskPeer = Callable[[web.Request, str, str], Awaitable[Mapping[str, Any]]]
"""Asks the interface of a peer with the credentials of a request: name, path with query. Returns
its JSON; raises RaylayError."""


@dataclass(slots=True)
class MessagesRoutes:
    """The handlers of the message browser's paths. Owner: the process's event loop.

    Attributes:
        clients: make connections to the instance.
        viewer: returns the user of a request; raises an HTTP error where there is none.
        check_origin: raises where a page of another site may have sent a request.
        types: message types of the instance.
        trace_directory: directory of the trace files on this host; None: no traces are written.
        peers: returns the names of the instances of the fabric in the order of the graph, its own
            included.
        ask_peer: asks a peer's interface; None: no peer can be asked.
        async_links: returns (instance, instance that it sends to) of the configured async links.
    """

    clients: MessageClients
    viewer: ViewerOf
    check_origin: Callable[[web.Request], None]
    types: MessageTypes = field(default_factory=MessageTypes)
    trace_directory: Path | None = None
    peers: Callable[[], Sequence[str]] = tuple
    ask_peer: AskPeer | None = None
    async_links: Callable[[], frozenset[tuple[str, str]]] = frozenset

    @property
    def instance(self) -> str:
        return self.clients.instance

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Adds the routes of this file."""
        router.add_get("/raylay/messages", self._messages)
        router.add_get("/raylay/message/{bookmark}", self._message)
        router.add_get("/raylay/message/{bookmark}/body", self._body)
        router.add_post("/raylay/publish", self._publish)
        router.add_get(TRACE_PATH + "/{bookmark}", self._trace)

    # -- many messages -----------------------------------------------------------------------
    async def _messages(self, request: web.Request) -> web.StreamResponse:
        viewer = await self.viewer(request)
        asked = read_messages_request(request.query)
        if asked.source != "sow":
            filter_of(asked.filter)  # Refused before anybody is connected to.
        try:
            async with self.clients.connected(viewer) as reader:
                rows: Subscription
                first: MessageBatch | None = None

                def ask() -> Subscription:
                    return reader.client.sow(
                        asked.topic,
                        filter=asked.filter,
                        order_by=asked.order_by,
                        top_n=asked.limit,
                        batch=50,
                    )

                if asked.source == "sow":
                    rows = ask()
                    first = await rows.next_batch()
                else:
                    rows = await self._replay(reader, asked.topic, asked.start)
                response = web.StreamResponse()
                response.content_type = "application/x-ndjson"
                response.charset = "utf-8"
                response.headers["X-Accel-Buffering"] = "no"
                stream = MessageStream(asked, request, response, reader, self.types)
                await response.prepare(request)
                try:
                    with said_plainly(self.instance):
                        if asked.source == "sow":
                            await stream.query(rows, first, ask if asked.follow else None)
                        else:
                            await stream.replay(rows)
                except RaylayError as error:
                    # The status is on its way: what went wrong is the last line.
                    await response.write(json.dumps({"error": str(error)}).encode() + b"\n")
                await response.write_eof()
                return response
        except BookmarkNotFound as error:
            raise web.HTTPNotFound(reason=plain(self._not_here(asked.start, error))) from None
        except TooManyReaders as error:
            return _busy(error)

    async def _replay(self, reader: Reader, topic: str, start: str) -> Subscription:
        """Subscribes in the log. Where a topic is not journaled, it is followed from now on, under
        a name that no queue has: of a queue this client would be a consumer."""
        try:
            return await reader.client.subscribe(
                topic, bookmark=start, bookmark_not_found="fail", timeout_s=ANSWER_S
            )
        except CommandFailed as error:
            if error.reason != "not_journaled" or start != "0|1|":
                raise
        return await reader.client.subscribe(f"(?:{topic})", timeout_s=ANSWER_S)

    def _not_here(self, bookmark: str, error: object) -> str:
        return (
            f"{self.instance} has no message {bookmark}: its retention has removed it, or it has "
            f"not arrived; try another instance, or begin at a time ({error})"
        )

    # -- one message -------------------------------------------------------------------------
    async def _found(self, viewer: Viewer, request: web.Request) -> Message:
        """Returns the message that a request names.

        Raises:
            HTTPNotFound: it is not in this instance's journal, nor in its SOW.
        """
        bookmark = read_bookmark(request.match_info["bookmark"])
        topic = request.query.get("topic", "")[:TEXT_CHARACTERS_MAX] or NO_TOPIC
        key = _hex(request.query.get("key", ""), "key")
        async with self.clients.connected(viewer) as reader:
            found = await self._in_journal(reader, bookmark, topic)
            if found is None and key and topic != NO_TOPIC:
                rows = reader.client.sow(topic, keys=[key], non_regex_topic=True)
                every = [each async for each in rows]
                found = next((each for each in every if each.bookmark == bookmark), None)
        if found is None:
            raise web.HTTPNotFound(
                reason=f"{self.instance} has no message {bookmark} that you may read: its "
                "retention has removed it, or it has not arrived; try another instance"
            )
        return found

    async def _in_journal(self, reader: Reader, bookmark: str, topic: str) -> Message | None:
        try:
            subscription = await reader.client.subscribe(
                topic, bookmark=f"[{bookmark}:{bookmark}]", bookmark_not_found="fail",
                timeout_s=ANSWER_S,
            )  # fmt: skip
        except BookmarkNotFound:
            return None
        except CommandFailed as error:
            if error.reason in ("not_journaled", "bookmark_not_found"):
                return None
            raise
        try:
            async with asyncio.timeout(ANSWER_S):
                batch = await subscription.next_batch()
        except TimeoutError:
            return None
        finally:
            subscription.unsubscribe()
        return None if batch is None else next(batch.messages())

    async def _message(self, request: web.Request) -> web.Response:
        viewer = await self.viewer(request)
        try:
            message = await self._found(viewer, request)
        except TooManyReaders as error:
            return _busy(error)
        is_whole = request.query.get("all") == "1" or len(message.body) <= PANEL_BYTES
        row = row_of(message, len(message.body) if is_whole else CUT_BYTES)
        return web.json_response(
            {"instance": self.instance, "row": row, "values": values_of(message, self.types)}
        )

    async def _body(self, request: web.Request) -> web.Response:
        viewer = await self.viewer(request)
        try:
            message = await self._found(viewer, request)
        except TooManyReaders as error:
            return _busy(error)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{message.topic}-{message.bookmark}").strip("-")
        return web.Response(
            body=message.body,
            headers={
                hdrs.CONTENT_TYPE: "application/octet-stream",
                hdrs.CONTENT_DISPOSITION: f'attachment; filename="{name[:100]}"',
                "Content-Security-Policy": "default-src 'none'; sandbox",
            },
        )

    # -- publishing --------------------------------------------------------------------------
    async def _publish(self, request: web.Request) -> web.Response:
        viewer = await self.viewer(request)
        self.check_origin(request)
        told = await _json(request)
        topic, kind = _text(told, "topic"), _text(told, "message_type", "json")
        body = _body_of(told)
        headers = told.get("headers") or {}
        if not isinstance(headers, dict):
            raise ConfigurationError("headers: give an object with key, correlation, expiration_s")
        expiration_s = headers.get("expiration_s") or 0
        if type(expiration_s) is not int or not 0 <= expiration_s < 1 << 32:
            raise ConfigurationError("headers.expiration_s: give seconds, or 0 for none")
        try:
            async with self.clients.connected(viewer, publishes=True) as reader:
                began_s = time.monotonic()
                sequence = await reader.client.publish(
                    topic,
                    body,
                    kind,
                    expiration_s=expiration_s,
                    key=_text(headers, "key", "").encode(),
                    correlation=_text(headers, "correlation", "").encode(),
                )
                why = ""
                try:
                    await reader.client.flush(PUBLISH_S)
                except FlushTimeout as error:
                    why = str(error)
                passed_ms = round((time.monotonic() - began_s) * 1000, 3)
                publisher = publisher_id(reader.client.name)
        except TooManyReaders as error:
            return _busy(error)
        bookmark = f"{publisher}|{sequence}|"
        log.event("console_published", user=viewer.user, bookmark=bookmark, topic=topic)
        return web.json_response(
            {
                "bookmark": bookmark,
                "instance": self.instance,
                "persisted_ms": None if why else passed_ms,
                "why": why,
                "traced": self.clients.tracing.enabled,
            },
            status=202 if why else 200,
        )

    # -- the way of a message ----------------------------------------------------------------
    async def _trace(self, request: web.Request) -> web.Response:
        viewer = await self.viewer(request)
        if not viewer.may(TRACE_PATH):
            raise ControlRefused(
                f"{viewer.user or 'nobody in particular'} may not read {TRACE_PATH}"
            )
        bookmark = read_bookmark(request.match_info["bookmark"])
        topic = request.query.get("topic", "")[:TEXT_CHARACTERS_MAX]
        if request.query.get("own") == "1":
            return web.json_response(told_as_json(await self._own(viewer, bookmark, topic)))
        names = list(self.peers()) or [self.instance]
        asked = f"raylay/trace/{quote(bookmark, safe='')}?own=1&topic={quote(topic, safe='')}"
        told = await asyncio.gather(
            *(
                self._own(viewer, bookmark, topic)
                if name == self.instance
                else self._of_peer(request, name, asked)
                for name in names
            )
        )
        return web.json_response(message_way(bookmark, told, self.async_links()))

    async def _own(self, viewer: Viewer, bookmark: str, topic: str) -> InstanceTrace:
        """Returns this instance's knowledge about a message: the spans on its host, and the place
        of the message in its journal."""
        found = InstanceTrace(self.instance, writes_traces=self.trace_directory is not None)
        try:
            async with self.clients.connected(viewer) as reader:
                message = await self._in_journal(reader, bookmark, topic or NO_TOPIC)
            if message is not None:
                found.stored = StoredMessage(
                    self.instance, message.batch.first_txid, message.timestamp_us
                )
                found.is_sampled = bool(message.trace)
        except RaylayError as error:
            found.error = str(error)
        if self.trace_directory is not None:
            found.spans = await asyncio.to_thread(spans_in, self.trace_directory, bookmark)
        return found

    async def _of_peer(self, request: web.Request, name: str, path: str) -> InstanceTrace:
        if self.ask_peer is None:
            return InstanceTrace(name, error="its administrator's interface is not known here")
        try:
            async with asyncio.timeout(PEER_S):
                return told_of(await self.ask_peer(request, name, path), name)
        except TimeoutError:
            return InstanceTrace(name, error=f"no answer within {PEER_S:.0f} s")
        except RaylayError as error:
            return InstanceTrace(name, error=str(error))


def spans_in(directory: Path, bookmark: str) -> list[WaySpan]:
    """Returns the spans of a message's last trace in the files of a directory. Reads files: not for
    a loop."""
    from raylay.services.telemetry.trace_files import TraceFiles

    try:
        traces = TraceFiles(directory).traces_of(bookmark)
    except (ConfigurationError, OSError):
        return []  # Nothing was traced yet.
    if not traces:
        return []
    return [
        WaySpan(
            span.span_id,
            span.parent_id,
            span.name,
            span.process,
            span.start_ns / 1000,
            span.end_ns / 1000,
            span.attributes,
        )
        for span in traces[-1][:SPANS_MAX]
    ]


async def _json(request: web.Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise ConfigurationError("send JSON, with Content-Type: application/json")
    told = await read_json(request)
    if not isinstance(told, dict):
        raise ConfigurationError("the request's body is no JSON object")
    return told


def _text(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = values.get(name, default)
    if found is None or not isinstance(found, str) or (default is None and not found):
        raise ConfigurationError(f"{name}: give a text")
    return found


def _body_of(told: Mapping[str, Any]) -> bytes:
    if "body_hex" in told:
        return _hex(_text(told, "body_hex", ""), "body_hex")
    return _text(told, "body", "").encode("utf-8", "surrogatepass")


def _hex(text: str, name: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text[:40]!r}: give hexadecimal digits") from None


def _busy(error: TooManyReaders) -> web.Response:
    return web.json_response({"error": str(error)}, status=503, headers={"Retry-After": "1"})
