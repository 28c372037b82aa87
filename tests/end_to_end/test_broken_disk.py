"""A disk that breaks under what an instance has taken while it was being written."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from raylay.services.client import Client
from raylay.services.errors import StorageError
from raylay.services.server.config import InstanceConfig
from raylay.services.server.instance_server import InstanceServer

CONFIG = InstanceConfig("A", "g", first=True)
DEADLINE_S = 30.0


def test_an_instance_whose_disk_breaks_under_what_it_took_ends_and_has_told_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise OSError(errno.EIO, "it is broken")

    async def run() -> None:
        server = InstanceServer(CONFIG, tmp_path)
        await server.start()
        delivered: list[bytes] = []
        publisher = Client("p", servers=[server.here.client_address])
        subscriber = Client("s", servers=[server.here.client_address])
        await publisher.connect()
        await subscriber.connect()
        subscription = await subscriber.subscribe("orders")

        async def read() -> None:
            async for message in subscription:
                delivered.append(message.body)

        reading = asyncio.create_task(read())
        server.here.journal.settle()  # The front log is there.
        for body in (b"1", b"2"):
            await publisher.publish("orders", body)
            await publisher.flush()
        prepared: list[int] = []
        prepare = server.commits.prepare
        server.commits.prepare = (  # type: ignore[method-assign]
            lambda txid: prepared.append(txid) or prepare(txid)
        )
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", breaks)
            disk.setattr(server.here.journal, "_put", breaks)
            await publisher.publish("orders", b"3")
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(StorageError, match="it is broken"):
                    await server.finished()
        assert prepared and server.here.machine.committed_txid == prepared[-1]
        await server.stop()
        assert publisher.persisted_sequence == publisher.last_sequence - 1
        assert delivered == [b"1", b"2"]
        reading.cancel()
        for client in (publisher, subscriber):
            await client.close(flush=False)
        again = InstanceServer(CONFIG, tmp_path)
        await again.start()
        assert again.here.journal.last_txid in (prepared[-1] - 1, prepared[-1])
        async with Client("q", servers=[again.here.client_address]) as client:
            await client.publish("orders", b"4")
            await client.flush()
        await again.stop()

    asyncio.run(run())
