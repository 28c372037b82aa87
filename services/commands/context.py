"""`raylay context`: keeps where the commands connect to, and as whom, under names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.contexts import (
    NAME_MAX,
    ConnectionContext,
    contexts_file,
    load,
    save,
)
from raylay.services.commands.shared.options import JsonOption
from raylay.services.commands.shared.printing import echo, echo_json, echo_result, print_table
from raylay.services.errors import ConfigurationError

context_app = typer.Typer(
    add_completion=False,
    help="Keep where the commands connect to, and as whom, under names.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
NameArgument = Annotated[str, typer.Argument(help="The name of the context.")]
_NAME = re.compile(rf"[\w.][\w.-]{{0,{NAME_MAX - 1}}}")
_ADDRESS = re.compile(r"(https?://)?[^\s:/]+(:[0-9a-fA-F:]+\])?:\d{1,5}(/\S*)?")


@context_app.command("add")
def add(
    name: NameArgument,
    to_server: Annotated[
        list[str] | None, typer.Option("--server", help="host:port of an instance; repeatable.")
    ] = None,
    to_http: Annotated[
        list[str] | None,
        typer.Option(
            "--http", help="host:port of an instance's administrator's interface; repeatable."
        ),
    ] = None,
    of_fabric: Annotated[
        str, typer.Option("--fabric", "-f", help="A fabric of this host, in place of addresses.")
    ] = "",
    group: Annotated[
        str, typer.Option("--group", "-g", help="The region of the instances to use.")
    ] = "",
    user: Annotated[str, typer.Option(help="The user to log on as.")] = "",
    password_file: Annotated[
        str, typer.Option(help="A file with the password of the user; its path is kept.")
    ] = "",
    ca_file: Annotated[
        str, typer.Option(help="PEM file of the CA of the servers' certificates: TLS.")
    ] = "",
    certificate: Annotated[str, typer.Option(help="PEM file of a client certificate: TLS.")] = "",
    private_key: Annotated[str, typer.Option(help="PEM file of its key.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the context of this name.")
    ] = False,
    current: Annotated[
        bool, typer.Option("--use", help="Make it the current context, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep a context under a name. Paths are kept as absolute ones; no password is kept."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} is no name of a context: give up to {NAME_MAX} letters, digits, points, "
            "hyphens and underscores, no hyphen first"
        )
    for address in (*(to_server or ()), *(to_http or ())):
        if _ADDRESS.fullmatch(address) is None:
            raise ConfigurationError(f"{address!r} is no address: give host:port")
    made = ConnectionContext(
        server=tuple(to_server or ()),
        http=tuple(to_http or ()),
        fabric=of_fabric,
        group=group,
        user=user,
        password_file=_existing(password_file),
        ca_file=_existing(ca_file),
        certificate=_existing(certificate),
        private_key=_existing(private_key),
    )
    contexts = load()
    if name in contexts.named and not replace:
        raise ConfigurationError(f"there is a context {name} already: give --replace to replace it")
    contexts.named[name] = made
    if current:
        contexts.current = name
    save(contexts)
    how = "" if contexts.current == name else f" --context {name}"
    line = f"context {name} is kept in {contexts_file()}"
    is_current = contexts.current == name
    echo_result(as_json, line, context=name, file=str(contexts_file()), current=is_current)
    if as_json:
        return
    echo(f"next: raylay {'status' if made.fabric or made.http else 'ping'}{how}")


@context_app.command("list")
def list_contexts(as_json: JsonOption = False) -> None:
    """List the contexts; the current one, which counts where none is named, has a star."""
    contexts = load()
    if as_json:
        echo_json(
            [
                {"name": name, "current": name == contexts.current, **each.as_json()}
                for name, each in sorted(contexts.named.items())
            ]
        )
        return
    if not contexts.named:
        echo("no context: raylay context add NAME --server HOST:PORT")
        return
    rows = [
        (
            "*" if name == contexts.current else "",
            name,
            each.fabric or " ".join(each.server + each.http),
            each.user,
            _tls_text(each),
        )
        for name, each in sorted(contexts.named.items())
    ]
    print_table("", ("", "context", "connects to", "user", "TLS"), rows)


def _tls_text(context: ConnectionContext) -> str:
    """Returns whether the connections of a context speak TLS: where it names no certificates and
    connects to a fabric, the fabric's transports say so."""
    if context.ca_file or context.certificate:
        return "yes"
    return "as the fabric" if context.fabric else "no"


@context_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="The context; by default the current one.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show a context."""
    contexts = load()
    name = name or contexts.current
    if not name:
        raise ConfigurationError("no context is current: name one, see raylay context list")
    found = {"name": name, **contexts.find(name).as_json()}
    if as_json:
        echo_json(found)
        return
    for key, value in found.items():
        echo(f"{key + ':':<15} {' '.join(value) if isinstance(value, tuple) else value}")


@context_app.command("use")
def use(
    name: Annotated[str, typer.Argument(help="The context; leave it out with --none.")] = "",
    none: Annotated[bool, typer.Option("--none", help="Have no current context.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a context the current one, which counts where none is named and no place is given."""
    if bool(name) == none:
        raise ConfigurationError("name a context, or give --none")
    contexts = load()
    if name:
        contexts.find(name)
    contexts.current = name
    save(contexts)
    line = f"context {name} is current" if name else "no context is current"
    echo_result(as_json, line, current=name or None)


@context_app.command("remove")
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a context. The files that it names stay."""
    contexts = load()
    contexts.find(name)
    del contexts.named[name]
    if contexts.current == name:
        contexts.current = ""
    save(contexts)
    echo_result(as_json, f"context {name} is removed", context=name, removed=True)


def _existing(path: str) -> str:
    if not path:
        return ""
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise ConfigurationError(f"{path} is no file")
    return str(found)
