"""Two instances whose administrator's interfaces show one another: real processes, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from raylay.services.configuration.yaml_file import parse
from raylay.services.fabric.admin_topology import save_topology, topology_text
from raylay.services.fabric.plan import data_directory, instance_config, record_of
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry import logs

DEADLINE_S = 180.0
POST = {"X-Raylay": "1"}
FILE = """
fabric: flights
regions: {North: 2}
topics: [{name: orders, message_type: json}]
admin: {enabled: true}
"""


class TwoInstances:
    """The instances of a fabric as its driver would start them."""

    def __init__(self, directory: Path) -> None:
        self.settings = parse(FILE, "a file")
        self.record = record_of(self.settings, directory)
        self.servers: dict[str, InstanceServer] = {}

    async def start(self, name: str) -> None:
        instance = self.settings.instance(name)
        config = instance_config(self.settings, self.record, instance)
        directory = data_directory(self.record, instance)
        config.save(directory)
        save_topology(topology_text(self.settings, self.record, instance), directory)
        logs.configure(name, config.log)
        server = self.servers[name] = InstanceServer(config, directory, ChildSubprocess)
        await server.start()

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).stop()

    def url(self, name: str, path: str) -> str:
        return f"http://127.0.0.1:{self.record.ports[name].admin}{path}"


async def until(
    session: ClientSession, url: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Asks for a view until a condition holds."""
    while True:
        try:
            async with session.get(url) as response:
                found = await response.json()
            if response.status == 200 and holds(found):
                return dict(found)
        except OSError:
            pass  # its process is not there yet
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.covers("Administration", "two real instances show one another, and one acts on")
def test_an_interface_shows_the_fabric_and_acts_on_another_instance(tmp_path: Path) -> None:
    async def run() -> None:
        fabric = TwoInstances(tmp_path)
        async with asyncio.timeout(DEADLINE_S), ClientSession() as session:
            try:
                for name in ("North-1", "North-2"):
                    await fabric.start(name)
                await shows_both(fabric, session)
                await acts_on_the_other(fabric, session)
                await tells_who_is_silent(fabric, session)
            finally:
                for name in list(fabric.servers):
                    await fabric.stop(name)

    asyncio.run(run())


async def shows_both(fabric: TwoInstances, session: ClientSession) -> None:
    for name in ("North-1", "North-2"):
        found = await until(
            session,
            fabric.url(name, "/raylay/fabric.json"),
            lambda found: found["verdict"]["level"] == "ready",
        )
        assert (found["fabric"], found["served_by"]) == ("flights", name)
        assert [each["state"] for each in found["instances"]] == ["ready", "ready"]
        assert [each["state"] for each in found["links"]] == ["sync", "sync"]
        assert [each["may_fail_over"] for each in found["instances"]] == [True, True]
        assert found["links"][0]["since_us"] is not None
        assert found["totals"]["answered"] == 2


async def acts_on_the_other(fabric: TwoInstances, session: ClientSession) -> None:
    """A destination is downgraded at the other instance, which the view and the events tell."""
    view = fabric.url("North-1", "/raylay/fabric.json")
    peer = fabric.url("North-1", "/raylay/peer/North-2")
    async with session.get(f"{peer}/amps/instance/replication.json") as response:
        (entry,) = (await response.json())["amps"]["instance"]["replication"]
    async with session.get(fabric.url("North-1", "/raylay/events")) as stream:
        path = f"{peer}/amps/administrator/replication/{entry['id']}/downgrade"
        async with session.post(path, headers=POST, json={"force": True}) as response:
            assert response.status == 200, await response.text()
        found = await until(session, view, lambda found: bool(found["problems"]))
        (problem,) = found["problems"]
        assert problem["kind"] == "data_at_risk" and "by hand" in problem["text"]
        assert problem["since_us"] is not None
        async for line in stream.content:
            if b'"downgraded"' in line:
                assert b'"North-2"' in line
                break
    action = problem["do"]["action"]
    path = fabric.url("North-1", f"/raylay/peer/{action['instance']}/{action['path']}")
    async with session.post(path, headers=POST) as response:
        assert response.status == 200, await response.text()
    await until(session, view, lambda found: not found["problems"])


async def tells_who_is_silent(fabric: TwoInstances, session: ClientSession) -> None:
    await fabric.stop("North-2")
    view = fabric.url("North-1", "/raylay/fabric.json")
    found = await until(session, view, lambda found: found["instances"][1]["missing"] == "silent")
    assert found["instances"][0]["state"] == "ready"
    assert found["instances"][1]["why_missing"]
    await fabric.start("North-2")
    await until(session, view, lambda found: found["verdict"]["level"] == "ready")
