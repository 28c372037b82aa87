"""Two instances of one name are found when they meet."""

from __future__ import annotations

from raylay.services.replication.membership.peer_identities import PeerIdentities


def test_the_connection_that_one_replaces_is_no_other_instance() -> None:
    met = PeerIdentities("own", 1, 0)
    met.met("to-up", "up", 2, 0, "a:1")
    assert met.clash("to-up", "up", 3, 0, "b:1") == ""
    assert "the one at a:1" in met.clash("back", "up", 3, 0, "b:1")


def test_both_directions_of_one_instance_are_one() -> None:
    met = PeerIdentities("own", 1, 0)
    met.met("to-up", "up", 2, 0, "a:1")
    assert met.clash(7, "up", 2, 0, "") == ""
    met.met(7, "up", 2, 0, "")
    met.left("to-up")
    assert "one whose address is not known (incarnation 0000000000000002)" in met.clash(
        8, "up", 3, 0, "b:1"
    )
    met.left(7)
    met.left(7)
    assert met.clash(8, "up", 3, 0, "b:1") == ""


def test_of_a_moved_one_generations_tell() -> None:
    met = PeerIdentities("own", 1, 2)
    met.met(7, "up", 2, 0, "a:1")
    assert met.clash(8, "up", 3, 1, "b:1") == ""
    assert met.clash(8, "own", 4, 1, "") == ""
    assert "of this one" in met.clash(8, "own", 4, 2, "")


def test_who_proves_nothing_bears_neither_the_name_nor_the_incarnation_of_who_does() -> None:
    meetings = PeerIdentities("own", 1, 0, in_fabric=True)
    meetings.met(7, "up", 0xB, 0, "up:1", proven=True)
    meetings.met(8, "said", 0xD, 0, "said:1")
    for name, incarnation in (("up", 0xC), ("other", 0xB), ("up", 0xB)):
        assert "without proof" in meetings.impostor(name, incarnation)
    for name, incarnation in (("other", 0xC), ("said", 0xD)):
        assert meetings.impostor(name, incarnation) == ""


def test_in_a_fabric_with_a_key_only_who_says_so_gives_way_to_who_proves_it() -> None:
    """One that was dialled at its configured address has been found there."""
    meetings = PeerIdentities("own", 1, 0, in_fabric=True)
    meetings.met("said", "up", 0xB, 0, "up:1")
    assert not meetings.clash("new", "up", 0xC, 0, "elsewhere:2", proven=True)
    assert meetings.clash("new", "up", 0xC, 0, "elsewhere:2")
    meetings.met("said", "up", 0xB, 0, "up:1", dialled=True)
    assert meetings.clash("new", "up", 0xC, 0, "elsewhere:2", proven=True)
