"""Distances."""

from __future__ import annotations

import math

import pytest
from support.expressions_given import gives, value


@pytest.mark.covers("Filters by content", "GEO_DISTANCE")
def test_geo_distance() -> None:
    # London to Chicago: 6,360 km along a great circle.
    assert 6_340_000 < value("GEO_DISTANCE(51.5, -0.13, 41.88, -87.63)") < 6_380_000
    gives("GEO_DISTANCE(10, 20, 10, 20)", 0.0)
    gives("ROUND(GEO_DISTANCE(0, 0, 0, 180) / 1000) ", 20015)
    gives("GEO_DISTANCE(0, 0, 0, /none)", None)
    for place in ("'x', 0, 0, 0", "0, 'x', 0, 0", "0, 0, 'x', 0", "0, 0, 0, 'x'"):
        assert math.isnan(value(f"GEO_DISTANCE({place})")), "no number is no place"
