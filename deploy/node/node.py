"""What the head knows of this host: `node.py alive`, `node.py bury`.

alive: exit status 0 where a raylet runs here and the head counts it among the living.
bury: tells the head that nodes of this host, which lived before it was started, are gone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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


def main() -> int:
    """The exit status."""
    raylet = subprocess.run(["pgrep", "-x", "raylet"], stdout=subprocess.DEVNULL, check=False)
    if sys.argv[1] == "alive" and raylet.returncode:
        return 1
    from ray._raylet import GcsClient, NodeID

    client = GcsClient(address=os.environ["RAY_ADDRESS"])
    try:
        nodes = living(client)
    except Exception as error:  # Ray has one of its own for each way not to answer
        print(f"raylay: the head at {os.environ['RAY_ADDRESS']} does not answer: {error}")
        return 1
    if sys.argv[1] == "alive":
        return 0 if nodes else 1
    for node in nodes:
        client.drain_nodes([NodeID.from_hex(node).binary()], timeout=TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
