"""The topics that drills have for themselves: journaled and replicated where drills are allowed.

A drill proves instances, disks and links, and publishes for that. In the user's own topics its
messages would be data. So a fabric that is marked `drills: allowed` has topics more than it
declares: in the log of each instance that keeps one, and on each link between its own instances. Of
the second one instances keep the last message of each key, and the third one is of a queue. Links
compare neither: that would keep them from a peer that is not marked.

Each instance runs a process for its queue. Nobody else has one for drills.
"""

from __future__ import annotations

from raylay.services.configuration.exclusions import Link, exclusions
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
    TopicSettings,
)
from raylay.services.configuration.queues import QueueSettings
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.topology import waited_for
from raylay.services.messages.topics import (
    DRILL_QUEUE,
    DRILL_SOW_TOPIC,
    DRILL_TOPIC,
    DRILL_WORK_TOPIC,
    TopicMatcher,
    TopicRule,
)
from raylay.services.replication.membership.validation import ALWAYS_CHECKED, CHECKS

OURS = (DRILL_TOPIC, DRILL_SOW_TOPIC, DRILL_WORK_TOPIC)
CARRIED = (*OURS, DRILL_QUEUE)
"""Topics of the drills on links: what consumers say of a queue's messages goes under the queue's
name."""
SOW_TYPE = "json"
"""Type of the messages on all but the first one."""
LEASE = "10s"
BACKLOG_MAX = 10
"""Backlog of one consumer."""


def with_drill_topic(settings: FabricSettings) -> FabricSettings:
    """Returns the settings with which the fabric runs: with the drills' topics if drills are
    allowed, else unchanged.

    Links to another fabric get nothing that they do not have: that one did not allow drills.
    """
    if settings.drills != "allowed":
        return settings
    excluded = exclusions(settings)
    return settings.model_copy(
        update={
            "instances": tuple(
                instance.model_copy(
                    update={
                        "topics": _journaled(settings.topics_of(instance)),
                        "sow_topics": _kept(settings, instance),
                        "queues": _queued(settings, instance),
                        "destinations": tuple(
                            _carrying(settings, instance, each, excluded)
                            for each in instance.destinations
                        ),
                    }
                )
                for instance in settings.instances
            )
        }
    )


def _journaled(topics: tuple[TopicSettings, ...]) -> tuple[TopicSettings, ...]:
    # Who keeps no log at all gets none: it would be another instance than the one declared.
    kept = [topic for topic in topics if topic.journaled]
    if not kept:
        return topics
    return (*topics, *(TopicSettings(name=name) for name in OURS if not _taken(kept, name)))


def _kept(
    settings: FabricSettings, instance: InstanceSettings
) -> tuple[SowTopicSettings, ...] | None:
    """Returns the SOW topics of an instance, with that of the drills; None: the instance has the
    fabric's."""
    own = instance.sow_topics
    if not _takes(settings, instance):
        return own
    # Nobody reads a long journal for it that was written before there was this topic.
    added = SowTopicSettings(name="drill", message_type=SOW_TYPE, recovery_point="now")
    # Nobody else may take such a name.
    added = added.model_copy(update={"name": DRILL_SOW_TOPIC})
    return (*(settings.sow_topics if own is None else own), added)


def _queued(
    settings: FabricSettings, instance: InstanceSettings
) -> tuple[QueueSettings, ...] | None:
    """Returns the queues of an instance, with that of the drills; None: the instance has the
    fabric's."""
    own = instance.queues
    if not _takes(settings, instance):
        return own
    # The queue begins with the log: an instance that lost its disk gets its log back before the
    # queue is there, and with it the messages that it had taken from publishers.
    added = QueueSettings.model_validate(
        {
            "name": "drill",
            "message_type": SOW_TYPE,
            "underlying": DRILL_WORK_TOPIC,
            "lease": LEASE,
            "subscription_backlog_max": BACKLOG_MAX,
        }
    )
    added = added.model_copy(update={"name": DRILL_QUEUE})
    return (*(settings.queues if own is None else own), added)


def _takes(settings: FabricSettings, instance: InstanceSettings) -> bool:
    """Returns whether an instance journals any topic, and takes messages of the type that drills
    use."""
    takes = not instance.message_types or SOW_TYPE in instance.message_types
    is_ours = all(each.name != SOW_TYPE for each in settings.types_of(instance))
    return takes and is_ours and any(t.journaled for t in settings.topics_of(instance))


def _carrying(
    settings: FabricSettings,
    instance: InstanceSettings,
    destination: DestinationSettings,
    excluded: dict[Link, frozenset[str]],
) -> DestinationSettings:
    inside = (
        not any(":" in target for target in destination.to)
        if destination.to
        else bool(waited_for(settings, instance, destination))
    )
    missing = [name for name in CARRIED if not _taken(destination.topics, name)]
    if not inside or not destination.topics or not missing:
        return destination
    left_out = {name for topic in destination.topics for name in _left_out(topic)}
    if left_out:
        left_out |= excluded[instance.name, destination.name]
    # Nothing is demanded of them that is not of the others; None: as the destination says.
    excluded_checks = tuple(each for each in CHECKS if each in left_out) or None
    added = [TopicSettings(name=name, exclude_validation=excluded_checks) for name in missing]
    return destination.model_copy(update={"topics": (*destination.topics, *added)})


def _taken(topics: tuple[TopicSettings, ...] | list[TopicSettings], name: str) -> bool:
    """Returns whether one of the declared topics includes all messages on the topic `name`, of
    every type."""
    whole = (t for t in topics if t.message_type == "*" and not t.filter)
    rules = tuple(TopicRule(topic.name) for topic in whole)
    return TopicMatcher(rules).matches(name.encode(), b"")


def _left_out(topic: TopicSettings) -> set[str]:
    """Returns the checks that a destination's topic leaves out by its own settings."""
    excluded = set(topic.exclude_validation or ())
    if topic.include_validation is not None:
        excluded |= set(CHECKS) - set(topic.include_validation) - set(ALWAYS_CHECKED)
    return excluded
