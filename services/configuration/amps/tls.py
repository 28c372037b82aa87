"""TLS of the transports of an AMPSConfig."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylay.services.configuration.amps.model import (
    IncomingTransport,
    OutgoingTransport,
)
from raylay.services.net.tls_config import PROTOCOLS

SECURE_TYPES = ("tcps", "amps-replication-secure")


def tls_settings(transport: IncomingTransport | OutgoingTransport) -> dict[str, Any] | None:
    """Returns the TLS settings of a Transport as values of `TlsConfig`; None: the Transport has no
    TLS."""
    has_key = transport.certificate and transport.private_key
    if transport.type not in SECURE_TYPES and not has_key:
        return None
    named = transport.secure_socket_protocols.split()
    return {
        "certificate": transport.certificate or "",
        "private_key": transport.private_key or "",
        "ca_file": transport.ca_file or "",
        "ca_path": transport.ca_path or "",
        # Whom one connects to shows a certificate anyway.
        "verify_client": transport.verify_client and isinstance(transport, IncomingTransport),
        "ciphers": transport.ciphers or "",
        "protocols": tuple(each for each in PROTOCOLS if each in named) or PROTOCOLS,
    }


def dialling_settings(transports: Iterable[OutgoingTransport]) -> dict[str, Any] | bool:
    """Returns the TLS settings of the first Transport with an address of a Destination or
    Bootstrap; False: no TLS."""
    return next((tls_settings(each) or False for each in transports if each.inet_addresses), False)


def old_protocols(value: str) -> str:
    """Returns why SecureSocketProtocols does not run as it is; empty: it does."""
    left_out = [each for each in value.split() if each not in PROTOCOLS]
    # The documented default may be written out (`raylay config show` does): it is read as ours.
    if not left_out or sorted(value.split()) == ["TLSv1.1", *PROTOCOLS]:
        return ""
    return (
        f"SecureSocketProtocols {' '.join(left_out)} does not run: {' and '.join(PROTOCOLS)} are "
        "spoken, what is older is broken"
    )


def mixed(what: str, transports: Iterable[OutgoingTransport]) -> str:
    """Says why Transports of one element do not run together; empty: they do.

    Args:
        what: The element that they belong to.
    """
    kinds = {repr(tls_settings(each)) for each in transports if each.inet_addresses}
    if len(kinds) < 2:
        return ""
    return (
        f"{what} has Transports with different TLS, which does not run yet: give them the same, or "
        "make two Destinations"
    )
