"""Paginated subscriptions from a client's options to the rows that it shows."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_views import Instance

from raylay.services.client import Subscription
from raylay.services.errors import CommandFailed

pytestmark = pytest.mark.covers("Views", "paginated subscriptions: who applies")

DEADLINE_S = 60.0


class Page:
    """The rows that a consumer shows of one page.

    Args:
        field: the field by which the rows are ordered, descending.
    """

    def __init__(self, subscription: Subscription, field: str = "price") -> None:
        self.subscription = subscription
        self.field = field
        self.rows: dict[bytes, Any] = {}
        self.kinds: list[tuple[str, str]] = []

    @property
    def shown(self) -> list[Any]:
        """The values of the field, in order."""
        return sorted((each[self.field] for each in self.rows.values()), reverse=True)

    async def until(self, wanted: list[Any]) -> None:
        """Takes messages until the page shows these values, in order."""
        while self.shown != wanted:
            await self.take()

    async def take(self) -> None:
        """Takes the messages of one batch."""
        async with asyncio.timeout(DEADLINE_S):
            batch = await self.subscription.next_batch()
        assert batch is not None
        for message in batch.messages():
            self.kinds.append((message.kind, message.reason))
            if message.kind == "oof":
                del self.rows[message.key]
                continue
            # A delta has the changed fields; here no record loses a field.
            self.rows[message.key] = self.rows.get(message.key, {}) | json.loads(message.body)


@pytest.mark.covers("Views", "`replace` of a page")
@pytest.mark.covers("Views and conflation, title by title", "`replace` shows")
def test_a_consumer_turns_its_page(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", *({"id": n, "price": n} for n in range(1, 21)))
            subscription = await at.client.sow_and_subscribe(
                "orders", order_by="/price DESC", top_n=3, oof=True
            )
            page = Page(subscription)
            await page.until([20, 19, 18])
            await at.publish("orders", {"id": 1, "price": 50})
            await page.until([50, 20, 19])
            await subscription.replace(skip_n=3)
            await page.until([18, 17, 16])
            await subscription.replace(skip_n=1, top_n=4, filter="/price < 20")
            await page.until([18, 17, 16, 15])
            await subscription.replace(order_by="/price", skip_n=0, top_n=2)
            await page.until([3, 2])
            await at.publish("orders", {"id": 2, "price": 60}, {"id": 3, "price": 3.5})
            await page.until([4, 3.5])
            with pytest.raises(CommandFailed) as refused:
                await subscription.replace(order_by="price")
            assert refused.value.reason == "bad_order_by"
            assert ("oof", "match") in page.kinds and ("publish", "") in page.kinds
            subscription.unsubscribe()
            assert (await at.rows("orders", keys=[b"none"])) == []
            assert not len(at.server.parts.clients.pages.table)

    asyncio.run(run())


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.covers("Views and conflation, title by title", "a view and a")
def test_pages_of_views_conflated_topics_and_aggregations(tmp_path: Path, delta: bool) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish(
                "orders", *({"id": n, "customer": n % 5, "price": n} for n in range(1, 21))
            )
            options: dict[str, Any] = {"order_by": "/sum DESC", "top_n": 2, "oof": True}
            sums = ["/customer AS /customer", "SUM(/price) AS /sum"]
            pages = [
                Page(
                    await at.client.sow_and_subscribe(topic, delta=delta, **options, **more), "sum"
                )
                for topic, more in (
                    ("sums", {}),
                    ("slow", {}),
                    ("orders", {"projection": sums, "grouping": ["/customer"]}),
                    ("orders", {"projection": sums, "grouping": ["/customer"]}),
                )
            ]
            for page in pages:
                await page.until([50, 46])
            await at.publish("orders", {"id": 1, "customer": 1, "price": 100})
            for page in pages:
                await page.until([133, 50])
            await at.publish(
                "orders", {"id": 2, "customer": 1, "price": 200}, {"id": 5, "price": 5}
            )
            for page in pages:
                await page.until([333, 46])
                assert ("oof", "match") in page.kinds
                page.subscription.unsubscribe()
            assert (await at.rows("orders", keys=[b"none"])) == []
            assert not len(at.server.parts.clients.pages.table)
            assert at.server.parts.sow.status()["aggregations"] == []

    asyncio.run(run())


@pytest.mark.covers("Views", "`replace` of a page")
@pytest.mark.covers("Views and conflation, title by title", "no select list")
def test_a_page_of_groups_is_turned_and_not_aggregated_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            await at.publish("orders", *({"id": n, "customer": n, "price": n} for n in range(1, 9)))
            sums = ["/customer AS /customer", "SUM(/price) AS /sum"]
            grouped: dict[str, Any] = {"projection": sums, "grouping": ["/customer"]}
            subscription = await at.client.sow_and_subscribe(
                "orders", order_by="/sum DESC", top_n=2, oof=True, **grouped
            )
            page = Page(subscription, "sum")
            await page.until([8, 7])
            await subscription.replace(skip_n=2)
            await page.until([6, 5])
            await at.publish("orders", {"id": 1, "customer": 1, "price": 50})
            await page.until([7, 6])
            await subscription.replace(order_by="/sum", skip_n=0)
            await page.until([3, 2])
            with pytest.raises(CommandFailed) as refused:
                await subscription.replace(filter="/price > 3")
            assert refused.value.reason == "not_supported"
            await at.publish("orders", {"id": 1, "customer": 1, "price": 0.5})
            await page.until([2, 0.5])
            plain = await at.client.sow_and_subscribe("orders", **grouped)
            with pytest.raises(CommandFailed) as refused:
                await plain.replace(top_n=3)
            assert refused.value.reason == "bad_command"
            for each in (subscription, plain):
                each.unsubscribe()
            assert (await at.rows("orders", keys=[b"none"])) == []
            assert at.server.parts.sow.status()["aggregations"] == []
            assert not len(at.server.parts.clients.pages.table)

    asyncio.run(run())


def test_pages_amid_commits_of_many_changes_are_the_slices_of_a_query(tmp_path: Path) -> None:
    """Groups come, go and move many times in one commit: each page of the view and of the topic
    under it is in the end the slice that a query gives."""

    async def run() -> None:
        rng = random.Random(11)
        async with Instance(tmp_path) as at:
            pages = []
            for topic, order in (("sums", "/sum DESC"), ("orders", "/price DESC, /id")):
                for skip, delta in ((0, False), (3, False), (3, True)):
                    terms: dict[str, Any] = {"order_by": order, "top_n": 4, "skip_n": skip}
                    subscription = await at.client.sow_and_subscribe(
                        topic, oof=True, delta=delta, **terms
                    )
                    pages.append((topic, terms, Page(subscription)))
            for _ in range(6):
                for _ in range(80):
                    number = rng.randrange(30)
                    if rng.random() < 0.1:
                        await at.client.sow_delete("orders", filter=f"/id = {number}")
                        continue
                    value = {"id": number, "customer": rng.randrange(9), "price": rng.randrange(50)}
                    await at.client.publish("orders", json.dumps(value).encode())
                await at.client.flush()
            for topic, terms, page in pages:
                rows = await at.client.sow(topic, **terms).all()
                wanted = {row.key: json.loads(row.body) for row in rows}
                assert len(wanted) == 4
                while page.rows != wanted:
                    await page.take()

    asyncio.run(run())


def test_a_row_that_expires_or_is_deleted_leaves_the_page_with_its_reason(tmp_path: Path) -> None:
    async def run() -> None:
        async with Instance(tmp_path) as at:
            subscription = await at.client.sow_and_subscribe(
                "orders", order_by="/price DESC", top_n=2, oof=True
            )
            page = Page(subscription)
            await at.publish("orders", {"id": 2, "price": 7}, {"id": 3, "price": 8})
            await page.until([8, 7])
            body = json.dumps({"id": 1, "price": 9}).encode()
            await at.client.publish("orders", body, expiration_s=1)
            await page.until([9, 8])
            await page.until([8, 7])
            assert ("oof", "expired") in page.kinds
            await at.client.sow_delete("orders", filter="/price = 8")
            await page.until([7])
            assert page.kinds[-1] == ("oof", "deleted")

    asyncio.run(run())
