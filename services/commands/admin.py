"""Commands that change instances: `downgrade`, `upgrade`, `reconnect`, `compact`, `diagnostics`,
`action`, `admit`, `restart`, `relocate`, `watch`."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.interrupts import INTERRUPTED, interruptible
from raylay.services.commands.shared.options import (
    FabricOption,
    HttpOption,
    JsonOption,
    running,
    stop_signals,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result
from raylay.services.errors import ConfigurationError, FabricError

if TYPE_CHECKING:
    from raylay.services.fabric.relocation import Relocation

RESTART_TIMEOUT_S = 300.0
WATCH_S = 5.0
"""Pause between two looks for instances whose host is away."""


def downgrade(
    instance: Annotated[
        str, typer.Argument(help="The instance whose acks wait for the destination.")
    ],
    destination: Annotated[str, typer.Argument(help="The destination that its acks wait for.")],
    fabric: FabricOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Allow it even below MinSyncDestinations.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop waiting for a destination before acknowledging publishers. Lasts until `raylay upgrade`
    or a restart."""
    with controlled(fabric, http) as attached:
        attached.downgrade(instance, destination, force=force)
    line = f"{instance}: acks do not wait for {destination} any more"
    echo_result(as_json, line, instance=instance, destination=destination, downgraded=True)


def upgrade(
    instance: Annotated[
        str, typer.Argument(help="The instance whose acks wait for the destination.")
    ],
    destination: Annotated[str, typer.Argument(help="A destination that was downgraded.")],
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait again for a destination that is configured sync before acknowledging publishers."""
    with controlled(fabric, http) as attached:
        attached.upgrade(instance, destination)
    line = f"{instance}: acks wait for {destination} again, if it is configured sync"
    echo_result(as_json, line, instance=instance, destination=destination, downgraded=False)


def reconnect(
    instance: Annotated[str, typer.Argument(help="The instance that sends.")],
    destination: Annotated[str, typer.Argument(help="The destination of its link.")],
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a link again: its process ends and another one dials. Nothing is lost; publishers wait
    meanwhile if their acks wait for the destination."""
    _perform(instance, "reconnect", fabric, http, as_json, destination=destination)


def compact(
    instance: Annotated[str, typer.Argument(help="The instance.")],
    topic: Annotated[str, typer.Argument(help="A SOW topic: its name, or type/name.")],
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the file of an instance's SOW topics again, without the space that deleted and replaced
    records left. It needs room for a second copy."""
    _perform(instance, "compact", fabric, http, as_json, topic=topic)


def diagnostics(
    instance: Annotated[str, typer.Argument(help="The instance.")],
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the state of an instance's links, queues and clients, a line each, and write it to the
    instance's log."""
    _perform(instance, "dump", fabric, http, as_json)


def action(
    instance: Annotated[str, typer.Argument(help="The instance.")],
    path: Annotated[
        str,
        typer.Argument(help="The path of the action below /amps/administrator, percent-encoded."),
    ],
    fabric: FabricOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Do it even if the instance advises against it.")
    ] = False,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=TEXT",
            help="A variable for an action of the configuration (actions/PATH); may be repeated.",
        ),
    ] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Perform an administrator's action by its path, such as
    transaction_log/journals/17/archive, or one of the configuration: actions/PATH."""
    from raylay.services.fabric.by_interface import call_of_path

    call, arguments = call_of_path(path, force=force)
    if parameters:
        arguments |= _parameters(call, path, parameters)
    _perform(instance, call, fabric, http, as_json, **arguments)


def _parameters(call: str, path: str, given: list[str]) -> dict[str, Any]:
    if call != "run_action":
        raise ConfigurationError(f"--set is for actions of the configuration, not for {path}")
    found = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"--set {each!r} is no NAME=TEXT")
        found[name] = text
    return {"parameters": found}


def _perform(
    instance: str,
    call: str,
    fabric: str,
    http: list[str] | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    with controlled(fabric, http) as attached:
        result = attached.control(instance, call, **arguments)
    if as_json:
        echo_json({"instance": instance, "result": result})
        return
    for line in result if isinstance(result, list) else [result]:
        text = f"{line['first_txid']}: {line['note']}" if isinstance(line, dict) else line
        echo(f"{instance}: done" if text is None else str(text))


def admit(
    instance: Annotated[
        str, typer.Argument(help="An instance with a new disk that waits for its peers.")
    ],
    fabric: FabricOption = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help=("Admit clients even if its group may hold messages that it lacks.")
        ),
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let an instance admit clients although no peer of its group has brought it up to date."""
    with controlled(fabric, http) as attached:
        attached.admit(instance, force=force)
    echo_result(as_json, f"{instance}: clients are admitted", instance=instance, admitted=True)


