"""Which incoming connection a destination uses."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.connection_sharing import (
    SharedConnection,
    awaits_dial,
    choose,
    gives_way,
    uses_incoming,
)

pytestmark = pytest.mark.covers("Replication", "which incoming connection is used")

WAITING = DestinationRoute("g", "g", True, dials=False)
SHARED = DestinationRoute("B", "g", True, addresses=("b1:1", "b2:2"), share_connection=True)
B1 = SharedConnection(7, "B1", "g", 101, "b1:1")
B2 = SharedConnection(8, "B2", "g", 102, "b2:2")
C = SharedConnection(9, "C", "h", 103, "b1:1")


def chosen(
    destination: DestinationRoute,
    *incoming: SharedConnection,
    reached: frozenset[int] = frozenset(),
    named: frozenset[str] = frozenset(),
) -> str:
    """The name of the server that is chosen, whatever the order in which they connected."""
    found = {
        getattr(choose(destination, order, reached, named), "name", "")
        for order in permutations(incoming)
    }
    (name,) = found
    return name


def test_only_who_waits_or_shares_uses_them() -> None:
    dialling = replace(SHARED, share_connection=False)
    assert [uses_incoming(each) for each in (WAITING, SHARED, dialling)] == [True, True, False]
    assert chosen(dialling, B1, B2) == ""


def test_without_addresses_the_server_named_else_any_of_the_group() -> None:
    assert chosen(WAITING, B1, B2) == "B1"
    assert chosen(replace(WAITING, name="B2"), B1, B2) == "B2"
    assert chosen(replace(WAITING, name="B2"), B1) == "B1"
    assert chosen(WAITING, C) == ""
    assert chosen(WAITING) == ""


def test_who_dials_and_waits_prefers_its_addresses_and_takes_whom_it_waits_for() -> None:
    both = replace(SHARED, name="B", waits=True)
    assert uses_incoming(both) and both.has_several_servers
    other = SharedConnection(10, "B9", "g", 104, "b9:9")
    assert chosen(both, other, B2) == "B2"
    assert chosen(both, other) == "B9"
    assert chosen(both, other, named=frozenset(("B9",))) == ""
    assert chosen(both, C) == ""
    assert chosen(replace(both, waits_for=("B9",)), B1, other) == "B1"
    assert chosen(replace(both, waits_for=("B8",)), other) == ""
    # Those that it dials are dialled, where connections are not shared.
    alone = replace(both, share_connection=False)
    assert chosen(alone, B1) == ""
    assert chosen(alone, B1, other) == "B9"


def test_who_is_named_by_another_destination_is_left_to_that_one() -> None:
    assert chosen(WAITING, B1, B2, named=frozenset(("B1",))) == "B2"
    assert chosen(WAITING, B1, named=frozenset(("B1",))) == ""


def test_servers_known_by_name_are_the_only_ones_and_in_their_order() -> None:
    known = replace(WAITING, addresses=("B2", "B1"))
    assert chosen(known, B1, B2) == "B2"
    assert chosen(known, B1) == "B1"
    assert chosen(replace(known, addresses=("B3",)), B1, B2) == ""


@pytest.mark.covers("The replication chapters", "an incoming connection of a listed server")
def test_with_addresses_only_who_says_that_one_is_its_own() -> None:
    assert chosen(SHARED, B1, B2) == "B1"
    assert chosen(SHARED, B2) == "B2"
    assert chosen(SHARED, replace(B1, address="b1:9"), replace(B2, address="")) == ""
    assert chosen(SHARED, C) == ""
    local = replace(SHARED, addresses=("Localhost:1",))
    assert chosen(local, replace(B1, address="127.0.0.1:1")) == "B1"


@pytest.mark.parametrize("destination", [WAITING, SHARED])
def test_one_link_from_an_instance_to_an_instance(destination: DestinationRoute) -> None:
    assert chosen(destination, B1, B2, reached=frozenset((101,))) == "B2"
    assert chosen(destination, B1, reached=frozenset((101,))) == ""


@pytest.mark.covers("The replication chapters", "an incoming connection of a listed server")
def test_of_two_connections_of_one_server_the_newer_one() -> None:
    """A server that lost its disk connects again before the end of its last life is noticed."""
    newer = replace(B1, number=12, incarnation=201)
    assert choose(WAITING, [B1, newer], (), ()) == choose(WAITING, [newer, B1], (), ()) == newer


def test_of_two_that_dialled_exactly_one_gives_way() -> None:
    ends = [("A", 1), ("A", 2), ("B", 1)]
    for one, other in permutations(ends, 2):
        assert gives_way(*one, *other) != gives_way(*other, *one)


def test_who_would_give_way_lets_the_other_dial_first() -> None:
    assert awaits_dial("B", ("A",)) and awaits_dial("B", ("C", "A"))
    assert not awaits_dial("A", ("B",)) and not awaits_dial("A", ())


def test_who_may_be_another_server_than_last_time() -> None:
    wide = replace(SHARED, addresses=("b:1",), wide_ip=True)
    several = [SHARED, WAITING, replace(WAITING, addresses=("B1", "B2")), wide]
    assert all(each.has_several_servers for each in several)
    one = [replace(WAITING, addresses=("B1",)), replace(SHARED, addresses=("b1:1",))]
    assert not any(each.has_several_servers for each in one)
