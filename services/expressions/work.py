"""Limits on the work of one evaluation of an expression, and of a filter in the long run.

Who writes a filter may make a few hundred characters of it cost seconds: by functions whose texts
grow, by regular expressions that RE2 can only follow slowly, by a hundred looks at a long array.
So what reads a long text or an array says what that costs, in steps, before or behind it. An
expression that needs more than `WORK_MAX` of them is given up: as a filter it is false, as a value
NULL. Steps are counted and not measured, so that the same message gives the same on every host.

A plain comparison of a field costs nothing here. Lists are the meters: to make one takes 20 ns.
"""

from __future__ import annotations

from typing import Any

WORK_MAX = 40_000_000
"""Steps of one evaluation. A step is about a nanosecond of a quick processor."""
NOTED_STEPS = 1_000_000
"""What takes less is nobody's fault."""
SHORT_STEPS = 10_000
"""What a single look at a text may take without being counted: a filter has 1,000 parts at most."""
BURST_STEPS = 400_000_000
"""What the evaluations of a client's filter may take at once."""
STEPS_PER_S = 100_000_000
"""What they may take for long: about a tenth of a processor."""
TOLD_MAX = 16
"""Expressions that are told of at once."""

Meter = list[Any]
"""The state of one evaluation: its steps, the `EvaluationAccount` of its expression, and what it
found out of long arrays (None: nothing)."""


class TooMuchWork(Exception):
    """An evaluation needs more than `WORK_MAX` steps."""


class EvaluationAccount:
    """Account of the long evaluations of one expression.

    Args:
        text: of the expression, for what is told of it.
        is_limited: whether it may take `BURST_STEPS` at once and `STEPS_PER_S` for long, as the
            filter of a subscription. That of an operator may take what it takes, and who looks at
            few messages in a turn need not be limited.

    Attributes:
        begun: steps that an evaluation begins with: as many as it may take where the expression
            is exhausted, so that its evaluations are given up at once.
        given_up: evaluations that were given up, since the expression was compiled.
        steps: of all its evaluations.
    """

    __slots__ = ("_left", "begun", "given_up", "is_limited", "steps", "text")

    def __init__(self, text: str = "", is_limited: bool = False) -> None:
        self.text = text
        self.is_limited = is_limited
        self.begun = 0
        self.given_up = 0
        self.steps = 0
        self._left = BURST_STEPS

    @property
    def is_exhausted(self) -> bool:
        """Returns whether it has worked for too long: until it has half of its burst again, its
        evaluations are given up at once."""
        return self.begun > 0

    def worked(self, steps: int) -> None:
        """Counts them."""
        self.steps += steps
        NEWS.steps += steps
        if self.is_limited:
            self._left -= steps
            NEWS.worked[self] = None
            if self._left < 0:
                self.begun = WORK_MAX
                NEWS.exhausted[self] = None

    def recover(self, steps: int) -> bool:
        """Gives it so many again; whether it has all."""
        self._left = min(BURST_STEPS, self._left + steps)
        if self._left >= BURST_STEPS // 2:
            self.begun = 0
        return self._left == BURST_STEPS


class FilterReports:
    """Account of what filters did that somebody is to hear of.

    Owner: the process. An instance asks with its checks, tells of it, and lets filters recover.

    Attributes:
        count: evaluations that were given up.
        steps: of all evaluations that were no short ones.
        exhausted: filters that became exhausted since somebody took them.
        worked: limited ones that have not recovered all.
    """

    __slots__ = ("_given_up", "_recovered_us", "count", "exhausted", "steps", "worked")

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}
        self._recovered_us = 0
        self.count = 0
        self.steps = 0
        self.exhausted: dict[EvaluationAccount, None] = {}
        self.worked: dict[EvaluationAccount, None] = {}

    def gave_up(self, effort: EvaluationAccount) -> None:
        """An evaluation was given up."""
        effort.given_up += 1
        self.count += 1
        found = self._given_up
        if effort.text in found or len(found) < TOLD_MAX:
            found[effort.text] = found.get(effort.text, 0) + 1

    def take(self) -> dict[str, int]:
        """Counts of evaluations that were given up since somebody asked, by expression."""
        found, self._given_up = self._given_up, {}
        return found

    def recover(self, now_us: int) -> None:
        """Lets filters recover for the time since the last call.

        Args:
            now_us: by a steady clock, in microseconds.
        """
        passed_us, self._recovered_us = now_us - self._recovered_us, now_us
        # A longer time gives them all that there is.
        steps = min(max(0, passed_us), 60_000_000) * STEPS_PER_S // 1_000_000
        for each in list(self.worked):
            if each.recover(steps):
                self.worked.pop(each, None)


NEWS = FilterReports()


def charge(meter: Meter | None, steps: int) -> None:
    """Counts work.

    Args:
        meter: None: nobody counts.

    Raises:
        TooMuchWork: it is more than an evaluation may do.
    """
    if meter is None:
        return
    before = meter[0]
    meter[0] = before + steps
    if meter[0] > NOTED_STEPS:
        # What was little until now counts, too.
        noted = before if before > NOTED_STEPS else 0
        if meter[0] > WORK_MAX:
            # What it would take is not done: it counts as if all that it may was.
            meter[1].worked(WORK_MAX - min(noted, WORK_MAX))
            raise TooMuchWork
        meter[1].worked(meter[0] - noted)


def give_up(effort: EvaluationAccount) -> None:
    """Notes an evaluation that was given up."""
    NEWS.gave_up(effort)
