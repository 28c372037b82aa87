"""The choice of the next instance to connect to: candidates, safety, back-off (design.md 5, "Safe
failover").

Each instance tells its clients which of its peers are *safe to fail over to*. The last such report
is its *word*, and outlives it. A word is complete: an instance that it does not call safe is
unsafe.

- Before a client has heard any instance, it may use any server.
- From then on it may use the instance used last, and those that every instance it has heard calls
  safe in its last word. Only the instance that gave a word may change it: what C knows about B says
  nothing about messages that A acknowledged while B lacked them.
- Words are kept in the publish store: a client that is started again with the store is bound by
  them as the one before.
- `trust` overrides a word, for an operator who knows that A is gone for good.

Invariants: the instance used last is never unsafe by its own word; a word changes only by a report
of the instance that gave it, or by `trust`.

No clock, no randomness: the jitter comes from a seeded sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

PEERS_MAX = 1_024
"""Number of peers in one report. Peers above it do not count as safe."""
ADDRESSES_MAX = 64
"""Number of addresses of one peer."""
NAME_CHARACTERS_MAX = 400
"""Longest name of an instance or a group, and longest address, in characters."""
FOLLOWED_MAX = 4_096
"""Number of addresses learnt from instances that are remembered, besides those that the caller
listed."""

FailoverRule = Literal["safe", "any"]


@dataclass(frozen=True, slots=True)
class Server:
    """One server address, with name and group where they are known before the logon."""

    address: str
    """`host:port`, `[v6 address]:port` or `unix:path`."""
    instance: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """An instance's report on one of its destinations."""

    instance: str
    group: str
    addresses: tuple[str, ...]
    safe: bool


def read_peers(value: object) -> list[PeerStatus]:
    """Returns the peers in a logon answer or a `safety` frame; invalid entries and those above the
    limits are left out."""
    peers: list[PeerStatus] = []
    if not isinstance(value, list):
        return peers
    for entry in value[:PEERS_MAX]:
        if not isinstance(entry, Mapping) or not _is_short(entry.get("name")):
            continue
        addresses, group = entry.get("addresses"), entry.get("group")
        listed = addresses[:ADDRESSES_MAX] if isinstance(addresses, list) else ()
        peers.append(
            PeerStatus(
                entry["name"],
                group if _is_short(group) else "",
                tuple(address for address in listed if _is_short(address)),
                entry.get("safe") is True,
            )
        )
    return peers


def _is_short(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) <= NAME_CHARACTERS_MAX


