"""The ends of the certificates in PEM files, without a library: of a certificate only the subject's
common name and the time until which it is valid are looked for.

    Certificate     SEQUENCE { TBSCertificate, … }
    TBSCertificate  SEQUENCE { [0] version, INTEGER serial, SEQUENCE algorithm, SEQUENCE issuer,
                    SEQUENCE { Time not before, Time not after }, SEQUENCE subject, … }
    Time            UTCTime YYMMDDHHMMSSZ, or GeneralizedTime YYYYMMDDHHMMSSZ      (RFC 5280, 4.1)
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

FILE_BYTES_MAX = 4 * 1024 * 1024
CERTIFICATES_MAX = 500
"""Number of certificates of a file, and of files of a directory, that are looked at."""
_BLOCK = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.*?)"
    rb"-----END (?:TRUSTED |X509 )?CERTIFICATE-----",
    re.DOTALL,
)
_INTEGER, _SEQUENCE, _VERSION = 0x02, 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_COMMON_NAME = bytes.fromhex("0603550403")
_HASH_NAME = re.compile(r"[0-9a-f]{8}\.\d+")


def certificates_in(path: str) -> list[tuple[str, int]]:
    """Returns the name and the end, in microseconds since the epoch, of each certificate in a PEM
    file, or in an OpenSSL directory of such files. What cannot be read is left out: who uses the
    file reports that."""
    try:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if _HASH_NAME.fullmatch(name))
            files = [Path(path) / name for name in names[:CERTIFICATES_MAX]]
        else:
            files = [Path(path)]
        found: list[tuple[str, int]] = []
        for file in files:
            with open(file, "rb") as opened:
                found += parsed(opened.read(FILE_BYTES_MAX))
    except OSError:
        return []
    return found[:CERTIFICATES_MAX]


def parsed(text: bytes) -> Iterator[tuple[str, int]]:
    """Yields the name and the end of each certificate in the bytes of a PEM file."""
    for number, block in enumerate(_BLOCK.findall(text)[:CERTIFICATES_MAX], 1):
        try:
            name, ends_us = of_der(base64.b64decode(b"".join(block.split()), validate=True))
        except (ValueError, binascii.Error):
            continue
        yield name or f"number {number}", ends_us


def of_der(content: bytes) -> tuple[str, int]:
    """Returns the common name (empty: there is none) and the end of a certificate in DER.

    Raises:
        ValueError: the bytes are no certificate.
    """
    _, certificate, _ = _value(content, 0, _SEQUENCE)
    _, fields, _ = _value(certificate, 0, _SEQUENCE)
    kind, _, at = _value(fields, 0)
    if kind == _VERSION:
        kind, _, at = _value(fields, at)
    if kind != _INTEGER:
        raise ValueError("there is no serial number")
    _, _, at = _value(fields, at, _SEQUENCE)
    _, _, at = _value(fields, at, _SEQUENCE)
    _, validity, at = _value(fields, at, _SEQUENCE)
    _, subject, _ = _value(fields, at, _SEQUENCE)
    _, _, at = _value(validity, 0)
    kind, time, _ = _value(validity, at)
    return _common_name(subject), _time_us(kind, time)


def _value(content: bytes, at: int, wanted: int | None = None) -> tuple[int, bytes, int]:
    """Returns the tag, the content and the end of the value that begins at an offset."""
    if at + 2 > len(content):
        raise ValueError("it is cut short")
    tag, length = content[at], content[at + 1]
    at += 2
    if length >= 0x80:
        count = length - 0x80
        length = int.from_bytes(content[at : at + count], "big")
        at += count
        if not 0 < count <= 4:
            raise ValueError("a length does not fit")
    if at + length > len(content):
        raise ValueError("it is cut short")
    if wanted is not None and tag != wanted:
        raise ValueError(f"tag {tag:#x} where {wanted:#x} was due")
    return tag, content[at : at + length], at + length


def _time_us(kind: int, time: bytes) -> int:
    text = time.decode("ascii")
    if kind == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1.
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("the end is no time")
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000


def _common_name(subject: bytes) -> str:
    at = subject.rfind(_COMMON_NAME)
    if at < 0:
        return ""
    _, name, _ = _value(subject, at + len(_COMMON_NAME))
    return name.decode("utf-8", "replace")
