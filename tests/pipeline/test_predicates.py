"""Every condition that Spark pushes down leaves the same matching rows as a read without it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import from_arrow_schema
from support.pipeline_cases import PUBLISHERS, START_US, TRACE, message_run, mixed_runs, write_log

from raylay.services.messages.records import Command, Flag, RecordBuilder, Run
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.services.pipeline.tables.source import BatchReader, ReadOptions

pytestmark = pytest.mark.covers("Data pipeline", "every pushed condition")

Rows = list[dict[str, Any]]
NAMES = [name for name in COLUMNS if name != "path"]


def own_topics_run(first_txid: int) -> Run:
    """A run whose records have topics and types of their own, and one of them a trace."""
    parts = [
        RecordBuilder(PUBLISHERS[0], topic, kind).build(
            5_000 + number, b"{}", START_US + number, command=command, trace=trace
        )
        for number, (topic, kind, command, trace) in enumerate(
            [
                ("flights/EWR", "json", Command.PUBLISH, b""),
                ("orders", "fix", Command.DELTA_PUBLISH, TRACE),
                ("a/b", "json", Command.DELETE, b""),
            ]
        )
    ]
    return Run(
        PUBLISHERS[0],
        5_000,
        5_002,
        3,
        b"".join(parts),
        path=(0xA1,),
        flags=Flag.TRACED | Flag.LATE | Flag.CONTIGUOUS,
        first_txid=first_txid,
        receive_time_us=START_US + 7,
    )


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = mixed_runs(40)
    txid = runs[-1].last_txid + 1
    runs += [own_topics_run(txid), message_run(txid + 3, 1 << 63, 1, 9, special=True)]
    return write_log(tmp_path_factory.mktemp("predicates") / "Chicago-1", runs).directory


def read(directory: Path, filters: list[ds.Filter]) -> Rows:
    schema = pa.schema([pa.field(name, COLUMNS[name]) for name in NAMES])
    reader = BatchReader(
        ReadOptions.of({"path": str(directory), "pushdown": "true"}), from_arrow_schema(schema)
    )
    assert list(reader.pushFilters(filters)) == filters
    batches = [
        each for part in reader.partitions() if part.value is not None for each in reader.read(part)
    ]
    return pa.Table.from_batches(batches, schema).to_pylist()


@pytest.fixture(scope="module")
def everything(journal: Path) -> Rows:
    return read(journal, [])


TESTS: dict[type, Callable[[Any, Any], bool]] = {
    ds.EqualTo: lambda value, wanted: value == wanted,
    ds.EqualNullSafe: lambda value, wanted: value == wanted,
    ds.GreaterThan: lambda value, wanted: value > wanted,
    ds.GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    ds.LessThan: lambda value, wanted: value < wanted,
    ds.LessThanOrEqual: lambda value, wanted: value <= wanted,
    ds.In: lambda value, wanted: value in wanted,
    ds.StringStartsWith: lambda value, wanted: value.startswith(wanted),
    ds.StringEndsWith: lambda value, wanted: value.endswith(wanted),
    ds.StringContains: lambda value, wanted: wanted in value,
}


def matches(row: dict[str, Any], condition: ds.Filter) -> bool:
    """Judges a row as Spark does: only IS NULL and <=> are true of a null, NOT of neither."""
    if isinstance(condition, ds.Not):
        inner: Any = condition.child
        value = row[inner.attribute[0]]
        if value is None and not isinstance(inner, ds.EqualNullSafe):
            return False
        return not matches(row, inner)
    of: Any = condition
    value = row[of.attribute[0]]
    if isinstance(condition, ds.IsNull):
        return value is None
    if isinstance(condition, ds.IsNotNull):
        return value is not None
    return value is not None and TESTS[type(condition)](value, of.value)


def near(value: Any) -> list[Any]:
    """A value of a column, and others beside it."""
    if isinstance(value, bool):
        return [value, not value]
    if isinstance(value, int | Decimal):
        return [value, value + 1, value - 1]
    if isinstance(value, dt.datetime):
        return [value, value + dt.timedelta(microseconds=1), value - dt.timedelta(seconds=1)]
    return [value, value[:4], value[2:], value * 2]


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.data())
def test_a_pushed_condition_leaves_every_matching_row(
    journal: Path, everything: Rows, data: st.DataObject
) -> None:
    filters: list[ds.Filter] = []
    for _ in range(data.draw(st.integers(1, 3), "conditions")):
        name = data.draw(st.sampled_from(NAMES), "column")
        held = sorted({row[name] for row in everything if row[name] is not None})
        kinds = [ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual]
        kinds += [ds.LessThan, ds.LessThanOrEqual, ds.In, ds.IsNull, ds.IsNotNull]
        if isinstance(held[0], str):
            kinds += [ds.StringStartsWith, ds.StringEndsWith, ds.StringContains]
        kind: Any = data.draw(st.sampled_from(kinds), "operator")
        values = st.sampled_from(held).flatmap(lambda value: st.sampled_from(near(value)))
        if kind in (ds.IsNull, ds.IsNotNull):
            made = kind((name,))
        elif kind is ds.In:
            made = kind((name,), tuple(data.draw(st.lists(values, min_size=1, max_size=3))))
        else:
            made = kind((name,), data.draw(values, "value"))
        filters.append(ds.Not(made) if data.draw(st.booleans(), "not") else made)
    wanted = [row for row in everything if all(matches(row, each) for each in filters)]
    found = [row for row in read(journal, filters) if all(matches(row, each) for each in filters)]
    assert found == wanted


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", ["traced", "late", "awaited", "crossed"])
def test_flags_of_runs_and_of_records(
    journal: Path, everything: Rows, name: str, value: bool
) -> None:
    wanted = [row for row in everything if row[name] is value]
    assert wanted
    for condition in (ds.EqualTo((name,), value), ds.Not(ds.EqualTo((name,), not value))):
        found = [row for row in read(journal, [condition]) if row[name] is value]
        assert found == wanted
