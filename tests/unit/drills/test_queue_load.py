"""services/drills/loads/queue_load.py: the load on the drills' queue, and what is judged of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from raylay.services.drills.loads import queue_load
from raylay.services.drills.loads.queue_load import (
    NETWORK_US,
    QUEUE_STORED_AS,
    KillConsumers,
    QueueLedger,
    QueueLoad,
    QueueProducer,
    QueueWorker,
)
from raylay.services.drills.scenario import FaultHit, find
from raylay.services.errors import FabricError
from raylay.services.messages.records import publisher_id
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.history import HistoryMember
from raylay.services.verification.laws.queue_delivery import ArrivalSpan, Kill, QueueJournal

pytestmark = pytest.mark.covers("Drills", "messages of a queue against publishers")

GROUPS = {"near": ["near-1", "near-2"], "far": ["far-1"]}
NAMES = ("near-1", "near-2", "far-1")
S = 1_000_000


def said(depth: int = 0, read: int = 9) -> dict[str, Any]:
    return {
        "committed_txid": 9,
        "queues": {QUEUE_STORED_AS: {"queue_depth": depth, "folded_txid": read}},
    }


def statuses(**other: Any) -> dict[str, Any]:
    return {**dict.fromkeys(NAMES, said()), **other}


def link(*names: str) -> DestinationRoute:
    return DestinationRoute("out", "any", True, addresses=names, pass_through=".*")


BOTH_WAYS = {
    "near-1": HistoryMember("near-1", "near", (link("near-2"), link("far-1"))),
    "near-2": HistoryMember("near-2", "near", (link("near-1"), link("far-1"))),
    "far-1": HistoryMember("far-1", "far", (link("near-1"),)),
}
ONE_WAY = {**BOTH_WAYS, "far-1": HistoryMember("far-1", "far", ())}


class StubClient:
    """A client that was told that all of its messages are durable."""

    def __init__(self, persisted: int = 0) -> None:
        self.persisted_sequence = persisted
        self.closed = False
        self.status = "well"
        self.runtime = self.connection = self
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    async def flush(self, wait_s: float) -> None:
        pass

    async def close(self, *, flush: bool) -> None:
        assert not flush
        self.closed = True


def published(load: QueueLoad, count: int) -> None:
    for producer in load.producers:
        producer.times_us = {n: n * S for n in range(1, count + 1)}
        producer.client = cast(Any, StubClient(count))


# -- who has a part ------------------------------------------------------------------------------
def test_only_regions_that_have_the_queue_and_links_both_ways_have_a_part() -> None:
    load = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    assert load.regions == ["near", "far"] and load.names == list(NAMES) and not load.notes
    one = QueueLoad("1", GROUPS, statuses(), ONE_WAY)
    assert one.regions == ["near"] and one.names == ["near-1", "near-2"]
    assert one.notes == [
        "Region far had no part in it: it is not linked with the others in both directions."
    ]
    with pytest.raises(FabricError, match=r"region far has no consumers of .*no part in it"):
        one.check("far")
    one.check("near")
    some = QueueLoad("1", GROUPS, statuses(**{"near-2": {"queues": {}}}), BOTH_WAYS)
    assert some.regions == ["far"] and not some.why


def test_a_fabric_without_the_queue_is_not_judged() -> None:
    load = QueueLoad("1", GROUPS, dict.fromkeys(NAMES, cast(Any, {})), BOTH_WAYS)
    asyncio.run(load.open(lambda name, group: {}))
    verdict = load.judge({}, (), (), is_undisturbed=True)
    assert not verdict.broken and "no region has queue" in verdict.sentence
    with pytest.raises(FabricError, match="no region has queue"):
        load.check("near")


# -- what is written down ------------------------------------------------------------------------
def test_when_something_was_sent_errs_to_the_side_that_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10 * S]
    monkeypatch.setattr(queue_load, "now_us", lambda: now[0])
    ledger = QueueLedger()
    for now[0] in (10 * S, 11 * S):
        ledger.tick()
    now[0] = 15 * S  # the loop stood still since then
    ledger.came([(7, 1)], "near-1", "w", "near", 2 * S)
    # Its session is younger than that.
    ledger.came([(7, 2)], "near-1", "w", "near", 14 * S)
    assert [each.sent_us for each in ledger.given] == [10 * S - NETWORK_US, 14 * S]
    assert [each.time_us for each in ledger.given] == [15 * S, 15 * S]
    ledger.done((7, 1), "near")
    assert ledger.acked == {(7, 1)} and ledger.acknowledged == [(15 * S, "near")]


# -- killing -------------------------------------------------------------------------------------
def test_who_is_killed_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    load = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    hired: list[str] = []
    monkeypatch.setattr(load, "_begin", hired.append)

    class Message:
        acknowledged = False

        def identity(self) -> tuple[int, int]:
            return 7, 1

        def acknowledge(self) -> None:
            self.acknowledged = True

    async def main() -> None:
        load._loop = asyncio.get_running_loop()
        clients = {name: StubClient() for name in ("near", "far")}
        for region, client in clients.items():
            worker = QueueWorker(region, region, True, load.ledger, client=cast(Any, client))
            worker.held = {(7, 1), (7, 2)}
            load.workers.append(worker)
        near, far = load.workers
        injector = KillConsumers(load)
        step, hit = find("kill-consumers").steps[0], FaultHit("near", region="near")
        (note,) = await asyncio.to_thread(injector.inject, step, hit)
        assert note == "they held 2 messages that they had not acknowledged"
        assert clients["near"].aborted and clients["near"].closed and load.workers == [far]
        assert not clients["far"].aborted
        # What it was about to acknowledge.
        for worker, wanted in ((near, False), (far, True)):
            message = Message()
            worker._acknowledge(cast(Any, message))
            assert message.acknowledged is wanted
        assert load.ledger.acked == {(7, 1)}
        await asyncio.to_thread(injector.heal, step, hit)
        await asyncio.to_thread(injector.heal, step, hit)

    asyncio.run(main())
    (kill,) = load.kills
    assert hired == ["near"] and (kill.region, kill.held) == ("near", 2)
    assert [each.group for each in load.workers] == ["far", "near", "near"]
    assert kill.began_us <= kill.ended_us


# -- the end -------------------------------------------------------------------------------------
def test_queues_have_to_become_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_load, "DRAINED_S", 0.0)
    load = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    published(load, 1)
    left = iter(
        [
            {"near-1": said(3)},
            statuses(**{"far-1": said(1)}),
            # It was started again and has not read what it has: that it holds nothing says nothing.
            statuses(**{"near-2": said(0, read=8)}),
            statuses(),
        ]
    )

    async def told() -> Any:
        return next(left)

    asyncio.run(load.settle(60.0, told))
    assert load.left == dict.fromkeys(NAMES, 0) and not load.complaints
    assert next(left, None) is None
    # Who never says is not taken for empty, and nobody waits for ever.
    silent = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    published(silent, 1)

    async def nothing() -> Any:
        return {}

    asyncio.run(silent.settle(0.0, nothing))
    assert silent.left == dict.fromkeys(NAMES, 1) and not silent.complaints
    behind = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    published(behind, 1)

    async def slow() -> Any:
        return statuses(**{"near-2": said(0, read=8)})

    asyncio.run(behind.settle(0.0, slow))
    assert behind.left == {"near-1": 0, "near-2": 1, "far-1": 0}
    assert behind.complaints == [
        "the queue of near-2 has read its journal up to transaction id 8 of 9"
    ]


@pytest.mark.parametrize("planted", ["", "lost", "idle", "nobody"])
def test_what_is_judged_is_what_was_written_down(planted: str) -> None:
    load = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    published(load, 0 if planted == "nobody" else 2)
    keys = [(each, n) for each in load.publishers for n in (1, 2)]
    if planted != "nobody":
        for key in keys[planted == "lost" :]:
            load.ledger.came([key], "near-1", "w", "near", 0)
            load.ledger.done(key, "near")
    spans = [ArrivalSpan(S, publisher, 1, 2, "ack", "near-1") for publisher in load.publishers]
    load.note_left(statuses())
    if planted == "idle":
        load.kills = [Kill("near", 0, 3 * S, 1)]
    verdict = load.judge(
        dict.fromkeys(NAMES, QueueJournal(spans, spans, [])), (), (), is_undisturbed=True
    )
    assert [each.law for each in verdict.broken] == (
        ["queue lost"] + ["queue left over"] * 3 if planted == "lost" else []
    )
    told = {
        "idle": "no consumer took over the messages of near while its own were away",
        "nobody": "could not judge the queue: nothing on it was acknowledged",
    }
    assert load.complaints == ([told[planted]] if planted in told else [])
    if not planted:
        assert verdict.regions["near"].acknowledged == 4 and verdict.moved == 2


def test_publishers_are_named_apart_from_those_of_topics() -> None:
    load = QueueLoad("1", GROUPS, statuses(), BOTH_WAYS)
    assert [each.name for each in load.producers] == ["drill-1-near-queue", "drill-1-far-queue"]
    producer = QueueProducer("x", "near", times_us={4: 9})
    assert producer.produced() == (publisher_id("x"), "near", {4: 9}, 0)
