"""`raylay bench`: loads a fabric from the shell, and says how fast it was."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.messages import TypeOption, client_options
from raylay.services.commands.publish import take_back_cancel
from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.interrupts import INTERRUPTED, run_async
from raylay.services.commands.shared.options import FabricOption, GroupOption, ServerOption
from raylay.services.commands.shared.printing import echo, echo_json, print_table
from raylay.services.errors import RaylayError
from raylay.services.hosts.latency import quantile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raylay.services.client import Client, MessageBatch, QueueConsumer

bench_app = typer.Typer(
    add_completion=False,
    help="Load a fabric, and say how fast it was and how long each message took.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
SIZE_MAX = 16 * 1024 * 1024
CLIENTS_MAX = 100
TIMES_MAX = 200_000
"""Most times that are kept; of more messages every second, third, … one is timed."""
PACE_S = 0.005
"""The shortest pause of a publisher with a rate: it publishes what is due after each."""
LAST_ACKS_S = 30.0
"""Time that a publisher waits for the acknowledgments of what it has sent."""
ENDED_ACKS_S = 1.0
"""The same for a load that is ended before all of it is sent: by its time, or by Ctrl-C."""
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("longest", 1.0))


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load that is put on a topic.

    Args:
        topic: the topic that is published to.
        message_type: its message type.
        count: number of messages of all publishers together.
        size: bytes of a message, where no `body` is given.
        rate: messages a second of all publishers together; 0: as fast as they are taken.
        clients: number of publishers.
        seconds: time after which the load ends, whatever was sent; 0: none.
        body: text of each message, in which `{n}` is its number; empty: JSON of `size` bytes.
        run: name of this run, which is in the JSON, so that a consumer takes no other messages.
    """

    topic: str
    message_type: str = "json"
    count: int = 100_000
    size: int = 256
    rate: float = 0.0
    clients: int = 1
    seconds: float = 0.0
    body: str = ""
    run: str = ""

    def shares(self) -> list[range]:
        """Returns the numbers of the messages of each publisher."""
        clients = min(self.clients, self.count)
        ends = [self.count * each // clients for each in range(clients + 1)]
        return [range(begin, end) for begin, end in pairwise(ends)]

    def message(self, number: int, now_us: int) -> bytes:
        """Returns the body of a message.

        Args:
            number: its number in the run.
            now_us: the time at which it is sent, in microseconds since 1970.
        """
        if self.body:
            return self.body.replace("{n}", str(number)).encode()
        front = f'{{"bench":"{self.run}","id":{number},"sent_us":{now_us},"padding":"'
        return f'{front}{"x" * max(0, self.size - len(front) - 2)}"}}'.encode()


@dataclass(slots=True)
class LoadResult:
    """The messages that one side of a load has counted, and their times.

    Attributes:
        side: `published`, `received` or `consumed`.
        wanted: number of messages at which it is done.
        messages: number of messages so far: acknowledged, received, or taken from a queue.
        size_bytes: bytes of their bodies.
        refused: number of publishes that were refused.
        unanswered: number of publishes that were sent and not answered when the load ended: they
            may be persisted or not.
        unjournaled: number of messages that were delivered and not journaled.
        began_s, ended_s: time of the first and of the last of them, by `time.perf_counter`.
        times_ms: the times of some of them, in milliseconds.
    """

    side: str
    wanted: int
    messages: int = 0
    size_bytes: int = 0
    refused: int = 0
    unanswered: int = 0
    unjournaled: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    times_ms: list[float] = field(default_factory=list)
    refusal: RaylayError | None = None

    def add(self, messages: int, size_bytes: int, now_s: float) -> None:
        """Counts messages."""
        self.began_s = self.began_s or now_s
        self.ended_s = now_s
        self.messages += messages
        self.size_bytes += size_bytes

    def seconds(self) -> float:
        """Returns the time from the first message to the last one."""
        return max(self.ended_s - self.began_s, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Returns the result for `--json`."""
        seconds = self.seconds() if self.messages else 0.0
        return {
            "side": self.side,
            "messages": self.messages,
            "refused": self.refused,
            "unanswered": self.unanswered,
            "unjournaled": self.unjournaled,
            "seconds": round(seconds, 6),
            "messages_per_s": round(self.messages / seconds) if seconds else 0,
            "bytes_per_s": round(self.size_bytes / seconds) if seconds else 0,
            "latency_ms": {
                name: round(quantile(self.times_ms, share), 3)
                for name, share in _QUANTILES
                if self.times_ms
            },
        }

    def row(self) -> tuple[str, ...]:
        """Returns the result as the row of a table."""
        found = self.as_json()
        times = [f"{found['latency_ms'].get(name, 0):,.2f}" for name, _ in _QUANTILES]
        return (
            self.side,
            f"{self.messages:,}",
            f"{found['messages_per_s']:,}",
            f"{found['bytes_per_s'] / 1e6:,.1f}",
            *(times if self.times_ms else ["-"] * len(_QUANTILES)),
        )


class AckTimes:
    """The times from a publish until its acknowledgment, of some messages of one publisher.

    Args:
        result: the result that the times and the counts are added to.
        every: of how many messages one is timed.
    """

    def __init__(self, result: LoadResult, every: int) -> None:
        self._result = result
        self._every = every
        self._sent: deque[tuple[int, int, float]] = deque()

    @property
    def unanswered(self) -> int:
        """Returns the number of publishes that are not acknowledged."""
        return len(self._sent)

    def sent(self, sequence: int, size_bytes: int, now_s: float) -> None:
        """Notes a publish."""
        self._result.began_s = self._result.began_s or now_s
        self._sent.append((sequence, size_bytes, now_s))

    def acknowledged(self, sequence: int, now_s: float) -> None:
        """Notes that all publishes up to a sequence are acknowledged."""
        sent, result = self._sent, self._result
        while sent and sent[0][0] <= sequence:
            number, size_bytes, sent_s = sent.popleft()
            result.add(1, size_bytes, now_s)
            if number % self._every == 0:
                result.times_ms.append((now_s - sent_s) * 1000)


CountOption = Annotated[int, typer.Option("--count", min=1, help="The number of messages.")]
SizeOption = Annotated[
    int, typer.Option("--size", min=1, max=SIZE_MAX, help="The bytes of a message.")
]
RateOption = Annotated[
    float,
    typer.Option("--rate", min=0, help="Messages a second; 0: as many as are taken."),
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0, help="End after this time; 0: when all is done.")
]
BodyOption = Annotated[
    str,
    typer.Option(
        "--body",
        help="The text of each message, in which {n} is its number: for a SOW topic, whose key it "
        "needs. By default JSON of --size bytes.",
    ),
]
ResultOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a side.")]


@bench_app.command("pub")
def pub(
    topic: Annotated[str, typer.Argument(help="The topic; the messages stay there.")],
    count: CountOption = 100_000,
    size: SizeOption = 256,
    rate: RateOption = 0.0,
    clients: Annotated[
        int, typer.Option(min=1, max=CLIENTS_MAX, help="The number of publishers.")
    ] = 1,
    seconds: SecondsOption = 0.0,
    body: BodyOption = "",
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: ResultOption = False,
) -> None:
    """Publish messages, and say how long their acknowledgments took. The times are from the publish
    to the acknowledgment; without --rate they contain the wait behind the messages before."""
    plan = LoadPlan(topic, message_type, count, size, rate, clients, seconds, body, _run_name())
    result = LoadResult("published", count)

    def work(options: dict[str, Any]) -> list[Coroutine[Any, Any, None]]:
        return [_publish_share(options, plan, each, result) for each in plan.shares()]

    _perform(fabric, group, server, [result], work, seconds, as_json)


@bench_app.command("sub")
def sub(
    topic: Annotated[str, typer.Argument(help="A topic or a regular expression over topics.")],
    count: CountOption = 100_000,
    clients: Annotated[
        int,
        typer.Option(min=1, max=CLIENTS_MAX, help="The subscribers, of which each gets every one."),
    ] = 1,
    seconds: SecondsOption = 0.0,
    bookmark: Annotated[
        str, typer.Option(help="The position to start at: 0 for the first message; default: now.")
    ] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: ResultOption = False,
) -> None:
    """Receive --count messages with each subscriber. Messages of `raylay bench pub` tell the time
    from their publish; both commands are to run on one host, or on hosts with one clock."""
    result = LoadResult("received", count * clients)

    def work(options: dict[str, Any]) -> list[Coroutine[Any, Any, None]]:
        return [_receive(options, topic, bookmark, count, result) for _ in range(clients)]

    _perform(fabric, group, server, [result], work, seconds, as_json)


@bench_app.command("queue")
def queue(
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    topic: Annotated[
        str, typer.Option(help="The topic that is published to; by default the queue's name.")
    ] = "",
    count: CountOption = 20_000,
    size: SizeOption = 256,
    rate: RateOption = 0.0,
    producers: Annotated[int, typer.Option(min=1, max=CLIENTS_MAX, help="The publishers.")] = 1,
    consumers: Annotated[int, typer.Option(min=1, max=CLIENTS_MAX, help="The consumers.")] = 1,
    backlog: Annotated[
        int, typer.Option(min=1, help="Messages that a consumer holds at a time.")
    ] = 100,
    seconds: SecondsOption = 0.0,
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: ResultOption = False,
) -> None:
    """Publish to a queue and consume the same messages, each once. Other messages of the queue are
    left alone. The times of what was consumed are from the publish to the consumer."""
    run = _run_name()
    plan = LoadPlan(
        topic or name, message_type, count, size, rate, producers, seconds=seconds, run=run
    )
    published, consumed = LoadResult("published", count), LoadResult("consumed", count)

    def work(options: dict[str, Any]) -> list[Coroutine[Any, Any, None]]:
        ready, done = asyncio.Barrier(consumers + len(plan.shares())), asyncio.Event()
        return [
            *(_publish_share(options, plan, each, published, ready) for each in plan.shares()),
            *(
                _consume(options, name, run, backlog, consumed, ready, done)
                for _ in range(consumers)
            ),
        ]

    _perform(fabric, group, server, [published, consumed], work, seconds, as_json)


def _run_name() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _perform(
    fabric: str,
    group: str,
    servers: list[str] | None,
    results: list[LoadResult],
    work: Callable[[dict[str, Any]], list[Coroutine[Any, Any, None]]],
    seconds: float,
    as_json: bool,
) -> None:
    """Does the work of a load at once, prints its results, and raises the first refusal."""

    async def run(options: dict[str, Any]) -> bool:
        with suppress(TimeoutError), _progress(results, as_json):
            try:
                async with asyncio.timeout(seconds or None), asyncio.TaskGroup() as tasks:
                    for each in work(options):
                        tasks.create_task(each)
            except asyncio.CancelledError:
                take_back_cancel()
                return True
            except ExceptionGroup as found:
                # One reason ends the load, and is told as of a single client.
                raise found.exceptions[0] from None
        return False

    with client_options(fabric, group, servers, f"raylay-bench-{os.getpid()}") as options:
        interrupted = run_async(run(options))
    if as_json:
        for each in results:
            echo_json(each.as_json())
    else:
        columns = ("", "messages", "a second", "MB/s", *(f"{name} ms" for name, _ in _QUANTILES))
        print_table("", columns, (each.row() for each in results), right=columns[1:])
    unjournaled = sum(each.unjournaled for each in results)
    if unjournaled:
        echo(f"raylay: {unjournaled:,} were delivered, and are in no transaction log", err=True)
    unanswered = sum(each.unanswered for each in results)
    if unanswered:
        echo(
            f"raylay: {unanswered:,} were sent and not answered, and may be persisted or not",
            err=True,
        )
    refusal = next((each.refusal for each in results if each.refusal is not None), None)
    if refusal is not None:
        echo(f"raylay: {sum(each.refused for each in results):,} were refused", err=True)
        raise refusal
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _progress(results: list[LoadResult], as_json: bool) -> Iterator[None]:
    """Shows a progress bar of each result while the block runs, where a person looks."""
    if as_json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        get_time=time.monotonic,
        auto_refresh=False,
    )
    shown = {bar.add_task(each.side, total=each.wanted): each for each in results}

    async def redraw() -> None:
        while True:
            for number, each in shown.items():
                bar.update(number, completed=each.messages)
            bar.refresh()
            await asyncio.sleep(0.2)

    with bar:
        task = asyncio.get_running_loop().create_task(redraw())
        try:
            yield
        finally:
            task.cancel()


@asynccontextmanager
async def _client(options: dict[str, Any], **more: Any) -> AsyncIterator[Client]:
    from raylay.services.client import Client

    name = f"{options['name']}-{secrets.token_hex(4)}"
    client = Client(**options | {"name": name}, on_event=ConnectionLog(), **more)
    await client.connect()
    try:
        yield client
    finally:
        await client.close(flush=False)


async def _publish_share(
    options: dict[str, Any],
    plan: LoadPlan,
    numbers: range,
    result: LoadResult,
    ready: asyncio.Barrier | None = None,
) -> None:
    """Publishes some messages of a plan with a client of its own, and waits for the
    acknowledgments; where the load is ended before, for a short time only."""
    times = AckTimes(result, -(-plan.count // TIMES_MAX))
    clock = time.perf_counter
    refusals = 0

    def refused(event: Any) -> None:
        nonlocal refusals
        refusals += 1
        result.refused += 1
        result.refusal = result.refusal or event.error

    async with _client(
        options,
        on_persisted=lambda sequence: times.acknowledged(sequence, clock()),
        on_publish_failed=refused,
    ) as client:
        if ready is not None:
            await ready.wait()
        rate = plan.rate * len(numbers) / plan.count
        began_s = clock()
        message, now_s, wait_s = b"", began_s, ENDED_ACKS_S
        noted = client.last_sequence
        try:
            for sent, number in enumerate(numbers):
                while rate and sent >= (clock() - began_s) * rate:
                    await asyncio.sleep(PACE_S)
                message = plan.message(number, time.time_ns() // 1000)
                now_s = clock()
                noted = await client.publish(plan.topic, message, plan.message_type)
                times.sent(noted, len(message), now_s)
                if result.refusal is not None:
                    break
            else:
                wait_s = LAST_ACKS_S
        finally:
            if client.last_sequence > noted:
                # The client took it, and the load ended before the client said so.
                times.sent(client.last_sequence, len(message), now_s)
            try:
                with suppress(TimeoutError):
                    await client.flush(wait_s)
            finally:
                times.acknowledged(client.persisted_sequence, clock())
                result.messages -= refusals
                result.unanswered += times.unanswered
                result.unjournaled += client.unjournaled_messages


async def _receive(
    options: dict[str, Any], topic: str, bookmark: str, count: int, result: LoadResult
) -> None:
    """Counts the messages of a subscription until there are `count`."""
    asked: dict[str, Any] = {"bookmark": bookmark} if bookmark else {}
    left = count
    async with _client(options) as client:
        subscription = await client.subscribe(topic, **asked)
        async for batch in subscription.batches():
            left -= batch.count
            _count(batch, result)
            if left <= 0:
                return


async def _consume(
    options: dict[str, Any],
    name: str,
    run: str,
    backlog: int,
    result: LoadResult,
    ready: asyncio.Barrier,
    done: asyncio.Event,
) -> None:
    """Consumes the messages of this run until all consumers together have had all of them: `done`,
    because another consumer may get the last one."""

    async def take(work: QueueConsumer[Any]) -> None:
        async for batch in work.batches():
            _count(batch.part, result)
            if result.messages >= result.wanted:
                done.set()

    async with (
        _client(options) as client,
        client.queue(name, filter=f"/bench = '{run}'", backlog=backlog) as work,
    ):
        await ready.wait()
        tasks = [asyncio.ensure_future(each) for each in (take(work), done.wait())]
        try:
            first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in first:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _count(batch: MessageBatch[Any], result: LoadResult) -> None:
    """Counts a delivery. Its first message is timed, if it is one of `raylay bench`."""
    bodies = batch.bodies()
    result.add(batch.count, sum(map(len, bodies)), time.perf_counter())
    if len(result.times_ms) < TIMES_MAX:
        body = bodies[0]
        if body.startswith(b'{"bench":'):
            sent_us = int(json.loads(body)["sent_us"])
            result.times_ms.append((time.time_ns() // 1000 - sent_us) / 1000)
