"""The limit of what clients' commands keep in memory."""

from __future__ import annotations

import sys
from random import Random

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.security.connection_shares import ShareHolder
from raylay.services.security.retained_bytes import (
    RETAINED_BYTES_MIN,
    RetainedBytes,
    RetainedClaim,
    keys_bytes,
    retained_bytes_max,
)

pytestmark = pytest.mark.covers("Configuration", "what commands keep")

AMY, BOB, NOBODY = (
    ShareHolder("amy", "10.0.0.1"),
    ShareHolder("bob", "10.0.0.2"),
    ShareHolder("", "127.0.0.1"),
)


def refusal(of: RetainedBytes, connection: int, holder: ShareHolder, size_bytes: int) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        of.claim(connection, holder, size_bytes)
    assert caught.value.reason == "too_many"
    return str(caught.value)


def test_the_limit_is_a_share_of_the_memory_and_lets_the_largest_command_in() -> None:
    assert retained_bytes_max(1 << 20) == RETAINED_BYTES_MIN
    assert retained_bytes_max(1 << 40) == int((1 << 40) * 0.05)
    have = PublisherRanges()
    for chunk in range(1_000):
        have.add(7, chunk * 8_192 + 4_094, chunk * 8_192 + 4_094)
    assert have.memory_bytes * 131.072 < RETAINED_BYTES_MIN / 4


@pytest.mark.parametrize("step", [1, 7, 5_000])
def test_estimates_are_near_what_is_taken(step: int) -> None:
    have = PublisherRanges()
    for number in range(2_000):
        have.add(number % 3, number * step + 4_000, number * step + 4_000)
    taken = 0
    for each in have.sets.values():
        parts = each._part
        taken += sum(map(sys.getsizeof, (each, parts, each._full_starts, each._full_ends)))
        taken += sum(sys.getsizeof(bits) + sys.getsizeof(chunk) for chunk, bits in parts.items())
    assert taken / 2 < have.memory_bytes < taken * 2
    keys = frozenset(number.to_bytes(16, "big") for number in range(10_000))
    assert 0.7 < keys_bytes(keys) / (sys.getsizeof(keys) + sum(map(sys.getsizeof, keys))) < 1.5


def test_one_connection_has_a_quarter_and_one_user_and_one_address_half() -> None:
    kept = RetainedBytes(1_000)
    kept.claim(1, AMY, 200)
    assert "this connection may keep 200" in refusal(kept, 1, AMY, 51)
    kept.claim(1, AMY, 50)
    second = kept.claim(2, AMY._replace(network="10.0.0.7"), 250)
    assert "this user may keep 500" in refusal(kept, 3, AMY._replace(network="10.0.0.8"), 1)
    kept.claim(4, ShareHolder("", "10.0.0.1"), 240)
    assert "this address may keep 490" in refusal(kept, 5, ShareHolder("eve", "10.0.0.1"), 11)
    # Who comes from this host is not limited as an address.
    first = kept.claim(6, NOBODY, 250)
    assert "all clients may keep 990" in refusal(kept, 7, BOB, 11)
    for _ in range(2):
        first.release()
        second.release()
    kept.claim(7, BOB, 250)
    for connection in (1, 4, 7, 7, 99):
        kept.left(connection)
    assert not kept.bytes and not len(kept)
    first.release()
    assert not kept.bytes and not len(kept)


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_those_of_what_is_kept(seed: int) -> None:
    chance, kept = Random(seed), RetainedBytes(2_000)
    claims: dict[RetainedClaim, tuple[int, int]] = {}
    holders = [chance.choice((AMY, BOB, NOBODY)) for _ in range(8)]
    for _ in range(400):
        match chance.randrange(4):
            case 0 if claims:
                gone = chance.choice(list(claims))
                gone.release()
                del claims[gone]
            case 1 if chance.random() < 0.2:
                number = chance.randrange(8)
                kept.left(number)
                claims = {k: v for k, v in claims.items() if v[0] != number}
            case _:
                number, size_bytes = chance.randrange(8), chance.randrange(0, 300)
                try:
                    claim = kept.claim(number, holders[number], size_bytes)
                except RemoteProtocolError:
                    continue
                claims[claim] = number, size_bytes
        assert kept.bytes == sum(size for _, size in claims.values()) <= 2_000
        for number in range(8):
            assert sum(size for of, size in claims.values() if of == number) <= 500
        for name in ("amy", "bob"):
            mine = sum(size for of, size in claims.values() if holders[of].user == name)
            assert mine <= 1_000 and mine == kept._users.get(name, 0)
    for claim in claims:
        claim.release()
    assert not len(kept)
