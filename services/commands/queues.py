"""`raylay queue`: shows a queue, and acknowledges, expires or gives back its messages. `raylay
subscribe QUEUE --backlog N` consumes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.messages import with_client
from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupOption,
    HttpOption,
    JsonOption,
    ServerOption,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result

if TYPE_CHECKING:
    from raylay.services.client import Client
    from raylay.services.client.queues.queue import Settling

queue_app = typer.Typer(
    add_completion=False,
    help="Show queues, and acknowledge, expire or give back their messages.",
    pretty_exceptions_enable=False,
)
FIRST = {
    "topic": "queue",
    "queue_depth": "depth",
    "available_here": "available here",
    "leases": "leased here",
    "consumers": "consumers here",
}
"""Values of a queue's status that are shown without --all, with the names by which they are."""
QueueArgument = Annotated[str, typer.Argument(help="The name of the queue.")]
TypeOption = Annotated[str, typer.Option("--type", help="The message type of the queue.")]
BookmarksArgument = Annotated[
    list[str] | None, typer.Argument(help="Bookmarks of messages: publisher|sequence|.")
]
ContentOption = Annotated[
    str, typer.Option("--filter", help="All messages that pass this filter, at this instance.")
]


@queue_app.command("status")
def status(
    queue: QueueArgument,
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    every: Annotated[bool, typer.Option("--all", help="Show all values of the status.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all values as one JSON object.")
    ] = False,
) -> None:
    """Show the status of a queue at one instance: how many messages wait, are leased, and are owned
    there."""

    async def show(client: Client) -> None:
        found = await client.queue_status(queue, message_type=message_type)
        if as_json:
            echo_json(found)
            return
        if every:
            rows = [(name.replace("_", " "), _number(name, value)) for name, value in found.items()]
        else:
            rows = first_rows(found)
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            echo(f"{name:<{width}}  {text}")
        if not every:
            echo("--all shows the other values")

    with_client(fabric, group, server, "raylay-queue", show)


def first_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns name and text of what a user asks first about a queue, from its status."""
    rows = [(label, _number(name, found[name])) for name, label in FIRST.items() if name in found]
    if "age_of_oldest_lease_us" in found:
        age_us = found["age_of_oldest_lease_us"]
        rows.append(("oldest lease", "-" if age_us is None else f"{age_us / 1e6:,.1f} s"))
    # These say something only where they differ from the usual.
    if found.get("dead_letters"):
        rows.append(("dead letters go to", found["dead_letters"]))
    if found.get("is_ready") is False:
        rows.append(("is ready", "False: the queue still reads what is in the log"))
    if found.get("why"):
        rows.append(("why", found["why"]))
    return rows


def _number(name: str, value: Any) -> str:
    if value is None:
        return "-" if name == "age_of_oldest_lease_us" else "unknown"
    if type(value) is int and name != "pid":
        return f"{value:,}"
    return str(value)


@queue_app.command("ack")
def acknowledge(
    queue: QueueArgument,
    bookmarks: BookmarksArgument = None,
    content: ContentOption = "",
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Acknowledge messages: no consumer gets them any more. Give bookmarks, or --filter."""
    _say(queue, bookmarks, content, message_type, "ack", (fabric, group, server), as_json)


@queue_app.command("expire")
def expire(
    queue: QueueArgument,
    bookmarks: BookmarksArgument = None,
    content: ContentOption = "",
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove messages that no consumer can process. Give bookmarks, or --filter."""
    _say(queue, bookmarks, content, message_type, "expire", (fabric, group, server), as_json)


@queue_app.command("cancel")
def cancel(
    queue: QueueArgument,
    content: ContentOption = "",
    message_type: TypeOption = "json",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give back messages that consumers hold and that pass --filter, so that other consumers get
    them."""
    _say(queue, None, content, message_type, "cancel", (fabric, group, server), as_json)


@queue_app.command("proxied")
def proxied(
    queue: QueueArgument,
    instance: Annotated[str, typer.Argument(help="The instance that takes the messages over.")],
    fabric: FabricOption = "",
    off: Annotated[bool, typer.Option("--off", help="Turn the takeover off again.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let one instance take over messages of instances that it cannot reach, until --off; this
    lasts over restarts. An instance that is only cut off may deliver them too, so let no consumers
    use it."""
    with controlled(fabric, http) as attached:
        line = attached.proxied(instance, queue, on=not off)
    echo_result(as_json, line, instance=instance, queue=queue, proxied=not off, message=line)


def _say(
    queue: str,
    bookmarks: list[str] | None,
    content: str,
    message_type: str,
    how: Settling,
    where: tuple[str, str, list[str] | None],
    as_json: bool,
) -> None:
    if bool(bookmarks) == bool(content):
        ways = "--filter" if how == "cancel" else "either bookmarks or --filter"
        raise typer.BadParameter(f"name the messages: give {ways}; --filter 1=1 passes all of them")

    async def say(client: Client) -> None:
        if bookmarks and how != "cancel":
            client.acknowledge(queue, bookmarks, message_type=message_type, how=how)
            await client.flush()
            line = f"{len(bookmarks):,} said of {queue}: it is durable"
            echo_result(as_json, line, queue=queue, command=how, messages=len(bookmarks))
            return
        count = await client.acknowledge_matching(
            queue, content, message_type=message_type, how=how
        )
        line = f"{count:,} messages of {queue}"
        echo_result(as_json, line, queue=queue, command=how, messages=count)

    with_client(*where, "raylay-queue", say)
