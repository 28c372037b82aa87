"""The `raylay` command: start a fabric, look at it, publish, subscribe, stop it.

`raylay up` starts a Ray of its own on this machine and holds it (in the background with
`--detach`); `raylay down` ends that process. `status`, `events`, `publish` and `subscribe` find the
fabric through its entry in the user's runtime directory (services/fabric/records/registry.py); the
last two talk to instances only and never to Ray.

A command's module is imported when the command is called: all of them together take half a second
of processor time, which `raylay --help` and `raylay publish` should not.
"""

from __future__ import annotations

import importlib
import logging
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
        "Start the fabric of a file, or of its instances' files, on the data that is there.",
    ),
    "apply": (
        f"{_COMMANDS}.lifecycle:apply",
        "Make a running fabric match its changed file while clients go on: stop instances that "
        "are gone, start new ones and restart changed ones, one after the other.",
    ),
    "down": (f"{_COMMANDS}.lifecycle:down", "Stop a fabric. Its data stays."),
    "status": (
        f"{_COMMANDS}.status:status",
        "Show every instance and its destinations, of all fabrics that run here or of one.",
    ),
    "list": (
        f"{_COMMANDS}.status:list_fabrics",
        "List the fabrics of this machine: those that run, those that are starting, and those that "
        "are stopped, with the command that starts them again.",
    ),
    "topics": (
        f"{_COMMANDS}.status:topics",
        "Show the topics of a fabric: their messages, size and rate, and who journals them.",
    ),
    "subscribers": (
        f"{_COMMANDS}.status:subscribers",
        "Show the subscribers of each instance, and how far behind each is.",
    ),
    "connections": (
        f"{_COMMANDS}.clients:connections",
        "Show the clients that are connected to each instance, those for which most waits first.",
    ),
    "consumers": (
        f"{_COMMANDS}.clients:consumers",
        "Show the consumers of a queue at every instance, and the messages that each holds.",
    ),
    "downgrade": (
        f"{_COMMANDS}.admin:downgrade",
        "Stop waiting for a destination before acknowledging publishers.",
    ),
    "upgrade": (
        f"{_COMMANDS}.admin:upgrade",
        "Wait again for a destination that is configured sync before acknowledging publishers.",
    ),
    "reconnect": (
        f"{_COMMANDS}.admin:reconnect",
        "Begin a link again: its process ends and another one dials.",
    ),
    "disconnect": (
        f"{_COMMANDS}.clients:disconnect",
        "End a client's connection.",
    ),
    "compact": (
        f"{_COMMANDS}.admin:compact",
        "Write the file of an instance's SOW topics again, without the space that deleted and "
        "replaced records left.",
    ),
    "diagnostics": (
        f"{_COMMANDS}.admin:diagnostics",
        "Print the state of an instance's links, queues and clients, a line each, and write it to "
        "the instance's log.",
    ),
    "action": (
        f"{_COMMANDS}.admin:action",
        "Perform an administrator's action by its path, such as "
        "transaction_log/journals/17/archive, or one of the configuration: actions/PATH.",
    ),
    "admit": (
        f"{_COMMANDS}.admin:admit",
        "Let an instance admit clients although no peer of its group has brought it up to date.",
    ),
    "restart": (
        f"{_COMMANDS}.admin:restart",
        "Restart instances one after the other while clients go on, each one when every link of "
        "the one before has caught up.",
    ),
    "stop": (
        f"{_COMMANDS}.maintenance:stop",
        "Stop one instance until `raylay start` while clients go on: they fail over, and nobody "
        "waits for it.",
    ),
    "start": (
        f"{_COMMANDS}.maintenance:start",
        "Start an instance that `raylay stop` stopped, and return when it has caught up.",
    ),
    "relocate": (
        f"{_COMMANDS}.admin:relocate",
        "Move an instance to another node of its region: it gets a new data directory, filled "
        "from its group.",
    ),
    "watch": (
        f"{_COMMANDS}.admin:watch",
        "Move instances whose host is away for longer than `relocate_after` in the settings, "
        "until this command is stopped.",
    ),
    "events": (
        f"{_COMMANDS}.events:events",
        "Show events: connects, downgrades, resyncs, late or conflicting records, …",
    ),
    "logs": (
        f"{_COMMANDS}.logs:logs",
        "Show the log of an instance and of the processes beside it, also after it was killed and "
        "while the fabric is down.",
    ),
    "error": (
        f"{_COMMANDS}.error:error",
        "Explain an event or a line of a log: what happened, why, and what to do.",
    ),
    "top": (
        f"{_COMMANDS}.top:top",
        "Watch a fabric: its instances, links, queues and clients on one screen, what is wrong "
        "first.",
    ),
    "console": (
        f"{_COMMANDS}.console:console",
        "Open a fabric's console in the browser, and print its address.",
    ),
    "ping": (
        f"{_COMMANDS}.ping:ping",
        "Ask each instance as a client does: connect, log on, and time round trips.",
    ),
    "context": (
        f"{_COMMANDS}.context:context_app",
        "Keep where the commands connect to, and as whom, under names.",
    ),
    "publish": (
        f"{_COMMANDS}.messages:publish",
        "Publish, and return when everything is persisted.",
    ),
    "bench": (
        f"{_COMMANDS}.bench:bench_app",
        "Load a fabric, and say how fast it was and how long each message took.",
    ),
    "delete": (
        f"{_COMMANDS}.messages:delete",
        "Delete records of a SOW topic, and return when that is persisted.",
    ),
    "sow": (
        f"{_COMMANDS}.sow:sow_app",
        "Print the current records of a SOW topic, one on each line.",
    ),
    "subscribe": (
        f"{_COMMANDS}.messages:subscribe",
        "Print messages as they arrive, one on each line.",
    ),
    "head": (
        f"{_COMMANDS}.head:head_app",
        "Start Ray's head of a fabric again, where it is away.",
    ),
    "reader": (
        f"{_COMMANDS}.readers:reader_app",
        "List the named readers that instances keep segments for, and drop one.",
    ),
    "queue": (
        f"{_COMMANDS}.queues:queue_app",
        "Show queues, and acknowledge, expire or give back their messages.",
    ),
    "transport": (
        f"{_COMMANDS}.transports:transport_app",
        "Show the transports of instances, and open or close them.",
    ),
    "certificates": (
        f"{_COMMANDS}.certificates:certificates",
        "Make certificates with a certificate authority of your own, which is created first.",
    ),
    "entitlement": (
        f"{_COMMANDS}.security:entitlement_app",
        "Show what users may do, and make instances ask again.",
    ),
    "password": (
        f"{_COMMANDS}.security:password",
        "Set the password of a user in a file of Argon2 hashes.",
    ),
    "filter": (f"{_COMMANDS}.filter:filter_command", "Print the messages that pass a filter."),
    "trace": (
        "raylay.services.telemetry.trace_report:trace_command",
        "Show the path of one message through all instances, or list the traces.",
    ),
    "drill": (
        f"{_COMMANDS}.drill:drill_command",
        "Break a running fabric on purpose, check every message, and write a report.",
    ),
    "fabric": (f"{_COMMANDS}.fabric:fabric_app", "Check a fabric before it runs."),
    "check": (f"{_COMMANDS}.host:check_app", "Check the hosts of a fabric."),
    "config": (f"{_COMMANDS}.config:config_app", "Check and show configuration files."),
    "pipeline": (
        "raylay.services.pipeline.commands:pipeline_app",
        "Spark over journals: archive, compact, expire, audit, aggregate, latency, replay.",
    ),
    "journal": (f"{_COMMANDS}.journal:journal_app", "Show, verify and maintain a journal."),
    "backup": (
        f"{_COMMANDS}.backup:backup",
        "Copy the data of instances while they run, and verify the copies.",
    ),
    "restore": (
        f"{_COMMANDS}.backup:restore_command",
        "Make the data directories of instances from backups.",
    ),
    "dump": (
        f"{_COMMANDS}.dump:dump",
        "Print what an instance's files hold: SOW records, acknowledgments of clients and of "
        "queues, the topic index of the journal, statistics.",
    ),
    "identify": (
        f"{_COMMANDS}.identify:identify_command",
        "Say what each file is, and what would be lost with it.",
    ),
    "find": (
        f"{_COMMANDS}.find:find_command",
        "Find lines of logs and messages of journals.",
    ),
    "statistics": (
        f"{_COMMANDS}.statistics:statistics_app",
        "Query an instance's statistics database, or report on it.",
    ),
}
"""Place of each command (module:name), and the beginning of its help."""


class CommandGroup(TyperGroup):
    """The commands of COMMANDS: each is imported when it is called, none for the list of them."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands, in the order of COMMANDS."""
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
        importlib.import_module(f"{_COMMANDS}.shared.connection_options").offer(command)
        made: TyperCommand | TyperGroup = command
        return made

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that is called, once the context that it means is entered."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            options = importlib.import_module(f"{_COMMANDS}.shared.connection_options")
            options.enter_context(ctx, command, rest)
        return name, command, rest

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
    # The client's warnings are advice for programs. ConnectionLog prints those that help a user.
    logging.getLogger("raylay.client").setLevel(logging.ERROR)
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
        from raylay.services.commands.shared.error_messages import error_line
        from raylay.services.commands.shared.printing import echo_text

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
