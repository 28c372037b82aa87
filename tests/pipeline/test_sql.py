"""Tables of Spark's catalog, and sessions of Spark Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support import connect_child
from support.pipeline_cases import Log, expected_rows, journaled, mixed_runs, write_log

CHILD = Path(connect_child.__file__)
CHILD_TIMEOUT_S = 600


@pytest.fixture
def table(spark: Any) -> Iterator[Callable[[str, str], str]]:
    """Creates tables with these options, and drops them at the end."""
    made: list[str] = []

    def create(name: str, options: str) -> str:
        spark.sql(f"CREATE TABLE {name} USING raylay OPTIONS ({options})")
        made.append(name)
        return name

    yield create
    for name in made:
        spark.sql(f"DROP TABLE {name}")


def count(spark: Any, query: str) -> int:
    (row,) = spark.sql(query).collect()
    return int(row[0])


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_a_table_that_is_read(spark: Any, mixed: Log, table: Any, tmp_path: Path) -> None:
    rows = list(expected_rows(mixed, "Chicago-1"))
    orders = sum(row["topic"] == "orders" for row in rows)
    options = (
        f"path '{mixed.directory}', schema 'number INT, carrier STRING', columns 'txid,topic,body'"
    )
    table("sql_read", options)
    described = spark.sql("DESCRIBE sql_read").collect()
    assert [(row["col_name"], row["data_type"]) for row in described] == [
        ("txid", "bigint"),
        ("topic", "string"),
        ("body", "binary"),
        ("value", "struct<number:int,carrier:string>"),
    ]
    assert count(spark, "SELECT count(*) FROM sql_read") == len(rows)
    assert count(spark, "SELECT count(*) FROM sql_read WHERE topic = 'orders'") == orders
    assert count(spark, "SELECT count(*) FROM sql_read WITH (topic = 'orders')") == orders
    query = (
        spark.readStream.table("sql_read")
        .selectExpr("txid", "value.number")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "followed"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "followed")).collect()
    assert sorted(row["txid"] for row in found) == [row["txid"] for row in rows]
    table("sql_inferred", f"path '{mixed.directory}', columns 'txid', inferSchema 'true'")
    typed = spark.readStream.table("sql_inferred").schema["value"].dataType
    assert {"number", "carrier"} <= set(typed.names)
    assert count(spark, "SELECT count(value.number) FROM sql_inferred") == count(
        spark, "SELECT count(value.number) FROM sql_read"
    )
    for wrong, text in (
        (f"path '{mixed.directory}', bogus '1'", "there is no option bogus"),
        (f"path '{mixed.directory}', mode 'lenient'", "mode is 'lenient'"),
        ("topic 't'", "give either `servers`"),
        (f"path '{tmp_path}/typo'", "typo does not exist"),
        (f"path '{tmp_path}'", "is not a journal"),
        (f"path '{mixed.directory}', instance 'Paris-1'", "no instance Paris-1: choose from Chi"),
        (f"path '{mixed.directory}', starting 'soon'", "starting is 'soon', .* no place in a log"),
        ("fabric 'typo', network 'true'", "typo is neither a file nor a directory nor a fabric"),
    ):
        with pytest.raises(PySparkException, match=text):
            table("sql_wrong", wrong)
        assert not spark.catalog.tableExists("sql_wrong")
    spark.sql(f"CREATE TABLE sql_own (txid BIGINT) USING raylay OPTIONS (path '{tmp_path}')")
    try:
        with pytest.raises(PySparkException, match="with a list of columns has no options: leave"):
            spark.sql("SELECT * FROM sql_own").collect()
    finally:
        spark.sql("DROP TABLE sql_own")


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_a_table_that_is_written_to(spark: Any, instance: Any, table: Any, tmp_path: Path) -> None:
    options = f"servers '{instance.address}', topic 'sql/it''s', dead_letters '{tmp_path}'"
    table("sql_out", options)
    spark.sql("INSERT INTO sql_out (body, key) VALUES ('a', 'k'), (NULL, 'k')")
    spark.sql("INSERT INTO sql_out (topic, body) VALUES ('sql/other', 'b')")
    assert [body for _, _, body in journaled(instance, "sql/it's")] == [b"a"]
    assert [body for _, _, body in journaled(instance, "sql/other")] == [b"b"]
    assert spark.read.parquet(str(tmp_path)).count() == 1
    with pytest.raises(PySparkException, match="give either `path`"):
        spark.sql("SELECT * FROM sql_out").collect()
    # One table of both.
    both = f"path '{instance.directory}', servers '{instance.address}', columns 'topic,body'"
    table("sql_both", f"{both}, dead_letters '{tmp_path}'")
    spark.sql("INSERT INTO sql_both VALUES ('sql/both', CAST('c' AS BINARY))")
    assert count(spark, "SELECT count(*) FROM sql_both WHERE topic LIKE 'sql/%'") == 3
    with pytest.raises(PySparkException, match="a log cannot be overwritten"):
        spark.sql("INSERT OVERWRITE sql_out (body) VALUES ('a')")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_a_session_of_spark_connect(mixed: Log, instance: Any, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    command = [sys.executable, str(CHILD), str(mixed.directory), instance.address, str(tmp_path)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    rows = list(expected_rows(mixed, "Chicago-1"))
    assert found["read"] == found["followed"] == found["table"] == len(rows)
    assert "there is no option bogus" in found["error"]
    assert [body for _, _, body in journaled(instance, "connect/out")] == [b"x", b"y"]


ODD_TOPICS = (
    "sql/odd/it's",
    'sql/odd/quo"te',
    "sql/odd/back`tick",
    "sql/odd/semi;colon -- x",
    "sql/odd/ünïcødé/日本/😀",
    "sql/odd/back\\slash\\n",
    "sql/odd/a' COMMENT 'x",
    "sql/odd/%20%41",
)
ODD_DIRECTORIES = ("it's", "per%cent", "per%20cent", "ha#sh", "que?st", "ünï cødé", "semi;colon")


def quoted(text: str) -> str:
    """A text of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_names_that_need_quotes(spark: Any, instance: Any, table: Any, tmp_path: Path) -> None:
    for number, topic in enumerate(ODD_TOPICS):
        table(f"odd_{number}", f"servers '{instance.address}', topic {quoted(topic)}")
        spark.sql(f"INSERT INTO odd_{number} (body) VALUES ('{number}')")
        assert [body for _, _, body in journaled(instance, topic)] == [b"%d" % number]
    exact = "^" + "|".join(re.escape(topic) for topic in ODD_TOPICS) + "$"
    odd = f"path '{instance.directory}', columns 'topic', topic {quoted(exact)}"
    table("odd_read", odd)
    found = spark.sql("SELECT topic FROM odd_read").collect()
    assert sorted(row["topic"] for row in found) == sorted(ODD_TOPICS)
    logs = [write_log(tmp_path / name, mixed_runs(2)) for name in ODD_DIRECTORIES]
    for number, log in enumerate(logs):
        table(f"odd_log_{number}", f"path {quoted(str(log.directory))}, columns 'txid'")
        assert count(spark, f"SELECT count(*) FROM odd_log_{number}") == 40
    every = ",".join(str(log.directory) for log in logs)
    table("odd_logs", f"path {quoted(every)}, columns 'txid', copies 'all'")
    assert count(spark, "SELECT count(*) FROM odd_logs") == 40 * len(logs)


