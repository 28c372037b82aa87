"""services/plugins/sow.py: SOW topics of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.sow_given import ORDERS, book, record

from raylay.services.errors import ConfigurationError, SowKeyError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.sow import sow_book
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import NEVER, SowRecord
from raylay.storage.sow import MemorySowStore


def test_each_topic_has_what_the_store_has_of_it_and_its_rules() -> None:
    store = MemorySowStore()
    (first,) = book(store=store).topics
    first.state.put(SowRecord(b"a", 7, 1, 1, 1, NEVER, b"{}"))
    store.commit({first.stored_as: first.state.pending()})
    again = book(replace(ORDERS, last_writer=True), store=store).topics[0]
    assert (again.state.count, again.state.txid, again.state.last_writer) == (1, 7, True)
    assert book(replace(ORDERS, transient=True), store=store).topics[0].state.count == 0


def test_types_of_the_configuration_count() -> None:
    mine = SowTopicDefinition("orders", "mine", keys=("/1",))
    (topic,) = sow_book((mine,), (TypeDefinition("mine", "fix"),), MemorySowStore()).topics
    assert topic.type.name == "mine"
    assert sow_book((), (TypeDefinition("mine", "none"),), MemorySowStore()).topics == ()


def test_fields_are_computed_before_and_behind_the_key() -> None:
    (plain,) = book().topics
    assert (plain.preprocess, plain.enrich) == (None, None)
    (topic,) = book(
        replace(
            ORDERS,
            preprocessing=("UPPER(/id) AS /id",),
            enrichment=("/n - /n OF PREVIOUS AS /change",),
        )
    ).topics
    assert topic.preprocess is not None and topic.enrich is not None
    assert topic.preprocess({"id": "a"}) == {"id": "A"}
    assert topic.enrich({"n": 5}, {"n": 3}) == {"n": 5, "change": 2}


@pytest.mark.covers("SOW", "key generators from entry points")
def test_an_installed_generator_makes_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from raylay.services.plugins import key_generators

    class Entry:
        name, value = "mine", "keys:mine"

        def load(self) -> Any:
            def made(options: dict[str, str]) -> Any:
                def key(topic: str, message: Any) -> str:
                    text = message["id"] if isinstance(message, dict) else message.decode()
                    return f"{options['front']}-{topic}-{text}"

                return key

            return made

    monkeypatch.setattr(key_generators, "entry_points", lambda group: [Entry()])
    for kind, body in (("json", b'{"id":"a"}'), ("binary", b"a")):
        definition = SowTopicDefinition(
            "orders", kind, key_generator="mine", key_generator_options={"front": "k"}
        )
        (topic,) = book(definition).topics
        assert topic.key_of(record(body=body, kind=kind)) == b"k-orders-a"
    (topic,) = book(replace(definition, message_type="json")).topics
    with pytest.raises(SowKeyError, match="key generator mine refuses this message: KeyError"):
        topic.key_of(record(body=b"{}"))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (replace(ORDERS, message_type="none"), "SOW topic orders: .*none"),
        (replace(ORDERS, message_type="binary"), "SOW topic orders: messages of type binary"),
        (replace(ORDERS, keys=("id",)), "SOW topic orders: 'id' names no field"),
        (replace(ORDERS, pattern="("), r"SOW topic orders: "),
        (SowTopicDefinition("o", "json", key_generator="x"), "SOW topic o: no key generator is"),
        (
            replace(ORDERS, enrichment=("/a AS /b", "/a AS b")),
            "SOW topic orders: '/a AS b', column 7: expected the field",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(definition: SowTopicDefinition, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        book(definition)
