"""To whom a client's messages were sent first."""

from __future__ import annotations

import pytest

from raylay.services.client.publishing.first_recipients import UNKNOWN, FirstRecipients


@pytest.mark.parametrize(
    ("sequence", "given"),
    [(1, UNKNOWN), (3, UNKNOWN), (4, "a"), (7, "a"), (8, "b"), (9, "b"), (10, None)],
)
def test_who_had_it_first_keeps_it(sequence: int, given: str | None) -> None:
    first = FirstRecipients()
    first.sent(3, UNKNOWN)
    first.sent(7, "a")
    first.sent(5, "c")  # Sent again: no news.
    first.sent(9, "b")
    assert first.of(sequence)[0] == given


def test_it_says_how_far_that_goes() -> None:
    first = FirstRecipients()
    first.sent(7, "a")
    first.sent(9, "b")
    assert [first.of(each)[1] for each in (1, 7, 8, 9)] == [7, 7, 9, 9]
    assert first.of(10)[1] > 1 << 63


def test_what_is_settled_is_forgotten() -> None:
    first = FirstRecipients()
    first.sent(7, "a")
    first.sent(9, "b")
    first.settled(6)
    assert first.of(7) == ("a", 7)
    first.settled(7)
    assert first.of(7) == ("b", 9)
