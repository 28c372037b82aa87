"""The job `archive`: journals into a lake of Parquet files, by instance, topic and date.

    LAKE/messages/instance=…/topic=…/date=…/<incarnation>-<first>-<last>-<n>.parquet
    LAKE/_raylay/manifest.json      what is archived, by instance and incarnation
    LAKE/_raylay/pending.json       a stretch that is verified and is being moved into its place
    LAKE/_raylay/staging/           what is being written and verified

`compact` writes the small files of a partition into one, in the same way; `expire` leaves out whole
days. Files that the manifest no longer names stay for a while, for readers that have begun.

A stretch of the log is written aside, read back and compared with the journal by count and
checksum; then one durable file says which files belong where, they are moved, and the manifest is
replaced. A job that is killed at any point leaves a stretch either not begun, or pending: the next
one finishes it. So a lake holds each record of an instance once.

A job goes on, and calls segments removable, only where the journal still holds what was archived,
and the lake has it: the last record of each stretch is compared, the lake's files are looked for,
and their rows counted where the journal still has them.

A journal that lies alone, without its instance's state, goes by a hash of its path in place of an
incarnation. A topic whose name cannot be a directory's (it is too long, or Spark would take it for
a null, or Java's locale cannot write it) stands in `topic=` with its beginning and a hash, and
whole in the column `long_topic`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import xor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raylay.services.errors import (
    ConfigurationError,
    CorruptRecord,
    RaylayError,
    StorageError,
)
from raylay.services.pipeline.journals import (
    TOLD_BY,
    JournalPlace,
    JournalStretch,
    OnCorrupt,
    last_txid,
    plan,
    record_told,
)
from raylay.services.pipeline.session import spark_path
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.pipeline.tables.stretch_rows import StretchRows, TaskFailure
from raylay.storage.files import (
    FileLock,
    fault_point,
    make_directory,
    sync_directory,
    sync_file,
    write_durably,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("raylay.pipeline")

CHUNK_RECORDS_DEFAULT = 5_000_000
SMALL_BYTES_DEFAULT = 64 * 1024 * 1024
KEEP_S_DEFAULT = 24 * 3600.0
LAKE_VERSION = 2
_SHORTENED = re.compile(r"/topic=[^/]*~[0-9a-f]{16}/")
MESSAGES = "messages"
META = "_raylay"
PARTITIONED_BY = ("instance", "topic", "date")
LONG_TOPIC = "long_topic"
TOPIC_NAME_BYTES_MAX = 255 - len("topic=")
"""Most bytes of a topic in a directory's name, in Spark's spelling."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Name of a directory that Spark takes for a null, and writes for an empty text."""
TOPIC_BEGINNING = 48
"""Number of characters that a directory's name keeps of a longer topic: at most 192 bytes."""
OUTSIDE_ASCII = r"[^\x00-\x7f]"
SPARK_ESCAPES = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""Characters that Spark writes as three bytes each."""


@dataclass(slots=True)
class ArchivedStretch:
    """One stretch of an instance's log in the lake: its transaction ids, inclusive, and what was
    verified.

    Attributes:
        damaged: the segments, by their first transaction id, from which records were left out.
        end: the numbers that identify its last record (`record_told`); in older manifests those of
            the last message, or None.
    """

    first_txid: int
    last_txid: int
    rows: int
    checksum: int
    files: list[str]
    damaged: list[int] = field(default_factory=list)
    end: list[int] | None = None


@dataclass(slots=True)
class _Pending:
    key: str
    stretch: ArchivedStretch
    moves: list[list[str]]
    """Moves of files: each a path below staging and a path below messages."""
    merges: bool = False
    """Whether the stretch takes the place of those that lie within it."""


@dataclass(slots=True)
class ArchiveSummary:
    """The result of a run at one instance.

    Attributes:
        removable_before: segments wholly below this transaction id are in the lake and verified,
            and may be removed.
        damaged: a sentence for each place that this run left out; the segments there are never
            removable.
    """

    instance: str
    archived_records: int
    stretches: int
    last_txid: int
    removable_before: int
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UpkeepSummary:
    """The result of `compact` or `expire`.

    Attributes:
        files_before, files: number of files in the manifest before and after.
        records: number of records that were written anew, or expired.
        removed_files: number of files that were left out earlier and are now removed from disk.
    """

    files_before: int
    files: int = 0
    records: int = 0
    removed_files: int = 0


@dataclass(slots=True)
class Lake:
    """The manifest of a lake.

    Attributes:
        retired: files that are no longer part of the lake, and the time in seconds since 1970 from
            which they were not.

    Raises:
        StorageError: on `opened`: the manifest cannot be read, or is of another version.
    """

    directory: Path
    stretches: dict[str, list[ArchivedStretch]] = field(default_factory=dict)
    retired: dict[str, float] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """Returns the lake's files, as paths below `messages`."""
        return [name for known in self.stretches.values() for each in known for name in each.files]

    @property
    def meta(self) -> Path:
        return self.directory / META

    @property
    def messages(self) -> Path:
        return self.directory / MESSAGES

    @property
    def staging(self) -> Path:
        return self.meta / "staging"

    @classmethod
    def opened(cls, directory: Path) -> Lake:
        """Opens the lake in a directory, or a new one where there is none, and finishes a pending
        stretch."""
        lake = cls(directory)
        make_directory(lake.meta)
        found = _read(lake.meta / "manifest.json")
        if found is not None:
            if found.get("version") != LAKE_VERSION:
                raise StorageError(
                    f"{lake.meta / 'manifest.json'} has version {found.get('version')}, this "
                    f"software reads {LAKE_VERSION}",
                    str(lake.meta),
                )
            lake.stretches = {
                key: [ArchivedStretch(**each) for each in stretches]
                for key, stretches in found["stretches"].items()
            }
            lake.retired = found["retired"]
        pending = _read(lake.meta / "pending.json")
        if pending is not None:
            stretch = ArchivedStretch(**pending.pop("stretch"))
            lake._move(_Pending(**pending, stretch=stretch))
        shutil.rmtree(lake.staging, ignore_errors=True)
        return lake

    def archived_upto(self, key: str) -> int:
        """Returns the last transaction id of an instance's incarnation that is in the lake."""
        stretches = self.stretches.get(key)
        return stretches[-1].last_txid if stretches else 0

    def take(
        self, key: str, stretch: ArchivedStretch, moves: list[list[str]], *, merges: bool = False
    ) -> None:
        pending = _Pending(key, stretch, moves, merges)
        write_durably(self.meta / "pending.json", json.dumps(asdict(pending)).encode() + b"\n")
        fault_point("archive.pending")
        self._move(pending)

    def _move(self, pending: _Pending) -> None:
        folders = set()
        for source, target in pending.moves:
            there = self.messages / target
            make_directory(there.parent)
            if (self.staging / source).exists():
                os.replace(self.staging / source, there)
            elif not there.exists():
                raise StorageError(
                    f"{there} is missing: somebody removed it; restore it, or archive into a new "
                    "lake",
                    str(there),
                )
            folders.add(there.parent)
            fault_point("archive.moved")
        for folder in folders:
            while folder != self.directory:
                sync_directory(folder)
                folder = folder.parent
        known = self.stretches.setdefault(pending.key, [])
        if pending.merges:
            self._merge(known, pending.stretch)
        elif not known or known[-1].last_txid < pending.stretch.last_txid:
            known.append(pending.stretch)
        self.save()
        (self.meta / "pending.json").unlink(missing_ok=True)
        shutil.rmtree(self.staging, ignore_errors=True)

    def _merge(self, known: list[ArchivedStretch], stretch: ArchivedStretch) -> None:
        first, last = stretch.first_txid, stretch.last_txid
        within = [each for each in known if first <= each.first_txid and each.last_txid <= last]
        self.retire(name for each in within for name in each.files if name not in stretch.files)
        at = known.index(within[0])
        known[at : at + len(within)] = [stretch]

    def retire(self, names: Iterable[str]) -> None:
        self.retired |= dict.fromkeys(names, time.time())

    def save(self) -> None:
        """Replaces the manifest."""
        content = {
            "version": LAKE_VERSION,
            "stretches": {
                key: [asdict(stretch) for stretch in stretches]
                for key, stretches in self.stretches.items()
            },
            "retired": self.retired,
        }
        write_durably(self.meta / "manifest.json", json.dumps(content).encode() + b"\n")
        fault_point("archive.manifest")

    def sweep(self, keep_s: float) -> int:
        """Removes files that have not been part of the lake for `keep_s` seconds. Returns their
        number."""
        until_s = time.time() - keep_s
        gone = [name for name, at_s in self.retired.items() if at_s <= until_s]
        for name in gone:
            path = self.messages / name
            path.unlink(missing_ok=True)
            fault_point("archive.removed")
            for folder in path.parents:
                if folder == self.messages or (folder.is_dir() and any(folder.iterdir())):
                    break
                if folder.is_dir():
                    folder.rmdir()
            del self.retired[name]
        if gone:
            self.save()
        return len(gone)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", str(path)) from None
    if not isinstance(found, dict):
        raise StorageError(f"{path} does not hold a JSON object", str(path))
    return found


