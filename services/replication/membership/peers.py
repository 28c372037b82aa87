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
        names, addresses: as the configuration has them; no names where they are not known, and then
            the addresses may be anybody's.
        known: name to the address for clients, of those that were ever connected; empty: not known.
    """

    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    reached: _LastServer | None = None


class PeerBook:
    """See the file's docstring.

    Owner: the shell of an instance. Lifecycle: as long as that. Who was reached last is on disk,
    and told again after a restart.
    """

    def __init__(self) -> None:
        self._servers: dict[str, _Servers] = {}

    def add(self, destination: str, names: Iterable[str], addresses: Iterable[str]) -> None:
        """A destination, with its servers and their `host:port` for clients as they are configured:
        in the same order, or without the names."""
        self._servers[destination] = _Servers(tuple(names), tuple(addresses))

    def reached(self, destination: str, incarnation: int, name: str, address: str) -> None:
        """A link has connected to this server. Told before the machine is told.

        Args:
            address: of the server for clients; empty: it did not say.
        """
        servers = self._servers[destination]
        servers.reached = _LastServer(incarnation, name)
        servers.known[name] = address

    def moved(self, placements: Mapping[str, InstancePlacement]) -> None:
        """Instances live elsewhere now."""
        clients = {name: place.client_address for name, place in placements.items()}
        for servers in self._servers.values():
            servers.addresses = aimed(servers.names, servers.addresses, clients)
            for name in servers.known:
                servers.known[name] = clients.get(name) or servers.known[name]

    def told(self, ledgers: Mapping[str, DestinationLedger]) -> list[dict[str, Any]]:
        """The peers of a logon answer or of a notice: everyone by name, once."""
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
                # Of two destinations that may reach it, the one that has it connected knows.
                peer["safe"] = peer["safe"] or safe
                peer["addresses"] += [each for each in addresses if each not in peer["addresses"]]
        return list(found.values())

    def _of(self, destination: str, servers: _Servers, met: Iterable[str]) -> dict[str, list[str]]:
        """Name to addresses for clients; `met`: whom it was ever connected to."""
        found: dict[str, list[str]] = {}
        if servers.reached is not None:
            found[servers.reached.name] = []
        if len(servers.names) == len(servers.addresses):
            for name, address in zip(servers.names, servers.addresses, strict=True):
                found[name] = [address]
        for name in (*servers.names, *sorted(met)):
            found.setdefault(name, [])
        for name, address in servers.known.items():
            # What a server says of itself goes before what is configured.
            found[name] = [address] if address else found.get(name, [])
        reached = servers.reached
        if reached is not None and not found[reached.name]:
            # It did not say where: at one of the addresses that are nobody else's.
            taken = {address for addresses in found.values() for address in addresses}
            found[reached.name] = [each for each in servers.addresses if each not in taken]
        # Nobody was reached, and no name is known: what is told of it goes by the destination's.
        return found or {destination: list(servers.addresses)}
