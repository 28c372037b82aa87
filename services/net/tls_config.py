"""The configuration of TLS, of a transport or of those who connect to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raylay.services.errors import ConfigurationError

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
"""Versions of TLS that are spoken; older ones are broken."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Plain values: files are read when a transport opens, or a connection is made.

    Attributes:
        certificate: PEM file with its certificate, and those between it and the CA. One who only
            connects may have none.
        private_key: PEM file with its key, without a pass phrase.
        ca_file, ca_path: PEM file, or OpenSSL directory, with the CAs that a peer's certificate is
            checked by. None of those who connect: the system's.
        verify_client: of a transport: whoever connects needs a certificate of one of these CAs.
        ciphers: OpenSSL list, for TLS 1.2; empty: OpenSSL's default.
        protocols: of `PROTOCOLS`.
        server_name: of those who connect: the name that the server's certificate has to have;
            empty: the host that is dialled.
        verify_name: of those who connect: whether the name is looked at. Without it whoever has a
            certificate of the CA may answer: for a CA of your own that gives none to others.
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
        """Looks at the values, not into the files.

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
        wrong = [each for each in self.protocols if each not in PROTOCOLS]
        if wrong or not self.protocols:
            raise ConfigurationError(
                f"{where}: TLS speaks no {', '.join(wrong) or 'protocol'}: give one or both of "
                f"{', '.join(PROTOCOLS)}"
            )

    @classmethod
    def of(cls, values: dict[str, Any], where: str) -> TlsConfig:
        """Makes the configuration from plain values, as JSON has them.

        Raises:
            ConfigurationError: a value is none of its.
        """
        try:
            return cls(**{**values, "protocols": tuple(values.get("protocols", PROTOCOLS))})
        except TypeError as error:
            raise ConfigurationError(f"{where}: {error}") from None
