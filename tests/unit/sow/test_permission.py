"""Who may write some records of a SOW topic: judged by the record as it was and as it becomes, of
what is on the disk, on its way there, and in the same batch."""

from __future__ import annotations

import json
import random
from typing import Any

import msgpack
import pytest
from support.sow_given import P, Q, put, record_bytes, run
from unit.sow.test_staging import DELETE, Bench, bodies, keys

from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Command, Record, iterate_records
from raylay.services.messages.stateful import PreparedRun, WritePermission
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.messages.types.trees import Tree
from raylay.services.security.permissions import read_permissions
from raylay.services.security.publishing import PublishJudge
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.enrichment import PREPROCESSING, Enrichment
from raylay.services.sow.state import SowRules

pytestmark = pytest.mark.covers(
    "Configuration", "who may write some records of a SOW topic takes over"
)

PUBLISH, DELTA = Command.PUBLISH, Command.DELTA_PUBLISH
TYPES = MessageTypes()
REFUSED = "not_entitled"


def permission(write: Any = "/desk = 'fx'", topic: str = "orders") -> PublishJudge:
    """Of bob, who may write what passes a filter."""
    given = read_permissions({"topic": [{"topic": topic, "write": write}]}, "here")
    return PublishJudge(given, "bob", lambda: (TYPES, BUILT_IN))


def topic(**more: Any) -> SowTopicDefinition:
    return SowTopicDefinition("orders", "json", keys=("/id",), **more)


class Desks(Bench):
    """A SOW topic of orders, each of a desk."""

    def __init__(self, definition: SowTopicDefinition | None = None, **fields: Any) -> None:
        super().__init__(definition or topic(), **fields)
        self.given: WritePermission = permission()

    def write(self, *said: tuple[int, Any], publisher: int = Q, **more: Any) -> PreparedRun:
        """One batch of bob's, prepared and staged."""
        records = []
        for command, body in said:
            self.sequence += 1
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            records.append(
                record_bytes(self.sequence, body, command=command, publisher=publisher, **more)
            )
        made = self.staging.prepare(run(0, *records), self.now_us, self.now_us, self.given)
        for each in made.runs:
            self.stage(each)
        return made


RATES, FX = {"id": 1, "desk": "rates", "px": 1}, {"id": 1, "desk": "fx", "px": 1}


def reasons(made: PreparedRun) -> list[str]:
    return [each.reason for each in made.refused]


@pytest.mark.parametrize("command", [PUBLISH, DELTA])
@pytest.mark.parametrize("where", ["on the disk", "staged", "of another instance"])
def test_the_record_of_others_is_not_taken_over(command: int, where: str) -> None:
    bench = Desks()
    if where == "of another instance":
        bench.stage(put(0, json.dumps(RATES).encode(), publisher=P, first=1))
    else:
        bench.publish(RATES)
    if where == "on the disk":
        bench.commit()
    made = bench.write((command, {"id": 1, "desk": "fx"}), (command, {"id": 2, "desk": "fx"}))
    (refused,) = made.refused
    assert refused.reason == REFUSED and refused.ranges[0][0] == bench.sequence - 1
    assert refused.text == "bob may not change the record of this key in 'orders'"
    assert bodies(made) == [{"id": 2, "desk": "fx"}], "the rest of the batch is taken"
    bench.commit()
    assert bench.folded()[bench.key(1)] == RATES


@pytest.mark.parametrize("command", [PUBLISH, DELTA])
def test_no_record_is_given_to_others(command: int) -> None:
    bench = Desks()
    bench.publish(FX)
    (refused,) = bench.write((command, {"id": 1, "desk": "rates"})).refused
    assert refused.reason == REFUSED
    assert refused.text == "bob may not publish such a message to 'orders'"
    assert reasons(bench.write((command, {"id": 2, "desk": "rates"}))) == [REFUSED]
    bench.commit()
    assert list(bench.folded().values()) == [FX]


def test_a_delta_is_judged_by_the_whole_that_it_makes() -> None:
    bench = Desks()
    bench.publish(FX)
    assert bodies(bench.write((DELTA, {"id": 1, "px": 2}))) == [{**FX, "px": 2}]
    bench.commit()
    assert bodies(bench.write((DELTA, {"id": 1, "px": 3}))) == [{**FX, "px": 3}]
    assert reasons(bench.write((DELTA, {"id": 2, "px": 3}))) == [REFUSED], "there is no desk"


