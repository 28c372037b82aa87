"""`raylay publish`, `delete` and `subscribe`: commands that talk to instances and never to Ray."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.client.credentials import credentials, tls_settings
from raylay.services.commands.publish import (
    INTERRUPTED,
    PublishResult,
    publish_lines,
    send_once,
    send_several,
)
from raylay.services.commands.shared.client_names import client_name
from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.interrupts import run_async
from raylay.services.commands.shared.message_output import MessageOutput
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupByOption,
    GroupOption,
    ProjectOption,
    ServerOption,
    running,
    servers_meant,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import (
    CommandFailed,
    ConfigurationError,
    ConnectionLost,
    FabricError,
    NoUsableServer,
)

if TYPE_CHECKING:
    from raylay.services.client import Client
    from raylay.services.client.queues.queue_consumer import AckMode
    from raylay.services.fabric.plan import FabricRecord
    from raylay.services.fabric.records.registry import RegistryEntry

EACH_SERVER_WAIT_S = 5.0
"""Time for which a command that needs each of several servers tries to reach one."""
TypeOption = Annotated[str, typer.Option("--type", help="The message type.")]


@contextmanager
def client_options(
    fabric: str, group: str, servers: list[str] | None, name: str, *, trace_all: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields the options of a client, from the fabric's own record, without asking Ray. Writes the
    client's traces at the end."""
    servers = servers_meant(fabric, servers)
    if servers:
        if trace_all:
            raise ConfigurationError(
                "--trace needs a fabric, whose settings name the directory of traces: give --fabric"
            )
        found = {"tls": tls_settings(), **credentials()}
        yield {"name": name, "servers": servers, "group": group, **found}
        return
    entry = running(fabric)
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.observability import tracing_options
    from raylay.services.fabric.plan import client_options
    from raylay.services.telemetry.client_traces import ClientTracer
    from raylay.services.telemetry.tracing import start_tracing

    record = _record_of(entry)
    settings = FabricSettings.from_json(record.settings)
    options = {"name": name, **client_options(settings, record, group, name)}
    options["tls"] = tls_settings() or options["tls"]
    tracing = tracing_options(settings, record.directory)
    if not tracing.enabled:
        if trace_all:
            raise ConfigurationError(
                f"fabric {entry.name} does not write traces: add `tracing: {{directory: traces}}`"
            )
        yield options
        return
    traces = start_tracing(name, tracing, of_client=True)
    options["tracer"] = ClientTracer(traces, name)
    options["sampling_ratio"] = 1.0 if trace_all else tracing.sampling_ratio
    try:
        yield options
    finally:
        traces.close()


def _record_of(entry: RegistryEntry) -> FabricRecord:
    from raylay.services.fabric.plan import FabricRecord

    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    return record


def with_client(
    fabric: str,
    group: str,
    servers: list[str] | None,
    name: str,
    work: Callable[[Client], Awaitable[None]],
) -> None:
    """Connects a client, and does some work with it. Ctrl-C ends both.

    Args:
        name: the beginning of the client's name.
    """

    async def run(options: dict[str, Any]) -> None:
        from raylay.services.client import Client

        async with Client(**options, on_event=ConnectionLog()) as client:
            await work(client)

    try:
        with client_options(fabric, group, servers, f"{name}-{os.getpid()}") as options:
            run_async(run(options))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def with_each_client(
    fabric: str,
    group: str,
    servers: list[str] | None,
    name: str,
    work: Callable[[Client], Awaitable[None]],
) -> list[str]:
    """Connects a client to each server, to all at once, and does some work with each: to each
    instance of the fabric, or of the group where one is named, or to each of `servers`.

    Args:
        name: the beginning of the client's name.

    Returns:
        A text for each server that was not reached, in the order of the servers, with its name and
        the reason. It ends no work with the others.

    Raises:
        The error of the first server, in that order, for which the work failed; it was done with
        the others.
    """
    from raylay.services.client import Client
    from raylay.services.client.failover import Server

    async def run(options: dict[str, Any]) -> str:
        (one,) = options["servers"]
        wait_s = EACH_SERVER_WAIT_S
        try:
            async with Client(**options, on_event=ConnectionLog(), connect_wait_s=wait_s) as client:
                await work(client)
        except (ConnectionLost, NoUsableServer) as error:
            where = one.instance or one.address if isinstance(one, Server) else one
            return f"{where} does not answer: {error}"
        return ""

    async def run_all(each: list[dict[str, Any]]) -> list[str | BaseException]:
        return await asyncio.gather(*map(run, each), return_exceptions=True)

    try:
        with ExitStack() as stack:
            of_each: list[dict[str, Any]] = []
            for each in _groups_meant(fabric, group, servers):
                found = client_options(fabric, each, servers, f"{name}-{os.getpid()}")
                options = stack.enter_context(found)
                of_each += (options | {"servers": [one]} for one in options["servers"])
            results = run_async(run_all(of_each))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [text for text in map(str, results) if text]


