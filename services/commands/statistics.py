"""`raylay statistics query|report`: what an instance measured, from its statistics database."""

from __future__ import annotations

import base64
import csv
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from raylay.services.commands.dump import line_of
from raylay.services.commands.shared.printing import echo_json
from raylay.services.commands.shared.row_printing import print_row
from raylay.services.errors import ConfigurationError
from raylay.services.inspection.statistics_queries import (
    TIMEOUT_S_DEFAULT,
    StatisticsSelection,
    query_rows,
    report_rows,
    statistics_file,
)
from raylay.services.messages.plain_text import plain

statistics_app = typer.Typer(
    add_completion=False,
    help="Query an instance's statistics database, or report on it.",
    no_args_is_help=True,
)
FileArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A statistics database, or a data directory that has one."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="The most seconds that it may take.")
]


@statistics_app.command("query")
def query(
    path: FileArgument,
    text: Annotated[
        str,
        typer.Argument(metavar="SQL", help="One SELECT statement; default: the list of tables."),
    ] = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="The maximum number of rows.")
    ] = None,
    timeout_s: TimeoutOption = TIMEOUT_S_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line, instead of CSV.")
    ] = False,
) -> None:
    """Print the result of a query that only reads. The instance may run."""
    rows = query_rows(statistics_file(path), text, timeout_s)
    columns = list(next(rows))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not as_json:
        writer.writerow(map(plain, columns))
    for number, row in enumerate(rows):
        if count is not None and number >= count:
            break
        if as_json:
            echo_json({name: _json(value) for name, value in zip(columns, row, strict=True)})
        else:
            writer.writerow([plain(v) if isinstance(v, str) else _json(v) for v in row])


def _json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@statistics_app.command("report")
def report(
    path: FileArgument,
    since: Annotated[
        str, typer.Option("--from", help="The first time: 2026-01-02T03:04:05, in UTC.")
    ] = "",
    until: Annotated[str, typer.Option("--to", help="The last time.")] = "",
    table: Annotated[
        str, typer.Option(help="Only tables that begin with this, such as ICLIENTS.")
    ] = "",
    thing: Annotated[str, typer.Option("--id", help="Only the thing of this id.")] = "",
    column: Annotated[str, typer.Option(help="Only this column, such as bytes_in.")] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Columns that were 0 all the time, too.")
    ] = False,
    timeout_s: TimeoutOption = TIMEOUT_S_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> None:
    """Print the period, the starts of the instance, and of each column the lowest, mean, highest
    and last value. The instance may run."""
    everything = StatisticsSelection()
    wanted = StatisticsSelection(
        time_us(since) if since else everything.first_us,
        time_us(until) if until else everything.last_us,
        table,
        thing,
        column,
        every,
    )
    if wanted.first_us > wanted.last_us:
        raise ConfigurationError(f"--from {since} is behind --to {until}")
    for row in report_rows(statistics_file(path), wanted, timeout_s):
        print_row(row, as_json, line_of(row))


def time_us(text: str) -> int:
    """Returns a time in microseconds since 1970; without a zone it is in UTC.

    Raises:
        ConfigurationError: the text is not a time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no time: write it like 2026-01-02T03:04:05"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
