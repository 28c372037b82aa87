"""The measurements of a drill: pure functions over samples, events and records. Times are
microseconds since 1970, durations milliseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple


class AckGroup(NamedTuple):
    """Acknowledgments that a publisher received together."""

    time_us: int
    messages: int
    age_ms: float
    """Age of the oldest acknowledged message."""
    instance: str


class FailoverTime(NamedTuple):
    """A connection that a client made: its first one, or one after it lost another."""

    client: str
    kind: str
    """`publisher` or `subscriber`."""
    left_us: int
    """Time at which the connection before it ended; 0: it is the client's first."""
    back_us: int
    before: str
    after: str
    reason: str
    resent: int

    @property
    def gap_ms(self) -> float:
        """Time without a connection, in milliseconds."""
        return (self.back_us - self.left_us) / 1000 if self.left_us else 0.0


class LinkSample(NamedTuple):
    """The state of a link at one moment."""

    connected: bool
    caught_up: bool
    sync: bool
    configured_sync: bool
    safe: bool
    owed: int
    age_ms: float
    pid: int = 0
    """Pid of the link's process; 0: it has none now."""


class WaitingBytes(NamedTuple):
    """The bytes that wait at an instance for clients that do not read, summed over its pools."""

    memory_bytes: int
    memory_bytes_max: int
    disk_bytes: int
    disk_bytes_max: int
    offline: int


class Sample(NamedTuple):
    """The state of an instance at one moment. An instance that did not answer counts as not ready
    and without links."""

    time_us: int
    instance: str
    pid: int
    ready: bool
    why: str
    links: Mapping[str, LinkSample]
    published: int = 0
    """Number of messages that clients published there since its process started."""
    delivered: int = 0
    waiting: WaitingBytes | None = None

    @property
    def whole(self) -> bool:
        """Returns whether the instance serves, and all its links are connected and caught up."""
        return self.ready and all(link.connected and link.caught_up for link in self.links.values())


class DowngradePeriod(NamedTuple):
    """A period in which acks did not wait for a sync link. `until_us` 0: it was not upgraded."""

    instance: str
    destination: str
    since_us: int
    until_us: int


