"""The names of types in errors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType

from raylay.services.pipeline.tables.fields import sql_name

STRUCT = pa.struct([("aB", pa.int32()), ("c", pa.map_(pa.string(), pa.decimal128(5, 0)))])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.string(), "STRING"),
        (pa.binary(), "BINARY"),
        (pa.bool_(), "BOOLEAN"),
        (pa.int8(), "TINYINT"),
        (pa.int16(), "SMALLINT"),
        (pa.int32(), "INT"),
        (pa.int64(), "BIGINT"),
        (pa.float32(), "FLOAT"),
        (pa.float64(), "DOUBLE"),
        (pa.decimal128(20, 3), "DECIMAL(20,3)"),
        (pa.date32(), "DATE"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP"),
        (pa.timestamp("us"), "TIMESTAMP_NTZ"),
        (to_arrow_type(VariantType()), "VARIANT"),
        (pa.list_(pa.int64()), "ARRAY<BIGINT>"),
        (pa.map_(pa.string(), pa.list_(pa.date32())), "MAP<STRING, ARRAY<DATE>>"),
        (STRUCT, "STRUCT<aB: INT, c: MAP<STRING, DECIMAL(5,0)>>"),
    ],
)
def test_a_type_has_the_name_that_sql_takes(kind: pa.DataType, name: str) -> None:
    assert sql_name(kind) == name


def test_large_texts_have_the_name_of_texts() -> None:
    assert sql_name(pa.large_string()) == "STRING"
    assert sql_name(pa.large_list(pa.large_binary())) == "ARRAY<BINARY>"
