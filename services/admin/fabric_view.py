"""The view of a whole fabric, `/raylay/fabric.json`: what is configured, with what each instance
last said of itself.

What an instance said counts for 10 s. Older than that the instance and its links are unknown:
their numbers are null, they are in no sum, and nothing is called down that merely does not answer.
The places of instances and links come from the configuration alone, so that nothing moves when
something fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from raylay.services.admin.fabric_events import FabricEventBook
from raylay.services.admin.fabric_summary import (
    InstanceSummary,
    LinkSummary,
    QueueSummary,
    ViewSummary,
)
from raylay.services.admin.fabric_topology import (
    ConfiguredInstance,
    ConfiguredLink,
    ConfiguredQueue,
    FabricTopology,
)
from raylay.services.admin.fabric_words import clock, duration, messages, names
from raylay.services.admin.trends import Trend

UNKNOWN_S = 10.0
"""Age, in seconds, from which an answer no longer counts."""
TOPICS_MAX = 500
TOPIC_ENTRIES_MAX = 2_000
"""Limit on the entries (one for each topic and instance) in one view; with more, topics are listed
without their instances."""

Level: TypeAlias = Literal["ready", "working", "attention", "act", "unknown"]
Missing: TypeAlias = Literal["", "silent", "never", "not_entitled", "version", "wrong", "none"]
URGENCY: Mapping[Level, int] = {"ready": 0, "working": 1, "unknown": 2, "attention": 3, "act": 4}
STOPPED_WHY = "`raylay stop` stopped it; `raylay start` starts it"
_STATE_LEVELS: Mapping[str, Level] = {
    "ready": "ready",
    "catching_up": "working",
    "recovering": "working",
    "stopping": "working",
    "retired": "attention",
    "failed": "act",
}


def worst(levels: Iterable[Level]) -> Level:
    """Returns the most urgent of the levels; without any, `ready`."""
    return max(levels, key=URGENCY.__getitem__, default="ready")


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The last that an instance said, and what became of the last question to it.

    Attributes:
        summary: the last summary of the instance; None: it has never answered.
        answered_us: time at which the answer came, by the clock of the instance that asked.
        age_s: age of the answer, by a clock that never goes back.
        missing: why the last question was not answered; empty: it was.
        text: `missing` as a sentence for people.
    """

    summary: InstanceSummary | None = None
    answered_us: int | None = None
    age_s: float | None = None
    missing: Missing = "never"
    text: str = ""

    @property
    def known(self) -> InstanceSummary | None:
        """The summary, if it is not too old to count."""
        if self.summary is None or self.age_s is None or self.age_s >= UNKNOWN_S:
            return None
        return self.summary


NEVER = PeerAnswer()


@dataclass(frozen=True, slots=True)
class HeadSight:
    """Ray's head, as the instance that serves the view sees it.

    Attributes:
        away_since_us: time of the first look that it did not answer; None: it answers.
    """

    address: str
    away_since_us: int | None = None

    def document(self) -> dict[str, Any]:
        """Returns the sight as an object for JSON."""
        return {"address": self.address, "away_since_us": self.away_since_us}


