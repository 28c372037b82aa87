"""Options of every command that connects to something: `--context`, `--user`, `--password-file`,
and those of TLS.

All that connects reads the user and the TLS files from the environment (client/credentials.py). So
an option that is typed, or a context that is meant, stands in the environment while the command
runs, and the environment is as before when it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from raylay.services.commands.shared import contexts

PLACES = frozenset(("fabric", "server", "http"))
"""Parameters by which a command is told where to connect to."""
_TLS = frozenset(("ca_file", "certificate", "private_key"))


def _set(parameter: typer.CallbackParam, value: str) -> None:
    if not value:
        return
    os.environ[f"RAYLAY_{str(parameter.name).upper()}"] = value
    if parameter.name == "password_file":
        os.environ.pop(contexts.PASSWORD_VARIABLE, None)


def _option(text: str, name: str) -> Any:
    """Returns the declaration of an option, which stands for the environment variable of its name
    while the command runs. That of the context is read before (`enter_context`)."""
    return typer.Option(
        help=text,
        envvar=f"RAYLAY_{name.upper()}",
        callback=None if name == "context" else _set,
        expose_value=False,
        rich_help_panel="Connection",
    )


def _declared(
    context: Annotated[
        str,
        _option(
            "Where to connect to and as whom, by its name in `raylay context list`.", "context"
        ),
    ] = "",
    user: Annotated[str, _option("The user to log on as.", "user")] = "",
    password_file: Annotated[
        str, _option("A file with the password of the user.", "password_file")
    ] = "",
    ca_file: Annotated[
        str, _option("PEM file of the CA of the servers' certificates: TLS.", "ca_file")
    ] = "",
    certificate: Annotated[
        str, _option("PEM file of a client certificate: TLS.", "certificate")
    ] = "",
    private_key: Annotated[str, _option("PEM file of its key.", "private_key")] = "",
) -> None:
    """Declares the options that each command takes besides its own."""


def offer(command: Any) -> None:
    """Adds the options to a command that connects, or to those commands of a group that do."""
    for each in getattr(command, "commands", {"": command}).values():
        places = _places(each)
        if places:
            each.params += [
                option
                for option in connection_options()
                if option.name not in _TLS or not places.isdisjoint(("server", "http"))
            ]


def enter_context(context: Any, command: Any, args: list[str]) -> None:
    """Puts the context that a command means into the environment until it has ended, and then
    leaves the environment as it was.

    Args:
        context: the context of the command line, as `click` has it.
        command: the command that is called, or its group.
        args: the arguments behind its name.

    Raises:
        ConfigurationError: as `contexts.enter`.
    """
    words, rest = [str(command.name)], args
    while isinstance(command, TyperGroup):
        command = command.get_command(context, rest[0]) if rest else None
        words, rest = [*words, *rest[:1]], rest[1:]
    places = _places(command) if command is not None else frozenset()
    if not places:
        return
    before = dict(os.environ)
    context.call_on_close(lambda: _restore(before))
    contexts.enter(args, f"raylay {' '.join(words)}", places, os.environ)


def _places(command: Any) -> frozenset[str]:
    return PLACES & {str(parameter.name) for parameter in command.params}


def _restore(before: Mapping[str, str]) -> None:
    for name in contexts.VARIABLES:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)


def connection_options() -> list[Any]:
    """Returns the options, as `click` has them."""
    asking = typer.Typer(add_completion=False)
    asking.command()(_declared)
    command: Any = typer.main.get_command(asking)
    return [param for param in command.params if param.name != "help"]
