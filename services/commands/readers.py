"""`raylay reader`: lists the named readers that instances keep segments for, and drops one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.messages import with_each_client
from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupOption,
    HttpOption,
    JsonOption,
    ServerOption,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.messages.spelling import did_you_mean

if TYPE_CHECKING:
    from raylay.services.client import Client

SHARED = ("name", "user", "topic")
"""The values of a reader that are the same wherever it has a place."""
Row = dict[str, Any]
AnyUserOption = Annotated[
    bool,
    typer.Option(
        "--any-user",
        help="Readers of every user, as an operator: over Ray or the administrator's interfaces.",
    ),
]

reader_app = typer.Typer(
    add_completion=False,
    help="List the named readers that instances keep segments for, and drop one.",
    pretty_exceptions_enable=False,
)


@reader_app.command("list")
def show(
    context: typer.Context,
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    any_user: AnyUserOption = False,
    http: HttpOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the named readers, and how many messages of its topic each lacks at each instance.

    `at most` stands before an upper bound: of a reader with a filter, and as long as an instance
    has not read the headers of its whole journal, as after its start. The JSON has it as `at_most`.
    Every instance of the fabric is asked, or of --group, or every --server: each instance has
    readers and places of its own. An instance that does not answer is named on stderr. Where users
    have permissions, their own readers are listed; --any-user lists those of all.
    """
    _check_way(context, any_user=any_user)
    told: dict[str, list[Row]] = {}

    async def ask(client: Client) -> None:
        told[client.instance] = await client.readers.known()

    if any_user:
        with controlled(fabric, http) as attached:
            told, unreached = readers_told(attached.status()["instances"], group)
    else:
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
        for line in reader_lines(reader, with_user=any_user):
            echo(line)
    if not found:
        echo(f"{', '.join(sorted(told))} {'has' if len(told) == 1 else 'have'} no named readers")


def _check_way(context: typer.Context, *, any_user: bool) -> None:
    """Raises ConfigurationError where an option of the command line belongs to the other way; a
    variable or a context of the shell may hold options of both."""
    typed = {
        name
        for name in ("server", "http")
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if any_user and "server" in typed:
        raise ConfigurationError(
            "--any-user does not connect to a --server: give --fabric, or --http with the address "
            "of an administrator's interface"
        )
    if "http" in typed and not any_user:
        raise ConfigurationError("--http asks as an operator does: give --any-user with it")


def readers_told(
    instances: Iterable[Mapping[str, Any]], group: str
) -> tuple[dict[str, list[Row]], list[str]]:
    """Returns the readers of all users by instance, and a text for each instance that does not tell
    them.

    Args:
        instances: the statuses of the instances.
        group: the group whose instances count; empty: all.
    """
    told: dict[str, list[Row]] = {}
    unreached = []
    for each in instances:
        if group and each.get("group") != group:
            continue
        if "readers" in each:
            told[str(each["name"])] = list(each["readers"])
        else:
            why = f"{each.get('phase') or 'unknown'}: {each.get('reason') or ''}".rstrip(": ")
            unreached.append(f"{each['name']} does not answer: {why}")
    return told, unreached


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


def reader_lines(reader: Row, *, with_user: bool = False) -> list[str]:
    """Returns a line for each place of a reader, with the instances where it has that place."""
    user = f"  {reader['user'] or 'nobody in particular'}" if with_user else ""
    places: dict[tuple[int, bool, int], list[Row]] = {}
    for each in reader["instances"]:
        place = each["behind"], each["at_most"], each["expires_s"]
        places.setdefault(place, []).append(each)
    lines = []
    for (behind, at_most, expires_s), at in places.items():
        heard = sorted({each["told_s"] for each in at})
        heard_text = " to ".join(f"{each:,}" for each in dict.fromkeys((heard[0], heard[-1])))
        instances = ", ".join(each["instance"] for each in at)
        bound, plural = "at most " if at_most else "", "" if behind == 1 else "s"
        lines.append(
            f"{reader['name']}{user}  {reader['topic']}  {instances}: {bound}{behind:,} "
            f"message{plural} behind, heard of {heard_text} s ago, expires after {expires_s:,} s"
        )
    return lines


@reader_app.command("drop")
def drop(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name of the reader.")],
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    any_user: AnyUserOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let instances forget a named reader: retention then removes what only it needed.

    Every instance of the fabric is told, or of --group, or every --server: a reader may have told
    several of them its place. A user drops a reader of that user; an operator, whose permissions
    allow /amps/administrator/readers/NAME/drop, drops one of any user with --any-user.
    """
    _check_way(context, any_user=any_user)
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

    if any_user:
        with controlled(fabric, http) as attached:
            told, unreached = readers_told(attached.status()["instances"], group)
            for instance, rows in told.items():
                names = {str(each["name"]) for each in rows}
                asked.append(instance)
                known.update(names)
                if name in names:
                    attached.control(instance, "drop_reader", reader=name)
                    dropped.append(instance)
    else:
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
