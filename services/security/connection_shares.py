"""Limits on the connections of one user and of one address, as a share of all.

Without it one user, or one host, could take all that a transport or an instance admits. They count
from their logon on; whoever has not logged on gives way first anyway
(services/server/clients/connection_limit.py).
"""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.security.logon_turns import is_local


class ShareHolder(NamedTuple):
    """User and network that a connection is counted for.

    Attributes:
        user: by whom a module knows it; empty: nobody in particular, who is not limited as a user.
        network: of its other side, as `network_of` gives it.
    """

    user: str
    network: str


class ShareRefusal(NamedTuple):
    """A connection would be one too many.

    Attributes:
        limit: `user` or `address`.
        text: for whoever connects.
    """

    limit: str
    text: str


def share_of(connections_max: int) -> int:
    """Share of one user or one address where nothing is configured: half, at least 1."""
    return (connections_max + 1) // 2


class ConnectionShares:
    """See the file's docstring.

    Invariant: counts are above 0, so no more is remembered than there are connections.

    Args:
        where: what the connections are of, for the refusal.
        connections_max: of all; None: not limited there.
        per_user_max, per_address_max: of one; None: half of `connections_max`, and any number from
            this host, which a proxy or a laptop's own clients come from.
        advice: what to do, for the refusal; with `{option}` for the name of the configuration.
    """

    def __init__(
        self,
        where: str,
        connections_max: int | None = None,
        per_user_max: int | None = None,
        per_address_max: int | None = None,
        advice: str = "close one, or raise `{option}`",
    ) -> None:
        share = None if connections_max is None else share_of(connections_max)
        self.per_user_max = share if per_user_max is None else per_user_max
        self.per_address_max = share if per_address_max is None else per_address_max
        self._counts_this_host = per_address_max is not None
        self._where, self._advice = where, advice
        self._users: dict[str, int] = {}
        self._networks: dict[str, int] = {}

    def refusal(
        self, holder: ShareHolder, leaving: ShareHolder | None = None
    ) -> ShareRefusal | None:
        """Returns why one more connection may not be; None: it may.

        Args:
            leaving: who the connection is counted for that gives way to this one; None: none does.
        """
        user, network = holder
        count = self._users.get(user, 0) - (leaving is not None and leaving.user == user)
        most = self.per_user_max
        if user and most is not None and count >= most:
            return self._refused("user", "this user", most, "connections_per_user_max")
        if is_local(network) and not self._counts_this_host:
            return None
        count = self._networks.get(network, 0) - (
            leaving is not None and leaving.network == network
        )
        most = self.per_address_max
        if most is not None and count >= most:
            return self._refused("address", "this address", most, "connections_per_address_max")
        return None

    def admitted(self, holder: ShareHolder) -> None:
        """A connection has logged on."""
        self._users[holder.user] = self._users.get(holder.user, 0) + 1
        self._networks[holder.network] = self._networks.get(holder.network, 0) + 1

    def left(self, holder: ShareHolder) -> None:
        """A connection that had logged on has ended. Called once."""
        _one_less(self._users, holder.user)
        _one_less(self._networks, holder.network)

    def __len__(self) -> int:
        return len(self._users) + len(self._networks)

    def _refused(self, limit: str, who: str, most: int, option: str) -> ShareRefusal:
        count = f"{most:,} connection" + ("" if most == 1 else "s")
        advice = self._advice.format(option=option)
        return ShareRefusal(
            limit,
            f"{who} has {count} to {self._where}, as many as one {limit} may have: {advice}",
        )


def _one_less(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
