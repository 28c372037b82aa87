"""The connections and consumers in an instance's status, as the shell shows them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.one_instance import in_instance

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.queues.decisions import ConsumerSubscription
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.frontend import QueueFrontend
from raylay.services.server.clients import client_status
from raylay.services.server.clients.client_status import connection_status, consumer_status
from raylay.services.server.instance_server import InstanceServer


@pytest.mark.covers("Administration", "`raylay connections` shows the clients of every instance")
def test_the_status_tells_each_connection_and_each_consumer(tmp_path: Path) -> None:
    queue = QueueDefinition("jobs", "json", lease_us=60_000_000, subscription_backlog_max=9)
    config = InstanceConfig("A", "g", first=True, queue_definitions=(queue,))

    async def visit(server: InstanceServer) -> None:
        address = server.runtime.client_address
        async with (
            Client("desk", [address], user_id="amy") as desk,
            Client("worker", [address]) as worker,
        ):
            orders = await desk.subscribe("orders")
            await worker.subscribe("jobs", filter="/id > 1", max_backlog=3)
            for number in range(5):
                await desk.publish("orders", b'{"id":%d}' % number)
            await desk.flush()
            await anext(aiter(orders))
            status = server.status()
        told = {each["client"]: each for each in status["connections"]}
        assert set(told) == {"desk", "worker"}
        assert told["desk"]["user"] == "amy" and told["desk"]["subscriptions"] == 1
        assert told["desk"]["messages_in"] == 5 and told["desk"]["messages_out"] >= 1
        assert told["worker"]["subscriptions"] == 1 and told["worker"]["connected_us"] > 0
        (consumer,) = status["consumers"]
        assert (consumer["queue"], consumer["client"], consumer["backlog"]) == ("jobs", "worker", 3)
        assert consumer["leases"] == 0 and consumer["number"] == told["worker"]["number"]
        assert consumer["filter"] == "/id > 1" and consumer["oldest_lease_age_ms"] is None
        assert consumer["address"] == told["worker"]["address"]

    in_instance(tmp_path / "data", visit, config)


def session(number: int) -> Any:
    holding = SimpleNamespace(sent_bytes=0, unsent_bytes=0, memory_bytes=0, disk_bytes=0)
    return SimpleNamespace(
        number=number, client_name=f"c{number}", user_id="", peer="", connected_us=0, bytes_in=0,
        messages_in=0, messages_out=0, subscriptions={}, is_offline=False, reading=True,
        accepted_by=SimpleNamespace(name="client"), holding=lambda: holding,
    )  # fmt: skip


def test_of_many_connections_those_that_are_behind_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_status, "CONNECTIONS_SHOWN_MAX", 3)
    pool = SimpleNamespace(numbers=[8, 77, 9], age_ms=lambda number: 5)
    pools: Any = SimpleNamespace(all=[pool], of=lambda name: pool)
    sessions = {number: session(number) for number in range(10)}
    told = connection_status(sessions, pools, {9: {"s": object()}})
    assert [each["number"] for each in told] == [8, 9, 0], "77 has left"
    assert [each["subscriptions"] for each in told] == [0, 1, 0]


def test_leases_are_counted_up_to_a_limit_and_aged_where_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(lease_us: int, *, queues: int = 1) -> list[tuple[Any, Any]]:
        frontends = []
        for number in range(queues):
            definition = QueueDefinition(f"q{number}", "json", lease_us=lease_us)
            frontend = QueueFrontend(definition, "A", 1)
            for consumer in ((1, "s"), (2, "s"), (3, "s")):
                frontend.subscribed(ConsumerSubscription(consumer, "c", "", 5))
            ends = [1_000_000 + lease_us, 3_000_000 + lease_us] if lease_us else [0, 0]
            frontend._leases = {
                7: {1: ((1, "s"), 1, ends[1]), 2: ((1, "s"), 2, ends[0])},
                8: {1: ((2, "s"), 3, ends[1]), 2: ((9, "gone"), 4, ends[1])},
            }
            frontends.append(frontend)
        rows = consumer_status(frontends, {}, 5_000_000)
        return [(each["leases"], each["oldest_lease_age_ms"]) for each in rows]

    assert told(60_000_000) == [(2, 4_000), (1, 2_000), (0, None)]
    assert told(3_000_000) == [(1, 2_000), (1, 2_000), (0, None)], "one is over"
    assert told(0) == [(2, None), (1, None), (0, None)]
    monkeypatch.setattr(client_status, "LEASES_COUNTED_MAX", 5)
    assert told(0, queues=2)[3:] == [(None, None)] * 3
