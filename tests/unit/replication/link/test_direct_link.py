"""When a connection is handed over, and what goes over it then."""

from __future__ import annotations

import random

import pytest
from unit.replication.link.test_outbound import ELSEWHERE, OWN, THERE, P, held, run

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Kind, Run
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import first_frame
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import LinkAnswered, LinkEffect, LinkProgress, SendBatch
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.link.alternate_path import SHOWN_NEEDED
from raylay.services.replication.link.direct_link import (
    BATCH_BYTES,
    BEHIND_BYTES_MAX,
    BEHIND_RUNS_MAX,
    LASTING_US,
    PAUSE_US_MAX,
    PAUSE_US_MIN,
    DirectLink,
    DirectLinkPolicy,
)
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.values import DirectLinkState

TO = DestinationRoute("there", "g", True)
MS = 1_000


def machine(sync: bool = True, last_txid: int = 0) -> OutboundLink:
    """Connected to a destination that holds all up to there."""
    made = OutboundLink(TO)
    there = held((1, last_txid)) if last_txid else PublisherRanges()
    made.connected(
        THERE, there, LinkStart(sync, RootedRanges(), RootedRanges(), OWN, last_txid), last_txid + 1
    )
    made.take([])
    made.acked(1, {}, {}, {})
    return made


def direct(last_txid: int = 0, window_bytes: int = 1 << 20) -> DirectLink:
    state = machine(last_txid=last_txid).hand_over()
    assert state is not None
    taken = OutboundLink(TO, window_bytes)
    taken.take_over(state)
    return DirectLink(taken)


def batches(effects: list[LinkEffect]) -> list[tuple[int, list[int]]]:
    return [
        (each.number, [one.first_txid for one in each.runs])
        for each in effects
        if isinstance(each, SendBatch)
    ]


# -- the link's side -----------------------------------------------------------------------------
def test_a_link_lends_once_nothing_is_on_its_way() -> None:
    link = machine()
    link.told(1)
    assert link.hand_over() is None, "a message is to be sent"
    link.take([run(1, 1)])
    assert link.hand_over() is None, "a batch is on its way"
    link.acked(2, {}, {}, {})
    state = link.hand_over()
    assert state is not None and (state.cursor, state.number) == (1, 2)
    assert not link.is_connected and not link.wants
    assert link.hand_over() is None, "it has handed it over already"


def test_a_link_that_has_asked_for_something_that_is_not_there_keeps_its_connection() -> None:
    link = machine()
    link.notice({OWN: {P: [(1, 1)]}}, 5)
    assert link.hand_over() is None


def test_what_is_handed_over_comes_whole_to_the_instance() -> None:
    state = DirectLinkState(THERE, held((1, 3), (5, 9)), 12, 7, OWN, True, held((4, 4)), True)
    found = first_frame(control.hand_over(state, 3, "B"), 1 << 20)
    assert found is not None
    assert control.read_hand_over(*found[0]) == state
    assert [found[0].header[name] for name in ("epoch", "peer")] == [3, "B"]


# -- the instance's side -------------------------------------------------------------------------
def asked(committed_txid: int = 0) -> DirectLinkPolicy:
    policy = DirectLinkPolicy(is_allowed=True)
    assert not policy.asks(caught_up=True, committed_txid=committed_txid, now_us=0)
    assert policy.asks(caught_up=True, committed_txid=committed_txid, now_us=PAUSE_US_MIN)
    return policy


def test_a_link_is_asked_once_when_it_has_been_caught_up_for_a_while() -> None:
    policy = DirectLinkPolicy(is_allowed=True)
    assert not policy.asks(caught_up=False, committed_txid=0, now_us=0)
    assert not policy.asks(caught_up=True, committed_txid=0, now_us=1)
    assert not policy.asks(caught_up=True, committed_txid=0, now_us=PAUSE_US_MIN)
    assert policy.asks(caught_up=True, committed_txid=0, now_us=1 + PAUSE_US_MIN)
    assert not policy.asks(caught_up=True, committed_txid=0, now_us=1 << 40), "it was asked"
    assert policy.taken(0, 1 << 40) == []
    assert not policy.asks(caught_up=True, committed_txid=0, now_us=1 << 41), (
        "it has handed it over"
    )


