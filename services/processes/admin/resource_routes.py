"""The documented resources over HTTP: `/amps/host`, `/amps/instance` and `/amps/administrator`
(behaviour.md 9).

Nothing here touches a message: the values come from the sampler, the history from the statistics
database, and an action is a control call that the instance authorizes and performs itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

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
    StorageError,
)
from raylay.services.processes.admin.action_routes import ActionRoutes
from raylay.services.processes.admin.answers import CONTENT_TYPES, error_answer, node_answer
from raylay.services.processes.admin.guard import READS, RequestGuard
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import Viewer


class ResourceRoutes:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        guard: finds out who asks.
        actions: answers what is below `/amps/administrator`.
    """

    def __init__(
        self,
        guard: RequestGuard,
        sampler: Sampler,
        statistics: StatisticsThread,
        actions: ActionRoutes,
    ) -> None:
        self._guard = guard
        self._sampler = sampler
        self._statistics = statistics
        self._actions = actions

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_route("*", f"/{ROOT}{{rest:.*}}", self._answer)
        router.add_get("/raylay/risk", self._risk)
        router.add_get("/raylay/status.json", self._status)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(request.rel_url.raw_path, [*request.query.items()])
        viewer = await self._guard.viewer(request)
        if asked.steps[:1] == ("administrator",):
            return await self._actions.administer(request, asked, viewer)
        if request.method not in READS:
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        return await self._resource(asked, viewer)

    async def _risk(self, request: web.Request) -> web.StreamResponse:
        return await self._actions.risk(request, await self._guard.viewer(request))

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return await self._actions.status(request, await self._guard.viewer(request))

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
