"""Reads over the client protocol: the rows of the journal, from any instance that answers."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from support.instance_processes import Servers, pair
from support.instance_processes import servers as servers
from support.pipeline_cases import RunningInstance

from raylay.services.client import SyncClient
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.changes.network_source import (
    NetworkChangeBatchReader,
    NetworkChangeOptions,
)
from raylay.services.pipeline.network import source
from raylay.services.pipeline.network.offsets import from_json, new_in, to_json
from raylay.services.pipeline.network.reading import NetworkReader
from raylay.services.pipeline.network.source import (
    NETWORK_COLUMNS,
    NetworkBatchReader,
    NetworkOptions,
    NetworkStreamReader,
)
from raylay.services.pipeline.tables.source import BatchReader, ReadOptions
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers("Data pipeline", "the journal's rows, at any instance")
MESSAGES = 3_000
FAILOVER_MESSAGES = 200_000
"""Enough for several batches of rows."""
LIVE_MESSAGES, LIVE_MESSAGES_MAX = 400, 100_000
WAIT_S = 120.0


def schema_of(*names: str) -> StructType:
    return from_arrow_schema(pa.schema([(name, NETWORK_COLUMNS[name]) for name in names]))


def options(instance: RunningInstance, **more: Any) -> NetworkOptions:
    given = {"servers": instance.address, **{name: str(value) for name, value in more.items()}}
    return NetworkOptions.of(given)


def publish(instance: RunningInstance, topic: str, numbers: range, name: str = "desk") -> None:
    with SyncClient(name, [instance.address]) as client:
        for number in numbers:
            client.publish(topic, b'{"n": %d}' % number, key=b"k" if number % 3 == 0 else b"")
        client.flush()


def rows(reader: Any, *between: Any) -> list[dict[str, Any]]:
    return [
        row
        for partition in reader.partitions(*between)
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
        for row in batch.to_pylist()
    ]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [json.loads(row["body"])["n"] for row in found]


def test_the_rows_are_those_of_the_journal(instance: RunningInstance) -> None:
    for name in ("desk-a", "desk-b"):
        publish(instance, "net/same", range(MESSAGES), name)
    publish(instance, "net/other", range(10))
    names = tuple(NETWORK_COLUMNS)
    schema = schema_of(*names)
    made = options(instance, topic="net/same", readers=3)
    made_of_journal = ReadOptions.of({"path": str(instance.directory), "topic": "net/same"})
    over_network = rows(NetworkBatchReader(made, schema))
    in_journal = rows(BatchReader(made_of_journal, schema))
    assert len(over_network) == 2 * MESSAGES

    def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(found, key=lambda row: (row["publisher"], row["sequence"]))

    for name in names:
        columns = ([row[name] for row in ordered(each)] for each in (over_network, in_journal))
        different = [pair for pair in zip(*columns, strict=True) if pair[0] != pair[1]]
        assert not different, (name, len(different), different[:3])


def test_a_stream_gives_each_message_once_in_each_publishers_order(
    instance: RunningInstance,
) -> None:
    schema = schema_of("publisher", "sequence", "body")
    reader = NetworkStreamReader(options(instance, topic="net/stream", starting="0|1|"), schema)
    start = reader.initialOffset()
    publish(instance, "net/stream", range(500))
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    first = reader.latestOffset(start, ReadAllAvailable())
    publish(instance, "net/stream", range(500, 800))
    # A micro-batch that is read again, later, is the same.
    assert numbers(rows(reader, start, first)) == list(range(500))
    assert numbers(rows(reader, start, first)) == list(range(500))
    second = reader.latestOffset(first, ReadMaxRows(100))
    assert numbers(rows(reader, first, second)) == list(range(500, 600))
    third = reader.latestOffset(second, ReadMaxRows(1_000))
    assert numbers(rows(reader, second, third)) == list(range(600, 800))
    assert reader.latestOffset(third, ReadAllAvailable()) == third
    reported = reader.reportLatestOffset()
    assert reported is not None and reported["messages"] >= third["messages"]
    reader.stop()


def test_a_stream_from_now_that_is_killed_in_its_first_micro_batch_loses_nothing(
    instance: RunningInstance,
) -> None:
    schema = schema_of("body")
    made = options(instance, topic="net/first", starting="0|1|")
    killed, again = NetworkStreamReader(made, schema), NetworkStreamReader(made, schema)
    start = killed.initialOffset()
    publish(instance, "net/first", range(10))
    end = killed.latestOffset(start, ReadAllAvailable())
    killed.stop()
    # Spark kept the end, and asks for the begin again.
    publish(instance, "net/first", range(10, 20))
    later = again.initialOffset()
    found = rows(again, later, end)
    found += rows(again, end, again.latestOffset(end, ReadAllAvailable()))
    assert numbers(found) == list(range(20))
    again.stop()


@pytest.mark.slow
def test_a_named_reader_tells_every_server_how_far_it_is(instance: RunningInstance) -> None:
    publish(instance, "net/named", range(100))
    away = "127.0.0.1:1"
    made = NetworkOptions.of(
        {
            "servers": f"{instance.address},{away}",
            "topic": "net/named",
            "reader": "lake",
            "reader_expires_s": "90",
        }
    )
    reader = NetworkStreamReader(made, schema_of("body"))
    start = reader.initialOffset()

    def behind() -> tuple[int, int]:
        with SyncClient("looker", [instance.address]) as client:
            (found,) = client.readers.known()
        assert (found["name"], found["topic"]) == ("lake", "net/named")
        return found["behind"], found["expires_s"]

    held, expires_s = behind()
    assert held >= 100 and expires_s == 90
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(rows(reader, start, end)) == 100
    reader.commit(end)
    assert behind()[0] == 0
    reader.stop()


def test_a_batch_begins_and_ends_where_it_is_told(instance: RunningInstance) -> None:
    schema = schema_of("bookmark", "origin_time", "body")
    publish(instance, "net/part", range(100))
    found = rows(NetworkBatchReader(options(instance, topic="net/part"), schema))
    starting, ending = found[9]["bookmark"], found[59]["bookmark"]
    made = options(instance, topic="net/part", starting=starting, ending=ending)
    assert numbers(rows(NetworkBatchReader(made, schema))) == list(range(10, 60))
    first_us = found[0]["origin_time"].timestamp() * 1_000_000
    made = options(instance, topic="net/part", starting=f"{first_us - 60e6:.0f}")
    assert numbers(rows(NetworkBatchReader(made, schema))) == list(range(100))
    for earlier, later in (
        (starting, ending),
        (EPOCH, starting),
        (f"{first_us - 60e6:.0f}", "0|1|"),
    ):
        made = options(instance, topic="net/part", starting=later, ending=earlier)
        with pytest.raises(ConfigurationError, match=r"^ending .* lies before starting .* at Chic"):
            NetworkBatchReader(made, schema).partitions()
    made = options(instance, topic="net/part", filter="/n > 90 AND /n < 95")
    assert numbers(rows(NetworkBatchReader(made, schema))) == [91, 92, 93, 94]
    made = options(instance, topic="net/part", starting="0|1|")
    assert rows(NetworkBatchReader(made, schema)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"servers": "h:1", "fabric": "f"}, "either `servers`"),
        ({"network": "true"}, "either `servers`"),
        ({"servers": "h:1", "path": "data"}, "no option path .of a read of journals"),
        ({"servers": "h:1", "columns": "txid"}, "an instance does not send it"),
        ({"servers": "h:1", "columns": "typo"}, "no message has it"),
        ({"servers": "h:1", "readers": "0"}, "whole number above 0"),
        ({"servers": "h:1", "read_wait_s": "x"}, "number of seconds above 0"),
        ({"servers": "h:1", "on_data_loss": "x"}, "give fail or go_on"),
        ({"servers": "h:1", "filter": "/a >"}, "filter"),
        ({"servers": "h:1", "starting": "x"}, "starting is 'x', which is no place in a log: give"),
        ({"servers": "h:1", "ending": "[0:1|2|]"}, "ending is .*, which is a range: give its ends"),
        ({"servers": "h:1", "starting": '{"a": 1}'}, "starting is .* has no transaction ids"),
        ({"servers": "h:1", "ending": "{"}, "ending is .* has no transaction ids"),
        (
            {"servers": "h:1", "starting": "2026-01-02", "ending": "1767225600"},
            "ending 1767225600 lies before starting 2026-01-02: a read goes",
        ),
        ({"servers": "h:1", "mode": "dead_letter"}, "give both or neither"),
        (
            {"servers": "h:1", "mode": "dead_letter", "dead_letters": "topic:x"},
            "dead_letters is 'topic:x': .* Give a directory, and publish `letters_stream`",
        ),
        (
            {"servers": "h:1", "mode": "dead_letter", "dead_letters": "s3://x"},
            "neither a directory of this host nor",
        ),
    ],
)
def test_options_that_are_wrong(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        NetworkOptions.of(given).column_names()


def test_what_a_server_refuses_is_an_error_before_anything_is_read(choosy: RunningInstance) -> None:
    with SyncClient("desk", [choosy.address]) as client:
        for topic in ("kept/net-a", "kept/net-b.c"):
            client.publish(topic, b"{}")
        client.flush()
    made, schema = options(choosy, topic="unknown"), schema_of("body")
    stream_of_it = NetworkStreamReader(made, schema)
    for plan in (NetworkBatchReader(made, schema).partitions, stream_of_it.initialOffset):
        with pytest.raises(ConfigurationError) as caught:
            plan()
        assert "'unknown' is not in the transaction log of Chicago-2" in str(caught.value)
        assert "kept/net-a, kept/net-b.c" in str(caught.value)
    stream_of_it.stop()


def test_a_topic_of_which_there_is_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = RunningInstance(tmp_path / "Chicago-6")
    try:
        made, schema = options(instance, topic="net/typo"), schema_of("body")
        told = "no message of topic net/typo is journaled at Chicago-6: the journaled topics are "
        with pytest.raises(ConfigurationError, match=f"^{told}none at all$"):
            NetworkBatchReader(made, schema).partitions()
        topics = [f"net/{n}.({'x' * n}" for n in range(4)]
        for topic in topics:
            publish(instance, topic, range(2_000))
        with pytest.raises(ConfigurationError) as caught:
            NetworkBatchReader(made, schema).partitions()
        assert str(caught.value) == told + ", ".join(topics)
        for topic in (f"net/{n}" for n in range(10, 30)):
            publish(instance, topic, range(2))
        with pytest.raises(ConfigurationError, match=f"^{told}net/"):
            NetworkBatchReader(made, schema).partitions()
        # A content filter that finds nothing is a read like any other.
        none = options(instance, topic="net/10", filter="/n > 5")
        assert rows(NetworkBatchReader(none, schema)) == []
        # A stream waits for what may come.
        reader = NetworkStreamReader(made, schema)
        start = reader.initialOffset()
        assert f"{told}net/" in caplog.text and "the stream waits for the topic" in caplog.text
        publish(instance, "net/typo", range(3))
        end = reader.latestOffset(start, ReadAllAvailable())
        assert numbers(rows(reader, start, end)) == [0, 1, 2]
        caplog.clear()
        again = NetworkStreamReader(made, schema)
        again.initialOffset()
        assert not caplog.text
        for each in (reader, again):
            each.stop()
    finally:
        instance.stop()


def test_bodies_of_types_that_the_fabric_defines_are_read_where_only_servers_are_given(
    tmp_path: Path,
) -> None:
    quote = TypeDefinition("quote", "struct", {"fields": ["/px = <d", "/sym = 4S"]})
    sow = (SowTopicDefinition("net/quoted", "quote", keys=("/sym",)),)
    instance = RunningInstance(tmp_path / "Chicago-7", type_definitions=(quote,), sow=sow)
    try:
        with SyncClient("desk", [instance.address]) as client:
            for price in (1.5, 2.5):
                body = {"px": price, "sym": "IBM"}
                client.publish("net/quoted", body, message_type="quote")
            client.flush()
        value = pa.struct([("px", pa.float64()), ("sym", pa.string())])
        schema = from_arrow_schema(pa.schema([("value", value)]))
        typed = {"topic": "net/quoted", "schema": "px DOUBLE, sym STRING"}
        found = rows(NetworkBatchReader(options(instance, **typed), schema))
        assert [row["value"] for row in found] == [
            {"px": 1.5, "sym": "IBM"},
            {"px": 2.5, "sym": "IBM"},
        ]
        typed |= {"servers": instance.address, "message_type": "quote"}
        changes = NetworkChangeOptions.of(typed)
        (row,) = rows(NetworkChangeBatchReader(changes, schema))
        assert row["value"] == {"px": 2.5, "sym": "IBM"}
    finally:
        instance.stop()


def test_an_instance_that_lacks_what_another_had_is_waited_for(instance: RunningInstance) -> None:
    made = options(instance, topic="net/lack", read_wait_s=0.2)
    reader = NetworkStreamReader(made, schema_of("body"))
    start = reader.initialOffset()
    held = from_json(start)
    held.add(77, 1, 5)
    end = to_json(held)
    with pytest.raises(StorageError, match=r"lacks 5 messages .*77\|1\| to 5;"):
        rows(reader, start, end)
    reader.stop()


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_a_reader_goes_on_at_another_instance(servers: Servers, tmp_path: Path, ended: str) -> None:
    first, second = pair(servers, tmp_path)
    with SyncClient("desk", [first.address]) as client:
        for number in range(FAILOVER_MESSAGES):
            client.publish("net/moved", b'{"n": %d, "text": "%0100d"}' % (number, number))
        client.flush()
    made = NetworkOptions.of(
        {"servers": f"{first.address},{second.address}", "topic": "net/moved", "readers": "1"}
    )
    reader = NetworkBatchReader(made, schema_of("instance", "body"))
    (partition,) = reader.partitions()
    found: list[pa.RecordBatch] = []
    for batch in reader.read(partition):
        found.append(batch)
        if len(found) == 1:
            first.kill() if ended == "killed" else first.stop()
    table = pa.Table.from_batches(found)
    assert set(table["instance"].to_pylist()) == {"A", "B"}
    got = [json.loads(body)["n"] for body in table["body"].to_pylist()]
    assert sorted(got) == list(range(FAILOVER_MESSAGES))


# -- with Spark ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_stream_of_spark_goes_on_after_a_restart(
    spark: Any, instance: RunningInstance, tmp_path: Path
) -> None:
    def run() -> list[int]:
        query = (
            spark.readStream.format("raylay")
            .options(servers=instance.address, topic="net/spark", schema="n BIGINT", readers="2")
            .option("columns", "topic")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        found = spark.read.parquet(str(tmp_path / "out"))
        return sorted(row.n for row in found.select("value.n").collect())

    publish(instance, "net/spark", range(1_000))
    assert run() == list(range(1_000))
    publish(instance, "net/spark", range(1_000, 1_500))
    assert run() == list(range(1_500))


def test_messages_that_come_while_a_stream_runs(
    spark: Any, instance: RunningInstance, tmp_path: Path
) -> None:
    seen: list[int] = []
    enough = threading.Event()

    def take(frame: Any, _: int) -> None:
        seen.extend(sorted(row.n for row in frame.select("value.n").collect()))
        if len(seen) >= LIVE_MESSAGES:
            enough.set()

    query = (
        spark.readStream.format("raylay")
        .options(servers=instance.address, topic="net/live", schema="n BIGINT", starting="0|1|")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    published = 0
    try:
        # The query begins at some moment after its start.
        while not enough.wait(0.1):
            assert query.isActive and published < LIVE_MESSAGES_MAX, query.exception()
            publish(instance, "net/live", range(published, published + 100))
            publish(instance, "net/live-other", range(10))
            published += 100
    finally:
        query.stop()
    assert seen == list(range(seen[0], seen[0] + len(seen)))


@pytest.mark.slow
def test_a_checkpoint_of_journals_is_refused(
    spark: Any, instance: RunningInstance, tmp_path: Path
) -> None:
    def query(**given: str) -> Any:
        return (
            spark.readStream.format("raylay")
            .options(topic="net/spark", columns="body", **given)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    publish(instance, "net/spark", range(3))
    assert query(path=str(instance.directory)).awaitTermination(WAIT_S)
    refused = query(servers=instance.address)
    with pytest.raises(StreamingQueryException, match="begin a new checkpoint"):
        refused.awaitTermination(WAIT_S)


def test_messages_that_come_late_are_not_in_the_micro_batch_before(
    instance: RunningInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two paths bring different parts of a publisher's stream: an offset has gaps, which another
    micro-batch brings."""
    monkeypatch.setattr(source, "PORTION_MESSAGES_MIN", 10)
    schema = schema_of("publisher", "sequence", "body")
    publish(instance, "net/gaps", range(100))
    for readers in (1, 3):
        made = options(instance, topic="net/gaps", readers=readers)
        reader = NetworkStreamReader(made, schema)
        whole = from_json(reader.latestOffset(to_json(PublisherRanges()), ReadAllAvailable()))
        found = rows(NetworkBatchReader(made, schema))
        publisher, first = found[0]["publisher"], found[0]["sequence"]
        publisher = int(publisher)
        end = whole.copy()
        end.remove_ranges(publisher, [(first + 40, first + 59), (first + 90, first + 94)])
        start = whole.copy()
        start.remove_ranges(publisher, [(first + 10, first + 99)])
        begin, gapped = to_json(start), to_json(end)
        late = {*range(40, 60), *range(90, 95)}
        expected = [number for number in range(10, 100) if number not in late]
        assert sorted(numbers(rows(reader, begin, gapped))) == expected
        assert sorted(numbers(rows(reader, gapped, to_json(whole)))) == sorted(late)
        reader.stop()


