"""Credentials of a logon, and the answer of an authentication module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

ROUNDS_MAX = 8
"""Number of logons of one connection that may be answered by a challenge."""


class CertificateClaims(NamedTuple):
    """The content of the other side's certificate, which the transport has verified.

    Attributes:
        common_name: common name of the subject; empty: none.
        names: DNS names, addresses and URIs for which the certificate is valid.
    """

    common_name: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a logon.

    Attributes:
        client_name: name of the client, or of a link's instance.
        user_id: claimed user id; empty: none.
        password: password or token; never shown.
        address: address of the client's side of the connection.
        transport: transport of the connection.
        certificate: verified certificate of the connection; None: none.
        round: number of earlier logons of this connection that were challenged.
        is_replication: whether this is a link of another instance.
        is_control: whether this is a control call, which needs no logon permission.
        still_waits: returns whether the connection still exists; one that has ended needs no
            answer.
    """

    client_name: str
    user_id: str
    password: str = field(repr=False)
    address: str = ""
    transport: str = ""
    certificate: CertificateClaims | None = None
    round: int = 0
    is_replication: bool = False
    is_control: bool = False
    still_waits: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)


class LogonAccepted(NamedTuple):
    """Acceptance of a logon: the client's identity is confirmed.

    Attributes:
        user: name by which entitlement modules know the user; empty: unknown.
    """

    user: str


class LogonDenied(NamedTuple):
    """Refusal of a logon: the client is not admitted.

    Attributes:
        why: reason for the instance's log. The client is only told that it was denied: a reason
            would help in guessing.
        is_busy: whether nothing was checked because too many clients log on at once: the client is
            told to try again.
        is_entitled: False where the client's identity was confirmed, and its permissions do not
            allow the logon.
    """

    why: str
    is_busy: bool = False
    is_entitled: bool = True


class Challenge(NamedTuple):
    """Demand to log on again on the same connection, with an answer to this challenge.

    Attributes:
        user_id: user id that the client is to use; empty: its own.
        password: the question to the client.
    """

    user_id: str
    password: str


Answer = LogonAccepted | LogonDenied | Challenge
