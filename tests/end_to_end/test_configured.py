"""Configuration files as the chapters describe them, run by real instances."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from end_to_end.test_instance import Client, Server, Servers, free_ports, servers

from raylay.services.configuration.amps_fabric import fabric_of
from raylay.services.configuration.amps_load import load_amps
from raylay.services.fabric_plan import instance_config, record_of
from raylay.services.messages.records import publisher_id

__all__ = ["servers"]  # a fixture

INSTANCE = """\
<AMPSConfig>
  <Name>{name}</Name>
  {group}
  <Transports>
    <Transport>
      <Name>r</Name><Type>amps-replication</Type><InetAddr>127.0.0.1:{port}</InetAddr>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    {logged}
  </TransactionLog>
  {replication}
</AMPSConfig>
"""
TOPIC = "<Topic><Name>{}</Name><MessageType>json</MessageType>{}</Topic>"
BOTH = ("orders", "trades")


def element(tag: str, text: str) -> str:
    return f"<{tag}>{text}</{tag}>" if text else ""


def excluded(checks: str) -> str:
    return element("ExcludeValidation", checks)


ONE_WAY = excluded("replicate,cascade")


class Files:
    """The files of a fabric on this machine's ports, and its instances."""

    def __init__(self, *names: str) -> None:
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._texts: dict[str, str] = {}

    def destination(
        self,
        *names: str,
        group: str = "",
        sync: bool = True,
        passing: str = "",
        topics: Iterable[str] = BOTH,
        checks: str = ONE_WAY,
    ) -> str:
        """A Destination to a list of instances, called after the first one."""
        addresses = (f"<InetAddr>127.0.0.1:{self._ports[name]}</InetAddr>" for name in names)
        return (
            f"<Destination><Name>{names[0]}</Name>{element('Group', group)}"
            f"{''.join(TOPIC.format(topic, checks) for topic in topics)}"
            f"<SyncType>{'sync' if sync else 'async'}</SyncType>{element('PassThrough', passing)}"
            f"<Transport><Type>amps-replication</Type>{''.join(addresses)}</Transport>"
            "</Destination>"
        )

    def instance(
        self, name: str, *destinations: str, group: str = "", topics: Iterable[str] = BOTH
    ) -> None:
        """The file of an instance."""
        self._texts[name] = INSTANCE.format(
            name=name,
            group=element("Group", group),
            port=self._ports[name],
            logged="".join(TOPIC.format(topic, "") for topic in topics),
            replication=element("Replication", "".join(destinations)),
        )

    def start(self, servers: Servers, path: Path) -> dict[str, Server]:
        """Starts them all; returns when each of their links has caught up."""
        settings = fabric_of(
            load_amps(f"{name}.xml", text=text, environment={})
            for name, text in self._texts.items()
        )
        record = record_of(settings, path)
        started = {}
        for each in settings.instances:
            config = instance_config(settings, record, each)
            config.first = True
            started[each.name] = Server(path / each.name, config)
            servers.append(started[each.name])
        for server in started.values():
            if server.config.destinations:
                server.wait_for("link_caught_up", len(server.config.destinations))
        return started


def published(server: Server, name: str, count: int, topic: str = "orders") -> int:
    """Publishes messages, and returns their publisher when all are persisted."""
    client = Client(server.address, name)
    client.publish(range(1, count + 1), topic)
    client.persisted(count)
    client.close()
    return publisher_id(name)


@pytest.mark.parametrize(("passing", "passes"), [("^A$", True), ("^B$", False)])
def test_an_instance_without_a_group_is_passed_on_by_its_name(
    servers: Servers, tmp_path: Path, passing: str, passes: bool
) -> None:
    """Its Name is the Group that the Destination to it expects, too."""
    files = Files("A", "B", "C")
    files.instance("A", files.destination("B"))
    files.instance("B", files.destination("C", passing=passing))
    files.instance("C")
    started = files.start(servers, tmp_path)
    of_a = published(started["A"], "at-A", 10)
    of_b = published(started["B"], "at-B", 10)
    # What B took before its own would have come before it.
    found = [publisher for publisher, _ in started["C"].journal()]
    assert found == [of_a] * 10 * passes + [of_b] * 10
