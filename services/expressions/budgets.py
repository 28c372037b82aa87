"""Budgets of users for the work of their filters, in one turn of the loop and in the long run.

A limit of each evaluation (work.py) bounds what one filter takes for one message, and not what many
filters of a user take, or a new text again and again. So long evaluations are paid from a budget of
the user, over all of his connections, subscriptions and queries; where no module knows the user, of
his network. Whose budget is spent gets no more from his costly filters, and nobody else notices.

A filter that several users have is asked once. One of them pays; where his budget is spent, another
one does, so that no one's filter stops before his own budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from raylay.services.expressions.work import WORK_MAX, EvaluationAccount

TURN_STEPS = WORK_MAX
"""What a user's filters may take in one turn of the loop, but for evaluations too short to be
noted: as much as a single evaluation, some 40 ms."""
BURST_STEPS = 400_000_000
"""What they may take at once, in several turns."""
STEPS_PER_S = 100_000_000
"""What they may take for long: about a tenth of a processor."""
RECOVERED_STEPS = BURST_STEPS // 2
"""What a budget that was exhausted has again before it pays for anything. Queries wait where it has
less, and leave the rest to subscriptions, which cannot wait."""


class FilterBudget:
    """Budget of one user. Owner: `FilterBudgets`, and the filters that it pays for.

    Args:
        budgets: that it is one of.

    Attributes:
        steps: all that it has paid for.
    """

    __slots__ = ("__weakref__", "_budgets", "_in_turn", "_is_exhausted", "_left", "steps")

    def __init__(self, budgets: FilterBudgets) -> None:
        self._budgets = budgets
        self._left = BURST_STEPS
        self._in_turn = 0
        self._is_exhausted = False
        self.steps = 0

    @property
    def is_spent(self) -> bool:
        """Returns whether it has no steps left, in this turn or until it has recovered half."""
        return self._is_exhausted or self._in_turn > TURN_STEPS

    @property
    def is_low(self) -> bool:
        """Returns whether queries wait until it has recovered."""
        return self._left < RECOVERED_STEPS

    def spend(self, steps: int) -> bool:
        """Pays for steps. Whether it has any left."""
        self._in_turn += steps
        self._budgets.in_turn(self)
        self.spend_slowly(steps)
        return not self.is_spent

    def spend_slowly(self, steps: int) -> None:
        """Pays for steps of what looks at one message in a turn."""
        self.steps += steps
        self._left -= steps
        self._is_exhausted = self._is_exhausted or self._left < 0
        self._budgets.worked(self)

    def stopped(self, effort: EvaluationAccount) -> None:
        """One of its filters was given up as the budget is spent."""
        self._budgets.stopped[effort] = None

    def end_turn(self) -> None:
        """The turn of the loop is over."""
        self._in_turn = 0

    def recover(self, steps: int) -> bool:
        """Gives it so many again; whether it has all."""
        self._left = min(BURST_STEPS, self._left + steps)
        if self._left >= RECOVERED_STEPS:
            self._is_exhausted = False
        return self._left == BURST_STEPS


class QueryPayer:
    """Pays for the evaluations of a query, which are never stopped: where the budget is low, the
    query waits instead.

    Args:
        budget: of who asks.
    """

    __slots__ = ("_budget",)

    is_spent = False

    def __init__(self, budget: FilterBudget) -> None:
        self._budget = budget

    def spend(self, steps: int) -> bool:
        """See `FilterPayer`."""
        self._budget.spend_slowly(steps)
        return True

    def stopped(self, effort: EvaluationAccount) -> None:
        """See `FilterPayer`. It never is."""


class FilterBudgets:
    """Budgets of all users of an instance.

    Invariant: a budget that has all its steps, and pays for no filter that there is, is forgotten:
    no more are kept than users that have filters or had costly ones a few seconds ago.
    Owner: the instance's event loop. Lifecycle: as long as the instance.

    Args:
        next_turn: calls what it is given in the next turn of the loop.

    Attributes:
        stopped: filters that were given up as a budget was spent, since somebody took them.
    """

    __slots__ = ("_by_user", "_in_turn", "_next_turn", "_recovered_us", "_worked", "stopped")

    def __init__(self, next_turn: Callable[[Callable[[], None]], object]) -> None:
        self._next_turn = next_turn
        self._by_user: WeakValueDictionary[Hashable, FilterBudget] = WeakValueDictionary()
        self._in_turn: dict[FilterBudget, None] = {}
        self._worked: dict[FilterBudget, None] = {}
        """Those that have not recovered all."""
        self._recovered_us = 0
        self.stopped: dict[EvaluationAccount, None] = {}

    def __len__(self) -> int:
        return len(self._by_user)

    def of(self, user: Hashable) -> FilterBudget:
        """The budget of a user."""
        found = self._by_user.get(user)
        if found is None:
            found = self._by_user[user] = FilterBudget(self)
        return found

    def in_turn(self, budget: FilterBudget) -> None:
        """It pays for something in this turn of the loop."""
        if not self._in_turn:
            self._next_turn(self._end_turn)
        self._in_turn[budget] = None

    def worked(self, budget: FilterBudget) -> None:
        """It has not all of its steps."""
        self._worked[budget] = None

    def newly_stopped(self) -> set[EvaluationAccount]:
        """Filters that were given up as a budget was spent, since somebody asked."""
        found, self.stopped = self.stopped, {}
        return set(found)

    def recover(self, now_us: int) -> None:
        """Lets budgets recover for the time since the last call.

        Args:
            now_us: by a steady clock, in microseconds.
        """
        passed_us, self._recovered_us = now_us - self._recovered_us, now_us
        # A longer time gives them all that there is.
        steps = min(max(0, passed_us), 60_000_000) * STEPS_PER_S // 1_000_000
        for each in list(self._worked):
            if each.recover(steps):
                self._worked.pop(each, None)

    def _end_turn(self) -> None:
        for each in self._in_turn:
            each.end_turn()
        self._in_turn.clear()
