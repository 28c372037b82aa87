"""The acks of a link: behind the answer to its logon, held back for a time, and within limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.protocol.frames import FrameReader
from raylay.services.protocol.link.replication import read_ack
from raylay.services.replication.effects import AckUpstream
from raylay.services.server.links import ack_sender
from raylay.services.server.links.ack_sender import AckSender

pytestmark = pytest.mark.covers(
    "Configuration", "what a peer may say is bounded by what it can know"
)


class Connection:
    """A link's connection that tells what it was sent."""

    def __init__(self) -> None:
        self.timers: list[Any] = []
        self.loop: Any = SimpleNamespace(call_later=lambda _, call: self.timers.append(call))
        self.unsent_bytes = 0
        self.sent: list[tuple[int, int]] = []
        self.why = ""

    def send(self, frame: bytes) -> None:
        (whole,) = FrameReader(1 << 30).feed(frame)
        number, held, persisted, _ = read_ack(*whole)
        parts = held, *persisted.values()
        self.sent.append((number, sum(len(each) for part in parts for each in part.values())))

    def abort(self, why: str) -> None:
        self.why = why


def ack(number: int, ranges: int) -> AckUpstream:
    return AckUpstream(
        1, number, persisted={7: {5: [(2 * n, 2 * n) for n in range(1, ranges + 1)]}}
    )


def test_acks_are_behind_the_answer_to_the_logon() -> None:
    connection = Connection()
    acks = AckSender(connection)
    acks.answer()
    acks.acknowledge(ack(1, 1))
    acks.acknowledge(ack(2, 1))
    assert acks.is_answering and connection.sent == []
    acks.answered(10)
    acks.acknowledge(ack(3, 1))
    assert not acks.is_answering and connection.sent == [(1, 1), (2, 1), (3, 1)]


def test_what_is_held_back_goes_out_when_it_has_become_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute of it was gigabytes, where a link asks again and again."""
    monkeypatch.setattr(ack_sender, "RANGES_IN_ACK_MAX", 10)
    connection = Connection()
    acks = AckSender(connection)
    acks.conflation_s = 60.0
    for number in (1, 2):
        acks.acknowledge(ack(number, 5))
    assert connection.sent == [] and len(connection.timers) == 1
    acks.acknowledge(ack(3, 5))
    assert connection.sent == [(3, 15)]
    acks.acknowledge(ack(4, 1))
    assert connection.sent == [(3, 15)] and len(connection.timers) == 2
    for timer in connection.timers:
        timer()
    assert connection.sent == [(3, 15), (4, 1)]


def test_a_link_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_sender, "UNREAD_BYTES_MAX", 100)
    connection = Connection()
    acks = AckSender(connection)
    acks.answer()
    acks.answered(1_000)
    connection.unsent_bytes = 1_100
    acks.acknowledge(ack(1, 1))
    assert connection.sent == [(1, 1)] and not connection.why
    connection.unsent_bytes = 1_101
    acks.acknowledge(ack(2, 1))
    assert connection.sent == [(1, 1)] and "does not read" in connection.why
