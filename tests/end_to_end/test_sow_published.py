"""What clients publish to SOW topics of a real instance: deltas, deletes, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from end_to_end.test_sow_kept import Life, run

from raylay.services.client import Client
from raylay.services.client.publishing import deletes
from raylay.services.client.publishing.deletes import delete_body
from raylay.services.commands.messages import _delete
from raylay.services.errors import CommandFailed
from raylay.services.messages.records import Command
from raylay.services.protocol.client.commands import PublishBatchCommand
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.data import journal_reads
from raylay.services.sow import delete_scan, staging


def values(life: Life) -> dict[int, Any]:
    bodies = (json.loads(each or b"") for each in life.bodies())
    return {each["id"]: each for each in bodies}


@pytest.mark.covers("SOW", "it is journaled")
def test_deltas_and_deletes_take_effect_in_their_order(tmp_path: Path) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            client = life.client
            got = await client.subscribe("orders")
            for n in range(3):
                await client.publish("orders", b'{"id":%d,"n":%d}' % (n, n))
                await client.delta_publish("orders", b'{"id":%d,"m":1}' % n)
            await client.sow_delete("orders", filter="/n = 1")
            await client.delta_publish("orders", b'{"id":1,"m":2}')
            await client.sow_delete("orders", data=b'{"id":2}')
            await client.sow_delete("orders", keys=[b"nobody"])
            await client.publish("orders", b'{"id":9}')
            await client.flush()
            wanted = {0: {"id": 0, "n": 0, "m": 1}, 1: {"id": 1, "m": 2}, 9: {"id": 9}}
            assert values(life) == wanted
            heard = []
            async for message in got:
                heard.append(json.loads(message.body))
                if heard[-1] == {"id": 9}:
                    break
            assert len(heard) == 8, "deltas are whole messages, deletes are none"
            assert heard[1] == {"id": 0, "n": 0, "m": 1} and heard[6] == {"id": 1, "m": 2}
        async with Life(tmp_path) as life:
            assert values(life) == wanted

    run(lives())


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("publish", "bad_key"),
        ("text", "bad_message"),
        ("filter", "bad_filter"),
        ("elsewhere", "no_sow"),
    ],
)
def test_what_is_refused_is_told_and_the_session_goes_on(
    tmp_path: Path, how: str, reason: str
) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            client = life.client
            await client.publish("orders", b'{"id":1}')
            if how == "publish":
                await client.publish("orders", b'{"n":1}')
            elif how == "text":
                await client.delta_publish("orders", b"{")
            elif how == "filter":
                await client.sow_delete("orders", filter="/n >")
            else:
                await client.sow_delete("trades", filter="1=1")
            await client.publish("orders", b'{"id":2}')
            with pytest.raises(CommandFailed) as caught:
                await client.flush()
            assert caught.value.reason == reason
            await client.publish("orders", b'{"id":3}')
            await client.flush()
            assert set(values(life)) == {1, 2, 3}

    run(lives())


@pytest.mark.covers("SOW", "of any number at once")
def test_any_number_of_deletes_by_filter_in_one_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is found but in turns.
    monkeypatch.setattr(staging, "LOOKED_MAX", 0)
    frames: list[int] = []
    take = ClientConnection._publish_batch

    def noted(
        self: ClientConnection, command: PublishBatchCommand, answers: LookupResult
    ) -> LookupRequest | None:
        frames.append(command.count)
        return take(self, command, answers)

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", *range(10))
            monkeypatch.setattr(ClientConnection, "_publish_batch", noted)
            for n in range(1_000):
                # Each finds what the one before it leaves, and nothing of what comes behind.
                body = delete_body(filter=f"/id = {n % 10}")
                life.client.publish_nowait("orders", body, command=Command.DELETE)
                if n % 100 == 0:
                    life.client.publish_nowait("orders", b'{"id":%d}' % (n // 100))
            await life.client.flush()
            assert max(frames) == 1_010 == sum(frames)
            (topic,) = (
                each for each in life.server.parts.sow.book.topics if each.name == b"orders"
            )
            assert values(life) == {} and not topic.staging._findings
            assert life.status()["deleted"] == 20
            life.client.publish_nowait("orders", b'{"id":1}')
            for text in ("/id = 2", "/id = 1"):
                life.client.publish_nowait(
                    "orders", delete_body(filter=text), command=Command.DELETE
                )
                life.client.publish_nowait("orders", b'{"id":2}')
            await life.client.flush()
            assert set(values(life)) == {2}

    run(lives())


@pytest.mark.covers("SOW", "of any number at once")
def test_more_than_one_delete_may_name_is_refused_and_deleted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delete_scan, "FOUND_MAX", 50)
    monkeypatch.setattr(deletes, "DELETED_AT_ONCE_MAX", 50)
    monkeypatch.setattr(deletes, "PART_KEYS", 20)
    what = {"filter": "/id >= 10", "keys": None, "data": None}

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", *range(140))
            with pytest.raises(CommandFailed, match="as `raylay delete` and ") as caught:
                await life.client.sow_delete("orders", filter="/id >= 10")
                await life.client.flush()
            assert caught.value.reason == "too_many" and len(values(life)) == 140
            # What was not acknowledged when it was asked for counts, too.
            await life.client.publish("orders", b'{"id":5}')
            await life.client.publish("orders", b'{"id":200}')
            assert await life.client.sow_delete_in_parts("orders", filter="/id >= 10") == 7
            await life.client.flush()
            assert set(values(life)) == set(range(10))
            assert await life.client.sow_delete_in_parts("orders", filter="/id = 9") == 1
            await life.publish("orders", *range(140))
            options = {"name": "shell", "servers": [life.server.runtime.client_address]}
            done = await _delete(options, "orders", "json", what)
            assert (done.published, done.persisted, done.refusal) == (7, 7, None)
            assert set(values(life)) == set(range(10))
            assert "they are deleted in parts" in capsys.readouterr().err

    run(lives())


class Turns:
    """Of who looks for records: the first one it leaves to others ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.go_on = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(
            journal_reads, "asyncio", SimpleNamespace(Lock=asyncio.Lock, sleep=self.leave)
        )

    async def leave(self, _: float) -> None:
        self.left.set()
        await self.go_on.wait()


