"""Retention by size holds on real instances, whatever has read the journal before."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, pair, single

from raylay.services.client import (
    EPOCH,
    MemoryBookmarkStore,
    MessagesMissing,
)
from raylay.services.client import Client as AsyncClient
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.errors import BookmarkNotFound
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import iterate_records
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY

SEGMENT_BYTES = RETENTION_BYTES = 1024 * 1024
BOUND_BYTES = RETENTION_BYTES + 3 * SEGMENT_BYTES
"""The live segment, one that is not sealed yet and the spare are beside what retention counts."""
MESSAGES = 16_000
"""Twice the bound."""


def journal_bytes(server: Server) -> int:
    directory = server.directory / JOURNAL_DIRECTORY
    files = [*directory.glob("*.live"), *directory.glob("*.sealed"), *directory.glob("*.zst")]
    return sum(path.stat().st_blocks * 512 for path in files)


def wait_until_within_its_bound(server: Server) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while (size_bytes := journal_bytes(server)) > BOUND_BYTES:
        assert time.monotonic() < deadline_s, f"{size_bytes} bytes: {server.log[-2_000:]}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("direct", [True, False])
def test_an_idle_link_holds_no_old_segment(servers: Servers, tmp_path: Path, direct: bool) -> None:
    bounds = {
        "journal": JournalConfig(
            segment_bytes=SEGMENT_BYTES, retention=RetentionConfig(size_bytes=RETENTION_BYTES)
        )
    }
    made = pair(servers, tmp_path, of_each={**bounds, "direct_links": direct})
    client = Client(made[0].address, "desk")
    client.publish_steadily(1, 100)
    # The link looks into the first segment for what the other side lacks, and is idle from then on.
    made[1].kill()
    made[1].start()
    made[0].wait_for("link_caught_up", 2)
    made[1].wait_for("link_caught_up", 2)
    client.publish_steadily(101, MESSAGES)
    for server in made:
        wait_until_within_its_bound(server)


@pytest.mark.slow
def test_a_replay_that_is_over_holds_no_old_segment(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        journal=JournalConfig(
            segment_bytes=SEGMENT_BYTES, retention=RetentionConfig(size_bytes=RETENTION_BYTES)
        ),
    )
    client = Client(server.address, "desk")
    client.publish_steadily(1, 100)
    reader = Client(server.address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "s"})
    reader.receive(100)
    client.publish_steadily(101, MESSAGES)
    wait_until_within_its_bound(server)


def test_a_durable_subscriber_is_told_what_retention_removed(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        journal=JournalConfig(
            segment_bytes=SEGMENT_BYTES, retention=RetentionConfig(size_bytes=RETENTION_BYTES)
        ),
    )
    client = Client(server.address, "desk")
    publisher = client.answer["publisher"]
    client.publish_steadily(1, MESSAGES)
    wait_until_within_its_bound(server)
    have = PublisherRanges()
    have.add(publisher, 1, 50)
    reader = Client(server.address, "reader")
    ask = {"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "s"}
    fail = {"bookmark_not_found": "fail"}
    reader.send(ask | {"o": fail | {"have": have.to_wire()}})
    assert reader.ack(cid="s").header["reason"] == "bookmark_not_found"
    reader.send(ask | {"o": {"have": have.to_wire()}})
    answer = reader.ack(cid="s").header
    count, first, last = answer["missing_of"][publisher]
    assert (first, answer["missing"], count) == (51, last - 50, last - 50)
    delivery = reader.next(lambda frame: frame.header["c"] == "p")
    assert next(iterate_records(delivery.body)).sequence == last + 1
    # A bookmark of a message that is gone.
    plain = Client(server.address, "plain")
    plain.send(ask | {"bm": f"{publisher}|50|"})
    assert plain.ack(cid="s").header["missing"] == count
    delivery = plain.next(lambda frame: frame.header["c"] == "p")
    assert next(iterate_records(delivery.body)).sequence == last + 1


@pytest.mark.slow
def test_a_durable_subscriber_that_is_paused_for_too_long_is_told_when_it_goes_on(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        journal=JournalConfig(
            segment_bytes=SEGMENT_BYTES, retention=RetentionConfig(size_bytes=RETENTION_BYTES)
        ),
    )
    desk = Client(server.address, "desk")
    publisher = desk.answer["publisher"]
    desk.publish_steadily(1, 100)

    async def work() -> None:
        told: list[MessagesMissing] = []

        def on_event(event: object) -> None:
            if isinstance(event, MessagesMissing):
                told.append(event)

        async with AsyncClient(
            "reader", [server.address], on_event=on_event, bookmark_store=MemoryBookmarkStore()
        ) as reader:
            lenient = await reader.subscribe("orders", bookmark=EPOCH, subscription_id="lenient")
            strict = await reader.subscribe(
                "orders", bookmark=EPOCH, subscription_id="strict", bookmark_not_found="fail"
            )
            for subscription in (lenient, strict):
                for number in range(1, 101):
                    assert (await anext(subscription)).sequence == number
            await reader.pause(lenient, strict)
            await asyncio.to_thread(desk.publish_steadily, 101, MESSAGES)
            await asyncio.to_thread(wait_until_within_its_bound, server)
            await reader.resume(lenient)
            first = (await anext(lenient)).sequence
            # Mostly the only one: retention may remove more before the first read.
            event = told[-1]
            assert (event.subscription, event.instance) == ("lenient", "solo")
            assert event.messages == first - 101
            assert event.publishers == {publisher: (first - 101, 101, first - 1)}
            for number in range(first + 1, 101 + MESSAGES):
                assert (await anext(lenient)).sequence == number
            await reader.resume(strict)
            with pytest.raises(BookmarkNotFound, match="retention removed"):
                await anext(strict)
            assert told[-1] is event, "once for each gap"

    asyncio.run(asyncio.wait_for(work(), 4 * DEADLINE_S))