def archive(
    spark: SparkSession,
    lake_directory: str | Path,
    places: list[JournalPlace],
    *,
    chunk_records: int = CHUNK_RECORDS_DEFAULT,
    on_corrupt: OnCorrupt = "stop",
    progress: Callable[[str], None] = lambda line: None,
) -> list[ArchiveSummary]:
    """Brings a lake up to date with the journals.

    Args:
        lake_directory: a directory that the driver and the workers reach; it is created when
            missing.
        chunk_records: number of records that are written, verified and added in one step.
        on_corrupt: the effect of a damaged record: `stop` raises; `skip` leaves it out, reports it,
            and never calls its segment removable. Each step is read twice then.
        progress: called with a line of text for each step.

    Raises:
        ConfigurationError: two journals have the same name.
        StorageLocked: another job archives into this lake.
        StorageError: records were removed from a journal before they were archived, a journal does
            not hold what was archived of it, or the lake lacks a file or cannot be written.
        CorruptRecord: a journal is damaged (see `on_corrupt`), or the written files differ from the
            journal.
    """
    if len({place.instance for place in places}) < len(places):
        raise ConfigurationError(
            "two of the journals lie in directories of the same name, by which a lake "
            "distinguishes instances: give the fabric's directory, or a lake for each journal"
        )
    if any(place.instance == NULL_PARTITION for place in places):
        raise ConfigurationError(
            f"an instance is called {NULL_PARTITION}, which Spark takes for a null: rename its "
            "directory"
        )
    directory = Path(lake_directory).absolute()
    try:
        make_directory(directory / META)
        with FileLock(directory / META / "lock"):
            lake = Lake.opened(directory)
            return [
                _archive_one(spark, lake, place, chunk_records, on_corrupt, progress)
                for place in places
            ]
    except OSError as error:
        where = error.filename or directory
        raise StorageError(f"{where} cannot be written: {error.strerror}", str(where)) from None


