"""`raylay transport`: shows, opens and closes the transports of instances."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import (
    FabricOption,
    HttpOption,
    JsonOption,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result

transport_app = typer.Typer(
    add_completion=False,
    help="Show the transports of instances, and open or close them.",
    pretty_exceptions_enable=False,
)
InstanceArgument = Annotated[str, typer.Argument(help="The instance of the transport.")]
TransportArgument = Annotated[
    str, typer.Argument(help="The transport's name: client, replication, or as declared.")
]
COLUMNS = (
    "instance", "transport", "for", "address", "state", "tls", "connections", "at most", "types",
)  # fmt: skip


@transport_app.command("status")
def status(fabric: FabricOption = "", as_json: JsonOption = False, http: HttpOption = None) -> None:
    """Show every transport, and the number of its connections."""
    with controlled(fabric, http) as attached:
        instances = attached.status()["instances"]
    found = [
        {"instance": instance["name"], **one} for instance in instances for one in _of(instance)
    ]
    if as_json:
        echo_json(found)
        return
    rows = [COLUMNS, *map(_row, found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    for row in rows:
        shown = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo(shown.rstrip())


@transport_app.command("enable")
def enable(
    instance: InstanceArgument,
    transport: TransportArgument,
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a transport, until it is disabled or the instance restarts."""
    _switch(instance, transport, fabric, http, as_json, on=True)


@transport_app.command("disable")
def disable(
    instance: InstanceArgument,
    transport: TransportArgument,
    fabric: FabricOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close a transport, until it is enabled or the instance restarts. Its connections end, and
    their clients go to another transport or instance."""
    _switch(instance, transport, fabric, http, as_json, on=False)


def _switch(
    instance: str, transport: str, fabric: str, http: list[str] | None, as_json: bool, *, on: bool
) -> None:
    with controlled(fabric, http) as attached:
        line = attached.switch_transport(instance, transport, on=on)
    echo_result(as_json, line, instance=instance, transport=transport, enabled=on, message=line)


def _of(instance: dict[str, Any]) -> list[dict[str, Any]]:
    # One that does not run tells of none.
    found: list[dict[str, Any]] = instance.get("transports", [])
    return found


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    most = found["connections_max"]
    return (
        found["instance"],
        found["name"],
        "clients" if found["kind"] == "client" else "instances",
        found["address"],
        "enabled" if found["enabled"] else "disabled",
        "yes" if found["tls"] else "no",
        f"{found['connections']:,}",
        "" if most is None else f"{most:,}",
        ", ".join(found["message_types"]) or "any",
    )
