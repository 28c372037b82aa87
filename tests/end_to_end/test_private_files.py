"""Nobody but its owner reads what an instance has on the disk, whatever the umask."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Client, Executed, Servers, pair
from support.private_files import open_to_others

from raylay.services.config.journal import JournalConfig
from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.timetable import JournalAction, Occasion
from raylay.services.server.sow.stored_topics import SOW_FILE
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.tracing import TracingOptions

BODY = "x" * 60_000
SECONDLY = (Occasion(every_ms=1_000),)


@pytest.mark.covers("Configuration", "what is made on the disk is its owner's alone")
@pytest.mark.usefixtures("no_umask")
def test_without_a_umask_no_file_of_an_instance_is_open_to_others(
    servers: Servers, tmp_path: Path
) -> None:
    """A journal of several segments, live, sealed and compressed, a front log, a SOW store, a
    queue's store, links, sockets and traces."""
    place = tmp_path / "place"
    first, second = pair(
        servers,
        place,
        sow=(SowTopicDefinition("records", "json", keys=("/id",)),),
        queues=(QueueDefinition("work", "json", underlying="orders"),),
        tracing=TracingOptions(sampling_ratio=1.0, file_directory=str(place / "traces")),
        kind=Executed,
        of_each={
            "topics": (TopicRule(".*", "json"),),
            "journal": JournalConfig(
                segment_bytes=1024 * 1024, actions=(JournalAction("compress", 0, SECONDLY),)
            ),
        },
    )
    client = Client(first.address, "publisher")
    record = RecordBuilder(client.answer["publisher"], "records", "json")
    client.send({"c": "pb", "n": 1}, record.build(1, b'{"id":1}', 1))
    for number in range(2, 62):
        client.publish(range(number, number + 1), text=BODY)
        if not number % 10:
            client.persisted(number)
    deadline_s = time.monotonic() + DEADLINE_S
    while not list(first.directory.rglob("*.zst")):
        assert time.monotonic() < deadline_s, sorted(place.rglob("*"))
        time.sleep(0.02)
    made = {path.name for path in place.rglob("*")}
    assert open_to_others(place) == []
    assert {"instance.json", "links.sock", "front-end", "lock", SOW_FILE} <= made, made
    client.close()
    assert first.stop() == second.stop() == 0
    assert open_to_others(place) == []