def _groups_meant(fabric: str, group: str, servers: list[str] | None) -> list[str]:
    if group or servers_meant(fabric, servers):
        return [group]
    from raylay.services.configuration.model import FabricSettings

    return FabricSettings.from_json(_record_of(running(fabric)).settings).groups()


def publish(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    body: Annotated[
        str | None, typer.Argument(help="The message; default: each line of the standard input.")
    ] = None,
    message_type: TypeOption = "json",
    delta: Annotated[
        bool,
        typer.Option("--delta", help="The messages are deltas: changed fields of SOW records."),
    ] = False,
    key: Annotated[
        str, typer.Option(help="The SOW key, on a topic whose publishers choose it.")
    ] = "",
    file: Annotated[
        str, typer.Option(help="A file with a message on each line; - is the standard input.")
    ] = "",
    count: Annotated[
        int,
        typer.Option(
            min=1, help="Publish the message so many times; {n} in it is then its number, from 1."
        ),
    ] = 1,
    expiry: Annotated[
        str,
        typer.Option(
            help="How long the message counts, such as 30s or 2h: then its SOW record expires, if "
            "its topic's `expiration` is not disabled, as it is by default, or the message in its "
            "queue, as the queue's `expiration_model` says."
        ),
    ] = "",
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace every message; then see `raylay trace`.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help=("Print the result as one JSON object."))
    ] = False,
) -> None:
    """Publish, and return when everything is persisted. Prints the last message's bookmark. Ctrl-C
    ends it with the sum so far."""
    if file and body is not None:
        raise ConfigurationError("give the message or --file, not both")
    if count > 1 and body is None:
        raise ConfigurationError("--count repeats a message: give it behind the topic")
    values = {
        "message_type": message_type,
        "key": key.encode(),
        "expiration_s": _expiration_s(expiry),
    }
    with (
        nullcontext(client) if client else client_name("publish") as name,
        _input(file) as source,
        client_options(fabric, group, server, name, trace_all=trace) as options,
    ):
        work = publish_lines(options, topic, body, values, delta=delta, count=count, source=source)
        done = run_async(work)
    _tell(done, as_json)


@contextmanager
def _input(file: str) -> Iterator[int | None]:
    """Yields the descriptor of a file of messages; None: they come from the standard input."""
    if file in ("", "-"):
        yield None
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _expiration_s(text: str) -> int:
    if not text:
        return 0
    from raylay.services.messages.documented_units import parse_interval_ns
    from raylay.services.messages.records import EXPIRATION_S_MAX

    try:
        seconds, rest = divmod(parse_interval_ns(text), 1_000_000_000)
    except ValueError as error:
        raise ConfigurationError(f"--expiry: {error}") from None
    if rest or not 0 < seconds <= EXPIRATION_S_MAX:
        raise ConfigurationError(
            f"--expiry {text}: give whole seconds, from 1 to {EXPIRATION_S_MAX:,}"
        )
    return seconds


def delete(
    topic: Annotated[str, typer.Argument(help="The SOW topic.")],
    content: Annotated[
        str | None,
        typer.Option("--filter", help="Delete the records that pass this filter; 1=1 passes all."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Delete the record of this SOW key; repeatable.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Delete the record that has the same key as this message.")
    ] = None,
    message_type: TypeOption = "json",
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=("Print the result as one JSON object."))
    ] = False,
) -> None:
    """Delete records of a SOW topic, and return when that is persisted. Give one of --filter, --key
    and --data, or --filter with --key to delete only those of the keys that pass. More than 50,000
    records are deleted in parts."""
    from raylay.services.client.publishing.deletes import delete_body

    what: dict[str, Any] = {
        "filter": content,
        "keys": [each.encode() for each in key] if key else None,
        "data": None if data is None else data.encode(),
    }
    delete_body(**what)  # Raises before anybody is connected to.
    with (
        nullcontext(client) if client else client_name("delete") as name,
        client_options(fabric, group, server, name) as options,
    ):
        done = run_async(_delete(options, topic, message_type, what))
    _tell(done, as_json)


