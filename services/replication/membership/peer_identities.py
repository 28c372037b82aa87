"""Two instances of one name, found when they meet (behaviour.md 1: `Name` is unique).

The files of a fabric are checked before anything starts; instances of two sets of files meet only
when they connect. A name is what destinations, placements and clients know an instance by, so two
of one name must not both be let in.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class _KnownPeer(NamedTuple):
    name: str
    incarnation: int
    generation: int
    address: str
    proven: bool = False
    dialled: bool = False


class PeerIdentities:
    """The identities of the instances that are connected to this one, in either direction.

    Owner: the instance's machine. Lifecycle: one life of the instance.

    Args:
        in_fabric: whether the instances of the fabric prove that they belong to it: a claim without
            proof then never counts against a proved one.
    """

    __slots__ = ("_in_fabric", "_met", "_mine")

    def __init__(
        self, name: str, incarnation: int, generation: int, *, in_fabric: bool = False
    ) -> None:
        self._in_fabric = in_fabric
        self._mine = _KnownPeer(name, incarnation, generation, "")
        self._met: dict[Hashable, _KnownPeer] = {}

    def met(
        self,
        key: Hashable,
        name: str,
        incarnation: int,
        generation: int,
        address: str,
        *,
        proven: bool = False,
        dialled: bool = False,
    ) -> None:
        """Notes that an instance has connected.

        Args:
            proven: whether the instance has proved that it belongs to this instance's fabric.
            dialled: whether this instance made the connection, to an address of its own
                configuration.
        """
        self._met[key] = _KnownPeer(name, incarnation, generation, address, proven, dialled)

    def left(self, key: Hashable) -> None:
        self._met.pop(key, None)

    def impostor(self, name: str, incarnation: int) -> str:
        """Returns, as text, which proved instance's name or incarnation an unproved link uses;
        empty: none. Such a link could end the real one's connection, and use up its epochs."""
        for known in self._met.values():
            if known.proven and (known.name == name or known.incarnation == incarnation):
                return (
                    f"a link claims to come from {name} (incarnation {incarnation:016x}) without "
                    f"proof, while {known.name} of the fabric is connected to {self._mine.name}: "
                    "stop the process that uses its name, or give the real one the fabric's key "
                    "(`fabric_key` of its configuration)"
                )
        return ""

    def clash(
        self,
        key: Hashable,
        name: str,
        incarnation: int,
        generation: int,
        address: str,
        *,
        proven: bool = False,
    ) -> str:
        """Returns, as text, which two instances have one name, so that the new one is refused;
        empty: none.

        Where one of them was moved, generations tell which of the two has ended (placement.py).
        Where one has lost its disk, its former connection ends in a moment.

        Args:
            key: key of the new instance's connection: a connection that it replaces does not clash.
            proven: whether the new instance has proved that it belongs to the fabric, or was
                dialled: see `met`.
        """
        new = _KnownPeer(name, incarnation, generation, address)
        if _of_one_name(self._mine, new):
            return (
                f"{name} is the name of two instances: of this one (incarnation "
                f"{self._mine.incarnation:016x}) and of {_shown(new)}: names are unique: give one "
                "of them another name, or stop it"
            )
        for other, known in self._met.items():
            if self._in_fabric and proven and not (known.proven or known.dialled):
                continue  # An unproved claim does not keep a proved instance out.
            if other != key and _of_one_name(known, new):
                return (
                    f"{name} is the name of two instances that are connected to {self._mine.name}: "
                    f"of {_shown(known)} and of {_shown(new)}: names are unique: give one of them "
                    "another name, or stop it (if it has just lost its disk, wait a moment)"
                )
        return ""


def _of_one_name(one: _KnownPeer, other: _KnownPeer) -> bool:
    return (
        one.name == other.name
        and one.incarnation != other.incarnation
        and one.generation == other.generation
    )


def _shown(met: _KnownPeer) -> str:
    where = f"the one at {met.address}" if met.address else "one whose address is not known"
    return f"{where} (incarnation {met.incarnation:016x})"
