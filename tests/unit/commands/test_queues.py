"""`raylay queue` and `subscribe --backlog` against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
from support.fake_server import FakeServer, Session, records
from typer.testing import CliRunner
from unit.client.test_queue import acked
from unit.client.test_sync import ServerThread

from raylay.services.cli import app
from raylay.services.commands.queues import first_rows

pytestmark = pytest.mark.covers("Queues", "`raylay queue`")

STATUS = {
    "topic": "work", "queue_depth": 12_345, "available_here": 1_000, "leases": 3, "consumers": 2,
    "age_of_oldest_lease_us": 4_321_000, "floor_txid": 9, "pid": 15476, "dead_letters": "failed",
    "is_ready": True, "why": "",
}  # fmt: skip


class Answering(FakeServer):
    """Has a queue `work` with messages, and says what it is asked."""

    def answer(self, session: Session, header: dict[str, Any], body: bytes) -> None:
        super().answer(session, header, body)
        front = {"c": "ack", "a": "processed", "cid": header.get("cid"), "status": "success"}
        if header["c"] == "queue_status":
            session.send(front, msgpack.packb(STATUS))
        elif header["c"] == "queue_ack":
            session.send(front | {"n": 1_200})
        elif header["c"] == "subscribe":
            session.deliver(header["sub"], records(7, [1, 2], topic="orders"), q=1)


@pytest.fixture
def there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(tmp_path))
    made = ServerThread()
    made.run(made.server.stop())
    made.server = made.run(Answering().start())
    made.server.auto_ack = True
    monkeypatch.setenv("RAYLAY_SERVER", made.server.address)
    yield made
    made.stop()


def raylay(*arguments: str) -> Any:
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(CliRunner().invoke, app, arguments).result()


def test_the_status_of_a_queue(there: ServerThread) -> None:
    shown = raylay("queue", "status", "work")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "queue               work",
        "depth               12,345",
        "available here      1,000",
        "leased here         3",
        "consumers here      2",
        "oldest lease        4.3 s",
        "dead letters go to  failed",
        "--all shows the other values",
    ]
    every = dict(
        line.split("  ", 1)
        for line in raylay("queue", "status", "work", "--all").stdout.splitlines()
    )
    assert list(every) == [name.replace("_", " ") for name in STATUS]
    assert every["queue depth"].strip() == "12,345" and every["pid"].strip() == "15476"
    assert json.loads(raylay("queue", "status", "work", "--json").stdout) == STATUS


def test_the_oldest_lease_is_a_dash_where_nothing_is_leased() -> None:
    assert first_rows({"age_of_oldest_lease_us": None}) == [("oldest lease", "-")]
    assert first_rows({"age_of_oldest_lease_us": 40_000}) == [("oldest lease", "0.0 s")]


def test_messages_are_acknowledged_by_bookmark(there: ServerThread) -> None:
    shown = raylay("queue", "ack", "work", "7|1|", "7|2|")
    assert (shown.exit_code, shown.stdout) == (0, "2 said of work: it is durable\n")
    assert acked(there.server.session) == {(7, 1), (7, 2)}
    assert raylay("queue", "expire", "work", "7|3|").exit_code == 0
    assert acked(there.server.session, "expire") == {(7, 3)}


@pytest.mark.parametrize("how", ["ack", "expire", "cancel"])
def test_messages_are_named_by_a_filter(there: ServerThread, how: str) -> None:
    shown = raylay("queue", how, "work", "--filter", "/a = 1")
    assert (shown.exit_code, shown.stdout) == (0, "1,200 messages of work\n")
    (asked,) = there.server.session.commands("queue_ack")
    assert (asked["t"], asked["filter"], asked["how"]) == ("work", "/a = 1", how)


@pytest.mark.parametrize("arguments", [(), ("7|1|", "--filter", "/a = 1")])
def test_which_messages_has_to_be_said(there: ServerThread, arguments: tuple[str, ...]) -> None:
    for how in ("ack", "expire"):
        shown = raylay("queue", how, "work", *arguments)
        assert shown.exit_code == 2 and "name the messages" in shown.output
    assert not there.server.sessions


def test_a_queue_is_consumed_line_by_line(there: ServerThread) -> None:
    shown = raylay("subscribe", "work", "--backlog", "5", "--count", "2")
    assert (shown.exit_code, shown.stdout) == (0, "1\n2\n")
    assert acked(there.server.session) == {(7, 1), (7, 2)}
    (asked,) = there.server.session.commands("subscribe")
    assert asked["o"] == {"max_backlog": 5}


def test_a_queue_is_consumed_where_no_backlog_is_given(there: ServerThread) -> None:
    shown = raylay("subscribe", "work", "--count", "2")
    assert (shown.exit_code, shown.stdout) == (0, "1\n2\n")
    assert acked(there.server.session) == {(7, 1), (7, 2)}
    assert raylay("subscribe", "work", "--ack", "none", "--count", "2").stdout == "1\n2\n"
    assert not there.server.session.does


def test_a_queue_is_looked_at_and_the_messages_go_back(there: ServerThread) -> None:
    shown = raylay("subscribe", "work", "--backlog", "5", "--ack", "none", "--count", "1", "--json")
    assert json.loads(shown.stdout)["bookmark"] == "7|1|"
    assert not there.server.session.does


@pytest.mark.parametrize(
    "more", [("--ack", "later"), ("--backlog", "2", "--sow"), ("--backlog", "2", "--bookmark", "0")]
)
def test_what_does_not_go_together(there: ServerThread, more: tuple[str, ...]) -> None:
    assert raylay("subscribe", "work", *more).exit_code == 2
    assert not there.server.sessions
