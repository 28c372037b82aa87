"""Commands that stop single instances on purpose and start them again: `stop`, `start`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.commands.shared.interrupts import INTERRUPTED, interruptible
from raylay.services.commands.shared.options import FabricOption, running
from raylay.services.commands.shared.printing import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from raylay.services.fabric.maintenance import InstanceStop

STOP_TIMEOUT_S = 30.0
START_TIMEOUT_S = 300.0


def stop(
    instance: Annotated[str, typer.Argument(help="The instance.")],
    fabric: FabricOption = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Stop it even if others lack messages of it, or clients find no other instance.",
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until others have its messages.")
    ] = STOP_TIMEOUT_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Stop one instance until `raylay start` while clients go on: they fail over, and nobody waits
    for it. Its messages are at others before it ends; otherwise it is not stopped. Its data
    stays. The next `raylay up` starts it, too."""
    from raylay.services.fabric import Fabric

    said = f"raylay: interrupted: leaving {instance} as it is now"
    try:
        with (
            interruptible(said),
            Fabric.attach(running(fabric).name) as attached,
            _progress() as tell,
        ):
            done = attached.maintenance.stop(
                instance, force=force, timeout_s=timeout, progress=tell
            )
    except KeyboardInterrupt:
        echo(
            f"raylay: `raylay status` shows whether {instance} is stopped: `raylay stop "
            f"{instance}` completes the stop, `raylay start {instance}` takes it back",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        echo_json(asdict(done))
        return
    for line in stop_lines(done):
        echo(line)


def stop_lines(done: InstanceStop) -> list[str]:
    """Returns the lines on the result of a stop."""
    name = done.instance
    if done.was_stopped:
        return [f"{name} is stopped already; `raylay start {name}` starts it"]
    lines = [f"{name}: {each}" for each in done.lacking]
    lines += [
        f"{peer} could not be told: until it restarts, its publishers may wait for {name}"
        for peer in done.untold
    ]
    waiting = ", ".join(f"{peer} to {destination}" for peer, destination in done.downgraded)
    if waiting:
        lines.append(f"acks do not wait for it meanwhile: {waiting}")
    lines.append(
        f"{name} is stopped; its data is in {done.directory}; `raylay start {name}` starts it"
    )
    return lines


def start(
    instance: Annotated[str, typer.Argument(help="An instance that `raylay stop` stopped.")],
    fabric: FabricOption = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until it is ready, and until it has caught up.")
    ] = START_TIMEOUT_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Start an instance that `raylay stop` stopped, and return when it has caught up. From then on
    publishers wait for its acks again."""
    from raylay.services.fabric import Fabric

    said = f"raylay: interrupted: leaving {instance} as it is now"
    try:
        with (
            interruptible(said),
            Fabric.attach(running(fabric).name) as attached,
            _progress() as tell,
        ):
            untold = attached.maintenance.start(instance, timeout, progress=tell)
    except KeyboardInterrupt:
        echo(f"raylay: `raylay start {instance}` goes on with what is left", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        echo_json({"instance": instance, "started": True, "caught_up": True, "untold": untold})
        return
    for peer in untold:
        echo(
            f"{peer} could not be told: its acks wait for {instance} after `raylay restart {peer}`"
        )
    echo(f"{instance}: started, caught up")


def _progress() -> AbstractContextManager[Callable[[str], None]]:
    from rich.console import Console

    from raylay.services.commands.starting import shown_progress

    return shown_progress(Console(stderr=True))
