"""Who does not read is told so, whatever it was sent."""

from __future__ import annotations

import pytest

from raylay.services.subscriptions.overflow import Sent, overflow


def test_as_many_as_are_allowed_may_wait() -> None:
    assert overflow(1_000, 1_000, "p", Sent.LIVE) == ""
    assert overflow(0, 0, "p", Sent.LIVE) == ""


@pytest.mark.parametrize("sent", Sent)
def test_one_more_ends_the_client_with_the_limit_and_its_name(sent: Sent) -> None:
    why = overflow(1_001, 1_000, "desk-7", sent)
    assert why.startswith("more than 1000 bytes ") and "desk-7" in why and "not read" in why


def test_who_has_not_logged_on_has_no_name() -> None:
    assert overflow(9, 1, "", Sent.ANSWERS) == (
        "more than 1 bytes of answers wait for a client, which asks and does not read them"
    )
