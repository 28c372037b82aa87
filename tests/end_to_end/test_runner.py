"""An instance on a thread, as its actor runs it: what it says while it does not serve."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import DEADLINE_S, Client, free_ports

from raylay.services.admin.fabric_summary import Summarizer
from raylay.services.capacity.config import CapacityConfig
from raylay.services.client import EPOCH, SyncClient
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    LinkConfig,
)
from raylay.services.errors import AdmissionRefused, FabricError, StorageError
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.instance import tick_policy
from raylay.services.server import periodic_checks, runner
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.runner import InstanceThread
from raylay.storage.lmdb_journal import LmdbJournal

pytestmark = pytest.mark.covers(
    "Resync and bootstrap", "a new disk whose group never returns is admitted"
)

POLL_S = 0.02


class NoLink:
    """A link that never says anything."""

    def __init__(self, config: LinkConfig) -> None:
        pass

    def kill(self) -> None:
        """It never lived."""


Make = Callable[[InstanceConfig], InstanceThread]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    # This process is the tests' own: its garbage collector stays as it is.
    monkeypatch.setattr(runner, "prepare_process", lambda: None)
    made: list[InstanceThread] = []

    def _make(config: InstanceConfig) -> InstanceThread:
        config.save(tmp_path)
        thread = InstanceThread(str(tmp_path), config.name, NoLink)
        thread.start()
        made.append(thread)
        return thread

    yield _make
    for thread in made:
        assert thread.stop()


def until(thread: InstanceThread, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = time.monotonic() + DEADLINE_S
    while not wanted(status := thread.status()):
        assert time.monotonic() < deadline_s, status
        time.sleep(POLL_S)
    return status


def test_an_instance_that_waits_for_its_group_is_admitted_by_force(make: Make) -> None:
    peer = DestinationConfig("A", "g", addresses=(f"127.0.0.1:{free_ports(1)[0]}",))
    thread = make(InstanceConfig("B", "g", destinations=(peer,)))
    status = until(thread, lambda status: status["state"] == "catching_up")
    assert "`raylay admit B`" in status["reason"]
    with pytest.raises(AdmissionRefused, match="A of group g is not connected; wait until"):
        thread.control("admit", {"senders": ()})
    assert not thread.status()["ready"]
    thread.control("admit", {"senders": (), "force": True})
    assert thread.status()["ready"]
    (admitted,) = [event for event in thread.events() if event["event"] == "admitted"]
    assert admitted["forced"] and "not connected" in admitted["why"]
    thread.control("admit", {"senders": ()})
    assert len([e for e in thread.events() if e["event"] == "admitted"]) == 1, "it was ready"


def test_an_instance_that_waits_for_a_source_says_so_and_stops(make: Make) -> None:
    source = f"127.0.0.1:{free_ports(1)[0]}"
    thread = make(InstanceConfig("B", "g", bootstrap=BootstrapConfig((source,))))
    status = until(thread, lambda status: bool(status.get("bootstrap", {}).get("why")))
    assert status["state"] == "recovering" and status["bootstrap"]["source"] == source
    assert source in status["bootstrap"]["why"] and not status["bootstrap"]["done"]
    events = [event["event"] for event in thread.events()]
    assert events[:2] == ["bootstrap_started", "bootstrap_failed"]
    assert thread.stop(), "without a source"


def test_an_instance_that_cannot_close_its_journal_stops_and_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = make(InstanceConfig("A", "g"))
    until(thread, lambda status: bool(status["ready"]))
    close = LmdbJournal.close

    def broken(journal: LmdbJournal) -> None:
        close(journal)
        raise StorageError("removable cannot be written")

    monkeypatch.setattr(LmdbJournal, "close", broken)
    with pytest.raises(StorageError, match="removable cannot be written"):
        thread.stop()
    assert thread.stop(), "it has"


@pytest.fixture
def at_rest_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance where nothing goes on looks at nothing, unless something ends its rest."""
    monkeypatch.setattr(periodic_checks, "REST_S", 36_000.0)
    monkeypatch.setattr(tick_policy, "QUIET_LOOK_US", 36_000_000_000)


def rests(thread: InstanceThread) -> bool:
    server = thread._server
    return server is not None and server.runtime.is_resting


def events_of(thread: InstanceThread, name: str) -> list[dict[str, Any]]:
    return [event for event in thread.events() if event["event"] == name]


