"""The state of an instance as lines for its log: the values that a person who looks for a fault
needs first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LINES_MAX = 2_000
"""Limit on the lines of a dump: an instance may have many thousand clients."""
_ONE_BY_ONE: Mapping[str, tuple[str, str]] = {
    "destinations": ("link", ""),
    "queues": ("queue", ""),
    "sow_topics": ("sow", ""),
    "views": ("view", ""),
    "conflated_topics": ("conflated_topic", ""),
    "transports": ("transport", "name"),
    "capacity": ("pool", "pool"),
    "client_connections": ("client", "number"),
    "subscribers": ("subscription", "client"),
    "upstreams": ("upstream", "name"),
}
"""Parts of the status that have many entries, each with its word in a line, and with the field that
identifies an entry; empty: the part is a mapping by name."""
_LEFT_OUT = frozenset(("clients", "topics"))
"""Parts of the status that other lines repeat, or that do not help to find a fault."""


def diagnostic_lines(status: Mapping[str, Any], lines_max: int = LINES_MAX) -> list[str]:
    """Returns an instance's status (services/server/status.py) as lines, the instance's own values
    first, then a line for each link, queue, SOW topic, view, transport, pool and client.

    Args:
        lines_max: most lines; if there are more, the last line says how many were left out.
    """
    own = {
        name: value
        for name, value in status.items()
        if name not in _ONE_BY_ONE and name not in _LEFT_OUT
    }
    lines = [_line("instance", status.get("name", ""), own)]
    for part, (word, key) in _ONE_BY_ONE.items():
        found = status.get(part) or {}
        entries = [(each.get(key, ""), each) for each in found] if key else [*found.items()]
        lines += [_line(word, name, values) for name, values in entries]
    left_out = len(lines) - lines_max
    if left_out > 0:
        lines[lines_max:] = [f"and {left_out:,} more lines"]
    return lines


def _line(word: str, name: object, values: Mapping[str, Any]) -> str:
    said = " ".join(
        f"{key}={value!r}" for key, value in values.items() if value not in ("", None, [], {})
    )
    return f"{word} {str(name)[:200]!r}: {said}"
