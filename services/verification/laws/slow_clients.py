"""The laws of slow clients, for a client that a drill keeps from reading. Nothing here is shared
with the code by which instances decide.

    limits      no pool ever holds more on disk than its limit, nor in memory more than twice its
                limit: bytes on their way to the disk are still in memory
    others      no client that reads goes offline, or is disconnected as a slow client
    kept        an offline client stays connected until a limit is passed or its heartbeat fails
    ended       a client is disconnected only at a limit, and holds more than that limit
    removed     nothing is left at the instance of a client that was disconnected
    resumed     a client that was disconnected connects again, and goes on from its bookmark
    online      a client that reads again and was not disconnected is online again

Whether every message arrives once and in order is judged for each subscriber, this one too
(services/drills/verdict.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raylay.services.verification.violation import VIOLATIONS_MAX, Violation

HEARTBEAT = "heartbeat"
"""The reason of a connection that ends as one side did not hear of the other."""
REPORTS = ("client_offline", "client_online", "slow_client", "client_disconnected")
"""Events of slow clients."""
IN_MEMORY = 2
"""Factor: the memory in use may be at most this many times the limit."""
SOON_US = 2_000_000
"""Most time until an instance that has disconnected a client reports that nothing is left of it;
also the most time by which a client's clock puts an instance's report too early."""


class Stall(NamedTuple):
    """A period in which a step kept a client from reading.

    Attributes:
        memory_bytes, disk_bytes: limits of its pool meanwhile; 0: the fabric's own.
    """

    number: int
    client: str
    region: str
    began_us: int
    ended_us: int
    memory_bytes: int = 0
    disk_bytes: int = 0


class ClientReport(NamedTuple):
    """An instance's report on a client: an event of `REPORTS`.

    Attributes:
        limit: the limit that was passed, or the reason of another end.
    """

    time_us: int
    instance: str
    event: str
    client: str
    limit: str = ""
    text: str = ""
    memory_bytes: int = 0
    disk_bytes: int = 0


class PoolUse(NamedTuple):
    """The use and the limits of an instance's pools, summed up."""

    time_us: int
    instance: str
    memory_bytes: int
    memory_bytes_max: int
    disk_bytes: int
    disk_bytes_max: int
    offline: int


class Reconnection(NamedTuple):
    """A connection of a client that ended, and the one after it; `back_us` 0: there was none."""

    client: str
    left_us: int
    back_us: int
    after: str
    reason: str = ""


@dataclass(slots=True)
class SlowEvidence:
    """The evidence by which the path of slow clients is judged, all in order of time.

    Attributes:
        drill: the prefix of the names of the drill's clients.
        given: (time, number of messages) of each delivery to a client that was kept from reading,
            by client.
        is_alone: whether nothing else was broken, so that no connection ends by itself.
    """

    drill: str
    stalls: Sequence[Stall]
    told: Sequence[ClientReport]
    held: Sequence[PoolUse]
    moved: Sequence[Reconnection]
    given: Mapping[str, Sequence[tuple[int, int]]]
    is_alone: bool = True


@dataclass(slots=True)
class ClientPath:
    """The path of one client that was kept from reading. Moments are microseconds since 1970; 0: it
    did not happen.

    Attributes:
        instance: the instance at which it was offline or was disconnected.
        offline_bytes: the bytes in memory for it when it went offline.
        memory_most_bytes, disk_most_bytes: the highest use of that instance's pools, from the time
            when the client stopped reading until it was online again or disconnected.
        ended_us: the time at which it was disconnected as a slow client.
        removed_us: the time at which nothing was left of it there, as far as samples show.
        back_us, back_at: the time of its next connection, and the instance.
        online_us: the time at which it had taken everything that was on disk.
        drained: the messages that it received after it read again until it was online again.
        resumed: the messages that it received on the connection after the one that was ended.
        left_us, left_for: the time at which its connection ended without a limit, and the reason.
    """

    stall: Stall
    instance: str = ""
    offline_us: int = 0
    offline_bytes: int = 0
    memory_most_bytes: int = 0
    disk_most_bytes: int = 0
    ended_us: int = 0
    limit: str = ""
    why: str = ""
    removed_us: int = 0
    back_us: int = 0
    back_at: str = ""
    online_us: int = 0
    drained: int = 0
    resumed: int = 0
    left_us: int = 0
    left_for: str = ""


