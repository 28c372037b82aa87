"""Effects of one step, in order."""

from __future__ import annotations

from raylay.services.replication.effects import BecameReady, EventReport, SafetyChanged
from raylay.services.replication.instance.effect_list import EffectList


def test_effects_come_out_in_order_and_once() -> None:
    out = EffectList()
    at = len(out)
    out.emit(SafetyChanged())
    out.report("downgraded", destination="b")
    out.insert(at, BecameReady())
    assert out.take() == [
        BecameReady(),
        SafetyChanged(),
        EventReport("downgraded", {"destination": "b"}),
    ]
    assert len(out) == 0 and out.take() == []


def test_what_was_taken_does_not_change_any_more() -> None:
    out = EffectList()
    emit = out.emit
    emit(SafetyChanged())
    taken = out.take()
    emit(BecameReady())
    assert taken == [SafetyChanged()] and out.take() == [BecameReady()]


def test_what_is_forgotten_is_not_performed() -> None:
    out = EffectList()
    out.emit(SafetyChanged())
    out.forget()
    assert out.take() == []
