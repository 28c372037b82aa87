"""Configuration files as the chapters describe them, run by real instances."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from support import forked
from support.instance_processes import DEADLINE_S, Client, Server, Servers, free_ports

from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.messages.records import publisher_id

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

    def replace(self, name: str, pattern: str, text: str) -> None:
        """Puts a text into the file of an instance in place of what a pattern matches."""
        self._texts[name], count = re.subn(pattern, text, self._texts[name], flags=re.DOTALL)
        assert count == 1

    def start(self, servers: Servers, path: Path, *, awaited: bool = True) -> dict[str, Server]:
        """Starts them all; with `awaited` returns when each of their links has caught up."""
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
            if awaited and server.config.destinations:
                server.wait_for("link_caught_up", len(server.config.destinations))
        return started


def published(server: Server, name: str, count: int, topic: str = "orders") -> int:
    """Publishes messages, and returns their publisher when all are persisted."""
    client = Client(server.address, name)
    client.publish(range(1, count + 1), topic)
    client.persisted(count)
    client.close()
    return publisher_id(name)


@pytest.mark.covers("The replication chapters", "without Group the name is the group")
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


@pytest.mark.covers("The replication chapters", "a sync pair of applications")
@pytest.mark.slow
def test_hub_and_spoke_as_the_chapter_describes_it(servers: Servers, tmp_path: Path) -> None:
    """Ingestion and hub sync, applications with topics of their own, one of them a sync pair; its
    validation excluded where nothing comes back."""
    files = Files("in-1", "in-2", "hub", "desk-1", "desk-2", "risk")
    for own, mate in (("in-1", "in-2"), ("in-2", "in-1")):
        # The mate asks less of the hub than of this one, as this one does.
        to_mate = files.destination(mate, group="in", passing=".*", checks=excluded("cascade"))
        to_hub = files.destination("hub", group="hub", passing=".*")
        files.instance(own, to_mate, to_hub, group="in")
    files.instance(
        "hub",
        files.destination("desk-1", "desk-2", group="desk", passing=".*", topics=("orders",)),
        files.destination("risk", group="risk", sync=False, passing=".*", topics=("trades",)),
        group="hub",
    )
    for own, mate in (("desk-1", "desk-2"), ("desk-2", "desk-1")):
        to_mate = files.destination(mate, group="desk", passing=".*", topics=("orders",), checks="")
        files.instance(own, to_mate, group="desk", topics=("orders",))
    files.instance("risk", group="risk", topics=("trades",))
    started = files.start(servers, tmp_path)
    orders = published(started["in-1"], "orders-desk", 50)
    trades = published(started["in-2"], "trades-desk", 50, "trades")
    # Sync all the way: what was persisted is at both of the pair, whose own goes nowhere else.
    own = published(started["desk-2"], "trader", 5)
    reader = Client(started["risk"].address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "trades", "bm": "0", "cid": "1"})
    assert len(reader.receive(50)) == 50
    held = {name: set(server.journal()) for name, server in started.items()}
    everything = {(each, n) for each in (orders, trades) for n in range(1, 51)}
    for name in ("in-1", "in-2", "hub"):
        assert held[name] == everything, name
    for name in ("desk-1", "desk-2"):
        wanted = {(orders, n) for n in range(1, 51)} | {(own, n) for n in range(1, 6)}
        assert held[name] == wanted, name
    assert held["risk"] == {(trades, n) for n in range(1, 51)}
    # Without its first one the hub's Destination goes on to the other, which waits for its mate.
    started["desk-1"].kill()
    client = Client(started["in-1"].address, "later")
    client.publish(range(1, 11))
    reader = Client(started["desk-2"].address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "1"})
    assert reader.receive(65)[-1] == "m10"
    started["desk-1"].start()
    client.persisted(10)
    later = {(publisher_id("later"), n) for n in range(1, 11)}
    assert all(later <= set(started[name].journal()) for name in ("desk-1", "desk-2"))


FILE = """\
<AMPSConfig>
  <Name>A</Name>
  <Group>east</Group>
  <Tuning><Replication><MinSyncDestinations>1</MinSyncDestinations></Replication></Tuning>
  <Transports>
    <Transport>
      <Name>clients</Name><Type>tcp</Type><InetAddr>127.0.0.1:{clients}</InetAddr>
    </Transport>
    <Transport>
      <Name>r</Name><Type>amps-replication</Type><InetAddr>127.0.0.1:{incoming}</InetAddr>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <JournalArchiveDirectory>{place}/archive</JournalArchiveDirectory>
    <JournalSize>10MB</JournalSize>
    <FlushInterval>200ms</FlushInterval>
    <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <Replication>
    <Destination>
      <Name>B</Name>
      <Group>west</Group>
      <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
      <SyncType>async</SyncType>
      <Transport><Type>amps-replication</Type><InetAddr>127.0.0.1:{there}</InetAddr></Transport>
    </Destination>
  </Replication>
  <Logging>
    <Target>
      <Protocol>file</Protocol><Level>{level}</Level><FileName>{place}/log/a</FileName>
    </Target>
  </Logging>
