"""Whom publisher ids belong to, and how instances tell one another."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.replication import publisher_names
from raylay.services.replication.publisher_names import (
    NAMES_AT_ONCE,
    PARTS_AT_ONCE,
    NamesTold,
    PublisherNames,
    name_digest,
    read_names,
)

pytestmark = pytest.mark.covers("Configuration", "a publisher id belongs to one client name")

AMY, BOB = name_digest("amy"), name_digest("bob")


def many(count: int) -> PublisherNames:
    return PublisherNames((number, name_digest(str(number))) for number in range(count))


def test_an_id_belongs_to_the_name_that_first_had_it() -> None:
    names = PublisherNames()
    assert names.claim(1, AMY) and names.claim(1, AMY)
    assert not names.claim(1, BOB) and names.get(1) == AMY
    assert names.claim(2, BOB)
    assert names.unwritten == [1, 2]
    again = PublisherNames(names.items())
    assert not again.claim(1, BOB) and again.unwritten == [] and again.digest == names.digest


def test_the_digest_is_of_what_is_remembered_whatever_came_first() -> None:
    assert len({PublisherNames().digest, many(1).digest, many(2).digest}) == 3
    turned = PublisherNames(reversed(list(many(9).items())))
    assert turned.digest == many(9).digest
    assert (
        PublisherNames([(1, AMY), (2, BOB)]).digest != PublisherNames([(1, BOB), (2, AMY)]).digest
    )


def test_the_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_names, "NAMES_MAX", 2)
    names = PublisherNames()
    assert names.claim(1, AMY) and names.claim(2, BOB) and names.claim(3, AMY)
    assert len(names) == 2 and names.get(3) is None
    assert names.claim(3, BOB) and not names.claim(1, BOB)


@pytest.mark.parametrize("body", [b"x", bytes(24 * (NAMES_AT_ONCE + 1)), bytes(25)])
def test_what_is_no_list_of_names_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="names of publishers have") as refused:
        read_names(body)
    assert refused.value.reason == "bad_names"


class Destination:
    """What a destination remembers, and what it was sent."""

    def __init__(self, names: PublisherNames) -> None:
        self.names = names
        self.parts: list[bytes] = []
        self.is_open = True

    def say(self, part: bytes) -> bool:
        if self.is_open:
            self.parts.append(part)
            for publisher, name in read_names(part):
                self.names.claim(publisher, name)
        return self.is_open


def test_a_destination_is_told_what_it_lacks_a_part_at_a_time() -> None:
    names, there = many(PARTS_AT_ONCE * NAMES_AT_ONCE + 1), Destination(PublisherNames())
    told = NamesTold(names)
    told.go_on(there.say)
    assert not there.parts, "it is not connected"
    told.connected(there.names.digest)
    told.go_on(there.say)
    assert len(there.parts) == PARTS_AT_ONCE and told.is_behind
    told.go_on(there.say)
    told.go_on(there.say)
    assert len(there.parts) == PARTS_AT_ONCE + 1 and not told.is_behind
    assert there.names.digest == names.digest
    names.claim(1 << 40, AMY)
    assert told.is_behind
    told.go_on(there.say)
    assert there.names.get(1 << 40) == AMY and len(there.parts[-1]) == 24


def test_what_does_not_go_out_is_told_later() -> None:
    names, there = many(3), Destination(PublisherNames())
    told = NamesTold(names)
    told.connected(there.names.digest)
    there.is_open = False
    told.go_on(there.say)
    assert told.is_behind
    there.is_open = True
    told.go_on(there.say)
    assert not told.is_behind and there.names.digest == names.digest


def test_who_has_the_same_is_told_nothing_again() -> None:
    names, there = many(3), Destination(many(3))
    told = NamesTold(names)
    told.connected(there.names.digest)
    assert not told.is_behind
    # What was on its way is lost with the connection.
    names.claim(7, AMY)
    told.go_on(lambda part: True)
    told.disconnected()
    assert not told.is_behind
    told.connected(there.names.digest)
    told.go_on(there.say)
    assert there.names.get(7) == AMY


def test_who_believes_no_names_is_told_none() -> None:
    there = Destination(PublisherNames())
    told = NamesTold(many(3))
    told.connected(b"")
    told.go_on(there.say)
    assert not told.is_behind and not there.parts
