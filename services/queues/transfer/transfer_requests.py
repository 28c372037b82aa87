"""Requests for messages that other instances own: which, when, and how often (rule 4).

Requests are not journaled, and a refusal is not answered. So requests are repeated, and messages
that were requested in vain go behind the others: a message that its owner needs itself keeps no
other one from being requested. Nor does an unanswered request: if there are other messages to
request, the next request replaces it, once the usual time for a grant is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from raylay.services.queues.decisions import Key, TransferCandidate, TransferRequest
from raylay.services.queues.message import AVAILABLE, QueuedMessage

CANDIDATES_MIN = 8
CANDIDATES_MAX = 256
"""The bounds of the number of messages in a request. Between them, it is the number that consumers
have room for."""
LOOKED_AT_MAX = 512
"""The number of an owner's messages that one turn evaluates, because filters of consumers may pass
few of a million."""
DROPPED_MAX = 16_384
"""The number of messages that one turn drops, because they are gone or no longer their former
owner's."""
SWEPT_FROM = 1_024
"""The number of an owner's messages from which those that are gone are dropped even if no request
comes. From then on the bound is twice the number that the last time left, if that is more."""
REPEAT_US = 500_000
"""The time, in microseconds, after which an unanswered request is repeated, even with nothing new
to request."""
AGAIN_MIN_US = 50_000
"""The least time, in microseconds, between two requests to one owner while the first is
unanswered."""
GRANT_US = 100_000
"""The assumed time, in microseconds, from a request until the granted messages are here, as long as
none has been granted."""
GRANT_PART = 4
"""The divisor of the moving average of that time: one more grant has the inverse as its weight."""
USUAL_MIN_US, USUAL_US, USUAL_MAX_US = 1_000, 20_000, 2_000_000
"""The lower bound, first value and upper bound of `usual_us`, in microseconds. A message is
requested when it is older than this, because a younger one is usually still acknowledged
elsewhere."""
LOOK_AGAIN_US = 20_000
"""The time, in microseconds, after which an owner's messages are evaluated again when none was
wanted."""
USUAL_PART = 8
"""The divisor of the moving average of `usual_us`: one more message has the inverse as its
weight."""


class _OpenRequest:
    """An unanswered request for `count` of the messages in `keys`."""

    __slots__ = ("at_us", "count", "keys")

    def __init__(self, at_us: int, count: int, keys: set[Key]) -> None:
        self.at_us = at_us
        self.count = count
        self.keys = keys


