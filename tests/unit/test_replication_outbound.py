"""The link's machine: what it sends, marks, asks and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raylay.services.messages.records import Flag, RecordBuilder, Run, run_of, scan
from raylay.services.replication.acknowledgment import UNAWAITED
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkEffect,
    LinkProgress,
    Ranges,
    Rooted,
    SendBatch,
)
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.outbound import YOURS_SHOWN_MAX, OutboundLink
from raylay.services.replication.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.routing import Destination
from raylay.services.replication.unavailable import encode_unavailable

P = 0x11
OWN, THERE, ELSEWHERE = 0xA, 0xB, 0xC
BUILDER = RecordBuilder(P, "orders", "json")


def run(txid: int, *sequences: int, path: tuple[int, ...] = (), awaited: bool = True) -> Run:
    payload = b"".join(BUILDER.build(sequence, b"body", 0) for sequence in sequences)
    (chunk,) = scan(payload)
    made = run_of(chunk, payload)
    made.first_txid, made.path, made.group = txid, path, "g" if path else ""
    if awaited:
        made.flags |= Flag.AWAITED
    return made


def held(*ranges: tuple[int, int]) -> PublisherRanges:
    found = PublisherRanges()
    found.add_ranges(P, ranges)
    return found


def link(
    *there: tuple[int, int],
    last_txid: int = 0,
    sync: bool = True,
    notice: Rooted | None = None,
    mark: Rooted | None = None,
    window_bytes: int = 1 << 20,
) -> OutboundLink:
    """A link that has just connected."""
    made = OutboundLink(
        Destination("d", "g", sync, pass_through=".*", addresses=("d",)), window_bytes
    )
    start = LinkStart(
        sync=sync, own_root=OWN, notice=notice or {}, mark=mark or {}, last_txid=last_txid
    )
    made.connected(THERE, held(*there), start, 1)
    return made


def sent(effects: list[LinkEffect]) -> list[tuple[int, list[Ranges], Rooted, bool]]:
    return [
        (
            effect.number,
            [{found.publisher: found.ranges()} for found in effect.runs],
            effect.awaited,
            effect.caught_up,
        )
        for effect in effects
        if isinstance(effect, SendBatch)
    ]


def test_the_first_batch_ends_an_empty_resync() -> None:
    made = link()
    assert made.wants
    assert sent(made.take([])) == [(1, [], {}, True)]
    assert not made.wants and not made.resyncing
    (progress,) = made.acked(1, {}, {}, {})
    assert isinstance(progress, LinkProgress) and progress.caught_up


def test_a_resync_sends_what_is_missing_and_says_that_it_is_owed() -> None:
    made = link((1, 2), last_txid=4)
    effects = made.take([run(1, 1, 2, 3, 4)])
    assert sent(effects) == [(1, [{P: [(3, 4)]}], {}, True)]
    resending = [effect.resending for effect in effects if isinstance(effect, LinkProgress)]
    assert resending[0] == {P: [(3, 4)]}


def marked(effects: list[LinkEffect]) -> list[tuple[bool, list[tuple[bool, list[Any]]]]]:
    """(marked, (awaited, ranges) of its runs) of each batch."""
    return [
        (effect.marked, [(bool(r.flags & Flag.AWAITED), r.ranges()) for r in effect.runs])
        for effect in effects
        if isinstance(effect, SendBatch)
    ]


def test_a_resync_marks_only_what_is_still_waited_for() -> None:
    """What was settled with a server that then lost its disk is waited for no more: marked again,
    it would make this instance a waiter that has answered (sim seed 1881812168)."""
    made = link(last_txid=8, mark={OWN: {P: [(3, 3), (7, 8)]}})
    first = made.take([run(1, 1, 2)])
    assert marked(first) == [(False, [(True, [(1, 2)])])]
    second = made.take([run(3, 3, 4, 5), run(6, 6, 7, 8)])
    assert marked(second) == [
        (True, [(True, [(3, 3)]), (False, [(4, 5)]), (False, [(6, 6)]), (True, [(7, 8)])])
    ]
    assert marked(made.take([run(9, 9)])) == [(True, [(True, [(9, 9)])])]


def test_what_is_found_to_be_unavailable_later_is_told_as_well() -> None:
    made = link()
    made.take([])
    note = encode_unavailable(P, SequenceSet([(1, 5)]))
    note.first_txid = 1
    made.told(1)
    (batch,) = [effect for effect in made.take([note]) if isinstance(effect, SendBatch)]
    assert batch.lacks is not None and list(batch.lacks.sets[P]) == [(1, 5)]


def test_headers_are_skipped_as_far_as_the_destination_held_them_at_the_connect() -> None:
    made = link((1, 2), last_txid=4)
    assert not made.skip_headers([run(1, 1, 2), run(3, 3, 4)])
    assert made.cursor == 2
    assert link((1, 4), last_txid=4).skip_headers([run(1, 1, 2), run(3, 3, 4)])


def test_segments_are_skipped_by_what_was_held_at_the_connect_not_by_what_is_seen_since() -> None:
    """What is seen since is still to be asked for."""
    summaries = [(1, 2, held((1, 2))), (3, 4, held((3, 4)))]
    made = link((1, 2), last_txid=4)
    made.acked(0, {P: [(3, 4)]}, {}, {})
    made.skip_segments(summaries)
    assert made.cursor == 2


def test_nothing_is_sent_to_an_incarnation_in_the_path() -> None:
    made = link()
    made.take([])
    made.told(4)
    assert sent(made.take([run(1, 1, path=(THERE,)), run(2, 2, path=(ELSEWHERE,))])) == [
        (2, [{P: [(2, 2)]}], {}, False)
    ]


def test_what_the_destination_got_by_another_way_is_not_sent_but_asked_for() -> None:
    made = link()
    made.take([])
    made.told(2)
    made.acked(1, {P: [(1, 1)]}, {}, {})
    assert sent(made.take([run(1, 1, 2)])) == [(2, [{P: [(2, 2)]}], {OWN: {P: [(1, 1)]}}, False)]
    assert made.skipped == 1


def test_what_nobody_is_awaited_for_is_answered_by_being_held() -> None:
    made = link()
    made.take([])
    made.told(1)
    made.acked(1, {P: [(1, 1)]}, {}, {})
    effects = made.take([run(1, 1, path=(ELSEWHERE,), awaited=False)])
    assert not sent(effects)
    assert [e.persisted for e in effects if isinstance(e, LinkAnswered)] == [{0: {P: [(1, 1)]}}]


def test_a_notice_asks_for_what_is_there_and_marks_what_is_not() -> None:
    made = link((1, 1))
    made.take([])
    made.told(2)
    effects = made.notice({ELSEWHERE: {P: [(1, 2)]}})
    assert sent(effects) == [(2, [], {ELSEWHERE: {P: [(1, 1)]}}, False)]
    assert sent(made.take([run(2, 2)])) == [(3, [{P: [(2, 2)]}], {ELSEWHERE: {P: [(2, 2)]}}, False)]


def test_what_was_held_and_not_answered_at_the_connect_is_sent_again_to_be_compared() -> None:
    made = link((1, 2), last_txid=2, notice={OWN: {P: [(2, 2)]}})
    assert not made.skip_headers([run(1, 1, 2)])
    assert sent(made.take([run(1, 1, 2)])) == [(1, [{P: [(2, 2)]}], {}, True)]


def test_the_window_counts_what_is_not_stored_and_notices_pass_it() -> None:
    made = link(window_bytes=50)
    made.take([])
    made.acked(1, {}, {}, {})
    made.told(2)
    made.take([run(1, 1)])
    assert not made.wants
    assert len(sent(made.notice({OWN: {P: [(1, 1)]}}))) == 1
    made.acked(2, {}, {}, {})
    assert made.wants, "stored is enough, nothing is persisted"


def test_stored_is_what_lies_before_the_first_batch_in_flight() -> None:
    made = link()
    made.take([])
    made.acked(1, {}, {}, {})
    made.told(4)
    made.take([run(1, 1, 2)])
    made.take([run(3, 3, 4)])
    assert made.stored_txid == 0
    (progress,) = made.acked(2, {}, {}, {})
    assert isinstance(progress, LinkProgress) and progress.stored_txid == 2
    (progress,) = made.acked(3, {}, {}, {})
    assert isinstance(progress, LinkProgress) and progress.stored_txid == 4


def test_answers_are_passed_on_as_they_came() -> None:
    made = link()
    effects = made.acked(0, {}, {OWN: {P: [(1, 1)]}}, {P: [(2, 2)]})
    assert LinkAnswered({OWN: {P: [(1, 1)]}}, {P: [(2, 2)]}) in effects


def test_a_new_connection_begins_anew() -> None:
    made = link()
    made.take([])
    made.told(2)
    made.take([run(1, 1, 2)])
    made.disconnected()
    assert not made.wants and made.notice({OWN: {P: [(1, 1)]}}) == []
    made.connected(THERE, held((1, 1)), LinkStart(True, {}, {}, OWN, 2), 1)
    assert sent(made.take([run(1, 1, 2)])) == [(1, [{P: [(2, 2)]}], {}, True)]


@pytest.mark.parametrize("by_headers", [False, True])
def test_what_came_from_there_while_connecting_is_answered_by_having_been_there(
    by_headers: bool,
) -> None:
    """The instance owed it to a destination whose incarnation it did not know yet."""
    made = link((1, 1), last_txid=3, sync=False)
    runs = [run(1, 1, path=(THERE,)), run(2, 2, 3, path=(THERE,))]
    if by_headers:
        assert made.skip_headers(runs)
        runs = []
    effects = made.take(runs)
    assert sent(effects) == [(1, [], {}, True)]
    answers = [effect.persisted for effect in effects if isinstance(effect, LinkAnswered)]
    assert answers == [{UNAWAITED: {P: [(2, 3)]}}]


def test_what_came_from_there_and_is_not_there_is_shown_and_not_sent() -> None:
    """A few of it are enough: the destination has an old copy of its data, or got it meanwhile."""
    made = link((1, 3), last_txid=60)
    runs = [run(1, *range(1, 11), path=(THERE,)), run(11, *range(11, 21), path=(ELSEWHERE, THERE))]
    assert made.skip_headers(runs)
    (batch,) = [e for e in made.take([]) if isinstance(e, SendBatch)] or [None]
    assert batch is not None and batch.yours == {P: [(4, 10), (11, 20)]} and batch.runs == []
    many = [run(21 + at, 30 + 2 * at, path=(THERE,)) for at in range(20)]
    shown: list[tuple[int, int]] = []
    for each in many:
        for effect in made.take([each]):
            if isinstance(effect, SendBatch):
                shown += effect.yours.get(P, [])
    assert len(shown) == YOURS_SHOWN_MAX - 2


def test_of_a_run_with_holes_the_records_say_what_came_from_there() -> None:
    """4 to 6 never were in it: that they are not there says nothing."""
    made = link((1, 3), (7, 10), last_txid=7)
    whole = run(1, 1, 2, 3, 7, 8, 9, 10, path=(THERE,))
    header = replace(whole, payload=b"")
    assert not made.skip_headers([header]), "read it with its records"
    assert all(not e.yours for e in made.take([whole]) if isinstance(e, SendBatch))
