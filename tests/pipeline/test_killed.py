"""SIGKILL of a job with its Spark, at every step and at any moment: run again, the result is that
of a run that nobody killed.

A few in every test run, all of them in `make soak`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from support import pipeline_child as child
from support.instance_processes import free_ports
from support.pipeline_cases import INCARNATION, Log, expected_rows, made_by, mixed_runs, write_log
from support.pipeline_cases import journaled as logged

from raylay.services.client import SyncClient
from raylay.services.pipeline.archive import read_lake
from raylay.services.pipeline.session import PYTHON_VARIABLE
from raylay.storage.files import FAULT_SESSION_VARIABLE, FAULT_VARIABLE

CHILD = Path(child.__file__)
CHILD_TIMEOUT_S = 600
RANDOM_SEED = int(os.environ.get("SEED", "20130101"))
LATEST_S = 6.0
"""A job that nobody kills takes about so long once its Spark is up."""
LEFT_OVER = ("pending.json", "staging")


class Child:
    """A job in a session of processes of its own."""

    def __init__(self, *arguments: str, fault: str = "", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            env=os.environ | {FAULT_VARIABLE: fault, FAULT_SESSION_VARIABLE: "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> None:
        """Returns when its Spark is up."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def killed(self) -> bool:
        """Whether it ended by SIGKILL; waits for the end."""
        code = self.process.wait(CHILD_TIMEOUT_S)
        self.end()
        assert code in (0, -signal.SIGKILL), f"exit code {code}"
        return code != 0

    def end(self) -> None:
        """Kills what is left of its session: its Java and its Python workers."""
        end_session(self.process)


