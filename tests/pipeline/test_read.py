"""`spark.read.format("raylay")`: what it gives, what it leaves unopened, what it refuses."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.pipeline_cases import (
    PUBLISHERS,
    RUN_US,
    START_US,
    Log,
    change_block,
    expected_rows,
    message_run,
    mixed_runs,
    plain,
    write_fabric,
    write_log,
)

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import (
    ConfigurationError,
    CorruptRecord,
    RemoteProtocolError,
    StorageError,
)
from raylay.services.fabric.plan import FabricRecord
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.record import RecordedMove
from raylay.services.messages.records import RecordBuilder, iterate_records
from raylay.services.messages.topics import TopicRule
from raylay.services.pipeline import check_java, journals
from raylay.services.pipeline.journals import StretchReader, places, places_of, record_of
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.pipeline.tables.source import (
    BatchReader,
    RaylaySource,
    ReadOptions,
    StreamReader,
)
from raylay.storage.maintenance import SegmentMaintenance

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TXID_AND_TOPIC = StructType([StructField("txid", LongType()), StructField("topic", StringType())])


def time_of(time_us: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=time_us)


@pytest.mark.covers("Data pipeline", "every column of live")
def test_every_column_of_every_kind_of_segment(spark: Any, mixed: Log) -> None:
    assert {path.suffix for path in mixed.journal.glob("journal-*")} >= {".zst", ".sealed", ".live"}
    assert list((mixed.directory / "archive").glob("journal-*"))
    rows = spark.read.format("raylay").load(str(mixed.directory)).collect()
    expected = list(expected_rows(mixed, "Chicago-1"))
    assert sorted(map(plain, rows), key=lambda row: row["txid"]) == expected
    assert list(rows[0].asDict()) == list(COLUMNS)
    assert any(row["trace_id"] for row in expected) and any(row["late"] for row in expected)


# -- which journals ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two instances; the second has one run more."""
    directory = write_fabric(tmp_path_factory.mktemp("fabric"))
    runs = mixed_runs(8)
    write_log(directory / "Chicago-1", runs)
    more = message_run(runs[-1].last_txid + 1, PUBLISHERS[0], 1000, 5)
    write_log(directory / "Chicago-2", [*runs, more])
    return directory


def test_one_several_or_all_instances(spark: Any, fabric: Path) -> None:
    read = spark.read.format("raylay").option("columns", "instance,txid")
    counts = {
        row["instance"]: row["count"]
        for row in read.option("fabric", str(fabric)).load().groupBy("instance").count().collect()
    }
    assert counts == {"Chicago-1": 160, "Chicago-2": 5}
    one = read.option("fabric", str(fabric)).option("instance", "Chicago-2").load()
    assert one.count() == 165
    both = f"{fabric}/Chicago-1,{fabric}/Chicago-2/journal"
    copies = spark.read.format("raylay").option("columns", "instance")
    assert copies.load(both).count() == 165
    assert copies.option("copies", "all").load(both).count() == 325


def test_a_host_may_have_some_instances_only(tmp_path: Path) -> None:
    directory = write_fabric(tmp_path)
    write_log(directory / "Chicago-1", mixed_runs(2))
    (place,) = places(fabric=str(directory), instances=["Chicago-1"])
    assert place.instance == "Chicago-1"
    with pytest.raises(StorageError, match="instance Chicago-2 never ran, or its data is elsewhe"):
        places(fabric=str(directory))


FLIGHTS = """
fabric: flights
topics: [{name: .*, message_type: json}]
instances: {Chicago-1: {group: Chicago}, Chicago-2: {group: Chicago}}
"""


