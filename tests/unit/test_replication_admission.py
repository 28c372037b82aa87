"""Who is let in as an upstream. What comes of it is in tests/sim."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raylay.services.replication.admission import Admitted, Refused, decide, refused_before
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.routing import TopicMatcher, TopicRule


def machine() -> InstanceMachine:
    return InstanceMachine(
        Identity("own", "g", 0xA),
        (),
        TopicMatcher((TopicRule(".*"),)),
        lookup=lambda publisher, first, last: [],
    )


def logon(**named: Any) -> Any:
    words = {"name": "up", "group": "u", "expect": "g", "incarnation": 0xB}
    words |= {"destination": "own", "epoch": 5, "generation": 0, "reunites": False}
    words |= {"address": "up:1"}
    return SimpleNamespace(**(words | named))


def is_in(made: InstanceMachine) -> bool:
    return bool(made.upstream_batch(9, 1, [], True, {}, True, 0))


def test_a_link_is_let_in_when_its_epoch_is_on_disk() -> None:
    made = machine()
    assert refused_before(made, logon()) is None
    assert isinstance(decide(made, 9, logon(), 4, is_open=True), Admitted)
    assert is_in(made)


def test_a_link_whose_connection_ended_meanwhile_is_not_taken_in() -> None:
    made = machine()
    assert decide(made, 9, logon(), 4, is_open=False) is None
    assert not is_in(made)


def test_a_second_instance_of_one_name_is_not_let_in_while_the_first_is() -> None:
    made = machine()
    assert isinstance(decide(made, 9, logon(), 4, is_open=True), Admitted)
    second = logon(incarnation=0xC, address="elsewhere:2", destination="other")
    refused = refused_before(made, second)
    assert isinstance(refused, Refused) and refused.reason == "name_taken"
    assert "the one at up:1 (incarnation 000000000000000b)" in refused.text
    assert "the one at elsewhere:2 (incarnation 000000000000000c)" in refused.text
    own = refused_before(made, logon(name="own", incarnation=0xC))
    assert isinstance(own, Refused) and "of this one (incarnation 000000000000000a)" in own.text
    # Moved meanwhile: which of the two is over is known by generations.
    assert refused_before(made, logon(incarnation=0xC, generation=1)) is None
    # The first one's connection ended: it may have lost its disk.
    made.upstream_left(9)
    assert isinstance(decide(made, 10, second, 0, is_open=True), Admitted)


def test_an_epoch_that_was_seen_is_refused() -> None:
    made = machine()
    stale = decide(made, 9, logon(), 5, is_open=True)
    assert isinstance(stale, Refused) and stale.reason == "stale_epoch"
    assert not is_in(made)


def test_what_no_epoch_changes_is_refused_before_anything_is_written() -> None:
    wrong = refused_before(machine(), logon(expect="h"))
    assert wrong is not None and (wrong.reason, "up" in wrong.text) == ("group", True)
