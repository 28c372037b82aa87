"""services/queues/transfer/reappends.py: what came before its message is said behind it."""

from __future__ import annotations

from raylay.services.queues.records import RANGES_MAX, OwnershipChange
from raylay.services.queues.transfer.ownership import Ownership
from raylay.services.queues.transfer.reappends import Reappends

P, OTHER = 7, 8


def test_what_was_used_is_said_once() -> None:
    again = Reappends()
    assert not again
    for sequence in (3, 4, 9):
        again.removed(P, sequence)
    again.moved(OTHER, 1, 5, Ownership(2, "B"))
    assert again
    assert again.take() == ([{P: [(3, 4), (9, 9)]}], [[OwnershipChange(OTHER, 1, 5, 2, "B")]])
    assert not again and again.take() == ([], [])


def test_what_a_record_behind_the_message_says_is_not_said_again() -> None:
    again = Reappends()
    again.removed(P, 3)
    again.moved(P, 4, 9, Ownership(2, "B"))
    again.heard_removal({P: [(1, 4)]})
    again.heard_move(OwnershipChange(P, 5, 5, 2, "B"))
    again.heard_move(OwnershipChange(P, 6, 6, 3, "C"))
    again.heard_move(OwnershipChange(P, 7, 7, 1, "A"))
    again.heard_move(OwnershipChange(OTHER, 8, 8, 9, "A"))
    assert again.take() == (
        [],
        [[OwnershipChange(P, 7, 7, 2, "B"), OwnershipChange(P, 8, 9, 2, "B")]],
    )


def test_what_was_not_written_is_said_again() -> None:
    again = Reappends()
    again.again({P: [(3, 4)]}, [OwnershipChange(OTHER, 1, 5, 2, "B")])
    assert again.take() == ([{P: [(3, 4)]}], [[OwnershipChange(OTHER, 1, 5, 2, "B")]])


def test_no_record_is_longer_than_it_may_be() -> None:
    again = Reappends()
    for at in range(RANGES_MAX + 1):
        again.removed(P, 2 * at + 1)
        again.moved(OTHER, 2 * at + 1, 2 * at + 1, Ownership(1, "B"))
    removals, transfers = again.take()
    assert [len(each[P]) for each in removals] == [RANGES_MAX, 1]
    assert list(map(len, transfers)) == [RANGES_MAX, 1]
