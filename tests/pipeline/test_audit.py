"""The audit: it finds each fault that is planted, and none where there is none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pipeline_cases import message_run, write_fabric, write_log

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Flag, Kind, RecordBuilder, Run
from raylay.services.pipeline.audit import (
    BITS,
    Audit,
    audit,
    expected_by,
    expected_everywhere,
    order_of_stretch,
    ranges_of_bits,
)
from raylay.services.pipeline.journals import places, settings_of
from raylay.services.replication.ranges import SequenceSet
from raylay.services.replication.unavailable import encode_unavailable
from raylay.storage.maintenance import SegmentMaintenance

NAMES = ("Chicago-1", "Chicago-2", "Chicago-3")
DESK = 7


def at(run: Run, txid: int, *, forwarded: bool) -> Run:
    """A run as an instance has it: published there, or come from another."""
    run.first_txid = txid
    run.path = (0xA1,) if forwarded else ()
    return run


def runs_of(*wanted: tuple[int, int], forwarded: bool, topic: str = "orders") -> list[Run]:
    """Runs of the publisher with these (first sequence, count), in this order."""
    made, txid = [], 1
    for first, count in wanted:
        made.append(at(message_run(0, DESK, first, count, topic), txid, forwarded=forwarded))
        txid += count
    return made


def appended(runs: list[Run], more: Run) -> list[Run]:
    """With one more behind the last."""
    more.first_txid = runs[-1].last_txid + 1
    return [*runs, more]


def judged(spark: Any, directory: Path, settle_s: float = 10.0) -> Audit:
    settings = settings_of(str(directory))
    assert settings is not None
    return audit(spark, places(path=str(directory)), expected_by(settings), settle_s=settle_s)


def test_a_fabric_without_faults(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES)
    whole = ((1, 500), (501, 500))
    write_log(directory / "Chicago-1", runs_of(*whole, forwarded=False))
    write_log(directory / "Chicago-2", runs_of(*whole, forwarded=True))
    # The third has no segment any more of what it had first.
    log = write_log(directory / "Chicago-3", runs_of(*whole, forwarded=True))
    assert any(e.done for e in SegmentMaintenance(log.journal).remove(501, force=True))
    found = judged(spark, directory)
    assert found.valid, found
    assert found.missing == [
        {
            "instance": "Chicago-3",
            "publisher": DESK,
            "topic": "orders",
            "reason": "removed",
            "messages": 500,
            "ranges": [[1, 500]],
            "ranges_in_all": 1,
        }
    ]
    assert found.messages == 2500 and found.publishers == 1
    assert found.instances["Chicago-1"] == {
        "messages": 1000, "duplicates": 0, "out_of_order": 0, "late": 0,
    }  # fmt: skip


def test_every_fault_is_found(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES)
    first = runs_of((1, 400), (401, 600), forwarded=False)
    write_log(directory / "Chicago-1", first)
    # Chicago-2: 101 to 200 behind 201 to 400, one of them flagged late and one stretch not; the
    # first ten twice; 900 with another content.
    second = runs_of((1, 100), (201, 200), (101, 50), (151, 50), (401, 499), forwarded=True)
    second[2].flags |= Flag.LATE
    other = RecordBuilder(DESK, "orders", "json").build(900, b"another", 1)
    conflicting = message_run(0, DESK, 900, 1, "orders")
    conflicting.payload = other
    second = appended(second, at(conflicting, 0, forwarded=True))
    second = appended(second, at(message_run(0, DESK, 901, 100, "orders"), 0, forwarded=True))
    second = appended(second, at(message_run(0, DESK, 1, 10, "orders"), 0, forwarded=True))
    write_log(directory / "Chicago-2", second)
    # Chicago-3: 301 to 310 unavailable, 601 to 620 lost, 950 refused, the last 50 on their way.
    third = runs_of((1, 300), (311, 290), (621, 329), forwarded=True)
    third = appended(third, encode_unavailable(DESK, SequenceSet([(301, 310)])))
    note = message_run(0, DESK, 950, 1, "orders")
    note.kind = int(Kind.CONFLICT)
    third = appended(third, note)
    write_log(directory / "Chicago-3", third)

    found = judged(spark, directory)
    assert not found.valid
    assert found.instances == {
        "Chicago-1": {"messages": 1000, "duplicates": 0, "out_of_order": 0, "late": 0},
        "Chicago-2": {"messages": 1010, "duplicates": 10, "out_of_order": 60, "late": 50},
        "Chicago-3": {"messages": 919, "duplicates": 0, "out_of_order": 0, "late": 0},
    }
    assert found.conflicts == 1 and found.conflict_examples == [f"{DESK}|900|"]
    assert found.order_examples[0].startswith(f"Chicago-2: {DESK}|")
    reasons = {
        (each["instance"], each["reason"]): (each["messages"], each["ranges"])
        for each in found.missing
    }
    assert reasons == {
        ("Chicago-3", "unavailable"): (10, [[301, 310]]),
        ("Chicago-3", "conflicting"): (1, [[950, 950]]),
        ("Chicago-3", "lost"): (70, [[601, 620], [951, 1000]]),
    }
    assert found.lost == 70
    assert found.to_json()["valid"] is False


def test_what_is_on_its_way_is_not_lost(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES[:2])
    now_us = time.time_ns() // 1000
    published = runs_of((1, 100), (101, 20), forwarded=False)
    published[1].receive_time_us = now_us
    write_log(directory / "Chicago-1", published)
    write_log(directory / "Chicago-2", runs_of((1, 90), (96, 5), forwarded=True))
    found = judged(spark, directory, settle_s=3600)
    assert [(each["reason"], each["ranges"]) for each in found.missing] == [
        ("in_flight", [[101, 120]]),
        ("lost", [[91, 95]]),
    ]
    assert not found.valid


# -- the parts, without Spark --------------------------------------------------------------------
def test_bitmaps() -> None:
    assert ranges_of_bits(b"\x00" * 4096, 1) == []
    assert ranges_of_bits(b"\x0d" + b"\x00" * 4094 + b"\x80", 1) == [(1, 1), (3, 4), (BITS, BITS)]
    assert ranges_of_bits(b"\xff" * 4096, 3) == [(2 * BITS + 1, 3 * BITS)]


def test_the_order_of_a_stretch() -> None:
    def batch(first_txid: int, rows: list[tuple[int, str, int, bool]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "instance": ["a"] * len(rows),
                "publisher": pa.array([row[0] for row in rows]).cast(pa.decimal128(20, 0)),
                "topic": [row[1] for row in rows],
                "sequence": [row[2] for row in rows],
                "txid": np.arange(first_txid, first_txid + len(rows)),
                "late": [row[3] for row in rows],
            }
        )

    (found,) = order_of_stretch(
        iter(
            [
                batch(1, [(1, "x", 5, False), (2, "x", 1, False), (1, "x", 4, True)]),
                batch(4, [(1, "x", 3, False), (1, "y", 2, False), (1, "x", 6, False)]),
            ]
        )
    )
    rows = {(int(row["publisher"]), row["topic"]): row for row in found.to_pylist()}
    assert rows[1, "x"] | {"publisher": 1} == {
        "instance": "a", "publisher": 1, "topic": "x", "first_txid": 1, "lowest": 3,
        "highest": 6, "wrong": 1, "example": 3,
    }  # fmt: skip
    assert rows[2, "x"]["wrong"] == rows[1, "y"]["wrong"] == 0
    # Knowing what came before the stretch, all of it may be behind.
    late = batch(9, [(1, "x", 5, False), (1, "x", 7, False), (1, "x", 8, True)])
    starts = {("a", 1, "x"): [(1, 0), (9, 20), (30, 40)]}
    (found,) = order_of_stretch(iter([late]), starts)
    assert found.to_pylist()[0]["wrong"] == 2


def test_what_the_configuration_brings_where() -> None:
    builder = FabricBuilder("two", topics=[{"name": "orders", "message_type": "json"}])
    builder.region("Chicago", ["C1", "C2"])
    builder.region("London", ["L1"])
    expected = expected_by(builder.settings())
    assert sorted(expected("C1", "orders", "json")) == ["C1", "C2"], "the regions are not connected"
    assert list(expected("L1", "orders", "json")) == ["L1"]
    builder.connect_regions("async")
    everywhere = expected_by(builder.settings())
    assert sorted(everywhere("C1", "orders", "json")) == ["C1", "C2", "L1"]
    # A topic that nobody journals is not expected anywhere else.
    assert list(everywhere("C1", "quotes", "json")) == ["C1"]


def test_two_journals_of_one_name(tmp_path: Path) -> None:
    spark: Any = None
    for region in ("a", "b"):
        write_log(tmp_path / region / "same", runs_of((1, 2), forwarded=False))
    found = places(path=f"{tmp_path}/a/same,{tmp_path}/b/same")
    with pytest.raises(ConfigurationError, match="lie in directories of one name"):
        audit(spark, found, expected_everywhere(found))