@dataclass(slots=True)
class InjectedFault:
    """A fault that was injected."""

    number: int
    fault: str
    target: str
    text: str
    began_us: int
    ended_us: int = 0
    instances: tuple[str, ...] = ()
    unacknowledged: int = 0
    """Number of messages without an ack when the fault began."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """The recovery of a fabric from one fault. Durations count from the injection, where no other
    moment is named; None: it did not happen.

    Attributes:
        acks_stood_ms: the longest time in which a waiting publisher got no ack, by region.
        deliveries_stood_ms: the longest time in which a subscriber got nothing although there was
            something for it, by region.
        failovers: the failovers of clients that lost their server because of the fault.
        ready_ms: the time until every instance that was hit serves again.
        whole_ms: the time from the fault's end until every instance serves and all links are caught
            up.
    """

    number: int
    acks_stood_ms: Mapping[str, float]
    deliveries_stood_ms: Mapping[str, float]
    failovers: tuple[FailoverTime, ...]
    ready_ms: float | None
    whole_ms: float | None


def stood_ms(times_us: Sequence[int], since_us: int, until_us: int) -> float:
    """Returns the longest time between two of these moments that overlaps since..until."""
    longest_us, before_us = 0, since_us
    for time_us in times_us:
        if time_us < since_us:
            before_us = time_us
            continue
        if before_us > until_us:
            break
        longest_us = max(longest_us, time_us - before_us)
        before_us = time_us
    if before_us < until_us:
        longest_us = max(longest_us, until_us - before_us)
    return longest_us / 1000


def downgrades(events: Iterable[Mapping[str, Any]]) -> list[DowngradePeriod]:
    """Returns the downgrades that instances reported, from their events in order of time: a
    downgrade ends with its upgrade or a restart."""
    open_: dict[tuple[str, str], int] = {}
    found: list[DowngradePeriod] = []
    for event in events:
        name = str(event["instance"])
        if event["event"] == "downgraded":
            open_.setdefault((name, str(event["destination"])), int(event["time_us"]))
        elif event["event"] in ("upgraded", "started"):
            for link in [
                link
                for link in open_
                if link[0] == name
                and (event["event"] == "started" or link[1] == event.get("destination"))
            ]:
                found.append(DowngradePeriod(*link, open_.pop(link), int(event["time_us"])))
    found += [DowngradePeriod(*link, since_us, 0) for link, since_us in open_.items()]
    return sorted(found, key=lambda each: each.since_us)


def open_meanwhile(
    events: Iterable[Mapping[str, Any]],
    lines: Iterable[tuple[str, str]],
    since_us: int,
    until_us: int,
) -> dict[tuple[str, str], float]:
    """Returns, by line (instance, destination), the milliseconds for which it was open between two
    moments although a step impaired it, from the instances' events in order of time. An instance
    that starts again has open lines until it is asked for the fault again."""
    open_ms = dict.fromkeys(lines, 0.0)
    opened: dict[tuple[str, str], int] = {}
    for event in events:
        time_us = int(event["time_us"])
        if not since_us < time_us < until_us:
            continue
        name = str(event["instance"])
        if event["event"] == "started":
            for line in open_ms:
                if line[0] == name:
                    opened.setdefault(line, time_us)
        elif event["event"] == "drill_line":
            line = name, str(event["destination"])
            if line in open_ms and event["mode"] == "open":
                opened.setdefault(line, time_us)
            elif line in opened:
                open_ms[line] += (time_us - opened.pop(line)) / 1000
    for line, time_us in opened.items():
        open_ms[line] += (until_us - time_us) / 1000
    return {line: passed_ms for line, passed_ms in open_ms.items() if passed_ms}


def acked_while_downgraded(acks: Iterable[AckGroup], found: Sequence[DowngradePeriod]) -> int:
    """Returns the number of messages that an instance acknowledged while it did not wait for all of
    its sync links."""
    return sum(
        ack.messages
        for ack in acks
        if any(
            each.instance == ack.instance
            and each.since_us <= ack.time_us
            and (not each.until_us or ack.time_us <= each.until_us)
            for each in found
        )
    )


def ready_again_us(
    samples: Sequence[Sample], instance: str, since_us: int, *, restarted: bool
) -> int | None:
    """Returns the time at which an instance served again after it was hit; None: it never did.

    Args:
        restarted: whether only a process counts that did not run before.
    """
    before = {sample.pid for sample in samples if sample.time_us < since_us and sample.pid}
    for sample in samples:
        if sample.instance != instance or sample.time_us <= since_us or not sample.ready:
            continue
        if not restarted or sample.pid not in before:
            return sample.time_us
    return None


def whole_again_us(samples: Sequence[Sample], names: Iterable[str], since_us: int) -> int | None:
    """Returns the time from which the fabric stayed whole: the time after each instance's last
    sample that is not whole; None: it is not whole in the end."""
    latest_us = since_us
    for name in names:
        own = [each for each in samples if each.instance == name and each.time_us > since_us]
        if not own or not own[-1].whole:
            return None
        first_us = own[0].time_us if not own[0].whole else since_us
        for sample, after in pairwise(own):
            if not sample.whole:
                first_us = after.time_us
        latest_us = max(latest_us, first_us)
    return latest_us


def caused(
    injected: Sequence[InjectedFault], failovers: Iterable[FailoverTime]
) -> dict[int, list[FailoverTime]]:
    """Returns, by number of a fault, the failovers of clients that lost their server after that
    fault and before the next one.

    Args:
        injected: the faults in order of time.
    """
    found: dict[int, list[FailoverTime]] = {}
    for failover in failovers:
        before = [fault for fault in injected if fault.began_us <= failover.left_us]
        if failover.left_us and before:
            found.setdefault(before[-1].number, []).append(failover)
    return found


def until_whole(samples: Iterable[Sample], final: Sequence[Sample]) -> list[Sample]:
    """Returns the samples up to the last look, at which everything was whole. Later samples, of
    instances that did not answer in time, are no evidence.

    Args:
        samples: the samples in order of time.
        final: the samples of the last look; empty: there was none.
    """
    if not final:
        return list(samples)
    last_us = max(each.time_us for each in final)
    return [*(sample for sample in samples if sample.time_us <= last_us), *final]


def not_whole_again(
    injected: Iterable[InjectedFault], recoveries: Iterable[RecoveryTimes]
) -> list[str]:
    """Returns a sentence for each fault after which the fabric was not whole again."""
    texts = {fault.number: fault.text for fault in injected}
    return [
        f"the fabric was not whole again after this: {texts[found.number]}"
        for found in recoveries
        if found.whole_ms is None
    ]


RESTARTS = frozenset(("kill_instance", "kill_node", "lose_disk"))
LINK_RESTARTS = frozenset(("kill_link", "stop_link"))
UNSETTLING = frozenset(("stop", "full_disk"))
"""Faults of an instance that may make its links end."""


def ended_unasked(
    first: Mapping[str, int], samples: Iterable[Sample], injected: Sequence[InjectedFault]
) -> list[str]:
    """Returns a sentence for each process of an instance or a link that ended although no step
    explains that.

    A kill explains one end. When an instance ends, its links end with it.

    Args:
        first: the pid of each instance when the drill began.
        samples: the samples in order of time.
    """
    wrong: list[str] = []
    instances = dict(first)
    links: dict[tuple[str, str], int] = {}
    used: set[tuple[int, str]] = set()

    def explained(place: str, time_us: int, kills: Iterable[InjectedFault]) -> bool:
        for kill in kills:
            if kill.began_us <= time_us and (kill.number, place) not in used:
                used.add((kill.number, place))
                return True
        return False

    for sample in samples:
        name, pid = sample.instance, sample.pid
        if not pid:
            continue
        before = instances.get(name) or pid
        instances[name] = pid
        if pid != before:
            links = {place: each for place, each in links.items() if place[0] != name}
            kills = [e for e in injected if e.fault in RESTARTS and name in e.instances]
            if not explained(name, sample.time_us, kills):
                wrong.append(
                    f"{name} ended though no step killed it: process {pid} has replaced {before}"
                )
        for destination, link in sample.links.items():
            if not link.pid:
                continue
            before = links.get((name, destination)) or link.pid
            links[name, destination] = link.pid
            place = f"{name} to {destination}"
            hits = [e for e in injected if e.fault in LINK_RESTARTS and e.target == place]
            unsettled = any(
                e.fault in UNSETTLING and name in e.instances and e.began_us <= sample.time_us
                for e in injected
            )
            if link.pid != before and not (unsettled or explained(place, sample.time_us, hits)):
                wrong.append(
                    f"the link {place} ended though no step killed it: process {link.pid} has "
                    f"replaced {before}"
                )
    return wrong


def recovery(
    injected: InjectedFault,
    until_us: int,
    *,
    acks: Mapping[str, Mapping[str, Sequence[int]]],
    deliveries: Mapping[str, Mapping[str, Sequence[int]]],
    failovers: Iterable[FailoverTime],
    samples: Sequence[Sample],
    names: Sequence[str],
) -> RecoveryTimes:
    """Measures the recovery from one fault, until `until_us`.

    Args:
        acks, deliveries: the times of the acks and of the deliveries of a client, by region and
            client.
        failovers: the failovers that the fault caused.
        names: the names of all instances.
    """
    began_us, ended_us = injected.began_us, max(injected.ended_us, injected.began_us)

    def standing(found: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, float]:
        return {
            region: max(stood_ms(times_us, began_us, until_us) for times_us in clients.values())
            for region, clients in found.items()
            if clients
        }

    ready_ms: float | None = None
    if injected.fault in RESTARTS:
        back = [
            ready_again_us(samples, name, began_us, restarted=True) for name in injected.instances
        ]
        if back and None not in back:
            ready_ms = max(us for us in back if us is not None) / 1000 - began_us / 1000
    whole_us = whole_again_us(samples, names, ended_us)
    return RecoveryTimes(
        injected.number,
        standing(acks),
        standing(deliveries),
        tuple(failovers),
        ready_ms,
        None if whole_us is None else (whole_us - ended_us) / 1000,
    )


def delivery_ms(
    published: Iterable[tuple[int, int, int, int]],
    arrived: Iterable[tuple[int, int, int]],
) -> Iterator[tuple[int, float]]:
    """Yields (time, milliseconds since the publish) for each delivery to a subscriber.

    Args:
        published: (publisher, first, last, time) of the messages that were published together.
        arrived: (time, publisher, last) of the messages that arrived together; the last one is
            measured.
    """
    turns: dict[int, list[tuple[int, int, int]]] = {}
    for publisher, first, last, time_us in published:
        turns.setdefault(publisher, []).append((first, last, time_us))
    for of_one in turns.values():
        of_one.sort()
    for time_us, publisher, sequence in arrived:
        own = turns.get(publisher, [])
        at = bisect_right(own, sequence, key=lambda turn: turn[0]) - 1
        if at >= 0 and sequence <= own[at][1]:
            yield time_us, (time_us - own[at][2]) / 1000


def rates(
    events: Iterable[tuple[int, int]], began_us: int, until_us: int, step_us: int
) -> list[float]:
    """Returns the messages per second in each step of time.

    Args:
        events: (time, number of messages).
    """
    found = [0.0] * max(1, -(-(until_us - began_us) // step_us))
    for time_us, messages in events:
        at = (time_us - began_us) // step_us
        if 0 <= at < len(found):
            found[at] += messages * 1e6 / step_us
    return found


def worst(
    values: Iterable[tuple[int, float]], began_us: int, until_us: int, step_us: int
) -> list[float | None]:
    """Returns the highest value in each step of time; None in a step without a value.

    Args:
        values: (time, value).
    """
    found: list[float | None] = [None] * max(1, -(-(until_us - began_us) // step_us))
    for time_us, value in values:
        at = (time_us - began_us) // step_us
        if 0 <= at < len(found):
            before = found[at]
            found[at] = value if before is None else max(before, value)
    return found
