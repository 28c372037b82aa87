"""One SOW topic of an instance: its definition, its state, and the keys of its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from raylay.services.errors import SowKeyError
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.event_topics import EVENT_TOPICS, EVENTS
from raylay.services.messages.records import Record, Run
from raylay.services.messages.stateful import Stateful
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.topics import RESERVED, TOPIC_CACHE_MAX
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree, field_path
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.keys import KeyRule, given_key
from raylay.services.sow.state import RecordChange, SowState

KeyGenerator = Callable[[Record, "Tree | None"], bytes]
"""Makes the key of a message from its fields; None: messages of the type have no fields."""
Preprocess = Callable[[Tree], Tree]
Enrich = Callable[[Tree, "Tree | None"], Tree]
"""Enriches a message; the second argument is the record that the topic has under the key."""


class TopicStaging(Stateful, Protocol):
    """The preparation of a topic's messages before the append, with its forgetting after the
    commit."""

    def committed(self, last_txid: int) -> None:
        """Notes that everything up to this transaction id is folded."""

    def keys_of(self, run: Run) -> Sequence[bytes | None] | None:
        """Returns the keys of a staged run's records, where they are already known, for the fold;
        None for a record without a key."""


class SowChange(NamedTuple):
    """The change of a record at an instance.

    Attributes:
        name: logical topic of the record.
        record: journal record that caused the change; None: the record has expired.
    """

    topic: SowTopic
    name: bytes
    change: RecordChange
    record: Record | None


class SowTopic:
    """One SOW topic of an instance.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        definition: configuration of the topic.
        kind: type of the topic's messages.
        state: records of the topic.
        generate: makes the keys; None: they are made of the key fields, or given by publishers.

    Attributes:
        type: type of the topic's messages.
        name: name of the topic; with a pattern, of the physical topic.
        indexes: the topic's indexes, which get each change in a fold; None: there are none.
        preprocess, enrich: compute fields before a message is journaled; None: there are none.
        around: context that is set for each message before that; None: nothing reads it.
        staging: prepares messages before the append; None: nothing is prepared.
        is_built: whether the topic has all its records; one that is computed lacks some while it is
            built.
        refusal: reason why the topic can be neither queried nor followed; empty: it can be.
        shown_as: topic that its records carry to clients, where it is not the name by which they
            are found; empty: it is.

    Raises:
        MessageTypeError: a key names no field, or messages of the type have none.
        PatternError: the pattern is no regular expression.
    """

    __slots__ = (
        "_fitting",
        "_generate",
        "_reserved",
        "_rule",
        "_rules",
        "around",
        "definition",
        "enrich",
        "indexes",
        "is_built",
        "name",
        "preprocess",
        "refusal",
        "shown_as",
        "staging",
        "state",
        "type",
        "type_name",
    )

    def __init__(
        self,
        definition: SowTopicDefinition,
        kind: MessageType,
        state: SowState,
        generate: KeyGenerator | None = None,
    ) -> None:
        self.definition = definition
        self.type = kind
        self.state = state
        self.name = definition.name.encode()
        self.type_name = definition.message_type.encode()
        self.indexes: SowIndexes | None = None
        self.preprocess: Preprocess | None = None
        self.enrich: Enrich | None = None
        self.around: EvalContext | None = None
        self.staging: TopicStaging | None = None
        self.is_built = True
        self.refusal = ""
        self.shown_as = b""
        self._generate = generate
        self._rules: dict[str, KeyRule] = {}
        self._rule: KeyRule | None = None
        if definition.name in EVENT_TOPICS:
            kind.require(Ability.EVENTS)
        if definition.keys:
            kind.require(Ability.FIELDS)
            self._rule = KeyRule(definition.name, definition.keys, definition.key_domain)
        pattern = definition.pattern
        self._fitting = TopicPattern(pattern) if pattern else None
        # A pattern that matches everything leaves the topics of drills out, as a subscription
        # does. Events are kept only by their own names.
        self._reserved = pattern.lstrip("^").startswith(RESERVED)

    @property
    def makes_keys(self) -> bool:
        """Returns whether keys are made from messages; otherwise publishers give them."""
        return self._rule is not None or self._generate is not None

    @property
    def stored_as(self) -> str:
        return self.definition.stored_as

    def index(self) -> None:
        definition = self.definition
        hash_indexes = definition.hash_indexes
        # With a pattern, each logical topic has a key rule of its own.
        rule = None if definition.pattern else self._rule
        if not hash_indexes and rule is None:
            return
        identifiers = {each for index in hash_indexes for each in index} | set(definition.keys)
        names = frozenset(field_path(identifier)[0] for identifier in identifiers)
        kind = self.type
        self.indexes = SowIndexes(hash_indexes, kind.parser_of(names), rule, kind.reader_of(names))
        self.indexes.load(self.state.records())

    def fits(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are kept here."""
        if message_type != self.type_name:
            return False
        if self._fitting is None:
            return topic == self.name
        text = topic.decode("utf-8", "replace")
        if text.startswith(EVENTS) or (not self._reserved and text.startswith(RESERVED)):
            return False
        return self._fitting.search(text)

    def logical(self, topic: bytes) -> bytes:
        """Returns the topic that records name: empty where there is only one."""
        return b"" if self._fitting is None else topic

    def key_of(self, record: Record, tree: Tree | None = None) -> bytes:
        """Returns the key of a message that was published here.

        Args:
            tree: fields of the message, where they are already parsed.

        Raises:
            SowKeyError: a key field is missing; the message has no key and needs one; the key
                generator gives none.
            MessageTypeError: the body is of another type.
        """
        if self._rule is not None:
            rule = self._rule if self._fitting is None else self._rule_of(record.topic)
            return rule.key_of(self.type.parse(record.body) if tree is None else tree)
        if self._generate is None:
            return given_key(record.key, record.topic)
        if tree is None and Ability.FIELDS not in self.type.lacks:
            tree = self.type.parse(record.body)
        try:
            key = self._generate(record, tree)
        except SowKeyError:
            raise
        except Exception as error:
            raise SowKeyError(
                f"topic {record.topic}: the key generator {self.definition.key_generator} failed "
                f"({type(error).__name__}: {error})"
            ) from error
        return given_key(key, record.topic)

    @property
    def keeps_plainly(self) -> bool:
        """Returns whether messages are kept as they are published, under keys that are made of
        their fields alone."""
        return (
            self._rule is not None
            and self._fitting is None
            and self.preprocess is None
            and self.enrich is None
        )

    def keys_of(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Returns the keys of many messages of a topic that `keeps_plainly`.

        Raises:
            SowKeyError: of one of them a key field is missing.
            MessageTypeError: one of the bodies is of another type.
        """
        assert self._rule is not None
        return self._rule.keys_of(self.type.parse_all(bodies))

    def _rule_of(self, topic: str) -> KeyRule:
        """Returns the key rule of a logical topic: the topic is its own key domain, where none is
        configured."""
        found = self._rules.get(topic)
        if found is None:
            if len(self._rules) >= TOPIC_CACHE_MAX:
                self._rules.clear()
            definition = self.definition
            found = KeyRule(topic, definition.keys, definition.key_domain)
            self._rules[topic] = found
        return found
