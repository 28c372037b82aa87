"""The administrator's interface over HTTP: requests in, answers out (behaviour.md 9).

Nothing here touches a message: the values come from the sampler, the history from the statistics
database, and an action is a control call that the instance authorizes and performs itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from raylay.services.admin.actions import action_at
from raylay.services.admin.requests import (
    ROOT,
    Format,
    ResourceRequest,
    read_request,
    to_csv,
)
from raylay.services.admin.statistics import place_of
from raylay.services.admin.tree import (
    Branch,
    Collection,
    Node,
    as_text,
    node_at,
    pruned,
    to_json,
    to_xml,
)
from raylay.services.errors import (
    ConfigurationError,
    ControlRefused,
    FabricError,
    RaylayError,
    StorageError,
)
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
from raylay.services.security.control import ROOT as ADMINISTRATOR

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUESTS_MAX = 16
"""Requests that are answered at once; others are told to try again."""
BODY_BYTES_MAX = 64 * 1024
ANTI_FORGERY_HEADER = "X-Raylay"
"""A page of another site cannot send this header without being asked first, and is refused then."""
CHECK = ("authorization", "entitlement", "transports", "amps-admin", "check")
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
_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "xml": "application/xml",
    "csv": "text/csv",
}
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

    def build(self) -> web.Application:
        """Returns the application for a runner."""
        app = web.Application(
            middlewares=[self._guard, self._tell_errors], client_max_size=BODY_BYTES_MAX
        )
        app.router.add_route("*", f"/{ROOT}{{rest:.*}}", self._answer)
        return app

    # -- what every request passes -----------------------------------------------------------
    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds what is answered at once, and sets the headers of every answer."""
        if self._answering >= REQUESTS_MAX:
            response: web.StreamResponse = _error(
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
            response = _error(error.status, error.reason or "")
            if isinstance(error, web.HTTPUnauthorized):
                response.headers[hdrs.WWW_AUTHENTICATE] = self._settings.www_authenticate
            if hdrs.ALLOW in error.headers:
                response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return response
        except ControlRefused as error:
            return _error(403, str(error))
        except ConfigurationError as error:
            return _error(400, str(error))
        except FabricError as error:
            return _error(503, str(error))
        except RaylayError as error:
            return _error(409, str(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("the administrator's interface failed")
            return _error(500, f"{self._settings.instance} could not answer: its log says why")

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
            response = await self._administer(request, asked, viewer)
        elif request.method not in _READS:
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        else:
            response = await self._resource(asked, viewer)
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
            return _error(404, f"there is no {error.args[0]!r} at {path}")
        is_leaf = not isinstance(node, Mapping | Collection)
        if asked.period is not None or asked.format == "csv":
            if not is_leaf:
                raise ConfigurationError(f"{path} is no leaf: only a leaf has a history")
            return await self._history(tree, asked)
        return _formatted(found, asked.format or "json")

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
            return web.Response(body=lines, content_type=_TYPES["csv"], charset="utf-8")
        branches = {
            str(time_us): {"timestamp": str(time_us), "value": value} for time_us, value in samples
        }
        return _formatted({"history": Collection("sample", branches)}, asked.format or "json")

    # -- actions -----------------------------------------------------------------------------
    async def _administer(
        self, request: web.Request, asked: ResourceRequest, viewer: Viewer
    ) -> web.Response:
        steps = asked.steps[1:]
        if steps == CHECK:
            allowed = viewer.may(request.query.get("path", ""))
            return web.Response(text=as_text(allowed), content_type="application/json")
        action = action_at(steps)
        if action is None:
            if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
                return await self._actions(asked, viewer)
            return _error(404, f"there is no action {'/'.join(steps)[:200]!r}")
        if request.method == hdrs.METH_POST:
            self._check_origin(request)
        elif request.method != hdrs.METH_GET or not self._settings.get_actions:
            raise web.HTTPMethodNotAllowed(
                request.method,
                ["POST"],
                reason=f"an action is sent by POST with the header {ANTI_FORGERY_HEADER}: 1; "
                "`get_actions` of `admin` allows the documented GET",
            )
        result = await self._instance.perform(action.call, viewer.caller, action.details)
        return web.json_response({"done": action.call, **action.details, "result": result})

    def _check_origin(self, request: web.Request) -> None:
        """Raises HTTPForbidden where a page of another site may have sent the request."""
        origin = request.headers.get(hdrs.ORIGIN)
        if ANTI_FORGERY_HEADER not in request.headers:
            raise web.HTTPForbidden(reason=f"an action needs the header {ANTI_FORGERY_HEADER}: 1")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(reason="the request comes from a page of another site")

    async def _actions(self, asked: ResourceRequest, viewer: Viewer) -> web.Response:
        """Lists the actions that there are now, each with whether this user may perform it."""
        tree = await self._sampler.tree()
        found: dict[str, Node] = {}
        instance = tree["instance"]
        assert isinstance(instance, Mapping), "the instance is a branch"
        for name, call in (
            ("replication", ("downgrade", "upgrade")),
            ("queues", ("enable_proxied_transfer", "disable_proxied_transfer")),
            ("transports", ("enable", "disable")),
        ):
            of = instance[name]
            assert isinstance(of, Collection), f"{name} is a collection"
            found[name] = Collection(
                of.entry,
                {
                    key: {each: viewer.may(f"{ADMINISTRATOR}{name}/{key}/{each}") for each in call}
                    for key in of.branches
                },
            )
        administrator: Branch = {"administrator": found}
        try:
            node = pruned(administrator, asked.steps)
        except KeyError as error:
            return _error(404, f"there is no {error.args[0]!r} below /{ROOT}/administrator")
        return _formatted(node, asked.format or "json")


def _formatted(node: Node, kind: Format) -> web.Response:
    if kind == "xml":
        return web.Response(body=to_xml(ROOT, node), content_type=_TYPES["xml"], charset="utf-8")
    return web.Response(body=to_json({ROOT: node}), content_type=_TYPES["json"], charset="utf-8")


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json"
    )
