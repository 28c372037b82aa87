"""`raylay find`: lines of logs and messages of journals, by bookmark, transaction id, client or
topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.error_messages import error_line
from raylay.services.commands.shared.printing import echo
from raylay.services.commands.shared.row_printing import Row, print_row, record_line
from raylay.services.errors import RaylayError, StorageError
from raylay.services.inspection.journal_rows import journal_place
from raylay.services.inspection.search import (
    SearchPlace,
    SearchQuery,
    journal_search_rows,
    log_rows,
    search_places,
    search_query,
)
from raylay.services.inspection.separate_reading import read_separately

NOT_READ = 2
"""Exit code where something could not be read, as of grep."""


def find_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A bookmark (`123|45|`), a transaction id, or the name of a client or a topic.",
        ),
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…",
            help="Logs, journals, segments, or directories that have some: of an instance, of a "
            "fabric, of logs.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--as",
            help="What WHAT is, where its form does not tell: bookmark, txid, client, topic, or "
            "text (in lines and bodies).",
        ),
    ] = "",
    regex: Annotated[
        bool,
        typer.Option("--regex", "-E", help="WHAT is a regular expression, over topics and texts."),
    ] = False,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Letters may differ in case.")
    ] = False,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="The directory of archived segments.")
    ] = None,
    body: Annotated[bool, typer.Option(help="Show the messages' bodies.")] = True,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="The maximum number of lines.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> None:
    """Find lines of logs and messages of journals. Instances may run. Exit code 1 if nothing is
    found, 2 if something could not be read."""
    query = search_query(what, kind, pattern=regex, ignore_case=ignore_case)
    found, failed = 0, False
    for path in paths:
        for place in search_places(path):
            try:
                for row in _rows(place, query, archive, body):
                    print_row(row, as_json, _line(row))
                    found += 1
                    if count is not None and found >= count:
                        return
            except BrokenPipeError:
                raise  # Nobody is left to tell.
            except (RaylayError, OSError) as error:
                failed = True
                echo(error_line(error) or str(error), err=True)
    if failed:
        raise typer.Exit(NOT_READ)
    if not found:
        raise typer.Exit(1)


def _rows(
    place: SearchPlace, query: SearchQuery, archive: Path | None, body: bool
) -> Iterator[Row]:
    if place.problem:
        raise StorageError(f"{place.path}: {place.problem}", str(place.path))
    if place.kind == "log":
        return log_rows(place.path, query)
    journal = journal_place(place.path, archive)
    return read_separately(lambda: journal_search_rows(journal, query, body), str(place.path))


def _line(row: Row) -> str:
    if row["row"] == "line":
        return f"{row['file']}:{row['line']}: {row['text']}"
    return f"{row['file']}:{record_line(row)}"
