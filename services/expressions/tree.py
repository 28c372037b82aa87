"""The syntax tree of an expression. Each node knows the column that it begins in, from 1."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from raylay.services.expressions.values import Steps, Value

if TYPE_CHECKING:
    from raylay.services.expressions.functions.registry import Function
    from raylay.services.expressions.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression."""

    column: int

    def children(self) -> list[Node]:
        """The nodes right below, in the order written."""
        found: list[Node] = []
        for field in fields(self):
            value = getattr(self, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Node):
                    found.append(each)
        return found


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A value that is written out."""

    value: Value


@dataclass(frozen=True, slots=True)
class Identifier(Node):
    """A field of the message."""

    steps: Steps


@dataclass(frozen=True, slots=True)
class Not(Node):
    """`NOT operand`."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """`operand AND operand AND …`, or all `OR`, from left to right."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left operator right`; the operator is one of = != < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between(Node):
    """`operand BETWEEN low AND high`, both included."""

    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand IN (options)`."""

    operand: Node
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like(Node):
    """`operand LIKE 'pattern'`."""

    operand: Node
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Affix(Node):
    """`operand BEGINS WITH (options)`, or `ENDS WITH`."""

    begins: bool
    operand: Node
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """`operand IS NULL`."""

    operand: Node


@dataclass(frozen=True, slots=True)
class IsNan(Node):
    """`operand IS NAN`."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """`left operator right`; the operator is one of + - * / %."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Negative(Node):
    """`-operand`."""

    operand: Node


@dataclass(frozen=True, slots=True)
class If(Node):
    """`IF(condition, then, otherwise)`."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`function(arguments)`; regular expressions among them are ready for use."""

    function: Function
    arguments: tuple[Node, ...]
    patterns: tuple[Pattern | None, ...] = ()
    """At each argument that is one, the compiled pattern."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """`value AS /destination HINT hints`.

    Attributes:
        column: that the destination begins in.
        destination: the names on the way to the field that gets the value.
        hints: `OPTIONAL`, `SET_CURRENT`.
    """

    column: int
    value: Node
    destination: tuple[str, ...]
    hints: frozenset[str] = frozenset()
