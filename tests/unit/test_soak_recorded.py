"""What the soak saw becomes a history that the simulator's checkers can find fault with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from soak.driver import broken_laws
from soak.ledger import Entry, append, entries, summary

from raylay.services.client.events import Connected, PeerBecameSafe, PeerBecameUnsafe
from raylay.services.client.machine import ClientOptions, client_machine
from raylay.services.drills.history_builder import (
    ClientNotice,
    ClientRecorder,
    ClockOffset,
    HistoryBuilder,
    LostDisk,
    SubscriberRecorder,
)
from raylay.services.messages.records import Flag, RecordBuilder, Run
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.history import (
    AckGiven,
    HistoryMember,
    InstanceCrashed,
    LinkModeSet,
)
from raylay.storage.stores import MemoryPublishStore

NAMES = ("a", "b", "c")
INCARNATIONS = {"a": 0xA, "b": 0xB, "c": 0xC}
P = 0x99
START_US = 1_700_000_000_000_000
Change = Callable[["Seen"], None]


def destination(name: str) -> DestinationRoute:
    return DestinationRoute(name, "g", True, pass_through=".*", addresses=(name,))


def run_of(first: int, last: int, txid: int, at_us: int, path: tuple[int, ...] = ()) -> Run:
    builder = RecordBuilder(P, "t", "json")
    payload = b"".join(builder.build(n, b"{}", 1) for n in range(first, last + 1))
    return Run(
        P,
        first,
        last,
        last - first + 1,
        payload,
        b"t",
        b"json",
        path,
        "g" if path else "",
        flags=Flag.CONTIGUOUS | Flag.AWAITED,
        first_txid=txid,
        receive_time_us=START_US + at_us,
    )


class Seen:
    """Four messages published at `a`, journaled by all three in two runs, acked and delivered."""

    def __init__(self, directory: Path) -> None:
        members = {
            name: HistoryMember(
                name, "g", tuple(destination(other) for other in NAMES if other != name)
            )
            for name in NAMES
        }
        self.logs = directory
        for name in NAMES:
            self.log(name, 0, "started", incarnation=f"{INCARNATIONS[name]:016x}")
            for other in NAMES:
                if other != name:
                    self.log(name, 1, "link_connected", destination=other)
        self.recording = HistoryBuilder(members, directory, "t")
        here, there = (INCARNATIONS["a"],), {"b": 30, "c": 40}
        self.journals = {
            "a": [run_of(1, 2, 1, 10), run_of(3, 4, 3, 110)],
            **{
                name: [run_of(1, 2, 1, at_us, here), run_of(3, 4, 3, 100 + at_us, here)]
                for name, at_us in there.items()
            },
        }
        self.recording.notices = [
            self.said("used", 2, names=("",)),
            self.said("safe", 3, names=("b", "c")),
            self.said("published", 5, 1, 4),
            self.said("acked", 60, 1, 2),
            self.said("acked", 160, 3, 4),
        ]
        reader = SubscriberRecorder("s", ".*", fully_durable=True, instance="b")
        reader.stretches = [(START_US + 170, "b", P, 1, 4)]
        self.recording.subscribers = [reader]
        self.unacked = {"p": 0}

    def said(
        self, kind: str, at_us: int, first: int = 0, last: int = 0, names: tuple[str, ...] = ()
    ) -> ClientNotice:
        return ClientNotice(kind, START_US + at_us, "p", P, "a", 7, first, last, names)

    def log(self, name: str, at_us: int, event: str, **fields: str) -> None:
        moment = datetime.fromtimestamp(START_US // 1_000_000, UTC)
        stamp = f"{moment:%Y-%m-%dT%H:%M:%S}.{(START_US + at_us) % 1_000_000:06d}Z"
        line = {"time": stamp, "process": name, "logger": "instance", "event": event, **fields}
        with (self.logs / f"{name}-1.log").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def status(self, name: str) -> dict[str, object]:
        to = {"connected": True, "unacked": 0}
        return {
            "incarnation": f"{INCARNATIONS[name]:016x}",
            "pending": 0,
            "destinations": {other: {**to, "peer": other} for other in NAMES if other != name},
        }

    def laws(self) -> set[str]:
        statuses = {name: self.status(name) for name in NAMES}
        history = self.recording.history(self.journals, statuses, self.unacked)
        return {line.split(":")[0] for line in broken_laws(history)}


def lose_a_copy(seen: Seen) -> None:
    del seen.journals["c"][1]


def lose_all_copies(seen: Seen) -> None:
    for runs in seen.journals.values():
        del runs[1]


def ack_before_it_is_there(seen: Seen) -> None:
    seen.recording.notices[3] = seen.said("acked", 25, 1, 2)


def journal_twice(seen: Seen) -> None:
    seen.journals["b"].append(run_of(3, 4, 5, 150, (INCARNATIONS["a"],)))


def turn_round(seen: Seen) -> None:
    one, two = seen.journals["b"]
    seen.journals["b"] = [
        replace(two, first_txid=1, receive_time_us=one.receive_time_us),
        replace(one, first_txid=3, receive_time_us=two.receive_time_us),
    ]


def go_round(seen: Seen) -> None:
    seen.journals["a"].append(run_of(5, 5, 5, 150, (INCARNATIONS["a"], INCARNATIONS["b"])))


def leave_a_publish_unanswered(seen: Seen) -> None:
    seen.unacked["p"] = 2


def ack_what_nobody_published(seen: Seen) -> None:
    seen.recording.notices.append(seen.said("acked", 180, 5, 5))


def deliver_too_little(seen: Seen) -> None:
    seen.recording.subscribers[0].stretches = [(START_US + 170, "b", P, 1, 3)]


def deliver_before_it_is_durable(seen: Seen) -> None:
    seen.recording.subscribers[0].stretches = [
        (START_US + 35, "b", P, 1, 2),
        (START_US + 170, "b", P, 3, 4),
    ]


@pytest.mark.parametrize(
    ("change", "laws"),
    [
        (lose_a_copy, {"acknowledged", "liveness", "safety"}),
        (lose_all_copies, {"acknowledged"}),
        (ack_before_it_is_there, {"acknowledged", "safety"}),
        (journal_twice, {"once"}),
        (turn_round, {"order"}),
        (go_round, {"loops"}),
        (leave_a_publish_unanswered, {"liveness"}),
        (ack_what_nobody_published, {"store"}),
        (deliver_too_little, {"subscribers"}),
        (deliver_before_it_is_durable, {"fully durable"}),
    ],
)
def test_the_judge_sees_what_is_wrong(tmp_path: Path, change: Change, laws: set[str]) -> None:
    seen = Seen(tmp_path)
    assert seen.laws() == set()
    change(seen)
    assert laws <= seen.laws()


def test_a_downgrade_excuses_what_it_releases(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.recording.notices[1:2] = [seen.said("safe", 55, names=("b",))]
    del seen.journals["c"][1]
    assert "acknowledged" in seen.laws()
    for name in ("a", "b"):
        seen.log(name, 150, "downgraded", destination="c")
    # It is still owed, but no ack was wrong.
    assert seen.laws() == {"liveness"}


def test_a_clock_that_is_set_back_turns_no_journal_round(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.journals["b"][1] = replace(seen.journals["b"][1], receive_time_us=START_US + 20)
    assert seen.laws() == set()


def test_a_lost_disk_keeps_its_account(tmp_path: Path) -> None:
    """What it had is judged, then it is gone, and the next incarnation has its own."""
    seen = Seen(tmp_path)
    old = seen.journals["c"]
    seen.recording.lost = [LostDisk(START_US + 500, "c", old)]
    later = 0xCC
    seen.log("c", 600, "started", incarnation=f"{later:016x}")
    again = run_of(1, 4, 1, 700, (INCARNATIONS["a"],))
    seen.journals["c"] = [again]
    statuses = {name: seen.status(name) for name in NAMES}
    statuses["c"]["incarnation"] = f"{later:016x}"
    history = seen.recording.history(seen.journals, statuses, seen.unacked)
    assert not broken_laws(history)
    crashed = next(found for found in history.operations if isinstance(found, InstanceCrashed))
    assert (crashed.incarnation, crashed.lost) == (INCARNATIONS["c"], True)
    restarts = [found for found in history.operations if isinstance(found, LinkModeSet)]
    assert [(found.instance, found.sync) for found in restarts] == [("c", True)] * 2


def test_a_client_says_what_it_was_told() -> None:
    said: list[ClientNotice] = []
    recorder = ClientRecorder(said.append)
    machine = recorder.machine = client_machine(ClientOptions("p"), MemoryPublishStore())
    machine.outbox.next_sequence, machine.instance, machine.connection = 11, "a", 1
    recorder.event(PeerBecameSafe("b", by="a"))
    recorder.event(PeerBecameSafe("c", by="a"))
    recorder.event(Connected("a", "g", "127.0.0.1:1", 0))
    recorder.published(11, 13, began_us=5)
    recorder.persisted(12)
    recorder.event(PeerBecameUnsafe("c", by="a"))
    recorder.persisted(12)
    recorder.persisted(13)
    told = [(each.kind, each.first, each.last, each.names) for each in said]
    assert told == [
        ("used", 0, 0, ("",)),
        ("safe", 0, 0, ("b", "c")),
        ("published", 11, 13, ()),
        ("acked", 11, 12, ()),
        ("safe", 0, 0, ("b",)),
        ("acked", 13, 13, ()),
    ]
    assert said[2].time_us == 5 < said[3].time_us
    assert {each.instance for each in said} == {"a"}
    machine.connection = 2
    recorder.persisted(14)
    assert said[-1].session == said[0].session + 1
    assert ClientRecorder(said.append)._life != recorder._life


def test_what_was_refused_counts_as_no_ack(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    refused = seen.said("failed", 50, 2, 2, names=("bad_message",))
    seen.recording.notices.insert(3, refused)
    statuses = {name: seen.status(name) for name in NAMES}
    history = seen.recording.history(seen.journals, statuses, seen.unacked)
    acks = [found.sequences for found in history.operations if isinstance(found, AckGiven)]
    assert acks == [(1,), (3, 4)]


def test_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "build" / "soak.jsonl"
    assert entries(path) == []
    append(path, Entry(7, "group", 60.0, 1_000, 1_000, 6_000, {"kill": 2, "cut": 1}, True))
    append(path, Entry(8, "regions", 120.0, 500, 499, 3_000, {"kill": 1}, False, ["lost 1"]))
    assert [entry.seed for entry in entries(path)] == [7, 8]
    assert summary(entries(path)) == (
        "2 runs, 3 minutes, 1,500 messages published, 9,000 copies judged, 4 faults "
        "(cut 1, kill 3), 1 failed: regions SEED=8"
    )


@pytest.mark.parametrize(
    ("offset_s", "told_s", "true_s"),
    [
        (3600, 3650, 50),  # within: what the clock shows is an hour ahead
        (3600, 20, 20),  # before
        (3600, 3700, 3700),  # it really is an hour later
        (-3600, -3540, 60),
        (-3600, 20, 20),
        (3, 52, 49),  # both are possible: the earlier one accuses nobody
    ],
)
def test_a_clock_that_was_set_is_set_back(offset_s: int, told_s: int, true_s: int) -> None:
    clock = ClockOffset("A", 48_000_000, 61_000_000, offset_s * 1_000_000)
    assert clock.true_us(told_s * 1_000_000) == true_s * 1_000_000
