"""Requests of other instances that were refused and are not repeated yet (rules 4 and 5).

A refused request is not answered, so the requester waits until it repeats the request. If a wanted
message becomes free meanwhile, and no consumer here can take it, it is granted without a new
request. So work moves to other instances at once when the consumers here are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylay.services.queues.decisions import TransferCandidate
from raylay.services.queues.transfer.transfer_requests import REPEAT_US

REQUESTERS_MAX = 256
"""The number of instances whose requests are remembered. With more, the oldest request is
forgotten."""


class DeferredRequest(NamedTuple):
    """The messages for which an instance still waits.

    Attributes:
        requester: the name of that instance.
        places: the number of messages that it has room for.
        wanted: the messages that it requested, in order of preference.
    """

    requester: str
    places: int
    wanted: Sequence[TransferCandidate]


class DeferredRequests:
    """See the file's docstring. Keeps the last request of each instance, which replaces the earlier
    ones.

    Owner: the queue's machine.
    """

    __slots__ = ("_of", "has_freed")

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, DeferredRequest]] = {}
        """Deferred requests by requester, oldest first, each with the time at which it ends."""
        self.has_freed = False
        """Whether a message became free since the deferred requests were last taken."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def note(self, refusal: DeferredRequest, until_us: int) -> None:
        """Replaces the request of an instance, which waits for these messages until `until_us`. A
        request without room or messages is dropped."""
        self._of.pop(refusal.requester, None)
        if refusal.places > 0 and refusal.wanted:
            self._of[refusal.requester] = until_us, refusal
            if len(self._of) > REQUESTERS_MAX:
                del self._of[next(iter(self._of))]

    def freed(self) -> None:
        self.has_freed = bool(self._of)

    def take(self, now_us: int) -> list[tuple[int, DeferredRequest]]:
        """Takes out the requests that have not ended, each with its end. The caller notes again
        what it does not grant."""
        self.has_freed = False
        of, self._of = self._of, {}
        return [each for each in of.values() if 0 < each[0] - now_us <= REPEAT_US]
