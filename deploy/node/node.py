"""Whether a node lives on this host, and what the head knows of it: `node.py alive ROLE`,
`node.py bury`.

alive: exit status 0 where a raylet runs here and the head counts it among the living; 3 where one
    runs and the head could not be asked; 1 else, that is where Ray is to be started. ROLE: head or
    worker; a head whose own server is gone does not live.
bury: tells the head that nodes of this host, which lived before it was started, are gone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 10
LIVES = 0
DEAD = 1
HEAD_SILENT = 3
"""Not 2, with which Python ends where it does not find this file."""


def runs(name: str) -> bool:
    """Whether a process of this name and user runs here; a zombie does not."""
    found = subprocess.run(
        ["pgrep", "-u", str(os.getuid()), "-x", name], capture_output=True, text=True, check=False
    )
    return any(map(_command_line, found.stdout.split()))


def _command_line(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


def own_addresses() -> set[str]:
    """The addresses of this host."""
    text = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout
    return {*text.split(), socket.gethostname()}


def living(client: Any) -> list[str]:
    """The ids, in hexadecimal, of this host's nodes that the head counts among the living."""
    own = own_addresses()
    return [
        node_id.hex()
        for node_id, node in client.get_all_node_info(timeout=TIMEOUT_S).items()
        if node.state == 0 and node.node_manager_address in own
    ]


def others(client: Any) -> list[str]:
    """The addresses of the nodes of other hosts that the head counts among the living."""
    own = own_addresses()
    living = (n for n in client.get_all_node_info(timeout=TIMEOUT_S).values() if n.state == 0)
    return sorted({node.node_manager_address for node in living} - own)


def unregister(client: Any, address: str, nodes: list[str]) -> None:
    """Says what a node itself says when it ends in order. Ray's own command for it asks the node
    first, which is no more."""
    import grpc
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    token = (Path.home() / ".ray" / "auth_token").read_text(encoding="ascii").strip()
    metadata = [
        ("authorization", f"Bearer {token}"),
        ("ray_cluster_id", client.cluster_id.hex()),
    ]
    death = common_pb2.NodeDeathInfo(
        reason=common_pb2.NodeDeathInfo.UNEXPECTED_TERMINATION,
        reason_message="its host was started again",
    )
    with grpc.insecure_channel(address) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        for node in nodes:
            request = gcs_service_pb2.UnregisterNodeRequest(
                node_id=bytes.fromhex(node), node_death_info=death
            )
            stub.UnregisterNode(request, metadata=metadata, timeout=TIMEOUT_S)


def alive(role: str) -> int:
    """The exit status. Instances run on a node that lives, also while the head is away: whoever
    cannot ask it takes the node's own process for an answer."""
    if not runs("raylet") or (role == "head" and not runs("gcs_server")):
        return DEAD
    try:
        return LIVES if living(connected()) else DEAD
    except Exception as error:  # Ray has one of its own for each way not to answer
        print(_not_asked(error), file=sys.stderr)
        return HEAD_SILENT


def bury() -> int:
    """The exit status."""
    if runs("raylet"):
        return 1  # a living one, which is not to be buried
    try:
        client = connected()
        unregister(client, os.environ["RAY_ADDRESS"], living(client))
    except Exception as error:
        print(_not_asked(error), file=sys.stderr)
        return 1
    return 0


def connected() -> Any:
    """The head, ready to be asked."""
    from ray._raylet import GcsClient

    return GcsClient(address=os.environ["RAY_ADDRESS"])


def _not_asked(error: Exception) -> str:
    return f"raylay: the head at {os.environ['RAY_ADDRESS']} was not asked: {error}"


if __name__ == "__main__":
    sys.exit(bury() if sys.argv[1] == "bury" else alive(sys.argv[2]))
