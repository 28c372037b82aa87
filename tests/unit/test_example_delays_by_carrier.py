"""examples/delays_by_carrier.py: the view of the demo, and how its copies are compared."""

from __future__ import annotations

import io
import itertools

import delays_by_carrier
import orjson
import pytest
from delays_by_carrier import VIEW, computed, differences, worst
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.json import Json
from raylay.services.views.group_fold import GroupFold, SourceChange
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import one_source

pytestmark = pytest.mark.covers("Views", "the demo's view: its copies")

FLIGHTS = st.builds(
    lambda tail, carrier, origin, dest, delay: {
        "tailnum": tail, "carrier": carrier, "origin": origin, "dest": dest, "dep_delay": delay,
    },
    st.sampled_from(["N1", "N2", "N3", "N4"]),
    st.sampled_from(["AA", "UA"]),
    st.sampled_from(["EWR", "JFK"]),
    st.sampled_from(["BOS", "LAX", "SFO"]),
    st.one_of(st.none(), st.integers(-20, 300)),
)  # fmt: skip


@given(st.lists(FLIGHTS, max_size=30))
def test_the_plain_computation_is_the_view_with_its_types(flights: list[dict[str, object]]) -> None:
    projection = ViewProjection(
        tuple(VIEW["projection"]), Json(), BUILT_IN, one_source("json", VIEW["topic"])
    )
    view = GroupFold(projection, (("carrier",), ("origin",)), delays_by_carrier.TOPIC)
    last: dict[str, dict[str, object]] = {}
    for txid, flight in zip(itertools.count(1), flights):
        tail = str(flight["tailnum"])
        last[tail] = flight
        view.change(SourceChange(tail.encode(), flight, txid))
    found = [orjson.dumps(view.groups.fields_of(group)) for group in view.groups.by_key.values()]
    expected = computed(map(orjson.dumps, last.values()))
    assert differences(found, expected) == 0


def test_a_value_of_another_type_and_a_record_that_is_missing_are_differences() -> None:
    one = [{"carrier": "AA", "sum": 5}, {"carrier": "UA", "sum": 7}]
    assert differences(map(orjson.dumps, one), one) == 0
    assert differences([orjson.dumps(one[0])], one) == 1
    assert differences([orjson.dumps({"carrier": "AA", "sum": 5.0})], one[:1]) == 2


def test_the_table_begins_with_the_longest_average() -> None:
    records = [
        {"carrier": name, "airport": "JFK", "aircraft": 1, "destinations": 1, "average": average,
         "worst": 9}
        for name, average in (("AA", 1.0), ("B6", None), ("UA", 7.0))
    ]  # fmt: skip
    console = Console(width=90, record=True, file=io.StringIO())
    console.print(worst((1, 1, orjson.dumps(record)) for record in records))
    lines = [line for line in console.export_text().splitlines() if "JFK" in line]
    assert [line.split()[1] for line in lines] == ["UA", "AA"]
