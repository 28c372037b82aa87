"""What a retired directory still has to send, and when it is done; whole runs are in tests/sim."""

from __future__ import annotations

import pytest

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, RecordBuilder, Run, publisher_id, run_of, scan
from raylay.services.replication.effects import LinkAnswered, LinkProgress, SendBatch
from raylay.services.replication.instance import Identity
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.salvage import SUCCESSOR, Salvage

pytestmark = pytest.mark.covers("Moved instances", "what only a retired directory held comes back")

OWN, PEER = 0xA, 0xB
P = publisher_id("p")


def journal(last: int) -> list[Run]:
    """A client's messages, awaited here as they were when they came."""
    builder = RecordBuilder(P, "orders", "json")
    payload = b"".join(builder.build(sequence, b"x", 0) for sequence in range(1, last + 1))
    (chunk,) = scan(payload)
    run = run_of(chunk, payload)
    run.first_txid = 1
    run.flags |= Flag.AWAITED
    return [run]


def salvage() -> Salvage:
    waits = DestinationRoute("to-peer", "g", True, addresses=("peer",), dials=False)
    return Salvage(Identity("own", "g", OWN), [waits], 3)


def test_every_destination_and_the_successor_is_dialled() -> None:
    found = salvage()
    assert list(found.destinations) == ["to-peer", SUCCESSOR]
    assert all(each.dials for each in found.destinations.values())
    assert found.destinations[SUCCESSOR].pass_through == ".*", "it is to have everything"
    assert found.destinations[SUCCESSOR].addresses == ("own",)


def test_what_is_held_is_not_sent_and_nobody_is_asked_for_more_than_stored() -> None:
    found = salvage()
    link = found.link("to-peer", 1 << 20)
    held = PublisherRanges()
    held.add_ranges(P, [(1, 2)])
    effects = link.connected(PEER, held, found.start("to-peer", "peer"), 1)
    effects += link.take(journal(3))
    (batch,) = [effect for effect in effects if isinstance(effect, SendBatch)]
    assert [run.ranges() for run in batch.runs] == [[(3, 3)]]
    assert not batch.marked and not batch.awaited and batch.caught_up and batch.lacks is None
    found.step("to-peer", effects)
    assert not found.is_done
    found.step("to-peer", link.acked(batch.number, {}, {}, {}))
    progress = found.progress["to-peer"]
    assert progress.done and progress.sent == 1 and progress.server == "peer"
    assert not found.is_done, "its successor has not answered"
    found.step(SUCCESSOR, [LinkProgress(3, {}, True, 0)])
    assert found.is_done


def test_a_link_that_begins_again_counts_from_there() -> None:
    found = salvage()
    found.start("to-peer", "peer")
    found.step("to-peer", [LinkProgress(0, {P: [(1, 3)]}, False, 0)])
    assert found.progress["to-peer"].sent == 3
    found.start("to-peer", "peer")
    assert found.progress["to-peer"].sent == 0 and not found.progress["to-peer"].done


def test_what_is_held_with_another_content_is_counted_once() -> None:
    found = salvage()
    for name in found.destinations:
        found.step(name, [LinkAnswered({}, {P: [(2, 3)]})])
    assert found.conflicts == 2
