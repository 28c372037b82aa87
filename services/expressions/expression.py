"""An expression, read and compiled, and where it may be used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

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
"""Memory of filters that are kept for who asks for the same one again, about."""
FILTER_BYTES, CHARACTER_BYTES, NODE_BYTES = 2_000, 2, 400
"""Memory of a compiled filter, about: of each, and for each character and node of it."""
PATTERN_BYTES, WEIGHT_BYTES = 1_200, 100
"""Memory of a regular expression of it, about: of each, and for its `weight`."""
CHARACTER_STEPS, PART_STEPS, PATTERN_STEPS = 300, 10_000, 40_000
"""Steps that it takes to compile a filter, about: for each character, each part of it that is no
literal, and each regular expression."""
SHOWN_CHARACTERS_MAX = 200
"""Characters of a filter that its refusal shows."""


@dataclass(frozen=True, slots=True)
class ExpressionUse:
    """A place where expressions are used, and the abilities that they have there.

    Attributes:
        what: for the refusal.
        needs: what of the surroundings is known there.
        deterministic: whether the same message must always give the same.
    """

    what: str
    needs: frozenset[str]
    deterministic: bool = False


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
    """A filter.

    Attributes:
        text: as it was written; and what stands for the client, where it asks for that.
        tree: how it was read.
        matches: whether it is true of a parsed message and its surroundings.
        effort: what that took, where it was much.
        size_bytes: the memory that it takes, about.
        hold: counts that for its user, while somebody has it; None: it counts for nobody.
    """

    text: str
    tree: tree.ExpressionNode
    matches: Predicate
    effort: EvaluationAccount = field(default_factory=EvaluationAccount, compare=False)
    size_bytes: int = field(default=0, compare=False)
    hold: FilterHold | None = field(default=None, compare=False)

    def own(self, *payers: FilterPayer) -> Expression:
        """Copy with an effort of its own: what is compiled is kept for all who write the same.
        Whoever has the copy keeps the `hold` of this one.

        Args:
            payers: who pays for its long evaluations; none: it may take what it takes.
        """
        effort = EvaluationAccount(self.effort.text, *payers)
        matches = with_account(self.matches.__code__, self.matches.__globals__, effort)
        return replace(self, matches=matches, effort=effort, hold=None)

    @property
    def asks_around(self) -> bool:
        """Returns whether it asks for more than the message; by a walk over the whole of it."""
        calls = (each for each in nodes(self.tree) if isinstance(each, tree.Call))
        return any(each.function.needs for each in calls)


def nodes(node: tree.ExpressionNode) -> Iterator[tree.ExpressionNode]:
    """The node and all below it, from left to right."""
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
    """Reads and compiles a filter.

    Args:
        use: where it is to be used.
        functions: those that it may use.
        client: whose filter it is. What it asks of the client is written out in its place, so that
            it is asked as any other value is.

    Raises:
        ExpressionError: it is none, or asks what is not to be had there; with its column.
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
    """Reads and compiles the filter of a client, as `expression` does.

    Args:
        budget: of its user, who pays for what it takes to compile it and to have it; None: nobody
            does.

    Raises:
        RemoteProtocolError: it is none, with reason `bad_filter`, the column and what to do. Or
            the filters of its user take more memory than they may: `too_many`.
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
    """Returns the error text for an invalid filter."""
    return f"{text[:SHOWN_CHARACTERS_MAX]!r} is no filter: {error}"


def check_functions(node: tree.ExpressionNode, use: ExpressionUse) -> None:
    """Refuses functions that there is nothing for where the expression is used.

    Raises:
        ExpressionError: with the column of the first one.
    """
    for each in nodes(node):
        if isinstance(each, tree.Call):
            _check(each, use)


class CompiledFilters:
    """Filters that were compiled lately, for who asks for the same one again. Owner: the process.

    Attributes:
        steps: what it took to compile filters so far, about; of those that are not kept, too.
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
        """The filter of a text, by the built-in functions.

        Raises:
            ExpressionError: it is none.
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

    def written(node: tree.ExpressionNode) -> tree.ExpressionNode:
        if isinstance(node, tree.Call) and node.function.needs == "client":
            told.append(node.function.call(client) or None)
            return tree.Literal(node.column, told[-1])
        changed: dict[str, Any] = {}
        for each_field in fields(node):
            value = getattr(node, each_field.name)
            if isinstance(value, tree.ExpressionNode):
                changed[each_field.name] = written(value)
            elif isinstance(value, tuple):
                changed[each_field.name] = tuple(
                    written(each) if isinstance(each, tree.ExpressionNode) else each
                    for each in value
                )
        return replace(node, **changed) if changed else node

    made = written(found.tree)
    if not told:
        return found
    # Who else writes the same asks for something else.
    return _made(f"{found.text} {told}", found.text, made)


def _check(call: tree.Call, use: ExpressionUse) -> None:
    function = call.function
    problem = ""
    if function.is_aggregate:
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
