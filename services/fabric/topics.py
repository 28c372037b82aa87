"""The topics of a fabric: what the journals have of each, at which rate it grows, and who journals
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.messages.topic_totals import TopicTotal
from raylay.services.messages.topics import TopicMatcher, TopicRule, is_regex


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic of one message type.

    Attributes:
        message_type: type of the topic's messages; `*` for a topic that is declared for any type
            and has no message yet.
        messages: number of messages in the journal of the instance that has the most; most
            instances log what the others do.
        bytes: size of its records in the journal of the instance where that is largest, in bytes,
            before compression.
        oldest_us: receive time of the oldest message in any journal, in microseconds since 1970; 0:
            there is none.
        newest_us: receive time of the newest message in any journal.
        rate_per_s: messages a second, between the two looks, of the instance that logged most.
        instances: the totals of each instance that has records of the topic.
        journaled_by: instances whose transaction log takes the topic, or that have the queue of
            this name.
    """

    topic: str
    message_type: str
    messages: int
    bytes: int
    oldest_us: int
    newest_us: int
    rate_per_s: float
    journaled_by: tuple[str, ...]
    instances: tuple[tuple[str, TopicTotal], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the row for JSON, with the totals of the instances by their names."""
        kept = ("messages", "bytes", "oldest_us", "newest_us")
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {
            "instances": {
                name: {key: getattr(total, key) for key in kept} for name, total in self.instances
            }
        }


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
    earlier = {(name, *_key(total)): total.logged for name, total in _totals(before)}
    totals: dict[tuple[str, str], TopicTotal] = {}
    rates: dict[tuple[str, str], float] = {}
    instances: dict[tuple[str, str], list[tuple[str, TopicTotal]]] = {}
    for name, total in _totals(after):
        key = _key(total)
        # Less than before: it was started again meanwhile.
        news = max(0, total.logged - earlier.get((name, *key), 0))
        instances.setdefault(key, []).append((name, total))
        totals[key] = _joined(totals.get(key, TopicTotal(*key)), total)
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
            key = queue.name, queue.message_type
            totals.setdefault(key, TopicTotal(*key))
    named = {topic for topic, _ in totals}
    for instance in running.instances:
        for declared in running.topics_of(instance):
            if not is_regex(declared.name) and declared.name not in named:
                key = declared.name, declared.message_type
                totals.setdefault(key, TopicTotal(*key))
    rows = [
        TopicRow(
            topic,
            kind,
            total.messages,
            total.bytes,
            total.oldest_us,
            total.newest_us,
            round(rates.get((topic, kind), 0.0), 1),
            tuple(
                name
                for name, matcher in journaling.items()
                if matcher.matches(topic.encode(), kind.encode())
                or name in queues.get((topic, kind), ())
            ),
            tuple(instances.get((topic, kind), ())),
        )
        for (topic, kind), total in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.messages, row.topic, row.message_type))


def _names(statuses: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(each["name"]) for each in statuses if "topics" in each}


def _totals(statuses: Sequence[Mapping[str, Any]]) -> list[tuple[str, TopicTotal]]:
    return [
        (str(each["name"]), TopicTotal(*values))
        for each in statuses
        for values in each.get("topics", ())
    ]


def _key(total: TopicTotal) -> tuple[str, str]:
    return total.topic, total.message_type


def _joined(one: TopicTotal, other: TopicTotal) -> TopicTotal:
    return one._replace(
        messages=max(one.messages, other.messages),
        bytes=max(one.bytes, other.bytes),
        oldest_us=min(filter(None, (one.oldest_us, other.oldest_us)), default=0),
        newest_us=max(one.newest_us, other.newest_us),
    )
