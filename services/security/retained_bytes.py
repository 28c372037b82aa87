"""The limit on memory that clients' commands keep for as long as they run.

A bookmark subscription keeps its client's received ranges (`have`); a query that waits, and a
subscription to some records, keep their `keys`. Each may be as large as a frame, and a connection
may have 10,000 of them. All clients share a limit, of which one user may use half, and so may one
address; one connection may use a quarter. A command that would exceed a limit is refused; accepted
ones stay.
"""

from __future__ import annotations

from collections.abc import Collection

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.connection_shares import ShareHolder, share_of
from raylay.services.security.incomplete_frames import TOO_MANY
from raylay.services.security.logon_turns import is_local

RETAINED_SHARE = 0.05
"""Limit for all clients, as a share of the memory that the process may have."""
RETAINED_BYTES_MIN = 384 * 1024 * 1024
"""Smallest limit, however little memory there is: a quarter of it is the largest `have`."""
KEY_BYTES = 96
"""Memory of a SOW key in a set, besides its own bytes."""


def retained_bytes_max(memory_bytes: int) -> int:
    """Returns the limit for all clients.

    Args:
        memory_bytes: memory that the process may have.
    """
    return max(int(memory_bytes * RETAINED_SHARE), RETAINED_BYTES_MIN)


def keys_bytes(keys: Collection[bytes]) -> int:
    """Returns an estimate of the memory that a set of SOW keys takes."""
    return sum(map(len, keys)) + KEY_BYTES * len(keys)


class RetainedClaim:
    """The bytes that one command keeps.

    Owner: the command. Lifecycle: until `release`, or the end of the connection.
    """

    __slots__ = ("_bytes", "_connection", "_of")

    def __init__(self, of: RetainedBytes, connection: int, size_bytes: int) -> None:
        self._of = of
        self._connection = connection
        self._bytes = size_bytes

    def release(self) -> None:
        """Releases the bytes. Further calls have no effect."""
        size_bytes, self._bytes = self._bytes, 0
        if size_bytes:
            self._of.released(self._connection, size_bytes)


class RetainedBytes:
    """Counts the bytes that clients' commands keep.

    Invariants: no sum is over its limit; a sum is above 0, so that nothing is remembered of a user
    that keeps nothing.
    Owner: the clients' sessions. Lifecycle: one life of the instance.

    Args:
        bytes_max: limit for all clients.
    """

    __slots__ = ("_connections", "_networks", "_users", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._connections: dict[int, tuple[ShareHolder, int]] = {}
        self._users: dict[str, int] = {}
        self._networks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._connections) + len(self._users) + len(self._networks)

    def claim(self, connection: int, holder: ShareHolder, size_bytes: int) -> RetainedClaim:
        """Counts the bytes that a command of a connection is about to keep.

        Args:
            holder: user and network of the connection; the same in each call.

        Raises:
            RemoteProtocolError: it would be too much, with reason `too_many`.
        """
        half = share_of(self.bytes_max)
        kept = self._connections.get(connection, (holder, 0))[1]
        self._check("this connection", kept, size_bytes, share_of(half))
        if holder.user:
            self._check("this user", self._users.get(holder.user, 0), size_bytes, half)
        if not is_local(holder.network):
            self._check("this address", self._networks.get(holder.network, 0), size_bytes, half)
        self._check("all clients", self.bytes, size_bytes, self.bytes_max)
        if size_bytes:
            self._count(connection, holder, size_bytes)
        return RetainedClaim(self, connection, size_bytes)

    def released(self, connection: int, size_bytes: int) -> None:
        """Notes that a claim was released. For a connection that has ended, nothing is counted any
        more."""
        found = self._connections.get(connection)
        if found is not None:
            self._count(connection, found[0], -size_bytes)

    def left(self, connection: int) -> None:
        """Notes that a connection has ended, with everything that its commands kept."""
        holder, kept = self._connections.get(connection, (ShareHolder("", ""), 0))
        if kept:
            self._count(connection, holder, -kept)

    def _check(self, who: str, kept: int, size_bytes: int, most: int) -> None:
        if kept + size_bytes > most:
            raise RemoteProtocolError(
                f"this command would keep {size_bytes:,} bytes in memory (`have`, `keys`), and of "
                f"the {most:,} that {who} may keep {kept:,} are taken: unsubscribe some, wait for "
                "queries to end, or name fewer keys",
                TOO_MANY,
            )

    def _count(self, connection: int, holder: ShareHolder, more: int) -> None:
        self.bytes += more
        kept = self._connections.get(connection, (holder, 0))[1] + more
        if kept:
            self._connections[connection] = holder, kept
        else:
            del self._connections[connection]
        for sums, key in ((self._users, holder.user), (self._networks, holder.network)):
            total = sums.get(key, 0) + more
            if total:
                sums[key] = total
            else:
                del sums[key]
