"""What destinations owe and when they are safe, decided apart from the rest of the machine."""

from __future__ import annotations

import pytest

from raylay.services.errors import DowngradeRefused
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    Route,
)
from raylay.services.replication.downgrade import FIRST_CONNECT_US_MAX, DowngradePolicy
from raylay.services.replication.effects import Effect, NotifyLink, RemovalBound, SetLinkMode
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.destinations import Destinations
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.placement import Placements
from raylay.services.replication.staged import RoutedMessages
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters, Identity

OWN, OTHER, B, P = 0xA, 0xC, 0xB, 7


class Bench:
    """One sync destination `b`, its link connected, with messages that clients published here."""

    def __init__(self, policy: DowngradePolicy | None = None, *, connects: bool = True) -> None:
        known = PublisherRanges()
        self.book, self.out, counters = PendingReplies(), EffectList(), Counters()
        destination = DestinationRoute("b", "g", True, pass_through=".*", addresses=("b",))
        self.ledger = DestinationLedger(destination)
        ledgers = {"b": self.ledger}
        self.durability = Durability(OWN, ledgers, self.book)
        missing = UnavailableMessages(PublisherRanges(), known)
        self.intake = Intake(self.durability, self.out, counters, known=known, missing=missing)
        admission = InstanceAdmission(
            Identity("own", "g", OWN), Placements(), ledgers, self.out, ready=True
        )
        self.links = Destinations(
            ledgers,
            self.intake,
            self.durability,
            self.book,
            self.out,
            counters,
            admission,
            policy or DowngradePolicy(),
        )
        if connects:
            self.connect()

    def connect(self, now_us: int = 0) -> None:
        plan = ResyncPlan(PublisherRanges(), RootedRanges())
        self.links.connected("b", B, plan, now_us, "b")
        self.links.progressed("b", 0, {}, True, 0, 0)
        self.out.take()

    def commit(self, first: int, last: int, txid: int, root: int = OWN) -> list[Effect]:
        run = Run(P, first, last, last - first + 1, b"", b"t", b"json", first_txid=txid)
        self.intake.known.add(P, first, last)
        self.durability.stage(root, P, first, last)
        self.durability.committed_txid = txid + last - first
        self.links.commit_run(run, root, CLIENT, [(first, last)], 0)
        return self.out.take()

    def answer(self, root: int, first: int, last: int) -> None:
        self.links.answered("b", {root: {P: [(first, last)]}}, {})


def test_an_answer_makes_durable_and_an_answer_for_another_root_does_not() -> None:
    bench = Bench()
    bench.commit(1, 2, 1)
    bench.answer(OTHER, 1, 2)
    assert not bench.book.durable and bench.ledger.unacked
    bench.answer(OWN, 1, 2)
    assert bench.book.durable == [(P, [(1, 2)])] and not bench.ledger.unacked


def test_who_comes_to_wait_for_what_is_here_makes_it_ask_again() -> None:
    bench = Bench()
    bench.commit(1, 1, 1)
    bench.answer(OWN, 1, 1)
    route = Route(OTHER, b"t", b"json", (), "g", 0)
    bench.durability.stage_ranges(OTHER, P, [(1, 1)])
    routes = [(route, 1, SequenceSet([(1, 1)]))]
    bench.links.commit_note(OTHER, OTHER, P, [(1, 1)], [_routed(*each) for each in routes], 0)
    assert NotifyLink("b", {OTHER: {P: [(1, 1)]}}, 1) in bench.out.take()
    bench.answer(OTHER, 1, 1)
    assert bench.book.persisted == [(OTHER, OTHER, P, [(1, 1)])]


def test_a_downgrade_releases_and_an_upgrade_asks_again() -> None:
    bench = Bench()
    bench.commit(1, 1, 1)
    assert bench.links.downgrade("b", 0, "by hand", force=False) and not bench.ledger.safe
    assert bench.book.durable == [(P, [(1, 1)])] and SetLinkMode("b", False) in bench.out.take()
    assert not bench.links.downgrade("b", 0, "by hand", force=False), "it is async already"
    bench.links.upgrade("b", 0, "by hand")
    assert bench.ledger.sync and SetLinkMode("b", True) in bench.out.take()


def test_no_downgrade_below_the_minimum_unless_it_is_forced() -> None:
    bench = Bench(DowngradePolicy(age_ms=10, min_sync_destinations=1))
    bench.commit(1, 1, 1)
    with pytest.raises(DowngradeRefused):
        bench.links.downgrade("b", 0, "by hand", force=False)
    assert not bench.links.tick(60_000_000) and bench.ledger.sync
    assert bench.links.downgrade("b", 0, "by hand", force=True)


def test_older_than_the_age_is_downgraded_and_not_as_old() -> None:
    bench = Bench(DowngradePolicy(age_ms=10))
    bench.commit(1, 1, 1)
    assert not bench.links.tick(10_999) and bench.ledger.sync
    assert bench.links.tick(11_000) and not bench.ledger.sync


