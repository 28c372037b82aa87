"""The connection of another instance that a destination uses instead of dialling (design.md 4,
"Connecting"; behaviour.md 1.2, 1.3).

    destination has   it uses a connection of its group that comes from
    no address        the server that bears its Name; else any that no other destination names
    addresses         a server that says that one of them is its own, in their order; behind
                      these, where it waits as well, one by name as without an address

Never one that another link of this instance is connected to: one link from a given instance to a
given instance. Of several that fit alike, that of the first name; of two of one server, the newer:
the older one may be dead without anybody having noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from raylay.services.replication.link.routing import DestinationRoute

_LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class SharedConnection:
    """A connection that another instance's link made to this one.

    Attributes:
        number: number of the connection here.
        name, group, incarnation: identity of the other instance.
        address: address at which the other instance says that others reach its replication
            transport; empty: it does not know.
        proven: whether the other instance has proved that it belongs to the fabric.
    """

    number: int
    name: str
    group: str
    incarnation: int
    address: str
    proven: bool = False


def uses_incoming(destination: DestinationRoute) -> bool:
    return destination.share_connection or not destination.dials or destination.waits


def choose(
    destination: DestinationRoute,
    incoming: Iterable[SharedConnection],
    reached: Collection[int],
    named_elsewhere: Collection[str],
) -> SharedConnection | None:
    """Returns the incoming connection that a destination uses; None while none fits.

    Args:
        incoming: the incoming connections that can carry a stream for the destination.
        reached: incarnations to which other links of this instance are connected.
        named_elsewhere: names of this instance's other destinations.
    """
    if not uses_incoming(destination):
        return None
    fitting = [
        (rank, each.name, -each.number, each)
        for each in incoming
        if each.group == destination.group and each.incarnation not in reached
        for rank in (_rank(destination, each, named_elsewhere),)
        if rank is not None
    ]
    return min(fitting)[-1] if fitting else None


def _rank(
    destination: DestinationRoute, each: SharedConnection, named_elsewhere: Collection[str]
) -> int | None:
    """Returns how well a connection fits a destination, lower is better; None: it does not fit."""
    if destination.dials:
        address = _normal(each.address)
        addresses = [_normal(listed) for listed in destination.addresses]
        if address and address in addresses:
            return addresses.index(address) if destination.share_connection else None
        if not destination.waits:
            return None
        behind = _rank_by_name(destination, destination.waits_for, each, named_elsewhere)
        return None if behind is None else len(addresses) + behind
    return _rank_by_name(destination, destination.addresses, each, named_elsewhere)


def _rank_by_name(
    destination: DestinationRoute,
    names: tuple[str, ...],
    each: SharedConnection,
    named_elsewhere: Collection[str],
) -> int | None:
    if names:
        return names.index(each.name) if each.name in names else None
    if each.name == destination.name:
        return 0
    return None if each.name in named_elsewhere else 1


def _normal(address: str) -> str:
    """Returns one text for all spellings of an address that are equal without a name lookup."""
    host, _, port = address.lower().rpartition(":")
    return f"localhost:{port}" if host in _LOOPBACK else address.lower()


def gives_way(name: str, incarnation: int, peer: str, peer_incarnation: int) -> bool:
    """Returns, for two instances that dialled each other, whether this one gives up its own
    connection and uses the other's. True for exactly one of the two."""
    return (name, incarnation) > (peer, peer_incarnation)


def awaits_dial(name: str, servers: Iterable[str]) -> bool:
    """Returns whether an instance that shares connections lets the other side dial first for a
    moment, because it would give way to one of the servers. Servers whose names are unknown are
    dialled at once."""
    return any(server < name for server in servers)
