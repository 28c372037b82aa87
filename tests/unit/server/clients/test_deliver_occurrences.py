"""Delivered messages, told to who listens (services/server/clients/deliver_occurrences.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.server.clients.test_client_occurrences import subscribe
from unit.server.clients.test_queries import CONFIG, House, in_house

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.topics import TopicRule
from raylay.services.server.clients import deliver_occurrences
from raylay.services.server.clients.deliver_occurrences import DELIVER, DeliverOccurrences
from raylay.services.server.occurrences import Occurrences

pytestmark = pytest.mark.covers("Actions", "On Message Delivered to Subscriber")


def on_delivery(topic: str, message_type: str = "json") -> ActionDefinition:
    options = (("Topic", topic), ("MessageType", message_type))
    return ActionDefinition(topic, (ActionModule("on", DELIVER, options),), ())


class Bench:
    """A teller for some actions, and all that it tells."""

    def __init__(self, *actions: ActionDefinition) -> None:
        self.told: list[Mapping[str, str]] = []
        occurrences = Occurrences()
        occurrences.listen([DELIVER], lambda _, variables: self.told.append(variables))
        runtime: Any = SimpleNamespace(
            occurrences=occurrences, config=replace(CONFIG, actions=actions)
        )
        self.teller = DeliverOccurrences(runtime)

    def take(self) -> list[tuple[str, str]]:
        """Topics and data that were told since the last call."""
        told, self.told[:] = self.told[:], []
        return [(each["AMPS_TOPIC"], each["AMPS_DATA"]) for each in told]


def run_of(topic: str, *bodies: bytes, message_type: str = "json") -> bytes:
    builder = RecordBuilder(7, topic, message_type)
    return b"".join(
        builder.build(number, body, 1, correlation=b"c") for number, body in enumerate(bodies, 1)
    )


def test_messages_of_the_topics_of_actions_are_told_one_by_one() -> None:
    bench = Bench(on_delivery("orders"), on_delivery("^eu/"), on_delivery("raw", "binary"))
    runs = [
        run_of("orders", b"{}", b"\xff"), run_of("others", b"{}"), run_of("eu/x", b"1"),
        run_of("raw", b"2"), run_of("raw", b"3", message_type="binary"),
    ]  # fmt: skip
    bench.teller.delivered("amy", runs)
    assert bench.told[0] == {
        "AMPS_TOPIC": "orders", "AMPS_MESSAGE_TYPE": "json", "AMPS_DATA": "{}",
        "AMPS_DATA_LENGTH": "2", "AMPS_BOOKMARK": "7|1|", "AMPS_CLIENT_NAME": "amy",
        "AMPS_CORRELATION_ID": "c",
    }  # fmt: skip
    assert bench.take() == [("orders", "{}"), ("orders", "\udcff"), ("eu/x", "1"), ("raw", "3")]
    bench.teller.delivered("amy", runs[:1], journaled=False)
    assert bench.told[0]["AMPS_BOOKMARK"] == ""


def test_messages_of_a_queue_have_its_name() -> None:
    bench = Bench(on_delivery("work"))
    bench.teller.delivered("amy", [run_of("jobs", b"{}")], queue="work")
    bench.teller.delivered("amy", [run_of("jobs", b"{}")])
    assert bench.take() == [("work", "{}")]


def test_a_damaged_record_ends_nothing() -> None:
    bench = Bench(on_delivery("orders"))
    bench.teller.delivered("amy", [b"\x05\x00\x00\x00x", run_of("orders", b"{}")])
    assert bench.take() == [("orders", "{}")]


def test_answers_for_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver_occurrences, "TOPICS_KEPT_MAX", 2)
    bench = Bench(on_delivery("orders"))
    for topic in ("a", "b", "orders", "c", "d", "orders"):
        bench.teller.delivered("amy", [run_of(topic, b"{}")])
    assert bench.take() == [("orders", "{}")] * 2
    nothing = Bench()
    nothing.teller.delivered("amy", [run_of("orders", b"{}")])
    assert not nothing.told


def test_live_and_replayed_deliveries_are_told_for_each_client(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        told: list[tuple[str, str]] = []
        runtime = house.server.runtime
        runtime.occurrences.listen(
            [DELIVER], lambda _, each: told.append((each["AMPS_CLIENT_NAME"], each["AMPS_DATA"]))
        )
        amy, bob, eve = [await house.client(name) for name in ("amy", "bob", "eve")]
        await subscribe(amy, "live")
        await subscribe(bob, "filtered", o={"filter": "/id > 1"})
        await house.publish(eve, "eve", {"id": 1}, {"id": 2})
        await house.folded()
        assert sorted(told) == [("amy", '{"id":1}'), ("amy", '{"id":2}'), ("bob", '{"id":2}')]
        told.clear()
        await subscribe(eve, "replay", bm="0")
        await eve.until(lambda each: each["c"] == "p")
        assert told == [("eve", '{"id":1}'), ("eve", '{"id":2}')]

    actions = (on_delivery("orders"),)
    # No process performs them here.
    in_house_with(tmp_path, visit, actions)


def in_house_with(tmp_path: Path, visit: Any, actions: tuple[ActionDefinition, ...]) -> None:
    async def with_actions(house: House) -> None:
        runtime = house.server.runtime
        runtime.config = replace(runtime.config, actions=actions)
        clients = house.server.parts.clients
        clients.deliver_occurrences = DeliverOccurrences(runtime)
        await visit(house)

    in_house(tmp_path, with_actions, replace(CONFIG, topics=(TopicRule(".*"),)))
