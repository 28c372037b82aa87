"""services/telemetry/metrics.py, scraped over real HTTP."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import pytest
from support.promlint import problems

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.metrics import (
    KEYS,
    KEYS_OF_EACH,
    PARTS_MAX,
    LatencyHistogram,
    Metrics,
)
from raylay.services.telemetry.metrics_server import CONNECTIONS_MAX
from raylay.services.telemetry.process_metrics import DiskFigures, Places

pytest.importorskip("opentelemetry.exporter.prometheus")


@pytest.fixture(autouse=True)
def soon_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's HTTP server looks twice a second whether it is to stop; and a machine that is busy
    is given its time."""
    monkeypatch.setattr("raylay.services.telemetry.process_metrics.DISK_LOOK_S", 60.0)
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


DISK = {"journal_bytes", "disk_free_bytes", "disk_bytes"}
"""Keys that a scrape looks up by itself, where the snapshot names the places."""
PLACES = {"pid": os.getpid(), "journal_directory": str(Path(__file__).parent)}


def whole() -> dict[str, Any]:
    """A snapshot with every key, and one part of each kind."""
    told: dict[str, Any] = dict.fromkeys(KEYS - DISK, 1)
    told["commit_latency"] = LatencyHistogram()
    told["places"] = PLACES
    for kind, keys in KEYS_OF_EACH.items():
        told[kind] = {"json/orders": dict.fromkeys(keys, 1)}
    return told


def test_prometheus_linter_finds_nothing() -> None:
    with serving(whole) as port:
        text = page(port)
    assert problems(text) == []
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# TYPE a gauge\na 1\n", "a: no help text"),
        ("# HELP a of it\n# TYPE a counter\na 1\n", "a: counters end with _total"),
        ("# HELP a_total of it\n# TYPE a_total gauge\na_total 1\n", "a_total: counters end"),
        ("# HELP a_milliseconds x\n# TYPE a_milliseconds gauge\na_milliseconds 1\n", "no base"),
        ("# HELP a_hours x\n# TYPE a_hours gauge\na_hours 1\n", "its unit hours is no base unit"),
        ("# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n", "abbreviates a unit: ms"),
        ("# HELP a_gauge x\n# TYPE a_gauge gauge\na_gauge 1\n", "has a type in its name"),
        ("# HELP a_count x\n# TYPE a_count gauge\na_count 1\n", "_count or _sum"),
        ("# HELP a_bucket x\n# TYPE a_bucket gauge\na_bucket 1\n", "end with _bucket"),
        ("# HELP a:b x\n# TYPE a:b gauge\na:b 1\n", "a colon"),
        ("# HELP aB x\n# TYPE aB gauge\naB 1\n", "aB: is not in snake_case"),
        ('# HELP a x\n# TYPE a gauge\na{bC="1"} 1\n', "label bC is not in snake_case"),
        ('# HELP a x\n# TYPE a gauge\na{le="1"} 1\n', "label le is reserved"),
    ],
)
def test_the_linters_rules_find_what_is_wrong(text: str, problem: str) -> None:
    (found,) = problems(text)
    assert problem in found
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode, "promtool finds nothing"


# -- the process, its disk and its build -------------------------------------------------------


