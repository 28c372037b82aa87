"""What frames may hold that have begun and are not whole."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.connection_shares import ShareHolder, ShareRefusal
from raylay.services.security.incomplete_frames import (
    IncompleteFrame,
    IncompleteFrames,
    incomplete_bytes_max,
)

pytestmark = pytest.mark.covers("Configuration", "frames that are not whole are bounded for all")

AMY, BOB = ShareHolder("amy", "10.0.0.1"), ShareHolder("bob", "10.0.0.2")
MIB = 1024 * 1024


class Bench:
    def __init__(self, bytes_max: int) -> None:
        self.frames = IncompleteFrames("clients", bytes_max)
        self.ended: list[tuple[IncompleteFrame, ShareRefusal]] = []

    def one(self, holder: ShareHolder, held_bytes: int = 0) -> IncompleteFrame:
        made = IncompleteFrame(lambda refusal: self.end(made, refusal))
        self.frames.belongs(made, holder)
        self.frames.holds(made, held_bytes)
        return made

    def end(self, frame: IncompleteFrame, refusal: ShareRefusal) -> None:
        self.ended.append((frame, refusal))
        self.frames.left(frame)


def test_the_limit_is_a_share_of_the_memory_and_a_few_of_the_longest_frames() -> None:
    assert incomplete_bytes_max(8 << 30, 16 * MIB) == int((8 << 30) * 0.05)
    assert incomplete_bytes_max(1 << 20, 16 * MIB) == 64 * MIB


def test_one_user_holds_half_however_many_connections_it_has() -> None:
    """30 half frames of 16 MiB held 450 MB."""
    bench = Bench(64 * MIB)
    halves = [bench.one(AMY._replace(network=f"10.1.0.{n}"), 15 * MIB) for n in range(2)]
    with pytest.raises(RemoteProtocolError) as caught:
        bench.one(AMY, 16 * MIB)
    assert caught.value.reason == "too_many" and "one user" in str(caught.value)
    assert bench.frames.bytes == 30 * MIB and bench.ended[0][1].limit == "user"
    # The one that holds most is ended, and the one that comes on is not.
    bench.frames.holds(halves[0], 17 * MIB)
    third = bench.one(AMY, 10)
    assert bench.ended[-1][0] is halves[0] and third.bytes == 10
    assert bench.one(BOB, 30 * MIB).bytes == 30 * MIB, "others are not hindered"


def test_one_address_holds_half_but_for_this_host() -> None:
    bench = Bench(100)
    for name in ("a", "b"):
        bench.one(ShareHolder(name, "10.0.0.1"), 25)
    with pytest.raises(RemoteProtocolError):
        bench.one(ShareHolder("c", "10.0.0.1"), 26)
    assert bench.ended[-1][1].limit == "address"
    bench = Bench(100)
    local = [bench.one(ShareHolder("", "127.0.0.1"), 25) for _ in range(4)]
    with pytest.raises(RemoteProtocolError):
        bench.frames.holds(local[0], 26)
    (ended,) = bench.ended
    assert ended[0] is local[0] and ended[1].limit == "all" and "100 bytes" in ended[1].text


@pytest.mark.parametrize("address", ["10.0.0.{}", "127.0.0.1"])
@pytest.mark.parametrize("is_known", [True, False])
def test_many_small_frames_do_not_end_a_large_one(address: str, is_known: bool) -> None:
    """Two accounts held 4 MB on each of 348 connections: the one large publish of another user was
    the largest frame of all, and ended."""
    bench = Bench(1_000)
    large = bench.one(ShareHolder("victim", address.format(9)), 100)
    for number in range(450):
        user = f"mallory-{number % 2}" if is_known else ""
        small = bench.one(ShareHolder(user, address.format(number % 3)))
        with suppress(RemoteProtocolError):
            bench.frames.holds(small, 4)
    assert large not in [frame for frame, _ in bench.ended] and large.bytes == 100
    assert {each.limit for _, each in bench.ended} == {"all"}
    # It goes on, up to as much as those hold together.
    bench.frames.holds(large, 200)
    assert large.bytes == 200 and bench.frames.bytes <= 1_000


def test_what_is_held_counts_for_who_it_turns_out_to_be() -> None:
    bench = Bench(100)
    unknown = bench.one(ShareHolder("", "10.0.0.9"), 40)
    bench.one(AMY, 30)
    bench.frames.belongs(unknown, AMY)
    with pytest.raises(RemoteProtocolError):
        bench.frames.holds(unknown, 41)
    assert [frame for frame, _ in bench.ended] == [unknown]


@pytest.mark.parametrize("seed", range(20))
def test_the_limits_hold_and_nothing_is_remembered_of_who_has_gone(seed: int) -> None:
    random, bench = Random(seed), Bench(200)
    made = [
        bench.one(ShareHolder(random.choice(("", "amy", "bob")), f"10.0.0.{random.randrange(3)}"))
        for _ in range(12)
    ]
    for _ in range(400):
        frame = random.choice(made)
        try:
            bench.frames.holds(frame, random.choice((0, frame.bytes + random.randrange(40))))
        except RemoteProtocolError:
            assert frame.bytes == 0
        assert bench.frames.bytes == sum(each.bytes for each in made) <= 200
        for user in ("amy", "bob"):
            assert sum(each.bytes for each in made if each.holder.user == user) <= 100
    assert bench.ended
    for frame in made:
        bench.frames.left(frame)
    assert not len(bench.frames) and not bench.frames.bytes
