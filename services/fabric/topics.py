"""The topics of a fabric: what its instances logged of each, at which rate, and who journals it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.messages.topics import TopicMatcher, TopicRule, is_regex


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic of one message type.

    Attributes:
        message_type: type of the topic's messages; `*` for a topic that is declared for any type
            and has no message yet.
        messages: number of messages that the instance with the most has logged since its start;
            most instances log what the others do.
        rate_per_s: messages a second, between the two looks, of the instance that logged most.
        journaled_by: instances whose transaction log takes the topic, or that have the queue of
            this name.
    """

    topic: str
    message_type: str
    messages: int
    rate_per_s: float
    journaled_by: tuple[str, ...]


def topic_rows(
    settings: FabricSettings,
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    seconds: float,
) -> list[TopicRow]:
    """Returns the topics that have messages, those with the most first, and the topics that are
    declared by name.

    Args:
        before: statuses of the instances; `after` are their statuses `seconds` later.
    """
    earlier, later = _counts(before), _counts(after)
    messages: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], float] = {}
    for (name, *topic), count in later.items():
        key = topic[0], topic[1]
        # Less than before: it was started again meanwhile.
        news = max(0, count - earlier.get((name, *key), 0))
        messages[key] = max(messages.get(key, 0), count)
        rates[key] = max(rates.get(key, 0.0), news / seconds if name in _names(before) else 0.0)
    running = with_drill_topic(settings)
    journaling = {
        each.name: TopicMatcher(
            tuple(TopicRule(t.name, t.message_type) for t in running.topics_of(each) if t.journaled)
        )
        for each in running.instances
    }
    queues: dict[tuple[str, str], list[str]] = {}
    for instance in running.instances:
        for queue in running.queues_of(instance):
            queues.setdefault((queue.name, queue.message_type), []).append(instance.name)
            messages.setdefault((queue.name, queue.message_type), 0)
    named = {topic for topic, _ in messages}
    for instance in running.instances:
        for declared in running.topics_of(instance):
            if not is_regex(declared.name) and declared.name not in named:
                messages.setdefault((declared.name, declared.message_type), 0)
    rows = [
        TopicRow(
            topic,
            kind,
            count,
            round(rates.get((topic, kind), 0.0), 1),
            tuple(
                name
                for name, matcher in journaling.items()
                if matcher.matches(topic.encode(), kind.encode())
                or name in queues.get((topic, kind), ())
            ),
        )
        for (topic, kind), count in messages.items()
    ]
    return sorted(rows, key=lambda row: (-row.messages, row.topic, row.message_type))


def _names(statuses: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(each["name"]) for each in statuses if "topics" in each}


def _counts(statuses: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], int]:
    return {
        (str(each["name"]), topic, kind): count
        for each in statuses
        for topic, kind, count in each.get("topics", ())
    }
