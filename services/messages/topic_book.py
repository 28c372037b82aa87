"""The topics of an instance: one look-up by topic and type serves every caller.

A publish needs nothing else about its topic, and after the first look-up the answer costs no call:
a book is a dictionary that creates missing entries. Further properties of a topic, such as a queue
or one SOW entry among several, are further fields of `TopicEntry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from raylay.services.messages.event_topics import EVENTS
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import COMMAND_AT, Command, Flag, Run
from raylay.services.messages.spelling import queue_hint
from raylay.services.messages.stateful import Stateful, on_topic
from raylay.services.messages.topics import (
    TOPIC_CACHE_MAX,
    TopicKey,
    TopicMatcher,
    TopicRule,
)


class ClaimingQueue(Protocol):
    """A distributed queue that holds the messages of a topic."""

    def claims(self, publisher: int, ranges: list[Range], given: str, now_us: int) -> list[Run]:
        """Returns the claims that are to be journaled directly before messages that a client sends
        again and that are new here, so that all instances agree on their owner. The queue drafts
        them, and takes them when they are committed.

        Args:
            given: name of the instance to which the messages were sent first; empty: not known.
            now_us: time by the wall clock.
        """


class QueueTopics(NamedTuple):
    """The topics of a queue at an instance.

    Attributes:
        name: name of the queue, which is also the topic of its acknowledgments and transfers.
        message_type: message type of the queue's messages and records.
        state: checks acknowledgments before they are journaled.
        underlying: the topics whose messages the queue holds.
        target: the topic to which publishes to `name` go; empty: `name` itself.
        claiming: the queue as it claims ownership; None: no other instance has the queue.
    """

    name: str
    message_type: str
    state: Stateful
    underlying: TopicRule
    target: str = ""
    claiming: ClaimingQueue | None = None


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """The properties that all messages of one topic and type share.

    Attributes:
        journaled: whether the messages go to the transaction log; otherwise they are delivered at
            once.
        refusal: reason why nothing may be published to the topic; empty: publishes are allowed.
        declared: whether the configuration mentions the topic. Otherwise nothing would keep its
            messages: a client's publish is refused (`TopicBook.undeclared` returns the sentence),
            and the session goes on.
        state: completes the messages before they are journaled; None: nothing does.
        queue: checks acknowledgments of the queue of this name; None: there is no such queue.
        target: the topic to which the messages are published instead; empty: this one.
        claiming: the distributed queues that hold the messages.
    """

    journaled: bool
    refusal: str = ""
    declared: bool = True
    state: Stateful | None = None
    queue: Stateful | None = None
    target: bytes = b""
    claiming: tuple[ClaimingQueue, ...] = ()

    @property
    def judges_records(self) -> bool:
        """Returns whether the topic's state knows the record that a message changes: then a
        client's permission is asked for that record, and not for the message alone."""
        return self.journaled and self.state is not None

    def changed_by(self, command: int) -> Stateful | None:
        """Returns the state that a command other than a message would change; None: there is
        none."""
        if not self.journaled:
            return None
        return self.state if command == Command.DELETE else self.queue

    def state_of(self, run: Run) -> Stateful | None:
        """Returns the state that completes a run before it is journaled, or that the run changes;
        None: there is none."""
        if run.flags & _COMMANDS:
            return self.changed_by(run.payload[COMMAND_AT])
        return self.state


_COMMANDS = int(Flag.COMMANDS)
_JOURNALED = TopicEntry(True)
_TRANSIENT = TopicEntry(False)
_UNDECLARED = TopicEntry(False, declared=False)
_EVENTS = EVENTS.encode()
_NAMED_MAX = 8
"""Number of journaled topics that a refusal names."""