class TransferRequests:
    """Free messages of other instances by owner, and the requests that are unanswered.

    Invariants: each free message that another instance owns is in `_by_owner` under its owner.
        Other messages there are dropped when they are evaluated, and before they outnumber these.
    """

    __slots__ = (
        "_asked",
        "_by_owner",
        "_fresh",
        "_grant_us",
        "_looked_us",
        "_sweep_at",
        "usual_us",
    )

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[QueuedMessage]] = {}
        self._asked: dict[str, _OpenRequest] = {}
        self._looked_us: dict[str, int] = {}
        """The time at which no message of an owner was wanted."""
        self._fresh: dict[str, int] = {}
        """The number of an owner's messages that have not been evaluated yet, at most. Only because
        of these is an owner sent a request sooner than after `REPEAT_US`."""
        self._sweep_at: dict[str, int] = {}
        self._grant_us = GRANT_US
        self.usual_us = USUAL_US
        """The usual time, in microseconds, from a message's arrival here until its acknowledgment
        comes from elsewhere."""

    def add(self, message: QueuedMessage) -> None:
        owner = message.register.owner
        found = self._by_owner.get(owner)
        if found is None:
            found = self._by_owner[owner] = deque()
        elif len(found) >= self._sweep_at.get(owner, SWEPT_FROM):
            # Without consumers here these messages are not evaluated, and most are gone by now.
            found = self._by_owner[owner] = deque(
                each for each in found if each.state == AVAILABLE and each.register.owner == owner
            )
            self._sweep_at[owner] = max(SWEPT_FROM, 2 * len(found))
        found.append(message)
        self._fresh[owner] = self._fresh.get(owner, 0) + 1

    def got(self, key: Key, granted_us: int = 0) -> None:
        """Notes that a message is this instance's now, or gone.

        Args:
            granted_us: the time at which the message became this instance's, in microseconds since
                1970; 0: it is gone.
        """
        for owner, asked in list(self._asked.items()):
            if key in asked.keys:
                if granted_us:
                    took_us = min(max(granted_us - asked.at_us, 0), REPEAT_US)
                    self._grant_us += (took_us - self._grant_us) // GRANT_PART
                asked.keys.discard(key)
                asked.count -= 1
                if asked.count <= 0:
                    del self._asked[owner]

    def consumers_changed(self) -> None:
        """Notes that consumers may want messages that they did not want before."""
        self._fresh = {owner: len(waiting) for owner, waiting in self._by_owner.items()}
        self._looked_us.clear()

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked)

    def acknowledged(self, age_us: int) -> None:
        age_us = min(max(age_us, USUAL_MIN_US), USUAL_MAX_US)
        self.usual_us += (age_us - self.usual_us) // USUAL_PART

    def next_us(self, now_us: int) -> int:
        """Returns the time at which there may be something to request again, in microseconds since
        1970; 0: never, unless a message comes."""
        soon_us = now_us + max(LOOK_AGAIN_US, min(self.usual_us, REPEAT_US))
        times = [
            soon_us if asked is None or owner in self._fresh else asked.at_us + REPEAT_US
            for owner, asked in ((owner, self._asked.get(owner)) for owner in self._by_owner)
            if owner
        ]
        return min(times, default=0)

    def requests(
        self, now_us: int, room: int, wants: Callable[[QueuedMessage], bool]
    ) -> list[TransferRequest]:
        """Returns the requests that are due.

        Args:
            room: the number of messages that consumers have room for.
            wants: a function that tells whether a consumer here could take a message.
        """
        again_us = min(max(AGAIN_MIN_US, 2 * self._grant_us), REPEAT_US)
        for owner, asked in list(self._asked.items()):
            if not 0 <= now_us - asked.at_us < REPEAT_US:
                del self._asked[owner]
        room -= sum(asked.count for asked in self._asked.values())
        found: list[TransferRequest] = []
        for owner in list(self._by_owner):
            out = self._asked.get(owner)
            taken = out.count if out is not None else 0
            if not owner or room + taken <= 0:
                continue
            if out is not None:
                has_grown = out.count < min(room + taken, len(out.keys))
                if now_us < out.at_us + again_us or not (has_grown or owner in self._fresh):
                    continue
            most = min(max(CANDIDATES_MIN, room + taken), CANDIDATES_MAX)
            chosen = self.candidates(owner, now_us, most, wants)
            count = min(room + taken, len(chosen))
            if not chosen:
                continue
            keys = {message.key for message in chosen}
            if out is not None and keys <= out.keys and count <= out.count:
                continue
            room += taken - count
            self._asked[owner] = _OpenRequest(now_us, count, keys)
            found.append(_request(count, chosen))
        return found

    def candidates(
        self, owner: str, now_us: int, most: int, wants: Callable[[QueuedMessage], bool]
    ) -> list[QueuedMessage]:
        """Returns up to `most` messages of the owner that consumers here could take. Messages that
        were not evaluated before come first."""
        waiting = self._by_owner.get(owner)
        looked_us = self._looked_us.get(owner)
        if waiting is None or (looked_us is not None and 0 <= now_us - looked_us < LOOK_AGAIN_US):
            return []
        chosen: dict[QueuedMessage, None] = {}
        looked = dropped = 0
        while looked < min(len(waiting), LOOKED_AT_MAX) and dropped < DROPPED_MAX:
            message = waiting[0]
            if message.state != AVAILABLE or message.register.owner != owner:
                # A message that is gone or has another owner must not keep others from being
                # requested.
                waiting.popleft()
                dropped += 1
                continue
            age_us = now_us - message.arrival.received_us
            # A message with a time in the future came in an earlier life, before the clock was set
            # back. Its age is not known.
            if len(chosen) >= most or 0 <= age_us < self.usual_us:
                # Messages behind a young one are younger, or were evaluated already.
                break
            waiting.rotate(-1)
            looked += 1
            if wants(message):
                chosen[message] = None
        if not waiting:
            del self._by_owner[owner]
            self._sweep_at.pop(owner, None)
        fresh = min(self._fresh.get(owner, 0), len(waiting)) - looked
        if fresh > 0:
            self._fresh[owner] = fresh
        else:
            self._fresh.pop(owner, None)
        if chosen or dropped == DROPPED_MAX:
            self._looked_us.pop(owner, None)
        else:
            self._looked_us[owner] = now_us
        return list(chosen)

    def owners(self) -> Collection[str]:
        """Returns the owners of these messages; an empty name stands for an unknown owner."""
        return list(self._by_owner)


def _request(count: int, chosen: Sequence[QueuedMessage]) -> TransferRequest:
    return TransferRequest(
        count, [TransferCandidate(message.key, *message.register) for message in chosen]
    )
