"""services/drills/lease.py and those who use it: one that is silent lets nobody else's lapse."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support.waiting import wait_until

from raylay.services.drills import lease as leases
from raylay.services.drills.faults import InternalFault
from raylay.services.drills.lease import FaultLease
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError

pytestmark = pytest.mark.covers(
    "Drills", "one instance that is silent lets nobody else's fault lapse"
)


class Instances:
    """Places and fabric in one. Those in `silent` answer nothing: a question to one of them waits
    until its time is over."""

    def __init__(self) -> None:
        self.fabric = self
        self.silent: set[str] = set()
        self.freed = threading.Event()
        self.asked: list[tuple[str, float]] = []
        self.done: list[tuple[str, float]] = []

    def running(self, name: str) -> dict[str, Any]:
        return {"pid": 1}

    def control(self, name: str, call: str, *, timeout_s: float, seconds: float, **_: Any) -> None:
        self.asked.append((name, seconds))
        if name in self.silent:
            self.freed.wait(timeout_s)
            raise FabricError(f"{name} did not answer")
        self.done.append((name, seconds))

    def count(self, name: str) -> int:
        return sum(each == name for each, _ in self.done)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    monkeypatch.setattr(leases, "RETRY_S", 0.01)


STEP = FaultStep.model_validate({"fault": "drop", "for": "20s"})
HIT = FaultHit("x", ("A", "B"), (("A", "B", True), ("B", "A", False)))


def test_one_that_is_silent_lets_nobody_else_s_lease_lapse() -> None:
    places = Instances()
    inside = InternalFault(places)  # type: ignore[arg-type]
    inside.inject(STEP, HIT)
    places.silent.add("B")
    asked = len(places.asked)
    wait_until(lambda: ("B", 5.0) in places.asked[asked:])
    # Its question goes on all that time.
    before = places.count("A")
    inside.renew(STEP, HIT, 15.0)
    wait_until(lambda: places.count("A") > before + 10)
    assert places.asked.count(("B", 5.0)) <= 5
    places.freed.set()
    inside.heal(STEP, HIT)
    assert places.done[-1] == ("A", 0.0)
    assert places.asked[-1][1] == 0.0 and ("B", 0.0) in places.asked


def test_one_that_is_silent_at_the_beginning_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "PATIENT_ASK_S", 0.05)
    places = Instances()
    places.silent.add("B")
    inside = InternalFault(places)  # type: ignore[arg-type]

    def answer_late() -> None:
        wait_until(lambda: places.count("A") > 3)  # broken there meanwhile
        places.silent.clear()

    late = threading.Thread(target=answer_late)
    late.start()
    inside.inject(STEP, HIT)
    late.join()
    assert places.count("B")
    inside.heal(STEP, HIT)
    monkeypatch.setattr(leases, "BEGIN_S_MAX", 0.1)
    places.silent.add("B")
    with pytest.raises(FabricError, match="B did not answer"):
        inside.inject(STEP, HIT)
    inside.heal(STEP, HIT)
    assert places.done[-1] == ("A", 0.0)


def test_a_lease_ends_with_its_step() -> None:
    asked: list[float] = []
    lease = FaultLease("line of A", lambda seconds, _: asked.append(seconds), 0.5)
    lease.start()
    lease.await_begun()
    lease.last(0.1)
    assert lease.await_end() == []
    assert asked[0] == 0.5 and asked[-1] == 0.0
    # As long as at the beginning, or what is left: its thread may not have run meanwhile.
    assert all(seconds == 0.5 or 0 < seconds <= 0.1 for seconds in asked[:-1])


def test_a_long_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_S", 0.1)
    places = Instances()
    inside = InternalFault(places)  # type: ignore[arg-type]
    inside.inject(STEP, HIT)
    places.silent.add("B")
    places.freed.set()
    begun_s = time.monotonic()
    wait_until(lambda: time.monotonic() > begun_s + leases.LEASE_S)
    asked = len(places.asked)
    # Of two that begin behind that the first is over, and found out how long the silence is.
    wait_until(lambda: [name for name, _ in places.asked[asked:]].count("B") > 1)
    places.silent.clear()
    notes = inside.heal(STEP, HIT)
    assert any(note.startswith("line of B to A: no answer for ") for note in notes)


def test_a_mistake_in_a_request_is_told_and_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease's thread ended with it, and the step waited for ever."""
    monkeypatch.setattr(leases, "BEGIN_S_MAX", 0.05)

    def ask(seconds: float, timeout_s: float) -> None:
        raise TypeError("no such argument")

    lease = FaultLease("line of A", ask, 20.0)
    lease.start()
    with pytest.raises(FabricError, match=r"line of A.*no such argument"):
        lease.await_begun()
    lease.end()
    lease.await_end()
