"""Budgets of users for the work of their filters, in one turn of the loop and in the long run.

A limit on each evaluation (work.py) bounds one filter's work for one message, but not the work of
many filters of a user, or of a new filter again and again. So long evaluations are paid from a
budget of the user, over all connections, subscriptions and queries; where no module knows the user,
from the budget of the network. When a budget is spent, the user's costly filters stop, and nobody
else notices.

Compiling a filter, and keeping it, costs as well: a user whose filters took long to compile waits
before the next long one, and there is a limit on the memory of a user's compiled filters.

A filter that several users have is evaluated once. One of them pays; when that budget is spent,
another one pays, so that no user's filter stops before the user's own budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.work import WORK_MAX, EvaluationAccount

TURN_STEPS = WORK_MAX
"""Number of steps that a user's filters may take in one turn of the loop, apart from evaluations
too short to be noted: as many as a single evaluation, some 40 ms."""
BURST_STEPS = 400_000_000
"""Number of steps that a user's filters may take at once, in several turns."""
STEPS_PER_S = 100_000_000
"""Number of steps per second that a user's filters may take in the long run: about a tenth of a
processor."""
RECOVERED_STEPS = BURST_STEPS // 2
"""Number of steps that an exhausted budget must regain before it pays again. Queries wait while it
has less, and leave the rest to subscriptions, which cannot wait."""
LONG_COMPILE_STEPS = 4_000_000
"""Number of steps below which a compilation is not counted: others get their turn between two of
them."""
COMPILE_BURST_STEPS = 200_000_000
"""Number of steps that compiling a user's filters may take at once: a dozen very long filters."""
COMPILE_STEPS_PER_S = 20_000_000
"""Number of steps per second that compiling a user's filters may take in the long run: a fiftieth
of a processor, or one or two very long filters a second."""
HELD_BYTES_MAX = 512 * 1024 * 1024
"""Approximate memory that the compiled filters of a user may take, in bytes."""


class FilterHold:
    """Counts a compiled filter for its user, as long as this object exists.

    Args:
        filter_: the filter; it counts once, however many holds of it there are.
    """

    __slots__ = ("_budget", "_filter")

    def __init__(self, budget: FilterBudget, filter_: CompiledFilter) -> None:
        self._budget = budget
        # The tree is shared by all compilations of the filter, and it is the part that stays.
        self._filter = filter_.tree

    def __del__(self) -> None:
        self._budget.release(self._filter)


class CompiledFilter(Protocol):
    """A compiled filter (`Expression`)."""

    @property
    def tree(self) -> object:
        """Returns the filter's tree."""


class FilterBudget:
    """The budget of one user. Owner: `FilterBudgets`, and the filters that it pays for.

    Args:
        budgets: the budgets of the instance, to which it belongs.

    Attributes:
        held_bytes: approximate memory of the user's compiled filters.
        steps: number of steps paid for so far.
    """

    __slots__ = (
        "__weakref__",
        "_budgets",
        "_compile_left",
        "_held",
        "_in_turn",
        "_is_exhausted",
        "_left",
        "held_bytes",
        "steps",
    )

    def __init__(self, budgets: FilterBudgets) -> None:
        self._budgets = budgets
        self._left = BURST_STEPS
        self._in_turn = 0
        self._is_exhausted = False
        self._compile_left = COMPILE_BURST_STEPS
        self._held: dict[int, tuple[int, int]] = {}
        """Number of holds of a filter, and its bytes, by the id of its tree, which the holds keep
        alive."""
        self.held_bytes = 0
        self.steps = 0

    @property
    def is_spent(self) -> bool:
        """Returns whether the budget is used up, in this turn or until it has regained half."""
        return self._is_exhausted or self._in_turn > TURN_STEPS

    @property
    def is_low(self) -> bool:
        """Returns whether queries wait until the budget has recovered."""
        return self._left < RECOVERED_STEPS

    def spend(self, steps: int) -> bool:
        self._in_turn += steps
        self._budgets.in_turn(self)
        self.spend_slowly(steps)
        return not self.is_spent

    def spend_slowly(self, steps: int) -> None:
        """Charges steps to the budget, but not to the limit of this turn: for work on one message
        per turn."""
        self.steps += steps
        self._left -= steps
        self._is_exhausted = self._is_exhausted or self._left < 0
        self._budgets.worked(self)

    def stopped(self, effort: EvaluationAccount) -> None:
        """Notes that one of its filters was given up because the budget is spent."""
        self._budgets.stopped[effort] = None

    def end_turn(self) -> None:
        self._in_turn = 0

    def recover(self, steps: int, compile_steps: int = 0) -> bool:
        """Adds steps to the budget; returns whether it is full."""
        self._left = min(BURST_STEPS, self._left + steps)
        if self._left >= RECOVERED_STEPS:
            self._is_exhausted = False
        self._compile_left = min(COMPILE_BURST_STEPS, self._compile_left + compile_steps)
        return self._left == BURST_STEPS and self._compile_left == COMPILE_BURST_STEPS

    @property
    def compile_wait_s(self) -> float:
        """Returns the seconds until another long filter may be compiled; 0: now."""
        return max(0, -self._compile_left) / COMPILE_STEPS_PER_S

    def compiled(self, steps: int) -> None:
        if steps >= LONG_COMPILE_STEPS:
            self._compile_left -= steps
            self._budgets.worked(self)

    def hold(self, filter_: CompiledFilter, size_bytes: int) -> FilterHold:
        """Counts a filter as long as the returned hold exists.

        Raises:
            RemoteProtocolError: the filters of its user would take too much memory: `too_many`.
        """
        key = id(filter_.tree)
        count, counted_bytes = self._held.get(key, (0, size_bytes))
        if not count:
            if self.held_bytes + size_bytes > self._budgets.held_bytes_max:
                raise RemoteProtocolError(
                    f"the filters of this user take {self.held_bytes >> 20} MiB, as compiled, and "
                    f"may take {self._budgets.held_bytes_max >> 20}: unsubscribe some, write them "
                    "shorter, or use the same ones for several subscriptions",
                    "too_many",
                )
            self.held_bytes += size_bytes
        self._held[key] = count + 1, counted_bytes
        return FilterHold(self, filter_)

    def release(self, tree: object) -> None:
        count, size_bytes = self._held[id(tree)]
        if count > 1:
            self._held[id(tree)] = count - 1, size_bytes
            return
        del self._held[id(tree)]
        self.held_bytes -= size_bytes


