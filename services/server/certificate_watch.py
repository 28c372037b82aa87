"""The ends of the certificates that an instance uses, and of those that its clients show: reported
as events, and shown in the status and the metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from raylay.services.config.instance import InstanceConfig
from raylay.services.net.certificate_dates import certificates_in
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.security.certificate_expiry import (
    ENDED,
    DatedCertificate,
    ExpiryWarnings,
    ending_of_clients,
)
from raylay.services.server.runtime import InstanceRuntime

LOOK_S = 60.0
"""Time between two looks at the files, in seconds; a renewed file is read again then."""

_Marks = dict[str, tuple[int, int, int]]


class CertifiedClient(Protocol):
    """A client that may have shown a certificate (`ClientConnection`)."""

    client_name: str

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The verified certificate of the client; None: it showed none."""


class CertificateWatch:
    """See the file's docstring.

    Owner: the instance's event loop; the files are read in a thread. Lifecycle: `begin`, until the
    runtime's timers are cancelled.

    Args:
        clients: the clients that are connected.
    """

    def __init__(self, runtime: InstanceRuntime, clients: Mapping[int, CertifiedClient]) -> None:
        self._runtime = runtime
        self._clients = clients
        self._files = files_of(runtime.config)
        self._warnings = ExpiryWarnings()
        self._certificates: list[DatedCertificate] = []
        self._of_clients: list[DatedCertificate] = []
        self._marks: _Marks = {}
        self._is_reading = False

    def begin(self) -> None:
        """Looks at the files, at once and from then on now and then. Without TLS does nothing."""
        if self._files:
            self._look()
            self._runtime.every(LOOK_S, self._look)

    def _look(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._runtime.spawn(self.look())

    async def look(self) -> None:
        """Reads the files that were changed since the last look, and reports the certificates that
        are to be warned of."""
        runtime = self._runtime
        try:
            read = await runtime.in_thread(self._read_changed)
        finally:
            self._is_reading = False
        if read is not None:
            self._marks, self._certificates = read
        now_us = runtime.now_us()
        self._of_clients = ending_of_clients(self._shown(), now_us)
        for each in self._warnings.due([*self._certificates, *self._of_clients], now_us):
            has_ended = each.days(now_us) == ENDED
            runtime.report(
                "certificate_ended" if has_ended else "certificate_ends",
                certificate=each.name,
                file=each.file,
                days=max(0, each.left_us(now_us) // 86_400_000_000),
                text=each.text(now_us),
            )

    def _shown(self) -> Iterator[tuple[str, str, int]]:
        """Yields each client that showed a certificate, with the certificate's name and end."""
        for client in self._clients.values():
            shown = client.peer_certificate
            if shown is not None and shown.ends_us is not None:
                yield client.client_name, shown.common_name or shown.subject, shown.ends_us

    def _read_changed(self) -> tuple[_Marks, list[DatedCertificate]] | None:
        """Returns the marks and the certificates of all files; None: no file was changed."""
        marks = {file: _mark(file) for file, _ in self._files}
        if marks == self._marks:
            return None
        return marks, [
            DatedCertificate(file, name, is_authority, used_by, ends_us)
            for (file, is_authority), used_by in self._files.items()
            for name, ends_us in certificates_in(file)
        ]

    def status(self) -> list[dict[str, Any]]:
        """Returns each certificate, and why it is to be renewed."""
        now_us = self._runtime.now_us()
        return [each.status(now_us) for each in (*self._certificates, *self._of_clients)]

    def figures(self) -> dict[str, dict[str, int]]:
        """Returns the milliseconds until the end by file: of several certificates in it, of the one
        that ends first."""
        now_us = self._runtime.now_us()
        found: dict[str, dict[str, int]] = {}
        for each in self._certificates:
            left_ms = each.left_us(now_us) // 1000
            before_ms = found.get(each.file, {}).get("expires_in_ms", left_ms)
            found[each.file] = {"expires_in_ms": min(left_ms, before_ms)}
        return found


def files_of(config: InstanceConfig) -> dict[tuple[str, bool], tuple[str, ...]]:
    """Returns which parts of an instance use each file of certificates, by the file and whether it
    is one of CAs."""
    found: dict[tuple[str, bool], list[str]] = {}
    for used_by, tls in _uses(config):
        for file, is_authority in (
            (tls.certificate, False),
            (tls.ca_file, True),
            (tls.ca_path, True),
        ):
            if file:
                users = found.setdefault((file, is_authority), [])
                if used_by not in users:
                    users.append(used_by)
    return {key: tuple(users) for key, users in found.items()}


def _uses(config: InstanceConfig) -> Iterator[tuple[str, TlsConfig]]:
    for transport in config.transports:
        if transport.tls is not None:
            yield f"transport {transport.name}", transport.tls
    if config.interface is not None and config.interface.tls is not None:
        yield "admin", config.interface.tls
    for destination in config.destinations:
        if destination.tls is not None:
            yield f"destination {destination.name}", destination.tls
    if config.announce_tls is not None:
        yield "announcements", config.announce_tls
    if config.bootstrap is not None and config.bootstrap.tls is not None:
        yield "bootstrap", config.bootstrap.tls


def _mark(file: str) -> tuple[int, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino
