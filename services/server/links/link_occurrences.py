"""The occurrences of replication, for actions and event topics (services/server/occurrences.py):
those of the links of this instance, and those of links of other instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raylay.services.server.occurrences import Occurrences

CONNECT, DISCONNECT = "connect-replication", "disconnect-replication"
CAUGHT_UP = "replication-resync-complete"
DOWNGRADE, UPGRADE = "downgrade-replication", "upgrade-replication"
INCOMING_CONNECT = "connect-incoming-replication"
INCOMING_DISCONNECT = "disconnect-incoming-replication"
_OF_EVENTS = {"link_caught_up": CAUGHT_UP, "downgraded": DOWNGRADE, "upgraded": UPGRADE}
"""Kinds by the event of a destination that the machine reports."""


class ObservedLogon(Protocol):
    """The logon of another instance's link (`UpstreamLogon`)."""

    name: str
    group: str
    destination: str


class ObservedLink(Protocol):
    """The link to a destination (`LinkControl`)."""

    name: str
    client_name: str
    peer_name: str
    group: str
    address: str


def tell_link(occurrences: Occurrences, kind: str, link: ObservedLink, reason: str = "") -> None:
    """Tells an occurrence of a link of this instance.

    Args:
        reason: why the link was disconnected or downgraded.
    """
    if occurrences.wanted(kind):
        found = _variables(link.peer_name, link.client_name, link.address, link.group)
        found["AMPS_REPLICATION_TRANSPORT_NAME"] = link.name
        found["reason"] = reason
        occurrences.tell(kind, found)


def tell_event(
    occurrences: Occurrences,
    event: str,
    details: Mapping[str, Any],
    links: Mapping[str, ObservedLink],
) -> None:
    """Tells an event of a destination that the machine has reported, if it is an occurrence."""
    kind = _OF_EVENTS.get(event)
    link = None if kind is None else links.get(details["destination"])
    if kind is not None and link is not None:
        tell_link(occurrences, kind, link, str(details.get("why", "")))


def tell_upstream(
    occurrences: Occurrences, logon: ObservedLogon, address: str, why_gone: str | None = None
) -> None:
    """Tells that a link of another instance has logged on, or is gone.

    Args:
        logon: the link's logon.
        why_gone: why the link was disconnected; None: it has logged on.
    """
    kind = INCOMING_CONNECT if why_gone is None else INCOMING_DISCONNECT
    if occurrences.wanted(kind):
        client = f"{logon.name}!{logon.destination}"
        found = _variables(logon.name, client, address, logon.group)
        found["reason"] = why_gone or ""
        occurrences.tell(kind, found)


def _variables(peer: str, client: str, address: str, group: str) -> dict[str, str]:
    return {
        "AMPS_REPLICATION_PEER_NAME": peer,
        "AMPS_REPLICATION_CLIENT_NAME": client,
        "AMPS_REPLICATION_REMOTE_ADDRESS": address,
        "AMPS_REPLICATION_GROUP_NAME": group,
    }
