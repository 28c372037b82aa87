"""What the tests of expressions ask: the value of one for a message."""

from __future__ import annotations

from typing import Any

from raylay.services.expressions.compiler import compiled_value
from raylay.services.expressions.explain import shown_value
from raylay.services.expressions.expression import ANYWHERE, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.parser import parse

NAN = float("nan")


def value(
    text: str, message: dict[str, Any] | None = None, around: EvalContext = NO_CONTEXT
) -> Any:
    """The value of an expression."""
    return compiled_value(parse(text, BUILT_IN))(message or {}, around)


def is_true(text: str, message: dict[str, Any] | None = None) -> bool:
    """Whether a message passes the filter."""
    return expression(text, ANYWHERE).matches(message or {}, NO_CONTEXT)


def gives(
    text: str,
    wanted: Any,
    message: dict[str, Any] | None = None,
    around: EvalContext = NO_CONTEXT,
) -> None:
    """Asserts the value, its type included; NaN is equal to itself here."""
    found = value(text, message, around)
    assert (type(found), shown_value(found)) == (type(wanted), shown_value(wanted)), text
