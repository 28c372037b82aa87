"""What is durable when, and who is to be told, decided apart from the rest of the machine."""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    Route,
)
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.link.routing import DestinationRoute

OWN, OTHER, UPSTREAM, P = 0xA, 0xB, 0xC, 7


class Bench:
    """Two sync destinations, and what is journaled owed by both of them."""

    def __init__(self) -> None:
        self.book = PendingReplies()
        self.ledgers = {
            name: DestinationLedger(
                DestinationRoute(name, "g", True, pass_through=".*", addresses=(name,))
            )
            for name in ("b", "c")
        }
        self.durability = Durability(OWN, self.ledgers, self.book)

    def journal(self, root: int, sender: int, first: int, last: int, txid: int) -> None:
        self.durability.stage(root, P, first, last)
        self.durability.committed_txid = txid
        for ledger in self.ledgers.values():
            ledger.add_unacked(root, P, [(first, last)], 0, txid)
        route = Route(sender, b"t", b"json", (), "g", 0)
        self.durability.wait(root, route, P, [(first, last)], 0, txid)

    def answer(self, name: str, root: int, first: int, last: int) -> None:
        self.ledgers[name].answered({root: {P: [(first, last)]}})
        self.durability.answered(root, P, [(first, last)])
        self.durability.settle_ages()


def test_durable_is_what_every_sync_destination_answered() -> None:
    bench = Bench()
    bench.journal(OWN, CLIENT, 1, 4, 1)
    bench.answer("b", OWN, 1, 3)
    assert not bench.book.durable and bench.durability.floor_txid() == 0
    bench.answer("c", OWN, 2, 4)
    assert bench.book.durable == [(P, [(2, 3)])] and not bench.book.persisted
    assert bench.durability.durable_of(P, 1, 9) == [(2, 3)]
    bench.answer("b", OWN, 4, 4)
    bench.answer("c", OWN, 1, 1)
    assert bench.durability.durable_of(P, 1, 9) == [(1, 4)] and bench.durability.floor_txid() == 1


def test_who_waits_is_answered_for_its_own_root() -> None:
    bench = Bench()
    bench.journal(OTHER, UPSTREAM, 1, 1, 1)
    bench.answer("b", OTHER, 1, 1)
    bench.answer("c", OTHER, 1, 1)
    assert bench.book.persisted == [(UPSTREAM, OTHER, P, [(1, 1)])] and not bench.book.durable


def test_a_sync_destination_less_releases_what_waited_only_for_it() -> None:
    bench = Bench()
    bench.journal(OWN, CLIENT, 1, 2, 1)
    bench.answer("b", OWN, 1, 1)
    bench.ledgers["c"].stop_waiting()
    bench.durability.release()
    assert bench.book.durable == [(P, [(1, 1)])] and list(bench.durability.pending.of(OWN).of(P))


def test_what_failed_was_never_awaited() -> None:
    bench = Bench()
    bench.durability.stage_ranges(OWN, P, [(1, 2), (5, 5)])
    assert bench.durability.not_awaited(OWN, P, [(1, 3)]) == [(3, 3)]
    bench.durability.undo(OWN, P, [(1, 2), (5, 5)])
    assert bench.durability.not_awaited(OWN, P, [(1, 3)]) == [(1, 3)]
    assert not bench.durability.pending and not bench.durability.awaited


def test_what_is_refused_is_durable_never_again() -> None:
    bench = Bench()
    bench.journal(OWN, CLIENT, 1, 3, 1)
    bench.answer("b", OWN, 1, 1)
    bench.answer("c", OWN, 1, 1)
    bench.book.forget()
    assert list(bench.durability.refuse(P, [(1, 2)])) == [(2, 2)], "what was durable stays so"
    assert bench.durability.durable_of(P, 1, 9) == [(1, 1)]
    assert bench.durability.acceptable(P, [(1, 3)]) == [(1, 1), (3, 3)]
    again = Durability(
        OWN,
        bench.ledgers,
        bench.book,
        awaited=RootedRanges({OWN: PublisherRanges({P: SequenceSet([(1, 3)])})}),
        refused=bench.durability.refused,
    )
    assert again.durable_of(P, 1, 9) == [(1, 1), (3, 3)], "nor behind a restart"


def test_an_upstream_that_waits_for_what_is_refused_is_told() -> None:
    bench = Bench()
    bench.journal(UNAWAITED, UPSTREAM, 1, 1, 1)
    bench.durability.refuse(P, [(1, 1)])
    assert bench.book.conflicts == [(UPSTREAM, P, [(1, 1)])] and not bench.durability.pending
    bench.book.forget()
    assert not bench.book.conflicts
