"""The `raylay` command: start a fabric, look at it, publish, subscribe, stop it.

`raylay up` starts a Ray of its own on this machine and holds it (in the background with
`--detach`); `raylay down` ends that process. `status`, `events`, `publish` and `subscribe` find the
fabric through its entry in the user's runtime directory (services/fabric/registry.py); the last two
talk to instances only and never to Ray.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from typing import Annotated

import typer

from raylay.services.commands import life, looking, mending, messages
from raylay.services.commands.config import (
    config_app,
)
from raylay.services.commands.drill import drill_command
from raylay.services.commands.fabric import fabric_app
from raylay.services.commands.host import check_app
from raylay.services.commands.journal import journal_app
from raylay.services.errors import RaylayError
from raylay.services.pipeline.commands import pipeline_app
from raylay.services.telemetry.trace_report import trace_command

_PLACE = re.compile(r"[^\s:]+:\d+: ")

app = typer.Typer(
    help="Raylay, a leaderless replicated message broker on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(life.up)
app.command()(life.apply)
app.command()(life.down)
app.command()(looking.status)
app.command()(mending.downgrade)
app.command()(mending.upgrade)
app.command()(mending.admit)
app.command()(mending.restart)
app.command()(mending.relocate)
app.command()(mending.watch)
app.command()(looking.events)
app.command()(messages.publish)
app.command()(messages.subscribe)
app.command("trace")(trace_command)
app.command("drill")(drill_command)
app.add_typer(fabric_app, name="fabric")
app.add_typer(check_app, name="check")
app.add_typer(config_app, name="config")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(journal_app, name="journal")


def main() -> None:
    """The entry point: errors of ours are one line and exit code 1."""
    try:
        app()
    except RaylayError as error:
        # What stands in a file begins with its place, where editors look for it.
        prefix = "" if _PLACE.match(str(error)) else "raylay: "
        print(f"{prefix}{error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
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
