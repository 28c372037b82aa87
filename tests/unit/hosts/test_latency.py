"""services/hosts/latency.py: the quantiles of measured times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raylay.services.hosts.latency import quantile


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [
        ([3.0, 1.0, 2.0], 0.0, 1.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([3.0, 1.0, 2.0], 1.0, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.95, 4.0),
        (range(1, 101), 0.99, 99),
    ],
)
def test_a_quantile_is_one_of_the_values(
    values: Sequence[float], share: float, value: float
) -> None:
    assert quantile(values, share) == value
