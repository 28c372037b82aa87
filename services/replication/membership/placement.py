"""The places where instances live, and which instances are retired (design.md 2, Placement).

Moving an instance gives it a *generation*, one above any that is known of its name, with a new data
directory and a new incarnation. An incarnation belongs to the generation in which it was made. One
of a lower generation is *retired*, for good: no peer lets it connect, and it admits no clients.
Placements spread with every logon and on every open connection. The moved instance's own logon
tells its placement as well, so that an instance that was away hears of it from the first peer that
it meets.

Generation 0 is that of an instance that never moved. Its placement is written down only when its
address has changed, because its host came back with another one. This retires nothing: within one
generation the most recent address counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raylay.services.errors import RemoteProtocolError

NAMES_MAX = 4096
TEXT_LENGTH_MAX = 300
GENERATION_MAX = 1 << 32
SINCE_US_MAX = 1 << 63


class InstancePlacement(NamedTuple):
    """The place where an instance lives.

    Attributes:
        generation: number of times that the instance was moved.
        address: `host:port` of the instance's replication transport; empty: not known.
        client_address: `host:port` for the instance's clients; empty: not known.
        since_us: time of the last change of the addresses, in microseconds since 1970; 0: they have
            not changed within the generation.
    """

    generation: int
    address: str = ""
    client_address: str = ""
    since_us: int = 0

    @property
    def order(self) -> tuple[int, int, str, str]:
        """Returns the sort key of placements of one name: the greatest one counts."""
        return self.generation, self.since_us, self.address, self.client_address


class Placements:
    """The most recent placement that is known of each instance, by name.

    Invariant: the placement of a name only grows, by `InstancePlacement.order`, so that all
    instances that exchange placements end with the same.
    Owner: the instance's machine; a placement is on disk before it is acted upon.
    """

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[str, InstancePlacement] | None = None) -> None:
        self._known = dict(known or {})

    def __len__(self) -> int:
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placements) and self._known == other._known

    def copy(self) -> Placements:
        """Returns an independent copy."""
        return Placements(self._known)

    def get(self, name: str) -> InstancePlacement | None:
        """Returns the placement of an instance; None: no move of it is known here."""
        return self._known.get(name)

    def generation(self, name: str) -> int:
        """Returns the highest generation that is known of a name."""
        found = self._known.get(name)
        return found.generation if found is not None else 0

    def is_retired(self, name: str, generation: int) -> bool:
        """Returns whether anything that an instance of this name made in that generation is
        retired."""
        return generation < self.generation(name)

    def news(self, told: Mapping[str, InstancePlacement]) -> dict[str, InstancePlacement]:
        """Returns those placements that are more recent than the known ones."""
        known = self._known
        return {
            name: placement
            for name, placement in told.items()
            if (placement.generation or placement.since_us)
            and (name not in known or placement.order > known[name].order)
        }

    def learn(self, told: Mapping[str, InstancePlacement]) -> dict[str, InstancePlacement]:
        """Takes placements that another instance knows. Returns those that are news."""
        news = self.news(told)
        self._known.update(news)
        return news

    def items(self) -> dict[str, InstancePlacement]:
        return dict(self._known)

    def to_wire(self) -> list[list[Any]]:
        """Returns the placements as values for msgpack: [[name, generation, address, client
        address, since], …], `since` only where it is not 0."""
        return to_wire(self._known)


def to_wire(placements: Mapping[str, InstancePlacement]) -> list[list[Any]]:
    """Returns placements in the form that `from_wire` reads."""
    return [
        [name, *placement[:3], *([placement.since_us] if placement.since_us else [])]
        for name, placement in sorted(placements.items())
    ]


def from_wire(value: Any) -> dict[str, InstancePlacement]:
    """Reads placements from the form that `to_wire` returns; None gives none. Additional values of
    an entry are ignored.

    Raises:
        RemoteProtocolError: with reason `bad_placements`.
    """
    if value is None:
        return {}
    if type(value) is not list or len(value) > NAMES_MAX:
        raise RemoteProtocolError("placements are no list", "bad_placements")
    found: dict[str, InstancePlacement] = {}
    for entry in value:
        if type(entry) is not list or len(entry) < 4 or not _is_placement(*entry[:5]):
            raise RemoteProtocolError("a placement has wrong values", "bad_placements")
        name, *values = entry[:5]
        found[name] = InstancePlacement(*values)
    return found


def _is_placement(
    name: Any, generation: Any, address: Any, client_address: Any, since_us: Any = 0
) -> bool:
    return (
        type(name) is str
        and 0 < len(name) <= TEXT_LENGTH_MAX
        and is_address(address)
        and is_address(client_address)
        and type(generation) is int
        and 0 <= generation < GENERATION_MAX
        and type(since_us) is int
        and 0 <= since_us < SINCE_US_MAX
        and bool(generation or since_us)
    )


def is_address(value: Any) -> bool:
    """Returns whether a value is an address as peers tell it: `host:port`, or empty where it is not
    known."""
    if type(value) is not str or len(value) > TEXT_LENGTH_MAX:
        return False
    host, _, port = value.rpartition(":")
    return not value or (
        bool(host)
        and all(" " < character != "\x7f" for character in host)
        and port.isascii()
        and port.isdigit()
        and int(port) < 65_536
    )


def renewed(
    known: InstancePlacement | None, now: InstancePlacement, now_us: int
) -> InstancePlacement:
    """Returns an instance's own placement in a form that has precedence over the known one.

    Args:
        known: the known placement of the instance's own generation, from whatever source; None:
            none is known.
        now: the placement with the addresses at which the instance is reached now.
        now_us: current time in microseconds since 1970.
    """
    if known is not None and known[:3] == now[:3]:
        return known
    after_us = known.since_us + 1 if known is not None else 0
    return now._replace(since_us=max(now_us, after_us))


def aimed(
    names: Iterable[str], addresses: tuple[str, ...], placements: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the addresses of a destination's servers in their order, with the new addresses of
    those that moved.

    Args:
        placements: new address by server name.
    """
    found = list(addresses)
    for at, name in enumerate(names):
        moved = placements.get(name)
        if moved and at < len(found):
            found[at] = moved
    return tuple(found)


def retired_text(name: str, placement: InstancePlacement) -> str:
    """Returns the text that tells a retired incarnation why it is refused."""
    where = f" at {placement.address}" if placement.address else ""
    return (
        f"{name} was moved and lives{where} as generation {placement.generation}: this data "
        "directory is retired for good; what only it holds is sent to the fabric by "
        "`raylay journal salvage` with this directory"
    )
