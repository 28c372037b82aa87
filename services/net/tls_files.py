"""TLS contexts from files: checked before they are used, and renewed when the files are.

A fault in a file is an error that says what to do. A faulty file never replaces one that works.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_problems import why

LOOK_S = 1.0
"""Seconds between two checks whether the files were renewed."""
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
X509_INVALID_PURPOSE = 26
NAMES_MAX, NAME_CHARACTERS_MAX = 1_000, 1_000
"""Number of names of a certificate, and length of each, that are passed to another process."""
_STEPS_MAX = 8
"""Number of rounds of a handshake in memory."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The verified certificate of the other side.

    Attributes:
        common_name: common name of the subject; empty: it has none.
        names: alternative names, as `DNS:here-1` or `email:a@b`.
        subject: the whole subject, as `commonName=here-1, organizationName=Raylay`.
        expires: expiry time, as OpenSSL writes it; empty: not known.
    """

    common_name: str
    names: tuple[str, ...]
    subject: str
    expires: str = ""

    @classmethod
    def of(cls, told: dict[str, Any] | None) -> PeerCertificate | None:
        """Returns the certificate from the values of `ssl`; None: none was verified."""
        if not told:
            return None
        pairs = [pair for group in told.get("subject", ()) for pair in group]
        return cls(
            next((value for key, value in pairs if key == "commonName"), ""),
            tuple(f"{kind}:{value}" for kind, value in told.get("subjectAltName", ())),
            ", ".join(f"{key}={value}" for key, value in pairs),
            str(told.get("notAfter", "")),
        )

    @property
    def ends_us(self) -> int | None:
        """The last moment of its validity, in microseconds since 1970; None: it is not known."""
        try:
            return ssl.cert_time_to_seconds(self.expires) * 1_000_000
        except ValueError:
            return None

    def to_wire(self) -> list[str]:
        """Encodes the certificate for another process of the instance, without very long names, and
        up to a number of names."""
        names = [name for name in self.names if len(name) <= NAME_CHARACTERS_MAX]
        return [self.common_name, *names[:NAMES_MAX]]

    @classmethod
    def from_wire(cls, value: object) -> PeerCertificate | None:
        """Decodes the values of `to_wire`; None for anything else."""
        if not isinstance(value, list) or not value:
            return None
        if not all(isinstance(each, str) for each in value):
            return None
        return cls(value[0], tuple(value[1:]), subject="")


def server_context(config: TlsConfig, where: str) -> ssl.SSLContext:
    """Returns the context of a transport. Reads the files.

    Raises:
        ConfigurationError: they cannot be used; names the file.
    """
    config.check(where, serves=True)
    context = _context(ssl.PROTOCOL_TLS_SERVER, config, where)
    _load_chain(context, config, where)
    check_certificate(config, where)
    # No session tickets: each connection shows its certificate anew.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    if config.verify_client:
        _load_cas(context, config, where)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(config: TlsConfig, where: str) -> ssl.SSLContext:
    """Returns the context of a connecting side. Reads the files.

    Raises:
        ConfigurationError: they cannot be used; names the file.
    """
    config.check(where, serves=False)
    context = _context(ssl.PROTOCOL_TLS_CLIENT, config, where)
    context.check_hostname = config.verify_name
    if config.certificate:
        _load_chain(context, config, where)
        check_certificate(config, where)
    if config.ca_file or config.ca_path:
        _load_cas(context, config, where)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _context(kind: int, config: TlsConfig, where: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    versions = [_VERSIONS[protocol] for protocol in config.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers)
        except ssl.SSLError:
            raise ConfigurationError(
                f"{where}: OpenSSL knows no cipher of {config.ciphers!r}: `openssl ciphers` lists "
                "them"
            ) from None
    return context


def _readable(path: str, what: str, where: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{where}: the {what} {path} cannot be read: {error.strerror}; give a PEM file that "
            "this user may read"
        ) from None


def _load_chain(context: ssl.SSLContext, config: TlsConfig, where: str) -> None:
    certificate, key = config.certificate, config.private_key
    _readable(certificate, "certificate", where)
    _readable(key, "private key", where)
    asked = []

    def no_pass_phrase() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, no_pass_phrase)
    except (ssl.SSLError, ValueError, OSError) as error:
        reason = str(getattr(error, "reason", "") or "")
        if asked:
            text = f"the private key {key} has a pass phrase: give one without"
        elif reason == "KEY_VALUES_MISMATCH":
            text = f"the private key {key} is not the key of the certificate {certificate}"
        elif reason == "NO_START_LINE" or reason == "PEM_LIB" or not reason:
            text = (
                f"the certificate {certificate} or the private key {key} is no PEM file of one: "
                "look at both"
            )
        else:
            text = (
                f"the certificate {certificate} with the private key {key} cannot be used: "
                f"{reason.replace('_', ' ').lower()}"
            )
        raise ConfigurationError(f"{where}: {text}") from None


def _load_cas(context: ssl.SSLContext, config: TlsConfig, where: str) -> None:
    if config.ca_file:
        _readable(config.ca_file, "CA file", where)
    if config.ca_path and not os.path.isdir(config.ca_path):
        raise ConfigurationError(f"{where}: the CA path {config.ca_path} is no directory")
    try:
        context.load_verify_locations(config.ca_file or None, config.ca_path or None)
    except (ssl.SSLError, OSError):
        raise ConfigurationError(
            f"{where}: the CA file {config.ca_file} holds no certificates as PEM"
        ) from None


def check_certificate(config: TlsConfig, where: str) -> PeerCertificate | None:
    """Checks that the certificate can be used today, by a handshake in memory with a side that
    trusts only that certificate. Returns its content.

    Raises:
        ConfigurationError: it has expired, or is not valid yet, or cannot be used otherwise.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(server, config, where)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.verify_mode = ssl.CERT_REQUIRED
    try:
        client.load_verify_locations(config.certificate)
        return PeerCertificate.of(_handshake(server, client).getpeercert())
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == X509_INVALID_PURPOSE:
            return None  # the certificate of a connecting side is checked by its server
        what = {10: "has expired: renew it", 9: "is not valid yet: is the clock right?"}
        raise ConfigurationError(
            f"{where}: the certificate {config.certificate} "
            f"{what.get(error.verify_code, 'is not accepted: ' + error.verify_message)}"
        ) from None
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{where}: the certificate {config.certificate} cannot be used: {why(error)}"
        ) from None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there)
    theirs = server.wrap_bio(there, back, server_side=True)
    for _ in range(_STEPS_MAX):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is ours:
                return ours
    raise ssl.SSLError("the handshake does not end")