def test_what_came_before_in_the_batch_is_the_record_as_it_was() -> None:
    bench = Desks()
    made = bench.write(
        (PUBLISH, FX), (DELTA, {"id": 1, "desk": "rates"}), (DELTA, {"id": 1, "px": 2})
    )
    assert reasons(made) == [REFUSED], "what was refused is no record"
    assert bodies(made) == [FX, {**FX, "px": 2}]
    bench.given = permission("/desk = 'fx' OR /id = 7")
    made = bench.write((PUBLISH, {"id": 7, "desk": "rates"}), (PUBLISH, {"id": 7, "desk": "fx"}))
    assert not made.refused
    bench.given = permission("/n = 1")
    made = bench.write(
        (PUBLISH, {"id": 3, "n": 1}), (DELTA, {"id": 3, "m": 1}), (DELTA, {"id": 3, "n": 2})
    )
    assert reasons(made) == [REFUSED] and len(bodies(made)) == 2


def test_what_was_deleted_or_has_expired_is_nobodys() -> None:
    rules = SowRules(expires=True, lifetime_us=500)
    bench = Desks(topic(rules=rules))
    bench.publish(RATES, {**RATES, "id": 2}, at_us=1_000)
    bench.commit()
    bench.delete(keys=[bench.key(2)])
    assert not bench.write((PUBLISH, {**FX, "id": 2}), at_us=1_000).refused, "deleted, staged"
    bench.now_us = 1_400
    assert reasons(bench.write((PUBLISH, FX), at_us=1_400)) == [REFUSED]
    bench.now_us = 1_600
    assert bodies(bench.write((DELTA, {"id": 1, "desk": "fx"}), at_us=1_600)) == [
        {"id": 1, "desk": "fx"}
    ]


def test_what_failed_was_no_record() -> None:
    bench = Desks()
    bench.publish(RATES)
    assert reasons(bench.write((PUBLISH, FX))) == [REFUSED]
    bench.fail()
    assert not bench.write((PUBLISH, FX)).refused


def test_a_record_is_judged_with_the_fields_that_the_instance_sets() -> None:
    kind = TYPES["json"]
    preprocess = Enrichment(["UPPER(/desk) AS /desk"], kind, BUILT_IN, PREPROCESSING)
    enrich = Enrichment(["/px > 10 AS /large"], kind, BUILT_IN)
    bench = Desks(preprocess=preprocess, enrich=enrich)
    bench.given = permission("/desk = 'FX' AND /large = 0")
    assert not bench.write((PUBLISH, {"id": 1, "desk": "fx", "px": 1, "large": 1})).refused
    assert reasons(bench.write((PUBLISH, {"id": 2, "desk": "fx", "px": 11}))) == [REFUSED]
    assert reasons(bench.write((PUBLISH, {"id": 2, "desk": "eq", "px": 1}))) == [REFUSED]
    bench.commit()
    assert bench.folded()[bench.key(1)]["desk"] == "FX"


def test_the_last_writer_needs_it_too() -> None:
    bench = Desks(topic(last_writer=True))
    bench.publish(RATES, at_us=10)
    assert reasons(bench.write((PUBLISH, FX), at_us=20)) == [REFUSED]
    assert not bench.write((PUBLISH, {**FX, "id": 2}), at_us=20).refused
    assert reasons(bench.write((PUBLISH, {**RATES, "id": 2}), at_us=30)) == [REFUSED]
    # Also where it would be late: it goes to others, where it may not be.
    assert reasons(bench.write((PUBLISH, FX), at_us=5)) == [REFUSED]


def test_topics_of_a_pattern_have_records_of_their_own() -> None:
    bench = Desks(SowTopicDefinition("all", "json", keys=("/id",), pattern="^orders/"))
    body = json.dumps(RATES).encode()
    bench.stage(put(0, body, publisher=P, first=1, topic="orders/a"))
    bench.given = permission(topic="orders/.*")
    assert reasons(bench.write((PUBLISH, FX), topic="orders/a")) == [REFUSED]
    assert not bench.write((PUBLISH, FX), topic="orders/b").refused
    assert not bench.write((DELTA, {"id": 1, "px": 2}), topic="orders/b").refused
    assert reasons(bench.write((DELTA, {"id": 1, "px": 2}), topic="orders/a")) == [REFUSED]


def test_a_key_that_a_publisher_gives_names_the_record() -> None:
    bench = Desks(SowTopicDefinition("orders", "json"))
    bench.publish(RATES, key=b"k1")
    assert reasons(bench.write((PUBLISH, FX), key=b"k1")) == [REFUSED]
    assert not bench.write((PUBLISH, FX), key=b"k2").refused


def test_what_no_filter_can_be_asked_of_passes_none() -> None:
    bench = Desks(SowTopicDefinition("orders", "binary"))
    bench.given = permission("1 = 1")
    made = bench.write((PUBLISH, b"x"), kind="binary", key=b"k")
    assert reasons(made) == [REFUSED] and not made.runs
    bench = Desks(SowTopicDefinition("orders", "json"))
    assert reasons(bench.write((PUBLISH, b"{"), key=b"k")) == ["bad_message"]
    # What another instance brought under the key is of no type that is known here.
    bench.stage(put(0, b"{", publisher=P, first=1, key=b"k"))
    assert reasons(bench.write((PUBLISH, FX), (DELTA, FX), key=b"k")) == [REFUSED, REFUSED]


