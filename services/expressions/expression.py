"""An expression, read and compiled, and where it may be used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from raylay.services.errors import ExpressionError, RemoteProtocolError
from raylay.services.expressions import tree
from raylay.services.expressions.budgets import FilterBudget, FilterHold
from raylay.services.expressions.compiler import Predicate, compiled_filter, with_account
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.expressions.parser import parse
from raylay.services.expressions.values import Value
from raylay.services.expressions.work import EvaluationAccount, FilterPayer

COMPILED_BYTES_MAX = 32 * 1024 * 1024
"""Approximate memory of filters that are kept for later requests with the same text."""
FILTER_BYTES, CHARACTER_BYTES, NODE_BYTES = 2_000, 2, 400
"""Approximate memory of a compiled filter: the fixed part, and for each character and node."""
PATTERN_BYTES, WEIGHT_BYTES = 1_200, 100
"""Approximate memory of a regular expression in a filter: the fixed part, and for its `weight`."""
CHARACTER_STEPS, PART_STEPS, PATTERN_STEPS = 300, 10_000, 40_000
"""Approximate number of steps to compile a filter: for each character, each part that is no
literal, and each regular expression."""
SHOWN_CHARACTERS_MAX = 200
"""Number of characters of a filter that its refusal shows."""


@dataclass(frozen=True, slots=True)
class ExpressionUse:
    """A place where expressions are used, and what they can do there.

    Attributes:
        what: name of the place, for refusals.
        needs: parts of the context that are known there.
        deterministic: whether the same message must always give the same value.
        aggregates: whether there is a group of messages, which aggregates need.
    """

    what: str
    needs: frozenset[str]
    deterministic: bool = False
    aggregates: bool = False


SUBSCRIPTION = ExpressionUse(
    "the filter of a subscription", frozenset(("message", "client", "instance", "clock"))
)
READ = ExpressionUse("the filter of a read", frozenset(("message", "instance", "clock")))
REPLICATION = ExpressionUse("a replication filter", frozenset(("message",)), deterministic=True)
ANYWHERE = ExpressionUse(
    "an expression", frozenset(("message", "client", "instance", "state", "clock", "chance"))
)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled filter.

    Attributes:
        text: text as written, followed by the client's values where the filter reads them.
        tree: syntax tree.
        matches: says whether the filter is true of a parsed message and its context.
        effort: account of its long evaluations.
        size_bytes: approximate memory of the filter.
        hold: counts the memory for its user, as long as the filter exists; None: it is not counted.
    """

    text: str
    tree: tree.ExpressionNode
    matches: Predicate
    effort: EvaluationAccount = field(default_factory=EvaluationAccount, compare=False)
    size_bytes: int = field(default=0, compare=False)
    hold: FilterHold | None = field(default=None, compare=False)

    def own(self, *payers: FilterPayer) -> Expression:
        """Returns a copy with a work account of its own: the compiled code is shared by all filters
        with the same text. The copy keeps the `hold` alive.

        Args:
            payers: budgets that pay for its long evaluations; none: the work is not limited.
        """
        effort = EvaluationAccount(self.effort.text, *payers)
        matches = with_account(self.matches.__code__, self.matches.__globals__, effort)
        return replace(self, matches=matches, effort=effort, hold=None)

    @property
    def asks_around(self) -> bool:
        """Returns whether the filter reads more than the message; walks the whole tree."""
        calls = (each for each in nodes(self.tree) if isinstance(each, tree.Call))
        return any(call.function.needs for call in calls)


class RowLimits(Protocol):
    """The row filters of a client's permissions (services/security/row_filters.py)."""

    def restricts(self, topic: bytes) -> bool:
        """Returns whether the client may read only some messages of a topic."""

    def of(self, topic: bytes, use: ExpressionUse) -> Expression | None:
        """Returns the filter of the messages that the client may read of a restricted topic; None:
        it may read none, or the topic is not restricted."""


