"""`raylay dump`, `identify`, `find` and `statistics` beside a running instance: other processes
read what it writes, and disturb nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import DEADLINE_S, Client, Server

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.sow.definition import SowTopicDefinition

RAYLAY = [sys.executable, "-c", "from raylay.services.cli import main; main()"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = InstanceConfig(
        "solo",
        "g",
        first=True,
        topics=(TopicRule(".*", "json"),),
        queue_definitions=(QueueDefinition("work", "json", underlying="orders"),),
        sow=(SowTopicDefinition("prices", "json", keys=("/id",)),),
    )
    made = Server(tmp_path / "solo", config)
    yield made
    if made.process.poll() is None:
        made.kill()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RAYLAY, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "COLUMNS": "200"},
    )


def rows(*arguments: object) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.covers("Utilities", "beside a running instance")
def test_what_is_acknowledged_is_read_at_once(server: Server) -> None:
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 101))
    publisher.persisted(100)
    number = str(publisher.answer["publisher"])
    clients = rows("dump", server.directory, "--what", "clients", "--client", "pub")
    assert clients[1]["publisher"] == number and clients[1]["ranges"] == "1-100"
    (segment,) = rows("dump", server.directory, "--what", "topics")
    assert ["orders", "json"] in segment["topics"]
    assert len(rows("find", "pub", server.directory)) == 100
    (found,) = rows("find", f"{number}|50|", server.directory)
    assert found["body"] == "m50"
    identified = {row["path"]: row for row in rows("identify", server.directory)}
    # A sandbox may hide who holds a lock.
    running = identified[str(server.directory)]["details"]["running_pid"]
    assert running in (server.process.pid, None)
    assert all(row["problem"] == "" for row in identified.values())
    assert not {"unknown", "lmdb", "text", "json"} & {row["kind"] for row in identified.values()}
    # It serves as before.
    publisher.publish(range(101, 103))
    publisher.persisted(102)
    assert server.stop() == 0


@pytest.mark.covers("Utilities", "a reader that goes away")
def test_a_reader_that_goes_away_gets_no_traceback(server: Server) -> None:
    publisher = Client(server.address, "pub")
    publisher.publish(range(1, 3_001))
    publisher.persisted(3_000)
    for arguments in (
        ["find", "pub", server.directory],
        ["find", "pub", server.directory, "--json"],
        ["dump", server.directory, "--json"],
        ["identify", server.directory, "--json"],
    ):
        with subprocess.Popen(
            [*RAYLAY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(DEADLINE_S) in (0, 1)
    publisher.publish(range(3_001, 3_002))
    publisher.persisted(3_001)
