"""The column `value`: bodies parsed by the declared schema, and what becomes of those that do not
fit."""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

import numpy as np
import pyarrow as pa

from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.dead_letters import DeadLetter, append_letters, letters_directory
from raylay.services.pipeline.tables.values import BodyParser, Mode, misfit_error

VALUE = "value"
LETTER_COLUMNS = ("topic", "key", "correlation_id", "expiration_s")
LETTER_FIELDS = ("body", "message_type", "command")
"""Columns of a row that a dead letter has too."""


class ValueOptions(Protocol):
    """The options of a read that concern values."""

    topic: str
    filter: str
    mode: Mode
    columnnameofcorruptrecord: str
    dead_letters: str


class ValueColumn:
    """Makes the column `value` of what one task reads, by the option `mode`.

    Attributes:
        needed: the columns of a row that it needs.

    Args:
        types: the message types by name.
        source: the instance that is read, or the servers.
        part: names what the task reads, the same when the task is repeated.
        journal: path of the journal; empty: rows have no transaction ids.

    Raises:
        ConfigurationError: no body has values of a declared type.
    """

    def __init__(
        self,
        options: ValueOptions,
        kind: pa.StructType,
        types: MessageTypes,
        source: str,
        part: str,
        journal: str = "",
    ) -> None:
        self._options = options
        self._kind = kind
        self._source = source
        self._part = part
        self._journal = journal
        self._reader = BodyParser(kind, types, options.columnnameofcorruptrecord)
        self.needed = ["body", "message_type", "command", "publisher", "sequence"]
        if journal:
            self.needed.append("txid")
        self._letters: list[DeadLetter] = []
        if options.mode == "dead_letter":
            self.needed += LETTER_COLUMNS

    def of(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """Returns the rows that stay, and their values.

        Raises:
            ConfigurationError: a body does not fit, and the mode is `failfast`.
        """
        mode = self._options.mode
        found = self._reader.read(rows["body"], rows["message_type"], rows["command"])
        if not found.refused or mode == "permissive":
            return rows, found.values
        if mode == "failfast":
            row, reason = found.refused[0]
            publisher, sequence = (rows[name][row].as_py() for name in ("publisher", "sequence"))
            where = f", from {self._source}"
            if self._journal:
                where = f", in transaction id {rows['txid'][row].as_py()} of {self._journal}"
            raise misfit_error(self._kind, f"{publisher}|{sequence}|", reason, where)
        if mode == "dead_letter":
            self._letters += [self._letter(rows, row, reason) for row, reason in found.refused]
        kept = np.ones(len(rows), bool)
        kept[[row for row, _ in found.refused]] = False
        marks = pa.array(kept)
        return rows.filter(marks), found.values.filter(marks)

    def _letter(self, rows: pa.RecordBatch, row: int, reason: str) -> DeadLetter:
        values = {name: rows[name][row].as_py() for name in (*LETTER_COLUMNS, *LETTER_FIELDS)}
        position = rows["txid" if self._journal else "sequence"][row].as_py()
        return DeadLetter(self._source, reason, position, **values)

    def finish(self) -> None:
        """Writes the dead letters of all that the task read at once: a task that is repeated adds
        none twice.

        Raises:
            StorageError: they cannot be written.
        """
        if self._options.mode != "dead_letter":
            return
        query = sha256(f"{self._options.topic}|{self._options.filter}|{self._kind}".encode())
        directory = letters_directory(self._options.dead_letters)
        append_letters(directory, f"{self._part}-{query.hexdigest()[:16]}", self._letters)
