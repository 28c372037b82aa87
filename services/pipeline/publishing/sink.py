"""Publishes a table or a stream: `write.format("raylay")`, `writeStream.format("raylay")`.

Tasks stage their rows (staging.py). The driver publishes the rows when all tasks have staged
theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from raylay.services.client import EPOCH, Server, SyncClient
from raylay.services.client.credentials import credentials
from raylay.services.client.events import PublishFailed
from raylay.services.client.publishing.deletes import delete_body
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import CommandFailed, ConfigurationError, RaylayError
from raylay.services.fabric.plan import servers_of
from raylay.services.fabric.transports import client_tls
from raylay.services.messages.records import (
    EXPIRATION_S_MAX,
    KEY_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TYPE_BYTES_MAX,
    Command,
)
from raylay.services.pipeline.dead_letters import DeadLetter, DeadLetterTarget
from raylay.services.pipeline.journals import record_of
from raylay.services.pipeline.publishing.staged_rows import COMMAND_NAMES, STAGED, StagedRows
from raylay.services.pipeline.publishing.staging import (
    BATCH,
    SAVE,
    STATE_FILE,
    StagedFile,
    StagingDirectory,
    stage,
)
from raylay.services.pipeline.tables.option_checks import documented, names_known
from raylay.services.pipeline.worker_errors import plain_errors
from raylay.storage.stores import MemoryPublishStore

log = logging.getLogger("raylay.pipeline")

CONNECT_WAIT_S_DEFAULT = 30.0
MESSAGE_TYPE_DEFAULT = "json"
BODY_BYTES_MAX = 8 * 1024 * 1024
STAGING_OF_CHECKPOINT = "raylay-staging"
OWN_STAGING = "raylay-staging-"
"""Prefix of a staging directory among the temporary ones, of a write that was given none."""
TLS_FILES = ("ca_file", "certificate", "private_key")
TOPICS_NAMED_MAX = 10
"""Topics that an error names."""


@dataclass(slots=True)
class FabricServers:
    """A look-up of the instances of a fabric's group, made anew for each round of a client's
    attempts: one may be moved, or started again at another port. Tasks get it from the driver.

    Attributes:
        known: the last answer, which holds where the fabric's record is out of reach, as on the
            other hosts of a cluster.
    """

    fabric: str
    group: str
    known: list[Server]

    def __call__(self) -> list[Server]:
        try:
            record = record_of(self.fabric)
            if record is not None:
                self.known = servers_of(record, self.group, "")["servers"]
        except (OSError, RaylayError) as error:
            log.warning("the record of %s cannot be read: %s", self.fabric, error)
        return self.known


@dataclass(slots=True)
class WriteOptions:
    """The options of a write, checked.

    Raises:
        ConfigurationError: an option is unknown or missing, or its value is not allowed.
    """

    servers: str = ""
    fabric: str = ""
    group: str = ""
    topic: str = ""
    message_type: str = ""
    staging: str = ""
    job: str = ""
    batch: str = ""
    name: str = "spark"
    connect_wait_s: float = CONNECT_WAIT_S_DEFAULT
    ca_file: str = ""
    certificate: str = ""
    private_key: str = ""
    dead_letters: str = ""
    checkpointlocation: str = field(default="")

    @classmethod
    def names(cls) -> frozenset[str]:
        """Returns the names of all options."""
        return frozenset(cls.__dataclass_fields__)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        values: dict[str, Any] = {}
        for name, value in dict(options).items():
            name = name.lower()
            if name in ("queryname", "path"):
                continue
            if name not in cls.__dataclass_fields__:
                raise ConfigurationError(
                    f"there is no option {documented(name)}: {names_known(cls.names())}"
                )
            values[name] = value
        if "connect_wait_s" in values:
            try:
                values["connect_wait_s"] = float(values["connect_wait_s"])
            except ValueError:
                values["connect_wait_s"] = 0.0
            if not values["connect_wait_s"] > 0:
                raise ConfigurationError("connect_wait_s: give a number of seconds above 0")
        made = cls(**values)
        if bool(made.servers) == bool(made.fabric):
            raise ConfigurationError(
                "give either `servers` (host:port, separated by commas) or `fabric` (its name, "
                "file or directory)"
            )
        if made.job and not made.staging:
            raise ConfigurationError(
                "a job is stored in its staging directory: give the option `staging`"
            )
        if made.batch and (made.job or not made.batch.isdecimal()):
            raise ConfigurationError(
                "`batch` is the number of a micro-batch and cannot be combined with `job`"
            )
        if made.job.startswith((BATCH, SAVE)):
            raise ConfigurationError(f"a job's name cannot begin with {BATCH} or {SAVE}")
        made.letters_target()
        return made

    def letters_target(self) -> DeadLetterTarget | None:
        """Returns where refused rows go; None: they are an error.

        Raises:
            ConfigurationError: `dead_letters` is neither a directory nor a topic.
        """
        return DeadLetterTarget.of(self.dead_letters) if self.dead_letters else None

    def client_options(self) -> dict[str, Any]:
        """Returns a client's options: servers and group, TLS, and the credentials that the
        environment of this process gives.

        Raises:
            ConfigurationError: there is no such fabric or group, or a file cannot be read.
        """
        given = {name: value for name in TLS_FILES if (value := getattr(self, name))} or None
        if self.servers:
            listed = [each.strip() for each in self.servers.split(",") if each.strip()]
            return {"servers": listed, "group": self.group, "tls": given, **credentials()}
        record = record_of(self.fabric)
        if record is None:
            raise ConfigurationError(
                f"{self.fabric} is neither a fabric that runs here nor the file or directory of "
                "one: start it, or give `servers`"
            )
        tls = given or client_tls(FabricSettings.from_json(record.settings), record.directory)
        made = servers_of(record, self.group, self.name)
        made["servers"] = FabricServers(self.fabric, made["group"], made["servers"])
        return {**made, "tls": tls, **credentials()}


def normal(batch: pa.RecordBatch, topic: str, message_type: str) -> pa.RecordBatch:
    """Returns a batch of the written table as rows of schema `STAGED`.

    Raises:
        ConfigurationError: a row cannot be published; the error names it and the reason.
    """
    made, refused = checked(batch, topic, message_type)
    for at, reason in refused.items():
        raise ConfigurationError(
            f"row {at} cannot be published: {reason}; set the option dead_letters to keep such "
            "rows in a table or topic of their own; nothing was published"
        )
    return made


def checked(
    batch: pa.RecordBatch, topic: str, message_type: str
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Returns the rows of a written table that can be published, with the schema `STAGED`, and the
    others: number in the batch, and reason."""
    columns = _columns(batch, topic, message_type or MESSAGE_TYPE_DEFAULT)
    commands = columns["command"]
    codes = _codes(commands)
    refused: dict[int, str] = {}

    def refuse(wrong: Any, reason: Callable[[int], str]) -> None:
        for at in pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
            refused.setdefault(at, reason(at))

    refuse(
        pc.and_(pc.is_null(codes), pc.is_valid(commands)),
        lambda at: (
            f"its command is {commands[at].as_py()!r}: give {', '.join(COMMAND_NAMES.values())}"
        ),
    )
    deletes = pc.fill_null(pc.equal(codes, int(Command.DELETE)), False)
    by_key = pc.and_(deletes, pc.greater(pc.fill_null(pc.binary_length(columns["key"]), 0), 0))
    refuse(
        pc.and_(pc.is_null(columns["body"]), pc.invert(by_key)),
        lambda at: "a row has no body" + (" and no key" if deletes[at].as_py() else ""),
    )
    empty = pc.equal(pc.binary_length(columns["body"]), 0)
    refuse(
        pc.and_(pc.and_(deletes, pc.invert(by_key)), empty),
        lambda at: "a sow_delete has neither a key nor a body with the key's fields",
    )
    for name, low, high in (
        ("topic", 1, TOPIC_BYTES_MAX),
        ("message_type", 1, TYPE_BYTES_MAX),
        ("body", 0, BODY_BYTES_MAX),
        ("key", 0, KEY_BYTES_MAX),
        ("correlation_id", 0, KEY_BYTES_MAX),
    ):
        lengths = pc.binary_length(columns[name])
        if name == "topic":
            refuse(pc.is_null(lengths), lambda at: "a row has no topic")
        refuse(
            pc.or_(pc.less(lengths, low), pc.greater(lengths, high)),
            lambda at, name=name, lengths=lengths, low=low, high=high: (  # type: ignore[misc]
                f"its {name} has {lengths[at].as_py()} bytes, but {low} to {high} are allowed"
            ),
        )
    seconds = columns["expiration_s"]
    refuse(
        pc.or_(pc.less(seconds, 0), pc.greater(seconds, EXPIRATION_S_MAX)),
        lambda at: f"its expiration_s is {seconds[at].as_py()}: give 0 to {EXPIRATION_S_MAX}",
    )
    columns["command"] = codes
    if pc.any(deletes).as_py():
        columns["body"], columns["key"] = _delete_bodies(columns, deletes, by_key, refused)
    made = pa.RecordBatch.from_arrays([columns[name] for name in STAGED.names], schema=STAGED)
    if refused:
        good = np.ones(batch.num_rows, bool)
        good[list(refused)] = False
        made = made.filter(pa.array(good))
    return made, dict(sorted(refused.items()))


