"""services/processes/admin/console_routes.py over real sockets: the console's files, as browsers
and proxies ask for them."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from raylay.services.processes.admin.console_routes import (
    add_console_routes,
    read_static,
    static_names,
)

FIRST_LOAD_BYTES_MAX = 500_000
SENT_BYTES_MAX = 150_000
IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["'](\.[^"']+)["']""")


def visit(act: Callable[[ClientSession, TestServer], Awaitable[None]]) -> None:
    async def run() -> None:
        app = web.Application()
        add_console_routes(app.router)
        async with TestServer(app) as server, ClientSession(auto_decompress=False) as session:
            await act(session, server)

    asyncio.run(run())


def test_a_file_is_sent_compressed_to_who_reads_that() -> None:
    async def act(session: ClientSession, server: TestServer) -> None:
        for accepted, encoding in (("gzip, br", "gzip"), ("identity", None)):
            headers = {"Accept-Encoding": accepted}
            async with session.get(server.make_url("/"), headers=headers) as found:
                body = await found.read()
                assert found.status == 200
                assert found.headers.get("Content-Encoding") == encoding
                assert found.headers["Content-Type"] == "text/html; charset=utf-8"
                text = gzip.decompress(body) if encoding else body
                assert text == read_static("index.html").body

    visit(act)


def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    async def act(session: ClientSession, server: TestServer) -> None:
        url = server.make_url("/console/core/app.js")
        async with session.get(url) as found:
            tag = found.headers["ETag"]
            assert found.headers["Cache-Control"] == "no-cache"
        for asked in (tag, f'"other", W/{tag}'):
            async with session.get(url, headers={"If-None-Match": asked}) as found:
                assert found.status == 304
                assert not await found.read()
        async with session.get(url, headers={"If-None-Match": '"other"'}) as found:
            assert found.status == 200

    visit(act)


@pytest.mark.parametrize(
    "path",
    [
        "/console/nothing.js",
        "/console/../__init__.py",
        "/console/%2e%2e/__init__.py",
        "/console/core/..%2f..%2f__init__.py",
        "/console//etc/passwd",
        "/console/core",
        "/console/",
        "/console/core/app.js%00",
    ],
)
def test_only_files_of_the_console_are_served(path: str) -> None:
    async def act(session: ClientSession, server: TestServer) -> None:
        url = URL(f"{server.make_url('/')}".rstrip("/") + path, encoded=True)
        async with session.get(url) as found:
            assert found.status == 404

    visit(act)


def first_load() -> set[str]:
    """The files that a browser loads before it shows the first page."""
    page = read_static("index.html").body.decode()
    waiting = re.findall(r'(?:href|src)="console/([^"]+)"', page)
    found = {"index.html"}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if not name.endswith(".js"):
            continue
        text = read_static(name).body.decode()
        imports = [each for each in IMPORT.findall(text) if not each.startswith("./pages/")]
        if name == "pages.js":
            imports.append("./pages/overview.js")
        for each in imports:
            waiting.append(URL(f"http://x/{name}").join(URL(each)).path.lstrip("/"))
    return found


@pytest.mark.covers("Administration", "the console for everybody: keyboard, axe, small scre")
def test_the_first_load_is_small() -> None:
    found = first_load()
    assert "vendor/preact.js" in found and "pages/overview.js" in found
    assert "core/table.js" in first_load() or len(found) > 15
    files = [read_static(name) for name in sorted(found)]
    assert sum(len(file.body) for file in files) < FIRST_LOAD_BYTES_MAX
    assert sum(len(file.compressed or file.body) for file in files) < SENT_BYTES_MAX


def test_every_import_of_the_console_is_relative_and_there() -> None:
    wrong = []
    for name in sorted(static_names()):
        if not name.endswith(".js"):
            continue
        text = read_static(name).body.decode()
        for each in re.findall(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"'\s]+)["']""", text):
            target = URL(f"http://x/{name}").join(URL(each)).path.lstrip("/")
            if not each.startswith(".") or target not in static_names():
                wrong.append(f"{name} imports {each}")
    assert not wrong


@pytest.mark.parametrize("name", sorted(static_names()))
def test_a_file_needs_nothing_that_the_policy_forbids(name: str) -> None:
    if name.startswith("vendor/"):
        return
    text = read_static(name).body.decode()
    if name.endswith(".js"):
        for forbidden in ("innerHTML", "insertAdjacentHTML", "eval(", "new Function", 'style="'):
            assert forbidden not in text, f"{name} has {forbidden}"
    if name.endswith(".html"):
        assert "style=" not in text and "<style" not in text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"""["'(]https?://(?!www\.w3\.org)""", text)
