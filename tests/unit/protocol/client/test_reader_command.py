"""The `reader` command, decoded."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.client.commands import ReaderCommand
from raylay.services.protocol.client.reader_command import read_reader
from raylay.services.protocol.header_values import BadValue

pytestmark = pytest.mark.covers("Journal", "named readers that hold retention")

HELD = PublisherRanges()
HELD.add(7, 1, 10)
BODY: bytes = msgpack.packb(HELD.to_wire())
HEADER = {"c": "reader", "name": "lake", "t": "orders", "cid": "1"}


def test_a_reader_is_read_with_its_place() -> None:
    week_s = 7 * 86_400
    assert read_reader(HEADER, BODY) == ReaderCommand("lake", "orders", "1", HELD, week_s)
    assert read_reader(HEADER | {"expires_s": 5}, BODY).expires_s == 5
    nothing = read_reader(HEADER, msgpack.packb({}))
    assert nothing.have == PublisherRanges() and not nothing.release


def test_a_reader_adds_to_its_place_and_asks_for_it() -> None:
    more = {"add": True, "mt": "fix", "filter": "/n > 1"}
    added = read_reader(HEADER | more, BODY)
    assert (added.adds, added.message_type, added.filter) == (True, "fix", "/n > 1")
    asked = read_reader({"c": "reader", "name": "lake", "ask": True, "cid": "1"}, b"")
    assert asked.asks and not asked.adds and asked.name == "lake"


def test_a_reader_is_dropped_by_its_name() -> None:
    given = {"c": "reader", "name": "lake", "release": True}
    assert read_reader(given, b"") == ReaderCommand(
        "lake", "", "", PublisherRanges(), 7 * 86_400, release=True
    )


def test_a_command_without_a_name_asks_for_the_readers() -> None:
    assert read_reader({"c": "reader", "cid": "1"}, b"").name == ""


@pytest.mark.parametrize(
    ("more", "body", "why"),
    [
        ({"name": ""}, BODY, "printable"),
        ({"name": "a\n"}, BODY, "printable"),
        ({"name": "a" * 201}, BODY, "printable"),
        ({"name": None}, BODY, "printable"),
        ({"name": 1}, BODY, "no text"),
        ({"release": 1}, BODY, "neither true nor false"),
        ({"ask": 1}, BODY, "`ask` of reader is neither true nor false"),
        ({"add": 1}, BODY, "`add` of reader is neither true nor false"),
        ({"filter": 1}, BODY, "filter"),
        ({"mt": 1}, BODY, "mt"),
        ({}, b"", "says nothing"),
        ({}, b"\xc1", "no msgpack map"),
        ({"t": ""}, BODY, "t"),
        ({"expires_s": 0}, BODY, "expires_s"),
        ({"expires_s": 1 << 40}, BODY, "expires_s"),
    ],
)
def test_what_is_wrong_is_refused(more: dict[str, Any], body: bytes, why: str) -> None:
    with pytest.raises(BadValue, match=why) as refused:
        read_reader(HEADER | more, body)
    assert refused.value.reason in ("bad_command", "bad_topic")
