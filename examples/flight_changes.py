"""The changes of the state of the world in `make demo`, as a table of Spark, over the network.

The last flight of each aircraft is a SOW topic (last_flights.py). A stream of its changes begins
with what there is, each aircraft as an insert, and goes on with what changes. Here the query ends
when it is up to date. Then one aircraft flies again and another is taken out of service, whose
record is deleted; the query begins again where it ended, and the table has an update and a delete
more. Nothing is read from the instances' disks (docs/pipeline.md).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from last_flights import TOPIC

from raylay import SyncClient

COLUMNS = ("row_kind", "sow_key", "value.carrier", "old_value.carrier AS old_carrier")
NEXT_CARRIER = "RL"


def follow(spark: Any, fabric: str, group: str, place: Path) -> Counter[str]:
    """Brings the table of changes up to date. Returns how many rows of each kind it has.

    Args:
        fabric: directory of the fabric, which runs.
        group: group whose instances are asked.
        place: directory of the table, and of where its query is.
    """
    query = (
        spark.readStream.format("raylay")
        .options(changes="true", fabric=fabric, group=group, network="true", topic=TOPIC)
        .options(schema="carrier STRING", state=str(place / "state"))
        .load()
        .selectExpr(*COLUMNS)
        .writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(place / "rows")).groupBy("row_kind").count().collect()
    return Counter({row["row_kind"]: row["count"] for row in rows})


def change(servers: list[str]) -> None:
    """One aircraft flies again, for another carrier, and another is taken out of service."""
    with SyncClient("ground", servers=servers) as client:
        flies, leaves = client.sow(TOPIC, order_by="/tailnum", top_n=2).all()
        flight = flies.json() | {"carrier": NEXT_CARRIER}
        client.publish(TOPIC, flight)
        client.sow_delete(TOPIC, keys=[leaves.key])
        client.flush()


def expected(aircraft: int) -> Counter[str]:
    """How many rows the table has in the end, of so many aircraft."""
    return Counter(insert=aircraft, update=1, delete=1)
