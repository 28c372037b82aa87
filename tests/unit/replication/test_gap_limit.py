"""Sequences that lie far apart are refused before they cost memory."""

from __future__ import annotations

from random import Random

import pytest
from support.held_runs import HeldRuns

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import CHUNK, PublisherRanges, SequenceSet
from raylay.services.messages.records import SEQUENCE_MAX, RecordBuilder, publisher_id
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication import gap_limit
from raylay.services.replication.effects import Append
from raylay.services.replication.gap_limit import check_gaps, check_step
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.journal_lookup import LookupResult

pytestmark = pytest.mark.covers("Configuration", "gaps in what a user's names number are bounded")

ALLOWED = gap_limit.PIECES_MAX
PIECES = 6
P = publisher_id("p")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_limit, "PIECES_MAX", PIECES)


def far_apart(count: int) -> list[int]:
    return [1 + number * 3 * CHUNK for number in range(count)]


def machine() -> InstanceMachine:
    made = InstanceMachine(
        Identity("own", "g", 1),
        [],
        TopicBook((TopicRule("orders"),)),
        lookup=HeldRuns(),
    )
    made.client_logged_on(1, "p", 0)
    return made


def records(*sequences: int) -> bytes:
    builder = RecordBuilder(P, "orders", "json")
    return b"".join(builder.build(sequence, b"x", 0) for sequence in sequences)


def publish(
    made: InstanceMachine, *sequences: int, topic: str = "orders", session: int = 1, name: str = "p"
) -> int:
    builder = RecordBuilder(publisher_id(name), topic, "json")
    payload = b"".join(builder.build(sequence, b"x", 0) for sequence in sequences)
    runs = made.client_runs(session, payload)
    effects, transient = made.client_published(session, runs, 0, LookupResult())
    made.committed(made.next_txid - 1, 0)
    return sum(e.run.count for e in effects if isinstance(e, Append)) + sum(
        run.count for run in transient
    )


def test_as_many_places_as_are_allowed_and_not_one_more() -> None:
    made = machine()
    assert publish(made, *far_apart(PIECES)) == PIECES
    with pytest.raises(RemoteProtocolError, match="under another client name") as refused:
        publish(made, far_apart(PIECES + 1)[-1])
    assert refused.value.reason == "too_many_gaps"
    assert made.known.of(P).pieces == PIECES and made.next_txid == PIECES + 1
    assert publish(made, 5 + far_apart(PIECES)[-1]) == 1, "beside what is there is no new place"


def test_one_batch_is_refused_whole_and_nothing_of_it_is_kept() -> None:
    made = machine()
    with pytest.raises(RemoteProtocolError, match="4,096 or more"):
        publish(made, *far_apart(PIECES + 1))
    assert not made.known.get(P) and made.next_txid == 1


def test_sequences_that_follow_one_another_are_never_too_many() -> None:
    made = machine()
    for first in range(1, 10 * CHUNK, 1_000):
        publish(made, *range(first, first + 1_000))
    assert made.known.of(P).pieces <= 3


def test_what_is_not_journaled_has_no_gaps() -> None:
    made = machine()
    assert publish(made, *far_apart(PIECES + 1), topic="ticks") == PIECES + 1


def test_who_has_too_many_by_links_may_fill_them() -> None:
    held = SequenceSet((at, at) for at in far_apart(PIECES + 3))
    check_gaps("p", held, [(2, 9)])
    with pytest.raises(RemoteProtocolError):
        check_gaps("p", held, [(2 * CHUNK, 2 * CHUNK)])