def test_nothing_is_asked_where_it_is_switched_off() -> None:
    policy = DirectLinkPolicy(is_allowed=False)
    assert not any(
        policy.asks(caught_up=True, committed_txid=0, now_us=now_us) for now_us in (0, 1 << 40)
    )


def test_what_is_committed_meanwhile_follows_what_the_link_has_sent() -> None:
    policy = asked(committed_txid=4)
    policy.committed([run(5, 5), run(6, 6)])
    policy.committed([run(7, 7)])
    found = policy.taken(5, 0)
    assert found is not None
    assert [each.first_txid for each in found] == [6, 7]


def test_a_connection_that_cannot_be_gone_on_with_is_not_taken() -> None:
    behind = asked(committed_txid=4)
    assert behind.taken(3, 0) is None, "what lies between was committed before"
    deaf = asked()
    deaf.said()
    assert deaf.taken(0, 0) is None, "it has handed it over before it heard that"
    assert not deaf.asks(caught_up=True, committed_txid=0, now_us=1 << 40), "it has none until then"
    deaf.ended(0)
    assert not deaf.asks(caught_up=True, committed_txid=0, now_us=0)
    assert deaf.asks(caught_up=True, committed_txid=0, now_us=2 * PAUSE_US_MIN)
    gap = asked()
    gap.committed([run(2, 2)])
    assert gap.taken(0, 0) is None
    many = asked()
    many.committed([run(txid, txid) for txid in range(1, BEHIND_RUNS_MAX + 2)])
    assert many.taken(0, 0) is None
    assert DirectLinkPolicy(is_allowed=True).taken(0, 0) is None, "nobody has asked"


def test_pauses_grow_with_each_failure_and_end_with_a_lasting_loan() -> None:
    def pause_us(policy: DirectLinkPolicy, now_us: int) -> int:
        for after_us in range(0, PAUSE_US_MAX + 1, PAUSE_US_MIN):
            if policy.asks(caught_up=True, committed_txid=0, now_us=now_us + after_us):
                return after_us
        raise AssertionError("never asked")

    policy = asked()
    policy.kept(0, for_good=False)
    assert pause_us(policy, 0) == 2 * PAUSE_US_MIN
    assert policy.taken(0, 0) == []
    policy.ended(1)
    assert pause_us(policy, 1) == 4 * PAUSE_US_MIN
    for _ in range(20):
        policy.ended(1)
        last_us = pause_us(policy, 1)
    assert last_us == PAUSE_US_MAX
    assert policy.taken(0, 0) == []
    policy.ended(LASTING_US)
    assert pause_us(policy, 1) == PAUSE_US_MIN


def test_a_connection_of_a_kind_that_is_not_handed_over_is_never_asked_for_again() -> None:
    policy = asked()
    policy.kept(0, for_good=True)
    assert not policy.asks(caught_up=True, committed_txid=0, now_us=1 << 40)


# -- what goes over it ---------------------------------------------------------------------------
def test_what_is_committed_goes_out_and_its_answer_comes_back() -> None:
    link = direct(last_txid=3)
    assert batches(link.committed([run(4, 4), run(5, 5)], 0)) == [(2, [4, 5])]
    assert batches(link.committed([run(6, 6)], 0)) == [(3, [6])]
    answered = link.acked(3, {}, {OWN: {P: [(4, 6)]}}, {}, 0)
    assert LinkAnswered({OWN: {P: [(4, 6)]}}, {}) in answered
    assert link.machine.stored_txid == 6 and not link.trouble
    with pytest.raises(RemoteProtocolError):
        link.acked(4, {}, {}, {}, 0)


