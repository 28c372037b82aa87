"""Load on a fabric with a fault in it, and what became of every message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from raylay.services.client import EPOCH, Client
from raylay.services.client.messages import ranges_of
from raylay.services.drills.verdict import (
    PublishRecord,
    SequenceStretch,
    Verdict,
    judge,
    stretches_of_run,
)
from raylay.services.fabric import Fabric
from raylay.storage.journal_reader import LmdbJournalReader

SETTLE_S_MAX = 120.0
Fault = Callable[[Client], Awaitable[None]]


def journal_of(fabric: Fabric, name: str) -> list[SequenceStretch]:
    """What an instance's journal holds now, in its order."""
    reader = LmdbJournalReader(fabric.data_directory(name) / "journal")
    held: list[SequenceStretch] = []
    after = 0
    try:
        while runs := reader.read(after):
            held += [stretch for run in runs for stretch in stretches_of_run(run)]
            after = runs[-1].last_txid
    finally:
        reader.close()
    return held


async def run_load(
    fabric: Fabric, name: str, fault: Fault, *, groups: tuple[str, ...], messages: int = 20_000
) -> Verdict:
    """One publisher in the first group and a durable subscriber in each; half way `fault`.

    The verdict is over the journals of all instances and what each subscriber received.
    """
    topic = f"sales/{name}"
    record = PublishRecord()
    received: dict[str, list[SequenceStretch]] = {group: [] for group in groups}
    done = {group: asyncio.Event() for group in groups}

    async def read(group: str) -> None:
        async with fabric.client(f"{name}-reader-{group}", group=group) as reader:
            subscription = await reader.subscribe(topic, bookmark=EPOCH)
            count = 0
            async for batch in subscription.batches():
                received[group] += [
                    SequenceStretch(*each) for each in ranges_of(batch.payload, batch.count)
                ]
                count += batch.count
                if count >= messages:
                    done[group].set()

    readers = [asyncio.create_task(read(group)) for group in groups]
    try:
        async with fabric.client(f"{name}-publisher", group=groups[0]) as client:
            first = 0
            for number in range(messages):
                last = await client.publish(topic, b'{"sale": %d}' % number)
                first = first or last
                if number == messages // 2:
                    await fault(client)
                elif number % 500 == 0:
                    await asyncio.sleep(0.01)  # so that the fault meets a stream, not a burst
            await client.flush(SETTLE_S_MAX)
            record.add(client.publisher, first, last, client.persisted_sequence)
            publisher = client.publisher
        await asyncio.wait_for(
            asyncio.gather(*(event.wait() for event in done.values())), SETTLE_S_MAX
        )
    finally:
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    await asyncio.to_thread(fabric.wait_ready)
    await asyncio.to_thread(fabric.wait_connected)
    places = {f"subscriber {group}": stretches for group, stretches in received.items()}
    for instance in fabric.declared.instances:
        held = await asyncio.to_thread(journal_of, fabric, instance.name)
        places[f"journal {instance.name}"] = [each for each in held if each.publisher == publisher]
    return judge(places, record)
