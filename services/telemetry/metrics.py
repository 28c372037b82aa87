"""Metrics of one instance, through the OpenTelemetry SDK, readable by Prometheus over HTTP.

Nothing is counted here: the instance keeps plain integers, and a scrape asks it for a snapshot of
them. So metrics cost nothing between scrapes. Off unless a port is given; on loopback unless an
address is given. Needs the extra `raylay[prometheus]`.

The snapshot is a flat dict; a key that is missing is left out of the scrape:

    published, persisted, delivered, commits,            counters, since the process began
    late_records, conflicting_records, duplicates_skipped, passed_over_records, connection_faults,
    filters_given_up, runs_unreadable, publisher_conflicts, log_lines_lost    counters
    unavailable_records, ranges_held, buffer_bytes, clients, subscriptions     now
    incomplete_bytes                                      now
    offline_bytes, clients_offline, client_age_ms         now
    disk_waits_ms                                         now
    slow_clients                                          counter
    subscriptions_conflated, conflation_pending_bytes,
    aggregations, aggregation_bytes, pagination_bytes     now
    committed_bytes                                       counter
    commit_latency                                        a LatencyHistogram
    places                                                {pid, journal_directory}
    destinations                                          {name: {...}} with
        sent, sent_bytes, persisted_sent                  counters
        ack_age_ms, lag_messages, connected, sync         now
    sow_topics                                            {name: {...}} with
        deleted, expired                                  counters
        records, pending_bytes                            now
    views                                                 {name: {...}} with
        updates                                           counter
        records, memory_bytes, queue_depth, in_service    now
    conflated_topics                                      {name: {...}} with
        updates, conflated                                counters
        records, pending, in_service                      now
    shares                                                {limit: {...}} with
        reached                                           counter
    queues                                                {name: {...}} with
        delivered, expired_leases                         counters
        depth, leases, consumers, oldest_lease_age_ms     now
    certificates                                          {file: {...}} with
        expires_in_ms                                     now

The places are those of the instance's process and files, of which each scrape looks up
`journal_bytes`, `disk_free_bytes`, `disk_bytes` and the `process_…` metrics.

Every other metric is named `raylay_…`, and all have the label `instance`, those of destinations
`destination` as well, those of SOW topics, views and conflated topics `topic`, those of shares
`limit`, those of queues `queue`, those of certificates `file`. The number of series is bounded: of
each kind `PARTS_MAX` parts have series of their own, and the others share one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.process_metrics import (
    DiskFigures,
    ProcessMetrics,
    build_labels,
    places_of,
)

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from prometheus_client import CollectorRegistry

LATENCY_BOUNDS_MS = (
    *(0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0),
)
SIZE_BOUNDS = tuple(1 << power for power in range(7, 27))
"""Bounds of the sizes of commits, in bytes: 128 B to 64 MiB."""
SNAPSHOT_ATTEMPTS = 3
PARTS_MAX = 500
"""Number of topics, queues or destinations of an instance with series of their own."""
OTHERS = "(others)"
"""Label of the series of all further ones."""


class ValueHistogram:
    """Counts values in buckets. A count is one addition into a list, cheap enough for every
    commit.

    Attributes:
        bounds: the upper bound of each bucket, which belongs to it; a last bucket has none.
        counts: the number of values in each bucket.
        minimum, maximum: the least and the greatest value; None: nothing was counted.
    """

    __slots__ = ("bounds", "counts", "maximum", "minimum", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        self.minimum: int | None = None
        self.maximum: int | None = None

    def record(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if self.minimum is None or value < self.minimum:
            self.minimum = value
        if self.maximum is None or value > self.maximum:
            self.maximum = value

    @property
    def count(self) -> int:
        return sum(self.counts)


class LatencyHistogram(ValueHistogram):
    """Counts durations, in nanoseconds, in buckets."""

    __slots__ = ("bounds_ms",)

    def __init__(self, bounds_ms: tuple[float, ...] = LATENCY_BOUNDS_MS) -> None:
        super().__init__(tuple(round(bound * 1e6) for bound in bounds_ms))
        self.bounds_ms = bounds_ms

    @classmethod
    def of_counts(cls, counts: Sequence[int], sum_ns: int) -> LatencyHistogram:
        """Returns the histogram of another process, which has the usual bounds."""
        found = cls()
        found.counts, found.total = list(counts), sum_ns
        return found

    @property
    def sum_ns(self) -> int:
        return self.total

    def percentile_ms(self, fraction: float) -> float:
        """Returns the upper bound of the bucket that holds this fraction; 0: nothing was
        counted."""
        total = self.count
        if not total:
            return 0.0
        reached = 0
        for bound_ms, count in zip(self.bounds_ms, self.counts, strict=False):
            reached += count
            if reached >= fraction * total:
                return bound_ms
        return self.bounds_ms[-1]


class _MetricDescription(NamedTuple):
    """The description of a metric. A key of the snapshot that ends with `_ms` gives a metric in
    seconds."""

    key: str
    name: str
    unit: str
    description: str
    counter: bool = False
    of_others: Callable[[Iterable[Any]], Any] = sum
    """How the values of many parts become one: their sum, greatest or least value."""

    def told(self, value: Any) -> int | float:
        """Returns a value of the snapshot in the metric's unit."""
        if self.unit == "s":
            return float(value) / 1_000
        return int(value) if isinstance(value, bool) else value


