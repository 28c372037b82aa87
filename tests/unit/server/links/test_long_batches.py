"""A link's long batch is taken in turns: others are served in between, it is acked behind its last
part, and nothing of it is taken where its last run is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from unit.server.links.test_security import KEY, SECRET, Peer, Place, logon, publish

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import RecordBuilder, Run, run_of, scan
from raylay.services.protocol.client.compression import compressor
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import link_logon
from raylay.services.replication import link_batch_parts
from raylay.services.replication.batch_room import ROOM_BYTES
from raylay.services.server import turns
from raylay.services.server.commits import Commits
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links import upstream_connection

P, COUNT = 7, 200


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten runs are a part, one part is a turn."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(link_batch_parts, "SLICE_BYTES", 1_000)
    monkeypatch.setattr(link_batch_parts, "PART_RUNS", 10)


def runs() -> list[Run]:
    found = []
    for sequence in range(1, COUNT + 1):
        payload = RecordBuilder(P, "orders", "json").build(sequence, b"{}", 1)
        found.append(run_of(scan(payload)[0], payload))
    return found


def batch(block: bytes, compression: str = "", number: int = 1) -> bytes:
    header = {"c": "batch", "n": number, "m": True}
    if compression:
        header["z"] = compression
        block = compressor(compression)(block)
    return encode_frame(header, block)


async def connected(server: InstanceServer, *, proven: bool, epoch: int = 5) -> Peer:
    peer = await Peer.at(server)
    words = logon("some", SECRET, placements={}, epoch=epoch)
    words.proof = proof_of(KEY, words) if proven else b""
    peer.writer.write(link_logon(words))
    await peer.until("accepted")
    return peer


def known(server: InstanceServer) -> SequenceSet:
    return server.parts.instance.machine.known.get(P) or SequenceSet()


@pytest.mark.parametrize("compression", ["", "zstd", "zlib"])
def test_others_are_served_between_its_parts(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    may_go_on = [False]
    monkeypatch.setattr(Commits, "takes_parts", property(lambda self: may_go_on[0]))

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await connected(b, proven=False)
        block = b"".join(run.encode() for run in runs())
        peer.writer.write(batch(block, compression))
        await publish(b, "orders")
        assert not known(b), "nothing is taken before all is decoded"
        may_go_on[0] = True
        while not known(b):
            await asyncio.sleep(0)
        assert (known(b).last() or 0) < COUNT
        await publish(b, "orders")
        ack = await peer.until("ack")
        while not ack["n"]:
            ack = await peer.until("ack")
        assert list(known(b)) == [(1, COUNT)]
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("proven", [True, False])
def test_behind_one_long_run_the_next_batch_is_taken(tmp_path: Path, proven: bool) -> None:
    """A message of 256 KiB is a long batch of one part: it needs no second turn, and ended its link
    with the reason `gap` as soon as that said anything more."""
    place = Place(tmp_path)
    body = b'{"a": "' + b"x" * 2_000 + b'"}'

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await connected(b, proven=proven)
        for number in (1, 2, 3):
            payload = RecordBuilder(P, "orders", "json").build(number, body, 1)
            peer.writer.write(batch(run_of(scan(payload)[0], payload).encode(), "", number))
            ack = await peer.until("ack")
            while ack["n"] < number:
                ack = await peer.until("ack")
        assert list(known(b)) == [(1, 3)]
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("compression", ["zstd", "zlib"])
def test_a_batch_is_decompressed_when_there_is_room_for_it(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty links of one user held 4 GB by 5 kB that each had sent."""
    monkeypatch.setattr(upstream_connection, "SLICE_BYTES", 1_000)
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await connected(b, proven=False)
        (upstream,) = b.parts.upstreams.connected.values()
        room = b.parts.upstreams.room(upstream)
        assert room.enter("another", ROOM_BYTES, lambda: None)
        peer.writer.write(batch(b"".join(run.encode() for run in runs()), compression))
        while len(room) < 2:
            await asyncio.sleep(0)
        await publish(b, "orders")
        assert not known(b) and upstream not in room and room.bytes == ROOM_BYTES
        room.leave("another")
        ack = await peer.until("ack")
        while not ack["n"]:
            ack = await peer.until("ack")
        assert list(known(b)) == [(1, COUNT)] and not len(room)
        assert not b.parts.upstreams.incomplete.bytes
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("compression", ["", "zstd", "zlib"])
def test_a_batch_that_is_longer_than_any_is_refused(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_connection, "BLOCK_BYTES_MAX", 2_000)
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await connected(b, proven=True)
        peer.writer.write(batch(b"".join(run.encode() for run in runs()), compression))
        (refused,) = [each for each in await peer.said() if each["c"] == "refused"]
        assert refused["reason"] == "bad_record" and not known(b) and b.runtime.fault is None
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("proven", [True, False])
def test_what_is_wrong_at_its_end_refuses_all_of_it(tmp_path: Path, proven: bool) -> None:
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await connected(b, proven=proven)
        block = b"".join(run.encode() for run in runs())
        peer.writer.write(batch(block[:-1] + b"!"))
        (refused,) = [each for each in await peer.said() if each["c"] == "refused"]
        assert refused["reason"] == "bad_record" and not known(b) and b.runtime.fault is None
        peer.writer.close()

    place.run(visit)


def test_a_link_that_ends_between_its_parts_leaves_those_and_sends_all_again(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        frame = batch(b"".join(run.encode() for run in runs()))
        peer = await connected(b, proven=False)
        peer.writer.write(frame)
        while not known(b):
            await asyncio.sleep(0)
        for upstream in list(b.parts.upstreams.connected.values()):
            upstream.close("the test ends it")
        assert not any(each["n"] for each in await peer.said() if each["c"] == "ack")
        assert 0 < (known(b).last() or 0) < COUNT
        peer.writer.close()
        again = await connected(b, proven=False, epoch=6)
        again.writer.write(frame)
        ack = await again.until("ack")
        while not ack["n"]:
            ack = await again.until("ack")
        assert list(known(b)) == [(1, COUNT)] and b.parts.instance.machine.next_txid == COUNT + 1
        again.writer.close()

    place.run(visit)
