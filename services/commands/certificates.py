"""`raylay certificates`: creates a certificate authority and certificates signed by it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.options import JsonOption
from raylay.services.commands.shared.printing import echo_result
from raylay.services.errors import ConfigurationError

DAYS = 365


def certificates(
    directory: Annotated[Path, typer.Argument(help="The directory for the files.")],
    name: Annotated[
        list[str],
        typer.Option(
            "--name",
            help="An instance or a client: NAME, or NAME=HOST,… with its hosts; repeatable.",
        ),
    ],
    days: Annotated[int, typer.Option(min=1, help="How long the certificates are valid.")] = DAYS,
    as_json: JsonOption = False,
) -> None:
    """Make certificates with a certificate authority of your own, which is created first. Run it
    again to renew them with the same authority; instances load them while they run."""
    from raylay.services.net.tls_authority import CertificateAuthority

    wanted = [_parsed(each) for each in name]
    authority = CertificateAuthority(directory)
    if authority.is_new:
        line = f"{directory}/ca.pem: the CA, for `ca_file`; keep {directory}/ca.key to yourself"
        echo_result(as_json, line, ca_file=f"{directory}/ca.pem", private_key=f"{directory}/ca.key")
    for each, addresses in wanted:
        names = [each, *addresses]
        path = authority.issue(each, addresses, days)
        line = f"{path}: good for {', '.join(names)}"
        echo_result(as_json, line, certificate=str(path), names=names, days=days)


def _parsed(given: str) -> tuple[str, list[str]]:
    name, equals, hosts = given.partition("=")
    addresses = [host.strip() for host in hosts.split(",")]
    if not name or (equals and not all(addresses)):
        raise ConfigurationError(f"--name {given!r}: give NAME, or NAME=HOST,HOST")
    return name, addresses if equals else []
