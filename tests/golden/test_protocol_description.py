"""What an instance tells of itself: golden bytes, round trips, other versions, bad bytes."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.link.description import (
    DESCRIPTION_BYTES_MAX,
    pack_description,
    unpack_description,
)
from raylay.services.replication.membership.validation import (
    ALWAYS_CHECKED,
    CHECKS,
    DestinationTerms,
    InstanceDescription,
    QueueTerms,
    SowTerms,
    enforced,
)

pytestmark = pytest.mark.covers("Replication", "what is told at a link's logon")

SMALL = InstanceDescription("A", "g", (TopicRule("^o", "json"),), (DestinationTerms("B", "h", ()),))
SMALL_BYTES = (
    b"\x82"  # map of 2
    b"\xa3log\x91\x92\xa2^o\xa4json"  # [["^o", "json"]]
    b"\xa6topics\x90"
)
FULL = InstanceDescription(
    "A",
    "g",
    (TopicRule("orders", "json"), TopicRule(".*")),
    (
        DestinationTerms(
            "B",
            "h",
            (TopicRule("^o", "json", "/x > 1", None, ("txlog", "cascade")), TopicRule("trades")),
            "^g$",
            ("B-1", "B-2"),
        ),
    ),
    (SowTerms("orders", "json", ("/id", "/day")),),
    (QueueTerms("q", "json", "group_local", "orders", "/x > 1", "d", "A-1"),),
)


def unpack(data: bytes) -> InstanceDescription:
    return unpack_description("A", "g", DestinationTerms("B", "h", ()), data)


def test_golden() -> None:
    assert pack_description(SMALL) == SMALL_BYTES
    assert unpack(SMALL_BYTES) == SMALL


def test_everything_survives() -> None:
    data = pack_description(FULL)
    assert unpack(data) == FULL
    value = msgpack.unpackb(data)
    assert value["topics"][0] == ["^o", "json", "/x > 1", ["txlog", "cascade"]]
    assert value["pass"] == "^g$" and value["servers"] == ["B-1", "B-2"]
    assert value["sow"] == [["orders", "json", ["/id", "/day"]]]
    assert value["queues"] == [["q", "json", "group_local", "orders", "/x > 1", "d", "A-1"]]


def test_what_is_included_travels_as_what_is_not() -> None:
    terms = DestinationTerms("B", "h", (TopicRule("a", include_validation=("txlog",)),))
    (found,) = unpack(pack_description(InstanceDescription("A", "g", (), (terms,)))).destinations
    assert enforced(found.topics[0]) == {"txlog", *ALWAYS_CHECKED}


def test_what_is_unknown_is_passed_over() -> None:
    value = {
        "log": [["orders", "json", "more"]],
        "topics": [["orders", "json", "", ["txlog", "a check of tomorrow"], 5]],
        "queues": [
            ["q", "json", "group_local", "", "", "d", "A"],
            ["r", "json", "queue", "", "", "", "", 1],
        ],
        "more": 1,
    }
    found = unpack(msgpack.packb(value))
    assert found.log == (TopicRule("orders", "json"),)
    (terms,) = found.destinations
    assert terms.topics == (TopicRule("orders", "json", exclude_validation=("txlog",)),)
    assert found.queues == (
        QueueTerms("q", "json", "group_local", "", "", "d", "A"),
        QueueTerms("r", "json"),
    )
    assert unpack(msgpack.packb({})).log == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "no map"),
        ({"log": 5}, "log that are no arrays"),
        ({"log": ["orders"]}, "log that are no arrays"),
        ({"log": [["orders"]]}, "without a text"),
        ({"log": [["orders", 5]]}, "without a text"),
        ({"log": [["(", "json"]]}, "regular expression"),
        ({"topics": [["a", "json", ""]]}, "without a list"),
        ({"topics": [["a", "json", "", [5]]]}, "without a list"),
        ({"pass": 5}, "PassThrough"),
        ({"pass": "("}, "PassThrough"),
        ({"servers": "A"}, "without a list"),
        ({"sow": [["a", "json", "/id"]]}, "without a list"),
        ({"queues": [["a", "json"]]}, "without a text"),
        (
            {"log": [[f"\\pL{{1,30}}{number}", "json"] for number in range(20)]},
            "too large together",
        ),
    ],
)
def test_a_bad_description(value: Any, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        unpack(msgpack.packb(value))
    assert caught.value.reason == "bad_description"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_description_or_a_protocol_error(data: bytes) -> None:
    try:
        unpack(data)
    except RemoteProtocolError as error:
        assert error.reason == "bad_description"


def test_its_size_has_a_bound() -> None:
    few = tuple(TopicRule(f"topic/{number}", "json") for number in range(5_000))
    pack_description(InstanceDescription("A", "g", few, SMALL.destinations))
    many = tuple(TopicRule(f"topic/{number}", "json") for number in range(50_000))
    with pytest.raises(ConfigurationError, match=f"at most {DESCRIPTION_BYTES_MAX}"):
        pack_description(InstanceDescription("A", "g", many, SMALL.destinations))
    assert len(CHECKS) == 9
