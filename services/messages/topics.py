"""Topics as configuration and subscriptions name them: a name or an expression, and a message
type."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topic_pattern import PatternError, TopicPattern

_REGEX_CHARACTERS = frozenset("^$*+?()[]{}|\\")
TOPIC_CACHE_MAX = 65_536
EXPRESSIONS_MAX = 4_000
"""Number of expressions that one frame of another instance may have. Names of topics do not
count."""
EXPRESSIONS_WEIGHT_MAX = 2_000_000
"""Limit on the sum of the weights (`TopicPattern.weight`) of the expressions in one frame: eight of
the largest allowed expressions, or 20,000 such as `^orders/.*`. They take 80 ms to compile, and 4
MB."""
RESERVED = "raylay/"
"""Beginning of Raylay's own topics. An expression of a subscription matches them only when it
begins like that itself."""
DRILL_TOPIC = f"{RESERVED}drill"
"""Topic to which drills publish (docs/drills.md)."""
DRILL_SOW_TOPIC = f"{RESERVED}drill-sow"
"""Topic of drills with a SOW: the last message of each key is kept."""
DRILL_WORK_TOPIC = f"{RESERVED}drill-work"
"""Topic of drills whose messages the queue `DRILL_QUEUE` gives to one consumer each."""
DRILL_QUEUE = f"{RESERVED}drill-queue"


def is_regex(topic: str) -> bool:
    """Returns whether a topic is a regular expression: it has a character that only expressions
    have.

    A dot alone does not make one: topics such as `orders.eu` are names.
    """
    return not _REGEX_CHARACTERS.isdisjoint(topic)


def all_but(names: Iterable[str]) -> str:
    escaped = [re.escape(name) for name in dict.fromkeys(names)]
    return f"^(?!{escaped[0]}$)" if len(escaped) == 1 else f"^(?!({'|'.join(escaped)})$)"


def compile_regex(pattern: str, where: str) -> TopicPattern:
    """Returns a compiled, unanchored pattern. Publishers choose the topics that it meets.

    Raises:
        ConfigurationError: naming the pattern, the place and what is wrong.
    """
    try:
        return TopicPattern(pattern)
    except PatternError as error:
        raise ConfigurationError(
            f"{where}: {pattern!r} cannot be used as a regular expression: {error}"
        ) from None


def not_of_transport(message_type: str, allowed: frozenset[bytes]) -> str:
    """Returns the sentence for a client that uses a transport of other message types."""
    names = ", ".join(sorted(kind.decode("utf-8", "replace") for kind in allowed))
    return (
        f"this transport takes messages of type {names} only, not of {message_type[:200]!r}: "
        "connect to another one, or change its MessageType"
    )


class ExpressionBudget:
    """A limit on all expressions of one foreign frame together. A small frame may hold a thousand
    expressions that take 8 ms and 400 KB each to compile.

    Owner: the reader of the frame. Lifecycle: that one frame.
    """

    def __init__(self) -> None:
        self._left = EXPRESSIONS_MAX
        self._weight_left = EXPRESSIONS_WEIGHT_MAX

    def compile(self, pattern: str, where: str) -> TopicPattern:
        """Returns a compiled pattern, and counts it.

        Raises:
            ConfigurationError: it cannot be used, or the expressions so far need too much.
        """
        if self._left == 0:
            raise ConfigurationError(
                f"{where}: more than {EXPRESSIONS_MAX:,} expressions: name topics by fewer ones"
            )
        found = compile_regex(pattern, where)
        self._left -= 1
        self._weight_left -= found.weight
        if self._weight_left < 0:
            raise ConfigurationError(
                f"{where}: the expressions up to {pattern!r} are too large together: use fewer "
                "repeats, smaller counts, or fewer expressions"
            )
        return found


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One `Topic` element: a literal name or a regular expression, and a message type.

    Attributes:
        message_type: message type; `*` takes any type.
        filter: content filter of a Destination's Topic, as written; empty: none. Validation at
            connect compares it, too.
        include_validation: checks at connect (services/replication/membership/validation.py); None:
            all.
        exclude_validation: checks left out; has precedence over `include_validation`.
    """

    name: str
    message_type: str = "*"
    filter: str = ""
    include_validation: tuple[str, ...] | None = None
    exclude_validation: tuple[str, ...] = ()


TopicKey = tuple[bytes, bytes]
"""Topic and message type, as records have them."""


class TopicMatcher(dict[TopicKey, bool]):
    """Decides whether a topic of a type matches one of several rules. Answers are kept:
    `matcher[topic, message_type]` always succeeds, and after the first time costs no call.

    Args:
        budget: the limit to which the expressions are counted; None: they are our own.
    """

    __slots__ = ("_literals", "_patterns", "rules")

    def __init__(
        self,
        rules: tuple[TopicRule, ...],
        where: str = "Topic",
        budget: ExpressionBudget | None = None,
    ) -> None:
        super().__init__()
        compiled = compile_regex if budget is None else budget.compile
        self.rules = rules
        self._literals = {(rule.name, rule.message_type) for rule in rules}
        self._patterns = [
            (compiled(rule.name, where), rule.message_type) for rule in rules if is_regex(rule.name)
        ]

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        return self[topic, message_type]

    def __missing__(self, key: TopicKey) -> bool:
        if len(self) >= TOPIC_CACHE_MAX:
            self.clear()
        topic, message_type = (each.decode("utf-8", "replace") for each in key)
        found = self[key] = self._matches(topic, message_type)
        return found

    def _matches(self, topic: str, message_type: str) -> bool:
        if (topic, message_type) in self._literals or (topic, "*") in self._literals:
            return True
        return any(
            kind in ("*", message_type) and pattern.search(topic)
            for pattern, kind in self._patterns
        )