def _archive_one(
    spark: SparkSession,
    lake: Lake,
    place: JournalPlace,
    chunk_records: int,
    on_corrupt: OnCorrupt,
    progress: Callable[[str], None],
) -> ArchiveSummary:
    identity = _identity(place)
    key = f"{place.instance}/{identity}"
    newest = last_txid(place, on_corrupt)
    _compare(lake, place, key)
    files = place.files()
    upto = lake.archived_upto(key)
    if not upto and files:
        upto = files[0].first_txid - 1
    rows = stretches = 0
    told: list[str] = []
    while upto < newest:
        last = min(newest, upto + chunk_records)
        try:
            stretch, damage = _write(spark, lake, place, identity, upto, last, on_corrupt)
        except Exception:
            if not (lake.meta / "pending.json").exists():
                shutil.rmtree(lake.staging, ignore_errors=True)
            raise
        rows += stretch.rows
        stretches += 1
        upto = last
        told += [each for each in damage if each not in told]
        for each in damage:
            progress(f"left out: {each}")
        progress(f"{place.instance}: {last:,} of {newest:,}, {rows:,} records archived")
    damaged = {first for each in lake.stretches.get(key, ()) for first in each.damaged}
    removable = _removable(place, upto, damaged)
    return ArchiveSummary(place.instance, rows, stretches, upto, removable, told)


