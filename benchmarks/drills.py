"""The figures of docs/drills.md: one JSON line each.

    python benchmarks/drills.py                 # all, about ten minutes
    python benchmarks/drills.py start restart   # some

    start       start of the three-region fabric until everything is ready and caught up
    failover    20 SIGKILLs of the instance that publishers use, on the three regions: the gap of
                each client, how long acks stood still, and the time until it served again
    resync      an instance of a pair away for 60 s at 20,000 messages/s: until it has caught up
    slow        40 ms each way and 1 % loss between regions: acks inside, and what passes between
    restart     of an instance with 5,000,000 messages: from the SIGKILL until it admits clients

Every drill is judged; a figure of one that is not clean has `"valid": false`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raylay.services.client import Client
from raylay.services.drills.drill import Drill, DrillResult
from raylay.services.drills.scenario import parse
from raylay.services.fabric import Fabric, Topic
from raylay.services.hosts.latency import quantile

TIMEOUT_S = 300.0
KILLS = 20
KILL_EVERY_S = 25
"""Longer than an instance takes to serve again, so that each kill meets a whole region."""
FAILOVER_AGE = "500ms"
"""Until the survivor no longer awaits the killed one: most of the time that acks stand still."""
AWAY_S = 60
AWAY_RATE_PER_S = 20_000
SLOW_S = 20
SLOW_RATE_PER_S = 2_000
MESSAGES = 5_000_000
BODY_BYTES = 128
RESTARTS = 5


def _declare(name: str, *regions: str, downgrade_age: str = "5s") -> Fabric:
    fabric = Fabric(
        name,
        topics=[Topic("t/.*", "json")],
        downgrade_age=downgrade_age,
        logs={"target": "file", "format": "json"},
        drills="allowed",
    )
    for region in regions:
        fabric.region(region, 2)
    return fabric.connect_regions("async") if len(regions) > 1 else fabric


@contextmanager
def _started(name: str, *regions: str, downgrade_age: str = "5s") -> Iterator[Fabric]:
    declared = _declare(name, *regions, downgrade_age=downgrade_age)
    with (
        tempfile.TemporaryDirectory(prefix="raylay-bench-") as place,
        declared.start(Path(place), timeout_s=TIMEOUT_S) as fabric,
    ):
        fabric.wait_connected(TIMEOUT_S)
        yield fabric


def _tell(figure: str, result: DrillResult | None = None, **values: Any) -> None:
    judged = {} if result is None else {"valid": result.valid}
    print(json.dumps({"figure": figure, **values, **judged}))
    sys.stdout.flush()


def _ms(values: list[float], share: float) -> float | None:
    return round(quantile(values, share), 1) if values else None


def start() -> None:
    """Of a Ray, six instances and their links."""
    began_s = time.monotonic()
    with _started("bench-start", "Chicago", "NewYork", "London"):
        _tell("start_three_regions_s", value=round(time.monotonic() - began_s, 1))


def failover() -> None:
    """One sequence of kills, as data."""
    scenario = parse(
        {
            "name": "kills",
            "steps": [
                {"at": f"{number * KILL_EVERY_S}s", "fault": "kill_instance", "target": "serving"}
                for number in range(KILLS)
            ],
        },
        "failover",
    )
    regions = ("Chicago", "NewYork", "London")
    with _started("bench-failover", *regions, downgrade_age=FAILOVER_AGE) as fabric:
        result = Drill(fabric, scenario).run()
    gaps = [
        each.gap_ms
        for each in result.failovers
        if each.left_us and each.kind == "publisher" and each.before != each.after
    ]
    # Its own stretch of time each: what the next kill does is not counted twice.
    stood: list[float] = []
    publisher = result.crowd.publishers[0] if result.crowd else None
    assert publisher is not None
    for injected in result.injected:
        first = next((a.time_us for a in publisher.acks if a.time_us > injected.began_us), None)
        if first is not None:
            stood.append((first - injected.began_us) / 1000)
    ready = [each.ready_ms for each in result.recoveries if each.ready_ms is not None]
    for name, values in (
        ("failover_gap_ms", gaps),
        ("first_ack_after_sigkill_ms", stood),
        ("served_again_ms", ready),
    ):
        _tell(name, result, p50=_ms(values, 0.5), p95=_ms(values, 0.95), of=len(values))


def resync() -> None:
    """The partner of a pair, under live traffic."""
    scenario = parse(
        {
            "name": "away",
            "load": {"rate": AWAY_RATE_PER_S, "subscribers": 0, "body_bytes": BODY_BYTES},
            "after": "30s",
            "steps": [{"fault": "kill_instance", "target": "partner", "for": f"{AWAY_S}s"}],
        },
        "resync",
    )
    with _started("bench-resync", "Chicago") as fabric:
        result = Drill(fabric, scenario).run()
    (found,) = result.recoveries
    _tell(
        "resync_after_60s_away_s",
        result,
        value=None if found.whole_ms is None else round(found.whole_ms / 1000, 1),
        behind=AWAY_S * AWAY_RATE_PER_S,
    )


def slow() -> None:
    """A region apart from the others, before and during."""
    scenario = parse(
        {
            "name": "slow",
            "before": f"{SLOW_S}s",
            "load": {"rate": SLOW_RATE_PER_S, "body_bytes": BODY_BYTES},
            "after": "30s",
            "steps": [
                {
                    "fault": "slow",
                    "target": "region 1 <-> rest",
                    "for": f"{SLOW_S}s",
                    "delay": "40ms",
                    "loss": 0.01,
                }
            ],
        },
        "slow",
    )
    with _started("bench-slow", "Chicago", "NewYork") as fabric:
        result = Drill(fabric, scenario).run()
    (injected,) = result.injected
    crowd = result.crowd
    assert crowd is not None
    acks = crowd.publishers[0].acks
    there = next(each for each in crowd.subscribers if each.group != crowd.publishers[0].group)
    own = crowd.publishers[0].client
    assert own is not None and there.recorder is not None
    for when, since_us, until_us in (
        ("before", result.began_us, injected.began_us),
        ("during", injected.began_us, injected.ended_us),
    ):
        ages = [ack.age_ms for ack in acks if since_us <= ack.time_us < until_us]
        passed = sum(
            last - first + 1
            for time_us, _, publisher, first, last in there.recorder.stretches
            if publisher == own.publisher and since_us <= time_us < until_us
        )
        _tell(
            f"slow_link_{when}",
            result,
            ack_inside_ms_p50=_ms(ages, 0.5),
            ack_inside_ms_p99=_ms(ages, 0.99),
            between_regions_per_s=round(passed / ((until_us - since_us) / 1e6)),
        )


async def _fill(fabric: Fabric) -> None:
    body = b"x" * BODY_BYTES
    async with Client("bench-fill", **fabric.client_options("bench-fill")) as client:
        for _ in range(MESSAGES):
            await client.publish("t/fill", body)
        await client.flush(TIMEOUT_S)


def restart() -> None:
    """Of one of a pair."""
    took_ms: list[float] = []
    with _started("bench-restart", "Chicago") as fabric:
        asyncio.run(_fill(fabric))
        fabric.wait_connected(TIMEOUT_S)
        for _ in range(RESTARTS):
            began_s = time.monotonic()
            fabric.kill("Chicago-2")
            fabric.wait_ready("Chicago-2", TIMEOUT_S)
            took_ms.append((time.monotonic() - began_s) * 1000)
            fabric.wait_connected(TIMEOUT_S)
    _tell("restart_5M_ms", p50=_ms(took_ms, 0.5), max=_ms(took_ms, 1.0), of=len(took_ms))


MEASUREMENTS: dict[str, Callable[[], None]] = {
    "start": start,
    "failover": failover,
    "resync": resync,
    "slow": slow,
    "restart": restart,
}


def main() -> None:
    """Runs those that are named, or all."""
    names = sys.argv[1:] or list(MEASUREMENTS)
    for name in names:
        if name not in MEASUREMENTS:
            sys.exit(f"no figure is called {name!r}: there are {', '.join(MEASUREMENTS)}")
    for name in names:
        MEASUREMENTS[name]()


if __name__ == "__main__":
    main()
