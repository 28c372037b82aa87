"""The documented resources over HTTP: `/amps/host`, `/amps/instance` and `/amps/administrator` in
their formats, now or at an earlier time, their schema, the running configuration, and Prometheus's
metrics (behaviour.md 9).

Nothing here touches a message: the values come from the sampler, the history from the statistics
database, and an action is a control call that the instance authorizes and performs itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

from aiohttp import web

from raylay.services.admin.configuration_tree import configuration_branch
from raylay.services.admin.requests import (
    ROOT,
    Format,
    Period,
    ResourceRequest,
    format_time,
    read_request,
    to_csv,
)
from raylay.services.admin.resources import Snapshot
from raylay.services.admin.schema import schema_of
from raylay.services.admin.statistics import past_tree, place_of
from raylay.services.admin.tree import (
    Branch,
    Collection,
    Node,
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
from raylay.services.messages.plain_text import plain
from raylay.services.processes.admin.action_routes import ActionRoutes
from raylay.services.processes.admin.answers import CONTENT_TYPES, node_answer
from raylay.services.processes.admin.guard import READS, RequestGuard
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.telemetry.metrics import LatencyHistogram, Metrics
from raylay.storage import statistics

CONFIGURATION = ("instance", "config")
TIMESTAMP = ("instance", "timestamp")
METRICS_PATH = "/metrics"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONFIGURATION_PATH = "/raylay/config.json"
SCHEMA_PATH = f"/{ROOT}.rnc"
Samples = list[tuple[int, str]]


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
        self._scraping = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._metrics = Metrics(guard.settings.instance, lambda: metrics_snapshot(sampler.snapshot))

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(SCHEMA_PATH, self._schema)
        router.add_get(METRICS_PATH, self._scrape)
        router.add_get(CONFIGURATION_PATH, self._configuration)
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

    # -- the tree ----------------------------------------------------------------------------
    async def _resource(self, asked: ResourceRequest, viewer: Viewer) -> web.Response:
        """Returns the answer to a request for a resource.

        Raises:
            ControlRefused: the user may not read it.
            HTTPNotFound: there is no such resource.
            ConfigurationError: it has no history, or none at this time.
            FabricError: the instance or the statistics cannot be asked.
        """
        path = _check(viewer, "/".join(("", ROOT, *asked.steps)))
        tree: Branch = {**await self._sampler.tree(), "administrator": {}}
        if asked.steps[:2] == CONFIGURATION:
            tree = self._with_configuration(tree)
        try:
            node = node_at(tree, asked.steps)
            found = pruned(tree, asked.steps)
        except KeyError as error:
            raise _not_found(str(error.args[0]), path) from None
        if not isinstance(node, Mapping | Collection):
            if asked.period is None and asked.format != "csv":
                return await formatted(found, asked.format or "json")
            return await self._history(tree, asked, path)
        if asked.format == "csv":
            raise ConfigurationError(f"{path} is no leaf: only a leaf is served as CSV")
        if asked.period is not None:
            found = await self._at(tree, asked.steps, asked.period, path)
        return await formatted(found, asked.format or "json")

    async def _at(self, tree: Branch, steps: tuple[str, ...], period: Period, path: str) -> Node:
        """Returns the tree at the time of one sample, as far as a path leads in it."""
        if period.first_us is None or period.first_us != period.last_us:
            raise ConfigurationError(
                f"{path} is no leaf: give as t0 and t1 the same time, one that "
                f"/{ROOT}/instance/timestamp.csv?t0=… lists"
            )
        when = format_time(period.first_us)
        sample = await self._asked(self._statistics.sample(period.first_us))
        if sample is None:
            raise ConfigurationError(
                f"there is no sample of {when}: /{ROOT}/instance/timestamp.csv?t0=… lists those "
                "that there are"
            )
        past = await asyncio.to_thread(past_tree, tree, sample, period.first_us)
        try:
            return pruned(past, steps)
        except KeyError as error:
            raise _not_found(str(error.args[0]), f"{path} at {when}") from None

    async def _history(self, tree: Branch, asked: ResourceRequest, path: str) -> web.Response:
        # One at a time: a long one is much to hold, in memory and in the way of new samples.
        async with self._reading:
            return await self._read_history(tree, asked, path)

    async def _read_history(self, tree: Branch, asked: ResourceRequest, path: str) -> web.Response:
        period = asked.period or Period(None, None)
        samples: Samples
        if asked.steps == TIMESTAMP:
            times = await self._asked(self._statistics.timestamps(period.first_us, period.last_us))
            samples = [(time_us, format_time(time_us)) for time_us in times]
        else:
            try:
                place = place_of(tree, asked.steps)
            except KeyError:
                raise ConfigurationError(f"{path} has no history: it does not change") from None
            found = await self._asked(
                self._statistics.history(place, period.first_us, period.last_us)
            )
            samples = [(time_us, as_text(value)) for time_us, value in found]
        if len(samples) > statistics.READ_SAMPLES_MAX:
            last = format_time(samples[-2][0])
            raise ConfigurationError(
                f"{path} has more than {statistics.READ_SAMPLES_MAX:,} samples in this period: "
                f"give t1={last} or an earlier one, and ask for the later ones by themselves"
            )
        if asked.format == "csv":
            body = await asyncio.to_thread(to_csv, samples)
            return web.Response(body=body, content_type=CONTENT_TYPES["csv"], charset="utf-8")
        branches: dict[str, Branch] = {
            str(time_us): {"timestamp": str(time_us), "value": value} for time_us, value in samples
        }
        return await formatted({"history": Collection("sample", branches)}, asked.format or "json")

    async def _asked(self, question: Awaitable[Any]) -> Any:
        try:
            return await question
        except StorageError as error:
            raise FabricError(str(error)) from None

    def _with_configuration(self, tree: Branch) -> Branch:
        instance = tree["instance"]
        assert isinstance(instance, Mapping), "the instance is a branch"
        configuration = configuration_branch(self._sampler.snapshot.get("configuration", {}))
        return {**tree, "instance": {**instance, "config": configuration}}

    # -- beside the tree ---------------------------------------------------------------------
    async def _schema(self, request: web.Request) -> web.Response:
        _check(await self._guard.viewer(request), f"/{ROOT}")
        tree = await self._sampler.tree()
        text = await asyncio.to_thread(schema_of, ROOT, tree)
        return web.Response(text=text, content_type="application/relax-ng-compact-syntax")

    async def _configuration(self, request: web.Request) -> web.Response:
        _check(await self._guard.viewer(request), f"/{ROOT}/instance/config")
        await self._sampler.tree()
        configuration = self._sampler.snapshot.get("configuration", {})
        return web.json_response(configuration, dumps=lambda each: json.dumps(each, indent=1))

    async def _scrape(self, request: web.Request) -> web.Response:
        _check(await self._guard.viewer(request), METRICS_PATH)
        await self._sampler.tree()
        async with self._scraping:
            body = await asyncio.to_thread(self._metrics.render)
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})


def metrics_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Returns what services/telemetry/metrics.py reads, from the last snapshot."""
    found: dict[str, Any] = dict(snapshot.get("metrics", {}))
    latency = snapshot.get("write_latency")
    if latency is not None:
        found["commit_latency"] = LatencyHistogram.of_counts(latency["counts"], latency["total"])
    return found


async def formatted(node: Node, kind: Format) -> web.Response:
    """Returns a tree in a format, written in a thread: it may be large."""
    return await asyncio.to_thread(node_answer, node, kind)


def _check(viewer: Viewer, path: str) -> str:
    if not viewer.may(path):
        raise ControlRefused(f"{viewer.user or 'nobody in particular'} may not read {path}")
    return path


def _not_found(what: str, where: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(reason=plain(f"there is no {what[:200]!r} at {where[:500]}"))
