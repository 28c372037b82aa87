"""`raylay dump`: the contents of an instance's files, while it runs or is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.error_messages import error_line
from raylay.services.commands.shared.printing import echo
from raylay.services.commands.shared.row_printing import (
    Row,
    print_row,
    segment_line,
    shown_body,
)
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.inspection.file_kinds import KINDS
from raylay.services.inspection.identification import identify
from raylay.services.inspection.journal_rows import journal_place, time_text, topic_index_rows
from raylay.services.inspection.separate_reading import read_separately
from raylay.services.inspection.statistics_queries import StatisticsSelection, report_rows
from raylay.services.inspection.store_rows import client_rows, queue_rows, sow_rows
from raylay.services.messages.records import publisher_id

PARTS = ("clients", "queues", "sow", "topics", "statistics")
TOPICS_SHOWN = 8
LARGE = 1_000_000
"""Number from which digits behind the point are left out."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The user's choice of contents to dump."""

    archive: Path | None
    topic: str
    key: str
    client: int
    history: bool
    is_brief: bool = False
    """Whether statistics are summed up: there may be thousands of columns."""


@dataclass(frozen=True, slots=True)
class DumpPart:
    """A part of a dump: the contents of one file, or of several files together.

    Attributes:
        name: one of PARTS.
        title: heading of the part, which names the file.
        rows: function that begins to read the part's rows; called in a process of its own.
    """

    name: str
    title: str
    rows: Callable[[], Iterator[Row]]


def dump(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A data directory, or one of its files: sow.lmdb, state.lmdb, a store of "
            "`queues`, a journal or a segment, statistics.db.",
        ),
    ],
    what: Annotated[
        str,
        typer.Option(
            help="Of a data directory only this: clients, queues, sow, topics or statistics."
        ),
    ] = "",
    topic: Annotated[
        str, typer.Option(help="Only this SOW topic, or segments that may have this topic.")
    ] = "",
    key: Annotated[str, typer.Option(help="Only the SOW records of this key.")] = "",
    client: Annotated[str, typer.Option(help="Only the client of this name.")] = "",
    history: Annotated[
        bool, typer.Option("--history", help="Earlier versions and deletions of records, too.")
    ] = False,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="The directory of archived segments.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="The maximum number of lines.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> None:
    """Print what an instance's files hold: SOW records, acknowledgments of clients and of queues,
    the topic index of the journal, statistics. The instance may run. Exit code 1 if a file is
    damaged or cannot be read."""
    if what and what not in PARTS:
        raise ConfigurationError(f"--what {what!r} is unknown: give one of {', '.join(PARTS)}")
    publisher = publisher_id(client) if client else 0
    is_brief = not what and path.is_dir()
    options = DumpOptions(archive, topic, key, publisher, history, is_brief)
    parts = [each for each in parts_of(path, options) if what in ("", each.name)]
    if not parts:
        raise ConfigurationError(
            f"{path} has nothing of `{what}`: leave out --what to see what it has"
            if what
            else nothing_in(path)
        )
    shown, failed = 0, False
    for part in parts:
        if not as_json and len(parts) > 1:
            echo(f"== {part.title}")
        try:
            for row in read_separately(part.rows, part.title):
                if count is not None and shown >= count:
                    break
                print_row({"part": part.name, **row}, as_json, line_of(row))
                shown += 1
                failed = failed or row.get("row") == "damage"
        except BrokenPipeError:
            raise  # Nobody is left to tell.
        except (RaylayError, OSError) as error:
            failed = True
            echo(error_line(error) or str(error), err=True)
    if failed:
        raise typer.Exit(1)


def nothing_in(path: Path) -> str:
    """Returns why a path cannot be dumped."""
    found = identify(path)
    if found.problem:
        return f"{path}: {found.problem}"
    advice = "give a data directory, or a store, a journal or a statistics database of one"
    return f"{path} is of the kind `{KINDS[found.kind].text}`, which has nothing to dump: {advice}"


def parts_of(path: Path, options: DumpOptions) -> Iterator[DumpPart]:
    """Yields the parts of the dump of a path.

    Raises:
        ConfigurationError, StorageError: the path cannot be used.
    """
    kind = identify(path).kind
    if kind == "data_directory":
        yield from _parts_of_directory(path, options)
    elif kind in ("state_store", "sow_store", "queue_store", "statistics"):
        yield _part_of_file(kind, path, options)
    elif kind in ("journal_directory", "segment", "compressed_segment"):
        place = journal_place(path, options.archive)
        yield DumpPart(
            "topics", str(path), lambda: topic_index_rows(place, options.topic, options.client)
        )


def _parts_of_directory(path: Path, options: DumpOptions) -> Iterator[DumpPart]:
    yield _clients(path, options)
    for store in sorted((path / "queues").glob("*.lmdb")):
        yield _part_of_file("queue_store", store, options)
    for name, kind in (("sow.lmdb", "sow_store"), ("statistics.db", "statistics")):
        if (path / name).exists():
            yield _part_of_file(kind, path / name, options)
    if (path / "journal").is_dir():
        yield DumpPart(
            "topics",
            str(path / "journal"),
            lambda: topic_index_rows(
                journal_place(path / "journal", options.archive), options.topic, options.client
            ),
        )


