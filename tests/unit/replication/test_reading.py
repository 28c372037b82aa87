"""What only reads must only read: status, metrics, floors and hints are asked for at any moment,
and a machine that was asked must go on as one that nobody asked."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.held_runs import HeldRuns

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, RecordBuilder, Run, publisher_id, run_of, scan
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.ages import AGE_BUCKET_US
from raylay.services.replication.effects import Append
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.server.instance_server import InstanceServer

OWN, PEER = 0xA, 0xB
CLIENTS = ("p", "q")

QUESTIONS: dict[str, Callable[[InstanceMachine], object]] = {
    "durable_floor": InstanceMachine.durable_floor,
    "recovery_point": InstanceMachine.recovery_point,
    "fully_durable_txid": InstanceMachine.fully_durable_txid,
    "removable_before": InstanceMachine.removable_before,
    "held": InstanceMachine.held,
    "staged_runs": InstanceMachine.staged_runs,
    "admission_risk": lambda machine: machine.admission_risk(("u",)),
    "received_of": lambda machine: machine.received_of(1),
    "sessions": InstanceMachine.sessions,
    "upstreams": InstanceMachine.upstreams,
    "oldest_unacked": lambda machine: [
        ledger.oldest_unacked() for ledger in machine.destinations.values()
    ],
    "why_unsafe": lambda machine: [ledger.why_unsafe for ledger in machine.destinations.values()],
    "sizes": lambda machine: (machine.pending.count, machine.missing.ranges.count),
    "check_invariants": InstanceMachine.check_invariants,
}


def dump(value: Any, seen: set[int] | None = None) -> Any:
    """All that a machine is made of, as plain values; what is callable is no state."""
    seen = seen if seen is not None else set()
    if isinstance(value, int | str | bytes | float | enum.Enum) or value is None:
        return value
    if isinstance(value, dict):
        return [(dump(key, seen), dump(item, seen)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return [dump(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if callable(value) or id(value) in seen:
        return None
    seen.add(id(value))
    names = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    # What of a map is shared with its copies is no state of it.
    names = [name for name in names if name != "_own"]
    names += list(getattr(value, "__dict__", ()))
    return [(name, dump(getattr(value, name), seen)) for name in names if hasattr(value, name)]


class Working:
    """A machine with two sync destinations, and what is done to it, a step at a time."""

    def __init__(self) -> None:
        self.committed: list[Run] = []
        self.machine = InstanceMachine(
            Identity("own", "g", OWN),
            [
                DestinationRoute(name, "g", True, pass_through=".*", addresses=(name,))
                for name in ("near", "far")
            ],
            TopicBook((TopicRule(".*"),)),
            lookup=HeldRuns(self.committed),
        )
        for session, client in enumerate(CLIENTS, 1):
            self.machine.client_logged_on(session, client, 0)
        for number, name in enumerate(("near", "far")):
            self.machine.link_connected(
                name, PEER + number, ResyncPlan(PublisherRanges(), RootedRanges()), 0
            )
            self.machine.link_progressed(name, 0, {}, True, 0, 0)

    def step(self, number: int) -> None:
        """Publishes, commits, and lets each destination answer what is two steps old."""
        now_us = number * AGE_BUCKET_US
        machine = self.machine
        for session, client in enumerate(CLIENTS, 1):
            record = RecordBuilder(publisher_id(client), "orders", "json").build(number, b"x", 0)
            (chunk,) = scan(record)
            run_of(chunk, record).flags |= Flag.AWAITED
            runs = machine.client_runs(session, record)
            effects, _ = machine.client_published(session, runs, now_us, LookupResult())
            self.committed += [effect.run for effect in effects if isinstance(effect, Append)]
        machine.committed(machine.next_txid - 1, now_us)
        for name in ("near", "far"):
            if number > 2 and not (name == "far" and number % 5 == 0):
                answered = {publisher_id(client): [(number - 2, number - 2)] for client in CLIENTS}
                machine.link_answered(name, {OWN: answered}, {})
        machine.tick(now_us)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_changes_nothing(question: str) -> None:
    working = Working()
    for number in range(1, 12):
        working.step(number)
        before = dump(working.machine)
        QUESTIONS[question](working.machine)
        assert dump(working.machine) == before


def test_nothing_loses_its_age_by_being_asked_for_it_at_any_moment() -> None:
    """The oldest bucket is looked at between "it is owed" and "it is this old"."""
    working, ledger = Working(), None
    working.step(1)
    ledger = working.machine.destinations["near"]
    everything = {publisher_id(client): [(1, 1)] for client in CLIENTS}
    working.machine.link_answered("near", {OWN: everything}, {})
    ledger.unacked.of(OWN).add(publisher_id("p"), 2, 2)
    asked = ledger.oldest_unacked()
    ledger._ages.add(AGE_BUCKET_US, 3, publisher_id("p"), 2, 2)
    assert asked is None and ledger.oldest_unacked() == (AGE_BUCKET_US, 3)


def test_metrics_read_from_another_thread_while_the_machine_works(tmp_path: Path) -> None:
    """Snapshots are taken all the time by other threads: the machine ends as its twin, which nobody
    asked, and the ages that were seen are those of the twin at some step."""
    working, twin = Working(), Working()
    steps = 400
    readers: set[int] = set()

    class Watched(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            readers.add(threading.get_ident())
            return super().__getitem__(key)

    watched = Watched(working.machine.destinations)
    working.machine.destinations = watched
    seen: list[tuple[int, ...]] = []

    async def work() -> None:
        server = InstanceServer(InstanceConfig("own", "g"), tmp_path)
        await server.start()
        server.runtime.cancel_timers()
        instance = server.parts.instance
        own, instance.machine = instance.machine, working.machine
        server.runtime.steady_us = lambda: 0  # type: ignore[method-assign]
        for name in watched:
            link = SimpleNamespace(counts={}, peer_name="", address="", client_name="")
            link.config = SimpleNamespace(pass_through=None)
            link.connected_us = link.disconnected_us = link.disconnects = 0
            link.process, link.why = SimpleNamespace(pid=0, starts=0), ""
            link.direct_link = SimpleNamespace(is_direct=False, counts=dict)
            server.parts.links.controls[name] = cast(Any, link)
        ended = threading.Event()

        def scrape() -> None:
            while not ended.is_set():
                found = server.parts.status.snapshot_from_thread()["destinations"]
                seen.append(tuple(found[name]["persisted_sent"] for name in ("near", "far")))

        threads = [threading.Thread(target=scrape) for _ in range(2)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(60):
            for number in range(1, steps + 1):
                working.step(number)
                await asyncio.sleep(0)
                while len(seen) < number // 16:  # a busy machine may not run the readers for long
                    await asyncio.sleep(0.001)
        ended.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        instance.machine = own
        server.parts.links.controls.clear()
        await server.stop()

    asyncio.run(work())
    # What its links answered so far, after each step.
    possible: set[tuple[int, ...]] = {(0, 0)}
    for number in range(1, steps + 1):
        twin.step(number)
        near, far = twin.machine.destinations.values()
        possible.add((near.persisted, far.persisted))
    assert len(seen) > 20 and set(seen) <= possible
    assert readers == {threading.get_ident()}, "only the loop reads the machine"
    working.machine.destinations = dict(watched)
    assert dump(working.machine) == dump(twin.machine)
