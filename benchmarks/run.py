"""`make bench`: one JSON line a figure. `make bench ONLY='name,name*'` runs some.

Everything runs on this machine: the client in this process, the instances and links as actors of
one local Ray. What each figure is, and the results: benchmarks/README.md.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import sys
import time
from collections.abc import Awaitable, Callable

from actions import NAMES as ACTIONS
from actions import actions
from admin_polled import NAMES as ADMIN_POLLED
from admin_polled import admin_polled
from checks import publish_checks
from console import NAMES as CONSOLE
from console import console
from contents import SOW_NAMES, TYPE_NAMES, sow, types_parse
from context import BY_AGE, Bench, Figure, bench, rest_disk
from copies import table_copies
from delivery import REPLAYS, fanout_10_deliveries, replay
from events import NAMES as EVENTS
from events import events_watched
from failover import GAPS, GAPS_BY_AGE, failover_gap_ms, resync_1M_behind, resync_live
from filters import LIVE as FILTERED_LIVE
from filters import NAMES as FILTERS
from filters import filtered_live, filters
from latency import NAMES as WINDOW_1
from latency import deliver_1000_ms, deliver_10000_ms, pair_ack_window1_ms
from machine import log_append_fsync, socket_echo, two_fsyncs_ms
from memory import instance_memory_mb
from neighbour import NAMES as NEIGHBOUR
from neighbour import neighbour
from pipeline import pipeline, pipeline_audit, pipeline_audit_beside
from pipeline_lag import pipeline_lag
from pipeline_network import NAMES as NETWORK
from pipeline_network import pipeline_network
from publishers import NAMES as PUBLISHERS
from publishers import many_publishers
from queries import FILTERED, HOLES, holes, publish_filtered, queries
from queries import NAMES as QUERIES
from queues import (
    BATCHED,
    LOCAL,
    OF_REDIS,
    PACED,
    REDIS,
    SHARED,
    queue_local,
    queue_memory,
    queue_pair,
)
from queues import MEMORY as QUEUE_MEMORY
from regions import NAMES as REGIONS
from regions import regions
from slow_beside import NAMES as SLOW_BESIDE
from slow_beside import slow_beside
from slow_clients import OFFLINE, offline_store
from throughput import (
    pair_persisted_1KiB_1pub,
    pair_persisted_128B_1pub,
    pair_persisted_128B_4pub,
    single_persisted_128B_1pub,
)
from tls import NAMES as TLS
from tls import tls_publish
from views import (
    BESIDE,
    BUILD,
    CONFLATED,
    JOINS,
    PAGES,
    conflated,
    view_beside,
    view_build,
    view_folds,
    view_joins,
    windows,
)
from views import NAMES as VIEWS

from raylay.services.server.process import new_loop

Measure = Callable[[Bench], Awaitable[list[Figure]]]

# Times of single messages come first: what writes much leaves a throttled disk behind. The last
# column names a fabric that nothing further down needs.
MEASUREMENTS: tuple[tuple[tuple[str, ...], Measure, str], ...] = (
    (("two_fsyncs_ms",), two_fsyncs_ms, ""),
    (WINDOW_1, pair_ack_window1_ms, ""),
    (("deliver_1000_ms_p50", "deliver_1000_ms_p99"), deliver_1000_ms, ""),
    (("deliver_10000_ms_p50", "deliver_10000_ms_p99"), deliver_10000_ms, ""),
    (REGIONS, regions, ""),
    (("pair_persisted_128B_1pub",), pair_persisted_128B_1pub, ""),
    (("pair_persisted_128B_4pub",), pair_persisted_128B_4pub, ""),
    (("pair_persisted_1KiB_1pub",), pair_persisted_1KiB_1pub, ""),
    (
        ("pipeline_lag_s_p50", "pipeline_lag_s_p99", "pipeline_lag_rate"),
        pipeline_lag,
        "",
    ),
    (
        (
            "pipeline_audit_beside",
            "pipeline_audit_beside_processor",
            "pipeline_audit_beside_work",
        ),
        pipeline_audit_beside,
        "pair",
    ),
    (("single_persisted_128B_1pub",), single_persisted_128B_1pub, ""),
    (("fanout_10_deliveries",), fanout_10_deliveries, ""),
    (OFFLINE, offline_store, ""),
    (SLOW_BESIDE, slow_beside, ""),
    (NEIGHBOUR, neighbour, ""),
    (ADMIN_POLLED, admin_polled, ""),
    (EVENTS, events_watched, ""),
    (ACTIONS, actions, ""),
    (CONSOLE, console, ""),
    (REPLAYS, replay, "single"),
    (
        ("publish_checks_throughput", "publish_checks_window1", "publish_checks_processor"),
        publish_checks,
        "plain",
    ),
    (TLS, tls_publish, ""),
    ((*GAPS, *GAPS_BY_AGE), failover_gap_ms, BY_AGE),
    (("resync_1M_behind",), resync_1M_behind, ""),
    (("table_copies_chicago", "table_copies_newyork", "table_everywhere"), table_copies, ""),
    (
        (
            "resync_live",
            "resync_live_ack_alone_ms_p99",
            "resync_live_ack_ms_p50",
            "resync_live_ack_ms_p99",
        ),
        resync_live,
        "failover",
    ),
    (("instance_memory_idle_mb", "instance_memory_1M_mb"), instance_memory_mb, ""),
    (
        ("pipeline_scan", "pipeline_scan_all", "pipeline_stream", "pipeline_archive"),
        pipeline,
        "",
    ),
    (("pipeline_audit", "pipeline_audit_s"), pipeline_audit, ""),
    (NETWORK, pipeline_network, ""),
    (PUBLISHERS, many_publishers, ""),
    (FILTERS, filters, ""),
    (FILTERED_LIVE, filtered_live, ""),
    (FILTERED, publish_filtered, "filtered"),
    (QUERIES, queries, ""),
    ((*LOCAL, *BATCHED, *PACED, *REDIS, *OF_REDIS), queue_local, ""),
    (SHARED, queue_pair, ""),
    (QUEUE_MEMORY, queue_memory, ""),
    (HOLES, holes, ""),
    (("log_append_fsync",), log_append_fsync, ""),
    (("socket_echo",), socket_echo, ""),
    (TYPE_NAMES, types_parse, ""),
    (SOW_NAMES, sow, ""),
    (VIEWS, view_folds, ""),
    (JOINS, view_joins, ""),
    (BESIDE, view_beside, ""),
    (BUILD, view_build, ""),
    (CONFLATED, conflated, ""),
    (PAGES, windows, ""),
)


def chosen(arguments: list[str]) -> set[str]:
    """The figures that were asked for; all of them without arguments.

    Raises:
        SystemExit: no figure has such a name.
    """
    names = {name for names, _, _ in MEASUREMENTS for name in names}
    asked = {each for argument in arguments for each in argument.split(",") if each}
    found = {each: set(fnmatch.filter(names, each)) for each in asked}
    if unknown := sorted(each for each, figures in found.items() if not figures):
        sys.exit(f"bench: no figure {', '.join(unknown)}; there are {', '.join(sorted(names))}")
    return set().union(*found.values()) if found else names


async def measure(asked: set[str], made: Bench) -> bool:
    """Runs and prints the figures. Whether all could be measured."""
    whole = True
    for names, run, last_of in MEASUREMENTS:
        if asked.intersection(names):
            if not rest_disk(made.directory):
                print(f"bench: the disk is busy before {names[0]}", file=sys.stderr, flush=True)
            try:
                figures = await run(made)
            except Exception as error:
                # The others are measured: a whole run takes its time.
                whole = False
                print(f"bench: {', '.join(names)}: {error!r}", file=sys.stderr, flush=True)
                continue
            for figure in figures:
                if figure.name in asked:
                    line = {"figure": figure.name, "value": rounded(figure.value)}
                    print(json.dumps({**line, "unit": figure.unit}), flush=True)
        if last_of:
            made.stop(last_of)
    return whole


def rounded(value: float) -> float:
    """Whole numbers above 1,000, three digits behind the point below."""
    return round(value) if value >= 1000 else round(value, 3)


def main() -> int:
    """The command."""
    asked = chosen(sys.argv[1:])
    started_s = time.monotonic()
    with bench() as made, asyncio.Runner(loop_factory=new_loop) as runner:
        whole = runner.run(measure(asked, made))
    print(f"bench: {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