def _identity(place: JournalPlace) -> str:
    """Returns a name that tells a journal from other journals of an instance of the same name."""
    found = place.incarnation()
    if found:
        return found
    path = str(Path(place.journal).resolve())
    return f"at-{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def _compare(lake: Lake, place: JournalPlace, key: str) -> None:
    """Checks that the lake has the files of its manifest, and that the journal holds what was
    archived of it.

    Raises:
        StorageError: a file is missing, or the journal differs.
    """
    stretches = lake.stretches.get(key, [])
    if not stretches:
        return
    for name in (name for each in stretches for name in each.files):
        path = lake.messages / name
        if not path.is_file() or not path.stat().st_size:
            text = "is named in the manifest, but is missing or empty"
            raise _incomplete(path, place, text)
    upto = stretches[-1].last_txid
    with place.reader() as reader:
        try:
            newest = reader.last_txid
        except CorruptRecord:  # it is to be skipped; nobody knows where the journal ended
            newest = upto
        if newest < upto:
            raise _another(
                lake, place, (f"it ends at transaction id {newest}, but {upto} is archived")
            )
        oldest = reader.first_txid
        for stretch in reversed(stretches):
            if stretch.last_txid < oldest:
                break
            _count(lake, place, stretch)
            if stretch.end is None:
                stretch.end = _end([lake.messages / name for name in stretch.files])
            if stretch.end is None:
                continue
            found = record_told(reader, stretch.end[0])
            if found is not None and found != stretch.end:
                text = f"transaction id {stretch.end[0]} is not the record that was archived"
                raise _another(lake, place, text)


def _count(lake: Lake, place: JournalPlace, stretch: ArchivedStretch) -> None:
    """Checks that the files of a stretch have as many rows as the manifest says."""
    found = 0
    for name in stretch.files:
        path = lake.messages / name
        try:
            found += pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            text = f"cannot be read: {str(error).splitlines()[0]}"
            raise _incomplete(path, place, text) from None
    if found != stretch.rows:
        text = (
            f"holds in the files of transaction ids {stretch.first_txid} to {stretch.last_txid} "
            f"{found} messages, but {stretch.rows} were archived"
        )
        raise _incomplete(lake.messages, place, text)


def _incomplete(path: Path, place: JournalPlace, text: str) -> StorageError:
    return StorageError(
        f"{path} {text}; restore it, or archive into a new lake: nothing of {place.instance} was "
        "archived, and none of its segments may be removed",
        str(path),
    )


def _another(lake: Lake, place: JournalPlace, text: str) -> StorageError:
    return StorageError(
        f"{place.journal} differs from what {lake.directory} holds of it: {text}. It was "
        "replaced, or restored from a backup: archive it into a new lake; nothing of it was "
        "archived, and none of its segments may be removed",
        place.journal,
    )


def _end(files: list[Path]) -> list[int] | None:
    """Returns the numbers that identify the last record of some files of a lake; None where there
    is none."""
    newest, last = 0, None
    for path in files:
        found = pc.max(_read_columns(path, ["txid"])["txid"]).as_py() or 0
        if found > newest:
            newest, last = found, path
    if last is None:
        return None
    rows = _read_columns(last, list(TOLD_BY))
    row = rows.filter(pc.equal(rows["txid"], newest)).slice(0, 1)
    times = row["receive_time"]
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    columns = [row[name] for name in TOLD_BY[:-1]] + [micros]
    return [int(column[0].as_py()) for column in columns]


def _read_columns(path: Path, columns: list[str]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns)
    except (OSError, pa.ArrowException) as error:
        text = f"{path} cannot be read: {str(error).splitlines()[0]}"
        raise StorageError(text, str(path)) from None


def _removable(place: JournalPlace, upto: int, damaged: set[int]) -> int:
    """Returns the first transaction id of the oldest segment that must stay because the lake lacks
    something of it; 0: no segment can be removed."""
    firsts = [file.first_txid for file in place.files()]
    whole = [first for first in firsts if first <= upto + 1]
    kept = next((at for at, first in enumerate(whole) if first in damaged), len(whole) - 1)
    return whole[kept] if kept > 0 else 0


