"""What a peer may say is bounded by what it can know, before memory is spent on it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from support.link_peers import DESCRIPTION
from unit.replication.instance.test_machine import OWN, P, acks, destination
from unit.replication.instance.test_machine import (
    Bench as Machine,
)
from unit.replication.membership.test_admission import logon as words
from unit.server.clients.test_fuzzed import Bench
from unit.server.links.test_security import SECRET, Peer, Place, logon
from unit.server.links.test_unproven import lacks, machine, unproven
from unit.server.test_faults import events, lacks_frames

from raylay.services.config.instance import TransportConfig
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.protocol.link import replication
from raylay.services.protocol.link.replication import (
    ACK_BYTES_MAX,
    PART_BYTES,
    PART_BYTES_MAX,
    RANGES_IN_ACK_MAX,
    PartReader,
    UpstreamLogon,
    ack_frames,
    link_logon,
    pack_rooted,
    parts,
    read_ack,
    read_batch,
    read_lacks,
)
from raylay.services.replication import unavailable
from raylay.services.replication.batch_room import ROOM_BYTES
from raylay.services.replication.effects import AckUpstream, CloseUpstream
from raylay.services.replication.instance import upstreams
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.membership.admission import LinkAdmitted, decide
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.server.links import upstream_connection

pytestmark = pytest.mark.covers(
    "Configuration", "what a peer may say is bounded by what it can know"
)

FOR_EVER = (1 << 62) - 1


def test_a_destination_refuses_nothing_that_is_not_here() -> None:
    """It was never sent it: it would count, be told of and go to publishers as a conflict."""
    bench = Machine(destination())
    bench.log_on()
    bench.publish(1, 2)
    bench.commit()
    refused = {P: [(2, 50)], 99: [(1, 9)]}
    found = bench.take(bench.machine.link_answered("peer", {OWN: {P: [(1, 1)]}}, refused))
    assert acks(found) == [(1, ""), (2, "sequence_conflict")]
    assert bench.machine.counters.conflicts == 1
    assert bench.take(bench.machine.link_answered("peer", {}, {P: [(3, FOR_EVER)]})) == []
    bench.publish(3)
    bench.commit()
    assert not bench.machine.durability.refused.covers(P, [(3, 3)])


def gaps(count: int, publisher: int = P) -> PublisherRanges:
    made = PublisherRanges()
    made.add_ranges(publisher, [(each * 10_000, each * 10_000) for each in range(1, count + 1)])
    return made


def test_what_is_lacking_is_told_in_parts() -> None:
    for frame in lacks_frames(gaps(20_000), True):
        assert len(frame) < PART_BYTES + 100, "what is sent is far below the limit"
    with pytest.raises(RemoteProtocolError) as caught:
        read_lacks({"c": "lacks"}, b"\0" * (PART_BYTES_MAX + 1))
    assert caught.value.reason == "bad_ranges" and "at most" in str(caught.value)


def test_what_is_lacking_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unavailable, "PIECES_MAX", 50)
    found = UnavailableMessages(PublisherRanges(), PublisherRanges())
    assert found.upstream_lacks("A", 0xA, gaps(40), True) is None
    told = found.upstream_lacks("A", 0xA, gaps(40, publisher=9), True)
    assert told is not None and told.details == {"peer": "A", "at_most": 40}
    (note,) = found.judged()
    assert note.publisher == P
    # Judged: there is room again.
    assert found.upstream_lacks("A", 0xA, gaps(40, publisher=9), True) is None
    assert [each.publisher for each in found.judged()] == [9]


@pytest.mark.parametrize("proven", [False, True])
def test_answers_are_asked_for_so_many_roots(monkeypatch: pytest.MonkeyPatch, proven: bool) -> None:
    monkeypatch.setattr(upstreams, "ROOTS_MAX", 8)
    made = machine()
    assert isinstance(decide(made, 9, words(proven=proven), 4, is_open=True), LinkAdmitted)
    for number in range(1, 11):
        asked = {root: {P: [(1, 1)]} for root in range(number, number + 2)}
        said = made.upstream_batch(9, number, [], True, asked, False, 0, LookupResult())
        closed = [each for each in said if isinstance(each, CloseUpstream)]
        assert bool(closed) is (not proven and number == 8), number
        if closed:
            assert closed[0].reason == "bad_ranges"
            break


def test_answers_are_asked_for_in_so_many_bytes() -> None:
    asked = pack_rooted({1: {P: [(1, FOR_EVER)]}})
    header = {"c": "batch", "n": 1, "w": len(asked)}
    assert read_batch(header, asked, len(asked)).awaited == {1: {P: [(1, FOR_EVER)]}}
    with pytest.raises(RemoteProtocolError) as caught:
        read_batch(header, asked, len(asked) - 1)
    assert caught.value.reason == "bad_ranges"


@pytest.mark.parametrize("proven", [False, True])
def test_who_proves_nothing_asks_in_fewer_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proven: bool
) -> None:
    monkeypatch.setattr(upstream_connection, "AWAITED_BYTES_MAX", 8)
    asked = pack_rooted({1: {P: [(1, 9)]}})
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        peer.writer.write(
            link_logon(logon("links", SECRET, placements={})) if proven else unproven()
        )
        await peer.until("accepted")
        peer.writer.write(encode_frame({"c": "batch", "n": 1, "w": len(asked)}, asked))
        if proven:
            # It is taken: the next frame is looked at.
            peer.writer.write(encode_frame({"c": "nonsense"}))
        (reason,) = [each["reason"] for each in await peer.said() if each["c"] == "refused"]
        assert reason == ("unknown_command" if proven else "bad_ranges")

    place.run(visit)


def test_one_frame_of_a_link_that_names_all_there_could_be(tmp_path: Path) -> None:
    """It ended both of a pair, and at every start again, as the note was in the journal."""
    bench = Bench(tmp_path)
    try:
        logon = UpstreamLogon("up", "g", 77, "g", "to-solo", 1, b"", 0, DESCRIPTION)
        frames = [
            lacks_frames(lacks(last=FOR_EVER), True)[0],
            encode_frame({"c": "batch", "n": 1, "u": True}),
        ]
        bench.run(bench.server.runtime.replication_address, link_logon(logon), frames)
        assert not events(bench.server, "connection_fault") and bench.server.runtime.fault is None
    finally:
        bench.close()


def test_names_and_incarnations_of_who_is_gone_are_remembered_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstreams, "ABSENT_MAX", 2)
    monkeypatch.setattr(upstreams, "HEARING_MAX", 2)
    made = machine()
    for number in range(1, 6):
        said = words(incarnation=number, name=f"n{number}", address=f"n{number}:1")
        assert isinstance(decide(made, number, said, 4, is_open=True), LinkAdmitted)
        # It asks for what is not here: from now on it hears what others bring.
        made.upstream_batch(number, 1, [], True, {1: {P: [(1, 1)]}}, False, 0, LookupResult())
        made.upstream_left(number)
    assert made._upstreams.absent == {"n1", "n2", ""}
    assert made._upstreams._hearing == {1, 2}
    true = words(incarnation=9, name="n9", proven=True)
    assert isinstance(decide(made, 9, true, 4, is_open=True), LinkAdmitted)
    made.upstream_batch(9, 1, [], True, {1: {P: [(1, 1)]}}, False, 0, LookupResult())
    assert made._upstreams._hearing == {1, 2, 9}


@pytest.mark.covers("Configuration", "links of one user are half of a transport")
def test_links_of_one_user_are_half_of_a_transport(tmp_path: Path) -> None:
    """Those that prove to be of the fabric may all come by one user: they are not counted."""
    place = Place(tmp_path)
    terms = TransportConfig("replication", connections_max=4)

    async def visit() -> None:
        b = await place.start(replace(place.guarded(), replication_transports=(terms,)))
        transport = b.parts.upstreams.connected
        peers = []
        for number in range(3):
            peer = await Peer.at(b)
            peers.append(peer)
            said = {"incarnation": 100 + number, "name": f"n{number}", "destination": f"d{number}"}
            peer.writer.write(unproven(**said))
            if number < 2:
                await peer.until("accepted")
        refused = await peers[2].until("refused")
        assert refused["reason"] == "too_many" and "this user has 2" in refused["text"]
        (told,) = events(b, "upstream_over_share")
        assert (told["limit"], told["user"], told["transport"]) == ("user", "links", "replication")
        assert b.status()["shares_reached"] == {"replication_user": 1}
        # Another connection of the same instance takes the place of the older one.
        again = await Peer.at(b)
        again.writer.write(unproven(incarnation=100, name="n0", destination="d0", epoch=6))
        await again.until("accepted")
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={})))
        await true.until("accepted")
        for each in (*peers, again, true):
            each.writer.close()
        while transport:
            await asyncio.sleep(0)
        assert not len(b.parts.upstreams.shares)

    place.run(visit)


@pytest.mark.covers("Configuration", "frames that are not whole are bounded for all")
def test_half_frames_of_links_hold_no_more_than_their_share(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        frames = b.parts.upstreams.incomplete
        frames.bytes_max = 400_000
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=100, name="n"))
        await peer.until("accepted")
        half = encode_frame({"c": "batch", "n": 1}, bytes(1_000_000))
        peer.writer.write(half[:199_000])
        while frames.bytes < 199_000:
            await asyncio.sleep(0)
        # So few that they are read at once: what is not read of a connection resets it.
        peer.writer.write(half[199_000:200_001])
        assert (await peer.until("refused"))["reason"] == "too_many"
        (told,) = events(b, "upstream_over_share")
        assert told["limit"] == "frames" and told["user"] == "links"
        peer.writer.close()
        while len(frames):
            await asyncio.sleep(0)

    place.run(visit)


def test_what_waits_for_the_reader_of_a_carried_stream_counts_with_half_frames(
    tmp_path: Path,
) -> None:
    """128 MiB of each link were kept beside all limits."""
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        frames = b.parts.upstreams.incomplete
        frames.bytes_max = 400_000
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=100, name="n"))
        await peer.until("waited")
        (carrier,) = b.parts.upstreams.connected.values()
        carrier.carry("to-n")  # Its link has not come for it yet.
        for held_bytes, body_bytes in ((100_000, 100_000), (190_000, 90_000)):
            peer.writer.write(encode_frame({"c": "carry", "n": 1}, bytes(body_bytes)))
            while carrier._unread.bytes < held_bytes:
                await asyncio.sleep(0)
        peer.writer.write(encode_frame({"c": "carry", "n": 1}, bytes(10_001)))
        assert (await peer.until("refused"))["reason"] == "too_many"
        (told,) = events(b, "upstream_over_share")
        assert told["limit"] == "frames" and told["user"] == "links"
        peer.writer.close()
        while len(frames):
            await asyncio.sleep(0)

    place.run(visit)


def test_what_a_destination_holds_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link kept all that was told, however many publishers were invented for it."""
    told = gaps(3_000)
    told.of(7).add(1, FOR_EVER)
    read = PublisherRanges()
    reader = PartReader()
    for part in parts(told):
        reader.read(part, read)
    assert read == told
    with pytest.raises(RemoteProtocolError, match="pieces of all parts"):
        reader.read(b"\0" * (PART_BYTES_MAX + 1))
    monkeypatch.setattr(replication, "TOLD_PIECES_MAX", 2_999)
    read, reader = PublisherRanges(), PartReader()
    with pytest.raises(RemoteProtocolError) as caught:
        for part in parts(told):
            reader.read(part, read)
    assert caught.value.reason == "bad_ranges"
    assert sum(each.pieces for each in read.sets.values()) < 2_999
    monkeypatch.setattr(replication, "TOLD_PIECES_MAX", 100)
    reader = PartReader()
    with pytest.raises(RemoteProtocolError):
        for _ in range(7):
            reader.read(b"")


