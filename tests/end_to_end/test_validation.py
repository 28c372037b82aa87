"""Validation at connect, with real instances: what is refused, who says so, and what repairs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Client, Server, Servers, free_ports, single
from support.link_peers import DESCRIPTION

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.description import LINK_LOGON_BYTES_MAX
from raylay.services.protocol.link.replication import UpstreamLogon, link_logon
from raylay.services.queues.definition import QueueDefinition
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers("Replication", "validation at connect")

ALL = (TopicRule(".*"),)
ONE_WAY = (TopicRule(".*", exclude_validation=("replicate", "cascade")),)


class Fabric:
    """Instances A and B, each configured anew at will."""

    def __init__(self, servers: Servers, path: Path) -> None:
        self.path = path
        self.ports = dict(zip("AB", free_ports(2), strict=True))
        self._servers = servers
        self.running: dict[str, Server] = {}

    def destination(self, name: str, **values: Any) -> DestinationConfig:
        values.setdefault("group", f"group-{name}")
        address = f"127.0.0.1:{self.ports[name]}"
        return DestinationConfig(name, addresses=(address,), retry_ms_max=200, **values)

    def run(self, name: str, *destinations: DestinationConfig, **values: Any) -> Server:
        """Starts an instance, or starts it again with another configuration."""
        config = InstanceConfig(
            name,
            f"group-{name}",
            destinations=destinations,
            replication_transports=(TransportConfig("replication", self.ports[name]),),
            first=True,
            **values,
        )
        server = self.running.get(name)
        if server is None:
            server = self.running[name] = Server(self.path / name, config)
            self._servers.append(server)
        else:
            assert server.stop() == 0
            config.save(server.directory)
            server.log = ""
            server.start()
        return server

    def arrives(self) -> None:
        """What is published at A is answered, that is, on disk at B."""
        client = Client(self.running["A"].address, "publisher")
        client.publish(range(1, 11))
        client.persisted(10)
        assert len(self.running["B"].journal()) == 10

    def refused(self, *texts: str) -> None:
        """Both sides say so, again and again, in the same words; nothing is replicated."""
        here, there = self.running["A"], self.running["B"]
        here.wait_for("link_refused", 3)
        there.wait_for("upstream_refused", 3)
        for server in (here, there):
            for text in texts:
                assert text in server.log, server.log
        assert "link_caught_up" not in here.log


@pytest.fixture
def fabric(servers: Servers, tmp_path: Path) -> Fabric:
    return Fabric(servers, tmp_path)


@pytest.mark.covers("The replication chapters", "at each connect")
def test_txlog(fabric: Fabric) -> None:
    fabric.run("B", topics=(TopicRule("orders"),))
    fabric.run("A", fabric.destination("B", topics=ONE_WAY))
    fabric.refused("txlog: A replicates .* (any type) to B, which does not log it")
    fabric.run("B")
    fabric.running["A"].wait_for("link_caught_up")
    fabric.arrives()


@pytest.mark.covers("The replication chapters", "the detecting side says what to change")
def test_replicate(fabric: Fabric) -> None:
    fabric.run("B")
    fabric.run("A", fabric.destination("B"))
    fabric.refused("replicate: A replicates .*", "give B a Destination to Group 'group-A'")
    fabric.run("B", fabric.destination("A", topics=(TopicRule("orders"),)))
    fabric.refused("add a Topic for it to Destination 'A' of B")
    fabric.run("B", fabric.destination("A"))
    fabric.running["A"].wait_for("link_caught_up")
    fabric.running["B"].wait_for("link_caught_up")
    fabric.arrives()


@pytest.mark.covers("The replication chapters", "checks are excluded by topic")
@pytest.mark.slow
def test_an_excluded_check_is_not_made(fabric: Fabric) -> None:
    fabric.run("B")
    fabric.run("A", fabric.destination("B"))
    fabric.refused("or exclude replicate for Topic '.*' of Destination 'B' at A")
    fabric.run("A", fabric.destination("B", topics=ONE_WAY))
    fabric.running["A"].wait_for("link_caught_up")
    fabric.arrives()


@pytest.mark.covers("The replication chapters", "checks are excluded by topic")
@pytest.mark.slow
def test_what_one_side_excludes_the_other_is_held_to(fabric: Fabric) -> None:
    back = (TopicRule(".*", exclude_validation=("sow",)),)
    fabric.run("B", fabric.destination("A", topics=back))
    fabric.run("A", fabric.destination("B"))
    fabric.refused("cascade: A enforces sow for .* (any type), but B does not for Topic '.*'")
    refusals = [line for line in fabric.running["B"].log.splitlines() if "link_refused" in line]
    # B may have dialled before A had recovered.
    assert all("reason=not_ready" in line for line in refusals), refusals
    fabric.run("A", fabric.destination("B", topics=back))
    fabric.running["A"].wait_for("link_caught_up")


@pytest.mark.covers("The replication chapters", "unique names, in one set of files and among")
def test_the_group(fabric: Fabric) -> None:
    """Asked first: of another instance than the one meant nothing else is of interest."""
    fabric.run("B", topics=(TopicRule("orders"),))
    fabric.run("A", fabric.destination("B", group="group-C"))
    fabric.refused("A expects group 'group-C' here, but B is of group 'group-B'")
    assert "txlog:" not in fabric.running["A"].log
    fabric.run("A", fabric.destination("B", topics=(TopicRule("orders", "*", "", ("txlog",)),)))
    fabric.running["A"].wait_for("link_caught_up")


@pytest.mark.slow
def test_definitions_are_compared(fabric: Fabric) -> None:
    sow = SowTopicDefinition("orders", "json", keys=("/id",))
    here = {"sow": (sow,), "queue_definitions": (QueueDefinition("work", "json"),)}
    fabric.run("B", sow=(replace(sow, keys=("/id", "/day")),))
    fabric.run("A", fabric.destination("B", topics=ONE_WAY), **here)
    fabric.refused("keys: the keys of SOW/Topic orders", "queue: work (json) is a Queue at A")
    fabric.run("B", **here)
    fabric.running["A"].wait_for("link_caught_up")


@pytest.mark.covers("Configuration", "a link that does not describe its instance is refused")
def test_a_link_that_says_nothing_of_itself(servers: Servers, tmp_path: Path) -> None:
    """A link without a description is refused; so is one with a wrong or a huge description."""
    server = single(servers, tmp_path, topics=(TopicRule("orders"),))

    def answer(description: bytes) -> dict[str, Any]:
        client = Client(server.status["replication_address"])
        logon = UpstreamLogon("up", "east", 77, "group", "to-solo", 1, b"", 0, description)
        client.socket.sendall(link_logon(logon))
        return client.next().header

    assert answer(b"\xc1")["reason"] == "bad_description"
    assert answer(bytes(LINK_LOGON_BYTES_MAX))["reason"] == "frame_too_large"
    assert answer(encode_frame({}))["reason"] == "bad_description"
    missing = answer(b"")
    assert missing["reason"] == "bad_description" and "is missing" in missing["text"]
    assert answer(DESCRIPTION)["c"] == "accepted"


@pytest.mark.covers("Resync and bootstrap", "where `txlog` is left out")
@pytest.mark.parametrize("sync", [False, True])
def test_a_topic_that_the_other_side_lacks_holds_up_no_other_one(
    servers: Servers, tmp_path: Path, sync: bool
) -> None:
    """Where the check of the transaction log is left out. Also what the link sends again."""
    fabric = Fabric(servers, tmp_path)
    topics = (TopicRule(".*", exclude_validation=("txlog", "replicate", "cascade")),)
    there = fabric.run("B", topics=(TopicRule("^orders$"),))
    to_b = fabric.destination("B", sync=sync, topics=topics)
    here = fabric.run("A", to_b, topics=ALL)
    client = Client(here.address, "publisher")
    client.publish(range(1, 6), topic="quotes")
    client.publish(range(6, 11))
    client.publish(range(11, 12), topic="quotes")
    client.publish(range(12, 16))
    client.persisted(15)
    wanted = [*range(6, 11), *range(12, 16)]
    while [sequence for _, sequence in there.journal()] != wanted:
        there.wait_for("topic_passed_over")
    assert there.events("topic_passed_over") == 1 and "topic=quotes" in there.log
    here.kill()
    here.start()
    client = Client(here.address, "publisher")
    client.publish(range(16, 18))
    client.persisted(17)
    while [sequence for _, sequence in there.journal()] != [*wanted, 16, 17]:
        there.wait_for("topic_passed_over", 2)
    assert not here.events("link_refused") and not there.events("upstream_refused")
