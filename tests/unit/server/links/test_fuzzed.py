"""A link that is let in, does not prove to be of the fabric, and says anything within the grammar.

Beside it a client publishes and a link of the fabric is connected: nothing but its own connection
ends, and nothing that it says of others is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.link_peers import DESCRIPTION
from support.one_instance import events
from unit.server.clients.test_fuzzed import BODIES, FEW, Bench
from unit.server.links.test_security import KEY, MOVED, Peer, asking

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import (
    Command,
    Flag,
    RecordBuilder,
    Run,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import (
    BEAT,
    UpstreamLogon,
    batch_front,
    lacks_frames,
    link_logon,
    names_frame,
    pack_rooted,
    placed,
)
from raylay.services.queues.records import REASONS
from raylay.services.replication.publisher_names import PublisherNames

pytestmark = pytest.mark.covers(
    "Configuration", "a link that is let in and proves nothing says anything"
)

TRUE, FORGED = 77, 78
FORGED_NAMES = PublisherNames([(FORGED, b"n" * 16)]).part(0)
PUBLISHERS = (publisher_id("good"), publisher_id("other"), 5)
HIGHEST = (1 << 63) - 2
SEQUENCES = st.one_of(st.integers(1, 40), st.integers(0, HIGHEST), st.just(HIGHEST))
PAIRS = st.tuples(SEQUENCES, SEQUENCES).map(lambda pair: (min(pair), max(pair)))
RANGES = st.dictionaries(st.sampled_from(PUBLISHERS), st.lists(PAIRS, min_size=1, max_size=3))
ROOTS = st.dictionaries(st.one_of(st.just(TRUE), st.integers(0, 2**64 - 1)), RANGES, max_size=3)


FLAT_KEYS = st.dictionaries(
    st.sampled_from(PUBLISHERS), st.lists(SEQUENCES, max_size=4).map(sorted), max_size=2
)
U64 = st.one_of(st.just(0), st.integers(0, 2**64 - 1), st.just(2**64 - 1))
TEXT_BYTES = st.sampled_from([b"", b"", b"", b"k", b"\xff\xfe", b"x" * 65_535])
NAMES = st.sampled_from(["true", "solo", "up", "", "ü" * 200, "ü" * 201])
QUEUE_BODIES = st.one_of(
    st.builds(
        lambda keys, how: msgpack.packb({"acks": keys, "how": how}),
        FLAT_KEYS, st.sampled_from(["ack", "expire", "x"]),
    ),
    st.builds(
        lambda keys, why, by, tag: msgpack.packb({"by": by, "tag": tag, "gone": keys, "why": why}),
        FLAT_KEYS, st.sampled_from([*REASONS, "x"]), NAMES, U64,
    ),
    st.builds(
        lambda moves, by, tag, names: msgpack.packb(
            {"by": by, "tag": tag, "moves": moves, "names": names}
        ),
        st.lists(
            st.tuples(st.sampled_from(PUBLISHERS), SEQUENCES, SEQUENCES, U64, NAMES), max_size=3
        ),
        NAMES, U64, st.dictionaries(U64, NAMES, max_size=2),
    ),
)  # fmt: skip
"""What acknowledgments, removals and transfers say, right and wrong."""
RECORD_BODIES = st.one_of(st.sampled_from([b"{}", b'{"id":1}', b"<a>1</a>"]), QUEUE_BODIES)


class FabricBench(Bench):
    """Its instance has the key of a fabric, and a link of that fabric is connected."""

    async def _start(self) -> None:
        runtime = self.server.runtime
        runtime.config = replace(runtime.config, fabric_key=KEY)
        await super()._start()
        self.peer = await Peer.at(self.server)
        logon = UpstreamLogon("true", "g", TRUE, "g", "to-solo", 1, b"", 0, DESCRIPTION, "")
        logon.proof = proof_of(KEY, logon)
        self.peer.writer.write(link_logon(logon))
        await self.peer.until("accepted")
        self._alive = self.loop.create_task(self._live())

    async def _live(self) -> None:
        while True:
            self.peer.writer.write(BEAT)
            await asyncio.sleep(0.5)

    def still(self) -> None:
        server = self.server
        machine = server.parts.instance.machine
        assert [
            each.logon.name for each in server.parts.upstreams.connected.values() if each.logon
        ] == ["true"]
        assert [name for name, _, _ in machine.upstreams()] == ["true"]
        assert machine.ready and not machine.went_back and not machine.retired
        assert not len(machine.placements) and not machine.missing.is_judging
        assert not machine.missing.ranges.sets
        assert machine.publisher_names.get(FORGED) is None
        keys = [
            key
            for key, _ in server.parts.instance.state.items("")
            if "epoch" in key or "proven" in key
        ]
        own = f"{TRUE:016x}"
        assert keys == [f"epoch/{own}/to-solo", f"proven/{own}", "proven_name/true"], "others' too"
        assert not server.parts.upstreams.incomplete.bytes
        for event in ("fatal", "connection_fault", "went_back", "retired", "messages_unavailable"):
            assert not events(server, event), event
        machine.check_invariants()

    def session(self, logon: UpstreamLogon, frames: list[bytes]) -> None:
        async def speak() -> None:
            peer = await Peer.at(self.server)
            peer.writer.write(link_logon(logon))
            said = asyncio.ensure_future(_until_it_ends(peer))
            # Answered, or refused: what comes before that would end it.
            while not said.done() and not any(
                each.logon is not None and each.is_accepted and each.logon.name == logon.name
                for each in self.server.parts.upstreams.connected.values()
            ):
                await asyncio.sleep(0)
            peer.writer.write(b"".join(frames) + encode_frame({"c": "the-end"}))
            await asyncio.wait_for(said, self.patience_s)
            peer.writer.close()
            await self.good.publish("orders", b'{"a": 1}')
            await asyncio.wait_for(self.good.flush(), self.patience_s)
            async with asyncio.timeout(self.patience_s):
                while len(self.server.parts.upstreams.connected) > 1:
                    await asyncio.sleep(0)

        self.loop.run_until_complete(speak())
        assert self.server.runtime.fault is None and not self.server.parts.instance.is_half_done
        self.still()

    def close(self) -> None:
        self._alive.cancel()
        super().close()


async def _until_it_ends(peer: Peer) -> None:
    # What it sends more when its connection has ended resets it.
    with suppress(ConnectionError):
        await peer.said()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricBench]:
    made = FabricBench(tmp_path_factory.mktemp("fuzzed"))
    yield made
    made.close()


@st.composite
def runs(draw: Any) -> list[bytes]:
    build = RecordBuilder(
        draw(st.sampled_from(PUBLISHERS)),
        draw(st.sampled_from(["orders", "rows", "work", "none"])),
        draw(st.sampled_from(["json", "json", "xml"])),
    ).build
    numbers = sorted(draw(st.sets(SEQUENCES.filter(bool), min_size=1, max_size=3)))
    command = draw(st.sampled_from([1, 1, *Command]))
    payload = b"".join(
        build(
            each,
            draw(st.one_of(RECORD_BODIES, BODIES)),
            draw(U64),
            draw(st.sampled_from([b"", b"", b"\0" * 25, b"\xff" * 25])),
            command=command,
            expiration_s=draw(st.sampled_from([0, 0, 1, (1 << 32) - 1])),
            key=draw(TEXT_BYTES),
            correlation=draw(TEXT_BYTES),
        )
        for each in numbers
    )
    found = []
    for chunk in scan(payload):
        run: Run = run_of(chunk, payload)
        run.path = tuple(draw(st.lists(st.sampled_from([TRUE, 8, 9]), max_size=2)))
        if draw(st.booleans()):
            run.flags |= Flag.AWAITED
        if draw(st.integers(0, 3)) == 0:
            run = draw(lies(run))
        found.append(run.encode())
    return found


@st.composite
def lies(draw: Any, run: Run) -> Run:
    """A run with a header or a payload that are not one another's, and sound checksums."""
    words = draw(
        st.dictionaries(
            st.sampled_from(["publisher", "first_sequence", "last_sequence"]), st.integers(0, 9)
        )
    )
    for name, values in (
        ("count", st.sampled_from([0, 1, 2, 1_000, 1 << 31])),
        ("topic", st.sampled_from([b"", b"orders", b"rows", b"none", b"\xff"])),
        ("last_sequence", SEQUENCES),
        ("flags", st.integers(0, 63)),
        ("kind", st.integers(0, 5)),
        ("payload", st.sampled_from([b"", b"\xff" * 50, b"\xff" * 200, run.payload[:-1]])),
    ):
        if draw(st.booleans()):
            words[name] = draw(values)
    return replace(run, payload_checksum=0, **words)