def test_an_ack_is_read_up_to_a_limit() -> None:
    """Each range of a publisher and a root of its own: none takes more."""
    high, last = (1 << 64) - RANGES_IN_ACK_MAX, FOR_EVER
    most = AckUpstream(1, 1)
    most.persisted.update(
        {high + n: {high + n: [(last - 1, last)]} for n in range(RANGES_IN_ACK_MAX)}
    )
    (frame,) = FrameReader(1 << 30).feed(b"".join(ack_frames(most, 0)))
    assert len(frame.body) <= ACK_BYTES_MAX
    assert read_ack(*frame)[2] == most.persisted
    with pytest.raises(RemoteProtocolError) as caught:
        read_ack(frame.header, b"\0" * (ACK_BYTES_MAX + 1))
    assert caught.value.reason == "bad_ranges"


def test_an_ack_has_no_more_ranges_than_one_is_sent_with() -> None:
    """Numbers of a byte each made four million of them, and 480 MB."""
    few = msgpack.packb([{}, {}, {P: [1, 1] * RANGES_IN_ACK_MAX}])
    assert len(read_ack({"c": "ack", "n": 1}, few)[3][P]) == RANGES_IN_ACK_MAX
    for parts_of in ([{}, {}, {P: [1, 1] * (RANGES_IN_ACK_MAX + 1)}],
                     [{n: [1, 1] * 50_000 for n in range(1, 20)}, {}, {}]):  # fmt: skip
        with pytest.raises(RemoteProtocolError) as caught:
            read_ack({"c": "ack", "n": 1}, msgpack.packb(parts_of))
        assert caught.value.reason == "bad_ranges"


