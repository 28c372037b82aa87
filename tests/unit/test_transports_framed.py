"""services/transports/framed.py: when what is collected is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from raylay.services.transports.framed import FramedConnection, Outbox


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


def made() -> tuple[Loop, Outbox, Written, FramedConnection]:
    loop, written = Loop(), Written()
    return loop, Outbox(cast(Any, loop)), written, cast(FramedConnection, written)


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


def test_a_flush_of_nothing_ends_the_waiting_for_it() -> None:
    loop, outbox, _, connection = made()
    outbox.await_flush()
    outbox.flush()
    outbox.add(connection)
    assert len(loop.due) == 1
