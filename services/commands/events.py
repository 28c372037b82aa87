"""`raylay events`: the events of a fabric's instances."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import (
    FabricOption,
    HttpOption,
    JsonOption,
    stop_signals,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import ConfigurationError
from raylay.services.messages.plain_text import plain_value


@dataclass(frozen=True, slots=True)
class EventSelection:
    """The events that are shown.

    Args:
        instances: names of instances; empty: all.
        kinds: names of events; empty: all.
        since_us: time from which, in microseconds since 1970.
    """

    instances: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    since_us: int = 0

    def takes(self, event: dict[str, Any]) -> bool:
        """Returns whether an event is shown."""
        return (
            event["time_us"] >= self.since_us
            and (not self.instances or event["instance"] in self.instances)
            and (not self.kinds or event["event"] in self.kinds)
        )


def kinds_of(given: Sequence[str]) -> frozenset[str]:
    """Returns the names of the events that texts name: each the name of one, its code (`21-0010`),
    or the number of a category (`21`).

    Raises:
        ConfigurationError: a text is none of these; the error has the closest name.
    """
    # Late: the tables of events are large.
    from raylay.services.configuration.spelling import did_you_mean
    from raylay.services.telemetry.catalogue import BY_EVENT

    found: set[str] = set()
    for text in given:
        named = {
            name
            for name, entry in BY_EVENT.items()
            if text == name or text.upper() in (entry.code, entry.code.partition("-")[0])
        }
        if not named:
            hint = did_you_mean(text, BY_EVENT) or "docs/codes.md lists them"
            raise ConfigurationError(f"there is no event {text!r}: {hint}")
        found |= named
    return frozenset(found)


def since_of(text: str, now_us: int) -> int:
    """Returns the time that a text names: an interval before now, such as `10m`, or a time.

    Args:
        now_us: the time now, in microseconds since 1970.

    Raises:
        ConfigurationError: the text is neither.
    """
    # Late: most calls give no time.
    from raylay.services.commands.statistics import time_us
    from raylay.services.messages.documented_units import parse_interval_ns

    try:
        return now_us - parse_interval_ns(text) // 1_000
    except ValueError:
        pass
    try:
        return time_us(text)
    except ConfigurationError:
        raise ConfigurationError(
            f"--since {text}: give an interval such as 10m, or a time such as 2026-01-02T03:04:05"
        ) from None


def events(
    fabric: FabricOption = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new events.")] = False,
    since: Annotated[
        str,
        typer.Option(help="Only events of the last 10m, say, or from a time (UTC) on."),
    ] = "",
    instance: Annotated[
        list[str] | None, typer.Option(help="Only events of this instance; repeatable.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only events of this name, code (21-0010) or category (21); repeatable."),
    ] = None,
    as_json: JsonOption = False,
    http: HttpOption = None,
) -> None:
    """Show events: connects, downgrades, resyncs, late or conflicting records, …"""
    selection = EventSelection(
        frozenset(instance or ()),
        kinds_of(kind) if kind else frozenset(),
        since_of(since, time.time_ns() // 1_000) if since else 0,
    )
    stopping = threading.Event()
    with stop_signals(stopping), controlled(fabric, http) as attached:
        for event in attached.events(follow=follow, stop=stopping.is_set):
            if not selection.takes(event):
                continue
            if as_json:
                echo_json(event, default=str)
            else:
                echo(event_line(event))
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """Formats an event as one line, with its date and time in UTC."""
    moment = datetime.fromtimestamp(event["time_us"] / 1e6, UTC)
    details = " ".join(
        f"{key}={plain_value(value)}"
        for key, value in event.items()
        if key not in ("number", "time_us", "event", "instance")
    )
    when = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"
    return f"{when} {event['instance']:<14} {event['event']} {details}".rstrip()
