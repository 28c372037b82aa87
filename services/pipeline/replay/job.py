"""The job `replay`: publishes messages of a lake or a journal to a topic of a running fabric.

STAGING/<job>/replay.json       what is replayed, and in which chunks: written once
STAGING/<job>/state.json …      the publisher and what is published
(services/pipeline/publishing/staging.py)

One publisher replays one instance's log in its order. The selected messages are counted first and
cut into chunks by transaction id. Spark stages a chunk while the one before it is published. Before
the first message of a chunk is published, its rows have their sequences on disk. A replay that is
killed continues under the same job name with the rows of the pending chunk that the servers do not
have.
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
from raylay.services.client.events import PublishFailed
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.publishing.sink import WriteOptions, check_target, publish_rows
from raylay.services.pipeline.publishing.staged_rows import STAGED, StagedRows
from raylay.services.pipeline.publishing.staging import StagedFile, StagingDirectory
from raylay.services.pipeline.replay.pacing import Schedule, ready
from raylay.services.pipeline.replay.store import PacedRows
from raylay.storage.files import fault_point, write_durably

PLAN_FILE = "replay.json"
PLAN_VERSION = 1
TIME = "time_us"
REPLAYED = pa.schema([*STAGED, pa.field(TIME, pa.int64())])
"""Columns of a chunk's rows: those of a staged row, and the time of the message."""
CHUNK_ROWS_DEFAULT = 100_000
PROGRESS_S = 2.0
SLEEP_S_MAX = 0.5
HANDED_OVER_MAX = 5_000
"""Most rows that are given to the client between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A stretch of the log: transaction ids, inclusive, and the number of their incarnation in the
    plan."""

    incarnation: int
    first_txid: int
    last_txid: int
    rows: int


@dataclass(slots=True)
class ReplayPlan:
    """The plan of a replay job. Made once.

    Attributes:
        what: the source and the selection, as the options give them.
        instance: the instance whose log is replayed.
        skipped: selected rows that are no publishes (deletes, queue acknowledgments, …).
        topics: [topic, message type] of the messages that will be published.
        left_out: number of messages of the selected times and topics that the filter left out.
        left_out_null: number of the messages left out for which the filter was null, because a
            field is missing.
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
        return sum(chunk.rows for chunk in self.chunks)

    @classmethod
    def load(cls, path: Path) -> ReplayPlan | None:
        """Returns the plan in a file; None where there is no file.

        Raises:
            StorageError: the file is damaged.
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
        """Writes the plan durably."""
        values = {"version": PLAN_VERSION, **asdict(self)}
        write_durably(path, json.dumps(values).encode() + b"\n")


class ChunkSource(Protocol):
    """The source of a replay's messages (source.py)."""

    what: dict[str, Any]

    def plan(self, chunk_rows: int) -> ReplayPlan:
        """Chooses an instance, counts its messages and cuts them into chunks."""

    def open(self, plan: ReplayPlan) -> None:
        """Takes the plan of an earlier run."""

    def stage(self, chunk: LogChunk, run: Path) -> StagedFile:
        """Writes a chunk's rows, of schema `REPLAYED`, in the order of the log."""


@dataclass(slots=True)
class ReplaySummary:
    """The result of a run.

    Attributes:
        published, published_before: messages that this run published, and that earlier runs of the
            job did.
        refused: messages of this run that went to the dead letters.
        skipped: selected rows that are no publishes.
        left_out, left_out_null: numbers of messages, as in the plan.
        behind_max_ms, behind_mean_ms: time from a message's due time until it was given to the
            client.
    """

    job: str
    staging: str
    instance: str = ""
    messages: int = 0
    published: int = 0
    published_before: int = 0
    refused: int = 0
    skipped: int = 0
    left_out: int = 0
    left_out_null: int = 0
    seconds: float = 0.0
    behind_max_ms: float = 0.0
    behind_mean_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
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
    """Publishes the messages of a source, or those that earlier runs of the job left.

    Args:
        target: the fabric or the servers to publish to.
        staging: a directory that the driver and the workers reach; each job has a folder in it.
        speed: 1 is the original speed; 0: as fast as possible.
        gap_max_us: longer pauses are shortened to this; 0: no limit.
        chunk_rows: about how many messages are staged at once.

    Raises:
        ConfigurationError: the job replays something else, the source holds no selected message, or
            a topic is journaled nowhere.
        StorageLocked: the job runs elsewhere.
        RaylayError: no server answers, or a publish is refused. The job continues when it is run
            again.
    """
    if not job or "/" in job or job.startswith("."):
        raise ConfigurationError(
            f"{job!r} is not allowed as the name of a job: use letters and digits"
        )
    check_target(target)
    directory = (staging / job).absolute()
    known = ReplayPlan.load(directory / PLAN_FILE)
    if known is not None and known.what != source.what:
        names = known.what.keys() | source.what.keys()
        differing = sorted(n for n in names if known.what.get(n) != source.what.get(n))
        raise ConfigurationError(
            f"job {job} was begun with another value of {', '.join(differing)}: give the options "
            "that it was begun with, or another --job"
        )
    if known is not None:
        source.open(known)
    plan = known or source.plan(chunk_rows)
    letters = target.letters_target()
    topics = [(topic, message_type) for topic, message_type in plan.topics]
    if letters is not None and letters.topic:
        topics.append((letters.topic, "json"))
    check_target(target, topics)
    with StagingDirectory(
        directory,
        f"replay-{job}",
        dead_letters=letters,
        publish_letters=lambda rows: publish_rows(target, rows),
    ) as opened:
        if known is None:
            if (directory / PLAN_FILE).exists():
                raise ConfigurationError(
                    f"job {job} was begun by another process meanwhile: run it again"
                )
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
    _rows: StagedRows | None = None
    _client: SyncClient | None = None
    _due_began_us: int = 0
    """Time, on the clock of `_now_us`, at which a message with the due time 0 is due."""
    _published: int = 0
    _refused: int = 0
    _before: int = 0
    _behind: _Lateness = field(default_factory=_Lateness)
    _told_s: float = 0.0
    _began_s: float = 0.0

    def run(self, job: str) -> ReplaySummary:
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
            self._refused,
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
                    f"began, and hold {file.rows} now: segments or files were removed; begin a "
                    "new job",
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
        self._rows = rows
        if self._store is None or self._client is None:
            self._store = PacedRows(rows.publisher, pending)
            self._client = SyncClient(
                rows.publisher,
                **self.target.client_options(),
                publish_store=self._store,
                connect_wait_s=self.target.connect_wait_s,
                on_publish_failed=self._refuse,
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
        self._published += pending.rows - len(rows.refused)
        self._refused += len(rows.refused)
        self._tell()

    def _refuse(self, failed: PublishFailed) -> None:
        assert self._rows is not None
        self._rows.refuse(failed.sequence, failed.error.reason, str(failed.error))

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
                topic, message_type, body, key, correlation, expiration_s, _ = next(messages)
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
    """Yields the rows after the first `skip`, as tuples of the columns of `STAGED`."""
    for batch in _batches(files):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        rest = batch.slice(skip)
        skip = 0
        yield from zip(*(rest[name].to_pylist() for name in STAGED.names), strict=True)
