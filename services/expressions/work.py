"""Limits on the work of one evaluation of an expression.

Who writes a filter may make a few hundred characters of it cost seconds: by functions whose texts
grow, by regular expressions that RE2 can only follow slowly, by a hundred looks at a long array.
So what reads a long text or an array says what that costs, in steps, before or behind it. An
expression that needs more than `WORK_MAX` of them is given up: as a filter it is false, as a value
NULL. Steps are counted and not measured, so that the same message gives the same on every host.
What all filters of a user may work together is counted by budgets.py.

A plain comparison of a field costs nothing here. Lists are the meters: to make one takes 20 ns.
"""

from __future__ import annotations

from typing import Any, Protocol

WORK_MAX = 40_000_000
"""Steps of one evaluation. A step is about a nanosecond of a quick processor."""
NOTED_STEPS = 1_000_000
"""Steps below which an evaluation is nobody's fault."""
SHORT_STEPS = 10_000
"""Steps that a single look at a text may take without being counted: a filter has 1,000 parts at
most."""
TOLD_MAX = 16
"""Expressions that are told of at once."""

Meter = list[Any]
"""The state of one evaluation: its steps, the `EvaluationAccount` of its expression, and what it
found out of long arrays (None: nothing)."""


class TooMuchWork(Exception):
    """An evaluation needs more than `WORK_MAX` steps."""


class FilterPayer(Protocol):
    """Pays for evaluations (`FilterBudget`)."""

    @property
    def is_spent(self) -> bool:
        """Returns whether it has no steps left, for now."""

    def spend(self, steps: int) -> bool:
        """Pays for steps that were done. Whether it has any left."""

    def stopped(self, effort: EvaluationAccount) -> None:
        """An evaluation was given up as nobody who pays for it has any left."""


class EvaluationAccount:
    """Account of the long evaluations of one expression.

    Args:
        text: of the expression, for what is told of it.
        payers: the budgets of the users whose filter it is; none: it may take what it takes, as
            that of an operator does.

    Attributes:
        begun: steps that an evaluation begins with: as many as it may take once it was stopped, so
            that all further ones are given up at once.
        given_up: evaluations that were given up, since the expression was compiled.
        steps: of all its evaluations.
    """

    __slots__ = ("begun", "given_up", "payers", "steps", "text")

    def __init__(self, text: str = "", *payers: FilterPayer) -> None:
        self.text = text
        self.payers = list(payers)
        self.begun = 0
        self.given_up = 0
        self.steps = 0

    @property
    def is_stopped(self) -> bool:
        """Returns whether an evaluation was given up because no payer had any steps left. What it
        would have passed nobody knows, so it is not asked again."""
        return self.begun > 0

    def worked(self, steps: int) -> bool:
        """Counts them. The first payer pays until it has none left, then the next one. Whether one
        of them has any left. Where none had any before, nothing is done for the steps, and they
        count for nobody."""
        self.steps += steps
        NEWS.steps += steps
        payers = self.payers
        if not payers or not steps:
            return True
        for payer in tuple(payers):
            if payer.is_spent:
                continue
            payers.remove(payer)
            payers.insert(0, payer)
            if payer.spend(steps):
                return True
        return False

    def stop(self) -> None:
        """No payer has any steps left."""
        self.begun = WORK_MAX
        for payer in self.payers:
            payer.stopped(self)


class FilterReports:
    """Account of what filters did that somebody is to hear of.

    Owner: the process. An instance asks with its checks, and tells of it.

    Attributes:
        count: evaluations that were given up.
        steps: of all evaluations that were no short ones.
    """

    __slots__ = ("_given_up", "count", "steps")

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}
        self.count = 0
        self.steps = 0

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


NEWS = FilterReports()


def charge(meter: Meter | None, steps: int) -> None:
    """Counts work.

    Args:
        meter: None: nobody counts.

    Raises:
        TooMuchWork: it is more than an evaluation may do, or than is left of who pays for it.
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
        if not meter[1].worked(meter[0] - noted):
            meter[1].stop()
            raise TooMuchWork


def give_up(effort: EvaluationAccount) -> None:
    """Notes an evaluation that was given up."""
    NEWS.gave_up(effort)