@dataclass(frozen=True, slots=True)
class LinkView:
    """A configured link with what its instance says of it.

    Attributes:
        told: the link as its instance described it; None: unknown.
    """

    configured: ConfiguredLink
    told: LinkSummary | None
    state: str
    level: Level
    text: str
    other_end: tuple[str, str] | None

    @property
    def is_wanted(self) -> bool:
        """True where acks wait for the destination now."""
        return self.told is not None and self.told.sync


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A configured instance with what it says of itself.

    Attributes:
        known: the instance's summary; None: unknown.
        why: reason for its state.
        seen: reports of other instances on an instance that does not answer: (instance, text,
            since_us).
        may_fail_over: None: it cannot be known.
        why_not: why clients may not fail over to it, or why it is not known.
    """

    configured: ConfiguredInstance
    answer: PeerAnswer
    known: InstanceSummary | None
    state: str
    level: Level
    why: str
    seen: tuple[tuple[str, str, int | None], ...] = ()
    may_fail_over: bool | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class FabricView:
    """The states of everything that is configured, from which problems are found.

    Attributes:
        now_us: present time by the clock of the instance that serves the view.
        head: Ray's head; None: nothing is known of it.
    """

    topology: FabricTopology
    served_by: str
    now_us: int
    instances: dict[str, InstanceView]
    links: tuple[LinkView, ...]
    events: FabricEventBook = field(default_factory=FabricEventBook)
    head: HeadSight | None = None

    def links_of(self, instance: str) -> Iterator[LinkView]:
        """Yields the links of an instance."""
        return (each for each in self.links if each.configured.instance == instance)


def view_of(
    topology: FabricTopology,
    answers: Mapping[str, PeerAnswer],
    *,
    served_by: str,
    now_us: int,
    events: FabricEventBook | None = None,
    head: HeadSight | None = None,
) -> FabricView:
    """Returns the states of what is configured.

    Args:
        answers: the instances' answers, by name; answers of instances that are not configured are
            ignored.
    """
    of = {each.name: answers.get(each.name, NEVER) for each in topology.instances}
    resting = {
        each.name for each in topology.instances if each.is_stopped and of[each.name].missing
    }
    known = {name: None if name in resting else answer.known for name, answer in of.items()}
    told = {
        (name, each.destination): each
        for name, summary in known.items()
        if summary is not None
        for each in summary.links
    }
    upstreams = {
        name: frozenset(each.name for each in summary.upstreams)
        for name, summary in known.items()
        if summary is not None
    }
    links = tuple(
        _link(each, told.get((each.instance, each.destination)), of, known, upstreams, now_us)
        for each in topology.links
        if each.instance in of
    )
    seen = _seen(topology, links, known, upstreams, now_us)
    of_target = _by_target(topology, links)
    instances: dict[str, InstanceView] = {}
    for each in topology.instances:
        answer, summary = of[each.name], known[each.name]
        state = "stopped" if each.name in resting else _state(summary)
        may, why_not = _fail_over(each, state, answer, topology, of_target, of)
        instances[each.name] = InstanceView(
            each,
            answer,
            summary,
            state,
            _level(state, summary),
            _why(each, answer, summary) if state != "stopped" else STOPPED_WHY,
            tuple(seen.get(each.name, ())),
            may,
            why_not,
        )
    return FabricView(
        topology, served_by, now_us, instances, links, events or FabricEventBook(), head
    )


def standing_alone(topology: FabricTopology, summary: InstanceSummary) -> FabricTopology:
    """Returns the topology of an instance without a fabric's, with the links and queues that it
    tells of."""
    name = summary.instance
    return dataclasses.replace(
        topology,
        links=tuple(
            ConfiguredLink(
                name,
                each.destination,
                (each.connected_to or each.destination,),
                each.connected_to or each.destination,
                each.configured_sync,
            )
            for each in summary.links
        ),
        queues=tuple(
            ConfiguredQueue(each.name, each.message_type, (name,)) for each in summary.queues
        ),
    )


def _level(state: str, summary: InstanceSummary | None) -> Level:
    if state == "stopped":
        return "ready"
    return "unknown" if summary is None else _STATE_LEVELS.get(state, "attention")


def _state(summary: InstanceSummary | None) -> str:
    if summary is None:
        return "unknown"
    if summary.storage_failure:
        return "failed"
    return summary.state if summary.state in _STATE_LEVELS else "unknown"


def last_answer(answer: PeerAnswer) -> str:
    """Returns when an instance last answered, in words."""
    if answer.answered_us is None or answer.age_s is None:
        return "no answer yet"
    return f"last answer {clock(answer.answered_us)}, {duration(answer.age_s)} ago"


def _why(instance: ConfiguredInstance, answer: PeerAnswer, summary: InstanceSummary | None) -> str:
    if summary is None:
        if not instance.admin_address and not answer.text:
            return "it has no administrator's interface: give it a `port` in `admin`"
        return answer.text
    if summary.storage_failure:
        return summary.storage_failure
    return "" if summary.state == "ready" else summary.why


# -- links -------------------------------------------------------------------------------------
def _link(
    configured: ConfiguredLink,
    told: LinkSummary | None,
    answers: Mapping[str, PeerAnswer],
    known: Mapping[str, InstanceSummary | None],
    upstreams: Mapping[str, frozenset[str]],
    now_us: int,
) -> LinkView:
    state = link_state(told)
    end = _other_end(configured, told, answers, known, upstreams)
    return LinkView(
        configured,
        told,
        state,
        _link_level(state, told),
        _link_text(state, told, configured, answers, known, now_us),
        end,
    )


def link_state(told: LinkSummary | None) -> str:
    """Returns the state of a link: `sync`, `async`, `downgraded`, `catching_up`, `disconnected`,
    `refused` or `unknown`."""
    if told is None:
        return "unknown"
    if not told.connected:
        return "refused" if told.refused else "disconnected"
    if told.downgraded:
        return "downgraded"
    if not told.caught_up:
        return "catching_up"
    return "sync" if told.sync else "async"


def _link_level(state: str, told: LinkSummary | None) -> Level:
    if told is None:
        return "unknown"
    if state in ("sync", "async"):
        return "ready"
    if state == "catching_up":
        return "working"
    if state == "downgraded":
        return "attention"
    # Publishers wait for it now, or until somebody changes a setting.
    return "act" if told.sync and (told.unacked or state == "refused") else "attention"


def since_words(since_us: int | None, now_us: int) -> str:
    """Returns how long something has been so; empty: that is not known."""
    return "" if since_us is None else duration((now_us - since_us) / 1e6)


def _link_text(
    state: str,
    told: LinkSummary | None,
    configured: ConfiguredLink,
    answers: Mapping[str, PeerAnswer],
    known: Mapping[str, InstanceSummary | None],
    now_us: int,
) -> str:
    if told is None:
        if known.get(configured.instance) is None:
            return last_answer(answers.get(configured.instance, NEVER))
        return f"{configured.instance} does not run this link: `raylay apply FILE`"
    if state == "catching_up":
        owed = "" if told.lag is None else f"owes {told.lag:,}"
        left = "" if told.seconds_left is None else f"{duration(told.seconds_left)} left"
        return ", ".join(each for each in (owed, left) if each) or "catching up"
    if state in ("disconnected", "refused"):
        said = _lost_words(state, told)
        return f"{said}: {told.why}" if told.why else said
    words = since_words(told.since_us, now_us)
    if state == "downgraded":
        by = "by hand " if told.by_hand else ""
        return f"downgraded {by}{words}".strip()
    return state


def _lost_words(state: str, told: LinkSummary) -> str:
    return state if told.since_us is None else f"{state} since {clock(told.since_us)}"


def _other_end(
    configured: ConfiguredLink,
    told: LinkSummary | None,
    answers: Mapping[str, PeerAnswer],
    known: Mapping[str, InstanceSummary | None],
    upstreams: Mapping[str, frozenset[str]],
) -> tuple[str, str] | None:
    """Returns the instance at the other end, and what it says of the link; None: it is no instance
    of this fabric."""
    connected = told.connected_to if told is not None else ""
    ours = [each for each in configured.to if each in answers]
    name = connected if connected in answers else ours[0] if ours else ""
    if not name:
        return None
    if known.get(name) is None:
        return name, last_answer(answers[name])
    seen = configured.instance in upstreams.get(name, frozenset())
    if seen:
        return name, f"receives from {configured.instance}"
    return name, f"has no connection from {configured.instance}"


# -- instances ---------------------------------------------------------------------------------
def _by_target(
    topology: FabricTopology, links: Iterable[LinkView]
) -> dict[str, dict[str, list[LinkView]]]:
    """Returns the links to each instance, by the instance that they come from."""
    found: dict[str, dict[str, list[LinkView]]] = {each.name: {} for each in topology.instances}
    for link in links:
        for target in link.configured.to:
            if target in found:
                found[target].setdefault(link.configured.instance, []).append(link)
    return found


def _seen(
    topology: FabricTopology,
    links: Iterable[LinkView],
    known: Mapping[str, InstanceSummary | None],
    upstreams: Mapping[str, frozenset[str]],
    now_us: int,
) -> dict[str, list[tuple[str, str, int | None]]]:
    """Returns, for each instance that does not answer, the reports of other instances on it."""
    found: dict[str, list[tuple[str, str, int | None]]] = {
        name: [] for name, summary in known.items() if summary is None
    }
    if not found:
        return {}
    for link in links:
        told, by = link.told, link.configured.instance
        if told is None:
            continue
        for target in link.configured.to:
            if target not in found:
                continue
            if told.connected:
                if told.connected_to == target:
                    found[target].append((by, f"connected, {link.text}", told.since_us))
            else:
                found[target].append((by, _lost_words(link.state, told), told.since_us))
    for by, others in upstreams.items():
        for name in others:
            if name in found and not any(each[0] == by for each in found[name]):
                found[name].append((by, f"{name} is connected to it", None))
    return found


def _fail_over(
    instance: ConfiguredInstance,
    state: str,
    answer: PeerAnswer,
    topology: FabricTopology,
    of_target: Mapping[str, Mapping[str, list[LinkView]]],
    answers: Mapping[str, PeerAnswer],
) -> tuple[bool | None, str]:
    """Returns whether clients of its group may fail over to an instance, and why not.

    They may where it admits clients, and each other member of its group has proved that this one
    has everything that was acknowledged there.
    """
    name = instance.name
    if state == "unknown":
        return None, f"it does not answer ({last_answer(answer)})"
    if state != "ready":
        return False, f"it admits no clients: {state.replace('_', ' ')}"
    unsafe: list[str] = []
    unsure: list[str] = []
    for other in topology.instances:
        if other.group != instance.group or other.name == name:
            continue
        links = of_target[name].get(other.name, [])
        told = [each.told for each in links if each.told is not None]
        if not links:
            unsafe.append(f"no link leads from {other.name} to it")
        elif any(each.safe and each.connected_to in ("", name) for each in told):
            continue
        elif told:
            unsafe.append(_unsafe_words(other.name, told[0]))
        else:
            unsure.append(other.name)
    if unsafe:
        more = f", and {len(unsafe) - 2} more reasons" if len(unsafe) > 2 else ""
        return False, "; ".join(unsafe[:2]) + more
    if unsure:
        said = last_answer(answers[unsure[0]])
        return (
            None,
            f"whether it has everything that {names(unsure)} acknowledged is not known ({said})",
        )
    return True, ""


def _unsafe_words(other: str, told: LinkSummary) -> str:
    owed = f", it owes {messages(told.lag)}" if told.lag else ""
    why = told.why_unsafe or "it is connected to another server"
    return f"{other}: {why}{owed}"


# -- the document ------------------------------------------------------------------------------
def fabric_document(
    view: FabricView,
    problems: list[dict[str, Any]],
    verdict: tuple[Level, str],
    *,
    user: str,
    guarded: bool,
    closed: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns `/raylay/fabric.json`.

    Args:
        problems: the most urgent first.
        closed: problems that have ended, the last one first.
    """
    regions: dict[str, list[str]] = {}
    for each in view.topology.instances:
        regions.setdefault(each.group, []).append(each.name)
    raised: dict[str, list[Level]] = {}
    for problem in problems:
        if problem.get("instance"):
            raised.setdefault(problem["instance"], []).append(problem["level"])
    return {
        "fabric": view.topology.fabric,
        "served_by": view.served_by,
        "time_us": view.now_us,
        "viewer": {"user": user, "guarded": guarded},
        "verdict": {"level": verdict[0], "text": verdict[1]},
        "problems": problems,
        "closed_problems": list(closed),
        "regions": [{"name": name, "instances": found} for name, found in regions.items()],
        "instances": [
            _instance_document(view, each, raised.get(each.configured.name, []))
            for each in view.instances.values()
        ],
        "links": [_link_document(view, each) for each in view.links],
        "queues": _queues(view),
        "topics": _topics(view),
        "views": _views(view),
        "actions": _actions(view),
        "totals": _totals(view),
        "head": None if view.head is None else view.head.document(),
    }


