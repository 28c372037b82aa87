"""`/raylay/…`: the view of the whole fabric, the summary of this instance, other instances through
this one, events, the topology check, and drill reports."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import hdrs, web

from raylay.services.admin.fabric_events import read_event
from raylay.services.admin.fabric_problems import (
    problem_documents,
    problems_of,
    verdict_of,
)
from raylay.services.admin.fabric_summary import InstanceSummary, Summarizer
from raylay.services.admin.fabric_topology import FabricTopology
from raylay.services.admin.fabric_view import fabric_document, standing_alone, view_of
from raylay.services.admin.requests import number_in
from raylay.services.errors import ConfigurationError, ControlRefused
from raylay.services.processes.admin.answers import error_answer
from raylay.services.processes.admin.drill_reports import DrillReports
from raylay.services.processes.admin.event_stream import EventStreams
from raylay.services.processes.admin.head_watch import HeadWatch
from raylay.services.processes.admin.peer_proxy import PREFIX, SANDBOX, PeerProxy
from raylay.services.processes.admin.peers import SUMMARY_PATH, FabricPeers, PeerBoard
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.topology_file import TopologyFile
from raylay.services.processes.admin.viewers import Viewer

READ_PATH = "/amps/instance"
"""Path for which a user needs the permission `read` to see an instance's summary."""
VIEW_S = 0.9
"""Time, in seconds, for which one view of the fabric answers further requests."""
EVENTS_MAX = 1_000
GZIP_LEVEL = 5
GZIP_BYTES_MIN = 4_096
HIDDEN_MAX = 1_000
"""Limit on the instance's latest events that a summary is made from."""

Events = Callable[[], Sequence[Mapping[str, Any]]]


class OwnSummaries:
    """The summaries of the own instance, one for each sample.

    Owner: the process's event loop.

    Args:
        directory: of the instance's data; its disk is looked at.
        events: returns the latest events of the instance, oldest first.
    """

    def __init__(self, sampler: Sampler, directory: Path, events: Events) -> None:
        self._sampler = sampler
        self._directory = directory
        self._events = events
        self._summarizer = Summarizer()
        self._summary: InstanceSummary | None = None
        self._of_us = 0
        self._free_percent: float | None = None
        self._looking: asyncio.Task[None] | None = None

    async def summary(self, viewer: Viewer) -> InstanceSummary:
        """Returns the summary of the last sample, which is at most a second old.

        Raises:
            ControlRefused: the user may not read it.
            FabricError: the instance does not answer.
        """
        if not viewer.may(READ_PATH):
            raise ControlRefused(
                f"{viewer.user or 'nobody in particular'} may not read {READ_PATH}"
            )
        await self._sampler.tree()
        if self._summary is None or self._sampler.time_us != self._of_us:
            if self._looking is None:
                self._looking = asyncio.ensure_future(self._look())
            self._of_us = self._sampler.time_us
            events = [*self._events()][-HIDDEN_MAX:]
            self._summary = self._summarizer.take(
                {**self._sampler.snapshot, "events": events},
                time_us=self._of_us,
                steady_us=time.monotonic_ns() // 1000,
                disk_free_percent=self._free_percent,
            )
        return self._summary

    async def _look(self) -> None:
        """Looks at the disk. The call may hang, so no request waits for it, and only one runs at a
        time."""
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self._directory)
            self._free_percent = round(100 * usage.free / usage.total, 1) if usage.total else None
        except OSError:
            self._free_percent = None
        finally:
            self._looking = None

    def close(self) -> None:
        """Stops looking at the disk."""
        if self._looking is not None:
            self._looking.cancel()


