"""The examples of docs/actions.md, run by a real instance with the process of its actions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from end_to_end.test_actions import DEADLINE_S, client, done, events, run, subscribed, until
from support.action_documents import examples, whole
from support.instance_processes import Server, free_ports

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry import logs
from raylay.services.telemetry.log_options import LogOptions

pytestmark = pytest.mark.covers("Actions", "the examples of the page run")


def configured(title: str, path: Path, changes: tuple[tuple[str, str], ...] = ()) -> InstanceConfig:
    """Returns the configuration of the instance of an example.

    Args:
        changes: texts of the example, and what stands in their place: times that a test need not
            wait for.
    """
    text = examples()[title]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (port,) = free_ports(1)
    settings = fabric_of([load_amps("f.xml", text=whole(text, port=port), environment={})])
    config = instance_config(settings, record_of(settings, path), settings.instances[0])
    config.first = True
    return config


def serve(
    title: str,
    path: Path,
    work: Callable[[InstanceServer], Awaitable[None]],
    *changes: tuple[str, str],
) -> None:
    """Runs the instance of an example while some work is done."""
    run(path / "data", configured(title, path, changes), work)


def test_journals_are_archived_once_a_week_by_the_instance_itself(tmp_path: Path) -> None:
    config = configured("Archive journals once a week", tmp_path)
    (action,) = config.journal.actions
    assert (action.do, action.age_ms) == ("archive", 7 * 86_400_000)
    assert [each.at for each in action.every] == ["Saturday at 00:30"]

    async def work(server: InstanceServer) -> None:
        assert "actions" not in server.status(), "it needs no process"

    run(tmp_path / "data", config, work)


def test_journals_are_archived_on_a_request(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await until(lambda: server.runtime.occurrences.wanted("admin"))
        with pytest.raises(ConfigurationError, match="AGE"):
            await server.parts.calls.run_action("archive_journals")
        await server.parts.calls.run_action("archive_journals", {"AGE": "48h"})
        await done(server, "admin")
        (call,) = events(server, "action_call")
        assert call["call"] == "archive"

    serve("Archive journals on a RESTful command", tmp_path, work)


def test_an_expired_queue_message_is_in_the_dead_letter_topic(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await until(lambda: server.runtime.occurrences.wanted("sow-expire-message"))
        async with client(server) as desk:
            letters = await desk.subscribe("letters")
            await desk.publish("work", b'{"id": 1}', message_type="json")
            await desk.flush()
            async with desk.queue("jobs", ack="manual") as jobs:
                for _ in range(2):
                    (await anext(jobs)).cancel()
                letter = json.loads((await anext(letters)).body)
            assert letter == {"reason": "max_cancels", "message": {"id": 1}}

    serve("Record expired queue messages to a dead letter topic", tmp_path, work)


def test_a_message_that_exceeds_a_timeout_is_copied(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            late = await desk.subscribe("late")
            for number, status in ((1, "done"), (2, "new"), (3, "new")):
                body = b'{"id": %d, "status": "%s"}' % (number, status.encode())
                await desk.publish("orders", body, message_type="json")
            # Whether it comes in time to this one is not asked: only that the other one is late.
            await desk.publish("orders", b'{"id": 3, "status": "done"}', message_type="json")
            found = await anext(late)
            while json.loads(found.body)["id"] == 3:
                found = await anext(late)
            assert json.loads(found.body) == {"id": 2, "status": "new"}

    serve("Copy messages that exceed a timeout to a different topic", tmp_path, work)


def test_signals_switch_security_off_and_on(tmp_path: Path) -> None:
    """An authentication that knows nobody lets everybody in meanwhile."""
    config = configured("Deactivate and reactivate security on signals", tmp_path)
    users = tmp_path / "users"
    users.write_text("", "utf-8")
    users.chmod(0o600)
    config.authentication = ModuleConfig("passwords", {"File": str(users)})
    server = Server(tmp_path / "data", config)

    async def logs_on(name: str) -> bool:
        try:
            async with Client(name, [server.address]):
                return True
        except RaylayError:
            return False

    async def work() -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert not await logs_on("before")
            os.kill(server.process.pid, signal.SIGUSR1)
            while not await logs_on("meanwhile"):
                await asyncio.sleep(0.02)
            os.kill(server.process.pid, signal.SIGUSR2)
            while await logs_on("behind"):
                await asyncio.sleep(0.02)

    try:
        asyncio.run(work())
    finally:
        server.kill()


def test_an_instance_whose_disk_is_fuller_than_it_may_be_shuts_down(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await server.finished()
        assert events(server, "shut_down_by_action")

    # More than nothing of every disk is in use.
    changes = (("95%", "0%"), ("10s", "50ms"))
    serve("Shut down when the disk is full", tmp_path, work, *changes)


def test_an_instance_with_room_on_its_disk_stays(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await done(server, "schedule", runs=3)
        assert not events(server, "shut_down_by_action")

    changes = (("95%", "100%"), ("10s", "50ms"))
    serve("Shut down when the disk is full", tmp_path, work, *changes)


@pytest.mark.slow
@pytest.mark.covers("Actions", "Rotate Error/Event Log")
def test_logs_are_rotated_and_compressed(tmp_path: Path) -> None:
    """Logs that are younger than 30 days are not removed."""
    folder = tmp_path / "logs"
    changes = (("00:00", "50ms"), ("1d", "0s"), ("/var/log/north/*.log<", f"{folder}/*.log<"))
    config = configured("Rotate, compress and remove logs", tmp_path, changes)
    config.log = LogOptions(target="file", directory=str(folder), file_name="north-%p-%n.log")

    async def work(server: InstanceServer) -> None:
        await until(lambda: len(list(folder.glob("*.log.gz"))) >= 2)
        status = server.status()["actions"]["actions"]["logs"]
        assert status["failures"] == 0, status["last_error"]

    try:
        run(tmp_path / "data", config, work)
    finally:
        logs.configure("north")


def test_logons_are_counted_in_the_log(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        await until(lambda: server.runtime.occurrences.wanted("logon-client"))
        for name in ("a", "b", "c"):
            async with client(server, name):
                await asyncio.sleep(0)
        messages = await until(lambda: len(it := events(server, "action_message")) == 3 and it)
        assert [each["text"] for each in messages] == [
            "a is logon 1",
            "b is logon 2",
            "c is logon 3",
        ]

    serve("Count, and write to the log", tmp_path, work)
