"""services/server/clients/historical_queries.py: `sow_and_subscribe` with a bookmark, of a whole
instance without
sockets: the rows of one state, then every message behind it, once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import orjson
import pytest
from unit.server.clients.test_queries import (
    CONFIG,
    House,
    Said,
    ask,
    frames_until,
    group_of,
    in_house,
)
from unit.test_doors import Door

from raylay.services.errors import StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Command, Record, publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.server.clients import queries
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

STEPS = SowTopicDefinition(
    "steps", "json", keys=("/id",), rules=SowRules(window_us=10**12, granularity_us=7_000_000)
)
BRIEF = SowTopicDefinition("brief", "json", keys=("/id",), rules=SowRules(window_us=5_000_000))
WITH_PAST = replace(
    CONFIG,
    topics=(TopicRule("^(?!aside)"),),
    sow=(*CONFIG.sow, STEPS, BRIEF),
)


def historical(name: str, bookmark: str, topic: str = "trades", **options: Any) -> bytes:
    header = {"c": "sow_and_subscribe", "sub": name, "t": topic, "cid": name, "bm": bookmark}
    return encode_frame(header | {"a": "processed,completed", "o": options})


class Got(NamedTuple):
    """What one was given: rows, messages, and what lay before."""

    rows: list[Record]
    messages: list[Record]
    have: PublisherRanges

    @property
    def state(self) -> dict[Any, Any]:
        return {tree["id"]: tree for tree in (orjson.loads(each.body) for each in self.rows)}

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(each.body) for each in self.messages]


def got(found: list[Said], name: str) -> Got:
    """In the order of the protocol: ack, rows, end of the rows, messages."""
    mine = [each for each in found if each[0].get("sub") == name]
    words = [header.get("a") or header["c"] for header, _ in mine]
    at = words.index("group_end")
    assert words[:2] == ["processed", "group_begin"], words
    assert set(words[2:at]) <= {"sow"} and set(words[at + 1 :]) <= {"p", "completed"}, words
    rows = [record for header, records in mine for record in records if header["c"] == "sow"]
    messages = [record for header, records in mine for record in records if header["c"] == "p"]
    assert mine[at][0]["n"] == len(rows)
    return Got(rows, messages, PublisherRanges.from_wire(mine[at][0].get("have", {})))


async def completed(door: Door, name: str) -> list[Said]:
    """All up to the end of its replay."""
    return await frames_until(
        door, lambda each: each.get("a") == "completed" and each.get("sub") == name
    )


def said(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


class Ledger:
    """All that was published to one topic, in the order of the log, and what there was then."""

    def __init__(self, house: House, topic: str) -> None:
        self.house = house
        self.topic = topic
        self.identities: list[tuple[int, int]] = []
        self.bodies: list[Any] = []
        """None: a deletion."""
        self.times_us: list[int] = []
        self.states: list[dict[Any, Any]] = [{}]

    async def publish(self, door: Door, name: str, *trees: Any) -> None:
        await self.house.publish(door, name, *trees, topic=self.topic)
        for tree in trees:
            self.states.append({**self.states[-1], tree["id"]: tree})
        self._note(name, trees)

    async def delete(self, door: Door, name: str, identifier: Any) -> None:
        data = msgpack.packb({"data": orjson.dumps({"id": identifier})})
        await self.house.publish(door, name, data, topic=self.topic, command=Command.DELETE)
        self.states.append({k: v for k, v in self.states[-1].items() if k != identifier})
        self._note(name, (None,))

    def _note(self, name: str, trees: tuple[Any, ...]) -> None:
        runtime, last = self.house.server.runtime, self.house.published[name]
        now_us = runtime.now_us()
        self.bodies += trees
        for sequence in range(last - len(trees) + 1, last + 1):
            self.identities.append((publisher_id(name), sequence))
            # One time: they were received at once.
            self.times_us.append(now_us)
        runtime.clock_offset_us += 1_000_000
        offset_us = runtime.now_us() - runtime.steady_us()
        self.house.server.parts.instance.machine.wall_offset_us = offset_us

    def bookmark(self, txid: int) -> str:
        publisher, sequence = self.identities[txid - 1]
        return f"{publisher}|{sequence}|"

    def behind(self, txid: int) -> list[Any]:
        return [body for body in self.bodies[txid:] if body is not None]


async def filled(house: House, random_: random.Random, topic: str, changes: int) -> Ledger:
    ledger = Ledger(house, topic)
    doors = {name: await house.client(name) for name in "pq"}
    await go_on(ledger, doors, random_, changes)
    return ledger


async def go_on(
    ledger: Ledger, doors: dict[str, Door], random_: random.Random, changes: int
) -> None:
    for _ in range(changes):
        name = random_.choice("pq")
        if random_.random() < 0.25:
            await ledger.delete(doors[name], name, random_.randrange(8))
        else:
            count = random_.choice((1, 1, 3))
            trees = [
                {"id": random_.randrange(8), "v": len(ledger.bodies) + each}
                for each in range(count)
            ]
            await ledger.publish(doors[name], name, *trees)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
@pytest.mark.parametrize("seed", range(3))
def test_rows_replay_and_what_follows_are_the_whole_log_once(tmp_path: Path, seed: int) -> None:
    """Wherever it begins: the rows are what there was there, and every message behind comes once,
    in the order of the log, while others go on publishing."""
    random_ = random.Random(seed)

    async def visit(house: House) -> None:
        ledger = Ledger(house, "trades")
        doors = {name: await house.client(name) for name in "pq"}
        await go_on(ledger, doors, random_, 25)
        points = [0, *(random_.randrange(1, len(ledger.bodies)) for _ in range(8)), None]
        asked: list[tuple[Door, str, int | None]] = []
        for number, txid in enumerate(points):
            at = len(ledger.bodies) if txid is None else txid
            bookmark = ledger.bookmark(at) if at else "0"
            if txid and number % 2:
                time_us = ledger.times_us[txid - 1] + 1
                bookmark = said(time_us)
                # All that was received at once is before it.
                txid = next(at for at, each in enumerate(ledger.times_us) if each > time_us)
            reader = await house.client(f"r{number}")
            reader.send(historical(f"s{number}", bookmark, batch=2))
            asked.append((reader, f"s{number}", txid))
            # Without a pause: these come before, amid and behind the rows.
            await go_on(ledger, doors, random_, 1)
        await go_on(ledger, doors, random_, 5)
        # Who began at the end may be given all that there is as rows: what is last comes behind.
        at_the_end = asked[-1][0]
        rows = await frames_until(at_the_end, lambda each: each["c"] == "group_end")
        await ledger.publish(doors["p"], "p", {"id": "last"})
        last = len(ledger.bodies)
        for reader, name, txid in asked:
            found = rows if reader is at_the_end else []
            found += await frames_until(
                reader, lambda each: each["c"] == "p" and each["tx"] + each["n"] > last
            )
            mine = got(found, name)
            if txid is None:
                # At the end of the log the rows are what there is when they are read.
                txid = next(at for at in range(last) if mine.state == ledger.states[at])
                txid = next(at for at in range(txid, last) if mine.bodies == ledger.behind(at))
                while txid < last and ledger.bodies[txid] is None and mine.have.count > txid:
                    txid += 1
            assert mine.state == ledger.states[txid], (name, txid)
            assert mine.bodies == ledger.behind(txid), (name, txid)
            before: dict[int, list[int]] = {}
            for publisher, sequence in ledger.identities[:txid]:
                before.setdefault(publisher, []).append(sequence)
            for publisher, sequences in before.items():
                assert list(mine.have.of(publisher)) == [(1, max(sequences))]
            assert set(mine.have.sets) == set(before)

    in_house(tmp_path, visit, WITH_PAST)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
def test_with_a_granularity_the_rows_are_where_an_interval_begins(tmp_path: Path) -> None:
    random_ = random.Random(4)

    async def visit(house: House) -> None:
        ledger = await filled(house, random_, "steps", 30)
        reader = await house.client("r")
        for number in range(10):
            txid = random_.randrange(1, len(ledger.bodies))
            reader.send(historical(f"s{number}", ledger.bookmark(txid), "steps"))
            mine = got(await completed(reader, f"s{number}"), f"s{number}")
            begins = [
                at
                for at in range(txid + 1)
                if mine.bodies == ledger.behind(at) and mine.state == ledger.states[at]
            ]
            assert begins, "rows and replay fit, and nothing behind the bookmark is lacking"
            times_us = ledger.times_us[max(begins) : txid]
            assert len({each // 7_000_000 for each in times_us}) <= 1

    in_house(tmp_path, visit, WITH_PAST)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
def test_now_and_topics_without_history_begin_with_what_there_is(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        for topic in ("orders", "trades", "elsewhere"):
            await house.publish(door, "p", {"id": 1, "v": 1}, {"id": 1, "v": 2}, topic=topic)
        whole = {1: {"id": 1, "v": 2}}
        for number, (bookmark, topic, state, replayed) in enumerate(
            [
                ("0|1|", "trades", whole, []),
                ("0|1|", "orders", whole, []),
                ("0", "orders", whole, []),
                ("20000101T000000Z", "orders", whole, []),
                ("[0:0|1|]", "orders", whole, []),
                # A topic without SOW has no rows, and every moment.
                ("0", "elsewhere", {}, [1, 2]),
                ("[0:20000101T000000Z)", "elsewhere", {}, []),
                ("0", "trades", {}, [1, 2]),
                ("(0:0|1|]", "trades", {}, [1, 2]),
            ]
        ):
            name = f"s{number}"
            reader.send(historical(name, bookmark, topic))
            mine = got(await completed(reader, name), name)
            assert (mine.state, [each["v"] for each in mine.bodies]) == (state, replayed), number
            assert mine.have.count == (0 if replayed else 6) or state != whole
        await house.publish(door, "p", {"id": 2, "v": 3})
        found = await frames_until(reader, lambda each: each["c"] == "p" and each["sub"] == "s3")
        assert {each["sub"] for each, _ in found if each["c"] == "p"} <= {"s1", "s2", "s3"}

    in_house(tmp_path, visit, WITH_PAST)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
def test_of_before_the_window_there_are_no_rows_and_the_replay_is_whole(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        reader = await house.client("r")
        ledger = Ledger(house, "brief")
        door = await house.client("p")
        for number in range(12):
            await ledger.publish(door, "p", {"id": number % 2, "v": number})
        for name, txid, state in (("old", 4, {}), ("new", 10, ledger.states[10])):
            reader.send(historical(name, ledger.bookmark(txid), "brief"))
            mine = got(await completed(reader, name), name)
            assert (mine.state, mine.bodies) == (state, ledger.behind(txid))

    in_house(tmp_path, visit, WITH_PAST)


def test_a_filter_is_asked_of_rows_and_replay(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        ledger = await filled(house, random.Random(9), "trades", 20)
        reader = await house.client("r")
        bookmark = ledger.bookmark(10)
        reader.send(historical("s", bookmark, filter="/id > 3", order_by="/id DESC", rate="9999"))
        mine = got(await completed(reader, "s"), "s")
        expected = {k: v for k, v in ledger.states[10].items() if k > 3}
        assert mine.state == expected and list(mine.state) == sorted(expected, reverse=True)
        assert mine.bodies == [each for each in ledger.behind(10) if each["id"] > 3]

    in_house(tmp_path, visit, WITH_PAST)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
def test_what_does_not_go_together_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("p")
        await house.publish(door, "p", {"id": 1}, topic="trades")
        for frame, reason, why in (
            (historical("q", "0", oof=True), "not_supported", "leave it out, or the bookmark"),
            (historical("q", "0", delta=True), "not_supported", "leave it out, or the bookmark"),
            (historical("q", "0", select="[-/]"), "not_supported", "leave it out, or the bookmark"),
            (historical("q", "0", replace=True), "not_supported", "leave it out, or the bookmark"),
            (historical("q", "0", keys=[b"k"]), "not_supported", "leave one of them out"),
            (historical("q", "0", live=True), "not_supported", "leave one of them out"),
            (historical("q", "0", pause=True), "not_supported", "leave one of them out"),
            (historical("q", "0", have={}), "bad_command", "goes on with subscribe"),
            (historical("q", "0", top_n=5), "not_supported", "top_n"),
            (historical("q", "0", as_of="20260102T030405Z"), "not_supported", "by its bookmark"),
            (historical("q", "noon"), "bad_bookmark", "noon"),
            (historical("q", "0", filter="/id >"), "bad_filter", "column"),
            (historical("q", "0", "aside"), "not_journaled", "transaction log"),
            (
                historical("q", "0", "^(orders|trades)$"),
                "not_supported",
                "'trades' keeps a history",
            ),
            (
                historical("q", "7|7|", bookmark_not_found="fail"),
                "bookmark_not_found",
                "in the log",
            ),
        ):
            door.send(frame)
            answer = await door.until(lambda each: each.get("cid") == "q")
            assert (answer["status"], answer["reason"]) == ("failure", reason), answer
            assert why in answer["text"] and answer["sub"] == "q"
        clients = house.server.parts.clients
        assert not len(clients.queries) and not len(clients.replays)
        assert not door.connection.subscriptions and not door.connection.resolving
        door.send(historical("q", "7|7|"), historical("q", "0"))
        answer = await door.until(lambda each: each.get("reason") == "sub_id_in_use")
        assert answer["cid"] == "q"
        door.send(historical("e", "7|7|", bookmark_not_found="epoch"))
        assert got(await completed(door, "e"), "e").bodies == [{"id": 1}]

    in_house(tmp_path, visit, WITH_PAST)


def test_it_ends_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsubscribed, or its client gone: while the bookmark is looked up, while it waits behind
    another query, amid its rows. Nothing of it is left, and the others go on."""
    monkeypatch.setattr(queries, "TURN_S", 0.0)

    async def visit(house: House) -> None:
        door = await house.client("p")
        for value in range(3):
            await house.publish(door, "p", *({"id": n, "v": value} for n in range(60)))
            await house.publish(
                door, "p", *({"id": n, "v": value} for n in range(60)), topic="trades"
            )
        clients = house.server.parts.clients
        state = house.server.parts.sow.book.topics[1].state
        bookmark = f"{publisher_id('p')}|200|"
        for number, words in enumerate((0, 1, 3, 20)):
            for goes in (False, True):
                reader = await house.client(f"r{number}{goes}")
                reader.send(historical("s", bookmark, batch=1), ask("q", batch=1))
                for _ in range(words):
                    await asyncio.sleep(0.001)
                if goes:
                    reader.transport.close()
                    continue
                reader.send(encode_frame({"c": "unsubscribe", "sub": "s", "cid": "u"}))
                found = await frames_until(reader, lambda each: each.get("cid") == "u")
                if not any(each["c"] == "group_end" and each["sub"] == "q" for each, _ in found):
                    rest = await frames_until(reader, lambda each: each["c"] == "group_end")
                    assert {each["sub"] for each, _ in rest} == {"q"}
                reader.send(historical("s", bookmark))
                assert len(got(await completed(reader, "s"), "s").rows) == 60
                reader.transport.close()
        assert not len(clients.queries) and not len(clients.replays) and not state._as_of_us
        assert not clients.queries._historical

    in_house(tmp_path, visit, WITH_PAST)


