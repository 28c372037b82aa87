"""What a SOW topic does before the append, beside a model that has every value in a dictionary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from support.sow_given import ORDERS, P, Q, book, put, record_bytes, run

from raylay.services.core.feature import CommitBatch
from raylay.services.core.fold_backlog import RunParts
from raylay.services.core.sow import SowFeature
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.work import NEWS, WORK_MAX
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    RUN_BYTES_MAX,
    Command,
    Record,
    Run,
    iterate_records,
    scan,
)
from raylay.services.messages.stateful import PreparedRun
from raylay.services.messages.types.registry import message_type
from raylay.services.sow import staging
from raylay.services.sow.apply import DELETED_MAX
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.delete_scan import may_ask
from raylay.services.sow.records import SowRecord
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowRules
from raylay.services.sow.topic import SowTopic

pytestmark = pytest.mark.covers("SOW", "what clients publish to a SOW topic")

DELTA, DELETE = Command.DELTA_PUBLISH, Command.DELETE


class Bench:
    """An instance with one SOW topic, as far as that is concerned."""

    def __init__(
        self,
        definition: SowTopicDefinition = ORDERS,
        kind: type[SowStaging] = SowStaging,
        **fields: Any,
    ) -> None:
        self.book = book(definition)
        self.feature = SowFeature(self.book)
        (self.topic,) = self.book.topics
        for name, value in fields.items():
            setattr(self.topic, name, value)
        self.staging = kind(self.topic, BUILT_IN)
        self.topic.staging = self.staging
        self.txid = self.committed_txid = 0
        self.sequence = 0
        self.now_us = 1_000
        self.waiting: list[Run] = []
        self.clock_us = 0
        """What the wall clock is ahead of the steady one."""

    def publish(self, *bodies: Any, command: int = Command.PUBLISH, **more: Any) -> PreparedRun:
        """One batch of a client of ours, prepared and staged."""
        return self.bring(*((command, body) for body in bodies), **more)

    def bring(self, *said: tuple[int, Any], **more: Any) -> PreparedRun:
        """The same, of any commands of one class."""
        records = []
        for command, body in said:
            self.sequence += 1
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            records.append(record_bytes(self.sequence, body, command=command, **more))
        made = self.staging.prepare(run(0, *records), self.now_us + self.clock_us, self.now_us)
        for each in made.runs:
            self.stage(each)
        return made

    def delete(self, **said: Any) -> PreparedRun:
        return self.publish(msgpack.packb(said), command=DELETE)

    def stage(self, each: Run) -> None:
        each.first_txid = self.txid + 1
        each.receive_time_us = self.now_us
        self.txid = each.last_txid
        self.waiting.append(each)
        self.staging.staged(each)

    def commit(self, most: int = 1_000_000) -> None:
        done, self.waiting = self.waiting[:most], self.waiting[most:]
        if done:
            self.committed_txid = done[-1].last_txid
            self.feature.fold(CommitBatch(done, self.committed_txid))

    def fail(self) -> None:
        """Nothing of what waits comes to the disk."""
        self.txid = self.committed_txid
        self.waiting = []
        self.staging.failed(self.committed_txid)

    def folded(self) -> dict[bytes, Any]:
        return {each.key: json.loads(each.body or b"") for each in self.topic.state.records()}

    def key(self, number: int) -> bytes:
        return self.topic.key_of(
            next(iterate_records(record_bytes(1, json.dumps({"id": number}).encode())))
        )


def bodies(made: PreparedRun) -> list[Any]:
    return [
        json.loads(each.body)
        for one in made.runs
        for each in iterate_records(one.payload, verify=True)
    ]


def keys(made: PreparedRun) -> list[bytes]:
    ((body,),) = [[each.body for each in iterate_records(one.payload)] for one in made.runs]
    said = msgpack.unpackb(body)
    assert list(said) == ["keys"]
    return list(said["keys"])


def why(made: PreparedRun) -> list[tuple[list[tuple[int, int]], str]]:
    return [(each.ranges, each.reason) for each in made.refused]


def refused(made: PreparedRun) -> tuple[str, str]:
    """Reason and text of the only record, which is refused."""
    (one,) = made.refused
    assert not made.runs
    return one.reason, one.text


# -- plain publishes -----------------------------------------------------------------------------
def test_a_plain_publish_is_journaled_as_it_came() -> None:
    bench = Bench()
    came = run(0, record_bytes(1, b'{"id": 1, "n":  2}'))
    assert bench.staging.prepare(came, 0, 0) == PreparedRun((came,))
    assert bench.staging.prepare(came, 0, 0).runs[0] is came


def test_what_has_no_key_or_is_of_another_type_is_refused_alone() -> None:
    bench = Bench()
    made = bench.publish({"id": 1}, {"n": 1}, b"{", {"id": 2}, {"id": []})
    assert why(made) == [
        ([(2, 2)], "bad_key"),
        ([(3, 3)], "bad_message"),
        ([(5, 5)], "bad_key"),
    ]
    assert "/id of this one is missing" in made.refused[0].text
    assert "topic orders: this is no message of type json" in made.refused[1].text
    assert bodies(made) == [{"id": 1}, {"id": 2}]
    assert [each.ranges() for each in made.runs] == [[(1, 1), (4, 4)]]
    bench.commit()
    assert len(bench.folded()) == 2


def test_a_key_that_a_publisher_gives_is_looked_at() -> None:
    bench = Bench(SowTopicDefinition("orders", "json"))
    assert bench.publish({"n": 1}, key=b"k1").refused == ()
    reason, text = refused(bench.publish({"n": 1}))
    assert reason == "bad_key" and "neither Key nor KeyGenerator" in text
    assert refused(bench.publish({"n": 1}, key=b"a b"))[0] == "bad_key"
    assert refused(bench.publish(b"nothing", key=b"k1"))[0] == "bad_message"
    bench.commit()
    assert bench.folded() == {b"k1": {"n": 1}}


def test_what_another_instance_brought_costs_nothing_before_it_is_asked_for() -> None:
    bench = Bench()
    asked = []
    key_of: Callable[..., bytes] = bench.topic.key_of

    class Counting(SowTopic):
        __slots__ = ()

        def key_of(self, record: Record, tree: Any = None) -> bytes:
            asked.append(record.sequence)
            return key_of(record, tree)

    bench.topic.__class__ = Counting
    bench.stage(put(0, b'{"id": 1}', b'{"id": 2}', b"{", publisher=Q, first=1))
    assert asked == []
    bench.commit()
    assert asked == [1, 2, 3] and bench.feature.unreadable == 1, "in the fold"
    asked.clear()
    bench.stage(put(0, b'{"id": 1, "n": 1}', b"{", publisher=Q, first=4))
    bench.publish({"id": 1, "m": 2}, command=DELTA)
    assert sorted(asked)[-2:] == [4, 5], "once, when it is asked for"
    asked.clear()
    bench.commit()
    assert asked == [5] and bench.feature.unreadable == 2, "but for what has none, and why, told"
    assert bench.folded()[bench.key(1)] == {"id": 1, "n": 1, "m": 2}


# -- deltas --------------------------------------------------------------------------------------
@pytest.mark.covers("SOW", "`delta_publish`")
def test_a_delta_is_merged_into_the_value_as_staged() -> None:
    bench = Bench()
    made = bench.bring((1, {"id": 1, "a": 1, "b": {"x": 1}}), (DELTA, {"id": 1, "b": {"y": 2}}))
    assert bodies(made)[1] == {"id": 1, "a": 1, "b": {"x": 1, "y": 2}}, "in one batch"
    assert bodies(bench.publish({"id": 1, "a": 3}, command=DELTA)) == [
        {"id": 1, "a": 3, "b": {"x": 1, "y": 2}}
    ], "before any commit"
    bench.commit(1)
    assert bodies(bench.publish({"id": 1, "c": 4}, command=DELTA))[0]["a"] == 3, "over a commit"
    bench.delete(keys=[bench.key(1)])
    assert bodies(bench.publish({"id": 1, "d": 5}, command=DELTA)) == [{"id": 1, "d": 5}]
    bench.commit()
    assert bench.folded() == {bench.key(1): {"id": 1, "d": 5}}


@pytest.mark.covers("SOW", "`delta_publish`")
def test_a_delta_on_nothing_is_the_message() -> None:
    bench = Bench()
    came = run(0, record_bytes(1, b'{"id": 1, "n": 2}', command=DELTA))
    assert bench.staging.prepare(came, 0, 0).runs[0] is came


def test_a_late_delta_changes_nothing_that_comes_behind_it() -> None:
    bench = Bench()
    bench.sequence = 10
    bench.publish({"id": 1, "n": 11})
    bench.sequence = 3
    bench.publish({"id": 1, "n": 4, "late": 1}, command=DELTA)
    bench.sequence = 11
    assert bodies(bench.publish({"id": 1, "m": 1}, command=DELTA)) == [{"id": 1, "n": 11, "m": 1}]
    bench.commit()
    assert bench.folded() == {bench.key(1): {"id": 1, "n": 11, "m": 1}}


def test_what_has_expired_is_no_value() -> None:
    rules = SowRules(expires=True, lifetime_us=500)
    bench = Bench(SowTopicDefinition("orders", "json", keys=("/id",), rules=rules))
    bench.publish({"id": 1, "n": 1}, {"id": 2, "n": 1}, at_us=1_000)
    bench.commit()
    bench.now_us = 1_400
    assert bodies(bench.publish({"id": 1, "m": 1}, command=DELTA, at_us=1_400))[0]["n"] == 1
    bench.now_us = 1_600
    made = bench.publish({"id": 2, "m": 1}, command=DELTA, at_us=1_600)
    assert bodies(made) == [{"id": 2, "m": 1}]
    assert keys(bench.delete(filter="/m = 1")) == sorted([bench.key(1), bench.key(2)])


@pytest.mark.covers("SOW", "`delta_publish`")
def test_types_and_topics_without_deltas_refuse_them() -> None:
    bench = Bench(SowTopicDefinition("orders", "binary"))
    reason, text = refused(bench.publish(b"x", command=DELTA, kind="binary", key=b"k"))
    assert reason == "not_supported" and "topic orders takes no delta publishes" in text
    bench = Bench(SowTopicDefinition("orders", "json", keys=("/id",), last_writer=True))
    assert refused(bench.publish({"id": 1}, command=DELTA))[0] == "not_supported"
    bench.now_us = 0
    ahead = 61_000_000
    reason, text = refused(bench.publish({"id": 1}, at_us=ahead))
    assert reason == "clock_ahead" and "61 s ahead" in text
    assert bench.publish({"id": 1}, at_us=ahead - 1_000_000).refused == ()
    # The clock here is set back, and forward: who was right is right.
    bench.now_us = 7_200_000_000
    for bench.clock_us in (-3_600_000_000, 3_600_000_000):
        assert bench.publish({"id": 1}, at_us=bench.now_us + 1).refused == ()
    assert refused(bench.publish({"id": 1}, at_us=bench.now_us + 3_600_000_000 + ahead))


def test_a_type_that_merges_in_its_own_way() -> None:
    bench = Bench(SowTopicDefinition("orders", "fix", keys=("/1",)))
    bench.publish(b"1=a\x012=b\x01", kind="fix")
    (made,) = bench.publish(b"1=a\x013=c\x01", command=DELTA, kind="fix").runs
    assert next(iterate_records(made.payload)).body == b"1=a\x012=b\x013=c\x01"


@pytest.mark.covers("SOW", "a record above the limit is refused")
def test_what_becomes_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    half = "x" * (RECORD_BYTES_MAX // 2)
    bench.publish({"id": 1, "a": half})
    bench.commit()
    reason, text = refused(bench.publish({"id": 1, "b": half}, command=DELTA))
    assert reason == "too_large" and f"the limit is {RECORD_BYTES_MAX:,}" in text
    # What fits is cut to runs that a link can carry.
    made = bench.bring(*[(DELTA, {"id": 1, "n": n}) for n in range(3)])
    assert len(made.runs) == 2 and not made.refused
    assert max(len(each.payload) for each in made.runs) <= RUN_BYTES_MAX
    assert [each.ranges() for each in made.runs] == [[(3, 4)], [(5, 5)]]
    assert bodies(bench.publish({"id": 1, "m": 1}, command=DELTA))[0]["n"] == 2
    monkeypatch.setattr(staging, "BATCH_BYTES_MAX", 2 * RECORD_BYTES_MAX)
    bench.now_us += staging.BATCH_EACH_US
    made = bench.bring(*[(DELTA, {"id": 1, "n": n}) for n in range(5)], (DELTA, {"id": 2}))
    assert {each.reason for each in made.refused} == {"too_large"} and len(bodies(made)) == 4
    assert refused(bench.publish({"id": 1, "n": 9}, command=DELTA))[0] == "too_large", "other batch"
    bench.clock_us = -3_600_000_000
    bench.now_us += staging.BATCH_EACH_US
    assert bodies(bench.publish({"id": 1, "n": 2}, command=DELTA))[0]["n"] == 2
    bench.commit()
    assert bench.folded()[bench.key(1)]["n"] == 2


@pytest.mark.parametrize("kind", ["xml", "nvfix"])
def test_what_takes_too_long_to_be_parsed_is_refused(kind: str) -> None:
    key = "/a/id" if kind == "xml" else "/id"
    bench = Bench(SowTopicDefinition("orders", kind, keys=(key,)))

    def body(name: str, size_bytes: int) -> bytes:
        text = "x" * size_bytes
        xml = f"<a><id>1</id><{name}>{text}</{name}></a>"
        return (xml if kind == "xml" else f"id=1\x01{name}={text}\x01").encode()

    most = message_type(kind).parsed_bytes_max
    for command in (Command.PUBLISH, DELTA):
        reason, text = refused(bench.publish(body("b", most), command=command, kind=kind))
        assert reason == "too_large" and f"the limit is {most:,}: keep less in one rec" in text
    said = msgpack.packb({"data": body("b", most)})
    assert refused(bench.publish(said, command=DELETE, kind=kind))[0] == "too_large"
    # So it is where a delta would make it so.
    half = most // 2
    assert not bench.publish(body("b", half), kind=kind).refused
    reason, text = refused(bench.publish(body("c", half), command=DELTA, kind=kind))
    assert reason == "too_large" and f"the limit is {most:,}" in text
    assert not bench.publish(body("b", half), command=DELTA, kind=kind).refused
    bench.commit()
    assert bench.topic.state.count == 1


# -- what is computed ----------------------------------------------------------------------------
@pytest.mark.covers("SOW", "preprocessing before the key")
def test_fields_are_computed_before_the_key_and_behind_it() -> None:
    bench = Bench(
        preprocess=lambda tree: {**tree, "id": tree["raw"] * 2},
        enrich=lambda tree, before: {**tree, "was": (before or {}).get("n")},
    )
    assert bodies(bench.publish({"raw": 1, "n": 5})) == [{"raw": 1, "n": 5, "id": 2, "was": None}]
    made = bench.bring((1, {"raw": 1, "n": 6}), (DELTA, {"raw": 1, "m": 7}))
    assert bodies(made) == [
        {"raw": 1, "n": 6, "id": 2, "was": 5},
        {"raw": 1, "n": 6, "id": 2, "was": 6, "m": 7},
    ]
    assert keys(bench.delete(data=b'{"raw": 1}')) == [bench.key(2)]
    bench.commit()
    assert bench.folded() == {}


@pytest.mark.covers("SOW", "preprocessing before the key")
def test_what_is_computed_does_not_change_the_key() -> None:
    bench = Bench(enrich=lambda tree, before: {**tree, "id": 9})
    reason, text = refused(bench.publish({"id": 1}))
    assert reason == "bad_key" and "changes its key" in text
    assert not bench.publish({"id": 9}).refused


# -- deletes -------------------------------------------------------------------------------------
@pytest.mark.covers("SOW", "`sow_delete` by filter")
def test_a_delete_on_one_topic_of_a_pattern_takes_none_of_another() -> None:
    """Who may delete from one has no say in the others, whose keys he can compute."""
    bench = Bench(TICKS)
    bench.publish({"id": 1}, topic="ticks/a")
    bench.publish({"id": 1}, topic="ticks/b")
    bench.commit()
    bench.publish({"id": 2}, topic="ticks/b")
    a, *b = (key for number in (1, 2) for key in ticks(bench, number))
    assert len(b) == 3
    said = msgpack.packb({"keys": [a, *b]})
    made = bench.publish(said, command=DELETE, topic="ticks/a")
    # Of what is not here nobody knows whose it is.
    assert keys(made) == sorted([a, ticks(bench, 2)[0]])
    bench.commit()
    assert sorted(bench.folded().values(), key=str) == [{"id": 1}, {"id": 2}]


def test_a_delete_by_a_message_takes_none_of_another_topic_of_a_pattern() -> None:
    """A key generator may leave the topic out of the key."""
    bench = Bench(TICKS, _rule=None, _generate=lambda record, tree: b"K%d" % tree["id"])
    bench.publish({"id": 1}, topic="ticks/b")
    said = msgpack.packb({"data": b'{"id": 1}'})
    for _ in ("staged", "on the disk"):
        assert keys(bench.publish(said, command=DELETE, topic="ticks/a")) == []
        bench.commit()
    assert list(bench.folded().values()) == [{"id": 1}]
    assert keys(bench.publish(said, command=DELETE, topic="ticks/b")) == [b"K1"]


TICKS = SowTopicDefinition("ticks", "json", keys=("/id",), pattern="^ticks/")


def ticks(bench: Bench, number: int) -> list[bytes]:
    """The keys of a number on both topics."""
    body = json.dumps({"id": number}).encode()
    records = (record_bytes(1, body, topic=topic) for topic in ("ticks/a", "ticks/b"))
    return [bench.topic.key_of(next(iterate_records(each))) for each in records]


@pytest.mark.covers("SOW", "`sow_delete` by filter")
def test_a_delete_is_journaled_as_the_keys_that_it_takes_away() -> None:
    bench = Bench()
    bench.publish(*({"id": n, "n": n} for n in range(4)))
    bench.commit()
    bench.publish({"id": 3, "n": 0}, {"id": 4, "n": 9})
    assert keys(bench.delete(filter="/n >= 2")) == sorted([bench.key(2), bench.key(4)])
    assert keys(bench.delete(filter="/n >= 2")) == [], "they are gone as staged"
    assert keys(bench.delete(keys=[b"b", b"a", b"b"])) == [b"a", b"b"]
    assert keys(bench.delete(data=b'{"id": 3}')) == [bench.key(3)]
    bench.commit()
    assert set(bench.folded()) == {bench.key(0), bench.key(1)}


@pytest.mark.covers("SOW", "`sow_delete` by filter")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "bad_message"),
        (b"\xc1", "bad_message"),
        (msgpack.packb(5), "bad_message"),
        (msgpack.packb({}), "bad_message"),
        (msgpack.packb({"filter": "1=1", "data": b"a"}), "bad_message"),
        (msgpack.packb({"filter": "1=1", "keys": b"a"}), "bad_message"),
        (msgpack.packb({"filter": "1=1", "keys": ["a"]}), "bad_key"),
        (msgpack.packb({"filter": "/n >", "keys": [b"a"]}), "bad_filter"),
        (msgpack.packb({"filter": "1=1", "keys": [b"a"] * (DELETED_MAX + 1)}), "too_many"),
        (msgpack.packb({"filter": b"1=1"}), "bad_message"),
        (msgpack.packb({"keys": "a"}), "bad_message"),
        (msgpack.packb({"keys": ["a"]}), "bad_key"),
        (msgpack.packb({"keys": [b""]}), "bad_key"),
        (msgpack.packb({"keys": [b"a" * 256]}), "bad_key"),
        (msgpack.packb({"data": b"{"}), "bad_message"),
        (msgpack.packb({"data": b"{}"}), "bad_key"),
        (msgpack.packb({"filter": "/n >"}), "bad_filter"),
        (msgpack.packb({"filter": "CLIENT_NAME() = 'x'"}), "bad_filter"),
    ],
)
def test_a_delete_that_says_nothing_is_refused(body: bytes, reason: str) -> None:
    bench = Bench()
    bench.publish({"id": 1})
    assert refused(bench.publish(body, command=DELETE))[0] == reason
    bench.commit()
    assert len(bench.folded()) == 1


def test_whatever_a_delete_raises_refuses_that_delete_alone() -> None:
    def broken(tree: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("not in the table") if "bad" in tree else KeyError("id")

    bench = Bench(preprocess=broken, definition=SowTopicDefinition("orders", "json", keys=("/id",)))
    reason, text = refused(bench.delete(data=b'{"id": 1, "bad": 2}'))
    assert reason == "bad_message"
    assert text == "topic orders: a delete met LookupError: not in the table"


def test_no_bytes_in_the_place_of_a_delete_end_an_instance() -> None:
    bench, chance = Bench(), random.Random(32)
    bench.publish({"id": 1})
    bench.commit()
    whole = [
        msgpack.packb({"filter": "/n > 1 OR /id = 9", "keys": [b"a", b"b"]}),
        msgpack.packb({"keys": [b"a" * 20, b"b"]}),
        msgpack.packb({"data": b'{"id": 5, "n": [1, 2]}'}),
    ]
    for _ in range(2_000):
        body = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        looked = run(0, record_bytes(bench.sequence + 1, bytes(body), command=DELETE))
        for looking in bench.staging.looks_for(looked):
            looking.take(10)
            looking.close()
        made = bench.publish(bytes(body), command=DELETE)
        assert len(made.runs) + len(made.refused) == 1
    assert bench.publish({"id": 2}).refused == ()


@pytest.mark.covers("SOW", "of any number at once")
def test_a_filter_with_keys_takes_of_those_what_passes() -> None:
    bench = Bench()
    bench.publish(*({"id": n, "n": n} for n in range(6)))
    bench.commit()
    ids = [bench.key(n) for n in range(6)]
    body = msgpack.packb({"filter": "/n > 1", "keys": [ids[0], ids[1], ids[2], ids[4], b"none"]})
    deletion = run(0, record_bytes(bench.sequence + 1, body, command=DELETE))
    (looking,) = bench.staging.looks_for(deletion)
    looking.take(2)
    # One of them passes now, one does not any more; what passes beside them is left.
    bench.publish({"id": 1, "n": 9}, {"id": 4, "n": 0}, {"id": 3, "n": 9}, publisher=Q)
    bench.commit()
    looking.take(9)
    assert looking.done and looking.looked <= 8
    bench.publish({"id": 2, "n": 0}, {"id": 5, "n": 9}, publisher=Q)
    assert keys(bench.staging.prepare(deletion, 0, 0)) == [ids[1]]
    assert keys(bench.delete(filter="/n > 1", keys=[ids[3], ids[0]])) == [ids[3]]
    bench.publish({"id": 5, "n": 10})
    assert keys(bench.delete(filter="/n > 1", keys=[])) == [], "none is not all"


@pytest.mark.covers("SOW", "`sow_delete` by filter")
def test_a_message_says_no_key_where_publishers_give_it() -> None:
    bench = Bench(SowTopicDefinition("orders", "json"))
    reason, text = refused(bench.delete(data=b"{}"))
    assert reason == "bad_key" and "delete by keys, or by a filter" in text
    bench = Bench(SowTopicDefinition("orders", "binary"))
    assert refused(bench.delete(filter="/n = 1"))[0] == "not_supported"


def test_a_filter_is_asked_in_turns_before_the_delete_is_prepared() -> None:
    bench = Bench()
    bench.publish(*({"id": n, "n": 1} for n in range(staging.LOOKED_MAX + 1)))
    bench.commit()
    asked = msgpack.packb({"filter": "/n = 1"})
    deletion = run(0, record_bytes(bench.sequence + 1, asked, command=DELETE))
    (looking,) = bench.staging.looks_for(deletion)
    looks = 0
    while not looking.done:
        looking.take(500)
        looks += 1
        bench.publish({"id": looks, "n": 2}, publisher=Q)
        bench.commit()
    assert looks == 5 and bench.staging.looks_for(deletion) == [looking]
    bench.publish({"id": 0, "n": 2}, publisher=Q)
    (made,) = bench.staging.prepare(deletion, 0, 0).runs
    found = keys(PreparedRun((made,)))
    assert len(found) == staging.LOOKED_MAX + 1 - 6, "what was changed meanwhile is judged again"
    assert bench.staging.looks_for(run(0, record_bytes(1))) == []
    assert not bench.staging._findings and not bench.topic.state._queries


def test_what_nobody_looked_for_is_looked_for_a_little() -> None:
    bench = Bench()
    bench.publish(*({"id": n, "n": 1} for n in range(staging.LOOKED_MAX + 1)))
    bench.commit()
    key = bench.key(7).decode()
    assert keys(bench.delete(filter=f"SOW_KEY() = '{key}'")) == [bench.key(7)], "by an index"
    for _ in range(2):
        reason, text = refused(bench.delete(filter="/n = 1"))
        assert reason == "too_many" and "number your publishes" in text
    assert refused(bench.delete(filter=f"SOW_KEY() = '{key}'"))[0] == "too_many", "all is used up"
    bench.clock_us = -3_600_000_000
    bench.now_us += staging.LOOKS_EACH_US
    assert keys(bench.delete(filter=f"SOW_KEY() = '{key}'")) == [], "it is gone"


def test_any_number_of_deletes_waits_to_be_looked_for_and_costs_nothing() -> None:
    bench = Bench()
    bench.publish({"id": 1, "n": 1}, {"id": 2, "n": 7})
    bench.commit()
    asked = [
        msgpack.packb({"filter": text}) for text in ("/n >", *(f"/n = {n}" for n in range(99)))
    ]
    records = (record_bytes(n, body, command=DELETE) for n, body in enumerate(asked, 1))
    deletions = run(0, *records, record_bytes(101, b"x", command=DELETE))
    assert may_ask(deletions) and not may_ask(run(0, record_bytes(1, b"filter")))
    looking = bench.staging.looks_for(deletions)
    assert len(looking) == len(bench.staging._findings) == 99
    for each in looking:
        each.take(0)
        assert not each.done
    assert not bench.topic.state._queries, "none has begun"
    # One is asked, the others are closed as they are.
    looking[7].take(5)
    looking[7].take(5)
    assert looking[7].done and bench.topic.state._queries
    found = looking[7].keys(bench.topic.state.get, ())
    assert found == [bench.key(2)]
    for each in looking:
        each.close()
        each.close()
        each.take(5)
    assert not bench.staging._findings and not bench.topic.state._queries


def test_the_keys_of_a_part_are_those_of_its_records() -> None:
    bench = Bench()
    first, second = (put(at + 1, *(b'{"id":%d}' % n for n in range(at, at + 4))) for at in (0, 4))
    for each in (first, second):
        made = bench.staging.prepare(each, 0, 0)
        assert list(made.runs) == [each]
        bench.stage(each)
    ids = [bench.key(n) for n in range(8)]
    keys_of = bench.staging.keys_of
    assert keys_of(first) == ids[:4] and keys_of(second) == ids[4:]
    parts = RunParts(first)
    begin = parts.take(1)
    middle = parts.take(2)
    end = parts.take(9)
    assert [keys_of(each) for each in (begin, middle, end)] == [ids[:1], ids[1:3], ids[3:4]]
    assert keys_of(RunParts(second).take(2)) is None, "only the first of all is folded in parts"
    assert keys_of(replace(end, first_txid=3, count=9)) is None
    bench.waiting.clear()
    bench.staging.committed(1)
    assert keys_of(middle) == ids[1:3] and keys_of(end) == ids[3:4]
    bench.staging.committed(4)
    assert keys_of(RunParts(second).take(3)) == ids[4:7], "it is the first now"
    assert keys_of(middle) is None, "it is folded"
    bench.staging.committed(8)
    assert keys_of(second) is None
    # What came from a peer has keys when somebody has asked for a value.
    theirs = put(0, b'{"id":1}', b'{"n":1}', publisher=Q, first=1)
    bench.stage(theirs)
    assert keys_of(theirs) is None
    part = RunParts(theirs).take(1)
    assert keys_of(part) is None
    bench.staging.value(b"k", 0)
    assert keys_of(theirs) == [ids[1], None] and keys_of(part) == [ids[1]]


def test_a_delete_of_one_of_many_topics_takes_of_no_other() -> None:
    definition = SowTopicDefinition("fx", "json", pattern="^fx/", keys=("/id",))
    bench = Bench(definition)
    bench.publish({"id": 1}, topic="fx/a")
    bench.commit()
    bench.publish({"id": 1}, topic="fx/b")
    body = msgpack.packb({"filter": "1 = 1"})
    assert len(keys(bench.publish(body, command=DELETE, topic="fx/b"))) == 1
    bench.commit()
    assert [each.topic for each in bench.topic.state.records()] == [b"fx/a"]


# -- what did not come to the disk ---------------------------------------------------------------
def test_what_is_not_journaled_was_never_a_value() -> None:
    bench = Bench()
    bench.publish({"id": 1, "n": 1})
    bench.commit()
    bench.publish({"id": 1, "n": 2})
    bench.delete(filter="1 = 1")
    bench.fail()
    assert bodies(bench.publish({"id": 1, "m": 1}, command=DELTA)) == [{"id": 1, "n": 1, "m": 1}]


def test_what_is_prepared_and_never_staged_is_no_value() -> None:
    bench = Bench()
    bench.staging.prepare(run(0, record_bytes(1, b'{"id": 1, "n": 1}', command=DELTA)), 0, 0)
    bench.sequence = 1
    assert bodies(bench.publish({"id": 1, "m": 1}, command=DELTA)) == [{"id": 1, "m": 1}]


def test_another_run_staged_in_place_of_what_was_prepared_is_all_that_counts() -> None:
    """Its session ended: what another instance brought is staged next."""
    bench = Bench()
    two = [record_bytes(n, b'{"id": 1, "n": 1}', command=DELTA) for n in (1, 2)]
    bench.staging.prepare(run(0, *two), 0, 0)
    assert bench.staging.value(bench.key(1), 0) is not None
    bench.stage(run(0, record_bytes(1, b'{"id": 2, "n": 1}', publisher=Q)))
    assert bench.staging.value(bench.key(1), 0) is None


# -- all of it, at random ------------------------------------------------------------------------
class OfWhatIsCommitted(SowStaging):
    """Merges into the value that is folded."""

    def value(self, key: bytes, now_us: int) -> SowRecord | None:
        return self._topic.state.get(key)


class DeletesWhatIsCommitted(SowStaging):
    """Does not look at what is staged."""

    def _found(self, record: Record, said: dict[str, Any], limit: Any) -> list[bytes]:
        finding = self._finding(record, said, limit)
        finding.take(1_000)
        nothing: Collection[bytes] = ()
        found = finding.keys(self._topic.state.get, nothing)
        finding.close()
        return found


class KeepsWhatFailed(SowStaging):
    """Keeps what was staged where the append failed."""

    def failed(self, committed_txid: int) -> None: ...


class Model:
    """Every value, by what was journaled: said again from the begin each time."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.log: list[tuple[int, int, Any]] = []
        """(transaction, id or -1, the value; None: deleted)."""

    def values(self, upto: int = 1 << 60) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for txid, number, value in self.log:
            if txid <= upto:
                found[number] = value
        return {number: value for number, value in found.items() if value is not None}

    def failed(self) -> None:
        self.log = [each for each in self.log if each[0] <= self._bench.committed_txid]