def test_an_age_counts_from_the_first_connection_of_a_life() -> None:
    """Instances that start together: the link's process takes longer than the age."""
    bench = Bench(DowngradePolicy(age_ms=500), connects=False)
    bench.links.tick(0)
    bench.commit(1, 1, 1)
    assert not bench.links.tick(3_000_000) and bench.ledger.sync
    bench.connect(3_100_000)
    assert not bench.links.tick(3_600_999) and bench.ledger.sync
    assert bench.links.tick(3_601_000) and not bench.ledger.sync


def test_a_destination_that_never_comes_is_waited_for_a_limited_time() -> None:
    bench = Bench(DowngradePolicy(age_ms=500), connects=False)
    bench.links.tick(0)
    bench.commit(1, 1, 1)
    assert not bench.links.tick(FIRST_CONNECT_US_MAX + 500_999) and bench.ledger.sync
    assert bench.links.tick(FIRST_CONNECT_US_MAX + 501_000) and not bench.ledger.sync


def test_a_later_connection_of_a_life_does_not_make_messages_younger() -> None:
    bench = Bench(DowngradePolicy(age_ms=10))
    bench.links.tick(0)
    bench.commit(1, 1, 1)
    bench.links.disconnected("b", "lost")
    bench.connect(9_000)
    assert bench.links.tick(11_000) and not bench.ledger.sync


def test_what_an_age_downgraded_an_age_upgrades_and_nothing_else() -> None:
    bench = Bench(DowngradePolicy(age_ms=100, upgrade_age_ms=50))
    bench.commit(1, 1, 1)
    assert bench.links.tick(1_000_000) and not bench.ledger.sync
    bench.answer(UNAWAITED, 1, 1)
    bench.links.tick(2_000_000)
    assert bench.ledger.sync, "it answers, and is caught up"
    bench.links.downgrade("b", 3_000_000, "by hand", force=False)
    bench.links.tick(4_000_000)
    assert not bench.ledger.sync, "an operator has taken it out"


def test_ages_of_an_action_count_at_once_whatever_the_schedule_says() -> None:
    bench = Bench(DowngradePolicy())
    bench.commit(1, 1, 1)
    assert not bench.links.tick(1_000_000), "no age is configured"
    assert not bench.links.tick(1_000_000, (None, 10)) and bench.ledger.sync
    assert bench.links.tick(1_000_000, (10, None)) and not bench.ledger.sync
    bench.answer(UNAWAITED, 1, 1)
    assert not bench.links.tick(2_000_000, (10, None)) and not bench.ledger.sync
    bench.links.tick(2_000_000, (None, 10))
    assert bench.ledger.sync


def test_each_fault_further_on_has_a_look_more() -> None:
    """The instance that is nearest to it acts first; also where there was one before."""
    bench = Bench(DowngradePolicy(age_ms=10, upgrade_age_ms=0))
    for txid, at_us in ((1, 20_000), (2, 60_000)):
        bench.commit(txid, txid, txid)
        bench.links.progressed("b", txid, {}, False, 0, 0)
        assert not bench.links.tick(at_us) and bench.ledger.sync
        if txid == 1:
            bench.answer(OWN, 1, 1)
            assert not bench.links.tick(at_us + 20_000)
    assert bench.links.tick(80_000) and not bench.ledger.sync


def test_what_is_refused_is_told_to_its_publisher_and_never_durable() -> None:
    bench = Bench()
    bench.commit(1, 2, 1)
    bench.links.answered("b", {}, {P: [(2, 2)]})
    (refusal,) = bench.book.refused
    assert (refusal.destination, refusal.ranges) == ("b", [(2, 2)])
    assert list(refusal.undone) == [(2, 2)]
    bench.answer(OWN, 1, 2)
    assert bench.book.durable == [(P, [(1, 1)])]


def test_the_journal_is_kept_while_a_link_is_away() -> None:
    bench = Bench()
    bench.commit(1, 3, 1)
    bench.answer(OWN, 1, 3)
    bench.links.progressed("b", 3, {}, False, 0, 0)
    assert bench.links.removable_before() == 4
    bench.links.release()
    assert RemovalBound(4) in bench.out.take()
    bench.links.disconnected("b", "cut")
    assert RemovalBound(0) in bench.out.take() and bench.links.removable_before() == 0


def test_what_its_link_will_never_send_keeps_a_destination_unsafe() -> None:
    bench = Bench()
    bench.commit(1, 2, 1, UNAWAITED)
    assert bench.ledger.safe
    bench.links.lacks("b", {P: [(1, 2)]})
    assert not bench.ledger.safe and list(bench.ledger.stranded.of(P)) == [(1, 2)]


def _routed(route: Route, first_txid: int, ranges: SequenceSet) -> RoutedMessages:
    return RoutedMessages(route, first_txid, ranges)
