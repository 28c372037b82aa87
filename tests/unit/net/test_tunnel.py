"""Streams over a connection of the other side: both ends without a socket between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.net import tunnel
from raylay.services.net.framed import WriteQueue
from raylay.services.net.tunnel import TunnelHost, TunnelStream
from raylay.services.protocol.frames import FrameReader, Header

pytestmark = pytest.mark.covers("Replication", "a carried stream")


class Socket:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.unread = 0
        self.is_closed = False
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))
        self.unread += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def taken(self) -> bytes:
        """What was written since the last call."""
        written, self.written, self.unread = b"".join(self.written), [], 0
        return written

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.limits = high, low

    def get_extra_info(self, name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class End(TunnelHost):
    """One end of a TCP connection, and the local end of what it carries."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(WriteQueue(loop), loop, FrameReader())
        self.tcp, self.local = Socket(), Socket()
        self.connection_made(cast(asyncio.Transport, self.tcp))
        self.other: list[Header] = []
        self.holds: list[int] = []

    def frame_received(self, header: Header, body: bytes) -> None:
        if header["c"] == "carry_begin":
            self.join(self.take_stream(header, b"front "))
        elif not self.stream_frame(header, body):
            self.other.append(header)

    def stream_holds(self, unread_bytes: int) -> None:
        self.holds.append(unread_bytes)

    def join(self, stream: TunnelStream) -> TunnelStream:
        stream.connection_made(cast(asyncio.Transport, self.local))
        return stream

    def ended(self, why: str) -> None:
        self.carrier_ended(why)


def run(check: Callable[[End, End], None]) -> None:
    async def running() -> None:
        loop = asyncio.get_running_loop()
        check(End(loop), End(loop))

    asyncio.run(running())


def transfer(*ends: End) -> None:
    """What both wrote arrives."""
    one, other = ends
    for from_, to in ((one, other), (other, one)):
        from_.outbox.flush()
        if data := from_.tcp.taken():
            to.data_received(data)


def test_bytes_go_both_ways_unchanged() -> None:
    def check(one: End, other: End) -> None:
        stream = one.join(one.begin_stream("to-B"))
        assert stream.user == "to-B"
        stream.data_received(b"\xff\x00 no frames")
        transfer(one, other)
        assert other.local.taken() == b"front \xff\x00 no frames"
        assert other.carried is not None
        other.carried.data_received(b"answer")
        transfer(one, other)
        assert one.local.taken() == b"answer"

    run(check)


def test_either_end_closing_ends_it_and_what_came_goes_out_first() -> None:
    def check(one: End, other: End) -> None:
        stream = one.join(one.begin_stream("to-B"))
        stream.data_received(b"last words")
        stream.connection_lost(None)
        assert one.carried is None
        transfer(one, other)
        assert other.carried is None and other.local.is_closed
        assert other.local.taken().endswith(b"last words")
        # The carrying connection goes on, and carries another one.
        one.local, other.local = Socket(), Socket()
        one.join(one.begin_stream("to-B"))
        transfer(one, other)
        assert other.carried is not None and other.carried.number == 2

    run(check)


def test_the_carrying_connection_ending_ends_it_on_both_sides() -> None:
    def check(one: End, other: End) -> None:
        one.join(one.begin_stream("to-B"))
        transfer(one, other)
        for end in (one, other):
            end.connection_lost(None)
            assert end.carried is None and end.local.is_closed

    run(check)


def test_what_still_comes_of_an_earlier_stream_is_passed_over() -> None:
    def check(one: End, other: End) -> None:
        stream = one.join(one.begin_stream("to-B"))
        transfer(one, other)
        assert other.carried is not None
        other.carried.data_received(b"old")
        stream.end("dropped", tell=True)
        one.local = Socket()
        one.join(one.begin_stream("to-B"))
        other.outbox.flush()
        one.data_received(other.tcp.taken())
        assert one.local.taken() == b"" and one.carried is not None

    run(check)


def test_a_stream_does_not_begin_twice() -> None:
    def check(one: End, other: End) -> None:
        one.begin_stream("to-B")
        transfer(one, other)
        with pytest.raises(RemoteProtocolError, match="begins again"):
            other.take_stream({"c": "carry_begin", "n": 1}, b"")

    run(check)


def test_a_full_carrier_stops_the_local_end_not_the_other_frames() -> None:
    def check(one: End, other: End) -> None:
        stream = one.join(one.begin_stream("to-B"))
        assert one.tcp.limits == (tunnel.CARRIER_HIGH_BYTES, tunnel.CARRIER_LOW_BYTES)
        one.pause_writing()
        stream.data_received(b"more")
        assert not one.local.is_reading
        one.resume_writing()
        assert one.local.is_reading
        transfer(one, other)
        assert other.local.taken() == b"front more"

    run(check)


@pytest.mark.parametrize("joined", [True, False])
def test_what_nobody_reads_is_bounded(monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    monkeypatch.setattr(tunnel, "UNREAD_BYTES_MAX", 100)

    def check(one: End, other: End) -> None:
        stream = one.begin_stream("to-B")
        if joined:
            one.join(stream)
        stream.received(b"x" * 100)
        assert one.carried is stream
        stream.received(b"x")
        assert one.carried is None and one.is_open
        transfer(one, other)
        assert other.carried is None and not other.other

    run(check)


@pytest.mark.parametrize("joined", [True, False])
def test_what_nobody_reads_is_told_to_who_counts_it(joined: bool) -> None:
    most = tunnel.UNCOUNTED_BYTES

    def check(one: End, other: End) -> None:
        stream = one.begin_stream("to-B")
        if joined:
            one.join(stream)
            one.holds.clear()
        stream.received(bytes(most))
        assert one.holds == []
        stream.received(b"x")
        assert one.holds == [most + 1]
        if not joined:
            one.join(stream)
        one.local.taken()
        stream.resume_writing()
        assert one.holds[-1] == 0
        stream.received(bytes(most + 1))
        stream.end("over", tell=True)
        assert one.holds[-2:] == [most + 1, 0]

    run(check)