IDS = range(5)


def play(seed: int, kind: type[SowStaging] = SowStaging) -> None:
    rng = random.Random(seed)
    bench = Bench(kind=kind)
    model = Model(bench)
    number_of = {bench.key(number): number for number in IDS}
    theirs = 0
    for step in range(120):
        act = rng.random()
        if act < 0.45:
            _publish(rng, bench, model, step)
        elif act < 0.6:
            _delete(rng, bench, model, number_of)
        elif act < 0.7:
            said = [{"id": rng.choice(IDS), "theirs": step} for _ in range(rng.randint(1, 3))]
            first = bench.txid + 1
            more = {"publisher": Q, "first": theirs + 1}
            bench.stage(put(0, *(json.dumps(each).encode() for each in said), **more))
            theirs += len(said)
            model.log += [(first + at, each["id"], each) for at, each in enumerate(said)]
        elif act < 0.9:
            bench.commit(rng.randint(1, 4))
        else:
            bench.fail()
            model.failed()
        folded = {number_of[key]: value for key, value in bench.folded().items()}
        assert folded == model.values(bench.committed_txid)
        assert len(bench.staging) == len(bench.waiting)
    bench.commit()
    over = bench.staging._over
    assert over is None or not over._over, "nothing is left over what is folded"


def _publish(rng: random.Random, bench: Bench, model: Model, step: int) -> None:
    said: list[tuple[int, Any]] = []
    for at in range(rng.randint(1, 4)):
        bad = rng.random() < 0.1
        number, field = rng.choice(IDS), rng.choice("abc")
        body: Any = {"n": 1} if bad else {"id": number, field: step * 10 + at}
        said.append((rng.choice((1, DELTA)), body))
    txid, now = bench.txid, model.values()
    expected = []
    for command, body in said:
        if "id" not in body:
            continue
        txid += 1
        value = body
        if command == DELTA:
            value = {**now.get(body["id"], {}), **body}
        now[body["id"]] = value
        model.log.append((txid, body["id"], value))
        expected.append(value)
    made = bench.bring(*said)
    assert bodies(made) == expected
    assert len(made.refused) == len(said) - len(expected)