def test_what_is_held_there_is_only_asked_for() -> None:
    link = direct(last_txid=3)
    (sent,) = [
        each for each in link.notice({OWN: {P: [(2, 2)]}}, 3, 0) if isinstance(each, SendBatch)
    ]
    assert sent.runs == [] and sent.awaited == {OWN: {P: [(2, 2)]}}


def test_what_the_window_keeps_back_goes_out_with_the_next_ack() -> None:
    link = direct(window_bytes=1)
    assert batches(link.committed([run(1, 1)], 0)) == [(2, [1])]
    assert batches(link.committed([run(2, 2)], 0)) == []
    assert batches(link.committed([run(3, 3)], 0)) == []
    assert batches(link.acked(2, {}, {}, {}, 0)) == [(3, [2, 3])]


def test_who_takes_nothing_is_given_up() -> None:
    link = direct(window_bytes=1)
    link.committed([run(1, 1)], 0)
    large = run(2, 2)
    large.payload = b"x" * (BEHIND_BYTES_MAX + 1)
    link.committed([large], 0)
    assert "more slowly" in link.trouble
    slow = direct(window_bytes=1)
    slow.committed([run(1, 1)], 0)
    slow.committed([run(txid, txid) for txid in range(2, BEHIND_RUNS_MAX + 3)], 0)
    assert "more slowly" in slow.trouble


@pytest.mark.parametrize("unavailable", [False, True])
def test_what_is_in_the_journal_only_is_left_to_the_link(unavailable: bool) -> None:
    link = direct(last_txid=3)
    found: Run = run(4 if unavailable else 5, 5)
    if unavailable:
        found.kind = Kind.UNAVAILABLE
    assert link.committed([found], 0) == []
    assert "journal" in link.trouble


def test_what_waits_for_another_way_goes_out_when_it_is_due() -> None:
    beside = OutboundLink(DestinationRoute("there", "g", False, pass_through=".*"))
    beside.take_over(
        DirectLinkState(THERE, PublisherRanges(), 0, 1, OWN, False, PublisherRanges(), False)
    )
    link = DirectLink(beside)
    for txid in range(1, SHOWN_NEEDED + 1):
        link.committed([run(txid, txid, path=(ELSEWHERE,))], MS)
        link.acked(0, {P: [(txid, txid)]}, {}, {}, MS)
    late = SHOWN_NEEDED + 1
    assert batches(link.committed([run(late, late, path=(ELSEWHERE,))], 2 * MS)) == []
    due_us = link.due_us
    assert due_us is not None
    assert batches(link.look_again(due_us - 1)) == []
    assert [sent for _, sent in batches(link.look_again(due_us))] == [[late]]
    assert link.due_us is None


def test_large_commits_go_out_in_several_batches() -> None:
    link = direct(window_bytes=8 * BATCH_BYTES)
    large = [run(txid, txid) for txid in (1, 2, 3)]
    for each in large:
        each.payload = b"x" * BATCH_BYTES
    large[0].payload += b"y"
    assert [sent for _, sent in batches(link.committed(large, 0))] == [[1], [2], [3]]


class Longer(OutboundLink):
    """Passes nothing by and has no short path: `take` looks at all of it."""

    def pass_by(self, runs: list[Run]) -> list[LinkEffect] | None:
        return None

    def send_new(self, run: Run) -> list[LinkEffect] | None:
        return None


class Counting(OutboundLink):
    """Counts what goes by the short path."""

    short = 0

    def send_new(self, run: Run) -> list[LinkEffect] | None:
        effects = super().send_new(run)
        self.short += effects is not None
        return effects


