"""The format `raylay`: `spark.read`, `spark.readStream`, `write` and `writeStream`.

Spark makes the source on the driver, pickles its readers to the tasks and calls `read` there. The
options are described in docs/pipeline.md; an unknown option is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    Not,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.changes.network_source import (
    NetworkChangeOptions,
    change_batch_reader,
    change_option_names,
    change_options,
    change_stream_reader,
)
from raylay.services.pipeline.changes.source import ChangeOptions
from raylay.services.pipeline.dead_letters import DeadLetter, append_letters, letters_directory
from raylay.services.pipeline.journals import (
    PARTITION_BYTES_DEFAULT,
    JournalPlace,
    JournalStretch,
    OnCorrupt,
    StretchReader,
    check_fabric,
    last_txid,
    places,
    plan,
    position,
)
from raylay.services.pipeline.network.source import (
    NetworkBatchReader,
    NetworkOptions,
    NetworkStreamReader,
)
from raylay.services.pipeline.publishing.sink import BatchWriter, StreamWriter, WriteOptions
from raylay.services.pipeline.tables.catalog import (
    WRITTEN_COLUMNS,
    as_comment,
    checked_options,
    created_options,
    table_options,
)
from raylay.services.pipeline.tables.columns import COLUMNS, Batches
from raylay.services.pipeline.tables.content import RowFilter, checked_filter, types_at
from raylay.services.pipeline.tables.copies import (
    JournalBounds,
    JournalCopies,
    StreamCopies,
    check_different_names,
    check_one_fabric,
    is_one_journal,
    stretches_of,
)
from raylay.services.pipeline.tables.inference import InferredType, infer
from raylay.services.pipeline.tables.message_sets import MessageSelection
from raylay.services.pipeline.tables.offsets import (
    StreamBegin,
    another_journal,
    bound,
    bounds_of,
    check_window,
    offset_of,
    replaced_since,
)
from raylay.services.pipeline.tables.option_checks import (
    choose,
    known_options,
    named_columns,
    wanted_columns,
    whole_number,
)
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.pipeline.tables.refused_stream import RefusedStream
from raylay.services.pipeline.tables.topics import check_held, check_journaled
from raylay.services.pipeline.tables.value_column import VALUE, ValueColumn
from raylay.services.pipeline.tables.values import CORRUPT_RECORD, MESSAGE_COMMANDS, Mode
from raylay.services.pipeline.worker_errors import plain_errors
from raylay.services.subscriptions.matching import TopicFilter, topic_filter

log = logging.getLogger("raylay.pipeline")

FORMAT = "raylay"
DDL_OF: dict[pa.DataType, str] = {
    pa.string(): "STRING",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BINARY",
    COLUMNS["publisher"]: "DECIMAL(20,0)",
    COLUMNS["origin_time"]: "TIMESTAMP",
    COLUMNS["path"]: "ARRAY<STRING>",
}
SAMPLED = ("body", "message_type", "command")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("failfast", "permissive", "dropmalformed", "dead_letter"),
    "on_corrupt": ("stop", "skip", "dead_letter"),
    "on_data_loss": ("fail", "go_on"),
    "verify": ("true", "false"),
    "inferschema": ("true", "false"),
    "copies": ("one", "all"),
    "pushdown": ("true", "false"),
}
"""The values that options may have."""
SAMPLE_SIZE_DEFAULT = 10_000
SAMPLE_PLACES = 16
"""Places of a journal from which a sample is taken, so that it has old and new bodies."""
LOST_BYTES_MAX = 1024 * 1024
"""Bytes of damaged records that a dead letter holds."""


@dataclass(slots=True)
class ReadOptions:
    """The options of a read, checked.

    Raises:
        ConfigurationError: an option is unknown, or its value is not allowed.
    """

    path: str = ""
    fabric: str = ""
    directory: str = ""
    instance: str = ""
    group: str = ""
    copies: str = "one"
    archive: str = ""
    columns: str = ""
    topic: str = ""
    filter: str = ""
    schema: str = ""
    inferschema: str = "false"
    samplesize: int = SAMPLE_SIZE_DEFAULT
    mode: Mode = "failfast"
    columnnameofcorruptrecord: str = CORRUPT_RECORD
    dead_letters: str = ""
    starting: str = EPOCH
    ending: str = ""
    on_corrupt: Literal["stop", "skip", "dead_letter"] = "stop"
    on_data_loss: str = "fail"
    verify: str = "true"
    pushdown: str = "false"
    partition_bytes: int = PARTITION_BYTES_DEFAULT
    max_records_per_trigger: int = 0
    unknown: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Returns the options from those that Spark passes: lower-case names, values as text."""
        values = known_options(options, cls.names(), "there is no option")
        for name in ("partition_bytes", "max_records_per_trigger", "samplesize"):
            if name in values:
                values[name] = whole_number(name, values[name])
        made = cls(**values)
        choose(made, _CHOICES)
        check_window(made.starting, made.ending)
        if made.filter:
            checked_filter(made.filter)
        if made.inferschema == "true" and made.schema:
            raise ConfigurationError("give either the option schema or inferSchema")
        if ("dead_letter" in (made.mode, made.on_corrupt)) != bool(made.dead_letters):
            raise ConfigurationError(
                "the value dead_letter of mode or on_corrupt and the option dead_letters, a "
                "directory for the bodies that do not fit or cannot be read, belong together: give "
                "both or neither"
            )
        if made.dead_letters:
            letters_directory(made.dead_letters)
        return made

    @classmethod
    def names(cls) -> frozenset[str]:
        """Returns the names of all options."""
        return frozenset(cls.__dataclass_fields__) - {"unknown"}

    @property
    def damage(self) -> OnCorrupt:
        """Returns the effect of a damaged record, as the reading of a journal knows it."""
        return "stop" if self.on_corrupt == "stop" else "skip"

    def places(self) -> list[JournalPlace]:
        """Returns the journals to read.

        Raises:
            ConfigurationError: the options name none, or journals that cannot be read together.
            StorageError: a directory holds no journal.
        """
        found = places(
            self.path,
            self.fabric,
            self.directory,
            [name.strip() for name in self.instance.split(",")],
            self.group,
            self.archive,
        )
        if self.copies == "one":
            check_one_fabric(found)
        return found

    def column_names(self) -> list[str]:
        """Returns the wanted columns; all of them where none is named."""
        return named_columns(self.columns, _known_column) or list(COLUMNS)


