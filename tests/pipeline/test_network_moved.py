"""Instances that move under a read over the network: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from support.instance_processes import free_ports
from support.pipeline_cases import RunningInstance

from raylay.services.client import SyncClient
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import ConnectionLost
from raylay.services.fabric.plan import FABRIC_FILE, FabricRecord, InstancePorts
from raylay.services.pipeline.network.offsets import from_json
from raylay.services.pipeline.network.source import (
    NETWORK_COLUMNS,
    NetworkBatchReader,
    NetworkOptions,
    NetworkStreamReader,
)

pytestmark = pytest.mark.covers("Data pipeline", "instances that move under a read")

NAME = "Chicago-1"
MESSAGES = 200_000
"""Enough for several batches of rows."""
STEP = 200
WAIT_S = 120.0
BODY = from_arrow_schema(pa.schema([("body", NETWORK_COLUMNS["body"])]))


class MovingFabric:
    """A fabric of one instance that moves from port to port, and its record."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.instance = RunningInstance(directory / NAME)
        self.addresses: list[str] = []
        self.note()

    def note(self) -> None:
        """Writes down where the instance is."""
        settings = FabricBuilder("moving").region("Chicago", [NAME]).settings()
        port = int(self.instance.address.rpartition(":")[2])
        ports = {NAME: InstancePorts(port, 1)}
        FabricRecord("moving", str(self.directory), settings.to_json(), ports).save()
        self.addresses.append(self.instance.address)

    def move(self) -> None:
        """Ends the instance and starts it somewhere else."""
        (port,) = free_ports(1)
        self.instance.stop()
        transports = (TransportConfig("client", port),)
        InstanceConfig(NAME, "Chicago", client_transports=transports).save(self.instance.directory)
        self.instance.start()
        self.note()
        assert self.addresses[-1] not in self.addresses[:-1]

    def publish(self, numbers: range) -> None:
        """Publishes JSON bodies with these numbers."""
        with SyncClient("desk", [self.instance.address]) as client:
            for number in numbers:
                client.publish("net/moved", b'{"n": %d, "text": "%0100d"}' % (number, number))
            client.flush()

    def options(self, **more: str) -> NetworkOptions:
        """Returns options of a read by the fabric's directory."""
        given = {"fabric": str(self.directory), "network": "true", "topic": "net/moved"}
        return NetworkOptions.of(given | more)


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[MovingFabric]:
    made = MovingFabric(tmp_path / "data")
    yield made
    made.instance.stop()


def numbers(found: list[pa.RecordBatch]) -> list[int]:
    return [json.loads(body)["n"] for batch in found for body in batch["body"].to_pylist()]


@pytest.mark.slow
def test_a_task_follows_an_instance_that_moves(fabric: MovingFabric) -> None:
    fabric.publish(range(MESSAGES))
    reader = NetworkBatchReader(fabric.options(readers="1"), BODY)
    (partition,) = reader.partitions()
    found: list[pa.RecordBatch] = []
    for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
        found.append(batch)
        if len(found) == 1:
            fabric.move()
    assert sorted(numbers(found)) == list(range(MESSAGES))


def test_a_driver_follows_an_instance_that_moves(fabric: MovingFabric, tmp_path: Path) -> None:
    """Tasks on other hosts do not reach the fabric's record: each gets the address that the driver
    knows when it plans the micro-batch."""
    options = fabric.options(reader="lake", connect_wait_s="60")
    reader = NetworkStreamReader(options, BODY)
    elsewhere = pickle.loads(pickle.dumps(reader))
    offset = reader.initialOffset()
    found: list[int] = []
    for step in range(3):
        fabric.publish(range(step * STEP, (step + 1) * STEP))
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        partitions = pickle.loads(pickle.dumps(reader.partitions(offset, end)))
        record = fabric.directory / FABRIC_FILE
        record.rename(tmp_path / "out of reach")
        try:
            for partition in partitions:
                found += numbers(list(elsewhere.read(partition)))
        finally:
            (tmp_path / "out of reach").rename(record)
        reader.commit(end)
        with SyncClient("looker", [fabric.instance.address]) as client:
            (known,) = client.readers.known()
        assert known["name"] == "lake" and known["behind"] == 0
        offset = end
        fabric.move()
    assert found == list(range(3 * STEP))
    reader.stop()


def test_a_driver_waits_for_an_instance_that_is_started_again(fabric: MovingFabric) -> None:
    """A driver that asks meanwhile gets its answer at the address where the instance is again."""
    given = {"servers": fabric.instance.address, "topic": "net/moved"}
    reader = NetworkStreamReader(NetworkOptions.of(given), BODY)
    start = reader.initialOffset()
    fabric.publish(range(STEP))
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    fabric.instance.stop()
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(reader.latestOffset, first, reader.getDefaultReadLimit())
        fabric.instance.start()
        assert asked.result(WAIT_S) == first
    fabric.publish(range(STEP, 2 * STEP))
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    parts = [
        part for each in ((start, first), (first, second)) for part in reader.partitions(*each)
    ]
    assert numbers([rows for part in parts for rows in reader.read(part)]) == list(range(2 * STEP))
    reader.stop()


def test_servers_that_are_given_stay_where_they_are(fabric: MovingFabric) -> None:
    """The address of an instance that moved is an error that names it, and not a read of less."""
    given = {"servers": fabric.instance.address, "topic": "net/moved", "connect_wait_s": "0.5"}
    reader = NetworkBatchReader(NetworkOptions.of(given), BODY)
    fabric.publish(range(STEP))
    fabric.move()
    with pytest.raises(ConnectionLost, match=f"{fabric.addresses[0]}: "):
        reader.partitions()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stream_of_spark_follows_an_instance_that_moves(
    spark: Any, fabric: MovingFabric, tmp_path: Path
) -> None:
    seen: list[int] = []
    came = threading.Condition()

    def take(frame: Any, _: int) -> None:
        rows = sorted(row.n for row in frame.select("value.n").collect())
        with came:
            seen.extend(rows)
            came.notify_all()

    query = (
        spark.readStream.format("raylay")
        .options(fabric=str(fabric.directory), network="true", topic="net/moved")
        .options(schema="n BIGINT", readers="2", columns="topic")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for step in range(3):
            wanted = range(step * STEP, (step + 1) * STEP)
            fabric.publish(wanted)
            with came:
                while len(seen) < wanted.stop:
                    assert came.wait(WAIT_S), query.exception()
            fabric.move()
        assert query.isActive
    finally:
        query.stop()
    assert seen == list(range(3 * STEP))
    assert from_json(json.loads(query.lastProgress["sources"][0]["endOffset"])).count >= 3 * STEP
