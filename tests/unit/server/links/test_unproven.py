"""In a fabric with a key: what a link may do that is let in and does not prove that it is of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.held_runs import HeldRuns
from unit.replication.membership.test_admission import logon as words
from unit.server.links.test_security import (
    SECRET,
    Peer,
    Place,
    asking,
    holds,
    logon,
    publish,
    told,
)

from raylay.services.client.client import Client
from raylay.services.errors import LogonRefused
from raylay.services.messages import records
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.child.queue_requests import QueueRequest
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.replication import lacks_frames, link_logon, names_frame
from raylay.services.replication.effects import CloseUpstream
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.instance import publishers as publishers_module
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership import admission
from raylay.services.replication.membership.admission import (
    EPOCH_STEP_MAX,
    LinkAdmitted,
    LinkRefused,
    counts,
    decide,
    refused_before,
)
from raylay.services.replication.publisher_names import PublisherNames, name_digest
from raylay.services.server.instance_server import InstanceServer

pytestmark = pytest.mark.covers("Configuration", "in a fabric with a key")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def machine(
    *destinations: DestinationRoute, ready: bool = True, key: bool = True
) -> InstanceMachine:
    return InstanceMachine(
        Identity("own", "g", 0xA, in_fabric=key),
        destinations,
        TopicBook((TopicRule(".*"),)),
        lookup=HeldRuns(),
        ready=ready,
    )


def lacks(first: int = 1, last: int = 1 << 62) -> PublisherRanges:
    missing = PublisherRanges()
    missing.of(5).add(first, last)
    return missing


FORGED = [
    {"epoch": 1 << 40, "destination": "another"},
    {"epoch": 1 << 40},
    {"incarnation": 0xC, "address": "elsewhere:2"},
]


@pytest.mark.parametrize("forged", FORGED)
def test_who_proves_it_displaces_who_does_not(forged: dict[str, Any]) -> None:
    """While the true one restarts another takes its name, its incarnation, its destination."""
    made = machine()
    assert isinstance(decide(made, 9, words(**forged), 4, is_open=True), LinkAdmitted)
    true = words(proven=True)
    assert refused_before(made, true) is None
    decided = decide(made, 10, true, 4, is_open=True)
    assert isinstance(decided, LinkAdmitted)
    closed = [each for each in decided.effects if isinstance(each, CloseUpstream)]
    assert [each.connection for each in closed] == [9]
    assert [each[2] for each in made.upstreams()] == [0xB]


def test_without_a_key_nobody_proves_anything_and_nobody_is_displaced() -> None:
    made = machine(key=False)
    assert isinstance(decide(made, 9, words(), 4, is_open=True), LinkAdmitted)
    refused = refused_before(made, words(incarnation=0xC, address="elsewhere:2"))
    assert isinstance(refused, LinkRefused) and refused.reason == "name_taken"


def test_a_name_that_somebody_only_says_keeps_no_link_of_ours_from_its_destination() -> None:
    made = machine()
    assert isinstance(decide(made, 9, words(incarnation=0xC), 4, is_open=True), LinkAdmitted)
    assert made.refuse_downstream("up", "up", 0xB, 0, "up:1") == ""
    # One that has proved it does.
    made = machine()
    assert isinstance(
        decide(made, 9, words(incarnation=0xC, proven=True), 4, is_open=True), LinkAdmitted
    )
    assert made.refuse_downstream("up", "up", 0xB, 0, "up:1").startswith("name_taken")


@pytest.mark.parametrize("proven", [False, True])
def test_only_who_proves_it_is_taken_for_the_server_of_a_destination(proven: bool) -> None:
    made = machine(DestinationRoute("up", "u", True))
    assert isinstance(decide(made, 9, words(proven=proven), 4, is_open=True), LinkAdmitted)
    assert bool(made.destinations["up"].incarnation) is proven


@pytest.mark.parametrize("proven", [False, True])
def test_clients_are_let_in_when_a_peer_that_proves_it_has_brought_all(proven: bool) -> None:
    made = machine(ready=False)
    assert isinstance(
        decide(made, 9, words(group="g", proven=proven), 4, is_open=True), LinkAdmitted
    )
    made.upstream_batch(9, 1, [], True, {}, True, 0, LookupResult())
    assert made.ready is proven


@pytest.mark.parametrize("proven", [False, True])
def test_what_is_lacking_for_good_says_only_who_proves_it(proven: bool) -> None:
    made = machine()
    assert isinstance(decide(made, 9, words(proven=proven), 4, is_open=True), LinkAdmitted)
    said = [made.upstream_lacks(9, lacks(), True) for _ in range(2)]
    assert made.missing.is_judging is proven
    if not proven:
        assert [getattr(each, "event", "") for each in said[0]] == ["lacks_unproven"]
        assert said[1] == [], "once"


@pytest.mark.parametrize("epoch", [1 << 63, (1 << 64) - 1, 4 + EPOCH_STEP_MAX + 1])
def test_an_epoch_that_no_instance_counts_to_is_refused(epoch: int) -> None:
    refused = decide(machine(), 9, words(epoch=epoch), 4, is_open=True)
    assert isinstance(refused, LinkRefused) and refused.reason == "bad_epoch"
    assert not counts(epoch, 4) and counts(4 + EPOCH_STEP_MAX, 4) and not counts(4, 4)


def unproven(**said: Any) -> bytes:
    made = logon("links", SECRET, **{"placements": {}} | said)
    made.proof = b""
    return link_logon(made)


def test_who_restarts_finds_its_epochs_as_they_were(place: Place) -> None:
    """Another says its incarnation, destination and name, and the highest epoch, meanwhile."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={})))
        await true.until("accepted")
        true.writer.close()
        await told(b, "upstream_disconnected")
        for forged in (
            {"epoch": 6 + EPOCH_STEP_MAX // 2},
            {"epoch": (1 << 64) - 1},
            {"incarnation": 78},
            {"name": "Z"},
            {"name": "Z", "destination": "C"},
        ):
            peer = await Peer.at(b)
            peer.writer.write(unproven(**forged))
            refused = await peer.until("refused")
            assert refused["reason"] == "unproven" and "fabric_key" in refused["text"], forged
        await b.stop()
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        peer.writer.write(unproven(epoch=9))
        assert (await peer.until("refused"))["reason"] == "unproven", "it is on the disk"
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={}, epoch=6)))
        await true.until("accepted")
        true.writer.close()

    place.run(visit)


