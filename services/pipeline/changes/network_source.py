"""The changes of a SOW topic over the network: the options `changes` and `servers`, or `network`,
of the format `raylay`.

One task asks an instance for the topic's records, and compares them with those of the micro-batch
before.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.changes.columns import ChangeColumns, checked_mode, wanted_schema
from raylay.services.pipeline.changes.network_state import (
    STATE,
    STEP,
    NetworkChangeState,
    NetworkTopic,
)
from raylay.services.pipeline.changes.source import (
    ChangeBatchReader,
    ChangeOptions,
    ChangeStreamReader,
)
from raylay.services.pipeline.changes.table import STORED, column_names, ddl_of
from raylay.services.pipeline.journals import record_of
from raylay.services.pipeline.network.offsets import from_json, new_in, to_json, united
from raylay.services.pipeline.network.reading import NetworkReader, types_for
from raylay.services.pipeline.network.source import NetworkOptions
from raylay.services.pipeline.tables.option_checks import known_options
from raylay.services.pipeline.tables.values import CORRUPT_RECORD
from raylay.services.pipeline.worker_errors import plain_errors

NOT_KNOWN = ("txid", "receive_time")
"""Columns of changes from a journal that an instance does not send to its clients."""
NETWORK_STORED = tuple(name for name in STORED if name not in NOT_KNOWN)
MESSAGE_TYPE_DEFAULT = "json"
_OF_NETWORK = frozenset(
    (
        "servers",
        "fabric",
        "network",
        "group",
        "connect_wait_s",
        "read_wait_s",
        "ca_file",
        "certificate",
        "private_key",
    )
)
_ALWAYS_NOW = " (a stream begins with the records of now, a batch has them only)"
_HINTS = {
    "starting": _ALWAYS_NOW,
    "ending": _ALWAYS_NOW,
    "path": " (of changes from a journal: leave `servers` out)",
    "max_records_per_trigger": " (a micro-batch has one row for each record that changed)",
}


@dataclass(slots=True)
class NetworkChangeOptions:
    """The options of a read of changes over the network, checked.

    Raises:
        ConfigurationError: an option is unknown, or its value is not allowed.
    """

    over: NetworkOptions
    topic: str = ""
    message_type: str = ""
    keys: str = ""
    columns: str = ""
    schema: str = ""
    mode: str = "failfast"
    columnnameofcorruptrecord: str = CORRUPT_RECORD
    state: str = ""
    changes: str = "true"

    @classmethod
    def names(cls) -> frozenset[str]:
        """Returns the names of all options."""
        return (frozenset(cls.__dataclass_fields__) - {"over"}) | _OF_NETWORK

    @classmethod
    def of(cls, options: Mapping[str, str]) -> NetworkChangeOptions:
        """Returns the options from those that Spark passes."""
        no_option = "a read of changes over the network has no option"
        values = known_options(options, cls.names(), no_option, _HINTS)
        of_network = {name: values.pop(name) for name in _OF_NETWORK & values.keys()}
        of_network["topic"] = values.get("topic", "")
        made = cls(NetworkOptions.of(of_network), **values)
        made.mode = checked_mode(made.mode)
        if not made.topic:
            raise ConfigurationError("give the option topic: the name of a SOW topic")
        return made

    def topic_read(self) -> NetworkTopic:
        """Returns the topic, with the key fields and message type that the options or the fabric's
        configuration give.

        Raises:
            ConfigurationError: the fabric has no such SOW topic, or it cannot be reached.
        """
        keys = tuple(name.strip() for name in self.keys.split(",") if name.strip())
        message_type = self.message_type
        record = record_of(self.over.fabric) if self.over.fabric else None
        if record is not None:
            settings = FabricSettings.from_json(record.settings)
            wanted = [each for each in settings.instances if self.over.group in ("", each.group)]
            known = [each for instance in wanted for each in settings.sow_of(instance)]
            found = [
                each
                for each in known
                if each.name == self.topic and message_type in ("", each.message_type)
            ]
            # Views are SOW topics, too, whose keys are not among their definition's.
            if found:
                keys = keys or found[0].keys
                message_type = found[0].message_type
        return NetworkTopic(self.over.place(), message_type or MESSAGE_TYPE_DEFAULT, keys)

    def ddl(self) -> list[str]:
        """Returns the columns of the table in DDL."""
        keys = self.topic_read().keys
        return ddl_of(column_names(self.columns, bool(keys), NETWORK_STORED), keys, self.schema)


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """The step whose changes one task reads, between two offsets.

    Attributes:
        state: the directory of the reading; empty: the task makes one for itself.
    """

    topic: NetworkTopic
    start: dict[str, Any]
    end: dict[str, Any]
    state: str


class _NetworkChangeTable:
    """The part that a batch and a stream share."""

    def __init__(self, options: NetworkChangeOptions, schema: StructType) -> None:
        self.options = options
        self.topic = options.topic_read()
        self.types = options.over.types()
        self.arrow_schema = wanted_schema(schema)

    def read(self, step: ChangeStep) -> Iterator[pa.RecordBatch]:
        if step.state:
            yield from self._read_in(step.state, step)
            return
        with tempfile.TemporaryDirectory(prefix="raylay-changes-") as directory:
            NetworkChangeState(directory, step.topic).begun(step.start)
            yield from self._read_in(directory, step)

    def _read_in(self, directory: str, step: ChangeStep) -> Iterator[pa.RecordBatch]:
        options, topic = self.options, step.topic
        with plain_errors():
            path = NetworkChangeState(directory, topic).rows(step.start, step.end)
            columns = ChangeColumns(
                self.arrow_schema,
                self.types or types_for(topic.place, topic.message_type),
                topic.message_type,
                topic.keys,
                options.mode,
                options.columnnameofcorruptrecord,
            )
            with pa.ipc.open_stream(str(path)) as rows:
                for batch in rows:
                    if len(batch):
                        yield columns.shaped(batch, f"of {topic.place.topic}")


def _first_offset(held: PublisherRanges) -> dict[str, Any]:
    return {**to_json(held), STEP: 0, STATE: uuid.uuid4().hex}


def _next_offset(start: dict[str, Any], held: PublisherRanges) -> dict[str, Any]:
    return {**to_json(held), STEP: start[STEP] + 1, STATE: start[STATE]}


class NetworkChangeBatchReader(DataSourceReader):
    """A batch: the records of now."""

    def __init__(self, options: NetworkChangeOptions, schema: StructType) -> None:
        self._table = _NetworkChangeTable(options, schema)
        if options.state:
            raise ConfigurationError(
                "state is an option of a stream: a batch keeps nothing for the next one"
            )

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Returns the one partition that there is.

        Raises:
            RaylayError: no server can be reached, or it refuses what is wanted.
        """
        topic = self._table.topic
        reader = NetworkReader(topic.place)
        try:
            held = reader.held()
        finally:
            reader.close()
        start = _first_offset(held)
        return [InputPartition(ChangeStep(topic, start, _next_offset(start, held), ""))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        return self._table.read(partition.value)


class NetworkChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, which begins with the records of now. An offset is that of a stream over the
    network, with the number of its step and the id of the state's directory."""

    def __init__(self, options: NetworkChangeOptions, schema: StructType) -> None:
        self._table = _NetworkChangeTable(options, schema)
        self._target: PublisherRanges | None = None
        if not options.state:
            raise ConfigurationError(
                "a stream of changes needs the option state: a directory of its own, beside its "
                "checkpoint, which the workers reach"
            )
        self._state = NetworkChangeState(options.state, self._table.topic)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the reader, but not the driver's client.
        return {name: value for name, value in vars(self).items() if name != "_reader"}

    @cached_property
    def _reader(self) -> NetworkReader:
        return NetworkReader(self._table.topic.place)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset at which the query began, when it was started first."""
        return self._state.begun(_first_offset(self._reader.held()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns no limit: an instance gives the records as they are."""
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Sets what the instance holds now as the end of the query."""
        self._target = self._reader.held()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch. The first one ends where the records are read,
        if nothing has come since.

        Raises:
            ConfigurationError: the checkpoint is that of another source.
            RaylayError: no server can be reached, or it refuses what is wanted.
        """
        known = self._known(start)
        held = self._reader.held() if self._target is None else self._target
        if start[STEP] and not new_in(known, held):
            return start
        return _next_offset(start, united(known, held))

    def _known(self, offset: dict[str, Any]) -> PublisherRanges:
        if STEP not in offset:
            raise ConfigurationError(
                "the checkpoint has no offset of changes over the network: its query read a "
                "journal, or messages; begin a new checkpoint with an option state of its own"
            )
        return from_json(offset)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns what the instance holds, for Spark's progress of the query."""
        return to_json(self._reader.held())

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns one partition, as the records are compared as a whole.

        Raises:
            StorageError: the state's directory is not that of the checkpoint.
        """
        for offset in (start, end):
            self._known(offset)
        self._state.check(start, end)
        table = self._table
        table.topic.place.servers()
        return [InputPartition(ChangeStep(table.topic, start, end, table.options.state))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        return self._table.read(partition.value)

    def stop(self) -> None:
        """Ends the driver's client."""
        reader = vars(self).pop("_reader", None)
        if reader is not None:
            reader.close()


# -- from a journal or over the network ------------------------------------------------------------
def change_option_names(options: Mapping[str, str]) -> frozenset[str]:
    """Returns the names of the options of such a read of changes."""
    if NetworkOptions.are_meant(options):
        return NetworkChangeOptions.names()
    return ChangeOptions.names()


def change_options(options: Mapping[str, str]) -> ChangeOptions | NetworkChangeOptions:
    """Returns the options of a read of changes, from a journal or over the network.

    Raises:
        ConfigurationError: an option is unknown, or its value is not allowed.
    """
    if NetworkOptions.are_meant(options):
        return NetworkChangeOptions.of(options)
    return ChangeOptions.of(options)


def change_batch_reader(
    options: ChangeOptions | NetworkChangeOptions, schema: StructType
) -> DataSourceReader:
    """Returns the reader of a batch of changes."""
    if isinstance(options, NetworkChangeOptions):
        return NetworkChangeBatchReader(options, schema)
    return ChangeBatchReader(options, schema)


def change_stream_reader(
    options: ChangeOptions | NetworkChangeOptions, schema: StructType
) -> DataSourceStreamReader:
    """Returns the reader of a stream of changes."""
    if isinstance(options, NetworkChangeOptions):
        return NetworkChangeStreamReader(options, schema)
    return ChangeStreamReader(options, schema)