def test_answers_are_asked_for_so_many_ranges() -> None:
    asked = msgpack.packb({1: {P: [1, 1] * 100}})
    header = {"c": "batch", "n": 1, "w": len(asked)}
    assert len(read_batch(header, asked, 1 << 20, 100).awaited[1][P]) == 100
    with pytest.raises(RemoteProtocolError) as caught:
        read_batch(header, asked, 1 << 20, 99)
    assert caught.value.reason == "bad_ranges"


def test_who_waits_for_room_with_a_long_batch_holds_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_connection, "SLICE_BYTES", 1_000)
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(place.guarded())
        frames = b.parts.upstreams.incomplete
        frames.bytes_max = 400_000
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=100, name="n"))
        await peer.until("accepted")
        (upstream,) = b.parts.upstreams.connected.values()
        room = b.parts.upstreams.room(upstream)
        assert room.enter("another", ROOM_BYTES, lambda: None)
        peer.writer.write(encode_frame({"c": "batch", "n": 1}, bytes(200_001)))
        assert (await peer.until("refused"))["reason"] == "too_many"
        (told,) = events(b, "upstream_over_share")
        assert told["limit"] == "frames" and told["user"] == "links"
        peer.writer.close()
        while len(frames):
            await asyncio.sleep(0)
        room.leave("another")
        assert not len(room)

    place.run(visit)