def test_who_was_there_before_the_true_one_takes_none_of_its_epochs(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        peer = await Peer.at(b)
        peer.writer.write(unproven(epoch=1 << 39))
        await peer.until("accepted")
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={}, epoch=5)))
        await true.until("accepted")
        assert [each["c"] for each in await peer.said()][-1] == "refused"
        true.writer.close()

    place.run(visit)


def test_who_proves_nothing_gets_no_message_of_a_queue(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        asked: list[QueueRequest] = []
        monkeypatch.setattr(b.parts.upstreams.queues, "requested", asked.append)
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=79, name="foreign"))
        await peer.until("accepted")
        peer.writer.write(asking(1, "work") + lacks_frames(lacks(), True)[0])
        await told(b, "lacks_unproven")
        assert not asked and b.parts.instance.machine.missing.ranges.count == 0
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize("user", ["some", "links"])
def test_without_a_key_who_may_bring_every_topic_says_what_is_lacking(
    place: Place, user: str
) -> None:
    async def visit() -> None:
        b = await place.start(replace(place.guarded(), fabric_key=""))
        peer = await Peer.at(b)
        made = logon(user, SECRET, placements={}, incarnation=79)
        peer.writer.write(link_logon(made))
        await peer.until("accepted")
        peer.writer.write(lacks_frames(lacks(), True)[0] + encode_frame({"c": "batch", "n": 1}))
        await peer.until("ack")
        assert b.parts.instance.machine.missing.is_judging is (user == "links")
        peer.writer.close()

    place.run(visit)


def test_nothing_on_disk_is_of_who_proves_nothing(place: Place, monkeypatch: Any) -> None:
    """It could invent an incarnation, a name and a destination for each of its connections."""
    monkeypatch.setattr(admission, "UNPROVEN_MAX", 2)

    async def visit() -> None:
        b = await place.start(place.guarded())
        named: dict[int, str] = {}
        monkeypatch.setattr(b.parts.upstreams.queues, "named", named.update)
        before = dict(b.parts.instance.state.items(""))
        for number in range(4):
            peer = await Peer.at(b)
            said = {"incarnation": 100 + number, "name": f"n{number}", "destination": f"d{number}"}
            peer.writer.write(unproven(**said))
            await peer.until("accepted")
            peer.writer.close()
        assert dict(b.parts.instance.state.items("")) == before
        assert sorted(named) == [100, 101], "queues keep the names that they are told"
        # An older connection of the same link is known by its epoch; who proves it is written down.
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=103, name="n3", destination="d3"))
        assert (await peer.until("refused"))["reason"] == "stale_epoch"
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={})))
        await true.until("accepted")
        true.writer.close()
        assert {key for key, _ in b.parts.instance.state.items("epoch/")} == {f"epoch/{77:016x}/B"}
        assert named[77] == "A"

    place.run(visit)


