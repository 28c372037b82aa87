"""services/messages/bookmarks.py: every documented form, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import (
    BOOKMARKS_MAX,
    Point,
    format_bookmark,
    parse_point,
    parse_position,
)

pytestmark = pytest.mark.covers("Clients and protocol", "bookmarks: epoch")

DAY_US = 1_767_323_045_000_000  # 2026-01-02T03:04:05Z


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("0", Point("epoch")),
        ("0|1|", Point("now")),
        ("934814|44321|", Point("message", 934814, 44321)),
        ("934814|44321", Point("message", 934814, 44321)),
        ("18446744073709551615|1|", Point("message", (1 << 64) - 1, 1)),
        ("20260102T030405", Point("time", time_us=DAY_US)),
        ("20260102T030405Z", Point("time", time_us=DAY_US)),
        ("20260102T030405.25Z", Point("time", time_us=DAY_US + 250_000)),
        ("20260102T030405.000001", Point("time", time_us=DAY_US + 1)),
        (" 0 ", Point("epoch")),
    ],
)
def test_a_point(text: str, point: Point) -> None:
    assert parse_point(text) == point


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "recent",
        "a|b|",
        "1|2|3",
        "0|2|",
        "-1|2|",
        "18446744073709551616|1|",
        "1|9223372036854775808|",
        "20261332T030405Z",
        "20260102T250000Z",
        "2026-01-02T03:04:05Z",
        "20260102T030405+01",
        "[0:1|2|",
        "0:1|2|)",
        "[0,1|2|)",
        "[0:1|2|:0)",
        "[:)",
        ",",
        "0|1|" + ",x",
    ],
)
def test_what_is_no_bookmark_is_refused_and_named(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_position(text)
    assert caught.value.reason == "bad_bookmark"


def test_a_list_keeps_all_its_points() -> None:
    position = parse_position("934814|44321|,1234567|123583190|")
    assert position.begin == (
        Point("message", 934814, 44321),
        Point("message", 1234567, 123583190),
    )
    assert not position.bounded and not any(map(position.includes, position.begin))


def test_a_list_that_is_too_long_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=str(BOOKMARKS_MAX)):
        parse_position(",".join(["1|1|"] * (BOOKMARKS_MAX + 1)))


@pytest.mark.parametrize(
    ("text", "begin_included", "end_included"),
    [
        ("[20260102T030405:20260103T030405)", True, False),
        ("(20260102T030405:20260103T030405]", False, True),
        ("[20260102T030405:20260103T030405]", True, True),
        ("(20260102T030405:20260103T030405)", False, False),
    ],
)
def test_a_range_says_which_ends_belong_to_it(
    text: str, begin_included: bool, end_included: bool
) -> None:
    position = parse_position(text)
    assert position.bounded
    assert (position.begin_included, position.end_included) == (begin_included, end_included)
    assert position.begin[0].time_us < position.end[0].time_us


def test_epoch_and_times_include_what_they_name_and_messages_do_not() -> None:
    assert parse_position("0").includes(parse_position("0").begin[0])
    assert parse_position("20260102T030405Z").includes(parse_position("20260102T030405Z").begin[0])
    assert not parse_position("7|7|").includes(parse_position("7|7|").begin[0])


@given(st.integers(1, (1 << 64) - 1), st.integers(0, (1 << 63) - 1))
def test_what_is_formatted_is_read_back(publisher: int, sequence: int) -> None:
    assert parse_point(format_bookmark(publisher, sequence)) == Point(
        "message", publisher, sequence
    )


@given(st.text(max_size=60))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        parse_position(text)
    except RemoteProtocolError as error:
        assert error.reason == "bad_bookmark"


def test_each_bookmark_of_a_list_is_included_or_not_whatever_stands_before_it() -> None:
    lists = ("20260102T030405Z,7|7|", "7|7|,20260102T030405Z")
    for text in lists:
        position = parse_position(text)
        assert {point.kind: position.includes(point) for point in position.begin} == {
            "time": True,
            "message": False,
        }
