"""Quantiles of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of the values do not exceed.

    Args:
        values: values in any order, at least one.
        share: share of the values, from 0 to 1; 0.5: the median.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