def test_a_log_that_cannot_be_read_ends_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", {"id": 1}, {"id": 2}, topic="trades")
        journal = house.server.parts.reading.reader
        bookmark = f"{publisher_id('p')}|1|"
        for works_once in (False, True):

            def read_headers(after_txid: int, runs_max: int, once: bool = works_once) -> Any:
                if runs_max > 1 or not once:
                    raise StorageError("a broken disk")
                return type(journal).read_headers(journal, after_txid, runs_max)

            with monkeypatch.context() as patched:
                patched.setattr(journal, "read_headers", read_headers)
                reader.send(historical("s", bookmark))
                answer = await reader.until(lambda each: each.get("sub") == "s")
            assert (answer["status"], answer["reason"]) == ("failure", "storage_error")
            assert "a broken disk" in answer["text"]
            assert not len(house.server.parts.clients.queries) and not len(
                house.server.parts.clients.replays
            )
        reader.send(ask("q", "trades"))
        assert len(await group_of(reader, "q")) == 2
        reader.send(historical("s", bookmark))
        assert len(got(await completed(reader, "s"), "s").messages) == 1

    in_house(tmp_path, visit, WITH_PAST)


def test_now_amid_a_commit_that_is_folded_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far a large commit is folded when the rows are read: the replay has the rest."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        count, reading = 2_000, house.server.parts.reading
        unfolded = house.server.parts.clients.folds.unfolded
        run, looked_up = reading.run, asyncio.Event()

        async def slow(work: Any, *arguments: Any, **named: Any) -> Any:
            found = await run(work, *arguments, **named)
            if work.__name__ == "find":
                looked_up.set()
                while not unfolded:
                    await asyncio.sleep(0)
            return found

        monkeypatch.setattr(reading, "run", slow)
        bodies = [orjson.dumps({"id": n % 50, "v": n}) for n in range(count)]
        reader.send(historical("s", "0|1|", "orders", batch=7))
        await looked_up.wait()
        # As a link brings it: it is one commit.
        instance, number = house.server.parts.instance, door.connection.number
        runs = instance.machine.client_runs(number, house.records("p", *bodies), count)
        effects, _ = instance.machine.client_published(
            number, runs, house.server.runtime.steady_us(), LookupResult()
        )
        instance.perform(effects)
        found = await frames_until(
            reader, lambda each: each["c"] == "p" and each["tx"] + each["n"] > count
        )
        mine = got(found, "s")
        first = mine.have.count
        assert 0 < first < count, "amid the commit"
        assert [each["v"] for each in mine.bodies] == list(range(first, count))
        assert mine.state == {n % 50: {"id": n % 50, "v": n} for n in range(first)}

    in_house(tmp_path, visit, WITH_PAST)


