"""The ends of certificates, read without a library, against those that a library writes."""

from __future__ import annotations

import datetime
import random
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from support.tls_files import DAY, Authority, tls_files

from raylay.services.net.certificate_dates import certificates_in, of_der, parsed

SEED = 31


def end_of(file: str) -> int:
    certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
    return int(certificate.not_valid_after_utc.timestamp()) * 1_000_000


def test_each_certificate_of_a_file_has_its_name_and_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "root")
    leaf = authority.issue("Zürich-1", "here", lasts=12 * DAY)
    # From 2050 on the time has another form.
    far = authority.issue("far", lasts=40 * 365 * DAY)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(
        b"some words\n"
        + b"".join(Path(file).read_bytes() for file in (leaf.certificate, far.certificate))
        + Path(authority.file).read_bytes().replace(b"\n", b"\r\n")
    )
    assert certificates_in(str(chain)) == [
        ("Zürich-1", end_of(leaf.certificate)),
        ("far", end_of(far.certificate)),
        ("root", end_of(authority.file)),
    ]
    assert end_of(far.certificate) > datetime.datetime(2050, 1, 1).timestamp() * 1_000_000


def test_those_of_the_other_tests_are_read() -> None:
    files = tls_files()
    for pair in (files.server, files.expired, files.future, files.client, files.stranger):
        ((_, ends_us),) = certificates_in(pair.certificate)
        assert ends_us == end_of(pair.certificate)


def test_a_directory_of_cas_is_read_by_the_names_that_openssl_gives(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "root")
    directory = tmp_path / "cas"
    directory.mkdir()
    (directory / "0123abcd.0").symlink_to(authority.file)
    (directory / "README").write_text("no certificate")
    (directory / "copy.pem").write_bytes(Path(authority.file).read_bytes())
    assert certificates_in(str(directory)) == [("root", end_of(authority.file))]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nno base64!\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAMCAQE=\n",
    ],
)
def test_what_is_no_certificate_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pem").write_bytes(content)
    assert certificates_in(str(tmp_path / "x.pem")) == []
    assert certificates_in(str(tmp_path / "none.pem")) == []


def test_damaged_bytes_are_an_error_or_read(tmp_path: Path) -> None:
    """Nothing else is raised, whatever they are."""
    pem = Path(tls_files().server.certificate).read_text()
    der = ssl.PEM_cert_to_DER_cert(pem)
    ends_us = of_der(der)[1]
    rng = random.Random(SEED)
    refused = 0
    for _ in range(5_000):
        damaged = bytearray(der)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        del damaged[rng.choice((len(damaged), rng.randrange(len(damaged)))) :]
        try:
            assert isinstance(of_der(bytes(damaged))[1], int)
        except ValueError:
            refused += 1
    assert refused > 1_000
    assert next(parsed(pem.encode()))[1] == ends_us