async def _delete(
    options: dict[str, Any], topic: str, message_type: str, what: dict[str, Any]
) -> PublishResult:
    done = await send_once(
        options, lambda one: one.sow_delete(topic, message_type=message_type, **what)
    )
    refusal, content = done.refusal, what["filter"]
    is_much = isinstance(refusal, CommandFailed) and refusal.reason == "too_many"
    if not is_much or content is None or what["keys"] is not None:
        return done
    echo("raylay: too many records for one delete: they are deleted in parts", err=True)
    return await send_several(
        options,
        lambda one: one.sow_delete_in_parts(topic, filter=content, message_type=message_type),
    )


def _tell(done: PublishResult, as_json: bool) -> None:
    if as_json:
        echo_json(done.as_json())
    else:
        echo(done.line())
    if done.refusal is not None:
        raise done.refusal
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)


def subscribe(
    topic: Annotated[str, typer.Argument(help="A topic or a regular expression over topics.")],
    content: Annotated[
        str, typer.Option("--filter", help="Only messages that pass this filter.")
    ] = "",
    bookmark: Annotated[
        str,
        typer.Option(
            help=("The position to start at: 0 for the first message, a bookmark, a time, …")
        ),
    ] = "",
    not_found: Annotated[
        str,
        typer.Option(
            help="What to do if the bookmark is not in the log: `now`, `epoch` or `fail`."
        ),
    ] = "fail",
    sow: Annotated[
        bool,
        typer.Option(
            "--sow", help="Print the records of a SOW topic first, as of now or of --bookmark."
        ),
    ] = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Print only the key and the changed fields of a record.")
    ] = False,
    oof: Annotated[
        bool,
        typer.Option(
            "--oof", help=("Print also records that are deleted or no longer pass the filter.")
        ),
    ] = False,
    select: Annotated[str, typer.Option(help="The fields to print: `[-/,+/price]`.")] = "",
    conflate: Annotated[
        str,
        typer.Option(
            help="Print each record at most once in this interval, such as 1s; `auto`: only while "
            "the terminal does not keep up."
        ),
    ] = "",
    conflation_key: Annotated[
        list[str] | None,
        typer.Option(help="A field that makes the key of --conflate; repeatable."),
    ] = None,
    page: Annotated[
        str,
        typer.Option(
            help="Follow a window of the records, as SKIP:ROWS: 0:50 for the first 50. On a "
            "terminal it is a table that is redrawn."
        ),
    ] = "",
    order_by: Annotated[
        str, typer.Option(help="The order of the records of --page: `/price DESC, /symbol`.")
    ] = "",
    group_by: GroupByOption = None,
    project: ProjectOption = None,
    rate: Annotated[
        str,
        typer.Option(
            help="The speed of a replay: 500 messages a second, 500KB, or 2X of the original; with "
            "--bookmark or --durable."
        ),
    ] = "",
    fully_durable: Annotated[
        bool,
        typer.Option(
            "--fully-durable",
            help="Print only messages that every sync destination has; with --bookmark or "
            "--durable.",
        ),
    ] = False,
    durable: Annotated[
        str,
        typer.Option(
            help="A name under which the instances keep the place: the next subscriber of this "
            "name goes on from there; a new name begins at --bookmark, or with the first message."
        ),
    ] = "",
    backlog: Annotated[
        int,
        typer.Option(
            min=0,
            help="Consume a queue, with at most this many messages at a time; without it one by "
            "one.",
        ),
    ] = 0,
    ack: Annotated[
        str,
        typer.Option(
            help="Acknowledge a queue's messages: `auto`: when printed; `none`: they go back."
        ),
    ] = "auto",
    count: Annotated[int, typer.Option(min=0, help="End after this many messages; 0: never.")] = 0,
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help=(
                "Print one JSON object on each line: bookmark, key, correlation, times and body."
            ),
        ),
    ] = False,
) -> None:
    """Print messages as they arrive, one on each line."""
    name = client or f"raylay-subscribe-{os.getpid()}"
    if ack not in ("auto", "none"):
        raise typer.BadParameter(f"--ack {ack}: give auto or none")
    if (rate or fully_durable) and not (bookmark or durable):
        raise typer.BadParameter(
            "--rate and --fully-durable are of a replay: give --bookmark, such as 0 for the first "
            "message, or --durable"
        )
    if durable and any((sow, delta, oof, conflate, page, group_by, project, backlog)):
        raise typer.BadParameter(
            "--durable keeps a place in the log, and cannot be combined with --sow, --delta, "
            "--oof, --conflate, --page, --group-by, --project or --backlog"
        )
    others = (bookmark, sow, delta, oof, select, conflate, page, group_by, project)
    if backlog and any(others):
        raise typer.BadParameter(
            "--backlog consumes a queue, and cannot be combined with --bookmark, --sow, --delta, "
            "--oof, --select, --conflate, --page, --group-by or --project"
        )
    wanted: dict[str, Any] = {"filter": content}
    given: dict[str, Any] = {"oof": oof, "delta": delta, "select": select}
    given |= {"conflation": conflate, "conflation_key": conflation_key}
    given |= {"order_by": order_by, "grouping": group_by, "projection": project}
    if page:
        given |= page_of(page)
    sow = sow or bool(page or order_by or group_by or project)
    wanted |= {option: value for option, value in given.items() if value}
    if durable:
        wanted |= {"durable": durable}
    if bookmark or durable:
        wanted |= {"fully_durable": True} if fully_durable else {}
        wanted |= {"rate": rate} if rate else {}
    if bookmark:
        wanted |= {"bookmark": bookmark, "bookmark_not_found": not_found}
    focused = sow or oof or delta
    is_table = bool(page) and not (as_json or delta or count) and sys.stdout.isatty()
    try:
        with client_options(fabric, group, server, name) as options:
            if is_table:
                run_async(_show_page(options, topic, wanted))
            elif backlog:
                run_async(_consume(options, topic, content, backlog, ack, count, as_json))
            else:
                acknowledges = ack == "auto"
                run_async(
                    _subscribe(options, topic, sow, wanted, count, as_json, focused, acknowledges)
                )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def page_of(text: str) -> dict[str, int]:
    """Returns the options of a page such as `100:50`: the 50 rows behind the first 100.

    Raises:
        typer.BadParameter: the text is no page.
    """
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text)
    if match is None or not int(match[2]):
        raise typer.BadParameter(
            f"--page {text}: give the rows to skip and the rows to show, such as 0:50"
        )
    return {"skip_n": int(match[1]), "top_n": int(match[2])}


