"""Content filters alone: no instance, no disk. Each beside what a Python user would do instead, in
turn, so that a busy machine is busy for both."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
from context import Bench, Figure

from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.index import FilterIndex
from raylay.services.messages.records import RecordBuilder, Run, run_of, scan
from raylay.services.messages.types.registry import message_type
from raylay.services.plugins.filters import filtered_subscriptions
from raylay.services.subscriptions.matching import LiveSubscription, nobody, topic_filter

MESSAGES = 20_000
ROUNDS = 5
EQUALITIES = 10_000
FILTER = "/carrier = 'UA' AND /distance > 1000 AND /dest IN ('SFO', 'LAX', 'SEA')"
NAMES = ("filter_parse_and_filter", "filter_of_a_lambda", "filter_10000_of_one")
LIVE = ("filtered_live_1", "filtered_live_100", "filtered_live_10000")
RUN_RECORDS = 500


def _flights() -> list[bytes]:
    """Bodies of nineteen fields, as the flights of the demo have."""
    return [
        orjson.dumps(
            {
                "year": 2013,
                "month": number % 12 + 1,
                "day": number % 28 + 1,
                "dep_time": 517 + number % 1800,
                "sched_dep_time": 515,
                "dep_delay": number % 90 - 10.0,
                "arr_time": 830,
                "sched_arr_time": 819,
                "arr_delay": 11.0,
                "carrier": ("UA", "AA", "B6", "DL")[number % 4],
                "flight": number % EQUALITIES,
                "tailnum": f"N{number % 4000}",
                "origin": ("EWR", "JFK", "LGA")[number % 3],
                "dest": ("SFO", "IAH", "MIA", "LAX", "BQN")[number % 5],
                "air_time": 227.0,
                "distance": 500 + number % 2000,
                "hour": 5,
                "minute": 15,
                "time_hour": "2013-01-01T05:00:00Z",
            }
        )
        for number in range(MESSAGES)
    ]


def _rate(run: Callable[[], int]) -> float:
    begin_s = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - begin_s
    assert found
    return MESSAGES / seconds


async def filters(bench: Bench) -> list[Figure]:
    """Messages a second that are parsed and filtered; of that what a loop over `orjson.loads` with
    the same condition written in Python does; and with 10,000 equality filters in place of one."""
    bodies = _flights()
    parse, passes = message_type("json").parse, expression(FILTER).matches
    one: FilterIndex[int] = FilterIndex()
    one.add(7, expression("/flight = 7"))
    many: FilterIndex[int] = FilterIndex()
    for number in range(EQUALITIES):
        many.add(number, expression(f"/flight = {number}"))

    def by_hand(flight: dict[str, object]) -> bool:
        return (
            flight["carrier"] == "UA"
            and flight["distance"] > 1000  # type: ignore[operator]
            and flight["dest"] in ("SFO", "LAX", "SEA")
        )

    runs: dict[str, Callable[[], int]] = {
        "filter": lambda: sum(passes(parse(body), NO_CONTEXT) for body in bodies),
        "lambda": lambda: sum(by_hand(orjson.loads(body)) for body in bodies),
        "one": lambda: sum(len(one.matching(parse(body))) for body in bodies),
        "many": lambda: sum(len(many.matching(parse(body))) for body in bodies),
    }
    best = dict.fromkeys(runs, 0.0)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            best[name] = max(best[name], _rate(run))
    return [
        Figure(NAMES[0], best["filter"], "messages/s"),
        Figure(NAMES[1], best["filter"] / best["lambda"], "ratio"),
        Figure(NAMES[2], best["many"] / best["one"], "ratio"),
    ]


def _committed(bodies: list[bytes]) -> list[Run]:
    """The bodies as what one publisher brought, in runs."""
    builder, runs = RecordBuilder(7, "flights", "json"), []
    for first in range(0, len(bodies), RUN_RECORDS):
        part = bodies[first : first + RUN_RECORDS]
        payload = b"".join(builder.build(first + n, body, 1) for n, body in enumerate(part, 1))
        run = run_of(scan(payload)[0], payload)
        run.first_txid = first + 1
        runs.append(run)
    return runs


async def filtered_live(bench: Bench) -> list[Figure]:
    """Messages a second through 1, 100 and 10,000 subscriptions that each ask for one value of a
    field: parsed, found and made into deliveries, without sockets and disks."""
    runs = _committed(_flights())
    tables = []
    for count in (1, 100, EQUALITIES):
        table = filtered_subscriptions((), "bench", "bench", nobody)
        for number in range(count):
            wanted = f"/flight = {number}"
            table.add(LiveSubscription(1, str(number), topic_filter("flights", ""), wanted))
        tables.append(table)
    best = [0.0] * len(tables)
    for _ in range(ROUNDS):
        for place, table in enumerate(tables):
            begin_s = time.perf_counter()
            delivered = sum(made.count for run in runs for _, made in table.deliveries((run,)))
            assert delivered
            best[place] = max(best[place], MESSAGES / (time.perf_counter() - begin_s))
    return [Figure(name, value, "messages/s") for name, value in zip(LIVE, best, strict=True)]
