"""A SOW topic of a million flights on a running instance: asked, followed, changed, and published
to meanwhile. Beside it what a Python user would do instead with the same rows, in the same run; and
publishing while very many filter what comes."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
import tracemalloc

import orjson
from contents import FLIGHT
from context import Bench, Figure, best_of
from failover import Acks

from raylay.services.client import Client
from raylay.services.fabric import Fabric, Topic
from raylay.services.hosts.latency import quantile
from raylay.services.messages.ranges import PublisherRanges, SequenceSet

RECORDS = 1_000_000
WANTED = RECORDS // 100
TAILS = 100_000
ASKED = 200
DELTAS = 100_000
LIVE_PER_S = 10_000
ALONE_S = 2.0
SCANS_S = 6.0
SCAN = "/carrier = 'UA'"
NAMES = (
    "sow_publish_1M",
    "sow_query_scan_s",
    "sow_query_scan_of_loads",
    "sow_query_scan_of_sqlite",
    "sow_query_index_ms_p50",
    "sow_query_key_ms_p50",
    "sow_and_subscribe_first_ms_p50",
    "sow_live_ack_alone_ms_p99",
    "sow_live_ack_ms_p99",
    "sow_live_scan_s",
    "sow_delta_publish",
)
FILTERED = ("publish_filtered_0", "publish_filtered_1", "publish_filtered_100",
            "publish_filtered_10000")  # fmt: skip
HOLES = ("holes_10M_memory_mb", "holes_10M_frame_mb", "holes_10M_connect_ms")
HOLES_MESSAGES = 10_000_000
FILTERED_MESSAGES = 40_000


def _flight(number: int) -> bytes:
    carrier = "UA" if number % 100 == 0 else "AA"
    tail = f"N{number % TAILS:05}"
    return orjson.dumps({**FLIGHT, "flight": number, "carrier": carrier, "tailnum": tail})


async def _timed(run: object) -> tuple[float, int]:
    started_s = time.perf_counter()
    rows = await run.all()  # type: ignore[attr-defined]
    return time.perf_counter() - started_s, len(rows)


def _by_hand_s(rows: list[bytes]) -> tuple[float, float]:
    """The same question asked in this process of a list, and of sqlite in memory."""
    started_s = time.perf_counter()
    found = [body for body in rows if orjson.loads(body)["carrier"] == "UA"]
    loads_s = time.perf_counter() - started_s
    base = sqlite3.connect(":memory:")
    base.execute("create table flights (body text, flight integer primary key)")
    base.executemany(
        "insert into flights values (?, ?)", ((body.decode(), n) for n, body in enumerate(rows))
    )
    asked = "select body from flights where json_extract(body, '$.carrier') = 'UA'"
    started_s = time.perf_counter()
    same = base.execute(asked).fetchall()
    sqlite_s = time.perf_counter() - started_s
    base.close()
    assert len(found) == len(same) == WANTED
    return loads_s, sqlite_s


async def queries(bench: Bench) -> list[Figure]:
    """See the top of this file."""
    fabric = Fabric(
        "queries",
        topics=[Topic("flights", message_type="json"), Topic("live")],
        sow_topics=[
            {
                "name": "flights",
                "message_type": "json",
                "keys": ["/flight"],
                "hash_indexes": ["/tailnum"],
            }
        ],
        logs={"target": "file", "level": "warning"},
    )
    fabric.region("queries", instances=1).start(bench.directory / "queries")
    try:
        async with bench.client(fabric) as client:
            return await _queries(bench, fabric, client)
    finally:
        fabric.stop()


async def _queries(bench: Bench, fabric: Fabric, client: Client) -> list[Figure]:
    rows = [_flight(number) for number in range(RECORDS)]
    started_s = time.perf_counter()
    for row in rows:
        await client.publish("flights", row)
    await client.flush()
    figures = [Figure(NAMES[0], RECORDS / (time.perf_counter() - started_s), "records/s")]

    took_s = []
    for _ in range(3):
        seconds, found = await _timed(client.sow("flights", filter=SCAN))
        assert found == WANTED
        took_s.append(seconds)
    loads_s, sqlite_s = _by_hand_s(rows)
    figures.append(Figure(NAMES[1], min(took_s), "s"))
    figures.append(Figure(NAMES[2], min(took_s) / loads_s, "ratio"))
    figures.append(Figure(NAMES[3], min(took_s) / sqlite_s, "ratio"))
    del rows

    for name, text, count in (
        (NAMES[4], "/tailnum = 'N{:05}'", RECORDS // TAILS),
        (NAMES[5], "/flight = {}", 1),
    ):
        took_ms = []
        for number in range(ASKED):
            seconds, found = await _timed(client.sow("flights", filter=text.format(number * 37)))
            assert found == count
            took_ms.append(seconds * 1000)
        figures.append(Figure(name, quantile(took_ms, 0.5), "ms"))

    took_ms = []
    for _ in range(20):
        started_s = time.perf_counter()
        following = await client.sow_and_subscribe("flights", filter="/flight < 1000000")
        async for message in following:
            assert message.kind == "sow"
            break
        took_ms.append((time.perf_counter() - started_s) * 1000)
        following.unsubscribe()
        await asyncio.sleep(0.3)
    figures.append(Figure(NAMES[6], quantile(took_ms, 0.5), "ms"))
    figures += await _while_publishing(bench, fabric)

    started_s = time.perf_counter()
    for number in range(DELTAS):
        delta = b'{"flight": %d, "dep_delay": %d.5}' % (number * 7 % RECORDS, number % 60)
        await client.delta_publish("flights", delta)
    await client.flush()
    seconds = time.perf_counter() - started_s
    return [*figures, Figure(NAMES[10], DELTAS / seconds, "messages/s")]


async def _while_publishing(bench: Bench, fabric: Fabric) -> list[Figure]:
    """Acks of 10,000 messages a second on another topic, alone and while the million is scanned
    again and again."""
    acks = Acks()
    ended = asyncio.Event()
    message = b'{"text": "' + b"x" * 116 + b'"}'
    async with bench.client(fabric, on_persisted=acks.persisted) as client:
        publishing = acks.publish(client, "live", message, LIVE_PER_S, ended)
        loading = asyncio.create_task(publishing)
        await asyncio.sleep(1.0)
        alone_s = time.time()
        await asyncio.sleep(ALONE_S)
        began_s = time.time()
        # In a process of its own: what its rows cost there is not the publisher's affair.
        asking = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            fabric.servers()[0].address,
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await asking.communicate()
        assert asking.returncode == 0
        until_s = time.time()
        ended.set()
        await loading
        await client.flush()
    return [
        Figure(NAMES[7], quantile(acks.between(alone_s, began_s), 0.99), "ms"),
        Figure(NAMES[8], quantile(acks.between(began_s, until_s), 0.99), "ms"),
        Figure(NAMES[9], float(told), "s"),
    ]


async def _scan(address: str) -> float:
    """Scans for some seconds; the best time of one."""
    took_s = []
    until_s = time.time() + SCANS_S
    async with Client("bench-asking", servers=[address]) as client:
        while time.time() < until_s:
            took_s.append((await _timed(client.sow("flights", filter=SCAN)))[0])
    return min(took_s)


async def publish_filtered(bench: Bench) -> list[Figure]:
    """Messages a second to the persisted ack while nobody, one, 100 and 10,000 subscriptions of
    another client ask for one value of a field each: of 10,000 each message goes to one."""
    fabric = bench.fabric("filtered", 1)
    bodies = [_flight(number % 10_000) for number in range(FILTERED_MESSAGES)]
    figures = []
    async with bench.client(fabric) as client:

        async def run() -> float:
            started_s = time.perf_counter()
            for each in bodies:
                await client.publish("bench/filtered", each)
            await client.flush()
            return FILTERED_MESSAGES / (time.perf_counter() - started_s)

        await run()
        for name, count in zip(FILTERED, (0, 1, 100, 10_000), strict=True):
            reader = bench.client(fabric)
            await reader.connect()
            following = [
                await reader.subscribe("bench/filtered", filter=f"/flight = {number}")
                for number in range(count)
            ]
            read = [asyncio.create_task(_read(each)) for each in following[:100]]
            figures.append(Figure(name, await best_of(3, run), "messages/s"))
            for each in read:
                each.cancel()
            await reader.close()
    return figures


async def _read(following: object) -> None:
    async for _ in following.batches():  # type: ignore[attr-defined]
        pass


async def holes(bench: Bench) -> list[Figure]:
    """What a filter that passes every second one of 10,000,000 messages leaves at the destination:
    the set in memory, in the frames of a logon, and the time to compare two such sets."""
    held = PublisherRanges()
    found = held.of(7)
    for number in range(1, HOLES_MESSAGES, 2):
        found.add(number, number)
    wire = held.to_wire()
    frame = b"".join(wire.values())
    tracemalloc.start()
    copy = PublisherRanges.from_wire(wire)
    used_mb = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    assert copy == held
    started_s = time.perf_counter()
    rest = SequenceSet([(1, HOLES_MESSAGES)])
    rest.difference_update(found)
    took_ms = (time.perf_counter() - started_s) * 1000
    assert len(rest) == HOLES_MESSAGES - len(found)
    return [
        Figure(HOLES[0], used_mb, "MB"),
        Figure(HOLES[1], len(frame) / 1e6, "MB"),
        Figure(HOLES[2], took_ms, "ms"),
    ]


if __name__ == "__main__":
    print(asyncio.run(_scan(sys.argv[1])))
