"""Routing: each of the four conditions alone decides."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.link.routing import (
    DestinationRoute,
    Router,
    came_from,
)

pytestmark = [
    pytest.mark.covers("Replication", "four conditions of routing"),
    pytest.mark.covers("Replication", "ResyncPassThrough"),
]


def router(
    *topics: TopicRule, pass_through: str | None = None, own_group_only: bool = False
) -> Router:
    rules = topics or (TopicRule(".*"),)
    return Router(
        DestinationRoute("d", "g", True, rules, pass_through, own_group_only=own_group_only)
    )


def run(path: tuple[int, ...] = (), group: str = "", flags: int = 0) -> Run:
    return Run(1, 1, 1, 1, b"", b"t", b"json", path, group, flags=flags)


@pytest.mark.covers("The replication chapters", "one link by default")
def test_what_was_published_here_needs_no_pass_through() -> None:
    assert router().routed(run(), 7)


@pytest.mark.covers("The replication chapters", "one link by default")
@pytest.mark.covers("The replication chapters", "by the group of the direct sender")
def test_what_was_received_needs_a_pass_through_that_matches_the_senders_group() -> None:
    for pattern, group, expected in (
        (None, "eu", False),
        (".*", "eu", True),
        ("^eu$", "eu", True),
        ("^eu$", "us", False),
        ("eu|us", "us", True),
    ):
        routed = router(pass_through=pattern).routed(run((1,), group), 7)
        assert routed is expected, (pattern, group)


@pytest.mark.covers("The replication chapters", "never through the same instance again")
def test_nothing_goes_back_to_an_incarnation_in_its_path() -> None:
    found = router(pass_through=".*")
    assert not found.routed(run((7,), "eu"), 7)
    assert not found.routed(run((7, 8), "eu"), 7)
    assert found.routed(run((8,), "eu"), 7)
    assert found.routed(run((7,), "eu"), 0), "unknown yet: it may be routed"


def test_what_left_its_group_does_not_leave_the_next_one_when_only_the_own_is_asked_for() -> None:
    crossed = run((1, 2), "eu", Flag.CROSSED)
    assert router(pass_through="eu").routed(crossed, 7)
    found = router(pass_through="eu", own_group_only=True)
    assert not found.routed(crossed, 7)
    assert found.routed(run((1, 2), "eu"), 7)


@pytest.mark.covers("The replication chapters", "the four conditions")
def test_a_resync_lets_on_what_its_expression_matches_in_addition() -> None:
    found = Router(
        DestinationRoute("d", "g", True, pass_through="^eu$", resync_pass_through="^us$")
    )
    assert not found.routed(run((1,), "us"), 7)
    assert found.routed_in_resync(run((1,), "us"), 7)
    assert found.routed_in_resync(run((1,), "eu"), 7), "what is owed is sent in any case"
    assert not found.routed_in_resync(run((1,), "asia"), 7)
    assert not found.routed_in_resync(run((1, 7), "us"), 7)


def test_a_resync_is_not_bound_to_the_own_group() -> None:
    found = Router(
        DestinationRoute(
            "d", "g", True, pass_through="eu", resync_pass_through=".*", own_group_only=True
        )
    )
    crossed = run((1, 2), "eu", Flag.CROSSED)
    assert not found.routed(crossed, 7) and found.routed_in_resync(crossed, 7)


def test_a_bad_expression_names_itself_and_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"Destination d PassThrough: '\('"):
        router(pass_through="(")


def test_what_an_instance_sent_here_itself_is_told_by_the_end_of_its_path() -> None:
    def made(txid: int, *path: int, kind: int = Kind.RECORDS) -> Run:
        return Run(7, txid, txid, 1, b"", path=path, kind=kind, first_txid=txid)

    there, other = 5, 6
    assert came_from([made(4, there), made(5, other, there)], there, 3) == 5
    assert came_from([made(4)], there, 3) == 0, "a client published it"
    assert came_from([made(4, there), made(5, there, other)], there, 3) == 0
    assert came_from([made(5, there)], there, 3) == 0, "one is missing before it"
    assert came_from([made(4, there, kind=Kind.WAITER)], there, 3) == 0