def restart(
    instances: Annotated[
        list[str] | None,
        typer.Argument(help="Instances, in this order; default: all of the fabric."),
    ] = None,
    fabric: FabricOption = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for each.")] = RESTART_TIMEOUT_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object an instance.")
    ] = False,
) -> None:
    """Restart instances one after the other while clients go on, each one when every link of the
    one before has caught up. Use this after installing a new release. An instance that is named and
    down is started; its configuration is written again if its disk was lost. Instances that
    `raylay stop` stopped are left out."""
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.rollout import Progress

    def done(name: str) -> None:
        if as_json:
            echo_json({"instance": name, "restarted": True, "caught_up": True})
        else:
            echo(f"{name}: restarted, caught up")
        sys.stdout.flush()

    progress = Progress(on_restart=done)
    try:
        with (
            interruptible("raylay: interrupted: leaving the fabric as it is now"),
            Fabric.attach(running(fabric).name) as attached,
        ):
            attached.rolling_restart(instances or (), timeout, progress=progress)
    except KeyboardInterrupt:
        echo(f"raylay: {progress.restart_line()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except FabricError:
        if progress.restarted:
            echo(f"raylay: {progress.restart_line()}", err=True)
        raise


def relocate(
    instance: Annotated[str, typer.Argument(help="An instance whose host is lost.")],
    to: Annotated[
        str, typer.Option("--to", help="A host's name, or labels: key=value,…; default: any.")
    ] = "",
    fabric: FabricOption = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help=("Move it even if it still runs, or if no instance can fill it.")
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until it is ready; a large journal takes longer.")
    ] = RESTART_TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Move an instance to another node of its region: it gets a new data directory, filled from its
    group. The former data directory is retired for good. The result is shown before the instance is
    ready."""
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.relocation import parse_target

    labels = parse_target(to)
    with Fabric.attach(running(fabric).name) as attached:
        moved = partial(_show_relocation, as_json)
        attached.relocate(instance, labels, force=force, timeout_s=timeout, moved=moved)


def _show_relocation(as_json: bool, done: Relocation) -> None:
    from raylay.services.fabric.relocation import relocation_lines

    if as_json:
        echo_json(asdict(done), default=str)
    for line in () if as_json else relocation_lines(done):
        echo(line)
    sys.stdout.flush()


def watch(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Move instances whose host is away for longer than `relocate_after` in the settings, until
    this command is stopped. Run it once, where Ray's head can be reached. Without the setting it
    refuses to start."""
    from raylay.services.fabric import Fabric

    stopping = threading.Event()
    told: list[str] = []
    with stop_signals(stopping), Fabric.attach(running(fabric).name) as attached:
        after_ms = attached.declared.relocate_after_ms
        if after_ms is None:
            raise ConfigurationError(
                f"fabric {attached.name} has no `relocate_after`: set it, or move an instance "
                "with `raylay relocate`"
            )
        line = (
            f"watching {attached.name}: an instance is moved when its host is away for "
            f"{after_ms / 1000:g} s"
        )
        echo_result(as_json, line, watching=attached.name, relocate_after_ms=after_ms)
        while not stopping.wait(WATCH_S):
            try:
                attached.relocate_due(partial(_show_relocation, as_json))
            except FabricError as error:
                lines = str(error).splitlines()
                for line in lines:
                    if line not in told:
                        echo_result(as_json, line, problem=line)
                told = lines
                sys.stdout.flush()
