"""The job `aggregate`, the example on the flights, and the page that teaches the pipeline."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support.pipeline_cases import (
    START_US,
    Log,
    RunningInstance,
    flight,
    message_run,
    write_log,
)

from raylay.services.client import Client, SyncClient
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import ConfigurationError, ConnectionLost
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.messages.records import Flag, RecordBuilder, Run
from raylay.services.pipeline.aggregate import QUERY_FILE, Windows, aggregate, results
from raylay.services.pipeline.journals import places

ROOT = Path(__file__).parents[2]
NOWHERE = {"servers": "127.0.0.1:9", "connect_wait_s": "0.2"}
FLIGHTS = 1_500
SECTIONS = (
    "Reading", "Following", "Publishing", "Over the network", "SQL", "Dead letters", "Archiving",
    "Summing up, live",
)  # fmt: skip
"""Of the page, those whose Python is run."""


def windows(**changed: Any) -> Windows:
    given = {"topic": "^flights/", "schema": "carrier STRING, number INT", "by": ("carrier",)}
    return Windows(**(given | changed))


# -- what is summed up ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"topic": ""}, "give a topic and the schema"),
        ({"window_ms": 0}, "a window must be longer than 0"),
        ({"ahead_ms": -1}, "a window must be longer than 0"),
        ({"by": ("carrier", "carrier = upper(carrier)")}, "carrier is given twice"),
        ({"by": ("upper(carrier)",)}, r"has no name: give name=expression"),
        ({"by": ("messages",)}, "would have two fields named messages"),
        ({"values": ("number", "number_mean=1")}, None),
        ({"by": ("number_mean=1",), "values": ("number",)}, "two fields named number_mean"),
    ],
)
def test_windows_that_cannot_be(changed: dict[str, Any], text: str | None) -> None:
    if text is None:
        windows(**changed)
        return
    with pytest.raises(ConfigurationError, match=text):
        windows(**changed)


@pytest.mark.parametrize(
    ("given", "named", "columns"),
    [
        ({}, {"carrier": "carrier"}, "origin_time,receive_time"),
        (
            {"by": ("topic", "late"), "ahead_ms": 0},
            {"topic": "topic", "late": "late"},
            "topic,origin_time,receive_time,late",
        ),
        (
            {"by": ("part=split(topic, '/')[1]",), "time": "to_timestamp(at)"},
            {"part": "split(topic, '/')[1]"},
            "topic",
        ),
        (
            {"by": ("what = CASE WHEN number == 1 THEN 'body' END",), "time": "receive_time"},
            {"what": "CASE WHEN number == 1 THEN 'body' END"},
            "receive_time",
        ),
        ({"time": "now()"}, {"carrier": "carrier"}, "txid"),
    ],
)
def test_names_and_columns(given: dict[str, Any], named: dict[str, str], columns: str) -> None:
    made = windows(**given)
    assert made.named(made.by) == named
    assert made.columns() == columns


# -- what cannot begin ---------------------------------------------------------------------------
@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """200 flights, a second apart by their receive time for each twenty."""
    runs = [
        message_run(first, 7, first, 20, time_us=1_767_225_600_000_000 + first * 50_000)
        for first in range(1, 201, 20)
    ]
    return write_log(tmp_path_factory.mktemp("log") / "Chicago-1", runs)


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
def test_a_job_that_cannot_begin(log: Log, choosy: Any, tmp_path: Path) -> None:
    (place,) = places(path=str(log.directory))
    spark: Any = None
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(ConfigurationError, match="flights/delays matches"):
        aggregate(spark, place, windows(), "flights/delays", NOWHERE, checkpoint)
    with pytest.raises(ConnectionLost, match="found no server"):
        aggregate(spark, place, windows(), "delays", NOWHERE, checkpoint)
    with pytest.raises(ConfigurationError, match=r"Chicago-2 does not journal delays \(json\)"):
        aggregate(spark, place, windows(), "delays", {"servers": choosy.address}, checkpoint)
    assert not checkpoint.exists()


# -- with Spark ----------------------------------------------------------------------------------
@pytest.mark.slow
def test_each_result_has_a_key_of_its_own(spark: Any) -> None:
    groups = ("('a', NULL)", "(NULL, 'a')", "('a|b', 'c')", "('a', 'b|c')", r"('\\N', 'a')")
    rows = spark.sql(
        "SELECT timestamp'2026-01-01 00:00:00' + make_dt_interval(0, 0, 0, half / 2) AS at,"
        " named_struct('x', x, 'y', y) AS value"
        f" FROM VALUES {', '.join(groups)} AS t(x, y) CROSS JOIN VALUES (0), (1) AS u(half)"
    )
    made = windows(schema="x STRING, y STRING", by=("x", "y"), time="at", window_ms=500)
    keys = {row["key"] for row in results(rows, made).collect()}
    assert keys == {
        f"20260101T000000.{half}00|{group}"
        for half in (0, 5)
        for group in (r"a|\N", r"\N|a", r"a\|b|c", r"a|b\|c", r"\\N|a")
    }


@pytest.mark.covers("Data pipeline", "windows of a topic")
@pytest.mark.slow
def test_each_window_once(spark: Any, instance: Any, log: Log, tmp_path: Path) -> None:
    (place,) = places(path=str(log.directory))
    summed = windows(
        values=("number",), time="receive_time", window_ms=2_000, watermark_ms=0
    )  # fmt: skip
    publish = {"servers": instance.address}
    lines: list[str] = []

    def run(into: str = "summed", what: Windows = summed) -> Any:
        return aggregate(
            spark, place, what, into, publish, tmp_path, until_caught_up=True, progress=lines.append
        )

    first = run()
    assert (first.records, first.dropped_late, first.ended) == (200, 0, "caught up")
    assert first.watermark and not first.watermark.startswith("1970") and first.batches >= 2, (
        "the last one brings no messages and closes windows"
    )
    assert any(line.startswith("batch 0: 200 messages") for line in lines)
    # The same journal, named from here.
    place = replace(place, journal=os.path.relpath(place.journal))
    again = run()
    assert (again.records, again.published) == (0, 0)
    expected: Counter[tuple[int, str]] = Counter()
    for number in range(1, 201):
        second = ((number - 1) // 20 * 20 + 1) * 50_000 // 2_000_000
        expected[second, "UA" if number % 3 else "DL"] += 1
    last = max(window for window, _ in expected)
    with SyncClient("summed-reader", servers=[instance.address]) as client:
        found = []
        for message in client.subscribe("summed", bookmark="0"):
            found.append((bytes(message.key), json.loads(message.body)))
            if len(found) == first.published:
                break
    closed = {key: count for key, count in expected.items() if key[0] < last}
    assert first.published == len(closed) == len({key for key, _ in found})
    assert sorted(each["messages"] for _, each in found) == sorted(closed.values())
    key, result = found[0]
    assert key.decode().endswith(f"|{result['carrier']}")
    assert result.keys() == {
        "window_start", "window_end", "carrier", "messages",
        "number_mean", "number_min", "number_max",
    }  # fmt: skip
    assert result["number_min"] <= result["number_mean"] <= result["number_max"]
    # The checkpoint is this query's.
    with pytest.raises(ConfigurationError, match="is the checkpoint of another query: its into is"):
        run(into="other")
    with pytest.raises(ConfigurationError, match="carier"):
        aggregate(spark, place, windows(by=("carier",)), "x", publish, tmp_path / "new")
    # What never began claims nothing: the mistyped name may be corrected.
    assert not (tmp_path / "new" / QUERY_FILE).exists()


@pytest.mark.slow
def test_a_damaged_record_stops_or_is_left_out(spark: Any, choosy: Any, tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 201, 20)]
    log = write_log(tmp_path / "hurt", runs)
    path = min(log.journal.glob("journal-*.sealed"))
    path.write_bytes(path.read_bytes().replace(b'"number": 25,', b'"number": 29,'))
    (place,) = places(path=str(log.directory))

    def run(on_corrupt: str) -> Any:
        return aggregate(
            spark, place, windows(), "kept/hurt", {"servers": choosy.address},
            tmp_path / "checkpoint", until_caught_up=True, on_corrupt=on_corrupt,
        )  # fmt: skip

    with pytest.raises(ConfigurationError, match="fails its checksum"):
        run("stop")
    assert 0 < run("skip").records < 200


def timed_run(first: int, bodies: list[bytes], origin_us: list[int], received_us: int) -> Run:
    """A run of flights that were published at these times."""
    builder = RecordBuilder(7, "flights/EWR", "json")
    parts = [
        builder.build(number, body, time_us)
        for number, (body, time_us) in enumerate(zip(bodies, origin_us, strict=True), first)
    ]
    last = first + len(parts) - 1
    return Run(
        7, first, last, len(parts), b"".join(parts), b"flights/EWR", b"json", path=(0xA1,),
        group="Chicago", flags=Flag.CONTIGUOUS, first_txid=first, receive_time_us=received_us,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("Data pipeline", "windows of a topic")
def test_messages_that_come_late_are_counted_one_by_one(
    spark: Any, choosy: Any, tmp_path: Path
) -> None:
    """Also those whose clock is ahead, which silence nobody; and bodies that do not fit."""
    body = flight(1)
    minute = 60_000_000
    runs = [
        timed_run(1, [body] * 20, [START_US + 5 * minute] * 20, START_US + 5 * minute),
        # Of a clock that is years ahead: without a bound nothing later would count.
        timed_run(21, [body] * 3, [START_US + 10**15] * 3, START_US + 6 * minute),
        timed_run(24, [body, b"null"] * 5, [START_US + 7 * minute] * 10, START_US + 7 * minute),
        # Twelve that come five minutes late, of one window and group, and one more.
        timed_run(34, [body] * 12, [START_US + minute] * 12, START_US + 8 * minute),
        timed_run(46, [body], [START_US + 2 * minute], START_US + 8 * minute),
        timed_run(47, [body], [START_US + 8 * minute], START_US + 8 * minute),
    ]
    (place,) = places(path=str(write_log(tmp_path / "one", runs).directory))
    lines: list[str] = []
    options = {"until_caught_up": True, "progress": lines.append, "records_per_batch": 10}
    what = windows(window_ms=60_000, watermark_ms=60_000)
    publish = {"servers": choosy.address, "dead_letters": str(tmp_path / "dead")}

    def run(mode: str, checkpoint: str) -> Any:
        return aggregate(
            spark, place, what, "kept/late", publish, tmp_path / checkpoint, mode=mode, **options
        )

    with pytest.raises(ConfigurationError, match=r"message 7\|25\| does not match the schema"):
        run("failfast", "one of it's own, 50% ü")
    # The same checkpoint goes on, once it is told what to do.
    summary = run("dropmalformed", "one of it's own, 50% ü")
    assert summary.records == 27 - 5
    assert sum("far ahead of their receipt" in line for line in lines) == 1
    whole = run("dead_letter", "second")
    assert (whole.records, whole.dropped_late, whole.ahead) == (47 - 5, 13, 3)
    letters = pq.read_table(tmp_path / "dead").to_pylist()
    assert [each["position"] for each in letters] == [25, 27, 29, 31, 33]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """examples/flight_delays.py."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("flight_delays")