class TopicBook(dict[TopicKey, TopicEntry]):
    """The entry of every topic; creates missing ones, so that `book[topic, message_type]` always
    succeeds.

    Owner: the instance, whose machine and connections only read. Lifecycle: as long as that.

    Args:
        journaled: rules of the journaled topics.
        where: the configuration that has the rules, for errors.
        unjournaled: rules of the topics that are declared as not journaled. None: all other topics.
        instance: name of the instance, for errors.
        stateful: the topics with a state; the first that matches counts.
        queues: the queues of the instance.
        computed: topics whose records the instance computes, to which nobody publishes: names, and
            expressions that begin with `^`.

    Attributes:
        states: all states, each once.
        has_targets: whether publishes to some topics go to others.

    Raises:
        ConfigurationError: a rule is no regular expression.
    """

    __slots__ = (
        "_advice",
        "_any_type",
        "_computed",
        "_computed_patterns",
        "_instance",
        "_journaled",
        "_queues",
        "_stateful",
        "_unjournaled",
        "has_targets",
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
        queues: Sequence[QueueTopics] = (),
        computed: Sequence[TopicRule] = (),
    ) -> None:
        super().__init__()
        self._computed = frozenset(
            (rule.name.encode(), rule.message_type.encode()) for rule in computed
        )
        patterns = tuple(rule for rule in computed if rule.name.startswith("^"))
        self._computed_patterns = TopicMatcher(patterns, where) if patterns else None
        self.has_targets = any(queue.target not in ("", queue.name) for queue in queues)
        self._queues = [(TopicMatcher((queue.underlying,), where), queue) for queue in queues]
        self._stateful = [(TopicMatcher((rule,), where), state) for rule, state in stateful]
        states = [state for _, state in stateful] + [queue.state for queue in queues]
        self.states: tuple[Stateful, ...] = tuple({id(state): state for state in states}.values())
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
            # The entry is not kept, because each such publish is refused.
            return TopicEntry(journaled, refusal, state=state)
        if len(self) >= TOPIC_CACHE_MAX:
            self.clear()
        if key[0].startswith(_EVENTS) or self._is_computed(key):
            entry = _UNDECLARED  # Whatever rules match: only the instance publishes there.
        elif journaled:
            entry = _JOURNALED
        elif self._unjournaled is None or self._unjournaled[key]:
            entry = _TRANSIENT
        else:
            entry = _UNDECLARED
        if state is not None:
            entry = replace(entry, state=state)
        if self._queues:
            entry = self._with_queues(entry, key)
        self[key] = entry
        return entry

    def _is_computed(self, key: TopicKey) -> bool:
        patterns = self._computed_patterns
        return key in self._computed or (patterns is not None and patterns[key])

    def _with_queues(self, entry: TopicEntry, key: TopicKey) -> TopicEntry:
        topic, message_type = key
        for rules, queue in self._queues:
            if (topic, message_type) == (queue.name.encode(), queue.message_type.encode()):
                target = queue.target.encode()
                entry = replace(entry, queue=queue.state, target=b"" if target == topic else target)
            if queue.claiming is not None and rules[key]:
                entry = replace(entry, claiming=(*entry.claiming, queue.claiming))
        return entry

    def routed(self, run: Run) -> list[Run]:
        """Returns the records that a client published, on the topic that they go to: for a queue's
        name this may be another topic."""
        target = self[run.topic, run.message_type].target
        return on_topic(run, target) if target and not run.flags & _COMMANDS else [run]

    def undeclared(self, topic: bytes, message_type: bytes) -> tuple[str, str]:
        """Returns the reason and the sentence that refuse a publish to a topic that is neither
        journaled nor declared as not journaled, to an event topic or to a view. They are composed
        each time, since publishers may use any number of topics."""
        shown = topic[:200].decode("utf-8", "replace")
        if topic.startswith(_EVENTS):
            return "reserved_topic", (
                f"{shown!r} begins with {EVENTS}, as the event topics do, to which only "
                f"{self._instance} itself publishes: choose another topic"
            )
        kind = message_type.decode("utf-8", "replace")
        if self._is_computed((topic, message_type)):
            return "reserved_topic", (
                f"{self._instance} computes {shown!r} of type {kind!r} from other topics: publish "
                "to those"
            )
        return "not_journaled", f"topic {shown!r} of type {kind!r} {self._advice}"

    def no_sow(self, topic: bytes, message_type: bytes) -> str:
        """Returns the sentence that refuses a delete on a topic without a SOW."""
        shown = topic[:200].decode("utf-8", "replace")
        kind = message_type.decode("utf-8", "replace")
        return (
            f"topic {shown!r} of type {kind!r} has no SOW at {self._instance}, so there is nothing "
            "to delete: name a topic that has one, or configure one for it"
        )

    def unchanged(self, topic: bytes, message_type: bytes, command: int) -> tuple[str, str]:
        """Returns the reason and the sentence that refuse a command with no effect on this
        topic."""
        if command == Command.DELETE:
            return "no_sow", self.no_sow(topic, message_type)
        return "no_queue", self.no_queue(topic, message_type)

    def no_queue(self, topic: bytes, message_type: bytes) -> str:
        """Returns the sentence that refuses an acknowledgment on a topic that is no queue."""
        shown = topic[:200].decode("utf-8", "replace")
        kind = message_type.decode("utf-8", "replace")
        hint = queue_hint(shown, kind, [(each.name, each.message_type) for _, each in self._queues])
        return (
            f"{shown!r} of type {kind!r} is no queue of {self._instance}, so there is nothing to "
            f"acknowledge: {hint or 'name the queue that the messages came from'}"
        )

    def journals(self, topic: bytes, message_type: str) -> bool:
        """Returns whether messages of this topic and type are journaled, for readers of the
        journal. Without a type, one journaled type is enough."""
        if topic.startswith(_EVENTS):
            return False
        if message_type:
            return self[topic, message_type.encode()].journaled
        return self._any_type[topic, b""]


def _advice(journaled: tuple[TopicRule, ...], instance: str) -> str:
    """Returns advice: which topics are journaled, and what to change."""
    names = [
        rule.name if rule.message_type == "*" else f"{rule.name} ({rule.message_type})"
        for rule in journaled
    ]
    more = f" and {len(names) - _NAMED_MAX} more" if names[_NAMED_MAX:] else ""
    there = ", ".join(names[:_NAMED_MAX])[:500] or "nothing"
    return (
        f"is not in the transaction log of {instance}, which has {there}{more}: the message would "
        "be lost. Publish to one of those, or add the topic to `topics` of the fabric, with "
        "`journaled: false` if it is only for the subscribers of the moment"
    )


def _no_text(topic: bytes, message_type: bytes) -> str:
    """Returns the error for a topic or type that is no text: later readers, such as subscribers and
    tools, expect text."""
    try:
        topic.decode()
        message_type.decode()
    except UnicodeDecodeError as error:
        return f"topic {topic[:200]!r} of type {message_type!r} is no UTF-8: {error.reason}"
    return ""
