"""The loads: the same for every broker, by the words of `Peer` alone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

from context import body
from memory import anonymous_mb
from pacing import KernelTimer
from peer import WINDOW, Peer, Publisher, processor_s

from raylay.services.hosts.latency import quantile

TICK_S = 0.001
STAMP_BYTES = 20
RECORD_STAMP = slice(23, 43)
KEYS = 10_000
"""Keys of the records that the loads of states publish."""
FANOUT = 10
FAILOVER_PER_S = 2_000
WAIT_S_MAX = 60.0
REPEATED_S_MAX = 10.0
"""What takes longer is not run again for its best time."""


@dataclass(frozen=True)
class Size:
    """How much is run; `one_…` and `paced_…` of each slice."""

    publish_s: float = 3.0
    publish_runs: int = 3
    one_warm_s: float = 0.3
    one_s: float = 0.5
    paced_warm_s: float = 0.5
    paced_s: float = 1.0
    slices: int = 12
    fanout_s: float = 3.0
    replay_messages: int = 500_000
    replay_fill_s_max: float = 30.0
    kills: int = 5
    queue_runs: int = 2
    queue_messages: tuple[int, int] = (2_000, 30_000)
    """Number of messages with a backlog of 1, and with a larger one."""


QUICK = Size(
    publish_s=1.0,
    publish_runs=1,
    slices=2,
    fanout_s=0.5,
    replay_messages=50_000,
    replay_fill_s_max=5.0,
    kills=1,
    queue_runs=1,
    queue_messages=(300, 3_000),
)


@dataclass(frozen=True)
class Figure:
    """One line: `more` is what belongs to it, as the messages that it is of."""

    name: str
    value: float
    unit: str
    more: dict[str, Any]


class Loads:
    """Runs the loads on one broker. Every load ends with a count: what each server holds of a topic
    is at least what was acknowledged, and where all are up exactly what was sent."""

    def __init__(self, peer: Peer, size: Size) -> None:
        self._peer = peer
        self._size = size
        self._topics = 0

    @asynccontextmanager
    async def _topic(self, *, readable_again: bool = False) -> AsyncIterator[str]:
        self._topics += 1
        topic = f"t{self._topics}"
        await self._peer.make_topic(topic, readable_again=readable_again)
        yield topic
        await self._peer.drop_topic(topic)

    @asynccontextmanager
    async def _state(self) -> AsyncIterator[str]:
        self._topics += 1
        topic = f"s{self._topics}"
        await self._peer.make_state(topic)
        yield topic
        await self._peer.drop_state(topic)

    async def _keys_counted(self, topic: str, keys: int) -> list[int]:
        """Keys that each server holds, once the last copy is there.

        Raises:
            AssertionError: it is not how many were acknowledged.
        """
        deadline_s = time.monotonic() + WAIT_S_MAX
        while True:
            held = await self._peer.keys_held(topic)
            if all(count == keys for count in held):
                return held
            assert time.monotonic() < deadline_s, f"{keys} keys acknowledged, held: {held}"
            await asyncio.sleep(0.1)

    async def _counted(self, topic: str, messages: int, *, some_twice: bool = False) -> list[int]:
        """What each server holds, once the last copy is there.

        Raises:
            AssertionError: it is not what was acknowledged.
        """
        deadline_s = time.monotonic() + WAIT_S_MAX
        while True:
            held = await self._peer.held(topic)
            if all(count == messages or (some_twice and count > messages) for count in held):
                return held
            assert time.monotonic() < deadline_s, f"{messages} acknowledged, held: {held}"
            await asyncio.sleep(0.1)

    async def publish(self, name: str, publishers: int, body_bytes: int) -> list[Figure]:
        """Messages a second to the ack, each publisher with a window; the best of several runs."""
        message, runs = body(body_bytes), []
        for _ in range(self._size.publish_runs):
            async with self._topic() as topic:
                made = [await self._peer.publisher(topic) for _ in range(publishers)]
                await asyncio.gather(*(each.one(message) for each in made))
                used_s, started_s = processor_s(self._peer.pids()), time.perf_counter()
                end_s = started_s + self._size.publish_s
                sent = sum(
                    await asyncio.gather(*(_until(each, repeat(message), end_s) for each in made))
                )
                took_s = time.perf_counter() - started_s
                cost_us = (processor_s(self._peer.pids()) - used_s) / sent * 1e6
                acked = sum(each.acked for each in made)
                held = await self._counted(topic, acked)
                runs.append((sent / took_s, cost_us, {"messages": acked, "held": held}))
                await asyncio.gather(*(each.close() for each in made))
        rate, cost_us, more = max(runs, key=lambda run: run[0])
        return [
            Figure(name, rate, "messages/s", more),
            Figure(f"{name}_processor", cost_us, "us/message", {}),
        ]

    async def one_at_a_time(self, name: str) -> list[Figure]:
        """A slice of the time to the ack, one message after the other."""
        message, took_ms = body(128), []
        async with self._topic() as topic:
            publisher = await self._peer.publisher(topic)
            warm_s = time.perf_counter() + self._size.one_warm_s
            while time.perf_counter() < warm_s:
                await publisher.one(message)
            used_s = processor_s(self._peer.pids())
            end_s = time.perf_counter() + self._size.one_s
            while time.perf_counter() < end_s:
                started_s = time.perf_counter()
                await publisher.one(message)
                took_ms.append((time.perf_counter() - started_s) * 1000)
            cost_us = (processor_s(self._peer.pids()) - used_s) / len(took_ms) * 1e6
            held = await self._counted(topic, publisher.acked)
            await publisher.close()
        return [
            *_quantiles(name, took_ms, held),
            Figure(f"{name}_processor", cost_us, "us/message", {}),
        ]

    async def paced(
        self, name: str, rate: int, *, spins: bool = False, state: bool = False
    ) -> list[Figure]:
        """A slice of a steady rate, from the instant that a message is scheduled for: to the ack,
        and to a subscriber. Between messages the publisher sleeps; or it `spins`, so that the
        servers have a core less. `state`: of records, and to one that watches them."""
        peer, rest = self._peer, b"x" * (128 - STAMP_BYTES)
        stamp = RECORD_STAMP if state else slice(STAMP_BYTES)
        acked_ms: list[float] = []
        delivered_ms: list[float] = []
        scheduled_s: deque[float] = deque()

        def told(messages: int) -> None:
            now_s = time.perf_counter()
            for _ in range(min(messages, len(scheduled_s))):
                acked_ms.append((now_s - scheduled_s.popleft()) * 1000)

        def delivered(bodies: list[bytes]) -> None:
            now_s = time.perf_counter()
            delivered_ms.extend((now_s - float(each[stamp])) * 1000 for each in bodies)

        async with self._state() if state else self._topic() as topic:
            end_reading = await (peer.watch if state else peer.subscribe)(topic, delivered)
            publisher = await (
                peer.state_publisher(topic, watched=True) if state else peer.publisher(topic)
            )
            publisher.told = told
            warm = int(rate * self._size.paced_warm_s)
            total = warm + int(rate * self._size.paced_s)
            used_s = processor_s(self._peer.pids())
            start_s, sent = time.perf_counter() + TICK_S, 0
            with closing(KernelTimer()) as timer:
                while sent < total:
                    due = min(total, int((time.perf_counter() - start_s) * rate) + 1)
                    while sent < due:
                        at_s = start_s + sent / rate
                        scheduled_s.append(at_s)
                        stamped = (
                            record(sent, at_s)
                            if state
                            else f"{at_s:0{STAMP_BYTES}.9f}".encode() + rest
                        )
                        await publisher.publish(stamped)
                        sent += 1
                    await (asyncio.sleep(0) if spins else timer.until(start_s + sent / rate))
            took_s = time.perf_counter() - start_s
            await publisher.until_waiting(0)
            await _until_true(lambda: len(delivered_ms) >= total)
            cost_us = (processor_s(self._peer.pids()) - used_s) / total * 1e6
            held = await (
                self._keys_counted(topic, min(total, KEYS))
                if state
                else self._counted(topic, total)
            )
            await publisher.close()
            await _ended(end_reading)
        return [
            *_quantiles(f"{name}_ack", acked_ms[warm:], held),
            *_quantiles(f"{name}_deliver", delivered_ms[warm:], held),
            Figure(f"{name}_processor", cost_us, "us/message", {"rate": round(total / took_s)}),
        ]

    async def fanout(self, name: str) -> list[Figure]:
        """Deliveries a second to ten subscribers with a connection each, every body read."""
        counts = [0] * FANOUT
        length_bytes = [0] * FANOUT

        def reader(number: int) -> Callable[[list[bytes]], None]:
            def bodies(found: list[bytes]) -> None:
                counts[number] += len(found)
                length_bytes[number] += sum(map(len, found))

            return bodies

        message = body(128)
        async with self._topic(readable_again=True) as topic:
            ends = [await self._peer.subscribe(topic, reader(number)) for number in range(FANOUT)]
            publisher = await self._peer.publisher(topic)
            started_s = time.perf_counter()
            sent = await _until(publisher, repeat(message), started_s + self._size.fanout_s)
            await _until_true(lambda: min(counts) >= sent)
            took_s = time.perf_counter() - started_s
            assert counts == [sent] * FANOUT, counts
            assert length_bytes == [sent * len(message)] * FANOUT, length_bytes
            await publisher.close()
            for end in ends:
                await _ended(end)
        return [Figure(name, FANOUT * sent / took_s, "deliveries/s", {"messages": sent})]

    async def replay(self, name: str) -> list[Figure]:
        """A topic from its beginning, every body read; and the servers' memory with it."""
        message, rates = body(128), []
        async with self._topic(readable_again=True) as topic:
            publisher = await self._peer.publisher(topic)
            end_s = time.perf_counter() + self._size.replay_fill_s_max
            count = await _until(publisher, repeat(message), end_s, self._size.replay_messages)
            held = await self._counted(topic, count)
            loaded_mb = sum(map(anonymous_mb, self._peer.pids()))
            await publisher.close()
            for _ in range(self._size.publish_runs):
                started_s = time.perf_counter()
                length_bytes = await self._peer.replay(topic, count)
                rates.append(count / (time.perf_counter() - started_s))
                assert length_bytes == count * len(message), (length_bytes, count)
                if time.perf_counter() - started_s > REPEATED_S_MAX:
                    break
        more = {"messages": count, "held": held}
        return [
            Figure(name, max(rates), "messages/s", more),
            Figure(f"{name}_memory_mb", loaded_mb, "MB", more),
        ]

    async def publish_state(self, name: str) -> list[Figure]:
        """Records a second to the ack, of one publisher with a window; the best of several runs."""
        bodies, runs = [record(number) for number in range(KEYS)], []
        async with self._state() as topic:
            publisher = await self._peer.state_publisher(topic, watched=False)
            await _until(publisher, bodies, float("inf"), KEYS)
            for _ in range(self._size.publish_runs):
                used_s, started_s = processor_s(self._peer.pids()), time.perf_counter()
                sent = await _until(publisher, cycle(bodies), started_s + self._size.publish_s)
                took_s = time.perf_counter() - started_s
                cost_us = (processor_s(self._peer.pids()) - used_s) / sent * 1e6
                runs.append((sent / took_s, cost_us))
            held = await self._keys_counted(topic, KEYS)
            await publisher.close()
        rate, cost_us = max(runs)
        return [
            Figure(name, rate, "records/s", {"messages": KEYS, "held": held}),
            Figure(f"{name}_processor", cost_us, "us/record", {}),
        ]

    async def put_and_get(self, name: str) -> list[Figure]:
        """A slice of the times of one record after the other: to the ack of a put, and of a get of
        its key, whose body is compared."""
        put_ms: list[float] = []
        get_ms: list[float] = []
        number = 0
        async with self._state() as topic:
            publisher = await self._peer.state_publisher(topic, watched=False)
            reader = await self._peer.reader(topic)
            warm_s = time.perf_counter() + self._size.one_warm_s
            end_s = warm_s + 2 * self._size.one_s
            while (started_s := time.perf_counter()) < end_s:
                body_put = record(number, started_s)
                await publisher.one(body_put)
                put_s = time.perf_counter()
                body_got = await reader.get(f"{number % KEYS:08}")
                got_s = time.perf_counter()
                assert body_got == body_put, (body_got, body_put)
                number += 1
                if started_s >= warm_s:
                    put_ms.append((put_s - started_s) * 1000)
                    get_ms.append((got_s - put_s) * 1000)
            held = await self._keys_counted(topic, min(number, KEYS))
            await reader.close()
            await publisher.close()
        return [
            *_quantiles(f"{name}_put", put_ms, held),
            *_quantiles(f"{name}_get", get_ms, held),
        ]

    async def queue(self, name: str, consumers: int, backlog: int) -> list[Figure]:
        """Messages a second through a queue, published with a window to acknowledged by those who
        took them; the best of several runs. Every message is taken once."""
        messages, runs = self._size.queue_messages[backlog > 1], []
        for _ in range(self._size.queue_runs):
            runs.append(await self._queue_rate(consumers, backlog, messages))
        return [Figure(name, max(runs), "messages/s", {"messages": messages})]

    async def _queue_rate(self, consumers: int, backlog: int, messages: int) -> float:
        taken, done = 0, asyncio.Event()

        def took(count: int) -> None:
            nonlocal taken
            taken += count
            if taken >= messages:
                done.set()

        self._topics += 1
        name = f"q{self._topics}"
        topic = await self._peer.make_queue(name)
        taking = [await self._peer.consumer(name, backlog, took) for _ in range(consumers)]
        publisher = await self._peer.publisher(topic)
        started_s = time.perf_counter()
        await _until(publisher, repeat(body(128)), float("inf"), messages)
        async with asyncio.timeout(WAIT_S_MAX):
            await done.wait()
        await asyncio.gather(*(each.settle() for each in taking))
        took_s = time.perf_counter() - started_s
        await publisher.close()
        await asyncio.gather(*(each.close() for each in taking))
        deadline_s = time.monotonic() + WAIT_S_MAX
        while left := await self._peer.left(name):
            assert time.monotonic() < deadline_s, f"{left} of {messages} are not acknowledged"
            await asyncio.sleep(0.1)
        assert taken == messages, f"{taken} were taken of {messages}"
        await self._peer.drop_queue(name)
        return messages / took_s

    async def memory(self, name: str) -> list[Figure]:
        """Anonymous resident memory of all servers together."""
        pids = self._peer.pids()
        return [Figure(name, sum(map(anonymous_mb, pids)), "MB", {"processes": len(pids)})]

    async def failover(self, name: str, *, by_age: bool = False) -> list[Figure]:
        """SIGKILL of the server that the publisher uses to the first ack of a message that was
        published behind it."""
        if by_age:
            await self._peer.leave_to_age()
        gaps_ms = []
        for _ in range(self._size.kills):
            async with self._topic() as topic:
                gaps_ms.append(await self._gap_ms(topic))
        return [
            Figure(f"{name}_p50", quantile(gaps_ms, 0.5), "ms", {"kills": len(gaps_ms)}),
            Figure(f"{name}_max", max(gaps_ms), "ms", {"kills": len(gaps_ms)}),
        ]

    async def _gap_ms(self, topic: str) -> float:
        publisher = await self._peer.publisher(topic)
        resumed = asyncio.get_running_loop().create_future()
        killed_after = killed_at_s = 0.0

        def told(_: int) -> None:
            if killed_at_s and publisher.highest_acked > killed_after and not resumed.done():
                resumed.set_result((time.perf_counter() - killed_at_s) * 1000)

        async def load() -> None:
            while not resumed.done():
                for _ in range(max(1, int(FAILOVER_PER_S * TICK_S))):
                    if publisher.waiting < 20 * WINDOW:
                        await publisher.publish(body(128))
                await asyncio.sleep(TICK_S)

        publisher.told = told
        await publisher.one(body(128))
        loading = asyncio.create_task(load())
        await asyncio.sleep(0.5)
        kill = await self._peer.fail(topic)
        await asyncio.sleep(0.1)
        killed_after, killed_at_s = publisher.sent, time.perf_counter()
        kill()
        async with asyncio.timeout(WAIT_S_MAX):
            gap_ms: float = await resumed
        await loading
        async with asyncio.timeout(WAIT_S_MAX):
            await publisher.until_waiting(0)
        await self._peer.mend()
        # What was sent again after the kill is there twice where the broker does not know it.
        await self._counted(topic, publisher.acked, some_twice=True)
        await publisher.close()
        return gap_ms


