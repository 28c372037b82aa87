"""Views, conflation and windows alone: no instance, no disk. Beside the views what a Python user
would do instead: the same aggregation re-run each second in sqlite, in DuckDB (if it is installed)
and in pandas, in turn with ours, so that a busy machine is busy for all.

Times are processor time of this process. Making the messages is not part of them, reading them is.
"""

from __future__ import annotations

import gc
import random
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
from contents import FLIGHT
from context import Bench, Figure

from raylay.services.core.feature import CommitBatch
from raylay.services.core.views import ViewFeature
from raylay.services.plugins.filters import following_subscriptions
from raylay.services.plugins.sow import sow_book
from raylay.services.plugins.views import with_views
from raylay.services.server.process import GC_THRESHOLD
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.records import NEVER, SowRecord
from raylay.services.sow.state import RecordChange
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.conflation import Conflator
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, nobody, topic_filter
from raylay.services.subscriptions.windows import OrderedRows
from raylay.services.views.definition import ViewDefinition
from raylay.storage.sow import MemorySowStore

RECORDS = 300_000
GROUPS = 100_000
SLICE = 150
"""Changes that an instance folds at once."""
UPDATES = 5_000
"""Updates of one turn of a figure, between the turns of the others."""
ROUNDS = 6
HITS = (1, 10, 1000)
SUMS = ("COUNT(/dep_delay) AS /flights", "SUM(/dep_delay) AS /sum", "AVG(/dep_delay) AS /average")
EXTREMES = ("MIN(/dep_delay) AS /least", "MAX(/dep_delay) AS /worst")
FOLLOWERS = (1, 10)

FOLD = tuple(f"view_fold_{hits}_us" for hits in HITS)
FOLLOWED = tuple(f"view_followed_by_{count}_us" for count in FOLLOWERS)
NAMES = (
    *FOLD,
    *FOLLOWED,
    "view_unfollowed_us",
    "view_sums_us",
    "view_group_bytes",
    "view_record_bytes",
)
JOINS = ("view_join_1_us", "view_join_10_us")
BESIDE = ("view_rerun_us", "view_rerun_sqlite_us", "view_rerun_duckdb_us", "view_rerun_pandas_us")
BUILD_RECORDS = 1_000_000
BUILD = ("view_build_1M_s",)
KEYS = 10_000
CONFLATED = ("conflated_100_shared_us", "conflated_100_intervals_us")
CHANGED_PER_S = 50_000
WINDOWS = 100
WINDOW_ROWS = 100_000
PAGES = ("windows_100_spread_us", "windows_100_head_us")

_FLIGHTS = SowTopicDefinition("flights", "json", keys=("/number",), transient=True)
_PLANES = SowTopicDefinition("planes", "json", keys=("/tail",), transient=True)


def _definition(name: str, projection: Sequence[str]) -> ViewDefinition:
    return ViewDefinition(
        name,
        "json",
        topic="flights",
        projection=("/group AS /group", *projection),
        grouping=("/group",),
        memory_bytes_max=1 << 40,
    )


class _Flights:
    """A topic of flights without its own fold: the changes that a view gets of it.

    Args:
        groups: number of groups that records are in.
    """

    def __init__(self, topic: SowTopic, groups: int, records: int) -> None:
        self.topic = topic
        self._rng = random.Random(7)
        self._records: list[SowRecord | None] = [None] * records
        self._groups = [number % groups for number in range(records)]
        self._count = groups
        self._txid = 0

    def change(self, number: int) -> SowChange:
        """Returns a new value of a flight; of 100 flights two are in another group than before."""
        rng = self._rng
        before = self._records[number]
        if before is not None and rng.random() < 0.02:
            self._groups[number] = rng.randrange(self._count)
        return self.put(number, self._groups[number], float(rng.randrange(-20, 300)))

    def put(self, number: int, group: int, delay: float) -> SowChange:
        """Returns a change of a flight to these values."""
        self._txid += 1
        body = orjson.dumps({**FLIGHT, "number": number, "group": group, "dep_delay": delay})
        before, key = self._records[number], b"%032x" % number
        now = SowRecord(key, self._txid, 7, self._txid, 1, NEVER, body, 1)
        self._records[number] = now
        reason = "inserted" if before is None else "updated"
        return SowChange(self.topic, self.topic.name, RecordChange(key, before, now, reason), None)

    def updates(self, count: int, hits: int) -> list[list[SowChange]]:
        """Returns updates in slices, of which 1,000 go to so many groups."""
        numbers: list[int] = []
        while len(numbers) < count:
            among = [self._rng.randrange(len(self._records)) for _ in range(hits)]
            numbers += [self._rng.choice(among) for _ in range(1000)]
        changes = [self.change(each) for each in numbers[:count]]
        return [changes[first : first + SLICE] for first in range(0, count, SLICE)]