def _columns(batch: pa.RecordBatch, topic: str, message_type: str) -> dict[str, pa.Array]:
    """Returns the columns of staged rows, where `command` is the text that the table has."""
    count = batch.num_rows
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    fixed = {"topic": topic, "message_type": message_type}
    columns = {}
    for wanted in STAGED:
        kind = pa.string() if wanted.name == "command" else wanted.type
        column = given.get(wanted.name)
        if column is None:
            column = pa.repeat(pa.scalar(fixed.get(wanted.name), kind), count)
        columns[wanted.name] = column.cast(kind)
    for name, default in fixed.items():
        if default:
            columns[name] = pc.fill_null(columns[name], default)
    return columns


def _codes(commands: pa.Array) -> pa.Array:
    """Returns the numbers of commands; null where there is none, or no such command."""
    if commands.null_count == len(commands):
        return pa.nulls(len(commands), pa.uint8())
    at = pc.index_in(commands, pa.array(list(COMMAND_NAMES.values())))
    return pa.array([int(each) for each in COMMAND_NAMES], pa.uint8()).take(at)


def _delete_bodies(
    columns: Mapping[str, pa.Array], deletes: Any, by_key: Any, refused: Mapping[int, str]
) -> tuple[pa.Array, pa.Array]:
    """Returns the bodies and keys of records, where a delete's key or data is in its body."""
    bodies, keys = columns["body"].to_pylist(), columns["key"].to_pylist()
    keyed = by_key.to_pylist()
    for at in pc.indices_nonzero(deletes).to_pylist():
        if at not in refused:
            bodies[at] = delete_body(keys=[keys[at]]) if keyed[at] else delete_body(data=bodies[at])
        keys[at] = None
    return pa.array(bodies, pa.binary()), pa.array(keys, pa.binary())


