"""Distances on the Earth."""

from __future__ import annotations

import math

from raylay.services.expressions.functions.registry import FunctionGroup

PLACES = FunctionGroup()
EARTH_RADIUS_M = 6_371_008.8
"""The mean radius (IUGG)."""


@PLACES.add("GEO_DISTANCE", "number number number number")
def geo_distance(latitude: float, longitude: float, latitude_2: float, longitude_2: float) -> float:
    """Returns the metres between two places, given in degrees (haversine)."""
    a, b = math.radians(latitude), math.radians(latitude_2)
    across = math.radians(longitude_2 - longitude)
    half = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(across / 2) ** 2
    if half != half:
        return half  # NaN: min would return 1, half way round the earth
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, half)))