def _clients(directory: Path, options: DumpOptions, state: Path | None = None) -> DumpPart:
    state = state or directory / "state.lmdb"

    def rows() -> Iterator[Row]:
        has_journal = any((directory / "journal").glob("journal-*"))
        return client_rows(
            state if state.exists() else None,
            directory / "journal" if has_journal else None,
            options.archive,
            options.client,
        )

    return DumpPart("clients", str(state), rows)


def _part_of_file(kind: str, path: Path, options: DumpOptions) -> DumpPart:
    if kind == "state_store":
        return _clients(path.parent, options, path)
    if kind == "sow_store":
        key = options.key.encode("utf-8", "surrogateescape")
        return DumpPart(
            "sow", str(path), lambda: sow_rows(path, options.topic, key, options.history)
        )
    if kind == "queue_store":
        return DumpPart("queues", str(path), lambda: queue_rows(path, options.client))
    return DumpPart("statistics", str(path), lambda: _statistics_rows(path, options.is_brief))


def _statistics_rows(path: Path, is_brief: bool) -> Iterator[Row]:
    for row in report_rows(path, StatisticsSelection()):
        if is_brief and row["row"] == "column":
            return
        yield row


# -- lines ---------------------------------------------------------------------------------------
def line_of(row: Row) -> str:
    """Returns the line of a row."""
    return _LINES[row["row"]](row)


def _topic_line(row: Row) -> str:
    records = "?" if row["records"] is None else f"{row['records']:,}"
    deleted = f", {row['deleted']:,} deletions" if row["deleted"] else ""
    return (
        f"{row['topic']} ({row['message_type']}): {records} records{deleted}, "
        f"up to transaction {row['txid']}"
    )


def _sow_line(row: Row) -> str:
    expires = f"  expires {row['expires']}" if "expires" in row else ""
    what = "deleted" if row.get("deleted") or row["row"] == "deletion" else shown_body(row)
    return (
        f"  {row['key']}  {row['txid']}  {row['time']}  {row['bookmark']}{expires}  {what}".rstrip()
    )


def _instance_line(row: Row) -> str:
    notes = [
        f"incarnation {row['incarnation'] or 'unknown'}",
        f"generation {row['generation']}",
        "admits clients" if row["admits_clients"] else "does not admit clients yet",
        f"on disk up to transaction {row['committed_txid']}",
        f"acknowledged everywhere up to {row['durable_txid']}",
        f"{row['names']:,} client names",
    ]
    if row["is_copy"]:
        notes.append("a copy that has not caught up")
    return ", ".join(notes)


def _client_line(row: Row) -> str:
    notes = [
        f"{title}: {row[name]}"
        for name, title in (
            ("waiting", "unacknowledged by destinations"),
            ("awaited", "acknowledged by this instance for others"),
            ("refused", "refused by destinations"),
            ("unavailable", "gone from every upstream"),
        )
        if row[name]
    ]
    return "; ".join([f"{row['publisher']:>20}  {_ranges(row)}", *notes])


def _ranges(row: Row) -> str:
    return f"{row['count']:,} messages, last {row['last']}: {row['ranges']}"


def _queue_line(row: Row) -> str:
    return (
        f"{row['queue']} ({row['message_type']}): {row['messages']:,} messages of "
        f"{row['publishers']:,} clients had been in it at transaction {row['after_txid']}, from "
        f"where it is rebuilt; read up to {row['folded_txid']}"
    )


def _early_line(row: Row) -> str:
    what = "removed" if row["row"] == "early_removal" else f"transferred to {row['owner']}"
    return f"{row['publisher']:>20}  {what} before they came: {row['first']}-{row['last']}"


def _segment_line(row: Row) -> str:
    if row["topics"] is None:
        return f"{segment_line(row)}  topics are not listed: there are too many, or it is older"
    names = [f"{name} ({kind})" for name, kind in row["topics"][:TOPICS_SHOWN]]
    more = len(row["topics"]) - len(names)
    return f"{segment_line(row)}  {', '.join(names) or 'no topics'}" + (
        f" and {more} more" if more > 0 else ""
    )


def _period_line(row: Row) -> str:
    if not row["samples"]:
        return "no samples"
    every = f", one each {row['interval_s']:.3g} s" if row["interval_s"] else ""
    return (
        f"{row['samples']:,} samples, {time_text(row['first_time_us'])} to "
        f"{time_text(row['last_time_us'])}{every}"
    )


def _column_line(row: Row) -> str:
    thing = "/".join(filter(None, (row["id"], row["name"])))
    numbers = ", ".join(f"{name} {_number(row[name])}" for name in ("min", "mean", "max", "last"))
    return f"{row['table']}  {thing}{'  ' if thing else ''}{row['column']}: {numbers}"


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.6g}"


_LINES: dict[str, Callable[[Row], str]] = {
    "topic": _topic_line,
    "record": _sow_line,
    "version": _sow_line,
    "deletion": _sow_line,
    "instance": _instance_line,
    "client": _client_line,
    "queue": _queue_line,
    "queue_client": lambda row: f"{row['publisher']:>20}  {_ranges(row)}",
    "early_removal": _early_line,
    "early_transfer": _early_line,
    "segment_index": _segment_line,
    "period": _period_line,
    "start": lambda row: f"{time_text(row['time_us'])}  {row['event']}  {row['version']}",
    "column": _column_line,
    "damage": lambda row: f"  damaged: {row['text']}",
}
