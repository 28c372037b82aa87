"""Disclaimers: the answer of an owner that is asked for messages that it cannot give, because it
does not have them or others know something of them that it does not (rule 15 of queues).

An instance that lost its disk owns what its former life took in, and may not get it back: whoever
has it is asked for it in vain. It cannot deliver what it does not have, so it lets it go. And it
may have been made owner by a record that never came here, or know of a later one that never came
there: records of a lost disk, too, may have come to some only, and a message may come back to an
empty disk from where its acknowledgment does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raylay.services.queues.decisions import Key, TransferCandidate
from raylay.services.queues.message import AVAILABLE, QueuedMessage
from raylay.services.queues.records import OwnershipChange
from raylay.services.queues.transfer.ownership import Ownership, is_better

VAIN_US = 1_000_000
"""Time of asking in vain after which a requester is answered. Before, what is asked for may be on
its way."""
PAUSE_US = 5_000_000
"""Time without a request after which a requester begins again."""
TOLD_US = 500_000
"""Time between two answers that say to a requester what others do not know."""
REQUESTERS_MAX = 1_024
"""Instances that are remembered: with more, all begin again."""


class _Patience:
    __slots__ = ("asked_us", "since_us", "told_us")

    def __init__(self, now_us: int) -> None:
        self.since_us = self.asked_us = now_us
        self.told_us = 0


class DisclaimTimer:
    """Instances that ask in vain, and since when.

    Owner: the queue's machine. Times are the machine's, in microseconds since 1970.
    """

    __slots__ = ("_askers",)

    def __init__(self) -> None:
        self._askers: dict[str, _Patience] = {}

    def asked(self, requester: str, now_us: int) -> bool:
        """Notes that an instance asks in vain. Returns whether it has done so for long enough."""
        found = self._askers.get(requester)
        if found is None or not 0 <= now_us - found.asked_us < PAUSE_US:
            if len(self._askers) >= REQUESTERS_MAX:
                self._askers.clear()
            found = self._askers[requester] = _Patience(now_us)
        found.asked_us = now_us
        return now_us - found.since_us >= VAIN_US

    def tells(self, requester: str, now_us: int) -> bool:
        """Returns whether the requester is answered now; then it is not answered again for a
        while."""
        found = self._askers[requester]
        if found.told_us and 0 <= now_us - found.told_us < TOLD_US:
            return False
        found.told_us = now_us
        return True


class TransferReply(NamedTuple):
    """The answer about messages that were asked for in vain.

    Attributes:
        grants: whose they are from now on.
        messages: those of them that are here: they are to be frozen.
        absent: those that are not, and are to be frozen when they come.
        told: registers that this instance knows, and who asks does not.
        gone: messages that have left the queue, of which who asks does not know it.
    """

    grants: list[OwnershipChange]
    messages: list[QueuedMessage]
    absent: list[Key]
    told: list[OwnershipChange]
    gone: list[Key]


def answer(
    name: str,
    requester: str,
    count: int,
    wanted: Sequence[TransferCandidate],
    look: Callable[[Key], tuple[QueuedMessage | None, Ownership | None]],
) -> TransferReply:
    """Returns the answer to an instance that asks.

    Args:
        name: of this instance.
        count: messages that it has room for.
        wanted: what it asked this instance for, or one that it takes messages over of, and was not
            granted.
        look: the message that is here; and what is known of whose it is; None: that it has left
            the queue.
    """
    said = TransferReply([], [], [], [], [])
    for key, generation, owner in wanted:
        named = Ownership(generation, owner)
        message, known = look(key)
        if known is None:
            said.gone.append(key)
            continue
        publisher, sequence = key
        if known.generation > 0 and is_better(known, named):
            said.told.append(OwnershipChange(publisher, sequence, sequence, *known))
            continue
        if message is not None and (
            message.state != AVAILABLE or message.is_barrier or known.owner == name
        ):
            # A consumer here has it, or can have it.
            continue
        if len(said.grants) >= count:
            continue
        said.grants.append(
            OwnershipChange(publisher, sequence, sequence, generation + 1, requester)
        )
        if message is None:
            said.absent.append(key)
        else:
            said.messages.append(message)
    return said
