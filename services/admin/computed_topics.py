"""The views and the conflated topics of an instance in its resource tree: `/amps/instance/views`,
`/amps/instance/conflated_topics`, and their records among those of the SOW topics (behaviour.md
9.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from raylay.services.admin.tree import Branch, Node

Snapshot = Mapping[str, Any]
Rated = Callable[[tuple[str, ...], Mapping[str, int]], dict[str, Node]]
"""Returns counters, each with its rate as a second leaf."""
KINDS = ("views", "conflated_topics")
"""Keys of both kinds, in a snapshot and in the configuration."""
_TOLD = ("queue_depth", "pending", "pending_bytes", "memory_bytes", "built_percent")


def views_branch(snapshot: Snapshot, rated: Rated) -> dict[str, Branch]:
    """Returns the entries of `/amps/instance/views`, by type and name."""
    found: dict[str, Branch] = {}
    followers = FollowerCounts(snapshot)
    for name, told, defined in _entries(snapshot, "views"):
        message_type, topic = identity(name)
        found[name] = {
            "topic": topic,
            "message_type": message_type,
            "underlying_topic": _underlying(told),
            "projection": ", ".join(defined.get("projection", ())),
            "grouping": ",".join(defined.get("grouping", ())),
            "conflation": "inline" if defined.get("inline") else "none",
            "conflation_ratio": _ratio(told),
            "queue_depth": told["queue_depth"],
            "raylay": {
                "filter": defined.get("filter", ""),
                "joins": ", ".join(defined.get("joins", ())),
                "memory_bytes_max": defined.get("memory_bytes_max"),
                **_common(rated, ("views", name), told),
                "subscriptions": followers.of(topic, message_type),
            },
        }
    return found


def conflated_branch(snapshot: Snapshot, rated: Rated) -> dict[str, Branch]:
    """Returns the entries of `/amps/instance/conflated_topics`, by type and name."""
    found: dict[str, Branch] = {}
    followers = FollowerCounts(snapshot)
    for name, told, defined in _entries(snapshot, "conflated_topics"):
        message_type, topic = identity(name)
        found[name] = {
            "topic": topic,
            "message_type": message_type,
            "underlying_topic": _underlying(told),
            "interval": _interval(defined.get("interval_us")),
            "filter": defined.get("filter", ""),
            "pattern": defined.get("pattern", ""),
            "topic_format": defined.get("topic_format", ""),
            "conflation_ratio": _ratio(told),
            "total_executions": told["executions"],
            "total_time": round(told["spent_us"] / 1e6, 6),
            "raylay": {
                "conflated": told["conflated"],
                "enrichment": ", ".join(defined.get("enrichment", ())),
                **_common(rated, ("conflated_topics", name), told),
                "subscriptions": followers.of(topic, message_type),
            },
        }
    return found


def identity(stored_as: str) -> tuple[str, str]:
    """Returns the message type and the name of a topic with state."""
    message_type, _, name = stored_as.partition("/")
    return message_type, name


def computed_counts(snapshot: Snapshot) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields the stored name of each view and conflated topic, and the number of its records and of
    their changes."""
    for kind in KINDS:
        for name, told in (snapshot.get(kind) or {}).items():
            yield name, {key: told[key] for key in ("records", "inserted", "updated", "deleted")}


class FollowerCounts:
    """The number of subscriptions by topic, for all topics of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._counts: dict[str, Counter[tuple[str, ...]]] = {}
        for each in snapshot.get("subscribers", ()):
            counts = self._counts.setdefault(each["topic"], Counter())
            counts[tuple(each["message_types"])] += 1

    def of(self, topic: str, message_type: str) -> int:
        """Returns the number of subscriptions that name a topic. Those of a regular expression do
        not count."""
        return sum(
            count
            for types, count in self._counts.get(topic, {}).items()
            if not types or message_type in types
        )


def _entries(
    snapshot: Snapshot, kind: str
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    configured: Iterable[Mapping[str, Any]] = snapshot.get("configuration", {}).get(kind) or ()
    definitions = {f"{each['message_type']}/{each['name']}": each for each in configured}
    for name, told in (snapshot.get(kind) or {}).items():
        yield name, told, definitions.get(name, {})


def _common(rated: Rated, place: tuple[str, ...], told: Mapping[str, Any]) -> dict[str, Node]:
    return {
        "records": told["records"],
        **{key: told[key] for key in _TOLD if key in told},
        **rated(place, {key: told[key] for key in ("taken", "updates")}),
        "in_service": told["in_service"],
        "reason": told["refusal"],
    }


def _underlying(told: Mapping[str, Any]) -> str:
    return ",".join(identity(each)[1] for each in told["under"])


def _ratio(told: Mapping[str, Any]) -> float:
    """Returns the changes that came for each one that was given; 0.0: none was given."""
    return round(told["taken"] / told["updates"], 3) if told["updates"] else 0.0


def _interval(interval_us: int | None) -> str:
    """Returns an interval as a configuration has it; empty: it is not known."""
    if interval_us is None:
        return ""
    if interval_us % 1_000_000:
        return f"{interval_us // 1000}ms"
    return f"{interval_us // 1_000_000}s"
