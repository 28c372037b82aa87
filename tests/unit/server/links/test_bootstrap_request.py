"""A copy that strangers ask for, and strangers beside a copy that runs."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.one_instance import events
from unit.server.links.test_security import (
    GUARDED,
    SECRET,
    WRONG,
    Peer,
    Place,
    copying,
    publish,
    told,
)
from unit.server.links.test_unproven import unproven

from raylay.services.config.instance import TransportConfig
from raylay.services.messages import topics
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.replication import REPLICATION_VERSION

pytestmark = pytest.mark.covers(
    "Configuration", "what a copy asks for is compiled behind the access"
)

LARGE = r"\pL{1,30}%d"
"""8 ms and 400 KB each, once it is compiled."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def asked(patterns: list[str], **words: Any) -> bytes:
    header = {"c": "bootstrap", "v": REPLICATION_VERSION, "name": "C", "group": "g"}
    body = msgpack.packb([[[pattern, "*"] for pattern in patterns], []])
    return encode_frame(header | {"incarnation": 78} | words, body)


def compiled_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which the patterns of this file are compiled, once each."""
    found: list[int] = []

    class Watched(TopicPattern):
        __slots__ = ()

        def __init__(self, pattern: str) -> None:
            if pattern.startswith(r"\pL"):
                found.append(threading.get_ident())
            super().__init__(pattern)

    monkeypatch.setattr(topics, "TopicPattern", Watched)
    return found


def test_a_stranger_has_nothing_compiled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_by(monkeypatch)

    async def visit() -> None:
        b = await place.start(place.guarded())
        for user, password in (("", ""), ("links", WRONG)):
            peer = await Peer.at(b)
            peer.writer.write(asked([LARGE % 1, "("], user_id=user, pw=password))
            (refused,) = await peer.said()
            assert refused["reason"] == "auth"
        assert not compiled

    place.run(visit)


def test_what_is_compiled_has_a_budget_and_is_compiled_aside(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiled_by(monkeypatch)

    async def visit() -> None:
        b = await place.start(GUARDED)
        peer = await Peer.at(b)
        peer.writer.write(asked([LARGE % number for number in range(1_000)]))
        (refused,) = await peer.said()
        assert refused["reason"] == "bad_command" and "too large together" in refused["text"]
        assert 1 < len(compiled) < 15
        assert threading.get_ident() not in compiled
        # One or two of them may be.
        peer = await Peer.at(b)
        peer.writer.write(asked([LARGE % number for number in range(2)]))
        await peer.until("bootstrap_end")
        peer.writer.close()

    place.run(visit)


def test_small_expressions_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "EXPRESSIONS_MAX", 10)

    async def visit() -> None:
        b = await place.start(place.guarded())
        for count, found in ((10, "bootstrap_end"), (11, "refused")):
            peer = await Peer.at(b)
            names = [f"name{number}" for number in range(50)]
            small = [f"^small{number}" for number in range(count)]
            peer.writer.write(asked(names + small, user_id="links", pw=SECRET))
            answer = await peer.until(found)
            peer.writer.close()
        assert "more than 10 expressions" in answer["text"]

    place.run(visit)


def test_a_copy_that_is_one_too_many_tries_again(place: Place) -> None:
    """It counts as a link that proves nothing, and is begun when its user has fewer."""

    async def visit() -> None:
        terms = TransportConfig("replication", connections_max=2)
        b = await place.start(replace(place.guarded(), replication_transports=(terms,)))
        await publish(b, "orders")
        other = await Peer.at(b)
        other.writer.write(unproven(incarnation=100, name="n", destination="d"))
        await other.until("accepted")
        copy = asyncio.ensure_future(place.start(copying(b, place.says())))
        while len(place.servers) < 2:
            await asyncio.sleep(0)
        assert "this user has 1" in await told(place.servers[1], "bootstrap_failed")
        assert not copy.done()
        (over,) = events(b, "upstream_over_share")[:1]
        assert (over["limit"], over["user"]) == ("user", "links")
        other.writer.close()
        assert (await copy).parts.instance.machine.next_txid > 1

    place.run(visit)


@pytest.mark.parametrize("limit", ["instance", "transport"])
def test_strangers_do_not_end_a_copy(place: Place, limit: str) -> None:
    """Of those who come beyond the limit the oldest stranger gives way."""

    async def visit() -> None:
        b = await place.start(
            replace(
                place.guarded(),
                replication_transports=(TransportConfig("replication", connections_max=2),),
            )
            if limit == "transport"
            else place.guarded()
        )
        if limit == "instance":
            b.parts.upstreams.connection_limit.most = 2
        copy = await Peer.at(b)
        copy.writer.write(asked([".*"], user_id="links", pw=SECRET))
        await copy.until("bootstrap_end")
        strangers = [await Peer.at(b) for _ in range(2)]
        ends = [asyncio.ensure_future(each.said()) for each in (copy, *strangers)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert [each.done() for each in ends] == [False, True, False]
        (refused,) = ends[1].result()
        assert refused["reason"] == "too_many"
        for each in (copy, *strangers):
            each.writer.close()
        await asyncio.gather(*ends)

    place.run(visit)