ATTEMPTS = 4


# -- what retention removes ------------------------------------------------------------------------
@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[RunningInstance]:
    """An instance that keeps some 2 MiB of its journal."""
    journal = JournalConfig(segment_bytes=1 << 20, retention=RetentionConfig(size_bytes=2 << 20))
    made = RunningInstance(tmp_path / "Chicago-4", journal=journal)
    yield made
    made.stop()


def until_removed(instance: RunningInstance, topic: str, wanted: PublisherRanges) -> None:
    """Publishes until retention removes any of these messages, or anything where none is given."""
    reader = NetworkReader(options(instance, topic=topic).place())
    with SyncClient("desk", [instance.address]) as client:
        while True:
            for _ in range(500):
                client.publish(topic, bytes(4_000))
            client.flush()
            gone = reader.held(EPOCH)
            if new_in(wanted, gone).count < gone.count if wanted else gone:
                break
    reader.close()


def stream(made: NetworkOptions) -> NetworkStreamReader:
    return NetworkStreamReader(made, schema_of("publisher", "sequence"))


def test_a_stream_from_the_epoch_begins_behind_what_retention_removed_before(
    keeping: RunningInstance,
) -> None:
    """Nothing was promised of it: neither the first nor a later micro-batch may fail for it."""
    until_removed(keeping, "net/front", PublisherRanges())
    for starting in (EPOCH, "2020-01-01"):
        for attempt in range(ATTEMPTS):
            try:
                follow_by_hundreds(keeping, starting)
                break
            except StorageError:
                # Retention was still at it. Nothing is published any more, so it ends.
                assert attempt < ATTEMPTS - 1


