"""Placements: what is known of moved instances only grows, whoever tells whom in which order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.replication.membership.placement import (
    NAMES_MAX,
    InstancePlacement,
    Placements,
    aimed,
    from_wire,
    renewed,
    retired_text,
    to_wire,
)

pytestmark = pytest.mark.covers("Moved instances", "a lower generation is retired for good")

FIRST = InstancePlacement(1, "b:1", "b:2")
SECOND = InstancePlacement(2, "c:1", "c:2")


def test_what_never_moved_is_of_generation_0_and_not_retired() -> None:
    known = Placements()
    assert known.generation("A") == 0 and known.get("A") is None
    assert not known.is_retired("A", 0)
    assert known.learn({"A": InstancePlacement(0, "a:1", "a:2")}) == {}, "there is nothing to know"


def test_a_lower_generation_is_retired_for_good() -> None:
    known = Placements()
    assert known.learn({"A": FIRST}) == {"A": FIRST}
    assert known.is_retired("A", 0) and not known.is_retired("A", 1)
    assert known.learn({"A": SECOND}) == {"A": SECOND}
    assert known.is_retired("A", 1) and not known.is_retired("A", 2)
    assert known.learn({"A": FIRST}) == {}, "what is known never falls"
    assert known.get("A") == SECOND
    assert known.news({"A": SECOND, "B": FIRST}) == {"B": FIRST}


def test_of_one_generation_the_address_counts_that_was_taken_last() -> None:
    first, then = InstancePlacement(0, "z:1", "z:2", 5), InstancePlacement(0, "b:1", "b:2", 7)
    known = Placements()
    assert known.learn({"A": first}) == {"A": first}
    assert known.learn({"A": then}) == {"A": then}
    assert known.learn({"A": first}) == {}
    assert not known.is_retired("A", 0), "it is the same incarnation"
    assert known.learn({"A": FIRST}) == {"A": FIRST}, "a move counts before any address"
    assert known.learn({"A": then}) == {}


def test_what_an_instance_says_of_itself_counts_before_what_is_known_of_it() -> None:
    here = InstancePlacement(1, "c:1", "c:2")
    assert renewed(None, here, 1_000) == InstancePlacement(1, "c:1", "c:2", 1_000)
    assert renewed(FIRST, here, 1_000) == InstancePlacement(1, "c:1", "c:2", 1_000)
    before = InstancePlacement(1, "c:1", "c:2", 900)
    assert renewed(before, here, 1_000) == before, "it is known already"
    ahead = InstancePlacement(1, "x:1", "x:2", 5_000)
    assert renewed(ahead, here, 1_000).order > ahead.order, "whatever its clock says"


told = st.dictionaries(
    st.sampled_from("ABC"),
    st.builds(
        InstancePlacement,
        st.integers(1, 4),
        st.sampled_from(("", "x:1", "y:1")),
        st.just(""),
        st.integers(0, 2),
    ),
)


@given(st.lists(told, max_size=4))
def test_all_who_tell_one_another_end_with_the_same(
    tellings: list[dict[str, InstancePlacement]],
) -> None:
    ends = []
    for order in permutations(tellings):
        known = Placements()
        for placements in order:
            known.learn(placements)
            known.learn(placements)
        ends.append(known)
    assert all(end == ends[0] for end in ends)


@given(told)
def test_wire(placements: dict[str, InstancePlacement]) -> None:
    assert from_wire(to_wire(placements)) == placements
    assert Placements(placements).to_wire() == to_wire(placements)


def test_the_wire_form_is_written_out() -> None:
    assert to_wire({"B": SECOND, "A": FIRST}) == [["A", 1, "b:1", "b:2"], ["B", 2, "c:1", "c:2"]]
    later = InstancePlacement(0, "b:1", "b:2", 7)
    assert to_wire({"A": later}) == [["A", 0, "b:1", "b:2", 7]]
    assert from_wire(None) == {}
    assert from_wire([["A", 0, "b:1", "b:2", 7, "of a later version"]]) == {"A": later}


@pytest.mark.parametrize(
    "value",
    [
        {},
        "A",
        [["A", 1, "b:1"]],
        [["", 1, "b:1", "b:2"]],
        [["A", 0, "b:1", "b:2"]],
        [["A", 0, "b:1", "b:2", 0]],
        [["A", -1, "b:1", "b:2", 1]],
        [["A", 1, "b:1", "b:2", -1]],
        [["A", 1, "b:1", "b:2", "now"]],
        [["A", 1 << 32, "b:1", "b:2"]],
        [["A", True, "b:1", "b:2"]],
        [["A", 1, None, "b:2"]],
        [["A", 1, "b" * 301, "b:2"]],
        [["A", 1, "b:1", "b:2"]] * (NAMES_MAX + 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_placement_is_refused(value: Any) -> None:
    with pytest.raises(RemoteProtocolError) as found:
        from_wire(value)
    assert found.value.reason == "bad_placements"


def test_addresses_follow_the_names() -> None:
    moved = {"B": "new:1", "Z": "z:1"}
    assert aimed(("A", "B"), ("a:1", "b:1"), moved) == ("a:1", "new:1")
    assert aimed((), ("a:1", "b:1"), moved) == ("a:1", "b:1"), "names are not known"
    assert aimed(("A", "B"), (), moved) == (), "it does not dial"
    assert aimed(("B",), ("b:1",), {"B": ""}) == ("b:1",), "its address is not known"


def test_who_is_retired_is_told_what_to_do() -> None:
    text = retired_text("A", FIRST)
    assert "A was moved and lives at b:1 as generation 1" in text
    assert "raylay journal salvage" in text
