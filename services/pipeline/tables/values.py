"""Parses JSON bodies into a column of a declared type, a batch at a time."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from raylay.services.errors import ConfigurationError

Mode = Literal["failfast", "permissive"]


class BodyParser:
    """Parses bodies of message type `json` into a struct.

    Args:
        kind: the struct's type. Other fields of a body are left out; fields that a body lacks are
            null.
        mode: the effect of a body that does not fit: `failfast` raises; with `permissive` its value
            is null.
    """

    def __init__(self, kind: pa.StructType, mode: Mode = "failfast") -> None:
        self._kind = kind
        self._mode = mode
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema(list(kind)),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )

    def values(self, bodies: pa.Array, message_types: pa.Array, bookmarks: pa.Array) -> pa.Array:
        """Returns one value for each body; null where the body is empty or its message type is not
        JSON.

        Raises:
            ConfigurationError: a body does not fit; the error names the message, the schema and the
                cause.
        """
        wanted = pc.and_(pc.equal(message_types, "json"), pc.greater(pc.binary_length(bodies), 0))
        rows = pc.indices_nonzero(wanted)
        if len(rows) == len(bodies):
            return self._parsed(bodies, bookmarks)
        found = self._parsed(bodies.take(rows), bookmarks.take(rows))
        # The rows that have none take a null.
        numbers = pc.subtract(pc.cumulative_sum(wanted.cast(pa.int64())), 1)
        return found.take(pc.if_else(wanted, numbers, pa.scalar(None, pa.int64())))

    def _parsed(self, bodies: pa.Array, bookmarks: pa.Array) -> pa.Array:
        if not len(bodies):
            return pa.nulls(0, self._kind)
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(bodies)], bodies), b"\n")
        data = joined[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=self._options,
            )
            problem = f"holds {table.num_rows} JSON values"
            if table.num_rows == len(bodies):
                return table.select(self._kind.names).to_struct_array().combine_chunks()
        except pa.ArrowInvalid as error:
            problem = str(error)
        if len(bodies) > 1:
            # One of them does not fit: find it by halves.
            half = len(bodies) // 2
            return pa.concat_arrays(
                [
                    self._parsed(bodies[:half], bookmarks[:half]),
                    self._parsed(bodies[half:], bookmarks[half:]),
                ]
            )
        if self._mode == "permissive":
            return pa.nulls(1, self._kind)
        raise ConfigurationError(
            f"the body of message {bookmarks[0]} does not match the schema "
            f"{', '.join(f'{each.name} {each.type}' for each in self._kind)}: {problem}; correct "
            "the schema, or read with mode permissive for null values"
        )
