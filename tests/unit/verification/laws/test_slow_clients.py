"""services/verification/laws/slow_clients.py: the way of a client that was kept from reading, from
what
was recorded, and each law with a planted mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylay.services.verification.laws.slow_clients import (
    ClientReport,
    PoolUse,
    Reconnection,
    SlowEvidence,
    Stall,
    judge,
    told_of,
)

pytestmark = pytest.mark.covers("Clients and protocol", "the drill shows the whole way")

S = 1_000_000
MIB = 1 << 20
SLOW = "drill-1-A-slow"
WHY = "9 bytes wait on disk for clients"


def held(
    at_s: float, memory_mib: float, disk_mib: float, offline: int, name: str = "A-1"
) -> PoolUse:
    return PoolUse(
        int(at_s * S), name, int(memory_mib * MIB), 12 * MIB, int(disk_mib * MIB), 16 * MIB, offline
    )


def a_drill() -> SlowEvidence:
    """Two steps as they should go: offline and back, then over the disk limit and back."""
    return SlowEvidence(
        "drill-1-",
        [
            Stall(1, SLOW, "A", 5 * S, 25 * S, 12 * MIB),
            Stall(2, SLOW, "A", 35 * S, 55 * S, 12 * MIB, 16 * MIB),
        ],
        [
            ClientReport(11 * S, "A-1", "client_offline", SLOW, memory_bytes=12 * MIB + 1),
            ClientReport(27 * S, "A-1", "client_online", SLOW),
            ClientReport(41 * S, "A-1", "client_offline", SLOW, memory_bytes=13 * MIB),
            ClientReport(49 * S, "A-1", "slow_client", SLOW, "disk", WHY, 0, 16 * MIB + 5),
        ],
        [
            held(4, 0, 0, 0),
            held(10, 11, 0, 0),
            held(12, 13, 10, 1),
            held(24, 1, 15, 1),
            held(28, 0, 0, 0),
            held(42, 12, 12, 1),
            held(48, 1, 15.9, 1),
            held(49.5, 0, 0, 0),
            held(60, 0, 0, 0),
            held(60, 0, 0, 0, "A-2"),
        ],
        [Reconnection(SLOW, int(49.1 * S), int(49.2 * S), "A-2")],
        {SLOW: [(6 * S, 7), (26 * S, 30), (27 * S, 3), (30 * S, 9), (56 * S, 50)]},
    )


def test_the_whole_way_of_a_clean_drill() -> None:
    verdict = judge(a_drill())
    assert not verdict.broken and not verdict.unshown
    first, second = verdict.ways
    assert (first.instance, first.offline_us, first.online_us) == ("A-1", 11 * S, 27 * S)
    assert (first.offline_bytes, first.ended_us, first.drained) == (12 * MIB + 1, 0, 33)
    assert (first.memory_most_bytes, first.disk_most_bytes) == (13 * MIB, 15 * MIB)
    assert (second.offline_us, second.ended_us, second.limit) == (41 * S, 49 * S, "disk")
    assert (second.removed_us, second.back_us, second.back_at) == (49_500_000, 49_200_000, "A-2")
    assert second.resumed == 50 and second.why == WHY and not second.online_us


def changed(**values: Any) -> SlowEvidence:
    return replace(a_drill(), **values)


def told(change: Callable[[ClientReport], ClientReport | None]) -> SlowEvidence:
    found = [change(each) for each in a_drill().told]
    return changed(told=[each for each in found if each is not None])


def of(event: str, **values: Any) -> SlowEvidence:
    """With something else in one event, or without that."""
    return told(
        lambda each: each if each.event != event else (each._replace(**values) if values else None)
    )


MISTAKES: list[tuple[str, Callable[[], SlowEvidence], str]] = [
    (
        "the disk limit is not kept",
        lambda: changed(held=[*a_drill().held, held(61, 0, 16.1, 1)]),
        "slow client limits: A-1 has 16,882,073 bytes on disk",
    ),
    (
        "the memory limit is not kept",
        lambda: changed(held=[*a_drill().held, held(61, 24.1, 0, 1)]),
        "slow client limits: A-1 has 25,270,681 bytes in memory",
    ),
    (
        "one who reads goes offline",
        lambda: changed(
            told=[*a_drill().told, ClientReport(50 * S, "A-2", "client_offline", "drill-1-x")]
        ),
        "slow client others: A-2: event client_offline for drill-1-x, which reads all the time",
    ),
    (
        "one who reads is disconnected",
        lambda: changed(
            told=[*a_drill().told, ClientReport(50 * S, "A-2", "slow_client", "drill-1-x")]
        ),
        "slow client others: A-2: event slow_client for drill-1-x",
    ),
    (
        "one who is offline is disconnected for nothing",
        lambda: changed(
            moved=[Reconnection(SLOW, 20 * S, 21 * S, "A-2", "reset"), *a_drill().moved]
        ),
        "slow client kept: drill-1-A-slow was offline at A-1 and lost its connection (reset)",
    ),
    (
        "it is disconnected below the limit",
        lambda: of("slow_client", disk_bytes=16 * MIB),
        "slow client ended: A-1 disconnected drill-1-A-slow with 16,777,216 bytes (disk)",
    ),
    (
        "it is disconnected by what lies in memory, below that limit",
        lambda: of("slow_client", limit="memory", memory_bytes=12 * MIB),
        "with 12,582,912 bytes (memory): 12,582,912 may wait",
    ),
    (
        "it is disconnected by a share that it does not have",
        lambda: of("slow_client", limit="share"),
        "for another reason than a limit (share)",
    ),
    (
        "the buffer dies",
        lambda: of("slow_client", limit="buffer"),
        "for another reason than a limit (buffer)",
    ),
    (
        "what waited for it stays",
        lambda: changed(
            held=[
                each._replace(disk_bytes=9, offline=1) if each.time_us > 49 * S else each
                for each in a_drill().held
            ]
        ),
        "slow client removed: A-1 disconnected drill-1-A-slow and has 9 bytes on disk",
    ),
    (
        "it never comes back",
        lambda: changed(moved=[]),
        "slow client resumed: drill-1-A-slow was disconnected by A-1 and never came back",
    ),
    (
        "it comes back and gets nothing",
        lambda: changed(given={SLOW: a_drill().given[SLOW][:-1]}),
        "slow client resumed: drill-1-A-slow was disconnected by A-1 and has received nothing",
    ),
    (
        "it reads on and stays offline",
        lambda: of("client_online"),
        "slow client online: drill-1-A-slow reads again and is not online again at A-1",
    ),
]


@pytest.mark.parametrize(("mistake", "found", "wrong"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_planted_mistake_is_found(
    mistake: str, found: Callable[[], SlowEvidence], wrong: str
) -> None:
    broken = judge(found()).broken
    assert broken and any(wrong in f"{each.law}: {each.text}" for each in broken), broken
    assert len({each.law for each in broken}) == 1, f"{mistake}: and no other law"


def test_what_is_no_mistake() -> None:
    # A connection that ends by another fault, of a fabric that has its own limits.
    other = changed(
        moved=[Reconnection(SLOW, 20 * S, 21 * S, "A-2"), *a_drill().moved], is_alone=False
    )
    assert not judge(other).broken
    own = changed(stalls=[each._replace(memory_bytes=0, disk_bytes=0) for each in a_drill().stalls])
    assert not judge(own).broken
    assert not judge(replace(of("slow_client", limit="age"), stalls=own.stalls)).broken
    # A connection of which one side has heard nothing for too long.
    for moved, said in (
        (Reconnection(SLOW, 20 * S, 21 * S, "A-2", "heartbeat"), []),
        (
            Reconnection(SLOW, 20 * S, 21 * S, "A-2", "reset"),
            [ClientReport(20 * S - 9, "A-1", "client_disconnected", SLOW, "heartbeat")],
        ),
    ):
        silent = changed(
            moved=[moved, *a_drill().moved],
            told=[*said, *(each for each in a_drill().told if each.event != "client_online")],
        )
        verdict = judge(silent)
        assert not verdict.broken and verdict.ways[0].left_for == "heartbeat"
        assert verdict.unshown[0].endswith("the connection of drill-1-A-slow ended: heartbeat")
    # A drill that ends before anybody has looked again.
    early = changed(held=[each for each in a_drill().held if each.time_us < 49 * S])
    assert not judge(early).broken and not judge(early).ways[1].removed_us


def test_a_load_that_is_too_small_shows_nothing_and_says_so() -> None:
    quiet = changed(told=[], moved=[], held=a_drill().held[:1])
    verdict = judge(quiet)
    assert not verdict.broken
    assert [each.split(":")[0] for each in verdict.unshown] == [
        "could not show step 1", "could not show step 2"
    ]  # fmt: skip
    some = changed(told=a_drill().told[:3], moved=[], held=a_drill().held[:6])
    (text,) = judge(some).unshown
    assert text.startswith("could not show all of step 2: ") and "less `disk`" in text


def test_events_of_slow_clients_are_taken_out_of_all() -> None:
    events = [
        {"event": "client_offline", "time_us": 4, "instance": "A", "client": "x"},
        {"event": "started", "time_us": 6, "instance": "A"},
        {
            "event": "slow_client", "time_us": 7, "instance": "A", "client": "x", "limit": "disk",
            "text": "much", "memory_bytes": 1, "disk_bytes": 2, "pool": "clients",
        },
    ]  # fmt: skip
    assert told_of(events, 5) == [ClientReport(7, "A", "slow_client", "x", "disk", "much", 1, 2)]
