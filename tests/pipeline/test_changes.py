"""The option `changes`: a SOW topic as inserts, updates and deletes, each with the old value."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from support.changing_topic import (
    TOPIC,
    Change,
    changing_log,
    key,
    ordered,
    rows_of,
    snapshot,
)
from support.pipeline_cases import INCARNATION, RunningInstance, made_by

from raylay.services.client import SyncClient
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.changes.fold import TopicFold
from raylay.services.pipeline.changes.source import (
    ChangeBatchReader,
    ChangeOptions,
    ChangeStreamReader,
)
from raylay.services.pipeline.changes.table import STORED, column_names
from raylay.services.server.sow.stored_topics import FINGERPRINT, SOW_FILE
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.sow import LmdbSowStore

ROOT = Path(__file__).parents[2]
VALUES = {
    "": None,
    "id INT, price DOUBLE": pa.struct([("id", pa.int32()), ("price", pa.float64())]),
    "price DATE": pa.struct([("price", pa.date32())]),
}
"""The schemas that the tests declare, as Spark would give them to a reader."""


def schema_of(options: ChangeOptions) -> StructType:
    options.ddl()
    names = column_names(options.columns, True)
    fields = [pa.field(name, STORED.get(name, pa.struct([("id", pa.string())]))) for name in names]
    if (kind := VALUES[options.schema]) is not None:
        fields += [pa.field("value", kind), pa.field("old_value", kind)]
    return from_arrow_schema(pa.schema(fields))


def batch_reader(directory: Path, **options: str) -> ChangeBatchReader:
    made = ChangeOptions.of({"path": str(directory), "topic": TOPIC, **options})
    return ChangeBatchReader(made, schema_of(made))


def stream_reader(directory: Path, state: Path, **options: str) -> ChangeStreamReader:
    given = {"path": str(directory), "topic": TOPIC, "state": str(state), **options}
    made = ChangeOptions.of(given)
    return ChangeStreamReader(made, schema_of(made))


def read_batch(directory: Path, **options: str) -> list[Change]:
    reader = batch_reader(directory, **options)
    return [row for part in reader.partitions() for row in rows_of(reader.read(part))]


def read_micro_batch(
    reader: ChangeStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[Change]:
    return [row for part in reader.partitions(start, end) for row in rows_of(reader.read(part))]


@pytest.mark.covers("Data pipeline", "changes of a SOW topic")
@pytest.mark.parametrize("lifetime_s", [0, 10], ids=["for ever", "expiring"])
@pytest.mark.parametrize("seed", range(3))
def test_changes_of_random_logs(tmp_path: Path, seed: int, lifetime_s: int) -> None:
    made = changing_log(seed, lifetime_s)
    made.write(tmp_path / "Chicago-1")
    found = read_batch(tmp_path / "Chicago-1")
    assert ordered(found) == ordered(made.changes)
    kinds = {each[2] for each in found}
    assert kinds == {"inserted", "updated", "deleted"} | ({"expired"} if lifetime_s else set())
    # From any place on: the records there, then what came behind it.
    chance = random.Random(seed)
    for _ in range(3):
        after = chance.randrange(1, made.txid)
        last = chance.randrange(after, made.txid + 1)
        rows = read_batch(
            tmp_path / "Chicago-1",
            starting=f'{{"Chicago-1": {after}}}',
            ending=f'{{"*": {last}}}',
        )
        records = {each[3]: each[5] for each in rows if each[2] == "snapshot"}
        assert records == snapshot(made.changes, after)
        assert ordered([each for each in rows if each[2] != "snapshot"]) == ordered(
            [each for each in made.changes if after < each[0] <= last]
        )


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "changes once, across restarts")
@pytest.mark.parametrize("lifetime_s", [0, 10], ids=["for ever", "expiring"])
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_that_ends_anywhere_and_begins_again(
    tmp_path: Path, seed: int, lifetime_s: int
) -> None:
    """Each micro-batch is read by a new process's reader, twice or from a state that another end
    left: lost, older, or without the rows."""
    made = changing_log(seed, lifetime_s)
    home, state = tmp_path / "Chicago-1", tmp_path / "state"
    made.write(home)
    chance = random.Random(seed)
    begin = chance.randrange(made.txid // 2)
    options = {"starting": f'{{"*": {begin}}}'}
    start = stream_reader(home, state, **options).initialOffset()
    assert stream_reader(home, state, starting="0|1|").initialOffset() == start, "asked again"
    first = dict(start)
    found: list[Change] = []
    while True:
        reader = stream_reader(home, state, **options)
        end = reader.latestOffset(start, ReadMaxRows(chance.randint(1, 60)))
        if end == start:
            break
        before = tmp_path / "before"
        shutil.copytree(state, before)
        rows = read_micro_batch(reader, start, end)
        assert read_micro_batch(stream_reader(home, state), start, end) == rows
        damage = chance.randrange(4)
        if damage == 0:  # killed before it wrote anything
            shutil.rmtree(state)
            shutil.copytree(before, state)
        elif damage == 1:  # killed between the rows and the records
            for path in (*before.glob("*.arrow"), before / "topic.lmdb-lock"):
                path.unlink(missing_ok=True)
            shutil.copytree(before, state, dirs_exist_ok=True)
        elif damage == 2:  # the rows are gone, and the records ahead
            for path in state.glob("*.arrow"):
                path.unlink()
        if damage != 3:
            again = read_micro_batch(stream_reader(home, state), start, end)
            assert ordered(again) == ordered(rows)
        shutil.rmtree(before)
        found += rows
        start = end
    records = {each[3]: each[5] for each in found if each[2] == "snapshot"}
    assert records == snapshot(made.changes, begin)
    behind = [each for each in found if each[2] != "snapshot"]
    assert ordered(behind) == ordered([each for each in made.changes if each[0] > begin])
    assert len(list(state.glob("*.arrow"))) <= 2, "only the last rows stay"
    # The whole at once gives the same.
    other = stream_reader(home, tmp_path / "other", **options)
    assert other.initialOffset() == first
    at_once = read_micro_batch(other, first, other.latestOffset(first, ReadAllAvailable()))
    assert ordered(at_once) == ordered(found)


def test_a_stream_of_a_quiet_topic_has_its_snapshot(tmp_path: Path) -> None:
    made = changing_log(1)
    made.write(tmp_path / "Chicago-1")
    reader = stream_reader(tmp_path / "Chicago-1", tmp_path / "state", starting="0|1|")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end != start
    rows = read_micro_batch(reader, start, end)
    assert {each[3]: each[5] for each in rows} == snapshot(made.changes, made.txid)
    assert {each[1:3] for each in rows} == {("insert", "snapshot")}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_the_columns(tmp_path: Path) -> None:
    made = changing_log(2)
    made.write(tmp_path / "Chicago-1")
    reader = batch_reader(tmp_path / "Chicago-1", schema="id INT, price DOUBLE")
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    deleted = next(row for row in rows if row["row_kind"] == "delete")
    number = deleted["old_value"]["id"]
    assert deleted["sow_key"] == key(number).decode()
    assert deleted["key_fields"] == {"id": str(number)} and deleted["value"] is None
    assert deleted["bookmark"] == f"{deleted['publisher']}|{deleted['sequence']}|"
    updated = next(row for row in rows if row["row_kind"] == "update")
    assert updated["value"]["id"] == updated["old_value"]["id"]
    assert (updated["topic"], updated["message_type"]) == (TOPIC, "json")
    few = batch_reader(tmp_path / "Chicago-1", columns="row_kind,key_fields")
    assert few._table.arrow_schema.names == ["row_kind", "key_fields"]


@pytest.mark.covers("Data pipeline", "changes of a SOW topic")
def test_bodies_that_do_not_fit(tmp_path: Path) -> None:
    changing_log(2).write(tmp_path / "Chicago-1")
    options = {"schema": "price DATE", "columns": "txid"}
    reader = batch_reader(tmp_path / "Chicago-1", **options)
    with pytest.raises(ConfigurationError, match=r"does not match the schema .* of key [0-9a-f]+ "):
        [*reader.read(reader.partitions()[0])]
    reader = batch_reader(tmp_path / "Chicago-1", mode="permissive", **options)
    assert [*reader.read(reader.partitions()[0])]


def test_a_journal_whose_beginning_was_removed(tmp_path: Path) -> None:
    made = changing_log(3, runs=1_500)
    log = made.write(tmp_path / "Chicago-1")
    assert any(each.done for each in SegmentMaintenance(log.journal).remove(1_000, force=True))
    with pytest.raises(StorageError, match="cannot be made of it; start at now"):
        stream_reader(log.directory, tmp_path / "state").initialOffset()
    reader = batch_reader(log.directory, starting="0|1|")
    with pytest.raises(StorageError, match="cannot be made of it"):
        [*reader.read(reader.partitions()[0])]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True], ids=["behind", "of another configuration"])
def test_a_snapshot_from_the_instances_store(tmp_path: Path, ahead: bool) -> None:
    """The journal no longer has its beginning: the records there are those that the instance
    keeps."""
    made = changing_log(3, runs=1_500)
    log = made.write(tmp_path / "Chicago-1")
    topic = ChangeOptions.of({"path": str(log.directory), "topic": TOPIC}).topic_read()
    stored_as, half = topic.definition.stored_as, made.txid // 2
    store = LmdbSowStore(log.directory / SOW_FILE)
    fold = TopicFold(topic.definitions, topic.types, stored_as, store)
    for run in made.runs:
        for _ in fold.changes(run, half):
            pass
    fold.save()
    store.commit({stored_as: ({FINGERPRINT: b"other" if ahead else topic.fingerprint}, half)})
    store.close()
    assert any(each.done for each in SegmentMaintenance(log.journal).remove(half, force=True))
    if ahead:
        with pytest.raises(StorageError, match="cannot be made of it"):
            stream_reader(log.directory, tmp_path / "state", starting="0|1|").initialOffset()
        return
    after = half + 100
    reader = stream_reader(log.directory, tmp_path / "state", starting=f'{{"*": {after}}}')
    start = reader.initialOffset()
    rows = read_micro_batch(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    records = {each[3]: each[5] for each in rows if each[2] == "snapshot"}
    assert records == snapshot(made.changes, after)
    behind = [each for each in rows if each[2] != "snapshot"]
    assert behind == [each for each in made.changes if each[0] > after]
    assert behind == [
        each
        for each in read_batch(log.directory, starting=f'{{"*": {after}}}')
        if each[2] != "snapshot"
    ]


def test_a_journal_that_was_replaced(tmp_path: Path) -> None:
    log = changing_log(3).write(tmp_path / "Chicago-1")
    made_by(log, INCARNATION)
    reader = stream_reader(log.directory, tmp_path / "state")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    shutil.rmtree(log.directory)
    log = changing_log(4).write(tmp_path / "Chicago-1")
    made_by(log, INCARNATION + 1)
    for call in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
        reader.initialOffset,
    ):
        with pytest.raises((StorageError, ConfigurationError), match="incarnation"):
            call()
    with pytest.raises(ConfigurationError, match="the checkpoint is that of Chicago-2"):
        reader.partitions({"Chicago-2": {}}, end)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "orders"}, "has no SOW topic named orders: its SOW topics are prices"),
        ({"topic": ""}, "named nothing"),
        ({"starting": "soon"}, "starting is 'soon', which is no place in a log"),
        ({"starting": '{"*": 9}', "ending": '{"*": 4}'}, "ending .* lies before starting"),
        ({"filter": "/a = 1"}, "has no option filter"),
        ({"columns": "key"}, "have no column key"),
        ({"columns": "topic,topic"}, "the option columns names topic twice"),
        ({"mode": "dropmalformed"}, "failfast or permissive"),
        ({"changes": "perhaps"}, "give true or false"),
        ({"max_records_per_trigger": "0"}, "a whole number above 0"),
        ({"max_records_per_trigger": "5"}, "an option of a stream"),
        ({"state": "here"}, "an option of a stream"),
    ],
)
def test_refused_options(tmp_path: Path, options: dict[str, str], told: str) -> None:
    changing_log(1, runs=5).write(tmp_path / "Chicago-1")
    with pytest.raises(ConfigurationError, match=told):
        ChangeOptions.are_meant(options)
        batch_reader(tmp_path / "Chicago-1", **options)


def test_what_a_stream_needs(tmp_path: Path) -> None:
    home = tmp_path / "Chicago-1"
    changing_log(1, runs=5).write(home)
    made = ChangeOptions.of({"path": str(home), "topic": TOPIC})
    with pytest.raises(ConfigurationError, match="needs the option state"):
        ChangeStreamReader(made, schema_of(made))
    with pytest.raises(ConfigurationError, match="takes no option `ending`"):
        stream_reader(home, tmp_path / "state", ending="0|1|")
    changing_log(1, runs=5).write(tmp_path / "Chicago-2")
    with pytest.raises(ConfigurationError, match="Chicago-1, Chicago-2 are named: give one"):
        batch_reader(Path(f"{home},{tmp_path / 'Chicago-2'}"))
    (home / "instance.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no instance\.json"):
        batch_reader(home)


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "changes of a SOW topic")
def test_a_stream_in_spark_of_a_running_instance(
    spark: Any, stateful: RunningInstance, tmp_path: Path
) -> None:
    """The query ends and begins again, each time from what the instance has by then."""

    def run() -> list[tuple[str, str, Any, Any]]:
        query = (
            spark.readStream.format("raylay")
            .options(
                changes="true",
                topic="boards",
                starting="0|1|",
                state=str(tmp_path / "state"),
                schema="id INT, n INT",
            )
            .load(str(stateful.directory))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "rows")).where("topic = 'board/changes'")
        return [
            (
                row.row_kind,
                row.key_fields.id,
                row.old_value and row.old_value.n,
                row.value and row.value.n,
            )
            for row in rows.orderBy("txid").collect()
        ]

    with SyncClient("changer", servers=[stateful.address]) as client:
        client.publish("board/changes", b'{"id": 1, "n": 1}')
        client.publish("board/changes", b'{"id": 2, "n": 1}')
        client.flush()
        assert run() == [("insert", "1", None, 1), ("insert", "2", None, 1)]
        client.delta_publish("board/changes", b'{"id": 1, "n": 2}')
        client.sow_delete("board/changes", filter="/id = 2")
        client.publish("board/changes", b'{"id": 3, "n": 1}')
        client.flush()
    assert (
        run()
        == run()
        == [
            ("insert", "1", None, 1),
            ("insert", "2", None, 1),
            ("update", "1", 1, 2),
            ("delete", "2", 1, None),
            ("insert", "3", None, 1),
        ]
    )


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "changes of a SOW topic")
def test_the_example_of_the_page(spark: Any, tmp_path: Path) -> None:
    made = changing_log(5)
    made.write(tmp_path / "data" / "flights" / "Chicago-1")
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    section = page.partition("\n## Changes of a SOW topic\n")[2]
    block = section.partition("```python\n")[2].partition("```")[0]
    placed = block.replace('"data/', f'"{tmp_path}/data/').replace("last-flights", TOPIC)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(placed, "the page", "exec"), names)
    rows = spark.read.parquet(f"{tmp_path}/data/changes").collect()
    assert {row.sow_key for row in rows} == set(snapshot(made.changes, made.txid))
    assert {row.row_kind for row in rows} == {"insert"}


def test_a_table_of_sql(spark: Any, tmp_path: Path) -> None:
    made = changing_log(6)
    made.write(tmp_path / "Chicago-1")
    spark.sql(
        f"CREATE TABLE sql_changes USING raylay OPTIONS (path '{tmp_path / 'Chicago-1'}', "
        f"changes 'true', topic '{TOPIC}', schema 'price INT')"
    )
    try:
        rows = spark.sql("SELECT row_kind, count(old_value.price) FROM sql_changes GROUP BY 1")
        found = {row[0]: row[1] for row in rows.collect()}
    finally:
        spark.sql("DROP TABLE sql_changes")
    kinds = [each[1] for each in made.changes]
    assert found == {
        "insert": 0,
        "update": kinds.count("update"),
        "delete": kinds.count("delete"),
    }


def test_a_schema_of_other_types(tmp_path: Path) -> None:
    changing_log(1, runs=5).write(tmp_path / "Chicago-1")
    options = ChangeOptions.of({"path": str(tmp_path / "Chicago-1"), "topic": TOPIC})
    for name, kind, told in (
        ("txid", pa.string(), "column txid has type BIGINT, but the schema gives it STRING"),
        ("body", pa.struct([("a", pa.int32())]), "has type BINARY, but .* it STRUCT<a: INT>"),
        ("origin_time", pa.timestamp("us"), "has type TIMESTAMP, but .* it TIMESTAMP_NTZ"),
        ("price", pa.int32(), "the schema has the column price, which changes do not have"),
        ("value", pa.int32(), "the schema has the column value, which .* and old_value as STRUCT"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            ChangeBatchReader(options, from_arrow_schema(pa.schema([(name, kind)])))
