"""The order in which passwords are checked when more clients log on than can be checked at once.

Hashing a password is made to take processor time and memory. Addresses take turns, and the users of
an address among themselves, so a flood from one address delays that address and hardly any other.
Failures delay further logons of the same user name at the same address, and of the address. No user
is locked out at another address, and this host, where a proxy may run, is not delayed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeVar

USER_FAILURES_FREE = 5
"""Number of consecutive failures of a user name at an address that cause no delay: people
mistype."""
ADDRESS_FAILURES_FREE = 20
"""Number of failures of an address, over all user names, that cause no delay."""
BACK_OFF_S = 0.25
"""Seconds of delay after the first failure that counts. Doubled with each further one."""
USER_BACK_OFF_S_MAX = 30.0
ADDRESS_BACK_OFF_S_MAX = 5.0
"""Longest delay for an address, shorter because many users may share it."""
FORGOTTEN_S = 600.0
"""Seconds after the last failure when failures are forgotten."""
REMEMBERED_MAX = 4096
"""Number of addresses, and of user names at addresses, that are remembered; the least recently used
are forgotten."""
USER_CHARACTERS_MAX = 128
"""Longest user name as a key under which failures are counted."""
IPV6_HOST_BITS = 64
"""Host bits in an IPv6 address. One customer has all addresses of such a network, so they count as
one."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Turn(NamedTuple):
    """A logon that waits no longer.

    Attributes:
        number: number of the logon.
        refusal: reason why its password is not checked; empty: it is checked now.
    """

    number: int
    refusal: str = ""


class _Failures(NamedTuple):
    times: int
    last_s: float

    def free_at_s(self, free: int, most_s: float) -> float:
        """Returns the time from which the next logon is checked."""
        over = self.times - free
        if over <= 0:
            return self.last_s
        # Above 2^16 the longest delay is reached, and a power could overflow.
        return self.last_s + min(most_s, BACK_OFF_S * (1 << min(over - 1, 16)))


class _Logon(NamedTuple):
    number: int
    address: str
    user: str


