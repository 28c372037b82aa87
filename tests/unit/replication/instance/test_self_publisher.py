"""Records that the instance itself makes: drafted, journaled in batches, taken up or undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raylay.services.errors import LocalProtocolError
from raylay.services.messages.records import (
    COMMAND_AT,
    RECORD_BYTES_MAX,
    Command,
    Flag,
    Run,
    decode_record,
    iterate_records,
    publisher_id,
)
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.effects import AckClient, Append, RunsCommitted
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.instance import self_publisher as authored_module
from raylay.services.replication.instance.self_publisher import SelfPublisher
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.run_lookup import RunLookup
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers(
    "Replication", "what an instance writes itself is journaled in batches"
)

OWN = Identity("own", "g", 0xA, life=7)


def drafted(author: SelfPublisher, *bodies: str, topic: str = "orders") -> list[int]:
    return [author.draft(topic, "json", body.encode(), 5) for body in bodies]


def bodies(run: Run) -> list[str]:
    return [record.body.decode() for record in iterate_records(run.payload)]


def journaled(runs: list[Run], first_txid: int = 1) -> list[Run]:
    """As the machine does it."""
    for run in runs:
        run.first_txid = first_txid
        first_txid += run.count
    return runs


def test_what_is_drafted_is_made_into_batches_by_topic_in_order() -> None:
    author = SelfPublisher("queues", OWN)
    assert drafted(author, "a", "b") == [1, 2]
    assert drafted(author, "c", topic="trades") == [3]
    assert drafted(author, "d") == [4]
    runs = author.runs()
    assert [(run.topic, bodies(run)) for run in runs] == [
        (b"orders", ["a", "b"]),
        (b"trades", ["c"]),
        (b"orders", ["d"]),
    ]
    assert [run.ranges() for run in runs] == [[(1, 2)], [(3, 3)], [(4, 4)]]
    assert {run.publisher for run in runs} == {author.publisher}
    assert not author.runs() and len(author) == 4


def test_what_a_topic_is_told_of_several_commands_is_a_batch_of_each() -> None:
    """As a queue's owner drafts them in one turn: transfers, and what has left."""
    made = SelfPublisher("queues", Identity("a", "g", 0xA, life=3))
    commands = [Command.TRANSFER, Command.QUEUE_REMOVAL, Command.QUEUE_REMOVAL, Command.TRANSFER]
    for command in commands:
        made.draft("work", "json", b"it", 0, command=command)
    runs = made.runs()
    assert [(run.count, run.payload[COMMAND_AT]) for run in runs] == [
        (1, Command.TRANSFER),
        (2, Command.QUEUE_REMOVAL),
        (1, Command.TRANSFER),
    ]
    for at, run in zip((5, 6, 8), runs, strict=True):
        run.first_txid = at
    assert [draft.sequence for draft in made.committed(runs[:2])] == [1, 2, 3]
    assert [draft.sequence for draft in made.failed(7)] == [4]


def test_a_batch_has_a_limit_and_a_record_may_be_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authored_module, "RUN_BYTES_MAX", 200)
    author = SelfPublisher("queues", OWN)
    drafted(author, "a", "b", "c", "d" * 500, "e")
    assert [bodies(run) for run in author.runs()] == [["a", "b"], ["c"], ["d" * 500], ["e"]]


def test_a_record_has_what_it_was_drafted_with() -> None:
    author = SelfPublisher("queues", OWN)
    author.draft(
        "orders", "json", b"x", 9,
        command=Command.TRANSFER, key=b"k", correlation=b"c", expiration_s=3,
    )  # fmt: skip
    (run,) = author.runs()
    made = decode_record(run.payload)
    assert (made.command, made.key, made.correlation) == (Command.TRANSFER, b"k", b"c")
    assert (made.expiration_s, made.origin_time_us, made.body) == (3, 9, b"x")


def test_what_can_be_no_record_is_refused_and_takes_no_number() -> None:
    author = SelfPublisher("queues", OWN)
    with pytest.raises(LocalProtocolError, match="the limit is"):
        author.draft("orders", "json", b"x" * RECORD_BYTES_MAX, 0)
    with pytest.raises(LocalProtocolError, match="topic"):
        author.draft("", "json", b"x", 0)
    assert drafted(author, "a") == [1] and len(author) == 1