WRONG_INSERTS = {
    "(body) VALUES (NULL)": "a row has no body",
    "(topic) VALUES ('sql/wrong/n')": "a row has no body",
    "(body) VALUES ('good'), (NULL)": "a row has no body",
    "(topic, body) VALUES ('', 'x')": "its topic has 0 bytes",
    "(body, command) VALUES ('x', 'drop')": "its command is 'drop': give publish",
    "(body, expiration_s) VALUES ('x', -1)": "its expiration_s is -1",
    "(body, key) VALUES ('x', repeat('x', 70000))": "its key has 70000 bytes",
    "(body) VALUES (array('x'))": "Cannot safely cast `body`",
    "(body, expiration_s) VALUES ('x', 'soon')": "Cannot safely cast `expiration_s`",
    "(nothing) VALUES ('x')": "with name `nothing` cannot be resolved",
    "(body, body) VALUES ('x', 'y')": "column `body` already exists",
    "VALUES ('x')": "not enough data columns",
}


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_rows_that_are_inserted(spark: Any, instance: Any, table: Any) -> None:
    """Each right row is published by the names of its columns; a wrong one publishes nothing."""
    table("sql_rows", f"servers '{instance.address}', topic 'sql/wrong/default'")
    for values, text in WRONG_INSERTS.items():
        with pytest.raises(PySparkException, match=re.escape(text)):
            spark.sql(f"INSERT INTO sql_rows {values}")
    assert journaled(instance, "sql/wrong/default") == []
    spark.sql(
        "INSERT INTO sql_rows (key, body, topic) VALUES ('k', 'a', 'sql/wrong/own'), "
        "(NULL, '', NULL), ('', 'c', NULL)"
    )
    spark.sql("INSERT INTO sql_rows BY NAME SELECT 7 AS body, 'sql/wrong/own' AS topic")
    spark.sql(
        "INSERT INTO sql_rows VALUES ('sql/wrong/own', 'json', NULL, CAST('d' AS BINARY), 'k', "
        "NULL, 5)"
    )
    spark.sql("INSERT INTO sql_rows (body) SELECT 'x' WHERE false")
    own = [body for _, _, body in journaled(instance, "sql/wrong/own")]
    default = sorted(body for _, _, body in journaled(instance, "sql/wrong/default"))
    assert (own, default) == ([b"a", b"7", b"d"], [b"", b"c"])


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "tables of the catalog")
def test_tables_that_cannot_be_made_or_used(
    spark: Any, instance: Any, table: Any, mixed: Log
) -> None:
    path, server = f"path '{mixed.directory}'", f"servers '{instance.address}'"
    with pytest.raises(PySparkException, match="the option columns names txid twice: name it once"):
        table("sql_twice", f"{path}, columns 'txid,topic, txid'")
    table("sql_fields", f"{path}, columns 'txid', schema 'number INT, number INT'")
    with pytest.raises(PySparkException, match="the schema has the field number twice: declare it"):
        spark.sql("SELECT * FROM sql_fields").collect()
    table("sql_wide", f"{path}, {server}, topic 'sql/wide', columns 'txid,topic,body'")
    with pytest.raises(PySparkException, match=r"a message has no column txid: .* Leave it out of"):
        spark.sql("INSERT INTO sql_wide (body) VALUES (CAST('x' AS BINARY))")
    with pytest.raises(PySparkException, match=r"AS SELECT` and a table with a list of columns"):
        spark.sql(f"CREATE TABLE sql_as USING raylay OPTIONS ({server}) AS SELECT 'x' AS body")
    assert not spark.catalog.tableExists("sql_as")
    spark.sql("ALTER TABLE sql_wide ALTER COLUMN txid COMMENT 'mine'")
    with pytest.raises(PySparkException, match="given another comment lost them: create it anew"):
        spark.sql("SELECT * FROM sql_wide").collect()
