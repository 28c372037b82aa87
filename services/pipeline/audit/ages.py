"""The age of a missing message. Pure functions.

A message is missing from the moment at which another instance has it. Its age is the time since its
receipt there, up to *now* at the instance that lacks it; where several instances have it, the first
receipt counts. *Now* at an instance is:

the time of the audit       where clocks are right the last receipt there      at least: a clock
that is ahead makes nothing newer than it is as much earlier as others   received an instance's
newest message after it: its clock is behind, or that message was on its way until then

So a wrong clock makes no new message old, and makes an old message newer by no more than its own
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raylay.services.messages.ranges import SequenceSet
from raylay.services.pipeline.audit.parts import LogContents, set_of


@dataclass(frozen=True, slots=True)
class AgeQuestion:
    """A question: since when have these sequences of a publisher been missing?"""

    publisher: int
    sequences: SequenceSet


@dataclass(slots=True)
class Age:
    """The answer to a question.

    Attributes:
        known: the sequences that some instance has.
        old: the missing messages that have been missing for longer than a message may be on its
            way.
        age_us: the age of the sequence that has been missing longest.
    """

    known: SequenceSet = field(default_factory=SequenceSet)
    old: SequenceSet = field(default_factory=SequenceSet)
    age_us: int = 0

    def update(self, other: Age) -> None:
        """Adds the answer from another part of a journal, or from another instance."""
        self.known.update(other.known)
        self.old.update(other.old)
        self.age_us = max(self.age_us, other.age_us)


def clocks(
    logs: Mapping[str, LogContents], origins: Mapping[str, str], now_us: int
) -> dict[str, int]:
    """Returns the time of now at each instance, on its own clock.

    Args:
        origins: the instance of each incarnation.
        now_us: the time of the audit.
    """
    elsewhere: dict[str, int] = {}
    for log in logs.values():
        for incarnation, time_us in log.received_us.items():
            name = origins.get(incarnation, "") if incarnation else ""
            # A clock that is ahead says nothing of others'.
            elsewhere[name] = max(elsewhere.get(name, 0), min(time_us, now_us))
    found = {}
    for name, log in logs.items():
        newest_us = log.received_us.get("")
        behind_us = 0
        if newest_us is not None and name in elsewhere:
            behind_us = max(0, elsewhere[name] - newest_us)
        found[name] = max(now_us - behind_us, log.last_us)
    return found


def ages_of(
    questions: Mapping[int, AgeQuestion],
    now_us: int,
    settle_us: int,
    publishers: Any,
    sequences: Any,
    times_us: Any,
) -> dict[int, Age]:
    """Answers the questions about ages from some messages of one instance.

    Args:
        questions: the questions by number.
        now_us: the time of now at this instance.
        settle_us: most time that a message may be on its way.
        publishers, sequences, times_us: one value for each message; int64, and uint64 for
            publishers.
    """
    found: dict[int, Age] = {}
    for number, question in questions.items():
        asked = publishers == np.uint64(question.publisher)
        if not asked.any():
            continue
        mine, received_us = sequences[asked], times_us[asked]
        ranges = np.array(list(question.sequences), np.int64).reshape(-1, 2)
        place = np.searchsorted(ranges[:, 0], mine, "right") - 1
        among = (place >= 0) & (mine <= ranges[place, 1])
        if not among.any():
            continue
        mine, received_us = mine[among], received_us[among]
        old = np.unique(mine[now_us - received_us > settle_us])
        age_us = max(0, now_us - int(received_us.min()))
        found[number] = Age(set_of(np.unique(mine)), set_of(old), age_us)
    return found


def merged(parts: Iterable[Mapping[int, Age]]) -> dict[int, Age]:
    found: dict[int, Age] = {}
    for part in parts:
        for number, age in part.items():
            found.setdefault(number, Age()).update(age)
    return found


def unanswered(questions: Mapping[int, AgeQuestion], ages: Mapping[int, Age]) -> int:
    """Returns the number of sequences that no instance has any more."""
    return sum(
        question.sequences.count - (ages[number].known.count if number in ages else 0)
        for number, question in questions.items()
    )
