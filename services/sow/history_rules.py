"""Rules for the time from which a history is whole, where a life before kept it by others.

A longer window brings nothing back that was taken away, and a finer granularity no version that
another one of its interval replaced. What there was before is not known then, and not told.
"""

from __future__ import annotations

import struct

from raylay.services.errors import SowDamaged
from raylay.services.sow.state import SowRules

_ENTRY = struct.Struct("<QQQ")


def went_on(found: bytes | None, rules: SowRules, now_us: int) -> tuple[bytes, int]:
    """The store's entry of a topic's rules, and from when on its history is whole by them.

    Args:
        found: the entry as a life before left it; None: all was kept by these.
        rules: what is configured now.
        now_us: by the clock on the wall; no version is kept by these rules before.

    Returns:
        The entry, and an instant in microseconds since 1970; 0: it is whole from its begin on.

    Raises:
        SowDamaged: what was found is no entry.
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