def test_pieces_are_never_counted_too_few() -> None:
    held = SequenceSet([(1, 5 * CHUNK), (7 * CHUNK, 7 * CHUNK)])
    for ranges in (
        [(1, 9)],
        [(CHUNK, 9 * CHUNK)],
        [(6 * CHUNK, 6 * CHUNK)],
        [(8 * CHUNK, 20 * CHUNK)],
    ):
        after = held.copy()
        for first, last in ranges:
            after.add(first, last)
        assert held.pieces_with(ranges) >= after.pieces


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have 12 pieces, a publisher 6; three are free, two more not counted at once."""
    monkeypatch.setattr(gap_limit, "USER_PIECES_MAX", 12)
    monkeypatch.setattr(gap_limit, "PIECES_FREE", 3)
    monkeypatch.setattr(gap_limit, "PIECES_UNCOUNTED", 2)


@pytest.mark.usefixtures("small")
def test_client_names_of_one_user_have_no_more_than_its_share() -> None:
    """Each name of its own had 250,000 places, for as long as the instance has its log."""
    made = machine()
    for session, name in enumerate("abcd", 2):
        made.client_logged_on(session, name, 0, user="amy")
    for session, name in enumerate("ab", 2):
        assert publish(made, *far_apart(6), session=session, name=name) == 6
    with pytest.raises(RemoteProtocolError, match="other clients of its user") as refused:
        publish(made, *far_apart(5), session=4, name="c")
    assert refused.value.reason == "too_many_gaps" and not made.known.get(publisher_id("c"))
    # Without gaps all of them go on, and so do others with gaps.
    assert publish(made, *range(1, 3 * CHUNK), session=4, name="c") == 3 * CHUNK - 1
    assert publish(made, *(at + 1 for at in far_apart(6)), session=2, name="a") == 6
    made.client_logged_on(8, "e", 0, user="bob")
    assert publish(made, *far_apart(6), session=8, name="e") == 6
    assert publish(made, *far_apart(6)) == 6, "who is nobody in particular has no such limit"


@pytest.mark.usefixtures("small")
def test_what_a_client_leaves_counts_when_it_is_gone_and_in_the_next_life() -> None:
    made = machine()
    a, b = publisher_id("a"), publisher_id("b")
    for session, name in enumerate("ab", 2):
        made.client_logged_on(session, name, 0, user="amy")
        # By so few that they were not counted at once.
        for at in far_apart(6):
            publish(made, at, session=session, name=name)
        made.client_left(session)
    made.client_logged_on(4, "plain", 0, user="amy")
    publish(made, *range(1, 2 * CHUNK), session=4, name="plain")
    made.client_left(4)
    assert made.user_gaps.unwritten == {a: "amy", b: "amy"}
    again = machine()
    again.known.update(made.known)
    again.user_gaps.recall({a: "amy", b: "amy", 77: "bob"}, again.known)
    assert again.user_gaps.unwritten == {77: ""}, "it has no gaps any more"
    for life in (made, again):
        life.client_logged_on(5, "c", 0, user="amy")
        with pytest.raises(RemoteProtocolError, match="of its user"):
            publish(life, *far_apart(5), session=5, name="c")


@pytest.mark.usefixtures("small")
def test_gaps_that_are_filled_and_names_that_change_hands_are_given_back() -> None:
    made = machine()
    made.client_logged_on(2, "a", 0, user="amy")
    publish(made, *far_apart(4), session=2, name="a")
    made.client_left(2)
    assert len(made.user_gaps) == 3
    made.client_logged_on(3, "a", 0, user="bob")
    assert made.user_gaps.unwritten == {publisher_id("a"): "bob"}
    made.known.of(publisher_id("a")).add(1, 11 * CHUNK)
    made.client_left(3)
    assert not len(made.user_gaps)
    assert made.user_gaps.unwritten == {publisher_id("a"): ""}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(20))
def test_sums_of_users_are_those_of_their_publishers(seed: int) -> None:
    random, gaps, known = Random(seed), gap_limit.UserGaps(), PublisherRanges()
    for _ in range(300):
        user, publisher = random.choice(("amy", "bob")), random.randrange(4)
        held = known.of(publisher)
        if random.random() < 0.5:
            at = random.choice(far_apart(9))
            try:
                gaps.grows(user, "c", publisher, held, [(at, at)])
            except RemoteProtocolError:
                continue  # Nothing of it counts, as nothing of it is kept.
            else:
                held.add(at, at)
        elif random.random() < 0.2:
            held.remove(1, 1 << 40)
        else:
            random.choice((gaps.begins, gaps.ends))(user, publisher, held)
        sums: dict[str, int] = {}
        for each, owner in gaps._users.items():
            sums[owner] = sums.get(owner, 0) + gaps._pieces[each]
        assert sums == gaps._totals
    for publisher in range(4):
        gaps.ends("amy", publisher, None)
    assert not len(gaps)


# -- steps ---------------------------------------------------------------------------------------
TOP = 1 << 52
"""`SEQUENCES_PLAUSIBLE`: it must not fall while clocks in microseconds come nearer."""
STEP = 1 << 40


def refusal_of(made: InstanceMachine, *sequences: int) -> str:
    with pytest.raises(RemoteProtocolError, match="from the clock in microseconds") as refused:
        publish(made, *sequences)
    return refused.value.reason


def test_nobody_uses_up_the_numbers_of_a_name() -> None:
    made = machine()
    assert refusal_of(made, SEQUENCE_MAX) == "implausible_sequence"
    assert refusal_of(made, 1, TOP + 1) == "implausible_sequence", "of the batch nothing is taken"
    assert not made.known.get(P) and made.next_txid == 1
    answer = made.client_logged_on(1, "p", 0)
    assert answer.highest == 0, "the next life numbers as if nothing had come"
    assert publish(made, 1, 2, 3) == 3


def test_the_first_of_several_topics_is_looked_at_as_well() -> None:
    made = machine()
    builders = [RecordBuilder(P, "orders", each) for each in ("json", "fix")]
    payload = builders[0].build(SEQUENCE_MAX, b"x", 0) + builders[1].build(1, b"x", 0)
    with pytest.raises(RemoteProtocolError) as refused:
        made.client_runs(1, payload)
    assert refused.value.reason == "implausible_sequence"


def test_numbers_begin_anywhere_up_to_a_clock_that_is_far_ahead() -> None:
    made = machine()
    assert publish(made, TOP) == 1


def test_who_numbers_above_that_goes_on_by_steps_until_these_are_too_many() -> None:
    made = machine()
    publish(made, TOP)
    highest = TOP
    for _ in range(PIECES - 1):
        assert refusal_of(made, highest + STEP + 1) == "implausible_sequence"
        assert publish(made, highest + STEP) == 1
        highest += STEP
    assert made.known.of(P).pieces == PIECES
    with pytest.raises(RemoteProtocolError) as refused:
        publish(made, highest + STEP)
    assert refused.value.reason in ("too_many_gaps", "implausible_sequence")
    assert len(made.client_runs(1, records(TOP, highest))) == 1, "what is here is sent again"


def test_steps_end_where_there_are_too_many_and_gaps_are_not_counted() -> None:
    known = SequenceSet()
    for number in range(PIECES - 1):
        known.add(TOP + number * STEP, TOP + number * STEP)
    highest = TOP + (PIECES - 2) * STEP
    check_step("up", highest + STEP, highest, known)
    known.add(highest + STEP, highest + STEP)
    check_step("up", highest + STEP, highest + STEP, known)
    with pytest.raises(RemoteProtocolError):
        check_step("up", highest + STEP + 1, highest + STEP, known)


def test_all_steps_that_are_allowed_leave_numbers() -> None:
    assert gap_limit.SEQUENCES_PLAUSIBLE + ALLOWED * gap_limit.STEP_MAX < SEQUENCE_MAX // 8
    assert (gap_limit.SEQUENCES_PLAUSIBLE, gap_limit.STEP_MAX) == (TOP, STEP)
