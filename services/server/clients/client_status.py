"""The status of an instance's clients: their connections, and the consumers of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from raylay.services.queues.decisions import Consumer
from raylay.services.queues.frontend import QueueFrontend
from raylay.services.server.clients.sessions import ClientSession
from raylay.services.server.clients.slow_clients import ClientPools

CONNECTIONS_SHOWN_MAX = 1_000
CONSUMERS_SHOWN_MAX = 1_000
LEASES_COUNTED_MAX = 20_000
"""Limit on the leases of a queue that are counted by consumer: each costs time of the loop."""
US_PER_MS = 1_000


def connection_status(
    sessions: Mapping[int, ClientSession],
    pools: ClientPools,
    subscribed: Mapping[int, Mapping[str, object]],
) -> list[dict[str, Any]]:
    """Returns the connections of clients, `CONNECTIONS_SHOWN_MAX` at most, those for which bytes
    wait first.

    Args:
        sessions: the clients that have logged on, by number.
        subscribed: the subscriptions to queues, by session and id.
    """
    behind = (sessions.get(number) for pool in pools.all for number in list(pool.numbers))
    first = {each.number: each for each in islice(behind, CONNECTIONS_SHOWN_MAX) if each}
    rest = (each for each in sessions.values() if each.number not in first)
    return [
        connection_values(each, pools, len(subscribed.get(each.number, ())))
        for each in islice(chain(first.values(), rest), CONNECTIONS_SHOWN_MAX)
    ]


def connection_values(
    client: ClientSession, pools: ClientPools, queue_subscriptions: int
) -> dict[str, Any]:
    """Returns the values of one connection: its client, its time of connection in microseconds
    since 1970, its counters since then, and the bytes that wait for it."""
    holding = client.holding()
    return {
        "number": client.number,
        "client": client.client_name,
        "user": client.user_id,
        "address": client.peer,
        "transport": client.accepted_by.name,
        "connected_us": client.connected_us,
        "bytes_in": client.bytes_in,
        "bytes_out": holding.sent_bytes,
        "messages_in": client.messages_in,
        "messages_out": client.messages_out,
        "unsent_bytes": holding.unsent_bytes,
        "memory_bytes": holding.memory_bytes,
        "offline_bytes": holding.disk_bytes,
        "age_ms": pools.of(client.accepted_by.name).age_ms(client.number),
        "subscriptions": len(client.subscriptions) + queue_subscriptions,
        "state": "offline" if client.is_offline else "connected" if client.reading else "not read",
    }


def consumer_status(
    frontends: Iterable[QueueFrontend], sessions: Mapping[int, ClientSession], now_us: int
) -> list[dict[str, Any]]:
    """Returns the consumers of queues, `CONSUMERS_SHOWN_MAX` at most. `leases` and
    `oldest_lease_age_ms` are None for a queue with more leases than are counted; the age is None
    also where leases have no end, because only their end is known here.

    Args:
        now_us: time by the clock by which leases end.
    """
    return list(islice(_consumers(frontends, sessions, now_us), CONSUMERS_SHOWN_MAX))


def _consumers(
    frontends: Iterable[QueueFrontend], sessions: Mapping[int, ClientSession], now_us: int
) -> Iterator[dict[str, Any]]:
    for frontend in frontends:
        if not frontend.consumers:
            continue
        held = held_by_consumer(frontend, now_us)
        for consumer, terms in frontend.consumers.items():
            client = sessions.get(consumer[0])
            count, age_us = (None, None) if held is None else held.get(consumer, (0, None))
            yield {
                "queue": frontend.definition.name,
                "message_type": frontend.definition.message_type,
                "client": terms.client,
                "number": consumer[0],
                "user": "" if client is None else client.user_id,
                "address": "" if client is None else client.peer,
                "filter": terms.filter,
                "backlog": terms.backlog_max,
                "leases": count,
                "oldest_lease_age_ms": None if age_us is None else age_us // US_PER_MS,
            }


def held_by_consumer(
    frontend: QueueFrontend, now_us: int
) -> dict[Consumer, tuple[int, int | None]] | None:
    """Returns the number of leases of each consumer that has some, and the age of the oldest one in
    microseconds; None: there are more than `LEASES_COUNTED_MAX`."""
    if frontend.lease_count > LEASES_COUNTED_MAX:
        return None
    lease_us = frontend.definition.lease_us
    found: dict[Consumer, tuple[int, int | None]] = {}
    for lease in frontend.leases(now_us):
        count, oldest_us = found.get(lease.consumer, (0, None))
        if lease_us and lease.until_us:
            age_us = max(0, now_us - (lease.until_us - lease_us))
            oldest_us = age_us if oldest_us is None else max(oldest_us, age_us)
        found[lease.consumer] = count + 1, oldest_us
    return found