def refused_letters(
    batch: pa.RecordBatch,
    refused: Mapping[int, str],
    options: WriteOptions,
    source: str,
    partition: int,
    first: int,
) -> list[DeadLetter]:
    """Returns the rows of a written table that cannot be published as dead letters.

    Args:
        first: the number of the batch's first row in its partition.
    """
    rows = pa.array(list(refused), pa.int64())
    taken = _columns(batch.take(rows), options.topic, options.message_type or MESSAGE_TYPE_DEFAULT)
    listed = zip(*(taken[name].to_pylist() for name in STAGED.names), strict=True)
    return [
        DeadLetter(
            source,
            reason,
            first + at,
            partition=partition,
            **dict(zip(STAGED.names, row, strict=True)),
        )
        for (at, reason), row in zip(refused.items(), listed, strict=True)
    ]


_SQL_NAMES = {
    "string": "STRING",
    "binary": "BINARY",
    "integer": "INT",
    "long": "BIGINT",
    "short": "SMALLINT",
    "byte": "TINYINT",
}
"""Names in SQL of the types that a column of a write may have, by their names in Python."""


def check_schema(schema: StructType, topic: str) -> None:
    """Refuses a table that cannot be published.

    Raises:
        ConfigurationError: a column is missing, unknown or of another type.
    """
    kinds = {each.name: each.dataType.typeName() for each in schema.fields}
    allowed = {
        "topic": ("string",),
        "message_type": ("string",),
        "body": ("binary", "string"),
        "key": ("binary", "string"),
        "correlation_id": ("binary", "string"),
        "expiration_s": ("integer", "long", "short", "byte"),
        "command": ("string",),
    }
    if "body" not in kinds:
        raise ConfigurationError(
            f"the table has no column body, only {', '.join(kinds)}: "
            "select to_json(struct(*)) AS body"
        )
    if "topic" not in kinds and not topic:
        raise ConfigurationError("the table has no column topic: add it, or give the option topic")
    for name, kind in kinds.items():
        if name not in allowed:
            raise ConfigurationError(
                f"a message has no column {name}: there are {', '.join(allowed)}. Leave it out of "
                "what is written, and out of the option `columns` of a table that is written to"
            )
        if kind not in allowed[name]:
            its = schema[name].dataType.simpleString().partition("<")[0].upper()
            others = " or ".join(_SQL_NAMES[each] for each in allowed[name])
            raise ConfigurationError(f"column {name} is {its}, it can be {others}")


