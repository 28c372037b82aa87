"""Requests of other instances that were refused, and are still out there (rules 4 and 5).

A refusal is silence: who asks does not learn of it, and counts on an answer until it asks again. So
where a message comes free meanwhile that nobody here can take, it is granted without being asked
for once more: work moves at once when the consumers here are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylay.services.queues.decisions import TransferCandidate
from raylay.services.queues.transfer.transfer_requests import REPEAT_US

REQUESTERS_MAX = 256
"""Instances whose requests are remembered; with more, the oldest request is not."""


class DeferredRequest(NamedTuple):
    """The messages for which an instance still waits.

    Attributes:
        requester: its name.
        places: messages that it has room for.
        wanted: candidates.
    """

    requester: str
    places: int
    wanted: Sequence[TransferCandidate]


class DeferredRequests:
    """See the file's docstring. Of each instance the last request is known: an earlier one is out
    no more.

    Owner: the queue's machine.
    """

    __slots__ = ("_of", "has_freed")

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, DeferredRequest]] = {}
        """Deferred requests by requester, oldest first, each with the time at which it ends."""
        self.has_freed = False
        """Whether something came free since it was looked at."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def note(self, refusal: DeferredRequest, until_us: int) -> None:
        """The instance has asked, and waits for this until then: for nothing, where it has got
        all."""
        self._of.pop(refusal.requester, None)
        if refusal.places > 0 and refusal.wanted:
            self._of[refusal.requester] = until_us, refusal
            if len(self._of) > REQUESTERS_MAX:
                del self._of[next(iter(self._of))]

    def freed(self) -> None:
        self.has_freed = bool(self._of)

    def take(self, now_us: int) -> list[tuple[int, DeferredRequest]]:
        """Returns the requests that are still out, with their ends. What they do not get now is to
        be noted again."""
        self.has_freed = False
        of, self._of = self._of, {}
        return [each for each in of.values() if 0 < each[0] - now_us <= REPEAT_US]
