"""Admission of a link at its logon (design.md 4, "Connecting").

A logon takes time: the placements that it tells and its epoch are written down first, and its
Destination is validated in a thread. Meanwhile its connection may end, or the instance may learn
what retires the upstream or itself. So admission is decided twice: `refused_before` runs first, so
that nothing is written for a link that is refused anyway; `decide` runs when the epoch is on disk,
and admits the link, refuses it, or finds its connection gone.

In a fabric that has a key, epochs, incarnations and names count only from links that prove that
they have the key. Claims of other links are kept apart, in memory and up to a limit, and they can
never take a name or incarnation that belongs to the fabric, whoever is connected at the moment.
`is_anothers` tells `decide` that such a claim was made.

A link whose connection is gone must not be admitted: nothing would ever report that it has left,
and whatever waits for all upstreams to catch up would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from raylay.services.replication.effects import Effect
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.values import UpstreamAnswer

EPOCH_KEYS = "epoch/"
EPOCH_STEP_MAX = 1 << 40
"""The most by which an epoch may be above the one before. An instance raises it by one for each
attempt of its links: a larger step is invented, and a few of them would use up all epochs."""
UNPROVEN_MAX = 1_024
"""Number of links, and of incarnations, remembered of instances that prove nothing: each of them
may be invented for one connection."""


STORED_MAX = 4_096
"""Number of links whose epochs are on disk where the fabric has no key, so that any instance can be
invented."""


class LinkLogon(Protocol):
    """The fields of a link's logon that admission reads."""

    @property
    def name(self) -> str:
        """Returns the name of the link's instance."""

    @property
    def group(self) -> str:
        """Returns the group of the link's instance."""

    @property
    def expect(self) -> str:
        """Returns the group that the link expects here."""

    @property
    def incarnation(self) -> int:
        """Returns the incarnation of the link's instance."""

    @property
    def destination(self) -> str:
        """Returns the name of the link's Destination at its instance."""

    @property
    def epoch(self) -> int:
        """Returns the epoch of this connection: each connection of a link has a higher one."""

    @property
    def generation(self) -> int:
        """Returns the generation of the link's instance: how often the instance was moved."""

    @property
    def salvages(self) -> bool:
        """Returns whether the link brings the content of a retired data directory."""

    @property
    def proven(self) -> bool:
        """Returns whether the link has proved that its instance belongs to this one's fabric."""

    @property
    def address(self) -> str | None:
        """Returns the address at which others reach the link's instance; None or empty: the
        instance does not know it."""


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Refusal of a link: the link is told the reason, and its connection ends."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class LinkAdmitted:
    """Admission of a link: the answer is sent to the link, then the effects are performed."""

    answer: UpstreamAnswer
    effects: list[Effect]


class UnprovenLinks:
    """Epochs and incarnations that links claim without proving that they belong to the fabric,
    where the fabric has a key.

    They are kept in memory only: an epoch tells a connection from an older one of the same link,
    and no connection outlives the instance's process.

    Invariant: at most `UNPROVEN_MAX` epochs and as many incarnations are remembered.
    Owner: the instance; `epochs` belongs to the thread of the instance's state. Lifecycle: one life
    of the instance.
    """

    __slots__ = ("_epochs", "_named")

    def __init__(self) -> None:
        self._epochs: dict[tuple[int, str], int] = {}
        """Epochs by incarnation and destination, the most recently used one last."""
        self._named: set[int] = set()

    def take_epoch(self, logon: LinkLogon) -> int:
        """Returns the highest epoch that a link used before; remembers the logon's epoch where that
        is higher. When the table is full, the least recently used link is forgotten."""
        key = logon.incarnation, logon.destination
        seen = self._epochs.pop(key, 0)
        self._epochs[key] = logon.epoch if counts(logon.epoch, seen) else seen
        if len(self._epochs) > UNPROVEN_MAX:
            del self._epochs[next(iter(self._epochs))]
        return seen

    def may_name(self, incarnation: int) -> bool:
        """Returns whether the queues may be told the name of this incarnation, which they keep for
        good: the number of such incarnations is limited."""
        if len(self._named) < UNPROVEN_MAX:
            self._named.add(incarnation)
        return incarnation in self._named