def test_a_scrape_tells_of_process_disk_and_build(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x" * 100_000)
    places = {"pid": os.getpid(), "journal_directory": str(tmp_path)}
    with serving(lambda: {"places": places}) as port:
        found = scrape(port)
    of = '{instance="Chicago-1"}'
    assert 100_000 <= found["raylay_journal_bytes" + of] < 1_000_000
    assert 0 < found["raylay_disk_free_bytes" + of] < found["raylay_disk_bytes" + of]
    assert found["process_resident_memory_bytes" + of] > 1_000_000
    assert found["process_cpu_seconds_total" + of] > 0
    (build,) = [name for name in found if name.startswith("raylay_build_info")]
    version = importlib.metadata.version("raylay")
    assert f'version="{version}"' in build and found[build] == 1


def test_without_places_neither_disk_nor_process_are_told_of() -> None:
    with serving(lambda: {"clients": 3}) as port:
        found = scrape(port)
    assert not [name for name in found if "process" in name or "disk" in name or "journal" in name]


def test_a_directory_and_a_process_that_are_gone_are_left_out(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    places = {"pid": gone.pid, "journal_directory": str(tmp_path / "gone")}
    with serving(lambda: {"places": places, "clients": 3}) as port:
        found = scrape(port)
    assert not [name for name in found if "memory" in name or "disk" in name or "journal" in name]
    assert found['raylay_clients{instance="Chicago-1"}'] == 3


def test_a_disk_that_hangs_keeps_no_scrape_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = Places(os.getpid(), str(tmp_path))
    figures = DiskFigures()
    before = figures.take(places, 60.0)
    assert set(before) == DISK
    hung, began = threading.Event(), threading.Event()
    looks = 0

    def scandir(_: str) -> Any:
        nonlocal looks
        looks += 1
        began.set()
        hung.wait(60.0)
        raise OSError

    monkeypatch.setattr("raylay.services.telemetry.process_metrics.os.scandir", scandir)
    assert figures.take(places, 0.01) == before
    assert began.wait(60.0)
    # The look that hangs is not waited for again, and no further one is begun.
    assert figures.take(places, 60.0) == before
    assert looks == 1
    hung.set()


def test_names_of_any_kind_are_labels() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    names = ['a"b\nc\\d', "é\u2028", "\0", "x" * 2_000, "\ud800", "{}", ""]
    with serving(lambda: {"sow_topics": {name: {"records": 1} for name in names}}) as port:
        text = page(port)
    families = {each.name: each for each in text_string_to_metric_families(text)}
    topics = [each.labels["topic"] for each in families["raylay_sow_records"].samples]
    assert sorted(topics) == sorted([*names[:4], "?", *names[5:]])


# -- very many parts ---------------------------------------------------------------------------


def test_very_many_topics_share_series() -> None:
    """10,000 topics with four series each would be more than a Prometheus should keep."""
    topics = {f"json/t{number}": {"records": 1, "deleted": 2} for number in range(10_000)}
    links = {f"d{n}": {"ack_age_ms": n, "connected": n != 9_000} for n in range(10_000)}
    with serving(lambda: {"sow_topics": topics, "destinations": links}) as port:
        found = scrape(port)
    records = {name: value for name, value in found.items() if "raylay_sow_records" in name}
    assert len(records) == PARTS_MAX + 1
    others = '{instance="Chicago-1",topic="(others)"}'
    assert found["raylay_sow_records" + others] == 10_000 - PARTS_MAX
    assert found["raylay_sow_deleted_total" + others] == 2 * (10_000 - PARTS_MAX)
    assert found['raylay_sow_records{instance="Chicago-1",topic="json/t0"}'] == 1
    # Of ages the greatest one is told, and of what should be 1 the least.
    others = '{destination="(others)",instance="Chicago-1"}'
    assert found["raylay_destination_ack_age_seconds" + others] == 9.999
    assert found["raylay_destination_connected" + others] == 0


def test_every_key_is_served() -> None:
    histogram = LatencyHistogram((1.0, 2.0))
    for duration_ns in (500_000, 1_000_000, 1_500_000, 9_000_000):
        histogram.record(duration_ns)
    snapshot: dict[str, Any] = {
        key: number
        for number, key in enumerate(sorted(KEYS - {"commit_latency", *KEYS_OF_EACH}), 1)
    }
    snapshot["commit_latency"] = histogram
    names = {
        "destinations": "London-1",
        "sow_topics": "json/orders",
        "views": "json/sums",
        "conflated_topics": "json/slow",
        "queues": "json/work",
    }
    for kind, name in names.items():
        keys = sorted(KEYS_OF_EACH[kind])
        snapshot[kind] = {name: {key: number for number, key in enumerate(keys, 1)}}
    snapshot["destinations"]["Paris 2"] = {"connected": True, "sync": False}
    snapshot["shares"] = {"client_user": {"reached": 7}}
    snapshot["certificates"] = {"/tls/a.crt": {"expires_in_ms": -2_500}}
    with serving(lambda: snapshot) as port:
        found = scrape(port)
    crt = '{file="/tls/a.crt",instance="Chicago-1"}'
    assert found["raylay_certificate_expires_seconds" + crt] == -2.5
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
    work = '{instance="Chicago-1",queue="json/work"}'
    assert found["raylay_queue_consumers" + work] == 1
    assert found["raylay_queue_oldest_lease_age_seconds" + work] == 0.006
    one_of_each = len(KEYS - {"commit_latency", *KEYS_OF_EACH}) + sum(
        map(len, KEYS_OF_EACH.values())
    )
    assert len([n for n in found if "latency" not in n and "Paris" not in n]) == one_of_each + 2


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
