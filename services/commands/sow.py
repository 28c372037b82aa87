"""`raylay sow TOPIC`: the records of a SOW topic. `raylay sow diff` is in sow_diff.py."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from raylay.services.commands.messages import client_options
from raylay.services.commands.publish import INTERRUPTED
from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.connection_options import offer
from raylay.services.commands.shared.interrupts import run_async
from raylay.services.commands.shared.message_output import MessageOutput
from raylay.services.commands.shared.options import (
    FabricOption,
    GroupByOption,
    GroupOption,
    ProjectOption,
    ServerOption,
)
from raylay.services.commands.sow_diff import diff_command


def sow(
    topic: Annotated[str, typer.Argument(help="A SOW topic, or a regular expression over topics.")],
    content: Annotated[
        str, typer.Option("--filter", help="Only records that pass this filter.")
    ] = "",
    order_by: Annotated[str, typer.Option(help="The order: `/price DESC, /symbol`.")] = "",
    top: Annotated[int, typer.Option(min=0, help="Print at most this many records; 0: all.")] = 0,
    skip: Annotated[int, typer.Option(min=0, help="Skip this many records first; with --top.")] = 0,
    select: Annotated[str, typer.Option(help="The fields to print: `[-/,+/price]`.")] = "",
    group_by: GroupByOption = None,
    project: ProjectOption = None,
    at: Annotated[
        str, typer.Option(help="Print the records of this time (UTC), on a topic with history.")
    ] = "",
    key: Annotated[
        list[str] | None, typer.Option(help="Only the record of this SOW key; repeatable.")
    ] = None,
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help=("Print one JSON object on each line, with topic, key and bookmark.")
        ),
    ] = False,
) -> None:
    """Print the current records of a SOW topic, one on each line. `raylay sow diff` compares two
    instances."""
    asked: dict[str, Any] = {
        "filter": content,
        "order_by": order_by,
        "top_n": top or None,
        "skip_n": skip,
        "select": select,
        "as_of": at,
        "grouping": group_by or (),
        "projection": project or (),
        "keys": [each.encode() for each in key] if key else None,
    }
    name = client or f"raylay-sow-{os.getpid()}"
    try:
        with client_options(fabric, group, server, name) as options:
            run_async(_print_records(options, topic, asked, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _print_records(
    options: dict[str, Any], topic: str, asked: dict[str, Any], as_json: bool
) -> None:
    from raylay.services.client import Client

    output = MessageOutput(as_json, focused=True)
    async with Client(**options, on_event=ConnectionLog()) as client:
        async for batch in client.sow(topic, **asked).batches():
            await output.write(batch)


class SowGroup(TyperGroup):
    """The group `raylay sow`, in which a name that is no subcommand is a topic."""

    @property
    def alone(self) -> TyperCommand:
        """Returns the command that runs where no subcommand is named."""
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        one.command("sow")(sow)
        found: Any = typer.main.get_command(one)
        command: TyperCommand = found
        # Made here, so that it has not been given the options before.
        offer(command)
        return command

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the subcommand of this name; for a topic, the command that prints its records."""
        return super().get_command(ctx, cmd_name) or self.alone

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Distinguishes a subcommand from a topic, and parses the arguments for it."""
        if args and super().get_command(parent, args[0]) is not None:
            return super().make_context(info_name, args, parent, **extra)
        return self.alone.make_context(info_name, args, parent, **extra)


sow_app = typer.Typer(
    add_completion=False, cls=SowGroup, help=sow.__doc__, pretty_exceptions_enable=False
)
sow_app.command("diff")(diff_command)


@sow_app.callback()
def _group() -> None:
    pass