def follow_by_hundreds(instance: RunningInstance, starting: str) -> None:
    """Reads all that is left in micro-batches of a hundred messages."""
    reader = stream(options(instance, topic="net/front", starting=starting))
    start = reader.initialOffset()
    gone = from_json(start)
    assert gone.count > 0
    found: list[dict[str, Any]] = []
    sizes = []
    while (end := reader.latestOffset(start, ReadMaxRows(100))) != start:
        new = rows(reader, start, end)
        found.extend(new)
        sizes.append(len(new))
        start = end
    assert set(sizes[:-1]) == {100} and len(sizes) > 2, "a limit counts what is there"
    assert len(found) == from_json(start).count - gone.count
    reader.stop()


@pytest.mark.parametrize("starting", [EPOCH, "0|1|"])
def test_what_is_removed_between_the_plan_and_the_read_is_an_error(
    keeping: RunningInstance, starting: str
) -> None:
    reader = stream(options(keeping, topic="net/removed", starting=starting))
    start = reader.initialOffset()
    publish(keeping, "net/removed", range(100))
    if starting != EPOCH:
        assert reader.latestOffset(start, ReadAllAvailable()) == start, "Spark keeps the begin"
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(rows(reader, start, end)) == 100
    until_removed(keeping, "net/removed", from_json(end))
    with pytest.raises(StorageError, match="removed before they were read") as caught:
        rows(reader, start, end)
    assert caught.value.args[0].startswith("Chicago-4: ")
    reader.stop()
    going_on = stream(options(keeping, topic="net/removed", on_data_loss="go_on"))
    assert len(rows(going_on, start, end)) < 100


