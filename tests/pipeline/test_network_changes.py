"""The option `changes` over the network: a SOW topic of running instances as inserts, updates and
deletes."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from support import network_changes_child
from support.pipeline_cases import RunningInstance

from raylay import Fabric
from raylay.services.client import SyncClient
from raylay.services.errors import CommandFailed, ConfigurationError, ConnectionLost, StorageError
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.pipeline.changes.network_source import (
    NETWORK_STORED,
    NetworkChangeBatchReader,
    NetworkChangeOptions,
    NetworkChangeStreamReader,
)
from raylay.services.pipeline.changes.table import STORED
from raylay.services.pipeline.network.offsets import covers, from_json
from raylay.services.pipeline.network.reading import NetworkReader
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.files import FAULT_VARIABLE

pytestmark = pytest.mark.covers("Data pipeline", "changes over the network")
ROOT = Path(__file__).parents[2]
TOPICS = ("random", "lost", "later", "cut", "spark", "columns", "quiet",
    "killed-begun", "killed-written", "killed-moved", "killed-entries", "killed-advanced",
)  # fmt: skip
ALL = ReadAllAvailable()
Change = tuple[str, str, "bytes | None", "bytes | None"]
"""Row kind, key field, old body and body."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    """A running instance with a SOW topic for each test."""
    sow = (
        *(SowTopicDefinition(name, "json", keys=("/id",)) for name in TOPICS),
        SowTopicDefinition("boards", "json", pattern="^board/", keys=("/id",)),
    )
    made = RunningInstance(tmp_path_factory.mktemp("changing") / "Chicago-1", sow=sow)
    yield made
    made.stop()


@pytest.fixture
def desk(kept: RunningInstance) -> Iterator[SyncClient]:
    """A client that changes records."""
    with SyncClient("desk", servers=[kept.address]) as client:
        yield client


def schema_of(columns: str) -> StructType:
    struct = pa.struct([("id", pa.string())])
    fields = [(name, STORED.get(name, struct)) for name in columns.split(",")]
    return from_arrow_schema(pa.schema(fields))


COLUMNS = "row_kind,key_fields,old_body,body"


def options(kept: RunningInstance, topic: str, **more: str) -> NetworkChangeOptions:
    given = {"servers": kept.address, "topic": topic, "keys": "/id", **more}
    return NetworkChangeOptions.of(given)


def stream(kept: RunningInstance, topic: str, state: Path) -> NetworkChangeStreamReader:
    made = options(kept, topic, state=str(state))
    return NetworkChangeStreamReader(made, schema_of(COLUMNS))


def rows_of(reader: Any, *between: Any) -> list[dict[str, Any]]:
    """The rows as tasks read them."""
    return [
        row
        for partition in reader.partitions(*between)
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
        for row in batch.to_pylist()
    ]


def changes(reader: Any, *between: Any) -> list[Change]:
    found = rows_of(reader, *between)
    return sorted(
        (row["row_kind"], row["key_fields"]["id"], row["old_body"], row["body"]) for row in found
    )


def expected(before: dict[str, bytes], after: dict[str, bytes]) -> list[Change]:
    found: list[Change] = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        kind = "insert" if old is None else "delete" if new is None else "update"
        if old != new:
            found.append((kind, key, old, new))
    return sorted(found)


def change(desk: SyncClient, topic: str, chance: random.Random, held: dict[str, bytes]) -> None:
    """Changes some records, of which no body comes twice."""
    for _ in range(chance.randrange(1, 20)):
        key = str(chance.randrange(15))
        if chance.random() < 0.3:
            desk.sow_delete(topic, filter=f"/id = {key}")
            held.pop(key, None)
        else:
            body = b'{"id": %s, "n": %d}' % (key.encode(), chance.getrandbits(60))
            desk.publish(topic, body)
            held[key] = body
    desk.flush()


@pytest.mark.slow
def test_a_stream_that_ends_anywhere_and_begins_again(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path
) -> None:
    """Each micro-batch is read by a new process's reader, twice or from a state that another end
    left."""
    chance, state = random.Random(7), tmp_path / "state"
    held: dict[str, bytes] = {}
    change(desk, "random", chance, held)
    start = stream(kept, "random", state).initialOffset()
    before: dict[str, bytes] = {}
    for number in range(12):
        reader = stream(kept, "random", state)
        if number:
            change(desk, "random", chance, held)
        else:
            assert reader.initialOffset() == start, "asked again"
        end = reader.latestOffset(start, ALL)
        aside = tmp_path / "aside"
        shutil.copytree(state, aside)
        found = changes(reader, start, end)
        assert found == expected(before, held)
        damage = number % 3
        if damage == 0:  # killed before it wrote anything
            shutil.rmtree(state)
            shutil.copytree(aside, state)
        elif damage == 1:  # killed between the advance of the records and the rows
            (made,) = {*state.glob("*.arrow")} - {state / path.name for path in aside.iterdir()}
            made.unlink()
        shutil.rmtree(aside)
        assert changes(stream(kept, "random", state), start, end) == found
        reader.stop()
        before, start = dict(held), end
    assert len(list(state.glob("*.arrow"))) <= 2, "only the last rows stay"


def test_a_stream_of_a_quiet_topic_has_its_snapshot(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path
) -> None:
    desk.publish("quiet", b'{"id": 1}')
    desk.flush()
    reader = stream(kept, "quiet", tmp_path / "state")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert end != start and reader.latestOffset(end, ALL) == end
    assert changes(reader, start, end) == [("insert", "1", None, b'{"id": 1}')]
    reader.stop()


def test_a_state_that_was_lost_or_put_back_is_an_error(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path
) -> None:
    chance, state = random.Random(1), tmp_path / "state"
    held: dict[str, bytes] = {}
    reader = stream(kept, "lost", state)
    offsets = [reader.initialOffset()]
    for number in range(4):
        change(desk, "lost", chance, held)
        offsets.append(reader.latestOffset(offsets[-1], ALL))
        changes(reader, offsets[-2], offsets[-1])
        if number == 1:
            shutil.copytree(state, tmp_path / "backup")
    # The checkpoint was put back, behind the rows that are kept.
    with pytest.raises(
        StorageError, match="records are those of step 3, and the checkpoint's of 1"
    ):
        changes(reader, offsets[1], offsets[2] | {"messages": 0})
    # The state was put back.
    change(desk, "lost", chance, held)
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    last = reader.latestOffset(offsets[-1], ALL)
    with pytest.raises(StorageError, match=r"lacks the rows of step 4; .* begin a new checkpoint"):
        changes(reader, offsets[-1], last)
    # It was removed: neither planned nor read, nor does it begin anew under the same checkpoint.
    (partition,) = reader.partitions(offsets[-1], last)
    shutil.rmtree(state)
    with pytest.raises(StorageError, match="it was removed"):
        reader.partitions(offsets[-1], last)
    with pytest.raises(StorageError, match="it was removed"):
        list(reader.read(partition))
    again = reader.initialOffset()
    with pytest.raises(StorageError, match="that of another checkpoint"):
        reader.partitions(again, offsets[1])
    reader.stop()
    with pytest.raises(ConfigurationError, match=r"state of another stream .topic json/lost"):
        stream(kept, "quiet", state).initialOffset()


def test_another_instance_must_have_what_the_last_one_showed(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records may be newer than the end of their micro-batch."""
    awaited = []
    waits = NetworkReader.wait_held

    def wait_held(self: NetworkReader, wanted: Any) -> None:
        awaited.append(wanted)
        waits(self, wanted)

    monkeypatch.setattr(NetworkReader, "wait_held", wait_held)
    reader = stream(kept, "later", tmp_path / "state")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    desk.publish("later", b'{"id": 1}')
    desk.flush()
    shown = reader._reader.held()
    assert changes(reader, start, end) == [("insert", "1", None, b'{"id": 1}')]
    assert not covers(from_json(end), shown)
    # A reading that is repeated behind the advance of the records knows it as well.
    for more in ({}, {"messages": 0}):
        changes(reader, end, reader.latestOffset(end, ALL) | more)
        assert covers(awaited[-1], shown)
    reader.stop()


