"""services/queues/transfer/disclaim.py: what an owner says of messages that it cannot give."""

from __future__ import annotations

import pytest

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.decisions import Key, TransferCandidate
from raylay.services.queues.message import AVAILABLE, LEASED, QueuedMessage
from raylay.services.queues.records import OwnershipChange
from raylay.services.queues.transfer.disclaim import (
    PAUSE_US,
    REQUESTERS_MAX,
    TOLD_US,
    VAIN_US,
    DisclaimTimer,
    TransferReply,
    answer,
)
from raylay.services.queues.transfer.ownership import UNKNOWN, Ownership

pytestmark = pytest.mark.covers("Queues", "what an owner does not have it lets go")

KEY: Key = (1, 7)
NOTHING = TransferReply([], [], [], [], [])


def said(
    known: Ownership | None,
    asked: tuple[int, str] = (0, "A"),
    state: int | None = None,
    count: int = 9,
    is_barrier: bool = False,
) -> tuple[TransferReply, QueuedMessage | None]:
    """What A says to C, which asks for a message; it is here where it has a state."""
    message = None
    if state is not None and known is not None:
        message = QueuedMessage(Arrival(1, 0), 1, KEY, known, is_barrier=is_barrier)
        message.state = state
    found = answer("A", "C", count, [TransferCandidate(KEY, *asked)], lambda key: (message, known))
    return found, message


def test_what_never_came_is_let_go_to_who_asks() -> None:
    assert said(UNKNOWN)[0] == TransferReply([OwnershipChange(1, 7, 7, 1, "C")], [], [KEY], [], [])
    assert said(Ownership(0, "A"))[0].grants == [OwnershipChange(1, 7, 7, 1, "C")]
    assert said(Ownership(2, "A"), (2, "A"))[0].grants == [OwnershipChange(1, 7, 7, 3, "C")]
    assert said(UNKNOWN, count=0)[0] == NOTHING


def test_what_has_left_the_queue_is_not_let_go() -> None:
    assert said(None)[0] == NOTHING._replace(gone=[KEY])


def test_who_was_made_owner_by_a_record_that_did_not_come_lets_go() -> None:
    found, message = said(Ownership(0, "B"), (1, "A"), AVAILABLE)
    assert found == TransferReply([OwnershipChange(1, 7, 7, 2, "C")], [message], [], [], [])


@pytest.mark.parametrize(
    ("known", "state", "is_barrier"),
    [
        (Ownership(0, "A"), AVAILABLE, False),
        (Ownership(0, "B"), LEASED, False),
        (Ownership(0, "B"), AVAILABLE, True),
    ],
)
def test_what_somebody_here_can_have_stays(known: Ownership, state: int, is_barrier: bool) -> None:
    assert said(known, (0, "A"), state, is_barrier=is_barrier)[0] == NOTHING


@pytest.mark.parametrize("state", [None, AVAILABLE, LEASED])
def test_a_later_owner_is_told_to_who_asks_the_former_one(state: int | None) -> None:
    found = said(Ownership(2, "B"), (1, "A"), state)[0]
    assert found == TransferReply([], [], [], [OwnershipChange(1, 7, 7, 2, "B")], [])


def test_nobody_is_answered_before_it_has_asked_for_a_while() -> None:
    lacking = DisclaimTimer()
    assert not lacking.asked("B", 10)
    assert not lacking.asked("C", VAIN_US)
    assert lacking.asked("B", 10 + VAIN_US)
    assert lacking.asked("B", 10 + VAIN_US + PAUSE_US - 1)
    assert not lacking.asked("B", 10 + VAIN_US + 2 * PAUSE_US)
    assert not lacking.asked("B", 5), "the clock was set back"


def test_it_is_told_now_and_then() -> None:
    lacking = DisclaimTimer()
    lacking.asked("B", 10)
    assert lacking.tells("B", 10)
    assert not lacking.tells("B", 9 + TOLD_US)
    assert lacking.tells("B", 10 + TOLD_US)


def test_so_many_instances_are_remembered() -> None:
    lacking = DisclaimTimer()
    for number in range(REQUESTERS_MAX):
        lacking.asked(f"i{number}", 10)
    assert lacking.asked("i0", 10 + VAIN_US)
    lacking.asked("one more", 10 + VAIN_US)
    assert not lacking.asked("i0", 10 + VAIN_US)
