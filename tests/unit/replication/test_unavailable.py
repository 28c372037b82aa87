"""What an instance lacks and no upstream has any more: who may say so, when, and until when."""

from __future__ import annotations

import pytest

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.replication.unavailable import (
    RANGES_SHOWN_MAX,
    UnavailableMessages,
    decode_unavailable,
)

pytestmark = pytest.mark.covers("Resync and bootstrap", "what no upstream has any more is recorded")

P, Q = 1, 2
UP, OTHER = 0xA, 0xB


def ranges(*pairs: Range, publisher: int = P) -> PublisherRanges:
    made = PublisherRanges()
    made.add_ranges(publisher, pairs)
    return made


def test_it_is_noted_once_and_void_when_it_comes() -> None:
    known = ranges((5, 9))
    found = UnavailableMessages(PublisherRanges(), known)
    assert not found.is_judging
    assert found.upstream_lacks("A", UP, ranges((1, 6)), True) is None
    assert found.upstream_lacks("B", OTHER, ranges((3, 3), (12, 12)), True) is None
    assert found.is_judging
    (note,) = found.judged()
    assert decode_unavailable(note) == ranges((1, 4), (12, 12))
    assert not found.is_judging and not found.ranges, "not before it is on disk"
    (told,) = found.noted(note)
    assert told.event == "messages_unavailable"
    assert told.details == {"publisher": P, "messages": 5, "ranges": [(1, 4), (12, 12)]}
    found.upstream_lacks("A", UP, ranges((1, 6)), True)
    assert found.judged() == [], "said again"
    came = found.came(P, [(2, 3), (20, 20)])
    assert came is not None and came.event == "messages_available_again"
    assert came.details["messages"] == 2 and came.details["ranges"] == [(2, 3)]
    assert found.came(P, [(2, 3)]) is None and found.came(Q, [(1, 1)]) is None
    assert found.ranges == ranges((1, 1), (4, 4), (12, 12))


def test_what_came_between_the_word_and_the_verdict_is_not_missing() -> None:
    known = PublisherRanges()
    found = UnavailableMessages(PublisherRanges(), known)
    found.upstream_lacks("A", UP, ranges((1, 3)), True)
    known.add(P, 2, 2)
    (note,) = found.judged()
    known.add(P, 3, 3)
    found.noted(note)
    assert found.ranges == ranges((1, 1))


def test_the_journal_keeps_a_note_until_a_recovery_point_tells_of_it() -> None:
    found = UnavailableMessages(PublisherRanges(), PublisherRanges())
    assert found.removable_before is None and not found.written(100)
    for txid in (7, 9):
        found.upstream_lacks("A", UP, ranges((txid, txid)), True)
        (note,) = found.judged()
        note.first_txid = txid
        found.noted(note)
    assert found.removable_before == 7
    assert not found.written(8) and found.removable_before == 7
    assert found.written(9) and found.removable_before is None


def test_a_note_that_could_not_be_written_is_judged_again() -> None:
    found = UnavailableMessages(PublisherRanges(), PublisherRanges())
    found.upstream_lacks("A", UP, ranges((1, 3)), True)
    (note,) = found.judged()
    found.not_noted(note)
    assert found.is_judging and len(found.judged()) == 1


def test_a_part_says_how_many_at_most_and_only_when_it_is_more() -> None:
    found = UnavailableMessages(PublisherRanges(), PublisherRanges())
    told = found.upstream_lacks("A", UP, ranges((1, 10)), False)
    assert told is not None and told.event == "messages_maybe_unavailable"
    assert told.details == {"peer": "A", "at_most": 10}
    assert found.upstream_lacks("A", UP, ranges((1, 10)), False) is None
    assert found.upstream_lacks("B", OTHER, ranges((1, 10)), False) is not None
    assert found.upstream_lacks("A", UP, ranges((1, 11)), False) is not None
    assert not found.is_judging and not found.ranges


def test_after_a_restart_what_is_known_is_not_missing() -> None:
    assert UnavailableMessages(ranges((1, 5)), ranges((2, 3))).ranges == ranges((1, 1), (4, 5))


def test_few_of_very_many_ranges_are_told() -> None:
    found = UnavailableMessages(PublisherRanges(), PublisherRanges())
    found.upstream_lacks("A", UP, ranges(*((n, n) for n in range(1, 99, 2))), True)
    (told,) = found.noted(found.judged()[0])
    assert len(told.details["ranges"]) == RANGES_SHOWN_MAX and told.details["messages"] == 49
