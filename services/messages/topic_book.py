"""What an instance knows of each topic: one look-up a topic and type, whoever asks.

On the way of a publish nothing else is asked of a topic, and once it was met the answer costs no
call: a book is a dictionary that makes what is missing in it. What a topic gets to be besides, a
queue, one entry among several, is another field of `TopicEntry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raylay.services.messages.stateful import Stateful
from raylay.services.messages.topics import (
    TOPIC_CACHE_MAX,
    TopicKey,
    TopicMatcher,
    TopicRule,
)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What holds for all messages of one topic and type.

    Attributes:
        journaled: whether they go to the transaction log; else they are delivered at once.
        refusal: why nothing may be published to it; empty: it may.
        declared: whether somebody said what becomes of them. Where not, nobody would keep them: a
            client's publish is refused (`TopicBook.undeclared` says why), the session goes on.
        state: what adds to them before they are journaled; None: nothing does.
    """

    journaled: bool
    refusal: str = ""
    declared: bool = True
    state: Stateful | None = None

    @property
    def has_state(self) -> bool:
        """Whether there is anything that a command could change."""
        return self.journaled and self.state is not None


_JOURNALED = TopicEntry(True)
_TRANSIENT = TopicEntry(False)
_UNDECLARED = TopicEntry(False, declared=False)
_NAMED_MAX = 8
"""Journaled topics that a refusal names."""


class TopicBook(dict[TopicKey, TopicEntry]):
    """See the file's docstring: `book[topic, message_type]` is never missing.

    Owner: the instance, whose machine and connections only read. Lifecycle: as long as that.

    Args:
        journaled: which topics are.
        where: in whose configuration that is said, for errors.
        unjournaled: which are declared as not journaled. None: all others.
        instance: whose topics these are, for errors.
        stateful: which topics have a state; the first that fits counts.

    Attributes:
        states: all of those, each once.

    Raises:
        ConfigurationError: a rule is no regular expression.
    """

    __slots__ = (
        "_advice",
        "_any_type",
        "_instance",
        "_journaled",
        "_stateful",
        "_unjournaled",
        "rules",
        "states",
    )

    def __init__(
        self,
        journaled: tuple[TopicRule, ...],
        where: str = "Topic",
        unjournaled: tuple[TopicRule, ...] | None = None,
        instance: str = "this instance",
        stateful: Sequence[tuple[TopicRule, Stateful]] = (),
    ) -> None:
        super().__init__()
        self._stateful = [(TopicMatcher((rule,), where), state) for rule, state in stateful]
        self.states: tuple[Stateful, ...] = tuple(
            {id(state): state for _, state in stateful}.values()
        )
        self.rules = journaled
        self._journaled = TopicMatcher(journaled, where)
        self._unjournaled = None if unjournaled is None else TopicMatcher(unjournaled, where)
        self._instance = instance
        self._advice = _advice(journaled, instance)
        any_type = tuple(replace(rule, message_type="*") for rule in journaled)
        self._any_type = TopicMatcher(any_type, where)

    def __missing__(self, key: TopicKey) -> TopicEntry:
        journaled = self._journaled[key]
        refusal = _no_text(*key)
        state = next((state for rules, state in self._stateful if rules[key]), None)
        if refusal:
            # Not kept: it is refused, and the next is, too.
            return TopicEntry(journaled, refusal, state=state)
        if len(self) >= TOPIC_CACHE_MAX:
            self.clear()
        if journaled:
            entry = _JOURNALED
        elif self._unjournaled is None or self._unjournaled[key]:
            entry = _TRANSIENT
        else:
            entry = _UNDECLARED
        if state is not None:
            entry = replace(entry, state=state)
        self[key] = entry
        return entry

    def undeclared(self, topic: bytes, message_type: bytes) -> str:
        """The sentence of a publish to a topic that is neither journaled nor declared as not
        journaled. It is made anew: topics are as many as publishers like."""
        shown = topic[:200].decode("utf-8", "replace")
        kind = message_type.decode("utf-8", "replace")
        return f"topic {shown!r} of type {kind!r} {self._advice}"

    def no_sow(self, topic: bytes, message_type: bytes) -> str:
        """The sentence of a delete on a topic that keeps nothing that could be deleted."""
        shown = topic[:200].decode("utf-8", "replace")
        kind = message_type.decode("utf-8", "replace")
        return (
            f"topic {shown!r} of type {kind!r} has no SOW at {self._instance}, so there is nothing "
            "to delete: name a topic that has one, or configure one for it"
        )

    def journals(self, topic: bytes, message_type: str) -> bool:
        """Whether messages of this topic and type are journaled, for who reads the journal. No
        type: any that is will do."""
        if message_type:
            return self[topic, message_type.encode()].journaled
        return self._any_type[topic, b""]


def _advice(journaled: tuple[TopicRule, ...], instance: str) -> str:
    """What is journaled instead, and what to change."""
    names = [
        rule.name if rule.message_type == "*" else f"{rule.name} ({rule.message_type})"
        for rule in journaled
    ]
    more = f" and {len(names) - _NAMED_MAX} more" if names[_NAMED_MAX:] else ""
    there = ", ".join(names[:_NAMED_MAX])[:500] or "nothing"
    return (
        f"is not in the transaction log of {instance}, which has {there}{more}: nobody would keep "
        "the message; publish to one of those, or add the topic to `topics` of the fabric, with "
        "`journaled: false` where those who listen at the moment are all that it is for"
    )


def _no_text(topic: bytes, message_type: bytes) -> str:
    """Whoever looks at a topic or a type later, a subscriber or a tool, takes it for text."""
    try:
        topic.decode()
        message_type.decode()
    except UnicodeDecodeError as error:
        return f"topic {topic[:200]!r} of type {message_type!r} is no UTF-8: {error.reason}"
    return ""
