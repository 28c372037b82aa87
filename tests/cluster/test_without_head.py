"""Ray's head is killed: the shell and curl still downgrade a link, and the effect is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from raylay.services.commands.shared.options import FABRIC_VARIABLE

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TIMEOUT_S = 180
FABRIC = """
fabric: headless
topics: [{name: notes, message_type: json}]
regions: {here: 2}
admin: {enabled: true}
logs: {target: file}
"""
HOLD = """
import os, signal, socket, sys, time
from raylay.services.fabric.cluster.head_process import gcs_port, gcs_process
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import admin_address

fabric = Fabric.load(sys.argv[1])
fabric.start(sys.argv[2])
settings, record = fabric.handle.known()
addresses = [admin_address(settings, record, each) for each in settings.instances]
for address in addresses:
    host, _, port = address.rpartition(":")
    # An interface begins beside its instance: without a head none would be started any more.
    while True:
        try:
            socket.create_connection((host, int(port)), 10).close()
            break
        except OSError:
            time.sleep(0.05)
gcs, *_ = gcs_process(gcs_port())
os.kill(gcs, signal.SIGKILL)
# The last child's end is reaped by Ray's own process: it listens no more once it is gone.
print(*addresses, flush=True)
sys.stdin.readline()
fabric.stop()
"""


class Headless:
    """A fabric whose head is gone.

    Attributes:
        addresses: of the interfaces of here-1 and here-2.
    """

    def __init__(self, addresses: list[str], environment: dict[str, str]) -> None:
        self.addresses = addresses
        self._environment = environment

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=self._environment
        )

    def raylay(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "raylay.services.cli", *arguments)

    def told(self, *arguments: str) -> str:
        """Returns what a command that must succeed writes."""
        done = self.raylay(*arguments)
        assert done.returncode == 0, done.stderr
        assert "Ray's head at" in done.stderr and "over the administrator's" in done.stderr
        return done.stdout

    def curl(self, path: str, *options: str) -> Any:
        done = self.run("curl", "-sS", *options, f"http://{self.addresses[0]}/{path}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def link(self) -> dict[str, Any]:
        """Returns the link of here-1 to here-2, as the shell sees it."""
        status = json.loads(self.told("status", "--json"))
        first, second = status["instances"]
        assert first["ready"] and second["ready"]
        found: dict[str, Any] = first["destinations"]["here-2"]
        return found


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headless]:
    place = tmp_path_factory.mktemp("headless")
    (place / "fabric.yaml").write_text(FABRIC)
    environment = {**os.environ, "RAYLAY_RUNTIME_DIR": str(place), FABRIC_VARIABLE: "headless"}
    with (place / "errors").open("w") as errors:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(place / "fabric.yaml"), str(place / "data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=place,
        )
        try:
            assert holder.stdout is not None
            addresses = holder.stdout.readline().split()
            assert len(addresses) == 2, (place / "errors").read_text()
            yield Headless(addresses, environment)
        finally:
            try:
                holder.communicate("\n", timeout=TIMEOUT_S)
            finally:
                holder.kill()


@pytest.mark.covers(
    "Laws", "8 the data path asks no controller", note="recovery commands go over HTTP then"
)
def test_the_shell_downgrades_and_upgrades_a_link(headless: Headless) -> None:
    assert headless.link()["sync"]
    assert "do not wait for here-2" in headless.told("downgrade", "here-1", "here-2")
    assert headless.link()["downgraded_by_hand"]
    headless.told("upgrade", "here-1", "here-2")
    assert headless.link()["sync"]


def test_curl_downgrades_a_link_and_sees_it(headless: Headless) -> None:
    path = "amps/administrator/replication/here-2"
    risk = headless.curl(f"raylay/risk?path={path}/downgrade")
    assert risk["raylay"] == "raylay downgrade here-1 here-2" and risk["allowed"]
    found = headless.curl(f"{path}/downgrade", "-X", "POST", "-H", "X-Raylay: 1")
    assert found["done"] == "downgrade"
    assert headless.link()["downgraded_by_hand"]
    found = headless.curl(f"{path}/upgrade", "-X", "POST", "-H", "X-Raylay: 1")
    assert found["done"] == "upgrade" and headless.link()["sync"]


def test_the_other_commands_work_too(headless: Headless) -> None:
    assert "begins again" in headless.told("reconnect", "here-1", "here-2")
    assert headless.told("diagnostics", "here-1").startswith("instance 'here-1'")
    assert "control" in headless.told("events")
    assert "is disabled" in headless.told("transport", "disable", "here-2", "client")
    assert "is enabled" in headless.told("transport", "enable", "here-2", "client")
    assert "0 sessions" in headless.told("entitlement", "reset", "here-1")
    headless.told("admit", "here-1")
    assert "notes" in headless.told("topics")
    done = headless.raylay("status", "--json", "--http", headless.addresses[1])
    assert done.returncode == 0, done.stderr
    names = [each["name"] for each in json.loads(done.stdout)["instances"]]
    assert sorted(names) == ["here-1", "here-2"], "one interface answers for its peers, too"


@pytest.mark.covers("Administration", "without Ray's head the shell goes through the interf")
def test_what_needs_the_head_says_so(headless: Headless) -> None:
    done = headless.raylay("restart", "here-1")
    assert done.returncode == 1 and "Ray's head at" in done.stderr
    assert "does not answer" in done.stderr
