"""services/admin/lags.py: who is behind, by how much, and whether that grows."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin.lags import Lags

S = 1_000_000


def snapshot(committed_txid: int, cursor_txid: int | None, **client: int) -> dict[str, Any]:
    """One with a client and its three kinds of subscriptions, a queue and a destination."""
    return {
        "committed_txid": committed_txid,
        "client_connections": [{"number": 1, "unsent_bytes": 0, "age_ms": 0, **client}],
        "subscribers": [
            {"number": 1, "subscription": "r", "kind": "bookmark", "cursor_txid": cursor_txid},
            {"number": 1, "subscription": "l", "kind": "live", "cursor_txid": None},
        ],
        "queues": {
            "jobs": {"folded_txid": cursor_txid, "queue_depth": committed_txid},
            "new": {},
        },
        "destinations": {"south": {"age_ms": 0}},
        "segments": [
            {"first_txid": 1, "first_time_us": 1 * S, "last_txid": 5, "last_time_us": 5 * S}
        ],
    }


def sampled(*samples: dict[str, Any], every_s: int = 2) -> dict[str, Any]:
    """The last of these samples, one each two seconds."""
    lags = Lags()
    for at, each in enumerate(samples):
        time_us = (100 + at * every_s) * S
        lags.add(each, time_us, time_us)
    return samples[-1]


@pytest.mark.covers("Administration", "`instance`: clients, subscriptions with seconds behi")
def test_one_who_reads_the_log_is_behind_in_transactions_and_seconds() -> None:
    found = sampled(*(snapshot(100 * each, 100) for each in range(1, 6)))
    replay, live = found["subscribers"]
    assert (replay["behind"], replay["seconds_behind"], replay["trend"]) == (400, 8, "growing")
    assert (live["seconds_behind"], live["trend"]) == (0, None)
    assert found["queues"]["jobs"]["seconds_behind"] == 8
    assert found["queues"]["jobs"]["trend"] == "growing"
    assert found["destinations"]["south"]["trend"] is None
    assert "seconds_behind" not in found["queues"]["new"]


def test_times_before_the_first_sample_come_from_the_segments() -> None:
    found = sampled(snapshot(100, 3))
    assert found["subscribers"][0]["seconds_behind"] == 97


def test_a_replay_that_has_ended_is_not_behind() -> None:
    replay = sampled(snapshot(100, None))["subscribers"][0]
    assert (replay["behind"], replay["seconds_behind"]) == (0, 0)


def test_one_without_a_cursor_is_behind_by_the_age_of_what_waits_for_it() -> None:
    found = sampled(
        *(snapshot(10, 10, unsent_bytes=100_000 - each * 9_000, age_ms=3_500) for each in range(6))
    )
    live = found["subscribers"][1]
    assert (live["seconds_behind"], live["trend"]) == (3, "shrinking")
    assert found["client_connections"][0]["trend"] == "shrinking"


@pytest.mark.parametrize("quiet", [10, 20])
def test_what_has_caught_up_has_a_trend_for_a_while(quiet: int) -> None:
    behind = [snapshot(10, 10, unsent_bytes=50_000) for _ in range(5)]
    found = sampled(*behind, *(snapshot(10, 10) for _ in range(quiet)))
    trend = found["client_connections"][0]["trend"]
    assert trend == ("shrinking" if quiet == 10 else None)


def test_an_instance_that_does_not_serve_has_no_lags() -> None:
    told: dict[str, Any] = {"state": "recovering"}
    Lags().add(told, 0, 0)
    assert told == {"state": "recovering"}
