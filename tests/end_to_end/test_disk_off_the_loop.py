"""A serving instance leaves the disk to its threads: for what its event loop does, all wait. Only
the short commit at the end of a turn is the loop's own (services/replication/commit_thread.py)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from raylay.services.client import Client
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.server.instance_server import InstanceServer
from raylay.storage.maintenance import FLOOR_FILE, read_floor
from raylay.storage.state import StoreFile

DEADLINE_S = 30.0
SEGMENT_BYTES = 64 * 1024


def is_of_a_short_commit() -> bool:
    """Whether the front log syncs what is committed at the end of a turn."""
    asks = sys._getframe(2).f_code
    return asks.co_name == "append" and asks.co_filename.endswith("storage/front.py")


class Watch:
    """Who changed or synced a file, as far as Python's own calls and the small stores tell."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.thread = threading.get_ident()
        self.watching = False
        self.on_the_loop: list[str] = []
        self.elsewhere = 0
        for name in ("fsync", "fdatasync", "replace", "rename", "unlink", "ftruncate"):
            patch.setattr(os, name, self._watched(getattr(os, name)))
        begin = StoreFile.begin

        def begun(file: StoreFile, *, write: bool = False, buffers: bool = False) -> Any:
            if write:
                self._seen(f"a write transaction of {file._path}")
            return begin(file, write=write)

        patch.setattr(StoreFile, "begin", begun)

    def _watched(self, call: Any) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            if not is_of_a_short_commit():
                self._seen(f"{call.__name__}{arguments}")
            return call(*arguments, **named)

        return watched

    def _seen(self, what: str) -> None:
        if not self.watching:
            return
        if threading.get_ident() == self.thread:
            self.on_the_loop.append(what + "\n" + "".join(traceback.format_stack(limit=6)))
        else:
            self.elsewhere += 1


@pytest.mark.covers("Journal", "a serving instance writes nothing on its event loop")
def test_a_serving_instance_writes_nothing_on_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes, rotations, retention, a destination that goes, comes back, and comes back with an
    empty disk: what may be removed is taken back at each loss of its link, and on disk for tools
    before the link begins again."""

    async def run() -> None:
        watch = Watch(monkeypatch)
        config_b = InstanceConfig("B", "h", first=True)
        b = InstanceServer(config_b, tmp_path / "B", ChildSubprocess)
        await b.start()
        config_b = InstanceConfig(
            "B",
            "h",
            first=True,
            replication_transports=(
                TransportConfig(
                    "replication", int(b.runtime.replication_address.rpartition(":")[2])
                ),
            ),
        )
        to_b = DestinationConfig(
            "B",
            "h",
            True,
            (b.runtime.replication_address,),
            server_names=("B",),
            retry_ms_max=100,
            topics=(TopicRule(".*", exclude_validation=("replicate",)),),
        )
        a = InstanceServer(
            InstanceConfig(
                "A",
                "g",
                destinations=(to_b,),
                first=True,
                journal=JournalConfig(
                    segment_bytes=SEGMENT_BYTES, retention=RetentionConfig(size_bytes=SEGMENT_BYTES)
                ),
            ),
            tmp_path / "A",
            ChildSubprocess,
        )
        await a.start()
        journal = tmp_path / "A" / JOURNAL_DIRECTORY
        known_to_tools: list[int] = []
        link_connected = a.parts.instance.machine.link_connected

        def connected(*arguments: Any, **named: Any) -> Any:
            known_to_tools.append(read_floor(journal))
            return link_connected(*arguments, **named)

        a.parts.instance.machine.link_connected = connected  # type: ignore[method-assign]
        watch.watching = True
        await until(lambda: a.status()["destinations"]["B"]["caught_up"])
        client = Client("p", servers=[a.runtime.client_address])
        await client.connect()
        for round_number in range(3):
            # More, until retention has come to what was released: it passes over what is in use.
            before_txid = a.parts.instance.machine.committed_txid + 1
            deadline_s = time.monotonic() + DEADLINE_S
            while min(a.parts.instance.journal.first_txid, read_floor(journal)) < before_txid:
                assert time.monotonic() < deadline_s, f"round {round_number}"
                for _ in range(10):
                    await client.publish("orders", b"x" * 4_000)
                await client.flush()
            watch.watching = False
            await b.stop()
            watch.watching = True
            await until(lambda: not a.status()["destinations"]["B"]["connected"])
            await until(lambda: not (journal / FLOOR_FILE).exists())
            watch.watching = False
            directory = tmp_path / ("B" if round_number == 0 else f"B{round_number}")
            b = InstanceServer(config_b, directory, ChildSubprocess)
            await b.start()
            watch.watching = True
            await until(lambda: a.status()["destinations"]["B"]["caught_up"])
        watch.watching = False
        await client.close()
        await a.stop()
        await b.stop()
        assert not watch.on_the_loop, watch.on_the_loop[0]
        assert watch.elsewhere > 50
        assert known_to_tools == [0, 0, 0, 0]

    asyncio.run(run())
