"""A replay out of a journal, with Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_cases import START_US, Log, expected_rows, journaled

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.replay import replay
from raylay.services.pipeline.replay_source import Selection, SparkSource
from raylay.services.pipeline.sink import WriteOptions


def test_a_journal_is_replayed(spark: Any, instance: Any, tmp_path: Path, mixed: Log) -> None:
    held = [row for row in expected_rows(mixed, "Chicago-1") if row["command"] == "publish"]
    target = WriteOptions.of({"servers": instance.address})
    selection = Selection(
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
    with pytest.raises(ConfigurationError, match="holds no message that is chosen"):
        SparkSource(spark, str(mixed.directory), Selection(topics=("nothing",))).plan(10)
    for selection, text in (
        (Selection(where="nonsense ="), "filter 'nonsense =' cannot be used: "),
        (Selection(where="value.x = 1"), "filter 'value.x = 1' cannot be used: "),
        (Selection(schema="carrier WORD", where="true"), "schema 'carrier WORD' cannot be used"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            SparkSource(spark, str(mixed.directory), selection).plan(10)
        assert str(raised.value).startswith(text) and "\n" not in str(raised.value)


def test_into_a_topic_that_is_not_journaled(
    spark: Any, choosy: Any, tmp_path: Path, mixed: Log
) -> None:
    target = WriteOptions.of({"servers": choosy.address})
    # Of two topics one would be kept: nothing is published of either.
    source = SparkSource(
        spark,
        str(mixed.directory),
        Selection(topics=("^orders$", "^flights/"), to_topic="{topic}/again"),
    )
    with pytest.raises(ConfigurationError) as raised:
        replay(source, target, tmp_path, "job", speed=0)
    assert str(raised.value).startswith(
        "Chicago-2 does not journal flights/EWR/again (json), flights/JFK/again (json): "
    )
    assert not list(tmp_path.iterdir()) and not journaled(choosy, "orders/again")
    into = Selection(topics=("^orders$",), to_topic="kept/{topic}")
    source = SparkSource(spark, str(mixed.directory), into)
    assert replay(source, target, tmp_path, "job", speed=0).published == 20
    assert len(journaled(choosy, "kept/orders")) == 20
