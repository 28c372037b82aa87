"""The comparison at a link's logon: worked off in slices, it gives what one step gives."""

from __future__ import annotations

import random

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.link.resync_plan import ResyncPlan

ROOT = 7


def drawn(draw: random.Random, into: PublisherRanges) -> None:
    first = draw.randint(1, 30)
    ranges = [(first, first + draw.randint(0, 6))]
    if draw.random() < 0.7:
        into.add_ranges(draw.randint(1, 9), ranges)
    else:
        into.remove_ranges(draw.randint(1, 9), ranges)


def whole(
    unacked: RootedRanges, published: PublisherRanges, held: PublisherRanges, waited: RootedRanges
) -> ResyncPlan:
    plan = ResyncPlan(held, waited)
    plan.look(unacked, published)
    plan.work()
    return plan


def test_what_is_there_and_what_is_not() -> None:
    unacked, held, waited, published = (
        RootedRanges(),
        PublisherRanges(),
        RootedRanges(),
        PublisherRanges(),
    )
    published.add(1, 1, 9)
    held.add(1, 1, 6)
    unacked.of(ROOT).add(1, 5, 8)
    unacked.of(UNAWAITED).add(1, 2, 4)
    unacked.of(UNAWAITED).add(2, 1, 1)
    waited.of(ROOT).add(1, 3, 3)
    plan = ResyncPlan(held, waited)
    assert plan.look(unacked, published) == 2
    assert plan.work() == {1: [(2, 2), (4, 4)]}
    assert list(plan.notice.of(ROOT).items()) == [(1, (5, 6))]
    assert list(plan.mark.of(ROOT).items()) == [(1, (7, 8))]
    assert list(plan.stranded.items()) == [(1, (7, 9))]
    assert plan.left == plan.look(unacked, published) == 0


def test_slices_with_changes_between_them_give_what_one_step_gives() -> None:
    draw = random.Random(1)
    for _ in range(200):
        unacked, held, waited, published = (
            RootedRanges(),
            PublisherRanges(),
            RootedRanges(),
            PublisherRanges(),
        )
        for _ in range(draw.randint(0, 20)):
            drawn(draw, unacked.of(draw.choice((UNAWAITED, ROOT, 8))))
            drawn(draw, held)
            drawn(draw, published)
            drawn(draw, waited.of(ROOT))
        plan = ResyncPlan(held.copy(), waited.copy())
        for _ in range(draw.randint(0, 6)):
            plan.look(unacked, published)
            before = plan.left
            count = draw.randint(1, 4)
            for publisher, ranges in plan.work(count).items():
                assert unacked.of(UNAWAITED).covers(publisher, ranges)
                assert held.covers(publisher, ranges)
                unacked.remove_ranges(UNAWAITED, publisher, ranges)
            assert plan.left == max(0, before - count)
            for _ in range(draw.randint(0, 3)):
                drawn(draw, unacked.of(draw.choice((UNAWAITED, ROOT, 8))))
                drawn(draw, published)
            if draw.random() < 0.1:
                # A downgrade: nobody waits for it any more.
                unacked.of(UNAWAITED).update(unacked.roots.pop(ROOT, PublisherRanges()))
        plan.look(unacked, published)
        plan.work()
        expected = whole(unacked, published, held, waited)
        assert (plan.stranded, plan.left) == (expected.stranded, 0)
        for mine, theirs in ((plan.notice, expected.notice), (plan.mark, expected.mark)):
            for root in mine.roots.keys() | theirs.roots.keys():
                assert mine.of(root) == theirs.of(root)


def test_only_what_changed_is_compared_again() -> None:
    published = PublisherRanges()
    for publisher in range(1, 101):
        published.add(publisher, 1, 1)
    plan = ResyncPlan(PublisherRanges(), RootedRanges())
    assert plan.look(RootedRanges(), published) == 100
    plan.work(60)
    published.add(5, 2, 2)
    published.add(200, 1, 1)
    assert 41 <= plan.look(RootedRanges(), published) <= 42
    plan.work()
    assert plan.stranded == published
