"""One part of a comparison in turns: what an instance publishes and acknowledges in about a second,
and the processor time that it takes for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from context import publish_all
from publishers import Process

from raylay.services.client import Client
from raylay.services.hosts.latency import quantile


class Part(NamedTuple):
    """The figures of one part: messages a second, milliseconds to each ack, and the instance's
    processor time a message, in microseconds."""

    rate: float
    took_ms: list[float]
    processor_us: float

    def value(self, of: str, share: float) -> float:
        """Returns a figure: of the times, the one that this share of them does not exceed."""
        found = getattr(self, of)
        return quantile(found, share) if isinstance(found, list) else float(found)


async def measured_part(
    client: Client,
    instance: Process,
    topic: str,
    message: bytes,
    messages: int,
    single_s: float,
) -> Part:
    """Publishes without waiting, and then one message after the other.

    Args:
        messages: number of messages that are published without waiting.
        single_s: seconds in which one message after the other is published.
    """
    before = await asyncio.to_thread(instance.ask)
    took_s = await publish_all(client, topic, message, messages)
    took_ms = []
    ends_s = time.perf_counter() + single_s
    while (began_s := time.perf_counter()) < ends_s:
        await client.publish(topic, message)
        await client.flush()
        took_ms.append((time.perf_counter() - began_s) * 1000)
    after = await asyncio.to_thread(instance.ask)
    used_s = after["processor_s"] - before["processor_s"]
    return Part(messages / took_s, took_ms, used_s * 1e6 / (messages + len(took_ms)))


def ratio(parts: Sequence[Part], others: Sequence[Part], of: str, share: float = 0.5) -> float:
    """Returns the median of a figure in these parts, divided by that in the others."""
    one, other = (
        quantile([each.value(of, share) for each in of_kind], 0.5) for of_kind in (parts, others)
    )
    return one / other
