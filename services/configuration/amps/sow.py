"""The `SOW` stanza: topics with state, queues, views and conflated topics (behaviour.md 3.2, 4)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from raylay.services.configuration.amps.types import (
    Count,
    Expiration,
    ModuleUse,
    Nanoseconds,
    SizeBytes,
    Stanza,
    Switch,
    Text,
    TypeName,
    at_least,
    between,
    element,
)
from raylay.services.messages.topics import is_regex

SLAB_BYTES_DEFAULT = 5_000_000
SLAB_BYTES_MAX = 1_000_000_000
DAY_NS = 86_400_000_000_000


class Fields(Stanza):
    """A list of `Field` elements: expressions of a projection, a grouping or an enrichment."""

    fields_: tuple[Text, ...] = element("Field", many=True)


class HashIndex(Stanza):
    """An index for exact matches on all of its keys."""

    keys: tuple[Text, ...] = element("Key", many=True)


class HistoryStanza(Stanza):
    """The window and granularity of a record's history."""

    window_ns: Nanoseconds = element("Window")
    granularity_ns: Nanoseconds = element("Granularity")


class SowTopicStanza(Stanza):
    """A topic whose last value of each key is kept."""

    name: Text = element("Name", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")
    file_name: str | None = element("FileName", None)
    durability: Literal["persistent", "transient"] = element(
        "Durability", "persistent", synonyms=("Duration",)
    )
    recovery_point: str = element("RecoveryPoint", "epoch")
    expiration: Expiration = element("Expiration", "disabled")
    keys: tuple[Text, ...] = element("Key", (), many=True)
    key_domain: str | None = element("KeyDomain", None)
    key_generator: ModuleUse | None = element("KeyGenerator", None)
    slab_bytes: Annotated[SizeBytes, AfterValidator(at_least(1, SLAB_BYTES_MAX))] = element(
        "SlabSize", SLAB_BYTES_DEFAULT
    )
    initial_slab_count: Annotated[Count, AfterValidator(at_least(1, 1024))] = element(
        "InitialSlabCount", 1
    )
    hash_indexes: tuple[HashIndex, ...] = element("HashIndex", (), many=True)
    indexes: tuple[Text, ...] = element("Index", (), many=True)
    expected_key_count: Count | None = element("ExpectedKeyCountHint", None)
    history: HistoryStanza | None = element("History", None)
    preprocessing: Fields | None = element("Preprocessing", None)
    enrichment: Fields | None = element("Enrichment", None)
    pattern: str | None = element("Pattern", None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.durability == "persistent" and self.file_name is None:
            raise ValueError(
                f"topic {self.name} is persistent and has no FileName: give one, or Durability "
                "transient"
            )
        if self.history is not None and self.expiration != "disabled":
            raise ValueError(f"topic {self.name} has History: its Expiration must be disabled")
        if self.history is not None and self.pattern is not None:
            raise ValueError(f"topic {self.name} has a Pattern: it cannot have History")
        if self.key_domain is not None and not self.keys:
            raise ValueError(f"topic {self.name} has a KeyDomain and no Key: give one, or neither")
        if self.keys and self.key_generator is not None:
            raise ValueError(f"topic {self.name} has Key and KeyGenerator: give one of them")
        return self


class Queue(Stanza):
    """A queue over topics of the transaction log."""

    name: Text = element("Name", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")
    underlying_topic: str | None = element("UnderlyingTopic", None)
    default_publish_target: str | None = element("DefaultPublishTarget", None)
    lease_period_ns: Nanoseconds | None = element("LeasePeriod", None)
    semantics: Literal["at-least-once", "at-most-once"] = element("Semantics", "at-least-once")
    backlog_max: Annotated[Count, AfterValidator(at_least(1))] | None = element("MaxBacklog", None)
    subscription_backlog_max: Annotated[Count, AfterValidator(at_least(1))] = element(
        "MaxPerSubscriptionBacklog", 1
    )
    expiration_ns: Nanoseconds | None = element("Expiration", None)
    expiration_model: Literal["default", "queue", "latest", "earliest"] = element(
        "ExpirationModel", "default"
    )
    filter: str | None = element("Filter", None)
    recovery_point: str = element("RecoveryPoint", "epoch")
    fairness: Literal["fast", "round-robin", "proportional"] | None = element("FairnessModel", None)
    leasing: Literal["sublet", "strict"] = element("Leasing", "sublet")
    deliveries_max: Count = element("MaxDeliveries", 0)
    cancels_max: Count = element("MaxCancels", 0)
    priority: str | None = element("Priority", None)
    barrier: str | None = element("BarrierExpression", None)
    file_backed_metadata: Switch = element("FileBackedMetadata", False)
    target_depth: Annotated[Count, AfterValidator(at_least(1000))] | None = element(
        "TargetQueueDepth", None
    )
    deferred_ack_expiration_ns: Nanoseconds = element("DeferredAckExpiration", DAY_NS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.priority is not None and self.barrier is not None:
            raise ValueError(f"queue {self.name} has Priority and BarrierExpression: give one")
        if self.target_depth is not None and (self.priority or self.barrier):
            raise ValueError(
                f"queue {self.name} has TargetQueueDepth: it goes with neither Priority nor "
                "BarrierExpression"
            )
        if is_regex(self.underlying_topic or "") and self.default_publish_target is None:
            raise ValueError(
                f"queue {self.name}: UnderlyingTopic {self.underlying_topic} is a regular "
                "expression: say with DefaultPublishTarget where publishes to the queue go"
            )
        if self.semantics == "at-most-once" and self.fairness not in (None, "round-robin"):
            raise ValueError(
                f"queue {self.name} is at-most-once: its FairnessModel can only be round-robin"
            )
        return self

    @property
    def underlying(self) -> str:
        """Returns the topic or the expression for the topics whose messages the queue holds."""
        return self.underlying_topic or self.name


class LocalQueue(Queue):
    """A queue of this instance alone."""


class GroupLocalQueue(Queue):
    """A queue of the instances that define it, whose messages begin at one of them."""

    initial_owner: Text = element("InitialOwner")
    domain: str | None = element("GroupLocalQueueDomain", None)


class Underlying(Stanza):
    """The source of a view: one topic's name, or joins of several."""

    text_element: ClassVar[str] = "Topic"
    topic: str | None = element("Topic", None)
    joins: tuple[Text, ...] = element("Join", (), many=True)


class ViewStanza(Stanza):
    """A projection or aggregation of topics with state."""

    name: Text = element("Name", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")
    underlying: Underlying = element("UnderlyingTopic")
    projection: Fields = element("Projection")
    grouping: Fields | None = element("Grouping", None)
    key_domain: str | None = element("KeyDomain", None)
    conflation: Literal["none", "inline"] = element("Conflation", "none")
    filter: str | None = element("Filter", None)
    hash_indexes: tuple[HashIndex, ...] = element("HashIndex", (), many=True)
    join_null_equivalency: Switch = element("JoinNullEquivalency", False)
    file_name: str | None = element("FileName", None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.underlying.topic) == bool(self.underlying.joins):
            raise ValueError(f"view {self.name}: UnderlyingTopic is one topic's name, or Joins")
        if self.filter is not None and self.underlying.joins:
            raise ValueError(f"view {self.name} joins topics: it cannot have a Filter")
        return self


class ConflatedTopicStanza(Stanza):
    """The last value of each key of a topic, at intervals."""

    name: Text = element("Name", synonyms=("Topic",))
    underlying_topic: Text = element("UnderlyingTopic")
    message_type: TypeName = element("MessageType")
    interval_ns: Annotated[Nanoseconds, AfterValidator(between("100ms"))] = element(
        "Interval", 5_000_000_000
    )
    filter: str | None = element("Filter", None)
    hash_indexes: tuple[HashIndex, ...] = element("HashIndex", (), many=True)
    enrichment: Fields | None = element("Enrichment", None)
    topic_format: str | None = element("TopicFormat", None)


class SowStanza(Stanza):
    """Everything defined over topics: state, queues, views, conflation."""

    topics: tuple[SowTopicStanza, ...] = element(
        "Topic", (), synonyms=("TopicDefinition",), many=True
    )
    queues: tuple[Queue, ...] = element("Queue", (), synonyms=("QueueDefinition",), many=True)
    local_queues: tuple[LocalQueue, ...] = element("LocalQueue", (), many=True)
    group_local_queues: tuple[GroupLocalQueue, ...] = element("GroupLocalQueue", (), many=True)
    views: tuple[ViewStanza, ...] = element("View", (), synonyms=("ViewDefinition",), many=True)
    conflated_topics: tuple[ConflatedTopicStanza, ...] = element(
        "ConflatedTopic", (), synonyms=("ReplicaDefinition",), many=True
    )

    @property
    def all_queues(self) -> tuple[Queue, ...]:
        """Returns the queues of every kind."""
        return (*self.queues, *self.local_queues, *self.group_local_queues)
