"""A link brings a run whose header is not what its records say: nothing of it is taken."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from unit.messages.test_lying_runs import CANNOT_BE, HONEST, LIES
from unit.server.links.test_security import (
    KEY,
    SECRET,
    Peer,
    Place,
    copying,
    facts,
    logon,
    publish,
    told,
)

from raylay.services.client import Client
from raylay.services.messages.readable import UNREADABLE
from raylay.services.messages.records import Run
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import link_logon
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.verify import VerifyResult, verify_journal

pytestmark = pytest.mark.covers("Configuration", "a run whose header is not what its records say")


def batch(run: Run) -> bytes:
    return encode_frame(
        {"c": "batch", "n": 1, "m": True}, replace(run, payload_checksum=0).encode()
    )


async def brings(place: Place, key: str, run: Run, *, proven: bool = False) -> str:
    """Returns what a link that brings this run is told; nothing has changed but its own
    connection."""
    b = await place.start(replace(place.guarded(), fabric_key=key))
    peer = await Peer.at(b)
    words = logon("some", SECRET, placements={})
    words.proof = proof_of(KEY, words) if proven else b""
    peer.writer.write(link_logon(words))
    await peer.until("accepted")
    before = facts(b)
    peer.writer.write(batch(run))
    (refused,) = [each for each in await peer.said() if each["c"] == "refused"]
    assert facts(b) == before and b.runtime.fault is None
    assert '"bad_record"' in await told(b, "upstream_refused", "nothing was taken")
    await publish(b, "orders")
    peer.writer.close()
    return str(refused["reason"])


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", KEY])
def test_every_lie_of_an_unproven_link_ends_its_connection(tmp_path: Path, key: str) -> None:
    for number, run in enumerate([*CANNOT_BE.values(), *LIES.values()]):
        directory = tmp_path / str(number)
        directory.mkdir()
        place = Place(directory)

        async def visit(place: Place = place, run: Run = run) -> None:
            assert await brings(place, key, run) == "bad_record"

        place.run(visit)


def test_a_proven_link_brings_no_header_that_cannot_be(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def visit() -> None:
        run = CANNOT_BE["2^31 records"]
        assert await brings(place, KEY, run, proven=True) == "bad_record"

    place.run(visit)


def test_an_honest_run_is_taken(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        words = logon("some", SECRET, placements={})
        words.proof = b""
        peer.writer.write(link_logon(words))
        await peer.until("accepted")
        peer.writer.write(batch(HONEST))
        await peer.until("ack")
        assert b.parts.instance.machine.known.get(HONEST.publisher) is not None
        peer.writer.close()

    place.run(visit)


BELIEVED = [each for each in LIES if each not in ("a note", "no UTF-8")]
"""What is journaled of a link that proves to be of the fabric."""
DAMAGED = ("no record", "cut short")


async def believed(place: Place) -> InstanceServer:
    kept = SowTopicDefinition("orders", "json", keys=("/id",))
    return await place.start(replace(place.guarded(), sow=(kept,)))


async def brought(b: InstanceServer, lie: str) -> None:
    """Has a link that proves to be of its fabric bring a run."""
    peer = await Peer.at(b)
    peer.writer.write(link_logon(logon("links", SECRET, placements={})))
    await peer.until("accepted")
    peer.writer.write(batch(LIES[lie]))
    await peer.until("ack")
    peer.writer.close()


async def publishes(b: InstanceServer) -> None:
    async with Client("p", [b.runtime.client_address]) as client:
        await client.publish("orders", b'{"id": 1}', message_type="json")
        await client.flush()


@pytest.mark.parametrize("lie", BELIEVED)
def test_an_instance_with_a_bad_run_goes_on_and_starts_again(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What folds it tells of it where it cannot be read, and `journal verify` names it."""
    monkeypatch.setattr(UNREADABLE, "_known", {})  # Other tests have bad runs of the same numbers.
    place = Place(tmp_path)

    async def visit() -> None:
        b = await believed(place)
        async with Client("s", [b.runtime.client_address]) as client:
            orders = await client.subscribe("orders", filter="/id = 1")
            await brought(b, lie)
            await publishes(b)
            async for message in orders:
                assert message.body == b'{"id": 1}'
                break
        if lie in DAMAGED:
            assert "passed over" in await told(b, "run_unreadable")
            assert b.status()["runs_unreadable"]
        await b.stop()
        again = await place.start(b.runtime.config)
        await publishes(again)
        assert b.runtime.fault is None and again.runtime.fault is None
        await again.stop()
        journal = again.runtime.directory / "journal"
        assert list(verify_journal(journal, None, VerifyResult())), "it is named"

    place.run(visit)


@pytest.mark.parametrize("lie", ["no record", "another topic", "a second publisher"])
def test_a_source_that_has_a_bad_run_fills_nobody(tmp_path: Path, lie: str) -> None:
    """It proves nothing of itself, whoever it believed: nothing of the run is taken."""
    place = Place(tmp_path)

    async def visit() -> None:
        b = await believed(place)
        await brought(b, lie)
        copying_from_b = asyncio.ensure_future(place.start(copying(b, place.says())))
        while len(place.servers) < 2:
            await asyncio.sleep(0)
        text = await told(place.servers[1], "bootstrap_failed")
        assert "record" in text or "header of a run" in text
        assert not copying_from_b.done() and not place.servers[1].runtime.is_serving
        copying_from_b.cancel()
        with suppress(asyncio.CancelledError):
            await copying_from_b

    place.run(visit)