def test_it_takes_effect_when_it_is_read_back_from_the_commit() -> None:
    author = SelfPublisher("queues", OWN)
    drafted(author, "a", "b")
    runs = journaled(author.runs())
    other = replace(runs[0], publisher=publisher_id("p"))
    assert not author.committed([other]) and len(author) == 2
    assert [each.sequence for each in author.committed([other, *runs])] == [1, 2]
    assert len(author) == 0


def test_what_failed_is_undone_with_what_was_drafted_behind_it() -> None:
    author = SelfPublisher("queues", OWN)
    drafted(author, "a")
    first = journaled(author.runs(), 1)
    drafted(author, "b", "c")
    journaled(author.runs(), 2)
    drafted(author, "d", topic="trades")
    journaled(author.runs(), 4)
    drafted(author, "e")
    undone = author.failed(1)
    assert [each.sequence for each in undone] == [2, 3, 4, 5]
    assert [decode_record(each.record).body for each in undone] == [b"b", b"c", b"d", b"e"]
    assert [each.sequence for each in author.committed(first)] == [1], "that one is on disk"
    assert not author.failed(1) and len(author) == 0


def test_no_number_is_given_twice() -> None:
    """What failed to be written may be found after a crash."""
    author = SelfPublisher("queues", OWN)
    drafted(author, "a", "b")
    journaled(author.runs())
    author.failed(0)
    assert drafted(author, "c") == [3]
    (run,) = journaled(author.runs())
    assert [each.sequence for each in author.committed([run])] == [3]


def test_each_author_of_each_incarnation_and_life_has_an_id_of_its_own() -> None:
    identities = (OWN, replace(OWN, life=8), replace(OWN, incarnation=0xB))
    ids = {SelfPublisher(name, each).publisher for name in ("queues", "sow") for each in identities}
    clients = {publisher_id(name) for name in ("queues", f"queues|{OWN.incarnation}|{OWN.life}")}
    assert len(ids) == 6 and not ids & clients


class Bench:
    """A machine with a sync destination, its journal, and an author."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.machine = InstanceMachine(
            OWN,
            (DestinationRoute("b", "g", True, pass_through=".*", addresses=("b",)),),
            TopicBook((TopicRule("orders"),)),
            lookup=RunLookup(self.journal),
        )
        self.author = SelfPublisher("queues", OWN)

    def hand_over(self) -> list[Run]:
        effects = self.machine.authored(self.author.runs(), 0)
        self.machine.check_invariants()
        return [effect.run for effect in effects if isinstance(effect, Append)]

    def commit(self, last_txid: int) -> list[Any]:
        return self.machine.committed(last_txid, 0)


def test_an_instance_waits_for_it_like_for_what_a_client_published_and_tells_nobody() -> None:
    bench = Bench()
    drafted(bench.author, "a", "b")
    (run,) = bench.hand_over()
    assert run.flags & Flag.AWAITED and not run.path
    effects = bench.commit(2)
    (committed,) = [each for each in effects if isinstance(each, RunsCommitted)]
    assert len(bench.author.committed(committed.runs)) == 2
    machine = bench.machine
    assert list(machine.pending.of(OWN.incarnation).of(bench.author.publisher)) == [(1, 2)]
    effects = machine.link_answered("b", {OWN.incarnation: {bench.author.publisher: [(1, 2)]}}, {})
    assert not machine.pending and not [each for each in effects if isinstance(each, AckClient)]


def test_where_the_append_fails_the_instance_forgets_it_too() -> None:
    bench = Bench()
    drafted(bench.author, "a")
    bench.hand_over()
    drafted(bench.author, "b")
    bench.hand_over()
    effects = bench.machine.append_failed(2, "disk_full", "full", 0)
    (committed,) = [each for each in effects if isinstance(each, RunsCommitted)]
    assert [each.sequence for each in bench.author.committed(committed.runs)] == [1]
    assert [each.sequence for each in bench.author.failed(bench.machine.committed_txid)] == [2]
    drafted(bench.author, "c")
    (run,) = bench.hand_over()
    assert (run.first_txid, run.ranges(), run.flags & Flag.LATE) == (2, [(3, 3)], 0)


def test_what_is_not_journaled_cannot_be_written_and_nothing_of_it_is() -> None:
    bench = Bench()
    drafted(bench.author, "a")
    drafted(bench.author, "b", topic="ticks")
    with pytest.raises(LocalProtocolError, match="ticks"):
        bench.machine.authored(bench.author.runs(), 0)
    assert bench.machine.next_txid == 1
