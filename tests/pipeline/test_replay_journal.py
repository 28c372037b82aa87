"""A replay out of a journal, with Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.pipeline_cases import (
    START_US,
    Log,
    expected_rows,
    journaled,
    message_run,
    write_fabric,
    write_log,
)

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.archive import archive
from raylay.services.pipeline.journals import places
from raylay.services.pipeline.publishing.sink import WriteOptions
from raylay.services.pipeline.replay.job import replay
from raylay.services.pipeline.replay.source import ReplaySelection, SparkSource


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "in order, once")
def test_a_journal_is_replayed(spark: Any, instance: Any, tmp_path: Path, mixed: Log) -> None:
    held = [row for row in expected_rows(mixed, "Chicago-1") if row["command"] == "publish"]
    target = WriteOptions.of({"servers": instance.address})
    selection = ReplaySelection(
        first=dt.datetime.fromtimestamp(START_US / 1e6 + 10, dt.UTC),
        topics=("^flights/",),
        where="value.carrier = 'DL' AND group = 'Chicago'",
        schema="carrier STRING",
        to_topic="replayed/{topic}/x",
    )
    source = SparkSource(spark, str(mixed.directory), selection)
    summary = replay(source, target, tmp_path, "flights", speed=0)
    for topic in ("flights/EWR", "flights/JFK"):
        wanted = [
            row["body"]
            for row in held
            if row["topic"] == topic
            and row["receive_time"] >= START_US + 10_000_000
            and row["group"] == "Chicago"
            and json.loads(row["body"])["carrier"] == "DL"
        ]
        found = journaled(instance, f"replayed/{topic}/x")
        assert [body for _, _, body in found] == wanted and len(wanted) > 50
    sequences = [
        sequence
        for topic in ("flights/EWR", "flights/JFK")
        for _, sequence, _ in journaled(instance, f"replayed/{topic}/x")
    ]
    assert sorted(sequences) == list(range(1, summary.published + 1))
    assert summary.skipped > 0 and summary.instance == "Chicago-1"
    of_time_and_topic = sum(
        row["topic"].startswith("flights/") and row["receive_time"] >= START_US + 10_000_000
        for row in held
    )
    assert summary.left_out == of_time_and_topic - summary.published > 0
    assert not summary.left_out_null
    with pytest.raises(ConfigurationError, match="holds no selected message"):
        SparkSource(spark, str(mixed.directory), ReplaySelection(topics=("nothing",))).plan(10)
    for selection, text in (
        (ReplaySelection(where="nonsense ="), "filter 'nonsense =' cannot be used: "),
        (ReplaySelection(where="value.x = 1"), "filter 'value.x = 1' cannot be used: "),
        (
            ReplaySelection(schema="carrier WORD", where="true"),
            "schema 'carrier WORD' cannot be used",
        ),
        (ReplaySelection(schema="INT", where="true"), "schema 'INT' names no fields"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            SparkSource(spark, str(mixed.directory), selection).plan(10)
        assert str(raised.value).startswith(text) and "\n" not in str(raised.value)


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, another query's")
@pytest.mark.slow
def test_into_a_topic_that_is_not_journaled(
    spark: Any, choosy: Any, tmp_path: Path, mixed: Log
) -> None:
    target = WriteOptions.of({"servers": choosy.address})
    # Of two topics one would be kept: nothing is published of either.
    source = SparkSource(
        spark,
        str(mixed.directory),
        ReplaySelection(topics=("^orders$", "^flights/"), to_topic="{topic}/again"),
    )
    with pytest.raises(ConfigurationError) as raised:
        replay(source, target, tmp_path, "job", speed=0)
    assert str(raised.value).startswith(
        "Chicago-2 does not journal flights/EWR/again (json), flights/JFK/again (json): "
    )
    assert not list(tmp_path.iterdir()) and not journaled(choosy, "orders/again")
    into = ReplaySelection(topics=("^orders$",), to_topic="kept/{topic}")
    source = SparkSource(spark, str(mixed.directory), into)
    assert replay(source, target, tmp_path, "job", speed=0).published == 20
    assert len(journaled(choosy, "kept/orders")) == 20


@pytest.mark.slow
@pytest.mark.parametrize("lake", [False, True])
def test_a_schema_that_does_not_fit(spark: Any, mixed: Log, tmp_path: Path, lake: bool) -> None:
    where = str(mixed.directory)
    if lake:
        archive(spark, tmp_path / "lake", places(path=where))
        where = str(tmp_path / "lake")
    wrong = {"topics": ("orders",), "where": "value.carrier > 1", "schema": "carrier INT"}
    with pytest.raises(ConfigurationError) as raised:
        SparkSource(spark, where, ReplaySelection(**wrong)).plan(10)
    assert "does not match the schema carrier INT" in str(raised.value)
    assert "\n" not in str(raised.value) and str(raised.value).startswith("the body of message ")
    with pytest.raises(ConfigurationError, match=r"filter left 20 out, and is null for 20 of them"):
        SparkSource(spark, where, ReplaySelection(**wrong, mode="permissive")).plan(10)
    lines: list[str] = []
    # A field that no body has is null, as in every read.
    some = ReplaySelection(
        topics=("orders",), where="value.gate = 'A1' OR value.carrier = 'DL'",
        schema="carrier STRING, gate STRING",
    )  # fmt: skip
    plan = SparkSource(spark, where, some, progress=lines.append).plan(10)
    assert (plan.rows, plan.left_out, plan.left_out_null) == (7, 13, 13)
    assert lines[-1].endswith(
        "7 messages in 1 chunks; the filter left 13 out, and is null for 13 of them"
    )


@pytest.mark.slow
def test_message_types_that_the_fabric_defines(spark: Any, tmp_path: Path) -> None:
    """A journal has the types of its instance, and a lake those of the target."""
    run = message_run(1, 7, 1, 3)
    builder = RecordBuilder(7, "trades", "trade")
    run.payload = b"".join(builder.build(n, msgpack.packb({"n": n}), 0) for n in (1, 2, 3))
    run.topic, run.message_type = b"trades", b"trade"
    log = write_log(tmp_path / "fabric" / "Chicago-1", [run])
    lake = tmp_path / "lake"
    archive(spark, lake, places(path=str(log.directory)))
    selection = ReplaySelection(where="value.n > 1", schema="n INT")
    unknown = (
        r"^the body of message 7\|\d\| cannot be parsed by a schema: no message type is called "
        r"'trade',[^\n]* --fabric names"
    )
    for source in (log.directory, lake):
        with pytest.raises(ConfigurationError, match=unknown):
            SparkSource(spark, str(source), selection).plan(10)
    types = (TypeDefinition("trade", "msgpack"),)
    InstanceConfig("Chicago-1", "Chicago", type_definitions=types).save(log.directory)
    defined = [{"name": "trade", "kind": "msgpack"}]
    target = str(write_fabric(tmp_path / "fabric", ("Chicago-1",), message_types=defined))
    for source, fabric in ((log.directory, ""), (lake, target)):
        plan = SparkSource(spark, str(source), selection, target_fabric=fabric).plan(10)
        assert (plan.rows, plan.left_out, plan.left_out_null) == (2, 1, 0)
        assert plan.topics == [["trades", "trade"]]


@pytest.mark.slow
def test_a_damaged_record_stops_or_is_left_out(spark: Any, instance: Any, tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 201, 20)]
    log = write_log(tmp_path / "hurt", runs)
    path = min(log.journal.glob("journal-*.sealed"))
    sound = path.read_bytes()
    assert b'"number": 25,' in sound
    path.write_bytes(sound.replace(b'"number": 25,', b'"number": 29,'))
    target = WriteOptions.of({"servers": instance.address})
    into = ReplaySelection(to_topic="replayed/hurt")
    with pytest.raises(ConfigurationError, match="fails its checksum"):
        replay(SparkSource(spark, str(log.directory), into), target, tmp_path, "stop", speed=0)
    source = SparkSource(spark, str(log.directory), into, on_corrupt="skip")
    published = replay(source, target, tmp_path, "skip", speed=0).published
    found = [json.loads(body)["number"] for _, _, body in journaled(instance, "replayed/hurt")]
    assert published == len(found) < 200
    assert found == [number for number in range(1, 201) if number in found] and 25 not in found
    # Named by another path it is the same job.
    again = SparkSource(spark, f"{log.directory}/../hurt", into, on_corrupt="skip")
    assert replay(again, target, tmp_path, "skip", speed=0).published_before == published
    with pytest.raises(ConfigurationError, match="was begun with another value of on_corrupt:"):
        replay(SparkSource(spark, str(log.directory), into), target, tmp_path, "skip", speed=0)
