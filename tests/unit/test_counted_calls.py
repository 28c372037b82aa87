"""What a publish costs until its ack, in calls of Python functions instead of in seconds: those of
two instances, of the sync link between them and of their threads, all in this process.

A busy machine does not change a count, so a limit here may stand close above what was counted.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from raylay.services.config.instance import DestinationConfig, InstanceConfig, LinkConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
)
from raylay.services.processes.link.link_server import LinkServer
from raylay.services.protocol.client.commands import Command, PublishBatchCommand
from raylay.services.protocol.client.session import ServerSession
from raylay.services.protocol.frames import FrameReader, Header, encode_frame
from raylay.services.server.instance_server import InstanceServer

ROOT = Path(__file__).parents[2]
COUNTED = tuple(f"{ROOT / part}/" for part in ("services", "storage"))
DEADLINE_S = 30.0
ROUNDS = 12
MESSAGES_MAX = 1_000
EXTRA_CALLS_MAX = 60
"""Between a batch of one message and a batch of MESSAGES_MAX: nothing is done for each message. A
larger batch may come in more than one piece."""
CALLS_MAX = {"alone": 165, "pair": 505, "direct": 430}
"""From the publish until its ack, of everybody in this process. They may only fall. A busy disk has
the writer thread commit, which takes some forty calls more than a commit on the loop. `direct`: the
links of a pair have handed over their connections, each way one, which they do half a second after
they have caught up."""


class Calls:
    """Counts the calls of this tree's functions on every thread that began under it."""

    def __init__(self) -> None:
        self.counted: Counter[str] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        counted = self.counted
        if counted is not None and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(COUNTED):
                counted[f"{code.co_filename.removeprefix(str(ROOT))}:{code.co_qualname}"] += 1


@contextmanager
def profiled() -> Iterator[Calls]:
    calls, before = Calls(), sys.getprofile()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


class Task:
    """The handle of a link that runs on the loop of its instance."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self._task = task

    def kill(self) -> None:
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


def links_here(loop: asyncio.AbstractEventLoop) -> Callable[[LinkConfig], Task]:
    async def start(config: LinkConfig) -> Task:
        return Task(asyncio.ensure_future(LinkServer(config).run()))

    def factory(config: LinkConfig) -> Task:
        return asyncio.run_coroutine_threadsafe(start(config), loop).result(DEADLINE_S)

    return factory


class Publisher:
    """A client that counts for itself nothing but what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()
        self._sequence = 0
        self._builder = RecordBuilder(publisher_id("p"), "orders", "json")

    @classmethod
    async def connected(cls, address: str) -> Publisher:
        host, _, port = address.rpartition(":")
        made = cls(*await asyncio.open_connection(host, int(port)))
        made._writer.write(encode_frame({"c": "logon", "v": 1, "client_name": "p", "cid": "1"}))
        await made._until(lambda header: header.get("cid") == "1")
        return made

    async def _until(self, wanted: Callable[[Header], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                data = await self._reader.read(1 << 16)
                assert data, "the instance closed the connection"
                if any(wanted(header) for header, _ in self._frames.feed(data)):
                    return

    async def calls_of(self, count: int, calls: Calls) -> Counter[str]:
        """The calls from the publish of a batch until its persisted ack."""
        records = []
        for _ in range(count):
            self._sequence += 1
            records.append(self._builder.build(self._sequence, b"{}", 1))
        frame = encode_frame({"c": "pb", "n": count}, b"".join(records))
        # What follows the last batch's ack, wake-ups and news to the peer, is not this one's.
        await asyncio.sleep(0.02)
        calls.counted = counted = Counter()
        self._writer.write(frame)
        while True:
            data = await self._reader.read(1 << 16)
            acked = calls.counted
            calls.counted = None
            found = [header for header, _ in self._frames.feed(data)]
            calls.counted = acked
            if any(h.get("a") == "persisted" and h["s"] == self._sequence for h in found):
                calls.counted = None
                return counted


def sync_to(name: str, address: str) -> DestinationConfig:
    rule = TopicRule("orders", exclude_validation=("replicate",))
    return DestinationConfig(name, "g", True, (address,), server_names=(name,), topics=(rule,))


async def counted_batches(
    tmp_path: Path, calls: Calls, *, pair: bool, direct: bool = False
) -> tuple[Counter[str], Counter[str]]:
    """The least that a batch of one message and a batch of many took."""
    link_factory = links_here(asyncio.get_running_loop())
    topics = (TopicRule("orders"),)
    config = InstanceConfig("A", "g", topics=topics, first=True, direct_links=direct)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] if direct else 0
    servers = []
    if pair:
        back = (sync_to("A", f"127.0.0.1:{port}"),) if direct else ()
        b_config = replace(config, name="B", destinations=back)
        b = InstanceServer(b_config, tmp_path / "B", link_factory)
        servers.append(b)
        await b.start()
        to = sync_to("B", b.runtime.replication_address)
        config = replace(
            config,
            destinations=(to,),
            replication_transports=(TransportConfig("replication", port),),
        )
    a = InstanceServer(config, tmp_path / "A", link_factory)
    servers.append(a)
    await a.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            wanted = "direct" if direct else "caught_up"
            while not all(
                to[wanted] for each in servers for to in each.status()["destinations"].values()
            ):
                await asyncio.sleep(0.02)
        publisher = await Publisher.connected(a.runtime.client_address)
        found: dict[int, list[Counter[str]]] = {1: [], MESSAGES_MAX: []}
        for _ in range(ROUNDS):
            for count, each in found.items():
                each.append(await publisher.calls_of(count, calls))
        one, many = (min(each, key=Counter.total) for each in found.values())
        return one, many
    finally:
        for server in reversed(servers):
            await server.stop()


def per_message(many: Counter[str]) -> list[str]:
    """What a batch of MESSAGES_MAX called about as often as it has messages."""
    return [name for name, count in many.items() if count >= MESSAGES_MAX / 2]


@pytest.mark.parametrize("kind", ["alone", "pair", "direct"])
def test_a_publish_takes_so_many_calls_until_its_ack(kind: str, tmp_path: Path) -> None:
    with profiled() as calls:
        counted = counted_batches(tmp_path, calls, pair=kind != "alone", direct=kind == "direct")
        one, many = asyncio.run(counted)
    assert one.total() > 20, "the calls were not counted"
    assert one.total() <= CALLS_MAX[kind], one.most_common()
    assert not per_message(many), f"called for each message: {per_message(many)}"
    assert many.total() - one.total() <= EXTRA_CALLS_MAX, (many - one).most_common()


def test_a_call_for_each_message_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = TopicMatcher([TopicRule("orders")])
    receive = ServerSession.receive

    def wrong(session: ServerSession, data: bytes) -> list[Command]:
        commands = receive(session, data)
        for command in commands:
            for _ in range(command.count if isinstance(command, PublishBatchCommand) else 0):
                matcher.matches(b"orders", b"json")
        return commands

    monkeypatch.setattr(ServerSession, "receive", wrong)
    with profiled() as calls:
        _, many = asyncio.run(counted_batches(tmp_path, calls, pair=False))
    (found,) = per_message(many)
    assert found.endswith("TopicMatcher.matches")
