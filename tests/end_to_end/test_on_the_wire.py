"""What passes between instances, seen from outside: by their processes' files and sockets, and by a
relay in front of a replication port."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, free_ports, pair

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule

ESTABLISHED = "01"
MESSAGES = 2_000
TEXT = "the same words again and again "
"""What compresses well, and is seen at once in what does not."""


# -- only replication ----------------------------------------------------------------------------
def processes(server: Server) -> list[int]:
    """Of an instance: its own and those of its links."""
    found = [server.process.pid]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def opened(pid: int) -> set[str]:
    """What a process has open or mapped, by name: files by their paths, sockets as `socket:[n]`."""
    names = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # Closed meanwhile: nobody has it open.
            names.add(os.readlink(entry))
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return names | {found[1] for line in maps if (found := re.search(r"(/.*)$", line))}


def sockets() -> Iterator[tuple[str, set[int]]]:
    """(`socket:[n]`, the two ports) of each TCP connection of this machine."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED:
                ports = {int(end.rpartition(":")[2], 16) for end in fields[1:3]}
                yield f"socket:[{fields[9]}]", ports


def unix_paths() -> dict[str, str]:
    """`socket:[n]` to the path of each Unix socket that has one."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    return {f"socket:[{words[6]}]": words[7] for line in lines if len(words := line.split()) > 7}


@pytest.mark.covers("The replication chapters", "instances talk only by replication")
def test_instances_talk_only_by_replication(servers: Servers, tmp_path: Path) -> None:
    """While each gets what was published at the other, no process of the one has anything of the
    other's open, and their only connections are those of links to a replication port."""
    first, second = pair(servers, tmp_path)
    clients = [Client(first.address, "one"), Client(second.address, "two")]
    for client in clients:
        client.publish(range(1, 101))
    for client in clients:
        client.persisted(100)
    connections, paths = dict(sockets()), unix_paths()
    replication = {
        int(server.status["replication_address"].rpartition(":")[2]) for server in (first, second)
    }
    serving = {server: int(server.address.rpartition(":")[2]) for server in (first, second)}
    links: set[str] = set()
    for own, other in ((first, second), (second, first)):
        for pid in processes(own):
            for name in opened(pid):
                assert not paths.get(name, name).startswith(str(other.directory)), name
                if name in connections and serving[own] not in connections[name]:
                    assert connections[name] & replication, (name, connections[name])
                    links.add(name)
    # A link each way, seen from both of its ends. An instance may have its link's, too: it is
    # handed over.
    assert len(links) == 4
    assert all(len(server.journal()) == 200 for server in (first, second))


# -- compression ---------------------------------------------------------------------------------
class Tap:
    """A relay in front of a port, which keeps what whoever connects sends there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pass_on, args=(source, target, source is near), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, keeps: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if keeps:
                    self.sent += data
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.close()


def sent_to_a_receiver(servers: Servers, path: Path, compression: str) -> bytes:
    """What a link sends of messages to an instance whose configuration says nothing of it."""
    (port,) = free_ports(1)
    receiver = Server(
        path / "B",
        InstanceConfig(
            "B", "group", replication_transports=(TransportConfig("replication", port),), first=True
        ),
    )
    servers.append(receiver)
    tap = Tap(port)
    try:
        destination = DestinationConfig(
            "B",
            "group",
            True,
            (tap.address,),
            topics=(TopicRule(".*", exclude_validation=("replicate",)),),
            compression=bool(compression),
            compression_type=compression or "zstd",
        )
        config = InstanceConfig("A", "group", destinations=(destination,), first=True)
        servers.append(Server(path / "A", config))
        client = Client(servers[-1].address, "publisher")
        for start in range(1, MESSAGES + 1, 200):
            client.publish(range(start, start + 200), text=TEXT)
        client.persisted(MESSAGES)
    finally:
        tap.close()
    assert [number for _, number in receiver.journal()] == list(range(1, MESSAGES + 1))
    return tap.sent


@pytest.mark.covers("Replication", "Compression and CompressionType")
@pytest.mark.covers("The replication chapters", "chosen at the source")
@pytest.mark.parametrize("compression", ["zstd", "zlib"])
def test_compression_is_chosen_at_the_source_and_seen_on_the_wire(
    servers: Servers, tmp_path: Path, compression: str
) -> None:
    plain = sent_to_a_receiver(servers, tmp_path / "plain", "")
    compressed = sent_to_a_receiver(servers, tmp_path / "compressed", compression)
    assert plain.count(TEXT.encode()) == MESSAGES
    assert compressed.count(TEXT.encode()) < MESSAGES // 100
    assert len(compressed) < len(plain) // 2
