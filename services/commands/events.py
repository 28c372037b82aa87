"""`raylay events`: the events of a fabric's instances."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.earlier_events import EarlierEvents
from raylay.services.commands.shared.kept_logs import KeptDirectoryOption, kept_place
from raylay.services.commands.shared.options import (
    FabricOption,
    HttpOption,
    JsonOption,
    stop_signals,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import ConfigurationError, FabricError
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
    from raylay.services.messages.spelling import did_you_mean
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
    directory: KeptDirectoryOption = None,
    as_json: JsonOption = False,
    http: HttpOption = None,
) -> None:
    """Show events: connects, downgrades, resyncs, late or conflicting records, …

    An instance has its latest 10,000 events since it began in memory. Earlier ones, and those of
    an instance or a fabric that is down, are read from the logs that instances keep on this host
    (`raylay logs`); those of an instance of another host over its administrator's interface.
    """
    selection = EventSelection(
        frozenset(instance or ()),
        kinds_of(kind) if kind else frozenset(),
        since_of(since, time.time_ns() // 1_000) if since else 0,
    )

    def show(event: dict[str, Any]) -> None:
        if not selection.takes(event):
            return
        if as_json:
            echo_json(event, default=str)
        else:
            echo(event_line(event))
        sys.stdout.flush()

    place = None if http else kept_place(fabric, directory)
    earlier = EarlierEvents(
        place,
        selection.instances,
        selection.since_us,
        lambda text: echo(f"raylay: {text}", err=True),
    )
    told = ToldEvents(earlier, show)
    stopping = threading.Event()
    with ExitStack() as stack:
        if place is not None:
            earlier.refuse_unknown()
        if place is not None and place.entry is None:
            if follow:
                raise FabricError(f"fabric {place.name} is stopped: --follow needs one that runs")
            echo(f"raylay: fabric {place.name} is stopped: its kept events", err=True)
            told.round_is_over()
            return
        try:
            attached = stack.enter_context(controlled(fabric, http))
        except FabricError as error:
            if follow or place is None or not place.has_logs():
                raise
            # Nobody answers: then those that are kept are needed most.
            echo(f"raylay: {error}; the kept events:", err=True)
            told.round_is_over()
            raise typer.Exit(1) from None
        stack.enter_context(stop_signals(stopping))
        earlier.find_interfaces(attached)
        earlier.refuse_unknown()

        def is_over() -> bool:
            told.round_is_over()
            return stopping.is_set()

        for event in attached.events(follow=follow, stop=is_over):
            told.take(event)
        told.round_is_over()


class ToldEvents:
    """The events that instances tell, behind those of earlier lives that their kept logs have.

    Args:
        earlier: reads the kept events.
        show: shows an event.
    """

    def __init__(self, earlier: EarlierEvents, show: Callable[[dict[str, Any]], None]) -> None:
        self._earlier = earlier
        self._show = show
        self._first: list[dict[str, Any]] | None = []
        """The events of the first round; None: it is over."""

    def take(self, event: dict[str, Any]) -> None:
        """Takes an event that an instance tells."""
        if self._first is None:
            self._show(event)
        else:
            self._first.append(event)

    def round_is_over(self) -> None:
        """Shows the kept events and those of the first round, once, in the order of their times."""
        told, self._first = self._first, None
        if told is None:
            return
        began_us: dict[str, int] = {}
        for event in told:
            at_us = began_us.get(event["instance"], event["time_us"])
            began_us[event["instance"]] = min(at_us, event["time_us"])
        kept = [
            self._kept(source, began_us.get(name)) for name, source in self._earlier.by_instance()
        ]
        told.sort(key=_time_of)
        for event in heapq.merge(*kept, told, key=_time_of):
            self._show(event)

    def _kept(
        self, source: Iterator[dict[str, Any]], before_us: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yields an instance's kept events that are earlier than those that it tells."""
        for event in source:
            if before_us is not None and event["time_us"] >= before_us:
                return
            yield event


def _time_of(event: dict[str, Any]) -> int:
    time_us: int = event["time_us"]
    return time_us


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