def publish_rows(options: WriteOptions, rows: StagedRows) -> None:
    """Publishes the rows of a staged write that the servers do not have yet. Returns when all are
    durable, or noted in `rows` as refused.

    Raises:
        RaylayError: no server was reached. The rows stay staged.
    """
    with contextlib.closing(
        _client(options, rows.publisher, rows, on_publish_failed=refusals_of(rows))
    ) as client:
        client.flush()


def refusals_of(rows: StagedRows) -> Callable[[PublishFailed], None]:
    """Returns a client's `on_publish_failed` that notes refused rows."""
    return lambda failed: rows.refuse(failed.sequence, failed.error.reason, str(failed.error))


def known_sequence(options: WriteOptions, publisher: str) -> int:
    """Returns the highest sequence that the answering server knows of a publisher; 0 for none.

    Raises:
        RaylayError: no server answers.
    """
    store = MemoryPublishStore()
    store.highest = -1  # at 0 a client that no server knows would begin at the clock
    with contextlib.closing(_client(options, publisher, store)):
        return store.highest


def check_target(options: WriteOptions, topics: Iterable[tuple[str, str]] = ()) -> None:
    """Checks that a server answers and journals all these topics. An instance passes a message on a
    topic that it does not journal to the current subscribers only, and keeps no copy.

    The check asks as a subscriber does: an instance refuses a bookmark subscription to a topic that
    it does not journal.

    Args:
        topics: (topic, message type) of the rows to publish.

    Raises:
        ConfigurationError: there is no such fabric or group, or a topic is not journaled there.
        RaylayError: no server answers.
    """
    refused = []
    with contextlib.closing(
        _client(options, f"{options.name}-check-{os.urandom(4).hex()}")
    ) as client:
        for topic, message_type in sorted(topics):
            try:
                client.subscribe(
                    topic,
                    message_type=message_type,
                    bookmark=EPOCH,
                    pause=True,  # the answer is all that is wanted
                    non_regex_topic=True,
                ).unsubscribe()
            except CommandFailed as error:
                if error.reason != "not_journaled":
                    raise
                refused.append(f"{topic} ({message_type})")
        instance = client.client.instance
    if refused:
        more = f" and {len(refused) - TOPICS_NAMED_MAX} more" if refused[TOPICS_NAMED_MAX:] else ""
        raise ConfigurationError(
            f"{instance} does not journal {', '.join(refused[:TOPICS_NAMED_MAX])}{more}: messages "
            "published there would be lost; add it to the fabric's topics, or choose another "
            "topic or message type; nothing was published"
        )


def fixed_topics(options: WriteOptions, schema: StructType) -> list[tuple[str, str]]:
    """Returns the topic and type of all rows of a table, where the options set them and no column
    does, and those of the dead letters."""
    target = options.letters_target()
    letters = [(target.topic, "json")] if target is not None and target.topic else []
    if {"topic", "message_type"} & set(schema.names):
        return letters
    return [(options.topic, options.message_type or MESSAGE_TYPE_DEFAULT), *letters]


def publish_pending(directory: Path, options: WriteOptions, any_reason: bool = False) -> int:
    """Publishes the rows that a write left staged when its driver died. Returns their number.

    Args:
        any_reason: whether dead letters are also made of rows that were refused for no reason of
            theirs, such as a missing permission.

    Raises:
        ConfigurationError: the directory is not a staging directory.
        RaylayError: as `publish_rows`.
    """
    if not (directory / STATE_FILE).is_file():
        raise ConfigurationError(f"{directory} is not a staging directory: it has no {STATE_FILE}")
    with StagingDirectory(
        directory,
        seen=lambda name: known_sequence(options, name),
        dead_letters=options.letters_target(),
        any_reason=any_reason,
        publish_letters=lambda rows: publish_rows(options, rows),
    ) as staging:
        count = staging.finish(lambda rows: publish_rows(options, rows))
    if directory.name.startswith(OWN_STAGING) and directory.parent == Path(tempfile.gettempdir()):
        # It was made for one write, which is done.
        shutil.rmtree(directory, ignore_errors=True)
    return count