def _write(
    spark: SparkSession,
    lake: Lake,
    place: JournalPlace,
    identity: str,
    after: int,
    last: int,
    on_corrupt: OnCorrupt,
) -> tuple[ArchivedStretch, list[str]]:
    """Writes, verifies and adds a stretch to the lake. Returns the stretch, and a sentence for each
    place that was left out."""
    from pyspark.sql import functions as F

    rows = (
        spark.read.format("raylay")
        .options(
            path=place.journal,
            starting=json.dumps({"*": after}),
            ending=json.dumps({"*": last}),
            on_corrupt=on_corrupt,
            **({"archive": place.archive} if place.archive else {}),
        )
        .load()
        .withColumn("instance", F.lit(place.instance))
        .withColumn("date", F.to_date("receive_time"))
    )
    rows = _with_short_topics(rows, _names_any_file(spark))
    what = f"transaction ids {after + 1} to {last} of {place.journal}"
    expected, written = _staged(spark, lake, rows, what)
    damaged: list[int] = []
    damage: list[str] = []
    if on_corrupt == "skip":
        sound, damaged, damage = _looked_at(spark, place, after, last)
        if sound != expected[0]:
            raise CorruptRecord(
                f"{place.journal}: of transaction ids {after + 1} to {last} {expected[0]} "
                f"records were read at first, and {sound} at a second read: nothing was "
                "archived; check the disk and run the job again",
                place.journal,
            )
    name = f"{identity}-{after + 1:016x}-{last:016x}"
    moves = []
    for number, path in enumerate(written):
        inside = path.relative_to(lake.staging / "out")
        moves.append(
            [str(path.relative_to(lake.staging)), str(inside.parent / f"{name}-{number}.parquet")]
        )
    with place.reader() as reader:
        end = record_told(reader, last)
    stretch = ArchivedStretch(
        after + 1, last, *expected, [target for _, target in moves], damaged, end
    )
    lake.take(f"{place.instance}/{identity}", stretch, moves)
    return stretch, damage


def _staged(
    spark: SparkSession, lake: Lake, rows: DataFrame, what: str
) -> tuple[tuple[int, int], list[Path]]:
    """Writes rows aside, durably, and reads them back. Returns their fingerprint and the files.

    Raises:
        CorruptRecord: the files hold something else than was written.
    """
    shutil.rmtree(lake.staging, ignore_errors=True)
    out = lake.staging / "out"
    expected = _written(rows, out)
    fault_point("archive.written")
    written = sorted(out.rglob("*.parquet"))
    for path in written:
        sync_file(path)
    for folder in {folder for path in written for folder in path.parents if out in folder.parents}:
        sync_directory(folder)
    sync_directory(out)
    sync_directory(lake.staging)
    sync_directory(lake.meta)
    back = spark.read.schema(rows.schema).parquet(spark_path(out)) if written else rows.limit(0)
    found = _fingerprint(back)
    if expected != found:
        raise CorruptRecord(
            f"{out}: {what} are {expected[0]} "
            f"records of checksum {expected[1]}, but the written files hold {found[0]} of "
            f"checksum {found[1]}: nothing was archived; check the disk and run the job again",
            str(out),
        )
    return expected, written


def _looked_at(
    spark: SparkSession, place: JournalPlace, after: int, last: int
) -> tuple[int, list[int], list[str]]:
    """Returns the number of sound records of a stretch, the segments with damage, and a sentence
    for each damaged place: details that Spark's tables do not give."""
    stretches = plan(place, after, last, Predicate())
    spread = spark.sparkContext.parallelize(stretches, max(1, len(stretches)))
    found: list[tuple[int, int, list[str]]] = []
    for each in spread.map(_counted).collect():
        if isinstance(each, TaskFailure):
            raise each.error()
        found.append(each)
    damage = [(segment, text) for _, segment, texts in found for text in texts]
    return (
        sum(count for count, _, _ in found),
        sorted({segment for segment, _ in damage}),
        list(dict.fromkeys(text for _, text in damage)),
    )


def _counted(stretch: JournalStretch) -> tuple[int, int, list[str]] | TaskFailure:
    rows = StretchRows(stretch, "skip")
    try:
        return sum(len(row.run) for row in rows), stretch.segment, rows.damaged
    except RaylayError as error:
        return TaskFailure.of(error)


def _names_any_file(spark: SparkSession) -> bool:
    """Returns whether Spark's Java can name files in all of Unicode. It takes the encoding of its
    locale, of which `LC_ALL=C` has only ASCII."""
    java: Any = getattr(spark, "_jvm", None)
    return java is None or "UTF-8" in java.System.getProperty("sun.jnu.encoding", "UTF-8").upper()


