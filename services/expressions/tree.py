"""The syntax tree of an expression. Each node has the column in which it begins, from 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from raylay.services.expressions.values import Steps, Value

if TYPE_CHECKING:
    from raylay.services.expressions.functions.registry import Function
    from raylay.services.expressions.patterns import Pattern


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """A part of an expression."""

    column: int

    def children(self) -> list[ExpressionNode]:
        """Returns the nodes directly below, in the order written."""
        found: list[ExpressionNode] = []
        for field in fields(self):
            value = getattr(self, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, ExpressionNode):
                    found.append(each)
        return found


@dataclass(frozen=True, slots=True)
class Literal(ExpressionNode):
    """A literal value."""

    value: Value


@dataclass(frozen=True, slots=True)
class Identifier(ExpressionNode):
    """A field of the message."""

    steps: Steps


@dataclass(frozen=True, slots=True)
class Not(ExpressionNode):
    """`NOT operand`."""

    operand: ExpressionNode


@dataclass(frozen=True, slots=True)
class Logical(ExpressionNode):
    """`operand AND operand AND …`, or all `OR`, from left to right."""

    operator: str
    operands: tuple[ExpressionNode, ...]


@dataclass(frozen=True, slots=True)
class Comparison(ExpressionNode):
    """`left operator right`; the operator is one of = != < <= > >=."""

    operator: str
    left: ExpressionNode
    right: ExpressionNode


@dataclass(frozen=True, slots=True)
class Between(ExpressionNode):
    """`operand BETWEEN low AND high`, both included."""

    operand: ExpressionNode
    low: ExpressionNode
    high: ExpressionNode


@dataclass(frozen=True, slots=True)
class In(ExpressionNode):
    """`operand IN (options)`."""

    operand: ExpressionNode
    options: tuple[ExpressionNode, ...]


@dataclass(frozen=True, slots=True)
class Like(ExpressionNode):
    """`operand LIKE 'pattern'`."""

    operand: ExpressionNode
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Affix(ExpressionNode):
    """`operand BEGINS WITH (options)`, or `ENDS WITH`."""

    begins: bool
    operand: ExpressionNode
    options: tuple[ExpressionNode, ...]


@dataclass(frozen=True, slots=True)
class IsNull(ExpressionNode):
    """`operand IS NULL`."""

    operand: ExpressionNode


@dataclass(frozen=True, slots=True)
class IsNan(ExpressionNode):
    """`operand IS NAN`."""

    operand: ExpressionNode


@dataclass(frozen=True, slots=True)
class Arithmetic(ExpressionNode):
    """`left operator right`; the operator is one of + - * / %."""

    operator: str
    left: ExpressionNode
    right: ExpressionNode


@dataclass(frozen=True, slots=True)
class Negative(ExpressionNode):
    """`-operand`."""

    operand: ExpressionNode


@dataclass(frozen=True, slots=True)
class Conditional(ExpressionNode):
    """`IF(condition, then, otherwise)`."""

    condition: ExpressionNode
    then: ExpressionNode
    otherwise: ExpressionNode


@dataclass(frozen=True, slots=True)
class Call(ExpressionNode):
    """`function(arguments)`; regular expressions among them are ready for use."""

    function: Function
    arguments: tuple[ExpressionNode, ...]
    patterns: tuple[Pattern | None, ...] = ()
    """The compiled pattern of each argument that is a pattern; None for the others."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """`value AS /destination HINT hints`.

    Attributes:
        column: column in which the destination begins.
        destination: names on the way to the field that gets the value.
        hints: `OPTIONAL`, `SET_CURRENT`.
    """

    column: int
    value: ExpressionNode
    destination: tuple[str, ...]
    hints: frozenset[str] = frozenset()


def replaced(
    node: ExpressionNode, instead: Callable[[ExpressionNode], ExpressionNode | None]
) -> ExpressionNode:
    """Returns a tree in which other nodes stand.

    Args:
        instead: returns the node that stands in the place of another; None: that one stays, and the
            nodes below it are looked at.
    """
    found = instead(node)
    if found is not None:
        return found
    changed: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, ExpressionNode):
            changed[field.name] = replaced(value, instead)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(
                replaced(each, instead) if isinstance(each, ExpressionNode) else each
                for each in value
            )
    return replace(node, **changed) if changed else node
