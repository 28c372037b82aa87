"""services/net/framed.py: when what is collected is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from raylay.services.net.framed import FramedConnection, WriteQueue
from raylay.services.protocol.frames import FrameReader

pytestmark = pytest.mark.covers("Journal", "what is prepared while the disk writes a commit leaves")


class Loop:
    """Keeps what is to be called in a turn to come."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, work: Callable[[], None]) -> None:
        self.due.append(work)


class Written:
    """A connection that counts its writes."""

    urgency = 1

    def __init__(self) -> None:
        self.writes = 0

    def write_collected(self) -> None:
        self.writes += 1


def made() -> tuple[Loop, WriteQueue, Written, FramedConnection]:
    loop, written = Loop(), Written()
    return loop, WriteQueue(cast(Any, loop)), written, cast(FramedConnection, written)


def test_what_is_added_is_written_once_at_the_end_of_the_turn() -> None:
    loop, outbox, written, connection = made()
    outbox.add(connection)
    outbox.add(cast(FramedConnection, Written()))
    assert not written.writes and len(loop.due) == 1
    loop.due.pop()()
    assert written.writes == 1


def test_who_is_about_to_flush_costs_no_turn_of_the_loop() -> None:
    loop, outbox, written, connection = made()
    outbox.await_flush()
    outbox.add(connection)
    assert not loop.due and not written.writes
    outbox.flush()
    assert written.writes == 1
    # Nobody is about to flush any more.
    outbox.add(connection)
    assert len(loop.due) == 1


class Socket:
    """The transport of a connection: what is written, and whether it was closed."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ends: list[str] = []

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> None: ...

    def is_closing(self) -> bool:
        return bool(self.ends)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written += parts

    def close(self) -> None:
        self.ends.append("closed")

    def abort(self) -> None:
        self.ends.append("aborted")


def connected() -> tuple[Loop, WriteQueue, Socket, FramedConnection]:
    loop: Any = Loop()
    loop.time = lambda: 0.0
    loop.call_later = lambda *_: None
    outbox, transport = WriteQueue(loop), Socket()
    connection = FramedConnection(outbox, loop, FrameReader())
    connection.connection_made(cast(Any, transport))
    return loop, outbox, transport, connection


def test_what_is_held_is_written_by_nobody_until_it_is_released() -> None:
    loop, outbox, transport, connection = connected()
    connection.send(b"before")
    outbox.hold()
    connection.send(b"held")
    outbox.flush()
    connection.write_collected()
    loop.due.pop()()
    assert transport.written == []
    outbox.release()
    assert transport.written == [b"before", b"held"]
    connection.send(b"behind")
    assert len(loop.due) == 1, "it is written in a turn to come, as ever"


def test_who_is_closed_while_all_is_held_gets_what_was_held_first() -> None:
    _, outbox, transport, connection = connected()
    outbox.hold()
    connection.send(b"held")
    connection.close("it is over")
    assert connection.is_open and not transport.written and not transport.ends
    outbox.release()
    assert transport.written == [b"held"] and transport.ends == ["closed"]
    assert not connection.is_open


def test_what_is_dropped_is_never_written() -> None:
    _, outbox, transport, connection = connected()
    outbox.hold()
    connection.send(b"held")
    outbox.drop()
    connection.send(b"more")
    outbox.flush()
    connection.close("the instance stops")
    assert transport.written == [] and transport.ends == ["aborted"]


def test_a_flush_of_nothing_ends_the_waiting_for_it() -> None:
    loop, outbox, _, connection = made()
    outbox.await_flush()
    outbox.flush()
    outbox.add(connection)
    assert len(loop.due) == 1
