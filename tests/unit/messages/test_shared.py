"""Maps that share their values with their copies: no change shows in a copy, and what changed since
one is told whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import Route, WaiterTable

ROUTE = Route(5, b"t", b"json", (), "g", 0)
CHANGES = ("add", "remove", "update", "difference", "of", "copy", "copy of a copy")


def plain(sets: PublisherRanges) -> dict[int, list[tuple[int, int]]]:
    return {publisher: list(ranges) for publisher, ranges in sets.sets.items() if ranges}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(CHANGES), st.integers(0, 4), st.integers(0, 30), st.integers(0, 9)
        ),
        max_size=60,
    )
)
def test_each_copy_stays_as_it_was_made_and_what_changed_is_told(
    steps: list[tuple[str, int, int, int]],
) -> None:
    made = PublisherRanges()
    model: dict[int, set[int]] = {}
    copies: list[tuple[PublisherRanges, dict[int, list[tuple[int, int]]]]] = []
    for what, publisher, first, more in steps:
        numbers, ranges = set(range(first, first + more + 1)), [(first, first + more)]
        if what == "add":
            made.add_ranges(publisher, ranges)
        elif what == "update":
            made.update(PublisherRanges({publisher: SequenceSet(ranges)}))
        elif what == "of":
            made.of(publisher).add(first, first + more)
        elif what == "remove":
            made.remove_ranges(publisher, ranges)
        elif what == "difference":
            made.difference_update(PublisherRanges({publisher: SequenceSet(ranges)}))
        elif what == "copy":
            copies.append((made.copy(), plain(made)))
        elif copies:
            # Which of the two is changed from then on must not matter.
            other, was = copies.pop()
            copies.append((made, plain(made)))
            made = other
            model = {
                key: {n for a, b in value for n in range(a, b + 1)} for key, value in was.items()
            }
            continue
        if what in ("add", "update", "of"):
            model.setdefault(publisher, set()).update(numbers)
        elif what in ("remove", "difference"):
            model.get(publisher, set()).difference_update(numbers)
        for copied, was in copies:
            assert plain(copied) == was
    assert plain(made) == plain(
        PublisherRanges({key: SequenceSet((n, n) for n in value) for key, value in model.items()})
    )
    for copied, was in copies:
        told = set(made.changed_since(copied))
        now = plain(made)
        assert {key for key in now.keys() | was.keys() if now.get(key) != was.get(key)} <= told


def test_nothing_changed_is_nothing_told() -> None:
    made = PublisherRanges({number: SequenceSet([(1, 3)]) for number in range(100)})
    copied = made.copy()
    assert made.changed_since(copied) == []
    made.add(5, 9, 9)
    made.add(200, 1, 1)
    assert made.changed_since(copied) == [5, 200]
    made.remove_ranges(7, [(1, 3)])
    assert sorted(made.changed_since(copied)) == [5, 7, 200]
    made.add(7, 1, 3)
    assert 7 in made.changed_since(copied), "what went and came is another object"


def test_taking_out_what_a_copy_shares_takes_all_of_it() -> None:
    made = PublisherRanges({1: SequenceSet([(1, 3)]), 2: SequenceSet([(1, 1)])})
    copied = made.copy()
    copied.add(2, 2, 2)
    made.difference_update(copied)
    assert not made.sets and plain(copied) == {1: [(1, 3)], 2: [(1, 2)]}


def test_who_waits_is_copied_so_too() -> None:
    table = WaiterTable()
    table.assign(1, ROUTE, 7, [(1, 5)])
    copied = table.copy()

    def content(found: WaiterTable) -> list[Any]:
        return [(each.root, each.publisher, list(each.ranges)) for each in found]

    assert table.settle(1, 7, [(1, 2)]) == [(5, [(1, 2)])]
    table.assign(1, ROUTE._replace(sender=6), 7, [(8, 8)])
    assert content(copied) == [(1, 7, [(1, 5)])]
    assert copied.settle(1, 7, [(1, 5)]) == [(5, [(1, 5)])]
    assert content(copied) == [] and content(table) == [(1, 7, [(3, 5)]), (1, 7, [(8, 8)])]
