"""services/queues/expirations.py: when messages of a queue expire."""

from __future__ import annotations

from raylay.services.queues.checkpoint import Arrival
from raylay.services.queues.expirations import STALE_MAX, STEP_US, MessageExpirations
from raylay.services.queues.message import GONE, QueuedMessage
from raylay.services.queues.transfer.ownership import Ownership


def message(sequence: int) -> QueuedMessage:
    """A message."""
    return QueuedMessage(Arrival(1, 0), sequence, (1, sequence), Ownership(0, "A"))


def test_messages_are_due_when_their_time_is_over_and_never_before() -> None:
    made = MessageExpirations()
    messages = [message(at) for at in range(1, 5)]
    for each, expires_us in zip(
        messages, (5 * STEP_US, 3 * STEP_US + 1, 3 * STEP_US, 9), strict=True
    ):
        made.note(each, expires_us)
    assert made.first_us == STEP_US
    assert made.due(8) == []
    assert made.due(3 * STEP_US) == [messages[3], messages[2]]
    assert made.due(4 * STEP_US - 1) == []
    assert made.due(4 * STEP_US) == [messages[1]]
    assert made.overdue == set(messages[1:])
    assert made.first_us == 5 * STEP_US
    assert made.due(10**18) == [messages[0]]
    assert (len(made), made.first_us) == (0, 0)


def test_what_is_gone_is_not_due() -> None:
    made = MessageExpirations()
    one = message(1)
    made.note(one, 1)
    one.state = GONE
    assert made.due(STEP_US) == [] and made.overdue == set()


def test_what_is_gone_does_not_stay_until_its_time() -> None:
    made = MessageExpirations()
    kept = message(1)
    made.note(kept, 9 * STEP_US)
    for at in range(STALE_MAX * 3):
        gone = message(at)
        made.note(gone, at * STEP_US)
        gone.state = GONE
        made.clean(1)
        assert len(made) <= STALE_MAX + 3
    assert made.due(10**18) == [kept]
