"""The job `replay`: messages of a lake or a journal into a topic of a running fabric.

    STAGING/<job>/replay.json       what is replayed, and in which chunks: written once
    STAGING/<job>/state.json …      the publisher and what is published
    (services/pipeline/publishing/staging.py)

One instance's log is replayed, in its order, by one publisher. What is chosen is counted first and
cut into chunks by transaction id. A chunk is staged by Spark while the one before it is published;
before its first message is published its rows have their sequences on disk. A replay that is
killed goes on, under the same job name, with what the servers do not have of the chunk that was
pending.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raylay.services.client import SyncClient
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.publishing.sink import WriteOptions, check_target
from raylay.services.pipeline.publishing.staging import (
    STAGED,
    StagedFile,
    StagedRows,
    StagingDirectory,
)
from raylay.services.pipeline.replay.pacing import Schedule, ready
from raylay.services.pipeline.replay.store import PacedRows
from raylay.storage.files import fault_point, write_durably

PLAN_FILE = "replay.json"
PLAN_VERSION = 1
TIME = "time_us"
REPLAYED = pa.schema([*STAGED, pa.field(TIME, pa.int64())])
"""Columns of a chunk's rows: what is published, and when it was."""
CHUNK_ROWS_DEFAULT = 100_000
PROGRESS_S = 2.0
SLEEP_S_MAX = 0.5
HANDED_OVER_MAX = 5_000
"""Rows given to the client between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A stretch of the log: transaction ids, inclusive, of one incarnation's number."""

    incarnation: int
    first_txid: int
    last_txid: int
    rows: int


@dataclass(slots=True)
class ReplayPlan:
    """The plan of a replay job. Made once.

    Attributes:
        what: source and selection, as the options say it.
        instance: whose log.
        skipped: rows that were chosen and are no publishes (deletes, queue acknowledgments, …).
        topics: [topic, message type] of what will be published.
        left_out: messages of the times and topics that the filter left out; of `left_out_null` it
            was neither true nor false: a field that it asks for is not there.
    """

    what: dict[str, Any]
    instance: str
    incarnations: list[str]
    chunks: list[LogChunk]
    skipped: int = 0
    topics: list[list[str]] = field(default_factory=list)
    left_out: int = 0
    left_out_null: int = 0

    @property
    def rows(self) -> int:
        """Messages of all chunks."""
        return sum(chunk.rows for chunk in self.chunks)

    @classmethod
    def load(cls, path: Path) -> ReplayPlan | None:
        """The plan in a file; None where there is none.

        Raises:
            StorageError: it is damaged.
        """
        try:
            values = json.loads(path.read_bytes())
            if values.pop("version") != PLAN_VERSION:
                raise ValueError("another version")
            chunks = [LogChunk(**each) for each in values.pop("chunks")]
            return cls(chunks=chunks, **values)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{path} is damaged: {error}", str(path)) from None

    def save(self, path: Path) -> None:
        """Writes it durably."""
        values = {"version": PLAN_VERSION, **asdict(self)}
        write_durably(path, json.dumps(values).encode() + b"\n")


class ChunkSource(Protocol):
    """The source of the messages (source.py)."""

    what: dict[str, Any]

    def plan(self, chunk_rows: int) -> ReplayPlan:
        """Chooses an instance, counts and cuts."""

    def open(self, plan: ReplayPlan) -> None:
        """Takes an earlier run's plan in place of making one."""

    def stage(self, chunk: LogChunk, run: Path) -> StagedFile:
        """Writes a chunk's rows, of schema `REPLAYED`, in the order of the log."""


