"""TLS options of the commands' clients: `--ca-file`, `--certificate`, `--private-key`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_given: dict[str, str] = {}


def _keep(parameter: typer.CallbackParam, value: str) -> None:
    name = str(parameter.name)
    _given.pop(name, None)
    if value:
        _given[name] = value


def _asked(
    ca_file: Annotated[
        str,
        typer.Option(
            help="PEM file of the CA of the servers' certificates: TLS.",
            envvar="RAYLAY_CA_FILE",
            callback=_keep,
            expose_value=False,
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            help="PEM file of a client certificate: TLS.",
            envvar="RAYLAY_CERTIFICATE",
            callback=_keep,
            expose_value=False,
        ),
    ] = "",
    private_key: Annotated[
        str,
        typer.Option(
            help="PEM file of its key.",
            envvar="RAYLAY_PRIVATE_KEY",
            callback=_keep,
            expose_value=False,
        ),
    ] = "",
) -> None:
    """Declares the options that each command with `--server` takes besides its own."""


def offer(command: Any) -> None:
    """Adds the TLS options to a command that takes `--server`, or to the commands of a group."""
    for each in getattr(command, "commands", {"": command}).values():
        if any(parameter.name == "server" for parameter in each.params):
            each.params += _options()


def tls_given() -> dict[str, str] | None:
    """Returns the given TLS settings, as `Client(tls=…)` takes them; None: there are none."""
    return dict(_given) or None


def _options() -> list[Any]:
    asking = typer.Typer(add_completion=False)
    asking.command()(_asked)
    command: Any = typer.main.get_command(asking)
    return [param for param in command.params if param.name != "help"]
