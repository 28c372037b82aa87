"""Limits on the connections of one user and of one address, as a share of all connections.

Without them one user, or one host, could take all connections that a transport or an instance
admits. Connections count from their logon on; those without a logon give way first anyway
(services/server/clients/connection_limit.py).
"""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.security.logon_turns import is_local


class ShareHolder(NamedTuple):
    """User and network for which a connection is counted.

    Attributes:
        user: name by which an authentication module knows the user; empty: unknown, and not limited
            as a user.
        network: network of the other side, from `network_of`.
    """

    user: str
    network: str


class ShareRefusal(NamedTuple):
    """Refusal of a connection that would be one too many.

    Attributes:
        limit: `user` or `address`.
        text: sentence for the refused side.
    """

    limit: str
    text: str


def share_of(connections_max: int) -> int:
    """Returns the default share of one user or one address: half, at least 1."""
    return (connections_max + 1) // 2


class ConnectionShares:
    """Counts the connections of users and addresses against their limits.

    Invariant: counts are above 0, so no more is remembered than there are connections.

    Args:
        where: the transport or other part to which the connections belong, for the text of the
            refusal.
        connections_max: limit on all connections; None: no limit.
        per_user_max, per_address_max: limit for one user, and for one address; None: half of
            `connections_max`. This host has no limit as an address, because a proxy or local
            clients connect from it.
        advice: what to do, for the refusal; with `{option}` for the name of the configuration
            option.
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
        """Returns why one more connection is refused; None: it is admitted.

        Args:
            leaving: holder of the connection that gives way to this one; None: none does.
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
        self._users[holder.user] = self._users.get(holder.user, 0) + 1
        self._networks[holder.network] = self._networks.get(holder.network, 0) + 1

    def left(self, holder: ShareHolder) -> None:
        """Uncounts a connection that had logged on and has ended. Called once."""
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
