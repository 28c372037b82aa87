"""The job `latency`: measures how long messages took, by link, region pair and publisher, over
time.

Journals show the *lag*: the same message has a `receive_time` at each instance, and the last
incarnation of its `path` is the upstream that brought it. A lag between two hosts is as good as
their clocks; a negative lag is counted and shown, never hidden. Trace files show what one clock
saw: `publish` to its persisted acknowledgment, `link send` to the stored acknowledgment.

Percentiles are exact: Spark's `percentile` over whole microseconds, which interpolates linearly
between two values. Windows are by `origin_time`, which is the same for all copies of a message.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.observability import tracing_options
from raylay.services.pipeline.journals import JournalPlace, OnCorrupt, last_txid, record_of
from raylay.services.pipeline.selection import topic_condition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WINDOW_MS_DEFAULT = 1_000
PERCENTILES = (0.5, 0.95, 0.99)
SPAN_DDL = (
    "trace_id STRING, span_id STRING, parent_id STRING, name STRING, start_ns BIGINT, "
    "end_ns BIGINT, attributes STRUCT<bookmark: STRING, topic: STRING, instance: STRING, "
    "destination: STRING, upstream: STRING, client: STRING, outcome: STRING>, torn STRING"
)

KINDS = ("links", "regions", "publishers", "publish", "acks", "acks_by_publisher", "stored")
"""Kinds of latency that are measured. From journals:

links: receive time there minus receive time at the upstream that brought it.
regions: receive time there minus receive time where it was published, by groups.
publishers: the same, by publisher.
publish: receive time where it was published minus origin time, by instance.

From trace files, each by one clock:

