"""Events of the instances of a fabric, as the console shows them: each with a sentence and a level,
and in one order.

An instance's log keeps the latest events under numbers that begin anew with its process. A reader
that comes late, or less often than the log turns over, is told of the gap.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from raylay.services.telemetry.catalogue import BY_EVENT

EventLevel = Literal["info", "attention", "act"]
BOOK_EVENTS_MAX = 5_000
INSTANCE_EVENTS_MAX = 50
"""Newest events of an instance among which those before a problem are looked for."""
DETAILS_MAX = 20
_OWN_KEYS = frozenset(("number", "time_us", "event"))
MISSED = "events_missed"
"""Name of the event that stands in place of missing ones."""

LEVELS: Mapping[str, EventLevel] = {
    "info": "info",
    "warning": "attention",
    "error": "act",
    "critical": "act",
    "emergency": "act",
}
"""The console's levels, by the levels of the catalogue of events."""

_Text = Annotated[str, msgspec.Meta(max_length=2_000)]
_Detail = Annotated[str, msgspec.Meta(max_length=1_000)] | float | int | bool | None


class FabricEvent(msgspec.Struct, frozen=True):
    """An event of an instance.

    Attributes:
        number: in the log of the instance's process.
        text: the sentence for people.
    """

    instance: _Text
    number: Annotated[int, msgspec.Meta(ge=0)]
    time_us: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    event: _Text
    text: _Text
    level: EventLevel = "info"
    details: Annotated[dict[_Text, _Detail], msgspec.Meta(max_length=DETAILS_MAX)] = {}


def read_event(instance: str, raw: Mapping[str, Any]) -> FabricEvent:
    """Returns an event of an instance's log for the console."""
    details: dict[str, Any] = {}
    for key, value in itertools.islice(raw.items(), DETAILS_MAX + len(_OWN_KEYS)):
        if key not in _OWN_KEYS and len(details) < DETAILS_MAX:
            details[str(key)[:200]] = (
                value if value is None or isinstance(value, bool | float) or _is_small(value)
                else str(value)[:1_000]
            )  # fmt: skip
    event = str(raw["event"])[:200]
    return FabricEvent(
        instance[:200],
        int(raw["number"]),
        max(0, int(raw["time_us"])),
        event,
        sentence(event, details),
        level_of(event),
        details,
    )


def level_of(event: str) -> EventLevel:
    entry = BY_EVENT.get(event)
    return "info" if entry is None else LEVELS[entry.level]


def _is_small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def sentence(event: str, details: Mapping[str, Any]) -> str:
    """Returns an event in words: its name, whom it concerns, and the text or reason it brings."""
    words = event.replace("_", " ")
    whom = next(
        (
            str(details[key])
            for key in ("path", "destination", "queue", "topic", "client", "peer", "name")
            if details.get(key)
        ),
        "",
    )
    why = next((str(details[key]) for key in ("text", "why", "reason") if details.get(key)), "")
    by_s = details.get("by_s")
    if not why and isinstance(by_s, int | float):
        why = f"{'back' if by_s < 0 else 'forward'} by {abs(by_s):g} s"
    user = details.get("user") or details.get("by")
    found = " ".join(each for each in (words, whom) if each)
    found += f" by {user}" if user else ""
    return (f"{found}: {why}" if why else found)[:2_000]


class FabricEventBook:
    """The latest events of all instances, in the order in which they were learnt.

    Owner: the board of one user (`PeerBoard`). Positions run from 1 and are never used twice.
    """

    def __init__(self) -> None:
        self._events: deque[FabricEvent] = deque(maxlen=BOOK_EVENTS_MAX)
        self._of: dict[str, deque[FabricEvent]] = {}
        """The newest events of each instance."""
        self._known: dict[str, tuple[str, int]] = {}
        """Process and number of the newest event, by instance."""
        self.position = 0
        """Position of the newest event."""

    def learn(
        self, instance: str, process: str, last_number: int, events: Sequence[FabricEvent]
    ) -> None:
        """Adds the events of an instance that are new.

        Args:
            process: the process whose log has them.
            last_number: number of that log's newest event.
            events: the newest of them; those that are missing between are told as a gap.
        """
        before = self._known.get(instance)
        known = before[1] if before is not None and before[0] == process else 0
        is_first = before is None
        new = sorted(
            (each for each in events if known < each.number <= last_number),
            key=lambda each: each.number,
        )
        first = new[0].number if new else last_number + 1
        if not is_first and first > known + 1:
            missed = first - known - 1
            time_us = new[0].time_us if new else 0
            self._add(
                FabricEvent(
                    instance,
                    first - 1,
                    time_us,
                    MISSED,
                    f"{missed:,} event{'' if missed == 1 else 's'} of {instance} came too fast to "
                    "be shown here: `raylay events`, or its log, has them",
                    "attention",
                    {"missed": missed},
                )
            )
        for each in new:
            self._add(each)
        self._known[instance] = (process, max(known, last_number))

    def _add(self, event: FabricEvent) -> None:
        self._events.append(event)
        newest = self._of.setdefault(event.instance, deque(maxlen=INSTANCE_EVENTS_MAX))
        newest.append(event)
        self.position += 1

    def after(self, position: int) -> Iterator[tuple[int, FabricEvent]]:
        """Yields (position, event) of the events behind a position, oldest first."""
        first = self.position - len(self._events)
        start = max(0, position - first)
        yield from enumerate(itertools.islice(self._events, start, None), first + start + 1)

    def missed_before(self, position: int) -> int:
        """Returns the number of events behind a position that are no longer kept."""
        return max(0, self.position - len(self._events) - position)

    def latest(
        self, instance: str, upto_us: int, limit: int, destination: str = ""
    ) -> list[FabricEvent]:
        """Returns the newest events of an instance up to a time, the newest first. Where some
        concern the destination, or are more than information, only those: that a client came and
        went explains nothing."""
        found = [each for each in reversed(self._of.get(instance, ())) if each.time_us <= upto_us]
        telling = [each for each in found if _tells(each, destination)]
        return (telling or found)[:limit]


def _tells(event: FabricEvent, destination: str) -> bool:
    return event.level != "info" or (
        destination != "" and event.details.get("destination") == destination
    )
