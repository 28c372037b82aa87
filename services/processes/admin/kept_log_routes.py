"""The log that the instance keeps on its disk, for those who are on another host:
`/raylay/log.json`."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from raylay.services.admin.requests import number_in
from raylay.services.errors import ConfigurationError, ControlRefused
from raylay.services.processes.admin.answers import error_answer
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.telemetry.kept_log import KeptLog, LogLine, is_at_least
from raylay.services.telemetry.log_options import LEVELS, LogOptions

LOG_PATH = "/raylay/log.json"
READ_PATH = "/amps/instance"
LINES_MAX = 5_000
LINES_BYTES_MAX = 4 * 1024 * 1024
"""Limit on the bytes of the lines of an answer."""


def kept_directory_of(options: LogOptions) -> Path | None:
    """Returns the directory of the kept log among the targets of a process; None: none is kept."""
    found = (each.directory for each in options.targets if each.in_background)
    directory = next(found, "")
    return Path(directory) if directory else None


class KeptLogRoutes:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        directory: directory of the kept log; None: none is kept.
        viewer: finds out who asks.
    """

    def __init__(
        self,
        instance: str,
        directory: Path | None,
        viewer: Callable[[web.Request], Awaitable[Viewer]],
    ) -> None:
        self._instance = instance
        self._directory = directory
        self._viewer = viewer
        self._reading = asyncio.Lock()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Adds the route of this file."""
        router.add_get(LOG_PATH, self._log)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        if not viewer.may(READ_PATH):
            raise ControlRefused(
                f"{viewer.user or 'nobody in particular'} may not read {READ_PATH}"
            )
        since_us = number_in(request.query, "since_us", 0, 2**62)
        limit = number_in(request.query, "limit", LINES_MAX, LINES_MAX)
        level = request.query.get("level", "")
        if level and level not in LEVELS:
            raise ConfigurationError(f"level={level[:40]!r}: give one of {', '.join(LEVELS)}")
        if self._directory is None:
            return error_answer(404, f"{self._instance} keeps no log")
        latest = request.query.get("latest") == "1"
        # One at a time: it reads some megabytes.
        async with self._reading:
            log = KeptLog(self._directory, request.query.get("process", ""), since_us)
            body = await asyncio.to_thread(self._read, log, since_us, level, limit, latest=latest)
        return web.Response(body=body, content_type="application/json")

    def _read(self, log: KeptLog, since_us: int, level: str, limit: int, *, latest: bool) -> bytes:
        chosen: Iterator[LogLine] = (
            line
            for line in log.look()
            if line["time_us"] >= since_us and (not level or is_at_least(line, level))
        )
        texts: deque[str] = deque()
        size, more = 0, False
        for line in chosen:
            text = json.dumps(line)
            if latest:
                texts.append(text)
                size += len(text)
                while texts and (len(texts) > limit or size > LINES_BYTES_MAX):
                    size -= len(texts.popleft())
            elif len(texts) >= limit or (texts and size + len(text) > LINES_BYTES_MAX):
                more = True
                break
            else:
                texts.append(text)
                size += len(text)
        found: dict[str, Any] = {"instance": self._instance, "damaged": log.damaged, "more": more}
        return f'{json.dumps(found)[:-1]}, "lines": [{", ".join(texts)}]}}'.encode()