def test_a_filter_over_many_records_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A turn of its own for each look at so few records.
    monkeypatch.setattr(journal_reads, "LOOKED_AT_ONCE", 50)
    monkeypatch.setattr(journal_reads, "TURN_S", 0)
    turns = Turns(monkeypatch)
    count = 5_000

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", *range(count))
            (topic,) = (
                each for each in life.server.parts.sow.book.topics if each.name == b"orders"
            )
            async with Client("q", servers=[life.server.runtime.client_address]) as other:
                await life.client.sow_delete("orders", filter="/text = 'x'")
                deleting = asyncio.ensure_future(life.client.flush())
                await turns.left.wait()
                assert topic.staging._findings
                # These come while it looks: one is as it was, the other one is no more.
                await other.publish("orders", b'{"id":1,"text":"y"}')
                await other.publish("orders", b'{"id":9999,"text":"x"}')
                await other.flush()
                assert not deleting.done() and topic.state.count == count + 1
                turns.go_on.set()
                await deleting
            assert list(values(life)) == [1] and not topic.staging._findings

    run(lives())


def test_who_leaves_while_a_filter_is_asked_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_reads, "LOOKED_AT_ONCE", 50)
    monkeypatch.setattr(journal_reads, "TURN_S", 0)
    turns = Turns(monkeypatch)

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", *range(5_000))
            (topic,) = (
                each for each in life.server.parts.sow.book.topics if each.name == b"orders"
            )
            other = Client("q", servers=[life.server.runtime.client_address])
            await other.connect()
            await other.sow_delete("orders", filter="/text = 'x'")
            await turns.left.wait()
            assert topic.staging._findings
            await other.close(flush=False)
            turns.go_on.set()
            while topic.staging._findings:
                await asyncio.sleep(0)
            assert topic.state.count == 5_000 and not topic.state._queries

    run(lives())