Give = Callable[[Sequence[SowChange]], None]


def _fold(views: ViewFeature, slices: list[list[SowChange]], give: Give | None = None) -> float:
    """Returns the processor time of a fold, in seconds."""
    batches = [CommitBatch([], 0, list(changes)) for changes in slices]
    began = time.process_time()
    for batch in batches:
        views.fold(batch)
        if give is not None:
            give(batch.changes)
    return time.process_time() - began


def _views(*definitions: ViewDefinition) -> tuple[ViewFeature, list[SowTopic]]:
    # As an instance collects garbage.
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    book, views, _ = with_views(
        sow_book((_FLIGHTS, _PLANES), (), MemorySowStore()), definitions, ()
    )
    return views, list(book.topics)


def _followers(count: int) -> Give:
    """Subscriptions without filter and delta that follow the view, as an instance has them."""
    table = following_subscriptions((), lambda topic, kind: False, "bench", "bench", nobody)
    for number in range(count):
        named = topic_filter("extremes", "json", literal=True)
        table.add(LiveSubscription(number, "s", named, "", 0, FollowTerms()))

    def give(changes: Sequence[SowChange]) -> None:
        assert sum(made.count for _, _, made in table.deliveries((), changes))

    return give


async def view_folds(_: Bench) -> list[Figure]:
    """An update of a view of 100,000 groups over 300,000 flights, with COUNT, SUM, AVG, MIN and
    MAX and each record of the view made, while 1,000 messages change 1, 10 and 1,000 groups; with
    1,000, deliveries to followers, too; with 1,000 and nobody who needs the records; without MIN
    and MAX. The memory of a group and of a record under it."""
    views, (topic, _) = _views(_definition("extremes", (*SUMS, *EXTREMES)))
    flights = _Flights(topic, GROUPS, RECORDS)
    _fold(views, [[flights.change(number)] for number in range(RECORDS)])
    sums, (other, _) = _views(_definition("sums", SUMS))
    flights_of_sums = _Flights(other, GROUPS, RECORDS)
    _fold(sums, [[flights_of_sums.change(number)] for number in range(RECORDS)])
    group_bytes, record_bytes = _memory()
    runs: dict[str, Callable[[], float]] = {
        name: lambda hits=hits: _fold(views, flights.updates(UPDATES, hits))  # type: ignore[misc]
        for name, hits in zip(FOLD, HITS, strict=True)
    }
    for name, count in zip(FOLLOWED, FOLLOWERS, strict=True):
        give = _followers(count)
        runs[name] = lambda give=give: _fold(  # type: ignore[misc]
            views, flights.updates(UPDATES, 1000), give
        )

    def unfollowed() -> float:
        views.follow_by(lambda topic: False)
        seconds = _fold(views, flights.updates(UPDATES, 1000))
        views.follow_by(lambda topic: True)
        return seconds

    runs[NAMES[5]] = unfollowed
    runs[NAMES[6]] = lambda: _fold(sums, flights_of_sums.updates(UPDATES, 1000))
    return [
        *_in_turn(runs, UPDATES),
        Figure(NAMES[7], group_bytes, "bytes/group"),
        Figure(NAMES[8], record_bytes, "bytes/record"),
    ]


def _load(views: ViewFeature, flights: _Flights, first: int, until: int) -> int:
    """Folds some flights for the first time. Returns the bytes that the view takes for them."""
    changes = [flights.change(number) for number in range(first, until)]
    tracemalloc.start()
    for at in range(0, len(changes), SLICE):
        views.fold(CommitBatch([], 0, changes[at : at + SLICE]))
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found


def _memory() -> tuple[float, float]:
    """Returns the bytes of a group with one record, and of a further record, of a view whose
    records nobody needs."""
    views, (topic, _) = _views(_definition("extremes", (*SUMS, *EXTREMES)))
    views.follow_by(lambda topic: False)
    flights = _Flights(topic, 10_000, 30_000)
    return (
        _load(views, flights, 0, 10_000) / 10_000,
        _load(views, flights, 10_000, 30_000) / 20_000,
    )


