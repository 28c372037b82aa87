"""The `raylay` command: start a fabric, look at it, publish, subscribe, stop it.

`raylay up` starts a Ray of its own on this machine and holds it (in the background with
`--detach`); `raylay down` ends that process. `status`, `events`, `publish` and `subscribe` find the
fabric through its entry in the user's runtime directory (services/fabric/registry.py); the last two
talk to instances only and never to Ray.

A command's module is imported when the command is called: all of them together take half a second
of processor time, which `raylay --help` and `raylay publish` should not.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

_COMMANDS = "raylay.services.commands"
# What `raylay --help` says of each is the beginning of its own help: a test compares them.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": (
        f"{_COMMANDS}.lifecycle:up",
        "Start the fabric of a file, or of its instances' files; again on the data that is there.",
    ),
    "apply": (
        f"{_COMMANDS}.lifecycle:apply",
        "Make a running fabric what its changed file says, while clients go on: start what is new, "
        "restart what differs, one after the other.",
    ),
    "down": (f"{_COMMANDS}.lifecycle:down", "Stop a fabric: its data stays."),
    "status": (
        f"{_COMMANDS}.status:status",
        "Show every instance and its destinations, of all fabrics that run here or of one. Exit "
        "code 1 where one is not ready.",
    ),
    "list": (
        f"{_COMMANDS}.status:list_fabrics",
        "List the fabrics of this machine: those that run, and those that are stopped with the "
        "command that starts them again.",
    ),
    "topics": (
        f"{_COMMANDS}.status:topics",
        "Show the topics of a fabric, what is published to each now, and who journals it.",
    ),
    "subscribers": (
        f"{_COMMANDS}.status:subscribers",
        "Show who subscribes at which instance, and how far behind each is.",
    ),
    "downgrade": (
        f"{_COMMANDS}.admin:downgrade",
        "Let persisted acks no longer wait for a destination, until an upgrade or a restart.",
    ),
    "upgrade": (
        f"{_COMMANDS}.admin:upgrade",
        "Let persisted acks wait again for a destination that is configured sync.",
    ),
    "admit": (
        f"{_COMMANDS}.admin:admit",
        "Let an instance admit clients although no peer of its group has brought what it has.",
    ),
    "restart": (
        f"{_COMMANDS}.admin:restart",
        "Restart instances one after the other while clients go on, each when every link has "
        "caught up behind the one before: to bring a release into use that was installed. One that "
        "is named and down is started, with a configuration written anew where its disk was lost.",
    ),
    "relocate": (
        f"{_COMMANDS}.admin:relocate",
        "Move an instance to another node of its region: a new data directory, filled from its "
        "group. What it was before is retired for good. What was done is shown before it is ready.",
    ),
    "watch": (
        f"{_COMMANDS}.admin:watch",
        "Move instances whose host is away for longer than `relocate_after` of the settings, until "
        "it is stopped. Start it where Ray's head can be reached, once; without the setting it "
        "refuses.",
    ),
    "events": (
        f"{_COMMANDS}.status:events",
        "Show what happened: connects, downgrades, resyncs, late or conflicting records, …",
    ),
    "publish": (
        f"{_COMMANDS}.messages:publish",
        "Publish; returns when everything is persisted. Tells the last message's bookmark.",
    ),
    "delete": (
        f"{_COMMANDS}.messages:delete",
        "Delete records of a SOW topic; returns when that is persisted. Give one of --filter, "
        "--key and --data, or --filter and --key: of those what passes. More than 50,000 are "
        "deleted in parts.",
    ),
    "sow": (
        f"{_COMMANDS}.sow:sow_app",
        "Print the records of a SOW topic as they are now, one a line. `raylay sow diff` compares "
        "two instances.",
    ),
    "subscribe": (f"{_COMMANDS}.messages:subscribe", "Print messages, one a line, as they come."),
    "queue": (
        f"{_COMMANDS}.queues:queue_app",
        "Look at queues, and say what is to become of their messages.",
    ),
    "transport": (
        f"{_COMMANDS}.transports:transport_app",
        "Look at where instances let others in, and open or shut it.",
    ),
    "certificates": (
        f"{_COMMANDS}.certificates:certificates",
        "Make certificates by a CA of your own, which is made with the first. Called again it "
        "renews them by the same CA; instances take them up while they run.",
    ),
    "entitlement": (
        f"{_COMMANDS}.security:entitlement_app",
        "Look at what users may do, and have it asked anew.",
    ),
    "password": (
        f"{_COMMANDS}.security:password",
        "Set the password of a user in a file of Argon2 hashes. It is asked for, or read from the "
        "input where that is no terminal. Instances read the file at the next logon.",
    ),
    "filter": (
        f"{_COMMANDS}.filter:filter_command",
        "Print the messages that pass a filter. Exit code 2 with the column where it is no filter, "
        "1 where a message cannot be read; those behind it are looked at all the same.",
    ),
    "trace": (
        "raylay.services.telemetry.trace_report:trace_command",
        "Show the way of one message through all instances, or list the traces.",
    ),
    "drill": (
        f"{_COMMANDS}.drill:drill_command",
        "Break a running fabric on purpose, judge what became of every message, write a report.",
    ),
    "fabric": (f"{_COMMANDS}.fabric:fabric_app", "Look at a fabric before it runs."),
    "check": (f"{_COMMANDS}.host:check_app", "Check what a fabric stands on."),
    "config": (f"{_COMMANDS}.config:config_app", "Check and show configuration files."),
    "pipeline": (
        "raylay.services.pipeline.commands:pipeline_app",
        "Spark over journals: archive, audit, aggregate, latency, replay, publish.",
    ),
    "journal": (f"{_COMMANDS}.journal:journal_app", "Look at, verify and tidy a journal."),
}
"""Where each command is (module:name), and the first paragraph of its help."""
_OF_CLIENTS = tuple(
    COMMANDS[name][0] for name in ("publish", "delete", "subscribe", "sow", "queue", "pipeline")
)
"""They speak to servers, and may do so over TLS."""


class CommandGroup(TyperGroup):
    """The commands of COMMANDS: each is imported when it is called, none for the list of them."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """The command of this name; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        place, about = COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=about)
        module, _, attribute = place.partition(":")
        found: Any = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(cmd_name)(found)
            found = alone
        command: Any = typer.main.get_command(found)
        command.name = cmd_name
        if place in _OF_CLIENTS:
            importlib.import_module(f"{_COMMANDS}.tls_options").offer(command)
        made: TyperCommand | TyperGroup = command
        return made

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """`raylay --help`."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


app = typer.Typer(
    cls=CommandGroup,
    help="Raylay, a leaderless replicated message broker on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point: what went wrong is one line and exit code 1. A traceback is a mistake of
    ours, and nothing else."""
    try:
        try:
            app()
        finally:
            # Here, where it can be told that a disk does not take it.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`: nobody is left to tell.
        _give_up_output()
        sys.exit(1)
    except Exception as error:
        from raylay.services.commands.error_messages import error_line
        from raylay.services.commands.printing import echo_text

        line = error_line(error)
        if line is None:
            raise
        echo_text(line, err=True)
        sys.exit(1)


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"raylay {importlib.metadata.version('raylay')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
