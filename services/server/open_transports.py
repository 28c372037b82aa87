"""The check whether a transport admits every client or link that can reach it over a network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Protocol

from raylay.services.security.modules import LETS_EVERYBODY_IN, ModuleConfig


class TlsTerms(Protocol):
    """The TLS settings of a transport."""

    @property
    def verify_client(self) -> bool:
        """Returns whether clients of the transport need a certificate."""


class TransportTerms(Protocol):
    """The configuration of a transport."""

    @property
    def name(self) -> str:
        """The name of the transport."""

    @property
    def host(self) -> str:
        """The address at which the transport listens."""

    @property
    def tls(self) -> TlsTerms | None:
        """The TLS settings; None: the transport does not use TLS."""

    @property
    def authentication(self) -> ModuleConfig | None:
        """The transport's own authentication module; None: it has none."""


def is_loopback(host: str) -> bool:
    """Returns whether a server that listens at this host is reached from its own host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def open_to_all(
    transports: Iterable[TransportTerms], kind: str, module: ModuleConfig | None
) -> str:
    """A sentence about the first transport that other hosts can reach and that authenticates
    nobody; empty: there is none.

    Args:
        kind: the users of the transports: `clients` or `instances`.
        module: the authentication module of transports that name none; None: there is none.
    """
    option = "authentication" if kind == "clients" else "replication_authentication"
    for each in transports:
        verified = each.tls is not None and each.tls.verify_client
        asked = each.authentication or module
        asks = asked is not None and asked.module not in LETS_EVERYBODY_IN
        if not (verified or asks or is_loopback(each.host)):
            by = f" by {asked.module}" if asked is not None else ""
            return (
                f"transport {each.name!r} listens for {kind} on {each.host}, and lets everybody "
                f"in{by}: name a module that asks who they are (`{option}`), want certificates "
                "(`tls` with `verify_client`), or say `unauthenticated: allowed` (docs/security.md)"
            )
    return ""
