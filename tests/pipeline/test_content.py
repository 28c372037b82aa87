"""The option `filter` of a read: rows are made of what passes and of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.pipeline_cases import Log, expected_rows, message_run, write_log

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import MESSAGES, Command, RecordBuilder
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.tables.source import BatchReader, ReadOptions, StreamReader

pytestmark = pytest.mark.covers("Data pipeline", "the option `filter`")

TXID = StructType([StructField("txid", LongType())])
COMMANDS = {command.name.lower() for command in map(Command, MESSAGES)}


def read(path: Path, text: str, kind: StructType = TXID, **options: str) -> list[dict[str, Any]]:
    """What a batch read gives, without Spark."""
    reader = BatchReader(ReadOptions.of({"path": str(path), "filter": text, **options}), kind)
    batches = [each for part in reader.partitions() for each in reader.read(part)]
    assert all(len(each) for each in batches)
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def txids(path: Path, text: str, **options: str) -> list[int]:
    return [row["txid"] for row in read(path, text, **options)]


@pytest.mark.slow
def test_what_passes_is_read_from_every_kind_of_segment(spark: Any, mixed: Log) -> None:
    """By Spark, with its own filters and without the column of the body."""
    passing = [
        row["txid"]
        for row in expected_rows(mixed, "Chicago-1")
        if row["command"] in COMMANDS and b'"DL"' in row["body"]
    ]
    frame = (
        spark.read.format("raylay")
        .options(columns="txid,topic", filter="/carrier = 'DL'")
        .load(str(mixed.directory))
    )
    assert sorted(row["txid"] for row in frame.collect()) == passing
    late = [row["txid"] for row in frame.where("txid > 600").collect()]
    assert sorted(late) == [txid for txid in passing if txid > 600]
    with pytest.raises(PySparkException, match="filter: '/carrier = ' is no filter: column 12"):
        spark.read.format("raylay").option("filter", "/carrier = ").load(str(mixed.directory))


def test_what_is_no_message_or_cannot_be_read_passes_none(tmp_path: Path) -> None:
    builder = RecordBuilder(7, "flights/EWR", "json")
    run = message_run(1, 7, 1, 4)
    run.payload = b"".join(
        (
            builder.build(1, b'{"n": 1}', 0),
            builder.build(2, b'{"n": 1', 0),
            builder.build(3, b'{"n": 1}', 0, command=Command.DELETE),
            builder.build(4, b'{"n": 1}', 0, command=Command.DELTA_PUBLISH),
        )
    )
    other = message_run(5, 7, 5, 1)
    other.payload = RecordBuilder(7, "flights/EWR", "nobody").build(5, b'{"n": 1}', 0)
    other.message_type = b"nobody"
    log = write_log(tmp_path / "one", [run, other])
    assert txids(log.directory, "/n = 1") == [1, 4]
    assert txids(log.directory, "NOT /n = 2") == [1, 4]
    assert txids(log.directory, "/n = 2") == []


def test_a_filter_may_ask_what_is_around_the_message(tmp_path: Path) -> None:
    log = write_log(tmp_path / "Chicago-1", [message_run(1, 7, 1, 20, special=True)])
    assert txids(log.directory, "BOOKMARK() = '7|4|'") == [4]
    assert txids(log.directory, "CORRELATION_ID() = 'c4' AND TOPIC_NAME() = 'flights/EWR'") == [4]
    assert txids(log.directory, "AMPS_INSTANCE_NAME() = 'London-1'") == []
    assert 4 in txids(log.directory, "AMPS_INSTANCE_NAME() = 'Chicago-1' AND MESSAGE_SIZE() > 9")
    assert txids(log.directory, "UNIX_TIMESTAMP() < 1") == []


def test_message_types_are_those_of_the_instance(tmp_path: Path) -> None:
    """By its configuration, which lies beside its journal."""
    run = message_run(1, 7, 1, 2)
    builder = RecordBuilder(7, "flights/EWR", "trades")
    run.payload = b"".join(builder.build(n, msgpack.packb({"n": n}), 0) for n in (1, 2))
    run.message_type = b"trades"
    log = write_log(tmp_path / "Chicago-1", [run])
    assert txids(log.directory, "/n = 2") == []
    types = (TypeDefinition("trades", "msgpack"),)
    InstanceConfig("Chicago-1", "Chicago", type_definitions=types).save(log.directory)
    assert txids(log.directory, "/n = 2") == [2]


def test_columns_are_made_of_what_passes(tmp_path: Path) -> None:
    log = write_log(tmp_path / "one", [message_run(1, 7, 1, 12)])
    schema = StructType(
        [
            StructField("bookmark", StringType()),
            StructField("value", StructType([StructField("number", LongType())])),
        ]
    )
    rows = read(log.directory, "/number % 6 = 0", schema, schema="number BIGINT")
    assert [(row["bookmark"], row["value"]["number"]) for row in rows] == [
        ("7|6|", 6),
        ("7|12|", 12),
    ]
    assert txids(log.directory, "/number = 6", topic="flights/EWR") == [6]


def test_a_stream_takes_it_too(tmp_path: Path) -> None:
    log = write_log(tmp_path / "one", [message_run(1, 7, 1, 12)])
    reader = StreamReader(
        ReadOptions.of({"path": str(log.directory), "filter": "/number = 7"}), TXID
    )
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [
        txid
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for txid in batch["txid"].to_pylist()
    ]
    assert found == [7] and end["one"]["txid"] == 12
    with pytest.raises(ConfigurationError, match="column 4"):
        StreamReader(ReadOptions.of({"path": str(log.directory), "filter": "/n !"}), TXID)
