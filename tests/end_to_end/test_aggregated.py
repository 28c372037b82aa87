"""Aggregated queries and subscriptions, from a client's projection to the groups that it holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_views import Instance

from raylay.services.client import Client, Subscription
from raylay.services.errors import CommandFailed
from raylay.services.subscriptions.status import subscription_status
from raylay.services.views import aggregated

SUMS = ["/customer AS /customer", "SUM(/price) AS /sum", "COUNT(/price) AS /count"]
BY_CUSTOMER: dict[str, Any] = {"projection": SUMS, "grouping": ["/customer"]}
ORDERS = (
    {"id": 1, "customer": 1, "price": 10},
    {"id": 2, "customer": 2, "price": 5},
    {"id": 3, "customer": 1, "price": 20},
    {"id": 4, "customer": 2, "price": -1},
)


async def given(messages: Any, count: int) -> list[tuple[str, Any]]:
    """Returns kind and body of the next messages, without the ends of groups."""
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        message = await anext(messages)
        assert message.kind not in ("group_begin", "group_end") or not message.body
        if message.body:
            assert message.topic == "orders"
            found.append((message.kind, json.loads(message.body)))
    return found


async def ended(at: Instance, subscription: Subscription) -> None:
    """Ends a subscription, and waits until the instance has taken that."""
    subscription.unsubscribe()
    assert await at.rows("orders", keys=[b"1"]) == []


@pytest.mark.covers("Views", "aggregated queries: groups")
@pytest.mark.covers("Views and conflation, title by title", "projection and")
def test_a_query_returns_groups(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", *ORDERS)
            assert await at.rows("orders", **BY_CUSTOMER) == [
                {"customer": 1, "sum": 30, "count": 2},
                {"customer": 2, "sum": 4, "count": 2},
            ]
            # The filter is applied to the records.
            assert await at.rows("orders", filter="/price > 9", **BY_CUSTOMER) == [
                {"customer": 1, "sum": 30, "count": 2}
            ]
            rows = await at.client.sow("orders", order_by="/sum", top_n=1, **BY_CUSTOMER).all()
            assert [json.loads(row.body)["sum"] for row in rows] == [4]
            assert rows[0].topic == "orders"
            assert rows[0].bookmark.partition("|")[0] in ("", "0")
            # Views and conflated topics are aggregated as SOW topics are.
            total = {"projection": ["COUNT(/sum) AS /customers"], "grouping": ["/none"]}
            assert await at.rows("sums", **total) == [{"customers": 2}]
            slow = await at.client.sow_and_subscribe("slow", **total)
            async for message in slow:
                if message.body == b'{"customers":2}':
                    break
            await ended(at, slow)
            assert await at.rows("orders", projection=["/id AS /id"]) == [
                {"id": number} for number in range(1, 5)
            ]
            assert at.server.parts.sow.status()["aggregations"] == [], "each ended with its query"

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregated subscriptions: followed")
@pytest.mark.covers("Views and conflation, title by title", "projection and")
def test_subscriptions_follow_the_groups(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            client = at.client
            await at.publish("orders", *ORDERS)
            everything = await client.subscribe(".*", filter="/sum > -1000")
            whole = await client.sow_and_subscribe(
                "orders", filter="/price > 0", oof=True, **BY_CUSTOMER
            )
            deltas = await client.sow_and_subscribe(
                "orders", filter="/price > 0", delta=True, **BY_CUSTOMER
            )
            assert len(await given(whole, 2)) == len(await given(deltas, 2)) == 2
            (shared,) = at.server.parts.sow.status()["aggregations"]
            assert shared["users"] == 2 and shared["records"] == 2
            await at.publish("orders", {"id": 1, "customer": 1, "price": 11})
            await at.publish("orders", {"id": 2, "customer": 2, "price": -5})
            await at.publish("orders", {"id": 5, "customer": 3, "price": 1})
            assert await given(whole, 3) == [
                ("publish", {"customer": 1, "sum": 31, "count": 2}),
                ("oof", {"customer": 2, "sum": 5, "count": 1}),
                ("publish", {"customer": 3, "sum": 1, "count": 1}),
            ]
            assert [body for _, body in await given(deltas, 2)] == [
                {"customer": 1, "sum": 31},
                {"customer": 3, "sum": 1, "count": 1},
            ]
            found = subscription_status(at.server.parts.clients.sessions.values(), 0)
            shown = [(each["topic"], each.get("filter")) for each in found]
            assert shown.count(("orders", "/price > 0")) == 2
            await ended(at, whole)
            (shared,) = at.server.parts.sow.status()["aggregations"]
            assert shared["users"] == 1
            await ended(at, deltas)
            assert at.server.parts.sow.status()["aggregations"] == []
            await at.publish("orders", {"id": 5, "customer": 3, "price": 2})
            # To a pattern come no groups but those of configured views.
            topics = set()
            while "end" not in topics:
                await at.publish("orders", {"id": 9, "sum": 1, "customer": 9, "price": 1})
                message = await anext(everything)
                topics.add(message.topic if message.topic != "orders" else "end")
            assert topics <= {"sums", "all", "slow", "named", "end"}

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregations: built in turns")
def test_a_long_build_holds_up_nobody_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregated, "TAKEN_AT_ONCE", 1)

    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish(
                "orders", *({"id": n, "customer": n % 3, "price": 1} for n in range(500))
            )
            monkeypatch.setattr("raylay.services.server.sow.manager.TURN_S", 0.0)
            asked = asyncio.ensure_future(at.client.sow_and_subscribe("orders", **BY_CUSTOMER))
            held: dict[int, int] = {}
            number = 500
            subscription = await asked
            while at.server.parts.sow.status()["aggregations"][0]["is_ready"] is False:
                await at.publish("orders", {"id": number, "customer": number % 3, "price": 1})
                assert await at.rows("orders", keys=[]) == []
                number += 1
            assert number > 500, "publishers go on while it is built"
            await at.publish("orders", {"id": number, "customer": 7, "price": 1})
            while 7 not in held:
                ((_, body),) = await given(subscription, 1)
                held[body["customer"]] = body["sum"]
            assert sum(held.values()) == number + 1

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregated subscriptions: followed")
def test_who_leaves_while_it_is_built_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raylay.services.server.sow.manager.TURN_S", 0.0)
    monkeypatch.setattr(aggregated, "TAKEN_AT_ONCE", 1)

    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", *({"id": n, "customer": n, "price": 1} for n in range(300)))
            sow = at.server.parts.sow
            subscription = await at.client.sow_and_subscribe("orders", **BY_CUSTOMER)
            assert sow.status()["aggregations"]
            await ended(at, subscription)
            assert sow.status()["aggregations"] == []
            async with Client("d", servers=[at.server.runtime.client_address]) as other:
                await other.sow_and_subscribe("orders", **BY_CUSTOMER)
                query = other.sow("orders", filter="/price > 0", **BY_CUSTOMER)
                begun = asyncio.ensure_future(query.all())
                while len(sow.status()["aggregations"]) < 2:
                    await asyncio.sleep(0)
            while sow.status()["aggregations"]:
                await asyncio.sleep(0)
            await asyncio.wait((begun,))
            assert begun.done()

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregated subscriptions: followed")
def test_a_page_of_groups_is_kept_and_turned(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", *({"id": n, "customer": n, "price": n} for n in range(1, 7)))
            page = await at.client.sow_and_subscribe(
                "orders", order_by="/sum DESC", top_n=2, skip_n=0, oof=True, **BY_CUSTOMER
            )
            assert [body["customer"] for _, body in await given(page, 2)] == [6, 5]
            await at.publish("orders", {"id": 1, "customer": 1, "price": 10})
            changed = await given(page, 2)
            assert {(kind, body["customer"]) for kind, body in changed} == {
                ("publish", 1),
                ("oof", 5),
            }
            await page.replace(top_n=2, skip_n=1)
            turned = await given(page, 2)
            assert {(kind, body["customer"]) for kind, body in turned} == {("sow", 5), ("oof", 1)}
            (shared,) = at.server.parts.sow.status()["aggregations"]
            assert shared["users"] == 1
            with pytest.raises(CommandFailed, match="leaves filter") as caught:
                await page.replace(filter="/price > 1", top_n=2, skip_n=1)
            assert caught.value.reason == "not_supported"
            await at.publish("orders", {"id": 6, "customer": 6, "price": 1})
            assert {body["customer"] for _, body in await given(page, 2)} == {6, 4}

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregated subscriptions: followed")
def test_groups_are_conflated(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            slow = await at.client.sow_and_subscribe("orders", conflation="100ms", **BY_CUSTOMER)
            for price in range(1, 31):
                await at.publish("orders", {"id": 1, "customer": 1, "price": price})
            found: list[int] = []
            while not found or found[-1] != 30:
                ((_, body),) = await given(slow, 1)
                found.append(body["sum"])
            assert found == sorted(found)

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.covers("Views and conflation, title by title", "no select list")
def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            client = at.client

            async def refused(match: str, reason: str, topic: str = "orders", **more: Any) -> None:
                options = {**BY_CUSTOMER, **more}
                with pytest.raises(CommandFailed, match=match) as caught:
                    await client.sow_and_subscribe(topic, **options)
                assert caught.value.reason == reason
                with pytest.raises(CommandFailed, match=match) as caught:
                    await client.sow(topic, **options).all()
                assert caught.value.reason == reason

            await refused("regular expression", "not_supported", "^orders")
            await refused("no SOW topic", "no_sow", "nothing")
            await refused("select", "not_supported", select="-/a")
            await refused("keys", "not_supported", keys=[b"1"])
            await refused("cannot be aggregated", "bad_projection", projection=["SUM(/a)"])
            await refused("goes with projection", "bad_command", projection=[])
            with pytest.raises(CommandFailed, match="bookmark") as caught:
                await client.sow_and_subscribe("orders", bookmark="0", **BY_CUSTOMER)
            assert caught.value.reason == "not_supported"
            assert at.server.parts.sow.status()["aggregations"] == []
            subscription = await client.sow_and_subscribe("orders", **BY_CUSTOMER)
            with pytest.raises(CommandFailed, match="another page, and this one has none"):
                await subscription.replace(filter="/price > 1")
            # It goes on.
            await at.publish("orders", {"id": 1, "customer": 1, "price": 10})
            assert (await given(subscription, 1))[0][1]["sum"] == 10

    asyncio.run(run())


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.covers("Views and conflation, title by title", "equal ones are")
def test_an_aggregation_beyond_its_limit_ends_and_publishing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregated, "WEIGHED_EVERY", 1)
    init = aggregated.AggregatedViews.__init__

    def small(self: Any, *arguments: Any, **more: Any) -> None:
        init(self, *arguments, memory_bytes_max=(20_000, 50_000), **more)

    monkeypatch.setattr(aggregated.AggregatedViews, "__init__", small)

    async def run() -> None:
        async with Instance(tmp_path) as at:
            follower = await at.client.sow_and_subscribe("orders", **BY_CUSTOMER)
            await at.publish("orders", *({"id": n, "customer": n, "price": 5} for n in range(60)))
            with pytest.raises(CommandFailed, match="group by fewer values") as caught:
                async for _ in follower:
                    pass
            assert caught.value.reason == "view_full"
            with pytest.raises(CommandFailed, match="group by fewer values") as caught:
                await at.rows("orders", **BY_CUSTOMER)
            assert caught.value.reason == "view_full"
            assert len(await at.rows("orders")) == 60
            assert len(await at.rows("orders", filter="/id < 3", **BY_CUSTOMER)) == 3
            told = [each for each in at.server.runtime.events_log.after(0)]
            assert any(
                each["event"] == "view_full" and each["topic"] == "json/orders" for each in told
            )

    asyncio.run(run())