</AMPSConfig>
"""


DOWNGRADE = """
  <Actions><Action>
    <On><Module>amps-action-on-schedule</Module><Options><Every>1s</Every></Options></On>
    <Do>
      <Module>amps-action-do-downgrade-replication</Module><Options><Age>100ms</Age></Options>
    </Do>
  </Action></Actions>
</AMPSConfig>"""


@pytest.mark.covers("Configuration", "each element that runs changes what is started")
@pytest.mark.slow
def test_an_instance_does_what_its_file_says(servers: Servers, tmp_path: Path) -> None:
    """What can be seen of it from outside; what a Destination says has tests of its own."""
    clients, incoming, there = free_ports(3)

    def start(level: str, more: str = "</AMPSConfig>", **words: str) -> Server:
        text = FILE.format(
            clients=clients, incoming=incoming, there=there, level=level, place=tmp_path
        ).replace("</AMPSConfig>", more)
        for word, other in words.items():
            text = text.replace(f">{word}<", f">{other}<")
        settings = fabric_of([load_amps("A.xml", text=text, environment={})])
        config = instance_config(settings, record_of(settings, tmp_path), settings.instances[0])
        config.first = True
        servers.append(Server(tmp_path / "A", config))
        return servers[-1]

    def logged() -> str:
        # `a` is the instance's; a process beside it adds its own name.
        return "".join(path.read_text() for path in (tmp_path / "log").glob("a*"))

    server = start("info")
    status = server.status
    assert (status["name"], status["group"]) == ("A", "east")
    assert status["client_address"] == f"127.0.0.1:{clients}"
    assert status["replication_address"] == f"127.0.0.1:{incoming}"
    client = Client(server.address, "publisher")
    assert (client.answer["instance"], client.answer["group"]) == ("A", "east")
    began_s = time.monotonic()
    client.publish(range(1, 2))
    client.persisted(1)
    assert time.monotonic() - began_s >= 0.15, "the commit waits for more to come"
    for kind, reason in (("json", ""), ("fix", "not_journaled")):
        client.send(
            {"c": "subscribe", "sub": kind, "t": "orders", "mt": kind, "bm": "0", "cid": kind}
        )
        assert client.ack(cid=kind).header.get("reason", "") == reason
    for number in range(2, 14):
        client.publish(range(number, number + 1), text=10**6 * "x")
        client.persisted(number)
    journal = tmp_path / "A" / "journal"
    assert len([path for path in journal.iterdir() if "lock" not in path.name]) >= 2
    assert server.stop() == 0
    commands = [sys.executable, "-m", "raylay.services.cli", "journal"]
    archived = forked.run(
        [*commands, "archive", str(journal), "--archive", str(tmp_path / "archive")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert archived.returncode == 0, archived.stderr
    assert list((tmp_path / "archive").iterdir())
    assert " info A " in logged()
    for path in (tmp_path / "log").glob("a*"):  # The kept log stays: it is in the same folder.
        path.unlink()
    again = start("error")
    reader = Client(again.address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "1"})
    assert len(reader.receive(13)) == 13, "what was archived is still in the log"
    assert again.stop() == 0
    assert " info A " not in logged()
    # MinSyncDestinations: its one sync destination is away, and is not downgraded for its age. In
    # a file without it, it is.
    for minimum, event in (("1", "downgrade_refused"), ("0", "downgraded")):
        words = {"async": "sync", "1": minimum}
        last = start("info", DOWNGRADE, **words)
        client = Client(last.address, "last", low=1)
        client.publish(range(client.answer["highest"] + 1, client.answer["highest"] + 2))
        while f" {event} " not in logged():
            assert time.monotonic() - began_s < DEADLINE_S
            time.sleep(0.05)
        assert (" downgraded " in logged()) == (minimum == "0")
        client.send({"c": "ping", "cid": "p"})
        acked = client.next(lambda frame: frame.header.get("cid") == "p" or "s" in frame.header)
        assert ("s" in acked.header) == (minimum == "0"), acked
        assert last.stop() == 0


SLOW_CLIENTS = """\
<AMPSConfig>
  <Name>A</Name>
  <MessageMemoryLimit>{memory}</MessageMemoryLimit>
  <MessageDiskPath>{place}/offline</MessageDiskPath>
  <ClientMaxCapacity>100%</ClientMaxCapacity>
  <Transports>
    <Transport>
      <Name>clients</Name><Type>tcp</Type><InetAddr>127.0.0.1:{port}</InetAddr>
      <ClientMessageAgeLimit>{age}</ClientMessageAgeLimit>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
