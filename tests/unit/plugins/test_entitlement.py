"""services/plugins/entitlement.py: each module, and that what fails allows nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from aiohttp import web

from raylay.services.errors import ConfigurationError
from raylay.services.plugins import entitlement as modules
from raylay.services.plugins.entitlement import entitlement
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import EVERYTHING, NOTHING, Permissions

READS = {"logon": True, "topic": [{"topic": "orders", "read": True}]}


def asked(module: str, options: dict[str, str], *users: str) -> list[Permissions]:
    async def ask() -> list[Permissions]:
        made = entitlement(ModuleConfig(module, options), "here")
        return [await made.permissions(user, "client", "10.0.0.1:9") for user in users]

    return asyncio.run(ask())


def test_everything_or_nothing() -> None:
    assert asked(modules.ALL, {}, "bob") == [EVERYTHING]
    assert asked(modules.NONE, {}, "bob") == [NOTHING]


# -- the file ------------------------------------------------------------------------------------
def test_a_file_has_a_document_for_each_user(tmp_path: Path) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(
        "bob: {logon: true, topic: [{topic: orders, read: true}]}\n'*': {logon: true}\n",
        encoding="utf-8",
    )
    bob, eve, star = asked("permissions", {"File": str(path)}, "bob", "eve", "*")
    assert bob.read(b"orders").allowed
    assert eve.logon and not eve.read(b"orders").allowed
    assert star.logon
    path.write_text(json.dumps({"bob": READS}), encoding="utf-8")
    assert asked("permissions", {"File": str(path)}, "eve") == [NOTHING]


@pytest.mark.parametrize(
    "text",
    [
        "bob: {logon: true}\nbob: {logon: false}\n",
        '{"bob": {"logon": false, "logon": true}}',
        "bob: {topic: [{topic: a, read: false, read: true}]}\n",
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"permissions\.yaml:\d+: .* is there twice"):
        asked("permissions", {"File": str(path)}, "bob")


def aliases(depth: int) -> str:
    """A list that has 9 to the power of `depth` values, in a line of YAML."""
    text = "&n0 [1, 1]"
    for number in range(depth):
        text = f"&n{number + 1} [{text}" + f", *n{number}" * 8 + "]"
    return text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("bob: " + "[" * 10_000, "nested too deeply"),
        ("bob: " + "{a: " * 5_000 + "}" * 5_000, "nested too deeply"),
        (f"bob: {{logon: {aliases(12)}}}", "logon is a list: give true or false"),
        (f"? {aliases(12)}\n: 1\n", "a key is a name"),
        ("bob: {logon: 0x" + "f" * 10_000 + "}", "logon is a int: give true or false"),
    ],
)
def test_a_file_that_is_made_to_take_all_memory_is_refused(
    tmp_path: Path, text: str, wrong: str
) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=wrong):
        asked("permissions", {"File": str(path)}, "bob")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "permissions.json"
    path.write_text("{}", encoding="utf-8")

    async def ask() -> tuple[Permissions, Permissions, Permissions]:
        made = entitlement(ModuleConfig("permissions", {"File": str(path)}), "here")
        before = await made.permissions("bob", "", "")
        path.write_text(json.dumps({"bob": READS}), encoding="utf-8")
        after = await made.permissions("bob", "", "")
        path.write_text("{bob: {topics: []}}", encoding="utf-8")
        with pytest.raises(ConfigurationError, match="bob: permissions have no 'topics'"):
            await made.permissions("bob", "", "")
        path.write_text(json.dumps({"eve": READS, "amy": READS}), encoding="utf-8")
        return before, after, await made.permissions("bob", "", "")

    before, after, gone = asyncio.run(ask())
    assert before is NOTHING and after.logon
    assert gone is NOTHING, "the file does not name him any more"


def test_a_file_is_not_read_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "permissions.json"
    path.write_text("{}", encoding="utf-8")
    threads: list[int] = []

    async def ask() -> None:
        made = entitlement(ModuleConfig("permissions", {"File": str(path)}), "here")
        watched = made.watched  # type: ignore[attr-defined]
        read = watched.read
        monkeypatch.setattr(watched, "read", lambda: (threads.append(get_ident()), read())[1])
        await asyncio.gather(*(made.permissions("bob", "", "") for _ in range(3)))

    asyncio.run(ask())
    assert len(threads) == 3 and get_ident() not in threads


@pytest.mark.parametrize("text", ["[1]", "{1: {}}", "a: [", "bob: {logon: 3}"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"permissions\.yaml"):
        asked("permissions", {"File": str(path)})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        asked("permissions", {"File": str(tmp_path / "none")})


# -- over HTTP -----------------------------------------------------------------------------------
def over_http(
    answers: Callable[[web.Request], web.StreamResponse], options: dict[str, str], user: str = "bob"
) -> tuple[Permissions | str, list[str]]:
    """What a server's answers come to (the refusal's text, where it is one), and what it was
    asked."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.raw_path)
        return answers(request)

    async def ask() -> Permissions | str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            given = {name: value.replace("PORT", str(port)) for name, value in options.items()}
            made = entitlement(ModuleConfig("http", given), "here")
            return await made.permissions(user, "the client", "10.0.0.1:9")
        except ConfigurationError as error:
            return str(error)
        finally:
            await runner.cleanup()

    return asyncio.run(ask()), paths


