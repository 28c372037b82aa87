"""Where a client may go next: tables of words, and the pauses."""

from __future__ import annotations

import pytest

from raylay.services.client import failover
from raylay.services.client.connection import split_address
from raylay.services.client.failover import (
    Backoff,
    FailoverRule,
    PeerStatus,
    Server,
    ServerChooser,
    read_peers,
)

pytestmark = pytest.mark.covers(
    "Clients and protocol", "safe failover; what is unsafe is remembered"
)


def peers(**safe: bool) -> list[PeerStatus]:
    return [PeerStatus(name, "G", (f"{name}:1",), flag) for name, flag in safe.items()]


def chooser(*instances: str, failover: FailoverRule = "safe") -> ServerChooser:
    servers = [Server(f"{name}:1", name, "G") for name in instances]
    return ServerChooser(servers, failover=failover)


def test_every_listed_server_may_be_tried_before_the_first_logon() -> None:
    assert chooser("A", "B").candidates() == ["A:1", "B:1"]


def test_the_one_last_used_comes_last() -> None:
    made = chooser("A", "B", "C")
    made.use("B:1", "B")
    made.heard("B", peers(A=True, C=True))
    assert made.candidates() == ["C:1", "A:1", "B:1"]


def test_the_other_servers_have_all_their_addresses_and_are_no_matter_of_safety() -> None:
    made = ServerChooser([Server("a:1", "A", "G"), Server("x:1"), Server("b:1", "B", "G")])
    assert made.other_servers() == [("a:1",), ("x:1",), ("b:1",)]
    made.found("a:1", "A", "G")
    made.use("a:1", "A")
    told = [
        PeerStatus("B", "G", ("b:1", "b:2"), False),
        PeerStatus("C", "G", ("c:1",), True),
        PeerStatus("Z", "of another group", ("z:1",), True),
    ]
    made.heard("A", told)
    assert made.other_servers() == [("x:1",), ("b:1", "b:2"), ("c:1",)]
    # Another address of the instance in use is no other server.
    made.told_where([PeerStatus("A", "G", ("a:2",), True)])
    assert ("a:2",) not in made.other_servers()


@pytest.mark.parametrize(
    ("story", "current", "allowed"),
    [
        # (who speaks, what it says), in order; the last speaker's client is on `current`.
        ([("A", {"B": True})], "A", ["B", "A"]),
        ([("A", {"B": False})], "A", ["A"]),
        ([("A", {})], "A", ["A"]),
        ([("A", {"B": True}), ("A", {"B": False})], "A", ["A"]),
        ([("A", {"B": False}), ("A", {"B": True})], "A", ["B", "A"]),
        # A called C unsafe and died. B, where the client is now, cannot answer for A.
        ([("A", {"B": True, "C": False}), ("B", {"A": False, "C": True})], "B", ["B"]),
        # Only A's own later word frees C.
        (
            [("A", {"B": True, "C": False}), ("B", {"A": True, "C": True}), ("A", {"C": True})],
            "B",
            ["C", "A", "B"],
        ),
    ],
)
def test_words(story: list[tuple[str, dict[str, bool]]], current: str, allowed: list[str]) -> None:
    made = chooser("A", "B", "C")
    for speaker, words in story:
        made.heard(speaker, peers(**words))
    made.use(f"{current}:1", current)
    assert made.candidates() == [f"{name}:1" for name in allowed]


def test_a_word_is_complete_and_whom_it_does_not_name_is_unsafe_by_it() -> None:
    made = chooser("A", "B", "C", "D")
    made.use("A:1", "A")
    assert made.heard("A", peers(B=True, C=False)) == (["C"], ["B"])
    assert "A called it unsafe" in made.refusal("C")
    assert "A has not called it safe" in made.refusal("D"), "it was never named"
    assert made.heard("A", peers(C=True)) == (["B"], ["C"])
    assert "A has not called it safe" in made.refusal("B") and not made.refusal("C")
    # C does not answer for what A acknowledged: B is unsafe by A's word still, wherever C is.
    made.use("C:1", "C")
    made.heard("C", peers(A=True, B=True, D=True))
    assert made.candidates() == ["A:1", "C:1"]
    assert "A has not called it safe" in made.refusal("B")
    made.use("A:1", "A")
    made.heard("A", peers(B=True, C=True, D=False))
    assert made.candidates() == ["B:1", "C:1", "A:1"]
    assert made.heard("A", peers(B=True, C=True)) == ([], []), "D was unsafe by it before"
    assert made.heard("A", peers(B=True, C=True, D=False)) == (["D"], []), "now it says so"


def test_one_that_two_destinations_name_is_safe_where_one_of_them_says_so() -> None:
    for words in ((True, False), (False, True)):
        made = chooser("A", "B")
        made.use("A:1", "A")
        assert made.heard("A", [PeerStatus("B", "G", (), safe) for safe in words]) == ([], ["B"])
        assert not made.refusal("B")


def test_trust_is_the_way_out_when_the_speaker_is_gone() -> None:
    made = chooser("A", "B")
    made.use("A:1", "A")
    made.heard("A", peers(B=False))
    made.trust("B")
    assert made.candidates() == ["B:1", "A:1"]


def test_failover_any_ignores_words() -> None:
    made = chooser("A", "B", failover="any")
    made.use("A:1", "A")
    made.heard("A", peers(B=False))
    assert made.candidates() == ["B:1", "A:1"]


