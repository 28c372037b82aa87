"""The problems of a fabric in the order of their urgency, each with a sentence, since when, its
trend, the events just before, and what to do about it.

Waiting publishers come first, then acknowledged messages at risk, instances, instances that do not
answer, Ray's head, disks, links, queues and slow clients. One cause is told once: the links to an
instance that does not answer are no problems of their own, unless publishers wait for them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from raylay.services.admin.fabric_view import (
    URGENCY,
    FabricView,
    InstanceView,
    Level,
    LinkView,
    known_sum,
    last_answer,
    queue_at,
    queue_depth,
    since_words,
    worst,
)
from raylay.services.admin.fabric_words import duration, messages, names
from raylay.services.admin.trends import Trend

ProblemKind: TypeAlias = Literal[
    "publishers_wait",
    "data_at_risk",
    "instance",
    "unknown",
    "head",
    "disk",
    "link",
    "queue",
    "view",
    "slow_client",
]
KINDS: tuple[ProblemKind, ...] = (
    *("publishers_wait", "data_at_risk", "instance", "unknown", "head", "disk", "link"),
    *("queue", "view", "slow_client"),
)
"""Kinds of problems, the most urgent first."""
PUBLISHERS_WAIT_MS = 2_000
"""Age of the oldest message without an ack from which its publisher is said to wait."""
DISK_FREE_ACT = 5.0
DISK_FREE_ATTENTION = 15.0
"""Share of the disk, in percent, below which its free space is a problem."""
PROBLEMS_MAX = 200
CLOSED_MAX = 50
EVENTS_OF_PROBLEM = 3
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
_AFTER_US = 5_000_000
"""An event this much later than the begin of a problem still counts as before it."""


@dataclass(frozen=True, slots=True)
class ProblemAction:
    """A request that ends a problem.

    Attributes:
        path: of the request, below the root of the instance's interface.
    """

    instance: str
    path: str
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a fabric.

    Attributes:
        id: stays the same as long as the problem lasts.
        href: path of the console's page on the affected instance, link or other object.
        weight: size of the problem; of two problems of one kind and level, the larger one comes
            first.
        page: page and section of the documentation.
        instance, destination: names of the instance and the destination concerned; empty: none.
    """

    id: str
    kind: ProblemKind
    level: Level
    text: str
    href: str
    what_to_do: str
    since_us: int | None = None
    trend: Trend | None = None
    weight: float = 0.0
    action: ProblemAction | None = None
    page: str = ""
    instance: str = ""
    destination: str = ""

    @property
    def order(self) -> tuple[int, int, int, float, str]:
        """The sort key. A problem that ends by itself comes last."""
        return (
            URGENCY[self.level] <= URGENCY["working"],
            KINDS.index(self.kind),
            -URGENCY[self.level],
            -self.weight,
            self.id,
        )


def problems_of(view: FabricView) -> list[Problem]:
    """Returns the problems, the most urgent first."""
    found: list[Problem] = []
    for instance in view.instances.values():
        found += _instance(view, instance)
    for link in view.links:
        found += _link(view, link)
    found += _queues(view)
    found += _views(view)
    found += _head(view)
    return sorted(found, key=lambda each: each.order)


def verdict_of(view: FabricView, problems: list[Problem]) -> tuple[Level, str]:
    """Returns the level of the whole fabric, and the sentence about it for people."""
    stopped = sum(each.state == "stopped" for each in view.instances.values())
    count = len(view.instances) - stopped
    known = sum(each.known is not None for each in view.instances.values())
    if not known:
        return "unknown", f"None of {count} instances answers" if count else "No instance is known"
    if not problems:
        links = sum(each.state in ("sync", "async") for each in view.links)
        are = "instance is" if count == 1 else "instances are"
        said = f"{count} {are} ready" + (f", {stopped} stopped" if stopped else "")
        return "ready", f"{said}, {links:,} links have caught up" if view.links else said
    level = worst(each.level for each in problems)
    first = next((each for each in problems if each.level == level), problems[0])
    more = len(problems) - 1
    also = f"; {more:,} more problem{'' if more == 1 else 's'}" if more else ""
    return level, first.text + also


