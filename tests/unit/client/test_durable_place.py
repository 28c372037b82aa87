"""Where a durable subscription begins, and what its place holds."""

from __future__ import annotations

import pytest

from raylay.services.client.named_readers import ReaderPlace
from raylay.services.client.subscriptions.durable_place import (
    DurablePlace,
    DurableTerms,
    start_of,
)
from raylay.services.errors import ConnectionLost, LocalProtocolError
from raylay.services.messages.bookmarks import EPOCH, NOW
from raylay.services.messages.ranges import PublisherRanges

pytestmark = pytest.mark.covers("Clients and protocol", "durable subscriptions with a name")

TERMS = DurableTerms("billing", "orders", "json", "/n > 1", 60)


def held(*ranges: tuple[int, int]) -> PublisherRanges:
    found = PublisherRanges()
    for first, last in ranges:
        found.add(7, first, last)
    return found


def place(*ranges: tuple[int, int], topic: str = "orders") -> ReaderPlace:
    return ReaderPlace(topic, "json", "/n > 1", held(*ranges))


def test_what_the_instances_say_is_added_up() -> None:
    found = [None, place((1, 3)), place((2, 5), (9, 9))]
    assert start_of(TERMS, NOW, found, ["B"]) == (EPOCH, held((1, 5), (9, 9)))


def test_a_known_place_goes_on_however_little_it_is() -> None:
    assert start_of(TERMS, NOW, [None, place()], []) == (EPOCH, held())


def test_an_unknown_name_begins_at_its_bookmark_or_with_the_first_message() -> None:
    assert start_of(TERMS, "", [None], ["B"]) == (EPOCH, held())
    assert start_of(TERMS, EPOCH, [None], ["B"]) == (EPOCH, held())
    assert start_of(TERMS, NOW, [None, None], []) == (NOW, held())


def test_an_unknown_name_skips_nothing_while_an_instance_cannot_be_asked() -> None:
    with pytest.raises(ConnectionLost, match=r"'billing': no instance .* and B, C cannot be asked"):
        start_of(TERMS, NOW, [None], ["B", "C"])


def test_a_name_that_stands_for_something_else_is_refused() -> None:
    of = "trades of type json with the filter /n > 1"
    with pytest.raises(LocalProtocolError, match=f"'billing' is of {of}, and not of orders") as no:
        start_of(TERMS, "", [place(), place(topic="trades")], [])
    assert "raylay reader drop billing" in str(no.value)


@pytest.mark.parametrize("name", ["", "a\n", 7])
def test_a_name_is_a_text_that_can_be_shown(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="printable"):
        TERMS._replace(name=name).check("")


def test_a_range_with_an_end_is_no_durable_subscription() -> None:
    TERMS.check("")
    TERMS.check(NOW)
    with pytest.raises(LocalProtocolError, match="has an end"):
        TERMS.check("[0:7|9|)")


def test_the_place_grows_and_says_when() -> None:
    made = DurablePlace(TERMS, held((1, 2)))
    before = made.version
    made.seen("s", 7, 2, 2)
    assert made.version == before, "nothing new"
    made.seen("s", 7, 3, 3)
    made.persisted("s", held((5, 6)))
    made.flush()
    assert made.version == before + 2
    loaded = made.load("s")
    loaded.add(7, 100, 100)
    assert made.have == held((1, 3), (5, 6))
    made.discard("s")
    assert made.have == held() and made.version == before + 3
