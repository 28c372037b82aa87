"""`raylay status` and `raylay events`."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from raylay.services.commands.options import (
    FILE_COLUMNS,
    FabricOption,
    JsonOption,
    running,
    stop_signals,
)


def status(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Show every instance and its destinations. Exit code 1 where one is not ready."""
    entry = running(fabric)
    from raylay.services.fabric import Fabric

    with Fabric.attach(entry.name) as attached:
        found = attached.status()
    print_status(found, as_json)
    if not all(instance["ready"] for instance in found["instances"]):
        raise typer.Exit(1)


def print_status(found: dict[str, Any], as_json: bool) -> None:
    """Prints what `Fabric.status` told."""
    if as_json:
        typer.echo(json.dumps(found, default=str))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from raylay.services.fabric.left_over import left_over_lines

    table = Table(title=f"fabric {found['fabric']}", title_justify="left", box=SIMPLE_HEAD)
    for column, right in (
        ("instance", False),
        ("group", False),
        ("state", False),
        ("clients", True),
        ("messages", True),
        ("notes", True),
        ("to", False),
        ("by", False),
        ("mode", False),
        ("owed", True),
        ("age", True),
    ):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for instance in found["instances"]:
        state = (
            "ready"
            if instance["ready"]
            else f"{instance['phase']}: {instance['reason']}".rstrip(": ")
        )
        front = (
            instance["name"],
            instance["group"],
            state,
            str(instance.get("sessions", "")),
            *logged(instance),
        )
        destinations = instance.get("destinations", {})
        rows = [destination_row(*each) for each in destinations.items()] or [("",) * 5]
        for number, row in enumerate(rows):
            table.add_row(*(front if not number else ("",) * len(front)), *row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_COLUMNS)
    console.print(table)
    for line in (
        *disconnected_lines(found["instances"]),
        *unavailable_lines(found["instances"]),
        *front_log_lines(found["instances"]),
        *left_over_lines(found.get("left_over", [])),
    ):
        typer.echo(line)


def logged(instance: dict[str, Any]) -> tuple[str, str]:
    """Messages that an instance ever logged, and the notes that it keeps beside them (who waits for
    what, conflicts, what is unavailable). An earlier release tells only both together."""
    if "messages" not in instance:
        both = instance.get("committed_txid")
        return (f"{both:,} with notes" if both else "", "")
    return f"{instance['messages']:,}", f"{instance['notes']:,}" if instance["notes"] else ""


def disconnected_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Why destinations are not connected, a line each."""
    return [
        f"{instance['name']} to {name}: {destination['why']}"
        for instance in instances
        for name, destination in instance.get("destinations", {}).items()
        if not destination.get("connected") and destination.get("why")
    ]


def unavailable_lines(instances: list[dict[str, Any]]) -> list[str]:
    """What instances lack and no upstream has any more, a line each."""
    return [
        f"{instance['name']}: {instance['unavailable']:,} messages are unavailable, "
        "no upstream has them any more"
        for instance in instances
        if instance.get("unavailable")
    ]


def front_log_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Where commits do not, or not all, become durable in the front log, and why, a line each."""
    return [
        f"{instance['name']}: {instance['front_log_failure']}"
        for instance in instances
        if instance.get("front_log_failure")
    ]


def destination_row(name: str, destination: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Name, way, mode, owed messages and age of one destination, for a table."""
    mode = "sync" if destination.get("sync") else "async"
    if destination.get("downgraded"):
        mode = "async (downgraded)"
    if not destination.get("connected"):
        mode += ", disconnected"
    owed = int(destination.get("owed", 0))
    return (
        name,
        str(destination.get("address", "")),
        mode,
        f"{owed:,}",
        f"{destination.get('age_ms', 0)} ms" if owed else "",
    )


def events(
    fabric: FabricOption = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what happened: connects, downgrades, resyncs, late or conflicting records, …"""
    entry = running(fabric)
    from raylay.services.fabric import Fabric

    stopping = threading.Event()
    with stop_signals(stopping), Fabric.attach(entry.name) as attached:
        for event in attached.events(follow=follow, stop=stopping.is_set):
            typer.echo(json.dumps(event, default=str) if as_json else event_line(event))
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """One event as a line for people."""
    moment = datetime.fromtimestamp(event["time_us"] / 1e6, UTC)
    details = " ".join(
        f"{key}={value}"
        for key, value in event.items()
        if key not in ("number", "time_us", "event", "instance")
    )
    return f"{moment:%H:%M:%S.%f} {event['instance']:<14} {event['event']} {details}".rstrip()
