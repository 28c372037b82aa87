"""The values that an instance tells its administrator's process (behaviour.md 9.4): cheaply, and at
most once a second, however many ask.

The values of the whole instance are told each time. Of clients and subscriptions there may be tens
of thousands, so each snapshot has a page of their rows: those of clients that are behind first,
then the next ones in turn, as many as the time of one snapshot allows. The reader keeps the rows of
earlier pages (services/admin/snapshot_pages.py). Everything that another process can read by itself
is left to it: journal files, memory, processor time, sockets.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topic_totals import TopicTotal
from raylay.services.security.modules import HIDDEN, shown_option
from raylay.services.server.clients.client_status import connection_values
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSession, ClientSessions
from raylay.services.server.commits import Commits
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.status import InstanceStatus
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.matching import LiveSubscription
from raylay.services.telemetry.metrics import LatencyHistogram, ValueHistogram

INTERVAL_S = 0.95
"""Least time, in seconds, between two snapshots: an earlier request is answered with the last
one."""
ROWS_S = 0.005
"""Time of the loop, in seconds, that the rows of one snapshot take. About 500 rows fit."""
SLICE_S = 0.001
"""Time of the loop, in seconds, after which it does other work before the next rows."""
BEHIND_FIRST_MAX = 200
"""Clients with unsent bytes whose rows are in each snapshot."""
TOPICS_AT_ONCE = 500
QUERIES_SHOWN_MAX = 200
HELD_COUNTED_S = 10.0
"""Time, in seconds, between two counts of the ranges that the instance holds, for the metrics."""
ACKS_S = 10.0
"""Length, in seconds, of the window over which the percentiles of ack times are taken."""
CLIENT_FIELDS = (
    "number",
    "client",
    "publisher",
    "user",
    "address",
    "transport",
    "connected_us",
    "bytes_in",
    "bytes_out",
    "messages_in",
    "messages_out",
    "unsent_bytes",
    "memory_bytes",
    "offline_bytes",
    "age_ms",
    "subscriptions",
    "published_upto",
    "unacknowledged",
    "oldest_unacknowledged_ms",
    "denied_reads",
    "denied_writes",
    "times_slowed",
    "state",
)
SUBSCRIPTION_FIELDS = (
    "subscription",
    "topic",
    "message_types",
    "filter",
    "options",
    "kind",
    "delivered",
    "cursor_txid",
    "order_by",
    "pagination",
)


class AdminSnapshots:
    """Takes the snapshots of an instance that serves. It changes nothing of the instance.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        clock: the clock that measures how long rows take.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        status: InstanceStatus,
        *,
        clients: ClientSessions,
        commits: Commits,
        deliveries: QueueDeliveries,
        replays: ReplayPump,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._status = status
        self._clients = clients
        self._commits = commits
        self._deliveries = deliveries
        self._replays = replays
        self._clock = clock
        self._last: dict[str, Any] = {}
        self._last_s: float | None = None
        self._taking: asyncio.Task[dict[str, Any]] | None = None
        self._turn: Iterator[ClientSession] = iter(())
        """The clients that have no rows yet in the present round."""
        self._pages: Iterator[dict[str, Any]] = iter(())
        """Pages still to be told of a client that has more subscriptions than fit one page."""
        self._marks: dict[int, tuple[float, int]] = {}
        """Time and highest published sequence at that time, by number of the client, for clients
        with unacknowledged publishes."""
        self._topics_from = 0
        self._ack_marks: deque[tuple[float, tuple[int, ...]]] = deque()
        """Histogram counts of the times to persisted acks, as noted in the last `ACKS_S`, each with
        the time of the note. The counts of the window are the last ones less the first."""
        self._held = (0, 0.0)
        self._files = InstanceFiles(runtime)

    async def take(self) -> dict[str, Any]:
        """Returns the values for msgpack. At most once in `INTERVAL_S` they are made anew."""
        now_s = self._runtime.loop.time()
        if self._last_s is not None and now_s - self._last_s < INTERVAL_S:
            return self._last
        if self._taking is None:
            self._taking = self._runtime.loop.create_task(self._take())
            self._taking.add_done_callback(self._taken)
        return await asyncio.shield(self._taking)

    def _taken(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._taking = None
        if not task.cancelled():
            task.exception()  # The waiting requests get it.

    async def _take(self) -> dict[str, Any]:
        runtime = self._runtime
        self._last_s = runtime.loop.time()
        config = runtime.config
        found = {**self._status.brief(), **self._files.told()}
        if not runtime.is_serving:
            self._last = found
            return found
        await asyncio.sleep(0)
        found.update(
            write_latency=_histogram(self._commits.latency),
            write_size=_histogram(self._commits.sizes),
            **self._ack_times(),
            min_sync_destinations=config.policy.min_sync_destinations,
            name_hash=publisher_id(config.name),
            command_queue_depth=len(self._clients.turns),
            payload_bytes=self._commits.sizes.total,
            queries=self._clients.queries.running(QUERIES_SHOWN_MAX),
            queries_queued=len(self._clients.queries),
            queried=dict(self._clients.queries.asked),
            topic_page=self._topic_page(),
        )
        await asyncio.sleep(0)
        # What the pools know is near enough, and costs the same for any number of clients.
        buffer_bytes = sum(each.pool.memory_bytes for each in self._clients.pools.all)
        metrics = self._status.snapshot(buffer_bytes)
        metrics.pop("commit_latency", None)
        found["metrics"] = metrics
        metrics["ranges_held"] = await self._ranges_held()
        found.update(await self._rows())
        self._last = found
        return found

    def _ack_times(self) -> dict[str, float]:
        """Returns the percentiles of the times to persisted acks in the last `ACKS_S`; empty:
        nothing was acknowledged in that time."""
        now_s, counts = self._runtime.loop.time(), tuple(self._commits.ack_latency.counts)
        marks = self._ack_marks
        marks.append((now_s, counts))
        while len(marks) > 1 and marks[1][0] <= now_s - ACKS_S:
            marks.popleft()
        recent = [now - then for now, then in zip(counts, marks[0][1], strict=True)]
        if not any(recent):
            return {}
        found = LatencyHistogram.of_counts(recent, 0)
        return {
            "ack_ms_p50": found.percentile_ms(0.5),
            "ack_ms_p99": found.percentile_ms(0.99),
        }

    async def _ranges_held(self) -> int:
        count, until_s = self._held
        now_s = self._runtime.loop.time()
        if now_s >= until_s:
            held: PublisherRanges = self._instance.machine.known.copy()
            # Takes a while for very many publishers.
            count = await self._runtime.in_thread(lambda: sum(1 for _ in held.items()))
            self._held = count, now_s + HELD_COUNTED_S
        return count

    def _topic_page(self) -> list[TopicTotal]:
        found = self._instance.journal.topics.page(self._topics_from, TOPICS_AT_ONCE)
        self._topics_from = self._topics_from + len(found) if len(found) == TOPICS_AT_ONCE else 0
        return found

    # -- clients and subscriptions -----------------------------------------------------------
    async def _rows(self) -> dict[str, Any]:
        sessions = self._clients.sessions
        clients: list[list[Any]] = []
        pages: list[dict[str, Any]] = []
        shown: set[int] = set()
        # A client that is behind is told of each time, and so is not due in its turn as well.
        behind = [
            each
            for pool in self._clients.pools.all
            for each in (sessions.get(number) for number in islice(pool.numbers, BEHIND_FIRST_MAX))
            if each is not None
        ][:BEHIND_FIRST_MAX]
        due = chain(behind, self._in_turn(len(sessions)))
        spent_s, began_s = 0.0, self._clock()
        while True:
            page = next(self._pages, None)
            if page is not None:
                pages.append(page)
            else:
                client = next(due, None)
                if client is None:
                    break
                if client.number not in sessions or client.number in shown:
                    continue
                shown.add(client.number)
                clients.append(self._client_row(client))
                self._pages = self._subscription_pages(client)
            now_s = self._clock()
            if spent_s + now_s - began_s >= ROWS_S:
                break
            if now_s - began_s >= SLICE_S:
                spent_s += now_s - began_s
                await asyncio.sleep(0)
                began_s = self._clock()
        for number in [each for each in self._marks if each not in sessions]:
            del self._marks[number]
        return {
            "client_fields": CLIENT_FIELDS,
            "subscription_fields": SUBSCRIPTION_FIELDS,
            "client_rows": clients,
            "subscription_pages": pages,
            # Rows of clients that are not in it are to be forgotten.
            "connected": array("Q", sessions).tobytes(),
        }

    def _in_turn(self, count: int) -> Iterator[ClientSession]:
        """Yields the clients in turn, each once at most."""
        for _ in range(count):
            client = next(self._turn, None)
            if client is None:
                self._turn = iter(list(self._clients.sessions.values()))
                client = next(self._turn, None)
                if client is None:
                    return
            yield client

    def _client_row(self, client: ClientSession) -> list[Any]:
        acks = client.publisher_acks
        queue_subscriptions = len(self._deliveries.subscribed.get(client.number, ()))
        unacknowledged = acks.unacknowledged(client.published_from, client.published_upto)
        values = {
            **connection_values(client, self._clients.pools, queue_subscriptions),
            "publisher": client.publisher,
            "published_upto": client.published_upto,
            "unacknowledged": unacknowledged,
            "oldest_unacknowledged_ms": self._unacknowledged_ms(client, unacknowledged),
            "denied_reads": client.denied_reads,
            "denied_writes": acks.denied,
            "times_slowed": acks.times_slowed,
        }
        return [values[name] for name in CLIENT_FIELDS]

    def _unacknowledged_ms(self, client: ClientSession, count: int) -> int:
        """Returns how long the oldest publish has waited for its ack: at least that long, and at
        most the time between two rows of the client longer."""
        if not count:
            self._marks.pop(client.number, None)
            return 0
        now_s = self._runtime.loop.time()
        mark = self._marks.get(client.number)
        if mark is None or client.published_upto - count >= mark[1]:
            self._marks[client.number] = now_s, client.published_upto
            return 0
        return round((now_s - mark[0]) * 1000)

    def _subscription_pages(self, client: ClientSession) -> Iterator[dict[str, Any]]:
        """Yields the subscriptions of a client, some in each page. The first page replaces what was
        told of the client before."""
        every = chain(
            (self._subscription_row(each) for each in list(client.subscriptions.values())),
            self._queue_rows(client),
        )
        is_first = True
        while True:
            rows = list(islice(every, 32))
            if not rows and not is_first:
                return
            yield {"client": client.number, "is_first": is_first, "rows": rows}
            if len(rows) < 32:
                return
            is_first = False

    def _subscription_row(self, found: LiveSubscription | BookmarkSubscription) -> list[Any]:
        wanted = found.filter
        order_by, pagination = "", None
        if isinstance(found, BookmarkSubscription):
            text = found.content.text if found.content is not None else ""
            options, kind = self._replays.options_of(found), "bookmark"
            cursor_txid = None if found.ended else found.cursor
        else:
            text, kind, cursor_txid = found.written_filter, "live", None
            options, following = found.options, found.following
            if following is not None:
                kind = following.kind_words or kind
                if following.page is not None:
                    order_by = following.page.order_by
                    pagination = self._clients.pages.number(found)
        return [
            found.id,
            wanted.written.decode("utf-8", "replace"),
            sorted(each.decode("utf-8", "replace") for each in wanted.message_types),
            text,
            options,
            kind,
            found.delivered,
            cursor_txid,
            order_by,
            pagination,
        ]

    def _queue_rows(self, client: ClientSession) -> Iterator[list[Any]]:
        for name, (frontend, consumer) in list(
            self._deliveries.subscribed.get(client.number, {}).items()
        ):
            terms = frontend.consumers.get(consumer)
            backlog = 0 if terms is None else terms.backlog_max
            yield [
                name,
                frontend.definition.name,
                [frontend.definition.message_type],
                "" if terms is None else terms.filter,
                f"max_backlog={backlog}",
                "queue",
                None,
                None,
                "",
                None,
            ]


class InstanceFiles:
    """The configuration of an instance, and where it lies, for the reader of its snapshots."""

    def __init__(self, runtime: InstanceRuntime) -> None:
        self._runtime = runtime
        self._shown: tuple[object, dict[str, Any]] | None = None

    def told(self) -> dict[str, Any]:
        """Returns the values that every snapshot has, whatever the instance's state: its clock, its
        directories and its configuration."""
        runtime = self._runtime
        config = runtime.config
        if self._shown is None or self._shown[0] is not config:
            self._shown = config, shown_configuration(config)
        return {
            "clock_us": runtime.now_us(),
            "directory": str(runtime.directory),
            "journal_directory": str(runtime.directory / JOURNAL_DIRECTORY),
            "archive_directory": config.journal.archive_directory or "",
            "configuration": self._shown[1],
        }


def _histogram(found: ValueHistogram) -> dict[str, Any]:
    return {
        "bounds": list(found.bounds),
        "counts": list(found.counts),
        "total": found.total,
        "minimum": found.minimum,
        "maximum": found.maximum,
    }


def shown_configuration(config: InstanceConfig) -> dict[str, Any]:
    """Returns a configuration as JSON can hold it, without its secrets: the key of the fabric,
    secret options of modules, and users in addresses."""
    found: dict[str, Any] = _shown("", msgspec.to_builtins(config))
    if found["fabric_key"]:
        found["fabric_key"] = HIDDEN
    return found


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {each: _shown(each, of) for each, of in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, each) for each in value]
    return shown_option(name, value) if isinstance(value, str) else value
