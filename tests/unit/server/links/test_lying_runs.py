"""A link brings a run whose header is not what its records say: nothing of it is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from unit.messages.test_lying_runs import CANNOT_BE, HONEST, LIES
from unit.server.links.test_security import KEY, SECRET, Peer, Place, facts, logon, publish, told

from raylay.services.messages.records import Run
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import link_logon

pytestmark = pytest.mark.covers("Configuration", "a run whose header is not what its records say")


def batch(run: Run) -> bytes:
    return encode_frame(
        {"c": "batch", "n": 1, "m": True}, replace(run, payload_checksum=0).encode()
    )


async def brings(place: Place, key: str, run: Run, *, proven: bool = False) -> str:
    """What a link is told that brings this run; nothing has changed but its own connection."""
    b = await place.start(replace(place.guarded(), fabric_key=key))
    peer = await Peer.at(b)
    words = logon("some", SECRET, placements={})
    words.proof = proof_of(KEY, words) if proven else b""
    peer.writer.write(link_logon(words))
    await peer.until("accepted")
    before = facts(b)
    peer.writer.write(batch(run))
    (refused,) = [each for each in await peer.said() if each["c"] == "refused"]
    assert facts(b) == before and b.here.fault is None
    assert '"bad_record"' in await told(b, "upstream_refused", "nothing was taken")
    await publish(b, "orders")
    peer.writer.close()
    return str(refused["reason"])


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
        assert b.here.machine.known.get(HONEST.publisher) is not None
        peer.writer.close()

    place.run(visit)
