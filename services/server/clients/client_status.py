"""The status of an instance's clients: their connections, and the consumers of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from raylay.services.queues.frontend import QueueFrontend
from raylay.services.server.clients.sessions import ClientSession
from raylay.services.server.clients.slow_clients import ClientPools

CONNECTIONS_SHOWN_MAX = 1_000
CONSUMERS_SHOWN_MAX = 1_000
LEASES_COUNTED_MAX = 10_000
"""Limit on the leases that are counted by consumer: all of them take the loop a few
milliseconds."""
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
    `oldest_lease_age_ms` are None where there are more leases than are counted; the age is None
    also where leases have no end, because only their end is known here.

    Args:
        now_us: time by the clock by which leases end.
    """
    return list(islice(_consumers(frontends, sessions, now_us), CONSUMERS_SHOWN_MAX))


def _consumers(
    frontends: Iterable[QueueFrontend], sessions: Mapping[int, ClientSession], now_us: int
) -> Iterator[dict[str, Any]]:
    left = LEASES_COUNTED_MAX
    for frontend in frontends:
        if not frontend.consumers:
            continue
        lease_us, counted = frontend.definition.lease_us, frontend.lease_count
        held = frontend.leases_by_consumer(now_us) if counted <= left else None
        left -= counted if held is not None else 0
        for consumer, terms in frontend.consumers.items():
            client = sessions.get(consumer[0])
            count, end_us = (None, 0) if held is None else held.get(consumer, (0, 0))
            began_us = end_us - lease_us
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
                "oldest_lease_age_ms": max(0, now_us - began_us) // US_PER_MS if end_us else None,
            }