class RenewedContext:
    """The context of a transport, made again when its files are renewed without a fault.

    Owner: the event loop. A check costs a few system calls, at most once every `LOOK_S`.

    Args:
        where: the transport, for error texts.
        told: called with the fault in renewed files, once for each renewal; with an empty text when
            they are in use.
    """

    def __init__(self, config: TlsConfig, where: str, told: Callable[[str], None]) -> None:
        self.config = config
        self._where = where
        self._told = told
        self._seen = self._marks()
        self._looked_s = time.monotonic()
        self._context = server_context(config, where)

    def current(self, *, at_once: bool = False) -> ssl.SSLContext:
        now_s = time.monotonic()
        if at_once or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            marks = self._marks()
            if marks != self._seen:
                self._renew(marks)
        return self._context

    def _renew(self, marks: tuple[object, ...]) -> None:
        problem = ""
        try:
            self._context = server_context(self.config, self._where)
        except ConfigurationError as error:
            problem = str(error)
        # A file that is still being written is checked again when it has changed again.
        self._seen = marks
        self._told(problem)

    def _marks(self) -> tuple[object, ...]:
        config = self.config
        paths = (config.certificate, config.private_key, config.ca_file, config.ca_path)
        return tuple(map(_mark, filter(None, paths)))


def _mark(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