def test_a_fabric_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands take, an option takes, and the other way about."""
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "registry"))
    directory = write_fabric(tmp_path / "data")
    for name in ("Chicago-1", "Chicago-2.g1"):
        write_log(directory / name, mixed_runs(2))
    record = FabricRecord.load(directory)
    assert record is not None
    # Where an instance was moved to, only the record knows.
    record.moves["Chicago-2"] = RecordedMove(1, "Chicago-2.g1")
    record.save()
    file = tmp_path / "flights.yaml"
    file.write_text(FLIGHTS)
    for ask in (lambda: places_of(str(file)), lambda: places(path=str(file))):
        with pytest.raises(ConfigurationError, match="fabric flights does not run here: give its"):
            ask()
    expected = places(path=str(directory))
    assert Path(expected[1].journal).parent.name == "Chicago-2.g1"
    assert places(fabric=str(file), directory=str(directory)) == expected
    registry.register(registry.RegistryEntry("flights", str(directory), "127.0.0.1:1"))
    for source in (str(file), str(directory), "flights"):
        assert places_of(source) == expected
        assert places_of(source, ["Chicago-2"]) == expected[1:]
        found = record_of(source)
        assert found is not None and found.directory == str(directory)
    one, other = (str(directory / name) for name in ("Chicago-1", "Chicago-2.g1"))
    assert [place.instance for place in places_of(f"{one}, {other}")] == ["Chicago-1", "Chicago-2"]
    assert record_of(one) is None
    other_fabric = tmp_path / "other.yaml"
    other_fabric.write_text(FLIGHTS.replace("flights", "trains"))
    with pytest.raises(
        ConfigurationError, match=r"fabric flights, but \S*other.yaml declares trains"
    ):
        places(fabric=str(other_fabric), directory=str(directory))


# -- what is not opened --------------------------------------------------------------------------
def reader_of(log: Log, *filters: Filter, **options: str) -> BatchReader:
    given = {"path": str(log.directory), "pushdown": "true", **options}
    reader = BatchReader(ReadOptions.of(given), TXID_AND_TOPIC)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark must evaluate them too"
    return reader


def read_here(reader: BatchReader) -> tuple[list[int], int]:
    """The transaction ids of a read in this process, and how many segments it opened."""
    before = StretchReader.opened_segments
    found: list[int] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += batch["txid"].to_pylist()
    return found, StretchReader.opened_segments - before


PUSHED: list[tuple[Filter, Any, int]] = [
    (EqualTo(("topic",), "orders"), lambda row: row["topic"] == "orders", 2),
    (In(("topic",), ("orders", "none")), lambda row: row["topic"] == "orders", 2),
    (EqualTo(("message_type",), "xml"), lambda row: False, 1),
    (GreaterThan(("txid",), 900), lambda row: row["txid"] > 900, 3),
    (LessThan(("txid",), 50), lambda row: row["txid"] < 50, 1),
    (
        GreaterThanOrEqual(("receive_time",), time_of(START_US + 55 * RUN_US)),
        lambda row: row["receive_time"] >= START_US + 55 * RUN_US,
        2,
    ),
    (
        EqualTo(("bookmark",), f"{PUBLISHERS[1]}|61|"),
        lambda row: row["bookmark"] == f"{PUBLISHERS[1]}|61|",
        2,
    ),
    (EqualTo(("bookmark",), "nobody"), lambda row: False, 0),
    (EqualTo(("publisher",), 77), lambda row: False, 1),
    (EqualTo(("instance",), "other"), lambda row: False, 0),
    (EqualTo(("command",), "delete"), lambda row: row["command"] == "delete", 99),
    (EqualTo(("late",), True), lambda row: row["late"], 99),
]


@pytest.mark.covers("Data pipeline", "what no filter lets through is not opened")
@pytest.mark.parametrize(
    ("pushed", "wanted", "opened_max"), PUSHED, ids=[str(each[0]) for each in PUSHED]
)
def test_what_is_not_wanted_is_not_opened(
    mixed: Log, pushed: Filter, wanted: Any, opened_max: int
) -> None:
    expected = [row["txid"] for row in expected_rows(mixed, "Chicago-1") if wanted(row)]
    found, opened = read_here(reader_of(mixed, pushed))
    _, opened_by_all = read_here(reader_of(mixed))
    assert opened_by_all >= 6
    assert opened <= opened_max
    # Runs and records that no filter lets through may stay; none that one lets through may go.
    assert set(expected) <= set(found)
    every = len(list(expected_rows(mixed, "Chicago-1")))
    assert len(found) < every, "nothing was left out"


@pytest.mark.covers("Data pipeline", "what no filter lets through is not opened")
def test_spark_pushes_filters_and_evaluates_them_again(spark: Any, mixed: Log) -> None:
    table = spark.read.format("raylay").option("pushdown", "true").load(str(mixed.directory))
    wanted = table.where(
        "topic = 'flights/JFK' AND txid > 700 AND command <> 'delete' AND late"
        f" AND publisher = {PUBLISHERS[0]} AND body LIKE '%UA%'"
    )
    expected = [
        row["txid"]
        for row in expected_rows(mixed, "Chicago-1")
        if row["topic"] == "flights/JFK"
        and row["txid"] > 700
        and row["command"] != "delete"
        and row["late"]
        and row["publisher"] == PUBLISHERS[0]
        and b"UA" in row["body"]
    ]
    assert [row["txid"] for row in wanted.select("txid").orderBy("txid").collect()] == expected
    assert expected


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "queries of one table do not change one another")
def test_queries_of_one_table_do_not_change_one_another(spark: Any, mixed: Log) -> None:
    """Spark keeps the parts that it planned for one query with the table, for the next ones."""
    txids = [row["txid"] for row in expected_rows(mixed, "Chicago-1")]
    late = sum(txid > 700 for txid in txids)
    table = spark.read.format("raylay").option("columns", "txid").load(str(mixed.directory))
    assert table.where("txid > 700").count() == late
    assert table.count() == len(txids)
    assert table.where("txid <= 700").union(table.where("txid > 700")).count() == len(txids)
    joined = table.where("txid > 700").alias("a").join(table.alias("b"), "txid")
    assert joined.count() == late
    table.createOrReplaceTempView("one_view")
    spark.sql(
        f"CREATE TABLE one_table USING raylay OPTIONS (path '{mixed.directory}', columns 'txid')"
    )
    try:
        for name in ("one_view", "one_table"):
            (found,) = spark.sql(
                f"SELECT (SELECT count(*) FROM {name} WHERE txid > 700), "
                f"(SELECT count(*) FROM {name}), (SELECT count(*) FROM {name} WHERE txid <= 700)"
            ).collect()
            assert tuple(found) == (late, len(txids), len(txids) - late)
    finally:
        spark.sql("DROP TABLE one_table")
        spark.catalog.dropTempView("one_view")


@pytest.mark.parametrize(
    ("starting", "ending", "first", "last"),
    [
        ("0", f"{PUBLISHERS[0]}|20|", 1, 20),
        (f"{PUBLISHERS[0]}|20|", "", 21, 9999),
        ("20260101T000055Z", "", 1006, 9999),
        ('{"Chicago-1": 7}', '{"Chicago-1": 9}', 8, 9),
        ("0|1|", "", 0, 0),
    ],
)
def test_starting_and_ending(mixed: Log, starting: str, ending: str, first: int, last: int) -> None:
    options = {"starting": starting} | ({"ending": ending} if ending else {})
    found, _ = read_here(reader_of(mixed, **options))
    expected = [
        row["txid"] for row in expected_rows(mixed, "Chicago-1") if first <= row["txid"] <= last
    ]
    assert found == expected


# -- snapshots -----------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "what was committed when the read began")
def test_a_read_ends_at_what_was_committed_when_it_began(tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 601, 20)]
    log = write_log(tmp_path / "here", runs[:20], segment_bytes=8 * 1024)
    reader = reader_of(log, partition_bytes="16384")
    planned = reader.partitions()
    assert len(planned) > len({partition.value.segment for partition in planned})
    # The log goes on, and what was planned is sealed, compressed, archived.
    write_log(log.directory, runs[20:], segment_bytes=8 * 1024)
    maintenance = SegmentMaintenance(log.journal, log.directory / "archive")
    assert any(each.done for each in maintenance.compress(200))
    assert any(each.done for each in maintenance.archive(100))
    found = [
        txid
        for partition in planned
        for batch in reader.read(partition)
        for txid in batch["txid"].to_pylist()
    ]
    assert found == list(range(1, 401))
    # What is removed meanwhile is an error, not a gap.
    assert any(each.done for each in maintenance.remove(300, force=True))
    with pytest.raises(StorageError, match="no longer holds transaction id 1, it begins at"):
        list(reader.read(planned[0]))
    with pytest.raises(StorageError, match="no longer holds transaction id 1, it begins at"):
        reader_of(log, starting='{"here": 0}').partitions()


@pytest.mark.slow
@pytest.mark.covers("Filters by content", "retention waits for reads that other processes")
def test_retention_waits_for_what_was_planned(spark: Any, tmp_path: Path) -> None:
    """Planned by Spark in one process, read in others, with retention in between. A dry part of
    the journal before it goes at once."""
    runs = [message_run(first, 7, first, 20) for first in range(1, 601, 20)]
    log = write_log(tmp_path / "here", runs, segment_bytes=8 * 1024)
    maintenance = SegmentMaintenance(log.journal)
    read = spark.read.format("raylay").option("partition_bytes", "16384")
    table = read.option("starting", '{"here": 100}').load(str(log.directory)).select("txid")
    table.rdd.getNumPartitions()  # plans
    outcomes = maintenance.remove(600, lambda: 601)
    assert outcomes[-1].note.startswith("in use by a reader: a read has planned it")
    assert all(each.done for each in outcomes[:-1]) and outcomes[-1].last_txid > 100
    assert sorted(row.txid for row in table.collect()) == list(range(101, 601))
    assert all(each.done for each in maintenance.remove(600, lambda: 601, force=True))


# -- bodies --------------------------------------------------------------------------------------
def test_bodies_parsed_by_a_schema(spark: Any, tmp_path: Path) -> None:
    runs = [message_run(1, 7, 1, 30)]
    log = write_log(tmp_path / "one", runs)
    read = spark.read.format("raylay").option("schema", "number INT, carrier STRING, gone DOUBLE")
    table = read.option("columns", "topic").load(str(log.directory))
    assert table.schema["value"].dataType.simpleString() == (
        "struct<number:int,carrier:string,gone:double>"
    )
    rows = table.selectExpr("value.carrier", "value.number", "value.gone").collect()
    assert [(row.carrier, row.number, row.gone) for row in rows] == [
        ("UA" if number % 3 else "DL", number, None) for number in range(1, 31)
    ]


def test_bodies_that_do_not_fit_the_schema(spark: Any, tmp_path: Path) -> None:
    bad = message_run(6, 7, 6, 1)
    bad.payload = RecordBuilder(7, "flights/EWR", "json").build(6, b'{"number":"x"}', START_US)
    log = write_log(tmp_path / "one", [message_run(1, 7, 1, 5), bad, message_run(7, 7, 7, 3)])
    read = spark.read.format("raylay").option("schema", "number INT").option("columns", "sequence")
    with pytest.raises(
        PySparkException, match=r"the body of message 7\|6\| does not match the schema number INT"
    ):
        read.load(str(log.directory)).collect()
    rows = read.option("mode", "permissive").load(str(log.directory)).orderBy("sequence").collect()
    assert [row["value"] and row["value"]["number"] for row in rows] == [
        1, 2, 3, 4, 5, None, 7, 8, 9,
    ]  # fmt: skip


# -- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/no/such/place"}, "/no/such/place does not exist"),
        ({}, "give either `path` .a data directory. or `fabric`"),
        (
            {"fabric": "nowhere"},
            "nowhere is neither a file nor a directory nor a fabric that runs here",
        ),
        (
            {"path": "{}", "bogus": "1"},
            "there is no option bogus: .*columnNameOfCorruptRecord,.* inferSchema,.* sampleSize,",
        ),
        ({"path": "{}", "samplesize": "no"}, "sampleSize is 'no': give a whole number above 0"),
        ({"path": "{}", "inferschema": "no"}, "inferSchema is 'no': give true or false"),
        (
            {"path": "{}", "instance": "London-1"},
            "there is no instance London-1: choose from Chicago-1",
        ),
        ({"path": "{}", "starting": "77|1|"}, r"Chicago-1 does not hold the message 77\|1\|"),
        (
            {"path": "{}", "starting": "yesterday"},
            "starting is 'yesterday', which is no place in a log",
        ),
        ({"path": "{}", "ending": "[0:1|2|]"}, "ending is .*, which is a range: give its ends"),
        (
            {"path": "{}", "starting": "0|1|", "ending": "20260101T000055Z"},
            r"ending 20260101T000055Z lies before starting 0\|1\| at Chicago-1",
        ),
        (
            {"path": "{}", "starting": f"{PUBLISHERS[0]}|20|", "ending": f"{PUBLISHERS[0]}|9|"},
            rf"ending {PUBLISHERS[0]}\|9\| lies before starting {PUBLISHERS[0]}\|20\| at Chicago-1",
        ),
        ({"path": "{}", "starting": '{"a": 1}'}, "names no transaction id for Chicago-1"),
        ({"path": "{}", "ending": "{"}, 'give {"instance": last transaction id'),
        ({"path": "{}", "partition_bytes": "-1"}, "give a whole number above 0"),
        ({"path": "{}", "on_corrupt": "maybe"}, "on_corrupt is 'maybe': give stop or skip"),
        ({"path": "{}", "columns": "txid,nope"}, "a journal has no column nope: there are"),
        ({"path": "{}", "columns": "txid, txid"}, "the option columns names txid twice"),
        ({"path": "{}", "copies": "two"}, "copies is 'two': give one or all"),
    ],
)
def test_wrong_options(mixed: Log, options: dict[str, str], text: str) -> None:
    filled = {name: value.replace("{}", str(mixed.directory)) for name, value in options.items()}
    with pytest.raises((ConfigurationError, StorageError, Exception), match=text):
        RaylaySource(filled).schema()
        BatchReader(ReadOptions.of(filled), TXID_AND_TOPIC).partitions()


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
def test_errors_reach_the_user_through_spark(spark: Any, mixed: Log, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=f"{tmp_path} is not a journal"):
        spark.read.format("raylay").load(str(tmp_path)).collect()
    with pytest.raises(
        PySparkException, match="column txid has type BIGINT, but the schema gives it STRING"
    ):
        spark.read.format("raylay").schema("txid STRING").load(str(mixed.directory)).collect()


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    """Of a run received an hour before all others of its segment; others are still passed over."""
    runs = [message_run(first, 7, first, 20) for first in range(1, 321, 20)]
    runs[2].receive_time_us = START_US - 3600 * RUN_US
    log = write_log(tmp_path / "back", runs)
    before = LessThan(("receive_time",), time_of(START_US - 1800 * RUN_US))
    found, opened = read_here(reader_of(log, before))
    assert found == list(range(41, 61))
    assert opened == 2, "its own segment, and the live one, which has no index yet"


def journals_blocks(path: Path) -> tuple[int, int]:
    """First transaction ids of the second and of the last block of a segment."""
    with lmdb.open(str(path), subdir=False, max_dbs=0, lock=False) as env, env.begin() as read:
        keys = [key for key, _ in read.cursor() if len(key) == 8]
    return int.from_bytes(keys[1], "big"), int.from_bytes(keys[-1], "big")


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Log, Path]:
    """A log of which one record of the second run of the first sealed segment is damaged."""
    log = write_log(
        tmp_path / "hurt", [message_run(first, 7, first, 20) for first in range(1, 201, 20)]
    )
    path = sorted(log.journal.glob("journal-*.sealed"))[0]
    sound = path.read_bytes()
    assert b'"number": 25,' in sound
    path.write_bytes(sound.replace(b'"number": 25,', b'"number": 29,'))
    return log, path


@pytest.mark.covers("Data pipeline", "a damaged record names file and block")
def test_a_damaged_record(damaged: tuple[Log, Path]) -> None:
    log, path = damaged
    with pytest.raises(CorruptRecord, match="fails its checksum") as raised:
        read_here(reader_of(log))
    assert raised.value.path == str(path) and str(path) in str(raised.value)
    assert raised.value.offset == 0  # of the block of transaction id 21
    assert "block 21" in str(raised.value)
    found, _ = read_here(reader_of(log, on_corrupt="SKIP"))
    assert found == [txid for txid in range(1, 201) if not 21 <= txid <= 40]


@pytest.mark.covers("Data pipeline", "a damaged record names file and block")
def test_what_cannot_be_read_becomes_dead_letters(
    damaged: tuple[Log, Path], tmp_path: Path
) -> None:
    log, path = damaged
    options = {"on_corrupt": "dead_letter", "dead_letters": str(tmp_path / "dead")}
    wanted = [txid for txid in range(1, 201) if not 21 <= txid <= 40]
    # Another read of the same damage adds no letter.
    for topic in ("flights/EWR", "flights/.*"):
        found, _ = read_here(reader_of(log, topic=topic, **options))
        assert found == wanted
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert (letter["source"], letter["position"]) == ("hurt", 21)
    assert "block 21: run at byte 0 fails its checksum" in letter["reason"]
    assert b'"number": 29,' in letter["body"]
    # A whole segment.
    path.write_bytes(path.read_bytes()[:100])
    read_here(reader_of(log, **options))
    letters = sorted(pq.read_table(tmp_path / "dead").to_pylist(), key=lambda row: row["position"])
    assert [letter["position"] for letter in letters] == [1, 21]
    assert letters[0]["body"] is None and str(path) in letters[0]["reason"]
    assert letters[0]["reason"].endswith("the segment is left out")
    for wrong in ({"on_corrupt": "dead_letter"}, {"dead_letters": str(tmp_path / "dead")}):
        with pytest.raises(ConfigurationError, match="belong together"):
            reader_of(log, **wrong)


@pytest.mark.parametrize("suffix", ["sealed", "live", "zst"])
@pytest.mark.parametrize("read_bytes", [1, 4 << 20], ids=["each block", "the last block"])
def test_a_damaged_length_in_the_last_block_of_a_read(
    tmp_path: Path, suffix: str, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells no longer where its block ends: the next block does, if there is one."""
    monkeypatch.setattr(journals, "READ_BYTES", read_bytes)
    log = write_log(
        tmp_path / "hurt", [message_run(first, 7, first, 20) for first in range(1, 321, 20)]
    )
    path = sorted(log.journal.glob(f"journal-*.{'live' if suffix == 'live' else 'sealed'}"))[0]
    begins, ends = journals_blocks(path)
    hurt = begins if read_bytes == 1 else ends

    def shorten(block: bytearray) -> None:
        block[0:4] = (7).to_bytes(4, "little")

    change_block(path, hurt, shorten)
    if suffix == "zst":
        SegmentMaintenance(log.journal).compress(int(path.stem.rpartition("-")[2], 16))
    with pytest.raises(CorruptRecord, match="lengths that do not fit") as raised:
        read_here(reader_of(log))
    assert raised.value.path and Path(raised.value.path).stem == path.stem
    found, _ = read_here(reader_of(log, on_corrupt="skip"))
    assert found == [txid for txid in range(1, 321) if not hurt <= txid < hurt + 20]


