"""Ledgers, waiters and ages: what is owed, for which root, and since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    Route,
    WaiterTable,
)
from raylay.services.replication.ages import AGE_BUCKET_US
from raylay.services.replication.link.routing import DestinationRoute

pytestmark = pytest.mark.covers("Replication", "the waiter rule")

P, Q = 0x11, 0x22
ROOT, OTHER = 0xA, 0xB


def route(sender: int) -> Route:
    return Route(sender, b"orders", b"json", (), "", 0)


def ledger(*, sync: bool = True) -> DestinationLedger:
    return DestinationLedger(DestinationRoute("d", "g", sync, addresses=("d",)))


def unacked(found: DestinationLedger, root: int, publisher: int = P) -> list[tuple[int, int]]:
    return list(found.unacked.get(root, publisher) or ())


@pytest.mark.parametrize(
    ("carries_all", "options", "whole"),
    [
        (True, {"pass_through": ".*"}, True),
        (False, {"pass_through": ".*"}, False),
        (True, {}, False),
        (True, {"pass_through": "London"}, False),
        (True, {"pass_through": ".*", "own_group_only": True}, False),
    ],
)
def test_a_destination_gets_everything_only_where_nothing_keeps_it_back(
    carries_all: bool, options: dict[str, Any], whole: bool
) -> None:
    to = DestinationRoute("d", "g", True, addresses=("d",), **options)
    assert DestinationLedger(to, carries_all=carries_all).whole is whole


def test_an_answer_settles_what_is_owed_for_its_root_and_for_no_root() -> None:
    found = ledger()
    found.add_unacked(ROOT, P, [(1, 10)], 0)
    found.add_unacked(OTHER, P, [(1, 10)], 0)
    found.add_unacked(UNAWAITED, P, [(1, 10)], 0)
    settled = found.answered({ROOT: {P: [(3, 5)]}})
    assert settled == {ROOT: {P: [(3, 5)]}, UNAWAITED: {P: [(3, 5)]}}
    assert unacked(found, OTHER) == [(1, 10)]
    assert unacked(found, ROOT) == unacked(found, UNAWAITED) == [(1, 2), (6, 10)]


def test_an_answer_for_no_root_settles_nothing_that_a_root_waits_for() -> None:
    """It was given when the message was stored: the destination's own partners may lack it."""
    found = ledger()
    found.add_unacked(ROOT, P, [(1, 2)], 0)
    assert found.answered({UNAWAITED: {P: [(1, 2)]}}) == {}
    assert unacked(found, ROOT) == [(1, 2)]


def test_an_answer_twice_settles_once() -> None:
    found = ledger()
    found.add_unacked(ROOT, P, [(1, 2)], 0)
    assert found.answered({ROOT: {P: [(1, 2)]}})
    assert found.answered({ROOT: {P: [(1, 2)]}}) == {}


def test_an_async_destination_owes_for_no_root() -> None:
    found = ledger(sync=False)
    found.add_unacked(ROOT, P, [(1, 2)], 0)
    assert unacked(found, UNAWAITED) == [(1, 2)] and unacked(found, ROOT) == []


def test_a_downgrade_keeps_what_is_owed_and_ends_the_waits() -> None:
    found = ledger()
    found.add_unacked(ROOT, P, [(1, 2)], 0)
    found.proved = True
    found.stop_waiting()
    assert not found.sync and not found.safe
    assert unacked(found, UNAWAITED) == [(1, 2)] and unacked(found, ROOT) == []


def test_what_was_refused_for_good_is_owed_for_no_root() -> None:
    found = ledger()
    for root in (ROOT, OTHER):
        found.add_unacked(root, P, [(1, 3)], 0)
    found.forget({P: [(2, 2)]})
    assert unacked(found, ROOT) == unacked(found, OTHER) == [(1, 1), (3, 3)]


def test_it_is_proved_when_all_up_to_the_point_is_answered_and_it_has_caught_up() -> None:
    found = ledger()
    found.must_prove(10)
    found.add_unacked(ROOT, P, [(1, 1)], 0, txid=10)
    found.add_unacked(ROOT, P, [(2, 2)], AGE_BUCKET_US, txid=11)
    assert not found.update_proof(), "not connected"
    found.connected = found.caught_up = True
    assert not found.update_proof(), "10 is owed"
    found.answered({ROOT: {P: [(1, 1)]}})
    assert found.update_proof() and found.safe, "what came after the point does not count"
    assert not found.update_proof(), "it became so once"