def _known_column(name: str) -> pa.DataType:
    if name not in COLUMNS:
        raise ConfigurationError(
            f"a journal has no column {name}: there are {', '.join(COLUMNS)}, and {VALUE} with the "
            "option schema"
        )
    return COLUMNS[name]


class RaylaySource(DataSource):
    """The source and sink of format `raylay`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plain_errors()
    def schema(self) -> str:
        created = created_options(self.options)
        if created is None and ChangeOptions.are_meant(self.options):
            return ", ".join(change_options(self.options).ddl())
        if created is None:
            if NetworkOptions.are_meant(self.options):
                return ", ".join(_ddl(NetworkOptions.of(self.options)))
            return ", ".join(_ddl(ReadOptions.of(self.options)))
        # `CREATE TABLE`: its options come back with the schema.
        read, written = ReadOptions.names() | NetworkOptions.names(), WriteOptions.names()
        if ChangeOptions.are_meant(created):
            read, written = change_option_names(created), frozenset()
        options = checked_options(created, read, written)
        if ChangeOptions.are_meant(options):
            parts = change_options(options).ddl()
        elif _reads_network(options):
            _check_fabric_of(options)
            parts = _ddl(NetworkOptions.of(_of_network_read(options)))
        elif options.keys() & {"path", "fabric"}:
            parts = _ddl(of_table := ReadOptions.of(_of_read(options)))
            if of_table.path:
                of_table.places()
            else:  # it may be a table that is written to, without any journal on this host
                _check_fabric_of(options)
        else:
            _check_fabric_of(options)
            WriteOptions.of({name: options[name] for name in options.keys() & written})
            parts = [f"`{name}` {kind}" for name, kind in WRITTEN_COLUMNS.items()]
        return ", ".join([f"{parts[0]} COMMENT {as_comment(options)}", *parts[1:]])

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of `spark.read`."""
        if (changes := self._change_options(schema)) is not None:
            return change_batch_reader(changes, schema)
        if (options := self._network_options(schema)) is not None:
            return NetworkBatchReader(options, schema)
        return BatchReader(self._read_options(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the reader of `spark.readStream`; for what is refused, one that says so."""
        try:
            return self._stream_reader(schema)
        except Exception as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if (changes := self._change_options(schema)) is not None:
            return change_stream_reader(changes, schema)
        if (networked := self._network_options(schema)) is not None:
            return NetworkStreamReader(networked, schema)
        options = self._read_options(schema)
        if options.inferschema == "true":
            raise ConfigurationError(
                "a stream takes no option inferSchema, because its fields would differ from start "
                f"to start: give it a schema; now it would be {inferred_schema(options)}"
            )
        return StreamReader(options, schema)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Returns the writer of `write`."""
        return BatchWriter(self._write_options(schema), schema, overwrite)

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Returns the writer of `writeStream`."""
        return StreamWriter(self._write_options(schema), schema, overwrite)

    def _change_options(self, schema: StructType) -> ChangeOptions | NetworkChangeOptions | None:
        options = table_options(schema) | dict(self.options)
        return change_options(options) if ChangeOptions.are_meant(options) else None

    def _network_options(self, schema: StructType) -> NetworkOptions | None:
        """Returns the options of a read over the network; None: journals are read."""
        own = table_options(schema)
        if _reads_network(own):
            return NetworkOptions.of(_of_network_read(own) | dict(self.options))
        return NetworkOptions.of(self.options) if NetworkOptions.are_meant(self.options) else None

    def _read_options(self, schema: StructType) -> ReadOptions:
        own = _of_read(table_options(schema))
        own.pop("inferschema", None)  # the fields were inferred when the table was created
        options = own | dict(self.options)
        if not {"path", "fabric"} & {name.lower() for name in options}:
            raise ConfigurationError(
                "give either `path` (a data directory) or `fabric` (a fabric's file, directory or "
                "name). A table that was created with a list of columns has no options: leave the "
                "list out, and name the columns in the option `columns`. One whose first column "
                "was given another comment lost them: create it anew"
            )
        return ReadOptions.of(options)

    def _write_options(self, schema: StructType) -> WriteOptions:
        own = table_options(schema)
        of_write = {name: own[name] for name in own.keys() & WriteOptions.names()}
        options = of_write | dict(self.options)
        if not own and not {"servers", "fabric"} & {name.lower() for name in options}:
            raise ConfigurationError(
                "give either `servers` (host:port, separated by commas) or `fabric` (its name, "
                "file or directory). `CREATE TABLE … AS SELECT` and a table with a list of columns "
                "give no options: create the table with its options and without columns, then use "
                "INSERT INTO"
            )
        return WriteOptions.of(options)


def _check_fabric_of(options: Mapping[str, str]) -> None:
    """Refuses a created table with the option `fabric` where there is no such fabric."""
    if fabric := options.get("fabric", ""):
        check_fabric(fabric)


def _of_read(options: Mapping[str, str]) -> dict[str, str]:
    """Returns those of a table's options that are for a read."""
    found = {name: options[name] for name in options.keys() & ReadOptions.names()}
    if "dead_letter" not in [found.get(name, "").lower() for name in ("mode", "on_corrupt")]:
        found.pop("dead_letters", None)  # it is for what is written
    return found


def _reads_network(options: Mapping[str, str]) -> bool:
    """Returns whether a created table is read over the network: `servers` alone may be where it is
    written to."""
    return options.get("network", "").lower() == "true"


def _of_network_read(options: Mapping[str, str]) -> dict[str, str]:
    """Returns those of a created table's options that are for a read over the network."""
    found = {name: options[name] for name in options.keys() & NetworkOptions.names()}
    if found.get("mode", "").lower() != "dead_letter":
        found.pop("dead_letters", None)  # it is for what is written
    return found


def _ddl(options: ReadOptions | NetworkOptions) -> list[str]:
    """Returns the columns of a read in DDL."""
    parts = [f"`{name}` {DDL_OF[COLUMNS[name]]}" for name in options.column_names()]
    declared = options.schema
    if isinstance(options, ReadOptions) and options.inferschema == "true":
        declared = inferred_schema(options)
    if declared:
        parts.append(f"`{VALUE}` STRUCT<{declared}>")
    return parts


class StretchTable:
    """The table that a batch and a stream read: its columns, its conditions, and the reading of one
    stretch of a journal.

    Attributes:
        predicate: the conditions by which segments, runs and records are left out.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.predicate = Predicate()
        self.wanted: TopicFilter | None = None
        if options.topic:
            self.wanted = topic_filter(options.topic, "")
            self.predicate.subscribe(options.topic)
        wanted = wanted_columns(schema, _known_column)
        self.arrow_schema, self.columns, self.value_type = wanted

    def read_stretch(self, stretch: JournalStretch) -> Iterator[pa.RecordBatch]:
        options = self.options
        lost = _LostRecords(options, stretch.place.instance)
        reader = StretchReader(stretch, options.damage, lost.add)
        needed = dict.fromkeys((*self.columns, *(("topic",) if self.wanted is not None else ())))
        values = None
        if self.value_type is not None:
            with plain_errors():
                types = types_at(stretch.place)
                source, journal = stretch.place.instance, stretch.place.journal
                part = f"{source}-{stretch.first_txid:016x}-{stretch.last_txid:016x}"
                values = ValueColumn(options, self.value_type, types, source, part, journal)
            needed |= dict.fromkeys(values.needed)
        batches = Batches(
            stretch.place.instance,
            stretch.segment,
            stretch.first_txid,
            stretch.last_txid,
            list(needed),
            self.predicate,
            reader.damaged,
            verify=options.verify == "true",
            on_corrupt=options.damage,
            lost=lost.add,
            messages=MessageSelection.of(stretch),
        )
        try:
            with plain_errors():
                passing = (
                    RowFilter(options.filter, stretch.place).passing if options.filter else None
                )
                for blocks in reader.blocks():
                    rows = batches.batch(blocks, passing)
                    if rows is not None and self.wanted is not None:
                        rows = _of_topics(rows, self.wanted)
                    if rows is None:
                        continue
                    column = None
                    if values is not None:
                        rows, column = values.of(rows)
                    yield self._shaped(rows, column)
                if values is not None:
                    values.finish()
        finally:
            reader.close()

    def _shaped(self, rows: pa.RecordBatch, values: pa.Array | None) -> pa.RecordBatch:
        made = [
            values if values is not None and name == VALUE else rows[name]
            for name in self.arrow_schema.names
        ]
        return pa.RecordBatch.from_arrays(made, schema=self.arrow_schema)


class _LostRecords:
    """Keeps what cannot be read as dead letters, if the read has them: a file for each damaged
    place, which a task or a query that reads the place again replaces."""

    def __init__(self, options: ReadOptions, instance: str) -> None:
        self._directory = (
            letters_directory(options.dead_letters) if options.on_corrupt == "dead_letter" else None
        )
        self._instance = instance

    def add(self, text: str, txid: int, content: bytes) -> None:
        """Keeps one place.

        Raises:
            StorageError: the directory cannot be written.
        """
        if self._directory is None:
            return
        name = f"{self._instance}-damaged-{txid:016x}-{checksum64(content):016x}"
        body = content[:LOST_BYTES_MAX] or None
        letter = DeadLetter(self._instance, text, txid, body=body)
        append_letters(self._directory, name, [letter])


def _of_topics(rows: pa.RecordBatch, wanted: TopicFilter) -> pa.RecordBatch:
    """Returns the rows whose topic is wanted. The header of each run has a wanted topic, but the
    records of a run may have topics of their own."""
    unwanted = [
        topic
        for topic in rows["topic"].unique().to_pylist()
        if not wanted.matches(topic.encode(), b"")
    ]
    if not unwanted:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["topic"], pa.array(unwanted, pa.string()))))


class BatchReader(DataSourceReader):
    """One batch read: a snapshot of what was committed when it was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.table = StretchTable(options, schema)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes filters by which segments, runs and records can be skipped, with the option
        `pushdown`. Returns all of them, because Spark evaluates each again.

        Spark 4.3 keeps the partitions of the last filtered query with the table, and gives them to
        every other query of the same DataFrame, and to each mention of a table in a statement: so
        a table leaves nothing out unless its user says that it has one filter only.
        """
        if self.options.pushdown == "false":
            return filters
        for pushed in filters:
            inner, prefix = (pushed.child, "Not ") if isinstance(pushed, Not) else (pushed, "")
            attribute: tuple[str, ...] = getattr(inner, "attribute", ())
            if len(attribute) == 1 and hasattr(inner, "value"):
                self.table.predicate.push(attribute[0], prefix + type(inner).__name__, inner.value)
        return filters

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Returns one partition for each stretch that may hold wanted records.

        Raises:
            RaylayError: the journals cannot be read as the options say.
        """
        options = self.options
        wanted = options.places()
        if options.topic:
            check_held(options.topic, wanted)
        bounds = bounds_of(wanted, options.starting, options.ending, options.damage)
        chosen = None
        if options.copies == "one" and len(bounds) > 1:
            chosen = JournalCopies(options.damage).chosen(bounds, PublisherRanges())
        found = stretches_of(bounds, self.table.predicate, options.partition_bytes, chosen)
        return list(map(InputPartition, found))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition; none where nothing is wanted."""
        if partition.value is None:
            return iter(())
        return self.table.read_stretch(partition.value)


# -- inference -----------------------------------------------------------------------------------
def inferred_schema(options: ReadOptions) -> str:
    """Returns the DDL of the fields in a sample of the bodies that the options select.

    Raises:
        ConfigurationError: none of them has fields.
        RaylayError: the journals cannot be read as the options say.
    """
    found = infer(_sample(options, SAMPLE_PLACES), options.samplesize)
    if not found.columns():
        # The topic, say, is rare: then the whole is read up to the first that there are.
        found = infer(_sample(options, 1), options.samplesize)
    if not found.columns():
        raise ConfigurationError(
            "there is no message from whose body a schema could be inferred: give the option schema"
        )
    if options.mode == "permissive":
        found.fields.setdefault(options.columnnameofcorruptrecord, InferredType("STRING"))
    return found.columns()


def _sample(options: ReadOptions, pieces: int) -> Iterator[tuple[pa.RecordBatch, MessageTypes]]:
    """Yields the messages at so many places of each journal; at one: all of them."""
    kind = from_arrow_schema(pa.schema([(name, COLUMNS[name]) for name in SAMPLED]))
    table = StretchTable(options, kind)
    wanted = options.places()
    each = -(-options.samplesize // (pieces * len(wanted)))
    for bounds in bounds_of(wanted, options.starting, options.ending, options.damage):
        place, after, last = bounds.place, bounds.after_txid, bounds.last_txid
        types = types_at(place)
        for piece in range(pieces):
            first = after + (last - after) * piece // pieces
            upto = min(last, first + each) if pieces > 1 else last
            for stretch in plan(place, first, upto, table.predicate, options.partition_bytes):
                for rows in table.read_stretch(stretch):
                    yield rows.filter(pc.is_in(rows["command"], MESSAGE_COMMANDS)), types


# -- streams -------------------------------------------------------------------------------------
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. An offset, in Spark's checkpoint, holds for each instance the incarnation of its
    data, the last transaction id that was read, and the numbers that identify that record
    (`record_told`); where one copy of each message is read, also the messages that were given."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.table = StretchTable(options, schema)
        self._first = StreamBegin()
        one = options.copies == "one" and not is_one_journal(options.path, options.instance)
        self._copies = StreamCopies(JournalCopies(options.damage) if one else None)
        self._target: dict[str, int] | None = None
        if options.ending:
            raise ConfigurationError(
                "a stream takes no option `ending`: read a batch, or stop the query"
            )

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset at which a new query begins: `starting`."""
        found = self._places()
        if self.options.topic:
            check_journaled(self.options.topic, found)
        made = self._copies.begin(
            {
                place.instance: offset_of(place, bound(place, "starting", self.options.starting))
                for place in found
            }
        )
        self._first.now_is(self.options.starting, made)
        return made

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns `max_records_per_trigger` as a limit."""
        rows = self.options.max_records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Sets the newest committed messages as the end of the query."""
        self._target = {place.instance: self._newest(place) for place in self._places()}

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch. Where the rate is limited, all instances are
        read by the same share.

        Raises:
            StorageError: an instance's journal is not the one that the query read, or was restored
                from a backup.
        """
        if self._first.is_kept_by(start):
            return start
        self._copies.check(start)
        places_read: dict[str, JournalPlace] = {}
        begins: dict[str, int] = {}
        backlogs: dict[str, int] = {}
        found = dict(start)
        for place in self._places():
            name = place.instance
            if self._target is not None and name not in self._target:
                continue  # appeared after the query's target was set
            newest = self._newest(place)
            if self._target is not None:  # of a journal that may be gone since
                newest = min(newest, self._target[name])
            places_read[name] = place
            known = start.get(name)
            begin = self._begin(place, known)
            begins[name] = position(place, EPOCH) if begin is None else begin
            if known is not None and begin is None:
                del found[name]
            backlogs[name] = max(0, newest - begins[name])
        wanted = sum(backlogs.values())
        if isinstance(limit, ReadMaxRows):
            wanted = min(wanted, limit.max_rows)
        for name, count in shares(backlogs, wanted).items():
            if count or name not in found:
                found[name] = offset_of(places_read[name], begins[name] + count)
        return self._copies.ended(start, found, self._bounds)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the newest committed messages of each instance, for Spark's progress of the
        query."""
        places_now = self.options.places()
        return {place.instance: offset_of(place, self._newest(place)) for place in places_now}

    def _places(self) -> list[JournalPlace]:
        found = self.options.places()
        check_different_names(found)
        return found

    def _newest(self, place: JournalPlace) -> int:
        return last_txid(place, self.options.damage)

    def _begin(self, place: JournalPlace, known: dict[str, Any] | None) -> int | None:
        """Returns the transaction id behind which this instance's part of a micro-batch begins;
        None: it begins with the journal."""
        if known is None:
            return None
        if text := replaced_since(place, known):
            self._lost(another_journal(place, text))
            return None
        return int(known["txid"])

    def _lost(self, error: StorageError) -> None:
        if self.options.on_data_loss != "go_on":
            raise error
        log.warning("%s: going on", error)

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the stretches between two offsets.

        Raises:
            StorageError: a part of them was removed or replaced, and `on_data_loss` is `fail`.
        """
        self._copies.check(start)
        bounds = self._bounds(start, end)
        chosen = self._copies.chosen(start, bounds)
        size_bytes = self.options.partition_bytes
        found = stretches_of(bounds, self.table.predicate, size_bytes, chosen)
        return list(map(InputPartition, found))

    def _bounds(self, start: dict[str, Any], end: dict[str, Any]) -> list[JournalBounds]:
        found: list[JournalBounds] = []
        for place in self._places():
            if place.instance not in end:
                continue
            # Planned before a restart, and replaced since: what was meant is gone.
            if text := replaced_since(place, end[place.instance]):
                self._lost(another_journal(place, text))
                continue
            last = int(end[place.instance]["txid"])
            first = position(place, EPOCH) + 1
            known = start.get(place.instance)
            after = int(known["txid"]) if known is not None else first - 1
            if known is not None and replaced_since(place, known):
                after = first - 1
            if after < last and after + 1 < first:
                self._lost(
                    StorageError(
                        f"{place.journal} begins at transaction id {first}, but the query goes "
                        f"on at {after + 1}: segments were removed before they were read; begin "
                        "a new checkpoint, or set on_data_loss to go_on",
                        place.journal,
                    )
                )
                after = first - 1
            found.append(JournalBounds(place, after, last))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())
        return self.table.read_stretch(partition.value)


def shares(backlogs: dict[str, int], wanted: int) -> dict[str, int]:
    """Divides `wanted` rows over the instances, in proportion to the backlog of each."""
    total = sum(backlogs.values())
    found: dict[str, int] = {}
    given = seen = 0
    for name, backlog in backlogs.items():
        seen += backlog
        upto = seen * wanted // total if total else 0
        found[name] = upto - given
        given = upto
    return found
