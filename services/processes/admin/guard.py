"""The guard of the administrator's interface: what every request passes before it is answered.

It bounds what is answered at once, refuses host names that are not the interface's, finds out who
asks, turns errors into answers, and sets the headers of every answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from raylay.services.errors import (
    ConfigurationError,
    ControlRefused,
    FabricError,
    RaylayError,
)
from raylay.services.processes.admin.answers import error_answer
from raylay.services.processes.admin.viewers import (
    COOKIE,
    Viewer,
    Viewers,
    read_authorization,
)
from raylay.services.security.control import NOBODY
from raylay.services.telemetry import logs

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUESTS_MAX = 32
"""Number of requests that are answered at once. Others wait for their turn."""
TURN_S_MAX = 5.0
"""Time, in seconds, that a request waits for its turn before it is told to try again."""
BODY_BYTES_MAX = 64 * 1024
EVENTS = "/raylay/events"
STREAMS = ("/raylay/message", "/raylay/peer/")
"""Prefixes of the paths of streams: like `EVENTS`, they have limits of their own."""
NOTHING = re.compile("(?!)")
"""Expression that matches nothing."""
READS = (hdrs.METH_GET, hdrs.METH_HEAD)
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NOT_FOUND = web.HTTPNotFound().reason
"""The router's text for a path that has no route."""
SESSION = web.RequestKey("session", str)
"""Key under which a request keeps the session that its logon has begun."""
log = logs.get("admin_interface")


@dataclass(frozen=True, slots=True)
class InterfaceSettings:
    """The settings of the interface.

    Attributes:
        instance: the instance's name.
        host_names: names, beside its addresses, by which browsers may call it.
        guarded: whether users must log on.
        anonymous_paths: expression for the paths that need no logon.
        allow_origin: expression for the origins whose pages may read answers, the whole of it.
        headers: further headers of every answer.
        www_authenticate: value of the header that asks for a logon.
    """

    instance: str
    host_names: frozenset[str] = frozenset()
    guarded: bool = False
    anonymous_paths: re.Pattern[str] = NOTHING
    allow_origin: re.Pattern[str] = NOTHING
    headers: Mapping[str, str] = field(default_factory=dict)
    www_authenticate: str = 'Basic realm="raylay", charset="UTF-8"'


class RequestGuard:
    """See the file's docstring. Owner: the process's event loop."""

    def __init__(self, settings: InterfaceSettings, viewers: Viewers) -> None:
        self.settings = settings
        self._viewers = viewers
        self._turns = asyncio.Semaphore(REQUESTS_MAX)

    def build(self) -> web.Application:
        """Returns an application whose requests pass this guard."""
        app = web.Application(
            middlewares=[self._bound, self._tell_errors], client_max_size=BODY_BYTES_MAX
        )
        app.on_response_prepare.append(self._prepare)
        return app

    @web.middleware
    async def _bound(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Limits the number of requests that are answered at once."""
        if self.waits_not(request.path):
            return await handler(request)
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await self._turns.acquire()
        except TimeoutError:
            response = error_answer(
                503,
                f"{self.settings.instance} is answering {REQUESTS_MAX} requests: try again a "
                "little later",
            )
            response.headers[hdrs.RETRY_AFTER] = "1"
            return response
        try:
            return await handler(request)
        finally:
            self._turns.release()

    def waits_not(self, path: str) -> bool:
        """Returns whether a path is that of a stream, which is bounded elsewhere."""
        # What the own instance is asked for by its name is answered here as any other request.
        own = f"/raylay/peer/{self.settings.instance}/"
        if path.startswith(own):
            path = path[len(own) - 1 :]
        return path == EVENTS or path.startswith(STREAMS)

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sets the headers of an answer, but for those that its handler has set."""
        for name, value in {**self.settings.headers, **HEADERS}.items():
            response.headers.setdefault(name, value)
        origin = request.headers.get(hdrs.ORIGIN, "")
        if origin and self.settings.allow_origin.fullmatch(origin):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.VARY] = hdrs.ORIGIN
        token = request.get(SESSION)
        if token:
            # aiohttp has written the cookies of the answer into its headers by now.
            seconds = round(self._viewers.session_s)
            cookie = f"{COOKIE}={token}; HttpOnly; Max-Age={seconds}; Path=/; SameSite=Strict"
            secure = "; Secure" if request.secure else ""
            response.headers.add(hdrs.SET_COOKIE, cookie + secure)

    @web.middleware
    async def _tell_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers each kind of error with its status, and says what to do."""
        try:
            self._check_host(request)
            return await handler(request)
        except web.HTTPException as error:
            text = error.reason or ""
            if isinstance(error, web.HTTPNotFound) and text == NOT_FOUND:
                text = (
                    f"{self.settings.instance} serves nothing at {request.path[:200]!r}: "
                    "/amps.json is its documented tree, / its console"
                )
            response = error_answer(error.status, text)
            if isinstance(error, web.HTTPUnauthorized):
                response.headers[hdrs.WWW_AUTHENTICATE] = self.settings.www_authenticate
            if hdrs.ALLOW in error.headers:
                response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return response
        except ControlRefused as error:
            return error_answer(403, str(error))
        except ConfigurationError as error:
            return error_answer(400, str(error))
        except FabricError as error:
            return error_answer(503, str(error))
        except RaylayError as error:
            return error_answer(409, str(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.error(
                "admin_request_failed",
                method=request.method,
                path=request.path,
                text=traceback.format_exc(),
            )
            return error_answer(500, f"{self.settings.instance} could not answer: its log says why")

    def _check_host(self, request: web.Request) -> None:
        """Refuses names that are not ours: by one that an attacker's server answers for, a page of
        its site would read this interface (DNS rebinding).

        Raises:
            HTTPMisdirectedRequest: the name is none of ours.
        """
        name = ""
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            if name != "localhost" and name not in self.settings.host_names:
                raise web.HTTPMisdirectedRequest(
                    reason=f"{(name or request.host)[:100]!r} is no name of this interface: call "
                    "it by its address, or add the name to `host_names` of `admin`"
                ) from None

    # -- users -------------------------------------------------------------------------------
    async def viewer(self, request: web.Request) -> Viewer:
        """Returns the user that sends a request. A logon begins a session, whose cookie the answer
        sets.

        Raises:
            HTTPUnauthorized: the request has no credentials, or wrong ones.
        """
        if not self.settings.guarded:
            return Viewer("", NOBODY, None)
        address = request.remote or ""
        found = self._viewers.of_cookie(request.cookies.get(COOKIE, ""), address)
        if found is not None:
            return found
        caller = read_authorization(request.headers.get(hdrs.AUTHORIZATION, ""))
        if caller is None:
            if self.settings.anonymous_paths.search(request.path) and request.method in READS:
                return Viewer("", NOBODY, None)
            raise web.HTTPUnauthorized(reason="give a user and a password, or a token")
        try:
            viewer, request[SESSION] = await self._viewers.log_on(caller, address)
        except ControlRefused:
            raise web.HTTPUnauthorized(
                reason="user, password or token are wrong, or not allowed here"
            ) from None
        return viewer
