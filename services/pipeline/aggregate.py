"""The job `aggregate`: sums a topic up in windows of time and publishes the results to another
topic.

readStream (one instance's journal) → groupBy(window, by…) → writeStream (a topic)

Every instance that holds a topic holds the same messages, so the job reads one of them. An
expression gives a message's time: the time of its publish, or a field of its body. A time moves the
watermark for all publishers, so one that is far ahead of the message's receipt is replaced. With
`updates` each change of a window is published as it happens; without, each window once, when the
watermark has passed its end. The results are written down before the first of them is sent
(services/pipeline/publishing/staging.py), and the checkpoint holds what was read: a job that is
killed at any point and run again with the same checkpoint publishes each result once.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.journals import JournalPlace
from raylay.services.pipeline.publishing.sink import (
    MESSAGE_TYPE_DEFAULT,
    STAGING_OF_CHECKPOINT,
    WriteOptions,
    check_target,
    publish_pending,
)
from raylay.services.pipeline.publishing.staging import STATE_FILE
from raylay.services.pipeline.session import one_line, spark_path
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.subscriptions.matching import topic_filter
from raylay.storage.files import make_directory, write_durably

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("raylay.pipeline")

OFFSETS = "offsets"
"""Directory of a checkpoint in which Spark keeps what each micro-batch reads."""
QUERY_FILE = "raylay-aggregate.json"
POLL_S = 0.2
STOP_WAIT_S = 60.0
"""Most time that the job waits for a running micro-batch when it is told to stop."""
EVERY_MS_DEFAULT = 1_000
AHEAD_MS_DEFAULT = 60_000
"""Milliseconds by which a publisher's clock may be ahead of the instance's."""
OBSERVED, AHEAD = "raylay-times", "ahead"
VALUE = "value"
START_FORMAT = "yyyyMMdd'T'HHmmss"
START_FORMAT_MS = f"{START_FORMAT}.SSS"
KEY_OF_NULL = "\\N"
"""Text of a null in a key; other backslashes are doubled."""
FIELDS_OF_ALL = ("window_start", "window_end", "messages")

_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.+)", re.DOTALL)
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of the job, checked.

    Attributes:
        topic: the topic whose messages are summed up, as in a subscription.
        schema: the schema of the JSON bodies, as DDL.
        by: the groups: names of the schema's fields or of a journal's columns, or `name=SQL
            expression`.
        values: the numbers, given in the same way; a result has the mean, the minimum and the
            maximum of each.
        time: SQL expression of a message's time.
        window_ms, watermark_ms: the length of a window, and how late a message may arrive, in
            milliseconds of that time.
        updates: whether each change of a window is published, or each window once.
        ahead_ms: a time that is further ahead of the message's receipt, in milliseconds, is
            replaced by the time of receipt. None: `AHEAD_MS_DEFAULT` where `time` is made of
            `origin_time`, the clock of the publisher; without limit for another expression.

    Raises:
        ConfigurationError: a name is missing or given twice, or a length is not above 0.
    """

    topic: str
    schema: str
    by: tuple[str, ...]
    values: tuple[str, ...] = ()
    time: str = "origin_time"
    window_ms: int = 10_000
    watermark_ms: int = 10_000
    updates: bool = False
    ahead_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.topic or not self.schema:
            raise ConfigurationError("give a topic and the schema of its bodies")
        if self.window_ms <= 0 or self.watermark_ms < 0 or (self.ahead_ms or 0) < 0:
            raise ConfigurationError("a window must be longer than 0, and a watermark at least 0")
        names = [*FIELDS_OF_ALL, *self.named(self.by)]
        for name in self.named(self.values):
            names += (f"{name}_mean", f"{name}_min", f"{name}_max")
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"a result would have two fields named {name}: give one of them another "
                    "name, as name=expression"
                )

    def named(self, given: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in given:
            match = _NAMED.fullmatch(text.strip())
            name, expression = (match[1], match[2]) if match else (text.strip(), text.strip())
            if not _NAME.fullmatch(name):
                raise ConfigurationError(f"{text!r} has no name: give name=expression")
            if name in found:
                raise ConfigurationError(f"{name} is given twice")
            found[name] = expression
        return found

    def columns(self) -> str:
        """Returns the journal columns that the expressions use, separated by commas."""
        texts = (self.time, *self.named(self.by).values(), *self.named(self.values).values())
        words = {word for text in texts for word in _words(text)}
        if self.most_ahead_ms is not None:
            words.add("receive_time")
        return ",".join(name for name in COLUMNS if name in words) or "txid"

    @property
    def most_ahead_ms(self) -> int | None:
        """Returns the bound of a time, see `ahead_ms`; None: there is none."""
        if self.ahead_ms is None and "origin_time" in _words(self.time):
            return AHEAD_MS_DEFAULT
        return self.ahead_ms


def _words(expression: str) -> list[str]:
    return _NAME.findall(_TEXT.sub("", expression))


@dataclass(slots=True)
class AggregateSummary:
    """The result of a run.

    Attributes:
        instance: the instance whose journal the run read.
        records, batches: the messages that it read, and the micro-batches that it took.
        published: the results that are durable in the fabric.
        dropped_late: messages behind the watermark, which are in no result.
        ahead: messages whose time was too far ahead of their receipt, which replaces it.
        watermark: the time up to which windows are closed; empty: none is.
        ended: `caught up`, `time is up` or `stopped`.
    """

    instance: str
    into: str
    batches: int = 0
    records: int = 0
    published: int = 0
    dropped_late: int = 0
    ahead: int = 0
    watermark: str = ""
    ended: str = ""


def results(rows: DataFrame, windows: Windows) -> DataFrame:
    """Returns one row for each window and group, as a message: `key`, made of the window's start
    and the groups, and `body`, JSON.

    Args:
        rows: the rows of a journal, batch or stream, with the column `value`.
    """
    from pyspark.sql import functions as F

    by, values = windows.named(windows.by), windows.named(windows.values)
    picked = _timed(rows, windows).select(
        "_time",
        *(F.expr(expression).alias(name) for name, expression in by.items()),
        *(F.expr(text).cast("double").alias(f"_{name}") for name, text in values.items()),
    )
    length = f"{windows.window_ms} milliseconds"
    measures = [F.count(F.lit(1)).alias("messages")]
    for name in values:
        measures += (
            F.avg(f"_{name}").alias(f"{name}_mean"),
            F.min(f"_{name}").alias(f"{name}_min"),
            F.max(f"_{name}").alias(f"{name}_max"),
        )
    grouped = (
        picked.withWatermark("_time", f"{windows.watermark_ms} milliseconds")
        .groupBy(F.window("_time", length), *by)
        .agg(*measures)
    )
    start = F.col("window.start")
    result = F.struct(
        start.alias("window_start"),
        F.col("window.end").alias("window_end"),
        *by,
        *(name for name in grouped.columns if name not in ("window", *by)),
    )
    shown = START_FORMAT if windows.window_ms % 1000 == 0 else START_FORMAT_MS
    key = F.concat_ws("|", F.date_format(start, shown), *map(_key_part, by))
    return grouped.select(
        key.alias("key"), F.to_json(result, {"ignoreNullFields": "false"}).alias("body")
    )


def _timed(rows: DataFrame, windows: Windows) -> DataFrame:
    """Returns the rows with the fields of their bodies as columns, and each message's `_time`."""
    from pyspark.sql import functions as F

    fields = rows.select(f"{VALUE}.*").columns
    bound_ms = windows.most_ahead_ms
    if bound_ms is not None:
        rows = rows.withColumn("_received", F.col("receive_time"))
    flat = rows.select(*(name for name in rows.columns if name not in fields), f"{VALUE}.*")
    time = F.expr(windows.time).cast("timestamp")
    if bound_ms is None:
        return flat.withColumn("_time", time)
    is_ahead = time > F.col("_received") + F.expr(f"INTERVAL {bound_ms} MILLISECONDS")
    return flat.withColumn("_time", F.when(is_ahead, F.col("_received")).otherwise(time)).observe(
        OBSERVED, F.count_if(is_ahead).alias(AHEAD)
    )


def _late_messages(rows: DataFrame, windows: Windows, watermark_ms: int) -> int:
    """Returns the number of messages whose window had ended at a watermark."""
    from pyspark.sql import functions as F

    length = f"{windows.window_ms} milliseconds"
    ends = F.window("_time", length).getField("end")
    late = ends <= F.timestamp_millis(F.lit(watermark_ms))
    return _timed(rows, windows).where(F.col("_time").isNotNull()).where(late).count()


def _key_part(name: str) -> Column:
    """Returns a group as text for a key. Null, and a value that holds the separator, give texts
    that no other value gives."""
    from pyspark.sql import functions as F

    text = F.replace(F.col(name).cast("string"), F.lit("\\"), F.lit("\\\\"))
    text = F.replace(text, F.lit("|"), F.lit("\\|"))
    return F.coalesce(text, F.lit(KEY_OF_NULL))


def aggregate(
    spark: SparkSession,
    place: JournalPlace,
    windows: Windows,
    into: str,
    publish: Mapping[str, str],
    checkpoint: str | Path,
    *,
    until_caught_up: bool = False,
    for_s: float | None = None,
    every_ms: int = EVERY_MS_DEFAULT,
    starting: str = "0",
    records_per_batch: int = 0,
    on_corrupt: str = "stop",
    mode: str = "failfast",
    stop: threading.Event | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> AggregateSummary:
    """Runs the job until it is told to stop.

    Args:
        place: the journal to read.
        into: the topic of the results.
        publish: the options of the target: `servers`, or `fabric` and `group`.
        checkpoint: a directory for the job's progress, which the next run continues.
        until_caught_up: whether to end at the messages that are committed now.
        for_s: seconds after which to end; 0: no limit.
        every_ms: interval at which to look for new messages.
        starting: the position at which a new checkpoint begins.
        records_per_batch: most messages in a micro-batch; 0: no limit.
        on_corrupt: the effect of a damaged record: `stop`, or `skip`, which logs it.
        mode: the effect of a body that does not fit the schema, as in a read. It may change from
            run to run. The messages of `dead_letter` go where `publish` has `dead_letters`.
        stop: an event that ends the job when it is set.
        progress: called with a line of text for each micro-batch that read something.

    Raises:
        ConfigurationError: an expression is wrong, the checkpoint is another query's, or no
            instance journals the results' topic.
        RaylayError: the journal cannot be read, or no server answers.
    """
    from pyspark.errors import PySparkException

    directory = Path(checkpoint).absolute()
    if topic_filter(windows.topic, "").matches(into.encode(), b""):
        raise ConfigurationError(
            f"the results' topic {into} matches {windows.topic}, so the job would read its own "
            "results: choose another topic"
        )
    options = WriteOptions.of({**publish, "topic": into})
    check_target(options, [(into, options.message_type or MESSAGE_TYPE_DEFAULT)])
    _claim(directory, place, windows, into)
    reading = {
        "path": place.journal,
        "topic": windows.topic,
        "columns": windows.columns(),
        "schema": windows.schema,
        "on_corrupt": on_corrupt,
        "mode": mode,
        **({"archive": place.archive} if place.archive else {}),
    }
    letters = {"dead_letters": publish.get("dead_letters", "")} if mode == "dead_letter" else {}
    read = spark.readStream.format("raylay").options(
        **reading,
        **letters,
        starting=starting,
        **({"max_records_per_trigger": str(records_per_batch)} if records_per_batch else {}),
    )
    if mode == "dead_letter":
        reading["mode"] = "dropmalformed"  # their letters are written already

    def late(start: str, end: str, watermark_ms: int) -> int:
        again = spark.read.format("raylay").options(**reading, starting=start, ending=end)
        return _late_messages(again.load(), windows, watermark_ms)

    lateness = _LateCounter(directory, late)
    try:
        sink = {
            **publish,
            "topic": into,
            "name": f"aggregate-{into}",
            "checkpointLocation": spark_path(directory),
        }
        writer = results(read.load(), windows).writeStream.options(**sink)
        writer = _updating(writer, sink) if windows.updates else writer.format("raylay")
        if until_caught_up:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{every_ms} milliseconds")
        before = _published(directory)
        query = writer.start()
        try:
            summary = _followed(
                query, AggregateSummary(place.instance, into), lateness, for_s, stop, progress
            )
        finally:
            query.stop()
    except PySparkException as error:
        if not (directory / OFFSETS).exists():
            # The query never began, so the checkpoint belongs to none.
            (directory / QUERY_FILE).unlink(missing_ok=True)
        raise ConfigurationError(one_line(error)) from None
    staging = directory / STAGING_OF_CHECKPOINT
    if (staging / STATE_FILE).is_file():
        publish_pending(staging, options)
    summary.published = _published(directory) - before
    return summary


def _updating(writer: DataStreamWriter, sink: dict[str, str]) -> DataStreamWriter:
    """Makes a writer publish the changes of each micro-batch, because Spark gives a Python sink
    appended rows only."""

    def publish(rows: DataFrame, batch: int) -> None:
        rows.write.format("raylay").mode("append").options(**sink, batch=str(batch)).save()

    return writer.outputMode("update").foreachBatch(publish)


def _claim(directory: Path, place: JournalPlace, windows: Windows, into: str) -> None:
    """Records the query of a new checkpoint, or compares it with the recorded one."""
    wanted = {"journal": _whole_path(place.journal), "into": into, **asdict(windows)}
    wanted = json.loads(json.dumps(wanted))
    path = directory / QUERY_FILE
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        make_directory(directory)
        write_durably(path, json.dumps(wanted, indent=1).encode() + b"\n")
        return
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", str(path)) from None
    if "journal" in found:
        found["journal"] = _whole_path(found["journal"])
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ConfigurationError(
                f"{directory} is the checkpoint of another query: its {name} is "
                f"{found.get(name)!r}, this one's {value!r}; give each query a checkpoint of its "
                "own"
            )


def _whole_path(journal: str) -> str:
    """Returns the absolute path of a journal, however its directory was named."""
    return str(Path(journal).resolve())


def _published(directory: Path) -> int:
    try:
        state = json.loads((directory / STAGING_OF_CHECKPOINT / STATE_FILE).read_bytes())
    except FileNotFoundError:
        return 0
    return int(state["next_sequence"]) - 1 - int(state["refused"])


@dataclass(frozen=True, slots=True)
class _LateCounter:
    """Counts the messages that a micro-batch dropped. Spark counts the rows of its partial
    aggregates, each of many messages, so the micro-batch's messages are read again.

    Attributes:
        checkpoint: the query's checkpoint.
        late: returns the number of messages between two offsets (`starting` and `ending` of a read)
            whose window had ended at a watermark, in milliseconds since 1970.
    """

    checkpoint: Path
    late: Callable[[str, str, int], int]

    def dropped(self, each: Any) -> int:
        """Returns the number of messages that a micro-batch dropped."""
        rows = sum(int(state["numRowsDroppedByWatermark"]) for state in each["stateOperators"])
        source = each["sources"][0]
        start, end = _offsets(source["startOffset"]), _offsets(source["endOffset"])
        if not rows or not start or not end:
            return rows
        try:
            return self.late(start, end, self._watermark_ms(int(each["batchId"])))
        except Exception as error:  # the segments are gone, say
            log.warning("the messages that came late cannot be counted: %s", one_line(error))
            return rows

    def _watermark_ms(self, batch: int) -> int:
        """Returns the watermark by which a micro-batch judges its messages: the one before it."""
        lines = (self.checkpoint / OFFSETS / str(batch - 1)).read_text().splitlines()
        return int(json.loads(lines[1])["batchWatermarkMs"])


def _offsets(offset: Any) -> str:
    """Returns an offset of a stream as the option `starting` or `ending` of a read; empty where
    there is none."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return json.dumps({name: known["txid"] for name, known in found.items()}) if found else ""


def _followed(
    query: StreamingQuery,
    summary: AggregateSummary,
    lateness: _LateCounter,
    for_s: float | None,
    stop: threading.Event | None,
    progress: Callable[[str], None],
) -> AggregateSummary:
    """Follows a query until it ends or has to end, and reports its progress."""
    ends_s = None if for_s is None else time.monotonic() + for_s
    stop = stop or threading.Event()
    told = -1
    while not summary.ended:
        stop.wait(POLL_S)
        if not query.isActive:
            query.awaitTermination()  # raises what it ended with
            summary.ended = "caught up"
        elif stop.is_set():
            summary.ended = "stopped"
        elif ends_s is not None and time.monotonic() >= ends_s:
            summary.ended = "time is up"
        if summary.ended in ("stopped", "time is up"):
            _wait_between(query)
        for recentProgres in query.recentProgress:
            batch = int(recentProgres["batchId"])
            summary.watermark = recentProgres["eventTime"].get("watermark", summary.watermark)
            if batch > told and (recentProgres["numInputRows"] or _updated(recentProgres)):
                told = batch
                _count(summary, recentProgres, lateness, progress)
    return summary


def _count(
    summary: AggregateSummary, each: Any, lateness: _LateCounter, progress: Callable[[str], None]
) -> None:
    summary.batches += 1
    summary.records += int(each["numInputRows"])
    summary.dropped_late += lateness.dropped(each)
    ahead = _ahead(each)
    if ahead and not summary.ahead:
        progress(
            "messages have times far ahead of their receipt, because of a publisher's clock or the "
            "time's expression: they count as of their receipt"
        )
    summary.ahead += ahead
    progress(
        f"batch {each['batchId']}: {each['numInputRows']:,} messages, {summary.records:,} in all; "
        f"windows closed up to {summary.watermark or 'none'}"
    )


def _ahead(each: Any) -> int:
    observed = each["observedMetrics"].get(OBSERVED)
    return int(observed[AHEAD] or 0) if observed is not None else 0


def _updated(each: Any) -> bool:
    """Returns whether a micro-batch changed or closed windows, which one without messages may do
    too."""
    return any(
        int(state["numRowsUpdated"]) or int(state["numRowsRemoved"])
        for state in each["stateOperators"]
    )


def _wait_between(query: StreamingQuery) -> None:
    """Waits for the end of a micro-batch, so that the checkpoint notes its results as published."""
    deadline_s = time.monotonic() + STOP_WAIT_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        time.sleep(POLL_S / 10)
