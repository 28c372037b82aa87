"""The places where instances live, and those that are retired (design.md 2, Placement).

Moving an instance gives it a *generation*, one above any that is known of its name, with a new data
directory and a new incarnation. An incarnation belongs to the generation in which it was made; of a
lower one it is *retired*, for good: nobody lets it connect, it admits no clients. What is known
spreads with every logon and on every open connection, and the moved instance's own logon says it as
well, so that whoever was away hears of it from the first one that it meets.

Generation 0 is that of an instance that never moved. It is written down only where its address has
changed: its host came back with another one. That retires nothing: of one generation the address
counts that was taken last.
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
        generation: how often it was moved.
        address: `host:port` of its replication transport; empty: not known.
        client_address: `host:port` for clients; empty: not known.
        since_us: when the addresses became these, in microseconds since 1970; 0: they are those
            that it began its generation with.
    """

    generation: int
    address: str = ""
    client_address: str = ""
    since_us: int = 0

    @property
    def order(self) -> tuple[int, int, str, str]:
        """The order by which, of two of one name, the greater one counts."""
        return self.generation, self.since_us, self.address, self.client_address


class Placements:
    """The highest generation that is known of each instance, by name.

    Invariant: what is known of a name only grows, by `InstancePlacement.order`, so that all who
    tell one another end with the same.
    Owner: the instance's machine; on disk before it is acted upon.
    """

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[str, InstancePlacement] | None = None) -> None:
        self._known = dict(known or {})

    def __len__(self) -> int:
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placements) and self._known == other._known

    def copy(self) -> Placements:
        """One of its own."""
        return Placements(self._known)

    def get(self, name: str) -> InstancePlacement | None:
        """Returns where an instance was moved to; None: nobody here knows that it ever was."""
        return self._known.get(name)

    def generation(self, name: str) -> int:
        """The highest generation known of a name."""
        found = self._known.get(name)
        return found.generation if found is not None else 0

    def is_retired(self, name: str, generation: int) -> bool:
        """Returns whether what an instance of this name made in that generation is retired."""
        return generation < self.generation(name)

    def news(self, told: Mapping[str, InstancePlacement]) -> dict[str, InstancePlacement]:
        """Returns the placements that are beyond what is known."""
        known = self._known
        return {
            name: placement
            for name, placement in told.items()
            if (placement.generation or placement.since_us)
            and (name not in known or placement.order > known[name].order)
        }

    def learn(self, told: Mapping[str, InstancePlacement]) -> dict[str, InstancePlacement]:
        """Takes what another one knows. Returns the news in it."""
        news = self.news(told)
        self._known.update(news)
        return news

    def items(self) -> dict[str, InstancePlacement]:
        """All that is known."""
        return dict(self._known)

    def to_wire(self) -> list[list[Any]]:
        """Returns the placements as values for msgpack: [[name, generation, address, client
        address, since], …], `since` only where it is not 0."""
        return to_wire(self._known)


def to_wire(placements: Mapping[str, InstancePlacement]) -> list[list[Any]]:
    """The inverse of `from_wire`."""
    return [
        [name, *placement[:3], *([placement.since_us] if placement.since_us else [])]
        for name, placement in sorted(placements.items())
    ]


def from_wire(value: Any) -> dict[str, InstancePlacement]:
    """Reads what `to_wire` made; nothing for None. Further values of an entry are passed over.

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
    """Returns whether it is an address as others tell it: `host:port`, or empty where it is not
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
    """Returns an instance's own placement, so that it counts before what is known of it.

    Args:
        known: of its own generation, whoever says so; None: nobody says anything.
        now: where it is reached.
        now_us: microseconds since 1970.
    """
    if known is not None and known[:3] == now[:3]:
        return known
    after_us = known.since_us + 1 if known is not None else 0
    return now._replace(since_us=max(now_us, after_us))


def aimed(
    names: Iterable[str], addresses: tuple[str, ...], placements: Mapping[str, str]
) -> tuple[str, ...]:
    """The addresses of a destination whose servers have these names, in their order, with those of
    moved ones in place of the former ones.

    Args:
        placements: name to address.
    """
    found = list(addresses)
    for at, name in enumerate(names):
        moved = placements.get(name)
        if moved and at < len(found):
            found[at] = moved
    return tuple(found)


def retired_text(name: str, placement: InstancePlacement) -> str:
    """Returns the text for the holder of a retired incarnation."""
    where = f" at {placement.address}" if placement.address else ""
    return (
        f"{name} was moved and lives{where} as generation {placement.generation}: this data "
        "directory is retired for good; what only it holds is sent to the fabric by "
        "`raylay journal salvage` with this directory"
    )
