"""`raylay reader`: lists the named readers that an instance keeps segments for, and drops one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.commands.messages import with_client, with_each_client
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupOption,
    JsonOption,
    ServerOption,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result
from raylay.services.errors import RaylayError
from raylay.services.messages.spelling import did_you_mean

if TYPE_CHECKING:
    from raylay.services.client import Client

reader_app = typer.Typer(
    add_completion=False,
    help="List the named readers that an instance keeps segments for, and drop one.",
    pretty_exceptions_enable=False,
)


@reader_app.command("list")
def show(
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the named readers of one instance, and how many messages each lacks."""

    async def ask(client: Client) -> None:
        found = await client.readers.known()
        if as_json:
            echo_json(found)
            return
        for each in found:
            echo(
                f"{each['name']}  {each['topic']}  {each['behind']:,} messages behind, heard of "
                f"{each['told_s']:,} s ago, expires after {each['expires_s']:,} s"
            )
        if not found:
            echo(f"{client.instance} has no named readers")

    with_client(fabric, group, server, "raylay-reader", ask)


@reader_app.command("drop")
def drop(
    name: Annotated[str, typer.Argument(help="The name of the reader.")],
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let instances forget a named reader: retention then removes what only it needed.

    Every instance of the fabric is told, or of --group, or every --server: a reader may have told
    several of them its place.
    """
    asked: list[str] = []
    dropped: list[str] = []
    known: set[str] = set()

    async def ask(client: Client) -> None:
        names = {str(each["name"]) for each in await client.readers.known()}
        asked.append(client.instance)
        known.update(names)
        if name in names:
            await client.readers.drop(name)
            dropped.append(client.instance)

    unreached = with_each_client(fabric, group, server, "raylay-reader", ask)
    if dropped:
        verb = "keeps" if len(dropped) == 1 else "keep"
        line = f"{', '.join(dropped)} {verb} nothing for reader {name}"
        echo_result(as_json, line, reader=name, dropped=True, instances=dropped)
    if unreached:
        raise RaylayError(
            "an instance that was not reached may keep the reader, so drop it again when it runs: "
            + "; ".join(unreached)
        )
    if not dropped:
        have = f"there are {', '.join(sorted(known))}" if known else "there are none"
        hint = did_you_mean(name, known) or have
        raise RaylayError(f"{', '.join(asked)}: no reader {name[:200]!r}: {hint}")