def _with_short_topics(rows: DataFrame, unicode_names: bool) -> DataFrame:
    """Adds `topic` as a directory's name can hold it, and `long_topic` where that differs from the
    topic.

    Args:
        unicode_names: whether a directory's name may have other characters than those of ASCII.
    """
    from pyspark.sql import functions as F

    topic = F.col("topic")
    escaped = F.regexp_replace(topic, SPARK_ESCAPES, "%XX")
    is_long = (F.octet_length(escaped) > TOPIC_NAME_BYTES_MAX) | topic.isin(NULL_PARTITION, "")
    beginning = F.substring(topic, 1, TOPIC_BEGINNING)
    if not unicode_names:
        is_long |= topic.rlike(OUTSIDE_ASCII)
        beginning = F.regexp_replace(beginning, OUTSIDE_ASCII, "_")
    short = F.concat(beginning, F.lit("~"), F.substring(F.sha2(topic, 256), 1, 16))
    return rows.withColumns(
        {LONG_TOPIC: F.when(is_long, topic), "topic": F.when(is_long, short).otherwise(topic)}
    )


def _written(rows: DataFrame, out: Path) -> tuple[int, int]:
    """Writes the rows. Returns their fingerprint, computed while they pass."""
    from pyspark.sql import Observation

    observed = Observation()
    (
        rows.observe(observed, *_measures(rows))
        .write.option("compression", "zstd")
        .partitionBy(*PARTITIONED_BY)
        .parquet(spark_path(out))
    )
    return _numbers(observed.get)


def _fingerprint(rows: DataFrame) -> tuple[int, int]:
    """Returns the number of rows, and a checksum of all their columns that does not depend on their
    order."""
    return _numbers(rows.agg(*_measures(rows)).collect()[0].asDict())


def _measures(rows: DataFrame) -> tuple[Column, Column]:
    from pyspark.sql import functions as F

    # Sorted: what is in a path is read as the last columns.
    names = sorted(name for name in rows.columns if name != "date")
    return (
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.bit_xor(F.xxhash64(*names)), F.lit(0)).alias("checksum"),
    )


def _numbers(measured: dict[str, Any]) -> tuple[int, int]:
    return int(measured["rows"]), int(measured["checksum"])


def read_lake(spark: SparkSession, lake_directory: str | Path) -> DataFrame:
    """Returns the messages of a lake as a table, with the columns of a journal and `date`.

    Only files of the manifest are read, because a job may be moving others in.

    Raises:
        StorageError: the directory holds no lake, or an empty one.
    """
    directory = Path(lake_directory).absolute()
    found = _read(directory / META / "manifest.json")
    files = [
        name
        for stretches in (found or {}).get("stretches", {}).values()
        for stretch in stretches
        for name in stretch["files"]
    ]
    if not files:
        raise StorageError(f"{directory} holds no archived messages", str(directory))
    from pyspark.sql import functions as F

    rows = _of_files(spark, directory, files)
    if any(_SHORTENED.search(name) for name in files):
        # Only then: Spark passes over the folders of other topics by the bare column alone.
        rows = rows.withColumn("topic", F.coalesce(LONG_TOPIC, "topic"))
    return rows.select(*COLUMNS, "date")


def _of_files(spark: SparkSession, directory: Path, files: list[str]) -> DataFrame:
    """Returns the rows of files of a lake, with `topic` as their directories have it."""
    from raylay.services.pipeline.tables.source import DDL_OF

    # With its types given, no partition is taken for a number by its name.
    schema = ", ".join(f"{name} {DDL_OF[kind]}" for name, kind in COLUMNS.items())
    messages = directory / MESSAGES
    return (
        spark.read.schema(f"{schema}, {LONG_TOPIC} STRING, date DATE")
        .option("basePath", str(messages))
        .parquet(*(str(messages / name) for name in files))
    )


# -- upkeep --------------------------------------------------------------------------------------
@contextmanager
def _upkeep(lake_directory: str | Path, keep_s: float) -> Iterator[tuple[Lake, UpkeepSummary]]:
    """Opens a lake for one job, which no other job then changes."""
    directory = Path(lake_directory).absolute()
    if not (directory / META / "manifest.json").is_file():
        raise StorageError(f"{directory} holds no archived messages", str(directory))
    try:
        with FileLock(directory / META / "lock"):
            lake = Lake.opened(directory)
            summary = UpkeepSummary(len(lake.files))
            summary.removed_files = lake.sweep(keep_s)
            yield lake, summary
            summary.removed_files += lake.sweep(keep_s)
            summary.files = len(lake.files)
    except OSError as error:
        where = error.filename or directory
        raise StorageError(f"{where} cannot be written: {error.strerror}", str(where)) from None


