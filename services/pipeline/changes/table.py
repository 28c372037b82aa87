"""The table of a SOW topic's changes: its columns, and the batches of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import field_path
from raylay.services.pipeline.changes.fold import TopicChange
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.sow.keys import key_text

BATCH_ROWS = 4_096
VALUE, OLD_VALUE, KEY_FIELDS = "value", "old_value", "key_fields"
STORED: dict[str, pa.DataType] = {
    "instance": COLUMNS["instance"],
    "txid": COLUMNS["txid"],
    "row_kind": pa.string(),
    "reason": pa.string(),
    "sow_key": pa.string(),
    "topic": COLUMNS["topic"],
    "message_type": COLUMNS["message_type"],
    "publisher": COLUMNS["publisher"],
    "sequence": COLUMNS["sequence"],
    "bookmark": COLUMNS["bookmark"],
    "origin_time": COLUMNS["origin_time"],
    "receive_time": COLUMNS["receive_time"],
    "body": COLUMNS["body"],
    "old_body": COLUMNS["body"],
}
"""Columns of a row of changes that are the same for every topic, in order."""
DDL: dict[str, str] = {
    "txid": "BIGINT",
    "sequence": "BIGINT",
    "publisher": "DECIMAL(20,0)",
    "origin_time": "TIMESTAMP",
    "receive_time": "TIMESTAMP",
    "body": "BINARY",
    "old_body": "BINARY",
}
"""Types of columns that are no texts."""
STORED_SCHEMA = pa.schema(list(STORED.items()))


def key_names(identifiers: Iterable[str]) -> list[str]:
    """Returns the names of the key fields: of `/order/@id`, `order.@id`."""
    return [".".join(field_path(each)) for each in identifiers]


def column_names(
    text: str, has_key_fields: bool, stored: Iterable[str] = tuple(STORED)
) -> list[str]:
    """Returns the columns that the option `columns` names; all of them where it is empty.

    Args:
        stored: the columns of `STORED` that the read has.

    Raises:
        ConfigurationError: there is no such column, or one is named twice.
    """
    known = [*stored, *((KEY_FIELDS,) if has_key_fields else ())]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ConfigurationError(f"the option columns names {name} twice: name it once")
        if name not in known:
            raise ConfigurationError(
                f"the changes of this topic have no column {name}: there are {', '.join(known)}, "
                f"and {VALUE} and {OLD_VALUE} with the option schema"
            )
    return names or known


def ddl_of(names: Iterable[str], identifiers: Iterable[str], schema: str) -> list[str]:
    """Returns columns in DDL.

    Args:
        names: columns, as `column_names` returns them.
        identifiers: the key fields of the topic.
        schema: DDL of the bodies; empty: they have no column of their own.
    """
    parts = []
    for name in names:
        kind = DDL.get(name, "STRING")
        if name == KEY_FIELDS:
            inner = ", ".join(f"`{each}`: STRING" for each in key_names(identifiers))
            kind = f"STRUCT<{inner}>"
        parts.append(f"`{name}` {kind}")
    if schema:
        parts += [f"`{name}` STRUCT<{schema}>" for name in (VALUE, OLD_VALUE)]
    return parts


def row_batches(
    instance: str, message_type: str, changes: Iterable[TopicChange]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of changes, in their order, in batches."""
    rows: list[tuple[Any, ...]] = []
    for change in changes:
        before, after = change.before, change.after
        has_author = bool(change.origin_us)
        rows.append(
            (
                instance,
                change.txid,
                change.row_kind,
                change.reason,
                change.key.decode("utf-8", "replace"),
                change.topic.decode("utf-8", "replace"),
                message_type,
                change.publisher if has_author else None,
                change.sequence if has_author else None,
                f"{change.publisher}|{change.sequence}|" if has_author else None,
                change.origin_us if has_author else None,
                change.received_us,
                None if after is None else after.body,
                None if before is None else before.body,
            )
        )
        if len(rows) == BATCH_ROWS:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(list(column), kind)
        for column, kind in zip(zip(*rows, strict=True), STORED.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED_SCHEMA)


def key_field_values(
    kind: MessageType, identifiers: Iterable[str], batch: pa.RecordBatch
) -> pa.StructArray:
    """Returns the key fields of each row, as texts, from the record after the change, or before
    it."""
    paths = [field_path(each) for each in identifiers]
    columns: list[list[str | None]] = [[] for _ in paths]
    bodies, old_bodies = batch["body"].to_pylist(), batch["old_body"].to_pylist()
    for body, old in zip(bodies, old_bodies, strict=True):
        try:
            tree: Any = kind.parse(body if body is not None else old)
        except MessageTypeError:  # it was of another type when it was published
            tree = {}
        for path, column in zip(paths, columns, strict=True):
            column.append(_text(tree, path))
    names = [".".join(path) for path in paths]
    return pa.StructArray.from_arrays(
        [pa.array(column, pa.string()) for column in columns], names=names
    )


def _text(value: Any, path: Iterable[str]) -> str | None:
    for name in path:
        value = value.get(name) if type(value) is dict else None
    if value is None:
        return None
    found = value.encode("utf-8", "replace") if type(value) is str else key_text(value)
    return found.decode("utf-8", "replace")
