"""Offsets of reads over the network: sets of messages and their division among readers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import ConfigurationError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.network.offsets import (
    SEQUENCE_MAX,
    covers,
    from_json,
    lies_before,
    limited,
    new_in,
    portions,
    to_json,
    told_as_held,
    united,
)

Plain = dict[int, set[int]]
SETS = st.dictionaries(
    st.integers(1, 5), st.sets(st.integers(1, 400), min_size=1, max_size=60), max_size=4
)


def ranges(plain: Plain) -> PublisherRanges:
    found = PublisherRanges()
    for publisher, sequences in plain.items():
        for sequence in sequences:
            found.add(publisher, sequence, sequence)
    return found


def plain(found: PublisherRanges) -> set[tuple[int, int]]:
    return {
        (publisher, sequence)
        for publisher, (first, last) in found.items()
        for sequence in range(first, last + 1)
    }


@given(SETS, SETS)
def test_equal_sets_have_equal_offsets_that_are_read_again(one: Plain, other: Plain) -> None:
    offset = to_json(ranges(one))
    assert plain(from_json(offset)) == plain(ranges(one))
    reversed_order = dict(reversed(list(one.items())))
    assert to_json(ranges(reversed_order)) == offset
    assert (to_json(ranges(other)) == offset) == (plain(ranges(one)) == plain(ranges(other)))


@pytest.mark.parametrize(
    "offset", [{}, {"Chicago-1": {"txid": 3}}, {"held": "x"}, {"held": "AAAA"}, {"held": 3}]
)
def test_an_offset_of_another_source_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="begin a new checkpoint"):
        from_json(offset)


@given(SETS, SETS)
def test_what_is_new_and_what_covers(one: Plain, other: Plain) -> None:
    start, end = ranges(one), ranges(other)
    new = new_in(start, end)
    assert plain(new) == plain(end) - plain(start)
    assert all(new.sets.values())
    assert covers(start, end) == (not new)
    assert plain(united(start, end)) == plain(start) | plain(end)


@given(SETS, SETS, st.integers(1, 100))
def test_a_limit_gives_so_many_messages_the_first_of_each_publisher(
    one: Plain, other: Plain, most: int
) -> None:
    start, end = ranges(one), united(ranges(one), ranges(other))
    new = plain(end) - plain(start)
    got = plain(limited(start, end, most)) - plain(start)
    assert len(got) == min(most, len(new)) and got <= new
    for publisher, sequence in got:
        assert all(s > sequence or (p, s) in got for p, s in new if p == publisher)


@given(SETS, SETS, st.integers(1, 6), st.integers(1, 50))
def test_portions_are_all_of_it_once_and_of_about_one_size(
    one: Plain, other: Plain, most: int, least: int
) -> None:
    start, end = ranges(one), united(ranges(one), ranges(other))
    new = plain(end) - plain(start)
    found = [plain(each) for each in portions(start, end, most, least)]
    assert len(found) <= most
    assert sum(map(len, found)) == len(new)
    assert set().union(*found) == new
    if len(found) > 1:
        assert min(map(len, found[:-1])) >= least and len(set(map(len, found[:-1]))) == 1


@given(SETS, SETS, st.integers(1, 4))
def test_a_reader_is_sent_its_portion_and_nothing_else_of_the_same_publishers(
    one: Plain, other: Plain, most: int
) -> None:
    start, end = ranges(one), united(ranges(one), ranges(other))
    for portion in portions(start, end, most, 1):
        held, wanted = told_as_held(start, end, portion), plain(portion)
        for publisher in end.sets:
            left = {s for s in range(401) if s not in held.sets[publisher]}
            assert left == {s for p, s in wanted if p == publisher}
            assert held.sets[publisher].covers(401, SEQUENCE_MAX)


@given(SETS, SETS)
def test_what_lies_before_another_moment(one: Plain, other: Plain) -> None:
    is_before = plain(ranges(one)) < plain(ranges(other))
    assert lies_before(ranges(one), ranges(other)) == is_before
    both = united(ranges(one), ranges(other))
    assert not lies_before(both, ranges(one))