def _in_turn(runs: dict[str, Callable[[], float]], count: int) -> list[Figure]:
    """Runs the figures in turn, in several rounds; the best of each, in microseconds for one."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            best[name] = min(best[name], run())
    return [Figure(name, seconds / count * 1e6, "us/update") for name, seconds in best.items()]


async def view_joins(_: Bench) -> list[Figure]:
    """An update of a left join, half of them on each side, while a plane has one flight, and ten:
    each row of the view is a flight with a field of its plane."""
    runs: dict[str, Callable[[], float]] = {}
    for name, matches in zip(JOINS, (1, 10), strict=True):
        views, (flights, planes) = _views(
            ViewDefinition(
                "joined",
                "json",
                joins=("[flights]./group = [planes]./group",),
                projection=(
                    "[flights]./number AS /number",
                    "[flights]./dep_delay AS /delay",
                    "[planes]./seats AS /seats",
                ),
                memory_bytes_max=1 << 40,
            )
        )
        made = _Flights(flights, 20_000 // matches, 20_000)
        others = _Planes(planes, 20_000 // matches)
        _fold(
            views,
            [[made.put(number, number % (20_000 // matches), 0.0)] for number in range(20_000)],
        )
        _fold(views, [[others.change(number)] for number in range(20_000 // matches)])
        runs[name] = lambda views=views, made=made, others=others: _fold(  # type: ignore[misc]
            views, _both(made, others)
        )
    return _in_turn(runs, UPDATES)


class _Planes:
    """The changes of a topic of planes."""

    def __init__(self, topic: SowTopic, count: int) -> None:
        self.topic = topic
        self.count = count
        self._rng = random.Random(8)
        self._txid = 0

    def change(self, number: int) -> SowChange:
        """Returns a new value of a plane."""
        self._txid += 1
        key, seats = b"%032x" % number, self._rng.randrange(400)
        body = orjson.dumps({"tail": number, "group": number, "seats": seats, "maker": "x" * 200})
        now = SowRecord(key, self._txid, 8, self._txid, 1, NEVER, body, 1)
        return SowChange(self.topic, self.topic.name, RecordChange(key, None, now, "updated"), None)


def _both(flights: _Flights, planes: _Planes) -> list[list[SowChange]]:
    rng = random.Random(planes._txid)
    changes = []
    for _ in range(UPDATES // 2):
        number = rng.randrange(20_000)
        changes.append(flights.put(number, number % planes.count, float(rng.randrange(300))))
        changes.append(planes.change(rng.randrange(planes.count)))
    return [changes[first : first + SLICE] for first in range(0, len(changes), SLICE)]


async def view_build(_: Bench) -> list[Figure]:
    """A view made from a million records, as when an instance begins."""
    views, (topic, _) = _views(_definition("extremes", (*SUMS, *EXTREMES)))
    flights = _Flights(topic, GROUPS, BUILD_RECORDS)
    for number in range(BUILD_RECORDS):
        now = flights.change(number).change.current
        assert now is not None
        flights._records[number] = None
        topic.state.put_computed(now)
    gc.collect()
    began = time.process_time()
    views.build()
    seconds = time.process_time() - began
    assert views.views[0].topic.state.count == GROUPS
    return [Figure(BUILD[0], seconds, "s")]


# -- what a Python user would do instead --------------------------------------------------------
_RERUN_ROWS = 50_000
"""Rows that change between two runs of the aggregation: those of a second."""
_ASKED = (
    "select grp, count(delay), sum(delay), avg(delay), min(delay), max(delay) "
    "from flights group by grp"
)


def _rows(changes: list[list[SowChange]]) -> Iterator[tuple[int, int, float]]:
    """Reads the messages, which is a part of the time of each."""
    for part in changes:
        for each in part:
            assert each.change.current is not None
            flight = orjson.loads(each.change.current.body or b"")
            yield flight["number"], flight["group"], flight["dep_delay"]


def _sqlite() -> Callable[[list[list[SowChange]]], int]:
    base = sqlite3.connect(":memory:")
    base.execute("create table flights (flight integer primary key, grp integer, delay real)")

    def run(changes: list[list[SowChange]]) -> int:
        base.executemany("insert or replace into flights values (?, ?, ?)", _rows(changes))
        return len(base.execute(_ASKED).fetchall())

    return run


def _frame(changes: list[list[SowChange]]) -> Any:
    import pandas

    frame = pandas.DataFrame(list(_rows(changes)), columns=["flight", "grp", "delay"])
    return frame.drop_duplicates("flight", keep="last")


def _duckdb() -> Callable[[list[list[SowChange]]], int] | None:
    try:
        import duckdb
    except ImportError:
        return None
    base = duckdb.connect(":memory:", config={"threads": 1})
    base.execute("create table flights (flight integer primary key, grp integer, delay double)")

    def run(changes: list[list[SowChange]]) -> int:
        base.register("came", _frame(changes))
        base.execute("insert or replace into flights select * from came")
        return len(base.execute(_ASKED).fetchall())

    return run


def _pandas() -> Callable[[list[list[SowChange]]], int]:
    import pandas

    whole: list[Any] = []

    def run(changes: list[list[SowChange]]) -> int:
        frame = _frame(changes).set_index("flight")
        if whole:
            kept = whole[0].drop(frame.index, errors="ignore")
            whole[0] = pandas.concat([kept, frame])
        else:
            whole.append(frame)
        found = whole[0].groupby("grp")["delay"].agg(["count", "sum", "mean", "min", "max"])
        return len(list(found.itertuples()))

    return run


async def view_beside(_: Bench) -> list[Figure]:
    """The view with MIN and MAX, and what else computes it from the same messages: 50,000 updates
    between two runs of the whole aggregation over 300,000 flights, its rows fetched."""
    views, (topic, _) = _views(_definition("extremes", (*SUMS, *EXTREMES)))
    flights = _Flights(topic, GROUPS, RECORDS)
    first = [[flights.change(number) for number in range(RECORDS)]]

    def ours(changes: list[list[SowChange]]) -> int:
        _fold(views, changes)
        return views.views[0].topic.state.count

    runs = dict(zip(BESIDE, (ours, _sqlite(), _duckdb(), _pandas()), strict=True))
    best = dict.fromkeys((name for name, run in runs.items() if run is not None), float("inf"))
    for run in runs.values():
        if run is not None:
            run(first)
    for _ in range(3):
        changes = flights.updates(_RERUN_ROWS, 1000)
        found = set()
        for name, run in runs.items():
            if run is None:
                continue
            began = time.process_time()
            found.add(run(changes))
            best[name] = min(best[name], (time.process_time() - began) / _RERUN_ROWS * 1e6)
        assert len(found) == 1, "all have the same groups"
    return [Figure(name, value, "us/update") for name, value in best.items()]


# -- conflation and windows ---------------------------------------------------------------------
async def conflated(_: Bench) -> list[Figure]:
    """A message at 50,000 a second to 10,000 keys while 100 subscriptions conflate them: all with
    one interval, which share one conflator; each with an interval of its own."""
    rng = random.Random(9)
    keys = [b"%032x" % number for number in range(KEYS)]

    def run(conflators: Sequence[Conflator[bytes]]) -> float:
        chosen = [rng.choice(keys) for _ in range(UPDATES)]
        began = time.process_time()
        for number, key in enumerate(chosen):
            now_us = number * 1_000_000 // CHANGED_PER_S
            for each in conflators:
                each.change(key, b"", b"", now_us)
                due_us = each.next_due_us
                if due_us is not None and due_us <= now_us:
                    each.due(now_us)
        return time.process_time() - began

    return _in_turn(
        {
            CONFLATED[0]: lambda: run([Conflator(50_000)]),
            CONFLATED[1]: lambda: run([Conflator(10_000 + 900 * n) for n in range(100)]),
        },
        UPDATES,
    )


async def windows(_: Bench) -> list[Figure]:
    """A change of one of 100,000 records, which moves to any place in the order, while 100
    different windows of 50 rows show it: spread over all records, and side by side at the head."""
    runs: dict[str, Callable[[], float]] = {}
    for name, apart in zip(PAGES, (WINDOW_ROWS // WINDOWS, 50), strict=True):
        rng = random.Random(10)
        rows = OrderedRows()
        for number in range(WINDOW_ROWS):
            key = b"%032x" % number
            rows.put(key, (rng.random(), key))
        for number in range(WINDOWS):
            rows.open(number * apart, 50)

        def run(rows: OrderedRows = rows, rng: random.Random = rng) -> float:
            moved = [b"%032x" % rng.randrange(WINDOW_ROWS) for _ in range(500)]
            places = [(rng.random(), key) for key in moved]
            began = time.process_time()
            for key, place in zip(moved, places, strict=True):
                rows.put(key, place)
            return time.process_time() - began

        runs[name] = run
    return _in_turn(runs, 500)
