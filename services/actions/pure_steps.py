"""The steps of actions that need nothing but the variables of their run: conditions, values out of
a message, translations and counters (behaviour.md 8.2, 8.3)."""

from __future__ import annotations

from collections.abc import Mapping

from raylay.services.actions.model import ActionModule
from raylay.services.actions.option_text import assignment, case
from raylay.services.actions.variables import (
    Lookup,
    expand,
    expand_expression,
    field_value,
    with_fields,
)
from raylay.services.errors import ConfigurationError, ExpressionError
from raylay.services.expressions import values
from raylay.services.expressions.compiler import Evaluation, Predicate, compiled_value
from raylay.services.expressions.expression import ExpressionUse, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.messages.lossless_text import bytes_of
from raylay.services.messages.types.base import MessageTypeTable

CONTEXT = ExpressionUse(
    "an expression of an action", frozenset(("message", "client", "instance", "clock"))
)
COUNTERS_MAX = 10_000
"""Number of counters that an instance keeps: their names may be made of what clients send."""
EVALUATIONS_MAX = 100
"""Number of expressions of values that are kept compiled."""
CompiledCondition = tuple[Predicate, tuple[tuple[str, bool], ...]]
"""A condition, and for each of its fields the variable and whether it may be a number."""


def check_expression(template: str, functions: Functions = BUILT_IN) -> None:
    """Checks an expression of an action as far as it can be without its variables.

    Raises:
        ExpressionError: it is no expression, whatever its variables hold.
    """
    # A field of this name is what a variable behind a slash needs, and any text does elsewhere.
    expression(expand_expression(template, lambda name: "x"), CONTEXT, functions)


class PureSteps:
    """Performs the steps. Owner: the engine. Lifecycle: one start; counters begin at 0.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that expressions may use.
    """

    __slots__ = ("_conditions", "_counters", "_evaluations", "_functions", "_types")

    def __init__(self, types: MessageTypeTable, functions: Functions) -> None:
        self._types = types
        self._functions = functions
        self._counters: dict[str, int] = {}
        self._conditions: dict[str, CompiledCondition | None] = {}
        """The conditions of the actions, compiled, by their texts."""
        self._evaluations: dict[str, Evaluation] = {}
        """Recent expressions of values, compiled, by their texts with variables."""

    def is_true(self, step: ActionModule, find: Lookup, around: EvalContext) -> bool:
        """Returns whether the condition of an `if-condition` is true.

        Raises:
            ExpressionError: with its variables, the condition is no expression.
        """
        template = step.option("Condition")
        if template not in self._conditions:
            self._conditions[template] = self._compiled(template)
        compiled = self._conditions[template]
        if compiled is None:
            text = expand_expression(template, find)
            return expression(text, CONTEXT, self._functions).matches({}, around)
        matches, fields = compiled
        read = {
            f"V{number}": field_value(find(name), may_be_number=may_be_number)
            for number, (name, may_be_number) in enumerate(fields)
        }
        return matches(read, around)

    def extracted(self, step: ActionModule, find: Lookup, around: EvalContext) -> dict[str, str]:
        """Returns the variables that an `extract-values` sets; without `Data` it sets none.

        Raises:
            ValueError: `Value` has no variable or no expression.
            MessageTypeError: there is no such type, or the data are no message of it.
            ExpressionError: a value is no expression.
        """
        if not step.every("Data"):
            return {}
        body = bytes_of(expand(step.option("Data"), find))
        tree = self._types[expand(step.option("MessageType"), find)].parse(body)
        found = {}
        for text in step.every("Value"):
            name, template = assignment(text)
            evaluate = self._evaluation(expand_expression(template, find))
            found[name] = values.text(evaluate(tree, around)) or ""
        return found

    def translated(self, step: ActionModule, find: Lookup) -> dict[str, str]:
        """Returns the variable that a `translate-data` sets. Its value is the translation in the
        first case for the data, or else `Default`, or else the data.

        Raises:
            ValueError: a `Case` has no `=`.
        """
        data = expand(step.option("Data"), find)
        made = expand(step.option("Default"), find) if step.every("Default") else data
        for text in step.every("Case"):
            # The sides are expanded by themselves: a variable may hold an equals sign.
            before, after = case(text)
            if expand(before, find) == data:
                made = expand(after, find)
                break
        return {expand(step.option("Value"), find): made}

    def counted(self, step: ActionModule, find: Lookup) -> dict[str, str]:
        """Adds 1 to the counter of an `increment-counter`, and returns the variable that it sets.

        Raises:
            ConfigurationError: there are `COUNTERS_MAX` others.
        """
        key = expand(step.option("Key"), find)
        if key not in self._counters and len(self._counters) >= COUNTERS_MAX:
            raise ConfigurationError(
                f"the counter {key[:100]!r} would be one more than the {COUNTERS_MAX:,} that an "
                "instance keeps: use fewer names as Key"
            )
        self._counters[key] = self._counters.get(key, 0) + 1
        name = expand(step.option("Value"), find)
        return {name: str(self._counters[key])} if name else {}

    def _compiled(self, template: str) -> CompiledCondition | None:
        """Returns a condition that reads its variables as fields; None: the condition has a
        variable where no field may stand, such as in a pattern, and is compiled for each run."""
        found = with_fields(template)
        if found is None:
            return None
        text, fields = found
        try:
            return expression(text, CONTEXT, self._functions).matches, fields
        except ExpressionError:
            return None

    def _evaluation(self, text: str) -> Evaluation:
        found = self._evaluations.get(text)
        if found is None:
            if len(self._evaluations) >= EVALUATIONS_MAX:
                self._evaluations.clear()
            found = compiled_value(expression(text, CONTEXT, self._functions).tree)
            self._evaluations[text] = found
        return found


def context_of(variables: Mapping[str, str], instance_name: str, wall_us: int) -> EvalContext:
    """Returns what the functions of expressions can read: of the message and the client that began
    the run, the instance and the time."""
    data = variables.get("AMPS_DATA")
    return EvalContext(
        topic=variables.get("AMPS_TOPIC"),
        size_bytes=None if data is None else len(bytes_of(data)),
        correlation_id=variables.get("AMPS_CORRELATION_ID"),
        bookmark=variables.get("AMPS_BOOKMARK"),
        client_name=variables.get("AMPS_CLIENT_NAME"),
        user=variables.get("AMPS_AUTHENTICATION_ID"),
        remote_address=variables.get("AMPS_REPLICATION_REMOTE_ADDRESS"),
        connection_name=variables.get("AMPS_CONNECTION_NAME"),
        instance=instance_name,
        now_s=wall_us / 1e6,
    )