def end_session(leader: subprocess.Popen[str]) -> None:
    """Kills a process and what is left of its session."""
    leader.kill()
    leader.wait(CHILD_TIMEOUT_S)
    deadline_s = time.monotonic() + CHILD_TIMEOUT_S
    while left := session_of(leader.pid):
        assert time.monotonic() < deadline_s, f"{left} cannot be killed"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def session_of(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has ended
        if int(session) == leader and state != "Z":
            found.append(int(entry.name))
    return found


# -- what a job has to give ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """720 messages in several segments."""
    log = write_log(tmp_path_factory.mktemp("source") / "Chicago-1", mixed_runs(40))
    made_by(log, INCARNATION)
    return log


def lake_content(spark: Any, lake: Path) -> list[tuple[Any, ...]]:
    rows = read_lake(spark, lake).select("txid", "bookmark", "topic", "digest", "body").collect()
    return sorted((*row[:4], bytes(row[4])) for row in rows)


def check(spark: Any, job: str, source: Log, place: Path, instance: Any, topic: str) -> None:
    """What there is after the last run is what there has to be, once."""
    rows = list(expected_rows(source, "Chicago-1"))
    if job == "archive":
        assert lake_content(spark, place) == [
            (row["txid"], row["bookmark"], row["topic"], row["digest"], row["body"]) for row in rows
        ]
        manifest = json.loads((place / "_raylay" / "manifest.json").read_text())
        (stretches,) = manifest["stretches"].values()
        named = {name for stretch in stretches for name in stretch["files"]}
        there = (place / "messages").rglob("*")
        assert {str(p.relative_to(place / "messages")) for p in there if p.is_file()} == named
        assert sum(each["rows"] for each in stretches) == len(rows)
        assert not [name for name in LEFT_OVER if (place / "_raylay" / name).exists()]
        return
    if job == "parquet":
        found = [row["txid"] for row in spark.read.parquet(str(place / "table")).collect()]
        assert sorted(found) == [row["txid"] for row in rows]
        return
    published = journaled(instance, topic)
    if job == "topic":
        assert [int(body) for _, body in published] == [row["txid"] for row in rows]
    elif job == "replay":
        wanted = [row["body"] for row in rows if row["command"] == "publish"]
        assert [body for _, body in published] == wanted
    else:
        results = [json.loads(body) for _, body in published]
        keys = Counter((each["window_start"], each["carrier"]) for each in results)
        assert set(keys.values()) == {1}, "a window is published once"
        groups: Counter[tuple[int, str]] = Counter()
        for row in rows:
            if row["topic"] == "flights/EWR":
                carrier = json.loads(row["body"])["carrier"]
                window_ms = row["receive_time"] // 1000 // child.WINDOWS.window_ms
                groups[window_ms, carrier] += 1
        # The watermark closes all windows but that of the last message.
        last = max(window for window, _ in groups)
        closed = sorted(count for (window, _), count in groups.items() if window < last)
        assert sorted(each["messages"] for each in results) == closed
    assert [sequence for sequence, _ in published] == list(range(1, len(published) + 1))
    staging = place / "checkpoint" / "raylay-staging"
    if job == "replay":
        staging = place / child.REPLAY_JOB
        assert len(json.loads((staging / "replay.json").read_text())["chunks"]) > 3
    assert {path.name for path in staging.iterdir()} <= {"lock", "state.json", "replay.json"} | {
        path.name for path in staging.glob("run-*")
    }
    assert json.loads((staging / "state.json").read_text())["pending"] is None


def journaled(instance: Any, topic: str) -> list[tuple[int, bytes]]:
    """(sequence, body) of a topic's messages, in the order of the log."""
    return [(sequence, bytes(body)) for _, sequence, body in logged(instance, topic)]


def arguments(job: str, source: Log, place: Path, instance: Any, topic: str) -> list[str]:
    where = [] if job in ("archive", "parquet") else [instance.address, topic]
    return [job, str(source.directory), str(place), *where]


# -- killed --------------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "SIGKILL of a job with its Java and workers")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_with_its_spark_and_run_again(
    spark: Any, instance: Any, source: Log, tmp_path: Path
) -> None:
    planned = {
        "archive": "archive.moved:3",
        "aggregate": "staging.record:2",
    }
    topics = {job: f"killed/{job}" for job in planned}
    # Side by side: each is seconds of starting.
    children = {
        job: Child(*arguments(job, source, tmp_path / job, instance, topics[job]), fault=fault)
        for job, fault in planned.items()
    }
    try:
        for job, each in children.items():
            assert each.killed(), f"{job} ended before it came to {planned[job]}"
    finally:
        for each in children.values():
            each.end()
    for job in planned:
        given = arguments(job, source, tmp_path / job, instance, topics[job])
        child.run(spark, job, source.directory, tmp_path / job, *given[3:])
        check(spark, job, source, tmp_path / job, instance, topics[job])


POINTS = [
    ("archive", "archive.written:1"),
    ("archive", "archive.written:3"),
    ("archive", "archive.pending:1"),
    ("archive", "archive.pending:2"),
    ("archive", "archive.moved:1"),
    ("archive", "archive.moved:4"),
    ("archive", "archive.manifest:1"),
    ("archive", "archive.manifest:3"),
    *((job, f"staging.{point}") for job in ("topic", "aggregate")
      for point in ("pending:1", "record:1", "record:2", "published:1", "done:1")),
    ("replay", "replay.planned:1"),
    ("replay", "staging.pending:2"),
    ("replay", "replay.put:200"),
    ("replay", "staging.published:3"),
    ("replay", "staging.done:1"),
]  # fmt: skip
JOBS = ("archive", "parquet", "topic", "aggregate", "replay")
RANDOM = [(job, number) for job in JOBS for number in (1, 2)]


@pytest.mark.covers("Data pipeline", "SIGKILL of a job with its Java and workers")
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "point"), POINTS)
def test_killed_at_every_step(
    spark: Any, instance: Any, source: Log, tmp_path: Path, job: str, point: str
) -> None:
    topic = f"step/{job}/{point}"
    given = arguments(job, source, tmp_path, instance, topic)
    assert Child(*given, fault=point).killed(), f"it ended before it came to {point}"
    child.run(spark, job, source.directory, tmp_path, *given[3:])
    check(spark, job, source, tmp_path, instance, topic)