class LogonTurns:
    """Decides which logon's password is checked next.

    Invariants: at most `at_once` logons are looked at; at most `waiting_max` are known, those
    included; of each table at most `remembered_max` entries are kept.

    Args:
        at_once: number of passwords that are checked at once.
        waiting_max: number of logons that wait or are being checked. One more displaces the newest
            logon of the user with the most, at the address with the most, which may be itself.
    """

    def __init__(
        self, at_once: int, waiting_max: int, remembered_max: int = REMEMBERED_MAX
    ) -> None:
        self._at_once = at_once
        self._waiting_max = waiting_max
        self._remembered_max = remembered_max
        self._waiting: OrderedDict[str, OrderedDict[str, deque[_Logon]]] = OrderedDict()
        """Waiting logons by address and user, in the order of their turns; no entry is empty."""
        self._counts: dict[str, int] = {}
        """Number of waiting logons by address."""
        self._known: dict[int, _Logon] = {}
        """Logons that wait or are being checked, by number."""
        self._looked_at: set[int] = set()
        self._failed_addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._failed_users: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._let_in: OrderedDict[tuple[str, str], None] = OrderedDict()
        """User names with a correct password at this address: failures of others there do not delay
        them."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def remembered(self) -> int:
        return max(len(self._failed_addresses), len(self._failed_users), len(self._let_in))

    def came(self, number: int, peer: str, user: str) -> list[Turn]:
        """Takes a new logon. Returns the logons that are refused for it: none, or one, which may be
        itself.

        Args:
            number: number of the logon, never used before.
            peer: `host:port` of the other side; empty: it came over no network.
            user: claimed user name.
        """
        logon = _Logon(number, network_of(peer), user[:USER_CHARACTERS_MAX])
        self._known[number] = logon
        users = self._waiting.setdefault(logon.address, OrderedDict())
        users.setdefault(logon.user, deque()).append(logon)
        self._counts[logon.address] = self._counts.get(logon.address, 0) + 1
        if len(self._known) <= self._waiting_max:
            return []
        displaced = self._displaced_by(logon)
        self._remove(displaced)
        del self._known[displaced.number]
        why = f"{self._waiting_max} logons wait for their password to be looked at"
        return [Turn(displaced.number, why)]

    def next(self, now_s: float) -> Turn | None:
        """Returns the logon whose turn it is; None: none is now. To be called until it returns
        None, after each `came` and `gone`."""
        if not self._waiting or len(self._looked_at) >= self._at_once:
            return None
        logon = self._take()
        refusal = self._refusal(logon, now_s)
        if refusal:
            del self._known[logon.number]
            return Turn(logon.number, refusal)
        self._looked_at.add(logon.number)
        return Turn(logon.number)

    def gone(self, number: int, now_s: float, fits: bool | None = None) -> None:
        """Removes a logon, whether its turn had come or not; an unknown one has no effect.

        Args:
            fits: whether its password was correct; None: it was not checked.
        """
        logon = self._known.pop(number, None)
        if logon is None:
            return
        if number in self._looked_at:
            self._looked_at.discard(number)
        else:
            self._remove(logon)
        key = logon.address, logon.user
        if fits is None or is_local(logon.address):
            # All users behind a proxy come from this host, and control calls from no address:
            # failures there would keep out the real holder of the name.
            return
        if fits:
            self._failed_addresses.pop(logon.address, None)
            self._failed_users.pop(key, None)
            self._remember(self._let_in, key, None)
            return
        self._remember(self._failed_users, key, _one_more(self._failed_users.get(key), now_s))
        before = self._failed_addresses.get(logon.address)
        self._remember(self._failed_addresses, logon.address, _one_more(before, now_s))

    def _displaced_by(self, logon: _Logon) -> _Logon:
        """Returns the logon that is displaced; among equals the new one, so that no logon is
        displaced by a user with equally many logons."""
        address = max(self._counts, key=lambda each: (self._counts[each], each == logon.address))
        users = self._waiting[address]
        is_own = address == logon.address
        user = max(users, key=lambda each: (len(users[each]), is_own and each == logon.user))
        return users[user][-1]

    def _take(self) -> _Logon:
        """Removes and returns the oldest logon of the user whose turn it is, at the address whose
        turn it is."""
        address, users = self._waiting.popitem(last=False)
        user, logons = users.popitem(last=False)
        logon = logons.popleft()
        if logons:
            users[user] = logons
        if users:
            self._waiting[address] = users
        self._count_down(address)
        return logon

    def _remove(self, logon: _Logon) -> None:
        users = self._waiting[logon.address]
        logons = users[logon.user]
        logons.remove(logon)
        if not logons:
            del users[logon.user]
        if not users:
            del self._waiting[logon.address]
        self._count_down(logon.address)

    def _count_down(self, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def _refusal(self, logon: _Logon, now_s: float) -> str:
        key = logon.address, logon.user
        failures = self._failed_users.get(key)
        if failures is not None:
            wait_s = failures.free_at_s(USER_FAILURES_FREE, USER_BACK_OFF_S_MAX) - now_s
            if wait_s > 0:
                return (
                    f"logons of its user name failed {failures.times} times at this address: its "
                    f"passwords are not checked there for {wait_s:.1f} s"
                )
        if key in self._let_in:
            return ""
        failures = self._failed_addresses.get(logon.address)
        if failures is not None:
            wait_s = failures.free_at_s(ADDRESS_FAILURES_FREE, ADDRESS_BACK_OFF_S_MAX) - now_s
            if wait_s > 0:
                return (
                    f"{failures.times} logons failed at its address: passwords of users without an "
                    f"earlier logon there are not checked for {wait_s:.1f} s"
                )
        return ""

    def _remember(self, table: OrderedDict[Key, Value], key: Key, value: Value) -> None:
        table[key] = value
        table.move_to_end(key)
        if len(table) > self._remembered_max:
            table.popitem(last=False)


def network_of(peer: str) -> str:
    """Returns the network for which connections of one peer are counted: the host of `host:port`,
    or the network of an IPv6 address."""
    host = peer.rpartition(":")[0]
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return f"{IPv6Address(int(address) >> IPV6_HOST_BITS << IPV6_HOST_BITS)}/{IPV6_HOST_BITS}"


def is_local(network: str) -> bool:
    """Returns whether a network, from `network_of`, is this host: all users behind a local proxy,
    and all that connect without a network."""
    try:
        return not network or ip_address(network).is_loopback
    except ValueError:
        return False


def _one_more(before: _Failures | None, now_s: float) -> _Failures:
    if before is None or now_s - before.last_s > FORGOTTEN_S:
        return _Failures(1, now_s)
    return _Failures(before.times + 1, now_s)
