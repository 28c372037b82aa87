"""A host's own certificate: requested with a key that never leaves the host, named by what the
signer verifies itself, and checked before it is relied on.

It needs the library `cryptography`, as services/net/tls_authority.py does.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

COMMON_NAME_CHARACTERS_MAX = 64
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DAYS_LEFT_MIN = 120
"""Number of days that a certificate, valid for a year, must have left: a host may be away for long,
and the operator still has time."""


def request(name: str) -> tuple[bytes, bytes]:
    """Returns a new private key, and the request for a certificate of it, both PEM.

    Args:
        name: the name that the host claims; the signer believes only what it can look up.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:COMMON_NAME_CHARACTERS_MAX])]
    )
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return (
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        asked.public_bytes(serialization.Encoding.PEM),
    )


def requested_name(asked: bytes) -> str:
    """Returns the name in a request; empty: it has none, or is no request."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_csr(asked).subject
    except ValueError:
        return ""
    names = found.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def names_for(peer: str, name: str, look_up: Callable[[str], Collection[str]]) -> list[str]:
    """Returns the names for a host's certificate: the address from which it connects, and its name
    where that name resolves to this address. So no host gets a certificate for another one.

    Args:
        peer: address from which the request comes.
        name: the name that the host claims.
        look_up: returns the addresses of a name; none: the name is not known.
    """
    address = _plain(peer)
    # A name with a star would be valid for other hosts.
    is_name = len(name) <= COMMON_NAME_CHARACTERS_MAX and _HOST_NAME.fullmatch(name) is not None
    if is_name and not _is_address(name) and address in {_plain(each) for each in look_up(name)}:
        return [name, address]
    return [address]


def problem(
    certificate: Path,
    key: Path,
    ca_file: Path,
    addresses: Sequence[str],
    now: datetime.datetime | None = None,
) -> str:
    """Returns why a host's certificate must be renewed; empty: it can be relied on.

    Args:
        addresses: addresses of the host; the certificate must be valid for one of them.
        now: time with a time zone; None: the clock's.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    for path in (certificate, key):
        if not path.exists():
            return f"there is no {path}"
    try:
        held = x509.load_pem_x509_certificate(certificate.read_bytes())
        own = load_pem_private_key(key.read_bytes(), None)
        authority = x509.load_pem_x509_certificate(ca_file.read_bytes())
        held.verify_directly_issued_by(authority)
    except InvalidSignature:
        return f"{certificate} is of another CA than {ca_file}"
    except (OSError, ValueError, TypeError) as error:
        return f"{certificate}, {key} and {ca_file} cannot be used: {error}"
    if held.public_key() != own.public_key():
        return f"{key} is the key of another certificate than {certificate}"
    end = held.not_valid_after_utc
    left = end - (now or datetime.datetime.now(datetime.UTC))
    if left < datetime.timedelta(days=DAYS_LEFT_MIN):
        return f"{certificate} ends on {end:%Y-%m-%d}"
    good_for = _addresses(held)
    if not good_for & {_plain(address) for address in addresses}:
        return f"{certificate} is good for {', '.join(sorted(good_for)) or 'no address'}"
    return ""


def _addresses(held: object) -> set[str]:
    from cryptography import x509

    assert isinstance(held, x509.Certificate)
    try:
        found = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(each) for each in found.get_values_for_type(x509.IPAddress)}


def _plain(address: str) -> str:
    """Returns an address in its usual spelling; an IPv4 address that came by IPv6 becomes IPv4."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
