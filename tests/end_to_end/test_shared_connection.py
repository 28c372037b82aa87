"""Links over the connection that the other side made (behaviour.md 1.2, 1.3)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, free_ports

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer

pytestmark = pytest.mark.covers("Replication", "without an address")

ESTABLISHED = "01"


XML = """\
<AMPSConfig>
  <Name>{name}</Name>
  <Group>group</Group>
  <Transports>
    <Transport>
      <Name>r</Name><Type>amps-replication</Type><InetAddr>127.0.0.1:{port}</InetAddr>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <Replication>
    <Destination>
      <Name>{other}</Name>
      <Group>group</Group>
      <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
      <SyncType>sync</SyncType>
      <PassThrough>.*</PassThrough>
      <Transport><Type>amps-replication</Type>{address}</Transport>
    </Destination>
  </Replication>
</AMPSConfig>
"""


def config(
    name: str,
    port: int,
    other: str,
    address: str,
    *,
    share: bool,
    policy: DowngradePolicy | None = None,
) -> InstanceConfig:
    """Of an instance with a sync destination; without an address it waits for the other one."""
    destination = DestinationConfig(
        other,
        "group",
        True,
        (address,) if address else (),
        pass_through=".*",
        server_names=(other,),
        share_connection=share,
        retry_ms_max=200,
    )
    return InstanceConfig(
        name,
        "group",
        destinations=(destination,),
        replication_transports=(TransportConfig("replication", port),),
        first=True,
        policy=policy or DowngradePolicy(),
    )


class Pair:
    """Instances A and B of one group, sync both ways.

    Args:
        dialling: the names of those that have an address of the other one.
        share: what those destinations say of it. None: the pair is started from XML files.
    """

    def __init__(
        self,
        servers: Servers,
        path: Path,
        dialling: str,
        *,
        share: bool | None,
        policy: DowngradePolicy | None = None,
    ) -> None:
        self.ports = dict(zip("AB", free_ports(2), strict=True))
        self.published = 0
        sides = [
            (name, self.ports[name], other, f"127.0.0.1:{self.ports[other]}" * (name in dialling))
            for name, other in ("AB", "BA")
        ]
        if share is None:
            settings = fabric_of(
                load_amps(
                    f"{name}.xml",
                    text=XML.format(
                        name=name,
                        port=port,
                        other=other,
                        address=f"<InetAddr>{address}</InetAddr>" if address else "",
                    ),
                    environment={},
                )
                for name, port, other, address in sides
            )
            record = record_of(settings, path)
            configs = [instance_config(settings, record, each) for each in settings.instances]
        else:
            configs = [config(*side, share=share, policy=policy) for side in sides]
        self.a, self.b = (Server(path / made.name, made) for made in configs)
        servers += [self.a, self.b]

    def connections(self) -> int:
        """TCP connections to the replication ports, seen from the side that accepted them."""
        ports = {f"{port:04X}" for port in self.ports.values()}
        lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        return sum(
            fields[1].rpartition(":")[2] in ports and fields[3] == ESTABLISHED
            for fields in map(str.split, lines)
        )

    def over(self) -> list[str]:
        """The names of the instances whose link last connected over the other's connection."""
        found = []
        for server in (self.a, self.b):
            ways = re.findall(r"link_logged_on .* address=(.*)", server.log)
            if ways and ways[-1].startswith('"over '):
                found.append(server.config.name)
        return found

    def one_connection(self) -> None:
        """Waits until one of the two is connected over the other's connection, and there is no
        further one. That stays so: who goes over a connection does not dial."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.connections() != 1 or len(self.over()) != 1:
            assert time.monotonic() < deadline_s, (self.connections(), self.a.log, self.b.log)
            time.sleep(0.02)

    def arrives(self) -> None:
        """What is published on either side is answered, that is, on disk on both."""
        first = self.published + 1
        self.published += 100
        for server in (self.a, self.b):
            client = Client(server.address, f"publisher-{server.config.name}")
            client.publish(range(first, self.published + 1))
            client.persisted(self.published)
            client.close()
        assert sorted(self.a.journal()) == sorted(self.b.journal())
        assert len(self.a.journal()) == 2 * self.published

    def link_pid(self, server: Server) -> int:
        """Of the one link of an instance."""
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = {
            int(pid)
            for task in children.parent.parent.iterdir()
            for pid in (task / "children").read_text().split()
            if b"run_link" in Path(f"/proc/{pid}/cmdline").read_bytes()
        }
        (pid,) = pids
        return pid

    def heals(self) -> None:
        """Both directions work again, over one connection."""
        self.arrives()
        self.one_connection()


@pytest.mark.covers("The replication chapters", "point to point")
@pytest.mark.covers("The replication chapters", "no InetAddr: replicates when the other")
def test_the_side_without_an_address_pushes_over_the_connection_of_the_other(
    servers: Servers, tmp_path: Path
) -> None:
    pair = Pair(servers, tmp_path, "B", share=False)
    pair.heals()
    pair.a.wait_for("link_logged_on destination=B client=A!B!sync!amps-replication")
    pair.a.wait_for('address="over B\'s connection"')
    for process in (pair.link_pid(pair.b), pair.link_pid(pair.a)):
        os.kill(process, signal.SIGKILL)
        pair.heals()
    for server in (pair.a, pair.b):
        server.kill()
        server.start()
        pair.heals()


def test_who_waits_says_for_whom(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    made = config("A", port, "B", "", share=False)

    async def why() -> str:
        server = InstanceServer(made, tmp_path / "A", ChildSubprocess)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (found := server.status()["destinations"]["B"])["why"].startswith("wait"):
                    await asyncio.sleep(0.02)
            assert not found["connected"] and found["address"] == ""
            assert found["client_name"] == "A!B!sync!amps-replication"
            return str(found["why"])
        finally:
            await server.stop()

    assert asyncio.run(why()) == "waits for B to connect"


def test_configuration_files_without_inet_addr(servers: Servers, tmp_path: Path) -> None:
    pair = Pair(servers, tmp_path, "B", share=None)
    pair.heals()
    assert pair.over() == ["A"]
    pair.b.kill()
    pair.a.wait_for("link_disconnected destination=B")
    pair.b.start()
    pair.heals()


@pytest.mark.covers("The replication chapters", "over one connection")
def test_two_sides_that_dial_settle_on_one_connection(servers: Servers, tmp_path: Path) -> None:
    pair = Pair(servers, tmp_path, "AB", share=True)
    pair.heals()
    assert pair.over() == ["B"]
    # Whose link is killed, and dials, while the other one waits for it: the other one dials then.
    for server in (pair.a, pair.b):
        os.kill(pair.link_pid(server), signal.SIGKILL)
        pair.heals()
    for server in (pair.a, pair.b):
        server.kill()
        server.start()
        pair.heals()
