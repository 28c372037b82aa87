"""Quantiles of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest of the values that is not below this share of them.

    Args:
        values: at least one.
        share: from 0 to 1; 0.5: the median.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
