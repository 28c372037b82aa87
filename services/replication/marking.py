"""What of a batch is marked: whose answers are waited for."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Flag, Run

_AWAITED = int(Flag.AWAITED)


def without_flags(batch: list[Run], settled: list[tuple[int, list[Range]]]) -> list[Run]:
    """A batch whose runs at these places are awaited only as far as said."""
    made: list[Run] = []
    at = 0
    for place, waits in settled:
        made += batch[at:place]
        at = place + 1
        run = batch[place]
        rest = SequenceSet(run.ranges())
        for a, b in waits:
            rest.remove(a, b)
        pieces = [(a, b, _AWAITED) for a, b in waits] + [(a, b, 0) for a, b in rest]
        for flag, together in groupby(sorted(pieces), key=itemgetter(2)):
            part = run.select([(a, b) for a, b, _ in together])
            if part is not None:
                made.append(replace(part, flags=(part.flags & ~_AWAITED) | flag, raw=None))
    return made + batch[at:]
