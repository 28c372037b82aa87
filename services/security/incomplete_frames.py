"""Limits on the memory of frames that have begun and are not whole.

A frame says its length first and may be 16 MiB long, of a link 64 MiB. Whoever begins one and goes
no further holds what came of it for as long as the connection lasts. All connections of a kind
share a limit, of which one user has half, and so has one address. Of whoever is over a limit the
connection that holds most is ended: no message of its incomplete frame was acknowledged. Where all
together are over theirs, that is whoever holds most over all connections: many small frames are no
way to have another one's large frame ended.

Only what comes of an incomplete frame is counted, read by read, before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.connection_shares import ShareHolder, ShareRefusal, share_of
from raylay.services.security.logon_turns import is_local

INCOMPLETE_SHARE = 0.05
"""The limit where nothing is configured: so much of the memory that the process may have."""
FRAMES_MIN = 4
"""The limit lets so many of the longest frames come at once, however little memory there is."""
IN_HAND_SHARE = 0.1
"""The limit of long batches that are whole and not all taken, likewise."""
IN_HAND_MIN = 512 * 1024 * 1024
TOO_MANY = "too_many"
INCOMPLETE, IN_HAND = "have begun and are not whole", "are long and not all taken"
"""What is said of the frames that are counted."""


def incomplete_bytes_max(memory_bytes: int, frame_bytes_max: int) -> int:
    """The limit of all connections of a kind.

    Args:
        memory_bytes: that the process may have.
        frame_bytes_max: of one frame of theirs.
    """
    return max(int(memory_bytes * INCOMPLETE_SHARE), FRAMES_MIN * frame_bytes_max)


def in_hand_bytes_max(memory_bytes: int) -> int:
    """The limit of the long batches in hand of all connections of a kind.

    Args:
        memory_bytes: that the process may have.
    """
    return max(int(memory_bytes * IN_HAND_SHARE), IN_HAND_MIN)


class IncompleteFrame:
    """The memory that one connection holds for a frame that is not whole.

    Owner: the connection. Lifecycle: from its first moment on, until `IncompleteFrames.left`.

    Args:
        over: tells of a limit that is passed, and ends the connection.
    """

    __slots__ = ("bytes", "holder", "is_local", "over")

    def __init__(self, over: Callable[[ShareRefusal], None]) -> None:
        self.holder = ShareHolder("", "")
        self.is_local = True
        """Whether it comes from this host, which is not limited as an address."""
        self.bytes = 0
        self.over = over


class IncompleteFrames:
    """See the file's docstring.

    Invariants: the sums are those of the frames; between two calls no limit is passed. A call costs
    the same however many connections there are, but where a limit is passed.
    Owner: the event loop. Lifecycle: one life of the instance.

    Args:
        of: the kind of the connections, for the refusal.
        bytes_max: of all of them.
        what: is counted of them.
    """

    def __init__(self, of: str, bytes_max: int, what: str = INCOMPLETE) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._of = of
        self._what = what
        self._frames: set[IncompleteFrame] = set()
        self._users: dict[str, int] = {}
        self._networks: dict[str, int] = {}

    def holds(self, frame: IncompleteFrame, held_bytes: int) -> None:
        """A connection is about to hold so much of its frame; 0: that is whole.

        Raises:
            RemoteProtocolError: it is the one that is to be ended; with reason `too_many`.
        """
        grows = held_bytes > frame.bytes
        self._count(frame, held_bytes)
        while grows:
            refusal = self._over(frame)
            if refusal is None:
                return
            largest = max(self._those_of(refusal, frame), key=lambda each: each.bytes)
            self._count(largest, 0)
            largest.over(refusal)
            if largest is frame:
                raise RemoteProtocolError(refusal.text, TOO_MANY)

    def belongs(self, frame: IncompleteFrame, holder: ShareHolder) -> None:
        """Notes whose the connection is. A limit that this one passes shows with the next read."""
        held_bytes = frame.bytes
        self._count(frame, 0)
        frame.holder, frame.is_local = holder, is_local(holder.network)
        self._count(frame, held_bytes)

    def left(self, frame: IncompleteFrame) -> None:
        """The connection has ended."""
        self._count(frame, 0)

    def __len__(self) -> int:
        return len(self._frames) + len(self._users) + len(self._networks)

    def _over(self, frame: IncompleteFrame) -> ShareRefusal | None:
        """The limit that is passed, by all or by who holds this one; None: none is."""
        holder, share = frame.holder, share_of(self.bytes_max)
        if holder.user and self._users.get(holder.user, 0) > share:
            return self._refusal("user", "one user", share)
        if not frame.is_local and self._networks.get(holder.network, 0) > share:
            return self._refusal("address", "one address", share)
        if self.bytes > self.bytes_max:
            return self._refusal("all", "all together", self.bytes_max)
        return None

    def _refusal(self, limit: str, who: str, most: int) -> ShareRefusal:
        return ShareRefusal(
            limit,
            f"the frames of {self._of} that {self._what} hold more than the "
            f"{most:,} bytes that {who} may hold, and this connection holds most of it: send each "
            "frame at once, smaller ones, or over fewer connections at a time",
        )

    def _those_of(self, refusal: ShareRefusal, frame: IncompleteFrame) -> Iterable[IncompleteFrame]:
        """Returns the frames of which the largest is ended, of whoever is over a limit."""
        holder = frame.holder
        if refusal.limit == "user":
            return self._of_user(holder.user)
        if refusal.limit == "address":
            return self._of_network(holder.network)
        users = ((held, user) for user, held in self._users.items() if user)
        most_of_user, user = max(users, default=(0, ""))
        most_of_network, network = max((held, each) for each, held in self._networks.items())
        if most_of_user >= most_of_network:
            return self._of_user(user)
        # Many may come by one address, as through a proxy: of its connections those of whichever
        # user holds most by it, or those of nobody in particular.
        held_by: dict[str, int] = {}
        for each in self._of_network(network):
            held_by[each.holder.user] = held_by.get(each.holder.user, 0) + each.bytes
        user = max(held_by, key=held_by.__getitem__)
        return (each for each in self._of_network(network) if each.holder.user == user)

    def _of_user(self, user: str) -> Iterable[IncompleteFrame]:
        return (each for each in self._frames if each.holder.user == user)

    def _of_network(self, network: str) -> Iterable[IncompleteFrame]:
        return (each for each in self._frames if each.holder.network == network)

    def _count(self, frame: IncompleteFrame, held_bytes: int) -> None:
        more = held_bytes - frame.bytes
        if not more:
            return
        frame.bytes = held_bytes
        self.bytes += more
        _add(self._users, frame.holder.user, more)
        _add(self._networks, frame.holder.network, more)
        if held_bytes:
            self._frames.add(frame)
        else:
            self._frames.discard(frame)


def _add(sums: dict[str, int], key: str, more: int) -> None:
    total = sums.get(key, 0) + more
    if total:
        sums[key] = total
    else:
        del sums[key]