@dataclass(slots=True)
class SlowVerdict:
    """The findings of a drill on slow clients.

    Attributes:
        unshown: a sentence for each step that should have shown something and did not, because the
            load was too small; this is no violation.
    """

    ways: list[ClientPath] = field(default_factory=list)
    broken: list[Violation] = field(default_factory=list)
    unshown: list[str] = field(default_factory=list)


def told_of(events: Iterable[Mapping[str, Any]], since_us: int) -> list[ClientReport]:
    """Returns the reports on slow clients among all events of the instances."""
    return [
        ClientReport(
            int(event["time_us"]),
            str(event["instance"]),
            str(event["event"]),
            str(event["client"]),
            str(event.get("limit") or event.get("reason", "")),
            str(event.get("text", "")),
            int(event.get("memory_bytes", 0)),
            int(event.get("disk_bytes", 0)),
        )
        for event in events
        if event["event"] in REPORTS and event["time_us"] >= since_us
    ]


def judge(found: SlowEvidence) -> SlowVerdict:
    """Returns the path of each client that was kept from reading, and the violations."""
    ways = [way_of(found, stall) for stall in found.stalls]
    broken = [
        *_limits(found),
        *_others(found),
        *(each for way in ways for each in _of_way(found, way)),
    ]
    return SlowVerdict(ways, broken[:VIOLATIONS_MAX], [*_unshown(ways)])


# -- the way -------------------------------------------------------------------------------------
def _until_us(found: SlowEvidence, stall: Stall) -> int:
    """Returns the time until which all reports on the stall's client belong to this step: the time
    at which the next step begins."""
    later = [
        each.began_us
        for each in found.stalls
        if each.client == stall.client and each.began_us > stall.began_us
    ]
    return min(later, default=1 << 62)


def way_of(found: SlowEvidence, stall: Stall) -> ClientPath:
    way, until_us = ClientPath(stall), _until_us(found, stall)
    told = [
        each
        for each in found.told
        if each.client == stall.client and stall.began_us <= each.time_us < until_us
    ]
    for each in told:
        if each.event == "client_offline" and not way.offline_us:
            way.instance, way.offline_us = each.instance, each.time_us
            way.offline_bytes = each.memory_bytes
        elif each.event == "slow_client" and not way.ended_us:
            way.instance, way.ended_us = each.instance, each.time_us
            way.limit, way.why = each.limit, each.text
        elif each.event == "client_online" and not way.ended_us:
            way.online_us = each.time_us
    _add_held(found, way, until_us)
    _add_moves(found, way, until_us)
    given = found.given.get(stall.client, ())
    if way.online_us:
        way.drained = sum(
            count for time_us, count in given if stall.ended_us <= time_us <= way.online_us
        )
    if way.back_us:
        way.resumed = sum(count for time_us, count in given if way.back_us <= time_us < until_us)
    return way


def _add_held(found: SlowEvidence, way: ClientPath, until_us: int) -> None:
    over_us = way.ended_us or max(way.online_us, way.stall.ended_us)
    for each in found.held:
        if each.instance != way.instance or not way.stall.began_us <= each.time_us < until_us:
            continue
        if each.time_us <= over_us:
            way.memory_most_bytes = max(way.memory_most_bytes, each.memory_bytes)
            way.disk_most_bytes = max(way.disk_most_bytes, each.disk_bytes)
        is_behind = way.ended_us and each.time_us > way.ended_us
        if is_behind and not (way.removed_us or each.disk_bytes or each.offline):
            way.removed_us = each.time_us


def _add_moves(found: SlowEvidence, way: ClientPath, until_us: int) -> None:
    for failover in found.moved:
        if failover.client != way.stall.client:
            continue
        if not way.stall.began_us <= failover.left_us < until_us:
            continue
        if way.ended_us and failover.left_us >= way.ended_us - SOON_US:
            if not way.back_us:
                way.back_us, way.back_at = failover.back_us, failover.after
        elif not way.left_us:
            way.left_us, way.left_for = failover.left_us, failover.reason
            if way.left_for != HEARTBEAT and _is_unheard(found, way):
                way.left_for = HEARTBEAT


def _is_unheard(found: SlowEvidence, way: ClientPath) -> bool:
    """Returns whether an instance reported that it did not hear from the client for too long."""
    return any(
        each.event == "client_disconnected"
        and each.client == way.stall.client
        and each.limit == HEARTBEAT
        and abs(each.time_us - way.left_us) < SOON_US
        for each in found.told
    )


