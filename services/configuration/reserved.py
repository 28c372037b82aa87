"""The topic that drills have for themselves: journaled and replicated where drills are allowed.

A drill proves instances, disks and links, and publishes for that. In the user's own topics its
messages would be data. So a fabric that is marked `drills: allowed` has one topic more than it
declares: in the log of each instance that keeps one, and on each link between its own instances.
"""

from __future__ import annotations

from raylay.services.configuration.exclusions import Link, exclusions
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
    TopicSettings,
)
from raylay.services.configuration.topology import waited_for
from raylay.services.messages.topics import DRILL_TOPIC, TopicMatcher, TopicRule
from raylay.services.replication.validation import ALWAYS_CHECKED, CHECKS


def with_drill_topic(settings: FabricSettings) -> FabricSettings:
    """The fabric as it runs: with the drills' topic where it is marked for drills, else as it is.

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
    return topics if not kept or _taken(kept) else (*topics, TopicSettings(name=DRILL_TOPIC))


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
    if not inside or not destination.topics or _taken(destination.topics):
        return destination
    left_out = {name for topic in destination.topics for name in _left_out(topic)}
    if left_out:
        left_out |= excluded[instance.name, destination.name]
    added = TopicSettings(
        name=DRILL_TOPIC,
        # Nothing is demanded of it that is not of the others; None: as the destination says.
        exclude_validation=tuple(each for each in CHECKS if each in left_out) or None,
    )
    return destination.model_copy(update={"topics": (*destination.topics, added)})


def _taken(topics: tuple[TopicSettings, ...] | list[TopicSettings]) -> bool:
    """Whether messages of any type on the drills' topic are taken already."""
    whole = (t for t in topics if t.message_type == "*" and not t.filter)
    rules = tuple(TopicRule(topic.name) for topic in whole)
    return TopicMatcher(rules).matches(DRILL_TOPIC.encode(), b"")


def _left_out(topic: TopicSettings) -> set[str]:
    """The checks that a destination's topic leaves out by itself."""
    excluded = set(topic.exclude_validation or ())
    if topic.include_validation is not None:
        excluded |= set(CHECKS) - set(topic.include_validation) - set(ALWAYS_CHECKED)
    return excluded
