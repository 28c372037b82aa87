"""The changes of a SOW topic as a table and as a stream: the option `changes` of the format
`raylay`.

One task reads a stretch of the journal and folds it, because an old value is what the log has made
of a record until then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raylay.services.errors import ConfigurationError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.pipeline.changes.columns import ChangeColumns, checked_mode, wanted_schema
from raylay.services.pipeline.changes.state import ChangeState, ChangingTopic
from raylay.services.pipeline.changes.table import column_names, ddl_of
from raylay.services.pipeline.journals import (
    WHOLE_SEGMENT_BYTES,
    JournalPlace,
    last_txid,
    places,
    plan,
)
from raylay.services.pipeline.tables.content import types_at
from raylay.services.pipeline.tables.offsets import (
    another_journal,
    bound,
    bounds_of,
    check_window,
    offset_of,
    replaced_since,
)
from raylay.services.pipeline.tables.option_checks import known_options, whole_number
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.pipeline.tables.values import CORRUPT_RECORD
from raylay.services.pipeline.worker_errors import plain_errors

CHANGES = "changes"


@dataclass(slots=True)
class ChangeOptions:
    """The options of a read of changes, checked.

    Raises:
        ConfigurationError: an option is unknown, or its value is not allowed.
    """

    path: str = ""
    fabric: str = ""
    directory: str = ""
    instance: str = ""
    archive: str = ""
    topic: str = ""
    columns: str = ""
    schema: str = ""
    mode: str = "failfast"
    columnnameofcorruptrecord: str = CORRUPT_RECORD
    starting: str = EPOCH
    ending: str = ""
    state: str = ""
    max_records_per_trigger: int = 0
    changes: str = "true"

    @classmethod
    def names(cls) -> frozenset[str]:
        """Returns the names of all options."""
        return frozenset(cls.__dataclass_fields__)

    @classmethod
    def are_meant(cls, options: Mapping[str, str]) -> bool:
        """Returns whether the options that Spark passes ask for changes.

        Raises:
            ConfigurationError: the option `changes` is neither true nor false.
        """
        value = {name.lower(): value for name, value in dict(options).items()}.get(CHANGES, "false")
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"changes is {value!r}: give true or false")
        return value.lower() == "true"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ChangeOptions:
        """Returns the options from those that Spark passes."""
        values = known_options(options, cls.names(), "a read of changes has no option")
        name = "max_records_per_trigger"
        if name in values:
            values[name] = whole_number(name, values[name])
        made = cls(**values)
        made.mode = checked_mode(made.mode)
        check_window(made.starting, made.ending)
        return made

    def topic_read(self) -> ChangingTopic:
        """Returns the topic at its instance.

        Raises:
            RaylayError: there is no such topic at one instance.
        """
        found = places(
            self.path,
            self.fabric,
            self.directory,
            [name.strip() for name in self.instance.split(",")],
            archive=self.archive,
        )
        return ChangingTopic.of(found, self.topic)

    def ddl(self) -> list[str]:
        """Returns the columns of the table in DDL."""
        identifiers = self.topic_read().definition.keys
        return ddl_of(column_names(self.columns, bool(identifiers)), identifiers, self.schema)


@dataclass(frozen=True, slots=True)
class ChangeStretch:
    """The part of a journal whose changes one task reads: behind `after_txid`, up to `last_txid`.

    Attributes:
        snapshot: whether the records at `after_txid` come first.
        state: the directory of the reading; empty: the task makes one for itself.
    """

    topic: ChangingTopic
    after_txid: int
    last_txid: int
    snapshot: bool
    state: str


class _ChangeTable:
    """The part that a batch and a stream share: the columns, and the reading of a stretch."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self.options = options
        self.arrow_schema = wanted_schema(schema)

    def stretch(
        self, topic: ChangingTopic, after_txid: int, last_txid: int, snapshot: bool
    ) -> list[InputPartition]:
        """Returns one partition, as the changes are one sequence; none where there are none."""
        # It says whether the journal still holds them, and keeps them from retention.
        plan(topic.place, after_txid, last_txid, Predicate(), WHOLE_SEGMENT_BYTES)
        if after_txid >= last_txid and not snapshot:
            return []
        state = self.options.state
        return [InputPartition(ChangeStretch(topic, after_txid, last_txid, snapshot, state))]

    def read(self, stretch: ChangeStretch) -> Iterator[pa.RecordBatch]:
        if stretch.state:
            yield from self._read_in(stretch.state, stretch)
            return
        with tempfile.TemporaryDirectory(prefix="raylay-changes-") as directory:
            yield from self._read_in(directory, stretch)

    def _read_in(self, directory: str, stretch: ChangeStretch) -> Iterator[pa.RecordBatch]:
        topic = stretch.topic
        with plain_errors():
            path = ChangeState(directory, topic).rows(
                stretch.after_txid, stretch.last_txid, stretch.snapshot
            )
            columns = ChangeColumns(
                self.arrow_schema,
                types_at(topic.place),
                topic.definition.message_type,
                topic.definition.keys,
                self.options.mode,
                self.options.columnnameofcorruptrecord,
            )
            with pa.ipc.open_stream(str(path)) as rows:
                for batch in rows:
                    yield columns.shaped(batch, "at transaction id {} of " + topic.place.journal)


