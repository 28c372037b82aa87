"""Many filters asked at once, so that those of 10,000 subscribers cost little more than one.

A filter that can only be true where a field equals a value that it names (`/symbol = 'IBM'`, alone
or as one of what AND joins, or with IN) is found by that value: for each such field the message is
asked once, and who named what it has is one look-up away. What a filter asks besides is asked then
of those few. Filters of the same text are asked once for all who have them; all others one by one.
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
"""Filters that are asked one by one take as long, together, as the rest of a message."""


class FieldEquality:
    """A filter's condition on one field: that it equals one of these values, and no more if it is
    `whole`."""

    __slots__ = ("steps", "values", "whole")

    def __init__(self, steps: Steps, wanted: tuple[Value, ...], whole: bool) -> None:
        self.steps = steps
        self.values = wanted
        self.whole = whole


def named(node: tree.ExpressionNode, whole: bool = True) -> FieldEquality | None:
    """The first condition of a filter that names the values of a field; None: there is none."""
    match node:
        case tree.Logical(operator="AND"):
            found = (named(each, False) for each in node.operands)
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
            options = [each.value for each in node.options if isinstance(each, tree.Literal)]
            if len(options) == len(node.options):
                return FieldEquality(field.steps, tuple(options), whole)
    return None


class _Filter(Generic[Key]):
    """Filters of the same text.

    Attributes:
        keys: who has them.
        named: what they ask of a field, if they do.
        whole: whether that is all they ask.
    """

    __slots__ = ("_payers", "expression", "keys", "named", "whole")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._payers: dict[FilterPayer, int] = {}
        """The number of keys of each."""
        self.keys: dict[Key, None] = {}
        self.named = named(expression.tree)
        self.whole = self.named is not None and self.named.whole

    def paid_by(self, payer: FilterPayer) -> None:
        """One more key, which this one pays for."""
        if payer not in self._payers:
            self.expression.effort.payers.append(payer)
        self._payers[payer] = self._payers.get(payer, 0) + 1

    def left_by(self, payer: FilterPayer) -> None:
        """A key less of this one."""
        self._payers[payer] -= 1
        if not self._payers[payer]:
            del self._payers[payer]
            self.expression.effort.payers.remove(payer)


class _FieldIndex(Generic[Key]):
    """The filters that name values of one field.

    Attributes:
        texts: by a text that the field is to be.
        numbers: by a number that it is to be, or that a text of it is to say.
        said: by the number that a text names, which only a number of the field may equal.
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
        """Yields the table and the key for each of these values."""
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
        """The filters that name what the field has, each once. They are not to be changed."""
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
    """Filters by the keys of who has them.

    Owner: whoever asks. Lifecycle: as long as that; keys come and go.

    Attributes:
        version: it changes where a filter that nobody else has comes or goes.
        filter_count: filters that are not asked together; of a joined index, of all together.
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
        """Payer of each key, and the hold that counts its filter for him."""
        self._by_text: dict[tuple[str, bool], _Filter[Key]] = {}
        """Filters by their text, and whether anybody pays for them."""
        self._fields: dict[Steps, _FieldIndex[Key]] = {}
        self._others: dict[_Filter[Key], None] = {}

    @classmethod
    def joined(cls, indexes: Iterable[FilterIndex[Key]]) -> FilterIndex[Key]:
        """Index that finds what these find, while the `version` of each stays. It shares their
        filters and their keys, and is not changed itself."""
        made: FilterIndex[Key] = cls()
        for index in indexes:
            for each in index._by_text.values():
                made._enter(each)
        return made

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def others_count(self) -> int:
        """Filters that each message is asked, as they name no value of a field."""
        return len(self._others)

    def add(self, key: Key, expression: Expression, payer: FilterPayer | None = None) -> None:
        """Adds one; instead of that which the key had before.

        Args:
            payer: who pays for what it works. Of several that have the same text here one pays,
                and the others where that one has nothing left: so it stops when none of them has.
                Who comes later shares no filter that has stopped. None: it may work as it wants.
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
        """Takes one out, if it is there."""
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
        """Keys whose filter worked with one of these."""
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
        # Who names NULL alone is nowhere: nothing equals it.
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
        """The keys of all filters that a parsed message passes."""
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
        for each in self._others:
            if each.expression.matches(message, around):
                keys += each.keys
        return keys
