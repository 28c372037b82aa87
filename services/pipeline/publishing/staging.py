"""Rows on their way into a fabric: staged with their sequences before the first is published.

A staging directory is one publisher. It holds

    state.json            publisher, next sequence, what was published, and what is pending
    run-<id>/             the rows that one write's tasks staged, a file a task attempt
      part-<n>-<id>.arrow

A task only writes a file. When all tasks of a write are done the driver names, in one durable
replacement of state.json, which files are published under which sequences: from then on that write
is *pending*, and the next driver publishes exactly these rows, however often. Instances journal
each (publisher, sequence) once, so rows that were sent before a crash are not journaled again. The
directory remembers each published write by its key, and a second write of a known key does nothing.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import (
    ConfigurationError,
    PublishStoreFull,
    RaylayError,
    StorageError,
)
from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.storage.files import (
    FileLock,
    fault_point,
    make_directory,
    make_file,
    sync_directory,
    sync_file,
    write_durably,
)

log = logging.getLogger("raylay.pipeline")

STATE_FILE = "state.json"
LOCK_FILE = "lock"
BATCH = "batch-"
"""Prefix of a micro-batch's key; its number follows."""
STAGED = pa.schema(
    [
        ("topic", pa.string()),
        ("message_type", pa.string()),
        ("body", pa.binary()),
        ("key", pa.binary()),
        ("correlation_id", pa.binary()),
        ("expiration_s", pa.int64()),
    ]
)
"""Columns of a staged row."""
DONE_JOBS_MAX = 10_000
ABANDONED_S = 24 * 3600
"""Age at which the files of a write that was neither committed nor aborted are removed."""
EXPIRATION_S_MAX = (1 << 32) - 1
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that one task staged.

    Attributes:
        topics: (topic, message type) of its rows, if `stage` recorded them.
        checksum: the checksum of its rows (`rows_checksum`), if `stage` recorded it.
    """

    path: str
    partition: int
    rows: int
    topics: frozenset[tuple[str, str]] = frozenset()
    checksum: int = 0


@dataclass(slots=True)
class PendingWrite:
    """A write whose rows have their sequences, and may not be published yet.

    Attributes:
        origin_time_us: the origin time of all its messages, so that a second attempt sends the same
            bytes.
        run: the run of the query whose micro-batch it is.
        plan: tells this micro-batch from another one with its number; empty: unknown.
        checksum: the checksum of its rows (`rows_checksum`).
        asked: whether the servers are known not to have had its sequences before. Nothing of it is
            sent until then.
    """

    key: str
    first_sequence: int
    rows: int
    origin_time_us: int
    files: list[str]
    run: str = ""
    plan: str = ""
    checksum: int = 0
    asked: bool = True


@dataclass(slots=True)
class _State:
    publisher: str
    owner: str = ""
    next_sequence: int = 1
    last_batch: int = -1
    last_run: str = ""
    last_plan: str = ""
    last_rows: int = 0
    last_checksum: int = 0
    jobs: list[str] = field(default_factory=list)
    pending: PendingWrite | None = None
    leftovers: list[str] = field(default_factory=list)
    """Files of the last published write that could not be removed yet."""


def stage(
    run: Path, partition: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema = STAGED
) -> StagedFile:
    """Writes one task attempt's rows durably, with schema `STAGED` or one that has more columns.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = f"part-{partition:06d}-{os.urandom(6).hex()}.arrow"
    aside = run / f".{name}"
    rows = checksum = 0
    topics: set[tuple[str, str]] = set()
    try:
        make_directory(run)
        make_file(aside)
        with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
                topics.update(_topics(batch))
                checksum = (checksum + rows_checksum(batch)) & _MASK
        sync_file(aside)
        os.replace(aside, run / name)
        sync_directory(run)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise StorageError(f"{run} cannot be written: {error}", str(run)) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return StagedFile(str(run / name), partition, rows, frozenset(topics), checksum)


