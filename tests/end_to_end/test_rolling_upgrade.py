"""A pair of an earlier release is upgraded one by one under its publishers' eyes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from end_to_end.old_release import install
from end_to_end.test_bootstrap import Empty
from support.instance_processes import Client, Servers, free_ports

from raylay.services.client import Client as RealClient
from raylay.services.client import Server
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import publisher_id

pytestmark = pytest.mark.covers(
    "Moved instances", "a pair of an earlier release (a wheel of an earlier"
)

OLD_COMMITS = ("7b33b07",)
"""The first ones that every later one has to get on with. Before, modules had other names."""
STEP = 50
STEADY_PAUSE_S = 0.005
PATIENCE_S = 120.0


KNOWN = """\
import dataclasses, json
from raylay.services.config.instance import DestinationConfig, DowngradePolicy, InstanceConfig
classes = (InstanceConfig, DestinationConfig, DowngradePolicy)
print(json.dumps({c.__name__: [f.name for f in dataclasses.fields(c)] for c in classes}))
"""


def known_values(environment: dict[str, str]) -> dict[str, list[str]]:
    """What a release knows of a configuration, by its own words."""
    command = [sys.executable, "-c", KNOWN]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    known: dict[str, list[str]] = json.loads(found.stdout)
    return known


def only(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Those of these names. What a release does not know must not be set to anything."""
    return {key: value for key, value in values.items() if key in names}


class Upgradable(Empty):
    """An instance's process, of the release whose environment it is given."""

    def __init__(
        self, directory: Path, config: InstanceConfig, environment: dict[str, str]
    ) -> None:
        self.environment: dict[str, str] | None = environment
        super().__init__(directory, config)
        # As that release wrote it; `raylay apply` writes it again for a later one.
        kept = json.loads((directory / "instance.json").read_text())
        known = known_values(environment)
        (transport,) = config.replication_transports
        for of_today in ("client_transports", "replication_transports"):
            kept.pop(of_today)
        # Its log is as that release writes it: today's options have other names.
        kept.pop("log")
        kept = {"version": kept["version"], **only(kept, known["InstanceConfig"])}
        kept["replication_port"] = transport.port
        kept["policy"] = only(kept["policy"], known["DowngradePolicy"])
        kept["destinations"] = [
            only(each, known["DestinationConfig"]) for each in kept["destinations"]
        ]
        (directory / "instance.json").write_text(json.dumps(kept))
        self.launch()

    def start(self) -> None:
        """Only when its configuration is as the release knows it."""

    def launch(self) -> None:
        self.log = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raylay.services.server.run_instance", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self._log_of(self.process)
        self.serves()

    def upgrade(self) -> None:
        assert self.stop() == 0
        self.environment = None
        self.config.save(self.directory)
        self.launch()


class Steady(threading.Thread):
    """A publisher that goes on all the time and fails over when its instance is upgraded.

    Attributes:
        first, last: of its sequences.
        acknowledged: how many of them were when it ended.
        used: instances that it was connected to, in order.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._servers = [Server(address, name) for name, address in addresses.items()]
        self._ending = threading.Event()
        self._progress = threading.Condition()
        self.first = self.last = self.acknowledged = self.publisher = 0
        self.used: list[str] = []
        self.start()

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with RealClient(
            "steady", servers=self._servers, group="group", connect_wait_s=PATIENCE_S
        ) as client:
            self.publisher = client.publisher
            while not self._ending.is_set():
                self.last = await client.publish("t", b"steady")
                self.first = self.first or self.last
                if client.instance and client.instance not in self.used[-1:]:
                    self.used.append(client.instance)
                with self._progress:
                    self.acknowledged = client.persisted_sequence - self.first + 1
                    self._progress.notify_all()
                await asyncio.sleep(STEADY_PAUSE_S)
            await client.flush(PATIENCE_S)
            self.acknowledged = client.persisted_sequence - self.first + 1

    def await_acks(self, count: int) -> None:
        """Returns when so many more are acknowledged."""
        with self._progress:
            wanted = max(0, self.acknowledged) + count
            assert self._progress.wait_for(lambda: self.acknowledged >= wanted, PATIENCE_S)

    def end(self) -> None:
        """Returns when all that it published is acknowledged."""
        self._ending.set()
        self.join(PATIENCE_S)
        assert self.last and self.acknowledged == self.last - self.first + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("commit", OLD_COMMITS)
def test_a_pair_is_upgraded_one_by_one_and_loses_no_ack(
    servers: Servers, tmp_path: Path, commit: str
) -> None:
    """Old and old, old and new, new and new: sync both ways in each, and clients at both."""
    environment = install(commit, tmp_path / "old")
    ports = dict(zip("AB", free_ports(2), strict=True))
    made: dict[str, Upgradable] = {}
    for name, other in (("A", "B"), ("B", "A")):
        to = DestinationConfig(
            other, "group", True, (f"127.0.0.1:{ports[other]}",), retry_ms_max=200
        )
        config = InstanceConfig(
            name,
            "group",
            destinations=(to,),
            replication_transports=(TransportConfig("replication", ports[name]),),
            first=True,
        )
        made[name] = Upgradable(tmp_path / name, config, environment)
        servers.append(made[name])
    a, b = made["A"], made["B"]

    published = 0
    for upgraded in (None, b, a):
        if upgraded is not None:
            before = {server: server.events("link_caught_up") for server in (a, b)}
            upgraded.upgrade()
            # The one that stayed connects to it again; the new process counts from none.
            before[upgraded] = 0
            for server, times in before.items():
                server.wait_for("link_caught_up", times + 1)
        else:
            for server in (a, b):
                server.wait_for("link_caught_up")
            steady = Steady({name: server.address for name, server in made.items()})
        steady.await_acks(STEP)
        for server in (a, b):
            client = Client(server.address, f"at {server.config.name}")
            assert client.answer["highest"] == published, "all that was acknowledged is there"
            client.publish(range(published + 1, published + STEP + 1))
            client.persisted(published + STEP)
            client.close()
        published += STEP
    steady.end()
    assert steady.used == ["A", "B"], "it was at the one that was upgraded last, and left it"
    wanted = {
        (publisher_id(f"at {name}"), number) for name in "AB" for number in range(1, published + 1)
    } | {(steady.publisher, number) for number in range(steady.first, steady.last + 1)}
    for server in (a, b):
        assert server.stop() == 0
        journal = server.journal()
        assert len(journal) == len(wanted) and set(journal) == wanted