def test_an_instance_that_ends_while_its_records_are_read(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked for again, because records of two instances are of no one moment."""
    for number in range(2_500):
        desk.publish("cut", b'{"id": %d}' % number)
    desk.flush()
    reads, cut = NetworkReader.records, [True, True]

    def records(self: NetworkReader, message_type: str) -> Any:
        for number, each in enumerate(reads(self, message_type)):
            if number == 1 and cut:
                cut.pop()
                raise ConnectionLost("it ended")
            yield each

    monkeypatch.setattr(NetworkReader, "records", records)
    reader = stream(kept, "cut", tmp_path / "state")
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, end := reader.latestOffset(start, ALL))
    found = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert not cut
    ids = sorted(int(row["key_fields"]["id"]) for row in found)
    assert ids == list(range(2_500)) and start != end
    reader.stop()


def test_the_columns_and_a_batch(kept: RunningInstance, desk: SyncClient) -> None:
    desk.publish("columns", b'{"id": "x"}')
    desk.publish("board/1", b'{"id": 1}')
    desk.flush()
    names = ",".join(NETWORK_STORED) + ",key_fields"
    (row,) = rows_of(NetworkChangeBatchReader(options(kept, "columns"), schema_of(names)))
    with SyncClient("looker", servers=[kept.address]) as client:
        (message,) = client.sow("columns").all()
    assert row == {
        "instance": "Chicago-1",
        "row_kind": "insert",
        "reason": "snapshot",
        "sow_key": message.key.decode(),
        "topic": "columns",
        "message_type": "json",
        "publisher": message.publisher,
        "sequence": message.sequence,
        "bookmark": message.bookmark,
        "origin_time": row["origin_time"],
        "body": b'{"id": "x"}',
        "old_body": None,
        "key_fields": {"id": "x"},
    }
    assert round(row["origin_time"].timestamp() * 1e6) == message.origin_time_us
    assert options(kept, "columns", schema="id STRING").ddl()[-3:] == [
        "`key_fields` STRUCT<`id`: STRING>",
        "`value` STRUCT<id STRING>",
        "`old_value` STRUCT<id STRING>",
    ]
    assert "key_fields" not in " ".join(options(kept, "columns", keys="").ddl())
    # By the name of a topic that has several.
    (row,) = rows_of(NetworkChangeBatchReader(options(kept, "boards"), schema_of("topic,body")))
    assert row == {"topic": "board/1", "body": b'{"id": 1}'}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give the option topic"),
        ({"topic": "t", "starting": "0|1|"}, "a stream begins with the records of now"),
        ({"topic": "t", "path": "data"}, "no option path .of changes from a journal"),
        ({"topic": "t", "max_records_per_trigger": "9"}, "one row for each record"),
        ({"topic": "t", "mode": "dropmalformed"}, "mode is 'dropmalformed'"),
        ({"topic": "t", "columns": "txid"}, "have no column txid"),
        ({"topic": "t", "read_wait_s": "x"}, "number of seconds above 0"),
        ({"topic": "t", "fabric": "f"}, "either `servers`"),
    ],
)
def test_options_that_are_wrong(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        NetworkChangeOptions.of({"servers": "127.0.0.1:1", **given}).ddl()


def test_what_is_no_stream_of_changes(kept: RunningInstance, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs the option state"):
        NetworkChangeStreamReader(options(kept, "quiet"), schema_of(COLUMNS))
    made = options(kept, "quiet", state=str(tmp_path))
    with pytest.raises(ConfigurationError, match="state is an option of a stream"):
        NetworkChangeBatchReader(made, schema_of(COLUMNS))
    unknown = NetworkChangeBatchReader(options(kept, "unknown"), schema_of(COLUMNS))
    with pytest.raises(CommandFailed, match="no SOW topic of Chicago-1 is 'unknown'"):
        rows_of(unknown)
    reader = stream(kept, "quiet", tmp_path / "state")
    with pytest.raises(ConfigurationError, match="its query read a journal, or messages"):
        reader.latestOffset({"held": "", "messages": 0}, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["begun", "written", "moved", "entries", "advanced"])
def test_killed_at_every_step(
    kept: RunningInstance, desk: SyncClient, tmp_path: Path, point: str
) -> None:
    """SIGKILL of the process that reads: the next one has the same changes, each once."""
    topic, state = f"killed-{point}", tmp_path / "state"
    given = {"servers": kept.address, "topic": topic, "keys": "/id", "state": str(state)}

    def killed(*offsets: Any) -> bool:
        arguments = [json.dumps(each) for each in (given, *offsets)]
        fault = {FAULT_VARIABLE: f"changes.{point}"}
        child = [sys.executable, network_changes_child.__file__, *arguments]
        return subprocess.run(child, env=os.environ | fault, check=False).returncode == -SIGKILL

    chance = random.Random(point)
    held: dict[str, bytes] = {}
    change(desk, topic, chance, held)
    if point == "begun":
        assert killed()
    reader = stream(kept, topic, state)
    start, before, kills = reader.initialOffset(), dict[str, bytes](), 0
    for _ in range(3):
        end = reader.latestOffset(start, ALL)
        kills += killed(start, end)
        found = changes(reader, start, end)
        assert found == expected(before, held)
        before, start = dict(held), end
        change(desk, topic, chance, held)
    reader.stop()
    assert kills == {"begun": 0, "written": 3, "moved": 3}.get(point, 2)


# -- with Spark ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_stream_of_spark_goes_on_after_a_restart(
    spark: Any, kept: RunningInstance, desk: SyncClient, tmp_path: Path
) -> None:
    def run() -> list[tuple[Any, ...]]:
        query = (
            spark.readStream.format("raylay")
            .options(changes="true", servers=kept.address, topic="spark", keys="/id")
            .options(schema="id INT, n INT", state=str(tmp_path / "state"))
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "rows"))
        found = rows.selectExpr("row_kind", "key_fields.id", "old_value.n AS o", "value.n AS n")
        return sorted((tuple(row) for row in found.collect()), key=json.dumps)

    desk.publish("spark", b'{"id": 1, "n": 1}')
    desk.publish("spark", b'{"id": 2, "n": 1}')
    desk.flush()
    first = [("insert", "1", None, 1), ("insert", "2", None, 1)]
    assert run() == first
    desk.delta_publish("spark", b'{"id": 1, "n": 2}')
    desk.sow_delete("spark", filter="/id = 2")
    desk.publish("spark", b'{"id": 3, "n": 1}')
    desk.flush()
    second = [("insert", "3", None, 1), ("update", "1", 1, 2), ("delete", "2", 1, None)]
    assert run() == run() == sorted(first + second, key=json.dumps)


def test_a_table_of_sql(spark: Any, kept: RunningInstance, desk: SyncClient) -> None:
    desk.publish("quiet", b'{"id": 1}')
    desk.flush()
    spark.sql(
        f"CREATE TABLE network_changes USING raylay OPTIONS (servers '{kept.address}', "
        "changes 'true', topic 'quiet', keys '/id')"
    )
    try:
        rows = spark.sql("SELECT row_kind, key_fields.id FROM network_changes").collect()
    finally:
        spark.sql("DROP TABLE network_changes")
    assert [tuple(row) for row in rows] == [("insert", "1")]


@pytest.mark.slow
def test_the_example_of_the_page(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fabric has one instance, which runs already; its topic is that of the demo."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module("last_flights")
    directory = tmp_path / "data" / "flights"
    fabric = Fabric("page", sow_topics=[example.SOW_TOPIC])
    settings = fabric.region("Chicago", ["Chicago-1"]).settings()
    sow = settings.sow_of(settings.instances[0])
    instance = RunningInstance(directory / "Chicago-1", sow=sow)
    try:
        port = int(instance.address.rpartition(":")[2])
        ports = {"Chicago-1": InstancePorts(port, 1)}
        FabricRecord("page", str(directory), settings.to_json(), ports).save()
        page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
        section = page.partition("\n### Changes over the network\n")[2]
        block = section.partition("```python\n")[2].partition("```")[0]
        placed = block.replace('"data/', f'"{tmp_path}/data/')
        with SyncClient("airport", servers=[instance.address]) as client:
            for tail, carrier in (("N1", "UA"), ("N2", "AA"), ("N1", "DL")):
                body = {"tailnum": tail, "carrier": carrier, "dest": "SFO"}
                client.publish(example.TOPIC, json.dumps(body).encode())
                client.flush()
                exec(compile(placed, "the page", "exec"), {"spark": spark})
        changing = importlib.import_module("flight_changes")
        changing.follow(spark, str(directory), "Chicago", tmp_path)
        changing.change([instance.address])
        kinds = changing.follow(spark, str(directory), "Chicago", tmp_path)
        assert kinds == changing.expected(2)
    finally:
        instance.stop()
    rows = spark.read.parquet(f"{tmp_path}/data/network-changes")
    found = rows.selectExpr(
        "row_kind", "key_fields.tailnum", "old_value.carrier AS o", "value.carrier AS c"
    ).collect()
    assert sorted((tuple(row) for row in found), key=repr) == [
        ("insert", "N1", None, "UA"),
        ("insert", "N2", None, "AA"),
        ("update", "N1", "UA", "DL"),
    ]