def nodes(node: tree.ExpressionNode) -> Iterator[tree.ExpressionNode]:
    """Yields the node and all nodes below it, from left to right."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += reversed(each.children())


def expression(
    text: str,
    use: ExpressionUse = SUBSCRIPTION,
    functions: Functions = BUILT_IN,
    client: EvalContext | None = None,
) -> Expression:
    """Parses and compiles a filter.

    Args:
        use: place where it is used.
        functions: functions that it may use.
        client: client to which the filter belongs. The client's values replace the functions that
            read them, so that they cost no more than literals.

    Raises:
        ExpressionError: the text is no filter, or calls a function that is not available in that
            place; with the column.
    """
    try:
        built_in = functions is BUILT_IN
        found = _COMPILED.get(text, use) if built_in else _compiled(text, use, functions)
        return found if client is None else _of_client(found, client)
    except RecursionError:
        raise ExpressionError("it is nested too deeply: make it shorter", 1, text) from None
    except ExpressionError as error:
        error.expression = text
        raise


def filter_of(
    text: str,
    use: ExpressionUse,
    functions: Functions,
    client: EvalContext | None,
    budget: FilterBudget | None = None,
) -> Expression:
    """Parses and compiles the filter of a client, as `expression` does.

    Args:
        budget: budget of the client's user, which pays for compiling and keeping it; None: none
            does.

    Raises:
        RemoteProtocolError: with reason `bad_filter`: the text is no filter (the error has the
            column and what to do); with reason `too_many`: the filters of its user take more memory
            than they may.
    """
    before = _COMPILED.steps
    try:
        found = expression(text, use, functions, client)
    except ExpressionError as error:
        raise RemoteProtocolError(refusal(text, error), "bad_filter") from None
    finally:
        if budget is not None:
            budget.compiled(_COMPILED.steps - before)
    return found if budget is None else replace(found, hold=budget.hold(found, found.size_bytes))


def refusal(text: str, error: ExpressionError) -> str:
    return f"{text[:SHOWN_CHARACTERS_MAX]!r} is no filter: {error}"


def check_functions(node: tree.ExpressionNode, use: ExpressionUse) -> None:
    """Refuses functions whose input is not known where the expression is used.

    Raises:
        ExpressionError: with the column of the first one.
    """
    for each in nodes(node):
        if isinstance(each, tree.Call):
            _check(each, use)


class CompiledFilters:
    """Recently compiled filters, for later requests with the same text. Owner: the process.

    Attributes:
        steps: approximate steps that compiling took so far, including filters that are not kept.
    """

    __slots__ = ("_bytes", "_bytes_max", "_found", "steps")

    def __init__(self, bytes_max: int = COMPILED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._found: OrderedDict[tuple[str, ExpressionUse], Expression] = OrderedDict()
        self._bytes = 0
        self.steps = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, text: str, use: ExpressionUse) -> Expression:
        """Returns the filter of a text, with the built-in functions.

        Raises:
            ExpressionError: the text is no filter.
        """
        key = text, use
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
            return found
        found = self._found[key] = _compiled(text, use, BUILT_IN)
        self._bytes += found.size_bytes
        while self._bytes > self._bytes_max:
            _, gone = self._found.popitem(last=False)
            self._bytes -= gone.size_bytes
        return found


_COMPILED = CompiledFilters()


def _compiled(text: str, use: ExpressionUse, functions: Functions) -> Expression:
    _COMPILED.steps += CHARACTER_STEPS * len(text)
    found = parse(text, functions)
    check_functions(found, use)
    return _made(text, text, found)


def _made(text: str, written: str, node: tree.ExpressionNode) -> Expression:
    parts = patterns = weight = count = 0
    for each in nodes(node):
        count += 1
        parts += not isinstance(each, tree.Literal)
        if isinstance(each, tree.Like | tree.Call):
            used = (each.pattern,) if isinstance(each, tree.Like) else each.patterns
            for pattern in used:
                if pattern is not None:
                    patterns += 1
                    weight += pattern.weight
    _COMPILED.steps += PART_STEPS * parts + PATTERN_STEPS * patterns
    size_bytes = FILTER_BYTES + CHARACTER_BYTES * len(text) + NODE_BYTES * count
    size_bytes += PATTERN_BYTES * patterns + WEIGHT_BYTES * weight
    effort = EvaluationAccount(written)
    return Expression(text, node, compiled_filter(node, effort), effort, size_bytes)


def _of_client(found: Expression, client: EvalContext) -> Expression:
    told: list[Value] = []

    def instead(node: tree.ExpressionNode) -> tree.ExpressionNode | None:
        if not isinstance(node, tree.Call) or node.function.needs != "client":
            return None
        told.append(node.function.call(client) or None)
        return tree.Literal(node.column, told[-1])

    made = tree.replaced(found.tree, instead)
    if not told:
        return found
    # The same text with other client values is another filter.
    return _made(f"{found.text} {told}", found.text, made)


def _check(call: tree.Call, use: ExpressionUse) -> None:
    function = call.function
    problem = ""
    if function.is_aggregate and not use.aggregates:
        problem = "asks for a group of messages, which only views have: a filter sees one message"
    elif use.deterministic and not function.is_deterministic:
        problem = (
            f"gives something else each time, which {use.what} must not: whoever asks it must come "
            "to the same answer"
        )
    elif function.needs and function.needs not in use.needs:
        problem = f"is not known to {use.what}: ask for what is in the message"
    if problem:
        raise ExpressionError(f"{function.name} {problem}", call.column)
