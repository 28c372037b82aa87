"""Durable subscriptions by real instances: the place outlives the subscriber's process, and the
instance that it was told to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import DEADLINE_S, Server, Servers, pair, single

from raylay.services.client import NOW, Client, Message, Subscription, SyncClient
from raylay.services.errors import CommandFailed, LocalProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.downgrade import DowngradePolicy

pytestmark = pytest.mark.covers("Clients and protocol", "durable subscriptions with a name")

SUBSCRIBER = """
import asyncio, sys
from raylay import Client

async def main():
    async with Client("billing-desk", sys.argv[1:], failover="any") as client:
        orders = await client.subscribe("orders", durable="billing")
        print("ready", flush=True)
        async for message in orders:
            print(message.body.decode(), flush=True)

asyncio.run(main())
"""


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def bounded(servers: Servers, tmp_path: Path) -> None:
        async def main() -> None:
            async with asyncio.timeout(2 * DEADLINE_S):
                await test(servers, tmp_path)

        asyncio.run(main())

    bounded.__name__, bounded.__doc__ = test.__name__, test.__doc__
    return bounded


def client_of(*given: Server, name: str = "desk", **options: Any) -> Client:
    return Client(name, [each.address for each in given], failover="any", **options)


async def publish(client: Client, first: int, last: int, topic: str = "orders") -> None:
    await client.publish_many(topic, [str(number) for number in range(first, last + 1)])
    await client.flush(DEADLINE_S)


async def take(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    async for message in subscription:
        found.append(int(message.body))
        if len(found) == count:
            break
    return found


async def place_at(server: Server, wanted: Callable[[PublisherRanges], bool]) -> PublisherRanges:
    """Returns the place at an instance, once it is as wanted."""
    async with client_of(server, name="looks") as client:
        while True:
            found = await client.readers.place("billing")
            if found is not None and wanted(found.have):
                return found.have
            await asyncio.sleep(0.05)


def started(*given: Server) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", SUBSCRIBER, *(each.address for each in given)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None and made.stdout.readline() == "ready\n"
    return made


def lines(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)]


@run
async def test_a_killed_subscriber_goes_on_with_nothing_lost(servers: Servers, path: Path) -> None:
    server = single(servers, path)
    async with client_of(server) as client:
        await publish(client, 1, 100)
        first = started(server)
        seen = await asyncio.to_thread(lines, first, 100)
        have = await place_at(server, lambda have: have.count >= 50)
        await publish(client, 101, 200)
        first.kill()
        rest, _ = first.communicate()
        seen += map(int, rest.split())
        await publish(client, 201, 300)
        second = started(server)
        again = await asyncio.to_thread(lines, second, 1)
        assert again[0] > 50, (again, have)
        again += await asyncio.to_thread(lines, second, 300 - again[0])
        second.kill()
        second.communicate()
    assert again == list(range(again[0], 301))
    assert sorted({*seen, *again}) == list(range(1, 301))


@pytest.mark.slow
@run
async def test_the_place_is_kept_over_a_failover_and_by_the_other_instance(
    servers: Servers, path: Path
) -> None:
    one, other = pair(servers, path, DowngradePolicy(300))
    async with client_of(one, other, name="publisher") as client:
        await publish(client, 1, 100)
        async with client_of(one, other) as subscriber:
            orders = await subscriber.subscribe("orders", durable="billing")
            assert subscriber.instance == "A"
            assert await take(orders, 100) == list(range(1, 101))
            waiting = asyncio.ensure_future(take(orders, 50))
            await place_at(other, lambda have: have.count >= 100)
            one.kill()
            await publish(client, 101, 150)
            assert await waiting == list(range(101, 151)), "each once"
            assert subscriber.instance == "B"
    # A new process that has never spoken to the instance that is gone.
    async with client_of(other) as subscriber, client_of(other, name="publisher") as client:
        await publish(client, 151, 160)
        orders = await subscriber.subscribe("orders", durable="billing")
        assert await take(orders, 10) == list(range(151, 161))


@pytest.mark.slow
@run
async def test_an_instance_that_was_away_is_told_and_what_each_knows_is_added_up(
    servers: Servers, path: Path
) -> None:
    one, other = pair(servers, path, DowngradePolicy(300))
    async with client_of(one, other) as client:
        await publish(client, 1, 10)
        other.kill()
        orders = await client.subscribe("orders", durable="billing")
        waiting = asyncio.ensure_future(take(orders, 11))
        await place_at(one, lambda have: have.count >= 10)
        other.start()
        have = await place_at(other, lambda have: have.count >= 10)
        waiting.cancel()
        # One instance has lost the place, the other one knows more of it than a third would.
        await client.readers.drop("billing")
        async with client_of(one, other, name="later") as later:
            assert later.instance == client.instance == "A"
            again = await later.subscribe("orders", durable="billing", subscription_id="again")
            await publish(client, 11, 12)
            assert have.count >= 10 and await take(again, 2) == [11, 12]


@run
async def test_a_name_stands_for_one_topic_type_and_filter(servers: Servers, path: Path) -> None:
    server = single(servers, path)
    async with client_of(server) as client:
        kept = await client.subscribe("orders", durable="billing", filter="/n > 1")
        assert kept.id == "durable|billing"
        others: tuple[dict[str, Any], ...] = (
            {"topic": "trades", "filter": "/n > 1"},
            {"topic": "orders"},
            {"topic": "orders", "filter": "/n > 2"},
            {"topic": "orders", "filter": "/n > 1", "message_type": "json"},
        )
        for more in others:
            with pytest.raises(LocalProtocolError, match="'billing' is of orders with the filter"):
                await client.subscribe(durable="billing", subscription_id="s", **more)
        with pytest.raises(LocalProtocolError, match="in use"):
            await client.subscribe("orders", durable="billing", filter="/n > 1")
        with pytest.raises(LocalProtocolError, match="has an end"):
            await client.subscribe("orders", durable="other", bookmark=f"[0:{NOW})")
        with pytest.raises(LocalProtocolError, match="printable"):
            await client.subscribe("orders", durable="a\nb")
        with pytest.raises(CommandFailed, match="is no filter"):
            await client.subscribe("orders", durable="other", filter="/n >")
        assert [each["name"] for each in await client.readers.known()] == ["billing"]
        # Who says something else of the name is refused by the instance, too.
        with pytest.raises(CommandFailed, match="give yours another name"):
            await client.readers.tell("billing", "trades", PublisherRanges(), add=True)
        kept.unsubscribe()
        await client.readers.drop("billing")
        trades = await client.subscribe("trades", durable="billing")
        await publish(client, 1, 1, "trades")
        assert await take(trades, 1) == [1]


@run
async def test_a_new_name_begins_at_its_bookmark_and_a_known_one_never_does(
    servers: Servers, path: Path
) -> None:
    server = single(servers, path)
    async with client_of(server, name="publisher") as publisher:
        async with client_of(server) as client:
            await client.subscribe("orders", durable="billing", bookmark=NOW)
        # The place of a name that has seen nothing is empty, and known.
        await publish(publisher, 1, 5)
        async with client_of(server) as client:
            orders = await client.subscribe("orders", durable="billing", bookmark=NOW)
            assert await take(orders, 5) == [1, 2, 3, 4, 5]
            other = await client.subscribe("orders", durable="audit", bookmark=NOW)
            every = await client.subscribe("orders", durable="every")
            await publish(publisher, 6, 7)
            assert await take(other, 2) == [6, 7]
            assert await take(every, 7) == list(range(1, 8))
            assert await take(orders, 1) == [6]
        async with client_of(server) as client:
            orders = await client.subscribe("orders", durable="billing", bookmark=NOW)
            assert await take(orders, 1) == [7]


@run
async def test_what_was_not_finished_comes_again(servers: Servers, path: Path) -> None:
    server = single(servers, path)
    async with client_of(server, name="publisher") as publisher:
        await publish(publisher, 1, 3)
    with pytest.raises(KeyError):
        async with client_of(server) as client:
            async for message in await client.subscribe("orders", durable="billing"):
                if int(message.body) == 2:
                    raise KeyError("the handler failed")
    async with client_of(server) as client:
        orders = await client.subscribe("orders", durable="billing")
        assert await take(orders, 2) == [2, 3]


@run
async def test_with_explicit_discard_only_what_is_discarded_is_done(
    servers: Servers, path: Path
) -> None:
    server = single(servers, path)
    async with client_of(server) as client:
        await publish(client, 1, 5)
        await publish(client, 1, 5, "trades")
        orders = await client.subscribe("orders", durable="billing", explicit_discard=True)
        got: list[Message] = []
        async for message in orders:
            got.append(message)
            if len(got) == 5:
                break
        waiting = asyncio.ensure_future(take(orders, 1))
        for at in (0, 2, 3):
            orders.discard(got[at])
        # Messages of other topics are none that the subscription waits for.
        have = await place_at(server, lambda have: have.count >= 8)
        assert have.count == 8
        waiting.cancel()
    async with client_of(server) as client:
        orders = await client.subscribe("orders", durable="billing", explicit_discard=True)
        assert await take(orders, 2) == [2, 5]


def test_a_synchronous_client_has_durable_subscriptions(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    with SyncClient("desk", [server.address]) as client:
        client.publish_many("orders", ["1", "2", "3"])
        client.flush(DEADLINE_S)
        orders = client.subscribe("orders", durable="billing")
        assert [next(orders).body for _ in range(2)] == [b"1", b"2"]
    with SyncClient("desk", [server.address]) as client:
        orders = client.subscribe("orders", durable="billing")
        assert next(orders).body == b"3"
        orders.unsubscribe()
        orders = client.subscribe("orders", durable="billing", subscription_id="again")
        client.publish("orders", "4")
        assert next(orders).body == b"4"
