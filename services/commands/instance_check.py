"""`raylay check instance`: asks the instances of this host whether they admit clients.

It needs neither Ray nor a password, so a container's readiness probe can run it: an instance
refuses a logon with the reason `not_ready` before it asks who the client is.
"""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.options import JsonOption
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.protocol.frames import PROTOCOL_VERSION, FrameReader, encode_frame

PROBE_NAME = "raylay-check"
NOT_ADMITTING = frozenset({"not_ready", "shutting_down", "retired"})
READ_BYTES = 65_536
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def check_instance(
    directory: Annotated[Path, typer.Argument(help="A fabric's directory, or an instance's.")],
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for each instance.")
    ] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Ask each instance whose data is below a directory of this host whether it admits clients.

    Exit code 1 where one does not. A directory without instances passes: nothing is to be served
    yet. It needs no Ray and no password: a readiness probe can run it.
    """
    waiting = False
    for path in sorted({*directory.glob(INSTANCE_FILE), *directory.glob(f"*/{INSTANCE_FILE}")}):
        config = InstanceConfig.load(path.parent)
        reason = refusal(config, timeout_s)
        waiting |= bool(reason)
        if as_json:
            echo_json({"instance": config.name, "admits_clients": not reason, "reason": reason})
        else:
            echo(f"{config.name}: {reason or 'admits clients'}", err=bool(reason))
    if waiting:
        sys.exit(1)


def refusal(config: InstanceConfig, timeout_s: float) -> str:
    """Asks an instance of this host whether it admits clients.

    Returns: The reason why it does not; empty: it does.
    """
    transport = config.client_transports[0]
    host = _ANY_ADDRESS.get(transport.host, transport.host)
    try:
        with socket.create_connection((host, transport.port), timeout_s) as plain:
            plain.settimeout(timeout_s)
            context = _context(transport)
            with context.wrap_socket(plain) if context is not None else plain as connection:
                return _ask(connection)
    except (OSError, RaylayError) as error:
        return f"{host}:{transport.port} does not answer: {error}"


def _ask(connection: socket.socket) -> str:
    logon = {"c": "logon", "v": PROTOCOL_VERSION, "client_name": PROBE_NAME, "low": 0, "cid": "1"}
    connection.sendall(encode_frame({**logon, "o": {}}))
    reader = FrameReader()
    while data := connection.recv(READ_BYTES):
        for header, _ in reader.feed(data):
            if header.get("cid") == "1":
                refused = str(header.get("reason") or "") in NOT_ADMITTING
                return str(header.get("text") or header["reason"]) if refused else ""
    return "the connection ended before the logon was answered"


def _context(transport: TransportConfig) -> ssl.SSLContext | None:
    """Makes a context that verifies nothing, because the probe talks to its own host and sends no
    secret."""
    if transport.tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if transport.tls.verify_client:
        try:
            context.load_cert_chain(transport.tls.certificate, transport.tls.private_key)
        except OSError as error:
            raise ConfigurationError(f"{transport.tls.certificate}: {error}") from None
    return context