def _delete(rng: random.Random, bench: Bench, model: Model, number_of: dict[bytes, int]) -> None:
    number = rng.choice(IDS)
    now = model.values()
    by = rng.choice(("filter", "keys", "data"))
    if by == "filter":
        field = rng.choice("abc")
        made = bench.delete(filter=f"/{field} IS NOT NULL")
        expected = {each for each, value in now.items() if field in value}
    else:
        said: Any = [bench.key(number)] if by == "keys" else json.dumps({"id": number}).encode()
        made = bench.delete(**{by: said})
        expected = {number}
    assert {number_of[key] for key in keys(made)} == expected
    model.log += [(bench.txid, each, None) for each in expected]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_journaled_is_made_of_the_values_as_staged(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("kind", [OfWhatIsCommitted, DeletesWhatIsCommitted, KeepsWhatFailed])
def test_a_planted_mistake_is_seen(kind: type[SowStaging]) -> None:
    seen = 0
    for seed in range(20):
        try:
            play(seed, kind)
        except (AssertionError, KeyError):
            seen += 1
    assert seen


def test_a_run_that_was_prepared_is_sound() -> None:
    bench = Bench()
    made = bench.bring((1, {"id": 1}), (DELTA, {"id": 1, "n": 1}), (1, {"id": 2}))
    (one,) = made.runs
    (chunk,) = scan(one.payload)
    assert (chunk.records, chunk.first_sequence, chunk.last_sequence) == (3, 1, 3)
    assert {each.publisher for each in iterate_records(one.payload)} == {P}


def test_one_delete_names_no_more_keys_than_one_turn_folds() -> None:
    bench = Bench()
    reason, text = refused(bench.delete(keys=[b"%d" % n for n in range(DELETED_MAX + 1)]))
    assert reason == "too_many" and "50,000 records at most, this one names 50,001" in text
    assert len(keys(bench.delete(keys=[b"%d" % n for n in range(DELETED_MAX)]))) == DELETED_MAX


def test_a_delete_whose_filter_works_too_much_is_refused_and_holds_nobody_up() -> None:
    growing = "/s"
    for _ in range(20):
        growing = f"REGEXP_REPLACE({growing}, '7', '77')"
    bench = Bench()
    bench.publish(*({"id": n, "s": 7} for n in range(100)))
    bench.commit()
    before = NEWS.steps
    (refused,) = bench.delete(filter=f"{growing} = 'x' OR /id = 3").refused
    assert refused.reason == "too_many" and "works too much" in refused.text
    assert NEWS.steps - before <= 2 * WORK_MAX, "one record, and no more"
