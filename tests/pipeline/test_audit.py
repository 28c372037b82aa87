"""The audit with Spark: it finds each fault that is planted, and none where there is none."""

from __future__ import annotations

import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest
from support.pipeline_cases import made_by, message_run, write_fabric, write_log

from raylay.services.configuration.files import load_fabric
from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Flag, Kind, RecordBuilder, Run, decode_record
from raylay.services.pipeline.audit import Audit, audit, audit_source, expected_everywhere
from raylay.services.pipeline.audit import write_page as write_audit_page
from raylay.services.pipeline.journals import places
from raylay.services.replication.unavailable import encode_unavailable
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.segment_index import HEADER_KEY, with_checksum
from raylay.storage.segments import META_PREFIX
from raylay.storage.state import LmdbStateStore

NAMES = ("Chicago-1", "Chicago-2", "Chicago-3")
DESK = 7
ORIGIN = 0xA1


def at(run: Run, txid: int, *, forwarded: bool) -> Run:
    """A run as an instance has it: published there, or come from another."""
    run.first_txid = txid
    run.path = (ORIGIN,) if forwarded else ()
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


def judged(spark: Any, directory: Path, **options: Any) -> Audit:
    # Small parts: what is judged is put together from many.
    found = places(path=str(directory))
    return audit_source(spark, str(directory), found, partition_bytes=16 * 1024, **options)


