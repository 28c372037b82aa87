"""The queues of a serving instance: what owners say and are told, and what clients are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from raylay.services.config.instance import InstanceConfig
from raylay.services.core.compose import folding
from raylay.services.core.feature import CommitBatch
from raylay.services.core.queue_source import QueueSource
from raylay.services.errors import ConfigurationError, RemoteProtocolError, StorageError
from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    Run,
    iterate_records,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.child.queue_requests import QueueRequest, read_queue_request
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.client.commands import (
    QueueAck,
    QueueCancel,
    QueueStatus,
    SowCommand,
    Subscribe,
)
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.queues import records
from raylay.services.queues.clock_steps import ClockSteps
from raylay.services.queues.decisions import (
    DeliverLeased,
    LeasedDelivery,
    QueueRecordDraft,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.frontend import Flood, RoutedRequest
from raylay.services.replication.values import Identity
from raylay.services.server.clients.connection_limit import SessionShares
from raylay.services.server.clients.queue_clients import QueueClients
from raylay.services.server.occurrences import Occurrences
from raylay.services.server.queues import manager
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import (
    QueueControl,
    QueueManager,
    journaled_topics,
    opened_queues,
)
from raylay.services.server.queues.request_router import QueueRequestRouter
from raylay.services.sow.topic import SowChange
from raylay.services.telemetry.tracing import NoTracing, TracingOptions, derived, new_context

pytestmark = pytest.mark.covers("Queues", "subscribing, deliveries with the lease")

NOW_US = 1_000_000
WORK = QueueDefinition("work", "json", underlying="orders")
RECORDS = [RecordBuilder(7, "orders", "json").build(at, b"{}", 0) for at in (1, 2, 3)]


class Line:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.frames: list[Frame] = []

    def send(self, frame: bytes) -> None:
        self.frames += self.reader.feed(frame)

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        self.send(b"".join(parts))

    def close(self, why: str) -> None:
        self.closed = why

    def said(self, command: str) -> list[Frame]:
        found = [frame for frame in self.frames if frame.header["c"] == command]
        self.frames = [frame for frame in self.frames if frame not in found]
        return found


class Link:
    """Keeps what it is to carry."""

    def __init__(self, peer_name: str) -> None:
        self.peer_name = peer_name
        self.is_connected = False
        self.carried: list[QueueRequest] = []

    def queue_request(self, frame: bytes) -> None:
        (found,) = FrameReader().feed(frame)
        self.carried.append(read_queue_request(found.header, found.body))


class Session(Line):
    """A client."""

    def __init__(self, number: int, client_name: str) -> None:
        super().__init__()
        self.number = number
        self.client_name = client_name
        self.publisher = number
        self.codec = NativeCodec()
        self.is_open = self.may_write = True
        self.messages_out = 0
        self.message_types: frozenset[bytes] = frozenset()
        self.readable = None

    def sent(self, what: object) -> None:
        pass


class Bench:
    """A keeper, with its instance made of what it asks for."""

    def __init__(
        self,
        *definitions: QueueDefinition,
        announced: bool = True,
        state: dict[str, bytes] | None = None,
        next_txid: int = 9,
    ) -> None:
        self.fails: StorageError | None = None
        self.later: list[Callable[[], None]] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.authored: list[Run] = []
        self.floors: list[int] = []
        self.state: dict[str, bytes] = state or {}
        if announced:
            self.state |= {"herald/json/work": (0xA).to_bytes(8, "big")}
        config = InstanceConfig(
            "a",
            "g",
            topics=(TopicRule("orders"),),
            queue_definitions=definitions
            or (QueueDefinition("work", "json", underlying="orders"),),
        )
        self.runtime = SimpleNamespace(
            config=config,
            loop=SimpleNamespace(
                call_soon=lambda work: self.later.append(work),
                call_later=lambda delay_s, work: self.later.append(work),
            ),
            is_serving=True,
            steady_base_us=7,
            occurrences=Occurrences(),
            now_us=lambda: NOW_US,
            steady_us=lambda: NOW_US,
            report=lambda event, **details: self.reports.append((event, details)),
            spawn=lambda work: work.close(),
        )
        self.instance = SimpleNamespace(
            identity=Identity("a", "g", 0xA, life=3),
            machine=SimpleNamespace(
                next_txid=next_txid, committed_txid=6, ready=True, authored=self.author
            ),
            state=SimpleNamespace(get=self.state.get, put=self.put),
            journal=SimpleNamespace(removable=self.floors.append),
            tracing=NoTracing("a", TracingOptions()),
            perform=lambda effects: None,
        )
        self.storage = SimpleNamespace(catch_up=lambda: None, failure=None)
        commits = SimpleNamespace(cycle=self.storage)
        self.folds = folding()
        self.sessions: dict[int, Session] = {}
        self.links: dict[str, Link] = {"b": Link("b"), "c": Link("c")}
        deliveries = QueueDeliveries(
            cast(Any, self.runtime), cast(Any, self.instance), self.sessions
        )
        controls: dict[str, QueueControl] = {}
        self.sources: dict[str, QueueSource] = {}
        self.changes: list[SowChange] = []
        """Changes of messages that views would get."""
        self.manager = QueueManager(
            cast(Any, self.runtime),
            cast(Any, self.instance),
            opened_queues(config, self.instance.identity, controls),
            controls,
            self.folds,
            cast(Any, commits),
            cast(Any, None),
            links=self.links,
            requests=QueueRequestRouter("g", self.links),
            deliveries=deliveries,
            sources=self.sources,
            changed=self.changes.extend,
        )
        self.clients = QueueClients(
            cast(Any, self.runtime), self.manager, deliveries, SessionShares()
        )

    async def put(self, values: dict[str, bytes | None]) -> None:
        if self.fails is not None:
            raise self.fails
        for key, value in values.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value

    def author(self, runs: list[Run], now_us: int) -> list[Any]:
        txid = self.instance.machine.next_txid
        for run in runs:
            run.first_txid = txid
            txid += run.count
        self.instance.machine.next_txid = txid
        self.authored += runs
        return []

    def turn(self) -> None:
        later, self.later = self.later, []
        for work in later:
            work()

    @property
    def work(self) -> QueueControl:
        return self.manager.controls["json/work"]

    def owner(self) -> Line:
        """An owner that has connected."""
        line = Line()
        header = {"c": "hello", "queue": "json/work", "start": self.work.process.number, "pid": 5}
        assert self.manager.greeted(cast(Any, line), header) is self.work
        return line

    def client(self, number: int = 1, **options: Any) -> Session:
        found = self.sessions[number] = Session(number, f"client{number}")
        self.subscribe(found, **options)
        return found

    def subscribe(self, client: Session, **options: Any) -> None:
        frontend = self.clients.find("work", "json")
        assert frontend is not None
        every = ("s", "work", "json", "", "", frozenset[str](), "now", None, 0, False, False)
        self.clients.subscribe(client, Subscribe(*every, **options), frontend)

    def says(self, frame: bytes) -> None:
        """The owner says something."""
        (found,) = FrameReader().feed(frame)
        self.work.frame_received(*found)

    def delivers(self, *messages: LeasedDelivery, folded_txid: int = 8, of: int = 1) -> None:
        decision = DeliverLeased((1, f"{of}:s"), messages, folded_txid)
        found = [RECORDS[each.key[1] - 1] for each in messages]
        self.says(b"".join(control.deliver(decision, found)[0]))

    def commits(self, *keys: tuple[int, int], txid: int = 9) -> None:
        body = records.pack_acknowledgment(records.Acknowledgment(records.keys_of(keys)))
        draft = RecordBuilder(1, "work", "json").build(
            1, body, 0, command=Command.QUEUE_ACKNOWLEDGMENT
        )
        from raylay.services.messages.records import run_of, scan

        run = run_of(scan(draft)[0], draft)
        run.first_txid = txid
        self.folds.fold(CommitBatch([run], txid))


ONE, TWO = LeasedDelivery(2, (7, 1), 91, 0), LeasedDelivery(3, (7, 2), 92, NOW_US + 500_000)


@pytest.mark.covers("Fabrics and tracing", "a sampled message of a queue shows enqueue")
def test_a_sampled_message_has_a_span_below_its_lease_and_its_client_is_told_of_it() -> None:
    bench = Bench()
    spans: list[tuple[str, bytes, int, int, Any, bytes]] = []

    def span(name: str, parent: bytes, start: int, end: int, said: Any, *, own: bytes) -> None:
        spans.append((name, parent, start, end, said, own))

    bench.instance.tracing = NoTracing("a", TracingOptions())
    bench.instance.tracing.span = span  # type: ignore[method-assign, assignment]
    bench.owner()
    client = bench.client()
    context = new_context()
    builder = RecordBuilder(7, "orders", "json")
    found = [builder.build(1, b"{}", 0, context), RECORDS[1]]
    decision = DeliverLeased((1, "1:s"), (ONE, TWO), 8)
    bench.says(b"".join(control.deliver(decision, found, decided_us=NOW_US - 5)[0]))
    ((header, body),) = client.said("p")
    assert (header["tr"], header["ts"], body) == (1, NOW_US, b"".join(found))
    ((name, parent, start_ns, end_ns, said, own),) = spans
    assert (name, start_ns, said["bookmark"], said["client"]) == (
        "delivery",
        (NOW_US - 5) * 1000,
        "7|1|",
        "client1",
    )
    assert parent == derived(context, "lease", "a", "work", 91) and end_ns > start_ns
    assert own == derived(context, "delivery", "a", "client1", "s", NOW_US)
    # Nobody walks records that do not fit together: an owner may be hit by anything.
    damaged = [found[0], bytes(4) + found[1][4:]]
    with pytest.raises(RemoteProtocolError, match="do not fit together"):
        bench.says(b"".join(control.deliver(decision, damaged, decided_us=NOW_US)[0]))
    # What holds none is not looked at.
    bench.delivers(LeasedDelivery(4, (7, 3), 93, 0))
    ((header, _),) = client.said("p")
    assert "tr" not in header and len(spans) == 1


def test_without_queues_there_is_nothing() -> None:
    bench = Bench()
    bench.runtime.config.queue_definitions = ()
    nothing = cast(Any, None)
    manager = QueueManager(
        cast(Any, bench.runtime),
        cast(Any, bench.instance),
        opened_queues(cast(Any, bench.runtime.config), bench.instance.identity, {}),
        {},
        folding(),
        nothing,
        nothing,
        links={},
        requests=nothing,
        deliveries=nothing,
        sources={},
        changed=lambda changes: None,
    )
    assert manager.queues is None
    assert journaled_topics(bench.runtime.config) == bench.runtime.config.topics
    manager.run()
    manager.check()
    manager.became_ready()
    manager.named({1: "b"})
    manager.removable(5)
    # Where a server of a link comes back with less, nothing may be removed.
    manager.removable(0)
    assert bench.floors == [5, 0] and manager.status() == {} and not manager._folds.served
    assert not manager.asked(RoutedRequest(1, 2, 3, "b", "json/work", 1, []))


def test_an_owner_begins_with_what_there_is() -> None:
    bench = Bench()
    bench.client()
    (begin,) = bench.owner().said("begin")
    found = control.read_begin(*begin)
    assert (found.fence_txid, found.committed_txid, found.serves) == (8, 6, True)
    assert [each.client for each in found.consumers] == ["client1"]
    other = {"c": "hello", "queue": "json/work", "start": 1, "pid": 5}
    assert bench.manager.greeted(cast(Any, Line()), other) is None


def test_what_is_delivered_goes_to_the_client_as_it_came() -> None:
    bench = Bench()
    client = bench.client(max_backlog=5)
    owner = bench.owner()
    bench.delivers(ONE, TWO)
    (frame,) = client.said("p")
    assert frame.header == {"c": "p", "sub": "s", "n": 2, "ts": NOW_US, "q": 1} and not owner.said(
        "bounce"
    )
    assert frame.body == RECORDS[0] + RECORDS[1]
    bench.delivers(TWO)
    assert client.said("p")[0].header["lp"] == 500


def test_what_is_gone_meanwhile_goes_back_and_the_rest_to_the_client() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    bench.commits((7, 1))
    bench.turn()
    assert owner.said("told")[-1].header["tx"] == 9
    bench.delivers(ONE, TWO)
    (frame,) = client.said("p")
    assert frame.body == RECORDS[1] and frame.header["n"] == 1
    (back,) = owner.said("bounce")
    assert control.read_leases(back.body) == [((7, 1), 91)]
    bench.clients.gone(client)
    assert owner.said("left")
    bench.delivers(TWO)
    assert owner.said("bounce") and not client.said("p")


def test_an_owner_is_told_of_acknowledgments_once_for_many_and_of_messages_at_once() -> None:
    bench = Bench()
    owner = bench.owner()
    for txid in (9, 10):
        bench.commits((7, 1), txid=txid)
    assert not owner.said("told") and len(bench.later) == 1
    bench.turn()
    assert [frame.header["tx"] for frame in owner.said("told")] == [10]
    bench.commits((7, 2), txid=11)
    message = run_of(scan(RECORDS[2])[0], RECORDS[2])
    message.first_txid = 12
    bench.folds.fold(CommitBatch([message], 12))
    assert [frame.header["tx"] for frame in owner.said("told")] == [12]
    bench.turn()
    assert not owner.said("told")


def test_what_an_owner_is_asked_is_of_all_that_is_committed() -> None:
    bench = Bench(QueueDefinition("work", "json", kind="queue", underlying="orders"))
    owner = bench.owner()
    bench.commits((7, 1))
    bench.work.ask(control.QueueQuestion("status"), lambda answer: None)
    assert [frame.header["c"] for frame in owner.frames[-2:]] == ["told", "ask"]
    bench.commits((7, 2), txid=10)
    asked = RoutedRequest(0xB, 1, 1, "b", "json/work", 8, [])
    assert bench.manager.asked(asked)
    assert [frame.header["c"] for frame in owner.frames[-2:]] == ["told", "request"]


def test_a_consumer_leaves_behind_its_acknowledgments() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    bench.commits((7, 1))
    bench.clients.gone(client)
    assert [frame.header["c"] for frame in owner.frames[-2:]] == ["told", "left"]


def test_a_client_whose_socket_is_full_is_sent_no_more_until_it_is_not() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    client.may_write = False
    bench.delivers(ONE)
    bench.delivers(TWO)
    assert [frame.header["max"] for frame in owner.said("sub")] == [0]
    client.may_write = True
    bench.clients.writable(client)
    assert [frame.header["max"] for frame in owner.said("sub")] == [5]
    bench.clients.writable(client)
    assert not owner.said("sub")


@pytest.mark.covers("Clients and protocol", "a consumer of a queue that goes offline keeps")
def test_a_client_that_goes_offline_is_given_nothing_whatever_it_says_until_it_is_online() -> None:
    """Though no queue sent it anything since its socket is full, and its queue's process is
    killed."""
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    client.may_write = False
    bench.clients.went_offline(client)
    assert [frame.header["max"] for frame in owner.said("sub")] == [0]
    bench.clients.went_offline(client)
    assert not owner.said("sub")
    bench.subscribe(client, max_backlog=7)
    assert [frame.header["max"] for frame in owner.said("sub")] == [0]
    bench.work.lost(cast(Any, owner), "killed")
    another = bench.owner()
    (began,) = another.said("begin")
    (told,) = control.read_begin(began.header, began.body).consumers
    assert told.backlog_max == 0
    client.may_write = True
    bench.clients.writable(client)
    assert [frame.header["max"] for frame in another.said("sub")] == [7]


def test_a_subscription_that_ended_while_its_client_was_offline_is_none_when_it_is_online() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    client.may_write = False
    bench.clients.went_offline(client)
    assert bench.clients.unsubscribe(client, "s")
    client.may_write = True
    owner.said("sub")
    bench.clients.writable(client)
    assert not owner.said("sub") and not bench.work.frontend.consumers


def test_what_takes_long_to_be_folded_is_not_hurried_for_a_delivery() -> None:
    """Something else folds a commit in turns; that a message was acknowledged stands behind it."""
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    unfolded = SimpleNamespace(folded_txid=5)
    bench.folds.unfolded = cast(Any, unfolded)
    bench.delivers(ONE, TWO, folded_txid=5)
    bench.delivers(LeasedDelivery(4, (7, 3), 93, 0), folded_txid=5)
    assert not client.said("p") and not owner.said("bounce")
    unfolded.folded_txid = 6
    bench.commits((7, 1), txid=6)
    assert b"".join(frame.body for frame in client.said("p")) == RECORDS[1] + RECORDS[2]
    (frame,) = owner.said("bounce")
    assert control.read_leases(frame.body) == [((7, 1), 91)]


def test_what_an_owner_decided_that_ended_is_not_done() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    bench.folds.unfolded = cast(Any, SimpleNamespace(folded_txid=5))
    bench.delivers(ONE)
    bench.work.lost(cast(Any, owner), "killed")
    bench.folds.unfolded = None
    bench.commits((7, 2), txid=6)
    assert not client.said("p") and not bench.work.frontend.lease_count


def test_drafts_are_journaled_together_and_told_where_they_fail() -> None:
    bench = Bench()
    owner = bench.owner()
    for tag in (1, 2):
        body = records.pack_removal(records.Removal("a", tag, {7: [(tag, tag)]}, "time_limit"))
        bench.says(control.draft(QueueRecordDraft(tag, Command.QUEUE_REMOVAL, body)))
    assert len(bench.later) == 1
    bench.turn()
    (run,) = bench.authored
    assert run.count == 2 and run.topic == b"work"
    bench.folds.failed(6)
    (failed,) = owner.said("failed")
    assert control.read_tags(failed.body) == [1, 2] and failed.header["tx"] == 6
    with pytest.raises(RemoteProtocolError, match="command 1"):
        bench.says(control.draft(QueueRecordDraft(1, Command.PUBLISH, b"")))


@pytest.mark.covers("Queues", "a dead letter is in the journal before its message is gone")
def test_a_removal_that_comes_behind_a_failed_append_has_its_letters() -> None:
    definition = QueueDefinition("work", "json", underlying="orders", dead_letters="failed")
    bench = Bench(definition)
    bench.owner()
    bench.says(b"".join(control.letters("time_limit", [RECORDS[1]], [0])[0]))
    while bench.later:
        bench.turn()
    bench.folds.failed(6)
    body = records.pack_removal(records.Removal("a", 1, {7: [(1, 1)]}, "time_limit"))
    bench.authored.clear()
    bench.says(control.draft(QueueRecordDraft(1, Command.QUEUE_REMOVAL, body)))
    bench.turn()
    assert [run.topic for run in bench.authored] == [b"failed", b"work"]


def test_letters_of_an_owner_that_ended_are_not_those_of_the_next_one() -> None:
    definition = QueueDefinition("work", "json", underlying="orders", dead_letters="failed")
    bench = Bench(definition)
    owner = bench.owner()
    bench.says(b"".join(control.letters("time_limit", [RECORDS[1]], [0])[0]))
    bench.work.lost(cast(Any, owner), "killed")
    bench.owner()
    body = records.pack_removal(records.Removal("a", 1, {7: [(2, 2)]}, "left"))
    bench.says(control.draft(QueueRecordDraft(1, Command.QUEUE_REMOVAL, body)))
    bench.turn()
    assert [run.topic for run in bench.authored] == [b"work"]


def test_the_journal_stays_as_far_as_any_queue_needs_it() -> None:
    more = QueueDefinition("more", "json")
    bench = Bench(QueueDefinition("work", "json", underlying="orders"), more)
    bench.manager.removable(100)
    bench.says(control.floor(50))
    assert bench.floors == [1, 1]
    bench.manager.controls["json/more"].frame_received({"c": "floor", "tx": 60}, b"")
    bench.says(control.floor(200))
    assert bench.floors[2:] == [51, 61]
    bench.manager.controls["json/more"].frame_received({"c": "floor", "tx": 300}, b"")
    assert bench.floors[-1] == 100
    bench.manager.removable(0)
    assert bench.floors[-1] == 0


def test_topics_of_queues_are_journaled() -> None:
    assert journaled_topics(Bench().runtime.config) == (
        TopicRule("orders"),
        TopicRule("work", "json"),
    )


@pytest.mark.covers("Queues", "a resend claims")
def test_it_says_once_who_bears_its_incarnation() -> None:
    bench = Bench(announced=False)
    bench.manager._author()
    assert bench.manager.queues is not None
    assert bench.manager.queues.announcement(0) == 1
    bench.manager._author()
    (run,) = bench.authored
    (record,) = iterate_records(run.payload)
    assert records.read_transfer(record.body).names == {0xA: "a"}
    assert bench.manager._unannounced == {"json/work"}
    bench.folds.fold(CommitBatch([run], run.last_txid))
    assert not bench.manager._unannounced
    again = Bench()
    assert again.manager.queues is not None and not again.manager.queues.announcement(0)


def test_who_bears_its_incarnation_is_said_again_where_that_failed() -> None:
    bench = Bench(announced=False)
    assert bench.manager.queues is not None
    bench.manager.queues.announcement(0)
    bench.manager._author()
    bench.manager.failed(8)
    bench.turn()
    (_, run) = bench.authored
    bench.folds.fold(CommitBatch([run], run.last_txid))
    assert not bench.manager._unannounced
    bench.manager.failed(run.last_txid)
    bench.turn()
    assert len(bench.authored) == 2


@pytest.mark.covers("Queues", "a resend claims")
def test_requests_go_to_all_links_and_come_once() -> None:
    bench = Bench()
    owner = bench.owner()
    bench.says(control.request(TransferRequest(2, [TransferCandidate((7, 1), 0, "b")])))
    for link in bench.links.values():
        (asked,) = link.carried
        assert (asked.name, asked.message_type, asked.queue) == ("a", "json", "work")
    theirs = Flood("b", 0xB, 1).made(
        "json/work", TransferRequest(1, [TransferCandidate((7, 1), 0, "a")])
    )
    assert bench.manager.asked(theirs) and not bench.manager.asked(theirs)
    (frame,) = owner.said("request")
    assert frame.header["from"] == "b"
    unknown = Flood("c", 0xC, 1).made("json/other", TransferRequest(1, []))
    assert bench.manager.asked(unknown)


def test_owners_are_told_names_once_and_when_they_may_serve() -> None:
    bench = Bench()
    owner = bench.owner()
    bench.manager.named({0xB: "b"})
    bench.manager.named({0xB: "b"})
    assert len(owner.said("names")) == 1
    bench.manager.became_ready()
    assert owner.said("serves")


def test_what_is_given_back_is_what_the_session_holds() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    bench.delivers(ONE, TWO)
    bench.clients.cancel(client, QueueCancel("work", "", "c", {7: [(2, 9)], 8: [(1, 1)]}))
    (ack,) = client.said("ack")
    assert ack.header["n"] == 1
    (frame,) = owner.said("cancel")
    assert control.read_leases(frame.body) == [((7, 2), 92)]
    bench.clients.cancel(client, QueueCancel("other", "", "c", {}))
    (ack,) = client.said("ack")
    assert (ack.header["reason"], ack.header["text"]) == (
        "no_queue",
        "'other' is no queue of a: its queues are work",
    )
    bench.clients.cancel(client, QueueCancel("wrk", "", "c", {}))
    (ack,) = client.said("ack")
    assert ack.header["text"] == "'wrk' is no queue of a: did you mean work?"


def test_what_no_handler_was_given_is_told_apart_from_what_was_given_back() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    bench.delivers(ONE, TWO)
    bench.clients.cancel(client, QueueCancel("work", "", "", {7: [(2, 2)]}, unseen=True))
    bench.clients.cancel(client, QueueCancel("work", "", "", {7: [(1, 1)]}))
    assert [frame.header.get("unseen") for frame in owner.said("cancel")] == [True, None]
    bench.clients.unsubscribe(client, "s", begun={7: [(1, 1)]}, is_cancel=True)
    for begun in ({}, None):
        bench.subscribe(client)
        bench.clients.unsubscribe(client, "s", begun=begun)
    bench.subscribe(client)
    bench.clients.gone(client)
    told = [control.read_left(frame.header, frame.body)[1:] for frame in owner.said("left")]
    assert told == [({7: [(1, 1)]}, True), ({}, False), (None, False), (None, False)]


def test_at_most_once_a_cancel_gives_back_the_place_of_its_consumer() -> None:
    """The message left the queue before it was sent: there is no lease to end."""
    bench = Bench(QueueDefinition("work", "json", underlying="orders", at_most_once=True))
    client, owner = bench.client(max_backlog=2), bench.owner()
    bench.clients.cancel(client, QueueCancel("work", "", "c", {7: [(1, 2)]}))
    (ack,) = client.said("ack")
    assert ack.header["n"] == 0, "nothing goes back to the queue"
    (frame,) = owner.said("done")
    assert control.read_done(frame.body) == {7: [(1, 2)]}


@pytest.mark.parametrize(("how", "writes"), [("ack", 1), ("expire", 1), ("cancel", 0)])
def test_by_filter_the_owner_finds_them_and_the_instance_does_it(how: str, writes: int) -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    bench.delivers(ONE)
    bench.clients.acknowledge(client, QueueAck("work", "", "f", "/n", how))
    (ask,) = owner.said("ask")
    assert (ask.header["what"], ask.header["filter"]) == ("keys", "/n")
    bench.says(control.answer(ask.header["id"], msgpack.packb({7: [1, 3]}), count=3))
    assert client.said("ack")[0].header["n"] == (3 if writes else 1)
    bench.turn()
    assert len(bench.authored) == writes and len(owner.said("cancel")) == 1 - writes
    bench.clients.acknowledge(client, QueueAck("work", "", "f", "/n", how))
    (ask,) = owner.said("ask")
    number = ask.header["id"]
    bench.says(control.answer(number, b"", count=0, error="no filter", reason="bad_filter"))
    assert client.said("ack")[0].header["reason"] == "bad_filter"


def test_what_a_filter_found_comes_in_parts_and_is_answered_once() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    bench.clients.acknowledge(client, QueueAck("work", "", "f", "/n", "ack"))
    number = owner.said("ask")[0].header["id"]
    bench.says(control.answer(number, msgpack.packb({7: [1, 3]}), count=3, more=True))
    assert not client.said("ack")
    bench.turn()
    assert len(bench.authored) == 1
    bench.says(control.answer(number, msgpack.packb({7: [5, 5], 8: [1, 1]}), count=2))
    assert client.said("ack")[0].header["n"] == 5
    bench.turn()
    assert len(bench.authored) == 2


def test_without_its_owner_a_queue_cannot_be_asked() -> None:
    bench = Bench()
    client = bench.client()
    bench.clients.acknowledge(client, QueueAck("work", "", "f", "", "ack"))
    assert client.said("ack")[0].header["reason"] == "not_ready"
    owner = bench.owner()
    bench.clients.acknowledge(client, QueueAck("work", "", "f", "", "ack"))
    bench.work.lost(cast(Any, owner), "killed")
    assert client.said("ack")[0].header["status"] == "failure"


def test_rows_come_in_groups_as_asked() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    frontend = bench.clients.find("work", "")
    assert frontend is not None
    asked: dict[str, Any] = {"filter": "/n > 1", "select": "-/", "order_by": "/n", "skip_n": 1}
    sow = SowCommand("w", "work", "", "w", frozenset(), batch=1, top_n=0, **asked)
    bench.clients.sow(client, sow, frontend)
    (ask,) = owner.said("ask")
    # What is not wanted the owner does not send.
    number, question = control.read_ask(ask.header)
    assert question == control.QueueQuestion("sow", "/n > 1", "-/", "/n", 0, 1)
    bench.says(control.answer(number, RECORDS[1], count=1, more=True))
    bench.says(control.answer(number, RECORDS[2], count=1, matches=3))
    bench.says(control.answer(number, RECORDS[0], count=1))
    assert [frame.header["c"] for frame in client.frames] == [
        "ack", "group_begin", "sow", "sow", "group_end"
    ]  # fmt: skip
    assert [frame.body for frame in client.said("sow")] == RECORDS[1:]
    end = client.said("group_end")[0].header
    assert (end["n"], end["matches"]) == (2, 3)
    given: list[tuple[dict[str, Any], str]] = [
        ({"as_of": "0"}, "no history"),
        ({"keys": frozenset((b"k",))}, "have none"),
    ]
    for wrong, why in given:
        with pytest.raises(RemoteProtocolError, match=why) as refused:
            bench.clients.sow(
                client, SowCommand("w", "work", "", "w", frozenset(), **wrong), frontend
            )
        assert refused.value.reason == "not_supported"


def test_what_the_owner_refuses_of_a_query_is_said_with_its_reason() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    frontend = bench.clients.find("work", "")
    assert frontend is not None
    bench.clients.sow(client, SowCommand("w", "work", "", "w", frozenset(), order_by="n"), frontend)
    number = owner.said("ask")[0].header["id"]
    bench.says(control.answer(number, b"", count=0, error="no order", reason="bad_order_by"))
    assert [frame.header["c"] for frame in client.frames] == ["ack"]
    assert client.said("ack")[0].header["reason"] == "bad_order_by"


def test_what_expires_and_what_owners_report_are_events() -> None:
    bench = Bench()
    bench.owner()
    from raylay.services.queues.decisions import Expiration

    bench.says(control.expired([Expiration(4, (7, 1), "max_cancels")]))
    assert bench.reports == [
        (
            "queue_message_expired",
            {"queue": "json/work", "bookmark": "7|1|", "reason": "max_cancels"},
        )
    ]
    bench.says(control.counts(5, {"queue_depth": 4}))
    assert bench.manager.status()["queues"]["json/work"]["queue_depth"] == 4


def test_messages_that_have_left_are_told_where_the_owner_was_asked_for_them() -> None:
    bench, told = Bench(), []
    bench.runtime.occurrences.listen(["sow-expire-message"], lambda *each: told.append(each))
    (begin,) = bench.owner().said("begin")
    assert begin.header["expired"] is True and begin.header["acked"] is False
    bench.says(b"".join(control.ended("max_cancels", RECORDS[:2])[0]))
    bench.says(b"".join(control.ended("acknowledged", RECORDS[:2])[0]))
    bench.says(control.ended_unread("time_limit", 7, 9))
    assert {kind for kind, _ in told} == {"sow-expire-message"}
    shown = [(each["AMPS_REASON"], each["AMPS_BOOKMARK"], each["AMPS_TOPIC"]) for _, each in told]
    assert shown[0][0] == shown[1][0] == "max_cancels"
    assert shown[2] == ("time_limit", "7|9|", "work") and told[2][1]["AMPS_DATA"] == ""
    with pytest.raises(RemoteProtocolError, match="sent messages that are none"):
        bench.says(b"".join(control.ended("max_cancels", [RECORDS[0][:-1]])[0]))


def test_a_queue_that_has_just_started_is_asked_as_soon_as_its_owner_is_there() -> None:
    bench = Bench()
    client = bench.client()
    bench.clients.status(client, QueueStatus("work", "json", "q"))
    assert not client.said("ack"), "nobody knows its depth"
    owner = bench.owner()
    (ask,) = owner.said("ask")
    bench.says(control.answer(ask.header["id"], b'{"queue_depth": 3}', count=0))
    assert msgpack.unpackb(client.said("ack")[0].body)["queue_depth"] == 3
    for each in bench.later:
        each()
    assert not client.said("ack"), "it is answered once"


def test_a_queue_whose_owner_does_not_start_says_so_after_a_while() -> None:
    bench = Bench()
    client = bench.client()
    control_of = bench.manager.controls["json/work"]
    control_of.why = "its process ended: no room"
    bench.clients.status(client, QueueStatus("work", "json", "q"))
    for each in bench.later:
        each()
    found = msgpack.unpackb(client.said("ack")[0].body)
    assert (found["topic"], found["queue_depth"]) == ("work", None)
    assert found["why"] == "its process ended: no room"
    control_of.counts = {"queue_depth": 8}
    bench.clients.status(client, QueueStatus("work", "json", "q"))
    assert msgpack.unpackb(client.said("ack")[0].body)["queue_depth"] == 8, "as last heard of"
    bench.owner()
    assert not bench.sessions or not client.said("ack")


def test_one_queue_is_asked_how_it_is_or_all() -> None:
    bench = Bench()
    client = bench.client()
    bench.clients.status(client, QueueStatus("", "", "q"))
    assert list(msgpack.unpackb(client.said("ack")[0].body)) == ["json/work"]
    bench.clients.status(client, QueueStatus("other", "", "q"))
    assert client.said("ack")[0].header["reason"] == "no_queue"


def test_a_queue_is_asked_how_it_is_now() -> None:
    bench = Bench()
    client, owner = bench.client(), bench.owner()
    bench.clients.status(client, QueueStatus("work", "json", "q"))
    (ask,) = owner.said("ask")
    assert ask.header["what"] == "status" and not client.said("ack")
    bench.says(control.answer(ask.header["id"], b'{"queue_depth": 3}', count=0))
    assert msgpack.unpackb(client.said("ack")[0].body)["queue_depth"] == 3


@pytest.mark.covers("Queues", "proxied transfer")
def test_what_was_taken_over_by_hand_is_so_behind_a_restart_until_it_is_turned_off() -> None:
    bench = Bench(WORK)
    asyncio.run(bench.manager.proxied("work", on=True))
    again = Bench(WORK, state=bench.state)
    owner = again.owner()
    again.manager.check()
    assert control.read_proxied(owner.said("proxied")[0].header)[0] is True
    asyncio.run(again.manager.proxied("work", on=False))
    third = Bench(WORK, state=again.state)
    owner = third.owner()
    third.manager.check()
    assert not owner.said("proxied")


def test_an_owner_is_told_of_the_settings_of_the_clock_and_has_the_steady_one() -> None:
    bench = Bench()
    bench.manager.clock_is(3)
    bench.manager.clock_is(-5_000_000)
    owner = bench.owner()
    (frame,) = owner.said("begin")
    begin = control.read_begin(frame.header, frame.body)
    assert (begin.steady_base_us, begin.clock_steps) == (7, [(8, -5_000_000)])
    assert not owner.said("clock")
    bench.instance.machine.next_txid = 20
    bench.manager.clock_is(-5_000_010)
    bench.manager.clock_is(0)
    assert [control.read_clock(each.header) for each in owner.said("clock")] == [(19, 0)]


def test_what_the_clock_was_set_by_makes_nothing_older_at_the_next_start() -> None:
    """Expiration would end messages that are a minute old, as if an hour had passed."""
    hour_us, minute_us = 3_600_000_000, 60_000_000
    bench = Bench()
    bench.runtime.spawn = asyncio.run
    bench.manager.clock_is(hour_us)
    again = Bench(state=bench.state, next_txid=21)
    # The steady clock of the instance begins with the wall clock, which is right by now.
    again.runtime.steady_us = lambda: 100 * hour_us
    (frame,) = again.owner().said("begin")
    begin = control.read_begin(frame.header, frame.body)
    steps = ClockSteps(begin.clock_steps)
    now_us = again.runtime.steady_us() - again.runtime.steady_base_us + begin.steady_base_us
    for txid, received_us in ((5, 99 * hour_us - minute_us), (15, 100 * hour_us - minute_us)):
        # The first one was received before, by the clock that was an hour behind.
        assert now_us - steps.steady_us(txid, received_us, now_us) == minute_us
    assert again.manager.steady_us() == now_us, "the instance judges by the clock of the owner"
    again.manager.clock_is(0)
    assert again.manager.clock_steps.all() == begin.clock_steps, "it is no step"
    again.manager.clock_is(-hour_us)
    assert again.manager.clock_steps.all()[-1] == (20, 0)


def test_leases_end_by_the_steady_clock_while_the_clock_on_the_wall_is_set() -> None:
    bench = Bench()
    bench.owner()
    client = bench.client()
    bench.runtime.now_us = lambda: NOW_US - 3_600_000_000
    bench.delivers(TWO)
    ((header, _),) = client.said("p")
    assert header["lp"] == 500
    bench.manager.check()
    assert bench.work.frontend.lease_count == 1
    bench.runtime.now_us = lambda: NOW_US + 3_600_000_000
    bench.manager.check()
    assert bench.work.frontend.lease_count == 1
    bench.runtime.steady_us = lambda: NOW_US + 500_000
    bench.manager.check()
    assert bench.work.frontend.lease_count == 0


@pytest.mark.covers("Queues", "proxied transfer")
def test_what_cannot_be_written_is_not_turned_on() -> None:
    bench = Bench(WORK)
    owner = bench.owner()
    bench.fails = StorageError("a/state: No space left on device")
    with pytest.raises(StorageError):
        asyncio.run(bench.manager.proxied("work", on=True))
    bench.manager.check()
    assert not owner.said("proxied")


def test_the_owner_hears_of_what_is_on_its_way_to_the_disk() -> None:
    bench = Bench()
    owner = bench.owner()
    frontend = bench.clients.find("work", "")
    assert frontend is not None
    frontend._acknowledging("json/work", {7: [(1, 3), (5, 5)]})
    (frame,) = owner.said("done")
    assert control.read_done(frame.body) == {7: [(1, 3), (5, 5)]}


@pytest.mark.parametrize("owners", [1, 2])
def test_an_owner_that_is_told_to_stop_ends_by_itself(
    owners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has saved and traced would be lost else, whether others ended before it or not."""
    monkeypatch.setattr(manager, "STOP_S_MAX", 600.0)
    bench = Bench()
    for _ in range(owners - 1):
        bench.work.lost(cast(Any, bench.owner()), "killed")
    owner = bench.owner()
    killed: list[str] = []

    async def kill() -> None:
        killed.append("killed")

    bench.work.process.kill = kill  # type: ignore[method-assign]

    async def stop() -> None:
        stopping = asyncio.ensure_future(bench.work.stop())
        while not owner.said("stop"):
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not killed
        bench.work.lost(cast(Any, owner), "it has ended")
        await stopping
        assert killed

    asyncio.run(stop())


def test_a_cancel_without_an_id_is_not_answered() -> None:
    bench = Bench()
    client = bench.client()
    bench.clients.cancel(client, QueueCancel("work", "", "", {}))
    assert not client.frames


def test_who_subscribes_again_is_given_nothing_that_was_decided_before() -> None:
    bench = Bench()
    client, owner = bench.client(max_backlog=5), bench.owner()
    assert bench.clients.unsubscribe(client, "s") and not bench.clients.unsubscribe(client, "s")
    bench.subscribe(client)
    bench.delivers(ONE)
    assert not client.said("p") and owner.said("bounce")
    bench.delivers(ONE, of=2)
    assert client.said("p")[0].header["sub"] == "s"
    # With another backlog it is the same one.
    bench.subscribe(client, max_backlog=9, replace=True)
    bench.delivers(TWO, of=2)
    assert client.said("p")


def test_while_nothing_can_be_written_drafts_wait() -> None:
    bench = Bench()
    bench.owner()
    body = records.pack_removal(records.Removal("a", 1, {7: [(1, 1)]}, "time_limit"))
    bench.storage.failure = "storage_full", "no space"
    bench.says(control.draft(QueueRecordDraft(1, Command.QUEUE_REMOVAL, body)))
    for _ in range(3):
        bench.turn()
    assert not bench.authored and len(bench.later) == 1
    bench.storage.failure = None
    bench.turn()
    assert len(bench.authored) == 1 and not bench.later


