"""`raylay publish` and `raylay subscribe`: they talk to instances only and never to Ray."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from raylay.services.commands.options import (
    FabricOption,
    GroupOption,
    ServerOption,
    running,
    servers_meant,
)
from raylay.services.commands.publishing import INTERRUPTED, publish_lines
from raylay.services.commands.waiting_lines import WaitingLines
from raylay.services.errors import ConfigurationError, FabricError


@contextmanager
def _client_options(
    fabric: str, group: str, servers: list[str] | None, name: str, *, trace_all: bool = False
) -> Iterator[dict[str, Any]]:
    """Arguments of a client, from the fabric's own record: no Ray is asked. On leaving, what the
    client traced is written."""
    servers = servers_meant(fabric, servers)
    if servers:
        if trace_all:
            raise ConfigurationError("--trace needs a fabric: where traces go is in its settings")
        yield {"name": name, "servers": servers, "group": group}
        return
    entry = running(fabric)
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord, client_options, tracing_options
    from raylay.services.telemetry.tracing import ClientTracer, start_tracing

    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    settings = FabricSettings.from_json(record.settings)
    options = {"name": name, **client_options(settings, record, group, name)}
    tracing = tracing_options(settings, record)
    if not tracing.enabled:
        if trace_all:
            raise ConfigurationError(
                f"fabric {entry.name} traces nothing: add `tracing: {{directory: traces}}`"
            )
        yield options
        return
    traces = start_tracing(name, tracing)
    options["tracer"] = ClientTracer(traces, name)
    options["sampling_ratio"] = 1.0 if trace_all else tracing.sampling_ratio
    try:
        yield options
    finally:
        traces.close()


def publish(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    body: Annotated[
        str | None, typer.Argument(help="The message; without it each line of the input is one.")
    ] = None,
    message_type: Annotated[str, typer.Option("--type", help="The message type.")] = "json",
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace every message; then see `raylay trace`.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one object.")] = False,
) -> None:
    """Publish; returns when everything is persisted. Tells the last message's bookmark. Ctrl-C ends
    it with the sum so far."""
    name = client or f"raylay-publish-{os.getpid()}"
    with _client_options(fabric, group, server, name, trace_all=trace) as options:
        done = asyncio.run(publish_lines(options, topic, body, message_type))
    typer.echo(json.dumps(done.as_json()) if as_json else done.line())
    if done.refusal is not None:
        raise done.refusal
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)


def subscribe(
    topic: Annotated[str, typer.Argument(help="A topic or a regular expression over topics.")],
    content: Annotated[
        str, typer.Option("--filter", help="Only messages whose content passes it.")
    ] = "",
    bookmark: Annotated[
        str, typer.Option(help="Where to begin: 0 for the first message, a bookmark, a time, …")
    ] = "",
    not_found: Annotated[
        str, typer.Option(help="Where the bookmark is not in the log: `now`, `epoch` or `fail`.")
    ] = "fail",
    count: Annotated[int, typer.Option(min=0, help="End after as many; 0: never.")] = 0,
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a line, with topic and bookmark.")
    ] = False,
) -> None:
    """Print messages, one a line, as they come."""
    name = client or f"raylay-subscribe-{os.getpid()}"
    try:
        with _client_options(fabric, group, server, name) as options:
            asyncio.run(_subscribe(options, topic, content, bookmark, not_found, count, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _subscribe(
    options: dict[str, Any],
    topic: str,
    content: str,
    bookmark: str,
    not_found: str,
    count: int,
    as_json: bool,
) -> None:
    from raylay.services.client import Client

    left = count
    async with Client(**options, on_event=WaitingLines()) as client:
        subscription = await client.subscribe(
            topic,
            filter=content,
            bookmark=bookmark,
            bookmark_not_found=not_found if bookmark else "",
        )
        async for batch in subscription.batches():
            for message in batch:
                if as_json:
                    line = json.dumps(
                        {
                            "topic": message.topic,
                            "bookmark": message.bookmark,
                            "timestamp_us": message.timestamp_us,
                            "body": message.body.decode("utf-8", "replace"),
                        }
                    )
                    sys.stdout.write(f"{line}\n")
                else:
                    sys.stdout.buffer.write(message.body + b"\n")
                left -= 1
                if not left:
                    sys.stdout.flush()
                    return
            sys.stdout.flush()