def _instance_document(view: FabricView, each: InstanceView, raised: list[Level]) -> dict[str, Any]:
    known, answer = each.known, each.answer
    level = each.level if known is None else worst((each.level, *raised))
    waits = [
        link.told.age_ms
        for link in view.links_of(each.configured.name)
        if link.told is not None and link.is_wanted and link.told.age_ms is not None
    ]
    oldest_ms = None if known is None else max(waits, default=0)
    found: dict[str, Any] = {
        "name": each.configured.name,
        "group": each.configured.group,
        "admin_address": each.configured.admin_address,
        "level": level,
        "state": each.state,
        "why": each.why,
        "answered_us": answer.answered_us,
        "age_s": None if answer.age_s is None else round(answer.age_s, 1),
        "missing": answer.missing,
        "why_missing": answer.text,
        "seen_by_others": [
            {"by": by, "text": text, "since_us": since_us} for by, text, since_us in each.seen
        ],
        "oldest_unacknowledged_ms": oldest_ms,
        "may_fail_over": each.may_fail_over,
        "why_not": each.why_not,
    }
    for name in _INSTANCE_VALUES:
        found[name] = None if known is None else getattr(known, name)
    return found


_INSTANCE_VALUES = (
    *("version", "uptime_s", "incarnation", "in_per_sec", "out_per_sec", "acks_per_sec"),
    *("ack_ms_p50", "ack_ms_p99", "clients", "subscriptions", "disk_free_percent"),
    *("slow_clients", "unacknowledged"),
)
_LINK_VALUES = (
    *("rate_per_sec", "bytes_per_sec", "lag", "unacked", "age_ms", "trend", "seconds_left"),
    *("since_us",),
)


