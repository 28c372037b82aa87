"""Fields of a message that the instance computes when the message is published (behaviour.md 4.9).

`expression AS /field`: preprocessing runs before the key of the message is made, and sees only the
message; enrichment runs afterwards, and also sees the record that the topic has under the key:
`/field OF PREVIOUS`. Messages from other instances were computed where they were published.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.expressions import tree, values
from raylay.services.expressions.compiler import Evaluation, compiled_value
from raylay.services.expressions.expression import ExpressionUse, check_functions, nodes
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.expressions.parser import parse_assignment
from raylay.services.messages.records import Record
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.composite import CompositeLocal
from raylay.services.messages.types.struct import StructType
from raylay.services.messages.types.trees import ABSENT, FieldPath, Tree, value_at, with_value

_CURRENT, _PREVIOUS = "current", "previous"
_MESSAGES = {"": _CURRENT, "CURRENT": _CURRENT, "PREVIOUS": _PREVIOUS}
_KNOWN = frozenset(("message", "instance", "clock"))
PREPROCESSING = ExpressionUse("preprocessing", _KNOWN)
ENRICHMENT = ExpressionUse("enrichment", _KNOWN)


class _EnrichedField(NamedTuple):
    """One computed field.

    Attributes:
        evaluate: returns the field's value, from the two messages under their names.
        optional: whether the field is left out when its value is NULL.
        sets_current: whether later fields see the new value.
        asks_around: whether the expression reads more than the messages.
    """

    path: FieldPath
    evaluate: Evaluation
    optional: bool
    sets_current: bool
    asks_around: bool


class Enrichment:
    """Sets fields of messages. Immutable.

    Args:
        texts: `expression AS /field`, as configured.
        kind: the type of the messages.
        functions: the functions that the expressions may use.
        use: `PREPROCESSING`, `ENRICHMENT`, or another place, where there is no previous message.
        around: the context of each message while it is computed (set by `tell`).

    Raises:
        ExpressionError: one cannot be read or asks what is not to be had; with text and column.
        MessageTypeError: messages of the type cannot be written so.
    """

    __slots__ = ("_around", "_empty", "_fields", "asks_around")

    def __init__(
        self,
        texts: Iterable[str],
        kind: MessageType,
        functions: Functions,
        use: ExpressionUse = ENRICHMENT,
        around: EvalContext = NO_CONTEXT,
    ) -> None:
        kind.require(Ability.FIELDS)
        kind.require(Ability.ENRICHMENT)
        self._empty = kind.empty
        self._around = around
        self._fields = tuple(_read(text, kind, functions, use) for text in texts)
        self.asks_around = any(field.asks_around for field in self._fields)
        """Whether any of the expressions reads more than the messages."""

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        return tuple(field.path for field in self._fields)

    def __call__(self, message: Tree, previous: Tree | None = None) -> Tree:
        """Returns the message with the computed fields; the arguments are not changed.

        Args:
            message: the message as it arrived.
            previous: the record that the topic has under the message's key; None: none.
        """
        messages = {_CURRENT: message, _PREVIOUS: previous or {}}
        result = message
        for field in self._fields:
            value = values.scalar(field.evaluate(messages, self._around))
            if value is None:
                if field.optional:
                    continue
                value = self._empty
            result = with_value(result, field.path, value)
            if field.sets_current:
                messages[_CURRENT] = with_value(messages[_CURRENT], field.path, value)
        return result


def tell(around: EvalContext, record: Record, now_us: int) -> None:
    """Sets the context for the message that is computed next.

    Args:
        now_us: receive time of the message.
    """
    around.topic = record.topic
    around.size_bytes = len(record.body)
    around.correlation_id = record.correlation.decode("utf-8", "surrogateescape")
    around.bookmark = record.bookmark
    around.now_s = now_us / 1e6


def written(kind: MessageType, known: ParsedBody, message: Tree) -> bytes:
    """Returns a body with the fields of an enriched message; fields that were not set keep their
    bytes.

    Args:
        known: the body as it arrived, with its fields.
        message: the enriched fields.

    Raises:
        MessageTypeError: the message type cannot represent one of the values.
    """
    made = kind.rewritten(message, known)
    # A part without fields is in no tree, so it must come from the original body.
    return kind.merge(known.body, made) if isinstance(kind, CompositeLocal) else made


def _read(text: str, kind: MessageType, functions: Functions, use: ExpressionUse) -> _EnrichedField:
    try:
        found = parse_assignment(text, functions, _MESSAGES)
        check_functions(found.value, use)
        if use is not ENRICHMENT:
            _check_no_previous(found.value, use)
        wrong = _unwritable(kind, found.destination)
        if wrong:
            raise ExpressionError(wrong, found.column)
        evaluate = compiled_value(found.value)
    except RecursionError:
        raise ExpressionError("it is nested too deeply: make it shorter", 1, text) from None
    except ExpressionError as error:
        error.expression = text
        raise
    calls = (each for each in nodes(found.value) if isinstance(each, tree.Call))
    return _EnrichedField(
        found.destination,
        evaluate,
        "OPTIONAL" in found.hints,
        "SET_CURRENT" in found.hints,
        any(call.function.needs for call in calls),
    )


def _check_no_previous(node: tree.ExpressionNode, use: ExpressionUse) -> None:
    text = f"{use.what} knows no PREVIOUS message: write the field alone"
    if use is PREPROCESSING:
        text = (
            "preprocessing makes the key, so it knows no PREVIOUS message yet: do this in "
            "enrichment"
        )
    for each in nodes(node):
        if isinstance(each, tree.Identifier) and each.steps[0] == _PREVIOUS:
            raise ExpressionError(text, each.column)


def _unwritable(kind: MessageType, path: FieldPath) -> str:
    """Returns why messages of a type cannot have this field; empty: they can."""
    identifier = "/" + "/".join(path)
    if isinstance(kind, CompositeLocal):
        number = path[0]
        if len(path) < 2 or not number.isdecimal() or int(number) >= len(kind.parts):
            return f"{identifier} is in no part of {kind.name}: write /0/name for one of the first"
        part = kind.parts[int(number)]
        try:
            part.require(Ability.FIELDS)
            part.require(Ability.ENRICHMENT)
        except MessageTypeError as error:
            return str(error)
        return _unwritable(part, path[1:])
    if isinstance(kind, StructType):
        # The type always has all of its fields, and no others.
        if value_at(kind.parse(bytes(kind.size_bytes)), path) is ABSENT:
            return f"{kind.name} has no field {identifier}: add it to the layout"
        return ""
    try:
        kind.serialize(with_value({}, path, "1"))
    except MessageTypeError as error:
        return f"{identifier} cannot be set: {error}"
    return ""
