"""`raylay error`: what an event or a line of a log means. It needs no fabric."""

from __future__ import annotations

from typing import Annotated

import typer

from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.telemetry.catalogue import found_for
from raylay.services.telemetry.event_entry import CatalogueEntry
from raylay.services.telemetry.event_table import CATEGORIES, ENTRIES

SHOWN_MAX = 20


def error(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="A code (`21-0010`), the name of an event, a line of a log, or words; default: "
            "the list of all codes."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an event or a line of a log: what happened, why, and what to do. Exit code 1 if
    nothing is known about it."""
    words = " ".join(text or ())
    found = found_for(words) if words else list(ENTRIES)
    if as_json:
        echo_json([each._asdict() for each in found])
    elif not words:
        for entry in found:
            echo(f"{entry.code}  {entry.event:32} {entry.what}")
    else:
        for entry in found[:SHOWN_MAX]:
            _explain(entry)
        if len(found) > SHOWN_MAX:
            echo(f"and {len(found) - SHOWN_MAX} more: give more words")
    if not found:
        echo(
            f"raylay: nothing is known about {words[:100]!r}: `raylay error` lists all codes",
            err=True,
        )
        raise typer.Exit(1)


def _explain(entry: CatalogueEntry) -> None:
    category = CATEGORIES[entry.code.partition("-")[0]]
    echo(f"{entry.code} {entry.event} ({entry.level}; {category})")
    for title, text in (("", entry.what), ("why: ", entry.why), ("do:  ", entry.action)):
        if text:
            echo(f"    {title}{text}")
