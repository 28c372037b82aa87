"""Rows on their way into a fabric: staged with their sequences before the first is published.

A staging directory is one publisher. It holds

    state.json            publisher, next sequence, what was published, and what is pending
    run-<id>/             the rows that one write's tasks staged, a file a task attempt
      part-<n>-<id>.arrow
      part-<n>-<id>.dead  the rows that the task refused

A task only writes a file. When all tasks of a write are done the driver names, in one durable
replacement of state.json, which files are published under which sequences: from then on that write
is *pending*, and the next driver publishes exactly these rows, however often. Instances journal
each (publisher, sequence) once, so rows that were sent before a crash are not journaled again. The
directory remembers each published write by its key, and a second write of a known key does nothing.

Rows that the tasks or an instance refuse become dead letters before the write counts as published.
In a table, a file that is named after the write holds them: a second attempt replaces it. For a
topic they are staged in turn, as the rows of a second publisher.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import (
    CommandFailed,
    ConfigurationError,
    RaylayError,
    StorageError,
)
from raylay.services.pipeline.dead_letters import (
    SCHEMA,
    DeadLetter,
    DeadLetterTarget,
    append_batches,
    batches_of,
    letters_batch,
    letters_of,
)
from raylay.services.pipeline.publishing.staged_rows import (
    STAGED,
    PendingWrite,
    StagedRows,
    read_batches,
)
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
SAVE = "save-"
"""Prefix of the key of a write without a job, before a random text: run again it is another
write."""
LETTERS_SUFFIX = "-dead-letters"
"""Suffix of the publisher that publishes dead letters to a topic."""
BODY_SHOWN_BYTES = 80
ROW_REASONS = frozenset(
    (
        "bad_filter",
        "bad_key",
        "bad_message",
        "bad_message_type",
        "bad_topic",
        "no_sow",
        "not_supported",
        "reserved_topic",
        "too_large",
        "too_many",
    )
)
"""Reasons of an instance that lie in a row, and not in the instance's state or permissions."""
DONE_JOBS_MAX = 10_000
FILE_NAME_MAX = 200
ABANDONED_S = 24 * 3600
"""Age at which the files of a write that was neither committed nor aborted are removed."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that one task staged.

    Attributes:
        topics: (topic, message type) of its rows, if `stage` recorded them.
        checksum: the checksum of its rows (`rows_checksum`), if `stage` recorded it.
        dead_file: the file of the rows that the task refused, as dead letters; empty: none.
        dead_rows: their number.
    """

    path: str
    partition: int
    rows: int
    topics: frozenset[tuple[str, str]] = frozenset()
    checksum: int = 0
    dead_file: str = ""
    dead_rows: int = 0

    @property
    def paths(self) -> list[str]:
        """Returns the files that exist."""
        return [self.path, self.dead_file] if self.dead_file else [self.path]


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
    letters: PendingWrite | None = None
    """Dead letters of the pending write that go to a topic, under sequences of their own."""
    next_letter: int = 1
    refused: int = 0
    """Number of rows with sequences that were refused, and are dead letters."""


