"""Which messages of other instances to ask for, when, and how often (rule 4).

Requests are not journaled, and a refusal is silence. So they are repeated, and what was asked for
in vain goes behind the others: no message that its owner needs itself keeps another one from being
asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from raylay.services.queues.decisions import Key, Request, Wanted
from raylay.services.queues.values import AVAILABLE, Message

CANDIDATES_MIN = 8
CANDIDATES_MAX = 256
"""Messages in a request; between the two, as many as there is room for."""
LOOKED_AT_MAX = 512
"""Messages of an owner that one turn looks at: filters of consumers may fit few of a million."""
REPEAT_US = 500_000
"""An owner that did not answer is asked again."""
USUAL_MIN_US, USUAL_US, USUAL_MAX_US = 1_000, 20_000, 2_000_000
"""A message is asked for when it is older than it usually gets until the acknowledgment of another
instance is here: at first, and the bounds."""
LOOK_AGAIN_US = 20_000
"""After a look that found nothing, an owner's messages are looked at again."""
USUAL_PART = 8
"""Of the usual time one message more is this part."""


class _Asked:
    """A request that is out: `count` of these were asked for."""

    __slots__ = ("at_us", "count", "keys")

    def __init__(self, at_us: int, count: int, keys: set[Key]) -> None:
        self.at_us = at_us
        self.count = count
        self.keys = keys


class Asking:
    """Free messages of other instances by owner, and the requests that are out.

    Invariants: each free message that another instance owns stands in `_by_owner` at its owner's;
        what stands there beside is dropped when it is looked at.
    """

    __slots__ = ("_asked", "_by_owner", "_looked_us", "usual_us")

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[Message]] = {}
        self._asked: dict[str, _Asked] = {}
        self._looked_us: dict[str, int] = {}
        """When nothing was found among an owner's messages."""
        self.usual_us = USUAL_US
        """From when a message comes here until an acknowledgment from elsewhere does."""

    def add(self, message: Message) -> None:
        """A free message of another instance."""
        owner = message.register.owner
        found = self._by_owner.get(owner)
        if found is None:
            found = self._by_owner[owner] = deque()
        found.append(message)

    def got(self, key: Key) -> None:
        """It is ours now, or gone."""
        for owner, asked in list(self._asked.items()):
            if key in asked.keys:
                asked.keys.discard(key)
                asked.count -= 1
                if asked.count <= 0:
                    del self._asked[owner]

    @property
    def is_waiting(self) -> bool:
        """Whether a request is out."""
        return bool(self._asked)

    def acknowledged(self, age_us: int) -> None:
        """A message of this age was acknowledged elsewhere."""
        age_us = min(max(age_us, USUAL_MIN_US), USUAL_MAX_US)
        self.usual_us += (age_us - self.usual_us) // USUAL_PART

    def next_us(self, now_us: int) -> int:
        """When there may be something to ask for again, in microseconds since 1970; 0: never,
        unless a message comes."""
        asks = any(waiting for owner, waiting in self._by_owner.items() if owner)
        return now_us + max(LOOK_AGAIN_US, min(self.usual_us, REPEAT_US)) if asks else 0

    def requests(self, now_us: int, room: int, wants: Callable[[Message], bool]) -> list[Request]:
        """What to ask for now.

        Args:
            room: free places of consumers.
            wants: whether a consumer here could take the message.
        """
        for owner, asked in list(self._asked.items()):
            if now_us - asked.at_us >= REPEAT_US:
                del self._asked[owner]
        room -= sum(asked.count for asked in self._asked.values())
        found: list[Request] = []
        for owner in list(self._by_owner):
            if room <= 0:
                break
            if not owner or owner in self._asked:
                continue
            most = min(max(CANDIDATES_MIN, room), CANDIDATES_MAX)
            chosen = self.candidates(owner, now_us, most, wants)
            if not chosen:
                continue
            count = min(room, len(chosen))
            room -= count
            self._asked[owner] = _Asked(now_us, count, {message.key for message in chosen})
            found.append(_request(count, chosen))
        return found

    def candidates(
        self, owner: str, now_us: int, most: int, wants: Callable[[Message], bool]
    ) -> list[Message]:
        """Up to so many messages of the owner that consumers here could take: those that were not
        looked at before come first."""
        waiting = self._by_owner.get(owner)
        looked_us = self._looked_us.get(owner)
        if waiting is None or (looked_us is not None and now_us < looked_us + LOOK_AGAIN_US):
            return []
        chosen: dict[Message, None] = {}
        for _ in range(min(len(waiting), LOOKED_AT_MAX)):
            message = waiting[0]
            if message.state != AVAILABLE or message.register.owner != owner:
                waiting.popleft()
                continue
            age_us = now_us - message.arrival.received_us
            # One of the future came before the clock was set back: nobody knows how old it is.
            if len(chosen) >= most or 0 <= age_us < self.usual_us:
                # What is behind a young one is younger, or was looked at already.
                break
            waiting.rotate(-1)
            if wants(message):
                chosen[message] = None
        if not waiting:
            del self._by_owner[owner]
        if chosen:
            self._looked_us.pop(owner, None)
        else:
            self._looked_us[owner] = now_us
        return list(chosen)

    def owners(self) -> Collection[str]:
        """The instances that messages are known to belong to; empty: it is not known."""
        return list(self._by_owner)


def _request(count: int, chosen: Sequence[Message]) -> Request:
    return Request(count, [Wanted(message.key, *message.register) for message in chosen])
