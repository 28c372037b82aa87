"""`raylay sow`, `subscribe --sow`, `publish --delta` and `delete` against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
from support.fake_server import records
from typer.testing import CliRunner
from unit.client.test_sync import ServerThread

from raylay.services.cli import app
from raylay.services.errors import CommandFailed, LocalProtocolError

pytestmark = pytest.mark.covers("SOW", "`raylay sow`, `delete`")


@pytest.fixture
def there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(tmp_path))
    made = ServerThread()
    monkeypatch.setenv("RAYLAY_SERVER", made.server.address)
    yield made
    made.stop()


def raylay(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def answered(there: ServerThread, command: str, answer: Any, *arguments: str) -> Any:
    """A command's result, whose question is answered by `answer(session, id)`."""
    server = there.server
    before = len(server.sessions)
    with ThreadPoolExecutor(1) as beside:

        def reply() -> None:
            there.run(
                server.wait(
                    lambda: len(server.sessions) > before and server.session.commands(command)
                )
            )
            asked = server.session.commands(command)[0]
            there.call(answer, server.session, asked["sub"])

        told = beside.submit(reply)
        result = raylay(*arguments)
        told.result()
    return result


def two_rows(session: Any, name: str) -> None:
    rows = [records(7, [n], b'{"a": %d}' % n, key=b"k%d" % n) for n in (1, 2)]
    session.group(name, *rows)


def test_sow_prints_a_record_a_line(there: ServerThread) -> None:
    shown = answered(
        there, "sow", two_rows, "sow", "t", "--filter", "/a > 0", "--order-by", "/a DESC",
        "--top", "5", "--skip", "1", "--select", "[-/,+/a]", "--at", "20260102T030405Z",
        "--key", "k1", "--key", "k2",
    )  # fmt: skip
    assert (shown.exit_code, shown.stdout) == (0, '{"a": 1}\n{"a": 2}\n')
    (asked,) = there.server.session.commands("sow")
    assert asked["o"] == {
        "filter": "/a > 0",
        "order_by": "/a DESC",
        "top_n": 5,
        "skip_n": 1,
        "select": "[-/,+/a]",
        "as_of": "20260102T030405Z",
        "keys": [b"k1", b"k2"],
        "batch": 100,
    }


def test_sow_as_objects(there: ServerThread) -> None:
    shown = answered(there, "sow", two_rows, "sow", "t", "--json")
    assert json.loads(shown.stdout.splitlines()[0]) == {
        "topic": "t",
        "message_type": "json",
        "bookmark": "7|1|",
        "publisher": 7,
        "sequence": 1,
        "kind": "sow",
        "key": "k1",
        "correlation": "",
        "origin_time_us": 5,
        "body": '{"a": 1}',
    }


def test_a_refused_query_is_an_error_with_its_reason(there: ServerThread) -> None:
    there.server.subscribe_refusal = "no_sow"
    shown = raylay("sow", "t")
    assert isinstance(shown.exception, CommandFailed) and shown.exception.reason == "no_sow"


def test_subscribe_with_the_records_and_what_leaves(there: ServerThread) -> None:
    def answer(session: Any, name: str) -> None:
        two_rows(session, name)
        session.out_of_focus(name, "match", records(7, [3], b"{}", key=b"k2"))

    arguments = ("subscribe", "t", "--sow", "--oof", "--count", "3", "--select", "[-/,+/a]")
    shown = answered(there, "sow_and_subscribe", answer, *arguments)
    assert shown.stdout.splitlines()[2] == "out of focus, match: k2 {}"
    asked = there.server.session.commands("sow_and_subscribe")[0]["o"]
    assert (asked["oof"], asked["select"]) == (True, "[-/,+/a]")
    shown = answered(there, "sow_and_subscribe", answer, *arguments, "--json")
    told = json.loads(shown.stdout.splitlines()[2])
    assert (told["kind"], told["reason"], told["key"]) == ("oof", "match", "k2")


def test_subscribe_to_deltas(there: ServerThread) -> None:
    def answer(session: Any, name: str) -> None:
        session.deliver(name, records(7, [1], b"{}"))

    shown = answered(there, "subscribe", answer, "subscribe", "t", "--delta", "--count", "1")
    assert shown.stdout == "{}\n"
    assert there.server.session.commands("subscribe")[0]["o"] == {"delta": True}


def test_subscribe_with_the_records_of_then(there: ServerThread) -> None:
    arguments = ("subscribe", "t", "--sow", "--bookmark", "20260102T030405Z", "--count", "2")
    shown = answered(there, "sow_and_subscribe", two_rows, *arguments)
    assert (shown.exit_code, shown.stdout) == (0, '{"a": 1}\n{"a": 2}\n')
    (asked,) = there.server.session.commands("sow_and_subscribe")
    assert (asked["bm"], asked["o"]) == (
        "20260102T030405Z", {"batch": 100, "bookmark_not_found": "fail"}
    )  # fmt: skip


def test_deltas_keys_and_deletes(there: ServerThread) -> None:
    server = there.server
    shown = raylay("publish", "t", '{"a": 1}', "--delta", "--key", "k1")
    assert shown.exit_code == 0 and shown.stdout.startswith("1 persisted in ")
    assert (server.session.does, server.session.keys) == ([6], [b"k1"])
    for arguments, body in (
        (("--filter", "/a = 1"), {"filter": "/a = 1"}),
        (("--key", "k1", "--key", "k2"), {"keys": [b"k1", b"k2"]}),
        (("--key", "k1", "--filter", "/a = 1"), {"filter": "/a = 1", "keys": [b"k1"]}),
        (("--data", '{"a": 1}'), {"data": b'{"a": 1}'}),
    ):
        shown = raylay("delete", "t", *arguments)
        assert shown.exit_code == 0 and shown.stdout.startswith("1 persisted in ")
        assert server.session.does == [2]
        assert msgpack.unpackb(server.session.bodies[0]) == body
    for wrong in ((), ("--filter", "1=1", "--data", "{}")):
        sessions = len(server.sessions)
        shown = raylay("delete", "t", *wrong)
        assert isinstance(shown.exception, LocalProtocolError)
        assert len(server.sessions) == sessions, "nobody is connected to"
