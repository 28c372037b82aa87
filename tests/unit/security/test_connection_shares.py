"""How many connections one user, and one address, may have."""

from __future__ import annotations

from random import Random

import pytest

from raylay.services.security.connection_shares import ConnectionShares, ShareHolder, share_of

pytestmark = pytest.mark.covers("Configuration", "one user, and one address")

AMY, BOB = ShareHolder("amy", "10.0.0.1"), ShareHolder("bob", "10.0.0.2")


def fill(shares: ConnectionShares, holder: ShareHolder) -> int:
    """How many it may have more, which it then has."""
    for count in range(100):
        if shares.refusal(holder) is not None:
            return count
        shares.admitted(holder)
    return 100


@pytest.mark.parametrize(("all_", "one"), [(1, 1), (2, 1), (20, 10), (21, 11)])
def test_one_has_half_of_all(all_: int, one: int) -> None:
    shares = ConnectionShares("transport t", all_)
    assert share_of(all_) == shares.per_user_max == shares.per_address_max == one
    assert fill(shares, AMY) == one == fill(shares, BOB)


def test_a_user_has_its_share_from_wherever_it_comes() -> None:
    shares = ConnectionShares("transport t", 20, 2)
    assert fill(shares, AMY) == 2
    refused = shares.refusal(AMY._replace(network="10.9.9.9"))
    assert refused is not None and refused.limit == "user"
    assert refused.text == (
        "this user has 2 connections to transport t, as many as one user may have: close one, or "
        "raise `connections_per_user_max`"
    )
    shares.left(AMY)
    assert fill(shares, AMY) == 1


def test_an_address_has_its_share_by_whatever_user() -> None:
    shares = ConnectionShares("transport t", None, None, 1, "raise {option}")
    assert fill(shares, AMY) == 1
    refused = shares.refusal(AMY._replace(user="eve"))
    assert refused is not None and refused.limit == "address"
    assert "1 connection to" in refused.text and "connections_per_address_max" in refused.text
    assert shares.refusal(BOB) is None


def test_nobody_in_particular_and_this_host_are_not_limited_unless_that_is_said() -> None:
    shares = ConnectionShares("transport t", 2)
    for network in ("127.0.0.1", "::1", ""):
        assert fill(shares, ShareHolder("", network)) == 100
    assert fill(ConnectionShares("transport t"), AMY) == 100
    said = ConnectionShares("transport t", 2, 3, 4)
    assert (
        fill(said, ShareHolder("", "127.0.0.1")) == 4 and fill(said, ShareHolder("amy", "::1")) == 3
    )


def test_a_connection_that_gives_way_is_not_counted() -> None:
    shares = ConnectionShares("transport t", 20, 2, 2)
    assert fill(shares, AMY) == 2
    assert shares.refusal(AMY, leaving=AMY) is None
    assert shares.refusal(AMY, leaving=BOB) is not None
    assert shares.refusal(AMY, leaving=AMY._replace(user="eve")) is not None


def test_who_gives_way_makes_room_for_its_user_and_for_its_address_each_by_itself() -> None:
    shares = ConnectionShares("transport t", None, None, 1)
    shares.admitted(AMY)
    shares.admitted(BOB)
    assert shares.refusal(AMY._replace(user="eve"), leaving=AMY) is None
    elsewhere = shares.refusal(AMY._replace(network=BOB.network), leaving=AMY)
    assert elsewhere is not None and elsewhere.limit == "address"


def test_a_user_has_no_more_than_its_share_from_this_host_either() -> None:
    assert fill(ConnectionShares("transport t", 20, 2), ShareHolder("amy", "127.0.0.1")) == 2


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_remembered_of_who_has_gone(seed: int) -> None:
    random, shares = Random(seed), ConnectionShares("transport t", 20)
    inside: list[ShareHolder] = []
    for _ in range(300):
        holder = ShareHolder(random.choice(("", "amy", "bob")), f"10.0.0.{random.randrange(3)}")
        if random.random() < 0.6 and shares.refusal(holder) is None:
            shares.admitted(holder)
            inside.append(holder)
        elif inside:
            shares.left(inside.pop(random.randrange(len(inside))))
        for user in ("amy", "bob"):
            assert sum(each.user == user for each in inside) <= 10
    for holder in inside:
        shares.left(holder)
    assert not len(shares)
