"""The result of a drill in words."""

from __future__ import annotations

from collections.abc import Iterator

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.judgement import COPIES_MAX, RunJudgement
from raylay.services.drills.measure import InjectedFault, RecoveryTimes

UNJUDGED_LAWS = (
    f"The history has more than {COPIES_MAX:,} copies: its journals and subscribers were judged, "
    "but not the laws."
)


def first_fault_us(result: DrillResult) -> int:
    """Returns the time at which the first fault began, or the drill where there was none;
    microseconds since 1970."""
    return result.injected[0].began_us if result.injected else result.began_us


def seconds(value_ms: float | None) -> str:
    if value_ms is None:
        return "never"
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:.2f} s" if value_ms < 10_000 else f"{value_ms / 1000:.1f} s"


def verdict_sentence(result: DrillResult) -> str:
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    kind = "journaled" if result.scenario.own_load else "acknowledged"
    journals = sum(1 for place in verdict.places if place.place.startswith("journal"))
    others = len(verdict.places) - journals
    if judgement.valid:
        all_told = judgement.laws_judged and not result.scenario.own_load
        late = (
            (f" {judgement.late:,} arrived late and are flagged as late.") if judgement.late else ""
        )
        return (
            f"All {verdict.persisted:,} {kind} messages are in every journal they belong in "
            f"({journals})"
            + (f" and at every subscriber ({others})" if others else "")
            + ", once and in order"
            + ("; publishers got every ack that they were owed." if all_told else ".")
            + late
            + _of_queue(judgement)
            + ("" if judgement.laws_judged else f" {UNJUDGED_LAWS}")
        )
    if not verdict.persisted and verdict.valid and not judgement.broken:
        return f"Could not judge: no message was {kind}."
    wrong = [
        f"{count:,} {word}"
        for count, word in (
            (verdict.lost, "lost"),
            (verdict.duplicated, "duplicated"),
            (verdict.out_of_order, "out of order"),
            (verdict.unexpected, "never published"),
            (len(judgement.broken), "laws broken"),
            (len(judgement.complaints), "complaints"),
        )
        if count
    ]
    return f"Of {verdict.persisted:,} {kind} messages: {', '.join(wrong)}."


def _of_queue(judgement: RunJudgement) -> str:
    """Returns the verdict on the queue in a sentence; empty where there was no load on it or a
    fault was found."""
    queue = judgement.queue
    if queue is None or queue.why:
        return ""
    return f" Each of the {queue.persisted:,} messages of the queue was acknowledged by a consumer."


def story(result: DrillResult) -> list[str]:
    """Tells the course of the drill in words, a paragraph for each fault."""
    judgement = result.judgement
    assert judgement is not None
    load = result.scenario.load
    paragraphs = []
    if result.scenario.about:
        paragraphs.append(result.scenario.about)
    instances = sum(map(len, result.groups.values()))
    if result.scenario.own_load:
        paragraphs.append(
            f"The fabric {result.fabric} has {many(instances, 'instance')} in "
            f"{many(len(result.groups), 'region')} and was under its own load: the verdict is on "
            "what its journals show; the notices to its clients were not recorded."
        )
    publishers, subscribers = (n * len(result.groups) for n in (load.publishers, load.subscribers))
    paragraphs += (
        []
        if result.scenario.own_load
        else [
            f"The fabric {result.fabric} has {many(instances, 'instance')} in "
            f"{many(len(result.groups), 'region')}. {many(publishers, 'publisher')} sent "
            f"{load.rate_per_s:g} messages a second each; "
            f"{many(subscribers, 'durable subscriber')} read everything that reaches their "
            "region."
        ]
    )
    for injected, found in zip(result.injected, result.recoveries, strict=True):
        paragraphs.append(" ".join(_told(result, injected, found)))
    if result.downgrades:
        first = result.downgrades[0]
        risk = (
            f"{many(result.acked_at_risk, 'message')} were acknowledged meanwhile: until the "
            "upgrade they were on fewer disks than configured, and clients were told not to fail "
            "over there."
            if result.acked_at_risk
            else "Nothing was acknowledged meanwhile."
        )
        paragraphs.append(
            f"{many(len(result.downgrades), 'downgrade')} of a sync link made instances "
            f"acknowledge without it, {first.instance} to {first.destination} first. {risk}"
        )
    else:
        paragraphs.append(
            "No sync link was downgraded: every acknowledged message was on all disks that its "
            "ack promises, all the time."
        )
    return paragraphs


def _told(result: DrillResult, injected: InjectedFault, found: RecoveryTimes) -> Iterator[str]:
    at_s = (injected.began_us - first_fault_us(result)) / 1e6
    when = "At the beginning" if at_s < 0.05 else f"After {at_s:.1f} s"
    waiting = many(injected.unacknowledged, "message")
    seen = "" if result.scenario.own_load else f", while {waiting} waited for an ack"
    yield f"{when}: {injected.text}{seen}."
    lost = [failover for failover in found.failovers if failover.kind == "publisher"]
    others = len(found.failovers) - len(lost)
    if found.failovers:
        gaps = [failover.gap_ms for failover in found.failovers]
        yield (
            f"{many(len(lost), 'publisher')} and {many(others, 'subscriber')} lost their "
            f"connection, and found a server again within {seconds(max(gaps))}."
        )
    standing = sorted(found.acks_stood_ms.items(), key=lambda each: -each[1])
    if standing:
        region, longest_ms = standing[0]
        text = f"The longest that a publisher in {region} waited for an ack was "
        text += seconds(longest_ms)
        rest = [f"{name} {seconds(ms)}" for name, ms in standing[1:]]
        yield text + (f" (elsewhere: {', '.join(rest)})." if rest else ".")
    if found.ready_ms is not None:
        yield f"The killed instances served again after {seconds(found.ready_ms)}."
    if found.whole_ms is None:
        yield "The fabric was not whole again."
    else:
        yield f"{seconds(found.whole_ms)} after its end all links had caught up."
    yield from (f"Note: {note}." for note in injected.notes)


def many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