def test_after_a_restart_the_past_is_what_it_was(tmp_path: Path) -> None:
    ledgers: list[Ledger] = []

    async def first(house: House) -> None:
        ledgers.append(await filled(house, random.Random(6), "trades", 25))

    async def second(house: House) -> None:
        (ledger,) = ledgers
        reader = await house.client("r")
        for txid in range(len(ledger.bodies)):
            name = f"s{txid}"
            reader.send(historical(name, ledger.bookmark(txid) if txid else "0"))
            mine = got(await completed(reader, name), name)
            assert (mine.state, mine.bodies) == (ledger.states[txid], ledger.behind(txid)), txid

    in_house(tmp_path, first, WITH_PAST)
    in_house(tmp_path, second, WITH_PAST)


@pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")
@pytest.mark.parametrize("command", ["subscribe", "sow_and_subscribe"])
def test_a_look_up_whose_subscription_was_ended_does_not_begin_the_next_one_of_its_id(
    tmp_path: Path, command: str
) -> None:
    """The bookmark of the first is still looked up when the second is asked for."""

    async def visit(house: House) -> None:
        door, reader = await house.client("p"), await house.client("r")
        await house.publish(door, "p", {"id": 1, "v": 1}, {"id": 1, "v": 2}, topic="trades")
        first = {"c": "subscribe", "sub": "s", "t": "trades", "cid": "first", "bm": "0"}
        end = {"c": "unsubscribe", "sub": ["s"], "cid": "end"}
        second = first | {"c": command, "cid": "second", "bm": "0|1|", "a": "processed,completed"}
        reader.send(*map(encode_frame, (first, end, second)))
        found = await frames_until(reader, lambda each: each.get("a") == "completed")
        assert [each["cid"] for each, _ in found if each.get("a") == "processed"] == [
            "end",
            "second",
        ]
        assert not [each for each, _ in found if each["c"] == "p"], "only what comes from now on"
        await house.publish(door, "p", {"id": 1, "v": 3}, topic="trades")
        found = await frames_until(reader, lambda each: each["c"] == "p")
        assert [orjson.loads(each.body)["v"] for each in found[-1][1]] == [3]
        assert len(house.server.parts.clients.replays) == 1

    in_house(tmp_path, visit, WITH_PAST)


