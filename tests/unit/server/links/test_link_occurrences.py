"""Links, told to who listens (services/server/links/link_occurrences.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.one_instance import DEADLINE_S
from unit.test_counted_calls import links_here

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

KINDS = (
    "connect-replication", "disconnect-replication", "replication-resync-complete",
    "downgrade-replication", "upgrade-replication", "connect-incoming-replication",
    "disconnect-incoming-replication",
)  # fmt: skip
CONFIG = InstanceConfig(
    "A", "north", topics=(TopicRule("orders"),), first=True, log=LogOptions(target="none"),
)  # fmt: skip


class Ear:
    """The latest occurrence of each kind."""

    def __init__(self, server: InstanceServer) -> None:
        self.found: dict[str, Mapping[str, str]] = {}
        self._came = asyncio.Event()
        server.runtime.occurrences.listen(KINDS, self._take)

    def _take(self, kind: str, variables: Mapping[str, str]) -> None:
        self.found[kind] = dict(variables)
        self._came.set()

    async def of(self, kind: str) -> Mapping[str, str]:
        while kind not in self.found:
            self._came.clear()
            await self._came.wait()
        return self.found[kind]


@pytest.mark.covers("Actions", "On Incoming Replication Connections")
@pytest.mark.covers("Actions", "On Outgoing Replication Connections")
def test_links_are_told_at_both_ends(tmp_path: Path) -> None:
    async def run() -> None:
        links = links_here(asyncio.get_running_loop())
        b = InstanceServer(replace(CONFIG, name="B", group="south"), tmp_path / "B", links)
        in_b = Ear(b)
        await b.start()
        to = DestinationConfig(
            "to-south", "south", sync=True, addresses=(b.runtime.replication_address,),
            server_names=("B",), topics=(TopicRule("orders", exclude_validation=("replicate",)),),
        )  # fmt: skip
        a = InstanceServer(replace(CONFIG, destinations=(to,)), tmp_path / "A", links)
        in_a = Ear(a)
        await a.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await visit(a, in_a, b, in_b)
        finally:
            await a.stop()
            await b.stop()

    async def visit(a: InstanceServer, in_a: Ear, b: InstanceServer, in_b: Ear) -> None:
        up = await in_a.of("connect-replication")
        assert up == {
            "AMPS_REPLICATION_PEER_NAME": "B",
            "AMPS_REPLICATION_GROUP_NAME": "south",
            "AMPS_REPLICATION_CLIENT_NAME": "A!to-south!sync!amps-replication",
            "AMPS_REPLICATION_REMOTE_ADDRESS": b.runtime.replication_address,
            "AMPS_REPLICATION_TRANSPORT_NAME": "to-south",
            "reason": "",
        }
        assert await in_a.of("replication-resync-complete") == up
        incoming = await in_b.of("connect-incoming-replication")
        assert incoming["AMPS_REPLICATION_PEER_NAME"] == "A"
        assert incoming["AMPS_REPLICATION_GROUP_NAME"] == "north"
        assert incoming["AMPS_REPLICATION_REMOTE_ADDRESS"].startswith("127.0.0.1:")
        await a.parts.calls.table["downgrade"](destination="to-south", force=True)
        down = await in_a.of("downgrade-replication")
        assert down == {**up, "reason": "by hand"}
        await a.parts.calls.table["upgrade"](destination="to-south")
        assert (await in_a.of("upgrade-replication"))["AMPS_REPLICATION_PEER_NAME"] == "B"
        assert "disconnect-replication" not in in_a.found
        await b.stop()
        gone = await in_a.of("disconnect-replication")
        assert gone["AMPS_REPLICATION_PEER_NAME"] == "B" and gone["reason"]
        assert gone["AMPS_REPLICATION_REMOTE_ADDRESS"] == up["AMPS_REPLICATION_REMOTE_ADDRESS"]
        left = await in_b.of("disconnect-incoming-replication")
        assert left["AMPS_REPLICATION_PEER_NAME"] == "A" and left["reason"]

    asyncio.run(run())
