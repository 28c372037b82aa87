"""services/messages/ranges.py against a plain Python set."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import CHUNK, PublisherRanges, SequenceSet

pytestmark = pytest.mark.covers("Replication", "exact ranges, not a high-water mark")


def as_set(ranges: SequenceSet) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}


@pytest.mark.parametrize("seed", range(60))
def test_behaves_as_a_plain_set(seed: int) -> None:
    rng = random.Random(seed)
    span = rng.choice([50, CHUNK, 3 * CHUNK, 12 * CHUNK])
    mine, plain = SequenceSet(), set[int]()
    other, plain_other = SequenceSet(), set[int]()
    for _ in range(80):
        first = rng.randrange(span)
        last = min(span, first + rng.choice([0, 1, 5, CHUNK - 1, CHUNK, 4 * CHUNK]))
        action = rng.randrange(8)
        if action == 7:
            span_asked = set(range(first, last + 1))
            taken = mine.take(first, last)
            assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(taken))
            assert {n for a, b in taken for n in range(a, b + 1)} == span_asked & plain
            plain -= span_asked
        elif action <= 2:
            mine.add(first, last)
            plain |= set(range(first, last + 1))
        elif action == 3:
            mine.remove(first, last)
            plain -= set(range(first, last + 1))
        elif action == 4:
            other.add(first, last)
            plain_other |= set(range(first, last + 1))
        elif action == 5:
            mine.update(other)
            plain |= plain_other
        else:
            mine.difference_update(other)
            plain -= plain_other
        probe = set(range(first, last + 1))
        assert mine.touches(first, last) == bool(probe & plain)
        assert mine.covers(first, last) == (probe <= plain)
        inside = {n for a, b in mine.within(first, last) for n in range(a, b + 1)}
        assert inside == probe & plain
        outside = {n for a, b in mine.missing(first, last) for n in range(a, b + 1)}
        assert outside == probe - plain
        assert (first in mine) == (first in plain)
        assert mine.first() == (min(plain) if plain else None)
        assert mine.last() == (max(plain) if plain else None)
    assert as_set(mine) == plain
    assert mine.count == len(plain)
    assert bool(mine) == bool(plain)
    assert as_set(mine.intersection(other)) == plain & plain_other
    ranges = list(mine)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))
    again = SequenceSet.from_bytes(mine.to_bytes())
    assert again == mine and as_set(again) == plain


@given(
    held=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=6),
    asked=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), min_size=1, max_size=4),
    is_shared=st.booleans(),
)
def test_what_is_taken_is_out_of_it_and_in_its_copy_yet(
    held: list[tuple[int, int]], asked: list[tuple[int, int]], is_shared: bool
) -> None:
    mine = PublisherRanges()
    mine.add(2, 1, 1)
    for first, more in held:
        mine.add(1, first, first + more)
    wanted = SequenceSet((a, a + more) for a, more in asked)
    before = SequenceSet(mine.get(1) or ())
    copied = mine.copy() if is_shared else None
    taken = mine.take(1, list(wanted))
    assert SequenceSet(taken) == before.intersection(wanted)
    left = SequenceSet(before)
    left.difference_update(wanted)
    assert SequenceSet(mine.get(1) or ()) == left
    assert (1 in mine.sets) == bool(left), "a publisher goes with its last sequence"
    if copied is not None:
        assert SequenceSet(copied.get(1) or ()) == before
        assert (1 in mine.changed_since(copied)) == bool(taken), "nothing taken is nothing changed"
    assert mine.take(3, [(1, 1)]) == [] and list(mine.sets[2]) == [(1, 1)]


def test_equal_content_is_equal_however_it_was_built() -> None:
    one = SequenceSet([(1, 3 * CHUNK)])
    two = SequenceSet()
    for n in reversed(range(1, 3 * CHUNK + 1)):
        two.add(n, n)
    assert one == two
    assert PublisherRanges({7: one}).digest() == PublisherRanges({7: two}).digest()


def test_a_range_of_any_width_is_one_range_in_a_list() -> None:
    """Somebody else says how wide it is: no memory may be reserved by that."""
    wide = SequenceSet([(1, 2**62), (2**63, 2**64 - 1)])
    assert list(wide) == wide.ranges() == [(1, 2**62), (2**63, 2**64 - 1)]
    assert sorted(wide) == [*wide] == [(1, 2**62), (2**63, 2**64 - 1)]
    assert wide.count == 2**62 + 2**63
    ranges = PublisherRanges()
    ranges.add(7, 1, 2**62)
    assert list(ranges.items()) == [(7, (1, 2**62))] and ranges.count == 2**62


def test_every_second_of_ten_million_stays_under_two_megabytes() -> None:
    half = SequenceSet()
    pattern = int("10" * (CHUNK // 2), 2)
    for chunk in range(10_000_000 // CHUNK + 1):
        half._or(chunk, pattern)
    used = sys.getsizeof(half._part) + sum(sys.getsizeof(bits) for bits in half._part.values())
    assert used < 2_000_000
    assert len(half.to_bytes()) < 2_000_000
    assert half.count > 5_000_000


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        made = SequenceSet.from_bytes(data)
    except RemoteProtocolError:
        return
    assert SequenceSet.from_bytes(made.to_bytes()) == made


@given(ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9_000)), max_size=60))
@settings(deadline=None)
def test_parts_are_bounded_and_together_the_set(ranges: list[tuple[int, int]]) -> None:
    whole = SequenceSet((at * 3_000, at * 3_000 + more) for at, more in ranges)
    for bytes_max in (1, 100, 2_000, 1 << 20):
        found = SequenceSet()
        parts = list(whole.parts(bytes_max))
        for part in parts:
            assert len(part) <= 8 + max(16, bytes_max) + 10 + CHUNK // 8
            found.update(SequenceSet.from_bytes(part))
        assert found == whole
    assert len(parts) == 1