@pytest.mark.covers("Data pipeline", "each planted fault is found with its reason")
def test_a_fabric_without_faults(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES)
    whole = ((1, 500), (501, 500))
    write_log(directory / "Chicago-1", runs_of(*whole, forwarded=False))
    write_log(directory / "Chicago-2", runs_of(*whole, forwarded=True))
    # The third has no segment any more of what it had first.
    log = write_log(directory / "Chicago-3", runs_of(*whole, forwarded=True))
    assert any(e.done for e in SegmentMaintenance(log.journal).remove(501, force=True))
    told: list[str] = []
    found = judged(spark, directory, progress=told.append)
    assert found.valid, found
    assert found.missing == [
        {
            "instance": "Chicago-3",
            "publisher": DESK,
            "topic": "orders",
            "message_type": "json",
            "reason": "removed",
            "messages": 500,
            "ranges": [[1, 500]],
            "ranges_in_all": 1,
        }
    ]
    assert (found.messages, found.published, found.publishers) == (2500, 1000, 1)
    assert found.instances["Chicago-1"] == {
        "messages": 1000, "duplicates": 0, "out_of_order": 0, "late": 0,
    }  # fmt: skip
    assert told[0] == "reading 3,000 records at 3 instances"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fabric with one of everything that can be wrong."""
    directory = write_fabric(tmp_path_factory.mktemp("faulty"), NAMES)
    made_by(
        write_log(directory / "Chicago-1", runs_of((1, 400), (401, 600), forwarded=False)), ORIGIN
    )
    # Chicago-2: 101 to 200 behind 201 to 400, one stretch of them flagged late and one not; the
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
    # Chicago-3: 301 to 310 unavailable, 601 to 620 lost, 950 refused, the last 50 lost as well.
    third = runs_of((1, 300), (311, 290), (621, 329), forwarded=True)
    third = appended(third, encode_unavailable(DESK, SequenceSet([(301, 310)])))
    note = message_run(0, DESK, 950, 1, "orders")
    note.kind = int(Kind.CONFLICT)
    third = appended(third, note)
    write_log(directory / "Chicago-3", third)
    return directory


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "each planted fault is found with its reason")
def test_every_fault_is_found(spark: Any, faulty: Path, tmp_path: Path) -> None:
    found = judged(spark, faulty)
    assert not found.valid
    assert found.instances == {
        "Chicago-1": {"messages": 1000, "duplicates": 0, "out_of_order": 0, "late": 0},
        "Chicago-2": {"messages": 1010, "duplicates": 10, "out_of_order": 50, "late": 50},
        "Chicago-3": {"messages": 919, "duplicates": 0, "out_of_order": 0, "late": 0},
    }
    assert found.conflicts == 1 and found.conflicts_found[0]["ranges"] == [[900, 900]]
    assert [each["ranges"] for each in found.duplicates] == [[[1, 10]]]
    assert [each["ranges"] for each in found.out_of_order] == [[[151, 200]]]
    assert [each["ranges"] for each in found.late] == [[[101, 150]]]
    assert [(each["reason"], each["messages"], each["ranges"]) for each in found.missing] == [
        ("lost", 20, [[601, 620]]),
        ("owed", 50, [[951, 1000]]),
        ("conflicting", 1, [[950, 950]]),
        ("unavailable", 10, [[301, 310]]),
    ]
    assert {each["instance"] for each in found.missing} == {"Chicago-3"}
    assert found.to_json()["lost"] == 20
    (owed,) = found.owed_notes(overdue=True)
    assert re.fullmatch(r"50 owed for up to [\d,]+ s at Chicago-3", owed)
    # The page says what the result says, and stands alone.
    write_audit_page(found, tmp_path / "audit.html", str(faulty), "raylay pipeline audit")
    page = (tmp_path / "audit.html").read_text()
    for text in (
        "20 lost, 10 held more than once, 50 out of order, 1 with different contents",
        owed,
        f"{DESK}|601| to 620",
        f"{DESK}|951| to 1000",
        f"{DESK}|151| to 200",
        f"{DESK}|900|",
        "lost: no upstream has it any more",
        "Flagged late on arrival",
        "raylay pipeline audit",
    ):
        assert text in page, text
    assert "<svg" in page and not re.search(r'(src|href)="(?!#)', page)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_audit_page(found, tmp_path / "nowhere" / "audit.html", "x")


@pytest.mark.slow
def test_what_is_on_its_way_is_not_lost(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES[:2])
    now_us = time.time_ns() // 1000
    published = runs_of((1, 80), (81, 20), (101, 20), (121, 20), forwarded=False)
    for run, seconds in zip(published, (7 * 86_400, 7 * 86_400, 5000, 0), strict=True):
        run.receive_time_us = now_us - seconds * 1_000_000
    write_log(directory / "Chicago-1", published)
    write_log(directory / "Chicago-2", runs_of((1, 90), (96, 5), forwarded=True))
    told: list[str] = []
    found = judged(spark, directory, settle_s=3600, max_owed_s=7200, progress=told.append)
    assert "looking up how long 45 messages have been missing" in told
    assert [(each["reason"], each["ranges"]) for each in found.missing] == [
        ("lost", [[91, 95]]),
        ("owed", [[101, 120]]),
        ("in_flight", [[121, 140]]),
    ]
    assert 5000 <= found.missing[1]["for_s"] < 5600
    assert found.faults() == ["5 lost"]


def test_what_an_instance_published_before_it_lost_its_data(spark: Any, tmp_path: Path) -> None:
    """Chicago-1 began anew and got it back from a peer; Chicago-3 lacks some of it."""
    directory = write_fabric(tmp_path, NAMES)
    back = runs_of((1, 100), forwarded=True)
    back[0].path = (ORIGIN, 0xB2)
    made_by(write_log(directory / "Chicago-1", back), 0xA2)
    made_by(write_log(directory / "Chicago-2", runs_of((1, 100), forwarded=True)), 0xB2)
    made_by(write_log(directory / "Chicago-3", runs_of((1, 40), (61, 20), forwarded=True)), 0xC2)
    found = judged(spark, directory)
    assert [(e["instance"], e["reason"], e["ranges"]) for e in found.missing] == [
        ("Chicago-3", "lost", [[41, 60]]),
        ("Chicago-3", "owed", [[81, 100]]),
    ]
    assert not found.unknown_origin


@pytest.mark.slow
def test_a_peer_remembers_an_incarnation(spark: Any, tmp_path: Path) -> None:
    """Of a fabric of which one journal alone is read."""
    directory = write_fabric(tmp_path, NAMES[:2])
    log = write_log(directory / "Chicago-2", runs_of((1, 40), (61, 20), forwarded=True))
    made_by(log, 0xB2)
    (place,) = places(path=str(log.directory))
    assert place.peers() == {}
    state = LmdbStateStore(log.directory / "state.lmdb")
    state.put({"peer/Chicago-1": msgpack.packb([ORIGIN, "Chicago-1", "127.0.0.1:1"])})
    state.close()
    assert place.peers() == {f"{ORIGIN:016x}": "Chicago-1"}
    assert place.incarnation() == f"{0xB2:016x}"
    found = audit_source(spark, str(directory), [place])
    assert found.valid and not found.unknown_origin and found.published == 60


CHAIN = """
fabric: chain
topics: [{name: .*, message_type: json}]
instances: {in: {group: inside}, hub: {group: hub}, out: {group: outside}}
links:
  - {from: in, to: [hub]}
  - {from: hub, to: [out], pass_through: hub, topics: [{name: orders}]}
