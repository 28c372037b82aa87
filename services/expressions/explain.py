"""The parse of an expression, and the value of each of its parts for a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raylay.services.expressions import tree
from raylay.services.expressions.compiler import compiled_value
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.values import Steps, Value

VALUE_CHARACTERS_MAX = 80


def shown(node: tree.ExpressionNode) -> str:
    """Returns the expression in a normal spelling, with parentheses around each part that has
    parts."""
    match node:
        case tree.Literal():
            return shown_value(node.value)
        case tree.Identifier():
            return _shown_way(node.steps)
        case tree.Not():
            return f"NOT {shown(node.operand)}"
        case tree.Logical():
            return f"({f' {node.operator} '.join(map(shown, node.operands))})"
        case tree.Comparison() | tree.Arithmetic():
            return f"({shown(node.left)} {node.operator} {shown(node.right)})"
        case tree.Between():
            return f"({shown(node.operand)} BETWEEN {shown(node.low)} AND {shown(node.high)})"
        case tree.In():
            return f"({shown(node.operand)} IN ({', '.join(map(shown, node.options))}))"
        case tree.Like():
            return f"({shown(node.operand)} LIKE {shown_value(node.pattern.text)})"
        case tree.Affix():
            word = "BEGINS" if node.begins else "ENDS"
            return f"({shown(node.operand)} {word} WITH ({', '.join(map(shown, node.options))}))"
        case tree.IsNull():
            return f"({shown(node.operand)} IS NULL)"
        case tree.IsNan():
            return f"({shown(node.operand)} IS NAN)"
        case tree.Negative():
            return f"-({shown(node.operand)})"
        case tree.Conditional():
            parts = (node.condition, node.then, node.otherwise)
            return f"IF({', '.join(map(shown, parts))})"
        case tree.Call():
            return f"{node.function.name}({', '.join(_shown_arguments(node))})"
    raise AssertionError(node)


def _shown_arguments(node: tree.Call) -> Iterator[str]:
    for number, each in enumerate(node.arguments):
        pattern = node.patterns[number] if node.patterns else None
        yield shown(each) if pattern is None else shown_value(pattern.text)


def _shown_way(steps: Steps) -> str:
    way = "".join(f"[{step}]" if isinstance(step, int) else f"/{step}" for step in steps)
    if any(character in way for character in " (),'\"=<>!+*%;"):
        names = "".join(f"/{step}" for step in steps if isinstance(step, str))
        return f"[{names}]" + "".join(f"[{step}]" for step in steps if isinstance(step, int))
    return way


def shown_value(value: Value) -> str:
    """Returns a value as an expression would write it; an empty text is shown as one, although it
    counts as NULL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, str):
        quoted = value.encode("utf-8", "backslashreplace").decode()
        quoted = quoted.replace("\\", "\\\\") if quoted == value else quoted
        return "'" + quoted.replace("'", "\\'").replace("\n", "\\n") + "'"
    if isinstance(value, list):
        return f"[{', '.join(map(shown_value, value[:8]))}{', …' * (len(value) > 8)}]"
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    return str(value)


def explained(
    node: tree.ExpressionNode,
    message: dict[str, Any],
    around: EvalContext = NO_CONTEXT,
    depth: int = 0,
) -> Iterator[tuple[int, str, str]]:
    """Yields the parts of an expression from the whole to the smallest: its depth, its spelling,
    and its value."""
    if isinstance(node, tree.Literal):
        return
    value = shown_value(compiled_value(node)(message, around))
    if len(value) > VALUE_CHARACTERS_MAX:
        value = value[: VALUE_CHARACTERS_MAX - 1] + "…"
    yield depth, shown(node), value
    for each in node.children():
        yield from explained(each, message, around, depth + 1)
