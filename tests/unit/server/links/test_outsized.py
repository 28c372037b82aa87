"""A link that is let in says what fits into its frame and into nothing that an instance writes:
only its own connection ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.server.links.test_security import KEY, SECRET, Peer, Place, logon, publish

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import (
    GROUP_BYTES_MAX,
    RUN_BYTES_MAX,
    RecordBuilder,
    run_of,
    scan,
)
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import link_logon
from raylay.services.replication.link_batch_parts import decode_replicated_runs

pytestmark = pytest.mark.covers(
    "Configuration", "what a peer may say is bounded by what it can know"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def block(body_bytes: int) -> bytes:
    payload = RecordBuilder(7, "orders", "json").build(1, b"x" * body_bytes, 1)
    return run_of(scan(payload)[0], payload).encode()


@pytest.mark.parametrize("bytes_more", [0, 1])
def test_a_group_has_a_name_that_the_header_of_a_run_can_hold(
    place: Place, bytes_more: int
) -> None:
    """One byte in that header says its length. A longer one ended the instance, in the middle of
    the commit of whatever the link brought."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        name = "\u00fc" * (GROUP_BYTES_MAX // 2) + "g" * (GROUP_BYTES_MAX % 2 + bytes_more)
        peer.writer.write(link_logon(logon("links", SECRET, placements={}, group=name)))
        if bytes_more:
            assert (await peer.until("refused"))["reason"] == "bad_command"
        else:
            await peer.until("accepted")
            peer.writer.write(encode_frame({"c": "batch", "n": 1, "m": True}, block(2)))
            ack = await peer.until("ack")
            while not ack["n"]:
                ack = await peer.until("ack")
        await publish(b, "orders")
        assert b.runtime.fault is None
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("proven", [True, False])
def test_a_run_is_no_longer_than_what_a_client_sends(place: Place, proven: bool) -> None:
    """A longer one fits into no delivery: its subscribers connected again and again. With its path
    it may fit into no frame of a link: that was held up for good."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        words = logon("some", SECRET, placements={})
        words.proof = proof_of(KEY, words) if proven else b""
        peer.writer.write(link_logon(words))
        await peer.until("accepted")
        peer.writer.write(encode_frame({"c": "batch", "n": 1, "m": True}, block(RUN_BYTES_MAX)))
        (refused,) = [each for each in await peer.said() if each["c"] == "refused"]
        assert refused["reason"] == "bad_record" and "16,777,216" in refused["text"]
        assert b.parts.instance.machine.next_txid == 1 and b.runtime.fault is None
        peer.writer.close()

    place.run(visit)


def test_the_longest_run_is_taken() -> None:
    longest = block(RUN_BYTES_MAX - 60 - 10)
    (run,) = decode_replicated_runs(longest, checks=True)
    assert len(run.payload) == RUN_BYTES_MAX
    with pytest.raises(CorruptRecord, match="at most 16,777,216"):
        decode_replicated_runs(block(RUN_BYTES_MAX - 60 - 9), checks=False)
