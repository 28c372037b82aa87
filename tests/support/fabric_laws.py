"""The laws of the view of a fabric, and random fabrics to hold them against."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from raylay.services.admin.fabric_events import FabricEventBook, read_event
from raylay.services.admin.fabric_problems import (
    PUBLISHERS_WAIT_MS,
    ProblemBook,
    problem_documents,
    problems_of,
    verdict_of,
)
from raylay.services.admin.fabric_summary import QueueSummary, SlowClient, UpstreamSummary
from raylay.services.admin.fabric_topology import ConfiguredQueue, FabricTopology
from raylay.services.admin.fabric_view import PeerAnswer, fabric_document, view_of
from support.fabric_given import NOW_US, answer, summary, topology

INSTANCE_NUMBERS = (
    *("uptime_s", "in_per_sec", "out_per_sec", "acks_per_sec", "clients", "subscriptions"),
    *("disk_free_percent", "slow_clients", "unacknowledged", "oldest_unacknowledged_ms"),
)
LINK_NUMBERS = (
    *("rate_per_sec", "bytes_per_sec", "lag", "unacked", "age_ms", "seconds_behind"),
    *("seconds_left", "trend", "since_us"),
)
ORDER = (
    *("publishers_wait", "data_at_risk", "instance", "unknown", "head", "disk", "link", "queue"),
)
NAMES = ("<script>alert(1)</script>", "a/b", "R é", "=1+1", "x" * 200)


def document(made: FabricTopology, answers: Mapping[str, PeerAnswer]) -> dict[str, Any]:
    """The document as the server makes it."""
    book = FabricEventBook()
    for name, each in answers.items():
        if each.summary is not None:
            event = read_event(name, {"number": 1, "time_us": NOW_US - 1, "event": "downgraded"})
            book.learn(name, "7", 1, [event])
    view = view_of(made, answers, served_by="R0-0", now_us=NOW_US, events=book)
    problems = ProblemBook().dated(problems_of(view), view)
    verdict = verdict_of(view, problems)
    found = fabric_document(
        view, problem_documents(view, problems), verdict, user="anna", guarded=True
    )
    text = json.dumps(found, allow_nan=False)
    return dict(json.loads(text))


def random_fabric(chance: random.Random) -> tuple[FabricTopology, dict[str, PeerAnswer]]:
    """A fabric in any state, with names that nobody expects."""
    made = topology(chance.randint(1, 4), chance.randint(1, 3))
    if chance.random() < 0.3:
        made = _renamed(made, made.instances[-1].name, chance.choice(NAMES))
    every = tuple(each.name for each in made.instances)
    made = dataclasses.replace(made, queues=(ConfiguredQueue("work", "json", every),))
    return made, {name: _random_answer(made, name, chance) for name in every}


def _renamed(made: FabricTopology, before: str, after: str) -> FabricTopology:
    def new(name: str) -> str:
        return after if name == before else name

    return dataclasses.replace(
        made,
        instances=tuple(dataclasses.replace(e, name=new(e.name)) for e in made.instances),
        links=tuple(
            dataclasses.replace(
                e,
                instance=new(e.instance),
                destination=new(e.destination),
                to=tuple(map(new, e.to)),
            )
            for e in made.links
        ),
    )


def _random_answer(made: FabricTopology, name: str, chance: random.Random) -> PeerAnswer:
    kind = chance.choice(("fresh", "fresh", "fresh", "dim", "old", "never", "wrong"))
    if kind == "never":
        return PeerAnswer()
    if kind == "wrong":
        missing = chance.choice(("not_entitled", "version", "wrong"))
        return PeerAnswer(missing=missing, text=f"{name} answers with what is no summary")
    links = {}
    for each in made.links:
        if each.instance == name and chance.random() < 0.5:
            links[each.destination] = _random_link(each.sync, each.to, chance)
    found = summary(
        made,
        name,
        links,
        state=chance.choice(("ready", "ready", "ready", "catching_up", "retired", "odd")),
        storage_failure="no space left" if chance.random() < 0.1 else "",
        disk_free_percent=chance.choice((None, 2.0, 10.0, 50.0)),
        unavailable=chance.choice((None, 0, 3)),
        retention_held=chance.choice(("", "", "held by a reader")),
        front_log_failure=chance.choice(("", "", "bad block")),
        clients=chance.choice((None, 0, 5)),
        slow=(SlowClient("billing", 5, 12.0),) if chance.random() < 0.2 else (),
        queues=(
            QueueSummary(
                "work",
                "json",
                chance.choice(("", "", "its process ended")),
                depth=chance.choice((None, 0, 7)),
                consumers=chance.choice((0, 1)),
                trend=chance.choice((None, "growing", "shrinking", "steady")),
            ),
        ),
        upstreams=tuple(
            UpstreamSummary(each.instance, "")
            for each in made.links
            if name in each.to and chance.random() < 0.7
        ),
    )
    age_s = {"fresh": 0.4, "dim": 5.0, "old": 38.0}[kind]
    return answer(found, age_s, "" if kind == "fresh" else "silent")


def _random_link(sync: bool, to: tuple[str, ...], chance: random.Random) -> dict[str, Any]:
    connected = chance.random() < 0.6
    downgraded = sync and chance.random() < 0.4
    return {
        "connected": connected,
        "connected_to": chance.choice(to) if connected else "",
        "caught_up": connected and chance.random() < 0.7,
        "refused": not connected and chance.random() < 0.3,
        "sync": sync and not downgraded,
        "downgraded": downgraded,
        "by_hand": downgraded and chance.random() < 0.5,
        "safe": chance.random() < 0.5,
        "unacked": chance.choice((0, 12)),
        "lag": chance.choice((None, 0, 12)),
        "age_ms": chance.choice((None, 0, 1_999, 42_000)),
        "since_us": chance.choice((None, NOW_US - 42_000_000)),
        "downgraded_us": chance.choice((None, NOW_US - 42_000_000)) if downgraded else None,
        "why": chance.choice(("", "the other side does not answer")),
        "seconds_left": chance.choice((None, 40)),
        "trend": chance.choice((None, "growing", "steady")),
    }


def broken_laws(
    made: FabricTopology, answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]
) -> Iterator[str]:
    """The laws that a document breaks."""
    yield from _places(made, found)
    yield from _unknown(answers, found)
    yield from _sums(answers, found)
    yield from _links(answers, found)
    yield from _problems(made, answers, found)
    yield from _fail_over(made, answers, found)


def counts(each: PeerAnswer) -> bool:
    return each.summary is not None and each.age_s is not None and each.age_s < 10


def _places(made: FabricTopology, found: Mapping[str, Any]) -> Iterator[str]:
    if [each["name"] for each in found["instances"]] != [e.name for e in made.instances]:
        yield "instances are those that are configured, in their order"
    if [each["id"] for each in found["links"]] != [e.id for e in made.links]:
        yield "links are those that are configured, in their order"
    if [each["name"] for each in found["regions"]] != list(
        dict.fromkeys(each.group for each in made.instances)
    ):
        yield "regions are in the order of the file"


def _unknown(answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]) -> Iterator[str]:
    for each in found["instances"]:
        is_known = counts(answers[each["name"]])
        if (each["state"] == "unknown" and each["level"] == "unknown") == is_known:
            yield "an instance is unknown from 10 s on"
        if not is_known and any(each[name] is not None for name in INSTANCE_NUMBERS):
            yield "what is unknown has no numbers"
        if is_known and each["level"] == "unknown":
            yield "what is known is not called unknown"
    for each in found["links"]:
        if not counts(answers[each["from"]]) and (
            each["state"] != "unknown"
            or each["level"] != "unknown"
            or any(each[name] is not None for name in LINK_NUMBERS)
        ):
            yield "links of an unknown instance are unknown"
    for each in found["problems"]:
        if each["kind"] == "unknown" and re.search(r"\bdown\b|\bdead\b", each["text"]):
            yield "nobody is called down"


def _sums(answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]) -> Iterator[str]:
    known = [each.summary for each in answers.values() if counts(each)]
    totals = found["totals"]
    if (totals["answered"], totals["instances"]) != (len(known), len(answers)):
        yield "it is told how many answered"
    for name in ("in_per_sec", "out_per_sec", "clients"):
        values = [getattr(each, name) for each in known]
        numbers = [value for value in values if value is not None]
        if totals[name] != (sum(numbers) if numbers else None):
            yield f"the sum of {name} is that of what is known"


def _links(answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]) -> Iterator[str]:
    ids = {each["id"] for each in found["problems"]}
    for each in found["links"]:
        theirs = answers[each["from"]]
        summary = theirs.summary if counts(theirs) else None
        for link in () if summary is None else summary.links:
            if link.destination != each["destination"]:
                continue
            is_quiet = link.connected and link.caught_up and not link.downgraded
            if (each["state"] in ("sync", "async")) != is_quiet:
                yield "a link is quiet where it is connected and has caught up"
            if each["type"] != ("sync" if link.sync else "async") or each["safe"] != link.safe:
                yield "a link is told as its instance tells it"
            if link.downgraded and f"link/{each['id']}/downgraded" not in ids:
                yield "a downgraded destination is a risk"


def _problems(
    made: FabricTopology, answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]
) -> Iterator[str]:
    problems = found["problems"]
    kinds = [each["kind"] for each in problems if each["level"] != "working"]
    if kinds != sorted(kinds, key=(*ORDER, "slow_client").index):
        yield "the most urgent problem comes first"
    levels = [each["level"] for each in problems]
    if "working" in levels and set(levels[levels.index("working") :]) != {"working"}:
        yield "what goes on by itself comes last"
    if len({each["id"] for each in problems}) != len(problems):
        yield "each problem is told once"
    ids = {each["id"] for each in problems}
    waiting = set()
    for name, each in answers.items():
        if not counts(each):
            if f"instance/{name}/unknown" not in ids:
                yield "an unknown instance is a problem"
            continue
        assert each.summary is not None
        for link in each.summary.links:
            if link.sync and link.unacked and (link.age_ms or 0) >= PUBLISHERS_WAIT_MS:
                waiting.add(f"link/{name}~{link.destination}/publishers_wait")
    if waiting != {each["id"] for each in problems if each["kind"] == "publishers_wait"}:
        yield "publishers wait where acks of a sync destination stand still, and nowhere else"
    if any(counts(each) for each in answers.values()):
        urgency = ("ready", "working", "unknown", "attention", "act")
        if found["verdict"]["level"] != max(levels, key=urgency.index, default="ready"):
            yield "the verdict is the worst problem"
    elif found["verdict"]["level"] != "unknown":
        yield "of nobody known nothing is said"
    for each in problems:
        if not each["do"]["text"] or not each["text"] or not each["href"].startswith("#/"):
            yield "each problem says what to do, and where it is"
        if any(event["instance"] != each["instance"] for event in each["events"]):
            yield "events of a problem are those of its instance"


def _fail_over(
    made: FabricTopology, answers: Mapping[str, PeerAnswer], found: Mapping[str, Any]
) -> Iterator[str]:
    groups = {each.name: each.group for each in made.instances}
    for each in found["instances"]:
        name, may = each["name"], each["may_fail_over"]
        if (may is True) != (each["why_not"] == ""):
            yield "it is said why clients may not fail over"
        if may is not True:
            continue
        own = answers[name]
        if not counts(own) or own.summary is None or own.summary.state != "ready":
            yield "clients fail over to what is ready"
        for other, group in groups.items():
            if group != groups[name] or other == name:
                continue
            theirs = answers[other]
            links = theirs.summary.links if counts(theirs) and theirs.summary is not None else ()
            if not any(link.safe and link.destination == name for link in links):
                yield "clients fail over to what each other member has proved to be safe"
