"""`raylay identify`: the kind of a file, and what it would cost to lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.inspection.file_kinds import KINDS, LOSSES, NOTHING, FileIdentity
from raylay.services.inspection.identification import identify, identify_all


def identify_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files or directories.")],
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Of a directory itself only, without the files below it."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> None:
    """Say what each file is, and what would be lost with it. It reads a few bytes, and opens no
    socket and no pipe. Exit code 1 if a file is missing, unreadable, or not what its name says."""
    failed = False
    for path in paths:
        for found in (identify(path),) if alone else identify_all(path):
            failed = failed or bool(found.problem)
            if as_json:
                echo_json(found.as_object(), ascii_only=False)
            else:
                echo(line_of(found))
    if failed:
        raise typer.Exit(1)


def line_of(found: FileIdentity) -> str:
    """Returns the line on a file."""
    kind = KINDS[found.kind]
    notes = [kind.text]
    if found.size_bytes is not None:
        size = f"{found.size_bytes:,} bytes"
        # A sparse file of gigabytes may take no space at all.
        if found.disk_bytes is not None and found.disk_bytes + 4096 < found.size_bytes:
            size += f" ({found.disk_bytes:,} on the disk)"
        notes.append(size)
    notes += [
        f"{name.replace('_', ' ')} {_shown(value)}"
        for name, value in found.details.items()
        if value is not None and value != ""
    ]
    if found.note:
        notes.append(found.note)
    if kind.loss != NOTHING:
        notes.append(LOSSES[kind.loss])
    line = f"{found.path}: {'; '.join(notes)}"
    return f"{line}; PROBLEM: {found.problem}" if found.problem else line


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
