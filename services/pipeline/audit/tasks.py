"""The audit's tasks on Spark: their results, their failures, and the progress of a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raylay.services.errors import RaylayError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.audit.parts import BLOCK, conflicts_of, content_numbers
from raylay.services.pipeline.tables.stretch_rows import TaskFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_S = 2.0
JOB_GROUP = "raylay audit"

Progress = Callable[[str], None]
Piece = tuple[tuple[int, int], tuple[Any, Any] | TaskFailure]
"""Publisher and block, with the block's sequences and their digests, or the failure of a task."""


def collected(spark: SparkSession, rdd: Any, progress: Progress) -> list[Any]:
    """Collects all of an RDD, and reports progress.

    Raises:
        StorageError: a task failed; this is the first task's error.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    context = spark.sparkContext

    def collect() -> list[Any]:
        context.setJobGroup(JOB_GROUP, JOB_GROUP, interruptOnCancel=True)
        try:
            collected: list[Any] = rdd.collect()
        except Py4JJavaError as error:
            # Not of a journal: a worker that died, a package that it has not.
            raise StorageError(f"the audit failed: {_said(str(error))}") from None
        return collected

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(collect)
        try:
            while not wait([future], PROGRESS_S).done:
                _tell(context, progress)
        except BaseException:
            context.cancelJobGroup(JOB_GROUP)
            raise
    found = future.result()
    for each in found:
        if isinstance(each, TaskFailure):
            raise each.error()
    return found


def for_each(
    spark: SparkSession, do: Callable[[Any], Any], values: Sequence[Any], progress: Progress
) -> list[Any]:
    """Calls a function for each of some values, a task each, and returns the results."""
    spread = spark.sparkContext.parallelize(values, len(values))
    return collected(spark, spread.map(partial(_done_or_failure, do)), progress)


def _done_or_failure(do: Callable[[Any], Any], value: Any) -> Any:
    try:
        return do(value)
    except RaylayError as error:
        return TaskFailure.of(error)


def _said(text: str) -> str:
    """Returns the line of Spark's report that names the cause."""
    lines = [line.strip() for line in text.splitlines()]
    named = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)]
    return named[-1] if named else next((line for line in lines[1:] if line), text)


def _tell(context: Any, progress: Progress) -> None:
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if known:
        done = sum(stage.numCompletedTasks for stage in known)
        progress(f"read {done} of {sum(stage.numTasks for stage in known)} parts")


# -- contents, one by one ------------------------------------------------------------------------
def blocks_of(suspected: PublisherRanges) -> dict[int, Any]:
    """Returns the blocks of sequences, by publisher.

    Args:
        suspected: sequences, in whole blocks.
    """
    return {
        publisher: np.concatenate(
            [np.arange(first // BLOCK, last // BLOCK + 1) for first, last in ranges]
        )
        for publisher, ranges in suspected.sets.items()
    }


def digests_in(headers: Any, blocks: dict[int, Any]) -> Iterator[Piece]:
    """Yields the digests of the messages of some blocks, block by block.

    Args:
        headers: the records' headers, as columns.RECORD.
        blocks: blocks by publisher, as `blocks_of` returns them.
    """
    publishers = headers["publisher"]
    for publisher in set(np.unique(publishers).tolist()) & blocks.keys():
        mine = headers[publishers == publisher]
        numbers = mine["sequence"].astype(np.int64) // BLOCK
        for block in np.intersect1d(numbers, blocks[publisher]).tolist():
            here = mine[numbers == block]
            yield (publisher, block), (here["sequence"].astype(np.int64), content_numbers(here))


def conflicts_among(spark: SparkSession, pieces: Any, progress: Progress) -> PublisherRanges:
    """Returns the sequences that exist with different contents.

    Args:
        pieces: an RDD of `Piece`.
    """
    partitions = max(1, spark.sparkContext.defaultParallelism)
    found = PublisherRanges()
    for publisher, sequence in collected(
        spark, pieces.groupByKey(partitions).flatMap(_compared), progress
    ):
        found.add(publisher, sequence, sequence)
    return found


def _compared(
    group: tuple[tuple[int, int], Iterable[tuple[Any, Any] | TaskFailure]],
) -> list[tuple[int, int] | TaskFailure]:
    (publisher, _), pieces = group
    contents = list(pieces)
    for content in contents:
        if isinstance(content, TaskFailure):
            return [content]
    sequences, digests = zip(*contents, strict=True)
    found = conflicts_of(np.concatenate(sequences), np.concatenate(digests))
    return [(publisher, sequence) for sequence in found]
