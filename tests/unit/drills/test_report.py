"""services/drills/reports/report.py: the page and the JSON of what a drill came to."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.history_builder import ClientNotice, SubscriberRecorder
from raylay.services.drills.judgement import RunJudgement
from raylay.services.drills.loads.load import LoadClients, LoadSubscriber
from raylay.services.drills.loads.queue_load import QUEUE_STORED_AS, QueueLoad
from raylay.services.drills.measure import (
    AckGroup,
    DowngradePeriod,
    FailoverTime,
    InjectedFault,
    LinkSample,
    RecoveryTimes,
    Sample,
    WaitingBytes,
)
from raylay.services.drills.reports import report, report_slow
from raylay.services.drills.scenario import DrillScenario, find
from raylay.services.drills.verdict import PlaceVerdict, Verdict
from raylay.services.errors import ConfigurationError
from raylay.services.fabric import Fabric
from raylay.services.verification.checkers import Violation
from raylay.services.verification.history import HistoryMember
from raylay.services.verification.laws.queue_delivery import (
    HandedMessage,
    QueueVerdict,
    RegionTally,
    Takeover,
)
from raylay.services.verification.laws.slow_clients import ClientPath, SlowVerdict, Stall
from raylay.services.verification.laws.sow_topics import SowVerdict

pytestmark = [
    pytest.mark.covers("Drills", "the page and the JSON say what happened"),
    pytest.mark.covers("Clients and protocol", "the drill shows the whole way"),
]

T0_US = 1_700_000_000_000_000
FAULT_US = T0_US + 5_000_000
MOVED = FailoverTime(
    "drill-1-A-pub1", "publisher", FAULT_US + 1_000, FAULT_US + 13_000, "A-1", "A-2", "reset", 4
)


def sample(ms: int, name: str, ready: bool) -> Sample:
    link = LinkSample(True, True, True, True, True, 0, 3.0)
    return Sample(T0_US + ms * 1000, name, 1, ready, "", {"other": link} if ready else {}, ms)


def a_result(scenario: DrillScenario, **judged: Any) -> DrillResult:
    fabric = Fabric("shops", topics=["t"]).region("A", instances=2)
    crowd = LoadClients(fabric, scenario.load, "1", "t")
    for publisher in crowd.publishers:
        publisher.acks = [AckGroup(T0_US + ms * 1000, 5, 4.0, "A-1") for ms in range(0, 9_000, 50)]
        publisher.rates = [(T0_US + ms * 1000, 5) for ms in range(0, 9_000, 50)]
    places = judged.pop(
        "places", [PlaceVerdict("journal A-1", 900), PlaceVerdict("subscriber x", 900)]
    )
    began = FailoverTime("drill-1-A-pub1", "publisher", 0, T0_US, "", "A-1", "", 0)
    injected = InjectedFault(
        1, "kill_instance", "A-1", "SIGKILL of <A-1>", FAULT_US, FAULT_US + 900, ("A-1",), 7
    )
    return DrillResult(
        "shops", "1", scenario, T0_US, T0_US + 9_000_000, T0_US + 9_500_000, "t",
        {"A": ["A-1", "A-2"]},
        injected=[injected],
        recoveries=[RecoveryTimes(1, {"A": 1_234.0}, {"A": 90.0}, (MOVED,), 3_060.0, 420.0)],
        downgrades=[DowngradePeriod("A-2", "A-1", FAULT_US + 1, FAULT_US + 2)],
        acked_at_risk=17,
        samples=[
            sample(ms, name, name != "A-1" or not 5_000 < ms < 8_000)
            for ms in range(0, 9_000, 200)
            for name in ("A-1", "A-2")
        ],
        events=[{"instance": "A-2", "time_us": FAULT_US, "event": "downgraded", "number": 1}],
        failovers=[began, MOVED],
        crowd=crowd,
        judgement=RunJudgement(Verdict(places, 905, 900), **judged),
    )  # fmt: skip


def test_a_clean_drill_reads_as_one(tmp_path: Path) -> None:
    result = a_result(find("kill-instance"))
    page = report.write(result, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "Clean." in text
    assert "All 900 acknowledged messages are in every journal they belong in (1)" in text
    assert "SIGKILL of &lt;A-1&gt;, while 7 messages waited for an ack." in text
    assert "1 publisher and 0 subscribers lost their connection" in text
    assert "waited for an ack was 1.23 s" in text
    assert "served again after 3.06 s" in text
    assert "420 ms after its end all links had caught up." in text
    assert "17 messages were acknowledged meanwhile" in text
    assert text.count("<svg") == 4
    told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
    assert told["valid"] and told["verdict"]["persisted"] == 900
    assert told["failover_gap_ms"] == {"p50": 12.0, "p95": 12.0, "all": [12.0]}
    assert told["faults"][0]["unacknowledged"] == 7
    assert told["verdict"]["sow"] is None and "SOW" not in text


def test_what_became_of_the_sow_topic_is_told(tmp_path: Path) -> None:
    wrong = Violation("sow", "A-2, key k1: nothing is held; its journal says 7|3| {}")
    for broken in ([], [wrong]):
        sow = SowVerdict(90, 12, {"A-1": 30, "A-2": 30}, broken=broken)
        result = a_result(find("kill-instance"), sow=sow, broken=broken)
        assert result.valid is not bool(broken)
        text = report.write(result, tmp_path).read_text(encoding="utf-8")
        assert sow.sentence in text and ("A-2, key k1" in text) is bool(broken)
        told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
        assert told["verdict"]["sow"] == {
            "judged": True, "why": "", "changes": 90, "deletions": 12,
            "records": {"A-1": 30, "A-2": 30}, "wrong": len(broken),
        }  # fmt: skip
    assert told["recoveries"][0] == {
        "fault": 1, "acks_stood_ms": {"A": 1234.0}, "deliveries_stood_ms": {"A": 90.0},
        "failovers": 1, "ready_ms": 3060.0, "whole_ms": 420.0,
    }  # fmt: skip


def with_queue(result: DrillResult, verdict: QueueVerdict) -> None:
    """What a drill with a load on its queue has besides."""
    member = HistoryMember("A-1", "A", ())
    statuses = {"A-1": {"queues": {QUEUE_STORED_AS: {}}}}
    load = result.queue = QueueLoad("1", {"A": ["A-1"]}, statuses, {"A-1": member})
    (producer,) = load.producers
    producer.times_us = {n: T0_US + n * 50_000 for n in range(1, 150)}
    for sequence, time_us in producer.times_us.items():
        key = load.publishers[0], sequence
        load.ledger.given.append(HandedMessage(time_us + 9, time_us, key, "A-1", "w", "A"))
        load.ledger.acknowledged.append((time_us + 99, "A"))
    assert result.judgement is not None
    result.judgement.queue = verdict


def test_what_became_of_the_queue_is_told(tmp_path: Path) -> None:
    result = a_result(find("kill-consumers"))
    verdict = QueueVerdict(
        150, 149, 155, 40, 6, ["A-1", "A-2"],
        {"A": RegionTally(150, 115, 0, 109), "B": RegionTally(0, 40, 40, 40)},
        [Takeover("A", 6, 577.0, 40, 60, 174.0, 539.0)],
    )  # fmt: skip
    with_queue(result, verdict)
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    assert text.count("<svg") == 7 and verdict.sentence in text
    assert report.verdict_sentence(result).endswith(
        "publishers got every ack that they were owed. Each of the 149 messages of the queue was "
        "acknowledged by a consumer."
    )
    assert "The consumers in A died with 6 messages in hand." in text
    assert "first message of the region 577 ms later, and 40 messages went to others" in text
    assert "half were with a consumer within 174 ms, and all within 539 ms." in text
    assert "Others took over" in text and "after the consumers in A died" in text
    told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
    queue = told["verdict"]["queue"]
    assert queue["judged"] and (queue["done_elsewhere"], queue["given_again"]) == (40, 6)
    assert queue["regions"]["B"]["published_elsewhere"] == 40
    assert queue["taken_over"][0]["waited_ms"] == {"p50": 174.0, "longest": 539.0}


def test_a_queue_that_nobody_took_over_or_judged_is_told_so(tmp_path: Path) -> None:
    result = a_result(find("kill-consumers"))
    with_queue(result, QueueVerdict(takeovers=[Takeover("A", 1)], places=["A-1"]))
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    died = "died with 1 message in hand. No other consumer got any of the region's messages"
    assert died in unescape(text)
    assert result.judgement is not None
    result.judgement.queue = QueueVerdict(why="it has none")
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    assert "Queues were not judged: it has none." in text and text.count("<svg") == 4
    told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
    assert told["verdict"]["queue"]["why"] == "it has none"


def with_slow(result: DrillResult) -> None:
    """What a drill has whose subscriber stopped reading twice: drained, then disconnected."""
    crowd, mib = result.crowd, 1 << 20
    assert crowd is not None and result.judgement is not None
    slow = LoadSubscriber("drill-1-A-slow", "A", crowd.failovers)
    crowd.subscribers.append(slow)
    for each in crowd.subscribers:
        each.recorder = SubscriberRecorder(each.name, "t", False)
        each.recorder.stretches = [
            (T0_US + n * 50_000 + 2_000 * n, "A-1", 7, n, n) for n in range(1, 150)
        ]
    crowd.notices += [
        ClientNotice("published", T0_US + n * 50_000, "p", 7, "A-1", 1, n, n) for n in range(1, 150)
    ]
    result.samples = [
        each._replace(waiting=WaitingBytes(3 * mib, 12 * mib, 5 * mib, 99 * mib, 1))
        for each in result.samples
    ]
    first = Stall(1, slow.name, "A", T0_US + 1_000_000, T0_US + 3_000_000, 12 * mib)
    second = Stall(2, slow.name, "A", T0_US + 5_000_000, T0_US + 7_000_000, 12 * mib, 8 * mib)
    result.judgement.slow = SlowVerdict(
        [
            ClientPath(
                first, "A-1", first.began_us + 400_000, 12 * mib, 13 * mib, 40 * mib,
                online_us=first.ended_us + 250_000, drained=1_234,
            ),
            ClientPath(
                second, "A-1", second.began_us + 300_000, 12 * mib, 13 * mib, 8 * mib,
                second.began_us + 1_500_000, "disk", "9 bytes wait", second.began_us + 1_700_000,
                second.began_us + 1_600_000, "A-2", resumed=77,
            ),
        ],
        unshown=["could not show step 3: too little"],
    )  # fmt: skip


def test_the_way_of_a_slow_client_is_told_with_the_others_beside_it(tmp_path: Path) -> None:
    result = a_result(find("slow-consumer"))
    with_slow(result)
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    for sentence in (
        "A subscriber in A read nothing for 2.00 s. 400 ms later 12.0 MiB waited for it in the "
        "memory of A-1, and it went offline: from then on the messages that it did not take "
        "went to the disk, 40.0 MiB at most",
        "When it read again, 1,234 messages arrived in order within 250 ms: then nothing was "
        "left on the disk, and it was online again.",
        "1.50 s after it had stopped reading it was disconnected: 9 bytes wait. Within 200 ms "
        "nothing was left of it there. It was connected again, to A-2, and went on from its "
        "bookmark: 77 messages arrived there.",
        "could not show step 3: too little",
        "40.0 MiB had waited on disk",
        "disconnected by A-1, limit disk: 9 bytes wait",
    ):
        assert sentence in text, sentence
    assert text.count("<svg") == 7 and "The whole way" not in text
    told = json.loads((tmp_path / report.JSON_NAME).read_text(encoding="utf-8"))
    slow = told["verdict"]["slow_clients"]
    assert [each["limit"] for each in slow["ways"]] == ["", "disk"] and not slow["wrong"]
    assert slow["ways"][0]["stall"]["memory_bytes"] == 12 << 20
    phases = {each["phase"]: each for each in slow["others_ms"]}
    assert list(phases) == [
        "before", "step 1, it waits in memory", "step 1, it waits on disk",
        "step 1, it takes the waiting messages", "step 2, it waits in memory",
        "step 2, it waits on disk", "step 2, it is disconnected", "behind it",
    ]  # fmt: skip
    # Each delivery of this record takes 2 ms more than the one before.
    assert phases["before"]["p50"] < 25 < phases["step 1, it waits on disk"]["p50"]


def test_a_slow_client_that_never_went_offline_is_told_so() -> None:
    stall = Stall(1, "drill-1-A-slow", "A", T0_US, T0_US + 2_000_000)
    assert report_slow.told(ClientPath(stall)) == (
        "A subscriber in A read nothing for 2.00 s. It did not go offline."
    )
    gone = ClientPath(stall, "A-1", ended_us=T0_US + 5, limit="share", why="much")
    assert "disconnected: much." in report_slow.told(gone)


@pytest.mark.parametrize(
    ("judged", "told"),
    [
        ({"places": [PlaceVerdict("journal A-1", 9, lost=2, examples=["7|1|"])]}, "2 lost"),
        ({"places": [PlaceVerdict("journal A-1", 9, duplicated=3)]}, "3 duplicated"),
        ({"places": [PlaceVerdict("journal A-1", 9, out_of_order=4)]}, "4 out of order"),
        ({"broken": [Violation("safety", "it lacks 5")]}, "1 laws broken"),
        ({"complaints": ["pub1 waits for acks"]}, "1 complaints"),
    ],
)
def test_what_is_wrong_is_told_first(judged: dict[str, Any], told: str, tmp_path: Path) -> None:
    result = a_result(find("kill-instance"), **judged)
    assert not result.valid
    assert report.verdict_sentence(result) == f"Of 900 acknowledged messages: {told}."
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    assert "Failed." in text and "Clean." not in text
    for each in (*judged.get("broken", ()), *judged.get("complaints", ())):
        assert (each.text if isinstance(each, Violation) else each) in text


def test_a_history_that_was_not_judged_by_the_laws_is_told_at_once() -> None:
    shown = report.verdict_sentence(a_result(find("kill-instance"), laws_judged=False))
    assert shown.endswith(
        "more than 400,000 copies: its journals and subscribers were judged, but not the laws."
    )


def test_of_a_load_of_the_fabrics_own_only_what_was_seen_is_told(tmp_path: Path) -> None:
    result = a_result(find("kill-instance").with_own_load())
    result.failovers, result.recoveries = [], [RecoveryTimes(1, {}, {}, (), 3_060.0, 12.0)]
    text = report.write(result, tmp_path).read_text(encoding="utf-8")
    assert "All 900 journaled messages" in text and "under its own load" in text
    assert "waited for an ack" not in text
    assert text.count("<svg") == 3


def test_without_a_message_nothing_was_judged() -> None:
    result = a_result(find("kill-instance").with_own_load(), complaints=["could not judge"])
    assert result.judgement is not None
    result.judgement.verdict.persisted = 0
    told = "Could not judge: no message was journaled."
    assert report.verdict_sentence(result) == told and not result.valid


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_takes_no_report_is_told_before_the_drill(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"no report can be written into .*--output"):
        report.make_place(tmp_path / place)
    assert (tmp_path / "file").read_text() == ""


def test_without_a_readable_trace_there_is_a_report(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    result = a_result(find("kill-instance"))
    result.traces = tmp_path / "traces"
    text = report.write(result, tmp_path / "out").read_text(encoding="utf-8")
    assert "No message on its way was traced." in text
    assert json.loads((tmp_path / "out" / report.JSON_NAME).read_text())["in_flight"] == []


def span(name: str, start_ms: float, ms: float, trace: str, parent: str = "", **more: Any) -> str:
    start_ns = FAULT_US * 1000 + int(start_ms * 1e6)
    return json.dumps(
        {
            "trace_id": trace, "span_id": f"{name}-{trace}"[:16], "parent_id": parent or None,
            "name": name, "start_ns": start_ns, "end_ns": start_ns + int(ms * 1e6), "process": "p",
            "attributes": {"topic": "t", "bookmark": "7|1|", **more},
        }
    )  # fmt: skip


def test_the_message_that_was_on_its_way_and_the_one_that_waited_longest(tmp_path: Path) -> None:
    flying, waiting, quick, before = ("f" * 32, "a" * 32, "b" * 32, "c" * 32)
    (tmp_path / "p-1.jsonl").write_text(
        "\n".join(
            [
                span("publish", -2.0, 40.0, flying, client="pub"),
                span("commit", -1.0, 3.0, flying, "publish-ffffffff", instance="A-1"),
                span("publish", 5.0, 900.0, waiting, client="pub"),
                span("link send", 9_000.0, 1.0, waiting, "publish-aaaaaaaa", instance="A-2"),
                span("publish", 1.0, 2.0, quick, client="pub"),
                span("publish", -500.0, 2.0, before, client="pub"),
            ]
        )
        + "\n"
    )
    result = a_result(find("kill-instance"))
    result.traces = tmp_path
    found = report.in_flight(result)
    assert [(spans[0].trace_id, len(spans)) for _, spans in found] == [(flying, 2), (waiting, 2)]
    text = report.write(result, tmp_path / "out").read_text(encoding="utf-8")
    assert "was on its way when this happened" in text
    assert "was published 5 ms after this happened" in text
    assert "1 spans of later resends are left out" in text


@pytest.mark.parametrize(
    ("ms", "shown"), [(None, "never"), (12.4, "12 ms"), (1_234.0, "1.23 s"), (12_340.0, "12.3 s")]
)
def test_durations(ms: float | None, shown: str) -> None:
    assert report.seconds(ms) == shown
