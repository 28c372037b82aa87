"""A queue of a fabric of real actors: its owner is one, and is started again when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from cluster.test_fabric import await_title
from support import transcripts
from support.typed_pages import blocks, typed

from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
COUNT = 20


async def consume(fabric: Fabric) -> list[bytes]:
    """All messages, each once, though the owner is killed in the middle."""
    taken: list[bytes] = []
    async with fabric.client("publisher") as publisher, fabric.client("worker") as worker:
        for number in range(COUNT):
            await publisher.publish("orders", b"%d" % number)
        await publisher.flush()
        async with worker.queue("work", backlog=5) as queue:
            async for message in queue:
                taken.append(message.body)
                if len(taken) == COUNT // 2:
                    pid = (await publisher.queue_status("work"))["pid"]
                    await_title("ray::solo/work", partial(int, pid))
                    os.kill(pid, signal.SIGKILL)
                if len(taken) == COUNT:
                    break
        await worker.flush()
        found = await publisher.queue_status("work")
        while found["starts"] < 2 or found.get("queue_depth") != 0:
            await asyncio.sleep(0.1)
            found = await publisher.queue_status("work")
        return taken


def test_the_owner_of_a_queue_is_an_actor_that_its_instance_keeps_running(tmp_path: Path) -> None:
    work = {"name": "work", "message_type": "json", "underlying": "orders"}
    declared = Fabric("queued", topics=["orders"], queues=[work | {"subscription_backlog_max": 5}])
    with declared.instance("solo").start(tmp_path) as fabric:
        taken = asyncio.run(asyncio.wait_for(consume(fabric), 60))
        assert sorted(taken) == sorted(b"%d" % number for number in range(COUNT))
        assert "not connected to" in fabric.proxied("solo", "work")
        assert "theirs again" in fabric.proxied("solo", "work", on=False)
        with pytest.raises(FabricError, match="no distributed queue"):
            fabric.proxied("solo", "nothing")


def test_the_two_regions_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/queues.md: its second fabric runs, work that nobody of the one region does is done in
    the other, and the command of proxied transfer answers as the page shows."""
    (tmp_path / "two.yaml").write_text(blocks("queues.md", "yaml")[1], encoding="utf-8")
    declared = Fabric.load(tmp_path / "two.yaml")
    shown = [each for each in blocks("queues.md", "console") if "queue proxied" in each]
    with declared.start(tmp_path / "data") as fabric:
        monkeypatch.setenv("RAYLAY_FABRIC", fabric.name)
        fabric.wait_connected()
        with (
            fabric.sync_client("publisher", group="east") as publisher,
            fabric.sync_client("worker", group="west") as worker,
        ):
            publisher.publish("orders", b"1")
            publisher.flush()
            with worker.queue("work") as work:
                assert next(iter(work)).body == b"1"
        for step in transcripts.read("".join(f"```console\n{each}```\n" for each in shown)).steps:
            came = typed(step.command)
            assert transcripts.matches(step.answer, came), (step.command, came)
        assert fabric.proxied("west-1", "work", on=False).startswith("queue work: ")
