"""The credentials of a link: `user_id` and `pw` of its logon and of a bootstrap's request, both
absent where they are empty.

    retry      from the instance: user_id, pw: the first frame is to come again on the same
               connection, with an answer to this
"""

from __future__ import annotations

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import Header, encode_frame

RETRY = "retry"
USER_BYTES_MAX = 1_024
PASSWORD_BYTES_MAX = 8_192
"""Longest password; a token counts as one."""


def said(user_id: str, password: str) -> Header:
    """Returns the header fields for a user id and a password."""
    return {key: value for key, value in (("user_id", user_id), ("pw", password)) if value}


def read_said(header: Header) -> tuple[str, str]:
    """Returns user id and password of a header; empty where it has none.

    Raises:
        RemoteProtocolError: with reason `bad_command`. It does not show them.
    """
    return _text(header, "user_id", USER_BYTES_MAX), _text(header, "pw", PASSWORD_BYTES_MAX)


def _text(header: Header, key: str, bytes_max: int) -> str:
    value = header.get(key, "")
    if type(value) is not str or len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise RemoteProtocolError(
            f"`{key}` of {header['c'][:64]} is not a text of up to {bytes_max} bytes", "bad_command"
        )
    return value


def retry(user_id: str, password: str) -> bytes:
    """Encodes the challenge of an authentication module. The connection ends where the challenge is
    too long."""
    return encode_frame({"c": RETRY, **said(user_id, password)})