acks: publish to the persisted acknowledgment, by the group that it was published in.
acks_by_publisher: the same, by publisher.
stored: read by the link to the stored acknowledgment, by link.
"""


@dataclass(slots=True)
class LatencyRow:
    """The latencies of one link, pair or publisher.

    Attributes:
        windows: (start in seconds since 1970, messages, p50, p95, p99, max in ms) of each window.
        negative: the number of messages with a negative lag.
    """

    source: str
    target: str
    messages: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    min_ms: float
    negative: int
    kind: str = ""
    windows: list[tuple[float, int, float, float, float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.target}" if self.target else self.source

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"from": self.source, "to": self.target, "type": self.kind}
        found = {name: value for name, value in found.items() if value}
        for name in ("messages", "p50_ms", "p95_ms", "p99_ms", "max_ms", "min_ms", "negative"):
            value = getattr(self, name)
            found[name] = round(value, 3) if isinstance(value, float) else value
        found["windows"] = [
            [window[0], *(round(v, 3) for v in window[1:])] for window in self.windows
        ]
        return found


@dataclass(slots=True)
class ClockDifference:
    """Bounds on the difference between two hosts' clocks, from messages in both directions: the
    second clock is ahead of the first by a value between them, if neither was set meanwhile."""

    source: str
    target: str
    low_ms: float
    high_ms: float


@dataclass(slots=True)
class Latency:
    """The result of the job.

    Attributes:
        rows: the rows of each of `KINDS`.
        unknown: number of messages at an instance whose upstream is not read or no longer holds
            them, by instance.
        torn: lines of trace files that are no spans.
        exceeded: a sentence for each bound that is exceeded.
    """

    window_ms: int
    rows: dict[str, list[LatencyRow]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    unknown: dict[str, int] = field(default_factory=dict)
    clocks: list[ClockDifference] = field(default_factory=list)
    traced: bool = False
    torn: int = 0
    exceeded: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return not self.exceeded

    def to_json(self) -> dict[str, Any]:
        return {
            "valid": self.valid,
            "exceeded": self.exceeded,
            "window_ms": self.window_ms,
            **{kind: [row.to_json() for row in rows] for kind, rows in self.rows.items()},
            "unknown_upstream": self.unknown,
            "clocks": [
                {
                    "from": clock.source,
                    "to": clock.target,
                    "ahead_ms": [round(clock.low_ms, 3), round(clock.high_ms, 3)],
                }
                for clock in self.clocks
            ],
            "traced": self.traced,
            "torn_lines": self.torn,
        }


@dataclass(frozen=True, slots=True)
class LatencySelection:
    """The selected messages: those published from `first` (inclusive) to `last` (exclusive), on any
    of `topics`."""

    first: dt.datetime | None = None
    last: dt.datetime | None = None
    topics: tuple[str, ...] = ()
    window_ms: int = WINDOW_MS_DEFAULT


def latency(
    spark: SparkSession,
    places: Sequence[JournalPlace],
    choice: LatencySelection = LatencySelection(),
    *,
    traces: Path | None = None,
    link_types: dict[tuple[str, str], str] | None = None,
    max_p99_ms: float = 0.0,
    max_ack_p99_ms: float = 0.0,
    on_corrupt: OnCorrupt = "stop",
    progress: Callable[[str], None] = lambda line: None,
) -> Latency:
    """Measures the latencies that journals and trace files show.

    Args:
        traces: a directory of trace files (docs/tracing.md).
        link_types: `sync` or `async` by (upstream, instance); see `link_types_of`.
        max_p99_ms: the bound on each link's p99; 0: none.
        max_ack_p99_ms: the bound on the p99 of each region's acknowledgments; 0: none.
        on_corrupt: the effect of a damaged record: `stop` raises; `skip` logs it and goes on behind
            it.

    Raises:
        ConfigurationError: no message is selected, or a bound cannot be judged.
        StorageError: a journal cannot be read.
    """
    found = Latency(choice.window_ms)
    if choice.window_ms < 1:
        raise ConfigurationError("--window must be at least 1ms")
    if max_ack_p99_ms and traces is None:
        raise ConfigurationError(
            "only trace files show acknowledgments, and there are none: give --traces, or a fabric "
            "with tracing: {directory: traces}"
        )
    _fill(found, _lags(spark, places, choice, on_corrupt).collect(), places, link_types or {})
    progress(f"{sum(row.messages for row in found.rows['links']):,} messages over links")
    if traces is not None:
        spans = _spans(spark, traces)
        found.traced = True
        found.torn = spans.where("torn IS NOT NULL").count()
        _fill(found, _waits(spans, places, choice).collect(), places, link_types or {})
        progress(f"{sum(row.messages for row in found.rows['acks']):,} acknowledgments traced")
    if not any(found.rows.values()):
        raise ConfigurationError("no message is selected: check --topic, --from and --to")
    found.clocks = clocks(found.rows["links"])
    for bound_ms, kind in ((max_p99_ms, "links"), (max_ack_p99_ms, "acks")):
        if bound_ms and not found.rows[kind]:
            raise ConfigurationError(
                f"a bound is given for {kind}, but there are none to compare with it"
            )
        found.exceeded += [
            f"{row.name}: p99 {row.p99_ms:.3f} ms, the bound is {bound_ms:g} ms"
            for row in found.rows[kind]
            if bound_ms and row.p99_ms > bound_ms
        ]
    return found


def link_types_of(settings: FabricSettings) -> dict[tuple[str, str], str]:
    """Returns `sync` or `async` by (upstream, instance), as configured."""
    return {
        (instance.name, name): "sync" if destination.sync else "async"
        for instance in settings.instances
        for destination in instance.destinations
        for name in destination.to
        or [each.name for each in settings.instances if each.group == destination.group]
    }


def traces_of(source: str) -> Path | None:
    """Returns the directory of a fabric's trace files, by its directory, file or name; None where
    it writes none, or the source is something else."""
    record = record_of(source)
    if record is None:
        return None
    directory = tracing_options(
        FabricSettings.from_json(record.settings), record.directory
    ).file_directory
    return Path(directory) if directory else None


def clocks(links: Sequence[LatencyRow]) -> list[ClockDifference]:
    """Estimates clock differences from pairs of links in both directions: no message arrives before
    it is sent, so the smallest lag of one direction bounds the difference from above, that of the
    other from below."""
    least = {(row.source, row.target): row.min_ms for row in links}
    return [
        ClockDifference(source, target, -least[target, source], ahead)
        for (source, target), ahead in least.items()
        if source < target and (target, source) in least
    ]


# -- journals ------------------------------------------------------------------------------------
def _lags(
    spark: SparkSession,
    places: Sequence[JournalPlace],
    choice: LatencySelection,
    on_corrupt: OnCorrupt,
) -> DataFrame:
    """Returns the aggregates (see `_measured`) of all copies, in one pass and one exchange by
    message."""
    from pyspark.sql import functions as F

    incarnations = F.array(*(F.lit(place.incarnation()) for place in places))
    groups = F.array(*(F.lit(place.group) for place in places))
    names = F.array(*(F.lit(place.instance) for place in places))

    def number(incarnation: Column) -> Column:
        return (F.array_position(incarnations, incarnation) - 1).cast("int")

    path = F.col("path")
    forwarded = F.size(path) > 0
    copies = None
    for at, place in enumerate(places):
        rows = (
            spark.read.format("raylay")
            .options(
                path=place.journal,
                columns="publisher,sequence,topic,origin_time,receive_time,path",
                ending=json.dumps({"*": last_txid(place, on_corrupt)}),
                on_corrupt=on_corrupt,
                pushdown="true",
                **({"archive": place.archive} if place.archive else {}),
            )
            .load()
        )
        rows = _chosen(rows, choice, F.col("origin_time")).select(
            "publisher",
            "sequence",
            F.unix_micros("origin_time").alias("origin_us"),
            F.unix_micros("receive_time").alias("receive_us"),
            F.lit(at).alias("me"),
            F.when(forwarded, number(F.get(path, F.size(path) - 1))).alias("upstream"),
            F.when(forwarded, number(F.get(path, F.lit(0)))).alias("first"),
        )
        copies = rows if copies is None else copies.unionByName(rows)
    assert copies is not None

    def of(at: int, name: str) -> Column:
        return F.min(F.when(F.col("me") == at, F.col(name)))

    # One row a message, an element an instance: no instance waits in a list for another.
    wide = copies.groupBy("publisher", "sequence").agg(
        F.min("origin_us").alias("origin_us"),
        *(
            F.array(*(of(at, name) for at in range(len(places)))).alias(name)
            for name in ("receive_us", "upstream", "first")
        ),
    )
    zipped = F.arrays_zip("receive_us", "upstream", "first")
    each = wide.select(
        "publisher",
        "origin_us",
        F.col("receive_us").alias("all_us"),
        F.posexplode(zipped).alias("me", "copy"),
    ).where("copy.receive_us IS NOT NULL")
    mine, upstream, first = F.col("copy.receive_us"), F.col("copy.upstream"), F.col("copy.first")
    me, here = F.col("me"), F.col("copy.upstream").isNull()
    # Negative indexes give null.
    lag = mine - F.get(F.col("all_us"), upstream)
    whole = mine - F.get(F.col("all_us"), first)
    empty = F.lit("")
    return _measured(
        each,
        choice,
        F.col("origin_us"),
        ("links", F.get(names, upstream), F.get(names, me), lag),
        ("regions", F.get(groups, first), F.get(groups, me), whole),
        ("publishers", F.col("publisher").cast("string"), empty, whole),
        ("publish", F.get(names, me), empty, F.when(here, mine - F.col("origin_us"))),
        ("unknown", F.get(names, me), empty, F.when(~here & lag.isNull(), F.lit(0))),
    )


def _chosen(rows: DataFrame, choice: LatencySelection, published: Column) -> DataFrame:
    from pyspark.sql import functions as F

    if choice.first is not None:
        rows = rows.where(published >= F.lit(choice.first))
    if choice.last is not None:
        rows = rows.where(published < F.lit(choice.last))
    topic = topic_condition(choice.topics)
    return rows if topic is None else rows.where(topic)


def _measured(
    rows: DataFrame,
    choice: LatencySelection,
    time_us: Column,
    *values: tuple[str, Column, Column, Column],
) -> DataFrame:
    """Returns the percentiles of each (kind, source, target, microseconds), in all and by window.
    Nulls are left out."""
    from pyspark.sql import functions as F

    width_us = choice.window_ms * 1000
    measured = rows.select(
        F.floor(time_us / width_us).alias("window"),
        F.inline(
            F.array(
                *(
                    F.struct(
                        F.lit(kind).alias("kind"),
                        source.alias("source"),
                        target.alias("target"),
                        us.cast("bigint").alias("us"),
                    )
                    for kind, source, target, us in values
                )
            )
        ),
    ).where("us IS NOT NULL")
    return (
        measured.withColumn("key", F.struct("kind", "source", "target"))
        .rollup("key", "window")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.percentile("us", F.array(*map(F.lit, PERCENTILES))).alias("percentiles"),
            F.max("us").alias("max_us"),
            F.min("us").alias("min_us"),
            F.count_if(F.col("us") < 0).alias("negative"),
        )
        .where("key IS NOT NULL")
        .select("key.*", "window", "messages", "percentiles", "max_us", "min_us", "negative")
    )


def _fill(
    found: Latency,
    rows: list[Any],
    places: Sequence[JournalPlace],
    types: dict[tuple[str, str], str],
) -> None:
    made: dict[tuple[str, str, str], LatencyRow] = {}
    windows = [row for row in rows if row["window"] is not None]
    for row in rows:
        if row["window"] is not None:
            continue
        source, target = row["source"] or "?", row["target"] or ""
        if row["kind"] == "unknown":
            found.unknown[source] = row["messages"]
            continue
        p50_us, p95_us, p99_us = row["percentiles"]
        made[row["kind"], row["source"], row["target"]] = LatencyRow(
            source,
            target,
            row["messages"],
            p50_us / 1000,
            p95_us / 1000,
            p99_us / 1000,
            row["max_us"] / 1000,
            row["min_us"] / 1000,
            row["negative"],
            types.get((source, target), ""),
        )
    for row in sorted(windows, key=lambda row: row["window"]):
        kept = made.get((row["kind"], row["source"], row["target"]))
        if kept is not None:
            kept.windows.append(
                (
                    row["window"] * found.window_ms / 1000,
                    row["messages"],
                    *(us / 1000 for us in row["percentiles"]),
                    row["max_us"] / 1000,
                )
            )
    order = {place.instance: at for at, place in enumerate(places)}
    for (kind, _, _), each in made.items():
        found.rows[kind].append(each)
    for each_kind in found.rows.values():
        each_kind.sort(
            key=lambda row: (order.get(row.source, -1), row.source, order.get(row.target, -1))
        )


# -- trace files ---------------------------------------------------------------------------------
def _spans(spark: SparkSession, traces: Path) -> DataFrame:
    if not traces.is_dir() or not any(traces.rglob("*.jsonl")):
        raise ConfigurationError(f"{traces} holds no trace file (*.jsonl)")
    return (
        spark.read.schema(SPAN_DDL)
        .option("columnNameOfCorruptRecord", "torn")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.jsonl")
        .json(str(traces))
        .cache()
    )


def _waits(spans: DataFrame, places: Sequence[JournalPlace], choice: LatencySelection) -> DataFrame:
    from pyspark.sql import functions as F

    names = F.array(*(F.lit(place.instance) for place in places))
    groups = F.array(*(F.lit(place.group) for place in places))
    rows = spans.where("torn IS NULL").select(
        "*", F.col("attributes.topic").alias("topic"), (F.col("start_ns") / 1000).alias("start_us")
    )
    rows = _chosen(rows, choice, F.timestamp_micros(F.col("start_us").cast("bigint")))
    commits = (
        spans.where("name = 'commit'")
        .groupBy(F.col("trace_id").alias("of_trace"))
        .agg(F.min_by("attributes.instance", "start_ns").alias("published_at"))
    )
    rows = rows.where("name IN ('publish', 'link send')").join(
        commits, F.col("trace_id") == F.col("of_trace"), "left"
    )
    us = F.floor((F.col("end_ns") - F.col("start_ns")) / 1000)
    acked = F.when((F.col("name") == "publish") & (F.col("attributes.outcome") == "persisted"), us)
    group = F.get(groups, (F.array_position(names, F.col("published_at")) - 1).cast("int"))
    publisher = F.substring_index(F.col("attributes.bookmark"), "|", 1)
    sent = F.when(F.col("name") == "link send", us)
    empty = F.lit("")
    return _measured(
        rows,
        choice,
        F.col("start_us"),
        ("acks", group, empty, acked),
        ("acks_by_publisher", publisher, empty, acked),
        ("stored", F.col("attributes.instance"), F.col("attributes.destination"), sent),
    )
