"""services/queues/transfer/ownership.py: whose the messages of a queue are."""

from __future__ import annotations

import itertools

import pytest

from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.transfer.ownership import (
    NAMES_KEPT_MAX,
    OWNERS_MAX,
    Ownership,
    OwnershipTable,
    is_better,
)

QUEUE = QueueDefinition("q", "json", underlying="orders")
A, B, OLD_B = 11, 21, 20
"""Incarnations."""


def owners(queue: QueueDefinition = QUEUE) -> OwnershipTable:
    """Of instance A, who knows B's."""
    return OwnershipTable(queue, "A", A, {B: "B"})


def test_the_higher_generation_counts_and_then_the_lower_name() -> None:
    low, high, tie = Ownership(1, "A"), Ownership(2, "Z"), Ownership(2, "B")
    assert is_better(high, low) and not is_better(low, high)
    assert is_better(tie, high) and not is_better(high, tie)
    assert not is_better(low, low)


def test_registers_come_to_the_same_in_whatever_order_they_are_read() -> None:
    every = [Ownership(1, "B"), Ownership(2, "C"), Ownership(2, "A"), Ownership(0, "D")]
    ends = set()
    for order in itertools.permutations(every):
        found = order[0]
        for each in order[1:]:
            found = each if is_better(each, found) else found
        ends.add(found)
    assert ends == {Ownership(2, "A")}


def test_who_took_the_publish_owns_it_by_name() -> None:
    found = owners()
    assert found.initial(()) == (0, "A")
    assert found.initial((B,)) == (0, "B")
    assert found.initial((A, B)) == (0, "A")
    assert found.initial((OLD_B, B)) == (0, "")  # nobody has said who that was


def test_of_names_without_end_the_last_ones_are_known_and_its_own() -> None:
    found = owners()
    for first in range(100, 100 + 2 * NAMES_KEPT_MAX, 4_096):
        found.named({each: "X" for each in range(first, first + 4_096)})
    last = 99 + 2 * NAMES_KEPT_MAX
    assert len(found.names) == NAMES_KEPT_MAX
    assert (found.initial((A,)), found.initial((last,))) == ((0, "A"), (0, "X"))
    assert found.initial((100,)) == (0, ""), "nobody has said, as far as is known"


def test_an_incarnation_is_named_once() -> None:
    found = owners()
    assert found.named({OLD_B: "B", B: "B"}) == [OLD_B]
    assert found.initial((OLD_B, B)) == (0, "B")
    assert found.named({OLD_B: "C"}) == []
    assert found.initial((OLD_B,)) == (0, "B")


@pytest.mark.covers("Queues", "a group-local queue is of a group")
def test_a_group_local_queue_begins_at_its_initial_owner_and_a_local_one_here() -> None:
    group = QueueDefinition("q", "json", kind="group_local", initial_owner="C")
    assert owners(group).initial(()) == owners(group).initial((B,)) == (0, "C")
    assert owners(QueueDefinition("q", "json", kind="local")).initial((B,)) == (0, "A")


def test_equal_registers_are_one_object_and_few_are_kept() -> None:
    found = owners()
    assert found.shared(3, "B") is found.shared(3, "B")
    for generation in range(OWNERS_MAX + 2):
        found.shared(generation, "B")
    assert len(found._shared) <= OWNERS_MAX
    assert found.shared(3, "B") == (3, "B")