# -- the laws ------------------------------------------------------------------------------------
def _limits(found: SlowEvidence) -> Iterator[Violation]:
    for each in found.held:
        if each.disk_bytes > each.disk_bytes_max:
            yield Violation(
                "slow client limits",
                f"{each.instance} has {each.disk_bytes:,} bytes on disk for slow clients: at most "
                f"{each.disk_bytes_max:,} may be",
            )
        if each.memory_bytes > IN_MEMORY * each.memory_bytes_max:
            yield Violation(
                "slow client limits",
                f"{each.instance} has {each.memory_bytes:,} bytes in memory for slow clients: at "
                f"most {IN_MEMORY} x {each.memory_bytes_max:,} may be",
            )


def _others(found: SlowEvidence) -> Iterator[Violation]:
    slow = {stall.client for stall in found.stalls}
    for each in found.told:
        if each.event not in ("client_offline", "slow_client"):
            continue
        if each.client.startswith(found.drill) and each.client not in slow:
            yield Violation(
                "slow client others",
                f"{each.instance}: event {each.event} for {each.client}, which reads all the time",
            )


def _of_way(found: SlowEvidence, way: ClientPath) -> Iterator[Violation]:
    stall = way.stall
    if way.ended_us:
        yield from _ended(found, way)
        return
    if not way.offline_us:
        return
    if way.left_us:
        was_online = way.online_us and way.online_us < way.left_us
        if found.is_alone and not was_online and way.left_for != HEARTBEAT:
            yield Violation(
                "slow client kept",
                f"{stall.client} was offline at {way.instance} and lost its connection "
                f"({way.left_for}) though no limit was passed",
            )
    elif way.online_us < stall.ended_us:
        yield Violation(
            "slow client online",
            f"{stall.client} reads again and is not online again at {way.instance}",
        )


def _ended(found: SlowEvidence, way: ClientPath) -> Iterator[Violation]:
    stall = way.stall
    event = next(
        each
        for each in found.told
        if each.event == "slow_client"
        and each.client == stall.client
        and each.time_us == way.ended_us
    )
    most_bytes = {"disk": stall.disk_bytes, "memory": stall.memory_bytes}
    held_bytes = {"disk": event.disk_bytes, "memory": event.memory_bytes}
    is_narrow = bool(stall.memory_bytes or stall.disk_bytes)
    if way.limit not in most_bytes:
        if way.limit == "buffer" or is_narrow:
            yield Violation(
                "slow client ended",
                f"{way.instance} disconnected {stall.client} for another reason than a limit "
                f"({way.limit}): {way.why}",
            )
    elif held_bytes[way.limit] <= most_bytes[way.limit]:
        yield Violation(
            "slow client ended",
            f"{way.instance} disconnected {stall.client} with {held_bytes[way.limit]:,} bytes "
            f"({way.limit}): {most_bytes[way.limit]:,} may wait",
        )
    looked = [each for each in found.held if each.instance == way.instance]
    if looked and looked[-1].time_us > way.ended_us + SOON_US and not way.removed_us:
        yield Violation(
            "slow client removed",
            f"{way.instance} disconnected {stall.client} and has {looked[-1].disk_bytes:,} bytes "
            "on disk for it",
        )
    if not way.back_us or not way.resumed:
        got = (
            ("has received nothing since it was connected again")
            if way.back_us
            else "never came back"
        )
        yield Violation(
            "slow client resumed", f"{stall.client} was disconnected by {way.instance} and {got}"
        )


def _unshown(ways: Collection[ClientPath]) -> Iterator[str]:
    for way in ways:
        stall = way.stall
        if way.left_us and not (way.online_us or way.ended_us):
            yield (
                f"could not show all of step {stall.number}: the connection of {stall.client} "
                f"ended: {way.left_for}"
            )
        elif stall.memory_bytes and not (way.offline_us or way.ended_us):
            yield (
                f"could not show step {stall.number}: the unread messages of {stall.client} never "
                f"reached {stall.memory_bytes:,} bytes in memory: give a higher `rate`, a longer "
                "`for` or less `memory`"
            )
        elif stall.disk_bytes and not way.ended_us and way.disk_most_bytes < stall.disk_bytes:
            yield (
                f"could not show all of step {stall.number}: the unread messages of "
                f"{stall.client} never reached {stall.disk_bytes:,} bytes on disk: give a higher "
                "`rate`, a longer `for` or less `disk`"
            )
