"""The configuration of TLS, for transports and for connecting sides."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from raylay.services.errors import ConfigurationError

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
"""Allowed versions of TLS; older ones are broken."""
FILES = ("certificate", "private_key", "ca_file", "ca_path")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Plain values: files are read when a transport opens, or a connection is made.

    Attributes:
        certificate: PEM file with the certificate, and those between it and the CA. Optional for a
            connecting side.
        private_key: PEM file with the key, without a pass phrase.
        ca_file, ca_path: PEM file, or OpenSSL directory, with the CAs by which a peer's certificate
            is checked. Default for a connecting side: the system's CAs.
        verify_client: whether the connecting side needs a certificate of one of these CAs; for a
            transport.
        ciphers: OpenSSL list, for TLS 1.2; empty: OpenSSL's default.
        protocols: versions, of `PROTOCOLS`.
        server_name: name that the server's certificate must have, for a connecting side; empty: the
            dialled host.
        verify_name: for a connecting side: whether that name is checked. Without the check, any
            holder of a certificate of the CA may answer: for an own CA that gives none to others.
    """

    certificate: str = ""
    private_key: str = ""
    ca_file: str = ""
    ca_path: str = ""
    verify_client: bool = False
    ciphers: str = ""
    protocols: tuple[str, ...] = PROTOCOLS
    server_name: str = ""
    verify_name: bool = True

    def check(self, where: str, *, serves: bool) -> None:
        """Checks the values, without reading the files.

        Raises:
            ConfigurationError: they do not fit together.
        """
        if bool(self.certificate) != bool(self.private_key):
            lacks = "private key" if self.certificate else "certificate"
            raise ConfigurationError(f"{where}: TLS has no {lacks}: give both, or neither")
        if serves and not self.certificate:
            raise ConfigurationError(
                f"{where}: TLS needs a certificate and a private key: give both files"
            )
        if self.verify_client and not (self.ca_file or self.ca_path):
            raise ConfigurationError(
                f"{where}: client certificates are to be verified, and there is no CA to do it by: "
                "give ca_file (CAFile) or ca_path (CAPath)"
            )
        wrong = [protocol for protocol in self.protocols if protocol not in PROTOCOLS]
        if wrong or not self.protocols:
            raise ConfigurationError(
                f"{where}: TLS speaks no {', '.join(wrong) or 'protocol'}: give one or both of "
                f"{', '.join(PROTOCOLS)}"
            )

    def placed(self, place: Callable[[str], str]) -> TlsConfig:
        """Returns the same with each file where `place` says that it is."""
        files: dict[str, Any] = {name: getattr(self, name) for name in FILES}
        placed: dict[str, Any] = {name: place(path) for name, path in files.items() if path}
        return replace(self, **placed)

    @classmethod
    def of(cls, values: dict[str, Any], where: str) -> TlsConfig:
        """Returns the configuration from plain values, as in JSON.

        Raises:
            ConfigurationError: a value is not one of these settings.
        """
        names = [each.name for each in fields(cls)]
        for name in values:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
                raise ConfigurationError(f"{where} has no setting {name!r}: {hint}")
        return cls(**{**values, "protocols": tuple(values.get("protocols", PROTOCOLS))})