def test_the_fence_of_an_owner_is_behind_what_its_predecessor_drafted() -> None:
    bench = Bench()
    line = bench.owner()
    body = records.pack_removal(records.Removal("a", 1, {7: [(1, 1)]}, "time_limit"))
    bench.says(control.draft(QueueRecordDraft(1, Command.QUEUE_REMOVAL, body)))
    bench.work.lost(cast(Any, line), "killed")
    (begin,) = bench.owner().said("begin")
    assert control.read_begin(*begin).fence_txid == bench.authored[0].last_txid == 9


@pytest.mark.covers("Queues", "a resend claims")
def test_a_queue_may_take_over_what_is_of_instances_that_are_not_reachable() -> None:
    own = QueueDefinition("own", "json", kind="local")
    bench = Bench(WORK, own)
    owner = bench.owner()
    bench.links["b"].is_connected = True
    assert "not connected to" in asyncio.run(bench.manager.proxied("work", on=True))
    bench.manager.check()
    (frame,) = owner.said("proxied")
    assert control.read_proxied(frame.header) == (True, {"b"})
    bench.links["b"].is_connected = False
    bench.manager.check()
    assert control.read_proxied(owner.said("proxied")[0].header) == (True, frozenset())
    # Another owner is told as well, and what is off stays off.
    bench.work.lost(cast(Any, owner), "killed")
    owner = bench.owner()
    bench.manager.check()
    assert owner.said("proxied")
    asyncio.run(bench.manager.proxied("work!json", on=False))
    assert control.read_proxied(owner.said("proxied")[0].header)[0] is False
    bench.manager.check()
    assert not owner.said("proxied")
    for name in ("own", "nothing"):
        with pytest.raises(ConfigurationError, match="no distributed queue"):
            asyncio.run(bench.manager.proxied(name, on=True))


