"""The age of a queue's oldest lease, as of the moment in which somebody looks."""

from __future__ import annotations

import pytest

from raylay.services.queues.lease_age import with_lease_age


@pytest.mark.parametrize(
    ("began_us", "age_us"),
    [(4_000_000, 3_100_000), (None, None), (9_000_000, 0)],
    ids=["a lease", "no lease", "a lease of a clock ahead"],
)
def test_the_age_is_of_the_moment_in_which_somebody_looks(
    began_us: int | None, age_us: int | None
) -> None:
    told = {"queue_depth": 3, "oldest_lease_began_us": began_us}
    assert with_lease_age(told, 7_100_000) == {"queue_depth": 3, "age_of_oldest_lease_us": age_us}


def test_an_owner_that_has_told_nothing_has_no_age() -> None:
    assert with_lease_age({}, 7) == {}
