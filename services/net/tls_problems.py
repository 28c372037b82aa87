"""The reason why a TLS handshake failed, as one sentence with what to do, and whether it lasts."""

from __future__ import annotations

import ssl

X509_EXPIRED, X509_NOT_YET_VALID = 10, 9
X509_SELF_SIGNED = (18, 19)
X509_NO_ISSUER = (2, 20, 21)
X509_OTHER_NAME = (62, 64)
ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a client certificate: give certificate and private_key",
    "UNKNOWN_CA": "it does not know the CA of our certificate: give one of its CA (certificate)",
    "CERTIFICATE_EXPIRED": "our certificate has expired: renew it (certificate)",
    "BAD_CERTIFICATE": "it does not accept our certificate: look at its dates and its CA",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate: look at its dates and its CA",
    "PROTOCOL_VERSION": "both sides have no TLS version in common: TLS 1.2 and 1.3 are spoken",
    "HANDSHAKE_FAILURE": "both sides have no cipher in common, or it wants a client certificate",
    "DECRYPT_ERROR": "it does not accept our certificate or our proof of its key",
}
SENT = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no client certificate, which is asked for here",
    "UNSUPPORTED_PROTOCOL": "it speaks an older TLS than is spoken here (TLS 1.2 and 1.3)",
    "NO_SHARED_CIPHER": "both sides have no cipher in common",
    "NO_PROTOCOLS_AVAILABLE": "both sides have no TLS version in common",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "it speaks an insecure old TLS",
    "NO_RENEGOTIATION": "it wanted to renegotiate, which nobody may here",
    "WRONG_VERSION_NUMBER": "it speaks no TLS there, or an older one",
    "HTTP_REQUEST": "it speaks plain HTTP",
    "UNKNOWN_PROTOCOL": "it speaks no TLS there",
}


def is_lasting(error: BaseException) -> bool:
    """Returns whether another attempt would fail in the same way, until a file or a setting of
    either side changes.

    Args:
        error: error of the handshake, or of the first read after it.
    """
    reason = str(getattr(error, "reason", "") or "")
    return (
        isinstance(error, ssl.SSLCertVerificationError)
        or reason in SENT
        or any(reason.endswith(f"ALERT_{word}") for word in ALERTS)
    )


def why(error: BaseException, *, name: str = "") -> str:
    """Returns the reason as text.

    Args:
        error: error of the handshake, or of the first read after it.
        name: name that the other side's certificate had to have; empty: none.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error, name)
    reason = str(getattr(error, "reason", "") or "")
    alert = next((text for word, text in ALERTS.items() if reason.endswith(f"ALERT_{word}")), "")
    if alert:
        return alert
    for word, text in SENT.items():
        if reason == word:
            return text
    if reason:
        return f"TLS failed: {reason.replace('_', ' ').lower()}"
    return str(error) or type(error).__name__


def _unverified(error: ssl.SSLCertVerificationError, name: str) -> str:
    code = error.verify_code
    if code in X509_OTHER_NAME:
        return (
            f"its certificate is not for {name!r}: dial a name that is in it, or say the name "
            "(server_name)"
        )
    if code == X509_EXPIRED:
        return "its certificate, or one above it, has expired: renew it there"
    if code == X509_NOT_YET_VALID:
        return "its certificate is not valid yet: is a clock wrong?"
    if code in X509_SELF_SIGNED or code in X509_NO_ISSUER:
        return "its certificate is of a CA that is not known here: give that CA (ca_file)"
    return f"its certificate is not accepted: {error.verify_message}"
