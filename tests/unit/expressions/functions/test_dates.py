"""The date and time functions, one test each."""

from __future__ import annotations

import time

import pytest
from support.expressions_given import gives

from raylay.services.expressions.functions.registry import EvalContext


@pytest.mark.covers("Filters by content", "date and time: UNIX_TIMESTAMP STRFTIME STRPTIME")
def test_unix_timestamp() -> None:
    gives("UNIX_TIMESTAMP()", 1.5, around=EvalContext(now_s=1.5))
    gives("UNIX_TIMESTAMP()", None)


@pytest.mark.covers("Filters by content", "date and time: UNIX_TIMESTAMP STRFTIME STRPTIME")
@pytest.mark.parametrize(
    ("form", "seconds", "shown"),
    [
        ("%Y-%m-%dT%H:%M:%S", "1700000000", "2023-11-14T22:13:20"),
        ("%H:%M:%S.%f", "0.5", "00:00:00.500000"),
        ("%H:%M:%S.%03f", "'0.1239'", "00:00:00.123"),
        ("%Y %%f", "-1", "1969 %f"),
        ("%99999Y", "0", None),
        ("%Y", "1e300", None),
        ("%Y", "'x'", None),
        ("%Y" * 40, "0", None),
        ("%Y" * 400, "0", None),
    ],
)
def test_strftime(form: str, seconds: str, shown: str | None) -> None:
    if form == "%99999Y":
        # A width is none of ours: strftime is asked for it nowhere.
        gives(f"LENGTH(STRFTIME('{form}', {seconds})) < 20", True)
    else:
        gives(f"STRFTIME('{form}', {seconds})", shown)


@pytest.mark.covers("Filters by content", "date and time: UNIX_TIMESTAMP STRFTIME STRPTIME")
def test_strptime() -> None:
    gives("STRPTIME('2023-11-14T22:13:20', '%Y-%m-%dT%H:%M:%S')", 1700000000.0)
    gives("STRPTIME('2023-11-14 22:13:20.25 +0100', '%Y-%m-%d %H:%M:%S.%f %z')", 1699996400.25)
    gives("STRPTIME('yesterday', '%Y-%m-%d')", None)
    gives("STRPTIME('1 1', '%d %d')", None)
    gives("STRPTIME(/none, '%d')", None)


FORMS = (
    "%Y-%m-%dT%H:%M:%S.%f", "%F %T", "%D %R:%S", "%c", "%x %X", "%Y%j%H%M%S", "%d %b %Y %r",
    "%A %d %B %Y %H:%M:%S", "%a %e %h %Y%n%t%T", "%G-W%V-%u %T", "%y%m%d %I %p %M %S", "%s",
    "%F %T %z", "%F %T %Z",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seconds", [0, 86_400, 1_700_000_000, 1_704_067_199, 951_782_400])
def test_what_strftime_writes_strptime_reads(form: str, seconds: int) -> None:
    gives(f"STRPTIME(STRFTIME('{form}', {seconds}), '{form}')", float(seconds))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_time_is_written_alike_on_every_host(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replication filters on two hosts must agree."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        gives("STRFTIME('%s|%c|%Z|%z', 86400)", "86400|Fri Jan  2 00:00:00 1970|UTC|+0000")
        gives("STRPTIME('86400', '%s')", 86400.0)
        gives("STRPTIME('1970-01-02 00:00:00', '%F %T')", 86400.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    gives("STRFTIME('%Q %E', 0)", "%Q %E")