def test_a_record_of_another_version(tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 101, 20)]
    payload = bytearray(runs[2].payload)
    third = list(iterate_records(runs[2].payload))[:2]
    assert [each.sequence for each in third] == [41, 42]
    at = len(runs[2].payload) // 20 * 2  # records of one length
    payload[at + 12] = 9
    runs[2].payload = bytes(payload)
    log = write_log(tmp_path / "newer", runs)
    told = r"journal-\w+\.\w+, block 41: record at byte \d+, of transaction id 43, has .* version"
    with pytest.raises(CorruptRecord, match=told):
        read_here(reader_of(log))
    found, _ = read_here(reader_of(log, on_corrupt="skip"))
    assert found == [txid for txid in range(1, 101) if txid != 43]
    read_here(reader_of(log, on_corrupt="dead_letter", dead_letters=str(tmp_path / "dead")))
    (letter,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert letter["position"] == 43 and "of transaction id 43" in letter["reason"]


def test_a_segment_of_another_version(tmp_path: Path, mixed: Log) -> None:
    copied = Log(tmp_path / "copy", mixed.last_txid)
    shutil.copytree(mixed.journal, copied.journal, ignore=shutil.ignore_patterns("archive.json"))
    path = sorted(copied.journal.glob("journal-*.zst"))[0]
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"version 9"):
        read_here(reader_of(copied))


