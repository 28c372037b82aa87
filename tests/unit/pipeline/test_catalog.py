"""Options of a table of Spark's catalog, on their way through its schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.tables.catalog import (
    COMMENT_PREFIX,
    as_comment,
    checked_options,
    created_options,
    table_options,
)


def schema_of(comment: str) -> StructType:
    metadata = {"comment": comment} if comment else {}
    return StructType([StructField("txid", LongType(), True, metadata)])


def test_the_options_of_a_table_that_is_created() -> None:
    assert created_options({"path": "data", "columns": "body"}) is None
    created = {"provider": "raylay", "owner": "root", "topic": "t", "option.topic": "t"}
    assert created_options(created) == {"topic": "t"}
    placed = {"provider": "raylay", "location": "file:/a%20b #?,/c", "option.Group": "g"}
    assert created_options(placed) == {"path": "/a%20b #?,/c", "Group": "g"}
    assert created_options({"provider": "x", "location": "s3://x/y"}) == {"path": "s3://x/y"}


def test_an_option_that_nobody_knows() -> None:
    read, written = {"path", "topic"}, {"servers", "topic"}
    options = checked_options({"PATH": "p", "servers": "s"}, read, written)
    assert options == {"path": "p", "servers": "s"}
    with pytest.raises(ConfigurationError, match="no option bogus: path, servers, topic are known"):
        checked_options({"bogus": "1"}, read, written)
    with pytest.raises(ConfigurationError, match="no option x: inferSchema, path, sampleSize are"):
        checked_options({"x": "1"}, {"samplesize", "path"}, {"inferschema"})


def test_options_come_back_with_the_schema() -> None:
    options = {"topic": "it's \\d", "servers": "h:1"}
    quoted = as_comment(options)
    assert quoted[0] == quoted[-1] == "'" and "\\'" in quoted
    # As a parser of SQL reads it.
    comment = quoted[1:-1].replace("\\'", "'").replace("\\\\", "\\")
    assert comment.startswith(COMMENT_PREFIX)
    assert table_options(schema_of(comment)) == options


@pytest.mark.parametrize("comment", ["", "a user's", COMMENT_PREFIX + "all", COMMENT_PREFIX + "3"])
def test_a_schema_without_options(comment: str) -> None:
    assert table_options(schema_of(comment)) == table_options(StructType([])) == {}
