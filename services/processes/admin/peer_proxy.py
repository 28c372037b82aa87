"""`/raylay/peer/NAME/…`: the interface of another instance through this one.

Only instances that are configured are asked, only for the documented tree, the actions and what a
console needs, and never for what they pass on themselves: a request cannot go round. Headers are
those that this file names, in both directions, and whatever a peer answers is data: a browser runs
nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote_to_bytes

from aiohttp import ClientError, ClientResponse, ClientTimeout, hdrs, web
from yarl import URL

from raylay.services.admin.actions import action_at
from raylay.services.admin.fabric_topology import ConfiguredInstance, FabricTopology
from raylay.services.admin.requests import read_request
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.processes.admin.answers import error_answer
from raylay.services.processes.admin.bodies import read_body
from raylay.services.processes.admin.peers import CHUNK_BYTES, HOP_HEADER, FabricPeers, reason
from raylay.services.processes.admin.viewers import Viewer

PREFIX = "/raylay/peer/"
PATH_CHARACTERS_MAX = 4_096
PROXIED_MAX = 64
"""Requests that are passed on at the same time."""
CONNECT_S = 3.0
SILENCE_S = 60.0
"""Time without a byte from the peer; its streams say something more often."""
BODY_BYTES_MAX = 64 * 1024
ROOTS = frozenset(("amps", "metrics"))
OWN = re.compile(
    r"(?:summary|events|check|drills|log|status)\.json|events|messages|publish|risk"
    r"|(?:drills|message|trace)/.+",
    re.DOTALL,
)
"""Expression for the paths below `raylay/` that are passed on to a peer."""
REQUEST_HEADERS = (hdrs.ACCEPT, hdrs.CONTENT_TYPE, "X-Raylay", "Last-Event-ID")
RESPONSE_HEADERS = (
    *(hdrs.CONTENT_TYPE, hdrs.CONTENT_LENGTH, hdrs.CONTENT_DISPOSITION, hdrs.RETRY_AFTER),
    *(hdrs.ALLOW, hdrs.LAST_MODIFIED),
)
DATA_TYPES = frozenset(
    (
        *("application/json", "application/x-ndjson", "text/csv", "text/event-stream"),
        *("text/plain", "application/xml", "application/octet-stream", "text/html"),
    )
)
"""Types of answers that are passed on as they are."""
SANDBOX = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
"""Content-Security-Policy of content from others: it has no origin, and runs no script."""

ViewerOf = Callable[[web.Request], Awaitable[Viewer]]


def asked_of_peer(raw_path: str) -> tuple[str, str]:
    """Reads a path below `PREFIX`. Returns the peer's name, decoded, and the path that it is asked
    for, encoded, without a slash in front.

    Raises:
        ConfigurationError: the path may not be passed on.
    """
    if len(raw_path) > PATH_CHARACTERS_MAX:
        raise ConfigurationError(
            f"the path has {len(raw_path)} characters: at most {PATH_CHARACTERS_MAX} are read"
        )
    name, _, rest = raw_path.removeprefix(PREFIX).partition("/")
    steps = [unquote_to_bytes(step) for step in rest.split("/")]
    for step in steps:
        if step in (b".", b"..", b"") or any(byte < 0x20 or byte == 0x7F for byte in step):
            raise ConfigurationError(
                f"{rest[:200]!r} is no path that is passed on: it has an empty step, a dot step or "
                "a control character"
            )
    first = re.split(r"\.(?:json|xml)$", rest.split("/")[0])[0]
    below = rest.removeprefix("raylay/")
    if first not in ROOTS and (below == rest or OWN.fullmatch(below) is None):
        raise ConfigurationError(
            f"{rest[:200]!r} is not passed on: instances are asked for amps/…, metrics, and what "
            "the console reads below raylay/"
        )
    return unquote_to_bytes(name).decode("utf-8", "replace"), rest


def is_action(rest: str) -> bool:
    """Returns whether a path that `asked_of_peer` returned is that of an action. An instance that
    performs one for a GET request must not be made to by a link on a page of another site.

    Raises:
        ConfigurationError: it is a path of no resource.
    """
    if not rest.startswith("amps"):
        return False
    steps = read_request(f"/{rest}", ()).steps
    return steps[:1] == ("administrator",) and action_at(steps[1:]) is not None


class PeerProxy:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        instance: the own instance's name; requests for it are answered here.
    """

    def __init__(self, instance: str, peers: FabricPeers, viewer: ViewerOf) -> None:
        self._instance = instance
        self._peers = peers
        self._viewer = viewer
        self._running = 0

    async def answer(self, request: web.Request, topology: FabricTopology) -> web.StreamResponse:
        """Answers a request whose path is below `PREFIX`. The caller has checked the origin of a
        POST request."""
        if HOP_HEADER in request.headers:
            return error_answer(
                508, f"{self._instance} does not pass on what another interface passes on"
            )
        name, rest = asked_of_peer(request.rel_url.raw_path)
        if name == self._instance:
            return await self._own(request, rest)
        peer = topology.instance(name)
        if peer is None:
            known = ", ".join(each.name for each in topology.instances[:20])
            return error_answer(404, f"no instance {name[:200]!r} is configured: there are {known}")
        if not peer.url:
            return error_answer(
                404, f"{name} has no administrator's interface: give it a `port` in `admin`"
            )
        viewer = await self._viewer(request)
        if request.method != hdrs.METH_POST and is_action(rest):
            raise web.HTTPMethodNotAllowed(
                request.method, ["POST"], reason="an action is passed on by POST only"
            )
        if self._running >= PROXIED_MAX:
            response = error_answer(503, f"{PROXIED_MAX} requests are passed on: try again later")
            response.headers[hdrs.RETRY_AFTER] = "1"
            return response
        self._running += 1
        try:
            return await self._passed_on(request, peer, rest, viewer, topology)
        finally:
            self._running -= 1

    async def _own(self, request: web.Request, rest: str) -> web.StreamResponse:
        """Answers a request for the own instance with the handler of the inner path, without a
        connection to itself."""
        query = request.rel_url.raw_query_string
        url = URL(f"/{rest}?{query}" if query else f"/{rest}", encoded=True)
        inner = request.clone(rel_url=url)
        found = await request.app.router.resolve(inner)
        found.add_app(request.app)
        found.freeze()
        inner._match_info = found
        try:
            return await found.handler(inner)
        finally:
            for key, value in inner.items():
                request[key] = value

    async def _passed_on(
        self,
        request: web.Request,
        peer: ConfiguredInstance,
        rest: str,
        viewer: Viewer,
        topology: FabricTopology,
    ) -> web.StreamResponse:
        body = await read_body(request) if request.can_read_body else None
        query = request.rel_url.raw_query_string
        url = URL(f"{peer.url}/{rest}" + (f"?{query}" if query else ""), encoded=True)
        headers = self._peers.request_headers(viewer, peer.name)
        for name in REQUEST_HEADERS:
            if name in request.headers:
                headers[name] = request.headers[name]
        try:
            async with self._peers.session().request(
                request.method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=self._peers.trust(topology),
                timeout=ClientTimeout(
                    total=None, connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=SILENCE_S
                ),
            ) as response:
                return await self._returned(request, response, peer.name, viewer)
        except (ClientError, TimeoutError, ValueError) as error:
            why = "it did not answer in time" if isinstance(error, TimeoutError) else reason(error)
            raise FabricError(f"{peer.name} does not answer: {why}") from None

    async def _returned(
        self, request: web.Request, response: ClientResponse, name: str, viewer: Viewer
    ) -> web.StreamResponse:
        if response.status == 401:
            # The browser must not ask for a password for this address: it would be sent here.
            return error_answer(403, f"{name} does not let {viewer.user or 'nobody'} in")
        if 300 <= response.status < 400 or response.status < 200:
            return error_answer(502, f"{name} answers with status {response.status}")
        if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            return error_answer(502, f"{name} answers in a form that was not asked for")
        answer = web.StreamResponse(status=response.status, headers=passed_back(response.headers))
        await answer.prepare(request)
        try:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                await answer.write(chunk)
            await answer.write_eof()
        except (ClientError, TimeoutError):
            # It has begun: that it is not whole shows only in how it ends.
            if request.transport is not None:
                request.transport.abort()
        return answer


def passed_back(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of a peer's answer that are passed back to the browser."""
    found: dict[str, str] = {
        str(name): headers[name] for name in RESPONSE_HEADERS if name in headers
    }
    kind = found.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if kind not in DATA_TYPES:
        found[hdrs.CONTENT_TYPE] = "application/octet-stream"
        found[hdrs.CONTENT_DISPOSITION] = "attachment"
    found["Content-Security-Policy"] = SANDBOX
    return found
