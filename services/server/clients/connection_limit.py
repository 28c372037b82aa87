"""The limit on the number of an instance's connections.

Each connection is a file descriptor, and without a free one the instance cannot open the next
segment of its journal. The oldest connection that has not logged on gives way: it has only a few
seconds to log on anyway.
"""

from __future__ import annotations

import itertools
import resource
from typing import Protocol

from raylay.services.security.connection_shares import ConnectionShares, ShareHolder
from raylay.services.subscriptions.shares import SubscriptionShares

FILES = "the files that the process may have, less those that the instance keeps for itself"
OWN_FILES_MIN = 48
"""Files kept for the instance itself: it opens about 32, and the segments of its journal."""
RAISE_FILES = "try again, or raise the limit (`ulimit -n`)"


class SessionShares:
    """The holders that sessions are counted for, and the shares of each user's subscriptions. Made
    before the parts that count for them.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Attributes:
        holders: for each session, by the number of its connection, the user or address for which it
            is counted, and the shares that count it.
        subscriptions: shares of the subscriptions of each user, of whatever kind they are.
    """

    def __init__(self) -> None:
        self.holders: dict[int, tuple[ShareHolder, tuple[ConnectionShares, ...]]] = {}
        self.subscriptions = SubscriptionShares()

    def user_of(self, session: int) -> str:
        """Names the holder of a session: its user, if a module knows it, else the number of the
        connection."""
        found = self.holders.get(session)
        return f"user {found[0].user}" if found is not None and found[0].user else str(session)


class LimitedConnection(Protocol):
    """A connection."""

    def turn_away(self, text: str) -> None:
        """Ends the connection with this sentence; the connection then calls `left`."""


def connections_max() -> int:
    """The number of connections that the process may have: its limit of descriptors, less a quarter
    of it, and less `OWN_FILES_MIN` at least."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft - max(soft // 4, OWN_FILES_MIN))


def shares_of_files(instance: str, most: int) -> ConnectionShares:
    """Returns the shares that one user, and one address, may have of all connections of an
    instance.

    Args:
        most: the number of all connections.
    """
    return ConnectionShares(
        instance,
        most,
        advice="close one, or raise the instance's limit (`ulimit -n`), of which it is half",
    )


class ConnectionLimit:
    """The count and the limit of connections of an instance.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Invariant: connections that have not logged on are kept in the order in which they came.

    Args:
        most: the largest number of connections at once.
        why, advice: parts of the sentence for a connection that is turned away.
    """

    def __init__(self, most: int, why: str = FILES, advice: str = RAISE_FILES) -> None:
        self.most = most
        self._why, self._advice = why, advice
        self._waiting: dict[LimitedConnection, None] = {}
        self._count = 0
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Returns a number for a connection, never used twice."""
        return next(self._numbers)

    def __len__(self) -> int:
        return self._count

    def came(self, connection: LimitedConnection) -> None:
        self._count += 1
        self._waiting[connection] = None
        if self._count > self.most:
            next(iter(self._waiting)).turn_away(
                f"{self.most} connections are open here, {self._why}, and this one had not logged "
                f"on: {self._advice}"
            )

    def admitted(self, connection: LimitedConnection) -> None:
        self._waiting.pop(connection, None)

    def left(self, connection: LimitedConnection) -> None:
        """Notes that a connection is gone. Called once for each."""
        self._waiting.pop(connection, None)
        self._count -= 1
