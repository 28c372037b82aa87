"""Many filters evaluated together, so that those of 10,000 subscribers cost little more than one.

A filter that can only be true where a field equals a value that it names (`/symbol = 'IBM'`, alone,
joined by AND, or with IN) is found by that value: for each such field, the message's value is
looked up once, and only the filters that name it are evaluated further. Filters with the same text
are evaluated once for all their owners; all other filters are evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from raylay.services.expressions import tree, values
from raylay.services.expressions.budgets import FilterHold
from raylay.services.expressions.expression import Expression
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.values import Steps, Value
from raylay.services.expressions.work import EvaluationAccount, FilterPayer

Key = TypeVar("Key", bound=Hashable)
OTHERS_IN_WEIGHT = 8
"""Number of filters evaluated one by one that take as long, together, as the rest of a message."""


class FieldEquality:
    """A filter's condition that a field equals one of these values; `whole`: it has no other
    condition."""

    __slots__ = ("steps", "values", "whole")

    def __init__(self, steps: Steps, wanted: tuple[Value, ...], whole: bool) -> None:
        self.steps = steps
        self.values = wanted
        self.whole = whole


def named(node: tree.ExpressionNode, whole: bool = True) -> FieldEquality | None:
    """Returns the first condition of a filter that names values of a field; None: there is none."""
    match node:
        case tree.Logical(operator="AND"):
            found = (named(operand, False) for operand in node.operands)
            return next((each for each in found if each is not None), None)
        case tree.Comparison(
            operator="=", left=tree.Identifier() as field, right=tree.Literal() as wanted
        ):
            return FieldEquality(field.steps, (wanted.value,), whole)
        case tree.Comparison(
            operator="=", left=tree.Literal() as wanted, right=tree.Identifier() as field
        ):
            return FieldEquality(field.steps, (wanted.value,), whole)
        case tree.In(operand=tree.Identifier() as field):
            options = [option.value for option in node.options if isinstance(option, tree.Literal)]
            if len(options) == len(node.options):
                return FieldEquality(field.steps, tuple(options), whole)
    return None


class _Filter(Generic[Key]):
    """Filters of the same text.

    Attributes:
        keys: the keys of the filter's owners.
        named: the field and the values that it names, if it names any.
        whole: whether the filter has no other condition.
    """

    __slots__ = ("_payers", "expression", "keys", "named", "whole")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._payers: dict[FilterPayer, int] = {}
        """Number of keys for which each payer pays."""
        self.keys: dict[Key, None] = {}
        self.named = named(expression.tree)
        self.whole = self.named is not None and self.named.whole

    def paid_by(self, payer: FilterPayer) -> None:
        if payer not in self._payers:
            self.expression.effort.payers.append(payer)
        self._payers[payer] = self._payers.get(payer, 0) + 1

    def left_by(self, payer: FilterPayer) -> None:
        self._payers[payer] -= 1
        if not self._payers[payer]:
            del self._payers[payer]
            self.expression.effort.payers.remove(payer)


class _FieldIndex(Generic[Key]):
    """The filters that name values of one field.

    Attributes:
        texts: filters by a text that the field must equal.
        numbers: filters by a number that the field, or a text in it, must equal.
        said: filters that name a text which represents a number, by that number. Only a number in
            the field is looked up here: `texts` has the filters that an equal text passes.
    """

    __slots__ = ("first", "numbers", "said", "steps", "texts")

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.first = str(steps[0]) if len(steps) == 1 else None
        self.texts: dict[str, dict[_Filter[Key], None]] = {}
        self.numbers: dict[float, dict[_Filter[Key], None]] = {}
        self.said: dict[float, dict[_Filter[Key], None]] = {}

    def places(
        self, wanted: tuple[Value, ...]
    ) -> Iterator[tuple[dict[Any, dict[_Filter[Key], None]], Value]]:
        """Yields the tables in which filters for these values are found, each with the key in
        it."""
        for value in wanted:
            if isinstance(value, str):
                if value:
                    yield self.texts, value
                    said = values.parsed(value)
                    if said == said:
                        yield self.said, said
            elif value is not None:
                yield self.numbers, value

    def found(self, value: Any) -> dict[_Filter[Key], None] | None:
        """Returns the filters that name the field's value, each once. The result must not be
        changed."""
        kind = value.__class__
        if kind is str:
            found = self.texts.get(value)
            if not self.numbers:
                return found
            by_number = self.numbers.get(values.parsed(value))
        elif kind in values.NUMBERS:
            found = self.numbers.get(value)
            if not self.said:
                return found
            by_number = self.said.get(value)
        else:
            every: dict[_Filter[Key], None] = {}
            for each in values.plains(value):
                every.update(self.found(each) or {})
            return every
        return {**found, **by_number} if found and by_number else found or by_number


class FilterIndex(Generic[Key]):
    """Filters by the keys of their owners.

    Owner: its caller. Lifecycle: that of the caller; keys come and go.

    Attributes:
        version: changes when a filter that no other key has comes or goes.
        filter_count: number of filters that are not evaluated together; for a joined index, of all.
    """

    __slots__ = (
        "_by_key",
        "_by_text",
        "_fields",
        "_others",
        "_payers",
        "filter_count",
        "version",
    )

    def __init__(self) -> None:
        self.filter_count = 0
        self.version = 0
        self._by_key: dict[Key, _Filter[Key]] = {}
        self._payers: dict[Key, tuple[FilterPayer, FilterHold | None]] = {}
        """Payer of each key, and the hold that counts the filter for that user."""
        self._by_text: dict[tuple[str, bool], _Filter[Key]] = {}
        """Filters by their text, and whether a payer pays for them."""
        self._fields: dict[Steps, _FieldIndex[Key]] = {}
        self._others: dict[_Filter[Key], None] = {}

    @classmethod
    def joined(cls, indexes: Iterable[FilterIndex[Key]]) -> FilterIndex[Key]:
        """Returns an index that finds what these find, while the `version` of each stays the same.
        It shares their filters and keys, and is not changed itself."""
        made: FilterIndex[Key] = cls()
        for index in indexes:
            for each in index._by_text.values():
                made._enter(each)
        return made

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def others_count(self) -> int:
        """Returns the number of filters that are evaluated for each message, because they name no
        value of a field."""
        return len(self._others)

    def add(self, key: Key, expression: Expression, payer: FilterPayer | None = None) -> None:
        """Adds a filter, in place of the key's former one.

        Args:
            payer: pays for the filter's work. Of several payers of the same text one pays, and the
                others when its budget is spent, so the filter stops when all budgets are spent.
                Later ones do not share a stopped filter. None: the work is not limited.
        """
        self.discard(key)
        name = expression.text, payer is not None
        found = self._by_text.get(name)
        if found is None or found.expression.effort.is_stopped:
            own = expression if payer is None else expression.own()
            found = self._by_text[name] = _Filter(own)
            self._enter(found)
        if payer is not None:
            self._payers[key] = payer, expression.hold
            found.paid_by(payer)
        found.keys[key] = None
        self._by_key[key] = found

    def discard(self, key: Key) -> None:
        found = self._by_key.pop(key, None)
        if found is None:
            return
        del found.keys[key]
        payer, _ = self._payers.pop(key, (None, None))
        if payer is not None:
            found.left_by(payer)
        if not found.keys:
            name = found.expression.text, payer is not None
            if self._by_text[name] is found:
                del self._by_text[name]
            self._leave(found)

    def with_efforts(self, efforts: set[EvaluationAccount]) -> list[Key]:
        """Returns the keys whose filter has one of these work accounts."""
        return [key for key, each in self._by_key.items() if each.expression.effort in efforts]

    def _enter(self, found: _Filter[Key]) -> None:
        self.filter_count += 1
        self.version += 1
        asked = found.named
        if asked is None:
            self._others[found] = None
            return
        field = self._fields.get(asked.steps)
        if field is None:
            field = self._fields[asked.steps] = _FieldIndex(asked.steps)
        for table, value in field.places(asked.values):
            table.setdefault(value, {})[found] = None
        self._drop_empty(field)

    def _leave(self, found: _Filter[Key]) -> None:
        self.filter_count -= 1
        self.version += 1
        asked = found.named
        if asked is None:
            del self._others[found]
            return
        # A filter that names only NULL is in no table: nothing equals NULL.
        field = self._fields.get(asked.steps)
        if field is None:
            return
        for table, value in field.places(asked.values):
            there = table.get(value)
            if there is not None:
                there.pop(found, None)
                if not there:
                    del table[value]
        self._drop_empty(field)

    def _drop_empty(self, field: _FieldIndex[Key]) -> None:
        if not (field.texts or field.numbers or field.said):
            del self._fields[field.steps]

    def matching(self, message: dict[str, Any], around: EvalContext = NO_CONTEXT) -> list[Key]:
        """Returns the keys of all filters that a parsed message passes."""
        keys: list[Key] = []
        for field in self._fields.values():
            first = field.first
            if first is not None:
                value = message.get(first)
            else:
                value = values.follow(message, field.steps)
            if value is None:
                continue
            for each in field.found(value) or ():
                if each.whole or each.expression.matches(message, around):
                    keys += each.keys
        for other in self._others:
            if other.expression.matches(message, around):
                keys += other.keys
        return keys
