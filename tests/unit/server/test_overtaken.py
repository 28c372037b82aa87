"""Bookmark subscriptions of an instance that retention overtakes: no gap goes by in silence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.server.clients.test_queries import (
    CONFIG,
    House,
    Said,
    SlowTransport,
    frames_until,
    in_house,
)
from unit.test_doors import Door

from raylay.services.config.journal import JournalConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import publisher_id
from raylay.services.protocol.client.answers import OVERTAKEN
from raylay.services.protocol.frames import Header, encode_frame

pytestmark = pytest.mark.covers(
    "Journal",
    "a subscriber that goes on is told what retention removed",
    note="while it is connected",
)

SMALL = replace(CONFIG, journal=JournalConfig(segment_bytes=64 * 1024))
BODY = {"text": "x" * 1_000}
SEGMENTS = 20
"""More than is kept in memory for those who read just behind the end."""
FRAME = 20
P = publisher_id("p")


def subscribe(sub: str, bookmark: str = "0", **options: Any) -> bytes:
    header = {"c": "subscribe", "sub": sub, "t": "plain", "cid": f"c-{sub}", "bm": bookmark}
    return encode_frame({**header, "a": "processed,completed", "o": options})


def resume(*subs: str) -> bytes:
    return encode_frame({"c": "subscribe", "cid": "go", "sub": list(subs), "o": {"resume": True}})


def pause(*subs: str) -> bytes:
    return encode_frame({"c": "subscribe", "cid": "stop", "sub": list(subs), "o": {"pause": True}})


async def fill(house: House, door: Door, topic: str = "plain", body: Any = BODY) -> None:
    """Publishes several segments more."""
    reader, journal = house.server.parts.reading, house.server.parts.instance.journal
    before = len(await reading(house, reader.reader.segments))
    while len(await reading(house, reader.reader.segments)) < before + SEGMENTS:
        await house.publish(door, "p", *[body] * FRAME, topic=topic)
    await house.server.runtime.in_thread(journal.settle)


async def reading(house: House, work: Any) -> Any:
    return await house.server.parts.reading.run(work)


async def remove(house: House) -> int:
    """Removes all segments but the live one. Returns the first sequence that is left."""
    await house.server.parts.reading.tidy()
    await house.server.parts.reading.tidy()
    outcomes = await house.server.parts.calls.maintain("remove", "all", force=True)
    assert outcomes and outcomes[-1]["outcome"].endswith("note='removed')"), outcomes
    reader = house.server.parts.reading.reader
    gone = (await reading(house, reader.removed)).get(P)
    assert gone is not None
    left: int = gone.last() + 1
    return left


def sequences(found: list[Said], sub: str) -> list[int]:
    return [
        record.sequence
        for header, records in found
        if header["c"] == "p" and header["sub"] == sub
        for record in records
    ]


def is_end(sub: str, sequence: int = 0) -> Any:
    """The subscription ends, or is brought to its end."""

    def wanted(header: Header) -> bool:
        ended = header.get("reason") == OVERTAKEN or header.get("a") == "completed"
        return ended and header.get("sub") == sub

    return wanted


def told(house: House) -> list[tuple[str, str]]:
    return [
        (each["client"], each["subscription"])
        for each in house.server.events()
        if each["event"] == "subscription_overtaken"
    ]


async def ask_again(door: Door, sub: str, received: list[int], **options: Any) -> list[Said]:
    have = PublisherRanges()
    have.add(P, received[0], received[-1])
    door.send(subscribe(sub, have=have.to_wire(), **options))
    return await frames_until(
        door, lambda each: each.get("a") == "completed" or each.get("status") == "failure"
    )


@pytest.mark.parametrize("fully_durable", [False, True])
def test_who_was_paused_while_segments_were_removed_is_told_and_again_by_what_it_has(
    tmp_path: Path, fully_durable: bool
) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *[BODY] * FRAME, topic="plain")
        more = {"fully_durable": True} if fully_durable else {}
        reader.send(subscribe("s", **more))
        found = await frames_until(reader, lambda each: each.get("a") == "completed")
        received = sequences(found, "s")
        assert received == list(range(1, FRAME + 1))
        reader.send(pause("s"))
        await reader.answer_to("stop")
        await fill(house, door)
        left = await remove(house)
        assert left > 3 * FRAME
        reader.send(resume("s"))
        found = await frames_until(reader, is_end("s"))
        end = found[-1][0]
        assert (end["a"], end["status"], end["reason"]) == ("processed", "failure", OVERTAKEN)
        assert sequences(found, "s") == [], "nothing behind the gap"
        assert told(house) == [("r", "s")]
        # As who comes anew is told it.
        found = await ask_again(reader, "s", received, bookmark_not_found="fail")
        assert found[-1][0]["reason"] == "bookmark_not_found"
        found = await ask_again(reader, "s", received, **more)
        answer = next(each for each, _ in found if each.get("a") == "processed")
        count = left - 1 - FRAME
        assert answer["missing_of"] == {P: [count, FRAME + 1, left - 1]}
        assert sequences(found, "s") == list(range(left, house.published["p"] + 1))
        # Once for each gap.
        await house.publish(door, "p", BODY, topic="plain")
        found = await frames_until(reader, lambda each: each["c"] == "p")
        assert sequences(found, "s") == [house.published["p"]]
        assert told(house) == [("r", "s")]

    in_house(tmp_path, visit, SMALL)


def test_whose_socket_takes_no_more_is_told_too(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        transport = reader.transport
        assert isinstance(transport, SlowTransport)
        await house.publish(door, "p", *[BODY] * FRAME, topic="plain")
        reader.send(subscribe("s"))
        found = await frames_until(reader, lambda each: each.get("a") == "completed")
        transport.takes = False
        while not transport.is_paused:
            await house.publish(door, "p", *[BODY] * FRAME, topic="plain")
        await fill(house, door)
        left = await remove(house)
        transport.drain()
        found += await frames_until(reader, is_end("s"))
        assert found[-1][0]["reason"] == OVERTAKEN
        received = sequences(found, "s")
        assert received == list(range(1, len(received) + 1)) and len(received) < left - 1
        assert told(house) == [("r", "s")]

    in_house(tmp_path, visit, SMALL)


def test_of_a_replay_of_several_each_is_told_and_one_that_ends_before_the_gap_is_not(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *[BODY] * FRAME, topic="plain")
        # The last one has an end, and gets there.
        reader.send(subscribe("a", pause=True), subscribe("b", pause=True))
        await reader.answer_to("c-a")
        await reader.answer_to("c-b")
        reader.send(subscribe("done", f"[0:{P}|{FRAME}|]"))
        found = await frames_until(reader, is_end("done"))
        assert sequences(found, "done") == list(range(1, FRAME + 1))
        await fill(house, door)
        await remove(house)
        reader.send(resume("a", "b"))
        found = await frames_until(reader, is_end("b"))
        ends = [each["sub"] for each, _ in found if each.get("reason") == OVERTAKEN]
        assert ends == ["a", "b"] and not sequences(found, "a") + sequences(found, "b")
        # What comes behind is nobody's of these.
        await house.publish(door, "p", BODY, topic="plain")
        reader.send(encode_frame({"c": "ping", "cid": "behind"}))
        found = await frames_until(reader, lambda each: each.get("cid") == "behind")
        assert not [each for each, _ in found if each["c"] == "p"]
        assert told(house) == [("r", "a"), ("r", "b")]

    in_house(tmp_path, visit, SMALL)


def test_what_is_removed_while_the_start_is_looked_for_does_not_count_as_before_it(
    tmp_path: Path,
) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", *[BODY] * FRAME, topic="plain")
        await fill(house, door)
        pump, begun, go_on = house.server.parts.clients.replays, asyncio.Event(), asyncio.Event()
        read_aside = pump._read_aside

        def held(replay: Any, read: Any) -> bool:
            async def later() -> None:
                begun.set()
                await go_on.wait()
                read_aside(replay, read)

            replay.is_aside = True
            house.server.runtime.spawn(later())
            return False

        pump._read_aside = held  # type: ignore[method-assign]
        reader.send(subscribe("s", f"{P}|{FRAME}|"))
        await begun.wait()
        await remove(house)
        pump._read_aside = read_aside  # type: ignore[method-assign]
        go_on.set()
        found = await frames_until(reader, is_end("s"))
        assert found[-1][0]["reason"] == OVERTAKEN
        assert not [each for each, _ in found if each["c"] == "p" or each.get("have")]
        reader.send(subscribe("s", f"{P}|{FRAME}|"))
        found = await frames_until(reader, is_end("s"))
        assert next(each for each, _ in found if each.get("a") == "processed")["missing"]

    in_house(tmp_path, visit, SMALL)


@pytest.mark.parametrize("topic", ["plain", "trades", "orders"])
def test_rows_and_a_replay_from_what_retention_removed_begin_with_what_is_left(
    tmp_path: Path, topic: str
) -> None:
    """Of a topic without rows, of one with a history, and of one that has what there is now."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await fill(house, door, topic, {"id": 1, **BODY})
        left = await remove(house)
        last = house.published["p"]
        assert 2 < left < last

        def rewind(sub: str, not_found: str) -> bytes:
            header = {"c": "sow_and_subscribe", "sub": sub, "t": topic, "cid": sub, "bm": f"{P}|2|"}
            header |= {"a": "processed,completed", "o": {"bookmark_not_found": not_found}}
            return encode_frame(header)

        reader.send(rewind("s", "now"))
        found = await frames_until(reader, lambda each: each.get("a") == "completed")
        answer = next(each for each, _ in found if each.get("a") == "processed")
        rows = [record for header, records in found if header["c"] == "sow" for record in records]
        if topic == "orders":
            # The rows are all that there is, and nothing comes before them.
            assert "missing" not in answer and sequences(found, "s") == []
            assert [each.sequence for each in rows] == [last]
        else:
            assert answer["missing_of"] == {P: [left - 3, 3, left - 1]}
            assert sequences(found, "s") == list(range(left, last + 1))
            assert [each.sequence for each in rows] == ([left - 1] if topic == "trades" else [])
            end = next(each for each, _ in found if each["c"] == "group_end")
            assert list(PublisherRanges.from_wire(end["have"]).of(P)) == [(1, left - 1)]
        reader.send(rewind("f", "fail"))
        answer = await reader.answer_to("f")
        assert answer["reason"] == "bookmark_not_found"
        assert "retention removed the message of bookmark" in answer["text"]
        await house.publish(door, "p", {"id": 2}, topic=topic)
        found = await frames_until(reader, lambda each: each["c"] == "p")
        assert sequences(found, "s") == [last + 1]

    in_house(tmp_path, visit, SMALL)
