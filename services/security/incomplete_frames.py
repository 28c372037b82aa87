"""Limits on the memory of incomplete frames.

A frame begins with its length and may be 16 MiB long, for a link 64 MiB. A peer that begins a frame
and does not complete it makes the instance keep the received part as long as the connection lasts.
All connections of a kind share a limit, of which one user may use half, and so may one address.
Above a limit, the connection that holds the most of those under it is closed: no message of its
incomplete frame was acknowledged. Above the common limit, the connection is chosen from the holder
with the most bytes over all its connections: otherwise many small frames could make another
holder's large frame close.

Only bytes of incomplete frames are counted, read by read, before they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.connection_shares import ShareHolder, ShareRefusal, share_of
from raylay.services.security.logon_turns import is_local

INCOMPLETE_SHARE = 0.05
"""Default limit, as a share of the memory that the process may have."""
FRAMES_MIN = 4
"""Number of longest frames that the limit allows at once, however little memory there is."""
IN_HAND_SHARE = 0.1
"""Default limit on long batches that are complete and not all taken, as the same kind of share."""
IN_HAND_MIN = 512 * 1024 * 1024
TOO_MANY = "too_many"
INCOMPLETE, IN_HAND = "have begun and are not whole", "are long and not all taken"
"""Descriptions of the counted frames, as refusals have them."""


def incomplete_bytes_max(memory_bytes: int, frame_bytes_max: int) -> int:
    """Returns the limit for all connections of a kind.

    Args:
        memory_bytes: memory that the process may have.
        frame_bytes_max: longest frame of these connections.
    """
    return max(int(memory_bytes * INCOMPLETE_SHARE), FRAMES_MIN * frame_bytes_max)


def in_hand_bytes_max(memory_bytes: int) -> int:
    """The limit of the long batches in hand of all connections of a kind.

    Args:
        memory_bytes: memory that the process may have, in bytes.
    """
    return max(int(memory_bytes * IN_HAND_SHARE), IN_HAND_MIN)


class IncompleteFrame:
    """The memory that one connection uses for an incomplete frame.

    Owner: the connection. Lifecycle: from its first moment on, until `IncompleteFrames.left`.

    Args:
        over: reports that a limit is exceeded, and closes the connection.
    """

    __slots__ = ("bytes", "holder", "is_local", "over")

    def __init__(self, over: Callable[[ShareRefusal], None]) -> None:
        self.holder = ShareHolder("", "")
        self.is_local = True
        """Whether the connection comes from this host, which is not limited as an address."""
        self.bytes = 0
        self.over = over


class IncompleteFrames:
    """Limits the memory of incomplete frames.

    Invariants: the byte counts are the sums over the frames; between two calls no limit is
    exceeded. A call costs the same however many connections there are, except where a limit is
    exceeded.
    Owner: the event loop. Lifecycle: one life of the instance.

    Args:
        of: kind of the connections, for the refusal.
        bytes_max: limit for all of them.
        what: condition of the counted frames, for the refusal.
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
        """Notes how many bytes of its frame a connection is about to keep; 0: the frame is
        complete.

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
        """Notes the holder of a connection. If the holder exceeds a limit, the next read shows
        it."""
        held_bytes = frame.bytes
        self._count(frame, 0)
        frame.holder, frame.is_local = holder, is_local(holder.network)
        self._count(frame, held_bytes)

    def left(self, frame: IncompleteFrame) -> None:
        self._count(frame, 0)

    def __len__(self) -> int:
        return len(self._frames) + len(self._users) + len(self._networks)

    def _over(self, frame: IncompleteFrame) -> ShareRefusal | None:
        """Returns the limit that is exceeded, by all connections or by the holder of this one;
        None: none is."""
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
        """Returns the frames of the holder that exceeds a limit; the largest of them is closed."""
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
        # Many clients may share an address, as behind a proxy: of its connections, those of the
        # user that holds most there, or those of unknown users.
        held_by: dict[str, int] = {}
        for each in self._of_network(network):
            held_by[each.holder.user] = held_by.get(each.holder.user, 0) + each.bytes
        user = max(held_by, key=held_by.__getitem__)
        return (each for each in self._of_network(network) if each.holder.user == user)

    def _of_user(self, user: str) -> Iterable[IncompleteFrame]:
        return (frame for frame in self._frames if frame.holder.user == user)

    def _of_network(self, network: str) -> Iterable[IncompleteFrame]:
        return (frame for frame in self._frames if frame.holder.network == network)

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
