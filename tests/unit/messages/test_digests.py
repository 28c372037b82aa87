"""services/messages/digests.py: what decides that two things are the same."""

from __future__ import annotations

import pytest

from raylay.services.client.arguments import remembered_as
from raylay.services.messages.digests import FILTER, SOW_BODY, digest, summand, summed

pytestmark = pytest.mark.covers("Configuration", "digests that decide are BLAKE2b")


def test_golden_digests() -> None:
    # What is written to disks and told to peers: they must never change.
    assert digest(b"x", SOW_BODY).hex() == "7728b8a80693e8e5ca515b5562b56387"
    assert summed(summand(b"x", SOW_BODY)).hex()[:32] == "654f97fd1a99e3d5341cd9a57a96a8c4"
    assert (
        remembered_as("orders", "json", "/a = 1") == "orders|json|2252b42fccf2d1e343f278790314faea"
    )


def test_each_purpose_has_digests_of_its_own() -> None:
    assert digest(b"x", SOW_BODY) != digest(b"x", FILTER)


def test_a_sum_does_not_depend_on_the_order_and_gives_back_what_is_taken_away() -> None:
    one, two = (summand(each, SOW_BODY) for each in (b"1", b"2"))
    assert summed(one + two) == summed(two + one) != summed(one)
    assert summed(one + two - two) == summed(one)
    assert summed(-one + one) == summed(0) == bytes(64)