class ArrowFile:
    """A file of rows in Arrow's format, which appears under its name when it is whole and on disk.

    Lifecycle: a context; an error inside it leaves nothing. Owner: one task.

    Args:
        run: the directory, which is made with the first row.
        optional: whether to make no file where there are no rows.

    Attributes:
        path: the file; empty as long as there is none.
        rows: number of rows in it.
    """

    def __init__(self, run: Path, name: str, schema: pa.Schema, *, optional: bool = False) -> None:
        self._run = run
        self._aside, self._final = run / f".{name}", run / name
        self._schema = schema
        self._file: Any = None
        self._writer: Any = None
        self._optional = optional
        self.path = ""
        self.rows = 0

    def __enter__(self) -> ArrowFile:
        if not self._optional:
            self._open()
        return self

    def _open(self) -> None:
        try:
            make_directory(self._run)
            make_file(self._aside)
            self._file = pa.OSFile(str(self._aside), "wb")
            self._writer = pa.ipc.new_file(self._file, self._schema)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            StorageError: the directory cannot be written.
        """
        if self._writer is None:
            self._open()
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            raise self._failure(error) from error
        self.rows += batch.num_rows

    def __exit__(self, kind: object, *_: object) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
            self._file.close()
            if kind is None:
                sync_file(self._aside)
                os.replace(self._aside, self._final)
                sync_directory(self._run)
                self.path = str(self._final)
        except OSError as error:
            if kind is None:
                raise self._failure(error) from error
        finally:
            self._aside.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> StorageError:
        with contextlib.suppress(OSError):
            self._aside.unlink(missing_ok=True)
        return StorageError(f"{self._run} cannot be written: {error}", str(self._run))


def stage(
    run: Path,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema = STAGED,
    letters: list[DeadLetter] | None = None,
) -> StagedFile:
    """Writes one task attempt's rows durably, with schema `STAGED` or one that has more columns.

    Args:
        letters: the list to which `batches` adds the rows that it refuses. They are written to a
            file of their own, and the list is emptied.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = f"part-{partition:06d}-{os.urandom(6).hex()}"
    checksum = 0
    topics: set[tuple[str, str]] = set()
    with (
        ArrowFile(run, f"{name}.arrow", schema) as file,
        ArrowFile(run, f"{name}.dead", SCHEMA, optional=True) as refused,
    ):
        for batch in batches:
            file.write(batch)
            topics.update(_topics(batch))
            checksum = (checksum + rows_checksum(batch)) & _MASK
            if letters:
                refused.write(letters_batch(letters))
                letters.clear()
    return StagedFile(
        file.path, partition, file.rows, frozenset(topics), checksum, refused.path, refused.rows
    )


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
    for at, name in enumerate(("key", "correlation_id", "expiration_s", "command"), 1):
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
        dead_letters: where rows go that the tasks or an instance refuse; None: they are an error.
        any_reason: whether rows also go there that are refused for no reason of theirs, such as a
            missing permission.
        publish_letters: publishes the dead letters of a topic, as `publish` of `commit` does rows.

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
        dead_letters: DeadLetterTarget | None = None,
        any_reason: bool = False,
        publish_letters: Callable[[StagedRows], None] | None = None,
    ) -> None:
        self.directory = directory
        self._dead_letters = dead_letters
        self._any_reason = any_reason
        self._publish_letters = publish_letters
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
            writes = {name: values.pop(name) for name in ("pending", "letters")}
            opened: dict[str, Any] = {
                name: PendingWrite(**each) if each else None for name, each in writes.items()
            }
            state = _State(**values, **opened)
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
        pending, letters = self._state.pending, self._state.letters
        return (pending is not None and path in [*pending.files, *pending.dead_files]) or (
            letters is not None and path in letters.files
        )

    def finish(self, publish: Callable[[StagedRows], None]) -> int:
        """Publishes the pending write. Returns the number of published rows; 0 where none is
        pending."""
        pending = self._state.pending
        return 0 if pending is None else self._publish(pending, publish)

    def commit(
        self,
        key: str,
        files: list[StagedFile],
        publish: Callable[[StagedRows], None],
        check: Callable[[set[tuple[str, str]]], None] = lambda topics: None,
        plan: str = "",
    ) -> int:
        """Publishes a write once, after the pending one. Returns the number of published rows; 0
        where it was published before.

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
        published = self._publish(before, publish) if before is not None else 0
        files = sorted(files, key=lambda each: each.partition)
        rows = sum(each.rows for each in files)
        checksum = sum(each.checksum for each in files) & _MASK
        if self.is_done(key):
            self._check_repeated(key, rows, checksum, plan)
            self._forget(files)
            return published if before is not None and before.key == key else 0
        dead_files = [each.dead_file for each in files if each.dead_rows]
        missing = _missing([*(each.path for each in files if each.rows), *dead_files])
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
            dead_files=dead_files,
            dead_rows=sum(each.dead_rows for each in files),
        )
        self._begin(pending)
        published = self._publish(pending, publish)
        self._forget(files)
        return published

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

    def _publish(self, pending: PendingWrite, publish: Callable[[StagedRows], None]) -> int:
        state = self._state
        target = self._dead_letters
        if state.letters is not None and target is not None and not target.topic:
            # The topic did not take them, and now they go to a directory.
            state.letters = None
        if state.letters is None:
            missing = _missing([*pending.files, *pending.dead_files])
            if missing:
                raise StorageError(
                    f"{len(missing)} of {len(pending.files) + len(pending.dead_files)} files "
                    f"staged as {pending.key} are gone, such as {missing[0]}, and some of its "
                    f"{pending.rows} rows may be published: restore the files, or begin anew with "
                    "another staging directory, which may publish some rows twice",
                    missing[0],
                )
            if not pending.asked:
                self._check_unknown(pending, self._ask())
                self._save(self._state)
            rows = StagedRows(self.publisher, pending)
            if pending.rows:
                publish(rows)
            self._check_refused(rows)
            fault_point("staging.refused")
            pending.refused = len(rows.refused)
            self._keep_letters(pending, rows)
        if state.letters is not None:
            self._send_letters(state.letters)
        fault_point("staging.published")
        if pending.key.startswith(BATCH):
            state.last_batch = int(pending.key.removeprefix(BATCH))
            state.last_run, state.last_plan = pending.run, pending.plan
            state.last_rows, state.last_checksum = pending.rows, pending.checksum
        else:
            state.jobs = [*state.jobs, pending.key][-DONE_JOBS_MAX:]
        state.leftovers = [*pending.files, *pending.dead_files]
        if state.letters is not None:
            state.leftovers += state.letters.files
            state.next_letter += state.letters.rows
        state.refused += pending.refused
        state.pending = state.letters = None
        self._save(state)
        fault_point("staging.done")
        _remove(state.leftovers)
        return pending.rows - pending.refused

    def _check_refused(self, rows: StagedRows) -> None:
        """Raises CommandFailed where rows were refused that are no dead letters."""
        refused = rows.refused
        if self._dead_letters is not None:
            if self._any_reason:
                return
            refused = [each for each in refused if each.reason not in ROW_REASONS]
        if not refused:
            return
        worst = min(refused, key=lambda each: each.sequence)
        pending = rows.pending
        letter = next(rows.letters(str(self.directory), [worst]))
        publish = f"raylay pipeline publish {self.directory} --server HOST:PORT"
        letters = f"`{publish} --dead-letters DIRECTORY`, which keeps refused rows there"
        if pending.key.startswith(SAVE):
            way_out = (
                "this write has no job, and run again it would publish them again: settle it with "
                f"{letters}; or mend the reason, and `{publish}`"
            )
        elif self._dead_letters is not None:
            way_out = (
                "nothing is published twice: that is no fault of a row: mend it, and run again; or "
                f"{letters}"
            )
        else:
            way_out = (
                "nothing is published twice: set the option dead_letters (a directory, or "
                f"topic:NAME) and run again; or {letters}; or let the topic take the row, and run "
                "again"
            )
        more = f"; so were {len(refused) - 1} more" if refused[1:] else ""
        raise CommandFailed(
            "publish",
            worst.reason,
            f"row {worst.sequence - pending.first_sequence + 1} of {pending.rows} of {pending.key} "
            f"on {letter.topic} was refused: {letter.reason}; its body: "
            f"{(letter.body or letter.key or b'')[:BODY_SHOWN_BYTES]!r}{more}; the other rows are "
            f"published, and {way_out}",
        )

    def _keep_letters(self, pending: PendingWrite, rows: StagedRows) -> None:
        """Adds the rows that tasks and instances refused to the table of dead letters, or makes
        them pending for their topic."""
        target = self._dead_letters
        if not rows.refused and not pending.dead_files:
            return
        if target is None:
            raise ConfigurationError(
                f"the tasks refused rows of {pending.key}, and the option dead_letters is gone: "
                "give it again; the other rows are published, and nothing is published twice"
            )
        found = chain(
            _staged_letters(pending), batches_of(rows.letters(str(self.directory), rows.refused))
        )
        name = f"{self.publisher}-{pending.key}"
        if len(quote(name)) > FILE_NAME_MAX:
            name = f"{self.publisher}-{checksum64(pending.key.encode()):016x}"
        log.warning(
            "%d of %d rows of %s are refused, %d of them by an instance%s: they go to the dead "
            "letters in %s",
            pending.dead_rows + len(rows.refused),
            pending.dead_rows + pending.rows,
            pending.key,
            len(rows.refused),
            f" ({rows.refused[0].text})" if rows.refused else "",
            target.directory or f"the topic {target.topic}",
        )
        if target.directory is not None:
            append_batches(target.directory, name, found)
            return
        with ArrowFile(
            self.directory / f"run-{os.urandom(6).hex()}", "part-letters.arrow", STAGED
        ) as file:
            for batch in found:
                file.write(_letter_rows(batch, target.topic))
        # Of a directory from a backup, the servers know later ones.
        seen = self._seen(self.publisher + LETTERS_SUFFIX) if self._seen is not None else 0
        self._state.next_letter = max(self._state.next_letter, seen + 1)
        self._state.letters = PendingWrite(
            pending.key,
            self._state.next_letter,
            file.rows,
            pending.origin_time_us,
            [file.path],
        )
        self._save(self._state)
        fault_point("staging.letters")

    def _send_letters(self, letters: PendingWrite) -> None:
        assert self._publish_letters is not None
        missing = _missing(letters.files)
        if missing:
            raise StorageError(f"the dead letters in {missing[0]} are gone", missing[0])
        rows = StagedRows(self.publisher + LETTERS_SUFFIX, letters)
        self._publish_letters(rows)
        if rows.refused:
            worst = rows.refused[0]
            raise CommandFailed(
                "publish",
                worst.reason,
                f"{len(rows.refused)} dead letters of {letters.key} were refused: {worst.text}; "
                "the rows are published, and nothing is published twice: let the topic take the "
                "dead letters, and run again, or set dead_letters to a directory",
            )

    def _forget(self, files: list[StagedFile]) -> None:
        _remove([path for file in files for path in file.paths])
        now_s = time.time()
        for run in self.directory.glob("run-*"):
            try:
                if now_s - run.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(run, ignore_errors=True)
            except FileNotFoundError:
                pass


def _staged_letters(pending: PendingWrite) -> Iterator[pa.RecordBatch]:
    """Yields the rows that tasks refused."""
    at = SCHEMA.get_field_index("write")
    for path in pending.dead_files:
        for batch in read_batches(path):
            keys = pa.repeat(pa.scalar(pending.key), batch.num_rows)
            yield batch.set_column(at, SCHEMA.field(at), keys)


def _letter_rows(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Returns dead letters as messages of a topic."""
    bodies = [letter.to_json() for letter in letters_of(batch)]
    given = {"topic": topic, "message_type": "json"}
    columns = [
        pa.array(bodies, pa.binary())
        if each.name == "body"
        else pa.repeat(pa.scalar(given.get(each.name), each.type), len(bodies))
        for each in STAGED
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STAGED)


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
