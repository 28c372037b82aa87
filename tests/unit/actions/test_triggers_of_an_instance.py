"""Triggers beside what an instance really tells its subscribers: random publishes, deletes and
expiries of a SOW topic, and a model that knows each record's time in the condition."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.sow_given import book, delete, put, record_bytes, run

from raylay.services.actions.message_triggers import (
    ConditionTrigger,
    MessageTrigger,
    OofTrigger,
    TriggerMessage,
)
from raylay.services.actions.model import ActionModule, Occurrence
from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Run, iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.state import SowRules
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions

SECOND = 1_000_000
DURATION = 10 * SECOND
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",), rules=SowRules(expires=True))
NUMBERS = 5


def key(number: int) -> bytes:
    return key_of({"id": number}, ("/id",), "orders")


class House:
    """A SOW topic, and a trigger that follows it from its start."""

    def __init__(self, trigger: MessageTrigger) -> None:
        self.trigger = trigger
        self.book = book(ORDERS)
        self.sow = SowFeature(self.book)
        self.following = SowSubscriptions(
            MessageTypes(),
            BUILT_IN,
            lambda topic, kind: self.book.find(topic, kind) is not None,
            "A-1",
            "A",
        )
        asked = trigger.subscription()
        assert asked.options["oof"]
        self.following.add(
            LiveSubscription(
                1,
                "s",
                topic_filter(asked.topic, asked.message_type),
                asked.options["filter"],
                0,
                FollowTerms(oof=True),
            )
        )

    def commit(self, now_us: int, *runs: Run) -> list[Occurrence]:
        batch = CommitBatch(list(runs), runs[-1].last_txid)
        self.sow.fold(batch)
        return self._told(now_us, list(runs), batch.changes)

    def expire(self, now_us: int) -> list[Occurrence]:
        return self._told(now_us, [], self.sow.tick(now_us))

    def _told(self, now_us: int, runs: list[Run], changes: Any) -> list[Occurrence]:
        made: list[Occurrence] = []
        for _, reason, delivery in self.following.deliveries(runs, changes):
            for record in iterate_records(b"".join(delivery.bodies)):
                message = TriggerMessage(
                    kind="oof" if reason else "publish",
                    topic=record.topic,
                    message_type=record.message_type,
                    body=record.body,
                    reason=reason,
                    key=record.key,
                    timestamp_us=now_us,
                    correlation=record.correlation,
                )
                made += self.trigger.message(message, now_us, now_us)
        return made


def options(**further: str) -> tuple[tuple[str, str], ...]:
    return (
        ("Topic", "orders"),
        ("MessageType", "json"),
        ("Filter", "/p >= 5"),
        *further.items(),
    )


def told(occurrences: list[Occurrence], *names: str) -> list[tuple[str, ...]]:
    return [tuple(each.variables[name] for name in names) for each in occurrences]


class Model:
    """The records of the model: since when each is in the condition, and when it expires."""

    def __init__(self) -> None:
        self.begun_us: dict[int, int] = {}
        self.is_told: set[int] = set()
        self.expires_us: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}

    def due(self, now_us: int) -> list[tuple[str, str]]:
        """The key and the data of each record whose time is up."""
        found = sorted(
            (at_us, number)
            for number, at_us in self.begun_us.items()
            if number not in self.is_told and at_us + DURATION <= now_us
        )
        self.is_told.update(number for _, number in found)
        return [(key(each).decode(), self.bodies[each].decode()) for _, each in found]

    def left(self, *numbers: int) -> list[str]:
        """The keys of the records that leave the condition before their time is up."""
        found = [each for each in numbers if each in self.begun_us and each not in self.is_told]
        for each in numbers:
            self.begun_us.pop(each, None)
            self.is_told.discard(each)
        return sorted(key(each).decode() for each in found)

    def expired(self, now_us: int) -> list[int]:
        found = [each for each, at_us in self.expires_us.items() if at_us <= now_us]
        for each in found:
            del self.expires_us[each]
        return found


@pytest.mark.covers("Actions", "On Message Condition Timeout")
@pytest.mark.covers("Actions", "On Message State Change")
@pytest.mark.parametrize("module", ["message-condition-timeout", "alert"])
@pytest.mark.parametrize("seed", range(20))
def test_each_record_has_its_one_occurrence(module: str, seed: int) -> None:
    chance = random.Random(seed)
    further = {"Duration": "10s", "OOFEvent": "done", "TimeoutEvent": "late", "EventVariable": "E"}
    trigger = ConditionTrigger(ActionModule("on", module, options(**further)))
    house, model = House(trigger), Model()

    def check_left(made: list[Occurrence], left: list[str]) -> None:
        wanted = [(each, "done") for each in left] if module == "alert" else []
        assert sorted(told(made, "AMPS_SOW_KEY", "E")) == wanted

    now_us = SECOND
    seen = 0
    for sequence in range(1, 300):
        now_us += chance.randrange(3 * SECOND)
        found = told(trigger.due(now_us), "AMPS_SOW_KEY", "AMPS_DATA")
        assert found == model.due(now_us)
        seen += len(found)
        check_left(house.expire(now_us), model.left(*model.expired(now_us)))
        number = chance.randrange(NUMBERS)
        if chance.random() < 0.1:
            model.expires_us.pop(number, None)
            made = house.commit(now_us, delete(sequence, key(number), at_us=now_us))
            check_left(made, model.left(number))
            continue
        price, life_s = chance.randrange(3, 10), chance.choice((0, 0, 4, 30))
        body = b'{"id":%d,"p":%d}' % (number, price)
        record = record_bytes(sequence, body, at_us=now_us, expiration_s=life_s)
        made = house.commit(now_us, run(sequence, record, at_us=now_us))
        model.expires_us.pop(number, None)
        if life_s:
            model.expires_us[number] = now_us + life_s * SECOND
        if price < 5:
            check_left(made, model.left(number))
        else:
            assert made == []
            model.bodies[number] = body
            model.begun_us.setdefault(number, now_us)
    assert seen, "no time was up"


@pytest.mark.covers("Actions", "On OOF Message")
def test_a_record_that_leaves_is_told_with_what_it_was_and_is() -> None:
    on = ActionModule("on", "oof-message", options())
    house = House(OofTrigger(on, keeps_previous=True))
    names = ("AMPS_REASON", "AMPS_DATA", "AMPS_PREVIOUS_DATA")
    assert house.commit(SECOND, put(1, b'{"id":1,"p":5}', b'{"id":2,"p":6}', at_us=SECOND)) == []
    assert house.commit(SECOND, put(3, b'{"id":1,"p":7}', at_us=SECOND)) == []
    found = house.commit(SECOND, put(4, b'{"id":1,"p":0}', at_us=SECOND))
    assert told(found, *names) == [("match", '{"id":1,"p":0}', '{"id":1,"p":7}')]
    found = house.commit(SECOND, delete(5, key(2), at_us=SECOND))
    assert told(found, *names) == [("delete", '{"id":2,"p":6}', '{"id":2,"p":6}')]
    house.commit(SECOND, put(6, b'{"id":3,"p":9}', at_us=SECOND, expiration_s=5))
    found = house.expire(7 * SECOND)
    assert told(found, *names) == [("expire", '{"id":3,"p":9}', '{"id":3,"p":9}')]
