"""services/telemetry/metrics.py, scraped over real HTTP."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from socketserver import BaseServer
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.metrics import (
    CONFLATED_TOPIC_KEYS,
    DESTINATION_KEYS,
    KEYS,
    SHARE_KEYS,
    SOW_TOPIC_KEYS,
    VIEW_KEYS,
    LatencyHistogram,
    Metrics,
)
from raylay.services.telemetry.metrics_server import CONNECTIONS_MAX

pytest.importorskip("opentelemetry.exporter.prometheus")


@pytest.fixture(autouse=True)
def soon_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's HTTP server looks twice a second whether it is to stop."""
    monkeypatch.setattr(BaseServer, "serve_forever", partialmethod(BaseServer.serve_forever, 0.01))


@contextmanager
def serving(snapshot: Callable[[], dict[str, Any]]) -> Iterator[int]:
    metrics = Metrics("Chicago-1", snapshot)
    port = metrics.start(0)
    try:
        yield port
    finally:
        metrics.stop()


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def scrape(port: int) -> dict[str, float]:
    """Every sample of a scrape: name and labels to value."""
    text = page(port)
    return {
        match[1]: float(match[2])
        for match in re.finditer(r"^([^#\s].*) (\S+)$", text, re.MULTILINE)
    }


def problems(text: str) -> list[str]:
    """What `promtool check metrics` says of a scrape: the rules of promlint."""
    helped = dict(re.findall(r"^# HELP (\S+) ?(.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = []
    for name, kind in kinds.items():
        words = name.split("_")
        if not helped.get(name):
            found.append(f"{name}: no help text")
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name}: counters alone end with _total")
        if kind != "histogram" and words[-1] in ("count", "sum", "bucket"):
            found.append(f"{name}: only histograms end so")
        if kind in words or name != name.lower() or ":" in name:
            found.append(f"{name}: a type, a capital letter or a colon in its name")
        if NOT_BASE.intersection(words):
            found.append(f"{name}: no base unit")
    return found


EACH = {"conflated_topics", "destinations", "shares", "sow_topics", "views"}
"""Parts of a snapshot with metrics of their own."""
NOT_BASE = {
    *("ms", "us", "ns", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days"),
    *("s", "sec", "b", "kb", "mb", "gb", "kilobytes", "megabytes", "bits", "percent", "kib", "mib"),
}


def test_names_are_as_promtool_has_them() -> None:
    told: dict[str, Any] = dict.fromkeys(KEYS, 1)
    told["commit_latency"] = LatencyHistogram()
    told["destinations"] = {"B": dict.fromkeys(DESTINATION_KEYS, 1)}
    told["sow_topics"] = {"json/orders": dict.fromkeys(SOW_TOPIC_KEYS, 1)}
    told["views"] = {"json/sums": dict.fromkeys(VIEW_KEYS, 1)}
    told["conflated_topics"] = {"json/slow": dict.fromkeys(CONFLATED_TOPIC_KEYS, 1)}
    told["shares"] = {"client_user": dict.fromkeys(SHARE_KEYS, 1)}
    with serving(lambda: told) as port:
        text = page(port)
    assert problems(text) == []
    wrong = "# TYPE a_milliseconds gauge\n# HELP a_milliseconds of it\n# TYPE sent counter\n"
    assert len(problems(wrong)) == 3, "the rules find what is wrong"


def test_every_key_is_served() -> None:
    histogram = LatencyHistogram((1.0, 2.0))
    for duration_ns in (500_000, 1_000_000, 1_500_000, 9_000_000):
        histogram.record(duration_ns)
    snapshot: dict[str, Any] = {
        key: number for number, key in enumerate(sorted(KEYS - {"commit_latency", *EACH}), 1)
    }
    snapshot["commit_latency"] = histogram
    snapshot["destinations"] = {
        "London-1": {key: n for n, key in enumerate(sorted(DESTINATION_KEYS), 1)},
        "Paris 2": {"connected": True, "sync": False},
    }
    snapshot["sow_topics"] = {
        "json/orders": {key: n for n, key in enumerate(sorted(SOW_TOPIC_KEYS), 1)}
    }
    snapshot["views"] = {"json/sums": {key: n for n, key in enumerate(sorted(VIEW_KEYS), 1)}}
    snapshot["conflated_topics"] = {
        "json/slow": {key: n for n, key in enumerate(sorted(CONFLATED_TOPIC_KEYS), 1)}
    }
    snapshot["shares"] = {"client_user": {"reached": 7}}
    with serving(lambda: snapshot) as port:
        found = scrape(port)
    assert found['raylay_shares_reached_total{instance="Chicago-1",limit="client_user"}'] == 7
    assert found['raylay_published_total{instance="Chicago-1"}'] == snapshot["published"]
    assert found['raylay_buffer_bytes{instance="Chicago-1"}'] == snapshot["buffer_bytes"]
    latency = 'raylay_commit_latency_seconds_bucket{instance="Chicago-1",le='
    assert [found[f'{latency}"{bound}"}}'] for bound in ("0.001", "0.002", "+Inf")] == [2, 3, 4]
    assert found['raylay_commit_latency_seconds_sum{instance="Chicago-1"}'] == 0.012
    london = '{destination="London-1",instance="Chicago-1"}'
    assert found["raylay_destination_ack_age_seconds" + london] == 0.001
    age = snapshot["client_age_ms"] / 1_000
    assert found['raylay_client_age_seconds{instance="Chicago-1"}'] == age
    paris = '{destination="Paris 2",instance="Chicago-1"}'
    assert {name.removesuffix(paris): found[name] for name in found if paris in name} == {
        "raylay_destination_connected": 1,
        "raylay_destination_sync": 0,
    }
    orders = '{instance="Chicago-1",topic="json/orders"}'
    assert found["raylay_sow_deleted_total" + orders] == 1
    assert found["raylay_sow_records" + orders] == 4
    sums = '{instance="Chicago-1",topic="json/sums"}'
    assert found["raylay_view_updates_total" + sums] == 5
    assert found["raylay_view_memory_bytes" + sums] == 2
    slow = '{instance="Chicago-1",topic="json/slow"}'
    assert found["raylay_conflated_replaced_total" + slow] == 1
    parts = (DESTINATION_KEYS, SOW_TOPIC_KEYS, VIEW_KEYS, CONFLATED_TOPIC_KEYS, SHARE_KEYS)
    one_of_each = len(KEYS - {"commit_latency", *EACH}) + sum(map(len, parts))
    assert len([n for n in found if "latency" not in n and "Paris" not in n]) == one_of_each + 1


def test_a_scrape_takes_one_fresh_snapshot() -> None:
    calls = 0

    def snapshot() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {"published": calls * 10, "destinations": {"B": {"connected": calls == 1}}}

    with serving(snapshot) as port:
        first, second = scrape(port), scrape(port)
    assert calls == 2
    published = 'raylay_published_total{instance="Chicago-1"}'
    assert (first[published], second[published]) == (10, 20)
    connected = 'raylay_destination_connected{destination="B",instance="Chicago-1"}'
    assert (first[connected], second[connected]) == (1, 0)


def test_a_snapshot_that_fails_serves_the_last_one_and_is_counted() -> None:
    answers: list[Any] = [{"clients": 3}, RuntimeError("changed"), {"clients": 4}]
    answers += [RuntimeError("changed")] * 3 + [ValueError("broken"), {"clients": 5}]

    def snapshot() -> dict[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    clients = 'raylay_clients{instance="Chicago-1"}'
    failures = 'raylay_snapshot_failures_total{instance="Chicago-1"}'
    with serving(snapshot) as port:
        seen = [(found[clients], found[failures]) for found in (scrape(port) for _ in range(5))]
    assert seen == [(3, 0), (4, 0), (4, 1), (4, 2), (5, 2)]


def test_two_instances_in_one_process_do_not_mix() -> None:
    with serving(lambda: {"clients": 1}) as one, serving(lambda: {"clients": 2}) as two:
        name = 'raylay_clients{instance="Chicago-1"}'
        assert (scrape(one)[name], scrape(two)[name]) == (1, 2)


def test_a_port_in_use_is_a_clear_error() -> None:
    with (
        serving(dict) as port,
        pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*in use"),
    ):
        Metrics("B", dict).start(port)


def test_stop_frees_the_port() -> None:
    metrics = Metrics("A", lambda: {"clients": 1})
    port = metrics.start(0)
    with pytest.raises(ConfigurationError, match="being served"):
        metrics.start(0)
    metrics.stop()
    metrics.stop()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    assert metrics.start(port) == port
    metrics.stop()


def is_ended(opened: socket.socket) -> bool:
    """Waits for the server to end a connection. Returns whether it did."""
    opened.settimeout(60)
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_connections_that_say_nothing_give_way_to_new_ones() -> None:
    """Each had a thread and a file of the instance for as long as it liked."""
    with serving(lambda: {"clients": 1}) as port:
        opened = []
        for _ in range(5 * CONNECTIONS_MAX):
            opened.append(socket.create_connection(("127.0.0.1", port)))
            opened[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        for each in opened[: -2 * CONNECTIONS_MAX]:
            assert is_ended(each)
        assert scrape(port)['raylay_clients{instance="Chicago-1"}'] == 1
        for each in opened:
            each.close()


def test_the_module_is_cheap_to_import() -> None:
    program = (
        "import sys, raylay.services.telemetry.metrics\n"
        "print(any(n.startswith(('opentelemetry', 'prometheus')) for n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_histogram_buckets_and_percentiles() -> None:
    histogram = LatencyHistogram((1.0, 2.0, 5.0))
    assert histogram.percentile_ms(0.5) == 0.0
    for duration_ns in (1_000_000, 1_000_001, 2_000_000, 5_000_001):
        histogram.record(duration_ns)
    assert histogram.counts == [1, 2, 0, 1]
    assert histogram.count == 4
    assert histogram.sum_ns == 9_000_002
    assert [histogram.percentile_ms(f) for f in (0.25, 0.5, 0.75, 1.0)] == [1.0, 2.0, 2.0, 5.0]
