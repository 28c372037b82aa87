"""Limits on the work of one evaluation of an expression.

A filter of a few hundred characters can be made to cost seconds: by functions whose texts grow, by
regular expressions that are slow for RE2, by a hundred looks at a long array. So each function that
reads a long text or an array counts its cost in steps. An expression that needs more than
`WORK_MAX` steps is given up: a filter is then false, a value NULL. Steps are counted and not
measured, so that the same message gives the same result on every host. budgets.py limits the work
of all filters of a user.

A plain comparison of a field costs nothing here. Meters are lists, because making one takes 20 ns.
"""

from __future__ import annotations

from typing import Any, Protocol

WORK_MAX = 40_000_000
"""Number of steps of one evaluation. A step is about a nanosecond of a fast processor."""
NOTED_STEPS = 1_000_000
"""Number of steps below which an evaluation is not noted."""
SHORT_STEPS = 10_000
"""Number of steps that a single look at a text may take without being counted: a filter has 1,000
parts at most."""
TOLD_MAX = 16
"""Number of expressions that are reported at once."""

Meter = list[Any]
"""The state of one evaluation: its steps, the `EvaluationAccount` of its expression, and summaries
of long arrays (None: none yet)."""


class TooMuchWork(Exception):
    """An evaluation needs more than `WORK_MAX` steps."""


class FilterPayer(Protocol):
    """The part of a `FilterBudget` that pays for the steps of evaluations."""

    @property
    def is_spent(self) -> bool:
        """Returns whether the payer has no steps left, for now."""

    def spend(self, steps: int) -> bool:
        """Pays for steps that were done. Returns whether any are left."""

    def stopped(self, effort: EvaluationAccount) -> None:
        """Notes that an evaluation was given up because no payer has any steps left."""


class EvaluationAccount:
    """The account of the long evaluations of one expression.

    Args:
        text: text of the expression, for reports.
        payers: budgets of the users who have the filter; none: the work is not limited, as for an
            operator's filter.

    Attributes:
        begun: steps with which an evaluation begins: the limit itself once the filter was stopped,
            so that all further evaluations are given up at once.
        given_up: number of evaluations that were given up since the expression was compiled.
        steps: steps of all evaluations.
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
        """Returns whether an evaluation was given up because no payer had any steps left. Its
        result is unknown, so the filter is not evaluated again."""
        return self.begun > 0

    def worked(self, steps: int) -> bool:
        """Charges steps. The first payer pays until it has none left, then the next one. Returns
        whether one of them has any left. Where none had any before, the steps are not charged."""
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
        """Stops the filter: no payer has any steps left."""
        self.begun = WORK_MAX
        for payer in self.payers:
            payer.stopped(self)


class FilterReports:
    """Counts of the work of filters, for reports.

    Owner: the process. An instance takes and reports the counts with its periodic checks.

    Attributes:
        count: number of evaluations that were given up.
        steps: steps of all evaluations that were not short.
    """

    __slots__ = ("_given_up", "count", "steps")

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}
        self.count = 0
        self.steps = 0

    def gave_up(self, effort: EvaluationAccount) -> None:
        effort.given_up += 1
        self.count += 1
        found = self._given_up
        if effort.text in found or len(found) < TOLD_MAX:
            found[effort.text] = found.get(effort.text, 0) + 1

    def take(self) -> dict[str, int]:
        """Returns the number of evaluations given up since the last call, by expression."""
        found, self._given_up = self._given_up, {}
        return found


NEWS = FilterReports()


def charge(meter: Meter | None, steps: int) -> None:
    """Charges work to an evaluation.

    Args:
        meter: meter of the evaluation; None: the work is not counted.

    Raises:
        TooMuchWork: the work exceeds the limit of one evaluation, or the rest of the users' budgets
            that pay for it.
    """
    if meter is None:
        return
    before = meter[0]
    meter[0] = before + steps
    if meter[0] > NOTED_STEPS:
        # Steps that were too few to be noted until now are noted as well.
        noted = before if before > NOTED_STEPS else 0
        if meter[0] > WORK_MAX:
            # The work is not done: it counts as the whole limit.
            meter[1].worked(WORK_MAX - min(noted, WORK_MAX))
            raise TooMuchWork
        if not meter[1].worked(meter[0] - noted):
            meter[1].stop()
            raise TooMuchWork


def give_up(effort: EvaluationAccount) -> None:
    NEWS.gave_up(effort)
