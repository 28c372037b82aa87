"""A queue of two instances: real processes, real links, real SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end.test_instance import Client, Servers, pair
from end_to_end.test_instance import servers as servers
from end_to_end.test_queues import Consumer, Key, work


def drained(consumer: Consumer, messages: int) -> list[Key]:
    """Takes so many messages, each acknowledged as it comes."""
    found: list[Key] = []
    while len(found) < messages:
        taken = [key for key, _ in consumer.take()]
        # Whoever waits for an ack passes over the deliveries before it.
        last = consumer.done(taken)
        found += taken
    consumer.persisted(last)
    return found


@pytest.mark.slow
def test_work_moves_to_the_instance_that_has_consumers(servers: Servers, tmp_path: Path) -> None:
    """Over links that have lent their connections: both have caught up, and nothing else to do."""
    first, second = pair(servers, tmp_path, queues=(work(subscription_backlog_max=5),))
    publisher = Client(first.address, "pub")
    publisher.publish(range(1, 21))
    publisher.persisted(20)
    there = Consumer(second.address, "ann", max_backlog=5)
    taken = drained(there, 20)
    assert len(set(taken)) == 20
    while (status := there.status()["json/work"]).get("queue_depth") != 0:
        pass  # Its counts come some times a second.
    assert status["transferred_in"] == 20


@pytest.mark.slow
def test_what_a_killed_instance_owned_is_consumed_when_it_is_back(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path, queues=(work(subscription_backlog_max=5),))
    publisher = Client(first.address, "pub")
    publisher.publish(range(1, 31))
    publisher.persisted(30)
    there = Consumer(second.address, "ann", max_backlog=5)
    taken = drained(there, 10)
    first.kill()
    first.start()
    taken += drained(there, 20)
    assert len(set(taken)) == 30
    while there.status()["json/work"].get("queue_depth") != 0:
        pass  # Its counts come some times a second.