def test_without_a_key_epochs_on_disk_are_those_of_so_many_links(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was left on disk for each incarnation that somebody invented. Links that are connected
    keep theirs, and whoever comes again is not forgotten for it."""
    monkeypatch.setattr(admission, "STORED_MAX", 3)
    config = replace(place.guarded(), fabric_key="")

    async def comes(b: InstanceServer, incarnation: int, epoch: int = 5) -> Peer:
        peer = await Peer.at(b)
        name = f"n{incarnation}"
        peer.writer.write(unproven(incarnation=incarnation, name=name, epoch=epoch))
        await peer.until("waited")
        return peer

    async def goes(b: InstanceServer, peer: Peer, left: int) -> None:
        peer.writer.close()
        while len(b.parts.upstreams.connected) > left:
            await asyncio.sleep(0)

    def stored(b: InstanceServer) -> list[int]:
        keys = [key for key, _ in b.parts.instance.state.items("epoch/")]
        return sorted(int(key.split("/")[1], 16) for key in keys)

    async def visit() -> None:
        b = await place.start(config)
        stays = await comes(b, 1)
        for incarnation in (2, 3, 4):
            await goes(b, await comes(b, incarnation), 1)
        assert stored(b) == [1, 3, 4], "1 is connected"
        await goes(b, await comes(b, 3, 6), 1)
        await goes(b, await comes(b, 5), 1)
        assert stored(b) == [1, 3, 5]
        await goes(b, stays, 0)
        await b.stop()
        again = await place.start(b.runtime.config)
        for incarnation in (6, 7):
            await goes(again, await comes(again, incarnation), 0)
        assert len(stored(again)) == 3 and {6, 7} <= {*stored(again)}, "those of before count, too"

    place.run(visit)


def test_epochs_of_who_proves_nothing_are_remembered_up_to_a_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_MAX", 2)
    links = admission.UnprovenLinks()
    assert links.take_epoch(words(incarnation=1, epoch=5)) == 0
    assert links.take_epoch(words(incarnation=2, epoch=5)) == 0
    assert links.take_epoch(words(incarnation=1, epoch=4)) == 5, "a lower one is not remembered"
    assert links.take_epoch(words(incarnation=3, epoch=5)) == 0
    assert links.take_epoch(words(incarnation=1, epoch=6)) == 5
    assert links.take_epoch(words(incarnation=2, epoch=6)) == 0, "not heard of for longest"


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_whom_ids_belong_to_says_only_who_proves_it(place: Place) -> None:
    part = PublisherNames([(7, name_digest("p"))]).part(0)

    async def visit() -> None:
        b = await place.start(place.guarded())
        names = b.parts.instance.machine.publisher_names
        peer = await Peer.at(b)
        peer.writer.write(unproven(incarnation=79, name="foreign"))
        assert "names" not in await peer.until("accepted")
        peer.writer.write(names_frame(part))
        assert (await peer.until("refused"))["reason"] == "bad_command"
        assert len(names) == 0
        true = await Peer.at(b)
        true.writer.write(link_logon(logon("links", SECRET, placements={})))
        assert (await true.until("accepted"))["names"] == names.digest
        true.writer.write(names_frame(part) + names_frame(b"no names"))
        assert (await true.until("refused"))["reason"] == "bad_names"
        assert names.get(7) == name_digest("p")
        await b.stop()
        b = await place.start(place.guarded())
        assert b.parts.instance.machine.publisher_names.get(7) == name_digest("p")

    place.run(visit)


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
@pytest.mark.parametrize(("key", "is_direct"), [("", False), ("a key", False), ("a key", True)])
def test_who_never_saw_a_client_knows_its_id(
    place: Place, key: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody logs on with a name that has the id of a client of another instance."""
    of = records.publisher_id
    monkeypatch.setattr(
        publishers_module, "publisher_id", lambda name: of("p" if name == "forger" else name)
    )

    async def forge(server: InstanceServer) -> None:
        address = server.runtime.client_address
        with pytest.raises(LogonRefused, match="belongs to another client name"):
            async with Client("forger", [address]):
                pass
        text = await told(server, "publisher_conflict")
        assert '"client": "forger"' in text and server.status()["publisher_conflicts"] == 1
        assert server.parts.status.snapshot()["publisher_conflicts"] == 1

    async def visit() -> None:
        b = await place.start(replace(place.guarded(), fabric_key=key))
        a = await place.start(replace(place.sender(b, place.says()), fabric_key=key))
        if is_direct:
            await told(a, "link_direct")
        await publish(a, "orders")
        await holds(b, 1)
        await forge(a)
        names = b.parts.instance.machine.publisher_names
        if not key:
            assert len(names) == 0, "a link proves nothing"
            return
        while not len(names):
            await asyncio.sleep(0.01)
        await forge(b)
        for server in (a, b):
            await server.stop()
        # Nothing of it is in the journal, which may be removed.
        b = await place.start(replace(place.guarded(), fabric_key=key))
        assert b.status()["publisher_names"] == 1
        await forge(b)

    place.run(visit)