def _client(
    options: WriteOptions, name: str, store: PublishStoreProtocol | None = None, **more: Any
) -> SyncClient:
    return SyncClient(
        name,
        **options.client_options(),
        publish_store=store,
        connect_wait_s=options.connect_wait_s,
        **more,
    )


QUERY_PROPERTY = "sql.streaming.queryId"
"""Spark's property of the tasks of a micro-batch, in a foreachBatch too: the id of the query, which
the checkpoint holds as well."""
RUN_PROPERTY = "spark.jobGroup.id"
"""Spark's property of such tasks: one start of the query, unless the function of a foreachBatch set
another value."""


def _run_of(group: str | None) -> str:
    """Returns the run that a job group names; empty where the group is the user's own."""
    try:
        return str(uuid.UUID(group)) if group else ""
    except ValueError:
        return ""


@dataclass
class StagedReport(WriterCommitMessage):
    """The report of a task to the driver.

    Attributes:
        query, run: the query and the run of the micro-batch; empty: the write is part of none.
    """

    file: StagedFile
    query: str = ""
    run: str = ""


class WriteJob:
    """The staging and the publishing of a batch's or a stream's rows.

    Args:
        checked: the (topic, message type) pairs that the writer has checked already: their rows are
            staged even while no server answers.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        directory: Path,
        checked: Iterable[tuple[str, str]] = (),
    ) -> None:
        check_schema(schema, options.topic)
        self.options = options
        self.directory = directory
        self._run = directory / f"run-{os.urandom(6).hex()}"
        self._checked = set(checked)

    def _check_topics(self, topics: set[tuple[str, str]]) -> None:
        if topics - self._checked:
            check_target(self.options, topics - self._checked)

    @plain_errors()
    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedReport:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        query = run = ""
        if context is not None:
            query = context.getLocalProperty(QUERY_PROPERTY) or ""
            run = _run_of(context.getLocalProperty(RUN_PROPERTY))
        letters: list[DeadLetter] = []
        rows = self._publishable(iterator, partition, letters)
        file = stage(self._run, partition, rows, letters=letters)
        return StagedReport(file, query, run if query else "")

    def _publishable(
        self, iterator: Iterator[pa.RecordBatch], partition: int, letters: list[DeadLetter]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that can be published, and adds the others to `letters`, if the write
        has dead letters."""
        options, source = self.options, str(self.directory)
        first = 0
        for batch in iterator:
            if options.dead_letters:
                rows, refused = checked(batch, options.topic, options.message_type)
                if refused:
                    letters += refused_letters(batch, refused, options, source, partition, first)
            else:
                rows = normal(batch, options.topic, options.message_type)
            yield rows
            first += batch.num_rows

    @plain_errors()
    def commit_batch(self, number: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes a micro-batch. Does nothing for one that was published before."""
        staged = [message for message in messages if isinstance(message, StagedReport)]
        queries = {report.query: report.run for report in staged if report.query}
        owner, run = next(iter(queries.items()), (query_of(self.options), ""))
        if not owner and any(report.file.rows for report in staged):
            raise ConfigurationError(
                f"{BATCH}{number}: the tasks do not know its query, and the number alone does not "
                "show whether it was published before: write inside the function of a "
                "foreachBatch, or give checkpointLocation, the query's checkpoint in a local "
                "directory"
            )
        plan = _plan_of(self.options, number)
        self.commit_all(f"{BATCH}{number}", messages, owner, run, plan)

    @plain_errors()
    def commit_all(
        self,
        key: str,
        messages: Sequence[WriterCommitMessage | None],
        owner: str = "",
        run: str = "",
        plan: str = "",
    ) -> int:
        """Publishes the rows that the winning task attempts staged. Returns their number."""
        files = [message.file for message in messages if isinstance(message, StagedReport)]
        options = self.options
        with StagingDirectory(
            self.directory,
            options.name,
            owner,
            run,
            self._seen,
            options.letters_target(),
            publish_letters=lambda rows: publish_rows(options, rows),
        ) as staging:
            try:
                return staging.commit(
                    key,
                    files,
                    lambda rows: publish_rows(self.options, rows),
                    self._check_topics,
                    plan,
                )
            except BaseException as error:
                pending = staging.pending
                # A refusal says itself what to do.
                if pending is not None and not isinstance(error, CommandFailed):
                    again = "" if key.startswith(SAVE) else "restart the query or job, or "
                    log.error(
                        "%d rows are staged in %s and may not be published yet: %spublish exactly "
                        "these rows with `raylay pipeline publish %s --server HOST:PORT`",
                        pending.rows,
                        self.directory,
                        again,
                        self.directory,
                    )
                raise

    def _seen(self, publisher: str) -> int:
        return known_sequence(self.options, publisher)

    def abort_all(self, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Removes staged files that no pending write needs. Returns whether a write is pending."""
        files = [message.file for message in messages if isinstance(message, StagedReport)]
        with StagingDirectory(self.directory, self.options.name) as staging:
            for name in [name for file in files for name in file.paths]:
                if not staging.holds(name):
                    Path(name).unlink(missing_ok=True)
            pending = staging.pending is not None
        with contextlib.suppress(OSError):
            for path in {Path(file.path).parent for file in files}:
                path.rmdir()
        return pending


class BatchWriter(DataSourceArrowWriter):
    """One `save()`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError("a log cannot be overwritten: use mode append")
        self._own, self._name = False, ""
        if options.batch:
            directory = staging_of(options)
        else:
            self._own = not options.staging
            made = options.staging or tempfile.mkdtemp(prefix=OWN_STAGING)
            directory = Path(made).absolute()
            self._name = options.job or f"{SAVE}{os.urandom(8).hex()}"
        self.directory = directory
        try:
            # Before anything is computed: a fabric that is down, or does not journal the topic.
            topics = set(fixed_topics(options, schema))
            self.job = WriteJob(options, schema, directory, topics)
            check_target(options, topics)
        except BaseException:
            if self._own:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedReport:
        return self.job.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes the rows. Does nothing for a job or micro-batch that was published before."""
        if not self._name:
            self.job.commit_batch(int(self.job.options.batch), messages)
            return
        published = self.job.commit_all(self._name, messages)
        log.info("published %d messages as job %s", published, self._name)
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self.job.abort_all(messages) and self._own:
            shutil.rmtree(self.directory, ignore_errors=True)


class StreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of one query."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "a log cannot be overwritten: use output mode append, or foreachBatch for updates"
            )
        if options.job or options.batch:
            raise ConfigurationError(
                "a stream takes no `job` and no `batch`: its checkpoint holds its progress"
            )
        directory = staging_of(options)
        self.job = WriteJob(options, schema, directory)
        if not (directory / STATE_FILE).exists():
            # As for a batch: a fabric that is down is told before anything is computed.
            check_target(options, fixed_topics(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedReport:
        return self.job.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publishes a micro-batch. Does nothing for one that was published before."""
        self.job.commit_batch(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.job.abort_all(messages)


def staging_of(options: WriteOptions) -> Path:
    """Returns the directory in which micro-batches are staged.

    Raises:
        ConfigurationError: neither a staging directory nor a local checkpoint is given.
    """
    checkpoint = _checkpoint(options)
    if options.staging:
        return Path(options.staging).absolute()
    if checkpoint is None:
        raise ConfigurationError(
            "give `staging`, a directory that the driver and the workers reach, or a checkpoint "
            "in a local directory"
        )
    return (checkpoint / STAGING_OF_CHECKPOINT).absolute()


def query_of(options: WriteOptions) -> str:
    """Returns the query of a local checkpoint; empty where the checkpoint names none."""
    checkpoint = _checkpoint(options)
    if checkpoint is None:
        return ""
    try:
        return str(json.loads((checkpoint / "metadata").read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _plan_of(options: WriteOptions, number: int) -> str:
    """Returns a digest of the plan of a micro-batch in a local checkpoint, which tells it from
    another one of its number: a restarted query finds the file as it was. Empty where there is no
    plan."""
    checkpoint = _checkpoint(options)
    if checkpoint is None:
        return ""
    try:
        content = (checkpoint / "offsets" / str(number)).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()[:16]


def _checkpoint(options: WriteOptions) -> Path | None:
    text = options.checkpointlocation
    parts = urlsplit(text)
    if not text or parts.scheme not in ("", "file"):
        return None
    # Without a scheme it is a path as it stands, and no URL.
    return Path(unquote(parts.path) if parts.scheme else text)
