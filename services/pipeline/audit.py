"""The job `audit`: over all instances of a fabric, where each message is, once and in order.

Spark reads every journal twice: once for which sequences of each publisher and topic an instance
holds, as bitmaps, with a checksum of their digests; once, in the order of the log, for the order.
What comes back is small, and the judgement is made here, exactly, on sets of sequences.

What an instance should hold is what the fabric's configuration brings to it for certain: the
topology check (services/topology/) is asked for each topic and each instance where it was
published. What it lacks of that has a reason:

    removed       it was held, and its segment was removed since
    unavailable   the instance noted that no upstream has it any more
    conflicting   the instance refused it: it holds the same sequence with another content
    in_flight     it is behind what the instance has of its publisher, and newer than the time that
                  a message may take
    lost          none of these
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric_check import members_of
from raylay.services.messages.records import Kind
from raylay.services.pipeline.journals import Place, last_txid
from raylay.services.pipeline.session import quiet_pandas
from raylay.services.replication.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.unavailable import decode_unavailable
from raylay.services.topology.members import TopicClass
from raylay.services.topology.reach import Routes, Survey
from raylay.storage.segment_index import HELD_PREFIX, ranges_from_entries
from raylay.storage.segments import open_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTLE_S_DEFAULT = 10.0
EXAMPLES_MAX = 10
BITS = 32_768
"""Sequences in one of Spark's bitmaps."""
ORDER_COLUMNS = "instance,publisher,topic,sequence,txid,late"
ORDER_SCHEMA = (
    "instance STRING, publisher DECIMAL(20,0), topic STRING, first_txid BIGINT, "
    "lowest BIGINT, highest BIGINT, wrong BIGINT, example BIGINT"
)
NOTHING = (1 << 63) - 1

Expected = Callable[[str, str, str], Iterable[str]]
"""(instance where it was published, topic, message type) to the instances that should hold it."""


@dataclass(slots=True)
class Part:
    """What one instance holds of one publisher's topic."""

    messages: int = 0
    held: SequenceSet = field(default_factory=SequenceSet)
    published_here: SequenceSet = field(default_factory=SequenceSet)
    newest_us: int = 0


Parts = dict[tuple[int, str, str], dict[str, Part]]
"""(publisher, topic, message type) to instance to part."""


@dataclass(slots=True)
class Absent:
    """What an instance noted, or once had."""

    removed: PublisherRanges = field(default_factory=PublisherRanges)
    unavailable: PublisherRanges = field(default_factory=PublisherRanges)
    conflicting: PublisherRanges = field(default_factory=PublisherRanges)


