"""The messages that a replay takes from a lake or from journals, with Spark: counted first, then in
chunks."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raylay.services.errors import ConfigurationError, MessageTypeError, StorageError
from raylay.services.messages import records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.archive import META, read_lake
from raylay.services.pipeline.journals import JournalPlace, OnCorrupt, last_txid, places
from raylay.services.pipeline.publishing.sink import normal
from raylay.services.pipeline.publishing.staging import StagedFile, stage
from raylay.services.pipeline.replay.job import REPLAYED, TIME, LogChunk, ReplayPlan
from raylay.services.pipeline.selection import topic_condition
from raylay.services.pipeline.session import one_line, quiet_pandas
from raylay.services.pipeline.tables.content import types_at, types_of_fabric
from raylay.services.pipeline.tables.values import BodyParser, Mode, misfit_error
from raylay.services.pipeline.worker_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

GRAIN_TXIDS_MIN = 100
GRAIN_TXIDS_MAX = 10_000
"""Number of transaction ids that are counted together; chunks are cut between such groups."""
TOPIC_PLACE = "{topic}"
INCARNATION = "_incarnation"
FILE_NAME = r"^(.+)-[0-9a-f]{16}-[0-9a-f]{16}-[0-9]+\.parquet$"
"""Name of a lake's file. It begins with the incarnation, or with the name that stands for one,
which may have hyphens."""
NUMBER = "_number"
KEPT = "_kept"
MESSAGES = tuple(command.name.lower() for command in sorted(records.MESSAGES))
"""The commands whose rows are messages."""
COUNTED = ("txid", "receive_time", "command", "topic", "message_type")
STAGED_COLUMNS = (
    *COUNTED, "origin_time", "body", "key", "correlation_id", "expiration_s",
)  # fmt: skip
STAGED_DDL = "path STRING, partition INT, rows BIGINT"

Clock = Literal["receive_time", "origin_time"]


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The selected messages, and the changes that a replay makes to them.

    Attributes:
        first, last: UTC times of `receive_time`; the first is inclusive, the last exclusive.
        topics: names and regular expressions; none: all.
        where: an SQL expression of Spark over the columns of a journal, and over `value`, the body
            parsed by `schema`.
        to_topic: the topic to publish to; `{topic}` in it is the original one; empty: the original
            one.
        clock: the timestamp whose intervals are kept.
        mode: the effect of a body that does not fit the schema: an error, or a null value.
    """

    first: dt.datetime | None = None
    last: dt.datetime | None = None
    topics: tuple[str, ...] = ()
    where: str = ""
    schema: str = ""
    to_topic: str = ""
    clock: Clock = "receive_time"
    mode: Mode = "failfast"

    def marked(self, rows: DataFrame, types: MessageTypes) -> DataFrame:
        """Returns the rows of the selected times and topics, with the filter's result in `_kept`.

        Args:
            types: the message types by name.

        Raises:
            ConfigurationError: Spark does not understand the expression or the schema.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        if self.first is not None:
            rows = rows.where(F.col("receive_time") >= F.lit(self.first))
        if self.last is not None:
            rows = rows.where(F.col("receive_time") < F.lit(self.last))
        topic = topic_condition(self.topics)
        if topic is not None:
            rows = rows.where(topic)
        if self.schema:
            try:
                rows = rows.withColumn("value", _value(self.schema, self.mode, types))
            except PySparkException as error:
                raise ConfigurationError(
                    f"schema {self.schema!r} cannot be used: {one_line(error)}"
                ) from None
        try:
            rows.where(self.where or "true")  # it is a condition
            return rows.withColumn(KEPT, F.expr(self.where or "true"))
        except PySparkException as error:
            raise ConfigurationError(
                f"filter {self.where!r} cannot be used: {one_line(error)}"
            ) from None

    def condition(self, rows: DataFrame, types: MessageTypes) -> DataFrame:
        """Returns the rows of `rows` that are selected, by times, topics and filter.

        Raises:
            ConfigurationError: Spark does not understand the expression or the schema.
        """
        return self.marked(rows, types).where(KEPT).drop(KEPT)

    def to_json(self) -> dict[str, Any]:
        """Returns the values that must be the same when a job continues."""
        values = asdict(self)
        for name in ("first", "last"):
            values[name] = values[name] and values[name].isoformat()
        return values | {"topics": list(self.topics)}


def _value(schema: str, mode: Mode, types: MessageTypes) -> Column:
    """Returns the column `value`. Only the bodies of messages that would be published have to fit
    the schema."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    declared = StructType.fromDDL(schema)
    if not isinstance(declared, StructType):
        raise ConfigurationError(
            f"schema {schema!r} names no fields: give them as in 'carrier STRING, dep_delay DOUBLE'"
        )
    kind = pa.struct(list(to_arrow_schema(declared, timezone="UTC")))

    BodyParser(kind, types)  # refuses types that no body has

    def value(
        bodies: pa.Array, message_types: pa.Array, bookmarks: pa.Array, commands: pa.Array
    ) -> pa.Array:
        found = BodyParser(kind, types).read(bodies, message_types, commands)
        if mode == "failfast" and found.refused:
            row, reason = found.refused[0]
            bookmark = bookmarks[row].as_py()
            with plain_errors():
                check_type(types, message_types[row].as_py(), bookmark)
                raise misfit_error(kind, bookmark, reason, "")
        return found.values

    make: Any = arrow_udf  # its stub knows no struct
    with quiet_pandas():
        made: Column = make(value, declared)("body", "message_type", "bookmark", "command")
    return made


