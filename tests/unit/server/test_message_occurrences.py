"""Messages that leave SOW topics and queues, told to who listens
(services/server/message_occurrences.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgpack
import pytest
from support.one_instance import DEADLINE_S
from unit.server.clients.test_queries import House, in_house

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig, QueueOwnerConfig
from raylay.services.messages.records import Command
from raylay.services.messages.topics import TopicRule
from raylay.services.processes.queue_owner.owner_server import OwnerServer
from raylay.services.queues.definition import QueueDefinition
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

KINDS = ("sow-expire-message", "sow-delete-message")
Told = tuple[str, Mapping[str, str]]


class Ear:
    """All that was told, and an event whenever something is."""

    def __init__(self, server: InstanceServer) -> None:
        self.told: list[Told] = []
        self.came = asyncio.Event()
        server.runtime.occurrences.listen(KINDS, self._take)

    def _take(self, kind: str, variables: Mapping[str, str]) -> None:
        self.told.append((kind, dict(variables)))
        self.came.set()

    async def until(self, count: int) -> list[Told]:
        while len(self.told) < count:
            self.came.clear()
            await self.came.wait()
        return self.told


@pytest.mark.covers("Actions", "On SOW Message Expiration")
@pytest.mark.covers("Actions", "On SOW Message Delete")
def test_deletes_and_expired_records_of_a_sow_topic_are_told(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        ear = Ear(house.server)
        door = await house.client("amy")
        await house.publish(door, "amy", {"id": 1}, b'{"id": 2, "t": "\xc3\xa4"}')
        said = msgpack.packb({"filter": "/id = 2"})
        await house.publish(door, "amy", said, command=Command.DELETE, correlation=b"why")
        await house.folded()
        assert len(ear.told) == 1, "and no update"
        kind, deleted = ear.told.pop()
        assert kind == "sow-delete-message"
        assert deleted["AMPS_TOPIC"] == "orders" and deleted["AMPS_MESSAGE_TYPE"] == "json"
        assert deleted["AMPS_DATA"] == '{"id": 2, "t": "ä"}'
        assert deleted["AMPS_DATA_LENGTH"] == str(len('{"id": 2, "t": "ä"}'.encode()))
        assert deleted["AMPS_CORRELATION_ID"] == "why"
        await house.publish(door, "amy", {"id": 7}, topic="short", expiration_s=1)
        # Its publisher's clock is far behind: it is due at once.
        kind, expired = (await ear.until(1))[0]
        assert kind == "sow-expire-message" and len(ear.told) == 1
        assert expired["AMPS_REASON"] == "time_limit" and expired["AMPS_DATA"] == '{"id":7}'
        assert expired["AMPS_TOPIC"] == "short"

    in_house(tmp_path, visit)


class OwnerTask:
    """The handle of a queue's owner that runs on the loop of its instance."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self._task = task

    def kill(self) -> None:
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


def owners_here(loop: asyncio.AbstractEventLoop):  # type: ignore[no-untyped-def]
    async def start(config: QueueOwnerConfig) -> OwnerTask:
        return OwnerTask(asyncio.ensure_future(OwnerServer(config).run()))

    def factory(config: QueueOwnerConfig) -> OwnerTask:
        return asyncio.run_coroutine_threadsafe(start(config), loop).result(DEADLINE_S)

    return factory


@pytest.mark.covers("Actions", "On SOW Message Expiration")
@pytest.mark.covers("Actions", "On SOW Message Delete")
@pytest.mark.parametrize("letters", ["", "dead"])
def test_messages_that_leave_a_queue_are_told_with_their_reason(
    tmp_path: Path, letters: str
) -> None:
    queue = QueueDefinition(
        "work",
        "json",
        underlying="jobs",
        subscription_backlog_max=3,
        cancels_max=1,
        dead_letters=letters,
    )
    config = InstanceConfig(
        "solo", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"),
        queue_definitions=(queue,),
    )  # fmt: skip

    async def run() -> None:
        server = InstanceServer(config, tmp_path, owners_here(asyncio.get_running_loop()))
        ear = Ear(server)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S), client_of(server) as client:
                await visit(client, ear)
        finally:
            await server.stop()

    def client_of(server: InstanceServer) -> Client:
        return Client("amy", [server.runtime.client_address])

    async def visit(client: Client, ear: Ear) -> None:
        for body in (b'{"id":1}', b'{"id":2}', b'{"id":3}'):
            await client.publish("jobs", body, correlation=b"c")
        async with client.queue("work", backlog=3, ack="manual") as queue:
            messages = [await anext(queue) for _ in range(3)]
            messages[0].acknowledge()
            messages[1].cancel()
            messages[2].expire()
            told = await ear.until(3)
        found = {each["AMPS_DATA"]: (kind, each["AMPS_REASON"]) for kind, each in told}
        assert found == {
            '{"id":1}': ("sow-delete-message", ""),
            '{"id":2}': ("sow-expire-message", "max_cancels"),
            '{"id":3}': ("sow-expire-message", "forced_expire"),
        }
        for _, each in told:
            assert each["AMPS_TOPIC"] == "work" and each["AMPS_MESSAGE_TYPE"] == "json"
            assert each["AMPS_DATA_LENGTH"] == "8" and each["AMPS_CORRELATION_ID"] == "c"
            assert each["AMPS_BOOKMARK"].endswith("|")

    asyncio.run(run())