def test_only_the_waiter_of_the_root_is_not_answered_at_once() -> None:
    table = WaiterTable()
    table.assign(ROOT, route(CLIENT), P, [(1, 4)])
    table.assign(OTHER, route(7), P, [(3, 6)])
    assert table.not_waited(OTHER, 7, P, [(1, 9)]) == [(1, 2), (7, 9)]
    assert table.not_waited(ROOT, 7, P, [(1, 9)]) == [(1, 9)]
    assert table.not_waited(OTHER, 8, P, [(1, 9)]) == [(1, 9)]


def test_settling_answers_the_waiters_of_the_root_once() -> None:
    table = WaiterTable()
    table.assign(ROOT, route(7), P, [(1, 4)])
    table.assign(ROOT, route(8), P, [(5, 6)])
    table.assign(OTHER, route(9), P, [(1, 6)])
    assert table.settle(ROOT, P, [(2, 5)]) == [(7, [(2, 4)]), (8, [(5, 5)])]
    assert table.settle(ROOT, P, [(2, 5)]) == []
    assert table.waited_by(9).get(OTHER, P) is not None
    assert list(table.waited_by(7).of(ROOT).of(P)) == [(1, 1)]


def test_what_a_sender_waits_for_is_handed_out_as_a_copy() -> None:
    table = WaiterTable()
    table.assign(ROOT, route(7), P, [(1, 4)])
    table.waited_by(7).of(ROOT).of(P).clear()
    assert table.settle(ROOT, P, [(1, 4)]) == [(7, [(1, 4)])]


def test_rooted_ranges_travel_whole() -> None:
    ranges = RootedRanges()
    ranges.of(ROOT).add(P, 1, 5)
    ranges.of(UNAWAITED).add(Q, 9, 9)
    again = RootedRanges.from_wire(ranges.to_wire())
    assert again.to_wire() == ranges.to_wire() and again.count == 6


def test_why_a_destination_is_unsafe() -> None:
    found = DestinationLedger(DestinationRoute("d", "g", True, addresses=("d",)), carries_all=False)
    found.connected = found.caught_up = True
    assert found.update_proof() and not found.safe and "topics" in found.why_unsafe
    found.carries_all = True
    assert found.safe and found.why_unsafe == ""
    found.stranded.add(P, 1, 1)
    assert not found.safe and "are not routed to it" in found.why_unsafe
    found.stop_waiting()
    assert "do not wait" in found.why_unsafe
    found.sync = True
    assert "not caught up" in found.why_unsafe


def test_what_only_a_server_held_is_owed_until_a_resync_with_another_one_passes_it() -> None:
    found = ledger()
    found.add_unacked(UNAWAITED, P, [(1, 2)], 0)
    found.add_unsure(P, SequenceSet([(3, 9)]), 0)
    found.server_holds(PublisherRanges({P: SequenceSet([(1, 9)])}))
    assert not found.resync_ended(), "this one holds all of it"
    assert unacked(found, UNAWAITED) == [(1, 9)]
    # The next one lacks 4 to 9; of these 5 and 6 are sent.
    found.server_holds(PublisherRanges({P: SequenceSet([(3, 3)])}))
    found.resent(P, [(5, 6)], 0)
    assert found.resync_ended()
    assert unacked(found, UNAWAITED) == [(1, 3), (5, 6)]
    assert not found.resync_ended(), "once"
    assert list(found.unsure.of(P)) == [(3, 3)], "of what this one holds nobody knows more"


def test_a_destination_whose_servers_are_stopped_begins_downgraded_by_hand() -> None:
    resting = DestinationRoute("d", "g", True, addresses=("d",), starts_downgraded=True)
    found = DestinationLedger(resting)
    assert not found.sync and found.downgraded_by_hand
    found = DestinationLedger(replace(resting, sync=False))
    assert not found.sync and not found.downgraded_by_hand, "there is nothing to upgrade"
