"""What waits for slow clients in a fabric of real actors: the buffer is one of them."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.test_fabric import await_title
from end_to_end.test_slow_clients import Stream, numbers, subscribe
from support.instance_processes import Client
from support.waiting import wait_until

from raylay.services.fabric import Fabric

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.covers("Clients and protocol", "under Ray the buffer is an actor"),
]


def test_the_buffer_is_an_actor_that_its_instance_starts_again(tmp_path: Path) -> None:
    declared = Fabric("slowly", topics=["orders"], capacity={"memory": "8MiB", "client_share": 1.0})
    with declared.instance("solo").start(tmp_path) as fabric:

        def pool() -> dict[str, Any]:
            found: dict[str, Any] = fabric.status()["instances"][0]["capacity"][0]
            return found

        server: Any = SimpleNamespace(address=fabric.status()["instances"][0]["client_address"])
        stream, slow = Stream(server), Client(server.address, "slow")
        subscribe(slow)

        def fill() -> int:
            """Publishes until somebody is offline; the process of the buffer."""
            while not pool()["offline"]:
                stream.publish(50)
            return int(wait_until(lambda: pool()["pid"]))

        pid = fill()
        await_title("ray::solo/clients", partial(int, pid))
        assert numbers(slow, stream.count) == list(range(1, stream.count + 1))
        wait_until(lambda: not pool()["offline"])
        assert fill() == pid, "it is there still"
        os.kill(pid, signal.SIGKILL)
        event = wait_until(lambda: [e for e in fabric.events() if e["event"] == "slow_client"])[0]
        assert (event["client"], event["limit"]) == ("slow", "buffer")
        assert "the buffer that held it has ended" in event["text"]
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                numbers(slow, 1)
        before, again = stream.count, Client(server.address, "again")
        subscribe(again)
        assert fill() != pid and pool()["starts"] >= 2
        came = numbers(again, stream.count - before)
        assert came == list(range(before + 1, stream.count + 1))
