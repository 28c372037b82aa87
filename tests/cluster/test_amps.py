"""Published AMPSConfig files, mapped to this machine's addresses, run as fabrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.amps_examples import FIXTURES, completed, published

from raylay.services.client import EPOCH
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import free_port

pytestmark = pytest.mark.cluster

REGIONAL = FIXTURES / "regional"


async def first_of(fabric: Fabric, instance: str, group: str, topic: str) -> bytes:
    """The first message of a topic in the log of one instance, once it is there."""
    servers = [server for server in fabric.servers(group) if server.instance == instance]
    async with fabric.client(f"reader-{instance}", group=group, servers=servers) as reader:
        subscription = await reader.subscribe(topic, bookmark=EPOCH)
        async for message in subscription:
            return message.body
    raise AssertionError(f"{instance}: the subscription ended")


async def publish_and_find(
    fabric: Fabric,
    group: str,
    topic: str,
    body: bytes,
    readers: Iterable[tuple[str, str]],
    message_type: str = "json",
) -> list[bytes]:
    """What each reader, an (instance, group), finds of what a client of the group published."""
    async with fabric.client("desk", group=group) as desk:
        await desk.publish(topic, body, message_type)
        await desk.flush()
    return [await first_of(fabric, *reader, topic) for reader in readers]


def on_this_machine(name: str, ports: dict[str, int]) -> str:
    """An example with its hosts replaced by loopback and its ports by free ones."""
    text = completed(name, f"127.0.0.1:{free_port(set(ports.values()))}")
    for old, port in ports.items():
        host, _, number = old.rpartition(":")
        text = text.replace(f"<InetAddr>{number}<", f"<InetAddr>127.0.0.1:{port}<")
        text = text.replace(f"<InetAddr>{host}:{number}<", f"<InetAddr>127.0.0.1:{port}<")
    actions = published("downgrade-and-upgrade")
    start, end = actions.index("    <Actions>"), actions.index("</Actions>") + len("</Actions>")
    return text.replace("</AMPSConfig>", f"{actions[start:end]}</AMPSConfig>")


@pytest.mark.slow
@pytest.mark.covers("Configuration", "Configuring Replication")
@pytest.mark.covers("The replication chapters", "the hot-hot pair as published")
@pytest.mark.usefixtures("fabric")
def test_the_published_pair(tmp_path: Path) -> None:
    taken: set[int] = set()
    ports = {
        "amps-1-server.example.com:10004": free_port(taken),
        "amps-2-server.example.com:10005": free_port(taken),
    }
    files = []
    for name in ("hot-hot-amps-1", "hot-hot-amps-2"):
        files.append(tmp_path / f"{name}.xml")
        files[-1].write_text(on_this_machine(name, ports))
    group = "DataCenter-NYC-1"
    with Fabric.load(*files, name="hot-hot").start(tmp_path / "data") as fabric:
        fabric.wait_connected()
        body = b'{"id": 1}'
        readers = [("amps-1", group), ("amps-2", group)]
        found = asyncio.run(publish_and_find(fabric, group, "/orders/1", body, readers))
        assert found == [body, body]
        by_name = {each["name"]: each for each in fabric.status()["instances"]}
        assert by_name["amps-1"]["destinations"]["amps-2"]["sync"]
        assert fabric.data_directory("amps-1") == tmp_path / "data" / "amps-1" / "journal"


BACK = """
    <Replication><Destination>
        <Name>example</Name>
        <SyncType>async</SyncType>
        {topics}
        <Transport><Type>amps-replication</Type></Transport>
    </Destination></Replication>
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "peer", "address", "topics", "message_type"),
    [
        ("pass-through", "AMPS2-HKG", "secondaryhost:10010", ["/rep_topic", "/rep_topic2"], "fix"),
        pytest.param(
            *("outgoing-security", "amps-1", "amps-1-server.example.com:10004", ["topic"], "fix"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("exclude-validation", "view-server", "views:10004", ["MyStuff-VIEW"], "json"),
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.usefixtures("fabric")
def test_a_published_destination_and_the_published_incoming_transport_as_its_peer(
    example: str, peer: str, address: str, topics: list[str], message_type: str, tmp_path: Path
) -> None:
    """The peer replicates back over the connection that the example makes, unless the example
    excludes that."""
    goes_back = example != "exclude-validation"
    taken: set[int] = set()
    incoming, clients, peer_clients = (free_port(taken) for _ in range(3))
    source, target = tmp_path / "source.xml", tmp_path / "target.xml"
    source.write_text(
        completed(example, f"127.0.0.1:{clients}").replace(address, f"127.0.0.1:{incoming}")
    )
    text = completed("incoming-security", f"127.0.0.1:{peer_clients}")
    text = text.replace("<Name>example<", f"<Name>{peer}<")
    text = text.replace("<InetAddr>10005<", f"<InetAddr>127.0.0.1:{incoming}<")
    rules = [f"<Topic><Name>{name}</Name><MessageType>fix</MessageType></Topic>" for name in topics]
    back = BACK.format(topics="".join(rules)) if goes_back else ""
    target.write_text(text.replace("</AMPSConfig>", f"{back}</AMPSConfig>"))
    with Fabric.load(source, target, name=example).start(tmp_path / "data") as fabric:
        fabric.wait_connected(60)
        readers, topic = [(peer, peer)], topics[-1]
        body = b"8=FIX"
        go = publish_and_find(fabric, "example", topic, body, readers, message_type)
        assert asyncio.run(go) == [body]
        if goes_back:
            there = publish_and_find(fabric, peer, topic, body, [("example", "example")], "fix")
            assert asyncio.run(there) == [body]


@pytest.mark.covers("Configuration", "Geographic Replication with High Availability")
@pytest.mark.covers("The replication chapters", "the table, column for column")
@pytest.mark.slow
@pytest.mark.usefixtures("fabric")
def test_geographic_replication_with_high_availability(tmp_path: Path) -> None:
    files = sorted(REGIONAL.glob("*-?.xml"))
    taken: set[int] = set()
    defines = {}
    for path in files:
        name = path.stem.upper().replace("-", "_")
        defines[f"{name}_HOST"] = "127.0.0.1"
        defines[f"{name}_PORT"] = str(free_port(taken))
        defines[f"{name}_CLIENT_PORT"] = str(free_port(taken))
    fabric = Fabric.load(*files, defines=defines, name="regions")
    with fabric.start(tmp_path / "data", timeout_s=120):
        fabric.wait_connected(60)
        body = b'{"trade": 1}'
        readers = [(path.stem, path.stem.split("-")[0]) for path in files]
        assert len(readers) == 6
        found = asyncio.run(publish_and_find(fabric, "Chicago", "/trades/1", body, readers))
        assert found == [body] * 6