def record(number: int, stamp_s: float = 0.0) -> bytes:
    """A record of 128 bytes: one of `KEYS`, with a time."""
    front = f'{{"id":"{number % KEYS:08}","at":"{stamp_s:0{STAMP_BYTES}.9f}","text":"'.encode()
    return front + b"x" * (128 - len(front) - 2) + b'"}'


async def _until(
    publisher: Publisher, bodies: Iterable[bytes], end_s: float, messages: int = 0
) -> int:
    """Publishes with a window until a time, or so many. Returns how many, all acknowledged."""
    before, bodies = publisher.sent, iter(bodies)
    while time.perf_counter() < end_s:
        for _ in range(100):
            if publisher.waiting >= WINDOW:
                await publisher.until_waiting(WINDOW - 1)
            await publisher.publish(next(bodies))
        if messages and publisher.sent - before >= messages:
            break
    await publisher.until_waiting(0)
    return publisher.sent - before


async def _until_true(found: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not found():
        assert time.monotonic() < deadline_s, "the subscribers have not got everything"
        await asyncio.sleep(TICK_S)


async def _ended(end: Callable[[], Any]) -> None:
    ending = end()
    if isinstance(ending, Awaitable):
        await ending


def _quantiles(name: str, took_ms: list[float], held: list[int]) -> list[Figure]:
    more = {"messages": len(took_ms), "held": held}
    return [
        Figure(f"{name}_ms_p50", quantile(took_ms, 0.5), "ms", more),
        Figure(f"{name}_ms_p99", quantile(took_ms, 0.99), "ms", more),
    ]
