"""One copy of each message of several journals, judged by the union of their sets."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from support.journal_cases import StepJournal, a_note
from support.pipeline_cases import (
    INCARNATION,
    START_US,
    Log,
    change_block,
    flight,
    made_by,
    message_run,
    write_fabric,
    write_log,
)

from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.messages.records import Flag, RecordBuilder, Run
from raylay.services.pipeline.journals import StretchReader
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.pipeline.tables.copies import GIVEN
from raylay.services.pipeline.tables.source import BatchReader, ReadOptions, StreamReader
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.segments import OpenedSegment, list_segments

Messages = list[tuple[int, int]]
Rows = list[dict[str, Any]]
NAMES = ("a", "b", "c")
PUBLISHERS = (7, 8, (1 << 64) - 1)
SEGMENT_BYTES = 8 * 1024
KEYS = ("publisher", "sequence")
ALL_COLUMNS = tuple(name for name in COLUMNS if name != "path")
CONDITIONED = (
    "instance",
    "segment",
    "txid",
    "publisher",
    "sequence",
    "topic",
    "group",
    "receive_time",
    "origin_time",
    "bookmark",
    "awaited",
)
SEEDS = range(4)


def gapped_run(first_txid: int, publisher: int, sequences: list[int]) -> Run:
    """A run whose sequences have gaps."""
    builder = RecordBuilder(publisher, "flights/JFK", "json")
    parts = [builder.build(each, flight(each), START_US + each) for each in sequences]
    return Run(
        publisher,
        sequences[0],
        sequences[-1],
        len(parts),
        b"".join(parts),
        b"flights/JFK",
        b"json",
        group="London",
        flags=Flag.AWAITED if sequences[-1] - sequences[0] >= len(parts) else Flag.CONTIGUOUS,
        first_txid=first_txid,
        receive_time_us=START_US + first_txid * 1000,
    )


class Written:
    """A journal that grows by random parts of what was published, each message once."""

    def __init__(self, directory: Path, random_numbers: random.Random) -> None:
        self.directory = directory
        self._random = random_numbers
        self.by_txid: dict[int, tuple[int, int]] = {}
        self._txid = 1
        self._left = {publisher: list(range(1, 400)) for publisher in PUBLISHERS}

    def grow(self, runs: int) -> Log:
        """Appends runs, some of them with gaps, in no order across publishers."""
        made = []
        for _ in range(runs):
            if self._random.random() < 0.1:
                made.append(a_note(self._txid))
                self._txid += 1
                continue
            publisher = self._random.choice(PUBLISHERS)
            left = self._left[publisher]
            begin = self._random.randrange(max(1, len(left) - 20)) if left else 0
            few = left[begin : begin + self._random.randint(1, 20)]
            if self._random.random() < 0.5:
                few = [each for each in few if self._random.random() < 0.7]
            if not few:
                continue
            self._left[publisher] = [each for each in left if each not in few]
            made.append(gapped_run(self._txid, publisher, few))
            for each in few:
                self.by_txid[self._txid] = (publisher, each)
                self._txid += 1
        self._write(made)
        return Log(self.directory, self._txid - 1)

    def _write(self, runs: list[Run]) -> None:
        place = self.directory / "journal"
        place.mkdir(parents=True, exist_ok=True)
        journal = StepJournal(place, segment_bytes=SEGMENT_BYTES)
        try:
            for run in runs:
                journal.stage(run)
                if self._random.random() < 0.4:
                    journal.commit()
            journal.commit()
        finally:
            journal.close()


def written(place: Path, seed: int, runs: int = 40) -> list[Written]:
    """Three journals with different parts of the same messages, in every form of a segment."""
    numbers = random.Random(seed)
    made = [Written(place / name, numbers) for name in NAMES]
    for at, each in enumerate(made):
        log = each.grow(runs)
        closed = SegmentMaintenance(log.journal).closed_segments()
        if at == 1 and closed:
            SegmentMaintenance(log.journal).compress(closed[-1][0].first_txid)
    return made


def path_of(journals: Iterable[Written | Log]) -> str:
    """The option `path`."""
    return ",".join(str(each.directory) for each in journals)


def schema_of(names: Iterable[str]) -> Any:
    """Columns as Spark asks for them."""
    return from_arrow_schema(pa.schema([pa.field(name, COLUMNS[name]) for name in names]))


def rows_of(parts: Iterable[Any], reader: Any) -> Rows:
    """The rows of partitions."""
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def read(
    options: dict[str, str], names: Iterable[str] = KEYS, filters: Iterable[ds.Filter] = ()
) -> Rows:
    reader = BatchReader(ReadOptions.of({"pushdown": "true", **options}), schema_of(names))
    list(reader.pushFilters(list(filters)))
    return rows_of(reader.partitions(), reader)


def messages(rows: Rows) -> Messages:
    """The messages of rows, sorted; a message with two rows is there twice."""
    return sorted((int(row["publisher"]), row["sequence"]) for row in rows)


def union(parts: Iterable[Iterable[tuple[int, int]]]) -> Messages:
    """Every message of these journals once."""
    return sorted({each for part in parts for each in part})


# -- batches -------------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "one copy of each message")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_once(tmp_path: Path, seed: int) -> None:
    journals = written(tmp_path, seed)
    numbers = random.Random(seed)
    path = path_of(journals)
    whole = read({"path": path, "partition_bytes": str(numbers.choice((4096, 65536)))})
    assert messages(whole) == union(each.by_txid.values() for each in journals)
    every = read({"path": path, "copies": "all"})
    assert messages(every) == sorted(m for each in journals for m in each.by_txid.values())
    assert len(every) > len(whole)
    # Any order of the journals gives the same messages; the first gives all that it has.
    numbers.shuffle(journals)
    rows = read({"path": path_of(journals)}, (*KEYS, "instance"))
    assert messages(rows) == messages(whole)
    own = [row for row in rows if row["instance"] == journals[0].directory.name]
    assert messages(own) == union([journals[0].by_txid.values()])
    # Parts of the journals.
    for _ in range(8):
        begins = {each.directory.name: numbers.randrange(300) for each in journals}
        ends = {name: begin + numbers.randrange(300) for name, begin in begins.items()}
        given = {"path": path, "starting": json.dumps(begins), "ending": json.dumps(ends)}
        inside = (
            [
                message
                for txid, message in each.by_txid.items()
                if begins[each.directory.name] < txid <= ends[each.directory.name]
            ]
            for each in journals
        )
        assert messages(read(given)) == union(inside)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_conditions_choose_among_the_copies_that_are_read_without_them(
    tmp_path: Path, seed: int
) -> None:
    numbers = random.Random(seed)
    given = {"path": path_of(written(tmp_path, seed)), "partition_bytes": "8192"}
    everything = read(given, ALL_COLUMNS)
    assert read(given, ["body"]) == [{"body": row["body"]} for row in everything]
    for _ in range(10):
        one = numbers.choice(everything)
        name = numbers.choice(CONDITIONED)
        kind: Any = numbers.choice((ds.EqualTo, ds.GreaterThan, ds.LessThanOrEqual))
        if name == "awaited":
            kind = ds.EqualTo

        def passes(row: dict[str, Any], name: str = name, kind: Any = kind, one: Any = one) -> bool:
            if kind is ds.EqualTo:
                return bool(row[name] == one[name])
            return bool(row[name] > one[name] if kind is ds.GreaterThan else row[name] <= one[name])

        found = read(given, ALL_COLUMNS, [kind((name,), one[name])])
        assert [row for row in found if passes(row)] == [row for row in everything if passes(row)]
    wanted = [row["bookmark"] for row in everything if row["topic"] == "flights/JFK"]
    assert wanted == [
        row["bookmark"]
        for row in read({**given, "topic": "flights/JFK", "filter": "/number > 0"}, ["bookmark"])
    ]


def test_a_segment_that_has_nothing_of_its_own_is_not_opened(tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 401, 20)]
    logs = [write_log(tmp_path / name, runs, SEGMENT_BYTES) for name in NAMES]
    write_log(tmp_path / "c", [message_run(401, 7, 401, 5)], SEGMENT_BYTES)
    opened = []
    for path, count in ((path_of(logs[:1]), 400), (path_of(logs), 405)):
        before = StretchReader.opened_segments
        assert len(read({"path": path})) == count
        opened.append(StretchReader.opened_segments - before)
    assert opened[0] > 3 and opened[1] == opened[0] + 1


def test_a_segment_that_is_removed_between_the_plan_and_the_read(tmp_path: Path) -> None:
    journals = written(tmp_path, 1)
    reader = BatchReader(ReadOptions.of({"path": path_of(journals)}), schema_of(KEYS))
    parts = reader.partitions()
    for path in sorted((journals[0].directory / "journal").glob("journal-*"))[:1]:
        path.unlink()
    with pytest.raises(StorageError, match="no longer holds transaction id 1, it begins at"):
        rows_of(parts, reader)


@pytest.mark.covers("Data pipeline", "one copy of each message")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("damage", ["header", "payload", "a whole segment"])
def test_another_journal_gives_what_is_damaged_in_one(
    tmp_path: Path, seed: int, damage: str
) -> None:
    """Nothing is lost with `skip` that any journal has, and nothing comes twice."""
    journals = written(tmp_path, seed)
    lost: list[set[tuple[int, int]]] = []
    for each in (journals[0], journals[2]):
        paths = sorted((each.directory / "journal").glob("journal-*.sealed"))
        spoil(paths[seed % len(paths)], damage)
        intact = messages(read({"path": str(each.directory), "on_corrupt": "skip"}))
        lost.append(set(each.by_txid.values()) - set(intact))
        each.by_txid = dict(enumerate(intact))
    assert lost[0] and lost[1]
    given = {"path": path_of(journals), "on_corrupt": "skip"}
    wanted = union(each.by_txid.values() for each in journals)
    assert messages(read(given)) == wanted
    assert lost[0] & set(wanted), "another journal has some of it"
    assert messages(read({**given, "verify": "false"})) == wanted
    with pytest.raises(CorruptRecord, match="journal-"):
        read({"path": path_of(journals), "columns": "body"})


def spoil(segment: Path, damage: str) -> None:
    """Damages a run in each block of a segment, or all of it."""
    if damage == "a whole segment":
        segment.write_bytes(segment.read_bytes()[:100])
        return

    def change(block: bytearray) -> None:
        block[20 if damage == "header" else -30] ^= 0xFF

    (file,) = [each for each in list_segments(segment.parent, None) if each.path == segment]
    with OpenedSegment(file) as opened:
        keys = [key for key, _ in opened.blocks(file.first_txid, 1 << 30)]
    for key in keys:
        change_block(segment, key, change)


def test_journals_of_two_fabrics_are_not_taken_for_copies(tmp_path: Path) -> None:
    """A publisher of one name counts its messages in each fabric by itself."""
    paths = []
    for name in ("flights", "trading"):
        directory = write_fabric(tmp_path / name, ("Chicago-1",), fabric=name)
        write_log(directory / "Chicago-1", [message_run(1, 7, 1, 20)])
        paths.append(str(directory / "Chicago-1"))
    given = {"path": ",".join(paths)}
    with pytest.raises(ConfigurationError, match="of the fabrics flights and trading, whose"):
        read(given)
    assert len(read({**given, "copies": "all"})) == 40
    reader = stream_of({**given, "copies": "all"})
    with pytest.raises(ConfigurationError, match="are both of Chicago-1: read each with a query"):
        reader.initialOffset()


# -- streams -------------------------------------------------------------------------------------
def stream_of(options: dict[str, str]) -> StreamReader:
    return StreamReader(ReadOptions.of(options), schema_of(KEYS))


def parts_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Messages:
    return messages(rows_of(reader.partitions(start, end), reader))


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "one copy of each message")
@pytest.mark.parametrize("on_corrupt", ["stop", "skip"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_gives_each_message_once(tmp_path: Path, seed: int, on_corrupt: str) -> None:
    """Reads with journals that grow, limits, restarts, micro-batches that are run again, and
    a journal that appears later."""
    numbers = random.Random(seed)
    journals = written(tmp_path, seed, runs=12)
    given = {"path": path_of(journals[:2]), "on_corrupt": on_corrupt}
    reader = stream_of(given)
    at = reader.initialOffset()
    found: Messages = []
    for step in range(14):
        if step == 5:
            given["path"] = path_of(journals)
            reader = stream_of(given)
        if numbers.random() < 0.5:
            numbers.choice(journals).grow(4)
        limit: ReadLimit = ReadMaxRows(numbers.randint(1, 120))
        if step == 13:
            limit = ReadAllAvailable()
        end = json.loads(json.dumps(reader.latestOffset(at, limit)))
        few = parts_of(reader, at, end)
        assert few == parts_of(stream_of(given), at, end), "an offset means the same rows"
        assert not isinstance(limit, ReadMaxRows) or len(few) <= limit.max_rows
        found += few
        at = end
        if numbers.random() < 0.3:
            reader = stream_of(given)
    assert sorted(found) == union(each.by_txid.values() for each in journals)
    assert reader.latestOffset(at, ReadAllAvailable()) == at


def test_a_stream_of_one_journal_keeps_no_set(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a", [message_run(1, 7, 1, 20)])
    for more in ({}, {"instance": "a"}):
        offset = stream_of({"path": str(log.directory), **more}).initialOffset()
        assert set(offset) == {"a"}


def test_an_instance_that_a_fabric_gets_later_gives_nothing_twice(tmp_path: Path) -> None:
    runs = [message_run(1, 7, 1, 20)]
    directory = write_fabric(tmp_path, ("Chicago-1",))
    write_log(directory / "Chicago-1", runs)
    start = stream_of({"fabric": str(directory)}).initialOffset()
    end = stream_of({"fabric": str(directory)}).latestOffset(start, ReadAllAvailable())
    write_fabric(tmp_path, ("Chicago-1", "Chicago-2"))
    write_log(directory / "Chicago-2", [*runs, message_run(21, 7, 21, 3)])
    reader = stream_of({"path": str(directory)})
    last = reader.latestOffset(end, ReadAllAvailable())
    assert parts_of(reader, end, last) == [(7, 21), (7, 22), (7, 23)]
    assert set(last) == {GIVEN, "Chicago-1", "Chicago-2"}


def test_a_journal_that_began_anew_gives_nothing_twice(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / name, [message_run(1, 7, 1, 20)]) for name in NAMES[:2]]
    given = {"path": path_of(logs), "on_data_loss": "go_on"}
    for log in logs:
        made_by(log, INCARNATION)
    start = stream_of(given).initialOffset()
    end = stream_of(given).latestOffset(start, ReadAllAvailable())
    shutil.rmtree(logs[0].directory)
    write_log(logs[0].directory, [message_run(1, 7, 5, 20)])
    made_by(logs[0], INCARNATION + 1)
    reader = stream_of(given)
    last = reader.latestOffset(end, ReadAllAvailable())
    assert parts_of(reader, end, last) == [(7, 21), (7, 22), (7, 23), (7, 24)]


def test_a_checkpoint_of_other_copies_is_refused(tmp_path: Path) -> None:
    path = path_of(written(tmp_path, 2, runs=4))
    for before, later, text in (
        ("all", "one", "does not tell which messages were read"),
        ("one", "all", "read one copy of each message of several journals, and this one reads"),
    ):
        start = stream_of({"path": path, "copies": before}).initialOffset()
        end = stream_of({"path": path, "copies": before}).latestOffset(start, ReadAllAvailable())
        reader = stream_of({"path": path, "copies": later})
        for use in (
            lambda reader=reader, start=start: reader.latestOffset(start, ReadAllAvailable()),
            lambda reader=reader, start=start, end=end: reader.partitions(start, end),
        ):
            with pytest.raises(ConfigurationError, match=text):
                use()


# -- with Spark ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "one copy of each message")
def test_counts_limits_and_a_stream_in_spark(spark: Any, tmp_path: Path) -> None:
    journals = written(tmp_path, 3)
    wanted = union(each.by_txid.values() for each in journals)
    path = path_of(journals)

    def table() -> Any:
        return spark.read.format("raylay").option("partition_bytes", "8192").load(path)

    assert table().count() == len(wanted)
    bookmarks = [row["bookmark"] for row in table().select("bookmark").collect()]
    assert sorted(bookmarks) == sorted(f"{publisher}|{number}|" for publisher, number in wanted)
    assert table().where("sequence > 100").count() == sum(number > 100 for _, number in wanted)
    assert table().limit(7).count() == 7
    by_instance = {row[0]: row[1] for row in table().groupBy("instance").count().collect()}
    for name in NAMES:
        assert table().where(f"instance = '{name}'").count() == by_instance[name]
    copies = spark.read.format("raylay").option("copies", "all").load(path)
    assert copies.groupBy("instance").count().count() == 3
    assert copies.count() == sum(len(each.by_txid) for each in journals)
    with pytest.raises(PySparkException, match="copies is 'two': give one or all"):
        spark.read.format("raylay").option("copies", "two").load(path).count()
    for _ in range(2):
        query = (
            spark.readStream.format("raylay")
            .options(columns="bookmark", max_records_per_trigger="400")
            .load(path)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = [row["bookmark"] for row in spark.read.parquet(str(tmp_path / "table")).collect()]
        wanted = union(each.by_txid.values() for each in journals)
        assert sorted(found) == sorted(f"{publisher}|{number}|" for publisher, number in wanted)
        journals[2].grow(20)
