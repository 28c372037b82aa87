"""services/queues/drafts.py: records that are on their way to the disk."""

from __future__ import annotations

from raylay.services.messages.records import Command
from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import LeasedDelivery
from raylay.services.queues.drafts import DRAFT_MESSAGES_MAX, Drafts
from raylay.services.queues.message import AVAILABLE, FROZEN, QueuedMessage
from raylay.services.queues.records import OwnershipChange, read_removal, read_transfer
from raylay.services.queues.transfer.ownership import Ownership

P, OTHER = 1, 2
ONE, TWO = (1, "s"), (2, "s")


def message(sequence: int, publisher: int = P, generation: int = 0) -> QueuedMessage:
    """A message of A."""
    return QueuedMessage(Arrival(1, 0), sequence, (publisher, sequence), Ownership(generation, "A"))


def drafts(life: int = 1) -> Drafts:
    """Of instance A."""
    return Drafts("A", 11, life, 5)


def test_a_transfer_freezes_its_messages_and_says_as_few_moves_as_possible() -> None:
    made = drafts()
    messages = [message(3), message(1), message(2), message(4, generation=7), message(5, OTHER)]
    made.transfer([(each, "B") for each in messages] + [(message(6, OTHER), "C")])
    made.transfer([])
    (draft,) = made.flush()
    said = read_transfer(draft.body)
    assert (draft.command, said.by, said.tag) == (Command.TRANSFER, "A", draft.tag)
    assert said.moves == [
        OwnershipChange(P, 1, 3, 1, "B"),
        OwnershipChange(P, 4, 4, 8, "B"),
        OwnershipChange(OTHER, 5, 5, 1, "B"),
        OwnershipChange(OTHER, 6, 6, 1, "C"),
    ]
    assert {each.state for each in messages} == {FROZEN}
    drafted = made.take(draft.tag)
    assert drafted is not None and all(drafted.frozen(each) for each in messages)
    messages[0].state = AVAILABLE
    messages[1].held = draft.tag + 1
    assert [drafted.frozen(each) for each in messages[:3]] == [False, False, True]
    assert made.take(draft.tag) is None


def test_removals_of_one_reason_are_one_record() -> None:
    made = drafts()
    for sequence in (2, 1, 9):
        made.remove(message(sequence), "time_limit")
    made.remove(message(3), "max_cancels")
    said = [read_removal(draft.body) for draft in made.flush()]
    assert [(each.why, each.keys) for each in said] == [
        ("time_limit", {P: [(1, 2), (9, 9)]}),
        ("max_cancels", {P: [(3, 3)]}),
    ]
    assert made.flush() == []
    assert len(made) == 2
    assert [each.why for each in made.failed([said[1].tag, 5])] == ["max_cancels"]


def test_a_record_has_no_more_messages_than_it_may() -> None:
    made = drafts()
    for sequence in range(1, DRAFT_MESSAGES_MAX + 2):
        made.remove(message(sequence), "time_limit")
    made.transfer([(message(at), "B") for at in range(1, DRAFT_MESSAGES_MAX + 2)])
    assert len(made.flush()) == 4


def test_what_was_to_be_sent_to_a_consumer_that_left_is_not() -> None:
    made = drafts()
    made.remove(message(1), "sent", (LeasedDelivery(1, (P, 1), 1, 0), [ONE]))
    (draft,) = made.flush()
    made.remove(message(2), "barrier", (LeasedDelivery(2, (P, 2), 2, 0), [ONE, TWO]))
    made.left(ONE)
    (barrier,) = made.flush()
    receivers = [made.take(each.tag) for each in (draft, barrier)]
    assert [each.receivers[0][1] for each in receivers if each] == [[], [TWO]]


def test_a_message_that_comes_behind_the_draft_about_it_is_not_frozen() -> None:
    """Nothing would ever free it: the record that it would wait for was read before."""
    made = drafts()
    made.let_go([OwnershipChange(P, 1, 2, 1, "B")], [], [(P, 1), (P, 2)])
    (draft,) = made.flush()
    early, late = message(1), message(2)
    assert made.freezes(early) and early.state == FROZEN
    made.take(draft.tag)
    assert not made.freezes(late) and late.state == AVAILABLE
    assert not made.waits_for_absent


def test_of_two_drafts_about_an_absent_message_the_later_one_freezes_it() -> None:
    made = drafts()
    for generation in (1, 2):
        made.let_go([OwnershipChange(P, 1, 1, generation, "B")], [], [(P, 1)])
    first, second = made.flush()
    made.take(first.tag)
    late = message(1)
    assert made.freezes(late) and late.held == second.tag


def test_numbers_are_of_one_life() -> None:
    first, second = drafts(), drafts(life=2)
    found = {each.number() for each in (first, second) for _ in range(1_000)}
    assert len(found) == 2_000
