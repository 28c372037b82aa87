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
"""The time of requests in vain, in microseconds, after which a requester is answered. Earlier, the
messages may still be on their way."""
PAUSE_US = 5_000_000
"""The time without a request, in microseconds, after which a requester's time in vain begins
anew."""
TOLD_US = 500_000
"""The least time, in microseconds, between two replies with changes that a requester lacks."""
REQUESTERS_MAX = 1_024
"""The number of requesters that are remembered. With more, all are forgotten and begin anew."""


class _Patience:
    __slots__ = ("asked_us", "since_us", "told_us")

    def __init__(self, now_us: int) -> None:
        self.since_us = self.asked_us = now_us
        self.told_us = 0


class DisclaimTimer:
    """The instances that request in vain, and the time since when each does.

    Owner: the queue's machine. Times are the machine's, in microseconds since 1970.
    """

    __slots__ = ("_askers",)

    def __init__(self) -> None:
        self._askers: dict[str, _Patience] = {}

    def asked(self, requester: str, now_us: int) -> bool:
        """Notes a request in vain. Returns whether the requester has made such requests for long
        enough to be answered."""
        found = self._askers.get(requester)
        if found is None or not 0 <= now_us - found.asked_us < PAUSE_US:
            if len(self._askers) >= REQUESTERS_MAX:
                self._askers.clear()
            found = self._askers[requester] = _Patience(now_us)
        found.asked_us = now_us
        return now_us - found.since_us >= VAIN_US

    def tells(self, requester: str, now_us: int) -> bool:
        """Returns whether to send the requester now the changes that it lacks. If so, it is not
        told again for `TOLD_US`."""
        found = self._askers[requester]
        if found.told_us and 0 <= now_us - found.told_us < TOLD_US:
            return False
        found.told_us = now_us
        return True


class TransferReply(NamedTuple):
    """The answer to a request for messages that were requested in vain.

    Attributes:
        grants: the ownership changes that give messages to the requester.
        messages: the granted messages that are here, which are to be frozen.
        absent: the granted messages that are not here, which are to be frozen when they come.
        told: the ownership changes that this instance knows and the requester does not.
        gone: the messages that have left the queue, which the requester does not know.
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
    """Returns the answer to a requester.

    Args:
        name: the name of this instance.
        count: the number of messages that the requester has room for.
        wanted: the messages requested and not granted, of this instance or of one that it stands in
            for by proxied transfer.
        look: a function that returns a message, or None if it is not here, and its ownership, or
            None if it has left the queue.
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
            # A consumer here has the message, or can have it.
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