def check_type(types: MessageTypes, name: str, bookmark: str) -> None:
    """Refuses a message whose type nothing defines.

    Raises:
        ConfigurationError: there is no such type; the error says where types are looked up.
    """
    try:
        types[name]
    except MessageTypeError as error:
        raise ConfigurationError(
            f"the body of message {bookmark} cannot be parsed by a schema: {error}. The messages "
            "of a journal have the types of its instance's configuration, those of a lake those of "
            "the fabric that --fabric names. Or choose other messages with --topic"
        ) from None


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Turns errors of Spark into a configuration error of one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise ConfigurationError(one_line(error)) from None


class SparkSource:
    """A lake or journals as the source of one replay (`replay.ChunkSource`).

    Owner: one replay; `stage` may run on another thread than `plan`, never both at once.

    Args:
        location: a lake's directory, a fabric's name or directory, or data directories separated by
            commas.
        instance: the instance whose log is replayed; empty: the one that holds most of the selected
            messages.
        on_corrupt: the effect of a damaged record in a journal: `stop`, or `skip`, which logs it.
        target_fabric: the fabric that the messages are published to. A lake does not have the
            definitions of message types, so its bodies are of the types of this fabric; empty: of
            the built-in ones. Those of a journal are of the types of its instance.

    Raises:
        StorageError: the location is neither a lake nor a journal.
        ConfigurationError: there is no such instance.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        selection: ReplaySelection,
        instance: str = "",
        progress: Callable[[str], None] = lambda line: None,
        on_corrupt: OnCorrupt = "stop",
        target_fabric: str = "",
    ) -> None:
        self._spark = spark
        self._location = location
        self._selection = selection
        self._wanted = instance
        self._progress = progress
        self._on_corrupt = on_corrupt
        self.is_lake = (Path(location) / META / "manifest.json").is_file()
        self._places = [] if self.is_lake else _places(location, instance)
        self._lake_types = types_of_fabric(target_fabric if self.is_lake else "")
        self.what = {
            "source": _whole(location),
            "instance": instance,
            "on_corrupt": on_corrupt,
            **selection.to_json(),
        }
        self._rows: DataFrame | None = None
        self._types = self._lake_types
        self._incarnations: list[str] = []

    # -- what there is -----------------------------------------------------------------------
    def _lake(self) -> DataFrame:
        from pyspark.sql import functions as F

        rows = read_lake(self._spark, self._location)
        file = F.col("_metadata.file_name")
        rows = rows.withColumn(INCARNATION, F.regexp_extract(file, FILE_NAME, 1))
        if self._wanted:
            rows = rows.where(F.col("instance") == self._wanted)
        # Whole days are whole directories.
        if self._selection.first is not None:
            rows = rows.where(F.col("date") >= self._selection.first.date().isoformat())
        if self._selection.last is not None:
            rows = rows.where(F.col("date") <= self._selection.last.date().isoformat())
        return rows

    def _journal(self, place: JournalPlace, columns: tuple[str, ...] = STAGED_COLUMNS) -> DataFrame:
        from pyspark.sql import functions as F

        return (
            self._spark.read.format("raylay")
            .options(
                path=place.journal,
                columns=",".join(dict.fromkeys((*columns, *self._mentioned()))),
                ending=json.dumps({"*": last_txid(place, self._on_corrupt)}),
                on_corrupt=self._on_corrupt,
                # Every query of these rows has a filter, and runs before the next is planned.
                pushdown="true",
                **({"archive": place.archive} if place.archive else {}),
            )
            .load()
            .withColumn("instance", F.lit(place.instance))
            .withColumn(INCARNATION, F.lit(place.incarnation()))
        )

    def _mentioned(self) -> Iterator[str]:
        from raylay.services.pipeline.tables.columns import COLUMNS

        if self._selection.schema:
            yield from ("message_type", "body", "bookmark")
        where = self._selection.where.lower()
        yield from (name for name in COLUMNS if name != "instance" and name in where)

    def plan(self, chunk_rows: int) -> ReplayPlan:
        """Counts the selected messages and cuts them into chunks.

        Raises:
            ConfigurationError: no message is selected, a body does not fit the schema, or the
                selection cannot be used.
            StorageError: the source cannot be read.
        """
        from pyspark.sql import functions as F

        grain_txids = max(GRAIN_TXIDS_MIN, min(chunk_rows, GRAIN_TXIDS_MAX))
        grain = F.floor(F.col("txid") / grain_txids).alias("grain")
        counted = self._counted(grain)
        by_instance: dict[str, int] = {}
        for row in counted:
            count = by_instance.get(row["instance"], 0)
            by_instance[row["instance"]] = count + row["publishes"] * row["rows"]
        order = [place.instance for place in self._places] or sorted(by_instance)
        instance = max(order, key=lambda name: by_instance.get(name, 0), default="")
        mine = [row for row in counted if row["instance"] == instance]
        left_out = _summed(mine, "left_out"), _summed(mine, "left_out_null")
        if not by_instance.get(instance):
            raise ConfigurationError(
                f"{self._location} holds no selected message: check --topic, --from, --to, "
                f"--instance and the filter{_left_out(*left_out)}; nothing was published"
            )
        mine = [row for row in mine if row["rows"]]
        began: dict[str, dt.datetime] = {}
        for row in mine:
            known = began.get(row[INCARNATION])
            began[row[INCARNATION]] = row["first"] if known is None else min(known, row["first"])
        incarnations = sorted(began, key=lambda name: began[name])
        plan = ReplayPlan(
            self.what,
            instance,
            incarnations,
            [],
            sum(row["rows"] for row in mine if not row["publishes"]),
            sorted(
                [*each]
                for each in {each for row in mine if row["publishes"] for each in row["topics"]}
            ),
            *left_out,
        )
        self.open(plan)
        if len(incarnations) > 1:
            # What an instance got back after it lost its data is not replayed again.
            with _told_in_one_line():
                counted = (
                    self._chosen()
                    .groupBy(NUMBER, grain)
                    .agg(F.count(F.lit(1)).alias("rows"), F.max("txid").alias("last"))
                    .collect()
                )
            grains = {(row[NUMBER], row["grain"]): (row["rows"], row["last"]) for row in counted}
        else:
            grains = {
                (0, row["grain"]): (row["rows"], row["last"]) for row in mine if row["publishes"]
            }
        plan.chunks = cut(grains, grain_txids, chunk_rows)
        others = sum(map(bool, by_instance.values())) - 1
        self._progress(
            f"{instance}: {plan.rows:,} messages in {len(plan.chunks)} chunks"
            + _left_out(*left_out)
            + (
                f"; {others} more instances hold selected messages, choose one with --instance"
                if others
                else ""
            )
        )
        return plan

    def _counted(self, grain: Column) -> list[Any]:
        """Counts the rows of the selected times and topics that the filter keeps and leaves out."""
        from pyspark.sql import functions as F

        marked = (
            self._selection.marked(self._lake(), self._lake_types)
            if self.is_lake
            else reduce(
                lambda a, b: a.unionByName(b),
                (
                    self._selection.marked(self._journal(place, COUNTED), types_at(place))
                    for place in self._places
                ),
            )
        )
        kept = F.col(KEPT)
        published_as = F.struct(_renamed(self._selection.to_topic), F.col("message_type"))
        with _told_in_one_line():
            return (
                marked.groupBy(
                    "instance",
                    INCARNATION,
                    grain,
                    F.col("command").isin(*MESSAGES).alias("publishes"),
                )
                .agg(
                    F.count_if(kept).alias("rows"),
                    F.max(F.when(kept, F.col("txid"))).alias("last"),
                    F.min(F.when(kept, F.col("receive_time"))).alias("first"),
                    F.collect_set(F.when(kept, published_as)).alias("topics"),
                    F.count_if(~F.coalesce(kept, F.lit(False))).alias("left_out"),
                    F.count_if(kept.isNull()).alias("left_out_null"),
                )
                .collect()
            )

    def open(self, plan: ReplayPlan) -> None:
        """Takes the instance and the incarnations of an existing plan.

        Raises:
            ConfigurationError: the instance does not exist any more.
        """
        self._incarnations = plan.incarnations
        if self.is_lake:
            self._wanted = plan.instance
            self._rows, self._types = self._lake(), self._lake_types
        else:
            for place in self._places:
                if place.instance == plan.instance:
                    self._rows, self._types = self._journal(place), types_at(place)
                    found = place.incarnation()
                    if [found] != plan.incarnations:
                        raise StorageError(
                            f"{place.journal} has incarnation {found}, but the job began with "
                            f"{plan.incarnations[0]}: the instance's data was replaced; begin a "
                            "new job",
                            place.journal,
                        )

    def _chosen(self) -> DataFrame:
        """Returns the selected messages of the plan's instance, each once, with the number of its
        incarnation."""
        from pyspark.sql import functions as F

        assert self._rows is not None
        number = F.array_position(
            F.array(*(F.lit(incarnation) for incarnation in self._incarnations)), F.col(INCARNATION)
        )
        rows = self._rows.withColumn(NUMBER, (number - 1).cast("int")).where(F.col(NUMBER) >= 0)
        selected = self._selection.condition(rows, self._types)
        chosen = selected.where(F.col("command").isin(*MESSAGES))
        if len(self._incarnations) == 1:
            return chosen
        held = rows.select(
            F.col("publisher").alias("_publisher"),
            F.col("sequence").alias("_sequence"),
            F.col(NUMBER).alias("_earlier"),
        )
        same = (
            (F.col("publisher") == F.col("_publisher"))
            & (F.col("sequence") == F.col("_sequence"))
            & (F.col("_earlier") < F.col(NUMBER))
        )
        return chosen.join(held, same, "left_anti")

    # -- chunks ------------------------------------------------------------------------------
    def stage(self, chunk: LogChunk, run: Path) -> StagedFile:
        """Writes a chunk's rows in the order of the log.

        Raises:
            StorageError: a part of it was removed, or the directory cannot be written.
        """
        from pyspark.sql import functions as F

        rows = (
            self._chosen()
            .where(F.col(NUMBER) == chunk.incarnation)
            .where(F.col("txid").between(chunk.first_txid, chunk.last_txid))
            .select(
                _renamed(self._selection.to_topic).alias("topic"),
                "message_type",
                "body",
                "key",
                "correlation_id",
                "expiration_s",
                F.unix_micros(self._selection.clock).alias(TIME),
                "txid",
            )
            .repartition(1)
            .sortWithinPartitions("txid")
        )
        with quiet_pandas(), _told_in_one_line():
            staged = rows.mapInArrow(partial(_stage_rows, run=str(run)), STAGED_DDL).collect()
        (found,) = staged
        return StagedFile(found["path"], found["partition"], found["rows"])


def _renamed(to_topic: str) -> Any:
    from pyspark.sql import functions as F

    if not to_topic:
        return F.col("topic")
    parts: list[Any] = []
    for part in to_topic.split(TOPIC_PLACE):
        parts += [F.col("topic"), F.lit(part)]
    return F.concat(*parts[1:])


def _stage_rows(batches: Iterator[pa.RecordBatch], run: str) -> Iterator[pa.RecordBatch]:
    """Writes all rows of a chunk into one file. Runs in a task."""

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                times = pc.cast(batch[TIME], pa.int64())
                made = normal(batch, "", "")
                yield pa.RecordBatch.from_arrays([*made.columns, times], schema=REPLAYED)

    file = stage(Path(run), 0, rows(), REPLAYED)
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([file.path]),
            pa.array([file.partition], pa.int32()),
            pa.array([file.rows], pa.int64()),
        ],
        names=["path", "partition", "rows"],
    )


def cut(
    grains: dict[tuple[int, int], tuple[int, int]], grain_txids: int, chunk_rows: int
) -> list[LogChunk]:
    """Cuts groups of transaction ids into chunks of about `chunk_rows`, in the order of the log.
    Messages that are appended later are in none.

    Args:
        grains: (number of the incarnation, transaction id divided by `grain_txids`) to (rows, last
            transaction id of them).
    """
    found: list[LogChunk] = []
    for (number, grain), (rows, last) in sorted(grains.items()):
        first = grain * grain_txids
        before = found[-1] if found else None
        if before and before.incarnation == number and before.rows + rows <= chunk_rows:
            found[-1] = LogChunk(number, before.first_txid, last, before.rows + rows)
        else:
            found.append(LogChunk(number, first, last, rows))
    return found


def _summed(rows: list[Any], name: str) -> int:
    return sum(row[name] for row in rows if row["publishes"])


def _left_out(rows: int, of_null: int) -> str:
    if not rows:
        return ""
    why = f", and is null for {of_null:,} of them" if of_null else ""
    return f"; the filter left {rows:,} out{why}"


def _whole(location: str) -> str:
    """Returns the absolute paths of directories, however they were named."""
    parts = [Path(each.strip()) for each in location.split(",")]
    return ",".join(str(part.resolve()) for part in parts) if _all_there(location) else location


def _all_there(location: str) -> bool:
    return all(Path(each.strip()).exists() for each in location.split(","))


def _places(location: str, instance: str) -> list[JournalPlace]:
    wanted: Sequence[str] = (instance,) if instance else ()
    if not _all_there(location):
        return places(fabric=location, instances=wanted)
    try:
        return places(path=location, instances=wanted)
    except StorageError as error:
        raise StorageError(
            f"{location} is neither a lake (it has no {META}/manifest.json) nor a journal: {error}",
            location,
        ) from None