class ProblemBook:
    """Keeps the time at which each problem without a time of its own was first seen, and the
    problems that have ended.

    Owner: the board of one user (`PeerBoard`).
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, int | None]] = {}
        """Instance and time by problem."""
        self._open: dict[str, Problem] = {}
        self._has_begun = False
        self._closed: deque[tuple[Problem, int]] = deque(maxlen=CLOSED_MAX)

    def dated(self, problems: list[Problem], view: FabricView) -> list[Problem]:
        """Returns the problems of the next view, each with its time. Those of the first view began
        earlier, nobody knows when."""
        first = None if not self._has_begun else view.now_us
        # One that did not answer for a moment begins none of its problems anew.
        before = {
            key: (name, since_us)
            for key, (name, since_us) in self._since.items()
            if name in view.instances and view.instances[name].known is None
        }
        self._since = before | {
            each.id: self._since.get(each.id, (each.instance, first)) for each in problems
        }
        self._has_begun = True
        found = [
            each
            if each.since_us is not None
            else dataclasses.replace(each, since_us=self._since[each.id][1])
            for each in problems
        ]
        still = {each.id: each for each in found}
        gone = [each for key, each in self._open.items() if key not in still]
        if gone:
            lost = frozenset(
                f"link/{link.configured.id}/disconnected"
                for link in view.links
                if link.state == "disconnected"
            )
            for each in gone:
                if each.id not in lost and not _is_unknown(each, view):
                    self._closed.appendleft((each, view.now_us))
        self._open = still
        return found

    def closed(self, view: FabricView) -> list[dict[str, Any]]:
        """Returns the problems that have ended, the last one first."""
        return [
            {**_document(view, each), "closed_us": closed_us} for each, closed_us in self._closed
        ]


def _is_unknown(problem: Problem, view: FabricView) -> bool:
    """Returns whether nothing is known of the instance of a problem any more, so that nobody can
    say that the problem has ended."""
    instance = view.instances.get(problem.instance)
    return problem.kind != "unknown" and instance is not None and instance.known is None


def problem_documents(view: FabricView, problems: list[Problem]) -> list[dict[str, Any]]:
    """Returns the problems as `/raylay/fabric.json` has them, `PROBLEMS_MAX` at most."""
    return [_document(view, each) for each in problems[:PROBLEMS_MAX]]


def _document(view: FabricView, each: Problem) -> dict[str, Any]:
    upto_us = view.now_us if each.since_us is None else each.since_us + _AFTER_US
    events = view.events.latest(each.instance, upto_us, EVENTS_OF_PROBLEM, each.destination)
    return {
        "id": each.id,
        "level": each.level,
        "kind": each.kind,
        "text": each.text,
        "since_us": each.since_us,
        "trend": each.trend,
        "href": each.href,
        "instance": each.instance,
        "destination": each.destination,
        "events": [msgspec.to_builtins(event) for event in events],
        "do": {
            "text": each.what_to_do,
            "action": None if each.action is None else dataclasses.asdict(each.action),
            "page": each.page or None,
        },
    }


def step(name: str) -> str:
    """Returns a name as one step of a path or of a fragment, percent-encoded."""
    data = name.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)


# -- Ray's head --------------------------------------------------------------------------------
def _head(view: FabricView) -> Iterator[Problem]:
    head = view.head
    if head is None or head.away_since_us is None:
        return
    seen = f", as {view.served_by} sees it" if view.served_by else ""
    yield Problem(
        "head",
        "head",
        "attention",
        f"Ray's head at {head.address} does not answer{seen}: no instance that ends is started "
        "again until it does",
        "",
        "Messages go on. `raylay head start` on the head's host starts it again, where its memory "
        "is on the disk.",
        since_us=head.away_since_us,
        page="operations.md#live-without-rays-head",
    )


# -- instances ---------------------------------------------------------------------------------
def _instance(view: FabricView, each: InstanceView) -> Iterator[Problem]:
    name = each.configured.name
    href = f"#/instance/{step(name)}"
    known = each.known
    if each.state == "stopped":
        return
    if known is None:
        yield _unknown(each, href)
        return
    if each.state == "failed":
        yield Problem(
            f"instance/{name}/storage",
            "disk",
            "act",
            f"{name} cannot write its disk, and takes no messages: {known.storage_failure}",
            href,
            "Acknowledged messages are safe. Make space: archive or remove journal segments. It "
            "goes on by itself.",
            weight=2.0,
            page="operations.md#free-a-full-disk",
            instance=name,
        )
    elif each.state != "ready":
        yield _not_ready(each, href)
    if known.unavailable:
        yield Problem(
            f"instance/{name}/unavailable",
            "data_at_risk",
            "attention",
            f"{name} lacks {messages(known.unavailable)} that no upstream has any more",
            href,
            "Restore an archive that has them, or accept the loss.",
            weight=float(known.unavailable),
            page="operations.md#find-messages-that-no-instance-has-any-more",
            instance=name,
        )
    yield from _disk(each, href)
    for slow in known.slow:
        behind_s = slow.seconds_behind
        late = "" if behind_s is None else f", {duration(behind_s)} behind"
        where = ", its messages wait on disk" if slow.offline else ""
        yield Problem(
            f"instance/{name}/client/{slow.client}",
            "slow_client",
            "attention",
            f"{slow.client} reads too slowly from {name}{late}{where}",
            f"#/client/{step(slow.client)}",
            "Find out what it waits for; it may read in batches or give a rate. When it passes a "
            "limit it is disconnected, and can resume from a bookmark.",
            weight=behind_s or 0.0,
            page="troubleshooting.md#subscribers-get-too-little-too-much-or-nothing",
            instance=name,
        )


def _unknown(each: InstanceView, href: str) -> Problem:
    name, answer = each.configured.name, each.answer
    others = [f"{by}: {text}" for by, text, _ in each.seen]
    seen = f"; {'; '.join(others[:2])}" if others else ""
    do = f"See whether it runs: `raylay status`; if not, `raylay restart {name}`."
    page = "troubleshooting.md#raylay-status-shows"
    if answer.missing == "not_entitled":
        text, do = f"{name} does not let this user see it", "Log on as a user who may."
        page = "security.md#control-of-instances"
    elif answer.missing == "version":
        text = f"{name} is of another release: {answer.text}"
        do, page = "Install one release everywhere.", "operations.md#upgrade-raylay"
    elif answer.missing == "wrong":
        text = f"{name} cannot be believed: {answer.text}"
        do = "Check `port` and `advertised` of its `admin`, and its log."
    elif answer.missing == "none" or (not each.configured.admin_address and not answer.text):
        text = f"{name} has no administrator's interface, so nothing is known of it"
        do = "Give it a `port` in `admin`, then `raylay apply FILE`."
    elif answer.age_s is None:
        text = f"{name} has not answered yet"
    else:
        text = f"{name} does not answer: {last_answer(answer)}"
    return Problem(
        f"instance/{name}/unknown",
        "unknown",
        "attention",
        text + seen,
        href,
        do,
        since_us=answer.answered_us,
        weight=answer.age_s or 0.0,
        page=page,
        instance=name,
    )


_STATE_WORDS: Mapping[str, tuple[str, str]] = {
    "catching_up": (
        "catches up with its peers, and admits no clients yet",
        "Wait. If it waits for a peer that will never come back, `raylay admit` lets clients in.",
    ),
    "recovering": ("reads its journal, and admits no clients yet", "Wait."),
    "stopping": ("stops", "Wait; then `raylay restart` starts it."),
    "retired": (
        "was moved: this is its former data, and takes no clients",
        "Do not start it. `raylay journal salvage --check DIRECTORY` on its host.",
    ),
    "unknown": (
        "tells a state that this interface does not know",
        "Install one release everywhere.",
    ),
}


def _not_ready(each: InstanceView, href: str) -> Problem:
    name = each.configured.name
    words, do = _STATE_WORDS[each.state]
    why = f" ({each.why})" if each.why else ""
    return Problem(
        f"instance/{name}/{each.state}",
        "instance",
        "attention" if each.level == "unknown" else each.level,
        f"{name} {words}{why}",
        href,
        do,
        page="troubleshooting.md#raylay-status-shows",
        instance=name,
    )


def _disk(each: InstanceView, href: str) -> Iterator[Problem]:
    name, known = each.configured.name, each.known
    assert known is not None, "of an instance that is known"
    free = known.disk_free_percent
    if free is not None and free < DISK_FREE_ATTENTION:
        yield Problem(
            f"instance/{name}/disk",
            "disk",
            "act" if free < DISK_FREE_ACT else "attention",
            f"The disk of {name} is nearly full: {free:.0f} % are free",
            href,
            "Archive or remove journal segments, or set a retention.",
            weight=1.0 - free / 100,
            page="operations.md#free-a-full-disk",
            instance=name,
        )
    if known.front_log_failure:
        yield Problem(
            f"instance/{name}/front_log",
            "disk",
            "attention",
            f"Acks of {name} take longer, since its front log fails: {known.front_log_failure}",
            href,
            "Nothing is lost. Check whether the disk is full or damaged, then "
            f"`raylay restart {name}`.",
            page="troubleshooting.md#disk-and-journal",
            instance=name,
        )
    if known.certificate_warning:
        yield Problem(
            f"instance/{name}/certificate",
            "instance",
            "attention",
            f"{name}: {known.certificate_warning}",
            href,
            "Renew the file; nothing has to be restarted.",
            page="security.md#tls-of-transports",
            instance=name,
        )
    if known.retention_held:
        yield Problem(
            f"instance/{name}/retention",
            "disk",
            "attention",
            f"{name} removes nothing from its journal: {known.retention_held}",
            href,
            "End the reader that keeps the segment, or bring the destination back that lacks it.",
            page="troubleshooting.md#disk-and-journal",
            instance=name,
        )


# -- links -------------------------------------------------------------------------------------
def _link(view: FabricView, link: LinkView) -> Iterator[Problem]:
    told, configured = link.told, link.configured
    if told is None:
        if view.instances[configured.instance].known is not None:
            yield _made(
                link, "link", "attention", "absent", f"{configured.instance}: {link.text}",
                "The instance runs with earlier settings: apply the fabric's file again.",
                "operations.md#restart-an-instance",
            )  # fmt: skip
        return
    waits = told.sync and bool(told.unacked) and (told.age_ms or 0) >= PUBLISHERS_WAIT_MS
    if waits:
        yield _publishers_wait(view, link)
    elif told.downgraded:
        yield _at_risk(view, link)
    elif link.state == "refused":
        yield _made(
            link, "link", link.level, "refused",
            f"The link from {configured.instance} to {configured.destination} is refused: "
            f"{told.why}",
            f"Change what the reason names, then `raylay restart {configured.instance}`.",
            "operations.md#fix-a-link-that-is-refused",
        )  # fmt: skip
    elif link.state == "disconnected" and not _is_explained(view, link):
        wait = "; the next publishers will wait for it" if told.sync else ""
        yield _made(
            link, "link", "attention", "disconnected",
            f"{configured.instance} has no connection to {configured.destination}{wait}: "
            f"{told.why or 'no reason is known'}",
            f"See whether {names(configured.to)} runs: `raylay status`.",
            "troubleshooting.md#raylay-status-shows",
        )  # fmt: skip
    elif link.state == "catching_up":
        yield _made(
            link, "link", "working", "catching_up",
            f"{configured.destination} catches up with {configured.instance}: {link.text}",
            "Wait. If it grows, the destination or the network to it is slow.",
            "troubleshooting.md#raylay-status-shows",
        )  # fmt: skip


def _made(
    link: LinkView, kind: ProblemKind, level: Level, what: str, text: str, do: str, page: str
) -> Problem:
    told, configured = link.told, link.configured
    return Problem(
        f"link/{configured.id}/{what}",
        kind,
        level,
        text,
        f"#/link/{step(configured.id)}",
        do,
        since_us=None if told is None else told.since_us,
        trend=None if told is None else told.trend,
        weight=0.0 if told is None else float(told.age_ms or told.lag or 0),
        page=page,
        instance=configured.instance,
        destination=configured.destination,
    )


def _is_explained(view: FabricView, link: LinkView) -> bool:
    """Returns whether an instance that does not answer, or admits nobody, explains that a link to
    it is disconnected."""
    targets = [view.instances[name] for name in link.configured.to if name in view.instances]
    return bool(targets) and all(each.state != "ready" for each in targets)


def _publishers_wait(view: FabricView, link: LinkView) -> Problem:
    told, configured = link.told, link.configured
    assert told is not None, "of a link that is known"
    name, destination = configured.instance, configured.destination
    unacked, age_ms = told.unacked or 0, told.age_ms or 0
    state = "" if link.state == "sync" else f", which is {link.state.replace('_', ' ')}"
    found = _made(
        link, "publishers_wait", "act", "publishers_wait",
        f"Publishers at {name} wait for {destination}{state}: {messages(unacked)} without an ack, "
        f"the oldest for {duration(age_ms / 1000)}",
        f"Bring {names(configured.to)} back. Or downgrade: acks at {name} stop waiting for "
        f"{destination}, and {messages(unacked)} that it lacks count as acknowledged.",
        "operations.md#let-publishers-go-on-downgrade",
    )  # fmt: skip
    since_us = max(0, view.now_us - age_ms * 1_000)
    action = ProblemAction(name, _path(destination, "downgrade"), f"downgrade {destination}")
    return dataclasses.replace(found, since_us=since_us, action=action)


def _at_risk(view: FabricView, link: LinkView) -> Problem:
    told, configured = link.told, link.configured
    assert told is not None, "of a link that is known"
    name, destination = configured.instance, configured.destination
    others = [
        each
        for each in view.links_of(name)
        if each.is_wanted and each.told is not None and each.told.connected
    ]
    # Not `lag`: that counts what the destination has from others, too, until it says so. And what
    # is on its way to one that keeps up is at no more risk than it is along an async link.
    owed = (told.lag or 0) if told.unacked is None else told.unacked
    keeps_up = owed > 0 and told.connected and (told.age_ms or 0) < PUBLISHERS_WAIT_MS
    if keeps_up:
        owed = 0
    by_hand = " by hand" if told.by_hand else ""
    since = since_words(told.downgraded_us, view.now_us)
    ago = f" {since} ago" if since else ""
    risk = (
        f"; {messages(owed)} acknowledged at {name} {'is' if owed == 1 else 'are'} not there"
        if owed
        else f"; it {'keeps up' if keeps_up else 'has everything'} so far"
    )
    alone = "" if others else f", and {name} waits for nobody else"
    if told.by_hand:
        do = f"Upgrade when {names(configured.to)} is well again: acks wait for it then."
    else:
        do = f"Bring {names(configured.to)} back: it is upgraded by itself when it has caught up."
    found = _made(
        link, "data_at_risk", "act" if owed and not others else "attention", "downgraded",
        f"Acks at {name} do not wait for {destination}, downgraded{by_hand}{ago}{risk}{alone}",
        do,
        "operations.md#let-publishers-go-on-downgrade",
    )  # fmt: skip
    action = ProblemAction(name, _path(destination, "upgrade"), f"upgrade {destination}")
    return dataclasses.replace(
        found,
        since_us=told.downgraded_us,
        action=action if told.by_hand or told.caught_up else None,
        weight=float(owed),
    )


def _path(destination: str, verb: str) -> str:
    return f"amps/administrator/replication/{step(destination)}/{verb}"


# -- queues ------------------------------------------------------------------------------------
def _queues(view: FabricView) -> Iterator[Problem]:
    for configured in view.topology.queues:
        known = [
            (name, queue)
            for name in configured.instances
            if (queue := queue_at(view, name, configured)) is not None
        ]
        href = f"#/queue/{step(configured.name)}"
        failing = [(name, queue) for name, queue in known if queue.why]
        for name, queue in failing:
            yield Problem(
                f"queue/{configured.name}/{name}",
                "queue",
                "attention",
                f"The queue {configured.name} does not run at {name}: {queue.why}",
                href,
                "Read the log of the queue's process.",
                page="troubleshooting.md#events",
                instance=name,
            )
        depth = queue_depth([queue for _, queue in known], shared=configured.shared)
        consumers = known_sum(queue.consumers for _, queue in known)
        if len(known) == len(configured.instances) and depth and consumers == 0:
            trends = [queue.trend for _, queue in known if queue.trend is not None]
            yield Problem(
                f"queue/{configured.name}/nobody",
                "queue",
                "attention",
                f"Nobody consumes the queue {configured.name}: {messages(depth)} in it",
                href,
                "Start its consumers.",
                trend="growing" if "growing" in trends else trends[0] if trends else None,
                weight=float(depth),
                page="queues.md#consume",
            )


# -- views -------------------------------------------------------------------------------------
def _views(view: FabricView) -> Iterator[Problem]:
    """Yields the views and conflated topics that are out of service, each once for all
    instances."""
    closed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, each in view.instances.items():
        for told in each.known.views if each.known is not None else ():
            if not told.in_service:
                closed.setdefault((told.name, told.message_type), []).append((name, told.why))
    for (name, message_type), at in closed.items():
        yield Problem(
            f"view/{message_type}/{name}",
            "view",
            "act",
            f"{name} is out of service at {names([instance for instance, _ in at])}: {at[0][1]}",
            f"#/view/{step(name)}",
            "Allow the view more memory, or group by fewer values, then restart the instance.",
            weight=float(len(at)),
            page="troubleshooting.md#events",
            instance=at[0][0],
        )
