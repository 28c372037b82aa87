"""Intervals, sizes and numbers of AMPSConfig."""

from __future__ import annotations

import pytest

from raylay.services.messages.documented_units import (
    format_interval,
    format_size,
    parse_count,
    parse_interval_ns,
    parse_size_bytes,
)

pytestmark = pytest.mark.covers("Configuration", "units, `${VAR}`")


@pytest.mark.parametrize(
    ("text", "value_ns"),
    [
        ("1ns", 1),
        ("250us", 250_000),
        ("500ms", 500_000_000),
        ("15s", 15_000_000_000),
        ("300S", 300_000_000_000),
        ("1.5m", 90_000_000_000),
        ("4h", 14_400_000_000_000),
        ("1d", 86_400_000_000_000),
        ("2w", 1_209_600_000_000_000),
        (" 10 s ", 10_000_000_000),
        ("0", 0),
        (".5s", 500_000_000),
    ],
)
def test_intervals(text: str, value_ns: int) -> None:
    assert parse_interval_ns(text) == value_ns
    assert parse_interval_ns(format_interval(value_ns)) == value_ns


@pytest.mark.parametrize(
    ("text", "value_bytes"),
    [
        ("10GB", 10_000_000_000),
        ("1kb", 1000),
        ("1.5Mb", 1_500_000),
        ("2tb", 2_000_000_000_000),
        ("10M", 10_000_000),
        ("5k", 5000),
        ("4096", 4096),
        ("0", 0),
    ],
)
def test_sizes(text: str, value_bytes: int) -> None:
    assert parse_size_bytes(text) == value_bytes
    assert parse_size_bytes(format_size(value_bytes)) == value_bytes


def test_sizes_are_shown_in_the_largest_unit() -> None:
    assert format_size(5_000_000) == "5MB"
    assert format_size(1_000_000_000) == "1GB"
    assert format_size(1024) == "1024"


def test_counts() -> None:
    assert [parse_count(text) for text in ("0", "64", "10k", "2M", "1.5k")] == [
        0,
        64,
        10_000,
        2_000_000,
        1_500,
    ]


@pytest.mark.parametrize("text", ["", "15", "15 parsecs", "-1s", "s", "1e3s", "1.5ns", "1s2"])
def test_no_intervals(text: str) -> None:
    with pytest.raises(ValueError, match=r"interval|whole"):
        parse_interval_ns(text)


@pytest.mark.parametrize("text", ["", "10XB", "-1", "MB", "0.5", "10 m"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        parse_size_bytes(text)


@pytest.mark.parametrize("text", ["", "ten", "1.5", "10kb", "-3"])
def test_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_count(text)
