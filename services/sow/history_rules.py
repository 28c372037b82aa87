"""The time from which a history is complete, where an earlier life kept it by other rules.

A longer window does not bring removed versions back, and a finer granularity does not bring back
versions that were replaced within an interval. The history before that time is not complete, and is
not shown.
"""

from __future__ import annotations

import struct

from raylay.services.errors import SowDamaged
from raylay.services.sow.state import SowRules

_ENTRY = struct.Struct("<QQQ")


def went_on(found: bytes | None, rules: SowRules, now_us: int) -> tuple[bytes, int]:
    """Returns the store's entry of a topic's rules, and the time from which its history is complete
    by these rules.

    Args:
        found: the entry that an earlier life of the instance left; None: all versions were kept by
            the present rules.
        rules: the configured rules.
        now_us: time by the wall clock; no version before it is kept by these rules.

    Returns:
        The entry, and the time in microseconds since 1970; 0: the history is complete from its
        beginning.

    Raises:
        SowDamaged: the found bytes are no entry.
    """
    whole_from_us = 0
    if found is not None:
        if len(found) != _ENTRY.size:
            raise SowDamaged(f"the SOW store has {found[:60]!r} for the rules of a history")
        window_us, granularity_us, whole_from_us = _ENTRY.unpack(found)
        if rules.window_us > window_us:
            whole_from_us = max(whole_from_us, now_us - window_us)
        if granularity_us and (not rules.granularity_us or rules.granularity_us % granularity_us):
            whole_from_us = now_us
    return _ENTRY.pack(rules.window_us, rules.granularity_us, whole_from_us), whole_from_us
