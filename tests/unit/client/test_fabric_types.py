"""Objects are published and read by the message types that the fabric defines."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from support.one_instance import in_instance

from raylay.services.client import Client, SyncClient
from raylay.services.client.fabric_types import FabricTypes
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import BodyTypeError, MessageTypeError
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.protocol.client.told_types import pack_types
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

pytestmark = pytest.mark.covers("Clients and protocol", "types that the fabric defines")


def descriptors() -> str:
    made = descriptor_pb2.FileDescriptorSet()
    file = made.file.add(name="orders.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate((("id", 3), ("symbol", 9)), 1):
        order.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return b64encode(made.SerializeToString()).decode()


DEFINITIONS = (
    TypeDefinition("pipes", "fix", {"field_separator": 124}),
    TypeDefinition("quote", "struct", {"fields": ["/px = <d", "/sym = 4S"]}),
    TypeDefinition("pair", "composite-local", {"parts": ["json", "pipes"]}),
    TypeDefinition("order", "protobuf", {"descriptors": descriptors(), "message": "shop.Order"}),
)
CASES: list[tuple[str, Any, bytes]] = [
    ("pipes", {"35": "D", "55": "IBM"}, b"35=D|55=IBM|"),
    ("quote", {"px": 1.5, "sym": "IBM"}, b"\0\0\0\0\0\0\xf8\x3fIBM\0"),
    ("pair", {"0": {"id": 7}, "1": {"55": "IBM"}}, b'\0\0\0\x08{"id":7}\0\0\0\x0755=IBM|'),
    ("order", {"id": 7, "symbol": "IBM"}, b"\x08\x07\x12\x03IBM"),
]


@dataclass
class Order:
    id: int
    symbol: str


def config() -> InstanceConfig:
    topics = tuple(TopicRule(name, message_type=name) for name, _, _ in CASES)
    return InstanceConfig(
        "solo", "g", first=True, log=LogOptions(target="none"), type_definitions=DEFINITIONS,
        topics=topics,
    )  # fmt: skip


def test_objects_are_published_and_read_by_the_types_of_the_fabric(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        where = [str(server.status()["client_address"])]
        async with Client("desk", servers=where) as client:
            for name, value, body in CASES:
                await client.publish(name, value, name)
                await client.publish_many(name, [value], name)
                await client.flush()
                subscription = await client.subscribe(name, bookmark="0")
                for _ in range(2):
                    message = await anext(subscription)
                    assert message.body == body and message.value == value
            await client.publish("order", Order(9, "MSFT"), "order")
            await client.flush()
            typed = await client.subscribe("order", bookmark="0", type=Order)
            orders = [(await anext(typed)).value for _ in range(3)]
            assert orders[0] == Order(7, "IBM") and orders[2] == Order(9, "MSFT")
            with pytest.raises(MessageTypeError, match="publish to quote: the body is of type"):
                await client.publish("quote", {"px": "no number"}, "quote")

        def use() -> int:
            with SyncClient("loader", servers=where) as sync:
                sync.publish("pipes", {"1": "2"}, "pipes")
                sync.flush()
                return sync.client.persisted_sequence

        assert await asyncio.to_thread(use)

    in_instance(tmp_path / "solo", visit, config())


def test_a_type_that_nobody_knows_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with Client("desk", servers=[str(server.status()["client_address"])]) as client:
            with pytest.raises(
                MessageTypeError, match=r"defines no such type, and there are .*quote"
            ):
                await client.publish("quotes", {"px": 1.5}, "quotes")
            await client.publish("quotes", b"\x01", "quotes")
            await client.flush()
            subscription = await client.subscribe("quotes", bookmark="0")
            with pytest.raises(
                BodyTypeError, match=r"defines no type quotes, and there are .*quote"
            ):
                (await anext(subscription)).value  # noqa: B018

    in_instance(tmp_path / "solo", visit, InstanceConfig(
        "solo", "g", first=True, log=LogOptions(target="none"), type_definitions=DEFINITIONS,
    ))  # fmt: skip


def test_what_is_told_later_takes_the_place_of_what_was_told() -> None:
    types = FabricTypes()
    assert types.find("pipes") is None
    types.hear(pack_types(DEFINITIONS))
    made = types.find("pipes")
    assert types.definitions() == list(DEFINITIONS)
    assert made is not None and types.are_texts("pipes") and not types.are_texts("quote")
    types.hear(pack_types(DEFINITIONS))
    assert types.find("pipes") is made
    types.hear(pack_types([TypeDefinition("pipes", "an entry point")]))
    assert types.names() == ["pipes"] and types.definitions() == []
    with pytest.raises(MessageTypeError, match="tells clients no more of it"):
        types.find("pipes")
    types.hear(b"\xc1")
    assert types.names() == [] and types.find("pipes") is None


def test_a_type_of_the_fabric_replaces_a_built_in_one_of_its_name() -> None:
    types = FabricTypes()
    types.hear(pack_types([TypeDefinition("fix", "fix", {"field_separator": 124})]))
    found = types.find("fix")
    assert found is not None and found.serialize({"1": "2"}) == b"1=2|"
    assert types.find("json") is None and types.are_texts("xml")
