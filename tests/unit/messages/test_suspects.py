"""Messages that were in hand when a process ended (services/messages/suspects.py)."""

from __future__ import annotations

import random

import pytest

from raylay.services.messages.records import RecordBuilder, Run, iterate_records, run_of, scan
from raylay.services.messages.suspects import SINGLES_MAX, Suspect, Suspects

P = 7


class Note:
    """Keeps what it is told, as shared memory does."""

    def __init__(self) -> None:
        self.said: Suspect | None = None

    def set(self, publisher: int, first: int, last: int, deaths: int) -> None:
        self.said = Suspect(publisher, first, last, deaths)

    def clear(self) -> None:
        self.said = None


def run(*sequences: int, publisher: int = P) -> Run:
    builder = RecordBuilder(publisher, "orders", "json")
    payload = b"".join(builder.build(each, b"{}", 0) for each in sequences)
    (chunk,) = scan(payload)
    return run_of(chunk, payload)


def sequences(parts: list[Run]) -> list[list[int]]:
    return [[record.sequence for record in iterate_records(part.payload)] for part in parts]


def test_nobody_is_suspected_where_nothing_ended() -> None:
    suspects = Suspects()
    assert not suspects
    suspects.begin(run(1, 2))
    suspects.end()
    whole = run(1, 2)
    assert suspects.isolated(whole, []) == ([whole], [])


def test_those_of_another_publisher_or_other_numbers_are_none() -> None:
    suspects = Suspects(left=[Suspect(P, 5, 9, 1)])
    for other in (run(5, 6, publisher=8), run(1, 2, 3, 4), run(10)):
        assert suspects.isolated(other, []) == ([other], [])


def test_each_suspect_is_alone_and_the_others_stay_together() -> None:
    suspects = Suspects(left=[Suspect(P, 5, 7, 1), Suspect(P, 12, 12, 1)])
    parts, refused = suspects.isolated(run(*range(2, 15)), [])
    assert sequences(parts) == [[2, 3, 4], [5], [6], [7], [8, 9, 10, 11], [12], [13, 14]]
    assert refused == []


def test_what_is_in_the_log_is_no_suspect() -> None:
    suspects = Suspects(left=[Suspect(P, 1, 4, 1), Suspect(P, 3, 3, 2)])
    parts, refused = suspects.isolated(run(1, 2, 3, 4), [(2, 3)])
    assert sequences(parts) == [[1], [2, 3], [4]] and refused == []


def test_a_run_with_gaps_is_cut_where_it_has_messages() -> None:
    suspects = Suspects(left=[Suspect(P, 1, 100, 1)])
    parts, refused = suspects.isolated(run(1, 5, 50), [])
    assert sequences(parts) == [[1], [5], [50]] and refused == []


def test_the_third_process_refuses_what_two_ended_with() -> None:
    suspects = Suspects(left=[Suspect(P, 3, 3, 2), Suspect(P, 1, 5, 1)])
    parts, refused = suspects.isolated(run(1, 2, 3, 4), [])
    assert sequences(parts) == [[1], [2], [4]]
    (found,) = refused
    assert (found.ranges, found.reason) == ([(3, 3)], "bad_message")
    assert "topic orders: the process of the instance ended 2 times" in found.text
    alone, refused = suspects.isolated(run(3), [])
    assert alone == [] and refused[0].ranges == [(3, 3)]


def test_a_long_run_is_told_apart_in_parts() -> None:
    count = SINGLES_MAX + 10
    suspects = Suspects(left=[Suspect(P, 1, count, 1)])
    parts, refused = suspects.isolated(run(*range(1, count + 1)), [])
    assert [each.count for each in parts] == [1] * SINGLES_MAX + [10] and refused == []


def test_several_suspects_share_the_bound_of_a_run() -> None:
    count = SINGLES_MAX + 10
    left = [Suspect(P, 1, SINGLES_MAX - 5, 1), Suspect(P, SINGLES_MAX - 3, count, 1)]
    parts, refused = Suspects(left=left).isolated(run(*range(1, count + 1)), [])
    assert sum(each.count == 1 for each in parts) <= SINGLES_MAX + 1 and refused == []
    assert sum(each.count for each in parts) == count


def test_many_that_ended_with_a_process_together_are_never_refused_together() -> None:
    note = Note()
    suspects = Suspects(note, [Suspect(P, 1, 9, 1)])
    suspects.begin(run(1, 2, 3))
    assert note.said == Suspect(P, 1, 3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_no_message_ends_a_third_process_and_no_other_is_refused(seed: int) -> None:
    """A client that sends its messages again to process after process, in batches of any size."""
    chance = random.Random(seed)
    note, left = Note(), list[Suspect]()
    poison = {chance.randrange(1, 40) for _ in range(chance.randint(1, 3))}
    deaths = dict.fromkeys(poison, 0)
    taken, refused = set[int](), set[int]()
    for _ in range(12):
        if note.said is not None:
            left.insert(0, note.said)
            note.said = None
        suspects = Suspects(note, left)
        waiting = [each for each in range(1, 40) if each not in taken | refused]
        ended = False
        while waiting and not ended:
            size = chance.randint(1, 12)
            batch, waiting = waiting[:size], waiting[size:]
            parts, out = suspects.isolated(run(*batch), [])
            refused |= {a for each in out for a, _ in each.ranges}
            for part in parts:
                suspects.begin(part)
                found = [each.sequence for each in iterate_records(part.payload)]
                if poison.intersection(found):
                    deaths[min(poison.intersection(found))] += 1
                    ended = True
                    break
                suspects.end()
                taken |= set(found)
    assert refused == poison and taken == set(range(1, 40)) - poison
    assert max(deaths.values()) <= 2