class QueryPayer:
    """Pays for the evaluations of a query, which are never stopped: where the budget is low, the
    query waits instead.

    Args:
        budget: budget of the querying user.
    """

    __slots__ = ("_budget",)

    is_spent = False

    def __init__(self, budget: FilterBudget) -> None:
        self._budget = budget

    def spend(self, steps: int) -> bool:
        """Pays for steps, see `FilterPayer`."""
        self._budget.spend_slowly(steps)
        return True

    def stopped(self, effort: EvaluationAccount) -> None:
        """Does nothing: queries are never stopped, see `FilterPayer`."""


class FilterBudgets:
    """Budgets of all users of an instance.

    Invariant: a budget that has all its steps, and pays for no filter that there is, is forgotten:
    no more are kept than users that have filters or had costly ones a few seconds ago.
    Owner: the instance's event loop. Lifecycle: as long as the instance.

    Args:
        next_turn: calls a function in the next turn of the loop.
        held_bytes_max: approximate memory that the compiled filters of one user may take.

    Attributes:
        stopped: filters that were given up because a budget was spent, since they were last taken.
    """

    __slots__ = (
        "_by_user",
        "_in_turn",
        "_next_turn",
        "_recovered_us",
        "_worked",
        "held_bytes_max",
        "stopped",
    )

    def __init__(
        self,
        next_turn: Callable[[Callable[[], None]], object],
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._next_turn = next_turn
        self.held_bytes_max = held_bytes_max
        self._by_user: WeakValueDictionary[Hashable, FilterBudget] = WeakValueDictionary()
        self._in_turn: dict[FilterBudget, None] = {}
        self._worked: dict[FilterBudget, None] = {}
        """Budgets that have not fully recovered."""
        self._recovered_us = 0
        self.stopped: dict[EvaluationAccount, None] = {}

    def __len__(self) -> int:
        return len(self._by_user)

    def of(self, user: Hashable) -> FilterBudget:
        found = self._by_user.get(user)
        if found is None:
            found = self._by_user[user] = FilterBudget(self)
        return found

    def in_turn(self, budget: FilterBudget) -> None:
        """Notes that a budget pays for something in this turn of the loop."""
        if not self._in_turn:
            self._next_turn(self._end_turn)
        self._in_turn[budget] = None

    def worked(self, budget: FilterBudget) -> None:
        """Notes that a budget is not full."""
        self._worked[budget] = None

    def newly_stopped(self) -> set[EvaluationAccount]:
        """Returns the filters that were given up because a budget was spent, since the last
        call."""
        found, self.stopped = self.stopped, {}
        return set(found)

    def recover(self, now_us: int) -> None:
        """Lets budgets recover for the time since the last call.

        Args:
            now_us: time by a steady clock, in microseconds.
        """
        passed_us, self._recovered_us = now_us - self._recovered_us, now_us
        # After a longer time, all budgets are full.
        passed_us = min(max(0, passed_us), 60_000_000)
        steps = passed_us * STEPS_PER_S // 1_000_000
        compile_steps = passed_us * COMPILE_STEPS_PER_S // 1_000_000
        for each in list(self._worked):
            if each.recover(steps, compile_steps):
                self._worked.pop(each, None)

    def _end_turn(self) -> None:
        for each in self._in_turn:
            each.end_turn()
        self._in_turn.clear()
