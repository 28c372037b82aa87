"""The language of content filters for links and instances (content.py, docs/filters.md).

A message whose body cannot be read passes no filter. Everybody who has the record reaches this
verdict, since it depends on the record alone.
"""

from __future__ import annotations

from typing import Any

from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.expressions.expression import REPLICATION, Expression, expression, refusal
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.records import Record
from raylay.services.messages.types.base import MessageTypeTable


class ExpressionLanguage:
    """The filter language of this installation (implements `FilterLanguage`).

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
    """

    __slots__ = ("_functions", "_message", "_record", "_types")

    def __init__(self, types: MessageTypeTable, functions: Functions = BUILT_IN) -> None:
        self._types = types
        self._functions = functions
        self._record: Record | None = None
        self._message: dict[str, Any] | None = None

    def compiled(self, text: str, where: str) -> ExpressionFilter:
        """Returns the filter that a text describes.

        Raises:
            ConfigurationError: naming the place, the text, the column and what is wrong.
        """
        try:
            return ExpressionFilter(expression(text, REPLICATION, self._functions), self)
        except ExpressionError as error:
            raise ConfigurationError(f"{where}: {refusal(text, error)}") from None

    def message(self, record: Record) -> dict[str, Any] | None:
        """Returns the parsed body of a record; None where it cannot be read. The last record's
        result is kept, for the filters that ask in turn."""
        if record is not self._record:
            try:
                self._message = self._types[record.message_type].parse(record.body)
            except MessageTypeError:
                self._message = None
            self._record = record
        return self._message


class ExpressionFilter:
    """A filter that evaluates an expression over the content of a record, and nothing else
    (implements `RecordFilter`)."""

    __slots__ = ("_asks_around", "_language", "_matches")

    def __init__(self, found: Expression, language: ExpressionLanguage) -> None:
        self._matches = found.matches
        self._language = language
        self._asks_around = found.asks_around

    def passes(self, record: Record) -> bool:
        message = self._language.message(record)
        if message is None:
            return False
        return self._matches(message, _around(record) if self._asks_around else NO_CONTEXT)


def _around(record: Record) -> EvalContext:
    return EvalContext(
        topic=record.topic,
        size_bytes=len(record.body),
        correlation_id=record.correlation.decode("utf-8", "surrogateescape"),
        bookmark=record.bookmark,
    )
