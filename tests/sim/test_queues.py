"""The laws of queues find what is wrong with a history, and plans have queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest

from raylay.services.verification import checkers
from raylay.services.verification.history import (
    AckGiven,
    InstanceCrashed,
    InstanceMoved,
    InstanceStarted,
    MessagesPublished,
    Operation,
    RunHistory,
    RunJournaled,
)
from raylay.services.verification.queue_history import (
    QueueDelivered,
    QueueHolds,
    QueueRecorded,
    QueueReturned,
    SharedQueue,
)
from sim import plans, run
from sim.mistakes import MISTAKES, SHOWN_BY_A_SCENARIO
from sim.plans import QUEUE, TOPICS
from sim.queues import SimQueues

pytestmark = [
    pytest.mark.covers("Queues", "in the simulator"),
    pytest.mark.covers("Queues", "the register: higher generation", note="laws"),
]

A, B, C, P = 0xA, 0xB, 0xC, 0x99
LEASE_US = 100
KEY = P, 1


def journaled(time_us: int, name: str, *path: int) -> RunJournaled:
    of = (A if name == "a" else B), time_us, P, (1,), TOPICS[0], path
    return RunJournaled(time_us, name, *of, "g", False, False)


def recorded(time_us: int, name: str, why: str = "ack") -> QueueRecorded:
    return QueueRecorded(time_us, name, A if name == "a" else B, QUEUE, why, (KEY,))


def moved(time_us: int, name: str, to: str, *, is_claim: bool = False) -> QueueRecorded:
    of = A if name == "a" else B
    return QueueRecorded(time_us, name, of, QUEUE, "transfer", (), ((*KEY, 1, to),), is_claim)


def delivered(time_us: int, name: str, *, session: int = 1, is_sent: bool = False) -> Operation:
    until_us = 0 if is_sent else time_us + LEASE_US
    client = f"c{session}"
    return QueueDelivered(time_us, name, QUEUE, client, session, (KEY,), until_us, is_sent)


def holds(name: str, owner: str = "a", *, generation: int = 0, last: bool = False) -> Operation:
    return QueueHolds(900, name, QUEUE, ((*KEY, generation, owner),), (), last)


def begun() -> list[Operation]:
    """Two instances; a publish at the first one is at both."""
    return [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        MessagesPublished(1, "p", P, 1, TOPICS[0]),
        journaled(2, "a"),
        AckGiven(3, "a", "p", P, 1, (1,), "ack"),
        journaled(4, "b", A),
    ]


def laws(
    *operations: Operation,
    at_most_once: bool = False,
    first_owner: str = "",
    barriers: tuple[tuple[int, int], ...] = (),
) -> set[str]:
    history = RunHistory(plans.mesh(2), [*begun(), *operations])
    of = SharedQueue(QUEUE, TOPICS[0], ("a", "b"), first_owner, at_most_once, barriers)
    history.queues = (of,)
    return {found.law for found in checkers.queues(history)}


def test_who_is_given_it_acknowledges_it() -> None:
    assert not laws(delivered(10, "a"), recorded(20, "a"), recorded(30, "b"))


def test_without_a_queue_nothing_is_looked_at() -> None:
    assert not checkers.queues(RunHistory(plans.mesh(2), [*begun(), delivered(10, "b")]))


def test_only_its_owner_delivers_a_message() -> None:
    assert laws(delivered(10, "b")) == {"queue ownership"}
    assert not laws(delivered(10, "b"), first_owner="b")
    granted = moved(10, "a", "b"), moved(20, "b", "b")
    assert not laws(*granted, delivered(30, "b"))
    assert laws(*granted, delivered(30, "a")) == {"queue ownership"}
    assert laws(granted[1], delivered(30, "b")) == {"queue ownership"}, (
        "the first has not let it go"
    )


@pytest.mark.parametrize(
    "excuse", [moved(5, "b", "b", is_claim=True), InstanceCrashed(5, "a", A, lost=True)]
)
def test_what_was_given_to_a_second_one_and_a_lost_disk_are_named_exceptions(
    excuse: Operation,
) -> None:
    assert not laws(excuse, moved(6, "b", "b"), delivered(30, "b"))


def test_what_a_moved_instance_had_is_its_own_elsewhere() -> None:
    """What it was may go on: what it knew then, and takes in since, is a named exception."""
    gone = InstanceMoved(5, "a", "a#0", A), InstanceStarted(6, "a", C, True)
    came = journaled(7, "a", A, B)._replace(incarnation=C)
    assert not laws(*gone, came, delivered(30, "a"), delivered(31, "a#0"), holds("a"), holds("b"))
    again = [journaled(8, "b"), journaled(9, "a", B)._replace(incarnation=C)]
    again = [each._replace(sequences=(2,)) for each in again]
    other = delivered(30, "a")._replace(keys=((P, 2),))  # type: ignore[union-attr]
    assert laws(*gone, came, *again, other) == {"queue ownership"}, "it is of b"
    late = journaled(8, "a")._replace(instance="a#0", sequences=(2,))
    assert not laws(*gone, came, late, *again, other)


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (None, {"queue lease"}),
        (QueueReturned(20, "a", QUEUE, 1, (KEY,)), set()),
        (QueueReturned(20, "a", QUEUE, 1), set()),
        (QueueReturned(20, "a", QUEUE, 2), {"queue lease"}),
        (InstanceCrashed(20, "a", A, lost=False), set()),
    ],
)
def test_nobody_is_given_what_another_one_has(ended: Operation | None, wrong: set[str]) -> None:
    found = laws(delivered(10, "a"), *([ended] if ended else []), delivered(30, "a", session=2))
    assert found == wrong
    assert not laws(delivered(10, "a"), delivered(10 + LEASE_US, "a", session=2))


def test_nothing_is_delivered_behind_its_acknowledgment() -> None:
    found = laws(delivered(10, "a"), recorded(20, "b"), recorded(25, "a"), delivered(30, "a"))
    assert found == {"queue removal"}
    assert not laws(delivered(10, "a"), recorded(20, "b"), delivered(200, "a"))


def test_what_is_sent_once_has_left_and_is_sent_once() -> None:
    sent, again = (delivered(at_us, "a", is_sent=True) for at_us in (20, 30))
    assert not laws(recorded(10, "a", "sent"), sent, at_most_once=True)
    assert laws(sent, at_most_once=True) == {"queue at most once"}
    found = laws(recorded(10, "a", "sent"), sent, again, at_most_once=True)
    assert found == {"queue at most once"}


def test_a_queue_holds_what_its_journal_says() -> None:
    assert not laws(holds("a"), holds("b"))
    gone = delivered(10, "a"), recorded(20, "a"), recorded(20, "b")
    assert "queue journal" in laws(*gone, holds("a"), holds("b"))
    assert laws(holds("a", "b"), holds("b", "b")) == {"queue journal"}


def test_all_agree_at_rest() -> None:
    assert laws(moved(10, "a", "b"), holds("a", "b", generation=1), holds("b")) == {
        "queue agreement"
    }
    gone = delivered(10, "a"), recorded(20, "b")
    empty = QueueHolds(900, "b", QUEUE, (), (), False)
    assert laws(*gone, holds("a"), empty) == {"queue agreement"}


def test_nothing_is_stuck_and_everything_is_consumed() -> None:
    stuck = QueueHolds(900, "a", QUEUE, ((*KEY, 0, "a"),), (KEY,), False)
    assert laws(stuck) == {"queue stuck"}
    assert laws(holds("a", last=True)) == {"queue consumed"}


def test_nothing_leaves_that_nobody_was_given() -> None:
    assert laws(recorded(20, "a")) == {"queue acknowledged"}
    assert not laws(recorded(20, "a", "sent"), at_most_once=True)


def test_what_leaves_undone_may_have_been_given_to_nobody() -> None:
    for why in ("time_limit", "max_cancels", "max_deliveries", "expire"):
        assert not laws(recorded(20, "a", why))


def test_nothing_overtakes_a_barrier_and_each_instance_sends_it_by_itself() -> None:
    behind = P, 2
    second = RunJournaled(5, "a", A, 5, P, (2,), TOPICS[0], (), "g", False, False)
    sent = [delivered(30, name, is_sent=True) for name in "ab"]
    gone = recorded(25, "a", "barrier"), recorded(26, "b", "barrier")
    assert not laws(*gone, *sent, recorded(31, "a"), barriers=(KEY,))
    assert laws(*sent, recorded(31, "a"), barriers=(KEY,)) == {"queue barrier"}
    assert laws(recorded(20, "a"), sent[0], barriers=(KEY,)) == {"queue barrier"}, (
        "an ack is no turn"
    )
    overtaking = delivered(40, "a")._replace(keys=(behind,))  # type: ignore[union-attr]
    assert laws(second, overtaking, barriers=(KEY,)) == {"queue barrier"}
    assert not laws(second, gone[0], sent[0], overtaking, barriers=(KEY,))
    early = delivered(40, "a", is_sent=True)._replace(keys=(behind,))  # type: ignore[union-attr]
    left = recorded(30, "a", "barrier")._replace(keys=(behind,))
    assert laws(second, left, early, barriers=(behind,)) == {"queue barrier"}
    before = recorded(4, "a", "barrier")._replace(keys=(behind,))
    late = delivered(40, "a", is_sent=True)._replace(keys=(behind,))  # type: ignore[union-attr]
    assert laws(before, second, late, barriers=(behind,)) == {"queue barrier"}, (
        "what a former life has sent is no turn of this one"
    )


@cache
def plans_with_queues() -> list[plans.Plan]:
    """Of the first seeds."""
    return [plan for plan in map(plans.draw, range(600)) if plan.queues is not None]


def with_queues() -> list[SimQueues]:
    """Theirs."""
    return [plan.queues for plan in plans_with_queues() if plan.queues is not None]


def test_some_seeds_have_queues_where_old_copies_come_back_and_instances_are_moved() -> None:
    actions = [{action for _, action, _ in plan.script} for plan in plans_with_queues()]
    assert any("put_back" in found for found in actions)
    assert any("relocate" in found for found in actions)


def test_some_seeds_have_all_that_queues_may_promise() -> None:
    found = with_queues()
    for name in ("strict", "priority", "barrier", "expiration_us", "deliveries_max", "cancels_max"):
        assert any(getattr(each.definition, name) for each in found), name
    assert any(each.takeovers for each in found)


def test_some_seeds_have_queues_of_each_kind() -> None:
    found = with_queues()
    assert {each.definition.kind for each in found} == {"queue", "local", "group_local"}
    assert len(found) < 60, "they take longer than others"


def test_a_queue_changes_nothing_of_what_else_is_drawn() -> None:
    """Topology, clients and publishes are those of the seed, with a queue or without."""
    seed = next(seed for seed in range(600) if plans.draw(seed).queues is not None)
    with_one = plans.draw(seed)
    chance, plans.QUEUES_CHANCE = plans.QUEUES_CHANCE, 0.0
    try:
        without = plans.draw(seed)
    finally:
        plans.QUEUES_CHANCE = chance
    left = [step for step in with_one.script if not str(step[2][:1]).startswith("('c")]
    assert replace(with_one, queues=None, deletes=without.deletes, script=left) == replace(
        without, script=[step for step in without.script if step in left]
    )


def set_clocks(draw: Callable[[int], plans.Plan], seed: int) -> plans.Plan:
    """A plan with a queue whose messages expire, at instances whose clocks jump both ways."""
    plan = draw(seed)
    assert plan.queues is not None
    definition = replace(plan.queues.definition, lease_us=100_000, expiration_us=400_000)
    plan.queues.definition = definition
    for at, name in enumerate(plan.topology.members):
        for number, ahead_ms in enumerate((3_600_000, -400, 7_200_000, -900, 0)):
            at_ms = plan.end_ms * (number + 1) // 6 + at
            plan.script.append((at_ms, "set_clock", (name, ahead_ms)))
    plan.script.sort(key=lambda step: step[:2])
    return plan


SEEDS_WITH_QUEUES = (7000083, 7000125, 7000221, 7000337, 7000364, 7000440)
"""Their queues are leased; the second, third and fifth have commits that fail between two jumps."""


@pytest.mark.slow
@pytest.mark.covers("Replication", "a wall clock that is set both ways")
def test_leases_and_ages_do_not_depend_on_a_clock_that_jumps_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run.plans, "draw", partial(set_clocks, plans.draw))
    for seed in SEEDS_WITH_QUEUES:
        result = run.run_seed(seed)
        assert not result.violations, (seed, result.violations[0])


@pytest.mark.parametrize(
    "planted", ["queue: goes by the wall clock", "queue: ages by the wall clock"]
)
def test_a_queue_that_goes_by_the_clock_on_the_wall_shows(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.plans, "draw", partial(set_clocks, plans.draw))
    seen: set[str] = set()
    for seed in SEEDS_WITH_QUEUES:
        result = run.run_seed(seed, (MISTAKES | SHOWN_BY_A_SCENARIO)[planted])
        seen |= {found.law for found in result.violations}
        if seen & {"queue lease", "queue expiry"}:
            return
    pytest.fail(f"not seen: {seen}")


# -- strict leasing ------------------------------------------------------------------------------


def strictly(draw: Callable[[int], plans.Plan], seed: int) -> plans.Plan:
    """A plan with a queue whose leasing is strict, and whose consumers fail over."""
    plan = draw(seed)
    assert plan.queues is not None
    definition = replace(plan.queues.definition, strict=True, at_most_once=False)
    plan.queues.definition = definition
    return plan


SEEDS_WITH_STRICT_QUEUES = (9100165, 9100210, 9100278, 9100464)
"""In the first three a client sends acknowledgments again after a failover, to an instance that has
not heard of them. In the last one an instance took one in part, while another consumer held the
rest; a client has forgotten which were acked to it, and the instance has lost its disk."""


@pytest.mark.covers("Queues", "`Leasing` strict")
def test_instances_agree_on_acknowledgments_that_are_sent_again_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run.plans, "draw", partial(strictly, plans.draw))
    probes: Counter[str] = Counter()
    for seed in SEEDS_WITH_STRICT_QUEUES:
        result = run.run_seed(seed)
        assert not result.violations, (seed, result.violations[0])
        probes.update(result.probes)
    assert probes["queue acknowledgment refused"] and probes["queue acknowledged in part"]
    assert probes["queue acknowledged under strict leasing"]


@pytest.mark.parametrize(
    ("planted", "law"),
    [
        ("queue: lenient door", "queue strict"),
        ("queue: takes foreign acknowledgments", "queue strict"),
        ("queue: cuts by its leases", "queue split"),
    ],
)
def test_what_strict_leasing_must_not_do_shows(
    planted: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.plans, "draw", partial(strictly, plans.draw))
    seed = SEEDS_WITH_STRICT_QUEUES[1]
    result = run.run_seed(seed, MISTAKES[planted])
    assert law in {found.law for found in result.violations}
