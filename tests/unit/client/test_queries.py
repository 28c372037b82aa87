"""How queries, and subscriptions that begin with one, go on after a connection."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.fake_server import records

from raylay.services.client.machine import ClientOptions, client_machine
from raylay.services.client.messages import MessageBatch
from raylay.services.client.subscriptions.queries import (
    GROUP_END,
    PendingQuery,
    QueryReplay,
    QuerySubscription,
)
from raylay.services.errors import ConnectionLost
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import iterate_records
from raylay.storage.stores import MemoryPublishStore

pytestmark = pytest.mark.covers("SOW", "a client asks for rows")


def grouped(
    asked: PendingQuery | QuerySubscription, command: str, *rows: bytes, **header: Any
) -> Any:
    """(kind, reason, sequences) of each batch that is handed out."""
    header = {"c": command, "n": len(rows), **header}
    return [shown(batch) for batch in asked.grouped(header, b"".join(rows))]


def shown(batch: MessageBatch) -> tuple[str, str, list[int]]:
    return batch.kind, batch.reason, [message.sequence for message in batch]


def row(sequence: int, key: bytes) -> bytes:
    return records(7, [sequence], key=key)


def test_a_query_says_what_is_asked() -> None:
    header, body = PendingQuery("q", "t", "json", {"filter": "/a = 1"}).subscribe_frame("c1")
    assert (header, body) == (
        {
            "c": "sow",
            "cid": "c1",
            "sub": "q",
            "t": "t",
            "mt": "json",
            "a": "processed,completed",
            "o": {"filter": "/a = 1"},
        },
        b"",
    )
    header, _ = QuerySubscription("s", "t", "", {"oof": True}).subscribe_frame("c2")
    assert (header["c"], header["a"]) == ("sow_and_subscribe", "processed,completed")


def test_a_query_gives_its_rows_and_how_many_there_are() -> None:
    query = PendingQuery("q", "t", "", {})
    assert grouped(query, "group_begin") == []
    assert grouped(query, "sow", row(1, b"a"), row(2, b"b")) == [("sow", "", [1, 2])]
    assert query.matches is None
    assert grouped(query, "group_end", matches=5) == []
    assert query.matches == 5 and query.bounded


def test_a_query_outlives_a_connection_until_something_was_handed_out() -> None:
    query = PendingQuery("q", "t", "", {})
    query.active = True
    assert query.lost() is None and not query.active
    query.handed_out = True
    assert isinstance(query.lost(), ConnectionLost)


def test_what_differs_is_handed_out_and_what_is_gone_where_it_was_asked_for() -> None:
    for options, gone in (({"oof": True}, [("oof", "deleted", [2])]), ({}, [])):
        asked = QuerySubscription("s", "t", "", options)
        for command in ("group_begin", "group_end"):
            assert grouped(asked, command) == []
        assert asked.arrived({"n": 2}, row(1, b"a") + row(2, b"b")) is not None
        assert asked.lost() is None
        grouped(asked, "group_begin")
        assert grouped(asked, "sow", row(1, b"a")) == []
        assert grouped(asked, "sow", row(3, b"c")) == [("sow", "", [3])]
        assert grouped(asked, "group_end") == gone
        assert asked.arrived({"n": 1}, row(3, b"c")) is None
        assert asked.suppressed == 2
        assert grouped(asked, "oof", row(4, b"c"), r="expired") == [("oof", "expired", [4])]


def test_frames_of_what_nobody_asked_are_passed_over() -> None:
    machine = client_machine(ClientOptions("desk", ()), MemoryPublishStore())
    assert machine.grouped({"c": "sow", "sub": "gone", "n": 1}, row(1, b"a")) == []


def test_behind_a_replaced_filter_comes_what_is_newly_in_focus_and_then_all_of_it_again() -> None:
    asked = QuerySubscription("s", "t", "", {"oof": True})
    asked.active = asked.completed = True
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(1, b"a")) == [("sow", "", [1])]
    grouped(asked, "group_end")
    assert asked.takes_replace
    asked.replaced({"oof": True, "filter": "/a = 2"})
    assert not asked.takes_replace, "its group has not come yet"
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(2, b"b")) == [("sow", "", [2])]
    assert grouped(asked, "group_end") == []
    asked.completed = True
    asked.replaced({"oof": True})
    asked.lost()
    assert not asked.completed
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(2, b"b")) == []
    assert grouped(asked, "group_end") == [("oof", "deleted", [1])]


Identity = tuple[int, int]


def key_of(identity: Identity) -> bytes:
    """Of its record: one publisher writes it."""
    return b"%d-%d" % (identity[0], identity[1] % 4)


class Instance:
    """One of several with the same messages, in an order of its own, some later than others."""

    def __init__(self) -> None:
        self.log: list[Identity] = []
        self.frames: list[tuple[dict[str, Any], bytes]] = []
        self.cursor: int | None = None
        """Of the replay; None: its rows were not sent."""
        self.have = PublisherRanges()

    def take(self, random: Random, published: dict[int, int], most: int) -> None:
        """Comes to have more: of each publisher in order."""
        for _ in range(most):
            behind = [
                (publisher, sequence)
                for publisher, last in published.items()
                if (sequence := 1 + sum(each == publisher for each, _ in self.log)) <= last
            ]
            if behind:
                self.log.append(random.choice(behind))

    def subscribe(self, random: Random, header: dict[str, Any]) -> None:
        """Answers what was asked."""
        self.frames, self.have = [], PublisherRanges()
        if header["c"] == "subscribe":
            self.cursor = 0
            self.have = PublisherRanges.from_wire(header["o"]["have"])
            return
        assert "have" not in header["o"]
        then = random.randrange(len(self.log) + 1)
        state = {key_of(each): each for each in self.log[:then]}
        rows = [records(p, [s], key, key=key) for key, (p, s) in state.items()]
        before = PublisherRanges()
        for publisher, sequence in self.log[:then]:
            before.add(publisher, sequence, sequence)
        self.frames = [({"c": "group_begin"}, b"")]
        self.frames += [({"c": "sow", "n": 1}, each) for each in rows]
        self.frames.append(({"c": "group_end", "have": before.to_wire()}, b""))
        self.cursor = then

    def next_frame(self) -> tuple[dict[str, Any], bytes] | None:
        """What it sends next, if there is anything."""
        if self.frames:
            return self.frames.pop(0)
        assert self.cursor is not None
        while self.cursor < len(self.log):
            publisher, sequence = self.log[self.cursor]
            self.cursor += 1
            held = self.have.get(publisher)
            if held is None or sequence not in held:
                body = key_of((publisher, sequence))
                return {"c": "p", "n": 1}, records(publisher, [sequence], body)
        return None


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past", note="over failovers and restarts")
@pytest.mark.parametrize("seed", range(40))
def test_rows_and_replay_over_failovers_are_every_message_once(seed: int) -> None:
    """Whoever is failed over to and when: what was handed out is the state in the end, no message
    of the replay comes twice, and no row that the consumer holds comes again."""
    random = Random(seed)
    replay = QueryReplay("s", "t", "", "20260102T030405Z", {"batch": 5, "order_by": "/a"})
    instances = [Instance() for _ in range(3)]
    published = {publisher: random.randrange(2, 12) for publisher in (1, 2, 3)}
    for each in instances:
        each.take(random, published, random.randrange(5, 40))
    held: dict[bytes, Identity] = {}
    replayed: set[Identity] = set()
    last: dict[bytes, Identity] = {}
    here = instances[0]

    def connect() -> None:
        nonlocal here
        here = random.choice(instances)
        header, body = replay.subscribe_frame("c")
        assert not body and ("batch" in header["o"]) == (header["c"] == "sow_and_subscribe")
        here.subscribe(random, header)
        replay.accepted(None)

    def hand_out() -> bool:
        frame = here.next_frame()
        if frame is None:
            return False
        header, payload = frame
        if header["c"] == "p":
            batch = replay.arrived(header, payload)
            batches = [] if batch is None else [batch]
        else:
            batches = replay.grouped(header, payload)
        if header["c"] == "group_begin":
            last.clear()
        elif header["c"] == "sow":
            last.update(
                (each.body, (each.publisher, each.sequence)) for each in iterate_records(payload)
            )
        for batch in batches:
            assert (header["c"] == "group_end") == (batch.kind == GROUP_END) == (not batch.count)
            for message in batch:
                identity = (message.publisher, message.sequence)
                if message.kind == "publish":
                    assert identity not in replayed
                    assert identity > last.get(message.body, (0, 0)), "nothing goes back"
                    replayed.add(identity)
                    last[message.body] = identity
                else:
                    assert held.get(message.body) != identity
                held[message.body] = identity
        return True

    connect()
    for _ in range(200):
        draw = random.random()
        if draw < 0.25:
            published[random.randrange(3) + 1] += 1
        elif draw < 0.5:
            random.choice(instances).take(random, published, random.randrange(1, 4))
        elif draw < 0.6:
            assert replay.lost() is None
            connect()
        else:
            hand_out()
    for each in instances:
        each.take(random, published, 1_000)
    while hand_out():
        pass
    expected = {key_of((p, s)): (p, s) for p, last in published.items() for s in range(1, last + 1)}
    assert held == expected