class ChangeBatchReader(DataSourceReader):
    """A batch: the records at `starting`, and the changes from there up to `ending`."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self._options = options
        self._table = _ChangeTable(options, schema)
        if options.max_records_per_trigger:
            raise ConfigurationError("max_records_per_trigger is an option of a stream")
        if options.state:
            raise ConfigurationError(
                "state is an option of a stream: a batch keeps nothing for the next one"
            )

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """Returns the one partition that there is.

        Raises:
            RaylayError: the journal cannot be read as the options say.
        """
        options = self._options
        topic = options.topic_read()
        (found,) = bounds_of([topic.place], options.starting, options.ending)
        after = found.after_txid
        return self._table.stretch(topic, after, max(after, found.last_txid), True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows in the order of the log."""
        if partition.value is None:
            return iter(())
        return self._table.read(partition.value)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, which begins with the records at `starting`. An offset is that of a stream of the
    journal; the first one says in addition that the records are still to come."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self._options = options
        self._table = _ChangeTable(options, schema)
        self._target: int | None = None
        if options.ending:
            raise ConfigurationError(
                "a stream takes no option `ending`: read a batch, or stop the query"
            )
        if not options.state:
            raise ConfigurationError(
                "a stream of changes needs the option state: a directory of its own, beside its "
                "checkpoint, which the workers reach"
            )

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset at which the query began: `starting`, when it was started first."""
        topic = self._options.topic_read()
        place, text = topic.place, self._options.starting

        def first() -> dict[str, Any]:
            txid = bound(place, "starting", text)
            return {place.instance: {**offset_of(place, txid), "snapshot": True}}

        return ChangeState(self._options.state, topic).begun(first)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns `max_records_per_trigger` as a limit on the records of the journal."""
        rows = self._options.max_records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Sets the newest committed message as the end of the query."""
        self._target = last_txid(self._options.topic_read().place)

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch. The first one ends where the records were read,
        if nothing has come since.

        Raises:
            StorageError: the instance's journal is not the one that the query read.
        """
        place = self._options.topic_read().place
        known = self._known(place, start)
        newest = last_txid(place)
        if self._target is not None:
            newest = min(newest, self._target)
        begin = int(known["txid"])
        count = max(0, newest - begin)
        if isinstance(limit, ReadMaxRows):
            count = min(count, limit.max_rows)
        if count:
            return {place.instance: offset_of(place, begin + count)}
        return {place.instance: {n: value for n, value in known.items() if n != "snapshot"}}

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the newest committed message of the instance, for Spark's progress of the
        query."""
        place = self._options.topic_read().place
        return {place.instance: offset_of(place, last_txid(place))}

    def _known(self, place: JournalPlace, offset: dict[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] | None = offset.get(place.instance)
        if known is None:
            raise ConfigurationError(
                f"the checkpoint is that of {', '.join(offset)}, and {place.instance} is read: "
                "give each instance a checkpoint and an option state of their own"
            )
        if text := replaced_since(place, known):
            raise another_journal(place, text)
        return known

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the stretch between two offsets.

        Raises:
            StorageError: a part of it was removed or replaced.
        """
        topic = self._options.topic_read()
        begins, ends = self._known(topic.place, start), self._known(topic.place, end)
        snapshot = bool(begins.get("snapshot"))
        return self._table.stretch(topic, int(begins["txid"]), int(ends["txid"]), snapshot)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows in the order of the log."""
        if partition.value is None:
            return iter(())
        return self._table.read(partition.value)
