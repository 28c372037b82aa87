"""The projection of a view: `expression AS /field`, with aggregates of a group's members
(behaviour.md 4.6, 5.3).

A projection is compiled once. For a member it gives the arguments of the aggregates, and the fields
that stand outside of aggregates; for a group it gives the fields of the view from the tallies and
from the latest of those fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.expressions import tree, values
from raylay.services.expressions.compiler import Evaluation, compiled_value
from raylay.services.expressions.expression import ExpressionUse, check_functions, nodes
from raylay.services.expressions.functions.registry import NO_CONTEXT, Functions
from raylay.services.expressions.parser import parse_assignment
from raylay.services.expressions.values import Steps, Value
from raylay.services.expressions.work import EvaluationAccount
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import FieldPath, Tree, with_value
from raylay.services.views.sources import ViewSources
from raylay.services.views.tallies import DistinctTally, NumberTally, OrderTally

FIELDS_MAX = 256
_FIELDS, _RESULTS = "fields", "results"
PROJECTION = ExpressionUse(
    "a field of a view", frozenset(("instance",)), deterministic=True, aggregates=True
)

Tally = NumberTally | OrderTally | DistinctTally
Result = Callable[[Tally], Value]

_NUMBER, _SQUARES, _ORDER, _DISTINCT = "number", "squares", "order", "distinct"
_MADE: dict[str, Callable[[], Tally]] = {
    _NUMBER: NumberTally,
    _SQUARES: lambda: NumberTally(has_squares=True),
    _ORDER: OrderTally,
    _DISTINCT: DistinctTally,
}
_RESULTS_OF: dict[str, tuple[str, Callable[[Any], Value]]] = {
    "COUNT": (_NUMBER, attrgetter("count")),
    "SUM": (_NUMBER, NumberTally.sum),
    "AVG": (_NUMBER, NumberTally.average),
    "STDDEV_POP": (_SQUARES, lambda tally: tally.deviation(is_sample=False)),
    "STDDEV_SAMP": (_SQUARES, lambda tally: tally.deviation(is_sample=True)),
    "MIN": (_ORDER, OrderTally.least),
    "MAX": (_ORDER, OrderTally.greatest),
    "ANY": (_ORDER, OrderTally.least),
    "COUNT_DISTINCT": (_DISTINCT, DistinctTally.distinct),
    "UNIQUE": (_DISTINCT, DistinctTally.unique),
}
_CONCAT = "GROUP_CONCAT"


class TallyRule(NamedTuple):
    """One tally of each group: which argument it takes, and how it is made.

    Attributes:
        argument: number of the argument.
        make: makes the tally of a new group.
    """

    argument: int
    make: Callable[[], Tally]


class _Field(NamedTuple):
    """One field of the view.

    Attributes:
        optional: whether the field is left out where its value is NULL.
        plain, result: number of the field outside of aggregates or of the result that it shows as
            it is; -1: it is computed.
    """

    path: FieldPath
    evaluate: Evaluation
    optional: bool
    plain: int = -1
    result: int = -1


class ViewProjection:
    """A compiled projection. Immutable.

    Args:
        texts: `expression AS /field` of each field, as configured.
        kind: type of the view's messages.
        functions: the functions that the expressions may use.
        sources: the topics under the view.
        effort: account of the work of the expressions; None: it is not limited.

    Attributes:
        arguments: evaluations of the arguments of aggregates, each once, however many aggregates
            take it.
        tallies: the tallies of a group.
        fields: the fields of a member that stand outside of aggregates.
        copies: the view's field that is a plain copy of a member's field, by the latter's steps.
        reads: all fields that are read from a member. Their first step is the number of the topic
            where several are joined.

    Raises:
        ExpressionError: a field cannot be read, or asks for what views do not have; with text and
            column.
    """

    __slots__ = (
        "_direct",
        "_empty",
        "_projected",
        "_results",
        "arguments",
        "copies",
        "fields",
        "reads",
        "tallies",
    )

    def __init__(
        self,
        texts: Sequence[str],
        kind: MessageType,
        functions: Functions,
        sources: ViewSources,
        effort: EvaluationAccount | None = None,
    ) -> None:
        if not texts:
            raise ExpressionError("a view needs at least one field: /price AS /price", 1)
        if len(texts) > FIELDS_MAX:
            raise ExpressionError(f"a view has at most {FIELDS_MAX} fields, not {len(texts)}", 1)
        reader = _FieldReader(sources, effort)
        self._empty = kind.empty
        self._projected = tuple(reader.field(text, functions) for text in texts)
        for text, field in zip(texts, self._projected, strict=True):
            _check_fields(kind, [field.path], text)
        _check_fields(kind, [each.path for each in self._projected], texts[-1])
        # A record may have no other fields than these.
        required = [each.path for each in self._projected if not each.optional]
        _check_fields(kind, required, texts[0])
        self.arguments = tuple(reader.arguments)
        self.tallies = tuple(reader.tallies)
        self.fields = tuple(reader.fields)
        self.copies = reader.copies
        self._results = tuple(reader.results)
        self.reads = frozenset(reader.reads)
        self._direct = _direct_of(self._projected, self._results)

    def made(self, tallies: Sequence[Tally], fields: Sequence[Value]) -> Tree:
        """Computes the fields that the view shows of a group.

        Args:
            tallies: the group's tallies, in the order of the attribute `tallies`.
            fields: the values of the fields in the attribute `fields`, in its order.
        """
        made: Tree = {}
        if self._direct is not None:
            for name, optional, result, number in self._direct:
                value = fields[number] if result is None else result(tallies[number])
                if value is not None:
                    made[name] = value
                elif not optional:
                    made[name] = self._empty
            return made
        results = [result(tallies[number]) for number, result in self._results]
        message = {_FIELDS: fields, _RESULTS: results}
        for field in self._projected:
            # Most fields are results as they are.
            if field.result >= 0:
                value = results[field.result]
            elif field.plain >= 0:
                value = fields[field.plain]
            else:
                value = values.scalar(field.evaluate(message, NO_CONTEXT))
            if value is None:
                if field.optional:
                    continue
                value = self._empty
            path = field.path
            if len(path) == 1:
                made[path[0]] = value
            else:
                made = with_value(made, path, value)
        return made


def _direct_of(
    fields: Sequence[_Field], results: Sequence[tuple[int, Result]]
) -> tuple[tuple[str, bool, Result | None, int], ...] | None:
    """Returns the name of each field, whether it is optional, and where its value is: the result of
    a tally, or without one a field outside of aggregates. None: one is computed, or has a path."""
    found: list[tuple[str, bool, Result | None, int]] = []
    for field in fields:
        if len(field.path) > 1 or max(field.result, field.plain) < 0:
            return None
        number, result = field.plain, None
        if field.result >= 0:
            number, result = results[field.result]
        found.append((field.path[0], field.optional, result, number))
    return tuple(found)


def _check_fields(kind: MessageType, paths: Sequence[FieldPath], text: str) -> None:
    """Refuses fields that messages of the view's type cannot have.

    Args:
        text: the field of the projection that the refusal shows.

    Raises:
        ExpressionError: a message cannot have these fields and no others.
    """
    made: Tree = {}
    for path in paths:
        made = with_value(made, path, kind.empty)
    try:
        kind.serialize(made)
    except MessageTypeError as error:
        shown = ", ".join("/" + "/".join(path) for path in paths) or "no field"
        raise ExpressionError(
            f"a view of this type cannot have messages with {shown}: {error}", 1, text
        ) from None


class _FieldReader:
    """Reads the fields of a view one after the other, and finds what their expressions share."""

    def __init__(self, sources: ViewSources, effort: EvaluationAccount | None) -> None:
        self._sources = sources
        self._effort = effort
        self._skipped = 0 if sources.is_join else 1
        """Number of first steps that fields of a member do not have: one topic alone has no name
        there."""
        self.arguments: list[Evaluation] = []
        self.tallies: list[TallyRule] = []
        self.fields: list[Steps] = []
        self.results: list[tuple[int, Result]] = []
        self.reads: set[Steps] = set()
        self.copies: dict[Steps, FieldPath] = {}
        self._argument_numbers: dict[str, int] = {}
        self._tally_numbers: dict[tuple[int, str], int] = {}
        self._destinations: set[FieldPath] = set()

    def field(self, text: str, functions: Functions) -> _Field:
        """Reads one field.

        Raises:
            ExpressionError: with text and column.
        """
        try:
            found = parse_assignment(text, functions, topics=self._sources.step)
            check_functions(found.value, PROJECTION)
            if found.destination in self._destinations:
                raise ExpressionError("another field of the view has this name", found.column)
            self._destinations.add(found.destination)
            if isinstance(found.value, tree.Identifier):
                self.copies.setdefault(found.value.steps[self._skipped :], found.destination)
            of_group = tree.replaced(found.value, self._of_group)
            evaluate = compiled_value(of_group, self._effort)
        except RecursionError:
            raise ExpressionError("it is nested too deeply: make it shorter", 1, text) from None
        except ExpressionError as error:
            error.expression = text
            raise
        if unknown := found.hints - {"OPTIONAL"}:
            raise ExpressionError(
                f"HINT {min(unknown)} has no meaning in a view, which has no current message",
                found.column,
                text,
            )
        shown = {_FIELDS: -1, _RESULTS: -1}
        if isinstance(of_group, tree.Identifier):
            shown[str(of_group.steps[0])] = int(of_group.steps[1])
        return _Field(
            found.destination,
            evaluate,
            "OPTIONAL" in found.hints,
            shown[_FIELDS],
            shown[_RESULTS],
        )

    def _of_group(self, node: tree.ExpressionNode) -> tree.ExpressionNode | None:
        """Returns the node that takes the place of a field or an aggregate, and reads its value
        from the group."""
        if isinstance(node, tree.Identifier):
            return tree.Identifier(
                node.column, (_FIELDS, self._field_number(node.steps[self._skipped :]))
            )
        if isinstance(node, tree.Call) and node.function.is_aggregate:
            return tree.Identifier(node.column, (_RESULTS, self._result_number(node)))
        return None

    def _field_number(self, steps: Steps) -> int:
        if steps not in self.fields:
            self.fields.append(steps)
            self.reads.add(steps)
        return self.fields.index(steps)

    def _result_number(self, call: tree.Call) -> int:
        argument, *others = call.arguments
        for each in nodes(argument):
            if isinstance(each, tree.Call) and each.function.is_aggregate:
                raise ExpressionError(
                    f"{each.function.name} stands within {call.function.name}: an aggregate takes "
                    "fields of messages. Make a view of a view",
                    each.column,
                )
        kind, result = self._result_of(call, others)
        number = self._tally_number(self._argument_number(argument), kind)
        self.results.append((number, result))
        return len(self.results) - 1

    def _result_of(
        self, call: tree.Call, others: Sequence[tree.ExpressionNode]
    ) -> tuple[str, Result]:
        if call.function.name != _CONCAT:
            return _RESULTS_OF[call.function.name]
        delimiter = ","
        if others:
            if not isinstance(others[0], tree.Literal):
                raise ExpressionError(
                    "the second argument of GROUP_CONCAT is a text in quotes", others[0].column
                )
            delimiter = values.text(others[0].value) or ""

        def joined(tally: Any) -> Value:
            return tally.joined(delimiter)

        return _DISTINCT, joined

    def _argument_number(self, argument: tree.ExpressionNode) -> int:
        key = _text_of(argument)
        number = self._argument_numbers.get(key)
        if number is None:
            for each in nodes(argument):
                if isinstance(each, tree.Identifier):
                    self.reads.add(each.steps[self._skipped :])
            number = self._argument_numbers[key] = len(self.arguments)
            own = tree.replaced(argument, self._of_member)
            self.arguments.append(compiled_value(own, self._effort))
        return number

    def _of_member(self, node: tree.ExpressionNode) -> tree.ExpressionNode | None:
        if isinstance(node, tree.Identifier):
            return tree.Identifier(node.column, node.steps[self._skipped :])
        return None

    def _tally_number(self, argument: int, kind: str) -> int:
        key = argument, kind
        number = self._tally_numbers.get(key)
        if number is None:
            number = self._tally_numbers[key] = len(self.tallies)
            self.tallies.append(TallyRule(argument, _MADE[kind]))
        return number


def _text_of(node: tree.ExpressionNode) -> str:
    """Returns a text that two expressions share if they are equal in all but their place: 1 and 1.0
    differ."""

    def instead(each: tree.ExpressionNode) -> tree.ExpressionNode | None:
        return tree.replaced(replace(each, column=0), instead) if each.column else None

    return repr(tree.replaced(node, instead))
