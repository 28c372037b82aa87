"""A load on the fabric of the hosts, from the machine around them: publishers, durable readers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hosts.conftest import PATIENCE_S, Cluster, wait_until

from raylay.services.client import EPOCH, Client
from raylay.services.client.messages import ranges_of
from raylay.services.drills.verdict import PublishRecord, SequenceStretch, Verdict, judge

TURN_S = 0.01
EVERY_TURN = 2
"""Messages of each publisher: 200 a second where the machine keeps up."""
GROUPS = ("Chicago", "NewYork", "London")


class Load:
    """A publisher and a reader in each region, until the block ends; then `verdict`.

    Attributes:
        published, persisted: of each publisher so far, in messages.
        connections: how often a client of a region connected.
    """

    def __init__(self, cluster: Cluster, name: str, publishers: tuple[str, ...] = GROUPS) -> None:
        self._cluster = cluster
        self._name = name
        self._publishers = publishers
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._clients: dict[str, Client] = {}
        self._received: dict[str, list[SequenceStretch]] = {group: [] for group in GROUPS}
        self._error: BaseException | None = None
        self.record = PublishRecord()
        self.published = dict.fromkeys(publishers, 0)
        self.connections = dict.fromkeys(GROUPS, 0)
        self.longest_gap_s = dict.fromkeys(publishers, 0.0)
        """Between two acks of a publisher."""

    @property
    def persisted(self) -> dict[str, int]:
        """The highest acknowledged sequence of each publisher, from its first."""
        return {
            group: max(0, self._clients[group].persisted_sequence - first + 1)
            for group, first in self._first.items()
        }

    def received(self, group: str) -> int:
        """Messages that the reader of a region has got."""
        return sum(each.last - each.first + 1 for each in self._received[group])

    def __enter__(self) -> Self:
        self._first: dict[str, int] = {}
        self._thread.start()
        self.await_progress(*self._publishers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._thread.join(PATIENCE_S)
        if error is None:
            assert not self._thread.is_alive(), "the load did not end: an ack or a message is owed"
            assert self._error is None, self._error

    def await_progress(self, *groups: str, messages: int = 100) -> None:
        """Returns when publishers of these regions got acks for so many messages more, and readers
        of these regions got as many."""
        before = {group: self.persisted.get(group, 0) for group in groups}
        got = {group: self.received(group) for group in groups}

        def progressed() -> bool:
            acked = self.persisted
            publishers = [group for group in groups if group in self._publishers]
            return self._error is not None or (
                all(acked.get(group, 0) - before[group] >= messages for group in publishers)
                and all(self.received(group) - got[group] >= messages for group in groups)
            )

        wait_until(f"progress of {groups}", progressed, every_s=0.05)
        assert self._error is None, self._error

    def verdict(self) -> Verdict:
        """Over what each reader received."""
        return judge({f"reader {g}": held for g, held in self._received.items()}, self.record)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._all())
        except BaseException as error:
            self._error = error

    async def _all(self) -> None:
        readers = [asyncio.create_task(self._read(group)) for group in GROUPS]
        try:
            await asyncio.gather(*(self._publish(group) for group in self._publishers))
            expected = sum(self.published.values())
            while any(self.received(group) < expected for group in GROUPS):
                await asyncio.sleep(TURN_S)
        finally:
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _client(
        self, kind: str, group: str, on_persisted: Callable[[int], None] | None = None
    ) -> Client:
        return Client(
            f"{self._name}-{kind}-{group}",
            servers=self._cluster.servers(group),
            group=group,
            heartbeat_s=2.0,
            connect_wait_s=PATIENCE_S,
            publish_timeout_s=PATIENCE_S,
            on_persisted=on_persisted,
            **self._cluster.client_options(),
        )

    async def _publish(self, group: str) -> None:
        last_ack_s = time.monotonic()

        def acked(_: int) -> None:
            nonlocal last_ack_s
            now_s = time.monotonic()
            self.longest_gap_s[group] = max(self.longest_gap_s[group], now_s - last_ack_s)
            last_ack_s = now_s

        async with self._client("publisher", group, acked) as client:
            self._clients[group] = client
            first = last = 0
            while not self._stopping:
                for _ in range(EVERY_TURN):
                    last = await client.publish(f"flights/{self._name}", b'{"gate": 7}')
                    first = first or last
                    self._first.setdefault(group, first)
                    self.published[group] += 1
                await asyncio.sleep(TURN_S)
            await client.flush(PATIENCE_S)
            self.record.add(client.publisher, first, last, client.persisted_sequence)

    async def _read(self, group: str) -> None:
        async with self._client("reader", group) as client:
            subscription = await client.subscribe(f"flights/{self._name}", bookmark=EPOCH)
            async for batch in subscription.batches():
                self._received[group] += [
                    SequenceStretch(*each) for each in ranges_of(batch.payload, batch.count)
                ]
