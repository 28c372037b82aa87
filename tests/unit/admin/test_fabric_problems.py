"""services/admin/fabric_problems.py: sentences, since when, and what to do."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fabric_given import NOW_US, answer, answers, summary, topology, with_queue

from raylay.services.admin.fabric_events import FabricEventBook, read_event
from raylay.services.admin.fabric_problems import (
    KINDS,
    Problem,
    ProblemAction,
    ProblemBook,
    problem_documents,
    problems_of,
    step,
    verdict_of,
)
from raylay.services.admin.fabric_summary import QueueSummary, SlowClient, ViewSummary
from raylay.services.admin.fabric_view import FabricView, HeadSight, PeerAnswer, view_of

PAIR = topology(1, 2)
DOCS = Path(__file__).parents[3] / "docs"
WAITING = {"unacked": 310, "lag": 310, "age_ms": 42_000, "trend": "growing"}
DOWN = {"sync": False, "downgraded": True, "downgraded_us": NOW_US - 120_000_000}


def seen(changed: Any = None, made: Any = PAIR, events: Any = None) -> FabricView:
    return view_of(made, answers(made, changed), served_by="R0-0", now_us=NOW_US, events=events)


def of(links: Any = None, made: Any = PAIR, **more: Any) -> list[Problem]:
    """The problems where one instance tells this."""
    return problems_of(seen({"R0-0": answer(summary(made, "R0-0", links, **more))}, made))


def test_a_healthy_fabric_has_none() -> None:
    assert problems_of(seen()) == []
    assert verdict_of(seen(), []) == ("ready", "2 instances are ready, 2 links have caught up")
    lone = topology(1, 1)
    assert verdict_of(seen(made=lone), []) == ("ready", "1 instance is ready")


def test_one_that_was_stopped_on_purpose_is_no_problem() -> None:
    stopped = dataclasses.replace(PAIR.instances[1], is_stopped=True)
    made = dataclasses.replace(PAIR, instances=(PAIR.instances[0], stopped), links=())
    view = seen({"R0-1": PeerAnswer(missing="silent", text="refused")}, made)
    found = view.instances["R0-1"]
    assert (found.state, found.level) == ("stopped", "ready") and "raylay start" in found.why
    assert problems_of(view) == []
    assert verdict_of(view, []) == ("ready", "1 instance is ready, 1 stopped")
    # One that has been started answers before the others are told.
    assert seen(None, made).instances["R0-1"].state == "ready"


@pytest.mark.covers("Administration", "problems: the most urgent first, since when, what ha")
def test_waiting_publishers_are_named_with_what_they_wait_for() -> None:
    (found,) = of({"R0-1": WAITING})
    assert found.text == (
        "Publishers at R0-0 wait for R0-1: 310 messages without an ack, the oldest for 42 s"
    )
    assert (found.kind, found.level, found.trend) == ("publishers_wait", "act", "growing")
    assert found.since_us == NOW_US - 42_000_000
    assert found.action == ProblemAction(
        "R0-0", "amps/administrator/replication/R0-1/downgrade", "downgrade R0-1"
    )
    (found,) = of({"R0-1": {**WAITING, "connected": False, "connected_to": ""}})
    assert "wait for R0-1, which is disconnected: " in found.text


@pytest.mark.parametrize(
    ("changed", "level", "text", "action"),
    [
        (
            {**DOWN, "lag": 40, "unacked": 12, "age_ms": 2_000}, "act",
            "Acks at R0-0 do not wait for R0-1, downgraded 2 m ago; 12 messages acknowledged at "
            "R0-0 are not there, and R0-0 waits for nobody else", "upgrade R0-1",
        ),
        (
            {**DOWN, "lag": 1, "unacked": None, "by_hand": True, "connected": False}, "act",
            "Acks at R0-0 do not wait for R0-1, downgraded by hand 2 m ago; 1 message acknowledged "
            "at R0-0 is not there, and R0-0 waits for nobody else", "upgrade R0-1",
        ),
        (
            {**DOWN, "lag": 24, "unacked": 3, "age_ms": 1_999}, "attention",
            "Acks at R0-0 do not wait for R0-1, downgraded 2 m ago; it keeps up so far, and R0-0 "
            "waits for nobody else", "upgrade R0-1",
        ),
        (
            {**DOWN, "lag": 29_866, "unacked": 0}, "attention",
            "Acks at R0-0 do not wait for R0-1, downgraded 2 m ago; it has everything so far, and "
            "R0-0 waits for nobody else", "upgrade R0-1",
        ),
        (
            {**DOWN, "downgraded_us": None, "caught_up": False, "connected": False}, "attention",
            "Acks at R0-0 do not wait for R0-1, downgraded; it has everything so far, and R0-0 "
            "waits for nobody else", "",
        ),
    ],
)  # fmt: skip
def test_what_is_less_safe_is_named(
    changed: dict[str, Any], level: str, text: str, action: str
) -> None:
    (found,) = of({"R0-1": changed})
    assert (found.kind, found.level, found.text) == ("data_at_risk", level, text)
    assert ("" if found.action is None else found.action.label) == action


def test_a_second_sync_destination_lessens_the_risk() -> None:
    (found,) = of({"R0-1": {**DOWN, "unacked": 12, "age_ms": 9_000}}, topology(1, 3))
    assert found.level == "attention" and "nobody else" not in found.text


@pytest.mark.parametrize(
    ("changed", "kind", "level", "text"),
    [
        ({"connected": False, "refused": True, "why": "auth: no"}, "link", "act", "is refused"),
        ({"connected": False, "why": ""}, "link", "attention", "publishers will wait for it: no"),
        ({"connected": False, "sync": False}, "link", "attention", "has no connection to R0-1: "),
        ({"caught_up": False, "lag": 7}, "link", "working", "R0-1 catches up with R0-0: owes 7"),
    ],
)
def test_links_are_named(changed: dict[str, Any], kind: str, level: str, text: str) -> None:
    (found,) = of({"R0-1": changed})
    assert (found.kind, found.level) == (kind, level) and text in found.text


def test_a_silent_instance_is_told_once() -> None:
    """That the others have no connection to it is no news."""
    lost = {"connected": False, "since_us": NOW_US - 40_000_000}
    changed = {
        "R0-0": answer(summary(PAIR, "R0-0", {"R0-1": lost})),
        "R0-1": answer(summary(PAIR, "R0-1"), 38.0, "silent"),
    }
    (found,) = problems_of(seen(changed))
    assert (found.kind, found.level) == ("unknown", "attention")
    assert found.text == (
        "R0-1 does not answer: last answer 07:59:22 UTC, 38 s ago; "
        "R0-0: disconnected since 07:59:20 UTC"
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (PeerAnswer(), "R0-1 has not answered yet"),
        (PeerAnswer(missing="not_entitled"), "R0-1 does not let this user see it"),
        (PeerAnswer(missing="version", text="version 9"), "of another release: version 9"),
        (PeerAnswer(missing="wrong", text="no summary"), "cannot be believed: no summary"),
        (PeerAnswer(missing="none"), "has no administrator's interface"),
    ],
)
def test_it_is_said_why_nothing_is_known(given: PeerAnswer, text: str) -> None:
    found = problems_of(seen({"R0-1": given}))
    assert text in found[0].text and found[0].kind == "unknown"


@pytest.mark.parametrize(
    ("more", "kind", "level", "text"),
    [
        ({"state": "catching_up", "why": "waits"}, "instance", "working", "catches up with its"),
        ({"state": "recovering"}, "instance", "working", "reads its journal"),
        ({"state": "stopping"}, "instance", "working", "stops"),
        ({"state": "retired"}, "instance", "attention", "was moved"),
        ({"state": "odd"}, "instance", "attention", "does not know"),
        ({"storage_failure": "no space left"}, "disk", "act", "cannot write its disk"),
        ({"disk_free_percent": 3.0}, "disk", "act", "3 % are free"),
        ({"disk_free_percent": 10.0}, "disk", "attention", "10 % are free"),
        ({"front_log_failure": "bad"}, "disk", "attention", "front log fails: bad"),
        ({"retention_held": "a reader"}, "disk", "attention", "from its journal: a reader"),
        ({"certificate_warning": "it ends"}, "instance", "attention", "R0-0: it ends"),
        ({"unavailable": 3}, "data_at_risk", "attention", "3 messages that no upstream has"),
        (
            {"slow": (SlowClient("billing", 5, 12.0, True),)},
            "slow_client", "attention", "billing reads too slowly from R0-0, 12 s behind, its "
            "messages wait on disk",
        ),
        ({"slow": (SlowClient("billing"),)}, "slow_client", "attention", "slowly from R0-0"),
    ],
)  # fmt: skip
def test_instances_are_named(more: dict[str, Any], kind: str, level: str, text: str) -> None:
    (found,) = of(**more)
    assert (found.kind, found.level) == (kind, level) and text in found.text


def test_an_instance_that_lacks_a_configured_link_is_named() -> None:
    bare = msgspec.structs.replace(summary(PAIR, "R0-0"), links=())
    (found,) = problems_of(seen({"R0-0": answer(bare)}))
    assert found.id == "link/R0-0~R0-1/absent" and "raylay apply" in found.text


@pytest.mark.covers("Administration", "since when Ray's head is away")
def test_a_head_that_is_away_is_told_with_the_time() -> None:
    def of_head(head: HeadSight | None, by: str = "R0-0") -> list[Problem]:
        return problems_of(dataclasses.replace(seen(), head=head, served_by=by))

    assert of_head(None) == of_head(HeadSight("h:1")) == []
    (found,) = of_head(HeadSight("h:1", 77))
    assert (found.kind, found.level, found.since_us) == ("head", "attention", 77)
    assert found.text.startswith("Ray's head at h:1 does not answer, as R0-0 sees it: no instance")
    (by_nobody,) = of_head(HeadSight("h:1", 77), "")
    assert "does not answer: no instance" in by_nobody.text


def queue(**more: Any) -> QueueSummary:
    return QueueSummary("work", "json", **{"depth": 7, "consumers": 0, **more})


def test_a_queue_that_nobody_consumes_is_named() -> None:
    made = with_queue(PAIR)

    def problems(**more: Any) -> list[Problem]:
        told = {
            name: answer(summary(made, name, queues=(queue(**more),))) for name in ("R0-0", "R0-1")
        }
        return problems_of(seen(told, made))

    (found,) = problems(trend="growing")
    assert (found.kind, found.trend) == ("queue", "growing")
    assert found.text == "Nobody consumes the queue work: 7 messages in it"
    assert problems()[0].trend is None
    assert problems(trend="steady")[0].trend == "steady"
    assert problems(depth=0) == problems(consumers=1) == problems(depth=None) == []
    failing = problems(consumers=1, why="its process ended")
    assert [each.instance for each in failing] == ["R0-0", "R0-1"]
    assert "does not run at R0-0: its process ended" in failing[0].text
    # One of them does not tell: its consumers may be there.
    told = {"R0-0": answer(summary(made, "R0-0", queues=(queue(),)))}
    assert problems_of(seen(told, made)) == []


@pytest.mark.covers("Administration", "problems: the most urgent first, since when, what ha")
def test_the_most_urgent_comes_first() -> None:
    made = topology(1, 3)
    found = of(
        {"R0-1": WAITING, "R0-2": {**DOWN, "lag": 5}},
        made,
        disk_free_percent=1.0,
        slow=(SlowClient("b", 1, 6.0), SlowClient("a", 1, 60.0)),
    )
    kinds = [each.kind for each in found]
    assert kinds == ["publishers_wait", "data_at_risk", "disk", "slow_client", "slow_client"]
    assert [each.weight for each in found[3:]] == [60.0, 6.0]
    level, text = verdict_of(seen(made=made), found)
    assert level == "act" and text.endswith("; 4 more problems")
    assert verdict_of(seen(made=made), found[3:])[1].endswith("; 1 more problem")
    assert verdict_of(view_of(topology(0, 0), {}, served_by="", now_us=0), []) == (
        "unknown",
        "No instance is known",
    )


def at(now_us: int, changed: Any = None) -> FabricView:
    return dataclasses.replace(seen(changed), now_us=now_us)


@pytest.mark.covers("Administration", "problems: the most urgent first, since when, what ha")
def test_since_when_is_kept_and_unknown_at_first() -> None:
    book = ProblemBook()
    disk = of(disk_free_percent=1.0)
    assert [each.since_us for each in book.dated(disk, at(100))] == [None]
    both = of(disk_free_percent=1.0, front_log_failure="bad")
    assert [each.since_us for each in book.dated(both, at(200))] == [None, 200]
    assert [each.since_us for each in book.dated(both, at(300))] == [None, 200]
    assert book.dated([], at(400)) == []
    assert [each.since_us for each in book.dated(disk, at(500))] == [500]
    waiting = of({"R0-1": WAITING})
    assert book.dated(waiting, at(600))[0].since_us == NOW_US - 42_000_000


def test_an_instance_that_is_silent_for_a_moment_begins_no_problem_anew() -> None:
    book = ProblemBook()
    book.dated([], at(100))
    full = {"R0-1": answer(summary(PAIR, "R0-1", disk_free_percent=1.0))}
    silent = {"R0-1": answer(summary(PAIR, "R0-1"), 38.0, "silent")}
    for now_us, answered in ((200, full), (300, silent), (400, silent), (500, full)):
        view = at(now_us, answered)
        found = book.dated(problems_of(view), view)
    assert [(each.kind, each.since_us) for each in found] == [("disk", 200)]


def test_a_problem_of_which_nothing_is_known_any_more_has_not_ended() -> None:
    """Nor has one that another problem explains by now."""
    lost = answer(summary(PAIR, "R0-0", {"R0-1": {"connected": False}}))
    silent = answer(summary(PAIR, "R0-1"), 38.0, "silent")
    book = ProblemBook()
    full = {"R0-0": lost, "R0-1": answer(summary(PAIR, "R0-1", disk_free_percent=1.0))}
    found = book.dated(problems_of(at(100, full)), at(100, full))
    assert [each.kind for each in found] == ["disk", "link"]
    now = {"R0-0": lost, "R0-1": silent}
    found = book.dated(problems_of(at(200, now)), at(200, now))
    assert [each.kind for each in found] == ["unknown"]
    assert book.closed(at(200, now)) == []
    book.dated([], at(300))
    assert [each["kind"] for each in book.closed(at(300))] == ["unknown"]


def test_problems_that_ended_are_kept_for_a_while() -> None:
    book, view = ProblemBook(), seen()
    book.dated(of(disk_free_percent=1.0, front_log_failure="bad"), at(100))
    assert book.closed(view) == []
    book.dated(of(disk_free_percent=1.0), at(200))
    for turn in range(100):
        book.dated(of(disk_free_percent=1.0), at(300 + 2 * turn))
        book.dated([], at(301 + 2 * turn))
    found = book.closed(view)
    assert len(found) == 50
    assert (found[0]["id"], found[0]["closed_us"]) == ("instance/R0-0/disk", 499)


@pytest.mark.covers("Administration", "problems: the most urgent first, since when, what ha")
def test_a_problem_has_the_events_just_before() -> None:
    events = FabricEventBook()
    raw = [
        {"number": at, "time_us": NOW_US - 50_000_000 + at, "event": f"e{at}"} for at in range(1, 6)
    ] + [{"number": 6, "time_us": NOW_US, "event": "later"}]
    events.learn("R0-0", "7", 6, [read_event("R0-0", each) for each in raw])
    events.learn("R0-1", "7", 1, [read_event("R0-1", {**raw[0], "event": "elsewhere"})])
    view = seen({"R0-0": answer(summary(PAIR, "R0-0", {"R0-1": WAITING}))}, events=events)
    (found,) = problem_documents(view, problems_of(view))
    assert [each["event"] for each in found["events"]] == ["e5", "e4", "e3"]
    assert found["do"]["page"] == "operations.md#let-publishers-go-on-downgrade"


def test_names_are_steps_of_paths() -> None:
    assert step("a/b.c é#<") == "a%2Fb.c%20%C3%A9%23%3C"
    assert step("\ud800") == "%ED%A0%80"


def every_page() -> set[str]:
    text = (DOCS.parent / "services/admin/fabric_problems.py").read_text(encoding="utf-8")
    return set(re.findall(r'"([a-z]+\.md#[a-z-]+)"', text))


@pytest.mark.parametrize("page", sorted(every_page()))
def test_every_line_of_the_pages_is_there(page: str) -> None:
    name, _, anchor = page.partition("#")
    headings = re.findall(r"^#+ (.*)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
    anchors = [re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings]
    assert anchor in anchors


def test_a_view_out_of_service_is_one_problem_of_all_its_instances() -> None:
    full = ViewSummary("sums", "json", in_service=False, why="it would take too much")
    slow = ViewSummary("slow", "json", "conflated")
    changed = {
        name: answer(summary(PAIR, name, views=(full, slow) if name == "R0-0" else (full,)))
        for name in ("R0-0", "R0-1")
    }
    (found,) = problems_of(seen(changed))
    assert found.text == "sums is out of service at R0-0 and R0-1: it would take too much"
    assert (found.kind, found.level, found.href) == ("view", "act", "#/view/sums")


def test_every_kind_has_a_place() -> None:
    assert len(set(KINDS)) == len(KINDS) == 10