@pytest.mark.covers("SOW", "rules of a history that are changed")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SowRules(window_us=10**12, granularity_us=7_000_000), SowRules(window_us=10**12)),
        (SowRules(window_us=5_000_000), SowRules(window_us=10**12)),
    ],
)
def test_other_rules_of_a_history_make_no_past_of_what_it_let_go(
    tmp_path: Path, before: SowRules, after: SowRules
) -> None:
    """A finer granularity, a longer window: what was let go under the former ones is not there."""
    ledgers: list[Ledger] = []

    def ruled(rules: SowRules) -> Any:
        return replace(WITH_PAST, sow=(replace(STEPS, rules=rules),))

    async def first(house: House) -> None:
        runtime = house.server.runtime
        # It was a while ago.
        runtime.clock_offset_us -= 100_000_000
        offset_us = runtime.now_us() - runtime.steady_us()
        house.server.parts.instance.machine.wall_offset_us = offset_us
        ledgers.append(await filled(house, random.Random(7), "steps", 30))
        house.server.parts.sow.book.topics[0].state.prune(runtime.now_us())

    async def second(house: House) -> None:
        (ledger,) = ledgers
        reader = await house.client("r")
        for txid in range(1, len(ledger.bodies)):
            name = f"s{txid}"
            reader.send(historical(name, ledger.bookmark(txid), "steps"))
            mine = got(await completed(reader, name), name)
            assert mine.state in ({}, ledger.states[txid]), txid
            assert mine.bodies == ledger.behind(txid), txid
        ledger.house, door = house, await house.client("z")
        for number in range(2):
            await ledger.publish(door, "z", {"id": "z", "v": number})
        txid = len(ledger.bodies) - 1
        reader.send(historical("since", ledger.bookmark(txid), "steps"))
        assert got(await completed(reader, "since"), "since").state == ledger.states[txid]

    in_house(tmp_path, first, ruled(before))
    in_house(tmp_path, second, ruled(after))
