"""The marks in a batch on the records whose answers are awaited."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Flag, Run
from raylay.services.replication.acknowledgment import RootedRanges

_AWAITED = int(Flag.AWAITED)


def clear_awaited(batch: list[Run], settled: list[tuple[int, list[Range]]]) -> list[Run]:
    """Returns the batch with the AWAITED flag cleared, in the runs at the given places, on all
    ranges except those listed for each place."""
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


def move_marks(
    marks: RootedRanges, flagged: int, publisher: int, ranges: list[Range], into: RootedRanges
) -> SequenceSet:
    """Moves the marks on a run's ranges from `marks` into `into`, except those of the root
    `flagged`, which the run's own flag names. Returns the sequences whose marks were moved."""
    taken = SequenceSet()
    for root, marked in marks.roots.items():
        found = marked.get(publisher)
        if found is None:
            continue
        theirs = [piece for a, b in ranges for piece in found.within(a, b)]
        if theirs:
            marked.remove_ranges(publisher, theirs)
            if root != flagged:
                into.of(root).add_ranges(publisher, theirs)
                for a, b in theirs:
                    taken.add(a, b)
    return taken