def _topics(batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    """Yields the topic and message type of a batch's rows, each pair once."""
    names = ["topic", "message_type"]
    found = pa.Table.from_batches([batch]).group_by(names).aggregate([])
    return zip(*(found[name].to_pylist() for name in names), strict=True)


def rows_checksum(batch: pa.RecordBatch) -> int:
    """Returns a checksum of 64 bits of a batch's rows. The sums of several batches, modulo 2**64,
    do not depend on the order of the rows or on their division into batches."""
    seeds = _hashes(batch["topic"], 1) ^ _hashes(batch["message_type"], 2)
    found: Iterable[int] = map(checksum64, batch["body"].to_pylist(), seeds.tolist())
    for at, name in enumerate(("key", "correlation_id", "expiration_s"), 1):
        column = batch[name]
        if column.null_count < len(column):
            # Null and empty are published alike.
            found = [
                checksum64(value if isinstance(value, bytes) else b"%d" % value, before ^ at)
                if value
                else before
                for before, value in zip(found, column.to_pylist(), strict=True)
            ]
    return sum(found) & _MASK


def _hashes(column: pa.Array, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    coded = column.dictionary_encode()
    values = [checksum64(value.encode(), seed) for value in coded.dictionary.to_pylist()]
    found: np.ndarray[Any, np.dtype[np.uint64]]
    found = np.array(values, np.uint64)[coded.indices.to_numpy()]
    return found


class StagingDirectory:
    """A staging directory, locked while a write is committed.

    Owner: the driver of one write. Lifecycle: a context; `commit` any number of times.

    Args:
        directory: created when it is missing.
        name: the prefix of the publisher's name, where the directory is new.
        owner: the query to which the directory belongs; a directory has one.
        run: identifies one start of that query.
        seen: returns the highest sequence that the servers know of a publisher, 0 for none. Where
            it is given, a write is refused whose sequences were published before it was staged.

    Raises:
        StorageLocked: another driver commits here.
        StorageError: the state cannot be read.
        ConfigurationError: the directory belongs to another query.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "spark",
        owner: str = "",
        run: str = "",
        seen: Callable[[str], int] | None = None,
    ) -> None:
        self.directory = directory
        self._seen = seen
        self._name = name
        self._owner = owner
        self._run = run

    def __enter__(self) -> StagingDirectory:
        make_directory(self.directory)
        self._lock = FileLock(self.directory / LOCK_FILE)
        try:
            self._state = self._load()
            _remove(self._state.leftovers)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _load(self) -> _State:
        path = self.directory / STATE_FILE
        try:
            values = json.loads(path.read_bytes())
            pending = values.pop("pending")
            state = _State(**values, pending=PendingWrite(**pending) if pending else None)
        except FileNotFoundError:
            state = _State(f"{self._name}-{os.urandom(8).hex()}", self._owner)
            self._save(state)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} is damaged: {error}", str(path)) from None
        if self._owner and state.owner and state.owner != self._owner:
            raise ConfigurationError(
                f"{self.directory} is the staging directory of query {state.owner}, but this "
                f"query is {self._owner}: give each query, and each new checkpoint, a directory "
                "of its own; nothing was published"
            )
        state.owner = state.owner or self._owner
        return state

    def _save(self, state: _State) -> None:
        write_durably(self.directory / STATE_FILE, json.dumps(asdict(state)).encode() + b"\n")

    @property
    def publisher(self) -> str:
        """Returns the client name under which all rows staged here are published."""
        return self._state.publisher

    @property
    def pending(self) -> PendingWrite | None:
        """Returns the write that has to be published next; None: there is none."""
        return self._state.pending

    def is_done(self, key: str) -> bool:
        """Returns whether a write of this key was published. For `batch-N`, a later micro-batch
        counts too."""
        if key.startswith(BATCH):
            return int(key.removeprefix(BATCH)) <= self._state.last_batch
        return key in self._state.jobs

    def holds(self, path: str) -> bool:
        return self._state.pending is not None and path in self._state.pending.files

    def finish(self, publish: Callable[[StagedRows], None]) -> int:
        """Publishes the pending write. Returns the number of its rows; 0 where none is pending."""
        pending = self._state.pending
        if pending is None:
            return 0
        self._publish(pending, publish)
        return pending.rows

    def commit(
        self,
        key: str,
        files: list[StagedFile],
        publish: Callable[[StagedRows], None],
        check: Callable[[set[tuple[str, str]]], None] = lambda topics: None,
        plan: str = "",
    ) -> int:
        """Publishes a write once, after the pending one. Returns the number of its rows; 0 where it
        was published before.

        Args:
            key: `batch-N` of a stream, or a job's name.
            files: the files that its tasks staged. Ignored where this key is pending already.
            publish: publishes the rows, and returns when all of them are durable in the fabric.
            check: raises where a (topic, message type) of the files cannot be published. Then
                nothing is pending, and the files stay with the caller.
            plan: identifies the micro-batch's plan, which Spark wrote down before it began; empty:
                unknown.

        Raises:
            ConfigurationError: the key is of a micro-batch before the last one, or of another plan
                or table of the last one, or files are missing, or the servers know the sequences.
                Nothing of it was published, and the files stay with the caller.
            RaylayError: `publish` failed, or the servers could not be asked. The write is pending.
            StorageError: files of the pending write are gone.
        """
        before = self._state.pending
        if before is not None:
            self._publish(before, publish)
        files = sorted(files, key=lambda each: each.partition)
        rows = sum(each.rows for each in files)
        checksum = sum(each.checksum for each in files) & _MASK
        if self.is_done(key):
            self._check_repeated(key, rows, checksum, plan)
            self._forget(files)
            return before.rows if before is not None and before.key == key else 0
        missing = _missing([each.path for each in files if each.rows])
        if missing:
            raise ConfigurationError(
                f"{len(missing)} of {len(files)} files that the workers staged are missing, such "
                f"as {missing[0]}: {self.directory} has to be one directory for the driver and "
                "all workers; give staging on storage that they share; nothing was published"
            )
        check({topic for file in files for topic in file.topics})
        pending = PendingWrite(
            key,
            self._state.next_sequence,
            rows,
            time.time_ns() // 1000,
            [each.path for each in files if each.rows],
            self._run,
            plan,
            checksum,
            asked=self._seen is None or not rows,
        )
        self._begin(pending)
        self._publish(pending, publish)
        self._forget(files)
        return rows

    def _begin(self, pending: PendingWrite) -> None:
        """Makes a write pending, even where no server can be asked, so that rows that took long to
        compute are kept."""
        failure: RaylayError | None = None
        if not pending.asked:
            try:
                seen = self._ask()
            except RaylayError as error:
                failure = error
            else:
                self._check_unknown(pending, seen)
        self._state.next_sequence += pending.rows
        self._state.pending = pending
        self._save(self._state)
        fault_point("staging.pending")
        if failure is not None:
            raise failure

    def _check_repeated(self, key: str, rows: int, checksum: int, plan: str) -> None:
        """Refuses a write that only looks as if it was published before. A restarted query repeats
        its last micro-batch as it was planned, and its rows may differ then: the rows that were
        written down first count."""
        state = self._state
        if not key.startswith(BATCH):
            return
        anew = plan and state.last_plan and plan != state.last_plan
        if int(key.removeprefix(BATCH)) < state.last_batch or anew:
            raise ConfigurationError(
                f"{self.directory} has published the micro-batches up to {state.last_batch}, and "
                f"now gets {key}{', planned anew' if anew else ''}: the query's checkpoint was "
                "removed or restored from a backup, or a power failure lost the end of it; give "
                "the query another staging directory, which publishes the rows since then again; "
                "nothing of this micro-batch was published"
            )
        if (rows, checksum) == (state.last_rows, state.last_checksum):
            return
        if self._run and self._run == state.last_run:
            raise ConfigurationError(
                f"{self.directory} has published {state.last_rows} rows as {key} of this run, and "
                f"now gets {rows} different rows: give each table of a micro-batch a staging "
                "directory of its own, and persist a table that is written twice if its rows "
                "differ each time; nothing more was published"
            )
        log.warning(
            "%s has published %d rows as %s, and now gets %d different rows, which are left "
            "out. That is right if the query was restarted and computed its rows again; another "
            "table of the micro-batch needs a staging directory of its own",
            self.directory,
            state.last_rows,
            key,
            rows,
        )

    def _ask(self) -> int:
        return self._seen(self.publisher) if self._seen is not None else 0

    def _check_unknown(self, pending: PendingWrite, seen: int) -> None:
        """Refuses sequences that a server knows already: it would drop the rows as repeated."""
        first = pending.first_sequence
        if seen >= first:
            raise ConfigurationError(
                f"a server knows sequence {seen} of {self.publisher}, but {self.directory} has "
                f"come to {first - 1}: it was restored to an older state; give another staging "
                "directory, which publishes the rows since then again; nothing was published"
            )
        pending.asked = True

    def _publish(self, pending: PendingWrite, publish: Callable[[StagedRows], None]) -> None:
        missing = _missing(pending.files)
        if missing:
            raise StorageError(
                f"{len(missing)} of {len(pending.files)} files staged as {pending.key} are gone, "
                f"such as {missing[0]}, and some of its {pending.rows} rows may be published: "
                "restore the files, or begin anew with another staging directory, which may "
                "publish some rows twice",
                missing[0],
            )
        if not pending.asked:
            self._check_unknown(pending, self._ask())
            self._save(self._state)
        if pending.rows:
            publish(StagedRows(self.publisher, pending))
        fault_point("staging.published")
        state = self._state
        if pending.key.startswith(BATCH):
            state.last_batch = int(pending.key.removeprefix(BATCH))
            state.last_run, state.last_plan = pending.run, pending.plan
            state.last_rows, state.last_checksum = pending.rows, pending.checksum
        else:
            state.jobs = [*state.jobs, pending.key][-DONE_JOBS_MAX:]
        state.pending = None
        state.leftovers = pending.files
        self._save(state)
        fault_point("staging.done")
        _remove(pending.files)

    def _forget(self, files: list[StagedFile]) -> None:
        _remove([file.path for file in files])
        now_s = time.time()
        for run in self.directory.glob("run-*"):
            try:
                if now_s - run.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(run, ignore_errors=True)
            except FileNotFoundError:
                pass


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not os.path.isfile(path)]


def _remove(paths: list[str]) -> None:
    """Removes staged files, and their directories where these are empty then."""
    for path in paths:
        Path(path).unlink(missing_ok=True)
        try:
            Path(path).parent.rmdir()
        except OSError:
            pass  # another attempt's file is in it, or it is gone


class StagedRows:
    """The rows of a pending write as a client's publish store (`client.PublishStore`): rows that
    the server lacks are sent, rows that it has are dropped. No row can be put into it.

    Invariant: the record of a sequence is the same bytes in every process. Owner: one client.

    Attributes:
        first, last: the sequences of the first and the last row.
    """

    words = b""

    def __init__(self, publisher: str, pending: PendingWrite) -> None:
        self.publisher = publisher
        self._publisher_id = publisher_id(publisher)
        self.take(pending)
        self._builders: dict[tuple[str, str], RecordBuilder] = {}

    def take(self, pending: PendingWrite) -> None:
        """Replaces the pending write by another one, none of whose rows is known durable."""
        self._pending = pending
        self.first = pending.first_sequence
        self.last = pending.first_sequence + pending.rows - 1
        self._gone = SequenceSet()

    @property
    def durable(self) -> int:
        """Returns the number of rows that are known durable."""
        return self._gone.count

    @property
    def full(self) -> bool:
        """Returns true, because no row can be put into the store."""
        return True

    @property
    def messages(self) -> int:
        """Returns the number of rows that are not known durable."""
        return self._pending.rows - self._gone.count

    @property
    def bytes(self) -> int:
        """Returns the size of the files in bytes."""
        return sum(os.stat(path).st_size for path in self._pending.files)

    @property
    def lowest(self) -> int:
        """Returns the lowest sequence that is not known durable; 0: all are durable."""
        left = self._gone.missing(self.first, self.last)
        return left[0][0] if left else 0

    @property
    def highest(self) -> int:
        """Returns the sequence of the last row."""
        return self.last

    def put(self, sequence: int, record: Any) -> None:
        """Refuses the record.

        Raises:
            PublishStoreFull: always.
        """
        raise PublishStoreFull("a staged write takes no further rows")

    def flush(self) -> None:
        """Does nothing, because the rows are on disk."""

    def advance(self, highest: int) -> None:
        """Nothing to do: the sequences are given."""

    def acknowledge(self, upto: int) -> None:
        self.drop([(self.first, upto)])

    def drop(self, ranges: Iterable[Range]) -> None:
        for first, last in ranges:
            first, last = max(first, self.first), min(last, self.last)
            if first <= last:
                self._gone.add(first, last)

    def replay(self, first: int = 0) -> Iterator[tuple[int, Any]]:
        sequence = self.first
        for path in self._pending.files:
            with pa.memory_map(path) as source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    following = sequence + batch.num_rows
                    if following > first and not self._gone.covers(sequence, following - 1):
                        yield from self._records(batch, sequence, first)
                    sequence = following

    def _records(self, batch: pa.RecordBatch, sequence: int, first: int) -> Iterator[Any]:
        origin_time_us = self._pending.origin_time_us
        gone = self._gone
        columns = [batch[name].to_pylist() for name in STAGED.names]
        for at, row in enumerate(zip(*columns, strict=True), sequence):
            if at < first or at in gone:
                continue
            topic, message_type, body, key, correlation, expiration_s = row
            builder = self._builders.get((topic, message_type))
            if builder is None:
                builder = RecordBuilder(self._publisher_id, topic, message_type)
                self._builders[topic, message_type] = builder
            yield (
                at,
                builder.build(
                    at,
                    body,
                    origin_time_us,
                    key=key or b"",
                    correlation=correlation or b"",
                    expiration_s=expiration_s or 0,
                ),
            )
            fault_point("staging.record")

    def close(self) -> None:
        """Nothing to give back."""
