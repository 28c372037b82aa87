"""Views as the published examples define them in an AMPSConfig file: fields that keep their names,
`Topic` for `Name`, another message type, a filter, an index, a join with what is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import Client
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.configuration.amps.support import findings
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, free_port, instance_config
from raylay.services.server.instance_server import InstanceServer

FILE = """
<AMPSConfig>
  <Name>desk</Name>
  <Transports>
    <Transport><Name>clients</Name><Type>tcp</Type><InetAddr>127.0.0.1:{port}</InetAddr></Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <Topic><Name>.*</Name><MessageType>fix</MessageType></Topic>
    <Topic><Name>.*</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <SOW>
    <Topic>
      <Topic>/ett/order</Topic><MessageType>fix</MessageType><Key>/37</Key>
      <Durability>transient</Durability>
    </Topic>
    <View>
      <MessageType>nvfix</MessageType>
      <Topic>TOTAL_VALUE</Topic>
      <UnderlyingTopic>/ett/order</UnderlyingTopic>
      <Projection><Field>/109</Field><Field>SUM(/14 * /6) AS /71406</Field></Projection>
      <Grouping><Field>/109</Field></Grouping>
    </View>
    <Topic>
      <Name>orders</Name><MessageType>json</MessageType><Key>/orderId</Key>
      <Durability>transient</Durability>
    </Topic>
    <Topic>
      <Name>customers</Name><MessageType>json</MessageType><Key>/id</Key>
      <Durability>transient</Durability>
    </Topic>
    <ViewDefinition>
      <Name>CompleteByRegion</Name>
      <UnderlyingTopic>orders</UnderlyingTopic>
      <MessageType>json</MessageType>
      <Projection>
        <Field>COUNT(/orderId) AS /completedOrders</Field>
        <Field>/region AS /region</Field>
      </Projection>
      <Grouping><Field>/region</Field></Grouping>
      <Filter>/status = 'complete'</Filter>
      <HashIndex><Key>/region</Key></HashIndex>
    </ViewDefinition>
    <View>
      <Name>ByCustomer</Name>
      <MessageType>json</MessageType>
      <UnderlyingTopic>
        <Join>[json].[customers].[/id] = [json].[orders].[/customer]</Join>
      </UnderlyingTopic>
      <Projection>
        <Field>[customers].[/name] AS /name</Field>
        <Field>SUM([orders].[/price]) AS /total</Field>
        <Field>COUNT([orders].[/orderId]) AS /count</Field>
      </Projection>
      <Grouping><Field>[customers].[/id]</Field></Grouping>
    </View>
  </SOW>
</AMPSConfig>
"""


def server(directory: Path) -> InstanceServer:
    found = load_amps("desk.xml", text=FILE.format(port=free_port(set())), environment={})
    assert not [each for each in findings(found) if each.refuses]
    settings = fabric_of([found], name="desk")
    record = FabricRecord("desk", str(directory), settings.to_json(), key="k")
    bring_up_to_date(record, settings)
    config = instance_config(settings, record, settings.instances[0])
    return InstanceServer(config, directory / "desk")


@pytest.mark.covers("Views", "the documented examples")
@pytest.mark.covers("Views and conflation, title by title", "which message")
@pytest.mark.covers("Views and conflation, title by title", "the documented")
@pytest.mark.covers("Views and conflation, title by title", "each element runs, `Topic`")
def test_the_documented_examples(tmp_path: Path) -> None:
    async def run() -> None:
        desk = server(tmp_path)
        await desk.start()
        try:
            async with Client("c", servers=[desk.runtime.client_address]) as client:
                await check(client)
        finally:
            await desk.stop()

    async def check(client: Client) -> None:
        for order, clearing, count, price in ((1, "X", 10, 2.5), (2, "Y", 1, 3), (3, "X", 2, 4)):
            fix = f"37={order}\x01109={clearing}\x0114={count}\x016={price}\x01"
            await client.publish("/ett/order", fix.encode(), message_type="fix")
        await publish(client, "customers", {"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
        await publish(
            client,
            "orders",
            {"orderId": 1, "customer": 1, "region": "east", "status": "complete", "price": 5},
            {"orderId": 2, "customer": 1, "region": "east", "status": "open", "price": 2.5},
            {"orderId": 3, "customer": 9, "region": "west", "status": "complete", "price": 1},
        )
        await client.flush()
        totals = await client.sow("TOTAL_VALUE", order_by="/109", message_type="nvfix").all()
        assert [row.body for row in totals] == [b"109=X\x0171406=33.0\x01", b"109=Y\x0171406=3\x01"]
        assert await rows(client, "CompleteByRegion", filter="/region = 'east'") == [
            {"completedOrders": 1, "region": "east"}
        ]
        assert await rows(client, "ByCustomer", order_by="/name") == [
            {"name": "ann", "total": 7.5, "count": 2},
            {"name": "bob", "total": None, "count": 0},
        ]

    asyncio.run(run())


async def publish(client: Client, topic: str, *values: dict[str, Any]) -> None:
    for value in values:
        await client.publish(topic, json.dumps(value).encode())


async def rows(client: Client, topic: str, **options: Any) -> list[Any]:
    return [json.loads(row.body) for row in await client.sow(topic, **options).all()]
