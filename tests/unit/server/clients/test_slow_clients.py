"""services/server/clients/slow_clients.py: what lies here for a buffer whose process is not
there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from raylay.services.capacity.pool import ClientHolding, Limits, Policy
from raylay.services.protocol.child import buffer_control as control
from raylay.services.protocol.frames import FrameReader
from raylay.services.server.clients.slow_clients import BufferControl, ClientPool

CLIENT = 7


class Member:
    """A connection that is offline: what it is told."""

    def __init__(self) -> None:
        self.came_of: list[tuple[bytes, int | None]] = []

    def stored(self, number: int) -> None:
        """It need not be kept."""

    def came(self, data: bytes, empty_upto: int | None) -> None:
        self.came_of.append((data, empty_upto))


class Process:
    """The connection of the buffer's process: what it was sent."""

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.puts: list[int] = []

    def send(self, frame: bytes) -> None:
        self.send_parts([frame], len(frame))

    def send_parts(self, parts: list[bytes], size_bytes: int) -> None:
        for frame in self.reader.feed(b"".join(parts)):
            if frame.header["c"] == "put":
                self.puts.append(control.whole(frame.header, "n"))


class Bench:
    """A buffer of a pool with a client that goes offline again and again."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        loop = SimpleNamespace(call_soon=lambda what, *given: self.due.append(lambda: what(*given)))
        runtime: Any = SimpleNamespace(loop=loop, report=lambda *_, **__: None)
        self.buffer = BufferControl(
            runtime, "clients", Path("none"), 0, cast(Any, None), cast(Any, None)
        )
        self.process = Process()

    def offline(self) -> Member:
        member = Member()
        self.buffer.members[CLIENT] = cast(Any, member)
        return member

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.buffer.put(CLIENT, number, [b"%d" % number], 1)

    def take(self) -> None:
        self.buffer.take(CLIENT, 1_000)
        while self.due:
            self.due.pop(0)()

    def comes(self) -> None:
        assert self.buffer.greeted(
            cast(Any, self.process), {"start": self.buffer.process.number, "pid": 1}
        )

    def taken(self, seen: int, data: bytes = b"", *, is_empty: bool = True) -> None:
        """What the process says it has given back, having seen all up to there."""
        front = control.taken(CLIENT, seen, len(data), is_empty=is_empty)
        for frame in FrameReader().feed(front + data):
            self.buffer.frame_received(frame.header, frame.body)


def test_what_was_given_back_before_the_process_came_counts_as_seen() -> None:
    """The process knows nothing of it: by its word the client would never be online again."""
    bench = Bench()
    member = bench.offline()
    bench.put(1, 2)
    bench.take()
    assert member.came_of == [(b"12", 2)]
    bench.comes()
    assert bench.process.puts == []
    bench.take()
    bench.taken(0)
    assert member.came_of[-1] == (b"", 2)


def test_what_came_meanwhile_goes_to_the_process_when_that_comes() -> None:
    bench = Bench()
    member = bench.offline()
    bench.put(1)
    bench.take()
    bench.put(2, 3)
    bench.comes()
    assert bench.process.puts == [2, 3]
    bench.put(4)
    assert bench.process.puts == [2, 3, 4]
    bench.taken(4)
    assert member.came_of == [(b"1", 1), (b"", 4)]


def test_a_second_offline_time_knows_nothing_of_the_first_one() -> None:
    """Numbers begin anew. By what is left of the first time, frames that the process has not given
    back would count as seen, and the next ones would overtake them."""
    bench = Bench()
    bench.offline()
    bench.put(1, 2, 3)
    bench.take()
    bench.buffer.drop(CLIENT)
    bench.put(4)
    member = bench.offline()
    bench.comes()
    assert bench.process.puts == [], "who was offline no more has nothing there"
    bench.put(1)
    assert bench.process.puts == [1]
    bench.taken(1)
    assert member.came_of == [(b"", 1)]


def test_a_client_that_is_dropped_leaves_no_frame_for_the_process() -> None:
    bench = Bench()
    bench.offline()
    bench.put(1)
    bench.buffer.drop(CLIENT)
    bench.offline()
    bench.comes()
    assert bench.process.puts == []


class Slow:
    """A client's connection in a pool: what it holds, and how often it was looked at."""

    number, client_name, peer = CLIENT, "slow", "here"
    is_open, is_leaving = True, False
    policy = Policy(1.0, None)

    def __init__(self) -> None:
        self.held = ClientHolding(2_000)
        self.is_offline = False
        self.looks = 0

    def holding(self) -> ClientHolding:
        return self.held

    @property
    def unsent_bytes(self) -> int:
        return self.held.unsent_bytes

    def go_offline(self, buffer: BufferControl) -> None:
        self.is_offline = True

    def look(self) -> None:
        self.looks += 1


def test_who_is_offline_is_looked_at_until_it_is_online_again() -> None:
    """Also while nothing waits for it: what brings it back is that somebody looks."""
    loop = SimpleNamespace(time=lambda: 0.0)
    runtime: Any = SimpleNamespace(loop=loop, is_resting=False, report=lambda *_, **__: None)
    pool = ClientPool(runtime, "clients", Limits(1_000, 10_000, 1.0), Path("none"), cast(Any, None))
    pool.buffer.wake = lambda: None  # type: ignore[method-assign]
    slow: Any = Slow()
    pool.weigh(slow)
    assert slow.is_offline
    slow.held = ClientHolding(1_001)
    assert not pool.has_room(slow), "it would go offline again"
    slow.held = ClientHolding(0)
    assert pool.has_room(slow)
    for count in (1, 2, 3):
        pool.check(0)
        assert slow.looks == count and not pool.is_idle
    assert [each["client"] for each in pool.status()["offline_clients"]] == ["slow"]
    slow.is_offline = False
    pool.came_back(slow)
    pool.check(0)
    assert pool.is_idle and pool.status()["behind"] == 0


def test_who_has_lost_what_waited_for_it_counts_no_more() -> None:
    """It ends in a later turn: until then a limit that others pass must not meet it."""
    due: list[Any] = []
    loop = SimpleNamespace(time=lambda: 0.0, call_soon=lambda *what: due.append(what))
    runtime: Any = SimpleNamespace(loop=loop, is_resting=False, report=lambda *_, **__: None)
    pool = ClientPool(runtime, "clients", Limits(1_000, 10_000, 1.0), Path("none"), cast(Any, None))
    pool.buffer.wake = lambda: None  # type: ignore[method-assign]
    lost, other = cast(Any, Slow()), cast(Any, Slow())
    lost.end, other.number = (lambda *_: None), CLIENT + 1
    pool.weigh(lost)
    lost.held = ClientHolding(0, 9_000)
    pool.check(0)
    pool.buffer._lost_client(lost, "killed")
    assert len(due) == 1 and pool.disconnected == 1
    assert pool.pool.clients == [] and pool.pool.disk_bytes == 0
    other.held = ClientHolding(500, 5_000)
    pool.weigh(other)
    pool.check(0)
    assert pool.disconnected == 1, "the other one is within the limit"
    pool.buffer._lost_client(lost, "once more")
    assert len(due) == 1