@pytest.mark.parametrize("seed", range(40))
def test_what_came_from_there_is_passed_by_as_the_longer_way_does(seed: int) -> None:
    rng = random.Random(seed)
    to = DestinationRoute("there", "g", rng.random() < 0.5, pass_through=".*")
    state = DirectLinkState(THERE, held((1, 3)), 3, 7, OWN, to.sync, PublisherRanges(), True)
    links = []
    for kind in (OutboundLink, Longer):
        made = kind(to)
        made.take_over(state._replace(held=state.held.copy()))
        links.append(DirectLink(made))
    upto = sequence = 3
    passed = 0
    for step in range(1, 60):
        paths = [(THERE,), (ELSEWHERE, THERE), (THERE,), (), (ELSEWHERE,), (THERE, ELSEWHERE)]
        runs = []
        for _ in range(rng.choice((1, 1, 1, 3))):
            upto, sequence = upto + 1, sequence + rng.choice((1, 1, 2))
            runs.append(run(upto, sequence, path=rng.choice(paths)))
        said = rng.random()
        found = []
        for link in links:
            before = link.machine.cursor
            effects = link.committed(runs, step * MS)
            number = link.machine._number
            if said < 0.3:
                effects += link.acked(number, {}, {}, {}, step * MS)
            elif said < 0.4:
                shown = {P: [(sequence + 1, sequence + 1)]}
                effects += link.acked(number, shown, {}, {}, step * MS)
            elif said < 0.5:
                effects += link.notice({OWN: {P: [(sequence, sequence)]}}, upto, step * MS)
            due_us = link.due_us
            if due_us is not None:
                effects += link.look_again(due_us)
            found.append((effects, link.machine.cursor, link.machine.stored_txid, link.trouble))
            passed += not effects and link.machine.cursor > before
        assert found[0] == found[1], step
    assert passed


def test_a_new_message_is_sent_as_the_longer_way_does() -> None:
    """The window may be full, its sequence there already, or a notice may ask for it."""
    assert sum(map(sent_by_the_short_path, range(40))) > 100


def sent_by_the_short_path(seed: int) -> int:
    """Compares both ways in one random life of a link; returns how often the short one was
    taken."""
    rng = random.Random(seed)
    to = DestinationRoute("there", "g", True, pass_through=".*")
    state = DirectLinkState(THERE, held((1, 3)), 3, 7, OWN, True, PublisherRanges(), True)
    links = []
    for kind in (Counting, Longer):
        made = kind(to, rng.choice((300, 1 << 20)) if not links else links[0].machine.window_bytes)
        made.take_over(state._replace(held=state.held.copy()))
        links.append(DirectLink(made))
    upto = sequence = 3
    for step in range(1, 60):
        upto, sequence = upto + 1, sequence + rng.choice((1, 1, 1, 2, 0))
        path = rng.choice(((), (), (), (ELSEWHERE,), (THERE,)))
        said = rng.random()
        found = []
        for link in links:
            effects = link.committed([run(upto, sequence, path=path)], step * MS)
            number = link.machine._number
            if said < 0.6:
                effects += link.acked(number, {}, {}, {}, step * MS)
            elif said < 0.7:
                shown = {P: [(sequence + 1, sequence + 1)]}
                effects += link.acked(number, shown, {}, {}, step * MS)
            elif said < 0.75:
                effects += link.notice({OWN: {P: [(sequence, sequence)]}}, upto, step * MS)
            machine = link.machine
            told = machine.cursor, machine.told_txid, machine.stored_txid, machine.wants
            counts = machine.sent_records, machine.sent_bytes, machine._bytes_in_flight
            held_there = {key: value.ranges() for key, value in machine._held.sets.items()}
            found.append((effects, told, counts, held_there, link.trouble))
        assert found[0] == found[1], step
    counting = links[0].machine
    assert isinstance(counting, Counting)
    return counting.short


def test_the_commonest_commit_of_a_pair_is_passed_by() -> None:
    link = direct(last_txid=3)
    (told,) = link.committed([run(4, 4, path=(THERE,))], 0)
    assert told == LinkProgress(4, {}, False, 0)
    link.machine.told(5)
    assert link.machine.pass_by([run(6, 6, path=(THERE,))]) is None, "one is to be sent before it"
    link.machine.told_txid = 4
    for other in ((), (ELSEWHERE,), (THERE, ELSEWHERE)):
        assert link.machine.pass_by([run(5, 5, path=other)]) is None
    assert link.machine.pass_by([run(6, 6, path=(THERE,))]) is None, "one is missing before it"
    assert link.machine.cursor == 4