@pytest.fixture
def keeping(example: Any, tmp_path: Path) -> Iterator[RunningInstance]:
    """A running instance with the example's SOW topic."""
    settings = example.declare().settings()
    sow = settings.sow_of(settings.instances[0])
    made = RunningInstance(tmp_path / "NewYork-1", sow=sow)
    yield made
    made.stop()


@pytest.mark.covers("Data pipeline", "windows of a topic")
@pytest.mark.slow
def test_the_example(spark: Any, keeping: Any, example: Any, tmp_path: Path) -> None:
    bodies = example.january(FLIGHTS)
    (place,) = places(path=str(keeping.directory))
    shown = Console(file=io.StringIO(), width=100)

    async def run() -> Any:
        servers = [keeping.address]
        async with (
            Client("delays-feeder", servers=servers) as feeder,
            Client("delays-board", servers=servers) as board,
        ):
            return await example.run(
                spark,
                place,
                {"servers": keeping.address},
                (feeder, board),
                bodies,
                tmp_path / "checkpoint",
                shown,
                2.0,
            )

    found = asyncio.run(run())
    assert found["flights"] == FLIGHTS and found["windows"] == len(example.plainly(bodies))
    assert example.is_right(found), found
    # Whoever comes later asks for one carrier: a row of each day, with the last result of it.
    plainly = example.plainly(bodies)
    with SyncClient("delays-later", servers=[keeping.address]) as client:
        rows = client.sow("delays", filter="/carrier = 'UA'", order_by="/window_start").all()
    expected = {key: each for key, each in plainly.items() if key[1] == "UA"}
    results = example.results_of(rows)
    assert len(rows) == len(expected) and list(results) == sorted(expected)
    assert {key: each["messages"] for key, each in results.items()} == {
        key: count for key, (count, _) in expected.items()
    }
    # The worst days are shown: those of ten flights or more, the longest delay first.
    many = {key: mean for key, (count, mean) in plainly.items() if count >= 10}
    day, carrier = max(many, key=lambda key: many[key] or 0.0)
    table = shown.file.getvalue().partition("The worst days")[2]
    assert re.search(rf"│ {day} +│ {carrier} ", table.partition("├")[2] or table), table
    # It finds what is wrong.
    there = {("2013-01-01", "UA"): {"messages": 1, "dep_delay_mean": 1.0}}
    assert example.differences(there, bodies[:1]) == 1
    assert not example.is_right(found | {"wrong": 1})
    assert not example.is_right(found | {"asked": found["windows"] + 1})


