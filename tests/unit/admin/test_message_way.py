"""services/admin/message_way.py: spans of several hosts become the lanes and arrows of one way."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin.message_way import (
    InstanceTrace,
    StoredMessage,
    WaySpan,
    as_json,
    message_way,
    told_as_json,
    told_of,
)

MS = 1_000.0


def span(
    id: str, parent: str, name: str, process: str, begin: float, end: float, **more: Any
) -> WaySpan:
    """Returns a span; times are in milliseconds."""
    return WaySpan(id, parent, name, process, begin * MS, end * MS, more)


PUBLISH = span("1", "", "publish", "pub", 0, 8, client="pub", outcome="persisted")
COMMIT = span("2", "1", "commit", "A", 1, 2, instance="A")
SEND = span("3", "2", "link send", "A.B", 2, 5, instance="A", destination="B")
REMOTE = span("4", "3", "remote commit", "B", 3, 4, instance="B", upstream="A")
BACK = span("5", "3", "persisted ack", "A", 4, 5, instance="B", upstream="A")
ACK = span("6", "1", "persisted ack", "A", 5, 7, instance="A")
DELIVERY = span("7", "4", "delivery", "ann", 4, 6, instance="B", client="ann")
WAY = (DELIVERY, ACK, BACK, REMOTE, SEND, COMMIT, PUBLISH)


@pytest.mark.covers("Administration", "the way of a message: lanes, arrows, clocks that dif")
def test_lanes_stand_in_the_order_of_the_graph_and_arrows_go_both_ways() -> None:
    way = message_way("7|1|", [InstanceTrace("A", WAY), InstanceTrace("B", WAY)])
    assert [each["process"] for each in way["lanes"]] == ["pub", "A", "A.B", "B", "ann"]
    assert [each["instance"] for each in way["lanes"]] == ["", "A", "A", "B", ""]
    assert [span["id"] for span in way["lanes"][1]["spans"]] == ["2", "5", "6"], "each once"
    arrows = [(each["from"], each["to"], each["back"]) for each in way["links"]]
    assert ("1", "2", False) in arrows
    assert ("3", "4", False) in arrows
    assert ("6", "1", True) in arrows, "an acknowledgment goes back"
    assert ("5", "3", True) in arrows
    assert way["persisted_ms"] == 8.0
    assert way["outcome"] == "persisted"
    assert way["longest"] == "3"
    assert way["skew"] == way["folds"] == way["without_spans"] == []
    assert (way["begin_us"], way["end_us"]) == (0.0, 8_000.0)


@pytest.mark.covers("Administration", "the way of a message: lanes, arrows, clocks that dif")
def test_a_clock_that_is_behind_is_told_and_nothing_is_moved() -> None:
    early = span("4", "3", "remote commit", "B", 0.7, 4, instance="B")
    earlier = span("8", "3", "remote commit", "B", 1.5, 4, instance="B")
    way = message_way("7|1|", [InstanceTrace("A", (PUBLISH, COMMIT, SEND, early, earlier))])
    assert way["skew"] == [{"lane": 3, "behind_ms": 1.3}]
    assert way["lanes"][3]["spans"][0]["begin_us"] == 700.0


def test_a_gap_of_more_than_half_is_folded() -> None:
    late = span("7", "2", "delivery", "ann", 9_000, 9_001, instance="A", client="ann")
    way = message_way("7|1|", [InstanceTrace("A", (COMMIT, PUBLISH, late))])
    assert way["folds"] == [{"begin_us": 8_000.0, "end_us": 9_000_000.0}]


def test_a_way_without_spans_still_says_where_the_message_is() -> None:
    way = message_way(
        "7|1|",
        [
            InstanceTrace("A", stored=StoredMessage("A", 12, 5), is_sampled=False),
            InstanceTrace("B", stored=StoredMessage("B", 0, 6), is_sampled=False),
            InstanceTrace("C"),
            InstanceTrace("D", error="no answer"),
        ],
    )
    assert way["stored"] == [
        {"instance": "A", "txid": 12, "time_us": 5},
        {"instance": "B", "txid": None, "time_us": 6},
    ]
    assert way["not_stored"] == ["C"]
    assert way["silent"] == [{"instance": "D", "why": "no answer"}]
    assert way["without_spans"] == ["A", "B", "C", "D"]
    assert way["is_sampled"] is False
    assert (way["persisted_ms"], way["longest"], way["lanes"], way["folds"]) == (None, None, [], [])
    assert message_way("7|1|", [InstanceTrace("A")])["is_sampled"] is None


def test_spans_without_a_parent_and_of_unknown_instances_are_kept() -> None:
    strange = span("9", "lost", "commit", "Z", 1, 2, instance="Z")
    itself = span("8", "8", "commit", "A", 1, 2, instance="A")
    way = message_way("7|1|", [InstanceTrace("A", (strange, itself))])
    assert [each["process"] for each in way["lanes"]] == ["A", "Z"]
    below = span("7", "8", "enqueue", "A", 1, 2, instance="A")
    assert message_way("7|1|", [InstanceTrace("A", (itself, below))])["links"] == []
    assert way["links"] == []


def test_what_an_instance_tells_is_read_by_another_one() -> None:
    told = InstanceTrace("A", [PUBLISH, COMMIT], StoredMessage("A", 3, 4), True, True)
    assert told_of(told_as_json(told), "A") == told
    nothing = InstanceTrace("B")
    assert told_of(told_as_json(nothing), "B") == InstanceTrace("B", [])
    assert as_json(COMMIT)["attributes"] == {"instance": "A"}


@pytest.mark.parametrize("wrong", [{}, {"spans": [7]}, {"spans": [], "stored": {"txid": "x"}}, []])
def test_an_instance_that_tells_nonsense_is_named(wrong: Any) -> None:
    assert "another version" in told_of(wrong, "A").error


def test_the_longest_step_is_one_that_the_ack_waits_for() -> None:
    far = span("8", "2", "link send", "A.C", 2, 90, instance="A", destination="C")
    behind = span("9", "8", "remote commit", "C", 10, 88, instance="C", upstream="A")
    read = span("10", "2", "delivery", "ann", 2, 99, instance="A", client="ann")
    told = [InstanceTrace("A", (*WAY, far, behind, read))]
    assert message_way("7|1|", told)["longest"] == "8"
    assert message_way("7|1|", told, {("A", "C")})["longest"] == "3", "nobody waits for C"
    # A trace whose parents go round ends the walk.
    one, other = (
        span(own, parent, "commit", "A", 0, end, instance="A")
        for own, parent, end in (("11", "12", 70), ("12", "11", 71))
    )
    assert message_way("7|1|", [InstanceTrace("A", (one, other))])["longest"] == "12"
    assert message_way("7|1|", [InstanceTrace("A", (PUBLISH, read))])["longest"] is None