def _link_document(view: FabricView, each: LinkView) -> dict[str, Any]:
    configured, told = each.configured, each.told
    sync = configured.sync if told is None else told.sync
    found: dict[str, Any] = {
        "id": configured.id,
        "from": configured.instance,
        "from_group": view.instances[configured.instance].configured.group,
        "destination": configured.destination,
        "to": configured.to,
        "to_group": configured.to_group,
        "connected_to": "" if told is None else told.connected_to,
        "configured_type": "sync" if configured.sync else "async",
        "type": "sync" if sync else "async",
        "state": each.state,
        "level": each.level,
        "text": each.text,
        "seconds_behind": (
            None if told is None or told.age_ms is None else round(told.age_ms / 1000, 1)
        ),
        "safe": None if told is None else told.safe,
        "why_unsafe": "" if told is None else told.why_unsafe,
        "by_hand": told is not None and told.by_hand,
        "why": "" if told is None else told.why,
        "other_end": (
            None
            if each.other_end is None
            else {"instance": each.other_end[0], "text": each.other_end[1]}
        ),
    }
    for name in _LINK_VALUES:
        found[name] = None if told is None else getattr(told, name)
    return found


def known_sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum of the known values; None: all are unknown."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _totals(view: FabricView) -> dict[str, Any]:
    known = [each.known for each in view.instances.values() if each.known is not None]
    found: dict[str, Any] = {
        name: known_sum(getattr(each, name) for each in known)
        for name in ("in_per_sec", "out_per_sec", "acks_per_sec", "clients", "subscriptions")
    }
    return {**found, "answered": len(known), "instances": len(view.instances)}


