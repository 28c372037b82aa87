"""What an instance knows of each topic: one look-up a topic and type, whoever asks.

On the way of a publish nothing else is asked of a topic, and once it was met the answer costs no
call: a book is a dictionary that makes what is missing in it. What a topic gets to be besides, one
with state, a queue, one entry among several, is another field of `TopicEntry`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """

    journaled: bool
    refusal: str = ""


_JOURNALED = TopicEntry(True)
_TRANSIENT = TopicEntry(False)


class TopicBook(dict[TopicKey, TopicEntry]):
    """See the file's docstring: `book[topic, message_type]` is never missing.

    Owner: the instance, whose machine and connections only read. Lifecycle: as long as that.

    Args:
        journaled: which topics are.
        where: in whose configuration that is said, for errors.

    Raises:
        ConfigurationError: a rule is no regular expression.
    """

    __slots__ = ("_any_type", "_journaled", "rules")

    def __init__(self, journaled: tuple[TopicRule, ...], where: str = "Topic") -> None:
        super().__init__()
        self.rules = journaled
        self._journaled = TopicMatcher(journaled, where)
        any_type = tuple(replace(rule, message_type="*") for rule in journaled)
        self._any_type = TopicMatcher(any_type, where)

    def __missing__(self, key: TopicKey) -> TopicEntry:
        journaled = self._journaled[key]
        refusal = _no_text(*key)
        if refusal:
            return TopicEntry(journaled, refusal)  # Not kept: it is refused, and the next is, too.
        if len(self) >= TOPIC_CACHE_MAX:
            self.clear()
        found = self[key] = _JOURNALED if journaled else _TRANSIENT
        return found

    def journals(self, topic: bytes, message_type: str) -> bool:
        """Whether messages of this topic and type are journaled, for who reads the journal. No
        type: any that is will do."""
        if message_type:
            return self[topic, message_type.encode()].journaled
        return self._any_type[topic, b""]


def _no_text(topic: bytes, message_type: bytes) -> str:
    """Whoever looks at a topic or a type later, a subscriber or a tool, takes it for text."""
    try:
        topic.decode()
        message_type.decode()
    except UnicodeDecodeError as error:
        return f"topic {topic[:200]!r} of type {message_type!r} is no UTF-8: {error.reason}"
    return ""
