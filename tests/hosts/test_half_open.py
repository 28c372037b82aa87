"""A peer that vanishes without closing: every packet is dropped, nobody says good-bye. Both sides
find out by heartbeats, in the time that docs/protocol.md promises; plain and with TLS.

Two hosts of network namespaces, a cable between them, and a rule that drops what comes in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.tls_files import tls_files

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.net.tls_config import TlsConfig

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of the network need root"),
    pytest.mark.skipif(not shutil.which("nft"), reason="what drops packets is nft"),
]
HERE, THERE = "10.79.0.1", "10.79.0.2"
CLIENT_PORT, REPLICATION_PORT = 9007, 9008
HEARTBEAT_S = 2.0
LINK_TIMEOUT_S = 3.0
UPSTREAM_SILENCE_S = 5.0
"""The documented time of the side that was dialled."""
SLACK_S = 4.0
"""For a busy machine: far below what TCP would take, which is 15 minutes."""
READY_S = 60.0
CLIENT = """
import asyncio, sys
from raylay.services.client import Client
from raylay.services.client.events import Connected, Disconnected

def told(event):
    if isinstance(event, (Connected, Disconnected)):
        print(type(event).__name__, event, file=sys.stderr, flush=True)

async def main():
    ca = sys.argv[2]
    tls = {"ca_file": ca} if ca else None
    async with Client("desk", servers=[sys.argv[1]], heartbeat_s=float(sys.argv[3]), tls=tls,
                      on_event=told):
        await asyncio.sleep(600)

asyncio.run(main())
"""


class Program:
    """A process in a namespace, and what it logs, with the time of each line."""

    def __init__(self, namespace: str, *command: str) -> None:
        self.lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self.lines.append((time.monotonic(), line))
                self._changed.notify_all()

    def said(self, word: str, after_s: float = 0.0, within_s: float = READY_S) -> tuple[float, str]:
        """The first line with that word behind a moment: when it came, and it."""

        def found() -> list[tuple[float, str]]:
            return [each for each in self.lines if each[0] >= after_s and word in each[1]]

        with self._changed:
            assert self._changed.wait_for(lambda: bool(found()), within_s), (word, self.lines)
            return found()[0]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


class Hosts:
    """Two namespaces and a cable."""

    def __init__(self) -> None:
        mark = f"raylay-{os.getpid()}"
        self.here, self.there = f"{mark}-a", f"{mark}-b"
        for namespace in (self.here, self.there):
            run("ip", "netns", "add", namespace)
        run("ip", "link", "add", "a0", "netns", self.here, "type", "veth",
            "peer", "name", "b0", "netns", self.there)  # fmt: skip
        for namespace, device, address in ((self.here, "a0", HERE), (self.there, "b0", THERE)):
            inside = ("ip", "-n", namespace)
            run(*inside, "addr", "add", f"{address}/24", "dev", device)
            for each in (device, "lo"):
                run(*inside, "link", "set", each, "up")

    def drop(self) -> float:
        """From now on nothing that comes from the other host is taken. When that began."""
        began_s = time.monotonic()
        for namespace, device in ((self.here, "a0"), (self.there, "b0")):
            inside = ("ip", "netns", "exec", namespace, "nft")
            run(*inside, "add", "table", "inet", "cut")
            run(*inside, "add", "chain", "inet", "cut", "in",
                "{ type filter hook input priority 0; }")  # fmt: skip
            run(*inside, "add", "rule", "inet", "cut", "in", "iifname", device, "drop")
        return began_s

    def mend(self) -> None:
        for namespace in (self.here, self.there):
            run("ip", "netns", "exec", namespace, "nft", "delete", "table", "inet", "cut")

    def remove(self) -> None:
        for namespace in (self.here, self.there):
            run("ip", "netns", "delete", namespace)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.covers("Configuration", "a half-open connection")
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_peer_that_vanishes_is_found_by_both_sides(
    hosts: Hosts, tmp_path: Path, secure: bool
) -> None:
    made = tls_files()
    pair = made.ours.issue("half-open", THERE, HERE)
    serving = TlsConfig(pair.certificate, pair.key) if secure else None
    topics = (TopicRule("orders", exclude_validation=("replicate",)),)
    away = DestinationConfig(
        "B", "g", True, (f"{THERE}:{REPLICATION_PORT}",), topics, server_names=("B",),
        timeout_ms=int(LINK_TIMEOUT_S * 1000), retry_ms_max=200,
        tls=made.dialling() if secure else None,
    )  # fmt: skip
    b = InstanceConfig(
        "B", "g", topics, first=True,
        client_transports=(TransportConfig("client", CLIENT_PORT, THERE, tls=serving),),
        replication_transports=(
            TransportConfig("replication", REPLICATION_PORT, THERE, tls=serving),
        ),
    )  # fmt: skip
    a = InstanceConfig(
        "A",
        "g",
        topics,
        (away,),
        client_transports=(TransportConfig("client", host=HERE),),
        replication_transports=(TransportConfig("replication", host=HERE),),
        first=True,
    )
    for config in (a, b):
        config.save(tmp_path / config.name)
    module = "raylay.services.server.run_instance"
    programs = [Program(hosts.there, "-m", module, str(tmp_path / "B"))]
    try:
        programs[0].said("started")
        programs.append(Program(hosts.here, "-m", module, str(tmp_path / "A")))
        ca = made.ours.file if secure else ""
        server = f"{THERE}:{CLIENT_PORT}"
        programs.append(Program(hosts.here, "-c", CLIENT, server, ca, str(HEARTBEAT_S)))
        instance, sender, client = programs
        sender.said("link_caught_up")
        client.said("Connected")
        instance.said("client_connected")
        # One that is idle and well stays: for longer than any of these times.
        time.sleep(UPSTREAM_SILENCE_S + 1.5 * HEARTBEAT_S)
        for program, word in (
            (client, "Disconnected"), (instance, "_disconnected"), (sender, "link_disconnected"),
        ):  # fmt: skip
            assert not [line for _, line in program.lines if word in line], (word, program.lines)
        began_s = hosts.drop()
        for program, word, within_s in (
            # The instance looks twice in that time, so it is half as much again at most.
            (instance, "client_disconnected", 1.5 * HEARTBEAT_S),
            (client, "Disconnected", 1.5 * HEARTBEAT_S),
            (sender, "link_disconnected", LINK_TIMEOUT_S + 1.0),
            (instance, "upstream_disconnected", UPSTREAM_SILENCE_S + 1.0),
        ):
            at_s, line = program.said(word, began_s)
            assert at_s - began_s < within_s + SLACK_S, (at_s - began_s, line)
        mended_s = time.monotonic()
        hosts.mend()
        # Both come back by themselves.
        sender.said("link_caught_up", mended_s)
        client.said("Connected", mended_s)
    finally:
        for program in programs:
            program.end()
