"""The age of a queue's oldest lease. The owner of a queue tells when the lease began, and only
where its figures change; the age is of the moment in which somebody looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_lease_age(counts: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """Returns the figures of a queue with `age_of_oldest_lease_us` for `oldest_lease_began_us`: in
    microseconds; None: nothing is leased, or leases do not end. Figures without that time, because
    the owner has told none yet, stay without an age.

    Args:
        counts: the figures of `QueueMachine.status`.
        now_us: the time by the clock by which leases end.
    """
    found = dict(counts)
    if "oldest_lease_began_us" in found:
        began_us = found.pop("oldest_lease_began_us")
        age_us = None if began_us is None else max(0, now_us - began_us)
        found["age_of_oldest_lease_us"] = age_us
    return found
