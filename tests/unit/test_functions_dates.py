"""The date and time functions, one test each."""

from __future__ import annotations

import pytest
from unit.expressions_given import gives

from raylay.services.expressions.functions.registry import Surroundings


def test_unix_timestamp() -> None:
    gives("UNIX_TIMESTAMP()", 1.5, around=Surroundings(now_s=1.5))
    gives("UNIX_TIMESTAMP()", None)


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


def test_strptime() -> None:
    gives("STRPTIME('2023-11-14T22:13:20', '%Y-%m-%dT%H:%M:%S')", 1700000000.0)
    gives("STRPTIME('2023-11-14 22:13:20.25 +0100', '%Y-%m-%d %H:%M:%S.%f %z')", 1699996400.25)
    gives("STRPTIME('yesterday', '%Y-%m-%d')", None)
    gives("STRPTIME('1 1', '%d %d')", None)
    gives("STRPTIME(/none, '%d')", None)