class ServerChooser:
    """Chooses the next address to try, and decides whether the instance found there may be used."""

    __slots__ = (
        "_address_of",
        "_followed",
        "_group_of",
        "_instance_at",
        "_listed",
        "_recalled",
        "_words",
        "allow_other_groups",
        "current",
        "current_address",
        "failover",
        "group",
    )

    def __init__(
        self,
        servers: Iterable[Server] = (),
        *,
        group: str = "",
        allow_other_groups: bool = False,
        failover: FailoverRule = "safe",
    ) -> None:
        self.group = group
        self.allow_other_groups = allow_other_groups
        self.failover = failover
        self.current = ""
        """The instance used last; empty before the first logon."""
        self.current_address = ""
        # Words by the instance that gave them: for each instance named, whether it is safe.
        self._words: dict[str, dict[str, bool]] = {}
        self._recalled = ""
        """The instance that an earlier life of this client used last."""
        self._listed: list[str] = []
        # Addresses learnt from instances, besides those that the caller listed.
        self._followed: dict[str, str] = {}
        self._instance_at: dict[str, str] = {}
        self._address_of: dict[str, str] = {}
        self._group_of: dict[str, str] = {}
        self.set_servers(servers)

    # -- what is told ------------------------------------------------------------------------
    def set_servers(self, servers: Iterable[Server]) -> None:
        """Sets the list of servers, in order of preference, in place of the old one."""
        self._listed = []
        for server in servers:
            if server.address not in self._listed:
                self._listed.append(server.address)
            if server.instance:
                self._learn(server.address, server.instance, server.group)

    def _learn(self, address: str, instance: str, group: str) -> None:
        self._instance_at[address] = instance
        if group:
            self._group_of[instance] = group

    def found(self, address: str, instance: str, group: str) -> None:
        """Notes which instance a logon found behind an address."""
        self._learn(address, instance, group)
        self._address_of[instance] = address

    def use(self, address: str, instance: str) -> None:
        """Notes that the client now uses this instance."""
        self.current = instance
        self.current_address = address

    def heard(self, speaker: str, peers: Sequence[PeerStatus]) -> tuple[list[str], list[str]]:
        """Takes an instance's word, in place of its earlier one. Returns which instances became
        unsafe, and which safe."""
        before = self._words.get(speaker, {})
        words: dict[str, bool] = {}
        for peer in peers:
            # Where two destinations may reach the same server, the one that is connected to it
            # decides.
            words[peer.instance] = words.get(peer.instance, False) or peer.safe
        self.told_where(peers)
        unsafe = [name for name, safe in words.items() if not safe and before.get(name) is not safe]
        unsafe += [name for name, safe in before.items() if safe and name not in words]
        safe = [name for name, safe in words.items() if safe and not before.get(name)]
        self._words[speaker] = words
        return unsafe, safe

    def told_where(self, peers: Sequence[PeerStatus]) -> None:
        """Learns the addresses of the peers that an instance names, but not its statements on their
        safety. Used alone for an instance that the client may not use: such statements do not
        count."""
        for peer in peers:
            for address in peer.addresses:
                self._learn(address, peer.instance, peer.group)
                self._followed.pop(address, None)
                self._followed[address] = peer.instance
        if len(self._followed) > FOLLOWED_MAX:
            self._forget()

    def _forget(self) -> None:
        """Forgets the addresses that were learnt longest ago."""
        for address in list(self._followed)[:-FOLLOWED_MAX]:
            del self._followed[address]
        known = {*self._followed, *self._listed, self.current_address}
        self._instance_at = {at: name for at, name in self._instance_at.items() if at in known}
        names = {*self._instance_at.values(), self.current}
        self._group_of = {name: of for name, of in self._group_of.items() if name in names}
        self._address_of = {name: at for name, at in self._address_of.items() if name in names}

    def remembered(self) -> bytes:
        """Returns the state that outlives the client, in its publish store: the instance used last,
        and the words of all instances heard."""
        words = self._words.items()
        kept = {
            "instance": self.current or self._recalled,
            "safe": {
                speaker: sorted(name for name, safe in said.items() if safe)
                for speaker, said in words
            },
            "unsafe": {
                speaker: sorted(name for name, safe in said.items() if not safe)
                for speaker, said in words
            },
        }
        return json.dumps(kept, sort_keys=True).encode()

    def recall(self, kept: bytes) -> None:
        """Takes the state that `remembered` returned in an earlier life; unreadable parts are left
        out."""
        try:
            found = json.loads(kept or b"{}")
            self._recalled = str(found.get("instance", ""))
            safe, unsafe = found.get("safe", {}), found.get("unsafe", {})
            for speaker in {*safe, *unsafe}:
                words = self._words.setdefault(speaker, {})
                words.update(dict.fromkeys(map(str, unsafe.get(speaker, ())), False))
                words.update(dict.fromkeys(map(str, safe.get(speaker, ())), True))
        except (ValueError, AttributeError, TypeError):
            return

    def trust(self, instance: str) -> None:
        """Marks an instance as safe in every word that does not call it safe. For an operator who
        knows that the instance that gave the word is gone, with messages that no other has."""
        for words in self._words.values():
            words[instance] = True

    # -- what is asked -----------------------------------------------------------------------
    def refusal(self, instance: str, group: str = "") -> str:
        """Returns why this instance may not be used now; empty when it may."""
        group = group or self._group_of.get(instance, "")
        if self.group and group and group != self.group and not self.allow_other_groups:
            return f"it is in group {group}, not {self.group}"
        if instance == (self.current or self._recalled) or self.failover == "any":
            return ""
        for speaker, words in self._words.items():
            said = words.get(instance)
            if said or speaker == instance:
                continue
            if said is False:
                return f"{speaker} called it unsafe to fail over to"
            return f"{speaker} has not called it safe to fail over to"
        return ""

    def refused(self) -> dict[str, str]:
        """Returns the known instances that may not be used now, each with the reason."""
        names = {self._instance_at[a] for a in self._all_addresses() if a in self._instance_at}
        reasons = {name: self.refusal(name) for name in sorted(names)}
        return {name: reason for name, reason in reasons.items() if reason}

    def _all_addresses(self) -> list[str]:
        addresses = list(self._listed)
        group = self.group or self._group_of.get(self.current, "")
        for address, instance in self._followed.items():
            same_group = self._group_of.get(instance, "") == group
            if address not in addresses and (same_group or self.allow_other_groups):
                addresses.append(address)
        if self.current_address and self.current_address not in addresses:
            addresses.append(self.current_address)
        return addresses

    def other_servers(self) -> list[tuple[str, ...]]:
        """Returns the servers besides the present instance that the client could fail over to: the
        addresses of each, where its instance is not known yet a single one."""
        servers: dict[str, list[str]] = {}
        for address in self._all_addresses():
            instance = self._instance_at.get(address, "")
            is_current = instance == self.current if instance else address == self.current_address
            if not is_current:
                servers.setdefault(instance or address, []).append(address)
        return [tuple(addresses) for addresses in servers.values()]

    def candidates(self) -> list[str]:
        """Returns the addresses to try in this round, in order; the one used last comes last.

        An address whose instance is not known yet is included: the logon answer then decides.
        """
        addresses = self._all_addresses()
        if self.current_address in addresses:
            at = addresses.index(self.current_address) + 1
            addresses = addresses[at:] + addresses[:at]
        return [
            address
            for address in addresses
            if (name := self._instance_at.get(address)) is None or not self.refusal(name)
        ]

    def to_ask(self) -> list[str]:
        """Returns listed addresses of instances that may not be used now, for when no server is
        found in several rounds: one of them may know where the instance used last lives now."""
        return [
            address
            for address in self._listed
            if (name := self._instance_at.get(address)) is not None and self.refusal(name)
        ]


