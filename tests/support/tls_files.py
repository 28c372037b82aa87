"""Certificate authorities and certificates for tests, made once a session."""

from __future__ import annotations

import atexit
import datetime
import ipaddress
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raylay.services.net.tls_config import TlsConfig

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: str
    key: str


class Authority:
    """A CA in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key, 3650 * DAY, DAY)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = str(directory / f"{name}.pem")
        Path(self.file).write_bytes(_pem(self._certificate))

    def issue(
        self,
        name: str,
        *names: str,
        age: datetime.timedelta = DAY,
        lasts: datetime.timedelta = 365 * DAY,
        client_only: bool = False,
        to: str = "",
    ) -> Pair:
        """A certificate for a name, with alternative names; IP addresses as such."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, lasts, age)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(each) for each in names]), False
            )
        if client_only:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, False)
        certificate = builder.sign(self._key, hashes.SHA256())
        at = self.directory / (to or name)
        pair = Pair(f"{at}.crt", f"{at}.key")
        Path(pair.certificate).write_bytes(_pem(certificate))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lasts: datetime.timedelta,
        age: datetime.timedelta,
    ) -> x509.CertificateBuilder:
        begin = datetime.datetime.now(datetime.UTC) - age
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + lasts)
        )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Files:
    """The certificates and keys that tests use."""

    ours: Authority
    other: Authority
    server: Pair
    elsewhere: Pair
    """Of our CA, for another name."""
    expired: Pair
    future: Pair
    client: Pair
    expired_client: Pair
    stranger: Pair
    """A client of the other CA."""

    def serving(self, **more: object) -> TlsConfig:
        """The TLS settings of a transport."""
        values = {"certificate": self.server.certificate, "private_key": self.server.key} | more
        return TlsConfig(**values)  # type: ignore[arg-type]

    def dialling(self, pair: Pair | None = None, **more: object) -> TlsConfig:
        """The TLS settings of whoever connects."""
        values: dict[str, object] = {"ca_file": self.ours.file}
        if pair is not None:
            values |= {"certificate": pair.certificate, "private_key": pair.key}
        return TlsConfig(**(values | more))  # type: ignore[arg-type]


@cache
def tls_files() -> Files:
    """Issues the certificates at the first call; they are removed when the process ends."""
    directory = Path(mkdtemp(prefix="raylay-tls-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    ours, other = Authority(directory, "our-ca"), Authority(directory, "other-ca")
    here = ("localhost", "127.0.0.1")
    return Files(
        ours,
        other,
        ours.issue("server", *here),
        ours.issue("elsewhere", "elsewhere.example"),
        ours.issue("expired", *here, age=30 * DAY, lasts=DAY),
        ours.issue("future", *here, age=-DAY),
        ours.issue("desk", "desk.example", client_only=True),
        ours.issue("old-desk", age=30 * DAY, lasts=DAY),
        other.issue("stranger"),
    )
