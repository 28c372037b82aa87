"""A straightforward interpreter of expressions: what the compiled function is compared with. It
looks at every pair of elements, and knows nothing of speed."""

from __future__ import annotations

import math
import operator
from typing import Any

from raylay.services.expressions import tree
from raylay.services.expressions.values import ARITHMETIC, follow, parsed

OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def elements(value: Any) -> list[Any]:
    """The elements of a value, NULL as None."""
    if isinstance(value, list):
        return [inner for each in value for inner in elements(each)]
    if isinstance(value, dict):
        value = value.get("#text")
        value = None if isinstance(value, list | dict) else value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    return [None if value == "" else value]


def compare(name: str, left: Any, right: Any) -> bool:
    """Whether two single values compare so."""
    if left is None or right is None:
        return False
    if isinstance(left, str) != isinstance(right, str):
        if isinstance(left, str):
            said: Any = parsed(left)
            if math.isnan(said):
                return bool(OPERATORS[name](1, 0))
            left = said
        else:
            said = parsed(right)
            if math.isnan(said):
                return bool(OPERATORS[name](0, 1))
            right = said
    return bool(OPERATORS[name](left, right))


def any_pair(name: str, left: Any, right: Any) -> bool:
    """Whether any pair of elements compares so."""
    return any(compare(name, a, b) for a in elements(left) for b in elements(right))


def as_text(value: Any) -> str:
    """A value as a string."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def truth(value: Any) -> bool | None:
    """A value as a condition."""
    found = [each for each in elements(value) if each is not None]
    if not found:
        return None
    numbers = [parsed(each) if isinstance(each, str) else each for each in found]
    return any(each != 0 and not math.isnan(each) for each in numbers)


def interpreted(node: tree.ExpressionNode, message: dict[str, Any]) -> Any:
    """The value of an expression for a message."""

    def value(each: tree.ExpressionNode) -> Any:
        return interpreted(each, message)

    match node:
        case tree.Literal():
            return None if node.value == "" else node.value
        case tree.Identifier():
            return follow(message, node.steps)
        case tree.Not():
            found = truth(value(node.operand))
            return None if found is None else not found
        case tree.Logical():
            result = truth(value(node.operands[0]))
            for each in node.operands[1:]:
                if result is None or result == (node.operator == "OR"):
                    continue
                result = truth(value(each))
            return result
        case tree.Comparison():
            return any_pair(node.operator, value(node.left), value(node.right))
        case tree.Between():
            low, high = value(node.low), value(node.high)
            return any(
                any_pair(">=", each, low) and any_pair("<=", each, high)
                for each in elements(value(node.operand))
            )
        case tree.In():
            return any(any_pair("=", value(node.operand), value(each)) for each in node.options)
        case tree.Like():
            found = elements(value(node.operand))
            return any(each is not None and node.pattern.matches(as_text(each)) for each in found)
        case tree.Affix():
            return affix(node, value)
        case tree.IsNull():
            return first(value(node.operand)) is None
        case tree.IsNan():
            found = first(value(node.operand))
            return isinstance(found, float) and math.isnan(found)
        case tree.Arithmetic():
            return ARITHMETIC[node.operator](value(node.left), value(node.right))
        case tree.Negative():
            return ARITHMETIC["*"](value(node.operand), -1)
        case tree.Conditional():
            return value(node.then if truth(value(node.condition)) else node.otherwise)
        case tree.Call():
            return node.function.bound(len(node.arguments))(None, *map(value, node.arguments))
    raise AssertionError(node)


def first(value: Any) -> Any:
    """The first element."""
    return next(iter(elements(value)), None)


def affix(node: tree.Affix, value: Any) -> bool:
    """BEGINS WITH and ENDS WITH."""
    options = [first(value(each)) for each in node.options]
    for each in elements(value(node.operand)):
        for option in options:
            if each is None or option is None:
                continue
            text, part = as_text(each), as_text(option)
            if text.startswith(part) if node.begins else text.endswith(part):
                return True
    return False