@pytest.mark.parametrize("user", ["some", "links"])
def test_who_may_bring_some_topics_says_nothing_of_all(tmp_path: Path, user: str) -> None:
    """Where there is no key, it made the instance begin anew, as an old copy of itself."""
    place = Place(tmp_path)

    async def visit() -> None:
        b = await place.start(replace(place.guarded(), fabric_key=""))
        peer = await Peer.at(b)
        peer.writer.write(link_logon(logon(user, SECRET, placements={}, incarnation=79)))
        await peer.until("accepted")
        claims = [encode_frame({"c": "batch", "n": n, "y": [P, 1, 9]}) for n in (1, 2)]
        peer.writer.write(lacks_frames(lacks(), True)[0] + claims[0])
        if user == "some":
            # All of it is taken: the next frame is looked at.
            last = lacks_frames(lacks(), True)[0] + encode_frame({"c": "nonsense"})
            peer.writer.write(claims[1] + last)
            assert (await peer.said())[-1]["reason"] == "unknown_command"
            assert (
                not b.parts.instance.machine.went_back
                and not b.parts.instance.machine.missing.is_judging
            )
            for event in ("lacks_unproven", "old_copy_unproven"):
                (told,) = events(b, event)
                assert "may not replicate every topic" in told["text"], "once"
        else:
            while not b.parts.instance.machine.went_back:
                await asyncio.sleep(0)
        peer.writer.close()

    place.run(visit)
