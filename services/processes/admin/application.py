"""The administrator's interface over HTTP: requests in, answers out (behaviour.md 9).

Nothing here touches a message: the values come from the sampler, the history from the statistics
database, and an action is a control call that the instance authorizes and performs itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from raylay.services.admin.requests import (
    ROOT,
    ResourceRequest,
    read_request,
    to_csv,
)
from raylay.services.admin.statistics import place_of
from raylay.services.admin.tree import (
    Branch,
    Collection,
    as_text,
    node_at,
    pruned,
)
from raylay.services.errors import (
    ConfigurationError,
    ControlRefused,
    FabricError,
    RaylayError,
    StorageError,
)
from raylay.services.processes.admin.action_routes import ActionRoutes
from raylay.services.processes.admin.answers import CONTENT_TYPES, error_answer, node_answer
from raylay.services.processes.admin.instance_source import InstanceSource
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import (
    COOKIE,
    Viewer,
    Viewers,
    read_authorization,
)
from raylay.services.security.control import NOBODY

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUESTS_MAX = 16
"""Requests that are answered at once; others are told to try again."""
BODY_BYTES_MAX = 64 * 1024
NOTHING = re.compile("(?!)")
"""Expression that matches nothing."""
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
_READS = (hdrs.METH_GET, hdrs.METH_HEAD)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InterfaceSettings:
    """The settings of the interface.

    Attributes:
        instance: the instance's name.
        host_names: names, beside its addresses, by which browsers may call it.
        guarded: whether a user must say who it is.
        get_actions: whether a GET request may perform an action, as documented. A page of another
            site, a preview or a crawler can send those: docs/deviations.md.
        anonymous_paths: expression for the paths that need no logon.
        allow_origin: expression for the origins whose pages may read answers, the whole of it.
        headers: further headers of every answer.
        www_authenticate: value of the header that asks for a logon.
    """

    instance: str
    host_names: frozenset[str] = frozenset()
    guarded: bool = False
    get_actions: bool = False
    anonymous_paths: re.Pattern[str] = NOTHING
    allow_origin: re.Pattern[str] = NOTHING
    headers: Mapping[str, str] = field(default_factory=dict)
    www_authenticate: str = 'Basic realm="raylay", charset="UTF-8"'


class AdminApplication:
    """See the file's docstring. Owner: the process's event loop."""

    def __init__(
        self,
        settings: InterfaceSettings,
        instance: InstanceSource,
        sampler: Sampler,
        viewers: Viewers,
        statistics: StatisticsThread,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._sampler = sampler
        self._viewers = viewers
        self._statistics = statistics
        self._answering = 0
        self._actions = ActionRoutes(
            settings.instance, instance, sampler, viewers, get_actions=settings.get_actions
        )

    def build(self) -> web.Application:
        """Returns the application for a runner."""
        app = web.Application(
            middlewares=[self._guard, self._tell_errors], client_max_size=BODY_BYTES_MAX
        )
        app.router.add_route("*", f"/{ROOT}{{rest:.*}}", self._answer)
        app.router.add_get("/raylay/risk", self._risk)
        return app

    # -- what every request passes -----------------------------------------------------------
    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds what is answered at once, and sets the headers of every answer."""
        if self._answering >= REQUESTS_MAX:
            response: web.StreamResponse = error_answer(
                503, f"{REQUESTS_MAX} requests are being answered: try again a little later"
            )
            response.headers["Retry-After"] = "1"
        else:
            self._answering += 1
            try:
                response = await handler(request)
            finally:
                self._answering -= 1
        response.headers.update({**self._settings.headers, **HEADERS})
        origin = request.headers.get(hdrs.ORIGIN, "")
        if origin and self._settings.allow_origin.fullmatch(origin):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.VARY] = hdrs.ORIGIN
        return response

    @web.middleware
    async def _tell_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers each kind of error with its status, and says what to do."""
        try:
            self._check_host(request)
            return await handler(request)
        except web.HTTPException as error:
            response = error_answer(error.status, error.reason or "")
            if isinstance(error, web.HTTPUnauthorized):
                response.headers[hdrs.WWW_AUTHENTICATE] = self._settings.www_authenticate
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
            log.exception("the administrator's interface failed")
            return error_answer(
                500, f"{self._settings.instance} could not answer: its log says why"
            )

    def _check_host(self, request: web.Request) -> None:
        """Refuses names that are not ours: by one that an attacker's server answers for, a page of
        its site would read this interface (DNS rebinding).

        Raises:
            HTTPMisdirectedRequest: the name is none of ours.
        """
        name = urlsplit(f"//{request.host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            if name != "localhost" and name not in self._settings.host_names:
                raise web.HTTPMisdirectedRequest(
                    reason=f"{name[:100]!r} is no name of this interface: call it by its address, "
                    "or add the name to `host_names` of `admin`"
                ) from None

    # -- users -------------------------------------------------------------------------------
    async def _viewer(self, request: web.Request) -> tuple[Viewer, str]:
        """Returns who asks, and a cookie to set; empty: none.

        Raises:
            HTTPUnauthorized: nobody says so, or wrongly.
        """
        if not self._settings.guarded:
            return Viewer("", NOBODY, None), ""
        address = request.remote or ""
        found = self._viewers.of_cookie(request.cookies.get(COOKIE, ""), address)
        if found is not None:
            return found, ""
        caller = read_authorization(request.headers.get(hdrs.AUTHORIZATION, ""))
        if caller is None:
            if self._settings.anonymous_paths.search(request.path) and request.method in _READS:
                return Viewer("", NOBODY, None), ""
            raise web.HTTPUnauthorized(reason="give a user and a password, or a token")
        try:
            return await self._viewers.log_on(caller, address)
        except ControlRefused:
            raise web.HTTPUnauthorized(
                reason="user, password or token are wrong, or not allowed here"
            ) from None

    # -- answers -----------------------------------------------------------------------------
    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(request.rel_url.raw_path, [*request.query.items()])
        viewer, cookie = await self._viewer(request)
        if asked.steps[:1] == ("administrator",):
            response = await self._actions.administer(request, asked, viewer)
        elif request.method not in _READS:
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        else:
            response = await self._resource(asked, viewer)
        return self._with_session(request, response, cookie)

    async def _risk(self, request: web.Request) -> web.StreamResponse:
        viewer, cookie = await self._viewer(request)
        return self._with_session(request, await self._actions.risk(request, viewer), cookie)

    def _with_session(
        self, request: web.Request, response: web.Response, cookie: str
    ) -> web.Response:
        if cookie:
            response.set_cookie(
                COOKIE,
                cookie,
                max_age=round(self._viewers.session_s),
                path="/",
                httponly=True,
                samesite="Strict",
                secure=request.secure,
            )
        return response

    async def _resource(self, asked: ResourceRequest, viewer: Viewer) -> web.Response:
        path = "/".join(("", ROOT, *asked.steps))
        if not viewer.may(path):
            raise ControlRefused(f"{viewer.user or 'nobody in particular'} may not read {path}")
        tree = {**await self._sampler.tree(), "administrator": {}}
        try:
            node = node_at(tree, asked.steps)
            found = pruned(tree, asked.steps)
        except KeyError as error:
            return error_answer(404, f"there is no {error.args[0]!r} at {path}")
        is_leaf = not isinstance(node, Mapping | Collection)
        if asked.period is not None or asked.format == "csv":
            if not is_leaf:
                raise ConfigurationError(f"{path} is no leaf: only a leaf has a history")
            return await self._history(tree, asked)
        return node_answer(found, asked.format or "json")

    async def _history(self, tree: Branch, asked: ResourceRequest) -> web.Response:
        place, period = place_of(tree, asked.steps), asked.period
        bounds = (None, None) if period is None else (period.first_us, period.last_us)
        try:
            samples = await self._statistics.history(place, *bounds)
        except StorageError as error:
            raise FabricError(str(error)) from None
        if asked.format == "csv":
            lines = await asyncio.to_thread(
                to_csv, [(time_us, as_text(value)) for time_us, value in samples]
            )
            return web.Response(body=lines, content_type=CONTENT_TYPES["csv"], charset="utf-8")
        branches = {
            str(time_us): {"timestamp": str(time_us), "value": value} for time_us, value in samples
        }
        return node_answer({"history": Collection("sample", branches)}, asked.format or "json")