def test_nothing_is_told_of_a_record_of_others() -> None:
    """Neither how large the whole would be, nor what is wrong with it."""
    bench = Desks()
    bench.stage(put(0, json.dumps({**RATES, "long": "x" * 1_000}).encode(), publisher=P, first=1))
    bench.staging._made_left = 500
    bench.staging._made_from_us = bench.now_us
    assert reasons(bench.write((DELTA, {"id": 1, "desk": "fx"}))) == [REFUSED]


class Looked(PublishJudge):
    """One that notes what it is asked."""

    asked = 0

    def passes(self, topic: bytes, message: Tree) -> bool:
        self.asked += 1
        return super().passes(topic, message)


def test_who_may_write_everything_is_not_asked_of_records() -> None:
    bench = Desks()
    bench.publish(RATES)
    given = read_permissions({"topic": [{"topic": "orders", "write": True}]}, "here")
    bench.given = looked = Looked(given, "bob", lambda: (TYPES, BUILT_IN))
    assert not bench.write((PUBLISH, FX)).refused and not looked.asked
    assert bench.staging._over is None, "no values as staged were made"
    bench.given = permission()
    assert reasons(bench.write((PUBLISH, RATES))) == [REFUSED]
    assert not bench.publish(RATES).refused, "what is asked of one client is asked of no other"


@pytest.mark.parametrize("command", [PUBLISH, DELTA])
@pytest.mark.parametrize("enrich", [None, lambda whole, before: whole])
@pytest.mark.parametrize("kept", [True, False], ids=["on the disk", "staged"])
def test_a_record_of_another_topic_of_a_pattern_is_judged_by_its_own(
    command: int, enrich: Any, kept: bool
) -> None:
    """Its key generator leaves the topic out of the key."""
    bench = Shared(enrich=enrich)
    bench.publish({"id": 1, "desk": "rates"}, topic="ticks/b")
    bench.publish({"id": 2, "desk": "fx"}, topic="ticks/b")
    if kept:
        bench.commit()

    def write(number: int, topic: str = "ticks/a") -> list[str]:
        return reasons(bench.write((command, {"id": number, "n": 1}), topic=topic))

    bench.may(("ticks/a", True))
    (refused,) = bench.write((command, {"id": 1, "n": 1}), topic="ticks/a").refused
    assert refused.reason == REFUSED
    assert refused.text == "bob may not change the record of this key in 'ticks/b'"
    assert write(3) == write(3) == [], "his own"
    bench.may(("ticks/a", True), ("ticks/b", "/desk = 'fx'"))
    assert (write(1), write(2)) == ([REFUSED], [])
    bench.may(("ticks/a", True), ("ticks/b", True))
    assert write(1) == []
    bench.commit()
    assert {each.key: each.topic for each in bench.topic.state.records()} == dict.fromkeys(
        (b"K1", b"K2", b"K3"), b"ticks/a"
    )


def test_where_messages_have_no_fields_whole_topics_of_a_pattern_are_judged() -> None:
    bench = Shared("binary", _generate=lambda record, tree: record.body[:2])
    bench.publish(b"K1", topic="ticks/b", kind="binary")

    def write(body: bytes) -> list[str]:
        return reasons(bench.write((PUBLISH, body), topic="ticks/a", kind="binary"))

    bench.may(("ticks/a", True), ("ticks/b", "/desk = 'fx'"))
    assert (write(b"K1"), write(b"K2"), write(b"K2")) == ([REFUSED], [], [])
    bench.may(("ticks/a", True), ("ticks/b", True))
    assert write(b"K1") == []
    bench.may(("ticks/a", "/desk = 'fx'"))
    assert write(b"K3") == [REFUSED]


class Shared(Desks):
    """Topics of a pattern that are given keys without their names."""

    def __init__(self, kind: str = "json", **fields: Any) -> None:
        definition = SowTopicDefinition("ticks", "json", keys=("/id",), pattern="^ticks/")
        made = {"_rule": None, "_generate": lambda record, tree: b"K%d" % tree["id"]}
        if kind != "json":
            made |= {"type": TYPES[kind], "type_name": kind.encode()}
        super().__init__(definition, **(made | fields))

    def may(self, *entries: tuple[str, Any]) -> None:
        """What bob may write of topics."""
        topics = [{"topic": name, "write": write} for name, write in entries]
        given = read_permissions({"topic": topics}, "here")
        self.given = PublishJudge(given, "bob", lambda: (TYPES, BUILT_IN))


def test_nothing_of_a_permission_is_journaled() -> None:
    bench = Desks()
    came = run(0, record_bytes(1, json.dumps(FX).encode(), publisher=Q))
    assert bench.staging.prepare(came, 0, 0, bench.given).runs[0] is came, "as it came"