async def _subscribe(
    options: dict[str, Any],
    topic: str,
    sow: bool,
    wanted: dict[str, Any],
    count: int,
    as_json: bool,
    focused: bool,
    acknowledges: bool,
) -> None:
    """Prints messages as they arrive.

    Args:
        acknowledges: whether messages are acknowledged when they were printed, if the topic is a
            queue: the instance has leased them to this command.
    """
    from raylay.services.client import Client

    left = count
    output = MessageOutput(as_json, focused)
    async with Client(**options, on_event=ConnectionLog()) as client:
        begin = client.sow_and_subscribe if sow else client.subscribe
        subscription = await begin(topic, **wanted)
        async for batch in subscription.batches():
            shown = [*islice(batch, left)] if count else [*batch]
            await output.write(shown)
            if batch.queue and acknowledges:
                client.acknowledge(
                    batch.queue,
                    [each.bookmark for each in shown],
                    message_type=shown[0].message_type,
                )
            left -= len(shown)
            if count and not left:
                subscription.count_handed_out(len(shown))
                return


async def _show_page(options: dict[str, Any], topic: str, wanted: dict[str, Any]) -> None:
    from raylay.services.client import Client
    from raylay.services.commands.shared.live_page import show_page

    order_by = wanted.get("order_by", "")
    async with Client(**options, on_event=ConnectionLog()) as client:
        # A row that leaves the window has to leave the table.
        page = await client.sow_and_subscribe(topic, **wanted | {"oof": True})
        first = wanted.get("skip_n", 0) + 1
        title = f"{topic}, rows {first:,} to {first + wanted['top_n'] - 1:,}"
        await show_page(page, f"{title} by {order_by}" if order_by else title, order_by)


async def _consume(
    options: dict[str, Any],
    queue: str,
    content: str,
    backlog: int,
    ack: str,
    count: int,
    as_json: bool,
) -> None:
    """Prints messages of a queue, one on each line, as a consumer of the queue.

    Args:
        ack: `auto`: a message is acknowledged when its line was printed; `none`: none is, and the
            messages go back to the queue at the end.
        count: number of messages after which the command ends; 0: never.
    """
    from raylay.services.client import Client

    output = MessageOutput(as_json)
    async with Client(**options, on_event=ConnectionLog()) as client:
        how: AckMode = "auto" if ack == "auto" else "manual"
        async with client.queue(queue, filter=content, backlog=backlog, ack=how) as work:
            left = count
            async for message in work:
                # Before it is acknowledged: whoever reads the lines has it.
                await output.write([message])
                left -= 1
                if not left:
                    return