_QUEUE_VALUES = (
    *("owned", "leased", "oldest_lease_s", "expired", "moved_in", "moved_out", "consumers"),
)


def _queues(view: FabricView) -> list[dict[str, Any]]:
    """Returns the queues with their instances. Instances that share a queue each know of all its
    messages, so that of their depths the largest counts."""
    found: list[dict[str, Any]] = []
    for configured in view.topology.queues:
        told = {name: queue_at(view, name, configured) for name in configured.instances}
        known = [each for each in told.values() if each is not None]
        leases = [each.oldest_lease_s for each in known if each.oldest_lease_s is not None]
        trends: list[Trend | None] = [each.trend for each in known if each.depth is not None]
        entry: dict[str, Any] = {
            "name": configured.name,
            "topic": configured.name,
            "message_type": configured.message_type,
            "level": _queue_level(known, len(told)),
            "depth": queue_depth(known, shared=configured.shared),
            "trend": _joint_trend(trends),
            "oldest_lease_s": max(leases, default=None),
            "instances": [
                {
                    "name": name,
                    "depth": None if each is None else each.depth,
                    "trend": None if each is None else each.trend,
                    "why": "" if each is None else each.why,
                    **{key: None if each is None else getattr(each, key) for key in _QUEUE_VALUES},
                }
                for name, each in told.items()
            ],
        }
        for key in _QUEUE_VALUES:
            if key != "oldest_lease_s":
                entry[key] = known_sum(getattr(each, key) for each in known)
        found.append(entry)
    return found


def queue_depth(known: Iterable[QueueSummary], *, shared: bool) -> int | None:
    """Returns the messages in a queue; None: not known."""
    depths = [each.depth for each in known if each.depth is not None]
    if not depths:
        return None
    return max(depths) if shared else sum(depths)


def queue_at(view: FabricView, instance: str, queue: ConfiguredQueue) -> QueueSummary | None:
    """Returns the summary of a queue at an instance; None: the instance reports none."""
    found = view.instances.get(instance)
    if found is None or found.known is None:
        return None
    named = queue.name, queue.message_type
    return next(
        (each for each in found.known.queues if (each.name, each.message_type) == named), None
    )


def _queue_level(known: list[QueueSummary], instances: int) -> Level:
    if not known:
        return "unknown"
    if any(each.why for each in known):
        return "attention"
    consumers = known_sum(each.consumers for each in known)
    if len(known) == instances and consumers == 0 and any(each.depth for each in known):
        return "attention"
    return "ready"