@pytest.mark.parametrize("seed", range(20))
def test_no_batch_writes_what_its_client_may_not(seed: int) -> None:
    """Beside a model that has every record in a dictionary."""
    draw = random.Random(seed)
    bench = Desks()
    model: dict[int, Any] = {}

    def trees() -> list[tuple[int, dict[str, Any]]]:
        found = []
        for _ in range(draw.randint(1, 4)):
            tree = {"id": draw.randrange(4), "n": draw.randrange(100)}
            if draw.random() < 0.7:
                tree["desk"] = draw.choice(["fx", "rates"])
            found.append((draw.choice([PUBLISH, DELTA]), tree))
        return found

    for _ in range(150):
        step = draw.randrange(6)
        if step == 0:
            bench.commit(draw.randint(1, 3))
        elif step == 1:
            number = draw.randrange(4)
            bench.publish(msgpack.packb({"keys": [bench.key(number)]}), command=Command.DELETE)
            model.pop(number, None)
        else:
            said, is_bob = trees(), step > 2
            first = bench.sequence + 1
            made = bench.write(*said) if is_bob else bench.bring(*said, publisher=Q)
            refused = {n for each in made.refused for a, b in each.ranges for n in range(a, b + 1)}
            expected: dict[int, Any] = {}
            for at, (command, tree) in enumerate(said, first):
                before = model.get(tree["id"])
                after = {**(before or {}), **tree} if command == DELTA else tree
                wrong = [each for each in (before, after) if each and each.get("desk") != "fx"]
                assert (at in refused) is bool(is_bob and wrong), (at, before, tree)
                if at not in refused:
                    model[tree["id"]] = expected[at] = after
            assert reasons(made) == [REFUSED] * len(refused)
            assert {at: json.loads(each.body) for at, each in journaled(made)} == expected
    bench.commit()
    assert bench.folded() == {bench.key(number): tree for number, tree in model.items()}


def journaled(made: PreparedRun) -> list[tuple[int, Record]]:
    return [(each.sequence, each) for one in made.runs for each in iterate_records(one.payload)]


def asked(bench: Desks, given: WritePermission | None = None, **said: Any) -> PreparedRun:
    """A delete of bob's, prepared as an instance does: its look-ups run before."""
    bench.sequence += 1
    body = msgpack.packb(said)
    deletion = run(0, record_bytes(bench.sequence, body, command=DELETE, publisher=Q))
    looking = bench.staging.looks_for(deletion, given or bench.given)
    for each in looking:
        while not each.done:
            each.take(100)
    made = bench.staging.prepare(deletion, bench.now_us, bench.now_us, bench.given)
    for each in looking:
        each.close()
    for part in made.runs:
        bench.stage(part)
    return made


def test_a_delete_by_filter_finds_what_may_be_written() -> None:
    """The filter is applied to the records as they are staged, and not as they are on the disk."""
    bench = Desks()
    for number in range(4):
        bench.publish({"id": number, "desk": ("fx", "rates")[number % 2], "px": number})
    bench.commit()
    bench.publish({"id": 0, "desk": "rates", "px": 1}, {"id": 1, "desk": "fx", "px": 1})
    bench.publish(b'{"id": 9, "desk": "fx"', command=PUBLISH)
    found = keys(asked(bench, filter="/px >= 0"))
    assert found == sorted([bench.key(1), bench.key(2)])
    assert keys(asked(bench, filter="1 = 1", keys=[bench.key(0), bench.key(3)])) == []
    for said in ({"keys": [bench.key(2)]}, {"data": b'{"id": 2}'}):
        (refused,) = asked(bench, **said).refused
        assert refused.reason == REFUSED
        assert refused.text == "bob may not delete, except by a filter, from 'orders'"
    assert not bench.staging._findings


def test_a_look_up_of_another_permission_is_not_used() -> None:
    """A client that logs on anew may have others."""
    bench = Desks()
    bench.publish({"id": 1, "desk": "rates", "px": 1})
    bench.commit()
    (refused,) = asked(bench, permission(True), filter="/px = 1").refused
    assert refused.reason == "not_supported" and "numbers its deletes" in refused.text
    (refused,) = bench.write((DELETE, msgpack.packb({"filter": "/px = 1"}))).refused
    assert refused.reason == "not_supported", "nothing was looked up"
    assert not bench.staging._findings


def test_who_may_write_the_topic_of_a_pattern_deletes_there_alone() -> None:
    bench = Desks(SowTopicDefinition("all", "json", keys=("/id",), pattern="^(orders|others)$"))
    bench.given = permission(True)
    bench.publish({"id": 1, "desk": "rates"})
    bench.commit()
    assert len(keys(asked(bench, filter="1 = 1"))) == 1