@pytest.mark.covers("Configuration", "the permissions document")
def test_a_server_is_asked_for_the_user() -> None:
    def answers(request: web.Request) -> web.Response:
        assert request.headers["X-From"] == "raylay"
        return web.json_response(READS)

    options = {"ResourceURI": "http://127.0.0.1:PORT/of", "HTTPHeader": "X-From: raylay"}
    found, paths = over_http(answers, options, "b/ob?x=1")
    assert isinstance(found, Permissions) and found.read(b"orders").allowed
    assert paths == ["/of/b%2Fob%3Fx%3D1"]
    options["ResourceURI"] = "http://127.0.0.1:PORT/?u={user}&c={client}&a={address}"
    assert over_http(answers, options, "a&c=x")[1] == [
        "/?u=a%26c%3Dx&c=the%20client&a=10.0.0.1%3A9"
    ]
    options["ResourceURI"] = "http://127.0.0.1:PORT/of/{user}/is"
    (asked,) = over_http(answers, options, "nobody/../admin")[1]
    assert asked == "/of/nobody%2F..%2Fadmin/is", "nobody asks for another one's"


@pytest.mark.covers("Configuration", "the permissions document")
@pytest.mark.parametrize("user", [".", ".."])
@pytest.mark.parametrize("place", ["", "/of/{user}/is", "/of/{user}", "/of/{user}?a=1"])
def test_nobody_is_called_the_way_up(user: str, place: str) -> None:
    def answers(request: web.Request) -> web.Response:
        return web.json_response(READS)

    found, paths = over_http(answers, {"ResourceURI": f"http://127.0.0.1:PORT{place}"}, user)
    assert isinstance(found, str) and "which is no name of one" in found
    assert paths == [], "the server is not even asked"


def test_the_way_up_in_two_parts_and_half_a_letter() -> None:
    uri = {"ResourceURI": "http://127.0.0.1:1/{user}{user}/x"}
    with pytest.raises(ConfigurationError, match="is no name of one"):
        asked("http", uri, ".")
    with pytest.raises(ConfigurationError, match="cannot stand in the address"):
        asked("http", uri, "\ud800")


def test_names_that_only_look_like_the_way_up_are_names() -> None:
    for user, path in (("...", "/of/..."), ("%2e%2e", "/of/%252e%252e"), ("a.b", "/of/a.b")):
        _, paths = over_http(
            lambda request: web.json_response(READS),
            {"ResourceURI": "http://127.0.0.1:PORT/of"},
            user,
        )
        assert paths == [path]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_knows_no_such_user(status: int) -> None:
    found, _ = over_http(
        lambda request: web.Response(status=status), {"ResourceURI": "http://127.0.0.1:PORT"}
    )
    assert isinstance(found, Permissions) and not found.logon and not found.topics


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (lambda request: web.Response(status=500), "answers 500"),
        (lambda request: web.Response(status=302, headers={"Location": "/x"}), "answers 302"),
        (lambda request: web.Response(text="nonsense"), "JSONDecodeError"),
        (lambda request: web.json_response({"logon": 1}), "logon is 1"),
        (lambda request: web.Response(text=" " * 5_000_000), "more than"),
        (
            lambda request: web.Response(text='{"logon": false, "logon": true}'),
            "is in its answer twice",
        ),
        (
            lambda request: web.Response(text='{"topic": [{"topic": "a", "topic": ".*"}]}'),
            "'topic' is in its answer twice",
        ),
        (lambda request: web.Response(text="[" * 200_000), "nested too deeply"),
    ],
)
def test_a_server_that_answers_nonsense(answers: Any, says: str) -> None:
    found, paths = over_http(answers, {"ResourceURI": "http://127.0.0.1:PORT", "RetryCount": "1"})
    assert isinstance(found, str) and says in found and "here" in found
    assert len(paths) == (1 if "logon" in says else 2)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="does not answer for bob"):
        asked("http", {"ResourceURI": "http://127.0.0.1:1/"}, "bob")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs the option 'ResourceURI'"),
        ({"ResourceURI": "file:///etc/passwd"}, "give an http:// or https://"),
        ({"ResourceURI": "http://a", "RetryCount": "-1"}, "RetryCount is '-1'"),
        ({"ResourceURI": "http://a", "RequestTimeout": "soon"}, "RequestTimeout is 'soon'"),
        ({"ResourceURI": "http://a", "HTTPHeader": "nothing"}, "HTTPHeader"),
    ],
)
def test_options_of_a_server_that_are_none(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"here: .*{says}"):
        asked("http", options)


# -- installed -----------------------------------------------------------------------------------
class _Entry:
    name = "mine"
    value = "mine:Mine"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def load(self) -> Any:
        answer = self._answer

        class Mine:
            def __init__(self, options: dict[str, str]) -> None:
                pass

            async def permissions(self, user: str, client_name: str, address: str) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

        return Mine


def test_a_module_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from raylay.services.plugins import loader

    entries: list[Any] = [_Entry(READS)]
    monkeypatch.setattr(loader, "entry_points", lambda **_: entries)
    assert asked("mine", {}, "bob")[0].read(b"orders").allowed
    entries[0] = _Entry(None)
    assert asked("mine", {}, "bob") == [NOTHING]
    for wrong in (KeyError("x"), {"logon": 1}):
        entries[0] = _Entry(wrong)
        with pytest.raises(ConfigurationError, match="here"):
            asked("mine", {}, "bob")
