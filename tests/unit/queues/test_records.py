"""The bodies of the records that change a queue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.queues.records import (
    RANGES_MAX,
    REASONS,
    Acknowledgment,
    OwnershipChange,
    Removal,
    Transfer,
    keys_of,
    pack_acknowledgment,
    pack_removal,
    pack_transfer,
    read_acknowledgment,
    read_keys,
    read_removal,
    read_transfer,
)

KEYS = {7: [(1, 3), (5, 5)], (1 << 64) - 1: [(9, (1 << 64) - 1)]}
READERS = (read_acknowledgment, read_transfer, read_removal)


@pytest.mark.parametrize("how", ["ack", "expire"])
def test_an_acknowledgment_is_read_as_it_was_written(how: str) -> None:
    said = Acknowledgment(KEYS, how)
    assert read_acknowledgment(pack_acknowledgment(said)) == said


@pytest.mark.parametrize("why", REASONS)
def test_a_removal_is_read_as_it_was_written(why: str) -> None:
    said = Removal("a", 1 << 63, KEYS, why)
    assert read_removal(pack_removal(said)) == said


def test_a_transfer_is_read_as_it_was_written() -> None:
    said = Transfer(
        "a", 3, [OwnershipChange(7, 1, 3, 1, "b"), OwnershipChange(7, 5, 5, 2, "é")], {9: "b"}
    )
    assert read_transfer(pack_transfer(said)) == said
    assert read_transfer(pack_transfer(Transfer("a"))) == Transfer("a", 0, [], {})


def test_what_clients_may_leave_out() -> None:
    body = msgpack.packb({"acks": {7: [1, 3]}})
    assert read_acknowledgment(body) == Acknowledgment({7: [(1, 3)]})


@pytest.mark.parametrize(
    ("read", "body", "says"),
    [
        (read_acknowledgment, {"acks": {7: [3, 1]}}, "do not ascend"),
        (read_acknowledgment, {"acks": {7: [1, 3, 3, 4]}}, "do not ascend"),
        (read_acknowledgment, {"acks": {7: [0, 1]}}, "do not ascend"),
        (read_acknowledgment, {"acks": {7: [1, -1]}}, "do not ascend"),
        (read_acknowledgment, {"acks": {7: [1, True]}}, "do not ascend"),
        (read_acknowledgment, {"acks": {7: [1]}}, "no pairs"),
        (read_acknowledgment, {"acks": {"p": [1, 1]}}, "no pairs"),
        (read_acknowledgment, {"acks": {0: [1, 1]}}, "no pairs"),
        (read_acknowledgment, {"acks": [1, 1]}, "no map of publishers"),
        (read_acknowledgment, {}, "no map of publishers"),
        (read_acknowledgment, {"acks": {}, "how": "cancel"}, "how is none of ack and expire"),
        (read_acknowledgment, {"acks": {}, "how": ["ack"]}, "how is none of"),
        (
            read_acknowledgment,
            {"acks": {7: [n // 2 * 2 + 1 for n in range(2 * RANGES_MAX + 2)]}},
            "more than 4096 ranges: send several",
        ),
        (read_removal, {"by": "a", "gone": {}, "why": "bored"}, "why is none of time_limit"),
        (read_removal, {"by": "", "gone": {}, "why": "sent"}, "by is no name"),
        (read_removal, {"by": "a" * 401, "gone": {}, "why": "sent"}, "by is no name"),
        (read_removal, {"by": "a", "tag": -1, "gone": {}, "why": "sent"}, "tag is no"),
        (read_transfer, {"by": "a", "moves": {}}, "moves are no array"),
        (read_transfer, {"by": "a", "moves": [[7, 1, 1, 1]]}, "no array of five"),
        (read_transfer, {"by": "a", "moves": [[7, 2, 1, 1, "b"]]}, "names no messages"),
        (read_transfer, {"by": "a", "moves": [[7, 1, 1, -1, "b"]]}, "no generation from 0"),
        (read_transfer, {"by": "a", "moves": [[7, 1, 1, 1, ""]]}, "or no owner"),
        (read_transfer, {"by": "a", "names": [1]}, "names are no map"),
        (read_transfer, {"by": "a", "names": {0: "b"}}, "names are no map of incarnations"),
        (read_transfer, {"by": "a", "names": {1: 2}}, "names are no map of incarnations"),
    ],
)
def test_what_is_none_is_refused_with_its_fault(
    read: Callable[[bytes], Any], body: Any, says: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=says) as refused:
        read(msgpack.packb(body))
    assert refused.value.reason == "bad_message"


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb({"acks": {7: [1, 3]}, "junk": []}),
        msgpack.packb({"by": "a", "tag": 1, "gone": {}, "why": "sent", "junk": []}),
        msgpack.packb({"by": "a", "junk": []}),
    ],
)
def test_a_key_that_no_record_has_is_refused(body: bytes) -> None:
    for read in READERS:
        with pytest.raises(RemoteProtocolError, match="has a key that is none of"):
            read(body)


@pytest.mark.covers("Configuration", "thousands of commands at once are taken in turns")
@pytest.mark.parametrize("read", [*READERS, read_keys])
def test_a_body_that_no_right_record_has_is_not_decoded(
    read: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"\x81\xa4junk" + b"\xdd" + (5 << 20).to_bytes(4, "big") + b"\x90" * (5 << 20)
    decoded: list[int] = []
    monkeypatch.setattr(msgpack, "unpackb", lambda body, **_: decoded.append(len(body)))
    with pytest.raises(RemoteProtocolError, match=r"more than the .* bytes that one may have"):
        read(body)
    assert not decoded


@pytest.mark.covers("Configuration", "thousands of commands at once are taken in turns")
def test_arrays_and_maps_are_no_longer_than_a_right_record_has() -> None:
    for body in ({7: [1] * (2 * RANGES_MAX + 1)}, {key: [] for key in range(1, RANGES_MAX + 2)}):
        with pytest.raises(RemoteProtocolError, match="more than 4096 ranges: send several"):
            read_keys(msgpack.packb(body))


def test_the_longest_right_bodies_are_read() -> None:
    top = (1 << 64) - 1
    keys = {top - n: [(top - 1, top)] for n in range(RANGES_MAX)}
    assert read_acknowledgment(pack_acknowledgment(Acknowledgment(keys))).keys == keys
    name = "n" * 400
    assert read_removal(pack_removal(Removal(name, top, keys, "forced_expire"))).keys == keys
    moves = [OwnershipChange(top, top, top, top, name)] * RANGES_MAX
    transfer = Transfer(name, top, moves, {top - n: name for n in range(RANGES_MAX)})
    assert read_transfer(pack_transfer(transfer)) == transfer


@pytest.mark.parametrize("read", READERS)
@given(body=st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(read: Callable[[bytes], Any], body: bytes) -> None:
    try:
        read(body)
    except RemoteProtocolError as error:
        assert error.reason == "bad_message"


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, (1 << 64) - 1) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)
_words = st.sampled_from(["acks", "how", "by", "tag", "moves", "names", "gone", "why"])


@pytest.mark.parametrize("read", READERS)
@given(said=st.dictionaries(_words, _values, max_size=6))
def test_any_map_is_read_or_refused(read: Callable[[bytes], Any], said: dict[str, Any]) -> None:
    try:
        read(msgpack.packb(said))
    except RemoteProtocolError as error:
        assert error.reason == "bad_message"


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), max_size=40))
def test_keys_are_gathered_into_ranges(keys: list[tuple[int, int]]) -> None:
    found = keys_of(keys)
    assert {(p, s) for p, rs in found.items() for a, b in rs for s in range(a, b + 1)} == set(keys)
    read = read_acknowledgment(pack_acknowledgment(Acknowledgment(found)))
    assert read.keys == found
    for ranges in found.values():
        assert all(a[1] + 1 < b[0] for a, b in pairwise(ranges)), "no seams"
