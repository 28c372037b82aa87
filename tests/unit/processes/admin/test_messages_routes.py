"""services/processes/admin/messages_routes.py over real sockets before a whole instance: what is
read, what is not taken, what is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.messages_interface import CONFIG, Interface, told, until, with_interface

from raylay.services.errors import FabricError
from raylay.services.processes.admin import message_stream
from raylay.services.processes.admin.message_clients import CLIENTS_MAX
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.security.control import NOBODY
from raylay.services.security.permissions import read_permissions

BIG = (1 << 63) - 7


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, **more}).encode()


@pytest.mark.covers("Administration", "messages: query, replay, follow, publish; entitlemen")
def test_a_replay_tells_rows_and_how_far_it_read(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        bookmarks = await at.publish("orders", *(order(n, big=BIG) for n in range(5)))
        lines = await at.lines("/raylay/messages?topic=orders&filter=/id>=3")
        rows = [each["row"] for each in lines if "row" in each]
        assert [each["bookmark"] for each in rows] == bookmarks[3:]
        row = rows[0]
        assert row["body"] == order(3, big=BIG).decode()
        assert (row["topic"], row["message_type"], row["size"]) == (
            "orders",
            "json",
            len(row["body"]),
        )
        assert row["publisher"] == bookmarks[0].split("|")[0], "a text: all digits"
        assert row["is_text"] and not row["is_cut"] and not row["traced"]
        progress = told(lines, "progress")
        assert (progress["found"], progress["read"]) == (2, 5)
        assert progress["at_us"] >= row["timestamp_us"]
        assert told(lines, "end") == {"why": "end", "position": bookmarks[-1]}

    with_interface(tmp_path, act)


def test_a_limit_ends_a_replay_which_goes_on_from_there(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        bookmarks = await at.publish("orders", *map(order, range(6)))
        lines = await at.lines("/raylay/messages?topic=orders&limit=4")
        end = told(lines, "end")
        assert end == {"why": "limit", "position": bookmarks[3]}
        rest = await at.rows(f"/raylay/messages?topic=orders&start={end['position']}")
        assert [each["bookmark"] for each in rest] == bookmarks[4:]

    with_interface(tmp_path, act)


def test_it_begins_at_a_time_and_at_an_expression_over_topics(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        await at.publish("orders", order(1))
        await at.publish("trades", b"8=FIX", kind="fix")
        rows = await at.rows("/raylay/messages?topic=orders|trades&start=epoch")
        assert [each["topic"] for each in rows] == ["orders", "trades"]
        assert not await at.rows("/raylay/messages?topic=orders&start=2999-01-01T00:00:00Z")
        assert len(await at.rows("/raylay/messages?topic=orders&start=2020-01-01")) == 1

    with_interface(tmp_path, act)


def test_filters_see_headers_and_pass_over_what_cannot_be_read(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        await at.client.publish("orders", order(1), correlation=b"deal 7")
        await at.publish("orders", order(2))
        await at.publish("odd", b"{no json")
        rows = await at.rows("/raylay/messages?topic=orders&filter=CORRELATION_ID()='deal 7'")
        assert [each["headers"]["correlation id"] for each in rows] == ["deal 7"]
        lines = await at.lines("/raylay/messages?topic=odd&filter=/id=1")
        assert told(lines, "progress")["unreadable"] == 1

    with_interface(tmp_path, act)


def test_live_rows_come_as_they_are_published(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        await at.publish("orders", order(1))
        async with at.stream("/raylay/messages?source=live&topic=orders") as following:
            assert (await following("progress"))["progress"]["follows"]
            (bookmark,) = await at.publish("orders", order(2))
            assert (await following("row"))["row"]["bookmark"] == bookmark
        # The browser has left: so has the client.
        await until(lambda: not at.routes.clients._used)

    with_interface(tmp_path, act)


def test_a_replay_follows_behind_what_there_was(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        await at.publish("orders", order(1))
        async with at.stream("/raylay/messages?topic=orders&follow=1") as following:
            assert json.loads((await following("row"))["row"]["body"]) == {"id": 1}
            await at.publish("orders", order(2))
            assert json.loads((await following("row"))["row"]["body"]) == {"id": 2}

    with_interface(tmp_path, act)


@pytest.mark.covers("Administration", "messages: query, replay, follow, publish; entitlemen")
def test_what_follows_too_fast_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "FOLLOWED_ROWS_PER_S", 3)

    async def act(at: Interface) -> None:
        async with at.stream("/raylay/messages?source=live&topic=orders") as following:
            await following("progress")
            await at.publish("orders", *map(order, range(500)))
            while True:
                progress = (await following("progress"))["progress"]
                if progress["found"] == 500:
                    break
            assert progress["read"] == 500
            assert progress["dropped"] > 400

    with_interface(tmp_path, act)


def test_a_topic_that_is_not_journaled_is_followed(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        async with at.stream("/raylay/messages?source=live&topic=ticks") as following:
            await following("progress")
            await at.publish("ticks", order(1), order(2))
            first = (await following("row"))["row"]
            assert json.loads(first["body"]) == {"id": 1}

    with_interface(tmp_path, act)


@pytest.mark.covers("Administration", "messages: query, replay, follow, publish; entitlemen")
def test_a_query_of_a_sow_tells_how_many_there_are(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        await at.publish("orders", *(order(n, side="buy") for n in range(7)))
        lines = await at.lines("/raylay/messages?source=sow&topic=orders&filter=/id>1&limit=3")
        rows = [each["row"] for each in lines if "row" in each]
        assert len(rows) == 3
        assert told(lines, "progress")["found"] == 5
        assert told(lines, "end")["why"] == "limit"
        status, found = await at.json(
            f"/raylay/message/{rows[0]['bookmark']}?topic=orders&key={rows[0]['sow_key']}"
        )
        assert status == 200
        assert found["row"]["body"] == rows[0]["body"]

    with_interface(tmp_path, act)


@pytest.mark.parametrize("look_s", [0.01, 0.6])
def test_a_query_is_asked_again_over_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    monkeypatch.setattr(message_stream, "LOOK_S", look_s)

    async def act(at: Interface) -> None:
        await at.publish("orders", order(1), order(2))
        path = "/raylay/messages?source=sow&topic=orders&order=/id DESC&limit=1&follow=1"
        async with at.stream(path) as following:
            assert json.loads((await following("row"))["row"]["body"]) == {"id": 2}
            assert (await following("look"))["look"] == 1
            await at.publish("orders", order(7))
            while json.loads((await following("row"))["row"]["body"]) != {"id": 7}:
                pass
            assert (await following("look"))["look"] >= 2
            assert len(at.routes.clients._used) == 1
        await until(lambda: not at.routes.clients._used)

    with_interface(tmp_path, act)


def test_a_query_that_is_asked_again_ends_where_it_takes_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_stream, "LOOK_S", 0.01)
    monkeypatch.setattr(message_stream, "WRITE_BYTES", 1)
    monkeypatch.setattr(message_stream, "SENT_BYTES_MAX", 2_000)

    async def act(at: Interface) -> None:
        await at.publish("orders", order(1))
        lines = await at.lines("/raylay/messages?source=sow&topic=orders&follow=1")
        assert any("look" in each for each in lines)
        assert told(lines, "end")["why"] == "bytes"
        monkeypatch.setattr(message_stream, "SENT_BYTES_MAX", 64 * 1024 * 1024)
        monkeypatch.setattr(message_stream, "FOLLOW_S_MAX", 0.1)
        monkeypatch.setattr(message_stream, "LOOK_S", 60.0)
        lines = await at.lines("/raylay/messages?source=sow&topic=orders&follow=1")
        assert told(lines, "end")["why"] == "time"

    with_interface(tmp_path, act)


def test_one_message_is_told_with_its_front_or_whole(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        big = b'{"text": "' + b"x" * 300_000 + b'"}'
        small, large = await at.publish("orders-kept", order(1, big=BIG), big)
        status, found = await at.json(f"/raylay/message/{small}")
        assert status == 200
        assert str(BIG) in found["row"]["body"], "no number is rounded"
        status, found = await at.json(f"/raylay/message/{large}?topic=orders-kept")
        assert found["row"]["is_cut"]
        assert len(found["row"]["body"]) == 16 * 1024
        status, found = await at.json(f"/raylay/message/{large}?topic=orders-kept&all=1")
        assert found["row"]["body"].encode() == big
        async with at.session.get(at.http.make_url(f"/raylay/message/{large}/body")) as answer:
            assert await answer.read() == big
            assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
            assert answer.content_type == "application/octet-stream"
        status, found = await at.json("/raylay/message/77|1|")
        assert status == 404
        assert "no message 77|1|" in found["error"]

    with_interface(tmp_path, act)


def test_binary_bodies_are_told_as_digits_and_their_fields_as_text(tmp_path: Path) -> None:
    import msgpack

    async def act(at: Interface) -> None:
        packed = msgpack.packb({"id": BIG, "raw": b"\x00\x01"})
        (bookmark,) = await at.publish("packed", packed, kind="msgpack")
        _, found = await at.json(f"/raylay/message/{bookmark}")
        assert not found["row"]["is_text"]
        assert bytes.fromhex(found["row"]["body"]) == packed
        assert f'"id": {BIG}' in found["values"]

    with_interface(tmp_path, act)


@pytest.mark.covers("Administration", "messages: query, replay, follow, publish; entitlemen")
def test_a_test_message_is_published_and_told_where(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        message = {"topic": "orders", "message_type": "json", "body": '{"id": 9}'}
        message["headers"] = {"correlation": "mine"}  # type: ignore[assignment]
        status, found = await at.post("/raylay/publish", message)
        assert status == 200
        assert found["persisted_ms"] > 0
        (row,) = await at.rows("/raylay/messages?topic=orders")
        assert row["bookmark"] == found["bookmark"]
        assert row["headers"]["correlation id"] == "mine"
        status, found = await at.post("/raylay/publish", {**message, "body_hex": "0x"})
        assert status == 400
        status, found = await at.post("/raylay/publish", message, headers={})
        assert status == 403
        wrong: Any
        for wrong in (
            [],
            {"topic": "orders", "body": 7},
            {**message, "headers": 7},
            {**message, "headers": {"expiration_s": True}},
            {**message, "topic": "\ud800"},
            {**message, "message_type": "\ud800"},
            {**message, "headers": {"key": "\ud800"}},
        ):
            status, found = await at.post("/raylay/publish", wrong)
            assert status == 400
        status, found = await at.post("/raylay/publish", {**message, "topic": "elsewhere"})
        assert status == 400
        assert "elsewhere" in found["error"]
        assert len(await at.rows("/raylay/messages?topic=orders")) == 1

    with_interface(tmp_path, act)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/raylay/messages", 400, "no topic"),
        ("/raylay/messages?topic=orders&filter=/id >", 400, "is no filter"),
        ("/raylay/messages?topic=orders&source=queue", 400, "sow, live, replay"),
        ("/raylay/messages?topic=orders&limit=0", 400, "from 1 to"),
        ("/raylay/messages?topic=orders&limit=00000000199999", 400, "from 1 to"),
        ("/raylay/messages?topic=orders&limit=000000001" + "9" * 5_000, 400, "from 1 to"),
        ("/raylay/messages?topic=orders&start=yesterday", 400, "is no start"),
        ("/raylay/messages?topic=orders&start=9999-12-31T23:59:59-23:59", 400, "is no start"),
        ("/raylay/messages?topic=orders&start=77|8|", 404, "has no message 77|8|"),
        ("/raylay/messages?topic=trades&source=sow", 400, "trades"),
        ("/raylay/messages?topic=ticks", 400, "ticks"),
        ("/raylay/message/nonsense", 400, "no bookmark"),
        ("/raylay/trace/0", 400, "no bookmark"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    path: str, status: int, words: str, tmp_path: Path
) -> None:
    async def act(at: Interface) -> None:
        found, answer = await at.json(path)
        assert found == status, answer
        assert words in answer["error"]

    with_interface(tmp_path, act)


def test_readers_are_limited(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        async with asyncio.TaskGroup() as group:
            left = asyncio.Event()

            async def read() -> None:
                async with at.stream("/raylay/messages?source=live&topic=orders") as following:
                    await following("progress")
                    arrived.release()
                    await left.wait()

            arrived = asyncio.Semaphore(0)
            for _ in range(CLIENTS_MAX):
                group.create_task(read())
            for _ in range(CLIENTS_MAX):
                await arrived.acquire()
            status, found = await at.json("/raylay/messages?topic=orders")
            assert status == 503
            assert "stop one" in found["error"]
            left.set()
        await until(lambda: not at.routes.clients._used)
        assert await at.lines("/raylay/messages?topic=orders")

    with_interface(tmp_path, act)


def test_a_reading_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "FOLLOW_S_MAX", 0.0)

    async def act(at: Interface) -> None:
        lines = await at.lines("/raylay/messages?topic=orders&source=live")
        assert told(lines, "end")["why"] == "time"

    with_interface(tmp_path, act)


def test_an_instance_that_goes_away_is_told_in_the_stream(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        async with at.stream("/raylay/messages?source=live&topic=orders") as following:
            await following("progress")
            await at.client.close()
            await at.server.stop()
            assert "solo" in (await following("error"))["error"]

    with_interface(tmp_path, act)


def test_the_way_of_a_message_says_where_it_is_stored(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        (bookmark,) = await at.publish("orders", order(1))
        status, way = await at.json(f"/raylay/trace/{bookmark}?topic=orders")
        assert status == 200
        (stored,) = way["stored"]
        assert stored["instance"] == CONFIG.name
        assert stored["txid"] > 0
        assert way["without_spans"] == [CONFIG.name]
        assert way["is_sampled"] is False
        assert way["lanes"] == []
        status, way = await at.json("/raylay/trace/77|1|")
        assert (way["stored"], way["not_stored"], way["is_sampled"]) == ([], ["solo"], None)

    with_interface(tmp_path, act)


def test_a_message_that_is_published_here_is_traced(tmp_path: Path) -> None:
    from raylay.services.telemetry.tracing import TracingOptions

    options = TracingOptions(1.0, file_directory=str(tmp_path / "traces"))
    config = replace(CONFIG, tracing=options)

    async def act(at: Interface) -> None:
        at.routes.clients.tracing = options
        status, found = await at.post("/raylay/publish", {"topic": "odd", "body": "{}"})
        assert status == 200, found
        assert found["traced"]
        path = f"/raylay/trace/{found['bookmark']}"
        way: dict[str, Any] = {"lanes": []}
        # The instance's exporter writes its spans by and by.
        while len(way["lanes"]) < 2:
            _, way = await at.json(path)
        assert [each["process"] for each in way["lanes"]] == ["solo.admin", "solo"]
        assert way["is_sampled"]
        assert way["persisted_ms"] > 0
        await at.json(f"/raylay/message/{found['bookmark']}")
        _, again = await at.json(path)
        assert again["lanes"] == way["lanes"], "a look at a message is no step of its way"
        assert way["without_spans"] == []

    with_interface(tmp_path, act, config, trace_directory=tmp_path / "traces")


@pytest.mark.slow
@pytest.mark.covers("Administration", "the way of a message: lanes, arrows, clocks that dif")
def test_peers_are_asked_for_what_they_have(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(_: Any, name: str, path: str) -> dict[str, Any]:
        asked.append((name, path))
        if name == "away":
            raise FabricError("away does not answer")
        if name == "slow":
            await asyncio.sleep(600)
        return {"spans": [], "stored": {"txid": 9, "time_us": 5}, "sampled": False}

    async def act(at: Interface) -> None:
        (bookmark,) = await at.publish("orders", order(1))
        _, way = await at.json(f"/raylay/trace/{bookmark}?topic=orders")
        assert [each["instance"] for each in way["stored"]] == ["solo", "other"]
        assert way["silent"][0] == {"instance": "away", "why": "away does not answer"}
        assert "no answer within" in way["silent"][1]["why"]
        publisher, sequence, _ = bookmark.split("|")
        path = f"raylay/trace/{publisher}%7C{sequence}%7C?own=1&topic=orders"
        assert asked == [("away", path), ("other", path), ("slow", path)]
        _, own = await at.json("/" + path)
        assert own["instance"] == "solo"
        assert own["stored"]["txid"] > 0

    names = ("solo", "away", "other", "slow")
    with_interface(tmp_path, act, peers=lambda: names, ask_peer=ask)


def test_a_viewer_without_the_permission_is_told_no_trace(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        async def viewer(_: Any) -> Viewer:
            return Viewer("anna", NOBODY, read_permissions({"admin": []}, "test"))

        at.routes.viewer = viewer
        status, found = await at.json("/raylay/trace/7|1|")
        assert status == 403
        assert "anna may not read /raylay/trace" in found["error"]

    with_interface(tmp_path, act)


def test_without_a_transport_it_says_what_to_do(tmp_path: Path) -> None:
    async def act(at: Interface) -> None:
        at.routes.clients.address = lambda: ""
        status, found = await at.json("/raylay/messages?topic=orders")
        assert status == 503
        assert "no client transport" in found["error"]

    with_interface(tmp_path, act)
