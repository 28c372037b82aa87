"""Budgets of users for the work of their filters, in one turn of the loop and in the long run.

A limit of each evaluation (work.py) bounds what one filter takes for one message, and not what many
filters of a user take, or a new text again and again. So long evaluations are paid from a budget of
the user, over all of his connections, subscriptions and queries; where no module knows the user, of
his network. Whose budget is spent gets no more from his costly filters, and nobody else notices.

To compile a filter, and to have it, costs too: a user whose new filters took long to compile waits
with the next long one, and there is a limit of what his compiled filters take in memory.

A filter that several users have is asked once. One of them pays; where his budget is spent, another
one does, so that no one's filter stops before his own budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.work import WORK_MAX, EvaluationAccount

TURN_STEPS = WORK_MAX
"""Steps that a user's filters may take in one turn of the loop, but for evaluations too short to be
noted: as much as a single evaluation, some 40 ms."""
BURST_STEPS = 400_000_000
"""Steps that a user's filters may take at once, in several turns."""
STEPS_PER_S = 100_000_000
"""Steps that a user's filters may take for long: about a tenth of a processor."""
RECOVERED_STEPS = BURST_STEPS // 2
"""Steps that a budget that was exhausted has again before it pays for anything. Queries wait where
it has less, and leave the rest to subscriptions, which cannot wait."""
LONG_COMPILE_STEPS = 4_000_000
"""Steps below which a compilation is no burden to others, who come between two of them, and is not
counted."""
COMPILE_BURST_STEPS = 200_000_000
"""Steps that the compiled filters of a user may take at once: those of a dozen very long ones."""
COMPILE_STEPS_PER_S = 20_000_000
"""Steps that the compiled filters of a user may take for long: a fiftieth of a processor, or one or
two very long ones a second."""
HELD_BYTES_MAX = 512 * 1024 * 1024
"""Memory that the compiled filters of a user may take, about."""


class FilterHold:
    """Count of a compiled filter for its user, for as long as somebody has it.

    Args:
        filter_: that is counted; once, however many holds of it there are.
    """

    __slots__ = ("_budget", "_filter")

    def __init__(self, budget: FilterBudget, filter_: CompiledFilter) -> None:
        self._budget = budget
        # Its tree is shared by all that it was compiled for, and it is the part that stays.
        self._filter = filter_.tree

    def __del__(self) -> None:
        self._budget.release(self._filter)


class CompiledFilter(Protocol):
    """A filter that was compiled (`Expression`)."""

    @property
    def tree(self) -> object:
        """The filter's tree, as it was read."""


class FilterBudget:
    """Budget of one user. Owner: `FilterBudgets`, and the filters that it pays for.

    Args:
        budgets: that it is one of.

    Attributes:
        held_bytes: memory that the compiled filters take which he has, about.
        steps: all that it has paid for.
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
        """Number of holds of a filter, and its bytes, by the id of its tree, which the holds
        keep."""
        self.held_bytes = 0
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
        """Charges steps to the budget, and not to the limit of this turn: for work that looks at
        one
        message a turn."""
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

    def recover(self, steps: int, compile_steps: int = 0) -> bool:
        """Gives it so many again; whether it has all."""
        self._left = min(BURST_STEPS, self._left + steps)
        if self._left >= RECOVERED_STEPS:
            self._is_exhausted = False
        self._compile_left = min(COMPILE_BURST_STEPS, self._compile_left + compile_steps)
        return self._left == BURST_STEPS and self._compile_left == COMPILE_BURST_STEPS

    @property
    def compile_wait_s(self) -> float:
        """Time until it may have another long filter compiled, in seconds; 0: now."""
        return max(0, -self._compile_left) / COMPILE_STEPS_PER_S

    def compiled(self, steps: int) -> None:
        """Pays for the compilation of a filter."""
        if steps >= LONG_COMPILE_STEPS:
            self._compile_left -= steps
            self._budgets.worked(self)

    def hold(self, filter_: CompiledFilter, size_bytes: int) -> FilterHold:
        """Counts a filter until nobody has the hold any more.

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
        """A hold of a filter ended."""
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
        held_bytes_max: memory that the compiled filters of one user may take, about.

    Attributes:
        stopped: filters that were given up as a budget was spent, since somebody took them.
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
        """Budgets that have not recovered all."""
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
        """Notes that a budget pays for something in this turn of the loop."""
        if not self._in_turn:
            self._next_turn(self._end_turn)
        self._in_turn[budget] = None

    def worked(self, budget: FilterBudget) -> None:
        """Notes that a budget has not all of its steps."""
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
