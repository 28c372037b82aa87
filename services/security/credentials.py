"""Credentials of a logon, and the answer of an authentication module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

ROUNDS_MAX = 8
"""Logons of one connection that may be answered by a challenge."""


class CertificateClaims(NamedTuple):
    """The claims of the other side's certificate, which the transport has verified.

    Attributes:
        common_name: of its subject; empty: it has none.
        names: DNS names, addresses and URIs that it is valid for.
    """

    common_name: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a logon.

    Attributes:
        client_name: of a client; of a link, its instance's.
        user_id: who it says it is; empty: it does not.
        password: or token; never shown.
        address: of its side of the connection.
        transport: by which it came.
        certificate: that its connection was made with; None: without one.
        round: logons of this connection before it, which were challenged.
        is_replication: it is a link of another instance.
        is_control: he wants to control the instance, which needs no logon in his permissions.
        still_waits: whether its connection is there; one that has ended needs no answer.
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
    """Acceptance of a logon: the client is who it says.

    Attributes:
        user: by whom entitlement knows it; empty: nobody in particular.
    """

    user: str


class LogonDenied(NamedTuple):
    """Refusal of a logon: the client is not let in.

    Attributes:
        why: for the log of the instance. Who asked is told no more than that it was denied: what
            was wrong would help somebody who guesses.
        is_busy: nothing was looked at, as too many ask at once: he is told to try again.
    """

    why: str
    is_busy: bool = False


class Challenge(NamedTuple):
    """Demand to log on again on the same connection, with an answer to this.

    Attributes:
        user_id: that it is to use; empty: its own.
        password: what it is asked.
    """

    user_id: str
    password: str


Answer = LogonAccepted | LogonDenied | Challenge
