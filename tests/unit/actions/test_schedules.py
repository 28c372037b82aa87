"""Schedules of actions (services/actions/schedules.py)."""

from __future__ import annotations

import pytest

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.actions.schedules import LOOK_US, ScheduledActions

HOUR_US = 3_600_000_000
NOON_US = 1_700_049_600_000_000
"""2023-11-15 12:00 UTC, a Wednesday."""


def scheduled(*every: str) -> ActionDefinition:
    modules = tuple(ActionModule("on", "schedule", (("Every", each),)) for each in every)
    return ActionDefinition("scheduled", (*modules, ActionModule("on", "startup")), ())


@pytest.mark.covers("Actions", "On a Schedule")
def test_an_interval_is_due_after_it_and_then_again() -> None:
    made = ScheduledActions((scheduled(), scheduled("30s")))
    assert made.next_due_us() == 0
    assert made.due(1_000, NOON_US) == []
    assert made.next_due_us() == 30_001_000
    assert made.due(30_000_999, NOON_US) == []
    assert made.next_due_us() == 30_001_000
    assert made.due(30_001_000, NOON_US) == [1]
    assert made.next_due_us() == 60_001_000


def test_an_action_with_several_schedules_is_due_once() -> None:
    made = ScheduledActions((scheduled("30s", "30s"),))
    made.due(0, NOON_US)
    assert made.due(30_000_000, NOON_US) == [0]


@pytest.mark.covers("Actions", "On a Schedule")
def test_a_time_of_the_day_is_looked_at_again_each_minute() -> None:
    made = ScheduledActions((scheduled("12:00:30Z"), scheduled("Wednesday at 13:00Z")))
    assert made.due(0, NOON_US) == []
    assert made.next_due_us() == 30_000_000
    assert made.due(30_000_000, NOON_US + 30_000_000) == [0]
    assert made.next_due_us() == 30_000_000 + LOOK_US
    assert made.due(HOUR_US, NOON_US + HOUR_US) == [1]


def test_without_schedules_nothing_is_due() -> None:
    made = ScheduledActions((scheduled(),))
    assert made.due(0, NOON_US) == []
    assert made.next_due_us() is None
