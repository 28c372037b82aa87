"""An empty instance copies the log of another one before it serves: real processes, real files."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from soak.relay import SLOW, Relay
from support import forked
from support.instance_processes import Client, Server, Servers, free_ports
from support.journal_runs import every_run

from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import Kind, Run, publisher_id, sequences_of
from raylay.services.messages.topics import TopicRule
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.server.links.bootstrap import MARKER_FILE
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.maintenance import SegmentMaintenance

MESSAGES = 100_000
BATCH = 1_000
SEGMENT_BYTES = 2 * 1024 * 1024


class Empty(Server):
    """An instance's process that is not waited for: it copies first."""

    def start(self) -> None:
        self.process = forked.Popen(
            [sys.executable, "-m", "raylay.services.server.run_instance", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log_of(self.process)

    def _log_of(self, process: subprocess.Popen[str]) -> None:
        threading.Thread(target=self._read_log, args=(process.stderr,), daemon=True).start()

    def serves(self) -> dict[str, Any]:
        """Waits until it serves; its status then."""
        self.status = json.loads(self.first_line())
        self.address = self.status["client_address"]
        return self.status


def runs_of(server: Server) -> list[Run]:
    """What is in a journal, in its order, notes left out."""
    with LmdbJournalReader(server.directory / JOURNAL_DIRECTORY) as reader:
        return [run for run in every_run(reader) if run.kind == Kind.RECORDS]


def records(runs: list[Run]) -> list[tuple[int, int, bytes]]:
    return [(r.publisher, n, r.topic) for r in runs for n in sequences_of(r.payload)]


def destination(name: str, port: int, *, group: str = "group") -> DestinationConfig:
    address = f"127.0.0.1:{port}"
    return DestinationConfig(
        name, group, False, (address,), pass_through=".*", retry_ms_max=200, retry_ms_min=200
    )


def filled(
    servers: Servers, path: Path, port: int, port_b: int, port_c: int
) -> tuple[Server, Client]:
    """The source, and the client that filled it; every tenth batch is of trades."""
    a = Server(
        path / "A",
        InstanceConfig(
            "A",
            "group",
            destinations=(destination("B", port_b), destination("C", port_c, group="other")),
            replication_transports=(TransportConfig("replication", port),),
            journal=JournalConfig(segment_bytes=SEGMENT_BYTES),
            first=True,
        ),
    )
    servers.append(a)
    client = Client(a.address, "publisher")
    for first in range(1, MESSAGES + 1, BATCH):
        topic = "trades" if first // BATCH % 10 == 9 else "orders"
        client.publish(range(first, first + BATCH), topic=topic)
        client.persisted(first + BATCH - 1)
    return a, client


@pytest.mark.slow
@pytest.mark.covers("Resync and bootstrap", "bootstrap: the log of one source")
def test_half_a_copy_is_begun_again_and_what_is_copied_is_the_log(
    servers: Servers, tmp_path: Path
) -> None:
    """100,000 messages in several segments, one compressed; SIGKILL half way."""
    port_a, port_b, port_c = free_ports(3)
    a, client = filled(servers, tmp_path, port_a, port_b, port_c)
    done = SegmentMaintenance(a.directory / JOURNAL_DIRECTORY).compress(2 * MESSAGES // 5)
    assert any(outcome.done for outcome in done)

    with Relay() as relay:
        source = relay.route("B>A", f"127.0.0.1:{port_a}")
        relay.set(["B>A"], SLOW, bytes_per_s=4e6)
        b = Empty(
            tmp_path / "B",
            InstanceConfig(
                "B",
                "group",
                destinations=(destination("A", port_a),),
                replication_transports=(TransportConfig("replication", port_b),),
                bootstrap=BootstrapConfig((f"127.0.0.1:{free_ports(1)[0]}", source)),
            ),
        )
        servers.append(b)
        b.wait_for("bootstrap_progress", times=2)
        b.kill()
        half = len(b.journal())
        assert 0 < half < MESSAGES and (b.directory / MARKER_FILE).exists()
        relay.heal(["B>A"])
        b.start()
        status = b.serves()["bootstrap"]
        assert b.events("bootstrap_begins_again") == 1
        assert b.events("bootstrap_failed") == 2, "the first source is not there, each time"
    assert status["done"] and status["source_name"] == "A"
    assert status["messages"] == status["of_messages"] == MESSAGES
    assert not (b.directory / MARKER_FILE).exists()
    copied, log = runs_of(b), runs_of(a)
    assert records(copied) == records(log)
    incarnation = int(a.status["incarnation"], 16)
    assert {run.path for run in copied} == {(incarnation,)}
    assert {run.group for run in copied} == {"group"}
    assert copied[0].receive_time_us == log[0].receive_time_us

    # It goes on from there, both ways, and nothing comes twice.
    b.wait_for("ready")
    a.wait_for("link_caught_up")
    b.wait_for("link_caught_up")
    other = Client(b.address, "other")
    other.publish(range(1, 11))
    other.persisted(10)
    client.publish(range(MESSAGES + 1, MESSAGES + 11))
    subscriber = Client(b.address, "subscriber")
    subscriber.send(
        {
            "c": "subscribe",
            "sub": "s",
            "t": "orders",
            "bm": f"{publisher_id('publisher')}|{MESSAGES - BATCH * 10}|",
            "cid": "1",
        }
    )
    assert len(subscriber.receive(BATCH * 9 + 20)) == BATCH * 9 + 20
    b.stop()
    assert len(b.journal()) == MESSAGES + 20
    b.start()
    b.serves()
    b.wait_for("bootstrap_not_needed")

    c = Empty(
        tmp_path / "C",
        InstanceConfig(
            "C",
            "other",
            replication_transports=(TransportConfig("replication", port_c),),
            topics=(TopicRule("trades"), TopicRule("quotes")),
            bootstrap=BootstrapConfig((f"127.0.0.1:{port_b}",), (TopicRule("^tra"),)),
        ),
    )
    servers.append(c)
    c.serves()
    assert records(runs_of(c)) == [entry for entry in records(log) if entry[2] == b"trades"]


@pytest.mark.covers("Resync and bootstrap", "two empty instances that wait for each other")
def test_two_empty_instances_that_wait_for_each_other_are_told_so(
    servers: Servers, tmp_path: Path
) -> None:
    ports = dict(zip("DE", free_ports(2), strict=True))
    found = []
    for name, other in (("D", "E"), ("E", "D")):
        config = InstanceConfig(
            name,
            name,
            replication_transports=(TransportConfig("replication", ports[name]),),
            bootstrap=BootstrapConfig((f"127.0.0.1:{ports[other]}",), retry_ms_max=200),
        )
        found.append(Empty(tmp_path / name, config))
    servers += found
    for server in found:
        server.wait_for("both wait for ever")
    # One of them is started without it first: the other one goes on by itself.
    d, e = found
    d.kill()
    d.config.bootstrap = None
    d.config.save(d.directory)
    d.start()
    d.serves()
    client = Client(d.address, "publisher")
    client.publish(range(1, 6))
    client.persisted(5)
    assert e.serves()["bootstrap"]["done"]
    assert len(e.journal()) in (0, 5), "before the messages came, or after"


def test_an_empty_instance_and_the_source_that_waits_to_catch_up_with_it_are_told_so(
    servers: Servers, tmp_path: Path
) -> None:
    """As where one of a pair lost its disk, and the other one, its source, was moved meanwhile."""
    port_d, port_e = free_ports(2)
    d = Empty(
        tmp_path / "D",
        InstanceConfig(
            "D",
            "pair",
            destinations=(destination("E", port_e, group="pair"),),
            replication_transports=(TransportConfig("replication", port_d),),
        ),
    )
    servers.append(d)
    assert not d.serves()["ready"]
    config = InstanceConfig(
        "E",
        "pair",
        destinations=(destination("D", port_d, group="pair"),),
        replication_transports=(TransportConfig("replication", port_e),),
        bootstrap=BootstrapConfig((f"127.0.0.1:{port_d}",), retry_ms_max=200),
    )
    e = Empty(tmp_path / "E", config)
    servers.append(e)
    for server in (d, e):
        server.wait_for("both wait for ever: give E another source")
    e.kill()
    e.config.bootstrap = None
    e.config.save(e.directory)
    e.start()
    e.serves()
    d.wait_for(" ready")
    client = Client(d.address, "publisher")
    client.publish(range(1, 6))
    client.persisted(5)
