"""services/server/status.py: the figures of a queue for metrics."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.server.status import _queue_figures


@pytest.mark.parametrize(
    ("told", "age_ms"),
    [
        ({}, None),
        ({"age_of_oldest_lease_us": None}, 0),
        ({"age_of_oldest_lease_us": 1_500_000}, 1_500),
    ],
)
def test_a_queue_without_a_lease_has_an_age_of_0_and_one_that_is_not_known_none(
    told: dict[str, Any], age_ms: int | None
) -> None:
    figures = _queue_figures({"leases": 0, "subscriptions": 1, "delivered": 7, **told})
    assert figures["oldest_lease_age_ms"] == age_ms
