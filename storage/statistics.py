"""The statistics database: what an instance measured, by time, in SQLite (behaviour.md 9.4).

Each kind of thing has two tables. `ICLIENTS_STATIC` has one row for each client that was ever seen,
with its texts as they were last; `ICLIENTS_DYNAMIC` has one for each client and sample, with its
numbers. `static_id` joins them. LIFETIMES has the starts of the instance, the latest
`LIFETIMES_MAX` of them.

The file is bounded by age and by size, whichever is reached first: what is oldest leaves first.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raylay.services.errors import StorageError
from raylay.storage.files import move_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = ":memory:"
"""The documented name of a database that is kept in memory alone."""
DAY_US = 24 * 3600 * 1_000_000
RETENTION_US = 7 * DAY_US
BYTES_MAX = 256 * 1024 * 1024
SAMPLES_BETWEEN_TRIMS = 60
TRIMMED_SHARE = 0.1
"""Share of the samples that are removed together when the file is too large."""
LOCK_WAIT_S = 5.0
READ_SAMPLES_MAX = 100_000
"""Limit on the samples of one answer: more than a day at one sample a second. One more is read,
which tells that the period has more."""
LIFETIMES_MAX = 1_000
SAME_START_US = 5_000_000
"""Two starts that are at most this time apart, in microseconds, are one start, told twice."""
DAMAGED_SUFFIX = ".damaged"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")

Number = int | float
SampleRow = tuple[str, str, Mapping[str, "str | int | float | bool | None"]]
"""Table, id and values of one thing."""


class StatisticsDamage(StorageError):
    """The file is not, or not any more, a database."""


class StatisticsReader(Protocol):
    """The interface by which history is asked for."""

    def history(
        self, table: str, key: str, column: str, first_us: int | None, last_us: int | None
    ) -> list[tuple[int, Number]]:
        """Returns the numbers of a column, ascending by time, within a closed period."""

    def timestamps(self, first_us: int | None, last_us: int | None) -> list[int]:
        """Returns the times of the samples, ascending, within a closed period."""


class StatisticsStore:
    """See the file's docstring. Owner: one thread. Lifecycle: made, then `close`.

    Args:
        path: the file, made where it is missing, or `MEMORY`.
        retention_us: the age at which a sample leaves.
        bytes_max: the size that the file does not stay above.

    Raises:
        StatisticsDamage: the file is no database.
        StorageError: the file cannot be used; names it.
    """

    def __init__(
        self, path: str | Path, retention_us: int = RETENTION_US, bytes_max: int = BYTES_MAX
    ) -> None:
        self.path = str(path)
        self._retention_us, self._bytes_max = retention_us, bytes_max
        self._columns: dict[str, set[str]] = {}
        self._ids: dict[tuple[str, str], tuple[int, dict[str, str]]] = {}
        """The static id and the texts in the file of each thing, by table and id."""
        self._appended = 0
        with self._named():
            self._database = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None)
            try:
                self._begin()
            except BaseException:
                self._database.close()
                raise

    def _begin(self) -> None:
        run = self._database.execute
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("CREATE TABLE IF NOT EXISTS SAMPLES (timestamp INTEGER PRIMARY KEY)")
        run(
            "CREATE TABLE IF NOT EXISTS LIFETIMES "
            "(timestamp INTEGER PRIMARY KEY, event TEXT, version TEXT)"
        )
        self._list_tables()

    def _list_tables(self) -> None:
        run = self._database.execute
        for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            self._columns[name] = {each[1] for each in run(f"PRAGMA table_info({name})")}

    def _roll_back(self) -> None:
        # A full disk makes SQLite roll back by itself.
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raises SQLite's errors as StorageError with the file's name."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = StatisticsDamage if code in _DAMAGED else StorageError
            advice = (
                "make room on its disk" if code == sqlite3.SQLITE_FULL else "move the file away"
            )
            raise kind(
                f"the statistics database {self.path} cannot be used: {error}; {advice}, or give "
                "`admin` another `statistics_file`"
            ) from error

    # -- writing -----------------------------------------------------------------------------
    def append(self, time_us: int, rows: Iterable[SampleRow]) -> None:
        """Adds one sample, whole or not at all. A second sample of the same microsecond is left
        out.

        Raises:
            StorageError: it cannot be written.
        """
        with self._named():
            run = self._database.execute
            run("BEGIN IMMEDIATE")
            try:
                if run("INSERT OR IGNORE INTO SAMPLES VALUES (?)", (time_us,)).rowcount:
                    for table, key, values in rows:
                        self._add(time_us, table, key, values)
                run("COMMIT")
            except BaseException:
                self._roll_back()
                # What was added to a table, or given an id, is not there any more.
                self._columns.clear()
                self._ids.clear()
                self._list_tables()
                raise
            self._appended += 1
            if self._appended % SAMPLES_BETWEEN_TRIMS == 1:
                self._trim(time_us)

    def _add(
        self, time_us: int, table: str, key: str, values: Mapping[str, str | Number | None]
    ) -> None:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        numbers = {
            name: _bounded(value)
            for name, value in values.items()
            if isinstance(value, int | float)
        }
        static_id = self._static_id(table, key, texts)
        dynamic = self._table(f"{table}_DYNAMIC", "timestamp INTEGER, static_id INTEGER", numbers)
        names = ["timestamp", "static_id", *(f'"{name}"' for name in numbers)]
        self._database.execute(
            f"INSERT INTO {dynamic} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            (time_us, static_id, *numbers.values()),
        )

    def _static_id(self, table: str, key: str, texts: dict[str, str]) -> int:
        run = self._database.execute
        known = self._ids.get((table, key))
        if known is not None and known[1] == texts:
            return known[0]
        static = self._table(
            f"{table}_STATIC", "static_id INTEGER PRIMARY KEY, id TEXT UNIQUE", texts
        )
        run(f"INSERT OR IGNORE INTO {static} (id) VALUES (?)", (key,))
        ((found,),) = run(f"SELECT static_id FROM {static} WHERE id = ?", (key,)).fetchall()
        if texts:
            changes = ", ".join(f'"{name}" = ?' for name in texts)
            run(f"UPDATE {static} SET {changes} WHERE static_id = ?", (*texts.values(), found))
        self._ids[table, key] = found, texts
        return int(found)

    def _table(self, name: str, columns: str, more: Iterable[str]) -> str:
        """Returns the table of this name, made or widened as needed."""
        run = self._database.execute
        known = self._columns.get(name)
        if known is None:
            self._check_name(name)
            # One sample lies together, and needs no index besides: it leaves as one range.
            ending = (
                ", PRIMARY KEY (timestamp, static_id)) WITHOUT ROWID"
                if name.endswith("_DYNAMIC")
                else ")"
            )
            run(f"CREATE TABLE {name} ({columns}{ending}")
            known = self._columns[name] = {each.split()[0] for each in columns.split(", ")}
        for column in more:
            if column not in known:
                self._check_name(column)
                run(f'ALTER TABLE {name} ADD COLUMN "{column}"')
                known.add(column)
        return name

    @staticmethod
    def _check_name(name: str) -> None:
        # Names stand in statements. They are ours; one that is not would be a fault of ours.
        if not _NAME.match(name):
            raise ValueError(f"no name of a table or column: {name!r}")

    # -- bounds ------------------------------------------------------------------------------
    @property
    def file_bytes(self) -> int:
        """The size of the database, without its write-ahead log."""
        with self._named():
            ((pages,),) = self._database.execute("PRAGMA page_count").fetchall()
            ((free,),) = self._database.execute("PRAGMA freelist_count").fetchall()
            ((page_bytes,),) = self._database.execute("PRAGMA page_size").fetchall()
        return int((pages - free) * page_bytes)

    def _trim(self, now_us: int) -> None:
        self._drop_before(now_us - self._retention_us)
        while self.file_bytes > self._bytes_max:
            run = self._database.execute
            ((count,),) = run("SELECT count(*) FROM SAMPLES").fetchall()
            if count <= 1:
                break
            ((before_us,),) = run(
                "SELECT timestamp FROM SAMPLES ORDER BY timestamp LIMIT 1 OFFSET ?",
                (max(1, int(count * TRIMMED_SHARE)),),
            ).fetchall()
            self._drop_before(before_us)

    def truncate(self, before_us: int) -> int:
        """Removes the samples that are older than a time, and returns their number.

        Raises:
            StorageError: they cannot be removed.
        """
        with self._named():
            ((count,),) = self._database.execute(
                "SELECT count(*) FROM SAMPLES WHERE timestamp < ?", (before_us,)
            ).fetchall()
            self._drop_before(before_us)
        return int(count)

    def _drop_before(self, before_us: int) -> None:
        run = self._database.execute
        if not run("SELECT 1 FROM SAMPLES WHERE timestamp < ? LIMIT 1", (before_us,)).fetchall():
            return
        run("BEGIN IMMEDIATE")
        try:
            for name in [*self._columns]:
                table, _, kind = name.rpartition("_")
                if kind != "DYNAMIC":
                    continue
                run(f"DELETE FROM {name} WHERE timestamp < ?", (before_us,))
                # A client that came once is not kept for ever.
                run(
                    f"DELETE FROM {table}_STATIC WHERE static_id NOT IN "
                    f"(SELECT static_id FROM {name})"
                )
            run("DELETE FROM SAMPLES WHERE timestamp < ?", (before_us,))
            run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._ids.clear()
        run("PRAGMA incremental_vacuum").fetchall()

    # -- reading -----------------------------------------------------------------------------
    def history(
        self, table: str, key: str, column: str, first_us: int | None, last_us: int | None
    ) -> list[tuple[int, Number]]:
        """Returns the numbers of a column (see `StatisticsReader`). An unknown table, id or column
        has no history."""
        dynamic, static = f"{table}_DYNAMIC", f"{table}_STATIC"
        if column not in self._columns.get(dynamic, ()):
            return []
        with self._named():
            run = self._database.execute
            found = run(f"SELECT static_id FROM {static} WHERE id = ?", (key,)).fetchall()
            if not found:
                return []
            # CROSS JOIN: sample by sample, each a look-up.
            return run(
                f'SELECT timestamp, "{column}" FROM SAMPLES CROSS JOIN {dynamic} USING (timestamp) '
                f'WHERE static_id = ? AND timestamp BETWEEN ? AND ? AND "{column}" IS NOT NULL '
                "ORDER BY timestamp LIMIT ?",
                (found[0][0], *_bounds(first_us, last_us), READ_SAMPLES_MAX + 1),
            ).fetchall()

    def sample(self, time_us: int) -> dict[str, dict[str, dict[str, str | Number]]] | None:
        """Returns one sample: by table and id, its numbers, and the texts as they were last. None:
        there is no sample of this time."""
        with self._named():
            run = self._database.execute
            if not run("SELECT 1 FROM SAMPLES WHERE timestamp = ?", (time_us,)).fetchall():
                return None
            found: dict[str, dict[str, dict[str, str | Number]]] = {}
            for name in sorted(self._columns):
                table, _, kind = name.rpartition("_")
                if kind != "DYNAMIC":
                    continue
                static = f"{table}_STATIC"
                cursor = run(
                    f"SELECT {static}.*, {name}.* FROM {name} JOIN {static} USING (static_id) "
                    f"WHERE {name}.timestamp = ?",
                    (time_us,),
                )
                columns = [each[0] for each in cursor.description]
                for row in cursor.fetchall():
                    pairs = zip(columns, row, strict=True)
                    values = {column: value for column, value in pairs if value is not None}
                    key = values.pop("id")
                    del values["timestamp"], values["static_id"]
                    found.setdefault(table, {})[key] = values
            return found

    # -- lifetimes ---------------------------------------------------------------------------
    def add_lifetime(self, time_us: int, event: str, version: str) -> None:
        """Notes a start of the instance, unless it is known.

        Raises:
            StorageError: it cannot be written.
        """
        with self._named():
            run = self._database.execute
            near = (time_us - SAME_START_US, time_us + SAME_START_US)
            if run("SELECT 1 FROM LIFETIMES WHERE timestamp BETWEEN ? AND ?", near).fetchall():
                return
            run("INSERT INTO LIFETIMES VALUES (?, ?, ?)", (time_us, event, version))
            run(
                "DELETE FROM LIFETIMES WHERE timestamp NOT IN "
                "(SELECT timestamp FROM LIFETIMES ORDER BY timestamp DESC LIMIT ?)",
                (LIFETIMES_MAX,),
            )

    def lifetimes(self) -> list[tuple[int, str, str]]:
        """Returns the starts of the instance, oldest first: time, event, version."""
        with self._named():
            return self._database.execute(
                "SELECT timestamp, event, version FROM LIFETIMES ORDER BY timestamp"
            ).fetchall()

    def timestamps(self, first_us: int | None, last_us: int | None) -> list[int]:
        """Returns the times of the samples; see `StatisticsReader`."""
        with self._named():
            found = self._database.execute(
                "SELECT timestamp FROM SAMPLES WHERE timestamp BETWEEN ? AND ? ORDER BY timestamp "
                "LIMIT ?",
                (*_bounds(first_us, last_us), READ_SAMPLES_MAX + 1),
            ).fetchall()
        return [time_us for (time_us,) in found]

    def close(self) -> None:
        """Closes the file."""
        with self._named():
            self._database.close()


READ_ONLY: Mapping[str, Any] = {"uri": True, "timeout": LOCK_WAIT_S, "isolation_level": None}
"""Arguments of `sqlite3.connect` for `read_only_uri`."""


def read_only_uri(path: Path) -> str:
    """Returns the address by which SQLite opens a database without writing to it."""
    # Without a write-ahead log no process has it open. SQLite would make one to read it, and leave
    # it behind.
    is_open = Path(f"{path}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if is_open else '&immutable=1'}"


def _bounded(value: Number) -> Number:
    """Returns a number that SQLite takes: its integers have 64 bits and a sign."""
    return value if -(1 << 63) <= value < 1 << 63 else float(value)


def move_aside(path: str | Path) -> Path:
    """Moves a damaged file away, with what belongs to it, in place of an earlier one. Returns where
    it lies now.

    Raises:
        StorageError: it cannot be moved.
    """
    aside = Path(f"{path}{DAMAGED_SUFFIX}")
    try:
        move_durably(Path(path), aside)
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"the statistics database {path} is damaged and cannot be moved away: {error.strerror}"
        ) from error
    return aside


def _bounds(first_us: int | None, last_us: int | None) -> tuple[int, int]:
    return (
        -(1 << 63) if first_us is None else first_us,
        (1 << 63) - 1 if last_us is None else last_us,
    )
