"""services/drills/measure.py: how a fabric came through a fault, of what was watched."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.drills.measure import (
    AckGroup,
    DowngradePeriod,
    FailoverTime,
    InjectedFault,
    LinkSample,
    RecoveryTimes,
    Sample,
    acked_while_downgraded,
    caused,
    delivery_ms,
    downgrades,
    ended_unasked,
    not_whole_again,
    open_meanwhile,
    rates,
    ready_again_us,
    recovery,
    stood_ms,
    until_whole,
    whole_again_us,
    worst,
)

pytestmark = pytest.mark.covers("Drills", "standstill, recovery")

GOOD = LinkSample(True, True, True, True, True, 0, 0.0)
BEHIND = GOOD._replace(caught_up=False)


def sample(
    ms: int, name: str, *, pid: int = 1, ready: bool = True, link: LinkSample = GOOD
) -> Sample:
    return Sample(ms * 1000, name, pid, ready, "", {"other": link} if ready else {})


def event(ms: int, name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"time_us": ms * 1000, "instance": name, "event": kind, **more}


@pytest.mark.parametrize(
    ("times_ms", "stood"),
    [
        (list(range(0, 200, 10)), 10),
        ([0, 10, 95, 100], 85),
        ([5, 10], 90),  # never again
        ([], 80),
        ([0, 150], 150),  # ends behind
        ([0, 19, 120, 500], 101),  # what begins behind counts no more
    ],
)
def test_the_longest_standstill_that_overlaps(times_ms: list[int], stood: int) -> None:
    assert stood_ms([ms * 1000 for ms in times_ms], 20_000, 100_000) == stood


def test_a_downgrade_ends_with_its_upgrade_or_a_restart() -> None:
    told = [
        event(1, "A", "downgraded", destination="B"),
        event(2, "A", "downgraded", destination="C"),
        event(3, "C", "downgraded", destination="A"),
        event(4, "A", "upgraded", destination="B"),
        event(5, "A", "started"),
    ]
    assert downgrades(told) == [
        DowngradePeriod("A", "B", 1_000, 4_000),
        DowngradePeriod("A", "C", 2_000, 5_000),
        DowngradePeriod("C", "A", 3_000, 0),
    ]


def test_what_was_acknowledged_meanwhile_by_that_instance() -> None:
    found = [DowngradePeriod("A", "B", 10, 20), DowngradePeriod("C", "B", 30, 0)]
    acks = [
        AckGroup(5, 1, 0.0, "A"),
        AckGroup(15, 2, 0.0, "A"),
        AckGroup(15, 4, 0.0, "C"),
        AckGroup(25, 8, 0.0, "A"),
        AckGroup(40, 16, 0.0, "C"),
    ]
    assert acked_while_downgraded(acks, found) == 18


def test_who_was_killed_serves_again_as_another_process() -> None:
    seen = [
        sample(0, "A"),
        sample(10, "A"),  # it was not dead yet
        sample(20, "A", ready=False, pid=0),
        sample(30, "A", ready=False, pid=2),
        sample(40, "A", pid=2),
        sample(50, "A", pid=2),
    ]
    assert ready_again_us(seen, "A", 5_000, restarted=True) == 40_000
    assert ready_again_us(seen, "A", 5_000, restarted=False) == 10_000
    assert ready_again_us(seen[:4], "A", 5_000, restarted=True) is None


def test_a_fabric_is_whole_when_the_last_of_its_links_has_caught_up_for_good() -> None:
    seen = [
        sample(10, "A", link=BEHIND),
        sample(10, "B"),
        sample(20, "A"),
        sample(30, "A", link=BEHIND),
        sample(30, "B"),
        sample(40, "A"),
        sample(50, "A"),
    ]
    assert whole_again_us(seen, ["A", "B"], 5_000) == 40_000
    assert whole_again_us(seen, ["B"], 5_000) == 5_000
    assert whole_again_us(seen[:4], ["A"], 5_000) is None
    assert whole_again_us(seen, ["A", "C"], 5_000) is None


def test_the_recovery_from_a_sigkill() -> None:
    injected = InjectedFault(1, "kill_instance", "A", "SIGKILL of A", 100_000, 101_000, ("A",))
    first = FailoverTime("p", "publisher", 0, 1_000, "", "A", "", 0)
    moved = FailoverTime("p", "publisher", 110_000, 140_000, "A", "B", "reset", 3)
    other = FailoverTime("q", "publisher", 900_000, 910_000, "A", "B", "reset", 0)
    seen = [
        sample(0, "A"),
        sample(0, "B"),
        sample(150, "A", ready=False, pid=0),
        sample(150, "B", link=BEHIND),
        sample(300, "A", pid=2),
        sample(400, "B"),
        sample(500, "A", pid=2),
    ]
    found = recovery(
        injected,
        500_000,
        acks={"r": {"p": [90_000, 99_000, 180_000, 200_000, 498_000]}, "s": {}},
        deliveries={"r": {"x": list(range(0, 600_000, 20_000))}},
        failovers=caused([injected], [first, moved])[1],
        samples=seen,
        names=["A", "B"],
    )
    assert found.acks_stood_ms == {"r": 298.0}
    assert found.deliveries_stood_ms == {"r": 20.0}
    assert [each.gap_ms for each in found.failovers] == [30.0]
    assert first.gap_ms == 0
    second = InjectedFault(2, "stop", "B", "SIGSTOP of B", 800_000)
    assert caused([injected, second], [first, other, moved]) == {1: [moved], 2: [other]}
    assert found.ready_ms == 200.0
    assert found.whole_ms == 299.0


def test_rates_and_worst_values_in_steps_of_time() -> None:
    assert rates([(0, 5), (400, 5), (1_200, 3), (9_999, 1)], 0, 2_000, 1_000) == [10_000, 3_000]
    assert worst([(10, 1.0), (20, 7.0), (2_500, 2.0)], 0, 3_000, 1_000) == [7.0, None, 2.0]


# -- what ended by itself ------------------------------------------------------------------------
def hit(number: int, ms: int, fault: str, target: str, *instances: str) -> InjectedFault:
    return InjectedFault(number, fault, target, "", ms * 1000, instances=instances)


def test_an_instance_that_nobody_killed_and_is_another_process_is_told() -> None:
    seen = [sample(1, "A"), sample(2, "A", pid=0, ready=False), sample(9, "A", pid=5)]
    told = "A ended though no step killed it: process 5 has replaced 1"
    assert ended_unasked({"A": 1}, seen, []) == [told]
    assert ended_unasked({"A": 1}, seen[-1:], []) == [told], "before the first look"
    for fault in ("kill_instance", "kill_node", "lose_disk"):
        assert ended_unasked({"A": 1}, seen, [hit(1, 2, fault, "A", "A")]) == []
    for other in (hit(1, 2, "kill_instance", "B", "B"), hit(1, 2, "clock_jump", "A", "A")):
        assert ended_unasked({"A": 1}, seen, [other]) == [told]
    later = hit(1, 20, "kill_instance", "A", "A")
    assert ended_unasked({"A": 1}, seen, [later]) == [told]


def test_a_kill_explains_one_end() -> None:
    seen = [sample(1, "A"), sample(5, "A", pid=2), sample(9, "A", pid=3)]
    kill = hit(1, 2, "kill_instance", "A", "A")
    assert ended_unasked({"A": 1}, seen, [kill]) == [
        "A ended though no step killed it: process 3 has replaced 2"
    ]
    assert ended_unasked({"A": 1}, seen, [kill, hit(2, 3, "kill_instance", "A", "A")]) == []


def test_a_link_that_nobody_killed_is_told_too() -> None:
    links = [GOOD._replace(pid=7), GOOD._replace(pid=0), GOOD._replace(pid=8)]
    seen = [sample(ms, "A", link=link) for ms, link in enumerate(links, 1)]
    told = "the link A to other ended though no step killed it: process 8 has replaced 7"
    assert ended_unasked({"A": 1}, seen, []) == [told]
    assert ended_unasked({"A": 1}, seen, [hit(1, 2, "kill_link", "A to third", "A")]) == [told]
    for fault, target in (("kill_link", "A to other"), ("stop_link", "A to other"), ("stop", "A")):
        assert ended_unasked({"A": 1}, seen, [hit(1, 2, fault, target, "A")]) == []


def test_links_go_with_their_instance() -> None:
    seen = [
        sample(1, "A", link=GOOD._replace(pid=7)),
        sample(2, "A", pid=2, link=GOOD._replace(pid=8)),
    ]
    assert ended_unasked({"A": 1}, seen, [hit(1, 1, "kill_instance", "A", "A")]) == []


# -- whole in the end ----------------------------------------------------------------------------
def test_a_last_look_that_nobody_answered_in_time_says_nothing() -> None:
    """On a busy machine; the drill had seen that everything was whole."""
    seen = [sample(5, "A", ready=False), sample(8, "A"), sample(30, "A", ready=False)]
    assert whole_again_us(seen, ["A"], 2_000) is None
    assert whole_again_us(until_whole(seen, [sample(9, "A")]), ["A"], 2_000) == 8_000
    assert whole_again_us(until_whole(seen[:1], [sample(9, "A")]), ["A"], 2_000) == 9_000
    assert until_whole(seen, []) == seen


def test_a_fabric_that_was_not_whole_again_is_told_by_fault() -> None:
    kill = hit(1, 2, "kill_instance", "A", "A")
    kill.text = "SIGKILL of A"
    healed, broken = (RecoveryTimes(1, {}, {}, (), None, ms) for ms in (5.0, None))
    assert not_whole_again([kill], [healed]) == []
    told = "the fabric was not whole again after this: SIGKILL of A"
    assert not_whole_again([kill], [broken]) == [told]


def test_how_long_a_line_was_open_that_was_to_be_dropped() -> None:
    def event(time_us: int, kind: str, instance: str = "A", **values: Any) -> dict[str, Any]:
        return {"time_us": time_us, "instance": instance, "event": kind, **values}

    def line(time_us: int, mode: str, to: str = "B") -> dict[str, Any]:
        return event(time_us, "drill_line", destination=to, mode=mode)

    events = [
        line(900, "dropped"),
        line(2_000, "open"),
        line(2_500, "open", "X"),
        line(5_000, "dropped"),
        event(6_000, "started"),
        event(6_500, "started", "Z"),
        line(7_000, "dropped"),
        line(12_000, "open"),
    ]
    lines = [("A", "B"), ("A", "C"), ("B", "A")]
    assert open_meanwhile(events, lines, 1_000, 10_000) == {("A", "B"): 4.0, ("A", "C"): 4.0}
    assert open_meanwhile(events, lines, 1_000, 1_500) == {}


def test_how_long_deliveries_took() -> None:
    published = [(7, 1, 10, 1_000), (7, 11, 12, 9_000), (8, 1, 1, 5_000)]
    arrived = [(3_000, 7, 4), (4_500, 7, 10), (9_250, 7, 12), (6_000, 8, 1), (9, 7, 13), (9, 9, 1)]
    assert list(delivery_ms(published, arrived)) == [
        (3_000, 2.0), (4_500, 3.5), (9_250, 0.25), (6_000, 1.0)
    ]  # fmt: skip
