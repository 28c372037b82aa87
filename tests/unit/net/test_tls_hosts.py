"""A host's own certificate: what the signer believes, and what is renewed."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509

from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_authority import CertificateAuthority
from raylay.services.net.tls_hosts import names_for, problem, request, requested_name

pytestmark = pytest.mark.covers("Configuration", "`ray up` deployments come with certificates")

NAMES = {
    "chicago-1": ["10.0.0.7", "fe80::7"],
    "head": ["10.0.0.1"],
    # A DNS that answers for all of a domain by one host.
    "*.example": ["10.0.0.7"],
    "chicägo": ["10.0.0.7"],
    "a\0b": ["10.0.0.7"],
}


def looked_up(name: str) -> list[str]:
    return NAMES.get(name, [])


@pytest.mark.parametrize(
    ("peer", "name", "names"),
    [
        ("10.0.0.7", "chicago-1", ["chicago-1", "10.0.0.7"]),
        ("::ffff:10.0.0.7", "chicago-1", ["chicago-1", "10.0.0.7"]),
        ("fe80::7%eth0", "chicago-1", ["chicago-1", "fe80::7"]),
        ("10.0.0.7", "head", ["10.0.0.7"]),
        ("10.0.0.7", "nobody", ["10.0.0.7"]),
        ("10.0.0.7", "10.0.0.1", ["10.0.0.7"]),
        ("10.0.0.7", "", ["10.0.0.7"]),
        ("10.0.0.7", "x" * 65, ["10.0.0.7"]),
        ("10.0.0.7", "*.example", ["10.0.0.7"]),
        ("10.0.0.7", "chicägo", ["10.0.0.7"]),
        ("10.0.0.7", "a\0b", ["10.0.0.7"]),
    ],
)
def test_a_host_is_named_by_where_it_was_seen(peer: str, name: str, names: list[str]) -> None:
    assert names_for(peer, name, looked_up) == names


def made(
    place: Path, names: list[str], days: int = 365, by: CertificateAuthority | None = None
) -> tuple[Path, Path, Path]:
    """A certificate, its key, and the CA that it is looked at by."""
    authority = CertificateAuthority(place / "ca")
    key, asked = request(names[0])
    paths = place / "host.crt", place / "host.key", place / "ca" / "ca.pem"
    paths[0].write_bytes((by or authority).sign(asked, names, days))
    paths[1].write_bytes(key)
    return paths


def test_what_is_signed_can_be_relied_on_at_its_address_for_most_of_its_year(
    tmp_path: Path,
) -> None:
    paths = made(tmp_path, ["chicago-1", "10.0.0.7"])
    assert not problem(*paths, ["192.168.0.1", "10.0.0.7"])
    now = datetime.datetime.now(datetime.UTC)
    assert not problem(*paths, ["10.0.0.7"], now + datetime.timedelta(days=240))
    assert "ends on" in problem(*paths, ["10.0.0.7"], now + datetime.timedelta(days=250))
    assert "is good for 10.0.0.7" in problem(*paths, ["10.0.0.8"])


def test_what_cannot_be_relied_on_is_said(tmp_path: Path) -> None:
    own = ["10.0.0.7"]
    stranger = CertificateAuthority(tmp_path / "stranger" / "ca")  # of the same name
    certificate, key, _ = paths = made(tmp_path, own, by=stranger)
    assert "is of another CA" in problem(*paths, own)
    made(tmp_path, own)
    other, _ = request("other")
    mine = key.read_bytes()
    key.write_bytes(other)
    assert "is the key of another certificate" in problem(*paths, own)
    key.write_bytes(mine[:40])
    assert "cannot be used" in problem(*paths, own)
    key.write_bytes(mine)
    assert not problem(*paths, own)
    certificate.unlink()
    assert problem(*paths, own) == f"there is no {certificate}"


def test_what_a_request_says_of_names_is_not_taken_over(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    _, asked = request("operator")
    assert requested_name(asked) == "operator"
    found = x509.load_pem_x509_certificate(authority.sign(asked, ["10.0.0.7"]))
    assert found.subject.rfc4514_string() == "CN=10.0.0.7"
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == ["10.0.0.7"]
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    for wrong in (b"", b"nothing", asked[:-60], asked + b"x" * 20_000):
        assert wrong.startswith(asked) or requested_name(wrong) == ""
        with pytest.raises(ConfigurationError, match="no request for a certificate"):
            authority.sign(wrong, ["10.0.0.7"])
