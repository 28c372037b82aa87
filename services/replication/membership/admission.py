"""Admission of a link at its logon (design.md 4, "Connecting").

A logon takes time: placements that it tells and its epoch are written down first, its Destination
is validated in a thread. Meanwhile its connection may end, and the instance may learn what retires
the other side, or itself. So it is asked twice:

    refused_before → nothing is written for a link that is refused anyway
    decide → its epoch is on disk: in, refused, or gone meanwhile

In a fabric that has a key, epochs, incarnations and names count from those who prove that they have
it: what another one says is kept apart, in memory and up to a limit, and none of it is ever theirs,
whoever is connected at the moment. `decide` is told whether it would be.

One whose connection is gone must not be taken in: nobody would ever say that it has left, and what
waits for all upstreams to catch up would wait for it.
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
"""The most by which an epoch may be above the one before. An instance counts one up for each
attempt of its links: a higher one is made up, and a few of these would use all epochs up."""
UNPROVEN_MAX = 1_024
"""The links, and the incarnations, that are remembered of those that prove nothing: each may be
invented for one connection."""


STORED_MAX = 4_096
"""The links whose epochs are on disk, where there is no key and any instance can be invented."""


class LinkLogon(Protocol):
    """The fields of a link's logon that decide here."""

    @property
    def name(self) -> str:
        """The instance that it is of."""

    @property
    def group(self) -> str:
        """The group of that."""

    @property
    def expect(self) -> str:
        """The group that it expects here."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the instance that the link is of."""

    @property
    def destination(self) -> str:
        """Name of the link's destination at the instance that it is of."""

    @property
    def epoch(self) -> int:
        """The epoch of this connection: each has a higher one."""

    @property
    def generation(self) -> int:
        """The number of its instance's moves."""

    @property
    def salvages(self) -> bool:
        """Returns whether it brings what a retired data directory holds."""

    @property
    def proven(self) -> bool:
        """Returns whether it has proved that its instance is of this one's fabric."""

    @property
    def address(self) -> str | None:
        """The address at which others reach its instance; None or empty: it does not know."""


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Refusal of a link: it is told why, and its connection ends."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class LinkAdmitted:
    """Admission of a link: it is sent the answer, then the effects are performed."""

    answer: UpstreamAnswer
    effects: list[Effect]


class UnprovenLinks:
    """Statements of links that do not prove to be of the fabric, where it has a key.

    None of it is on disk. An epoch keeps one connection apart from an older one of the same link,
    and no connection outlives the instance's process.

    Invariant: at most `UNPROVEN_MAX` epochs and as many incarnations are remembered.
    Owner: the instance; `epochs` the thread of its state. Lifecycle: one life of the instance.
    """

    __slots__ = ("_epochs", "_named")

    def __init__(self) -> None:
        self._epochs: dict[tuple[int, str], int] = {}
        """Epochs by incarnation and destination; what was used last stands last."""
        self._named: set[int] = set()

    def take_epoch(self, logon: LinkLogon) -> int:
        """The highest epoch of a link that was seen before; remembers this one where it is higher.
        The link that was not heard of for longest is forgotten for a new one."""
        key = logon.incarnation, logon.destination
        seen = self._epochs.pop(key, 0)
        self._epochs[key] = logon.epoch if counts(logon.epoch, seen) else seen
        if len(self._epochs) > UNPROVEN_MAX:
            del self._epochs[next(iter(self._epochs))]
        return seen

    def may_name(self, incarnation: int) -> bool:
        """Returns whether queues are told of the name of this incarnation: they keep it for
        good."""
        if len(self._named) < UNPROVEN_MAX:
            self._named.add(incarnation)
        return incarnation in self._named


class StoredEpochs:
    """The links that have epochs on disk, of an instance without a fabric's key.

    One that is forgotten and comes again is believed with whatever epoch it says: an older
    connection of it, or an old copy of its data directory, is not told apart from it once.

    Invariant: at most `STORED_MAX` are on disk, beside those that are connected.
    Owner: the thread of the instance's state. Lifecycle: one life of the instance.

    Args:
        stored: the keys that are on disk from earlier lives; asked once, when a link comes.
    """

    __slots__ = ("_keys", "_stored")

    def __init__(self, stored: Callable[[], Iterable[str]]) -> None:
        self._stored = stored
        self._keys: dict[str, None] | None = None
        """Keys in the order of their use: what was used last stands last."""

    def used(self, key: str, connected: Container[str]) -> list[str]:
        """A link's epoch is written under this key. The keys that are to be forgotten for it: of
        those that were not heard of for longest.

        Args:
            connected: the keys of links that are connected, which stay.
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
    """The key of the highest epoch of a link that is on disk."""
    return f"{EPOCH_KEYS}{logon.incarnation:016x}/{logon.destination}"


def proven_keys(logon: LinkLogon) -> tuple[str, str]:
    """The keys under which it is kept that an incarnation and a name are of the fabric."""
    return f"proven/{logon.incarnation:016x}", f"proven_name/{logon.name}"


def counts(epoch: int, epoch_seen: int) -> bool:
    """Returns whether an epoch may be written down as the highest."""
    return epoch_seen < epoch <= epoch_seen + EPOCH_STEP_MAX


def refused_before(machine: InstanceMachine, logon: LinkLogon) -> LinkRefused | None:
    """Returns why it is refused whatever epochs were seen before; None when it is not."""
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
    """Decides on a link whose epoch is on disk. None when its connection is gone: there is nobody
    to tell.

    Args:
        epoch_seen: the highest that was on disk before.
        is_open: whether its connection is open at this moment.
        is_anothers: it proves nothing, and one who did had its name or incarnation before
            (`proven_keys`).
    """
    if not is_open:
        return None
    # What may have changed while the epoch was written counts as well.
    refused = _refused(machine, logon, epoch_seen)
    if refused is not None:
        return refused
    mine = machine.identity
    if is_anothers and mine.in_fabric and not logon.proven:
        return LinkRefused(
            "unproven",
            f"{logon.name} (incarnation {logon.incarnation:016x}) is of the fabric of {mine.name}, "
            "and this link does not prove that it is: end what pretends to be it; where it is, "
            "give it the fabric's key (`fabric_key` of its configuration)",
        )
    if not counts(logon.epoch, epoch_seen):
        return LinkRefused(
            "bad_epoch",
            f"epoch {logon.epoch} of {logon.name} is more than {EPOCH_STEP_MAX} above "
            f"{epoch_seen}, the last one: no instance counts so far",
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
