"""The peers of an instance as clients see them: identities, addresses, and whether a client may
fail over to them now (design.md 5, "Safe failover").

Safety is proved of one server of a destination: the one that its link last connected to, in the
incarnation that it had then. The other servers of a list are unsafe, and so is everybody who is not
named. They are named nevertheless as far as they are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.membership.placement import InstancePlacement, aimed


@dataclass(frozen=True, slots=True)
class _LastServer:
    """The server that a link last connected to."""

    incarnation: int
    name: str


@dataclass(slots=True)
class _Servers:
    """Servers of one destination.

    Attributes:
        names, addresses: the servers as configured. Without names, the servers are unknown, and the
            addresses may belong to anybody.
        known: address for clients of each server that was ever connected, by name; empty: not
            known.
    """

    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    reached: _LastServer | None = None


class PeerBook:
    """Keeps the servers of all destinations, and tells clients their addresses and whether each is
    safe.

    Owner: the shell of an instance. Lifecycle: as long as the shell. The server reached last is on
    disk, and is told again after a restart.
    """

    def __init__(self) -> None:
        self._servers: dict[str, _Servers] = {}

    def add(self, destination: str, names: Iterable[str], addresses: Iterable[str]) -> None:
        """Adds a destination with the names of its servers and their `host:port` for clients, as
        configured: in the same order, or without the names."""
        self._servers[destination] = _Servers(tuple(names), tuple(addresses))

    def reached(self, destination: str, incarnation: int, name: str, address: str) -> None:
        """Notes that a link has connected to this server. To be called before the machine is told.

        Args:
            address: address of the server for clients; empty: the server did not tell.
        """
        servers = self._servers[destination]
        servers.reached = _LastServer(incarnation, name)
        servers.known[name] = address

    def moved(self, placements: Mapping[str, InstancePlacement]) -> None:
        clients = {name: place.client_address for name, place in placements.items()}
        for servers in self._servers.values():
            servers.addresses = aimed(servers.names, servers.addresses, clients)
            for name in servers.known:
                servers.known[name] = clients.get(name) or servers.known[name]

    def told(self, ledgers: Mapping[str, DestinationLedger]) -> list[dict[str, Any]]:
        """Returns the peers for a logon answer or a notice: each instance once, by name."""
        found: dict[str, dict[str, Any]] = {}
        for destination, ledger in ledgers.items():
            servers = self._servers[destination]
            reached = servers.reached
            for name, addresses in self._of(destination, servers, ledger.servers).items():
                safe = (
                    reached is not None
                    and name == reached.name
                    and ledger.safe
                    and ledger.incarnation == reached.incarnation
                )
                peer = found.setdefault(
                    name,
                    {
                        "name": name,
                        "group": ledger.destination.group,
                        "addresses": [],
                        "safe": False,
                    },
                )
                # Where two destinations may reach the same server, the one that is connected to it
                # decides.
                peer["safe"] = peer["safe"] or safe
                peer["addresses"] += [
                    address for address in addresses if address not in peer["addresses"]
                ]
        return list(found.values())

    def _of(self, destination: str, servers: _Servers, met: Iterable[str]) -> dict[str, list[str]]:
        """Returns the addresses for clients of each server, by name. `met`: names of the servers
        that were ever connected."""
        found: dict[str, list[str]] = {}
        if servers.reached is not None:
            found[servers.reached.name] = []
        if len(servers.names) == len(servers.addresses):
            for name, address in zip(servers.names, servers.addresses, strict=True):
                found[name] = [address]
        for name in (*servers.names, *sorted(met)):
            found.setdefault(name, [])
        for name, address in servers.known.items():
            # The address that a server tells has precedence over the configured one.
            found[name] = [address] if address else found.get(name, [])
        reached = servers.reached
        if reached is not None and not found[reached.name]:
            # The server did not tell its address: it is at one of the addresses that belong to no
            # other server.
            taken = {address for addresses in found.values() for address in addresses}
            found[reached.name] = [each for each in servers.addresses if each not in taken]
        # No server was reached, and no name is known: the destination's name stands for it.
        return found or {destination: list(servers.addresses)}