_OF_INSTANCE = (
    _MetricDescription("published", "published", "", "messages published here by clients", True),
    _MetricDescription(
        "persisted", "persisted", "", "messages acknowledged persisted to clients", True
    ),
    _MetricDescription("delivered", "delivered", "", "messages sent to subscribers", True),
    _MetricDescription("commits", "commits", "", "synced commits of the journal", True),
    _MetricDescription(
        "committed_bytes", "committed", "By", "bytes of the records in these commits", True
    ),
    _MetricDescription("journal_bytes", "journal", "By", "bytes of the journal on its disk"),
    _MetricDescription(
        "disk_free_bytes", "disk_free", "By", "free bytes of the disk that holds the journal"
    ),
    _MetricDescription("disk_bytes", "disk", "By", "bytes of the disk that holds the journal"),
    _MetricDescription("late_records", "late_records", "", "records journaled late", True),
    _MetricDescription(
        "conflicting_records", "conflicting_records", "", "one identity, two contents", True
    ),
    _MetricDescription(
        "publisher_conflicts",
        "publisher_conflicts",
        "",
        "client names with the publisher id of another one",
        True,
    ),
    _MetricDescription(
        "duplicates_skipped",
        "duplicates_skipped",
        "",
        "records that were skipped as duplicates",
        True,
    ),
    _MetricDescription(
        "passed_over_records", "passed_over_records", "", "records of topics not in the log", True
    ),
    _MetricDescription(
        "connection_faults", "connection_faults", "", "faults that ended a connection", True
    ),
    _MetricDescription(
        "filters_given_up",
        "filters_given_up",
        "",
        "messages whose filter exceeded its work budget",
        True,
    ),
    _MetricDescription(
        "runs_unreadable",
        "runs_unreadable",
        "",
        "journaled runs that could not be read to their end",
        True,
    ),
    _MetricDescription(
        "log_lines_lost", "log_lines_lost", "", "lines that a target of the log did not take", True
    ),
    _MetricDescription(
        "unavailable_records",
        "unavailable_records",
        "",
        "messages that were removed at every upstream",
    ),
    _MetricDescription(
        "ranges_held", "ranges_held", "", "ranges of sequences held, all publishers"
    ),
    _MetricDescription("buffer_bytes", "buffer", "By", "bytes waiting in memory for clients"),
    _MetricDescription(
        "incomplete_bytes", "incomplete", "By", "bytes of frames that are not whole"
    ),
    _MetricDescription("offline_bytes", "offline", "By", "bytes waiting on disk for clients"),
    _MetricDescription(
        "clients_offline", "clients_offline", "", "clients with messages that wait on disk"
    ),
    _MetricDescription(
        "client_age_ms", "client_age", "s", "age of the oldest message that waits for a client"
    ),
    _MetricDescription(
        "slow_clients", "slow_clients", "", "clients disconnected as too slow", True
    ),
    _MetricDescription("clients", "clients", "", "clients connected"),
    _MetricDescription("subscriptions", "subscriptions", "", "subscriptions open"),
    _MetricDescription(
        "subscriptions_conflated", "subscriptions_conflated", "", "conflated subscriptions open"
    ),
    _MetricDescription(
        "conflation_pending_bytes",
        "conflation_pending",
        "By",
        "changes that wait for conflated subscriptions",
    ),
    _MetricDescription(
        "aggregations", "aggregations", "", "views that aggregated subscriptions and queries share"
    ),
    _MetricDescription("aggregation_bytes", "aggregations_memory", "By", "memory of these views"),
    _MetricDescription(
        "pagination_bytes",
        "paginations_memory",
        "By",
        "memory of the orders of paginated subscriptions",
    ),
    _MetricDescription(
        "front_log_failed", "front_log_failed", "", ("1 while the front log is not in full use")
    ),
    _MetricDescription("disk_waits_ms", "disk_waits", "s", "time that a commit waits for the disk"),
)
_OF_DESTINATION = (
    _MetricDescription("sent", "destination_sent", "", "messages sent to a destination", True),
    _MetricDescription(
        "persisted_sent", "destination_persisted", "", "messages persisted there", True
    ),
    _MetricDescription(
        "ack_age_ms",
        "destination_ack_age",
        "s",
        "age of the oldest unpersisted message",
        of_others=max,
    ),
    _MetricDescription("sent_bytes", "destination_sent", "By", "bytes sent to a destination", True),
    _MetricDescription(
        "lag_messages", "destination_lag", "", "messages routed there and not stored there"
    ),
    _MetricDescription(
        "connected", "destination_connected", "", "1 while the link is connected", of_others=min
    ),
    _MetricDescription(
        "sync", "destination_sync", "", "1 while persisted acks wait for it", of_others=max
    ),
)
_OF_SOW_TOPIC = (
    _MetricDescription("records", "sow_records", "", "records of a SOW topic"),
    _MetricDescription(
        "pending_bytes", "sow_pending", "By", "records of a SOW topic that are not in its store yet"
    ),
    _MetricDescription(
        "deleted", "sow_deleted", "", "records of a SOW topic that were deleted", True
    ),
    _MetricDescription("expired", "sow_expired", "", "records of a SOW topic that expired", True),
)
_OF_VIEW = (
    _MetricDescription("records", "view_records", "", "records of a view"),
    _MetricDescription("updates", "view_updates", "", "changes of records of a view", True),
    _MetricDescription("memory_bytes", "view_memory", "By", "approximate memory of a view"),
    _MetricDescription(
        "queue_depth", "view_queue_depth", "", "updates that a view has not applied yet"
    ),
    _MetricDescription(
        "in_service",
        "view_in_service",
        "",
        "0 while a view is neither queried nor followed",
        of_others=min,
    ),
)
_OF_CONFLATED_TOPIC = (
    _MetricDescription("records", "conflated_records", "", "records of a conflated topic"),
    _MetricDescription(
        "updates", "conflated_updates", "", "changes that a conflated topic gave", True
    ),
    _MetricDescription(
        "conflated", "conflated_replaced", "", "changes that a later one replaced", True
    ),
    _MetricDescription(
        "pending", "conflated_pending", "", "records of which a change waits for its interval"
    ),
    _MetricDescription(
        "in_service",
        "conflated_in_service",
        "",
        "0 while a conflated topic is neither queried nor followed",
        of_others=min,
    ),
)
_OF_SHARE = (
    _MetricDescription(
        "reached", "shares_reached", "", "connections refused or ended because of the limit", True
    ),
)
_OF_QUEUE = (
    _MetricDescription(
        "depth", "queue_depth", "", "messages of a queue that no consumer has finished"
    ),
    _MetricDescription("leases", "queue_leases", "", "messages leased to consumers here"),
    _MetricDescription("consumers", "queue_consumers", "", "subscriptions to a queue here"),
    _MetricDescription(
        "delivered", "queue_delivered", "", "messages of a queue delivered to consumers here", True
    ),
    _MetricDescription(
        "expired_leases", "queue_expired_leases", "", "leases that ended unacknowledged", True
    ),
    _MetricDescription(
        "oldest_lease_age_ms",
        "queue_oldest_lease_age",
        "s",
        "age of the oldest lease of a queue",
        of_others=max,
    ),
)
_OF_CERTIFICATE = (
    _MetricDescription(
        "expires_in_ms",
        "certificate_expires",
        "s",
        "time until the first certificate of a file ends; below 0: it has ended",
        of_others=min,
    ),
)
_OF_EACH = (
    ("destinations", "destination", _OF_DESTINATION),
    ("sow_topics", "topic", _OF_SOW_TOPIC),
    ("views", "topic", _OF_VIEW),
    ("conflated_topics", "topic", _OF_CONFLATED_TOPIC),
    ("shares", "limit", _OF_SHARE),
    ("queues", "queue", _OF_QUEUE),
    ("certificates", "file", _OF_CERTIFICATE),
)
"""Key in the snapshot, label, and metric descriptions, for each kind of part that has metrics of
its own."""
KEYS_OF_EACH = {key: frozenset(item.key for item in items) for key, _, items in _OF_EACH}
"""Keys of a part in the snapshot, by the key of its kind."""
KEYS = frozenset(item.key for item in _OF_INSTANCE) | {"commit_latency", *KEYS_OF_EACH}