@dataclass(slots=True)
class ReplaySummary:
    """The result of a run.

    Attributes:
        published: by this run; `published_before`: by earlier ones of the job.
        skipped: chosen, and no publishes.
        left_out, left_out_null: as in the plan.
        behind_max_ms, behind_mean_ms: how long after its time a message was handed to the client.
    """

    job: str
    staging: str
    instance: str = ""
    messages: int = 0
    published: int = 0
    published_before: int = 0
    skipped: int = 0
    left_out: int = 0
    left_out_null: int = 0
    seconds: float = 0.0
    behind_max_ms: float = 0.0
    behind_mean_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the summary for the command."""
        values = asdict(self)
        values["rate_per_s"] = round(self.published / self.seconds) if self.seconds else 0
        for name in ("seconds", "behind_max_ms", "behind_mean_ms"):
            values[name] = round(values[name], 3)
        return values


@dataclass(slots=True)
class _Lateness:
    """The delay of messages behind their time."""

    max_us: int = 0
    sum_us: int = 0
    count: int = 0

    def add(self, late_us: Any) -> None:
        self.max_us = max(self.max_us, int(late_us.max()))
        self.sum_us += int(late_us.sum())
        self.count += len(late_us)


def replay(
    source: ChunkSource,
    target: WriteOptions,
    staging: Path,
    job: str,
    *,
    speed: float = 1.0,
    gap_max_us: int = 0,
    chunk_rows: int = CHUNK_ROWS_DEFAULT,
    progress: Callable[[str], None] = lambda line: None,
) -> ReplaySummary:
    """Publishes what a source holds, or what an earlier run of the job left of it.

    Args:
        target: where to.
        staging: a directory that the driver and the workers reach; each job has a folder in it.
        speed: 1 is the original speed; 0: as fast as it goes.
        gap_max_us: a longer pause is taken to be as long; 0: no limit.
        chunk_rows: about how many messages are staged at once.

    Raises:
        ConfigurationError: the job replays something else, the source holds nothing, or a topic
            would be journaled nowhere.
        StorageLocked: the job runs elsewhere.
        RaylayError: no server answers, or a publish is refused. The job goes on when run again.
    """
    if not job or "/" in job or job.startswith("."):
        raise ConfigurationError(f"{job!r} is no name of a job: give letters and digits")
    check_target(target)
    directory = (staging / job).absolute()
    known = ReplayPlan.load(directory / PLAN_FILE)
    if known is not None and known.what != source.what:
        names = known.what.keys() | source.what.keys()
        differing = sorted(n for n in names if known.what.get(n) != source.what.get(n))
        raise ConfigurationError(
            f"job {job} replays something else, {', '.join(differing)} differ: give the options "
            "that it was begun with, or another --job"
        )
    if known is not None:
        source.open(known)
    plan = known or source.plan(chunk_rows)
    check_target(target, ((topic, message_type) for topic, message_type in plan.topics))
    with StagingDirectory(directory, f"replay-{job}") as opened:
        if known is None:
            if (directory / PLAN_FILE).exists():
                raise ConfigurationError(f"job {job} was begun elsewhere meanwhile: run it again")
            plan.save(directory / PLAN_FILE)
            fault_point("replay.planned")
        run = _ReplayRun(source, target, opened, plan, Schedule(speed, gap_max_us), progress)
        return run.run(job)


@dataclass(slots=True)
class _ReplayRun:
    """One run. Owner: the thread that calls `run`, once."""

    source: ChunkSource
    target: WriteOptions
    staging: StagingDirectory
    plan: ReplayPlan
    schedule: Schedule
    progress: Callable[[str], None]
    _store: PacedRows | None = None
    _client: SyncClient | None = None
    _due_began_us: int = 0
    """Time, on the clock of `_now_us`, when what is due at 0 was due."""
    _published: int = 0
    _before: int = 0
    _behind: _Lateness = field(default_factory=_Lateness)
    _told_s: float = 0.0
    _began_s: float = 0.0

    def run(self, job: str) -> ReplaySummary:
        """Publishes all chunks that are not done."""
        for each in self.staging.directory.glob("run-*"):
            if not any(map(self.staging.holds, map(str, each.iterdir()))):
                shutil.rmtree(each, ignore_errors=True)
        keys = [f"batch-{number}" for number in range(len(self.plan.chunks))]
        done = sum(map(self.staging.is_done, keys))
        self._before = sum(chunk.rows for chunk in self.plan.chunks[:done])
        self._began_s = self._told_s = time.monotonic()
        try:
            with ThreadPoolExecutor(1) as ahead:
                self._chunks(keys, done, ahead)
        finally:
            if self._client is not None:
                self._client.close(flush=False)
        seconds = time.monotonic() - self._began_s
        behind = self._behind
        return ReplaySummary(
            job,
            str(self.staging.directory.parent),
            self.plan.instance,
            self.plan.rows,
            self._published,
            self._before,
            self.plan.skipped,
            self.plan.left_out,
            self.plan.left_out_null,
            seconds,
            behind.max_us / 1000,
            behind.sum_us / 1000 / behind.count if behind.count else 0.0,
        )

    def _chunks(self, keys: list[str], done: int, ahead: ThreadPoolExecutor) -> None:
        chunks = self.plan.chunks
        pending = self.staging.pending

        def staged(number: int) -> Future[StagedFile] | None:
            if number >= len(chunks):
                return None
            return ahead.submit(
                self.source.stage, chunks[number], self.staging.directory / f"run-{number}"
            )

        number = done
        following: Future[StagedFile] | None
        if pending is not None:
            following = staged(number + 1)
            self.staging.finish(self._publish)
            number += 1
        else:
            following = staged(number)
        while following is not None:
            file = following.result()
            if file.rows != chunks[number].rows:
                raise StorageError(
                    f"transaction ids {chunks[number].first_txid} to {chunks[number].last_txid} "
                    f"of {self.plan.instance} held {chunks[number].rows} messages when the job "
                    f"began, now {file.rows}: segments or files were removed; begin a new job",
                    file.path,
                )
            following = staged(number + 1)
            self.staging.commit(keys[number], [file], self._publish)
            number += 1

    # -- publishing --------------------------------------------------------------------------
    def _publish(self, rows: StagedRows) -> None:
        """Publishes a pending chunk, each message when it is due."""
        pending = self.staging.pending
        assert pending is not None
        if self._store is None or self._client is None:
            self._store = PacedRows(rows.publisher, pending)
            self._client = SyncClient(
                rows.publisher,
                **self.target.client_options(),
                publish_store=self._store,
                connect_wait_s=self.target.connect_wait_s,
            )
            self._store.check()
            known = self._store.known_rows or 0
            self._before += known
            self._published -= known
            first = True
        else:
            self._store.take(pending)
            first = False
        # Rows up to here are given out already: the client sends them by itself.
        at = max(0, self._store.highest - pending.first_sequence + 1)
        due = self.schedule.take(_times(pending.files))
        if first:
            self._due_began_us = _now_us() - int(due[min(at, len(due) - 1)])
        with closing(_messages(pending.files, at)) as messages:
            self._send(due + self._due_began_us, at, messages)
        self._client.flush()
        self._published += pending.rows
        self._tell()

    def _send(self, due_us: Any, at: int, messages: Iterator[tuple[Any, ...]]) -> None:
        assert self._client is not None
        publish = self._client.publish
        count = len(due_us)
        while at < count:
            now_us = _now_us()
            wanted = min(ready(due_us, at, now_us), HANDED_OVER_MAX)
            if not wanted:
                time.sleep(min((int(due_us[at]) - now_us) / 1e6, SLEEP_S_MAX))
                continue
            if self.schedule.paced:
                self._behind.add(now_us - due_us[at : at + wanted])
            for _ in range(wanted):
                topic, message_type, body, key, correlation, expiration_s = next(messages)
                publish(
                    topic,
                    body,
                    message_type,
                    expiration_s=expiration_s or 0,
                    key=key or b"",
                    correlation=correlation or b"",
                )
                fault_point("replay.publish")
            at += wanted
            if time.monotonic() - self._told_s >= PROGRESS_S:
                self._tell(at)

    def _tell(self, inside: int = 0) -> None:
        now_s = time.monotonic()
        published = self._published + inside
        rate = published / max(now_s - self._began_s, 1e-3)
        self._told_s = now_s
        self.progress(
            f"{self.plan.instance}: {published + self._before:,} of {self.plan.rows:,} published, "
            f"{rate:,.0f}/s, at most {self._behind.max_us / 1000:,.0f} ms behind"
        )


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _batches(files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _times(files: list[str]) -> Any:
    found = [batch[TIME].to_numpy() for batch in _batches(files)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _messages(files: list[str], skip: int) -> Generator[tuple[Any, ...]]:
    """The rows behind the first `skip`, as tuples of the columns of `STAGED`."""
    for batch in _batches(files):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        rest = batch.slice(skip)
        skip = 0
        yield from zip(*(rest[name].to_pylist() for name in STAGED.names), strict=True)
