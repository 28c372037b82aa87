"""services/verification/laws/queue_delivery.py: a clean load is clean, and each mistake is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from raylay.services.verification.laws.queue_delivery import (
    KNOWN_US,
    ArrivalSpan,
    ExcusedPeriod,
    HandedMessage,
    Kill,
    ProducerRecord,
    QueueEvidence,
    QueueJournal,
    QueueVerdict,
    RegionTally,
    keys_of,
    verdict_of,
    violations,
)

pytestmark = pytest.mark.covers("Drills", "messages of a queue against publishers")

EAST, WEST = 7, 9
S = 1_000_000
TIMES = {EAST: {1: 1 * S, 2: 2 * S, 3: 8 * S}, WEST: {5: 2 * S}}


def evidence() -> QueueEvidence:
    """Two regions of one instance each. Of what east published, 2 received to a consumer that
    died, and was moved to west with 3."""
    return QueueEvidence(
        [
            ProducerRecord(EAST, "east", TIMES[EAST], 3),
            ProducerRecord(WEST, "west", TIMES[WEST], 5),
        ],
        [
            HandedMessage(1 * S, 1 * S, (EAST, 1), "east-1", "east-w1", "east"),
            HandedMessage(2 * S, 2 * S, (WEST, 5), "west-1", "west-w1", "west"),
            HandedMessage(3 * S, 3 * S, (EAST, 2), "east-1", "east-w1", "east"),
            HandedMessage(5 * S, 5 * S, (EAST, 2), "west-1", "west-w1", "west"),
            HandedMessage(9 * S, 9 * S, (EAST, 3), "west-1", "west-w1", "west"),
        ],
        {(EAST, 1), (EAST, 2), (EAST, 3), (WEST, 5)},
        {name: journal() for name in ("east-1", "west-1")},
        {"east-1": 0, "west-1": 0},
    )


def journal() -> QueueJournal:
    return QueueJournal(
        [
            ArrivalSpan(1 * S, EAST, 1, 2, owner="east-1"),
            ArrivalSpan(2 * S, WEST, 5, 5, owner="west-1"),
            ArrivalSpan(8 * S, EAST, 3, 3, owner="east-1"),
        ],
        [
            ArrivalSpan(1 * S + 9, EAST, 1, 1, "ack"),
            ArrivalSpan(2 * S + 9, WEST, 5, 5, "ack"),
            ArrivalSpan(9 * S, EAST, 2, 3, "ack"),
        ],
        [
            ArrivalSpan(4 * S, EAST, 2, 2, owner="west-1"),
            ArrivalSpan(9 * S, EAST, 3, 3, owner="west-1"),
        ],
    )


def given_nobody(found: QueueEvidence) -> None:
    found.given = [each for each in found.given if each.key != (EAST, 1)]


def not_journaled(found: QueueEvidence) -> None:
    found.journals["west-1"].messages.pop(0)


def never_gone(found: QueueEvidence) -> None:
    found.journals["west-1"].gone.pop(0)


def undone(found: QueueEvidence) -> None:
    gone = found.journals["east-1"].gone
    gone[0] = gone[0]._replace(why="max_deliveries")


def acked_by_nobody(found: QueueEvidence) -> None:
    found.acked = set(found.acked) - {(WEST, 5)}


def still_held(found: QueueEvidence) -> None:
    found.left = {"east-1": 0, "west-1": 2}


def given_again(found: QueueEvidence) -> None:
    found.given = [
        *found.given,
        HandedMessage(6 * S, 5 * S, (EAST, 1), "east-1", "east-w2", "east"),
    ]


def given_by_another(found: QueueEvidence) -> None:
    found.journals["west-1"].moves.pop()


def never_published(found: QueueEvidence) -> None:
    found.given = [
        *found.given,
        HandedMessage(9 * S, 9 * S, (WEST, 6), "west-1", "west-w1", "west"),
    ]


PLANTED: list[tuple[Callable[[QueueEvidence], None], str, str]] = [
    (
        given_nobody, "queue lost",
        "1 messages were acknowledged to their publisher and delivered to no consumer: "
        "sequence 1 of publisher 7",
    ),
    (not_journaled, "queue lost", "2 messages are not in the journal of west-1: "),
    (
        never_gone, "queue left over",
        "1 messages have not left the queue, by the journal of west-1: sequence 1 of publisher 7",
    ),
    (undone, "queue left over", (
        "1 messages left the queue of east-1 without an acknowledgment (max_deliveries): "
    )),
    (acked_by_nobody, "queue left over", "east-1 has acknowledgments that no consumer made: "),
    (still_held, "queue left over", "west-1 reports that 2 messages are still in its queue"),
    (
        given_again, "queue again",
        "east-1 delivered sequence 1 of publisher 7 to east-w2 4000 ms or more after its "
        "journal had",
    ),
    (
        given_by_another, "queue owner",
        "west-1 delivered sequence 3 of publisher 7 to west-w1, which by its journal was never "
        "its own",
    ),
    (
        never_published, "queue unpublished",
        "west-w1 received sequence 6 of publisher 9 from west-1: nobody published it",
    ),
]  # fmt: skip


def test_what_keeps_every_promise_is_clean() -> None:
    assert violations(evidence()) == []


@pytest.mark.parametrize(
    ("plant", "law", "text"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)
def test_each_mistake_is_seen(plant: Callable[[QueueEvidence], None], law: str, text: str) -> None:
    found = evidence()
    plant(found)
    told = violations(found)
    assert any(each.law == law and text in each.text for each in told), told
    verdict = verdict_of(found, {}, ())
    assert verdict.broken == told and "of the laws queue …" in verdict.sentence


def test_what_nobody_was_promised_is_no_mistake() -> None:
    found = evidence()
    # Not acknowledged to its publisher: it may be anywhere, or nowhere.
    more = {**TIMES[EAST], 4: 9 * S}
    found.produced = [found.produced[0]._replace(times_us=more), *found.produced[1:]]
    # Of an earlier drill that died: somebody has to take it away.
    found.given = [*found.given, HandedMessage(9 * S, 9 * S, (3, 1), "west-1", "west-w1", "west")]
    assert violations(found) == []
    assert verdict_of(found, {}, ()).given == 5
    # Given twice before it was acknowledged, and so soon behind that nobody can tell.
    found.given = [
        *found.given,
        HandedMessage(S + KNOWN_US, S + KNOWN_US, (EAST, 1), "east-1", "east-w2", "east"),
    ]
    assert violations(found) == []


def test_who_could_not_act_on_what_it_knew_is_excused_so_long() -> None:
    found = evidence()
    given_again(found)
    stopped = ExcusedPeriod("east-1", S, 5 * S - 9)
    for excuses, wrong in (
        ((stopped,), 0),
        ((stopped._replace(until_us=3 * S),), 1),
        ((stopped._replace(instance="west-1"),), 1),
        ((stopped._replace(since_us=7 * S, until_us=8 * S),), 1),
    ):
        found.excuses = excuses
        assert len(violations(found)) == wrong, excuses


def test_whose_a_message_was_before_a_disk_was_lost_nobody_knows() -> None:
    found = evidence()
    given_by_another(found)
    found.new = ("west-1",)
    assert violations(found) == []


def test_an_acknowledgment_may_cover_more_than_anybody_published() -> None:
    wide = ArrivalSpan(1, EAST, 1, (1 << 64) - 1, "ack")
    assert keys_of([wide], {(EAST, 3), (EAST, 1 << 63), (WEST, 3)}) == {
        (EAST, 3): wide, (EAST, 1 << 63): wide,
    }  # fmt: skip


def test_what_others_took_over_is_measured() -> None:
    kill = Kill("east", int(3.5 * S), int(9.5 * S), 1)
    verdict = verdict_of(evidence(), {"west": 3}, [kill], ["East slept."])
    (found,) = verdict.takeovers
    assert (found.region, found.held, found.first_ms, found.moved) == ("east", 1, 1_500.0, 2)
    assert (found.published, found.p50_ms, found.longest_ms) == (1, 1_000.0, 1_000.0)
    assert (verdict.published, verdict.persisted, verdict.given) == (4, 4, 5)
    assert (verdict.moved, verdict.again) == (1, 1)
    assert verdict.regions == {
        "east": RegionTally(published=3, given=2),
        "west": RegionTally(published=1, given=3, taken=2, acknowledged=3),
    }
    ordered = verdict_of(evidence(), {"west": 3, "south": 0, "east": 0}, ())
    assert list(ordered.regions) == ["west", "south", "east"]
    assert "4 messages that were acknowledged" in verdict.sentence
    assert "1 was first delivered in another region" in verdict.sentence
    assert "at all 2 instances" in verdict.sentence and verdict.sentence.endswith("East slept.")
    # Nobody had anything of it while they were away.
    (none,) = verdict_of(evidence(), {}, [replace_region(kill)]).takeovers
    assert none.first_ms is None and not none.moved


def replace_region(kill: Kill) -> Kill:
    return kill._replace(region="west")


def test_what_was_not_judged_says_why() -> None:
    assert replace(QueueVerdict(), why="it has none").sentence == (
        "Queues were not judged: it has none."
    )