class Metrics:
    """Serves one instance's metrics. The instance creates it; `start` opens the port.

    `snapshot` is called on the thread of the scrape, once for each scrape, and must only read. An
    instance lets its event loop take the snapshot, between two turns. If it raises RuntimeError
    (the loop was busy), it is called again; then the last good snapshot is served and
    `raylay_snapshot_failures_total` counts that.
    """

    def __init__(self, instance_name: str, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._instance_name = instance_name
        self._snapshot = snapshot
        self._last: Mapping[str, Any] = {}
        self._failures = 0
        self._disk = DiskFigures()
        self._started_ns = time.time_ns()
        self._provider: MeterProvider | None = None
        self._registry: CollectorRegistry | None = None
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, port: int, host: str = "127.0.0.1") -> int:
        """Opens the port (0: any free one) and returns it.

        Raises:
            ConfigurationError: the extra is not installed, or the port cannot be opened.
        """
        prometheus = _prometheus()
        if self._server is not None:
            raise ConfigurationError(f"the metrics of {self._instance_name} are being served")
        from raylay.services.telemetry.metrics_server import MetricsServer

        registry = prometheus.CollectorRegistry()
        try:
            self._server = MetricsServer(host, port, prometheus.make_wsgi_app(registry))
        except OSError as error:
            raise ConfigurationError(
                f"metrics of {self._instance_name}: cannot open {host}:{port}: {error.strerror}"
            ) from error
        self._provider = self._make_provider(registry)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return int(self._server.server_port)

    def render(self) -> bytes:
        """Returns one scrape in Prometheus's text format, for a server of another owner. To be
        called on one thread at a time.

        Raises:
            ConfigurationError: the extra is not installed.
        """
        prometheus = _prometheus()
        if self._registry is None:
            self._registry = prometheus.CollectorRegistry()
            self._provider = self._make_provider(self._registry)
        return bytes(prometheus.generate_latest(self._registry))

    def stop(self) -> None:
        """Closes the port. A second call does nothing."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        if self._provider is not None:
            self._provider.shutdown()
        self._server = self._thread = self._provider = self._registry = None

    def _refresh(self) -> None:
        for attempt in range(SNAPSHOT_ATTEMPTS):
            try:
                self._last = found = dict(self._snapshot())
                places = places_of(found)
                if places is not None:
                    found |= self._disk.take(places)
                return
            except RuntimeError:
                if attempt == SNAPSHOT_ATTEMPTS - 1:
                    self._failures += 1
            except Exception:
                self._failures += 1
                return

    def _make_provider(self, registry: Any) -> MeterProvider:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        metrics = self

        class Reader(PrometheusMetricReader):
            """Adds the histogram that the instance keeps."""

            def _receive_metrics(
                self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
            ) -> None:
                # The SDK has no observable histogram, so its data point is made here.
                histogram = metrics._histogram()
                if histogram is not None and metrics_data is not None:
                    metrics_data = _with_metric(metrics_data, histogram)
                super()._receive_metrics(metrics_data, timeout_millis, **kwargs)

        reader = Reader(
            disable_target_info=True,
            prefix="raylay",
            scope_info_enabled=False,
            registry=registry,
        )
        resource = Resource({"service.name": "raylay", "service.instance.id": self._instance_name})
        provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
        registry.register(ProcessMetrics(self._instance_name, self._pid))
        meter = provider.get_meter("raylay")
        # The first to be observed in each scrape, so it takes the snapshot that the others read.
        meter.create_observable_counter(
            "snapshot_failures", [self._observe_failures], "", "scrapes served from an old snapshot"
        )
        meter.create_observable_gauge("build_info", [self._observe_build], "", "always 1")
        observed = [(item, self._observe(item)) for item in _OF_INSTANCE]
        for key, label, items in _OF_EACH:
            observed += [(item, self._observe_each(item, key, label)) for item in items]
        for item, observe in observed:
            if item.counter:
                meter.create_observable_counter(item.name, [observe], item.unit, item.description)
            else:
                meter.create_observable_gauge(item.name, [observe], item.unit, item.description)
        return provider

    def _observe_failures(self, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        self._refresh()
        yield Observation(self._failures, {"instance": self._instance_name})

    def _pid(self) -> int:
        places = places_of(self._last)
        return 0 if places is None else places.pid

    def _observe_build(self, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        yield Observation(1, {"instance": self._instance_name, **build_labels()})

    def _observe(
        self, item: _MetricDescription
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        labels = {"instance": self._instance_name}

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            value = self._last.get(item.key)
            if value is not None:
                yield Observation(item.told(value), labels)

        return observe

    def _observe_each(
        self, item: _MetricDescription, key: str, label: str
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            parts = dict(self._last.get(key) or {})
            values = [
                (_label(name), each[item.key])
                for name, each in parts.items()
                if each.get(item.key) is not None
            ]
            shown, others = values[:PARTS_MAX], [value for _, value in values[PARTS_MAX:]]
            if others:
                shown.append((OTHERS, item.of_others(others)))
            for name, value in shown:
                labels = {"instance": self._instance_name, label: name}
                yield Observation(item.told(value), labels)

        return observe

    def _histogram(self) -> Metric | None:
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Histogram,
            HistogramDataPoint,
            Metric,
        )

        latency = self._last.get("commit_latency")
        if latency is None:
            return None
        counts = list(latency.counts)
        point = HistogramDataPoint(
            attributes={"instance": self._instance_name},
            start_time_unix_nano=self._started_ns,
            time_unix_nano=time.time_ns(),
            count=sum(counts),
            sum=latency.sum_ns / 1e9,
            bucket_counts=counts,
            explicit_bounds=[bound / 1e3 for bound in latency.bounds_ms],
            min=0.0,
            max=0.0,
        )
        data = Histogram([point], AggregationTemporality.CUMULATIVE)
        return Metric("commit_latency", "of one synced commit", "s", data)


def _prometheus() -> ModuleType:
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigurationError(
            "metrics need an extra: pip install 'raylay[prometheus]'"
        ) from error
    return prometheus_client


def _label(name: object) -> str:
    """Returns a name as the value of a label. One that is no UTF-8 would end the whole scrape."""
    return str(name).encode("utf-8", "replace").decode()


def _with_metric(data: MetricsData, metric: Metric) -> MetricsData:
    resource = data.resource_metrics[0]
    scope = replace(resource.scope_metrics[0], metrics=[*resource.scope_metrics[0].metrics, metric])
    return replace(
        data,
        resource_metrics=[
            replace(resource, scope_metrics=[scope, *resource.scope_metrics[1:]]),
            *data.resource_metrics[1:],
        ],
    )
