"""Msgpack of others is decoded up to a number of values, whatever its bytes say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bounded_msgpack import (
    CONTAINERS_FREE,
    unpack_containers,
    unpack_values,
)
from raylay.services.protocol.child import queue_requests
from raylay.services.protocol.link.replication import unpack_rooted
from raylay.services.queues.records import (
    NAMES_MAX,
    RANGES_MAX,
    TRANSFER_BYTES_MAX,
    OwnershipChange,
    Transfer,
    pack_transfer,
    read_acknowledgment,
    read_transfer,
)
from raylay.services.sow.apply import DELETED_MAX, deleted_keys

MANY = 2_000_000
FULL = b"\xdd" + MANY.to_bytes(4, "big")


def shapes(name: bytes) -> list[bytes]:
    """Bodies of a map with one key and millions of values."""
    front = b"\x81" + msgpack.packb(name.decode()) + FULL
    return [front + each * MANY for each in (b"\x90", b"\x80", b"\x91\x01", b"\x01")]


def peak_bytes(work: Callable[[], Any]) -> int:
    """Returns the most memory that work takes, as Python's allocator sees it."""
    tracemalloc.start()
    try:
        work()
    finally:
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


def test_values_are_counted_where_they_lie_deep() -> None:
    for made in ([[]] * 99, [[1] * 9] * 9, {n: [] for n in range(33)}, [[[[1]]]] * 14):
        packed = msgpack.packb(made)
        assert unpack_values(packed, 200) == made
        with pytest.raises(ValueError, match=r"many|exceeds"):
            unpack_values(packed, len(made))


def test_a_body_as_short_as_its_limit_is_decoded_at_once() -> None:
    packed = msgpack.packb([1] * 9)
    assert unpack_values(packed, len(packed)) == [1] * 9
    assert unpack_containers(packed, 100) == [1] * 9


@pytest.mark.parametrize("body", shapes(b"keys"))
def test_what_a_delete_names_is_bounded_before_it_is_made(body: bytes) -> None:
    assert peak_bytes(lambda: deleted_keys(body)) < 20 << 20
    assert deleted_keys(body) is None


def test_as_many_keys_as_a_delete_may_name_are_read() -> None:
    keys = [b"%032d" % n for n in range(DELETED_MAX)]
    assert deleted_keys(msgpack.packb({"keys": keys})) == keys


NESTED = b"\x81\xa5moves\xdc\x01\xf4" + (b"\xdc\x1f\x40" + b"\x90" * 8_000) * 500


@pytest.mark.parametrize("body", [*shapes(b"moves"), NESTED])
def test_what_a_transfer_says_is_bounded_before_it_is_made(body: bytes) -> None:
    def read() -> None:
        with pytest.raises(RemoteProtocolError):
            read_transfer(body[:TRANSFER_BYTES_MAX])

    assert peak_bytes(read) < 20 << 20


def test_the_longest_transfer_is_read() -> None:
    moves = [OwnershipChange(n + 1, 1, 2, 3, "x" * 300) for n in range(RANGES_MAX)]
    whole = Transfer("by", 1, moves, {n + 1: "y" * 300 for n in range(NAMES_MAX)})
    assert read_transfer(pack_transfer(whole)) == whole


def test_an_acknowledgment_of_as_many_publishers_as_ranges_is_read() -> None:
    acks = {(1 << 63) + n: [1, 2] for n in range(RANGES_MAX)}
    said = read_acknowledgment(msgpack.packb({"acks": acks, "how": "ack"}))
    assert len(said.keys) == RANGES_MAX


@pytest.mark.parametrize("each", [b"\x90", b"\x80", b"\x91\x01"])
def test_what_a_link_asks_answers_for_is_bounded_before_it_is_made(each: bytes) -> None:
    body = b"\x81\x01" + FULL + each * MANY

    def read() -> None:
        with pytest.raises(RemoteProtocolError):
            unpack_rooted(body)

    whole = MANY * 56
    assert peak_bytes(read) < whole // 2 + 8 * MANY


def test_ranges_of_many_publishers_are_read() -> None:
    asked = {root: {n: [1, 2] for n in range(200, 5_000)} for root in (1, 2)}
    packed = msgpack.packb(asked)
    assert len(packed) // 6 + CONTAINERS_FREE >= 9_603
    found = unpack_rooted(packed)
    assert found == {root: {n: [(1, 2)] for n in range(200, 5_000)} for root in (1, 2)}


@pytest.mark.parametrize("each", [b"\x90", b"\x80", b"\x01"])
def test_what_a_queue_is_asked_for_is_bounded_before_it_is_made(each: bytes) -> None:
    def read() -> None:
        with pytest.raises(RemoteProtocolError):
            queue_requests._read_wanted(FULL + each * MANY)

    assert peak_bytes(read) < 20 << 20
