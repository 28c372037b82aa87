"""The format `raylay` with the option `servers`: reads over the client protocol (docs/pipeline.md).

The driver asks an instance what it holds, and divides what is new among tasks; each task has a
client of its own, which tells the instance to send its part only. No data directory is needed.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raylay.services.client.messages import MessageBatch
from raylay.services.client.named_readers import EXPIRES_S_DEFAULT
from raylay.services.errors import ConfigurationError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.dead_letters import letters_directory
from raylay.services.pipeline.network.offsets import (
    from_json,
    lies_before,
    limited,
    new_in,
    portions,
    to_json,
    united,
)
from raylay.services.pipeline.network.reading import NetworkPlace, NetworkReader, ReaderPlaces
from raylay.services.pipeline.publishing.sink import WriteOptions
from raylay.services.pipeline.selection import time_of
from raylay.services.pipeline.tables.columns import COLUMNS, Rows, rows_of_deliveries
from raylay.services.pipeline.tables.content import checked_filter, types_of_fabric
from raylay.services.pipeline.tables.offsets import StreamBegin, check_window, reversed_window
from raylay.services.pipeline.tables.option_checks import (
    choose,
    known_options,
    named_columns,
    wanted_columns,
    whole_number,
)
from raylay.services.pipeline.tables.value_column import VALUE, ValueColumn
from raylay.services.pipeline.tables.values import CORRUPT_RECORD, Mode
from raylay.services.pipeline.worker_errors import plain_errors

log = logging.getLogger("raylay.pipeline")

NOT_SENT = ("segment", "txid", "receive_time", "path", "group", "awaited", "late", "crossed")
"""Columns of a journal that an instance does not send to its clients. Of the times of receipt it
sends only that of the first message of a delivery."""
NETWORK_COLUMNS = {name: kind for name, kind in COLUMNS.items() if name not in NOT_SENT}
ALL_TOPICS = ".*"
READERS_DEFAULT = 4
PORTION_MESSAGES_MIN = 20_000
"""Messages below which a micro-batch is not divided further: a reader takes 50 ms to connect."""
_WHOLE_OPTIONS = ("readers", "reader_expires_s", "max_records_per_trigger")
_SECONDS_OPTIONS = ("connect_wait_s", "read_wait_s")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("failfast", "permissive", "dropmalformed", "dead_letter"),
    "on_data_loss": ("fail", "go_on"),
    "network": ("true", "false"),
}


@dataclass(slots=True)
class NetworkOptions:
    """The options of a read over the network, checked.

    Raises:
        ConfigurationError: an option is unknown, or its value is not allowed.
    """

    servers: str = ""
    fabric: str = ""
    network: str = "true"
    group: str = ""
    columns: str = ""
    topic: str = ALL_TOPICS
    filter: str = ""
    schema: str = ""
    mode: Mode = "failfast"
    columnnameofcorruptrecord: str = CORRUPT_RECORD
    dead_letters: str = ""
    starting: str = EPOCH
    ending: str = ""
    on_data_loss: str = "fail"
    readers: int = READERS_DEFAULT
    reader: str = ""
    reader_expires_s: int = EXPIRES_S_DEFAULT
    max_records_per_trigger: int = 0
    connect_wait_s: float = 30.0
    read_wait_s: float = 60.0
    ca_file: str = ""
    certificate: str = ""
    private_key: str = ""

    @classmethod
    def names(cls) -> frozenset[str]:
        """Returns the names of all options."""
        return frozenset(cls.__dataclass_fields__)

    @classmethod
    def are_meant(cls, options: Mapping[str, str]) -> bool:
        """Returns whether a read with these options is one over the network."""
        given = {name.lower(): value for name, value in options.items()}
        return "servers" in given or given.get("network", "").lower() == "true"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> NetworkOptions:
        """Returns the options from those that Spark passes: lower-case names, values as text."""
        hints = {"path": " (of a read of journals: leave `servers` out)"}
        no_option = "a read over the network has no option"
        values = known_options(options, cls.names(), no_option, hints)
        for name in _WHOLE_OPTIONS:
            if name in values:
                values[name] = whole_number(name, values[name])
        for name in _SECONDS_OPTIONS:
            if name in values:
                values[name] = _seconds(name, values[name])
        made = cls(**values)
        choose(made, _CHOICES)
        check_window(made.starting, made.ending, has_txids=False)
        if bool(made.servers) == bool(made.fabric):
            raise ConfigurationError(
                "give either `servers` (host:port, separated by commas) or `fabric` (its name, "
                "file or directory) with `network` = true"
            )
        if made.filter:
            checked_filter(made.filter)
        if (made.mode == "dead_letter") != bool(made.dead_letters):
            raise ConfigurationError(
                "mode dead_letter and the option dead_letters, a directory for the bodies that do "
                "not fit, belong together: give both or neither"
            )
        if made.dead_letters:
            letters_directory(made.dead_letters)
        return made

    @property
    def goes_on(self) -> bool:
        """Returns whether what is left is read where messages were removed."""
        return self.on_data_loss == "go_on"

    def column_names(self) -> list[str]:
        """Returns the wanted columns; all of them where none is named."""
        return named_columns(self.columns, _known_column) or list(NETWORK_COLUMNS)

    def place(self) -> NetworkPlace:
        """Returns where the options read, with the user's name and password that the environment
        of this process gives.

        Raises:
            ConfigurationError: there is no such fabric or group, or a file cannot be read.
        """
        options = WriteOptions(
            self.servers,
            self.fabric,
            self.group,
            ca_file=self.ca_file,
            certificate=self.certificate,
            private_key=self.private_key,
        )
        return NetworkPlace(
            options.client_options(),
            self.topic,
            self.filter,
            self.connect_wait_s,
            self.read_wait_s,
        )

    def types(self) -> MessageTypes | None:
        """Returns the message types of the fabric; None where only servers are known, which tell
        each reader theirs (`NetworkReader.types`)."""
        return types_of_fabric(self.fabric) if self.fabric else None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigurationError(f"{name} is {text!r}: give a number of seconds above 0")
    return seconds


def _bookmark(text: str) -> str:
    """Returns the bookmark of an option, which may be a time in ISO 8601 or a number since 1970."""
    found = time_of(text)
    if found is None:
        return text
    return f"{found.astimezone(dt.UTC):%Y%m%dT%H%M%S.%fZ}"


def _known_column(name: str) -> pa.DataType:
    if name in NETWORK_COLUMNS:
        return NETWORK_COLUMNS[name]
    why = "an instance does not send it to clients" if name in NOT_SENT else "no message has it"
    raise ConfigurationError(
        f"column {name} cannot be read over the network: {why}; there are "
        f"{', '.join(NETWORK_COLUMNS)}, and {VALUE} with the option schema"
    )


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of a micro-batch that one task reads.

    Attributes:
        start, end, wanted: as the reader's `read` takes them, in the form of the wire.
        name: names the portion, the same for a repeated task.
        place: where it is read: instances may have moved since the query began.
    """

    start: dict[int, bytes]
    end: dict[int, bytes]
    wanted: dict[int, bytes]
    name: str
    place: NetworkPlace