@pytest.mark.usefixtures("at_rest_for_hours")
def test_a_publish_ends_the_rest_of_an_instance(make: Make) -> None:
    peer = DestinationConfig(
        "b", "g", addresses=(f"127.0.0.1:{free_ports(1)[0]}",), heartbeat_ms=100_000_000
    )
    policy = DowngradePolicy(age_ms=50)
    thread = make(InstanceConfig("A", "g", first=True, destinations=(peer,), policy=policy))
    servers = [until(thread, lambda status: bool(status["ready"]))["client_address"]]
    with SyncClient("feed", servers=servers) as feed:
        until(thread, lambda _: rests(thread))
        feed.publish("orders", b"1")
        feed.flush(DEADLINE_S / 3)
        assert len(events_of(thread, "downgraded")) == 1
        assert not rests(thread), "it may be upgraded any time"


@pytest.mark.usefixtures("at_rest_for_hours")
def test_who_stops_reading_what_is_not_journaled_ends_the_rest_of_an_instance(make: Make) -> None:
    """He is ended by his age, at a check."""
    config = InstanceConfig(
        "A",
        "g",
        first=True,
        topics=(TopicRule("kept"),),
        capacity=CapacityConfig(message_age_ms_max=50, client_share=1.0),
    )
    thread = make(config)
    address = until(thread, lambda status: bool(status["ready"]))["client_address"]
    slow = Client(address, "slow")
    slow.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s", "a": "processed"})
    slow.ack(cid="s")
    with SyncClient("feed", servers=[address]) as feed:
        until(thread, lambda _: rests(thread))
        for _ in range(60):
            feed.publish("orders", bytes(500_000))
        feed.flush()
        until(thread, lambda _: bool(events_of(thread, "slow_client")))


@pytest.mark.usefixtures("at_rest_for_hours")
def test_a_replay_ends_the_rest_of_an_instance(make: Make) -> None:
    thread = make(InstanceConfig("A", "g", first=True))
    servers = [until(thread, lambda status: bool(status["ready"]))["client_address"]]
    with SyncClient("desk", servers=servers) as desk:
        until(thread, lambda _: rests(thread))
        server, checked = thread._server, threading.Event()
        assert server is not None
        server.parts.replays.keep_ticking = checked.set  # type: ignore[method-assign]
        desk.subscribe("orders", bookmark=EPOCH)
        assert checked.wait(DEADLINE_S)


async def for_ever(server: InstanceServer) -> None:
    await asyncio.Event().wait()


def test_who_asked_something_of_an_instance_that_ends_is_told(make: Make) -> None:
    thread = make(InstanceConfig("A", "g"))
    until(thread, lambda status: bool(status["ready"]))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(thread._call, for_ever)
        while not thread._asked:
            time.sleep(POLL_S)
        assert thread.stop()
        with pytest.raises(FabricError, match="A has ended meanwhile"):
            asked.result(DEADLINE_S)
    thread.authorize("kill", None, {})
    with pytest.raises(FabricError, match="A has ended"):
        thread.events()
    assert not thread._asked


def test_a_loop_that_closes_leaves_nobody_who_asked_waiting(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked between the loop's last turn and its end is never begun."""
    late: list[Future[None]] = []

    class Loop(asyncio.SelectorEventLoop):
        def close(self) -> None:
            if not late and thread._stopping.is_set():
                server = thread._server
                assert server is not None
                late.append(pool.submit(thread._ask, for_ever(server)))
                while not thread._asked:
                    time.sleep(POLL_S)
            super().close()

    monkeypatch.setattr(runner, "new_loop", Loop)
    with ThreadPoolExecutor() as pool:
        thread = make(InstanceConfig("A", "g"))
        until(thread, lambda status: bool(status["ready"]))
        assert thread.stop()
        with pytest.raises(FabricError, match="A has ended meanwhile"):
            late[0].result(DEADLINE_S)


def test_the_status_tells_the_topics_and_who_subscribes(make: Make) -> None:
    thread = make(InstanceConfig("A", "g"))
    servers = [until(thread, lambda status: bool(status["ready"]))["client_address"]]
    with SyncClient("feed", servers=servers) as feed, SyncClient("desk", servers=servers) as desk:
        for number in range(3):
            feed.publish("orders", b"%d" % number)
        feed.flush()
        reading = desk.subscribe("^orders", bookmark=EPOCH)
        assert [next(reading).body for _ in range(3)] == [b"0", b"1", b"2"]
        following = desk.subscribe("orders")
        status = thread.status()
        following.unsubscribe()
    (_, told) = sorted(status["subscribers"], key=lambda each: bool(each["bookmark"]))
    (topic,) = status["topics"]
    assert (topic.topic, topic.message_type, topic.messages) == ("orders", "json", 3)
    assert (told["client"], told["topic"], told["bookmark"]) == ("desk", "^orders", True)
    assert (told["delivered"], told["behind"]) == (3, 0)
    # `raylay top` reads the same where no interface listens.
    summary = Summarizer().take(status, time_us=1, steady_us=1)
    (orders,) = summary.topics
    assert (orders.name, orders.subscribers) == ("orders", 1)