def compact(
    spark: SparkSession,
    lake_directory: str | Path,
    *,
    small_bytes: int = SMALL_BYTES_DEFAULT,
    keep_s: float = KEEP_S_DEFAULT,
    progress: Callable[[str], None] = lambda line: None,
) -> UpkeepSummary:
    """Writes the small files of each instance, topic and date into one.

    Args:
        small_bytes: files of fewer bytes are small.
        keep_s: time in seconds for which the files that were replaced stay, for readers that have
            begun.

    Raises:
        StorageLocked: another job changes this lake.
        StorageError: the lake lacks a file or cannot be written.
        CorruptRecord: the written files differ from those that they replace.
    """
    with _upkeep(lake_directory, keep_s) as (lake, summary):
        for key, known in list(lake.stretches.items()):
            summary.records += _compact_one(spark, lake, key, known, small_bytes)
            progress(f"{key}: {summary.records:,} records written anew")
    return summary


def _compact_one(
    spark: SparkSession, lake: Lake, key: str, known: list[ArchivedStretch], small_bytes: int
) -> int:
    by_folder: dict[str, list[str]] = {}
    for name in (name for each in known for name in each.files):
        try:
            if (lake.messages / name).stat().st_size < small_bytes:
                by_folder.setdefault(str(Path(name).parent), []).append(name)
        except FileNotFoundError:
            raise _unreadable(lake, f"lacks {name}") from None
    old = [name for names in by_folder.values() if len(names) > 1 for name in names]
    if not old:
        return 0
    held: int = sum(pq.read_metadata(lake.messages / name).num_rows for name in old)
    rows = _of_files(spark, lake.directory, old).repartition(*PARTITIONED_BY)
    rows = rows.sortWithinPartitions(*PARTITIONED_BY, "txid")
    expected, written = _staged(spark, lake, rows, f"files of {key}")
    if expected[0] != held:
        raise _unreadable(lake, f"has {held} records in files of {key}, but {expected[0]} are read")
    first, last = known[0].first_txid, known[-1].last_txid
    _, _, identity = key.rpartition("/")
    moves = []
    for path in written:
        folder = path.relative_to(lake.staging / "out").parent
        names = (f"{identity}-{first:016x}-{last:016x}-{n}.parquet" for n in itertools.count())
        name = next(name for name in names if not (lake.messages / folder / name).exists())
        moves.append([str(path.relative_to(lake.staging)), str(folder / name)])
    gone = set(old)
    merged = ArchivedStretch(
        first,
        last,
        sum(each.rows for each in known),
        reduce(xor, (each.checksum for each in known)),
        [name for each in known for name in each.files if name not in gone]
        + [target for _, target in moves],
        sorted({each for stretch in known for each in stretch.damaged}),
        known[-1].end,
    )
    lake.take(key, merged, moves, merges=True)
    return held


def expire(
    spark: SparkSession,
    lake_directory: str | Path,
    before: dt.date,
    *,
    keep_s: float = KEEP_S_DEFAULT,
    progress: Callable[[str], None] = lambda line: None,
) -> UpkeepSummary:
    """Leaves out everything that was received before a day, in UTC. What was archived stays known:
    it is not archived again.

    Args:
        keep_s: time in seconds for which the files stay, for readers that have begun.

    Raises:
        StorageLocked: another job changes this lake.
        StorageError: the lake lacks a file or cannot be written.
    """
    with _upkeep(lake_directory, keep_s) as (lake, summary):
        retired: list[str] = []
        for key, known in lake.stretches.items():
            for stretch in known:
                old = [name for name in stretch.files if _date_of(name) < before]
                if not old:
                    continue
                # Of what stays, the manifest has to say the count and the checksum.
                rows, checksum = _fingerprint(_of_files(spark, lake.directory, old))
                stretch.rows -= rows
                stretch.checksum ^= checksum
                stretch.files = [name for name in stretch.files if name not in old]
                summary.records += rows
                retired += old
            progress(f"{key}: {summary.records:,} records expired")
        if retired:
            lake.retire(retired)
            lake.save()
    return summary


def _date_of(name: str) -> dt.date:
    return dt.date.fromisoformat(Path(name).parent.name.removeprefix("date="))


def _unreadable(lake: Lake, text: str) -> StorageError:
    return StorageError(
        f"{lake.directory} {text}: restore it, or archive into a new lake; nothing was changed",
        str(lake.directory),
    )