class NetworkTable:
    """The table that a batch and a stream read over the network."""

    def __init__(self, options: NetworkOptions, schema: StructType) -> None:
        self.options = options
        self.place = options.place()
        self.types = options.types() if options.schema else None
        wanted = wanted_columns(schema, _known_column)
        self.arrow_schema, self.columns, self.value_type = wanted

    def partitions(self, start: PublisherRanges, end: PublisherRanges) -> list[InputPartition]:
        """Returns a partition for each reader; none where nothing is new."""
        begin, stop = start.to_wire(), end.to_wire()
        self.place.servers()
        found: list[InputPartition] = []
        for portion in portions(start, end, self.options.readers, PORTION_MESSAGES_MIN):
            wire = portion.to_wire()
            name = sha256(repr(sorted(wire.items())).encode()).hexdigest()[:24]
            found.append(InputPartition(Portion(begin, stop, wire, name, self.place)))
        return found

    def read(self, portion: Portion) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a portion."""
        with plain_errors():
            wanted = PublisherRanges.from_wire(portion.wanted)
            start = PublisherRanges.from_wire(portion.start)
            reader = NetworkReader(portion.place)
            try:
                values = None
                if self.value_type is not None:
                    types = self.types or reader.types
                    source = self.options.servers or self.options.fabric
                    values = ValueColumn(self.options, self.value_type, types, source, portion.name)
                for instance, deliveries in reader.read(
                    start,
                    PublisherRanges.from_wire(portion.end),
                    wanted,
                    fails=not self.options.goes_on,
                ):
                    rows = _wanted(rows_of_deliveries(instance, deliveries), deliveries, wanted)
                    if rows is not None:
                        yield self._shaped(rows, values)
                if values is not None:
                    values.finish()
            finally:
                reader.close()

    def _shaped(self, rows: Rows, values: ValueColumn | None) -> pa.RecordBatch:
        needed = dict.fromkeys((*self.columns, *(values.needed if values is not None else ())))
        schema = pa.schema([(name, COLUMNS[name]) for name in needed])
        made = pa.RecordBatch.from_arrays([rows.column(name) for name in needed], schema=schema)
        column = None
        if values is not None:
            made, column = values.of(made)
        arrays = [
            column if column is not None and name == VALUE else made[name]
            for name in self.arrow_schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


def _wanted(
    rows: Rows, deliveries: Iterable[MessageBatch[Any]], wanted: PublisherRanges
) -> Rows | None:
    """Returns the rows whose publisher is in the portion: the instance knew of none of the others
    that they are not wanted."""
    known = wanted.sets
    if all(publisher in known for each in deliveries for publisher, *_ in each.ranges or ()):
        return rows
    chosen = np.isin(rows.headers["publisher"], np.array(list(known), np.uint64))
    return rows.only(chosen) if chosen.any() else None


class NetworkBatchReader(DataSourceReader):
    """One batch read over the network: what an instance holds when it is planned."""

    def __init__(self, options: NetworkOptions, schema: StructType) -> None:
        self.table = NetworkTable(options, schema)

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Returns a partition for each reader.

        Raises:
            ConfigurationError: the instance holds no message of the topic; the error names the
                topics that there are.
            RaylayError: no server can be reached, or it refuses what is wanted.
        """
        options = self.table.options
        reader = NetworkReader(self.table.place)
        try:
            if options.topic != ALL_TOPICS and (absent := reader.absent_topic()):
                raise ConfigurationError(absent)
            start = reader.held(_bookmark(options.starting), goes_on=options.goes_on)
            end = reader.held(_bookmark(options.ending)) if options.ending else reader.held()
            if options.ending and lies_before(end, start):
                raise reversed_window(options.starting, options.ending, reader.instance)
        finally:
            reader.close()
        # A read of nothing needs a partition, too.
        return self.table.partitions(start, end) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition."""
        if partition.value is None:
            return iter(())
        return self.table.read(partition.value)


class NetworkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream over the network."""

    def __init__(self, options: NetworkOptions, schema: StructType) -> None:
        self.table = NetworkTable(options, schema)
        self._first = StreamBegin()
        self._target: PublisherRanges | None = None
        if options.ending:
            raise ConfigurationError(
                "a stream takes no option `ending`: read a batch, or stop the query"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the reader, but not the driver's clients.
        clients = ("_reader", "_told")
        return {name: value for name, value in vars(self).items() if name not in clients}

    @cached_property
    def _reader(self) -> NetworkReader:
        return NetworkReader(self.table.place)

    @cached_property
    def _told(self) -> ReaderPlaces:
        options = self.table.options
        return ReaderPlaces(self.table.place, options.reader, options.reader_expires_s)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset at which a new query begins: `starting`."""
        options = self.table.options
        if options.topic != ALL_TOPICS and (absent := self._reader.absent_topic()):
            log.warning("%s; the stream waits for the topic", absent)
        begin = self._reader.held(_bookmark(options.starting), goes_on=options.goes_on)
        made = to_json(begin)
        self._first.now_is(self.table.options.starting, made)
        self._told.tell(begin)
        return made

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns `max_records_per_trigger` as a limit."""
        rows = self.table.options.max_records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Sets what the instance holds now as the end of the query."""
        self._target = self._reader.held()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch.

        Raises:
            RaylayError: no server can be reached, or it refuses what is wanted.
        """
        if self._first.is_kept_by(start):
            return start
        known = from_json(start)
        held = self._reader.held() if self._target is None else self._target
        if not new_in(known, held):
            # Another instance may lack some of what was read: that is no step back.
            return start
        end = united(known, held)
        if isinstance(limit, ReadMaxRows):
            end = limited(known, end, limit.max_rows)
        return to_json(end)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns what the instance holds, for Spark's progress of the query."""
        return to_json(self._reader.held())

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns a partition for each reader of the messages between two offsets."""
        return self.table.partitions(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition."""
        return self.table.read(partition.value)

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Tells the servers that a named reader does not need what was before `end`."""
        if self.table.options.reader:
            self._told.tell(from_json(end))

    def stop(self) -> None:
        """Ends the driver's clients."""
        for name in ("_reader", "_told"):
            client = vars(self).pop(name, None)
            if client is not None:
                client.close()