class Backoff:
    """Growing pauses with jitter from a seed, so that the clients of a dead instance do not all
    come back in the same millisecond, and a simulation can still be repeated."""

    __slots__ = ("_max_s", "_min_s", "_state", "tries")

    def __init__(self, pause_min_ms: int, pause_max_ms: int, seed: int) -> None:
        self._min_s = pause_min_ms / 1000
        self._max_s = pause_max_ms / 1000
        self._state = (seed ^ 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        self.tries = 0

    def next_pause_s(self) -> float:
        """Returns the next pause, in seconds: doubled each time up to the maximum, ± 25 %."""
        pause_s = min(self._max_s, self._min_s * 2.0 ** min(self.tries, 30))
        self.tries += 1
        # Knuth's 64-bit linear congruential generator, good enough for jitter.
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return pause_s * (0.75 + (self._state >> 40) / (1 << 24) / 2)

    def reset(self) -> None:
        """Notes a success: the next pause is the shortest again."""
        self.tries = 0


def as_server(value: Server | str | Mapping[str, Any]) -> Server:
    """Returns a server from the form in which the caller gave it: `host:port`, a Server, or a
    mapping with `address`.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(value, Server):
        return value
    if isinstance(value, str):
        return Server(value)
    if not isinstance(value, Mapping) or "address" not in value:
        raise ValueError(
            f"server {value!r} is none: give 'host:port', a Server, or a mapping with address"
        )
    return Server(
        str(value["address"]), str(value.get("instance", "")), str(value.get("group", ""))
    )
