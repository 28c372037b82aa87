"""services/plugins/sow.py: SOW topics of a configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.sow_given import ORDERS, book

from raylay.services.errors import ConfigurationError
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


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (replace(ORDERS, message_type="none"), "SOW topic orders: .*none"),
        (replace(ORDERS, message_type="binary"), "SOW topic orders: messages of type binary"),
        (replace(ORDERS, keys=("id",)), "SOW topic orders: 'id' names no field"),
        (replace(ORDERS, pattern="("), r"SOW topic orders: "),
        (SowTopicDefinition("o", "json", key_generator="x"), "no key generator 'x' is installed"),
    ],
)
def test_what_cannot_be_used_is_refused(definition: SowTopicDefinition, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        book(definition)
