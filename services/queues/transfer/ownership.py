"""The ownership of a queue's messages: the order of registers (rule 1), and the initial owner of a
message of which no record has said anything (rule 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylay.services.queues.definition import QueueDefinition

NAMES_KEPT_MAX = 16_384
"""Incarnations that are known by name: with more, those heard of first are forgotten. Links bring
names without end, and a name has up to 400 bytes."""
OWNERS_MAX = 10_000
"""Registers that are kept to be shared: with more, they are collected anew."""


class Ownership(NamedTuple):
    """The owner of a message (rule 1): the higher generation counts, of two alike the lower name.

    Attributes:
        owner: name of an instance; empty: the instance that took the message in is not known yet.
    """

    generation: int
    owner: str


UNKNOWN = Ownership(-1, "")
"""Ownership of a message of which nothing is known: any other one counts more."""


def is_better(one: Ownership, other: Ownership) -> bool:
    """Returns whether the first of two registers of one message is the one that counts."""
    if one.generation != other.generation:
        return one.generation > other.generation
    return one.owner < other.owner


class OwnershipTable:
    """Names of incarnations, and the registers that come of them.

    An owner is the name of an instance, not its incarnation: one that lost its disk owns what it
    gets back.

    Args:
        name, incarnation: of this instance.
        names: of other incarnations, as far as they are known.
    """

    __slots__ = ("_incarnation", "_initial", "_name", "_shared", "names")

    def __init__(
        self, definition: QueueDefinition, name: str, incarnation: int, names: Mapping[int, str]
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self.names = {**names, incarnation: name}
        self._shared: dict[Ownership, Ownership] = {}
        owner = name if definition.kind == "local" else definition.initial_owner
        self._initial = Ownership(0, owner) if owner else None

    @property
    def has_former(self) -> bool:
        """Returns whether an instance had another incarnation before."""
        return len(self.names) > len(set(self.names.values()))

    def initial(self, path: tuple[int, ...]) -> Ownership:
        """The register of messages that came by this path. Its owner is empty while nobody has
        said who bore the incarnation that took them in."""
        if self._initial is not None:
            return self._initial
        return self.shared(0, self.names.get(path[0], "") if path else self._name)

    def shared(self, generation: int, owner: str) -> Ownership:
        """Returns this ownership as the same object for all that have it."""
        register = Ownership(generation, owner)
        found = self._shared.get(register)
        if found is None:
            if len(self._shared) >= OWNERS_MAX:
                self._shared.clear()
            found = self._shared[register] = register
        return found

    def named(self, names: Mapping[int, str]) -> list[int]:
        """Takes names of incarnations in; those of them that were not known."""
        fresh = [incarnation for incarnation in names if incarnation not in self.names]
        for incarnation in fresh:
            self.names[incarnation] = names[incarnation]
        if len(self.names) > NAMES_KEPT_MAX:
            keep_last(self.names, NAMES_KEPT_MAX, besides=self._incarnation)
        return fresh


def keep_last(names: dict[int, str], count: int, besides: int = 0) -> None:
    """Forgets the names that were heard first, but for one incarnation's, until so many are left.
    A message that comes later from one of the forgotten waits for its name as from any other."""
    for incarnation in list(names)[: len(names) - count + 1]:
        if len(names) > count and incarnation != besides:
            del names[incarnation]
