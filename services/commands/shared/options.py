"""Options that several commands share, and the fabric that they select."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.commands.shared.contexts import (
    FABRIC_VARIABLE,
    GROUP_VARIABLE,
    HTTP_VARIABLE,
    SERVER_VARIABLE,
)

if TYPE_CHECKING:
    from raylay.services.fabric.records import registry

CONNECT_TIMEOUT_S = 30.0
FILE_COLUMNS = 160
"""Width of a table that is written to a file or a pipe, so that nothing is cut."""
FabricOption = Annotated[
    str,
    typer.Option(
        "--fabric",
        "-f",
        envvar=FABRIC_VARIABLE,
        help="The fabric; needed if several run.",
    ),
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--group", "-g", envvar=GROUP_VARIABLE, help="The region of the instances to use."
    ),
]
GroupByOption = Annotated[
    list[str] | None,
    typer.Option(help="A field by which records are grouped, such as /carrier; repeatable."),
]
ProjectOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A field of each group, such as `AVG(/delay) AS /delay`; repeatable (docs/views.md)."
    ),
]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        envvar=SERVER_VARIABLE,
        help="host:port instead of a fabric; repeatable. The variable separates them by spaces.",
    ),
]
HttpOption = Annotated[
    list[str] | None,
    typer.Option(
        "--http",
        metavar="ADDRESS",
        envvar=HTTP_VARIABLE,
        help="host:port of an instance's administrator's interface, instead of a fabric of this "
        "host; repeatable.",
    ),
]
FilesArgument = Annotated[
    list[Path],
    typer.Argument(help="The fabric's YAML file, or the AMPSConfig files of its instances."),
]
DefineOption = Annotated[
    list[str] | None,
    typer.Option("-D", "--define", help="VAR=VALUE for ${VAR} in AMPSConfig files; repeatable."),
]
NameOption = Annotated[
    str, typer.Option("--name", help="The fabric's name, for AMPSConfig files, which have none.")
]
IgnoreOption = Annotated[
    bool,
    typer.Option(
        "--ignore-unsupported", help=("Leave out settings that Raylay does not support yet.")
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def running(name: str) -> registry.RegistryEntry:
    """Returns the fabric that a command means: the named one, or the only one that runs."""
    # Late: the command line is there at once.
    from raylay.services.fabric import find_running

    return find_running(name)


def servers_meant(fabric: str, servers: list[str] | None) -> list[str] | None:
    """Returns the servers that are used in place of a fabric. An option on the command line counts
    before an environment variable."""
    typed = fabric and fabric != os.environ.get(FABRIC_VARIABLE)
    set_there = servers == os.environ.get(SERVER_VARIABLE, "").split()
    return None if typed and set_there else servers


@contextmanager
def stop_signals(stopping: threading.Event) -> Iterator[None]:
    """Sets `stopping` at the first Ctrl-C or SIGTERM in the block; a second one interrupts."""

    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
