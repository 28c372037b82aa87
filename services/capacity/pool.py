"""A capacity pool: what its clients hold, and which client goes offline or is disconnected
(behaviour.md, chapter 7).

A client that reads more slowly than it is sent takes memory. Above the pool's memory limit, the
client that holds the most goes offline: messages that it does not take wait on disk. Above the disk
limit, the client that holds the most there is disconnected. A client by itself is disconnected when
it holds more than its share, or when a message has waited for it for too long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

HARD_FACTOR = 2
"""Factor of the memory limit up to which all clients together may hold memory, including messages
on their way to the disk. Above it the disk is too slow, and the largest offline client is
disconnected."""
MARKS_MAX = 128
"""Number of instants that are kept for one client, to know the age of its oldest waiting
message."""
MARK_MS = 50
"""Shortest time between two instants of a client in milliseconds; doubled each time there are too
many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a pool on the memory and disk that its clients hold.

    Attributes:
        memory_bytes_max: memory of all clients together; above it the largest client goes offline.
        disk_bytes_max: disk space of all clients together; above it the largest client is
            disconnected. 0: no client goes offline, and above the memory limit the largest client
            is disconnected.
        client_share: share, from 0 to 1, of memory_bytes_max that one client may hold before it is
            offline, and of disk_bytes_max afterwards; 1: as much as all together.
        message_age_ms_max: time that a message may wait for a client; None: no limit.
    """

    memory_bytes_max: int
    disk_bytes_max: int
    client_share: float = 0.5
    message_age_ms_max: int | None = None


class Policy(NamedTuple):
    """The limits of each single client, as in `Limits`: clients of one transport may have other
    ones than the rest of their pool."""

    client_share: float
    message_age_ms_max: int | None


class ClientHolding(NamedTuple):
    """The memory and disk that one client holds.

    Attributes:
        memory_bytes: bytes in memory for the client, including those on their way to the disk and
            those that its queries keep.
        disk_bytes: bytes that the client has not taken and that are in its pool's buffer.
        unsent_bytes: bytes that the client has not taken, wherever they are, counted once.
        sent_bytes: bytes that were ever sent to the client, taken or not.
    """

    memory_bytes: int
    disk_bytes: int = 0
    unsent_bytes: int = 0
    sent_bytes: int = 0


class GoOffline(NamedTuple):
    """Decision that messages this client does not take go to the disk from now on."""

    client: int
    memory_bytes: int
    """Memory that the client held at the decision."""


class DisconnectClient(NamedTuple):
    """Decision that this client is to be disconnected."""

    client: int
    limit: str
    """The limit that was exceeded: `memory`, `disk`, `share` or `age`."""
    why: str
    """The reason as text, with the numbers."""


Decision = GoOffline | DisconnectClient


class _ClientState:
    """The state of one client in the pool."""

    __slots__ = ("holding", "is_offline", "mark_ms", "marks", "policy")

    def __init__(self, holding: ClientHolding, policy: Policy) -> None:
        self.policy = policy
        self.holding = holding
        self.is_offline = False
        self.marks: deque[tuple[int, int]] = deque()
        """Instants in milliseconds, each with the bytes that the client had been sent by then; only
        those after the last byte that it has taken."""
        self.mark_ms = MARK_MS


class Pool:
    """Decides which clients go offline or are disconnected, by what each of them holds.

    Invariants: the pool's byte counts are the sums over its clients; after `decide` no limit is
    exceeded. A call of `holds` costs the same however many clients there are.
    Owner: the instance's event loop. Lifecycle: one life of the instance.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._clients: dict[int, _ClientState] = {}
        self.direct_bytes = 0
        """Bytes in memory of the clients that are online."""
        self.offline_memory_bytes = 0
        """Bytes in memory of the clients that are offline: on their way to the disk, or back from
        it."""
        self.disk_bytes = 0
        self.policy = Policy(limits.client_share, limits.message_age_ms_max)
        self._common: Policy | None = None
        """Policy that replaces each client's own one; None: each client has its own."""

    def limit(self, limits: Limits, policy: Policy | None = None) -> list[Decision]:
        """Sets other limits. Returns the decisions that are due, as `decide` does.

        Args:
            policy: policy of every client, in place of its own one; None: each client has its own.
        """
        self.limits, self._common = limits, policy
        return self.decide()

    @property
    def memory_bytes(self) -> int:
        return self.direct_bytes + self.offline_memory_bytes

    @property
    def clients(self) -> list[int]:
        return list(self._clients)

    @property
    def offline(self) -> list[int]:
        return [client for client, held in self._clients.items() if held.is_offline]

    # -- what they hold ------------------------------------------------------------------------
    def holds(self, client: int, holding: ClientHolding, policy: Policy | None = None) -> bool:
        """Notes the memory and disk that a client holds now. Returns whether a limit is exceeded,
        so that `decide` must be called.

        Args:
            policy: the client's own policy; None: the pool's.
        """
        held = self._clients.get(client)
        if held is None:
            if _is_nothing(holding):
                return False
            held = self._clients[client] = _ClientState(ClientHolding(0), policy or self.policy)
        self._count(held, -1)
        if _is_nothing(holding) and not held.is_offline:
            del self._clients[client]
            return False
        held.holding = holding
        self._count(held, 1)
        limits = self.limits
        return (
            self.direct_bytes > limits.memory_bytes_max
            or self.disk_bytes > limits.disk_bytes_max
            or self.memory_bytes > HARD_FACTOR * limits.memory_bytes_max
            or self._over_share(held)
        )

    def _count(self, held: _ClientState, sign: int) -> None:
        holding = held.holding
        if held.is_offline:
            self.offline_memory_bytes += sign * holding.memory_bytes
        else:
            self.direct_bytes += sign * holding.memory_bytes
        self.disk_bytes += sign * holding.disk_bytes

    def has_room(self, client: int) -> bool:
        """Returns whether a client that is offline can come online with the memory that it holds,
        without exceeding a limit."""
        held = self._clients.get(client)
        if held is None:
            return True
        limits, memory_bytes = self.limits, held.holding.memory_bytes
        share = (self._common or held.policy).client_share
        return (
            self.direct_bytes + memory_bytes <= limits.memory_bytes_max
            and memory_bytes <= limits.memory_bytes_max * share
        )

    def back_online(self, client: int) -> None:
        """Notes that a client has taken everything that was on disk for it."""
        held = self._clients.get(client)
        if held is not None:
            self._count(held, -1)
            held.is_offline = False
            self._count(held, 1)

    def left(self, client: int) -> None:
        held = self._clients.pop(client, None)
        if held is not None:
            self._count(held, -1)

    # -- who goes ------------------------------------------------------------------------------
    def _over_share(self, held: _ClientState) -> bool:
        most, holds, _ = self._of_share(held)
        return most is not None and holds > most

    def _of_share(self, held: _ClientState) -> tuple[int | None, int, str]:
        """Returns the limit of one client in bytes (None: it has none), the bytes that the client
        holds, and where they are."""
        share = (self._common or held.policy).client_share
        limits, holding = self.limits, held.holding
        if held.is_offline:
            most = int(limits.disk_bytes_max * share) if share < 1 else None
            return most, holding.disk_bytes, "on disk"
        most = int(limits.memory_bytes_max * share) if share < 1 else None
        return most, holding.memory_bytes, "in memory"

    def decide(self) -> list[Decision]:
        """Returns the due decisions: clients to take offline or to disconnect. They count as
        performed: a client to be disconnected is no longer part of the pool."""
        limits = self.limits
        decided: list[Decision] = []
        for client, held in list(self._clients.items()):
            if self._over_share(held):
                most, holds, where = self._of_share(held)
                why = f"{holds} bytes wait for it {where}: one client may hold {most}"
                decided.append(self._gone(client, "share", why))
        while self.direct_bytes > limits.memory_bytes_max:
            client = self._largest_in_memory(is_offline=False)
            held = self._clients[client]
            if limits.disk_bytes_max:
                decided.append(GoOffline(client, held.holding.memory_bytes))
                self._count(held, -1)
                held.is_offline = True
                self._count(held, 1)
                continue
            why = (
                f"{self.direct_bytes} bytes wait in memory for clients, of them "
                f"{held.holding.memory_bytes} for this one, the largest: at most "
                f"{limits.memory_bytes_max} may"
            )
            decided.append(self._gone(client, "memory", why))
        hard_bytes = HARD_FACTOR * limits.memory_bytes_max
        while self.memory_bytes > hard_bytes:
            client = self._largest_in_memory(is_offline=True)
            why = (
                f"{self.offline_memory_bytes} bytes are on their way to the disk for clients that "
                f"are offline, of them {self._clients[client].holding.memory_bytes} for this one, "
                f"the largest: with those of other clients at most {hard_bytes} may be in memory"
            )
            decided.append(self._gone(client, "memory", why))
        while self.disk_bytes > limits.disk_bytes_max:
            client = max(
                self._clients, key=lambda each: (self._clients[each].holding.disk_bytes, -each)
            )
            why = (
                f"{self.disk_bytes} bytes wait on disk for clients, of them "
                f"{self._clients[client].holding.disk_bytes} for this one, the largest: at most "
                f"{limits.disk_bytes_max} may"
            )
            decided.append(self._gone(client, "disk", why))
        return decided

    def _largest_in_memory(self, *, is_offline: bool) -> int:
        clients = self._clients
        return max(
            (each for each, held in clients.items() if held.is_offline == is_offline),
            key=lambda each: (clients[each].holding.memory_bytes, -each),
        )

    def _gone(self, client: int, limit: str, why: str) -> DisconnectClient:
        self.left(client)
        return DisconnectClient(client, limit, why)

    # -- ages ----------------------------------------------------------------------------------
    def look(self, now_ms: int) -> list[Decision]:
        """Returns which clients are to be disconnected because a message has waited for too long.
        To be called regularly, after `holds` for all `clients`.

        Args:
            now_ms: time by a clock that never goes back.
        """
        decided: list[Decision] = []
        for client, held in list(self._clients.items()):
            most_ms = (self._common or held.policy).message_age_ms_max
            age_ms = _marked(held, now_ms)
            if most_ms is not None and age_ms > most_ms:
                why = f"a message waits for it since {age_ms} ms: at most {most_ms} ms may one"
                decided.append(self._gone(client, "age", why))
        return decided

    def age_ms(self, client: int, now_ms: int) -> int:
        """Returns how long a client's oldest message has waited, as far as the calls of `look`
        show: at least that long, and at most the time between two calls longer."""
        held = self._clients.get(client)
        return 0 if held is None or not held.marks else max(0, now_ms - held.marks[0][0])


def _is_nothing(holding: ClientHolding) -> bool:
    return not holding.unsent_bytes and not holding.memory_bytes


def _marked(held: _ClientState, now_ms: int) -> int:
    """Notes this instant for a client; returns how long its oldest message has waited."""
    marks, holding = held.marks, held.holding
    taken_bytes = holding.sent_bytes - holding.unsent_bytes
    while marks and marks[0][1] <= taken_bytes:
        marks.popleft()
    while marks and marks[-1][1] > holding.sent_bytes:
        # Messages for the client were dropped, for instance because it unsubscribed.
        marks.pop()
    if not holding.unsent_bytes:
        marks.clear()
        held.mark_ms = MARK_MS
        return 0
    if not marks or (now_ms - marks[-1][0] >= held.mark_ms and marks[-1][1] < holding.sent_bytes):
        marks.append((now_ms, holding.sent_bytes))
        if len(marks) > MARKS_MAX:
            held.marks = marks = deque(list(marks)[::2])
            held.mark_ms *= 2
    return now_ms - marks[0][0]
