"""The ownership of a queue's messages: which of two ownerships counts (rule 1), and the initial
owner of a message that no record names an owner for (rule 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylay.services.queues.definition import QueueDefinition

NAMES_KEPT_MAX = 16_384
"""The number of incarnations whose names are kept. With more, the names that came first are
forgotten: links may bring any number of names, of up to 400 bytes each."""
OWNERS_MAX = 10_000
"""The number of `Ownership` objects kept for sharing. With more, all are dropped and collected
anew."""


class Ownership(NamedTuple):
    """The owner of a message (rule 1). Of two, the one with the higher generation counts; with
    equal generations, the one with the lower name.

    Attributes:
        owner: the name of an instance; empty: the instance that took the message in is not known
            yet.
    """

    generation: int
    owner: str


UNKNOWN = Ownership(-1, "")
"""The ownership of a message of which nothing is known. Any other ownership counts more."""


def is_better(one: Ownership, other: Ownership) -> bool:
    """Returns whether the first of two ownerships of a message is the one that counts."""
    if one.generation != other.generation:
        return one.generation > other.generation
    return one.owner < other.owner


class OwnershipTable:
    """The names of the instances that bear incarnations, and the ownerships that follow from them.

    An owner is the name of an instance, not its incarnation: an instance that lost its disk owns
    the messages that it gets back.

    Args:
        name, incarnation: the name and incarnation of this instance.
        names: the names of the instances that bear other incarnations, as far as they are known.
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
        """Returns the initial ownership of messages that came by this path. Its owner is empty
        until the incarnation that took them in is named."""
        if self._initial is not None:
            return self._initial
        return self.shared(0, self.names.get(path[0], "") if path else self._name)

    def shared(self, generation: int, owner: str) -> Ownership:
        """Returns this ownership as one object that all messages share."""
        register = Ownership(generation, owner)
        found = self._shared.get(register)
        if found is None:
            if len(self._shared) >= OWNERS_MAX:
                self._shared.clear()
            found = self._shared[register] = register
        return found

    def named(self, names: Mapping[int, str]) -> list[int]:
        """Takes names of incarnations. Returns the incarnations that were not known before."""
        fresh = [incarnation for incarnation in names if incarnation not in self.names]
        for incarnation in fresh:
            self.names[incarnation] = names[incarnation]
        if len(self.names) > NAMES_KEPT_MAX:
            keep_last(self.names, NAMES_KEPT_MAX, besides=self._incarnation)
        return fresh


def keep_last(names: dict[int, str], count: int, besides: int = 0) -> None:
    """Forgets the names that came first, except that of the incarnation `besides`, until `count`
    are left. A later message of a forgotten incarnation waits for the name as for any unknown
    one."""
    for incarnation in list(names)[: len(names) - count + 1]:
        if len(names) > count and incarnation != besides:
            del names[incarnation]
