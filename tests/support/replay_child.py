"""A replay in a process of its own, which a test has killed half way. Needs no Spark.

python replay_child.py STAGING ADDRESS TOPIC messages
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from raylay.services.pipeline.publishing.sink import WriteOptions
from raylay.services.pipeline.publishing.staging import StagedFile, stage
from raylay.services.pipeline.replay.job import REPLAYED, LogChunk, ReplayPlan, replay

CHUNK_ROWS = 400


class Numbers:
    """The numbers from 1 on as messages, a millisecond apart (`replay.ChunkSource`)."""

    def __init__(self, topic: str, count: int) -> None:
        self.what: dict[str, Any] = {"topic": topic, "count": count}

    def plan(self, chunk_rows: int) -> ReplayPlan:
        """Chunks of so many numbers."""
        count = self.what["count"]
        firsts = range(1, count + 1, chunk_rows)
        lasts = [min(count, first + chunk_rows - 1) for first in firsts]
        pairs = zip(firsts, lasts, strict=True)
        chunks = [LogChunk(0, first, last, last - first + 1) for first, last in pairs]
        return ReplayPlan(self.what, "numbers", [""], chunks)

    def open(self, plan: ReplayPlan) -> None:
        """Nothing to open."""

    def stage(self, chunk: LogChunk, run: Path) -> StagedFile:
        """A chunk's numbers."""
        numbers = range(chunk.first_txid, chunk.last_txid + 1)
        rows = [
            {
                "topic": self.what["topic"],
                "message_type": "json",
                "body": str(number).encode(),
                "time_us": 1_000_000 + number * 1000,
            }
            for number in numbers
        ]
        return stage(run, 0, [pa.RecordBatch.from_pylist(rows, REPLAYED)], REPLAYED)


def main() -> None:
    """The command."""
    staging, address, topic, count = sys.argv[1:5]
    summary = replay(
        Numbers(topic, int(count)),
        WriteOptions.of({"servers": address}),
        Path(staging),
        "numbers",
        speed=2.0,
        chunk_rows=CHUNK_ROWS,
    )
    print(json.dumps(summary.to_json()))


if __name__ == "__main__":
    main()