@dataclass(slots=True)
class Audit:
    """The result.

    Attributes:
        instances: per instance messages, duplicates, out_of_order, late.
        missing: what an instance lacks, by publisher, topic and reason.
        conflicts: sequences that two instances hold with different contents; examples of them.
    """

    instances: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: int = 0
    publishers: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    conflicts: int = 0
    conflict_examples: list[str] = field(default_factory=list)
    order_examples: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Messages that an instance should hold and nothing explains why not."""
        return sum(each["messages"] for each in self.missing if each["reason"] == "lost")

    @property
    def valid(self) -> bool:
        """Whether everything is where it should be, once, in order, with one content."""
        wrong = sum(each["duplicates"] + each["out_of_order"] for each in self.instances.values())
        return not (self.lost or wrong or self.conflicts)

    def to_json(self) -> dict[str, Any]:
        """For the command."""
        return {
            "valid": self.valid,
            "messages": self.messages,
            "publishers": self.publishers,
            "lost": self.lost,
            "conflicts": self.conflicts,
            "conflict_examples": self.conflict_examples,
            "order_examples": self.order_examples,
            "instances": self.instances,
            "missing": self.missing,
            "seconds": round(self.seconds, 1),
        }


def audit(
    spark: SparkSession,
    places: list[Place],
    expected: Expected,
    *,
    settle_s: float = SETTLE_S_DEFAULT,
    progress: Callable[[str], None] = lambda line: None,
) -> Audit:
    """Judges what the journals hold now.

    Args:
        expected: see `Expected`; `expected_by(settings)` asks the configuration.
        settle_s: how long a message may be on its way.

    Raises:
        StorageError: a journal cannot be read.
    """
    from pyspark.sql import functions as F

    started_s = time.monotonic()
    now_us = time.time_ns() // 1000
    names = _names(places)
    ends = {place.instance: last_txid(place) for place in places}
    read = spark.read.format("raylay").options(
        path=",".join(place.journal for place in places),
        ending=json.dumps({read_as: ends[name] for read_as, name in names.items()}),
    )
    rows = (
        read.option(
            "columns",
            "instance,publisher,topic,message_type,sequence,digest,path,receive_time,late",
        )
        .load()
        .groupBy(
            "instance",
            "publisher",
            "topic",
            "message_type",
            F.bitmap_bucket_number("sequence").alias("bucket"),
            (F.size("path") == 0).alias("here"),
        )
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.bitmap_construct_agg(F.bitmap_bit_position("sequence")).alias("bits"),
            F.bit_xor(F.xxhash64("sequence", "digest")).alias("content"),
            F.max(F.unix_micros("receive_time")).alias("newest_us"),
            F.sum(F.col("late").cast("bigint")).alias("late"),
        )
        .collect()
    )
    found = Audit()
    parts = _parts(rows, names, found)
    progress(f"{found.messages:,} messages at {len(places)} instances")
    _conflicts(read, rows, found)
    _order(read.option("columns", ORDER_COLUMNS).load(), names, found)
    absent = {place.instance: _absent(place) for place in places}
    for key in sorted(parts):
        _missing(key, parts[key], expected, absent, now_us - int(settle_s * 1e6), now_us, found)
    found.publishers = len({publisher for publisher, _, _ in parts})
    found.seconds = time.monotonic() - started_s
    return found


def _names(places: list[Place]) -> dict[str, str]:
    """What a read by path calls an instance, to its name."""
    from raylay.services.pipeline.journals import places as by_path

    found = {by_path(path=place.journal)[0].instance: place.instance for place in places}
    if len(found) < len(places):
        raise ConfigurationError(
            "two of the journals lie in directories of one name: give the fabric's directory"
        )
    return found


def _parts(rows: list[Any], names: dict[str, str], found: Audit) -> Parts:
    parts: Parts = defaultdict(dict)
    identities: dict[str, PublisherRanges] = defaultdict(PublisherRanges)
    for name in names.values():
        found.instances[name] = {"messages": 0, "duplicates": 0, "out_of_order": 0, "late": 0}
    for row in rows:
        instance, publisher = names[row["instance"]], int(row["publisher"])
        kept = parts[publisher, row["topic"], row["message_type"]].setdefault(instance, Part())
        sequences = ranges_of_bits(bytes(row["bits"]), int(row["bucket"]))
        held = identities[instance].of(publisher)
        for first, last in sequences:
            kept.held.add(first, last)
            held.add(first, last)
            if row["here"]:
                kept.published_here.add(first, last)
        kept.messages += row["messages"]
        kept.newest_us = max(kept.newest_us, row["newest_us"])
        found.instances[instance]["messages"] += row["messages"]
        found.instances[instance]["late"] += row["late"]
        found.messages += row["messages"]
    for name, counts in found.instances.items():
        distinct = sum(len(held) for held in identities[name].sets.values())
        counts["duplicates"] = counts["messages"] - distinct
    return parts


def ranges_of_bits(bits: bytes, bucket: int) -> list[tuple[int, int]]:
    """The sequences in one of Spark's bitmaps, as inclusive ranges; bucket 1 begins at 1."""
    positions = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
    if not len(positions):
        return []
    sequences = positions + (bucket - 1) * BITS + 1
    cuts = np.flatnonzero(np.diff(sequences) > 1)
    firsts = sequences[np.concatenate([[0], cuts + 1])]
    lasts = sequences[np.concatenate([cuts, [len(sequences) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


# -- content -------------------------------------------------------------------------------------
def _conflicts(read: Any, rows: list[Any], found: Audit) -> None:
    """Looks for two contents of one sequence, where the checksums leave it possible."""
    from pyspark.sql import functions as F

    contents: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        contents[int(row["publisher"]), int(row["bucket"])][row["instance"]] ^= row["content"]
    open_buckets = [key for key, values in contents.items() if len(set(values.values())) > 1]
    if not open_buckets:
        return
    table = read.option("columns", "instance,publisher,sequence,digest").load()
    publishers = sorted({publisher for publisher, _ in open_buckets})
    buckets = sorted({bucket for _, bucket in open_buckets})
    differing = (
        table.where(F.col("publisher").isin(publishers))
        .where(F.bitmap_bucket_number("sequence").isin(buckets))
        .groupBy("publisher", "sequence")
        .agg(F.count_distinct("digest").alias("contents"))
        .where("contents > 1")
    )
    found.conflicts = differing.count()
    if found.conflicts:
        examples = differing.orderBy("publisher", "sequence").limit(EXAMPLES_MAX).collect()
        found.conflict_examples = [f"{row['publisher']}|{row['sequence']}|" for row in examples]


# -- order ---------------------------------------------------------------------------------------
Key = tuple[str, int, str]
"""Instance as it is read, publisher, topic."""
Starts = dict[Key, list[tuple[int, int]]]
"""By key: (first transaction id of a stretch, highest sequence before it), ascending."""


def _order(rows: DataFrame, names: dict[str, str], found: Audit) -> None:
    """Every publisher's topic ascends in the order of the log, but for what is flagged late."""
    with quiet_pandas():
        stretches = rows.mapInArrow(order_of_stretch, ORDER_SCHEMA).collect()
    starts, behind = _starts(stretches)
    if behind:
        # A stretch begins behind one before it: count again, knowing what came before each.
        counted = partial(order_of_stretch, starts=starts)
        with quiet_pandas():
            stretches = rows.mapInArrow(counted, ORDER_SCHEMA).collect()
    for row in sorted(stretches, key=lambda row: (row["instance"], row["first_txid"])):
        instance = names[row["instance"]]
        found.instances[instance]["out_of_order"] += row["wrong"]
        if row["wrong"] and len(found.order_examples) < EXAMPLES_MAX:
            found.order_examples.append(f"{instance}: {row['publisher']}|{row['example']}|")


def _starts(stretches: list[Any]) -> tuple[Starts, bool]:
    """What came before each stretch, and whether one begins behind that."""
    starts: Starts = defaultdict(list)
    highest: dict[Key, int] = defaultdict(int)
    behind = False
    for row in sorted(stretches, key=lambda row: row["first_txid"]):
        key = (row["instance"], int(row["publisher"]), row["topic"])
        behind = behind or row["lowest"] < highest[key]
        starts[key].append((row["first_txid"], highest[key]))
        highest[key] = max(highest[key], row["highest"])
    return dict(starts), behind


def _before(starts: Starts, key: Key, txid: int) -> int:
    known = starts.get(key, [])
    at = bisect_right(known, (txid, NOTHING)) - 1
    return known[at][1] if at >= 0 else 0


def order_of_stretch(
    batches: Iterator[pa.RecordBatch], starts: Starts | None = None
) -> Iterator[pa.RecordBatch]:
    """One row a publisher and topic of a stretch of one log: lowest sequence that is not late,
    highest, how many are behind a higher one before them.

    Args:
        starts: what came before the stretch; not given: nothing.
    """
    first: dict[Key, int] = {}
    lowest: dict[Key, int] = {}
    highest: dict[Key, int] = {}
    wrong: dict[Key, int] = defaultdict(int)
    example: dict[Key, int] = defaultdict(int)
    for batch in batches:
        sequences = batch["sequence"].to_numpy(zero_copy_only=False)
        late = batch["late"].to_numpy(zero_copy_only=False)
        txids = batch["txid"].to_numpy(zero_copy_only=False)
        codes = np.zeros(len(sequences), np.int64)
        values = []
        for name in ("instance", "publisher", "topic"):
            encoded = batch[name].dictionary_encode()
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            values.append(encoded.dictionary.to_pylist())
        for code in np.unique(codes).tolist():
            rows = np.flatnonzero(codes == code)
            rest, topic = divmod(code, len(values[2]))
            instance, publisher = divmod(rest, len(values[1]))
            key = (values[0][instance], int(values[1][publisher]), values[2][topic])
            mine, on_time = sequences[rows], ~late[rows].astype(bool)
            if key not in first:
                first[key] = int(txids[rows[0]])
                highest[key] = _before(starts or {}, key, first[key])
            before = np.maximum.accumulate(np.concatenate([[highest[key]], mine]))
            behind = (mine < before[:-1]) & on_time
            highest[key] = int(before[-1])
            if on_time.any():
                lowest[key] = min(lowest.get(key, NOTHING), int(mine[on_time].min()))
            if behind.any():
                wrong[key] += int(behind.sum())
                example[key] = example[key] or int(mine[np.argmax(behind)])
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([key[0] for key in first], pa.string()),
            pa.array([Decimal(key[1]) for key in first], pa.decimal128(20, 0)),
            pa.array([key[2] for key in first], pa.string()),
            pa.array(list(first.values()), pa.int64()),
            pa.array([lowest.get(key, NOTHING) for key in first], pa.int64()),
            pa.array([highest[key] for key in first], pa.int64()),
            pa.array([wrong[key] for key in first], pa.int64()),
            pa.array([example[key] for key in first], pa.int64()),
        ],
        names=[part.split()[0] for part in ORDER_SCHEMA.replace("(20,0)", "").split(", ")],
    )


# -- what is missing, and why --------------------------------------------------------------------
def _absent(place: Place) -> Absent:
    """What the instance once had, and what its notes say of what it has not."""
    found = Absent()
    files = place.files()
    if files:
        segment = open_segment(files[0])
        try:
            path = str(files[0].path)
            found.removed = ranges_from_entries(segment.entries(), HELD_PREFIX, path)
        finally:
            segment.close()
    reader = place.reader()
    try:
        after = reader.first_txid - 1
        while runs := reader.read_headers(after):
            for run in runs:
                if run.kind == Kind.UNAVAILABLE:
                    found.unavailable.update(decode_unavailable(run))
                elif run.kind == Kind.CONFLICT:
                    found.conflicting.add(run.publisher, run.first_sequence, run.last_sequence)
            after = runs[-1].last_txid
    finally:
        reader.close()
    return found


def _missing(
    key: tuple[int, str, str],
    parts: dict[str, Part],
    expected: Expected,
    absent: dict[str, Absent],
    settled_us: int,
    now_us: int,
    found: Audit,
) -> None:
    """What each instance lacks of one publisher's topic."""
    publisher, topic, message_type = key
    wanted: dict[str, SequenceSet] = defaultdict(SequenceSet)
    for origin, part in parts.items():
        if part.published_here:
            for instance in expected(origin, topic, message_type):
                if instance in absent:
                    wanted[instance].update(part.published_here)
    newest_us = max(part.newest_us for part in parts.values())
    for instance in sorted(wanted):
        lacking = wanted[instance]
        part = parts.get(instance, Part())
        lacking.difference_update(part.held)
        for reason in ("removed", "unavailable", "conflicting"):
            noted = getattr(absent[instance], reason).get(publisher)
            if noted is not None and lacking:
                _report(found, instance, key, reason, lacking.intersection(noted))
                lacking.difference_update(noted)
        last = lacking.last()
        if last is not None and settled_us <= newest_us <= now_us:
            behind = (part.held.last() or 0) + 1
            if behind <= last:
                on_the_way = SequenceSet(lacking.within(behind, last))
                _report(found, instance, key, "in_flight", on_the_way)
                lacking.difference_update(on_the_way)
        _report(found, instance, key, "lost", lacking)


def _report(
    found: Audit, instance: str, key: tuple[int, str, str], reason: str, sequences: SequenceSet
) -> None:
    if not sequences:
        return
    ranges = list(sequences)
    found.missing.append(
        {
            "instance": instance,
            "publisher": key[0],
            "topic": key[1],
            "reason": reason,
            "messages": len(sequences),
            "ranges": [list(each) for each in ranges[:EXAMPLES_MAX]],
            "ranges_in_all": len(ranges),
        }
    )


def expected_by(settings: FabricSettings) -> Expected:
    """What a fabric's configuration brings where for certain, with all instances up."""
    members = members_of(settings)
    numbers = {member.name: number for number, member in enumerate(members)}
    surveys: dict[tuple[str, str], Survey] = {}

    def expected(origin: str, topic: str, message_type: str) -> list[str]:
        survey = surveys.get((topic, message_type))
        if survey is None:
            survey = Survey(Routes(members, TopicClass(topic, message_type, (topic,))))
            surveys[topic, message_type] = survey
        number = numbers[origin]
        if number not in survey.nominal:
            return [origin]
        certain = survey.nominal[number].certain | 1 << number
        return [name for name, at in numbers.items() if certain >> at & 1]

    return expected


def expected_everywhere(places: list[Place]) -> Expected:
    """Every instance should hold everything: for journals without a configuration."""
    names = [place.instance for place in places]
    return lambda origin, topic, message_type: names
