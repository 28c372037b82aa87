"""Relations between two topic rules, decided from their texts alone, without any topic's name.

Whether one regular expression matches everything that another one matches cannot be decided in
practice for all expressions. It can for those that people write for topics: a name, a beginning
(`^fx/`), an end (`eu$`), a part (`orders`), and alternatives of these (`^(orders|trades)$`). Such
an expression is read into `TopicShape`s; any other one is only compared by its text. Topics hold no
line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from raylay.services.messages.topics import (
    TopicRule,
    is_regex,
)

SHAPES_MAX = 64
"""Number of alternatives of one expression; an expression with more is only compared by its
text."""

_EVERYTHING = frozenset(("", ".+", "^.+", ".+$", "^.+$"))
_SIMPLE = re.compile(r"(\^?)((?:\.\*)?)((?:[^\\^$*+?()\[\]{}|.]|\\[^\w\s])*)((?:\.\*)?)(\$?)")
_GROUPED = re.compile(r"([^()|]*)\((?:\?:)?([^()?][^()]*)\)([^()|]*)")


class TopicShape(NamedTuple):
    """All topics that have a text at their start, at their end, as a whole, or anywhere."""

    at_start: bool
    text: str
    at_end: bool

    def contains(self, other: TopicShape) -> bool:
        """Returns whether every topic of the other shape also has this one."""
        if self.at_start and self.at_end:
            return other == self
        if self.at_start:
            return not self.text or (other.at_start and other.text.startswith(self.text))
        if self.at_end:
            return not self.text or (other.at_end and other.text.endswith(self.text))
        return self.text in other.text

    def overlaps(self, other: TopicShape) -> bool:
        """Returns whether a topic can have both shapes."""
        if self.at_start and self.at_end:
            return other.contains(self)
        if other.at_start and other.at_end:
            return self.contains(other)
        if self.at_start and other.at_start:
            return self.text.startswith(other.text) or other.text.startswith(self.text)
        if self.at_end and other.at_end:
            return self.text.endswith(other.text) or other.text.endswith(self.text)
        return True


@lru_cache(maxsize=4096)
def shapes(rule: str) -> tuple[TopicShape, ...] | None:
    """Returns the shapes of a topic rule, a name or an expression; None when it has another
    form."""
    if not is_regex(rule):
        return (TopicShape(True, rule, True),)
    if rule in _EVERYTHING:
        return (TopicShape(False, "", False),)
    alternatives = _alternatives(rule)
    if len(alternatives) > SHAPES_MAX:
        return None
    found = []
    for alternative in alternatives:
        parts = _SIMPLE.fullmatch(alternative)
        if parts is None:
            return None
        caret, any_before, text, any_behind, dollar = parts.groups()
        found.append(
            TopicShape(
                bool(caret) and not any_before,
                re.sub(r"\\(.)", r"\1", text),
                bool(dollar) and not any_behind,
            )
        )
    return tuple(found)


def _alternatives(rule: str) -> list[str]:
    grouped = _GROUPED.fullmatch(rule.replace("\\(", "\\\0").replace("\\|", "\\\1"))
    if grouped is None:
        # If a parenthesis is left, no alternative is simple.
        return [rule] if "(" in rule or "\\|" in rule else rule.split("|")
    before, inside, behind = grouped.groups()
    return [
        f"{before}{choice}{behind}".replace("\\\0", "\\(").replace("\\\1", "\\|")
        for choice in inside.split("|")
    ]


def exact_names(rule: str) -> tuple[str, ...] | None:
    """Returns the topics of a rule that matches a few names and no others; None for any other
    rule."""
    found = shapes(rule)
    if found is None or not all(shape.at_start and shape.at_end for shape in found):
        return None
    return tuple(shape.text for shape in found)


def includes(outer: Iterable[str], inner: str) -> bool:
    """Returns whether the outer rules together certainly match every topic that the inner one
    matches."""
    rules = tuple(outer)
    if inner in rules:
        return True
    wanted = shapes(inner)
    if wanted is None:
        # An expression that matches everything includes any other one.
        wanted = (TopicShape(False, "", False),)
    there = [shape for rule in rules for shape in shapes(rule) or ()]
    return all(any(shape.contains(other) for shape in there) for other in wanted)


def carries_all(carried: Iterable[TopicRule], journaled: Iterable[TopicRule]) -> bool:
    """Returns whether the carried rules certainly take everything that the journaled rules take. A
    rule with a content filter takes nothing for certain."""
    whole = [rule for rule in carried if not rule.filter]
    return all(
        includes((r.name for r in whole if r.message_type in ("*", rule.message_type)), rule.name)
        for rule in journaled
    )


def may_overlap(one: str, other: str) -> bool:
    """Returns whether two rules may match a common topic. False only when they certainly do not."""
    first, second = shapes(one), shapes(other)
    if one == other or first is None or second is None:
        return True
    return any(shape.overlaps(there) for shape in first for there in second)
