"""A disk that breaks under what an instance has taken while it was being written."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import StorageError
from raylay.services.replication.commit_thread import CommitThreadPolicy
from raylay.services.server import instance_parts
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.sow import manager
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage import lmdb_journal
from raylay.storage.overlapped import OverlappedWrite

CONFIG = InstanceConfig("A", "g", first=True)
RECORDS = SowTopicDefinition("orders", "json", keys=("/id",))
HANGS_S = 0.5
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def _commits_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine commits take so long that the writer thread makes them, where nothing is
    taken ahead of the disk. These tests are of the loop's commits, however slow the disk is, and
    nothing but a commit of theirs may meet the broken disk."""
    monkeypatch.setattr(CommitThreadPolicy, "took", lambda *_: None)
    monkeypatch.setattr(lmdb_journal, "MOVE_S", 3_600.0)


@pytest.mark.covers("Journal", "… and nothing of it is in other files")
def test_a_disk_that_hangs_before_it_breaks_leaves_nothing_of_it_in_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it hung, all timers became due: those of recovery points, of SOW stores, of ages. They
    run before the instance has ended, and know what the disk does not have. So does a question."""
    monkeypatch.setattr(instance_parts, "POINT_INTERVAL_S", 0.05)
    monkeypatch.setattr(manager, "WRITE_INTERVAL_S", 0.0)
    config = replace(CONFIG, sow=(RECORDS,))
    asked: list[Any] = []

    async def first() -> None:
        server = InstanceServer(config, tmp_path)
        await server.start()
        loop = asyncio.get_running_loop()
        client = Client("p", servers=[server.runtime.client_address])
        await client.connect()
        server.parts.instance.journal.settle()  # The front log is there.
        for body in (b'{"id": 1, "v": "on disk"}', b'{"id": 2}'):
            await client.publish("orders", body, "json")
            await client.flush()

        async def question() -> dict[str, Any]:
            return server.status()

        def hangs(*_: object) -> None:
            asked.append(asyncio.run_coroutine_threadsafe(question(), loop))
            time.sleep(HANGS_S)
            raise OSError(errno.EIO, "it is broken")

        with monkeypatch.context() as disk:
            # Nothing of it is written, not even what is not synced.
            disk.setattr(OverlappedWrite, "begin", lambda *_: True)
            disk.setattr(OverlappedWrite, "end", hangs)
            disk.setattr(server.parts.instance.journal, "_put", hangs)
            await client.publish("orders", b'{"id": 1, "v": "never on disk"}', "json")
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StorageError, match="it is broken"):
                    await server.finished()
            assert (
                server.parts.instance.machine.committed_txid
                > server.parts.instance.journal.last_txid
            )
            # What was overdue has run by then.
            await asyncio.sleep(HANGS_S)
        for each in asked:
            status = each.result(0)
            assert status["ready"] is False and not status.get("committed_txid")
        await server.stop()
        await client.close(flush=False)

    async def second() -> None:
        server = InstanceServer(config, tmp_path)
        await server.start()
        events = {event["event"] for event in server.events()}
        assert not events & {"data_directory_copied", "sow_ahead"}, events
        async with Client("q", servers=[server.runtime.client_address]) as client:
            found = {json.loads(m.body)["id"]: m.body async for m in client.sow("orders")}
        journal = [each async for each in _journaled(server)]
        assert found[1] == journal[-1] == b'{"id": 1, "v": "on disk"}'
        await server.stop()

    async def _journaled(server: InstanceServer) -> AsyncIterator[bytes]:
        """Bodies of the record's versions, in their order."""
        async with Client("r", servers=[server.runtime.client_address]) as client:
            subscription = await client.subscribe("orders", bookmark="0", filter="/id = 1")
            await subscription.caught_up.wait()
            while subscription.queued_messages:
                yield (await anext(aiter(subscription))).body

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.covers(
    "Journal", "a commit that fails behind that ends the instance", note="a real server"
)
def test_an_instance_whose_disk_breaks_under_what_it_took_ends_and_has_told_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise OSError(errno.EIO, "it is broken")

    async def run() -> None:
        server = InstanceServer(CONFIG, tmp_path)
        await server.start()
        delivered: list[bytes] = []
        publisher = Client("p", servers=[server.runtime.client_address])
        subscriber = Client("s", servers=[server.runtime.client_address])
        await publisher.connect()
        await subscriber.connect()
        subscription = await subscriber.subscribe("orders")

        async def read() -> None:
            async for message in subscription:
                delivered.append(message.body)

        reading = asyncio.create_task(read())
        server.parts.instance.journal.settle()  # The front log is there.
        for body in (b"1", b"2"):
            await publisher.publish("orders", body)
            await publisher.flush()
        prepared: list[int] = []
        prepare = server.parts.commits.cycle.prepare
        server.parts.commits.cycle.prepare = (  # type: ignore[method-assign]
            lambda txid: prepared.append(txid) or prepare(txid)
        )
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", breaks)
            disk.setattr(server.parts.instance.journal, "_put", breaks)
            await publisher.publish("orders", b"3")
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StorageError, match="it is broken"):
                    await server.finished()
        assert prepared and server.parts.instance.machine.committed_txid == prepared[-1]
        await server.stop()
        assert publisher.persisted_sequence == publisher.last_sequence - 1
        assert delivered == [b"1", b"2"]
        reading.cancel()
        for client in (publisher, subscriber):
            await client.close(flush=False)
        again = InstanceServer(CONFIG, tmp_path)
        await again.start()
        assert again.parts.instance.journal.last_txid in (prepared[-1] - 1, prepared[-1])
        async with Client("q", servers=[again.runtime.client_address]) as client:
            await client.publish("orders", b"4")
            await client.flush()
        await again.stop()

    asyncio.run(run())