@st.composite
def sayings(draw: Any) -> list[bytes]:
    """Frames of one connection, its batches numbered as they must be, or nearly so."""
    frames, number = [], 0
    for kind in draw(st.lists(st.sampled_from("bbbblnpqw"), min_size=1, max_size=8)):
        if kind == "b":
            number += draw(st.sampled_from([1, 1, 1, 1, 1, 2]))
            block = b"".join(draw(runs())) if draw(st.booleans()) else b""
            awaited = pack_rooted(draw(ROOTS))
            front = batch_front(
                number, draw(st.booleans()), draw(st.booleans()), awaited, "", len(block),
                draw(st.one_of(st.none(), RANGES)),
            )  # fmt: skip
            frames.append(front + block)
        elif kind == "l":
            missing = PublisherRanges()
            for publisher, pairs in draw(RANGES).items():
                missing.add_ranges(publisher, pairs)
            frames += lacks_frames(missing, draw(st.booleans()))
        elif kind == "n":
            frames.append(names_frame(draw(st.sampled_from([FORGED_NAMES, b"", b"x" * 25]))))
        elif kind == "p":
            frames.append(placed(MOVED))
        else:
            frames.append(asking(1, "work") if kind == "q" else BEAT)
    return frames


LOGONS = st.builds(
    UpstreamLogon,
    st.sampled_from(["true", "up", "other"]),
    st.just("g"),
    st.sampled_from([TRUE, 8, 9]),
    st.just("g"),
    st.sampled_from(["to-solo", "elsewhere"]),
    st.one_of(st.integers(1, 1 << 40), st.just((1 << 64) - 1)),
    st.just(b""),
    description=st.sampled_from([DESCRIPTION, DESCRIPTION, b"", b"\xc1"]),
    address=st.just(""),
    salvages=st.booleans(),
)


@FEW
@given(logon=st.one_of(st.none(), st.none(), st.none(), LOGONS), frames=sayings())
def test_whatever_it_says_only_its_own_connection_ends(
    bench: FabricBench, logon: UpstreamLogon | None, frames: list[bytes]
) -> None:
    if logon is None:  # one that is let in
        destination = f"to-solo-{next(bench.numbers)}"
        logon = UpstreamLogon("up", "g", 8, "g", destination, 1, b"", 0, DESCRIPTION, "")
    bench.session(logon, frames)
