"""Requests for messages that other instances own: which, when, and how often (rule 4).

Requests are not journaled, and a refusal is silence. So they are repeated, and what was asked for
in vain goes behind the others: no message that its owner needs itself keeps another one from being
asked for. Nor does a request that is out: where there is something else to ask for, the next one
takes its place, no sooner than it takes to be granted something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from raylay.services.queues.decisions import Key, TransferCandidate, TransferRequest
from raylay.services.queues.message import AVAILABLE, QueuedMessage

CANDIDATES_MIN = 8
CANDIDATES_MAX = 256
"""Messages in a request; between the two, as many as there is room for."""
LOOKED_AT_MAX = 512
"""Messages of an owner that one turn looks at: filters of consumers may fit few of a million."""
DROPPED_MAX = 16_384
"""Messages of an owner that are not its any more, or gone, and that one turn drops."""
SWEPT_FROM = 1_024
"""Messages of an owner: with more, and twice as many as when it was last done, what is gone is
dropped, though nobody asks."""
REPEAT_US = 500_000
"""An owner that did not answer is asked again, though there is nothing new to ask for."""
AGAIN_MIN_US = 50_000
"""Least time between two requests to an owner, where the first one is still out."""
GRANT_US = 100_000
"""Assumed time from a request until the granted messages are here, before one was granted."""
GRANT_PART = 4
"""Divisor of the moving average of that time: the weight of one more grant is its inverse."""
USUAL_MIN_US, USUAL_US, USUAL_MAX_US = 1_000, 20_000, 2_000_000
"""A message is asked for when it is older than it usually gets until the acknowledgment of another
instance is here: at first, and the bounds."""
LOOK_AGAIN_US = 20_000
"""Time after a look that found nothing until an owner's messages are looked at again."""
USUAL_PART = 8
"""Divisor of the moving average of the usual time: the weight of one more message is its
inverse."""


class _OpenRequest:
    """A request that is out: `count` of these were asked for."""

    __slots__ = ("at_us", "count", "keys")

    def __init__(self, at_us: int, count: int, keys: set[Key]) -> None:
        self.at_us = at_us
        self.count = count
        self.keys = keys


class TransferRequests:
    """Free messages of other instances by owner, and the requests that are out.

    Invariants: each free message that another instance owns stands in `_by_owner` at its owner's;
        what stands there beside is dropped when it is looked at, and before it is more than the
        others.
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
        """Time at which nothing was found among an owner's messages."""
        self._fresh: dict[str, int] = {}
        """Most of an owner's messages that were not looked at yet. Only for these is an owner asked
        sooner than after `REPEAT_US`."""
        self._sweep_at: dict[str, int] = {}
        self._grant_us = GRANT_US
        self.usual_us = USUAL_US
        """Usual time from a message's arrival here until an acknowledgment from elsewhere comes."""

    def add(self, message: QueuedMessage) -> None:
        owner = message.register.owner
        found = self._by_owner.get(owner)
        if found is None:
            found = self._by_owner[owner] = deque()
        elif len(found) >= self._sweep_at.get(owner, SWEPT_FROM):
            # Where nobody asks, nobody looks: most are done with where they came from.
            found = self._by_owner[owner] = deque(
                each for each in found if each.state == AVAILABLE and each.register.owner == owner
            )
            self._sweep_at[owner] = max(SWEPT_FROM, 2 * len(found))
        found.append(message)
        self._fresh[owner] = self._fresh.get(owner, 0) + 1

    def got(self, key: Key, granted_us: int = 0) -> None:
        """Notes that a message is ours now, or gone.

        Args:
            granted_us: when it became ours, in microseconds since 1970; 0: it is gone.
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
        """Notes that consumers may want what they did not want before."""
        self._fresh = {owner: len(waiting) for owner, waiting in self._by_owner.items()}
        self._looked_us.clear()

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked)

    def acknowledged(self, age_us: int) -> None:
        age_us = min(max(age_us, USUAL_MIN_US), USUAL_MAX_US)
        self.usual_us += (age_us - self.usual_us) // USUAL_PART

    def next_us(self, now_us: int) -> int:
        """The time at which there may be something to ask for again, in microseconds since 1970; 0:
        never, unless a message comes."""
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
            room: free places of consumers.
            wants: whether a consumer here could take the message.
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
        """Up to so many messages of the owner that consumers here could take: those that were not
        looked at before come first."""
        waiting = self._by_owner.get(owner)
        looked_us = self._looked_us.get(owner)
        if waiting is None or (looked_us is not None and 0 <= now_us - looked_us < LOOK_AGAIN_US):
            return []
        chosen: dict[QueuedMessage, None] = {}
        looked = dropped = 0
        while looked < min(len(waiting), LOOKED_AT_MAX) and dropped < DROPPED_MAX:
            message = waiting[0]
            if message.state != AVAILABLE or message.register.owner != owner:
                # What is gone keeps nobody from being asked for.
                waiting.popleft()
                dropped += 1
                continue
            age_us = now_us - message.arrival.received_us
            # One of the future came in an earlier life, before the clock was set back: nobody knows
            # how old it is.
            if len(chosen) >= most or 0 <= age_us < self.usual_us:
                # What is behind a young one is younger, or was looked at already.
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
        """The instances that messages are known to belong to; empty: it is not known."""
        return list(self._by_owner)


def _request(count: int, chosen: Sequence[QueuedMessage]) -> TransferRequest:
    return TransferRequest(
        count, [TransferCandidate(message.key, *message.register) for message in chosen]
    )
