"""`raylay reader`: lists the named readers that instances keep segments for, and drops one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.messages import with_each_client
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

SHARED = ("name", "user", "topic")
"""The values of a reader that are the same wherever it has a place."""
Row = dict[str, Any]

reader_app = typer.Typer(
    add_completion=False,
    help="List the named readers that instances keep segments for, and drop one.",
    pretty_exceptions_enable=False,
)


@reader_app.command("list")
def show(
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the named readers, and how many messages each lacks at each instance.

    Every instance of the fabric is asked, or of --group, or every --server: each instance has
    readers and places of its own. An instance that does not answer is named on stderr.
    """
    told: dict[str, list[Row]] = {}

    async def ask(client: Client) -> None:
        told[client.instance] = await client.readers.known()

    unreached = with_each_client(fabric, group, server, "raylay-reader", ask)
    if not told:
        raise RaylayError("no instance tells its readers: " + "; ".join(unreached))
    for each in unreached:
        echo(f"raylay: {each}", err=True)
    found = merged_readers(dict(sorted(told.items())))
    if as_json:
        echo_json(found)
        return
    for reader in found:
        for line in reader_lines(reader):
            echo(line)
    if not found:
        echo(f"{', '.join(sorted(told))} {'has' if len(told) == 1 else 'have'} no named readers")


def merged_readers(told: Mapping[str, Iterable[Row]]) -> list[Row]:
    """Returns the readers of several instances by name, user and topic, each with its places.

    Args:
        told: the readers that each instance told.
    """
    merged: dict[tuple[str, ...], Row] = {}
    for instance, readers in told.items():
        for each in readers:
            shared = {name: each[name] for name in SHARED}
            reader = merged.setdefault(tuple(shared.values()), {**shared, "instances": []})
            place = {name: value for name, value in each.items() if name not in SHARED}
            reader["instances"].append({"instance": instance, **place})
    return [merged[key] for key in sorted(merged)]


def reader_lines(reader: Row) -> list[str]:
    """Returns a line for each place of a reader, with the instances where it has that place."""
    places: dict[tuple[int, int], list[Row]] = {}
    for each in reader["instances"]:
        places.setdefault((each["behind"], each["expires_s"]), []).append(each)
    lines = []
    for (behind, expires_s), at in places.items():
        heard = sorted({each["told_s"] for each in at})
        heard_text = " to ".join(f"{each:,}" for each in dict.fromkeys((heard[0], heard[-1])))
        lines.append(
            f"{reader['name']}  {reader['topic']}  {', '.join(each['instance'] for each in at)}: "
            f"{behind:,} messages behind, heard of {heard_text} s ago, expires after "
            f"{expires_s:,} s"
        )
    return lines


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
        line = f"{', '.join(sorted(dropped))} {verb} nothing for reader {name}"
        echo_result(as_json, line, reader=name, dropped=True, instances=sorted(dropped))
    if unreached:
        raise RaylayError(
            "an instance that was not reached may keep the reader, so drop it again when it runs: "
            + "; ".join(unreached)
        )
    if not dropped:
        have = f"there are {', '.join(sorted(known))}" if known else "there are none"
        hint = did_you_mean(name, known) or have
        raise RaylayError(f"{', '.join(sorted(asked))}: no reader {name[:200]!r}: {hint}")