def test_by_filter_messages_are_given_back_whoever_holds_them_but_where_leasing_is_strict() -> None:
    for strict, count in ((False, 1), (True, 0)):
        bench = Bench(replace(WORK, strict=strict))
        bench.client(max_backlog=5)
        owner = bench.owner()
        bench.delivers(ONE)
        other = bench.sessions[2] = Session(2, "operator")
        bench.clients.acknowledge(other, QueueAck("work", "", "f", "/n", "cancel"))
        (ask,) = owner.said("ask")
        bench.says(control.answer(ask.header["id"], msgpack.packb({7: [1, 3]}), count=3))
        assert other.said("ack")[0].header["n"] == count == len(owner.said("cancel"))


def test_of_acknowledgments_what_a_client_holds() -> None:
    bench = Bench()
    client = bench.client()
    frontend = bench.clients.find("work", "json")
    assert frontend is not None
    (consumer,) = frontend.consumers
    frontend.decide(DeliverLeased(consumer, [LeasedDelivery(1, (7, 2), 1, 0)], 0), 0)
    said = records.pack_acknowledgment(records.Acknowledgment({7: [(1, 3)]}))

    def run(topic: str) -> Run:
        build = RecordBuilder(publisher_id(client.client_name), topic, "json").build
        payload = build(1, said, 1, command=Command.QUEUE_ACKNOWLEDGMENT)
        (chunk,) = scan(payload, commands=frozenset(Command))
        return run_of(chunk, payload)

    (held,) = bench.clients.held_only(run("work")).authored
    (record,) = iterate_records(held.payload)
    assert records.read_acknowledgment(record.body).keys == {7: [(2, 2)]}
    # Of no queue nothing is held, and it is refused by who takes it.
    other = run("other")
    assert bench.clients.held_only(other).runs == (other,)