# -- the page ------------------------------------------------------------------------------------
def blocks(page: str) -> list[tuple[str, str]]:
    """The Python of the page's sections, each as (heading, block)."""
    found = []
    for section in re.split(r"(?m)^## ", page)[1:]:
        heading = section.partition("\n")[0]
        if heading in SECTIONS:
            found += [(heading, part) for part in re.findall(r"```python\n(.*?)```", section, re.S)]
    return found


@pytest.mark.covers("Data pipeline", "windows of a topic")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_can_be_pasted(
    spark: Any,
    instance: Any,
    example: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a fabric of one instance, which runs already."""
    directory = tmp_path / "data" / "flights"
    directory.mkdir(parents=True)
    (directory / "Chicago-1").symlink_to(instance.directory)
    settings = FabricBuilder("page").region("Chicago", ["Chicago-1"]).settings()
    port = int(instance.address.rpartition(":")[2])
    FabricRecord(
        "page", str(directory), settings.to_json(), {"Chicago-1": InstancePorts(port, 1)}
    ).save()
    with SyncClient("page-airport", servers=[instance.address]) as client:
        for number, body in enumerate(example.january(FLIGHTS)):
            if number == FLIGHTS // 2:
                client.flush()
                # The page's windows are of a second in which flights were published: the next ones
                # are of another, so that the first is closed.
                time.sleep(2.0)
            client.publish(f"flights/{json.loads(body)['origin']}", body)
        client.flush()
    names: dict[str, Any] = {}
    page = blocks((ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"))
    assert {heading for heading, _ in page} == set(SECTIONS)
    for heading, block in page:
        if "Fabric.of" in block:
            continue  # it runs already
        # The workers are where Spark was started.
        placed = re.sub(r"""(["'])data/""", rf"\1{tmp_path}/data/", block)
        exec(compile(placed, heading, "exec"), names)
    out = capsys.readouterr().out
    assert "2013" in out or "carrier" in out
    assert names["summary"].records >= FLIGHTS and names["summary"].published > 0