"""


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "what the configuration does not bring is told")
def test_what_the_configuration_does_not_bring(spark: Any, tmp_path: Path) -> None:
    """PassThrough and topics that are not replicated: told, and no fault."""
    (tmp_path / "chain.yaml").write_text(CHAIN)
    settings = load_fabric([str(tmp_path / "chain.yaml")])
    ports = {
        each.name: InstancePorts(20_001 + 2 * number, 20_002 + 2 * number)
        for number, each in enumerate(settings.instances)
    }
    FabricRecord("chain", str(tmp_path), settings.to_json(), ports).save()
    orders, quotes = ((1, 30),), ((31, 20),)
    log = write_log(tmp_path / "in", runs_of(*orders, forwarded=False))
    made_by(log, ORIGIN)
    here = runs_of(*orders, forwarded=True)
    for run in runs_of(*quotes, forwarded=False, topic="quotes"):
        here = appended(here, run)
    write_log(tmp_path / "hub", here)
    write_log(tmp_path / "out", [at(message_run(0, 99, 1, 1, "orders"), 1, forwarded=False)])
    found = judged(spark, tmp_path)
    assert found.valid and not found.missing, found
    assert {
        (each["instance"], each["topic"], each["reason"], each["messages"])
        for each in found.not_expected
    } == {
        ("out", "orders", "pass_through", 30),
        ("out", "quotes", "topic", 20),
        ("in", "quotes", "not_connected", 20),
        ("in", "orders", "not_connected", 1),
        ("hub", "orders", "not_connected", 1),
    }


# -- bad input -----------------------------------------------------------------------------------
def damage(directory: Path) -> None:
    """Turns a bit in the middle of a record of the oldest segment.

    In every copy: LMDB leaves older ones on pages that it has freed, and which of them comes
    first in the file is not ours to say.
    """
    path = min((directory / "journal").glob("journal-*.*"))
    data = bytearray(path.read_bytes())
    record = message_run(1, DESK, 5, 1, "orders").payload
    assert decode_record(record).sequence == 5
    where = data.index(record)
    while where >= 0:
        data[where + len(record) - 4] ^= 1
        where = data.find(record, where + 1)
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "a damaged record stops it")
def test_a_damaged_record_stops_or_is_told(spark: Any, tmp_path: Path) -> None:
    directory = write_fabric(tmp_path, NAMES[:2])
    for number, name in enumerate(NAMES[:2]):
        runs = runs_of((1, 20), (21, 180), (201, 200), forwarded=bool(number))
        write_log(directory / name, runs)
    damage(directory / "Chicago-2")
    with pytest.raises(CorruptRecord, match=r"Chicago-2.*block 1: run at byte 0 fails"):
        judged(spark, directory)
    found = judged(spark, directory, on_corrupt="skip")
    (told,) = found.damaged
    assert "Chicago-2" in told and "fails its checksum" in told
    assert [(each["reason"], each["ranges"]) for each in found.missing] == [("lost", [[1, 20]])]
    assert not found.valid


def test_bad_input(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="is not a journal"):
        places(path=str(tmp_path / "empty"))
    log = write_log(tmp_path / "newer", runs_of((1, 2), forwarded=False))
    (live,) = log.journal.glob("*.live")
    with lmdb.open(str(live), subdir=False, max_dbs=0) as env, env.begin(write=True) as written:
        header = with_checksum(struct.pack("<HHIQ", 9, 0, 0, 1))
        assert written.put(META_PREFIX + HEADER_KEY, header)
    with pytest.raises(StorageError, match="has version 9, this software reads 1"):
        audit(spark, places(path=str(tmp_path / "newer")), expected_everywhere())
    for region in ("a", "b"):
        write_log(tmp_path / region / "same", runs_of((1, 2), forwarded=False))
    found = places(path=f"{tmp_path}/a/same,{tmp_path}/b/same")
    with pytest.raises(ConfigurationError, match="lie in directories of the same name"):
        audit(spark, found, expected_everywhere())


@pytest.mark.slow
def test_the_command(
    spark: Any, faulty: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the page, one JSON object; a fabric that is down is read by its directory."""
    from raylay.services.pipeline import commands

    monkeypatch.setattr(commands, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    report = tmp_path / "audit.html"
    arguments = ["audit", str(faulty), "--report", str(report), "--settle", "5"]
    with pytest.raises(SystemExit) as ended:
        commands.pipeline_app(arguments, prog_name="pipeline")
    assert ended.value.code == 1
    told = capfd.readouterr()
    result = json.loads(told.out.splitlines()[-1])["audit"]
    assert (result["valid"], result["lost"], result["duplicates"]) == (False, 20, 10)
    assert result["owed"]["Chicago-3"]["messages"] == 50
    assert f"report: {report}" in told.err and report.stat().st_size > 10_000


@pytest.mark.covers("SOW", "the audit compares SOW topics by stores and journals")
@pytest.mark.slow
def test_sow_topics_are_compared(spark: Any, tmp_path: Path) -> None:
    topic = {"name": "orders", "message_type": "json", "keys": ["/number"]}
    directory = write_fabric(tmp_path, NAMES, sow_topics=[topic])
    write_log(directory / "Chicago-1", runs_of((1, 500), (501, 500), forwarded=False))
    write_log(directory / "Chicago-2", runs_of((1, 500), (501, 490), forwarded=True))
    log = write_log(directory / "Chicago-3", runs_of((1, 500), (501, 500), forwarded=True))
    assert any(e.done for e in SegmentMaintenance(log.journal).remove(501, force=True))
    found = judged(spark, directory)
    (orders,) = found.sow
    assert (orders["topic"], orders["message_type"]) == ("orders", "json")
    assert orders["records"] == {"Chicago-1": 1000, "Chicago-2": 990}
    assert (orders["differing"], len(orders["keys"])) == (10, 10)
    assert {each["held"]["Chicago-2"] for each in orders["keys"]} == {None}
    assert re.fullmatch(
        f"{DESK}\\|[0-9]+, body [0-9a-f]{{32}}", orders["keys"][0]["held"]["Chicago-1"]
    )
    assert list(orders["not_compared"]) == ["Chicago-3"]
    assert "begins with transaction id 501" in orders["not_compared"]["Chicago-3"]
    write_audit_page(found, tmp_path / "page.html", str(directory))
    page = (tmp_path / "page.html").read_text()
    assert "SOW topic orders (json)" in page and "Chicago-3 was not compared" in page