@pytest.mark.covers("Views", "views over queues")
def test_what_the_owner_tells_of_messages_goes_to_the_views() -> None:
    bench = Bench()
    bench.sources["json/other"] = QueueSource(
        QueueDefinition("other", "json", underlying="orders"), MessageTypes()["json"]
    )

    def told() -> list[tuple[bytes, str]]:
        """The owner tells of two messages, and that one of them has left."""
        bench.says(b"".join(control.came(RECORDS[:2])[0]))
        bench.says(control.gone({7: [(1, 1)]}))
        bench.says(control.all_came())
        found = [(each.change.key, each.change.reason) for each in bench.changes]
        bench.changes.clear()
        return found

    (begin,) = bench.owner().said("begin")
    assert not control.read_begin(*begin).tells_messages
    assert told() == [], "no view is over the queue"
    bench = Bench()
    source = bench.sources["json/work"] = QueueSource(
        bench.work.frontend.definition, MessageTypes()["json"]
    )
    (begin,) = bench.owner().said("begin")
    assert control.read_begin(*begin).tells_messages
    assert told() == [(b"7|1|", "inserted"), (b"7|2|", "inserted"), (b"7|1|", "deleted")]
    assert bench.manager.follows("json/work"), "another owner begins"
    bench.says(control.all_came())
    assert [each.change.key for each in bench.changes] == [b"7|2|"], "the next owner has it not"
    assert source.is_complete


