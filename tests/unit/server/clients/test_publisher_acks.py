"""services/server/clients/publisher_acks.py: what a client hears of its publishes, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raylay.services.capacity import outstanding
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.frames import FrameReader
from raylay.services.replication.effects import AckClient, RefuseClient
from raylay.services.server.clients import publisher_acks
from raylay.services.server.clients.publisher_acks import PROBED_BATCHES, PublisherAcks


class Heard:
    """A client of which it is known what it was sent, and a clock that runs by hand."""

    def __init__(self, conflation_s: float = 0.0) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []
        self._sent = bytearray()
        self.acks = PublisherAcks(
            self._sent.extend,
            lambda delay_s, call: self.later.append((delay_s, call)),
            NativeCodec(),
        )
        self.acks.conflation_s = conflation_s

    def take(self) -> list[dict[str, Any]]:
        sent, self._sent[:] = bytes(self._sent), b""
        return [header for header, _ in FrameReader().feed(sent)]

    def sequences(self) -> list[int]:
        return [header["s"] for header in self.take()]


def test_only_who_asked_for_persisted_acks_hears_them() -> None:
    heard = Heard()
    heard.acks.persisted(AckClient(1, 5))
    assert not heard.take()
    heard.acks.wants_persisted = True
    heard.acks.persisted(AckClient(1, 6))
    assert heard.sequences() == [6]


def test_acks_that_may_wait_go_out_as_one_behind_the_time_of_the_first() -> None:
    heard = Heard(conflation_s=0.5)
    heard.acks.wants_persisted = True
    for sequence in (1, 2, 3):
        heard.acks.persisted(AckClient(1, sequence, unjournaled=1))
    ((delay_s, due),) = heard.later
    assert delay_s == 0.5 and not heard.take()
    due()
    (ack,) = heard.take()
    assert (ack["s"], ack["unjournaled"]) == (3, 3)


def test_a_failure_is_told_at_once_behind_what_waited() -> None:
    heard = Heard(conflation_s=0.5)
    heard.acks.wants_persisted = True
    heard.acks.persisted(AckClient(1, 1))
    heard.acks.persisted(AckClient(1, 2, "storage_full", "the disk is full"))
    waited, failed = heard.take()
    assert (waited["s"], waited["status"]) == (1, "success")
    assert (failed["s"], failed["reason"]) == (2, "storage_full")


def test_each_that_is_refused_hears_it_and_the_first_why() -> None:
    heard = Heard()
    heard.acks.refused(RefuseClient(1, [(3, 4), (9, 9)], "not_journaled", "no such topic"))
    found = heard.take()
    assert [(ack["s"], ack["reason"], ack.get("text", "")) for ack in found] == [
        (3, "not_journaled", "no such topic"),
        (4, "not_journaled", ""),
        (9, "not_journaled", ""),
    ]


def test_a_flush_is_answered_behind_the_acks_of_all_that_came_before_it() -> None:
    heard = Heard(conflation_s=0.5)
    heard.acks.wants_persisted = True
    named, unnamed = heard.acks.unnumbered("mine"), heard.acks.unnumbered("")
    assert named == "mine" != unnamed
    assert heard.acks.flush(7, "f")
    assert heard.acks.flush(0, "g")
    heard.acks.persisted(AckClient(1, 7))
    heard.acks.persisted(AckClient(1, 0, command_id=named))
    assert [ack["cid"] for ack in heard.take()] == ["mine"], "one without a sequence is left"
    heard.acks.persisted(AckClient(1, 0, command_id=unnamed))
    assert [ack.get("cid", ack.get("s")) for ack in heard.take()] == [7, "f", "g"]


def test_a_flush_that_waits_for_nothing_is_answered_at_once_and_too_many_are_not_taken(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(publisher_acks, "FLUSHES_MAX", 2)
    heard = Heard()
    assert heard.acks.flush(0, "now")
    assert [ack["cid"] for ack in heard.take()] == ["now"]
    assert [heard.acks.flush(1, str(number)) for number in range(3)] == [True, True, False]


def test_a_flush_waits_for_no_publish_that_is_refused() -> None:
    heard = Heard()
    for number in (1, 2):
        heard.acks.unnumbered("")
        heard.acks.flush(0, f"f{number}")
    heard.acks.unnumbered_refused()
    assert [each["cid"] for each in heard.take()] == ["f1"]
    heard.acks.persisted(AckClient(1, 1, command_id=heard_id(2)))
    assert [each["cid"] for each in heard.take()] == ["f2"]


def heard_id(number: int) -> str:
    """As the server makes one up for who asked for no ack."""
    return f"\0{number}"


class Slowed(Heard):
    """A client of which it is known when it is read."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.said: list[str] = []
        self.acks = PublisherAcks(
            lambda frame: None,
            lambda delay_s, call: None,
            NativeCodec(),
            lambda: self.said.append("slow"),
            lambda: self.said.append("hurry"),
            most,
        )


@pytest.mark.covers("Clients and protocol", "outstanding publishes are limited")
def test_above_its_limit_it_is_slowed_until_half_of_them_are_answered() -> None:
    slowed = Slowed(10)
    acks = slowed.acks
    acks.taken(100, 10)
    assert not slowed.said
    acks.taken(101, 1)
    acks.taken(120, 4)
    acks.unnumbered("")
    assert slowed.said == ["slow"]
    acks.persisted(AckClient(1, 99))
    acks.persisted(AckClient(1, 100, reason="sequence_conflict"))
    assert slowed.said == ["slow"], "6 are left, and may be 5"
    acks.persisted(AckClient(1, 101))
    assert slowed.said == ["slow", "hurry"] and len(acks.outstanding) == 5
    acks.persisted(AckClient(1, 120))
    acks.persisted(AckClient(1, 1, command_id="\0001"))
    assert not acks.outstanding


def test_of_those_without_a_sequence_there_is_always_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outstanding, "UNNUMBERED_MAX", 4)
    slowed = Slowed(None)
    assert not slowed.acks.counts
    for _ in range(5):
        slowed.acks.unnumbered("")
    assert slowed.said == ["slow"]
    slowed.acks.unnumbered_refused()
    for sequence in (1, 2):
        assert slowed.said == ["slow"]
        slowed.acks.persisted(AckClient(1, sequence, command_id="c"))
    assert slowed.said == ["slow", "hurry"]


def test_the_time_to_the_ack_of_some_batches_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = iter((1_000, 9_000, 20_000, 50_000))
    monkeypatch.setattr(publisher_acks.time, "perf_counter_ns", lambda: next(now_ns))
    waited: list[int] = []
    acks = PublisherAcks(lambda _: None, lambda *_: None, NativeCodec(), waited=waited.append)
    for upto in range(1, PROBED_BATCHES + 3):
        acks.batch(upto)
    acks.persisted(AckClient(1, PROBED_BATCHES - 1))
    assert waited == [], "the batch that is timed is not acknowledged yet"
    acks.persisted(AckClient(1, PROBED_BATCHES + 1))
    assert waited == [8_000]
    for upto in range(PROBED_BATCHES + 3, 2 * PROBED_BATCHES + 1):
        acks.batch(upto)
    acks.persisted(AckClient(1, 2 * PROBED_BATCHES))
    assert waited == [8_000, 30_000]
