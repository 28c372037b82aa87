"""Many bookmark subscriptions of one client: each turn gives some of them what was committed, and
what is read for those with a rate has a limit for all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from unit.server.clients.test_queries import House, in_house
from unit.test_doors import Door

from raylay.services.messages.records import RecordBuilder, Run, iterate_records, run_of, scan
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.protocol.frames import encode_frame
from raylay.services.server.clients import replay as pump_module
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayStart
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.subscriptions.replay_group import ReplayGroup, ReplayTerms

pytestmark = pytest.mark.covers("Configuration", "replays and look-ups in the journal take turns")

COUNT = 30


def subscribe(name: str, topic: str, **options: Any) -> bytes:
    header = {"c": "subscribe", "sub": name, "t": topic, "cid": name, "bm": "0", "o": options}
    return encode_frame(header)


async def received(door: Door, count: int) -> dict[str, list[bytes]]:
    """The bodies of so many messages, by subscription."""
    found: dict[str, list[bytes]] = {}
    while sum(map(len, found.values())) < count:
        for header, body in door.transport.take():
            if header["c"] == "p":
                bodies = found.setdefault(header["sub"], [])
                bodies += [record.body for record in iterate_records(body)]
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize("is_live", [False, True])
def test_who_does_not_come_within_a_turn_is_given_all_in_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    inline = 0
    fold, take = pump_module.ReplayPump.fold, pump_module.ReplayPump._take

    def folded(pump: Any, batch: Any) -> None:
        nonlocal inline
        took = 0

        def counted(*given: Any) -> bool:
            nonlocal took
            took += 1
            return take(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pump_module.ReplayPump, "_take", counted)
            fold(pump, batch)
        inline += took

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("reader")
        for number in range(COUNT):
            reader.send(subscribe(f"s{number}", ".*" if number % 2 else "orders", live=is_live))
            await reader.answer_to(f"s{number}")
        monkeypatch.setattr(pump_module, "TURN_S", 0.0)
        monkeypatch.setattr(pump_module.ReplayPump, "fold", folded)
        bodies = [b'{"id": %d}' % number for number in range(50)]
        for body in bodies:
            await house.publish(door, "p", body)
        found = await received(reader, COUNT * len(bodies))
        assert len(found) == COUNT and all(each == bodies for each in found.values())
        assert not inline, "none of them in the turn of the commit"

    in_house(tmp_path, visit)


def test_what_is_read_for_replays_with_a_rate_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 1024 * 1024
    monkeypatch.setattr(pump_module, "KEPT_BYTES_MAX", limit_bytes)

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("reader")
        for first in range(0, 1_000, 100):
            numbers = range(first, first + 100)
            await house.publish(door, "p", *({"id": n, "text": "x" * 1_000} for n in numbers))
        pump = house.server.parts.clients.replays
        # What was just committed lies in memory, once for all.
        pump._recent.clear()
        for number in range(COUNT):
            reader.send(subscribe(f"s{number}", "orders", rate="20"))
        found = await received(reader, 5 * COUNT)
        assert len(found) == COUNT
        kept = sum(len(run.payload) for each in pump._replays for run in each.read)
        assert 0 < kept == pump.kept_bytes <= limit_bytes
        reader.send(encode_frame({"c": "unsubscribe", "sub": "all", "cid": "u"}))
        await reader.answer_to("u")
        assert not pump.kept_bytes

    in_house(tmp_path, visit)


def group_of(*topics: str) -> ReplayGroup:
    from raylay.services.messages.ranges import PublisherRanges

    members = [
        BookmarkSubscription(
            1, topic, topic_filter(topic, ""), ReplayStart(0), first_txid=1, committed_txid=0,
            held=PublisherRanges(),
        )
        for topic in topics
    ]  # fmt: skip
    return ReplayGroup(members, ReplayTerms("0", None, False), 0)


def runs_of(*topics: str) -> list[Run]:
    made = []
    for number, topic in enumerate(topics, 1):
        payload = RecordBuilder(7, topic, "json").build(number, b"{}", 1)
        made.append(run_of(scan(payload)[0], payload))
        made[-1].first_txid = number
    return made


def test_a_turn_has_so_many_new_topics_and_any_number_of_known_ones() -> None:
    large = "[a-z]{1,200}[0-9]{1,200}"
    assert TopicPattern(large).weight > 4_000
    new = runs_of(*(f"new/{number}" for number in range(500)))
    assert group_of("orders").affordable(new) == 500
    assert group_of(large).affordable(new) == 1
    small = group_of("^new/.*[0-9]x$")
    assert 1 < small.affordable(new) < 200
    known = runs_of(*["orders"] * 500)
    member = small.members[0]
    assert small.affordable(known) > 1
    member.take(known[:1], 1)
    assert small.affordable(known) == 500
    assert group_of(*["orders"] * 2_000).affordable(known) == 2, "each is given to each"