@pytest.mark.covers("Views", "aggregations of queues")
def test_a_queue_is_followed_as_long_as_something_is_over_it() -> None:
    bench = Bench()
    owner, manager = bench.owner(), bench.manager

    def asked() -> list[int]:
        return [header["n"] for header, _ in owner.said("follow")]

    def told() -> list[str]:
        bench.says(b"".join(control.came(RECORDS[:2])[0]))
        bench.says(control.gone({7: [(1, 1)]}))
        bench.says(control.all_came())
        found = [each.change.reason for each in bench.changes]
        bench.changes.clear()
        return found

    assert manager.types_of("work") == {"json"} and manager.types_of("orders") == set()
    assert manager.follow("work", "xml") is None
    topic = manager.follow("work", "json")
    assert topic is not None and manager.follow("work", "json") is topic
    assert told() == [], "the owner has not got the request"
    assert not manager.is_told(topic)
    bench.says(control.following(1))
    assert told() == ["inserted", "inserted", "deleted"] and manager.is_told(topic)
    manager.unfollow(topic)
    manager.unfollow(topic)
    again = manager.follow("work", "json")
    assert again is not None and again is not topic
    bench.says(control.following(1))
    assert told() == [], "that was of the request before"
    bench.says(control.following(2))
    assert told() == ["inserted", "inserted", "deleted"]
    assert asked() == [1, 0, 2]
    manager.unfollow(again)
    bench.says(control.following(2))
    assert told() == [] and "json/work" not in bench.sources


@pytest.mark.covers("Views", "aggregations of queues")
def test_a_queue_under_a_view_is_followed_for_good() -> None:
    bench = Bench()
    bench.sources["json/work"] = QueueSource(bench.work.frontend.definition, MessageTypes()["json"])
    owner = bench.owner()
    topic = bench.manager.follow("work", "json")
    assert topic is not None
    bench.manager.unfollow(topic)
    assert "json/work" in bench.sources and owner.said("follow") == []
