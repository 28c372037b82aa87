"""`raylay ping`: asks each instance as a client does, and says how long each step takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.client.credentials import credentials, tls_settings
from raylay.services.commands.shared.client_names import client_name
from raylay.services.commands.shared.interrupts import run_async
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupOption,
    ServerOption,
    running,
    servers_meant,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import ConnectionLost, FabricError, RaylayError
from raylay.services.hosts.latency import quantile

if TYPE_CHECKING:
    from raylay.services.client import Client
    from raylay.services.client.failover import Server

COUNT_MAX = 100_000


@dataclass(slots=True)
class PingResult:
    """The times that one instance took, in milliseconds.

    Attributes:
        connect_ms: time until the stream was open, with TLS where there is TLS.
        logon_ms: time from there until the instance had accepted the client.
        round_trips_ms: time of each command that only asks for an answer.
        acks_ms: time of each publish until its acknowledgment.
        unjournaled: publishes that no instance journals, so that their ack says only that they
            were delivered.
        error: the reason why the instance cannot be used; empty: it can.
    """

    address: str
    instance: str = ""
    group: str = ""
    connect_ms: float | None = None
    logon_ms: float | None = None
    round_trips_ms: list[float] = field(default_factory=list)
    acks_ms: list[float] = field(default_factory=list)
    unjournaled: int = 0
    error: str = ""

    def line(self) -> str:
        """Formats the result as one line."""
        name = f"{self.instance} at {self.address}" if self.instance else self.address
        told = []
        if self.connect_ms is not None:
            told.append(f"connected in {self.connect_ms:.2f} ms")
        if self.logon_ms is not None:
            told.append(f"logged on in {self.logon_ms:.2f} ms")
        if self.round_trips_ms:
            told.append(f"round trip {_times(self.round_trips_ms)}")
        if self.acks_ms:
            told.append(f"published to ack {_times(self.acks_ms)}")
        if self.unjournaled:
            told.append("the topic is not journaled: acks say that messages were delivered")
        if self.error:
            told.append(self.error)
        return f"{name}: {', '.join(told)}"

    def as_json(self) -> dict[str, Any]:
        """Returns the result for programs; times in milliseconds."""
        return {
            "instance": self.instance,
            "group": self.group,
            "address": self.address,
            "connect_ms": _rounded(self.connect_ms),
            "logon_ms": _rounded(self.logon_ms),
            "round_trip": _spread(self.round_trips_ms),
            "publish_to_ack": _spread(self.acks_ms),
            "unjournaled": self.unjournaled,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class PingPlan:
    """The questions to each instance.

    Attributes:
        count: round trips, and messages where there is a topic.
        topic: topic of the messages; empty: nothing is published.
        timeout_s: most seconds for the logon, and for each answer.
    """

    count: int = 10
    topic: str = ""
    message_type: str = "json"
    body: str = "{}"
    timeout_s: float = 5.0


def ping(
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=COUNT_MAX, help="Round trips.")
    ] = 10,
    topic: Annotated[
        str,
        typer.Option(
            help="Publish as many messages on this topic, too, and time them to their acks."
        ),
    ] = "",
    message_type: Annotated[str, typer.Option("--type", help="The message type.")] = "json",
    body: Annotated[str, typer.Option(help="The message to publish.")] = "{}",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.01, help="Seconds to wait for each answer.")
    ] = 5.0,
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="An object an instance and line.")
    ] = False,
) -> None:
    """Ask each instance as a client does: connect, log on, and time round trips. Exit code 1 where
    one cannot be used.

    With --topic it also publishes messages, one after the other, and times each to its ack. They
    are messages like any other: subscribers get them, and journals keep them.
    """
    plan = PingPlan(count, topic, message_type, body, timeout_s)

    def tell(result: PingResult) -> None:
        if as_json:
            echo_json(result.as_json())
        else:
            echo(result.line(), err=bool(result.error))

    with client_name("ping") as name:
        found = run_async(ping_all(name, [*targets(fabric, group, server)], plan, tell))
    if any(each.error for each in found):
        raise typer.Exit(1)


def targets(
    fabric: str, group: str, servers: list[str] | None
) -> Iterator[tuple[Server, dict[str, Any]]]:
    """Yields the instances that are meant, each with the options of a client for it.

    Raises:
        FabricError: no such fabric runs here.
        ConfigurationError: there is no such group.
    """
    from raylay.services.client.failover import Server

    servers = servers_meant(fabric, servers)
    if servers:
        given = {"tls": tls_settings(), **credentials()}
        yield from ((Server(address, group=group), given) for address in servers)
        return
    entry = running(fabric)
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord, client_options

    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    settings = FabricSettings.from_json(record.settings)
    for each in [group] if group else settings.groups():
        options = client_options(settings, record, each, "raylay ping")
        found: Sequence[Server] = options.pop("servers")
        del options["group"]
        options["tls"] = tls_settings() or options["tls"]
        yield from ((where, options) for where in found)


async def ping_all(
    name: str,
    targets: Iterable[tuple[Server, Mapping[str, Any]]],
    plan: PingPlan,
    tell: Callable[[PingResult], None],
) -> list[PingResult]:
    """Returns the times of instances, in their order. All are connected to at once, so that many
    that do not answer cost the time of one; round trips are timed at one instance after the other.

    Args:
        name: name of the clients.
        targets: the instances, each with the options of a client for it.
        tell: function that is called with each result, in the order of the instances.
    """
    turn = asyncio.Lock()
    found: list[PingResult] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ping_one(name, *each, plan, turn)) for each in targets]
        for task in tasks:
            found.append(await task)
            tell(found[-1])
    return found


async def ping_one(
    name: str, where: Server, options: Mapping[str, Any], plan: PingPlan, turn: asyncio.Lock
) -> PingResult:
    """Returns the times of one instance. A failure is told in the result, and never raised.

    Args:
        name: name of the client.
        turn: lock that is held while round trips are timed: those of another instance would make
            them slower.
    """
    from raylay.services.client import Client
    from raylay.services.client.events import Connected, Disconnected

    result = PingResult(where.address, where.instance, where.group)
    ends: list[str] = []

    def note(event: object) -> None:
        if isinstance(event, Connected):
            result.instance, result.group = event.instance, event.group
        elif isinstance(event, Disconnected):
            ends.append(event.text or event.reason)

    client = Client(
        name,
        servers=[where],
        group=where.group,
        failover="any",
        connect_wait_s=plan.timeout_s,
        **{"connect_timeout_s": plan.timeout_s, **options},
        on_event=note,
    )
    began_s = time.perf_counter()
    loop_began_s = asyncio.get_running_loop().time()
    try:
        await client.connect()
        total_ms = (time.perf_counter() - began_s) * 1000
        result.connect_ms = (client.runtime.opened_s - loop_began_s) * 1000
        result.logon_ms = total_ms - result.connect_ms
        try:
            async with turn:
                await _measure(client, plan, result, ends)
        finally:
            await client.close(flush=False)
    except RaylayError as error:
        result.error = str(error)
    return result


async def _measure(client: Client, plan: PingPlan, result: PingResult, ends: list[str]) -> None:
    """Fills in the times of round trips and publishes, until one fails."""

    async def publish() -> None:
        client.publish_nowait(plan.topic, plan.body.encode(), plan.message_type)
        await client.flush()

    for _ in range(plan.count):
        took_ms = await _timed(lambda: client.runtime.command({"c": "ping"}), plan.timeout_s, ends)
        result.round_trips_ms.append(took_ms)
    for _ in range(plan.count if plan.topic else 0):
        result.acks_ms.append(await _timed(publish, plan.timeout_s, ends))
    result.unjournaled = client.unjournaled_messages


async def _timed(ask: Callable[[], Awaitable[object]], timeout_s: float, ends: list[str]) -> float:
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            await ask()
    except TimeoutError:
        raise ConnectionLost(f"no answer within {timeout_s:g} s") from None
    if ends:
        # The client went on with another connection, or another instance: that is no time of this.
        raise ConnectionLost(f"the connection was lost: {ends[0]}")
    return (time.perf_counter() - began_s) * 1000


def _times(found_ms: Sequence[float]) -> str:
    if len(found_ms) == 1:
        return f"{found_ms[0]:.2f} ms"
    return (
        f"{quantile(found_ms, 0.5):.2f} ms (p99 {quantile(found_ms, 0.99):.2f}, "
        f"longest {max(found_ms):.2f}, {len(found_ms):,} times)"
    )


def _spread(found_ms: Sequence[float]) -> dict[str, float] | None:
    if not found_ms:
        return None
    return {
        "count": len(found_ms),
        "p50_ms": round(quantile(found_ms, 0.5), 3),
        "p99_ms": round(quantile(found_ms, 0.99), 3),
        "max_ms": round(max(found_ms), 3),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
