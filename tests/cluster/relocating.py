"""A Ray cluster of several nodes on one machine, one of which is lost: run by test_relocate.py in
a process of its own, because the other tests of this folder share one Ray. Prints JSON."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray reads both when it is imported: nodes of a cluster listen where other hosts reach them.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

import ray
from ray.cluster_utils import Cluster

from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

STORE_BYTES = 80 * 1024 * 1024
DEADLINE_S = 120.0
ATTEMPTS = 3


def node_of(cluster: Any, host: str) -> Any:
    labels = {"region": "east", "host": host}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, labels=labels)
        except Exception:  # a bare one, where the machine is too busy for Ray's own time limits
            if attempt == ATTEMPTS:
                raise


def until_pending(fabric: Fabric) -> str:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        (status,) = (s for s in fabric.status()["instances"] if s["name"] == "east-1")
        if status["phase"] == "pending":
            return str(status["reason"])
    raise TimeoutError(f"east-1 is {status}")


def publish(fabric: Fabric, name: str, count: int) -> None:
    with fabric.sync_client(name) as client:
        for _ in range(count):
            client.publish("orders", b"x")
        client.flush()


def move_at_once(fabric: Fabric) -> tuple[Any, list[str]]:
    """By policy, while two operators on other hosts do the same: the move, and what the others
    heard."""
    done: list[Any] = []
    refused: list[str] = []

    def move(mover: Fabric) -> None:
        try:
            done.append(mover.relocate("east-1"))
        except FabricError as error:
            refused.append(str(error))

    operators = [Fabric.attach(fabric.name) for _ in range(2)]
    movers = [threading.Thread(target=move, args=[each]) for each in operators]
    for mover in movers:
        mover.start()
    try:
        done += fabric.relocate_due()
    except FabricError as error:
        refused.append(str(error))
    for mover in movers:
        mover.join()
    fabric.handle.refresh()
    (one,) = done
    return one, refused


def salvage(directory: str) -> dict[str, Any]:
    done = journal_salvage(directory, "--json")
    found: dict[str, Any] = json.loads(done.stdout or json.dumps({"error": done.stderr}))
    return found


def journal_salvage(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raylay.services.cli", "journal", "salvage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def left_over_elsewhere() -> list[dict[str, Any]]:
    """As a process sees it that knows the fabric by name."""
    with Fabric.attach("relocating") as attached:
        found: list[dict[str, Any]] = attached.status()["left_over"]
        return found


def main(directory: Path) -> dict[str, Any]:
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {host: node_of(cluster, host) for host in "ab"}
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    fabric = Fabric(
        "relocating", downgrade_age="1s", relocate_after="1s", unauthenticated="allowed"
    )
    fabric.region("east", instances=2)
    for name, host in (("east-1", "a"), ("east-2", "b")):
        fabric.instance(name, node_labels={"region": "east", "host": host})
    told: dict[str, Any] = {}
    with fabric.start(directory):
        fabric.wait_connected()
        publish(fabric, "before", 20)
        try:
            fabric.relocate("east-1")
        except FabricError as error:
            told["refused"] = str(error)
        cluster.remove_node(nodes["a"], allow_graceful=False)
        told["pending"] = until_pending(fabric)
        node_of(cluster, "c")
        done, told["at_once"] = move_at_once(fabric)
        told["moved"] = [done.name, done.generation, done.place.labels, done.told]
        fabric.wait_connected()
        publish(fabric, "after", 5)
        told["left_over"] = fabric.status()["left_over"]
        told["salvaged"] = salvage(done.left_over.directory)
        status = fabric.status()
        told["status"] = status["left_over"]
        told["logs"] = {each["name"]: each["committed_txid"] for each in status["instances"]}
        told["again"] = fabric.relocate_due()
        shutil.rmtree(done.left_over.directory)
        told["gone"] = left_over_elsewhere()
        told["forgotten"] = journal_salvage(done.left_over.directory, "--forget").stdout
        told["silence"] = left_over_elsewhere()
    ray.shutdown()
    cluster.shutdown()
    return told


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["RAYLAY_RUNTIME_DIR"] = runtime
        print(json.dumps(main(Path(sys.argv[1]))))
