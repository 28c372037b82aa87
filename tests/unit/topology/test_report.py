"""The rows and the data of a check."""

from __future__ import annotations

import json

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.check import check
from raylay.services.topology.members import ALL, TopologyMember
from raylay.services.topology.report import as_data, route_rows, summary

ONE_WAY = [
    TopologyMember("a", "A", (DestinationRoute("b", "B", True, ALL, None, ("b",)),)),
    TopologyMember("b", "B"),
]


def test_a_row_of_each_publisher() -> None:
    (survey,) = check(ONE_WAY).surveys
    assert summary(survey, 0) == {
        "publisher": "a",
        "wanted": 1,
        "certain": 1,
        "possible": 1,
        "missing": [],
        "hops": 1,
        "copies": 1,
    }
    assert summary(survey, 1)["missing"] == ["a"]
    assert route_rows(survey, 0) == [
        {
            "publisher": "a",
            "instance": "b",
            "certain": True,
            "route": ["a", "b"],
            "senders": [{"instance": "a", "always": True}],
        }
    ]
    assert route_rows(survey, 1) == []


def test_the_data_is_json() -> None:
    data = as_data(check(ONE_WAY), "f", routes=False)
    assert json.loads(json.dumps(data)) == data
    assert data["errors"] == 1
    assert data["findings"][0]["kind"] == "unreachable"
    assert "routes" not in data
