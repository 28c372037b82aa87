"""services/admin/fabric_words.py: durations, times and lists for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.admin.fabric_words import clock, duration, messages, names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (60, "1 m"),
        (130, "2 m 10 s"),
        (3 * 3600, "3 h"),
        (3 * 3600 + 61, "3 h 1 m"),
        (2 * 86_400 + 3 * 3600, "2 d 3 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e15, allow_nan=False))
def test_every_duration_has_words(seconds: float) -> None:
    assert duration(seconds)


def test_a_time_is_that_of_the_day_in_utc() -> None:
    assert clock(1_000_000) == "00:00:01 UTC"
    assert clock(2**63 - 1) == "an impossible time"


@pytest.mark.parametrize(
    ("every", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (list("abcde"), "a, b, c and 2 more"),
    ],
)
def test_names_are_listed(every: list[str], text: str) -> None:
    assert names(every) == text


def test_one_message_is_one() -> None:
    assert [messages(each) for each in (0, 1, 1_204)] == [
        "0 messages",
        "1 message",
        "1,204 messages",
    ]