</AMPSConfig>
"""


@pytest.mark.covers("Configuration", "Slow Client Management")
@pytest.mark.parametrize(
    ("memory", "age", "event"),
    [("1MB", "100s", "client_offline"), ("4GB", "300ms", "slow_client")],
)
def test_limits_of_slow_clients_run_as_their_elements_say(
    servers: Servers, tmp_path: Path, memory: str, age: str, event: str
) -> None:
    """What is above the memory goes to the directory of the file; who is too old is ended."""
    (port,) = free_ports(1)
    text = SLOW_CLIENTS.format(memory=memory, age=age, port=port, place=tmp_path)
    settings = fabric_of([load_amps("A.xml", text=text, environment={})])
    config = instance_config(settings, record_of(settings, tmp_path), settings.instances[0])
    config.first = True
    server = Server(tmp_path / "A", config)
    servers.append(server)
    slow, publisher = Client(server.address, "slow"), Client(server.address, "publisher")
    slow.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s", "a": "processed"})
    slow.ack(cid="s")
    sent = 0
    deadline_s = time.monotonic() + DEADLINE_S
    while event not in server.log:
        assert time.monotonic() < deadline_s, server.log[-2_000:]
        publisher.publish(range(sent + 1, sent + 11), text="x" * 50_000)
        sent += 10
        publisher.persisted(sent)
    while event == "client_offline" and not list((tmp_path / "offline").glob("*")):
        assert time.monotonic() < deadline_s, "its buffer is a process that starts"
        time.sleep(0.05)
    assert event == "client_offline" or not (tmp_path / "offline").exists()
    other = {"client_offline": "slow_client", "slow_client": "client_offline"}[event]
    assert other not in server.log


def listening(server: Server) -> list[str]:
    """The addresses on which a process listens for TCP connections, as /proc has them."""
    mine = set()
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{server.process.pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in mine:
                found.append(str(int(local.rpartition(":")[2], 16)))
    return found


@pytest.mark.covers("The replication chapters", "incoming transports")
def test_an_instance_without_a_replication_transport_listens_for_clients_only(
    servers: Servers, tmp_path: Path
) -> None:
    """And replicates to another one, which does have one."""
    files = Files("A", "B")
    (port,) = free_ports(1)
    files.instance("A", files.destination("B"))
    files.instance("B")
    files.replace(
        "A",
        r"<Transport>\s*<Name>r</Name>.*?</Transport>",
        f"<Transport><Name>c</Name><Type>tcp</Type><InetAddr>0.0.0.0:{port}</InetAddr></Transport>",
    )
    started = files.start(servers, tmp_path)
    assert listening(started["A"]) == [str(port)]
    assert started["A"].status["replication_address"] == ""
    assert len(listening(started["B"])) == 2
    published(started["A"], "at-A", 5)


class Listener:
    """A server that keeps what is said to it and answers nothing."""

    def __init__(self) -> None:
        self.heard = b""
        self.spoken_to = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(DEADLINE_S)
                    self.heard += connection.recv(65_536)
                    self.spoken_to.set()

    def close(self) -> None:
        self._socket.close()


def test_each_partner_hears_its_own_password_only(servers: Servers, tmp_path: Path) -> None:
    """Two Destinations, of which one has two Transports: on the wire."""
    listeners = {name: Listener() for name in ("first", "second", "nobody", "other")}

    def transport(name: str, says: bool) -> str:
        options = f"<User>u</User><Password>of-{name}</Password>"
        return (
            "<Transport><Type>amps-replication</Type>"
            f"<InetAddr>127.0.0.1:{listeners[name].port}</InetAddr>"
            + says
            * (
                "<Authenticator><Module>amps-default-authenticator-module</Module>"
                f"<Options>{options}</Options></Authenticator>"
            )
            + "</Transport>"
        )

    def destination(name: str, transports: str) -> str:
        return (
            f"<Destination><Name>{name}</Name><Group>{name}</Group>{TOPIC.format('orders', '')}"
            f"<SyncType>async</SyncType>{transports}</Destination>"
        )

    files = Files("A")
    lists = transport("first", True) + transport("second", True) + transport("nobody", False)
    files.instance("A", destination("x", lists), destination("y", transport("other", False)))
    files.start(servers, tmp_path, awaited=False)
    for listener in listeners.values():
        assert listener.spoken_to.wait(DEADLINE_S)
    servers[0].kill()
    for name, listener in listeners.items():
        listener.close()
        said = {other for other in listeners if f"of-{other}".encode() in listener.heard}
        assert said == ({name} if name in ("first", "second") else set()), name
