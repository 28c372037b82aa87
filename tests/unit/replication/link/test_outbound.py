"""The link's machine: what it sends, marks, asks and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Flag, RecordBuilder, Run, run_of, scan
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkEffect,
    LinkLacks,
    LinkProgress,
    Ranges,
    Rooted,
    SendBatch,
)
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.link.alternate_path import (
    DEFERRED_US_MAX,
    MISSES_MAX,
    PATIENCE_US,
    SHOWN_NEEDED,
)
from raylay.services.replication.link.outbound import YOURS_SHOWN_MAX, OutboundLink
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.unavailable import encode_unavailable

pytestmark = pytest.mark.covers(
    "Resync and bootstrap", "start at the earliest message that the other"
)

P = 0x11
ANOTHER = 0x22
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


def rooted(ranges: Rooted) -> RootedRanges:
    made = RootedRanges()
    for root, publishers in ranges.items():
        for publisher, pairs in publishers.items():
            made.of(root).add_ranges(publisher, pairs)
    return made


def link(
    *there: tuple[int, int],
    last_txid: int = 0,
    sync: bool = True,
    notice: Rooted | None = None,
    mark: Rooted | None = None,
    window_bytes: int = 1 << 20,
    removed: PublisherRanges | None = None,
) -> OutboundLink:
    """A link that has just connected."""
    made = OutboundLink(
        DestinationRoute("d", "g", sync, pass_through=".*", addresses=("d",)),
        window_bytes,
        (removed or PublisherRanges()).copy,
    )
    start = LinkStart(
        sync=sync,
        own_root=OWN,
        notice=rooted(notice or {}),
        mark=rooted(mark or {}),
        last_txid=last_txid,
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


@pytest.mark.covers("Resync and bootstrap", "checkpoints: a quiet instance is known to be up")
def test_the_first_batch_ends_an_empty_resync() -> None:
    made = link()
    assert made.wants
    assert sent(made.take([])) == [(1, [], {}, True)]
    assert not made.wants and not made.resyncing
    (progress,) = made.acked(1, {}, {}, {})
    assert isinstance(progress, LinkProgress) and progress.caught_up


@pytest.mark.covers("The replication chapters", "from the earliest message that the other")
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


def test_what_is_removed_before_a_caught_up_link_could_send_it_is_told_with_what_is_left() -> None:
    """By hand, say: retention waits for a link. Once for each gap."""
    gone = held((1, 1))
    made = link((1, 1), removed=gone)
    made._removed = gone.copy
    made.take([])
    made.told(9)
    assert not lacked(made.take([run(2, 2)]))
    for first, upto, left in ((3, 4, 5), (6, 7, 8)):
        gone.add(P, 1, upto)
        effects = made.take([run(left, left)])
        (batch,) = [effect for effect in effects if isinstance(effect, SendBatch)]
        assert batch.lacks is not None and list(batch.lacks.sets[P])[-1] == (first, upto)
        assert [effect for effect in effects if isinstance(effect, LinkLacks)]
        assert sent(effects)[0][1] == [{P: [(left, left)]}]
    assert not lacked(made.take([run(9, 9)]))


def lacked(effects: list[LinkEffect]) -> bool:
    return any(isinstance(each, SendBatch) and each.lacks for each in effects)


@pytest.mark.covers("The replication chapters", "what it has is skipped")
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


def test_segments_behind_a_gap_are_not_skipped() -> None:
    """What was removed between them is first to be told of."""
    made = link((1, 6), last_txid=6)
    made.skip_segments([(1, 2, held((1, 2))), (5, 6, held((5, 6)))])
    assert made.cursor == 2


def test_a_segment_that_goes_on_behind_the_connect_is_not_skipped() -> None:
    """What was committed here since the connect is owed, though it was held there before: only
    `take` asks for its answer."""
    made = link((1, 4), last_txid=2)
    made.told(4)
    made.skip_segments([(1, 2, held((1, 2))), (3, 4, held((3, 4)))])
    assert made.cursor == 2
    made = link((1, 4), last_txid=2)
    made.told(4)
    made.skip_segments([(1, 4, held((1, 4)))])
    assert made.cursor == 0


@pytest.mark.covers("The replication chapters", "the four conditions")
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
    taken = made.take([run(1, 1, 2, path=(ELSEWHERE,))])
    assert sent(taken) == [(2, [{P: [(2, 2)]}], {ELSEWHERE: {P: [(1, 1)]}}, False)]
    assert made.skipped == 1


def test_what_a_client_published_here_and_is_held_there_is_sent_to_be_compared() -> None:
    """Another client of that name may have published another content there. While a resync lasts
    only what is still waited for: the rest is asked for."""
    made = link()
    made.take([])
    made.told(2)
    made.acked(1, {P: [(1, 1)]}, {}, {})
    assert sent(made.take([run(1, 1, 2)])) == [(2, [{P: [(1, 2)]}], {}, False)]
    made = link((3, 3), last_txid=3, mark={OWN: {P: [(2, 2)]}})
    made.acked(0, {P: [(1, 2)]}, {}, {})
    assert sent(made.take([run(1, 1, 2, 3)])) == [(1, [{P: [(2, 2)]}], {OWN: {P: [(1, 1)]}}, True)]


def test_what_came_there_during_a_resync_is_owed_until_its_answer() -> None:
    made = link(last_txid=2)
    made.acked(0, {P: [(1, 1)]}, {}, {})
    effects = made.take([run(1, 1, 2, path=(ELSEWHERE,))])
    assert sent(effects) == [(1, [{P: [(2, 2)]}], {ELSEWHERE: {P: [(1, 1)]}}, True)]
    found = [effect.resending for effect in effects if isinstance(effect, LinkProgress)]
    assert found[0] == {P: [(1, 1), (2, 2)]}


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
    effects = made.notice({ELSEWHERE: {P: [(1, 2)]}}, 2)
    assert sent(effects) == [(2, [], {ELSEWHERE: {P: [(1, 1)]}}, False)]
    assert sent(made.take([run(2, 2)])) == [(3, [{P: [(2, 2)]}], {ELSEWHERE: {P: [(2, 2)]}}, False)]


def test_what_was_held_and_not_answered_at_the_connect_is_sent_again_to_be_compared() -> None:
    made = link((1, 2), last_txid=2, notice={OWN: {P: [(2, 2)]}})
    assert not made.skip_headers([run(1, 1, 2)])
    assert sent(made.take([run(1, 1, 2)])) == [(1, [{P: [(2, 2)]}], {}, True)]


def test_what_is_to_be_compared_and_is_removed_here_is_named_at_the_end_of_the_resync() -> None:
    made = link((1, 3), last_txid=3, notice={OWN: {P: [(1, 2)]}}, removed=held((1, 1)))
    effects = made.take([run(2, 2, 3)])
    assert sent(effects) == [(1, [{P: [(2, 2)]}], {OWN: {P: [(1, 1)]}}, True)]
    assert not [effect for effect in effects if isinstance(effect, LinkLacks)]


def test_what_is_asked_for_and_is_removed_here_is_named_when_all_is_read() -> None:
    """The destination may have got it since, from elsewhere."""
    asked = {ELSEWHERE: {P: [(2, 2)]}}
    made = link((1, 1), last_txid=3)
    made.take([run(3, 3)])
    assert sent(made.notice(asked, 3)) == [(2, [], asked, False)]
    assert sent(made.notice(asked, 4)) == []
    made.told(4)
    assert sent(made.take([run(4, 4)])) == [(3, [{P: [(4, 4)]}], asked, False)]
    made.notice({OWN: {P: [(5, 5)]}}, 5)
    made.told(5)
    assert sent(made.take([run(5, 5, awaited=False)])) == [
        (4, [{P: [(5, 5)]}], {OWN: {P: [(5, 5)]}}, False)
    ]


def test_what_was_asked_for_by_its_name_is_asked_for_again_when_it_is_shown() -> None:
    """The destination did not know it then: of what it does not have it keeps no question."""
    asked = {ELSEWHERE: {P: [(2, 3)]}}
    made = link((1, 1), last_txid=4)
    made.take([run(4, 4)])
    assert sent(made.notice(asked, 4)) == [(2, [], asked, False)]
    assert not sent(made.acked(2, {P: [(5, 9)]}, {}, {}))
    assert sent(made.acked(2, {P: [(3, 9)]}, {}, {})) == [
        (3, [], {ELSEWHERE: {P: [(3, 3)]}}, False)
    ]
    assert not sent(made.acked(3, {P: [(3, 9)]}, {}, {})), "once"
    made.set_mode(False)
    assert not sent(made.acked(3, {P: [(2, 2)]}, {}, {})), "nobody waits any more"


def test_the_window_counts_what_is_not_stored_and_notices_pass_it() -> None:
    made = link(window_bytes=50)
    made.take([])
    made.acked(1, {}, {}, {})
    made.told(2)
    made.take([run(1, 1)])
    assert not made.wants
    assert len(sent(made.notice({OWN: {P: [(1, 1)]}}, 1))) == 1
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
    assert not made.wants and made.notice({OWN: {P: [(1, 1)]}}, 1) == []
    made.connected(THERE, held((1, 1)), LinkStart(True, rooted({}), rooted({}), OWN, 2), 1)
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
    # In the next connection it may be another server, or have another old copy.
    made.disconnected()
    start = LinkStart(
        sync=True, own_root=OWN, notice=RootedRanges(), mark=RootedRanges(), last_txid=60
    )
    made.connected(THERE, held((1, 3)), start, 1)
    assert made.skip_headers(runs)
    (again,) = [e for e in made.take([]) if isinstance(e, SendBatch)]
    assert again.yours == {P: [(4, 10), (11, 20)]}


def test_what_came_round_since_the_connect_is_shown_and_what_came_from_there_is_not() -> None:
    made = link((1, 3))
    made.take([])
    for runs, shown in (
        ([run(1, 4, 5, path=(THERE,))], []),
        ([run(3, 2, 3, path=(THERE, ELSEWHERE))], []),
        (
            [run(5, 6, 7, path=(THERE, ELSEWHERE)), run(7, 9, path=(THERE, ELSEWHERE))],
            [(6, 7), (9, 9)],
        ),
    ):
        made.told(runs[-1].last_txid)
        batches = [each for each in made.take(runs) if isinstance(each, SendBatch)]
        assert [(each.runs, each.yours) for each in batches] == [([], {P: shown})] * bool(shown)


def test_of_a_run_with_holes_the_records_say_what_came_from_there() -> None:
    """4 to 6 never were in it: that they are not there says nothing."""
    made = link((1, 3), (7, 10), last_txid=7)
    whole = run(1, 1, 2, 3, 7, 8, 9, 10, path=(THERE,))
    header = replace(whole, payload=b"")
    assert not made.skip_headers([header]), "read it with its records"
    assert all(not e.yours for e in made.take([whole]) if isinstance(e, SendBatch))


MS = 1_000


def link_beside_another() -> OutboundLink:
    """An async link that has sent what others brought to it, and was shown three times that the
    destination gets such messages without it."""
    made = link(sync=False)
    made.take([], MS)
    for number in (1, 2, 3):
        made.told(number)
        assert numbers(made.take([run(number, number, path=(ELSEWHERE,))], MS)) == [number]
        made.acked(number + 1, {P: [(number, number)]}, {}, {})
    return made


def link_beside_two_others() -> OutboundLink:
    """As `link_beside_another`, and a message of another publisher came by the same way, as 4."""
    made = link_beside_another()
    made.told(4)
    runs = [run_of_another(4, 1)]
    assert not numbers(made.take(runs, MS))
    made.acked(0, {ANOTHER: [(1, 1)]}, {}, {})
    assert not numbers(made.take(runs, MS)) and made.cursor == 4
    return made


def run_of_another(txid: int, sequence: int) -> Run:
    """A run of another publisher that came by the same way."""
    builder = RecordBuilder(ANOTHER, "orders", "json")
    payload = builder.build(sequence, b"body", 0)
    (chunk,) = scan(payload)
    made = run_of(chunk, payload)
    made.first_txid, made.path, made.group = txid, (ELSEWHERE,), "g"
    return made


def numbers(effects: list[LinkEffect]) -> list[int]:
    return [
        sequence
        for effect in effects
        if isinstance(effect, SendBatch)
        for each in effect.runs
        for a, b in each.ranges()
        for sequence in range(a, b + 1)
    ]


def test_what_the_destination_is_seen_to_get_elsewhere_waits_and_is_skipped_when_shown() -> None:
    made = link_beside_another()
    made.told(5)
    runs = [run(4, 4, path=(ELSEWHERE,)), run(5, 5)]
    assert not numbers(made.take(runs, 2 * MS))
    assert not made.wants and made.cursor == 3, "what is behind it waits, too: order is kept"
    assert made.stored_txid == 3
    made.acked(0, {P: [(4, 4)]}, {}, {})
    assert made.wants
    assert numbers(made.take(runs, 3 * MS)) == [5]
    assert (made.skipped, made.deferrals_ended, made.due_us) == (1, 0, None)


def test_what_is_not_shown_in_time_is_sent_and_the_next_ones_sooner_and_sooner() -> None:
    made = link_beside_another()
    made.told(100)
    now_us = 2 * MS
    waited_us = []
    for number in range(4, 4 + MISSES_MAX + 1):
        head = run(number, number, path=(ELSEWHERE,))
        assert not numbers(made.take([head], now_us))
        due_us = made.due_us
        assert due_us is not None
        made.look_again()
        assert not numbers(made.take([head], due_us - 1))
        made.look_again()
        assert numbers(made.take([head], due_us)) == [number]
        waited_us.append(due_us - now_us)
        now_us = due_us
    assert PATIENCE_US <= waited_us[0] <= 1.5 * PATIENCE_US
    assert waited_us == sorted(waited_us, reverse=True) and sum(waited_us) < 3 * PATIENCE_US
    last = 4 + MISSES_MAX
    # It is believed again, but not as soon.
    for number in range(last + 1, last + 1 + 4 * SHOWN_NEEDED):
        assert numbers(made.take([run(number, number, path=(ELSEWHERE,))], now_us)) == [number]
        made.acked(0, {P: [(number, number)]}, {}, {})
    last = number + 1
    assert not numbers(made.take([run(last, last, path=(ELSEWHERE,))], now_us))


def test_one_that_is_only_slow_is_waited_for_longer() -> None:
    """As long as messages had to wait before, three times over."""
    made = link_beside_another()
    made.told(100)
    now_us = 2 * MS
    slow_us = PATIENCE_US * 2 // 3
    head = run(4, 4, path=(ELSEWHERE,))
    assert not numbers(made.take([head], now_us))
    now_us += slow_us
    made.acked(0, {P: [(4, 4)]}, {}, {})
    assert not numbers(made.take([head], now_us)) and made.skipped == 1
    assert not numbers(made.take([run(5, 5, path=(ELSEWHERE,))], now_us))
    due_us = made.due_us
    assert due_us is not None and due_us - now_us >= 3 * slow_us


def test_a_message_waits_while_others_of_its_way_are_shown_but_not_for_ever() -> None:
    made = link_beside_two_others()
    made.told(5)
    now_us = began_us = 2 * MS
    head = run(5, 5, path=(ELSEWHERE,))
    assert not numbers(made.take([head], now_us))
    while now_us - began_us < DEFERRED_US_MAX:
        now_us += PATIENCE_US // 2
        made.acked(0, {ANOTHER: [(now_us, now_us)]}, {}, {})
        found = numbers(made.take([head], now_us))
        assert bool(found) == (now_us - began_us >= DEFERRED_US_MAX)


def until_sent(made: OutboundLink, messages: int, shown: Callable[[int, int], Ranges]) -> int:
    """Has a link take messages from 5 on that others brought, an ack each ten milliseconds.

    Args:
        shown: What an ack shows, by its number and the message that is next.

    Returns:
        Microseconds until all of them were sent.
    """
    made.told(4 + messages)
    now_us = began_us = 2 * MS
    next_one, acks = 5, 0
    while next_one < 5 + messages:
        if made.wants:
            runs = [run(n, n, path=(ELSEWHERE,)) for n in range(next_one, 5 + messages)]
            next_one += len(numbers(made.take(runs, now_us)))
            continue
        now_us += 10 * MS
        acks += 1
        if made.due_us is not None and made.due_us <= now_us:
            made.look_again()
        made.acked(0, shown(acks, next_one), {}, {})
        assert now_us - began_us < 60_000 * MS, f"message {next_one} after a minute"
    return now_us - began_us


@pytest.mark.parametrize("connections", [1, 2])
def test_a_message_that_another_way_has_passed_by_waits_no_more(connections: int) -> None:
    """A resync after the target was killed: the destination had the messages before the other link
    told of them, and shows live ones of the same publisher all the time."""
    made = link_beside_another()
    made.take([run(4, 4)], MS)
    spent_us = until_sent(
        made, 1_000 * connections, lambda acks, _: {P: [(10_000 + acks, 10_000 + acks)]}
    )
    assert spent_us <= PATIENCE_US


def test_what_another_way_passed_by_in_an_earlier_connection_says_nothing_in_the_next_one() -> None:
    """Another server may answer there, which the other way has not brought so far yet."""
    made = link_beside_another()
    made.acked(0, {P: [(10_000, 10_000)]}, {}, {})
    made.disconnected()
    start = LinkStart(
        sync=False, own_root=OWN, notice=RootedRanges(), mark=RootedRanges(), last_txid=3
    )
    made.connected(THERE, held((1, 3)), start, 4)
    made.take([], MS)
    made.told(4)
    assert not numbers(made.take([run(4, 4, path=(ELSEWHERE,))], MS))
    assert made.due_us is not None


@pytest.mark.covers("Resync and bootstrap", "a resync beside another link is over soon")
def test_messages_of_others_do_not_renew_the_patience_for_one_that_never_comes() -> None:
    """The link waits for the first one as long as it may, and for each next one half as long as
    before, until it does not believe the way any more."""
    made = link_beside_two_others()
    spent_us = until_sent(made, 1_000, lambda acks, _: {ANOTHER: [(100 + acks, 100 + acks)]})
    assert DEFERRED_US_MAX <= spent_us <= DEFERRED_US_MAX + 3 * PATIENCE_US


@pytest.mark.parametrize("sync", [False, True])
def test_only_what_others_brought_waits_and_only_on_an_async_link(sync: bool) -> None:
    made = link_beside_another() if not sync else link(sync=True)
    made.take([], MS)
    for number in range(4):
        made.acked(0, {P: [(200 + number, 200 + number)]}, {}, {})
    made.told(5)
    assert numbers(made.take([run(4, 4)], MS)) == [4], "its own is its turn"
    other = run(5, 5, path=(ELSEWHERE, 0xD))
    assert numbers(made.take([other], MS)) == [5], "another way was not seen"


def test_an_ack_of_what_was_not_sent_frees_nothing() -> None:
    made = link()
    made.take([])
    with pytest.raises(RemoteProtocolError, match="ack of batch 2 came, and 1 is the last"):
        made.acked(2, {}, {}, {})
    assert made.acked(0, {}, {}, {}) == [], "it is not taken for stored"
    (progress,) = made.acked(1, {}, {}, {})
    assert isinstance(progress, LinkProgress) and progress.caught_up