@pytest.mark.covers("Data pipeline", "SIGKILL of a job with its Java and workers")
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "number"), RANDOM)
def test_killed_at_any_moment(
    spark: Any, instance: Any, source: Log, tmp_path: Path, job: str, number: int
) -> None:
    topic = f"moment/{job}/{number}"
    given = arguments(job, source, tmp_path, instance, topic)
    chance = random.Random(f"{RANDOM_SEED}/{job}/{number}")
    # Three times, at another moment each, before it may end.
    for _ in range(3):
        killed = Child(*given)
        killed.ready()
        time.sleep(chance.uniform(0.0, LATEST_S))
        killed.end()
    child.run(spark, job, source.directory, tmp_path, *given[3:])
    check(spark, job, source, tmp_path, instance, topic)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", ["archive", "topic"])
def test_a_cluster_that_loses_an_executor(
    spark: Any, instance: Any, source: Log, tmp_path: Path, job: str
) -> None:
    """Executors are Javas of their own; one is killed."""
    topic = f"cluster/{job}"
    given = arguments(job, source, tmp_path, instance, topic)
    running = Child(*given, **{child.MASTER_VARIABLE: "local-cluster[2,1,1024]"})
    try:
        running.ready()
        deadline_s = time.monotonic() + CHILD_TIMEOUT_S
        while not (executors := executors_of(running.process.pid)):
            assert time.monotonic() < deadline_s and running.process.poll() is None
            time.sleep(0.05)
        os.kill(executors[0], signal.SIGKILL)
        assert not running.killed(), "the driver ended with its executor"
    finally:
        running.end()
    check(spark, job, source, tmp_path, instance, topic)


@contextlib.contextmanager
def cluster_of_hosts(directory: Path) -> Iterator[str]:
    """A cluster with a worker at each of two addresses of this machine, and its URL. Spark starts
    no twin at the address of the task, and all executors of a `local-cluster` have one."""
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)],
        *(
            [f"{deploy}.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g",
             "--work-dir", str(directory / host), url]
            for host in ("127.0.0.2", "127.0.0.3")
        ),
    ]  # fmt: skip
    home = Path(pyspark.__file__).parent
    started = [
        subprocess.Popen(
            [str(home / "bin" / "spark-class"), *command, "--webui-port", "0"],
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        yield url
    finally:
        for each in started:
            end_session(each)


TWINNED_MESSAGES = 50_000
"""Enough for two tasks."""


@pytest.mark.covers("Data pipeline", "tasks that have speculative twins")
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_task_and_its_twin_read_over_the_network_and_write(instance: Any, tmp_path: Path) -> None:
    """Both read the same part, and stage its rows, at once; the rows of one are published."""
    topic, into = "twins/read", "twins/written"
    with SyncClient("desk", [instance.address]) as client:
        for number in range(TWINNED_MESSAGES):
            client.publish(topic, b"%d" % number)
        client.flush()
    with cluster_of_hosts(tmp_path) as url:
        master = {child.MASTER_VARIABLE: url, PYTHON_VARIABLE: sys.executable}
        running = Child("network", topic, str(tmp_path), instance.address, into, **master)
        try:
            assert not running.killed()
        finally:
            running.end()
    assert (tmp_path / child.MET).exists(), "no twin was there before its task ended"
    published = journaled(instance, into)
    assert sorted(int(body) for _, body in published) == list(range(TWINNED_MESSAGES))
    assert [sequence for sequence, _ in published] == list(range(1, TWINNED_MESSAGES + 1))


def executors_of(leader: int) -> list[int]:
    """The executors of a session of processes."""
    found = []
    for pid in session_of(leader):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
