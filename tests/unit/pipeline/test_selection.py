"""Times as options."""

from __future__ import annotations

import datetime as dt

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.selection import parse_range, parse_utc, place_of, time_of, time_us_of

TIME = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05Z",
        "2026-01-02 05:04:05+02:00",
        "20260102T030405Z",
        "1767323045",
        "1767323045.0",
        "1767323045000",
        " 1767323045000000 ",
    ],
)
def test_times(text: str) -> None:
    assert time_of(text) == TIME == parse_utc("--from", text)
    assert time_us_of(text) == 1767323045000000


def test_parts_of_a_second_and_days() -> None:
    assert time_us_of("1767323045.25") == 1767323045250000
    assert time_us_of("1767323045250.5") == 1767323045250500
    assert time_of("2026-01-02") == dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert parse_range("2026-01-02", "1767323045") == (time_of("2026-01-02"), TIME)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0|1|", "12|34|", "2026-13-01", "soon", "1e9", "-1767323045", "123456789012345678"],
)
def test_what_is_no_time(text: str) -> None:
    assert time_of(text) is None and time_us_of(text) is None
    if text:
        with pytest.raises(ConfigurationError, match=r"--to is .*: give a UTC time"):
            parse_utc("--to", text)


def test_a_zone_beyond_the_first_year_is_no_time() -> None:
    assert time_of("0001-01-01T00:00:00+02:00") is None


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "[0:", "12|"])
def test_what_is_no_place_in_a_log_names_the_option_and_its_forms(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^ending is .* is no place in a log: give 0, 0\|1\| \(now\)"
    ):
        place_of("ending", text)
    for known in ("0", "0|1|", "12|34|", "20260102T030405Z"):
        assert place_of("ending", known).begin
    with pytest.raises(ConfigurationError, match=r"^starting is '\[0:12\|34\|\]', .* is a range"):
        place_of("starting", "[0:12|34|]")
