"""The files of the console, as the interface of each instance serves them.

Only files that were there at the start are served: no path that a request gives reaches the disk.
Each is read and compressed once. A browser keeps them, and asks by their hash whether they changed.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from aiohttp import hdrs, web

PREFIX = "/console/"
INDEX = "index.html"
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
COMPRESSED_BYTES_MIN = 512
"""A smaller file fits a packet as it is."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent.

    Attributes:
        compressed: the same by gzip; empty: too small for it.
        tag: a hash of its content, as an ETag.
    """

    body: bytes
    compressed: bytes
    content_type: str
    tag: str


@cache
def static_names() -> frozenset[str]:
    """Returns the paths of all files of the console below its folder."""
    root = resources.files("raylay.services.console").joinpath("static")
    found: set[str] = set()
    waiting = [(root, "")]
    while waiting:
        folder, path = waiting.pop()
        for each in folder.iterdir():
            name = f"{path}{each.name}"
            if each.is_dir():
                waiting.append((each, f"{name}/"))
            elif PurePosixPath(name).suffix in CONTENT_TYPES:
                found.add(name)
    return frozenset(found)


def read_static(name: str) -> StaticFile:
    """Reads one of `static_names`."""
    root = resources.files("raylay.services.console").joinpath("static")
    body = root.joinpath(*name.split("/")).read_bytes()
    compressed = gzip.compress(body, 9, mtime=0) if len(body) >= COMPRESSED_BYTES_MIN else b""
    digest = hashlib.sha256(body).hexdigest()[:20]
    return StaticFile(body, compressed, CONTENT_TYPES[PurePosixPath(name).suffix], digest)


class ConsoleFiles:
    """Answers requests for the files of the console. Owner: the process's event loop.

    Args:
        is_kept: whether what was read once is never read again; not while somebody writes it.
    """

    def __init__(self, is_kept: bool = True) -> None:
        self._is_kept = is_kept
        self._files: dict[str, StaticFile] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", self._answer)
        router.add_get(f"{PREFIX}{{name:.+}}", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", INDEX)
        if not self._is_kept:
            static_names.cache_clear()
        if name not in static_names():
            raise web.HTTPNotFound(reason=f"the console has no file {name[:100]!r}")
        file = self._files.get(name)
        if file is None:
            file = read_static(name)
            if self._is_kept:
                self._files[name] = file
        return _answered(request, file)


def _answered(request: web.Request, file: StaticFile) -> web.Response:
    is_compressed = bool(file.compressed) and "gzip" in request.headers.get(
        hdrs.ACCEPT_ENCODING, ""
    )
    tag = f'"{file.tag}{"-gzip" if is_compressed else ""}"'
    headers = {
        hdrs.CACHE_CONTROL: "no-cache",
        hdrs.CONTENT_TYPE: file.content_type,
        hdrs.ETAG: tag,
        hdrs.VARY: "Accept-Encoding",
    }
    asked = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if tag in [each.strip().removeprefix("W/") for each in asked.split(",")]:
        return web.Response(status=304, headers=headers)
    if is_compressed:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=file.compressed if is_compressed else file.body, headers=headers)


def add_console_routes(router: web.UrlDispatcher) -> None:
    """Adds `/` and `/console/…`."""
    ConsoleFiles().add_routes(router)
