"""The job `audit`: checks, over all instances of a fabric, that each message is where it should be,
once and in order.

Spark reads every journal once, one task for each stretch, and a task returns only a summary of its
stretch (parts.py): sets of sequences, and checksums of contents. The summaries are joined and
judged here (judgement.py). Two narrow passes follow where they are needed: one that finds since
when unexplained messages have been missing, and one that compares contents where the checksums of a
block of sequences differ between instances.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, CorruptRecord, RaylayError, StorageError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag
from raylay.services.messages.records import Kind as RunKind
from raylay.services.pipeline.audit.ages import (
    Age,
    AgeQuestion,
    ages_of,
    clocks,
    merged,
    unanswered,
)
from raylay.services.pipeline.audit.judgement import (
    MAX_OWED_S_DEFAULT,
    Audit,
    Expectation,
    conflicting,
    judge,
    settle,
)
from raylay.services.pipeline.audit.origins import FabricKnowledge, origins_of
from raylay.services.pipeline.audit.parts import (
    RunProperties,
    StretchParts,
    content_numbers,
    joined,
    logs_of,
    open_blocks,
    parts_of,
)
from raylay.services.pipeline.audit.routes import expected_by, expected_everywhere
from raylay.services.pipeline.audit.sow import (
    SowSource,
    compare_sow,
    entries_of,
    sow_sources,
    sums_of,
)
from raylay.services.pipeline.audit.tasks import (
    Piece,
    Progress,
    blocks_of,
    collected,
    conflicts_among,
    digests_in,
    for_each,
)
from raylay.services.pipeline.journals import (
    PARTITION_BYTES_DEFAULT,
    JournalPlace,
    JournalStretch,
    OnCorrupt,
    last_txid,
    plan,
    position,
    record_of,
)
from raylay.services.pipeline.tables.columns import Names, Rows
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.pipeline.tables.stretch_rows import StretchRows, TaskFailure
from raylay.services.replication.unavailable import decode_unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Audit",
    "audit",
    "audit_source",
    "expected_by",
    "expected_everywhere",
    "write_page",
]

SETTLE_S_DEFAULT = 10.0
NOTHING = FabricKnowledge()


def audit(
    spark: SparkSession,
    places: list[JournalPlace],
    why: Expectation,
    *,
    known: FabricKnowledge = NOTHING,
    sow: Sequence[SowSource] = (),
    settle_s: float = SETTLE_S_DEFAULT,
    max_owed_s: float = MAX_OWED_S_DEFAULT,
    on_corrupt: OnCorrupt = "stop",
    progress: Progress = lambda line: None,
    partition_bytes: int = PARTITION_BYTES_DEFAULT,
) -> Audit:
    """Judges the journals as they are now.

    Args:
        why: tells where a message should be; `expected_by(settings)` derives it from the
            configuration.
        sow: the SOW topics of the instances.
        known: tells which instance a former incarnation belonged to.
        settle_s: most time that a message may be on its way.
        max_owed_s: most time that a link may owe a message before the verdict is bad.
        on_corrupt: the effect of a damaged record: `stop` raises; `skip` goes on behind it and
            reports it in the result, whose verdict is bad then.
        progress: called with a line of text now and then.
        partition_bytes: about how many bytes one task reads.

    Raises:
        ConfigurationError: two journals have the same name.
        CorruptRecord: a record is damaged; the error names the file.
        StorageError: a journal cannot be read.
    """
    started_s = time.monotonic()
    names = [place.instance for place in places]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            "two of the journals lie in directories of the same name: give the fabric's "
            "directory instead"
        )
    ends = {place.instance: last_txid(place, on_corrupt) for place in places}
    # Not before: what is received while the ends are read is not from the future.
    now_us = time.time_ns() // 1000
    stretches = _planned(places, ends, Predicate(), partition_bytes)
    progress(f"reading {sum(ends.values()):,} records at {len(places)} instances")
    spread = spark.sparkContext.parallelize(stretches, max(1, len(stretches)))
    read = spread.map(partial(_parts_or_failure, on_corrupt=on_corrupt))
    logs = logs_of(names, collected(spark, read, progress))
    for place in places:
        log = logs[place.instance]
        try:
            with place.reader() as reader:
                log.removed = reader.removed()
        except CorruptRecord as error:
            if on_corrupt == "stop":
                raise
            log.damaged.append(str(error))
    incarnations = [(place.incarnation(), place.instance) for place in places]
    current = {incarnation: name for incarnation, name in incarnations if incarnation}
    peers = [place.peers() for place in places]
    found, left = judge(logs, why, origins_of(current, peers, known, logs))
    found.max_owed_s = max_owed_s
    if left:
        count = sum(each.sequences.count for each in left)
        progress(f"looking up how long {count:,} messages have been missing")
        questions = {number: each.question for number, each in enumerate(left)}
        lacking = PublisherRanges()
        for question in questions.values():
            lacking.of(question.publisher).update(question.sequences)
        asked = _LookupTargets(questions, clocks(logs, current, now_us), int(settle_s * 1e6))
        narrow = _planned(places, ends, _only(lacking), partition_bytes)
        ages = _ages(spark, asked, lacking, narrow, on_corrupt, progress)
        if gone := unanswered(questions, ages):
            raise StorageError(
                f"{gone:,} messages that an instance lacks were removed from the other instances "
                "while the audit read them: run the audit again"
            )
        settle(found, left, ages)
    suspected = open_blocks(logs.values())
    if suspected:
        progress(f"comparing the contents of {suspected.count:,} sequences one by one")
        narrow = _planned(places, ends, _only(suspected), partition_bytes)
        conflicting(found, _conflicts(spark, suspected, narrow, on_corrupt, progress))
    if len(sow) > 1:
        progress(f"comparing the SOW topics of {len(sow)} instances")
        run = partial(for_each, spark, progress=progress)
        now_us = time.time_ns() // 1000
        found.sow = compare_sow(sow, run, now_us, settle_s, sums_of, entries_of)
    found.seconds = time.monotonic() - started_s
    return found


def audit_source(
    spark: SparkSession, source: str, places: list[JournalPlace], **options: Any
) -> Audit:
    """Audits a fabric's directory, file or name as `audit` does. The fabric's configuration tells
    where messages should be. Where the source is journals without a configuration, every message
    should be everywhere."""
    record = record_of(source)
    if record is None:
        return audit(spark, places, expected_everywhere(), **options)
    settings = FabricSettings.from_json(record.settings)
    known = FabricKnowledge(
        {instance.name: instance.group for instance in settings.instances},
        {
            directory.incarnation: directory.name
            for directory in record.left_over
            if directory.incarnation
        },
    )
    sow = sow_sources(record, places)
    return audit(spark, places, expected_by(settings), known=known, sow=sow, **options)


def write_page(found: Audit, path: Path, source: str, again: str = "") -> None:
    """Writes the result as a page of HTML.

    Args:
        source: the audited fabric or journals, for the title.
        again: the command that makes the page again.

    Raises:
        ConfigurationError: the extra `reports` is not installed, or the file cannot be written.
    """
    from raylay.services.pipeline.audit.page import audit_page

    name = Path(source).name or source
    page = audit_page(found, f"Audit of {name}", dt.datetime.now(dt.UTC), again)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def _planned(
    places: list[JournalPlace], ends: dict[str, int], predicate: Predicate, partition_bytes: int
) -> list[JournalStretch]:
    return [
        stretch
        for place in places
        for stretch in plan(
            place, position(place, EPOCH), ends[place.instance], predicate, partition_bytes
        )
    ]


def _only(wanted: PublisherRanges) -> Predicate:
    """Returns a predicate that skips the segments and runs without any of these sequences."""
    predicate = Predicate()
    predicate.push("publisher", "In", list(wanted.sets))
    bounds = [(each.first() or 0, each.last() or 0) for each in wanted.sets.values()]
    predicate.push("sequence", "GreaterThanOrEqual", min(first for first, _ in bounds))
    predicate.push("sequence", "LessThanOrEqual", max(last for _, last in bounds))
    return predicate


# -- one stretch ---------------------------------------------------------------------------------
def _parts_or_failure(stretch: JournalStretch, on_corrupt: OnCorrupt) -> StretchParts | TaskFailure:
    try:
        return stretch_parts(stretch, on_corrupt)
    except RaylayError as error:
        return TaskFailure.of(error)


def stretch_parts(stretch: JournalStretch, on_corrupt: OnCorrupt = "stop") -> StretchParts:
    """Summarizes one stretch of a journal. Runs in a task.

    Raises:
        CorruptRecord: a record is damaged, and `on_corrupt` is `stop`.
        StorageError: it cannot be read.
    """
    made = StretchParts(stretch.place.instance, stretch.first_txid)
    rows = StretchRows(stretch, on_corrupt)
    notes = rows.batches.notes = []
    kinds = _Kinds()
    gathered: list[tuple[Any, Any, Any]] = []
    for row in rows:
        headers = row.headers
        gathered.append(
            (
                kinds.codes(row, made),
                np.ascontiguousarray(headers["sequence"]).view(np.int64),
                content_numbers(headers),
            )
        )
    if gathered:
        codes, sequences, digests = (np.concatenate(each) for each in zip(*gathered, strict=True))
        made.parts = parts_of(list(kinds.numbers), codes, sequences, digests)
    for note in notes:
        if note.kind == RunKind.UNAVAILABLE:
            made.unavailable.update(decode_unavailable(note))
        elif note.kind == RunKind.CONFLICT:
            made.conflicting.add(note.publisher, note.first_sequence, note.last_sequence)
    made.damaged = rows.damaged
    made.senders = {(names.path[-1], names.group) for names in rows.batches.names if names.path}
    return made


class _Kinds:
    """Gives a number to each set of properties that runs of a stretch share (a kind)."""

    def __init__(self) -> None:
        self.numbers: dict[RunProperties, int] = {}

    def codes(self, rows: Rows, made: StretchParts) -> Any:
        """Returns, for each row, the number of its kind; adds their times of receipt to `made`."""
        runs, run = rows.runs(), rows.run
        publishers = rows.headers["publisher"]
        firsts = np.flatnonzero(np.diff(run, prepend=-1))
        counts = np.diff(firsts, append=len(run))
        used = run[firsts]
        times: dict[int, int] = {}
        ends = zip(
            rows.txids[firsts].tolist(), rows.txids[firsts + counts - 1].tolist(), strict=True
        )
        for at, count, span in zip(used.tolist(), counts.tolist(), ends, strict=True):
            names, _, time_us = runs[at]
            second = time_us // 1_000_000
            times[second] = times.get(second, 0) + count
            origin = names.path[0] if names.path else ""
            if time_us > made.received_us.get(origin, 0):
                made.received_us[origin] = time_us
            made.spans[origin] = joined(made.spans.get(origin), *span)
        made.times.add(times)
        made.last_us = runs[used[-1]][2]
        whole = all(runs[at][0].topic for at in used.tolist())
        if whole and (np.repeat(publishers[firsts], counts) == publishers).all():
            units = [
                self._number(int(publishers[first]), runs[at][0], runs[at][1])
                for at, first in zip(used.tolist(), firsts.tolist(), strict=True)
            ]
            return np.repeat(np.array(units, np.int64), counts)
        # A run of several topics: row by row.
        topics = rows.column("topic").to_pylist()
        types = rows.column("message_type").to_pylist()
        return np.array(
            [
                self._number(
                    publisher,
                    Names(topic, message_type, runs[at][0].path, "", True),
                    runs[at][1],
                )
                for publisher, topic, message_type, at in zip(
                    publishers.tolist(), topics, types, run.tolist(), strict=True
                )
            ],
            np.int64,
        )

    def _number(self, publisher: int, names: Names, flags: int) -> int:
        origin = names.path[0] if names.path else ""
        kind = RunProperties(
            publisher, names.topic, names.message_type, origin, bool(flags & Flag.LATE)
        )
        return self.numbers.setdefault(kind, len(self.numbers))


# -- since when it is missing --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _LookupTargets:
    """The targets of a task's look-up.

    Attributes:
        questions: the questions by number.
        now_us: the time of now at each instance.
        settle_us: most time that a message may be on its way.
    """

    questions: dict[int, AgeQuestion]
    now_us: dict[str, int]
    settle_us: int


def _ages(
    spark: SparkSession,
    asked: _LookupTargets,
    lacking: PublisherRanges,
    stretches: list[JournalStretch],
    on_corrupt: OnCorrupt,
    progress: Progress,
) -> dict[int, Age]:
    """Answers all questions.

    Args:
        lacking: all sequences that the questions ask for.
    """
    spread = spark.sparkContext.parallelize(stretches, max(1, len(stretches)))
    read = spread.map(
        partial(_ages_or_failure, asked=asked, lacking=lacking, on_corrupt=on_corrupt)
    )
    return merged(collected(spark, read, progress))


def _ages_or_failure(
    stretch: JournalStretch, asked: _LookupTargets, lacking: PublisherRanges, on_corrupt: OnCorrupt
) -> dict[int, Age] | TaskFailure:
    try:
        return _ages_in(stretch, asked, lacking, on_corrupt)
    except RaylayError as error:
        return TaskFailure.of(error)


def _ages_in(
    stretch: JournalStretch, asked: _LookupTargets, lacking: PublisherRanges, on_corrupt: OnCorrupt
) -> dict[int, Age]:
    publishers = np.array(list(lacking.sets), np.uint64)
    gathered: list[tuple[Any, Any, Any]] = []
    for rows in StretchRows(stretch, on_corrupt, _only(lacking)):
        mine = np.isin(rows.headers["publisher"], publishers)
        headers = rows.headers[mine]
        times_us = np.array([time_us for _, _, time_us in rows.runs()], np.int64)
        gathered.append(
            (
                headers["publisher"],
                headers["sequence"].astype(np.int64),
                times_us[rows.run[mine]],
            )
        )
    if not gathered:
        return {}
    columns = (np.concatenate(each) for each in zip(*gathered, strict=True))
    now_us = asked.now_us[stretch.place.instance]
    return ages_of(asked.questions, now_us, asked.settle_us, *columns)


# -- contents, one by one ------------------------------------------------------------------------
def _conflicts(
    spark: SparkSession,
    suspected: PublisherRanges,
    stretches: list[JournalStretch],
    on_corrupt: OnCorrupt,
    progress: Progress,
) -> PublisherRanges:
    """Returns those of the suspected sequences that exist with different contents."""
    context = spark.sparkContext
    spread = context.parallelize(stretches, max(1, len(stretches)))
    pieces = spread.flatMap(partial(_pieces, suspected=suspected, on_corrupt=on_corrupt))
    return conflicts_among(spark, pieces, progress)


def _pieces(
    stretch: JournalStretch, suspected: PublisherRanges, on_corrupt: OnCorrupt
) -> list[Piece]:
    try:
        return list(contents_of(stretch, suspected, on_corrupt))
    except RaylayError as error:
        return [((0, 0), TaskFailure.of(error))]


def contents_of(
    stretch: JournalStretch, suspected: PublisherRanges, on_corrupt: OnCorrupt = "stop"
) -> Iterator[Piece]:
    """Yields the digests of the suspected sequences in one stretch, block by block. Runs in a task.

    Args:
        suspected: sequences, in whole blocks.

    Raises:
        CorruptRecord: a record is damaged, and `on_corrupt` is `stop`.
        StorageError: the stretch cannot be read.
    """
    blocks = blocks_of(suspected)
    for rows in StretchRows(stretch, on_corrupt, _only(suspected)):
        yield from digests_in(rows.headers, blocks)
