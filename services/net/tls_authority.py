"""An own CA and certificates by it, as files: for a fabric whose certificates nobody else must
trust.

It needs the library `cryptography`, which no other part of TLS needs: it is imported when it is
used.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.storage.files import make_directory, write_durably

CA_NAME = "ca"
CA_DAYS = 3650
DAYS_DEFAULT = 365
REQUEST_BYTES_MAX = 16 * 1024
KEY_MODE, FILE_MODE = 0o600, 0o644
_BEGINS_BEFORE = datetime.timedelta(hours=1)
"""Time by which a certificate is valid before now, for clocks that are a little behind."""


class CertificateAuthority:
    """The CA in a directory: `ca.pem` and `ca.key`, made where they are missing.

    Raises:
        ConfigurationError: `cryptography` is not installed, or the files cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise ConfigurationError(
                "cryptography is not installed: pip install 'raylay[security]'"
            ) from None
        self.directory = directory
        self._ec: Any = ec
        self._serialization: Any = serialization
        certificate, key = directory / f"{CA_NAME}.pem", directory / f"{CA_NAME}.key"
        self.is_new = not (certificate.exists() or key.exists())
        try:
            make_directory(directory)
            if self.is_new:
                self._key, self._certificate = self._made(CA_NAME, (), CA_DAYS, None)
                self._write(certificate, key, self._certificate, self._key)
            else:
                self._key, self._certificate = self._read(certificate, key)
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: {error.strerror}") from None

    def issue(self, name: str, addresses: Sequence[str], days: int = DAYS_DEFAULT) -> Path:
        """Makes a certificate, `NAME.crt`, and its key, `NAME.key`; existing files are replaced.
        Returns the certificate's path.

        Args:
            name: common name, which is the first of its names.
            addresses: further host names and IP addresses for which it is valid.

        Raises:
            ConfigurationError: a name is not valid, or the files cannot be written.
        """
        if not name or "/" in name or name.startswith(".") or name == CA_NAME:
            raise ConfigurationError(f"{name!r} can be no name of a certificate: give another one")
        try:
            key, certificate = self._made(name, (name, *addresses), days, self._key)
            at = self.directory / f"{name}.crt"
            self._write(at, self.directory / f"{name}.key", certificate, key)
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}: give names in ASCII") from None
        return at

    def sign(self, request: bytes, names: Sequence[str], days: int = DAYS_DEFAULT) -> bytes:
        """Returns a certificate for a key of another host, which keeps the key. Names in the
        request are ignored.

        Args:
            request: a certificate signing request, PEM.
            names: host names and IP addresses for which it is valid; the first one is its common
                name.

        Returns:
            The certificate, PEM.

        Raises:
            ConfigurationError: the bytes are no signing request, or it is not signed by its own
                key.
        """
        from cryptography import x509

        try:
            if len(request) > REQUEST_BYTES_MAX:
                raise ValueError(f"more than {REQUEST_BYTES_MAX} bytes")
            asked = x509.load_pem_x509_csr(request)
            if not asked.is_signature_valid:
                raise ValueError("it is not signed by its own key")
        except ValueError as error:
            raise ConfigurationError(f"this is no request for a certificate: {error}") from None
        _, certificate = self._made(names[0], names, days, self._key, asked.public_key())
        return bytes(certificate.public_bytes(self._serialization.Encoding.PEM))

    def _made(
        self,
        name: str,
        names: Sequence[str],
        days: int,
        signer: Any | None,
        public_key: Any | None = None,
    ) -> tuple[Any, Any]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        key: Any = None
        if public_key is None:
            key = self._ec.generate_private_key(self._ec.SECP256R1())
            public_key = key.public_key()
        common = name if signer is not None else f"Raylay {self.directory.absolute().name}"[:64]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
        begin = datetime.datetime.now(datetime.UTC) - _BEGINS_BEFORE
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if signer is None else self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=days))
            .add_extension(
                x509.BasicConstraints(signer is None, 0 if signer is None else None), True
            )
        )
        if names:
            alternatives = [_alternative(x509, each) for each in dict.fromkeys(names)]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return key, builder.sign(signer or key, hashes.SHA256())

    def _read(self, certificate: Path, key: Path) -> tuple[Any, Any]:
        from cryptography import x509

        for path in (certificate, key):
            if not path.exists():
                raise ConfigurationError(
                    f"{path} is missing, and the other file of the CA is there"
                )
        try:
            return (
                self._serialization.load_pem_private_key(key.read_bytes(), None),
                x509.load_pem_x509_certificate(certificate.read_bytes()),
            )
        except (ValueError, TypeError):
            raise ConfigurationError(
                f"{certificate} and {key} are no CA that was made here: give another directory"
            ) from None

    def _write(self, at: Path, key_at: Path, certificate: Any, key: Any) -> None:
        encoding, form = self._serialization.Encoding.PEM, self._serialization
        write_private(
            key_at,
            key.private_bytes(encoding, form.PrivateFormat.PKCS8, form.NoEncryption()),
        )
        write_private(at, certificate.public_bytes(encoding), FILE_MODE)


def _alternative(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_private(path: Path, data: bytes, mode: int = KEY_MODE) -> None:
    """Writes a file completely or not at all: a reader gets the former content meanwhile. Only its
    owner can read it, unless the mode says otherwise, also while it is written.

    Raises:
        OSError: it cannot be written.
    """
    write_durably(path, data, mode)
