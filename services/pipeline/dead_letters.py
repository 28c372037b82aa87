"""Dead letters: rows and messages that a job refuses, kept with the reason instead of ending it.

They go to a table of Parquet files in a directory, or to a topic. Their columns `topic` to
`expiration_s` are those of a write, so that a table of them can be mended and published.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from raylay.services.errors import ConfigurationError, StorageError
from raylay.storage.files import make_directory, make_file, move_durably, sync_file

TOPIC_PREFIX = "topic:"
"""Prefix of a topic's name in the option `dead_letters`; any other value is a directory."""
SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("topic", pa.string()),
        ("message_type", pa.string()),
        ("command", pa.string()),
        ("body", pa.binary()),
        ("key", pa.binary()),
        ("correlation_id", pa.binary()),
        ("expiration_s", pa.int64()),
        ("reason", pa.string()),
        ("write", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of a table of dead letters."""
BATCH_LETTERS = 10_000


def now_us() -> int:
    """Returns the time in microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that cannot be read, or a row that cannot be published.

    Attributes:
        source: the instance that holds the message, or the staging directory of the write.
        reason: the cause, in words.
        position: the message's transaction id, or its sequence where it was read over the network;
            the row's number in its partition, from 0, or its sequence where an instance refused it.
        write: the micro-batch (`batch-N`) or job of the row; empty for a message.
        partition: the row's partition in the write; -1 for a message, and for a row that an
            instance refused.
        time_us: when it was refused, in microseconds since 1970.
    """

    source: str
    reason: str
    position: int
    topic: str | None = None
    body: bytes | None = None
    message_type: str | None = None
    command: str | None = None
    key: bytes | None = None
    correlation_id: bytes | None = None
    expiration_s: int | None = None
    write: str = ""
    partition: int = -1
    time_us: int = field(default_factory=now_us)

    def to_json(self) -> bytes:
        """Returns the letter as a JSON body. Bytes that are not UTF-8 are in a field of their own,
        such as `body_base64`. Fields without a value are left out."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if isinstance(value, bytes):
                try:
                    values[each.name] = value.decode()
                except UnicodeDecodeError:
                    values[f"{each.name}_base64"] = base64.b64encode(value).decode()
            else:
                values[each.name] = value
        return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")


def letters_batch(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Returns dead letters as rows with the columns `SCHEMA`."""
    columns = [
        pa.array(
            [getattr(letter, "time_us" if name == "time" else name) for letter in letters],
            SCHEMA.field(name).type,
        )
        for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def letters_of(batch: pa.RecordBatch) -> Iterator[DeadLetter]:
    """Yields the dead letters of rows that `letters_batch` made."""
    names = ["time_us" if name == "time" else name for name in SCHEMA.names]
    columns = [
        column.cast(pa.int64()) if name == "time_us" else column
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        yield DeadLetter(**dict(zip(names, row, strict=True)))


@dataclass(frozen=True, slots=True)
class DeadLetterTarget:
    """The table or the topic of an option `dead_letters`; exactly one is set."""

    directory: Path | None = None
    topic: str = ""

    @classmethod
    def of(cls, text: str) -> DeadLetterTarget:
        """Returns the target that an option's value names: `topic:NAME`, or a local directory.

        Raises:
            ConfigurationError: the value is empty, or names another file system.
        """
        if text.startswith(TOPIC_PREFIX):
            topic = text.removeprefix(TOPIC_PREFIX)
            if not topic:
                raise ConfigurationError("dead_letters: give a topic's name behind `topic:`")
            return cls(topic=topic)
        parts = urlsplit(text)
        if not text or parts.scheme not in ("", "file"):
            raise ConfigurationError(
                f"dead_letters: {text!r} is neither a directory of this host nor topic:NAME"
            )
        path = Path(unquote(parts.path) if parts.scheme else text)
        return cls(directory=path.absolute())


def letters_directory(text: str) -> Path:
    """Returns the directory of a read's option `dead_letters`.

    Raises:
        ConfigurationError: the value names a topic, or another file system.
    """
    directory = DeadLetterTarget.of(text).directory
    if directory is None:
        raise ConfigurationError(
            f"dead_letters is {text!r}: the tasks of a read may run twice, and write their letters "
            "to a directory, where the second file replaces the first. Give a directory, and "
            "publish `letters_stream` of it, which publishes each letter once (docs/pipeline.md)"
        )
    return directory


def append_letters(directory: Path, name: str, letters: Iterable[DeadLetter]) -> Path | None:
    """Adds dead letters to a table, as `append_batches` does."""
    return append_batches(directory, name, batches_of(letters))


def batches_of(letters: Iterable[DeadLetter]) -> Iterator[pa.RecordBatch]:
    """Yields dead letters as rows, up to `BATCH_LETTERS` at a time."""
    left = iter(letters)
    while taken := list(islice(left, BATCH_LETTERS)):
        yield letters_batch(taken)


def append_batches(directory: Path, name: str, batches: Iterable[pa.RecordBatch]) -> Path | None:
    """Adds dead letters to a table durably, as one file; readers see all of them or none.

    Args:
        directory: the table's; created when it is missing.
        name: identifies these letters: a second call with this name replaces those of the first,
            so that a task or a micro-batch that is repeated adds none twice.
        batches: rows with the columns `SCHEMA`.

    Returns:
        The file; None: there are no letters, and a file of that name is removed.

    Raises:
        StorageError: the directory cannot be written.
    """
    file = directory / f"{quote(name, safe=' ')}.parquet"
    aside = directory / f".{os.urandom(8).hex()}"
    try:
        left = iter(batches)
        first = next((batch for batch in left if batch.num_rows), None)
        if first is None:
            file.unlink(missing_ok=True)
            return None
        make_directory(directory)
        make_file(aside)
        with pq.ParquetWriter(aside, SCHEMA) as writer:
            for batch in chain([first], left):
                writer.write_batch(batch)
        sync_file(aside)
        move_durably(aside, file)
    except OSError as error:
        raise StorageError(
            f"the dead letters cannot be written to {directory}: {error}", str(directory)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return file
