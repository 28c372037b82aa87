"""Views over a queue as real processes: an instance, its queue's owner, real sockets, real
SIGKILL."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_queues import Consumer
from support.instance_processes import Client, Server, Servers, single

from raylay.services.messages.records import RecordBuilder, iterate_records
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.views.definition import ViewDefinition

pytestmark = [pytest.mark.slow, pytest.mark.covers("Views", "views over queues")]

KINDS = ViewDefinition(
    "kinds",
    "json",
    topic="work",
    grouping=("/kind",),
    projection=("/kind AS /kind", "COUNT(/id) AS /count", "SUM(/id) AS /sum"),
)
BUSY = ViewDefinition(
    "busy", "json", topic="kinds", filter="/count > 1", projection=("/kind AS /kind",)
)


@pytest.fixture
def server(servers: Servers, tmp_path: Path) -> Server:
    return single(
        servers,
        tmp_path,
        first=True,
        topics=(TopicRule(".*", "json"),),
        queue_definitions=(
            QueueDefinition("work", "json", underlying="orders", lease_us=60_000_000),
        ),
        views=(KINDS, BUSY),
    )


class Follower(Client):
    """A client that holds the records of both views."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "follower")
        self.holds: dict[str, dict[bytes, Any]] = {"kinds": {}, "busy": {}}
        for view in self.holds:
            header = {"c": "sow_and_subscribe", "sub": view, "t": view, "cid": view}
            self.send(header | {"a": "processed", "o": {"oof": True}})

    def until(self, kinds: dict[str, tuple[int, int]]) -> None:
        """Reads on until it holds these counts and sums by kind, and the kinds of several."""
        busy = {kind for kind, (count, _) in kinds.items() if count > 1}
        while True:
            found = {
                each["kind"]: (each["count"], each["sum"]) for each in self.holds["kinds"].values()
            }
            if found == kinds and {e["kind"] for e in self.holds["busy"].values()} == busy:
                return
            frame = self.next(lambda frame: frame.header["c"] in ("sow", "p", "oof"))
            holds = self.holds[frame.header["sub"]]
            for record in iterate_records(frame.body, verify=True):
                if frame.header["c"] == "oof":
                    del holds[record.key]
                else:
                    holds[record.key] = json.loads(record.body)


def publish(client: Client, first: int, *kinds: str) -> None:
    builder = RecordBuilder(client.answer["publisher"], "orders", "json")
    payload = b"".join(
        builder.build(number, json.dumps({"id": number, "kind": kind}).encode(), 1)
        for number, kind in enumerate(kinds, first)
    )
    client.send({"c": "pb", "n": len(kinds)}, payload)
    client.persisted(first + len(kinds) - 1)


def test_a_view_has_the_messages_that_are_in_the_queue(server: Server) -> None:
    """Leased messages count, and acknowledged ones do not, whatever is killed in between."""
    publisher, follower = Client(server.address, "pub"), Follower(server.address)
    publish(publisher, 1, "mail", "mail", "print")
    follower.until({"mail": (2, 3), "print": (1, 3)})
    consumer = Consumer(server.address, "ann", max_backlog=1)
    ((key, _),) = consumer.take()
    publish(publisher, 4, "mail")
    follower.until({"mail": (3, 7), "print": (1, 3)})
    consumer.persisted(consumer.done([key]))
    follower.until({"mail": (2, 6), "print": (1, 3)})
    os.kill(consumer.status()["json/work"]["pid"], signal.SIGKILL)
    publish(publisher, 5, "fax")
    follower.until({"mail": (2, 6), "print": (1, 3), "fax": (1, 5)})
    ((key, _),) = consumer.take()
    consumer.persisted(consumer.done([key]))
    ((key, _),) = consumer.take()
    consumer.persisted(consumer.done([key]))
    follower.until({"mail": (1, 4), "fax": (1, 5)})
    server.kill()
    for client in (publisher, consumer, follower):
        client.close()
    server.start()
    Follower(server.address).until({"mail": (1, 4), "fax": (1, 5)})
    assert server.events("queue_owner_failed") == 0
