"""Mistakes planted in how leases end and messages expire, and the test that fails by each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from unit.queues import test_leases
from unit.queues import test_machine as machine

from raylay.services.queues.decisions import Consumer, Key
from raylay.services.queues.delivery import leases
from raylay.services.queues.delivery.leases import LeaseTable
from raylay.services.queues.drafts import Drafts
from raylay.services.queues.enqueue_rules import EnqueueRules
from raylay.services.queues.expirations import MessageExpirations
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import GONE, LEASED, QueuedMessage
from raylay.services.queues.replicated_state import ReplicatedQueueState

pytestmark = pytest.mark.covers("Queues", "each of these with mistakes planted")

Lost = Sequence[tuple[Key, int]]


def never(self: Any, now_us: int) -> list[QueuedMessage]:
    return []


def a_moment_early(
    self: LeaseTable, now_us: int, ended: Any = LeaseTable.ended
) -> list[QueuedMessage]:
    found: list[QueuedMessage] = ended(self, now_us + 1)
    return found


def of_nobody(self: LeaseTable, consumer: Consumer) -> list[QueuedMessage]:
    return []


def whatever_lease(end: Any) -> bool:
    return True


def in_vain_without_cancels(
    self: LeaseTable, message: QueuedMessage, *, is_cancel: bool, tried: Any = LeaseTable.tried
) -> str:
    reason: str = tried(self, message, is_cancel=False)
    return reason


def one_too_late(self: LeaseTable, deliveries_max: int = 0, cancels_max: int = 0) -> None:
    INIT(self, deliveries_max and deliveries_max + 1, cancels_max and cancels_max + 1)


INIT = LeaseTable.__init__


def all_of_them(self: LeaseTable, ended: Sequence[QueuedMessage]) -> list[QueuedMessage]:
    return list(ended)


def none_of_them(self: LeaseTable, ended: Sequence[QueuedMessage]) -> list[QueuedMessage]:
    return []


def the_next_one_too(
    self: LeaseTable, ended: Sequence[QueuedMessage], suspects: Any = LeaseTable.suspects
) -> list[QueuedMessage]:
    self._blamed.clear()
    found: list[QueuedMessage] = suspects(self, ended)
    return found


def given_back(
    self: QueueMachine, consumer: Consumer, leases: Lost, *, unseen: bool = False
) -> None:
    for message in self._leased(consumer, leases):
        self._end_lease(message, in_vain=True)


def not_late(self: QueueMachine, consumers: Iterable[Consumer]) -> None:
    """Whoever let leases end is served as the others are."""


def late_for_good(self: QueueMachine, consumer: Consumer) -> None:
    """Whoever let a lease end once comes last as long as it is there."""


def late_for_a_moment(
    self: QueueMachine, consumers: Iterable[Consumer], lapsed: Any = QueueMachine._lapsed
) -> None:
    lapsed(self, consumers)
    self._late = dict.fromkeys(self._late, self.state.now_us)


def after_late_ones(self: QueueMachine) -> None:
    """Requests of other instances come after whatever consumer is here."""
    self._late, late = {}, self._late
    GRANTS(self)
    self._late = late


GRANTS = QueueMachine._grant_deferred


def by_key_alone(self: QueueMachine, consumer: Consumer, leases: Lost) -> Iterator[QueuedMessage]:
    for (publisher, sequence), _ in leases:
        message = self._known.get(publisher, {}).get(sequence)
        if message is not None and message.state == LEASED:
            yield message


def the_same(self: Drafts, count: int) -> int:
    return 1


def while_leased(self: QueueMachine, message: QueuedMessage) -> None:
    if message.state != GONE:
        self._drafts.remove(message, "time_limit")


def forgotten_when_due(
    self: MessageExpirations, now_us: int, due: Any = MessageExpirations.due
) -> list[QueuedMessage]:
    found: list[QueuedMessage] = due(self, now_us)
    self.overdue.clear()
    return found


def a_step_early(
    self: MessageExpirations, now_us: int, due: Any = MessageExpirations.due
) -> list[QueuedMessage]:
    found: list[QueuedMessage] = due(self, now_us + 200_000)
    return found


def the_queues_own(self: EnqueueRules, expiration_s: int) -> int:
    return self._expiration_us


def the_messages_own(self: EnqueueRules, expiration_s: int) -> int:
    return expiration_s * 1_000_000


def the_other_one(self: EnqueueRules, expiration_s: int) -> int:
    own_us = expiration_s * 1_000_000
    return (min if self._model == "latest" else max)(own_us, self._expiration_us)


def no_place(self: ReplicatedQueueState, message: QueuedMessage) -> None:
    """It is available, and stands nowhere."""


BEFORE_LATE_ONES = machine.test_a_request_of_another_instance_comes_before_a_late_consumer_here
GOES_ON = machine.test_what_a_consumer_held_too_long_goes_to_another_one
SERVED_AGAIN = machine.test_a_late_consumer_is_served_again_after_an_acknowledgment_or_a_lease
THE_MODEL = machine.test_the_model_says_when_a_message_expires
MISTAKES: list[tuple[Any, str, Callable[..., Any], Callable[[], None]]] = [
    (LeaseTable, "ended", never, machine.test_leases_end_by_time_and_by_their_consumers_end),
    (
        LeaseTable,
        "ended",
        a_moment_early,
        machine.test_leases_end_by_time_and_by_their_consumers_end,
    ),
    (LeaseTable, "of", of_nobody, machine.test_leases_end_by_time_and_by_their_consumers_end),
    (
        ReplicatedQueueState,
        "release",
        no_place,
        machine.test_leases_end_by_time_and_by_their_consumers_end,
    ),
    (
        LeaseTable,
        "suspects",
        all_of_them,
        partial(
            machine.test_a_message_that_ends_its_consumers_is_the_only_one_that_expires, "dies"
        ),
    ),
    (
        LeaseTable,
        "suspects",
        none_of_them,
        partial(
            machine.test_a_message_that_ends_its_consumers_is_the_only_one_that_expires, "dies"
        ),
    ),
    (
        LeaseTable,
        "suspects",
        the_next_one_too,
        machine.test_behind_a_message_that_is_held_too_long_leases_that_end_later_do_not_count,
    ),
    (
        QueueMachine,
        "cancelled",
        given_back,
        machine.test_what_nobody_was_given_counts_neither_as_delivered_nor_as_given_back,
    ),
    (QueueMachine, "_lapsed", not_late, partial(GOES_ON, "time", True, "")),
    (QueueMachine, "_lapsed", not_late, partial(GOES_ON, "unseen", True, "round-robin")),
    (QueueMachine, "_grant_deferred", after_late_ones, partial(BEFORE_LATE_ONES, "")),
    (QueueMachine, "_recovered", late_for_good, partial(SERVED_AGAIN, "time")),
    (QueueMachine, "_recovered", late_for_good, partial(SERVED_AGAIN, "acknowledgment")),
    (QueueMachine, "_lapsed", late_for_a_moment, partial(SERVED_AGAIN, "time")),
    (
        leases,
        "_is",
        whatever_lease,
        test_leases.test_an_end_of_an_earlier_lease_is_none,
    ),
    (
        LeaseTable,
        "tried",
        in_vain_without_cancels,
        machine.test_messages_that_are_given_back_too_often_expire,
    ),
    (
        LeaseTable,
        "__init__",
        one_too_late,
        machine.test_messages_that_are_given_back_too_often_expire,
    ),
    (
        LeaseTable,
        "__init__",
        one_too_late,
        machine.test_messages_that_are_delivered_too_often_in_vain_expire_and_bounced_ones_do_not,
    ),
    (
        QueueMachine,
        "bounced",
        given_back,
        machine.test_messages_that_are_delivered_too_often_in_vain_expire_and_bounced_ones_do_not,
    ),
    (QueueMachine, "_leased", by_key_alone, machine.test_a_cancel_names_the_lease),
    (Drafts, "numbers", the_same, machine.test_a_cancel_names_the_lease),
    (
        QueueMachine,
        "_expire",
        while_leased,
        machine.test_a_leased_message_expires_when_its_lease_ends,
    ),
    (
        MessageExpirations,
        "due",
        forgotten_when_due,
        machine.test_a_leased_message_expires_when_its_lease_ends,
    ),
    (MessageExpirations, "due", a_step_early, partial(THE_MODEL, "queue", 5, 9, 9)),
    (EnqueueRules, "_period_us", the_queues_own, partial(THE_MODEL, "default", 5, 9, 5)),
    (EnqueueRules, "_period_us", the_messages_own, partial(THE_MODEL, "queue", 5, 9, 9)),
    (EnqueueRules, "_period_us", the_messages_own, partial(THE_MODEL, "default", 0, 9, 9)),
    (EnqueueRules, "_period_us", the_other_one, partial(THE_MODEL, "latest", 5, 9, 9)),
    (EnqueueRules, "_period_us", the_other_one, partial(THE_MODEL, "earliest", 5, 9, 5)),
]


@pytest.mark.parametrize(("where", "name", "mistake", "test"), MISTAKES)
def test_each_rule_of_leases_has_a_test_that_sees_it_broken(
    where: Any,
    name: str,
    mistake: Callable[..., Any],
    test: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test()
    monkeypatch.setattr(where, name, mistake)
    with pytest.raises((AssertionError, ValueError)):
        test()
