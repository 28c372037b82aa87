"""services/verification/laws/sow_topics.py: what instances answer is compared, and mistakes are
seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.verification.laws.sow_topics import (
    SowRow,
    SowVerdict,
    SowWrite,
    against_journal,
    against_publishers,
    folded,
)

pytestmark = pytest.mark.covers("Drills", "SOW records against journals and publishers")

NEAR, FAR = 7, 9
WRITTEN = [
    SowWrite(NEAR, 1, (b"a",), b'{"n": 1}'),
    SowWrite(NEAR, 2, (b"b",), b'{"n": 2}'),
    SowWrite(FAR, 1, (b"c",), b'{"n": 1}'),
    SowWrite(NEAR, 3, (b"a", b"b"), None),
    SowWrite(NEAR, 4, (b"a",), b'{"n": 4, "d": 1}'),
]
HELD = {b"a": SowRow(NEAR, 4, b'{"n": 4, "d": 1}'), b"c": SowRow(FAR, 1, b'{"n": 1}')}
OLD = SowRow(NEAR, 1, b'{"n": 1}')
OTHER = SowRow(NEAR, 4, b'{"n": 4}')


def test_the_last_change_of_a_key_counts_in_whatever_order_it_came() -> None:
    expected = {b"a": WRITTEN[4], b"b": WRITTEN[3], b"c": WRITTEN[2]}
    assert folded(WRITTEN) == folded(reversed(WRITTEN)) == expected


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({b"a": OLD}, 'near-1, key a: 7|1| {"n": 1} is held; its journal says 7|4|'),
        ({b"a": OTHER}, 'key a: 7|4| {"n": 4} is held; its journal says 7|4| {"n": 4, "d": 1}'),
        ({b"a": None}, "key a: nothing is held"),
        ({b"b": OLD}, 'key b: 7|1| {"n": 1} is held; its journal says nothing'),
        ({b"d": OLD}, 'key d: 7|1| {"n": 1} is held; its journal says nothing'),
    ],
)
def test_an_instance_answers_what_its_own_journal_says(
    changed: dict[bytes, SowRow | None], wrong: str | None
) -> None:
    rows = {key: row for key, row in (HELD | changed).items() if row is not None}
    found = against_journal("near-1", rows, WRITTEN, is_whole=True)
    assert [each.law for each in found] == ["sow"] * (wrong is not None)
    assert wrong is None or wrong in found[0].text


def test_a_journal_that_begins_later_says_nothing_of_keys_it_has_not() -> None:
    later = WRITTEN[3:]
    assert len(against_journal("near-1", HELD, later, is_whole=True)) == 1
    assert not against_journal("near-1", HELD, later, is_whole=False)
    # What it has is judged all the same.
    planted = HELD | {b"b": OLD}
    (found,) = against_journal("near-1", planted, later, is_whole=False)
    assert "key b" in found.text


EVERYWHERE = {"near-1": {NEAR, FAR}, "far-1": {NEAR, FAR}}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({b"a": OLD}, "far-1, key a: 7|1|"),
        ({b"a": None}, "far-1, key a: nothing is held; published last: 7|4|"),
        ({b"b": OLD}, 'far-1, key b: 7|1| {"n": 1} is held; deleted with 7|3|'),
    ],
)
@pytest.mark.parametrize("is_excused", [False, True])
def test_instances_have_what_was_published_last(
    changed: dict[bytes, SowRow | None], wrong: str | None, is_excused: bool
) -> None:
    far = {key: row for key, row in (HELD | changed).items() if row is not None}
    broken, separate = against_publishers(
        {"near-1": HELD, "far-1": far}, EVERYWHERE, WRITTEN, is_excused=is_excused
    )
    assert not separate and len(broken) == (wrong is not None)
    assert wrong is None or wrong in broken[0].text


def test_another_body_of_the_same_message_is_wrong_unless_deltas_may_have_met_less() -> None:
    rows = {"far-1": HELD | {b"a": OTHER}}
    for is_excused in (False, True):
        found = against_publishers(rows, EVERYWHERE, WRITTEN, is_excused=is_excused)
        assert [len(each) for each in found] == [not is_excused, is_excused]
        (told,) = found[is_excused]
        assert told.separate is is_excused and "far-1, key a" in told.text
    # The order of fields is nobody's business, and what is no JSON is another body.
    for body, wrong in ((b'{"d":1,"n":4}', 0), (b"{", 1)):
        rows = {"far-1": HELD | {b"a": SowRow(NEAR, 4, body)}}
        assert len(against_publishers(rows, EVERYWHERE, WRITTEN, is_excused=False)[0]) == wrong


def test_what_does_not_reach_a_region_is_not_missing_there() -> None:
    rows = {"near-1": {b"a": HELD[b"a"]}}
    assert against_publishers(rows, {"near-1": {NEAR}}, WRITTEN, is_excused=False) == ([], [])
    assert against_publishers(rows, EVERYWHERE, WRITTEN, is_excused=False)[0]


def test_it_is_told_in_a_sentence() -> None:
    verdict = SowVerdict(90, 12, {"near-1": 30, "far-1": 30})
    assert verdict.sentence == (
        "The SOW topic took 90 publishes, deltas and deletions by key (12). 2 instances were asked:"
        " each has the records that its own journal gives, and those that were published last."
    )
    broken = against_journal("near-1", {}, WRITTEN, is_whole=True)
    assert "2 of their records are wrong" in replace(verdict, broken=broken).sentence
    assert "no failure" in replace(verdict, separate=broken).sentence
    why = SowVerdict(why="no instance was asked").sentence
    assert why == "SOW topics were not judged: no instance was asked."
