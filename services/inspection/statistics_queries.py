"""Questions to a statistics database beside its instance: any query that only reads, and a report.

A query has a limit of time, because a long one keeps the instance's write-ahead log from being
reused, so that it grows; of the length of one value; and reaches no other file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.inspection.identification import identify
from raylay.storage.statistics import READ_ONLY, StatisticsDamage, read_only_uri

TIMEOUT_S_DEFAULT = 60.0
VALUE_BYTES_MAX = 16 * 1024 * 1024
STEPS_BETWEEN_LOOKS = 10_000
COLUMNS_AT_ONCE = 100
"""Columns of one statement: SQLite has a limit on the columns of a result."""
_ALLOWED = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
_PRAGMAS = frozenset(("table_info", "table_list", "table_xinfo"))
_NAMES = ("client_name", "name", "topic", "queue")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StatisticsSelection:
    """The part of the statistics that a report is about.

    Attributes:
        first_us, last_us: closed period, in microseconds since 1970.
        table: only tables whose name begins with this, such as `ICLIENTS`.
        id: only this thing.
        column: only this column.
        with_constant: whether columns that were 0 all the time are shown, too.
    """

    first_us: int = -(1 << 62)
    last_us: int = 1 << 62
    table: str = ""
    id: str = ""
    column: str = ""
    with_constant: bool = False


def statistics_file(path: Path) -> Path:
    """Returns the database that a path means: the file, or that of a data directory.

    Raises:
        ConfigurationError: there is none, or it is another file.
    """
    if path.is_dir():
        found = path / "statistics.db"
        if not found.exists():
            raise ConfigurationError(
                f"{path} has no statistics.db: name the file, which `statistics_file` of `admin` "
                "puts elsewhere, or turn the administrator's interface on"
            )
        path = found
    identity = identify(path)
    if identity.kind not in ("statistics", "sqlite") or identity.problem:
        wrong = identity.problem or f"it is of kind {identity.kind!r}"
        raise ConfigurationError(f"{path} is no statistics database: {wrong}")
    return path


@contextmanager
def _opened(path: Path, timeout_s: float) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(read_only_uri(path), **READ_ONLY)) as database:
            database.execute("PRAGMA query_only = ON")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            database.set_authorizer(_authorize)
            deadline_s = time.monotonic() + timeout_s
            database.set_progress_handler(
                lambda: time.monotonic() > deadline_s, STEPS_BETWEEN_LOOKS
            )
            yield database
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise StorageError(
                f"{path}: the query took longer than {timeout_s:g} s: ask for less, or give "
                "--timeout",
                str(path),
            ) from None
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StatisticsDamage(f"{path} is damaged: {error}", str(path)) from None
        if code == sqlite3.SQLITE_AUTH:
            raise ConfigurationError(
                f"the query does more than read {path}: give a SELECT ({error})"
            ) from None
        # SQLite reads an open database by an index beside it, which it may have to make.
        is_shut = code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
        advice = "; read it as the user that runs the instance" if is_shut else ""
        raise StorageError(f"{path}: {error}{advice}", str(path)) from None


def _authorize(action: int, first: str | None, *_: str | None) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def query_rows(
    path: Path, text: str, timeout_s: float = TIMEOUT_S_DEFAULT
) -> Iterator[Sequence[Any]]:
    """Yields the names of the result's columns, then its rows.

    Raises:
        ConfigurationError: the query does more than read.
        StorageError: the file or the query is wrong, or the query takes too long.
    """
    try:
        with _opened(path, timeout_s) as database:
            cursor = database.execute(text)
            yield [each[0] for each in cursor.description or ()]
            yield from cursor
    except (sqlite3.Warning, sqlite3.ProgrammingError, ValueError) as error:
        raise ConfigurationError(f"the query is not one statement: {error}") from None


def report_rows(
    path: Path, wanted: StatisticsSelection, timeout_s: float = TIMEOUT_S_DEFAULT
) -> Iterator[Row]:
    """Yields one row about the whole period, one for each start of the instance, and one for each
    column of each measured thing (a client, a link, …): its lowest, mean, highest and last value.

    Raises:
        StorageError: the file cannot be read, or the report takes too long.
    """
    with _opened(path, timeout_s) as database:
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if not {"SAMPLES", "LIFETIMES"} <= tables:
            raise ConfigurationError(
                f"{path} is no statistics database: it has no samples; give an instance's"
            )
        period = (wanted.first_us, wanted.last_us)
        samples, first, last = database.execute(
            "SELECT count(*), min(timestamp), max(timestamp) FROM SAMPLES "
            "WHERE timestamp BETWEEN ? AND ?",
            period,
        ).fetchone()
        yield {
            "row": "period",
            "samples": samples,
            "first_time_us": first,
            "last_time_us": last,
            "interval_s": (last - first) / (samples - 1) / 1e6 if samples > 1 else None,
        }
        for time_us, event, version in database.execute(
            "SELECT timestamp, event, version FROM LIFETIMES WHERE timestamp BETWEEN ? AND ? "
            "ORDER BY timestamp",
            period,
        ):
            yield {"row": "start", "time_us": time_us, "event": event, "version": version}
        for dynamic in sorted(tables):
            table, _, kind = dynamic.rpartition("_")
            if kind == "DYNAMIC" and table.startswith(wanted.table.upper()):
                yield from _table_rows(database, table, wanted)


def _table_rows(
    database: sqlite3.Connection, table: str, wanted: StatisticsSelection
) -> Iterator[Row]:
    columns = [
        name
        for _, name, *_ in database.execute(f"PRAGMA table_info({_quoted(f'{table}_DYNAMIC')})")
        if name not in ("timestamp", "static_id") and wanted.column in ("", name)
    ]
    if not columns:
        return
    static = _quoted(f"{table}_STATIC")
    texts = {name for _, name, *_ in database.execute(f"PRAGMA table_info({static})")}
    named = next((name for name in _NAMES if name in texts), "")
    for at in range(0, len(columns), COLUMNS_AT_ONCE):
        part = columns[at : at + COLUMNS_AT_ONCE]
        yield from _columns_rows(database, table, part, named, wanted)


def _columns_rows(
    database: sqlite3.Connection,
    table: str,
    columns: list[str],
    named: str,
    wanted: StatisticsSelection,
) -> Iterator[Row]:
    dynamic, static = _quoted(f"{table}_DYNAMIC"), _quoted(f"{table}_STATIC")
    quoted = [_quoted(column) for column in columns]
    numbers = ", ".join(f"count({c}), min({c}), avg({c}), max({c})" for c in quoted)
    chosen = (
        f"FROM {dynamic} JOIN {static} USING (static_id) "
        "WHERE timestamp BETWEEN :first AND :last AND (:id = '' OR id = :id) "
        "GROUP BY static_id ORDER BY static_id"
    )
    values = {"first": wanted.first_us, "last": wanted.last_us, "id": wanted.id}
    name = _quoted(named) if named else "''"
    # SQLite takes bare columns from the row that has the maximum.
    latest = database.execute(f"SELECT max(timestamp), {', '.join(quoted)} {chosen}", values)
    for row in database.execute(f"SELECT id, {name}, {numbers} {chosen}", values):
        last = next(latest, ())
        for index, column in enumerate(columns):
            count, low, mean, high = row[2 + 4 * index : 6 + 4 * index]
            if not count or (not wanted.with_constant and low == high == 0):
                continue
            yield {
                "row": "column",
                "table": table,
                "id": row[0],
                "name": row[1] or "",
                "column": column,
                "samples": count,
                "min": low,
                "mean": mean,
                "max": high,
                "last": last[1 + index] if len(last) > 1 + index else None,
            }


def _quoted(name: str) -> str:
    """Returns a name as it stands in a statement: a damaged or foreign file may have any."""
    return '"' + name.replace('"', '""') + '"'