def _joint_trend(trends: Iterable[Trend | None]) -> Trend | None:
    found = [each for each in trends if each is not None]
    if not found:
        return None
    if "growing" in found:
        return "growing"
    return "shrinking" if "shrinking" in found else "steady"


_VIEW_VALUES = (
    *("records", "taken_per_sec", "updates_per_sec", "memory_bytes", "waiting", "built_percent"),
)


def _views(view: FabricView) -> list[dict[str, Any]]:
    """Returns the views and the conflated topics. Each instance computes its own, so that of
    their values the largest counts, and of those of percent the least."""
    by_name: dict[tuple[str, str, str], list[tuple[str, ViewSummary]]] = {}
    for name, each in view.instances.items():
        for told in each.known.views if each.known is not None else ():
            key = (told.kind, told.name, told.message_type)
            if key in by_name or len(by_name) < TOPICS_MAX:
                by_name.setdefault(key, []).append((name, told))
    entries = sum(map(len, by_name.values()))
    found = []
    for (kind, name, message_type), known in by_name.items():
        entry: dict[str, Any] = {
            "name": name,
            "message_type": message_type,
            "kind": kind,
            "under": known[0][1].under,
            "level": worst(_view_level(told) for _, told in known),
            "trend": _joint_trend(told.trend for _, told in known),
            "subscribers": known_sum(told.subscribers for _, told in known),
            "instances": [
                {
                    "name": instance,
                    "level": _view_level(told),
                    "why": told.why,
                    "trend": told.trend,
                    "subscribers": told.subscribers,
                    **{key: getattr(told, key) for key in _VIEW_VALUES},
                }
                for instance, told in (known if entries <= TOPIC_ENTRIES_MAX else ())
            ],
        }
        for value in _VIEW_VALUES:
            values = [getattr(told, value) for _, told in known]
            values = [each for each in values if each is not None]
            least = value == "built_percent"
            entry[value] = (min if least else max)(values, default=None)
        found.append(entry)
    return found


def _view_level(told: ViewSummary) -> Level:
    if not told.in_service:
        return "act"
    return "ready" if told.built_percent is None else "working"


def _actions(view: FabricView) -> list[dict[str, Any]]:
    """Returns the actions of the instances that are known; one that failed needs a look."""
    return [
        {
            "instance": name,
            "level": "attention" if action.failures or action.dropped else "ready",
            **msgspec.structs.asdict(action),
        }
        for name, each in view.instances.items()
        if each.known is not None
        for action in each.known.actions
    ]


def _topics(view: FabricView) -> list[dict[str, Any]]:
    by_name: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for name, each in view.instances.items():
        for topic in each.known.topics if each.known is not None else ():
            key = (topic.name, topic.message_type)
            if key in by_name or len(by_name) < TOPICS_MAX:
                by_name.setdefault(key, []).append((name, topic))
    entries = sum(map(len, by_name.values()))
    found = []
    for (name, message_type), told in by_name.items():
        records = [topic.records for _, topic in told if topic.records is not None]
        rates = [topic.in_per_sec for _, topic in told if topic.in_per_sec is not None]
        values = ("in_per_sec", "publishers", "subscribers")
        stored = ("messages", "bytes", "oldest_us", "newest_us")
        entry: dict[str, Any] = {
            "name": name,
            "message_type": message_type,
            "sow": any(topic.sow for _, topic in told),
            # Each instance has all of them.
            "records": max(records, default=None),
            "messages": _greatest(topic.messages for _, topic in told),
            "bytes": _greatest(topic.bytes for _, topic in told),
            "oldest_us": min(filter(None, (topic.oldest_us for _, topic in told)), default=None),
            "newest_us": _greatest(topic.newest_us for _, topic in told),
            # A message that is replicated comes in at each of them: a sum counts it so often.
            "in_per_sec": max(rates, default=None),
            **{key: known_sum(getattr(topic, key) for _, topic in told) for key in values[1:]},
            "instances": [
                {
                    "name": instance,
                    "records": topic.records,
                    **{key: getattr(topic, key) for key in (*values, *stored)},
                }
                for instance, topic in (told if entries <= TOPIC_ENTRIES_MAX else ())
            ],
        }
        found.append(entry)
    return found


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((each for each in values if each is not None), default=None)
