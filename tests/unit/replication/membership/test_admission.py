"""Who is let in as an upstream. What comes of it is in tests/sim."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.held_runs import HeldRuns

from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.membership.admission import (
    EPOCH_STEP_MAX,
    LinkAdmitted,
    LinkRefused,
    UnprovenLinks,
    decide,
    epoch_key,
    refused_before,
)


def machine() -> InstanceMachine:
    return InstanceMachine(
        Identity("own", "g", 0xA),
        (),
        TopicBook((TopicRule(".*"),)),
        lookup=HeldRuns(),
    )


def logon(**named: Any) -> Any:
    words = {"name": "up", "group": "u", "expect": "g", "incarnation": 0xB}
    words |= {"destination": "own", "epoch": 5, "generation": 0, "salvages": False, "proven": False}
    words |= {"address": "up:1"}
    return SimpleNamespace(**(words | named))


def is_in(made: InstanceMachine) -> bool:
    return bool(made.upstream_batch(9, 1, [], True, {}, True, 0, LookupResult()))


def test_a_link_is_let_in_when_its_epoch_is_on_disk() -> None:
    made = machine()
    assert refused_before(made, logon()) is None
    assert isinstance(decide(made, 9, logon(), 4, is_open=True), LinkAdmitted)
    assert is_in(made)


def test_a_link_whose_connection_ended_meanwhile_is_not_taken_in() -> None:
    made = machine()
    assert decide(made, 9, logon(), 4, is_open=False) is None
    assert not is_in(made)


@pytest.mark.covers("The replication chapters", "unique names, in one set of files and among")
def test_a_second_instance_of_one_name_is_not_let_in_while_the_first_is() -> None:
    made = machine()
    assert isinstance(decide(made, 9, logon(), 4, is_open=True), LinkAdmitted)
    second = logon(incarnation=0xC, address="elsewhere:2", destination="other")
    refused = refused_before(made, second)
    assert isinstance(refused, LinkRefused) and refused.reason == "name_taken"
    assert "the one at up:1 (incarnation 000000000000000b)" in refused.text
    assert "the one at elsewhere:2 (incarnation 000000000000000c)" in refused.text
    own = refused_before(made, logon(name="own", incarnation=0xC))
    assert isinstance(own, LinkRefused) and "of this one (incarnation 000000000000000a)" in own.text
    # Moved meanwhile: which of the two is over is known by generations.
    assert refused_before(made, logon(incarnation=0xC, generation=1)) is None
    # The first one's connection ended: it may have lost its disk.
    made.upstream_left(9)
    assert isinstance(decide(made, 10, second, 0, is_open=True), LinkAdmitted)


def test_an_epoch_that_was_seen_is_refused() -> None:
    made = machine()
    stale = decide(made, 9, logon(), 5, is_open=True)
    assert isinstance(stale, LinkRefused) and stale.reason == "stale_epoch"
    assert not is_in(made)


def test_an_epoch_is_at_most_one_step_above_the_one_before() -> None:
    for epoch, is_in_bounds in ((6, True), (5 + EPOCH_STEP_MAX, True), (6 + EPOCH_STEP_MAX, False)):
        found = decide(machine(), 9, logon(epoch=epoch), 5, is_open=True)
        assert isinstance(found, LinkAdmitted) is is_in_bounds, epoch
        assert isinstance(found, LinkAdmitted) or (
            found is not None and found.reason == "bad_epoch"
        )


def test_each_link_of_an_instance_has_epochs_of_its_own() -> None:
    """A link that a configuration renames begins with low ones. One that proves nothing has others
    than one that does."""
    proven = logon(proven=True)
    others = [logon(proven=True, destination="other"), logon(proven=True, incarnation=0xC)]
    assert len({epoch_key(each) for each in (proven, *others)}) == 3
    assert epoch_key(logon(proven=True, epoch=9, name="x")) == epoch_key(proven)
    links = UnprovenLinks()
    assert [links.take_epoch(each) for each in (logon(epoch=9), logon(destination="x"))] == [0, 0]
    assert links.take_epoch(logon(epoch=10)) == 9


def test_what_no_epoch_changes_is_refused_before_anything_is_written() -> None:
    wrong = refused_before(machine(), logon(expect="h"))
    assert wrong is not None and (wrong.reason, "up" in wrong.text) == ("group", True)


def test_who_does_not_prove_it_does_not_displace_who_does() -> None:
    """It could end the connection of that one, use up its epochs, and speak for it."""
    made = machine()
    assert isinstance(decide(made, 9, logon(proven=True), 4, is_open=True), LinkAdmitted)
    for forged in (
        logon(epoch=1 << 60),
        logon(name="another", epoch=1 << 60),
        logon(incarnation=0xC, generation=7),
    ):
        refused = refused_before(made, forged)
        assert isinstance(refused, LinkRefused) and refused.reason == "unproven"
        assert "fabric_key" in refused.text and "own" in refused.text
    assert is_in(made)
    assert refused_before(made, logon(proven=True, epoch=6)) is None
    # Another instance, of another fabric say, is let in as before; and so is everybody who is not
    # taken for somebody else.
    assert refused_before(made, logon(name="other", incarnation=0xD)) is None
    made.upstream_left(9)
    assert refused_before(made, logon()) is None


def test_only_the_fabric_says_that_a_directory_is_an_old_copy() -> None:
    for proven, known in ((False, True), (True, True), (False, False)):
        made = InstanceMachine(
            Identity("own", "g", 0xA, in_fabric=known),
            (),
            TopicBook((TopicRule(".*"),)),
            lookup=HeldRuns(),
        )
        assert isinstance(decide(made, 9, logon(proven=proven), 4, is_open=True), LinkAdmitted)
        said = [made.upstream_shows(9, {7: [(1, 2)]}) for _ in range(2)]
        assert bool(made.went_back) is (proven or not known)
        if not made.went_back:
            assert [getattr(each, "event", "") for each in said[0]] == ["old_copy_unproven"]
            assert said[1] == []
