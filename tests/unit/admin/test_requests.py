"""services/admin/requests.py: paths, formats and periods, and what is refused of them."""

from __future__ import annotations

import pytest

from raylay.services.admin.requests import (
    PATH_CHARACTERS_MAX,
    STEPS_MAX,
    Period,
    ResourceRequest,
    format_time,
    number_in,
    read_request,
    read_time,
    to_csv,
)
from raylay.services.errors import ConfigurationError

AUGUST_30_US = 1_693_353_600_000_000


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/amps", ResourceRequest((), None, None)),
        ("/amps.json", ResourceRequest((), "json", None)),
        ("/amps/host/name", ResourceRequest(("host", "name"), None, None)),
        ("//amps//host/", ResourceRequest(("host",), None, None)),
        ("/amps/instance/clients.xml", ResourceRequest(("instance", "clients"), "xml", None)),
        ("/amps/a/config.xml.json", ResourceRequest(("a", "config.xml"), "json", None)),
        ("/amps/a%2Fb/c%2Ejson", ResourceRequest(("a/b", "c.json"), None, None)),
        ("/amps/%FF", ResourceRequest(("\ufffd",), None, None)),
    ],
)  # fmt: skip
def test_paths(path: str, expected: ResourceRequest) -> None:
    assert read_request(path, ()) == expected


@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        ("/", (), "no such path"),
        ("/other/amps", (), "no such path"),
        ("/amps" + "/a" * STEPS_MAX, (), "steps: at most"),
        ("/amps/" + "a" * PATH_CHARACTERS_MAX, (), "characters: at most"),
        ("/amps", (("t0", "yesterday"),), "t0='yesterday' is no time"),
        ("/amps", (("t1", "x" * 1000),), "is no time"),
        ("/amps", (("t0", "2023-08-30"), ("t0", "2023-08-31")), "t0 is given twice"),
        ("/amps", (("t0", "2023-08-31"), ("t1", "2023-08-30")), "t0 is later than t1"),
    ],
)
def test_what_is_refused(path: str, query: tuple[tuple[str, str], ...], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as found:
        read_request(path, query)
    assert len(str(found.value)) < 200


@pytest.mark.covers("Administration", "history of a leaf by `t0` and `t1`, of a branch at a")
@pytest.mark.parametrize(
    "text",
    ["20230830T000000.000000Z", "2023-08-30", "2023-08-30T00:00:00Z", "2023-08-30T02:00:00+02:00"],
)
def test_times_are_in_utc(text: str) -> None:
    assert read_time(text, "t0") == AUGUST_30_US


@pytest.mark.covers("Administration", "history of a leaf by `t0` and `t1`, of a branch at a")
def test_a_period_may_be_open_at_one_side() -> None:
    found = read_request("/amps/a.csv", (("other", "1"), ("t0", "2023-08-30")))
    assert found.period == Period(AUGUST_30_US, None)


def test_the_documented_line_of_history() -> None:
    assert format_time(AUGUST_30_US) == "20230830T000000.000000Z"
    assert to_csv([(AUGUST_30_US, "94244")]) == b"20230830T000000.000000Z,94244\n"


@pytest.mark.parametrize(
    ("value", "cell"),
    [("-5", "-5"), ("-a", "'-a"), ("=1+1", "'=1+1"), ('a"b', '"a""b"'), ("a,b", '"a,b"')],
)
def test_a_spreadsheet_takes_no_text_for_a_formula(value: str, cell: str) -> None:
    assert to_csv([(0, value)]).decode() == f"19700101T000000.000000Z,{cell}\n"


def test_numbers_of_a_query() -> None:
    assert number_in({}, "after", 7, 100) == 7
    assert number_in({"after": "12"}, "after", 7, 100) == 12
    assert number_in({"after": "9" * 19}, "after", 7, 100) == 100


@pytest.mark.parametrize("text", ["", "-1", "1.5", "²", "9" * 20])
def test_a_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"after=.* is no number: give one from 0 on"):
        number_in({"after": text}, "after", 0, 100)