class StoredEpochs:
    """The links that have epochs on disk, of an instance without a fabric's key.

    A link that was forgotten and comes again is believed whatever epoch it claims: one time, an
    older connection of the link, or an old copy of its data directory, is not told apart from it.

    Invariant: at most `STORED_MAX` are on disk, besides those of connected links.
    Owner: the thread of the instance's state. Lifecycle: one life of the instance.

    Args:
        stored: returns the keys that are on disk from earlier lives; called once, when a link
            comes.
    """

    __slots__ = ("_keys", "_stored")

    def __init__(self, stored: Callable[[], Iterable[str]]) -> None:
        self._stored = stored
        self._keys: dict[str, None] | None = None
        """Keys of the epochs on disk, the most recently used one last; None: not read yet."""

    def used(self, key: str, connected: Container[str]) -> list[str]:
        """Notes that a link's epoch is written under this key. Returns the keys to be removed for
        it: those used least recently.

        Args:
            connected: the keys of connected links, which are never removed.
        """
        if self._keys is None:
            self._keys = dict.fromkeys(self._stored())
        keys = self._keys
        keys.pop(key, None)
        keys[key] = None
        too_many = len(keys) - STORED_MAX
        if too_many <= 0:
            return []
        idle = (each for each in keys if each not in connected and each != key)
        forgotten = list(islice(idle, too_many))
        for each in forgotten:
            del keys[each]
        return forgotten


def epoch_key(logon: LinkLogon) -> str:
    """Returns the key under which a link's highest epoch is on disk."""
    return f"{EPOCH_KEYS}{logon.incarnation:016x}/{logon.destination}"


def proven_keys(logon: LinkLogon) -> tuple[str, str]:
    """Returns the keys under which it is written down that an incarnation and a name have proved to
    belong to the fabric."""
    return f"proven/{logon.incarnation:016x}", f"proven_name/{logon.name}"


def counts(epoch: int, epoch_seen: int) -> bool:
    """Returns whether an epoch may be written down as a link's highest one."""
    return epoch_seen < epoch <= epoch_seen + EPOCH_STEP_MAX


def refused_before(machine: InstanceMachine, logon: LinkLogon) -> LinkRefused | None:
    """Returns the refusal of a link that is refused whatever epochs it used before; None: it is
    not."""
    return _refused(machine, logon, logon.epoch - 1)


def decide(
    machine: InstanceMachine,
    connection: int,
    logon: LinkLogon,
    epoch_seen: int,
    *,
    is_open: bool,
    is_anothers: bool = False,
) -> LinkAdmitted | LinkRefused | None:
    """Decides on a link whose epoch is on disk. Returns None when the link's connection is gone, so
    that there is no one to answer.

    Args:
        epoch_seen: the link's highest epoch on disk before this logon.
        is_open: whether the link's connection is open at this moment.
        is_anothers: whether the link proves nothing, while an instance that did had its name or
            incarnation before (`proven_keys`).
    """
    if not is_open:
        return None
    # Changes that happened while the epoch was written count as well.
    refused = _refused(machine, logon, epoch_seen)
    if refused is not None:
        return refused
    mine = machine.identity
    if is_anothers and mine.in_fabric and not logon.proven:
        return LinkRefused(
            "unproven",
            f"{logon.name} (incarnation {logon.incarnation:016x}) belongs to the fabric of "
            f"{mine.name}, and this link does not prove that it comes from there: stop the process "
            "that uses its name, or give the real one the fabric's key (`fabric_key` of its "
            "configuration)",
        )
    if not counts(logon.epoch, epoch_seen):
        return LinkRefused(
            "bad_epoch",
            f"epoch {logon.epoch} of {logon.name} is more than {EPOCH_STEP_MAX} above its last "
            f"one, {epoch_seen}: instances count up by 1, so this link is refused",
        )
    effects, answer = machine.upstream_logged_on(
        connection,
        logon.name,
        logon.group,
        logon.incarnation,
        logon.destination,
        logon.epoch,
        generation=logon.generation,
        salvages=logon.salvages,
        address=logon.address or "",
        proven=logon.proven,
    )
    return LinkAdmitted(answer, effects)


def _refused(machine: InstanceMachine, logon: LinkLogon, epoch_seen: int) -> LinkRefused | None:
    found = machine.refuse_upstream(
        logon.name,
        logon.expect,
        logon.incarnation,
        logon.destination,
        logon.epoch,
        epoch_seen,
        generation=logon.generation,
        salvages=logon.salvages,
        address=logon.address or "",
        proven=logon.proven,
    )
    return None if found is None else LinkRefused(*found)
