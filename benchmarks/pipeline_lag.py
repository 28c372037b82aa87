"""How far Spark is behind a running pair that is published to at 20,000 messages/s."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from context import Bench, Figure, body

from raylay.services.fabric import Fabric

RATE = 20_000
PUBLISH_S = 20.0
WARM_UP_S = 8.0
"""Left out: Spark compiles what it runs."""
TICK_S = 0.005
TOPIC = "bench/lag"
TIMEOUT_S = 300.0


class Follower:
    """A stream over one instance's journal, which keeps of each message how long after its publish
    the micro-batch that has it was in the driver's hands."""

    def __init__(self, spark: Any, data: Path, checkpoint: Path) -> None:
        self.lags_us: list[Any] = []
        self.ends_s: list[float] = []
        self.messages = 0
        self.changed = threading.Event()
        self.query = (
            spark.readStream.format("raylay")
            .options(columns="origin_time", topic=f"^{TOPIC}$", starting="0")
            .load(str(data))
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", checkpoint.as_uri())
            .start()
        )

    def _take(self, rows: Any, _: int) -> None:
        times = rows.toArrow()["origin_time"].to_numpy().astype("datetime64[us]").astype(np.int64)
        self.lags_us.append(time.time_ns() // 1000 - times)
        self.ends_s.append(time.monotonic())
        self.messages += len(times)
        self.changed.set()

    def wait(self, messages: int) -> None:
        """Waits until it has so many."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.messages < messages:
            assert self.query.exception() is None and time.monotonic() < deadline_s, self.messages
            self.changed.wait(0.5)
            self.changed.clear()

    def lags_since(self, begin_s: float) -> Any:
        """Seconds, of what came behind a moment."""
        kept = [lags for lags, end_s in zip(self.lags_us, self.ends_s, strict=True)
                if end_s >= begin_s]  # fmt: skip
        return np.concatenate(kept) / 1e6


def begun(fabric: Fabric, place: Path) -> tuple[Any, Follower]:
    """A session, and a stream that reads."""
    from raylay.services.pipeline import session

    spark = session(app="raylay bench", log_level="OFF")
    name = fabric.declared.instances[0].name
    return spark, Follower(spark, fabric.data_directory(name), place / "lag-checkpoint")


async def pipeline_lag(bench: Bench) -> list[Figure]:
    """From `publish()` to the driver of a stream, at a steady rate."""
    fabric = bench.pair()
    message, total = body(128), int(RATE * PUBLISH_S)
    spark, follower = await asyncio.to_thread(begun, fabric, bench.directory)
    try:
        async with bench.client(fabric) as client:
            await client.publish(TOPIC, message)
            await client.flush()
            await asyncio.to_thread(follower.wait, 1)
            started_s, sent = time.monotonic(), 0
            while sent < total:
                due = min(total, int((time.monotonic() - started_s) * RATE) + 1)
                for _ in range(due - sent):
                    await client.publish(TOPIC, message)
                sent = due
                await asyncio.sleep(TICK_S)
            await client.flush()
            rate = total / (time.monotonic() - started_s)
            await asyncio.to_thread(follower.wait, total + 1)
        assert follower.messages == total + 1, "a message came twice"
        lags_s = follower.lags_since(started_s + WARM_UP_S)
    finally:
        await asyncio.to_thread(follower.query.stop)
        await asyncio.to_thread(spark.stop)
    return [
        Figure("pipeline_lag_s_p50", float(np.quantile(lags_s, 0.5)), "s"),
        Figure("pipeline_lag_s_p99", float(np.quantile(lags_s, 0.99)), "s"),
        Figure("pipeline_lag_rate", rate, "messages/s"),
    ]
