"""`raylay head`: Ray's head of a fabric, where it is away."""

from __future__ import annotations

from pathlib import Path

import typer

from raylay.services.commands.shared.options import FabricOption, JsonOption, running
from raylay.services.commands.shared.printing import echo_result
from raylay.services.errors import FabricError

head_app = typer.Typer(
    add_completion=False,
    help="Start Ray's head of a fabric again, where it is away.",
    no_args_is_help=True,
)


@head_app.callback()
def _head() -> None:
    pass


@head_app.command("start")
def start(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Start Ray's head again on this host, on the memory that it left, and wait until it listens.

    `raylay up` on the head's host, or `raylay head keep`, notes how the head was started. Messages
    and clients need no head: see “Live without Ray's head” in docs/operations.md.
    """
    entry = running(fabric)
    from raylay.services.fabric.cluster.head_process import start_head

    line = start_head(entry)
    echo_result(as_json, line, fabric=entry.name, head=entry.address, message=line)


@head_app.command("keep")
def keep(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Note how Ray's head was started, so that `raylay head start` can do it again: on the head's
    host, while the head answers."""
    entry = running(fabric)
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.cluster.head_process import keep_head

    with Fabric.attach(entry.name):
        why = keep_head(Path(entry.directory))
    if why:
        raise FabricError(f"Ray's head at {entry.address} cannot be started again from here: {why}")
    line = f"how Ray's head at {entry.address} was started is noted in {entry.directory}"
    echo_result(as_json, line, fabric=entry.name, head=entry.address, directory=entry.directory)
