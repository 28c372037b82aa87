"""What clients are told of the other instances."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.peers import PeerBook
from raylay.services.replication.membership.placement import InstancePlacement

pytestmark = pytest.mark.covers(
    "Clients and protocol", "safe failover; what is unsafe is remembered"
)

A1, A2 = 0xA1, 0xA2


def ledger(incarnation: int = 0, *, safe: bool = True) -> DestinationLedger:
    """Of a destination that is safe, where nothing else is wrong."""
    made = DestinationLedger(DestinationRoute("list", "g", True, pass_through=".*"))
    made.carries_all = True
    made.incarnation, made.proved = incarnation, safe
    return made


def book(names: tuple[str, ...] = (), addresses: tuple[str, ...] = ("a1:1", "a2:1")) -> PeerBook:
    made = PeerBook()
    made.add("list", names, addresses)
    return made


def told(made: PeerBook, **ledgers: DestinationLedger) -> dict[str, tuple[Any, ...]]:
    found = made.told(ledgers)
    assert len({peer["name"] for peer in found}) == len(found), "each once"
    assert all(peer["group"] == "g" for peer in found)
    return {peer["name"]: (peer["safe"], *peer["addresses"]) for peer in found}


def test_nobody_is_safe_before_a_server_was_reached() -> None:
    assert told(book(), list=ledger(A1)) == {"list": (False, "a1:1", "a2:1")}
    named = book(("A1", "A2"))
    assert told(named, list=ledger(A1)) == {"A1": (False, "a1:1"), "A2": (False, "a2:1")}


def test_of_a_list_only_the_server_last_connected_is_safe_and_the_others_are_told_to_be_not() -> (
    None
):
    for names in ((), ("A1", "A2")):
        made = book(names)
        made.reached("list", A1, "A1", "a1:1")
        assert told(made, list=ledger(A1))["A1"] == (True, "a1:1")
        made.reached("list", A2, "A2", "a2:1")
        assert told(made, list=ledger(A2)) == {"A2": (True, "a2:1"), "A1": (False, "a1:1")}
        # Safety was proved of another incarnation.
        assert told(made, list=ledger(A1))["A2"][0] is False
        assert told(made, list=ledger(A2, safe=False)) == {
            "A2": (False, "a2:1"),
            "A1": (False, "a1:1"),
        }


def test_of_two_destinations_that_may_reach_one_the_connected_one_knows() -> None:
    for first, second in (("one", "two"), ("two", "one")):
        made = PeerBook()
        for name in (first, second):
            made.add(name, ("A1", "A2"), ("a1:1", "a2:1"))
        made.reached("one", A1, "A1", "a1:1")
        made.reached("two", A2, "A2", "a2:1")
        found = told(made, one=ledger(A1), two=ledger(A2, safe=False))
        assert found == {"A1": (True, "a1:1"), "A2": (False, "a2:1")}


def test_a_server_that_does_not_say_where_it_is_is_where_nobody_else_is() -> None:
    made = book()
    made.reached("list", A1, "A1", "")
    assert told(made, list=ledger(A1)) == {"A1": (True, "a1:1", "a2:1")}
    made.reached("list", A2, "A2", "a2:1")
    made.reached("list", A1, "A1", "")
    assert told(made, list=ledger(A1)) == {"A1": (True, "a1:1"), "A2": (False, "a2:1")}
    named = book(("A1", "A2"))
    named.reached("list", A1, "A1", "")
    assert told(named, list=ledger(A1))["A1"] == (True, "a1:1")


def test_a_moved_server_is_told_of_at_its_new_address() -> None:
    made = book(("A1", "A2"))
    made.reached("list", A1, "A1", "a1:1")
    made.moved({"A1": InstancePlacement(1, "r:2", "new:1"), "A2": InstancePlacement(1, "r:3")})
    assert told(made, list=ledger(A1)) == {"A1": (True, "new:1"), "A2": (False, "a2:1")}
