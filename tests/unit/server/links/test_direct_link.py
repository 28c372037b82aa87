"""Connections that links hand over, as they come to their instance, and what it sends over them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.replication.link.test_outbound import OWN, THERE, P, run

from raylay.services.config.instance import DestinationConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader
from raylay.services.protocol.link.replication import ack_frames, refusal
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.effects import AckUpstream
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.server.links.direct_link import DescriptorReceiver, DirectLinkSocket


@pytest.fixture
def way(tmp_path: Path) -> Iterator[tuple[DescriptorReceiver, str]]:
    descriptors, path = DescriptorReceiver(), str(tmp_path / "direct")
    descriptors.open(path)
    yield descriptors, path
    descriptors.close()


def hand_over(path: str, destination: str, start_number: int) -> socket.socket:
    """A link hands its connection over; gives the destination's end of it."""
    mine, theirs = socket.socketpair()
    with mine, closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
        sender.connect(path)
        socket.send_fds(sender, [control.handed_over(destination, start_number)], [mine.fileno()])
    theirs.settimeout(60)
    return theirs


def is_open(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    try:
        return theirs.recv(1) != b""
    except BlockingIOError:
        return True


def test_nobody_else_hands_a_connection_over(way: tuple[DescriptorReceiver, str]) -> None:
    assert Path(way[1]).stat().st_mode & 0o777 == 0o600


def test_links_that_lend_at_once_each_lend_their_own(way: tuple[DescriptorReceiver, str]) -> None:
    """An instance asks all of them in one turn."""
    descriptors, path = way
    with hand_over(path, "B", 1) as b, hand_over(path, "C", 4) as c:
        for name, number, theirs in (("B", 1, b), ("C", 4, c)):
            found = descriptors.take(name, number)
            assert found is not None, name
            with found:
                found.send(name.encode())
                assert theirs.recv(1) == name.encode()
        assert descriptors.take("B", 1) is None


def test_what_a_link_sent_that_is_gone_is_closed(way: tuple[DescriptorReceiver, str]) -> None:
    descriptors, path = way
    with (
        hand_over(path, "B", 1) as gone,
        hand_over(path, "B", 2) as now,
        hand_over(path, "C", 1) as other,
    ):
        found = descriptors.take("B", 2)
        assert found is not None
        with found:
            assert not is_open(gone) and is_open(now) and is_open(other)
        descriptors.forget("C")
        assert not is_open(other)
    with hand_over(path, "B", 2) as earlier:
        assert descriptors.take("B", 3) is None and not is_open(earlier)
    with hand_over(path, "B", 3) as last:
        assert descriptors.take("C", 1) is None and is_open(last)
        descriptors.close()
        assert not is_open(last)


def taken_over() -> tuple[DirectLinkSocket, Any, Any, Any]:
    """A direct connection, where nothing is on its way, and what is around it."""
    machine = OutboundLink(DestinationRoute("B", "g", True))
    start = LinkStart(True, RootedRanges(), RootedRanges(), OWN, 0)
    machine.connected(THERE, PublisherRanges(), start, 1)
    machine.take([])
    machine.acked(1, {}, {}, {})
    state = machine.hand_over()
    assert state is not None
    stands: Any = SimpleNamespace
    runtime = stands(
        outbox=stands(add=lambda _: None, flush=lambda: None, await_flush=lambda: None),
        loop=stands(time=lambda: 1.0),
        config=stands(name="A"),
    )
    instance = stands(filters=None, tracing=stands(enabled=False))
    to = DestinationConfig("B", "g", True, ("127.0.0.1:1",), window_bytes=1)
    link, owner = stands(name="B", config=to), stands()
    direct = DirectLinkSocket(runtime, instance, owner, link, state, {"peer": "B", "epoch": 1})
    direct.is_open = True
    return direct, runtime, link, owner


def test_what_is_asked_because_of_an_answer_goes_out_behind_what_the_answer_let_go() -> None:
    """Out of order the destination refuses the connection: `gap`."""
    direct, _, link, _ = taken_over()
    # As an instance that hears that what it waits for is stored by who did not know that it waits.
    link.take_report = lambda told: direct.notice({OWN: {P: [(1, 1)]}}, 2)
    direct.committed([run(1, 1)])
    direct.committed([run(2, 2)])
    for frame in ack_frames(AckUpstream(1, 2, persisted={UNAWAITED: {P: [(1, 1)]}}), 0):
        direct.data_received(frame)
    found = FrameReader().feed(b"".join(direct._collected))
    assert [frame.header["n"] for frame in found if frame.header["c"] == "batch"] == [2, 3, 4]


def test_why_a_destination_refuses_a_direct_connection_is_told() -> None:
    direct, runtime, _, owner = taken_over()
    events: list[Any] = []
    runtime.report = lambda event, **details: events.append((event, details))
    owner.over = lambda socket, why: events.append(why)
    direct.data_received(refusal("gap", "batch 4 came where 3 was due", None))
    assert events == [
        (
            "link_refused",
            {"destination": "B", "reason": "gap", "text": "batch 4 came where 3 was due"},
        ),
        "gap: batch 4 came where 3 was due",
    ]


def test_the_destination_is_asked_for_messages_of_a_queue() -> None:
    direct, *_ = taken_over()
    direct.queue_request(b"a frame")
    assert b"a frame" in b"".join(direct._collected)


def test_what_cannot_be_written_at_once_is_asked_again_by_whoever_asked() -> None:
    direct, *_ = taken_over()
    direct.queue_request(b"first")
    direct.queue_request(b"second")
    assert b"".join(direct._collected) == b"first"
