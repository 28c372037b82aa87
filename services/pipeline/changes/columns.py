"""The columns of a read of changes, from the rows of a file."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.changes.table import (
    KEY_FIELDS,
    OLD_VALUE,
    STORED,
    VALUE,
    key_field_values,
)
from raylay.services.pipeline.tables.option_checks import check_column
from raylay.services.pipeline.tables.values import BodyParser, misfit_error

MODES = ("failfast", "permissive")


def checked_mode(text: str) -> str:
    """Returns the value of the option `mode` in lower case.

    Raises:
        ConfigurationError: changes have no such mode.
    """
    if text.lower() not in MODES:
        raise ConfigurationError(
            f"mode is {text!r}: changes have {' or '.join(MODES)}, because a change that is left "
            "out makes those behind it wrong"
        )
    return text.lower()


def wanted_schema(schema: StructType) -> pa.Schema:
    """Returns the schema that Spark wants of a read of changes, in Arrow's types.

    Raises:
        ConfigurationError: changes have no such column, or it has another type.
    """
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    for wanted in found:
        if wanted.name in (VALUE, OLD_VALUE, KEY_FIELDS) and pa.types.is_struct(wanted.type):
            continue
        if wanted.name not in STORED:
            raise ConfigurationError(
                f"the schema has the column {wanted.name}, which changes do not have: there are "
                f"{', '.join(STORED)}, {KEY_FIELDS}, and {VALUE} and {OLD_VALUE} as STRUCT"
            )
        check_column(wanted, STORED[wanted.name])
    return found


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """The columns that Spark wants of the rows of one topic.

    Attributes:
        arrow_schema: the wanted columns.
        types: message types, among them that of the topic.
        message_type: the topic's.
        keys: identifiers of the key fields.
        mode: the effect of a body that does not fit: `failfast` or `permissive`.
        corrupt_record: the field that has such a body.
    """

    arrow_schema: pa.Schema
    types: MessageTypes
    message_type: str
    keys: tuple[str, ...]
    mode: str
    corrupt_record: str

    def shaped(self, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Returns the columns of a batch of rows (`STORED_SCHEMA`).

        Args:
            where: names the source of a body that does not fit, after its key; braces in its first
                words stand for the transaction id.

        Raises:
            ConfigurationError: a body does not fit, and the mode is `failfast`.
        """
        columns = []
        for wanted in self.arrow_schema:
            if wanted.name in (VALUE, OLD_VALUE) and pa.types.is_struct(wanted.type):
                body = "body" if wanted.name == VALUE else "old_body"
                columns.append(self._values(wanted.type, body, batch, where))
            elif wanted.name == KEY_FIELDS:
                kind = self.types[self.message_type]
                columns.append(key_field_values(kind, self.keys, batch))
            else:
                columns.append(batch[wanted.name])
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _values(
        self, kind: pa.StructType, name: str, batch: pa.RecordBatch, where: str
    ) -> pa.Array:
        parser = BodyParser(kind, self.types, self.corrupt_record)
        # A row without a body is read as a delete, which needs no value.
        commands = pa.array(
            ["publish" if there else "sow_delete" for there in batch[name].is_valid().to_pylist()]
        )
        found = parser.read(batch[name], batch["message_type"], commands)
        if found.refused and self.mode == "failfast":
            row, reason = found.refused[0]
            txid, key = batch["txid"][row].as_py(), batch["sow_key"][row].as_py()
            source = where.replace("{}", str(txid), 1)
            raise misfit_error(
                kind,
                batch["bookmark"][row].as_py() or "that has expired",
                reason,
                f", in the {name} of key {key} {source}",
            )
        return found.values
