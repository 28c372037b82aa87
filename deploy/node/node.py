"""What the head knows of this host: `node.py alive`, `node.py bury`.

alive: exit status 0 where a raylet runs here and the head counts it among the living.
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


def main() -> int:
    """The exit status."""
    raylet = subprocess.run(["pgrep", "-x", "raylet"], stdout=subprocess.DEVNULL, check=False)
    if (sys.argv[1] == "alive") == bool(raylet.returncode):
        return 1  # nothing to be alive; or a living one, which is not to be buried
    from ray._raylet import GcsClient

    address = os.environ["RAY_ADDRESS"]
    try:
        client = GcsClient(address=address)
        nodes = living(client)
        if sys.argv[1] == "bury":
            unregister(client, address, nodes)
    except Exception as error:  # Ray has one of its own for each way not to answer
        print(f"raylay: the head at {address} was not asked: {error}", file=sys.stderr)
        return 1
    return 0 if nodes or sys.argv[1] == "bury" else 1


if __name__ == "__main__":
    sys.exit(main())