class FabricRoutes:
    """The handlers of the paths below `/raylay/`.

    Owner: the process's event loop. Lifecycle: `start_up` and `shut_down` once.

    Args:
        instance, group: name and group of the own instance.
        directory: its data directory, with the configured topology.
        sampler: keeps the last sample of its values.
        events: returns its latest events, oldest first.
        viewer: returns the user of a request; raises an HTTP error where there is none.
        check_origin: raises where a page of another site may have sent a request.
        guarded: whether users must log on.
        streams: the streams of events.
        head: the watch over Ray's head.
    """

    def __init__(
        self,
        instance: str,
        group: str,
        directory: Path,
        sampler: Sampler,
        events: Events,
        viewer: Callable[[web.Request], Awaitable[Viewer]],
        check_origin: Callable[[web.Request], None],
        *,
        guarded: bool = False,
        streams: EventStreams | None = None,
        head: HeadWatch | None = None,
    ) -> None:
        self._instance = instance
        self._viewer = viewer
        self._check_origin = check_origin
        self._guarded = guarded
        self._events = events
        self._sampler = sampler
        self._file = TopologyFile(directory, instance, group)
        self._own = OwnSummaries(sampler, directory, events)
        self._peers = FabricPeers(instance, self._own.summary)
        self._proxy = PeerProxy(instance, self._peers, viewer)
        self._streams = streams or EventStreams()
        self.head = head or HeadWatch(self.head_address)
        """The watch over Ray's head."""
        self._reports = DrillReports()
        self._reading = asyncio.Lock()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Adds the routes of this file."""
        router.add_get("/raylay/fabric.json", self._fabric)
        router.add_get(SUMMARY_PATH, self._summary)
        router.add_get("/raylay/events", self._stream)
        router.add_get("/raylay/events.json", self._own_events)
        router.add_get("/raylay/check.json", self._check)
        router.add_get("/raylay/drills.json", self._drills)
        router.add_get("/raylay/drills/{id}", self._drill)
        router.add_route("*", PREFIX + "{rest:.*}", self._peer)

    async def start_up(self, app: web.Application) -> None:
        """Reads the topology before anybody asks."""
        await self._file.look()
        self.head.start()

    async def shut_down(self, app: web.Application) -> None:
        """Ends streams, and questions to peers, as its application ends."""
        self._streams.close()
        self.head.close()
        self._own.close()
        await self._peers.close()

    async def head_address(self) -> str:
        """Returns where Ray's head is; empty: that is not known."""
        return (await self._file.look()).head

    # -- for the routes of others ----------------------------------------------------------------
    def instances(self) -> Sequence[str]:
        """Returns the names of the fabric's instances in the order of the graph, the own one
        included."""
        return tuple(each.name for each in self._file.topology.instances)

    def async_links(self) -> frozenset[tuple[str, str]]:
        """Returns (instance, instance that it sends to) of the configured async links."""
        return frozenset(
            (link.instance, to)
            for link in self._file.topology.links
            if not link.sync
            for to in link.to
        )

    async def ask_peer(self, request: web.Request, name: str, path: str) -> Mapping[str, Any]:
        """Returns what a peer's interface answers to the user of a request.

        Args:
            path: with its query, encoded.

        Raises:
            RaylayError: it does not answer, or not to this user.
        """
        viewer, topology = await self._viewer(request), await self._file.look()
        return await self._peers.get_json(viewer, topology, name, path)

    # -- the view ----------------------------------------------------------------------------
    async def _fabric(self, request: web.Request) -> web.StreamResponse:
        board = self._peers.board(await self._viewer(request))
        loop = asyncio.get_running_loop()
        if board.view is None or loop.time() - board.view[0] >= VIEW_S:
            if board.making is None:
                # Several pages of one user share a view.
                board.making = asyncio.ensure_future(self._view(board))
            await asyncio.shield(board.making)
        assert board.view is not None, "it was made"
        return await _json_answer(request, board.view[1])

    async def _view(self, board: PeerBoard) -> None:
        try:
            topology = await self._refreshed(board)
            now_us = time.time_ns() // 1000
            answers = self._peers.answers(board)
            own = answers.get(self._instance)
            if not topology.fabric and own is not None and own.summary is not None:
                topology = standing_alone(topology, own.summary)
            view = view_of(
                topology,
                answers,
                served_by=self._instance,
                now_us=now_us,
                events=board.events,
                head=self.head.sight,
            )
            problems = board.problems.dated(problems_of(view), view)
            found = fabric_document(
                view,
                problem_documents(view, problems),
                verdict_of(view, problems),
                user=board.viewer.user,
                guarded=self._guarded,
                closed=board.problems.closed(view),
            )
            if self._file.problem:
                found["topology_problem"] = self._file.problem
            board.view = (asyncio.get_running_loop().time(), msgspec.json.encode(found))
        finally:
            board.making = None

    async def _refreshed(self, board: PeerBoard) -> FabricTopology:
        topology = await self._file.look()
        await self._peers.refresh(board, topology)
        return topology

    async def _summary(self, request: web.Request) -> web.StreamResponse:
        found = await self._own.summary(await self._viewer(request))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    # -- events ------------------------------------------------------------------------------
    async def _stream(self, request: web.Request) -> web.StreamResponse:
        board = self._peers.board(await self._viewer(request))

        async def refresh() -> None:
            await self._refreshed(board)

        return await self._streams.serve(request, board.events, refresh)

    async def _own_events(self, request: web.Request) -> web.StreamResponse:
        after = number_in(request.query, "after", 0, 2**62)
        limit = number_in(request.query, "limit", EVENTS_MAX, EVENTS_MAX)
        # Asks the instance for its latest events, and whether the user may see them.
        summary = await self._own.summary(await self._viewer(request))
        found = [each for each in self._events() if each["number"] > after]
        chosen = found[:limit] if "after" in request.query else found[-limit:] if limit else []
        answer = {
            "instance": self._instance,
            "process": summary.process,
            "last_event": summary.last_event,
            "events": [read_event(self._instance, each) for each in chosen],
        }
        return await _json_answer(request, msgspec.json.encode(answer))

    # -- the check, and drills ---------------------------------------------------------------
    async def _check(self, request: web.Request) -> web.StreamResponse:
        await self._reader(request)
        topology = await self._file.look()
        found = {
            "fabric": topology.fabric,
            "findings": topology.findings,
            "checked_us": topology.checked_us or None,
            "problem": self._file.problem,
        }
        return await _json_answer(request, msgspec.json.encode(found))

    async def _drills(self, request: web.Request) -> web.StreamResponse:
        await self._reader(request)
        places = (await self._file.look()).drills_directories
        async with self._reading:
            found = await asyncio.to_thread(self._reports.listed, places)
        return await _json_answer(request, msgspec.json.encode({"reports": found}))

    async def _drill(self, request: web.Request) -> web.StreamResponse:
        await self._reader(request)
        name = request.match_info["id"]
        as_json = name.endswith(".json")
        places = (await self._file.look()).drills_directories
        try:
            async with self._reading:
                body = await asyncio.to_thread(
                    self._reports.read, places, name.removesuffix(".json"), as_json=as_json
                )
        except ConfigurationError as error:
            return error_answer(404, str(error))
        headers = {"Content-Security-Policy": SANDBOX}
        if as_json:
            headers[hdrs.CONTENT_DISPOSITION] = f'attachment; filename="{name}"'
        kind = "application/json" if as_json else "text/html"
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def _reader(self, request: web.Request) -> Viewer:
        """Returns the user of a request, who may read the instance's values.

        Raises:
            ControlRefused: the user may not.
        """
        viewer = await self._viewer(request)
        if not viewer.may(READ_PATH):
            raise ControlRefused(
                f"{viewer.user or 'nobody in particular'} may not read {READ_PATH}"
            )
        return viewer

    # -- peers -------------------------------------------------------------------------------
    async def _peer(self, request: web.Request) -> web.StreamResponse:
        if request.method == hdrs.METH_POST:
            self._check_origin(request)
        elif request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD", "POST"])
        return await self._proxy.answer(request, await self._file.look())


async def _json_answer(request: web.Request, body: bytes) -> web.Response:
    """Returns JSON, compressed where that is worth it and wanted."""
    headers: dict[str, str] = {hdrs.VARY: hdrs.ACCEPT_ENCODING}
    wants = request.headers.get(hdrs.ACCEPT_ENCODING, "").lower()
    if len(body) >= GZIP_BYTES_MIN and "gzip" in wants:
        body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=body, content_type="application/json", headers=headers)