def test_an_address_of_unknown_instance_is_tried_and_then_known() -> None:
    made = ServerChooser([Server("x:1"), Server("y:1")])
    made.use("x:1", "A")
    made.found("x:1", "A", "G")
    made.heard("A", peers(B=False))
    assert made.candidates() == ["y:1", "x:1"]
    made.found("y:1", "B", "G")
    assert made.candidates() == ["x:1"]
    assert made.refused() == {"B": "A called it unsafe to fail over to"}


def test_peers_of_the_same_group_are_followed_though_not_listed() -> None:
    made = ServerChooser([Server("a:1")])
    made.found("a:1", "A", "G")
    made.use("a:1", "A")
    made.heard(
        "A", [PeerStatus("B", "G", ("b:1",), True), PeerStatus("L", "London", ("l:1",), True)]
    )
    assert made.candidates() == ["b:1", "a:1"]
    made.allow_other_groups = True
    assert made.candidates() == ["b:1", "l:1", "a:1"]


@pytest.mark.covers("The replication chapters", "a group is one of equals")
def test_another_group_is_refused_unless_allowed_in_so_many_words() -> None:
    made = ServerChooser([Server("a:1")], group="Chicago")
    assert made.refusal("L", "London") == "it is in group London, not Chicago"
    made.allow_other_groups = True
    assert made.refusal("L", "London") == ""


@pytest.mark.parametrize("address", ["h:0", "h:65536", "h:", "h", "h:x", "unix:", "h:-1", ""])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not of the form host:port or unix:path"):
        split_address(address)


def test_what_is_one() -> None:
    for address, found in (
        ("h:1", ("h", 1)),
        ("h:65535", ("h", 65_535)),
        ("[::1]:9", ("::1", 9)),
        ("unix:/a:b", ("/a:b", 0)),
    ):
        assert split_address(address) == found


def test_peers_that_make_no_sense_are_left_out() -> None:
    assert read_peers([{"name": 3}, 5, {"name": "B", "safe": 1}, {"name": "C", "safe": True}]) == [
        PeerStatus("B", "", (), False),
        PeerStatus("C", "", (), True),
    ]
    assert read_peers("B") == []


def test_what_a_server_says_of_its_peers_is_read_up_to_a_limit() -> None:
    """Whoever is left out is not called safe."""
    long = "x" * (failover.NAME_CHARACTERS_MAX + 1)
    entry = {"name": "B", "group": long, "addresses": [long, 3, *["b:1"] * 100], "safe": True}
    many = [{"name": str(number), "safe": True} for number in range(2 * failover.PEERS_MAX)]
    peers = read_peers([{"name": long, "safe": True}, entry, *many])
    assert len(peers) == failover.PEERS_MAX - 1
    assert peers[0] == PeerStatus("B", "", ("b:1",) * (failover.ADDRESSES_MAX - 2), True)


def test_where_others_live_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may tell of other addresses each time."""
    monkeypatch.setattr(failover, "FOLLOWED_MAX", 10)
    chooser = ServerChooser([Server("a:1")], failover="any")
    chooser.found("a:1", "A", "g")
    chooser.use("a:1", "A")
    for number in range(100):
        chooser.told_where([PeerStatus(f"B{number}", "g", (f"b:{number}",), True)])
        chooser.found(f"b:{number}", f"B{number}", "g")
    assert chooser.candidates() == [f"b:{number}" for number in range(90, 100)] + ["a:1"]
    sizes = (chooser._followed, chooser._instance_at, chooser._group_of, chooser._address_of)
    assert [len(each) for each in sizes] == [10, 11, 11, 11]


def test_pauses_grow_to_the_maximum_and_begin_anew() -> None:
    backoff = Backoff(100, 1_000, seed=7)
    pauses = [backoff.next_pause_s() for _ in range(8)]
    for pause_s, nominal_s in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1), strict=True):
        assert 0.75 * nominal_s <= pause_s <= 1.25 * nominal_s
    assert len(set(pauses[4:])) == 4, "jitter"
    assert pauses == [
        Backoff.next_pause_s(other) for other in [Backoff(100, 1_000, 7)] for _ in pauses
    ]
    backoff.reset()
    assert backoff.next_pause_s() < 0.13


def test_a_restarted_client_is_bound_by_the_words_that_its_store_kept() -> None:
    earlier = ServerChooser([Server("a:1", "A"), Server("b:1", "B")])
    earlier.use("b:1", "B")
    earlier.heard("B", peers(A=False, C=True))
    servers = [Server(f"{name.lower()}:1", name) for name in "ABCD"]
    later = ServerChooser(servers)
    later.recall(earlier.remembered())
    assert later.refusal("A") == "B called it unsafe to fail over to"
    assert later.refusal("B") == "" == later.refusal("C")
    assert later.refusal("D") == "B has not called it safe to fail over to"
    assert later.candidates() == ["b:1", "c:1"]
    # Not forgotten by a life that reached nobody.
    again = ServerChooser(servers)
    again.recall(later.remembered())
    assert again.refusal("A") and again.refusal("D")
    again.trust("A")
    assert again.refusal("A") == "" != again.refusal("D")
    trusting = ServerChooser(servers)
    trusting.recall(again.remembered())
    assert trusting.refusal("A") == "" != trusting.refusal("D")
    for nonsense in (b"", b"\xff", b"[]", b'{"unsafe": 5}', b'{"safe": {"A": 5}}'):
        ServerChooser().recall(nonsense)
