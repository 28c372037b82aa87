"""The forms of a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.rates import Rate, parse_rate

pytestmark = pytest.mark.covers("Clients and protocol", "`rate` in messages")


@pytest.mark.parametrize(
    ("rate", "max_gap", "wanted"),
    [
        ("500", "", Rate("messages", 500)),
        (".5", "", Rate("messages", 0.5)),
        ("500KB", "", Rate("bytes", 500_000)),
        ("1.5mb", "", Rate("bytes", 1_500_000)),
        ("64b", "", Rate("bytes", 64)),
        ("2X", "", Rate("speed", 2)),
        (".5x", "10s", Rate("speed", 0.5, 10_000_000)),
        ("1X", "250ms", Rate("speed", 1, 250_000)),
        ("1X", "2m", Rate("speed", 1, 120_000_000)),
    ],
)
def test_forms_that_are_understood(rate: str, max_gap: str, wanted: Rate) -> None:
    assert parse_rate(rate, max_gap) == wanted


@pytest.mark.parametrize(
    ("rate", "max_gap"),
    [
        ("", ""),
        ("0", ""),
        ("0X", ""),
        ("-5", ""),
        ("fast", ""),
        ("5KBX", ""),
        ("1" * 400, ""),
        ("nan", ""),
        ("2X", "soon"),
        ("2X", "10"),
        ("2X", "999d"),
        ("500", "10s"),
        ("500KB", "10s"),
    ],
)
def test_anything_else_is_refused(rate: str, max_gap: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_rate(rate, max_gap)
    assert caught.value.reason == "bad_command"
    assert "rate" in str(caught.value)


@given(st.text(max_size=12), st.text(max_size=8))
def test_any_text_is_a_rate_or_refused(rate: str, max_gap: str) -> None:
    try:
        assert parse_rate(rate, max_gap).per_s > 0
    except RemoteProtocolError as error:
        assert error.reason == "bad_command"