# -- Java ----------------------------------------------------------------------------------------
@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a `java` that answers a text the only one in PATH."""

    def make(answer: str) -> None:
        path = tmp_path / "java"
        path.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
        path.chmod(0o755)

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    yield make


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            'openjdk version "11.0.2" 2019-01-15',
            ("needs Java 17 or newer, but .*java has version 11: sudo apt"),
        ),
        ('java version "1.8.0_392"', "needs Java 17 or newer, but .*java has version 8: "),
        ("nonsense", "does not report its version: sudo apt-get install openjdk-17"),
    ],
)
def test_a_java_that_is_too_old(java: Any, answer: str, text: str) -> None:
    java(answer)
    with pytest.raises(ConfigurationError, match=text):
        check_java()


def test_no_java(java: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="PATH has no java: sudo apt-get install"):
        check_java()
    java('openjdk version "21.0.1" 2023-10-17')
    assert check_java() == 21
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigurationError, match="JAVA_HOME is /nowhere, which has no bin/java"):
        check_java()


# -- topics --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("topic", "held"),
    [
        ("orders", {"orders"}),
        ("flights/.*", {"flights/EWR", "flights/JFK"}),
        ("^(orders|flights/JFK)$", {"orders", "flights/JFK"}),
    ],
)
def test_only_some_topics(mixed: Log, topic: str, held: set[str]) -> None:
    reader = reader_of(mixed, topic=topic)
    found = {
        name
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for name in batch["topic"].to_pylist()
    }
    assert found == held
    count = sum(row["topic"] in held for row in expected_rows(mixed, "Chicago-1"))
    assert len(read_here(reader)[0]) == count


def test_runs_whose_records_have_topics_of_their_own(tmp_path: Path) -> None:
    run = message_run(1, 7, 1, 0)
    builders = [RecordBuilder(7, topic, "json") for topic in ("a", "b")]
    run.payload = b"".join(builders[n % 2].build(n, b"{}", START_US) for n in range(1, 11))
    run.count, run.last_sequence, run.topic, run.message_type = 10, 10, b"", b""
    log = write_log(tmp_path / "own", [run])
    assert read_here(reader_of(log, topic="a"))[0] == [2, 4, 6, 8, 10]
    with pytest.raises(ConfigurationError, match=r"topic c is .*: the journaled topics are a, b"):
        reader_of(log, topic="c").partitions()


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
def test_topics_that_nobody_journals(mixed: Log, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=(
            "no message of topic trades is journaled at Chicago-1: the journaled topics are "
            "flights/EWR, flights/JFK, orders"
        ),
    ):
        reader_of(mixed, topic="trades").partitions()
    with pytest.raises(RemoteProtocolError, match="cannot be used as a regular expression"):
        reader_of(mixed, topic="trades(")
    # A filter that finds nothing is a query like any other.
    assert read_here(reader_of(mixed, EqualTo(("topic",), "trades")))[0] == []
    # A stream waits for what may come, and not for what cannot.
    log = write_log(tmp_path / "Chicago-1", [message_run(1, 7, 1, 5)])
    options = {"path": str(log.directory), "topic": "^trades$"}
    stream = StreamReader(ReadOptions.of(options), TXID_AND_TOPIC)
    start = stream.initialOffset()
    assert start == {"Chicago-1": {"incarnation": "", "txid": 0, "record": None}}
    config = InstanceConfig("Chicago-1", "Chicago", topics=(TopicRule("flights/.*"),))
    config.save(log.directory)
    with pytest.raises(ConfigurationError, match=r"trades\$ is not journaled at .*, only flights/"):
        stream.initialOffset()