def test_a_bookmark_that_retention_removed(keeping: RunningInstance) -> None:
    publish(keeping, "net/bookmark", range(3))
    schema = schema_of("bookmark")
    (first, *_) = rows(NetworkBatchReader(options(keeping, topic="net/bookmark"), schema))
    held = NetworkReader(options(keeping).place()).held()
    until_removed(keeping, "net/bookmark", held)
    made: dict[str, Any] = {"topic": "net/bookmark", "starting": first["bookmark"]}
    with pytest.raises(StorageError, match=r"Chicago-4: .* set on_data_loss to go_on"):
        NetworkBatchReader(options(keeping, **made), schema).partitions()
    left = NetworkBatchReader(options(keeping, on_data_loss="go_on", **made), schema)
    everything = NetworkBatchReader(options(keeping, on_data_loss="go_on"), schema)
    kept = {row["bookmark"] for row in rows(left)}
    # Retention may remove more between the two reads.
    assert {row["bookmark"] for row in rows(everything)} <= kept
    assert kept and first["bookmark"] not in kept
    made["starting"] = "77|1|"
    for on_data_loss in ("fail", "go_on"):
        unknown = NetworkBatchReader(options(keeping, on_data_loss=on_data_loss, **made), schema)
        with pytest.raises(StorageError, match=r"Chicago-4: .*bookmarks is in the log"):
            unknown.partitions()
