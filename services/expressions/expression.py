"""An expression, read and compiled, and where it may be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from raylay.services.errors import ExpressionError, RemoteProtocolError
from raylay.services.expressions import tree
from raylay.services.expressions.compiler import Predicate, compiled_filter, with_account
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.expressions.parser import parse
from raylay.services.expressions.values import Value
from raylay.services.expressions.work import EvaluationAccount, FilterPayer

COMPILED_MAX = 256
"""Filters that are kept for who asks for the same one again."""
SHOWN_CHARACTERS_MAX = 200
"""Of a filter in its refusal."""


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
    """

    text: str
    tree: tree.ExpressionNode
    matches: Predicate
    effort: EvaluationAccount = field(default_factory=EvaluationAccount, compare=False)

    def own(self, *payers: FilterPayer) -> Expression:
        """Copy with an effort of its own: what is compiled is kept for all who write the same.

        Args:
            payers: who pays for its long evaluations; none: it may take what it takes.
        """
        effort = EvaluationAccount(self.effort.text, *payers)
        matches = with_account(self.matches.__code__, self.matches.__globals__, effort)
        return replace(self, matches=matches, effort=effort)

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
        found = _built_in(text, use) if built_in else _compiled(text, use, functions)
        return found if client is None else _of_client(found, client)
    except RecursionError:
        raise ExpressionError("it is nested too deeply: make it shorter", 1, text) from None
    except ExpressionError as error:
        error.expression = text
        raise


def filter_of(
    text: str, use: ExpressionUse, functions: Functions, client: EvalContext | None
) -> Expression:
    """Reads and compiles the filter of a client, as `expression` does.

    Raises:
        RemoteProtocolError: it is none, with reason `bad_filter`, the column and what to do.
    """
    try:
        return expression(text, use, functions, client)
    except ExpressionError as error:
        raise RemoteProtocolError(refusal(text, error), "bad_filter") from None


def refusal(text: str, error: ExpressionError) -> str:
    """What to tell who wrote a filter that is none."""
    return f"{text[:SHOWN_CHARACTERS_MAX]!r} is no filter: {error}"


def check_functions(node: tree.ExpressionNode, use: ExpressionUse) -> None:
    """Refuses functions that there is nothing for where the expression is used.

    Raises:
        ExpressionError: with the column of the first one.
    """
    for each in nodes(node):
        if isinstance(each, tree.Call):
            _check(each, use)


def _compiled(text: str, use: ExpressionUse, functions: Functions) -> Expression:
    found = parse(text, functions)
    check_functions(found, use)
    effort = EvaluationAccount(text)
    return Expression(text, found, compiled_filter(found, effort), effort)


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
    effort = EvaluationAccount(found.text)
    return Expression(f"{found.text} {told}", made, compiled_filter(made, effort), effort)


@lru_cache(COMPILED_MAX)
def _built_in(text: str, use: ExpressionUse) -> Expression:
    return _compiled(text, use, BUILT_IN)


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
