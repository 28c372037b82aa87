"""Latency: percentiles that are known beforehand, clocks that differ, bounds."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from support.pipeline_cases import START_US, change_block, made_by, message_run, write_log

from raylay.services import cli
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.pipeline.journals import places, settings_of
from raylay.services.pipeline.latency.job import (
    Latency,
    LatencyRow,
    LatencySelection,
    clocks,
    latency,
    link_types_of,
    traces_of,
)
from raylay.services.pipeline.latency.page import page_of

INCARNATIONS = {"Chicago-1": 0xA1, "Chicago-2": 0xB2, "London-1": 0xC3}
DESK = 7
MESSAGES = 60
SECOND_US = 1_000_000
TO_LONDON_US = 20_000
SPAN_MS = 3


def lag_us(number: int) -> int:
    """From Chicago-1 to Chicago-2."""
    return (number * 37 % MESSAGES + 1) * 1000


def write_case(directory: Path) -> Path:
    """A message a second, published at Chicago-1, forwarded by Chicago-2 to London-1, whose clock
    is behind; London-1 holds one more, of an instance that nobody knows."""
    builder = FabricBuilder("three")
    builder.region("Chicago", ["Chicago-1", "Chicago-2"])
    builder.region("London", ["London-1"])
    builder.connect_regions("async")
    settings = builder.settings()
    ports = {name: InstancePorts(20_001 + at, 20_101 + at) for at, name in enumerate(INCARNATIONS)}
    values = json.dumps(json.loads(settings.to_json()) | {"tracing": {"directory": "traces"}})
    FabricRecord(settings.name, str(directory), values, ports).save()
    a1, b2, _ = INCARNATIONS.values()
    for name, path in (("Chicago-1", ()), ("Chicago-2", (a1,)), ("London-1", (a1, b2))):
        runs = []
        for number in range(MESSAGES):
            # Its sequence is its origin time.
            run = message_run(number + 1, DESK, number * SECOND_US + 1, 1, "orders")
            run.path = path
            run.receive_time_us = START_US + number * SECOND_US + 500
            if name == "Chicago-2":
                run.receive_time_us += lag_us(number)
            elif name == "London-1":
                run.receive_time_us += TO_LONDON_US
            runs.append(run)
        if name == "London-1":
            runs.append(message_run(MESSAGES + 1, 8, 1, 1, "quotes"))
            runs[-1].path = (0xDEAD,)
        made_by(write_log(directory / name, runs), INCARNATIONS[name])
    lines = []
    for number in range(10):
        start_ns = (START_US + number * SECOND_US) * 1000
        span: dict[str, Any] = {
            "trace_id": f"{number:032x}",
            "span_id": f"{number:016x}",
            "parent_id": None,
            "process": "x",
            "start_ns": start_ns,
        }
        about = {"bookmark": f"{DESK}|{number}|", "topic": "orders"}
        for span_name, ms, attributes in (
            ("publish", SPAN_MS + number, {"outcome": "persisted"}),
            ("commit", 1, {"instance": "Chicago-1"}),
            ("link send", 2, {"instance": "Chicago-1", "destination": "Chicago-2"}),
        ):
            end_ns = start_ns + ms * 1_000_000
            line = span | {"name": span_name, "end_ns": end_ns, "attributes": about | attributes}
            lines.append(json.dumps(line))
    (directory / "traces").mkdir()
    (directory / "traces" / "x-1.jsonl").write_text("\n".join([*lines, '{"trace_id": "torn']))
    return directory


def percentiles(values_us: list[int]) -> tuple[float, float, float]:
    found = np.percentile(np.array(values_us) / 1000, (50, 95, 99))
    return tuple(round(each, 6) for each in found.tolist())  # type: ignore[return-value]


def shown(row: LatencyRow) -> tuple[float, float, float]:
    return round(row.p50_ms, 6), round(row.p95_ms, 6), round(row.p99_ms, 6)


@pytest.mark.covers("Data pipeline", "percentiles by link")
@pytest.mark.slow
def test_what_is_measured(spark: Any, tmp_path: Path) -> None:
    directory = write_case(tmp_path)
    settings = settings_of(str(directory))
    assert settings is not None
    found = latency(
        spark,
        places(path=str(directory)),
        LatencySelection(window_ms=20_000),
        traces=traces_of(str(directory)),
        link_types=link_types_of(settings),
        max_p99_ms=59.0,
        max_ack_p99_ms=100.0,
    )
    lags = [lag_us(number) for number in range(MESSAGES)]
    inside, across = found.rows["links"]
    assert (inside.name, inside.kind) == ("Chicago-1 -> Chicago-2", "sync")
    assert shown(inside) == percentiles(lags) and inside.messages == MESSAGES
    assert (inside.min_ms, inside.max_ms, inside.negative) == (1.0, 60.0, 0)
    for window, at in zip(inside.windows, range(0, MESSAGES, 20), strict=True):
        assert window[0] == START_US / 1e6 + at and window[1] == 20
        assert [round(each, 6) for each in window[2:5]] == list(percentiles(lags[at : at + 20]))
        assert window[5] == max(lags[at : at + 20]) / 1000
    # London's clock is behind: what comes out negative is told.
    onward = [TO_LONDON_US - each for each in lags]
    assert (across.name, across.kind) == ("Chicago-2 -> London-1", "async")
    assert shown(across) == percentiles(onward)
    assert across.negative == sum(each < 0 for each in onward) > 30
    assert across.min_ms == -40.0
    regions = {row.name: shown(row) for row in found.rows["regions"]}
    assert regions == {
        "Chicago -> Chicago": percentiles(lags),
        "Chicago -> London": (20.0, 20.0, 20.0),
    }
    (publisher,) = found.rows["publishers"]
    assert publisher.source == str(DESK) and publisher.messages == 2 * MESSAGES
    (publish,) = found.rows["publish"]
    assert (publish.source, publish.messages) == ("Chicago-1", MESSAGES)
    assert publish.max_ms == publish.min_ms == 0.499
    assert found.unknown == {"London-1": 1}
    (acks,) = found.rows["acks"]
    waits = [(SPAN_MS + number) * 1000 for number in range(10)]
    assert acks.source == "Chicago" and shown(acks) == percentiles(waits)
    (stored,) = found.rows["stored"]
    assert (stored.name, stored.p99_ms) == ("Chicago-1 -> Chicago-2", 2.0)
    assert found.traced and found.torn == 1
    assert found.exceeded == ["Chicago-1 -> Chicago-2: p99 59.410 ms, the bound is 59 ms"]
    assert not found.valid and found.to_json()["links"][1]["negative"] == across.negative

    page = page_of(found, "three", "made by a test").html()
    for text in ("Above the bound.", "Chicago-2 -&gt; London-1", "<svg", "clocks differ"):
        assert text in page, text
    # Part of it; without traces the verdict is only of the links.
    first = dt.datetime.fromtimestamp(START_US / 1e6 + 10, dt.UTC)
    part = latency(
        spark,
        places(path=str(directory)),
        LatencySelection(first, first + dt.timedelta(seconds=5), ("^ord",)),
        max_p99_ms=60.0,
    )
    assert part.valid and not part.traced and not part.rows["acks"] and not part.unknown
    assert part.rows["links"][0].messages == 5
    assert shown(part.rows["links"][0]) == percentiles(lags[10:15])
    with pytest.raises(ConfigurationError, match="no message is selected: check --topic"):
        latency(spark, places(path=str(directory)), LatencySelection(topics=("nothing",)))


@pytest.mark.slow
def test_a_damaged_record_stops_or_is_left_out(spark: Any, tmp_path: Path) -> None:
    found = places(path=str(write_case(tmp_path)))[:2]
    path = min((tmp_path / "Chicago-2" / "journal").glob("*.live"))

    def turn_a_bit(block: bytearray) -> None:
        block[-4] ^= 1

    change_block(path, 3, turn_a_bit)
    with pytest.raises(PySparkException, match="fails its checksum"):
        latency(spark, found)
    (row,) = latency(spark, found, on_corrupt="skip").rows["links"]
    assert row.messages == MESSAGES - 1


@pytest.mark.covers("Data pipeline", "percentiles by link")
def test_what_both_directions_say_of_clocks() -> None:
    def row(source: str, target: str, min_ms: float) -> LatencyRow:
        return LatencyRow(source, target, 1, 9.0, 9.0, 9.0, 9.0, min_ms, 0)

    (found,) = clocks([row("a", "b", 12.0), row("b", "a", -8.0), row("a", "c", 1.0)])
    # b's clock is 8 to 12 ms ahead: its messages seem to come before they were sent.
    assert (found.source, found.target, found.low_ms, found.high_ms) == ("a", "b", 8.0, 12.0)


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    spark: Any = None
    with pytest.raises(ConfigurationError, match="--window must be at least 1ms"):
        latency(spark, [], LatencySelection(window_ms=0))
    with pytest.raises(ConfigurationError, match="only trace files show acknowledgments"):
        latency(spark, [], LatencySelection(), max_ack_p99_ms=1.0)
    assert traces_of(str(tmp_path)) is None
    assert Latency(1000).valid


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--window", "long"], "--window"),
        (["--max-p99", "50"], "--max-p99"),
        (["--to", "never"], "--to is 'never': give a UTC time such as"),
        (["--report", "no/such/report.html"], "no/such is not a directory that can be written to"),
        ([], "nowhere is neither a file nor a directory"),
    ],
)
def test_commands_that_cannot_begin(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["raylay", "pipeline", "latency", "nowhere", *arguments])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 1
    out, err = capsys.readouterr()
    assert text in err and err.count("\n") == 1 and not out
