"""How often a message crosses to each remote site of the published table of three regions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from context import Bench, Figure, body, publish_all

from raylay.services.fabric import Fabric, Topic

SITES = ("Chicago", "NewYork", "London")
MESSAGES = 30_000
WARM_UP = 3_000
SETTLED_S_MAX = 60.0


def published_table(bench: Bench) -> Fabric:
    """Two instances a site; sync inside, a list of both to each other site; PassThrough as it is
    printed (seed: "Geographic Replication with HA Destinations")."""
    found = Fabric(
        "table",
        topics=[Topic("bench/.*")],
        tracing={"directory": "traces"},
        logs={"target": "file", "level": "warning"},
    )
    for site in SITES:
        found.region(site, instances=2, links=None)
    for site in SITES:
        for name, mate in ((f"{site}-1", f"{site}-2"), (f"{site}-2", f"{site}-1")):
            found.destination(name, to=mate, sync=True, pass_through=".*")
            for other in SITES:
                if other != site:
                    found.destination(
                        name,
                        to=[f"{other}-1", f"{other}-2"],
                        name=other,
                        pass_through=site,
                    )
    found.start(bench.directory / "table")
    found.wait_connected()
    return found


async def table_copies(bench: Bench) -> list[Figure]:
    """Published at London-1 as fast as it takes them: copies that Chicago and New York are sent for
    each, one being what the chapter promises; and until both have all."""
    fabric = published_table(bench)
    try:
        client = bench.client(fabric, group="London")
        await client.connect()
        await publish_all(client, "bench/0", body(128), WARM_UP)
        before = await _settled(fabric, WARM_UP)
        started_s = time.perf_counter()
        await publish_all(client, "bench/0", body(128), MESSAGES)
        after = await _settled(fabric, WARM_UP + MESSAGES)
        took_s = time.perf_counter() - started_s
        await client.close()
    finally:
        fabric.stop()
    figures = []
    for site in ("Chicago", "NewYork"):
        names = [f"{site}-1", f"{site}-2"]
        # What one sends the other, that one lacks.
        surplus = sum(after[name]["duplicates"] - before[name]["duplicates"] for name in names)
        figures.append(
            Figure(f"table_copies_{site.lower()}", 1 + surplus / MESSAGES, "copies a message")
        )
    return [*figures, Figure("table_everywhere", MESSAGES / took_s, "messages/s")]


async def _settled(fabric: Fabric, messages: int) -> dict[str, Any]:
    """The status of every instance when all have the messages and no more is on its way."""
    deadline_s = time.monotonic() + SETTLED_S_MAX
    last: dict[str, int] = {}
    while time.monotonic() < deadline_s:
        status = await asyncio.to_thread(fabric.status)
        instances = {each["name"]: each for each in status["instances"]}
        now = {name: each["duplicates"] for name, each in instances.items()}
        lags = [d["lag"] for each in instances.values() for d in each["destinations"].values()]
        whole = all(each["committed_txid"] >= messages for each in instances.values())
        if whole and not any(lags) and now == last:
            return instances
        last = now
        await asyncio.sleep(0.5)
    raise TimeoutError(f"the table did not settle in {SETTLED_S_MAX:g} s")
