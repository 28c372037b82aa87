"""The topics under a view: one, or several that are joined (behaviour.md 4.6, `Join`).

A join is the equality of a field of one topic with a field of another, as texts. The first topic of
the first join is the root; each other topic is joined to one before it, so that the topics are a
tree. Several joins of the same two topics hold together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raylay.services.errors import ExpressionError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.parser import parse_equality
from raylay.services.expressions.values import Steps

JOINS_MAX = 8
ALONE = "member"
"""First step of the path of a field of the only topic."""


class SourceTopic(NamedTuple):
    """A topic under a view."""

    message_type: str
    topic: str


class JoinedSource(NamedTuple):
    """A topic of a join, and how it is joined to one before it.

    Attributes:
        topic: the topic.
        parent: number of the topic that it is joined to; -1: it is the root.
        parent_fields: fields of the parent's records, which equal
        fields: these fields of its own records, one by one.
    """

    topic: SourceTopic
    parent: int = -1
    parent_fields: tuple[Steps, ...] = ()
    fields: tuple[Steps, ...] = ()


class ViewSources:
    """The topics under a view, in the order of the joins. Immutable.

    Attributes:
        joined: the topics; one alone is not joined.
    """

    __slots__ = ("joined",)

    def __init__(self, joined: Sequence[JoinedSource]) -> None:
        self.joined = tuple(joined)

    @property
    def is_join(self) -> bool:
        return len(self.joined) > 1

    def step(self, names: Sequence[str], column: int) -> str:
        """Returns the first step of the path of a field; see `TopicStep`.

        Raises:
            ExpressionError: there is no such topic under the view, or several have the name.
        """
        if not names and self.is_join:
            raise ExpressionError(
                "the view joins several topics: write the field with its topic, such as "
                f"[{self.joined[0].topic.topic}]./price",
                column,
            )
        found = [
            number
            for number, each in enumerate(self.joined)
            if not names
            or (names[-1] == each.topic.topic and names[:-1] in ([], [each.topic.message_type]))
        ]
        if len(found) != 1:
            raise ExpressionError(_not_one(names, [each.topic for each in self.joined]), column)
        return str(found[0]) if self.is_join else ALONE


def _not_one(names: Sequence[str], topics: Sequence[SourceTopic]) -> str:
    written = ".".join(f"[{name}]" for name in names)
    known = ", ".join(f"[{each.message_type}].[{each.topic}]" for each in topics)
    several = sum(each.topic == names[-1] for each in topics) > 1
    if several:
        return f"several topics under the view are called {written}: give the type, one of {known}"
    return f"{written} is no topic under the view: it has {known}"


def one_source(message_type: str, topic: str) -> ViewSources:
    """Returns the sources of a view over one topic."""
    return ViewSources([JoinedSource(SourceTopic(message_type, topic))])


def joined_sources(
    texts: Sequence[str], types: Mapping[str, Sequence[str]], message_type: str
) -> ViewSources:
    """Reads the joins of a view.

    Args:
        texts: `[topic]./field = [topic]./field` of each join, in the configured order.
        types: message types of the topics that may be joined, by the topics' names.
        message_type: the view's message type, which a topic has if it is written without one.

    Raises:
        ExpressionError: a text is no join, a topic is unknown, or the topics are no tree; with text
            and column.
    """
    if not texts:
        raise ExpressionError("a join needs the equality of two fields", 1)
    if len(texts) > JOINS_MAX:
        raise ExpressionError(f"a view has at most {JOINS_MAX} joins, not {len(texts)}", 1)
    reader = _JoinReader(types, message_type)
    for text in texts:
        try:
            reader.read(text)
        except ExpressionError as error:
            error.expression = text
            raise
    return ViewSources(reader.joined)


class _JoinReader:
    def __init__(self, types: Mapping[str, Sequence[str]], message_type: str) -> None:
        self._types = types
        self._message_type = message_type
        self._met: list[SourceTopic] = []
        self.joined: list[JoinedSource] = []

    def read(self, text: str) -> None:
        self._met = []
        left, right = parse_equality(text, BUILT_IN, self._step)
        one, other = self._met
        if one == other:
            raise ExpressionError("both fields are of one topic: a join is of two", left.column)
        if not self.joined:
            self.joined.append(JoinedSource(one))
        numbers = {each.topic: number for number, each in enumerate(self.joined)}
        fields, other_fields = left.steps[1:], right.steps[1:]
        both = one in numbers and other in numbers
        if one not in numbers or (both and self.joined[numbers[one]].parent == numbers[other]):
            # The topic above comes first.
            one, other, fields, other_fields = other, one, other_fields, fields
        if one not in numbers:
            raise ExpressionError(
                f"write first a join of one of both topics with [{_names_of(self.joined)}]",
                left.column,
            )
        parent = numbers[one]
        if other not in numbers:
            self.joined.append(JoinedSource(other, parent, (fields,), (other_fields,)))
            return
        known = self.joined[numbers[other]]
        if known.parent != parent:
            raise ExpressionError(
                f"[{one.topic}] and [{other.topic}] are both joined to others already: a topic is "
                "joined to one other",
                right.column,
            )
        self.joined[numbers[other]] = known._replace(
            parent_fields=(*known.parent_fields, fields), fields=(*known.fields, other_fields)
        )

    def _step(self, names: Sequence[str], column: int) -> str:
        if not names:
            raise ExpressionError("write the field with its topic: [orders]./id", column)
        *types, topic = names
        known = self._types.get(topic, ())
        message_type = types[0] if types else self._message_type
        if not types and message_type not in known and len(known) == 1:
            message_type = known[0]
        if message_type not in known:
            raise ExpressionError(
                f"[{message_type}].[{topic}] is no topic with a state here: define it before the "
                "view",
                column,
            )
        self._met.append(SourceTopic(message_type, topic))
        return topic


def _names_of(joined: Sequence[JoinedSource]) -> str:
    """Returns the names of joined topics, for an error's text."""
    return "], [".join(each.topic.topic for each in joined)
