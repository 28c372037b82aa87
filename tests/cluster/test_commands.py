"""The examples and the command, each as a process of its own, as a person runs them."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.shell_commands import RAYLAY, attempt, run

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
FILE = """\
fabric: command
topics: [notes]
regions: {here: 2}
downgrade: {min_sync_destinations: 1}
"""


@pytest.mark.slow
def test_hello(tmp_path: Path) -> None:
    done = run(sys.executable, str(EXAMPLES / "hello.py"), cwd=tmp_path)
    assert done.stdout.strip().endswith('{"text": "hello, world"}')


@pytest.mark.slow
def test_the_script_of_the_readme(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    script = page.split("```python\n")[1].split("```")[0]
    assert len([line for line in script.splitlines() if line.strip()]) <= 20
    (tmp_path / "script.py").write_text(script)
    done = run(sys.executable, "script.py", cwd=tmp_path)
    assert """b'{"flight": 1545}'""" in done.stdout


@pytest.mark.slow
def test_a_benchmark_prints_one_json_line(tmp_path: Path) -> None:
    """Here of figures that need no fabric, but call what production is made of."""
    bench = EXAMPLES.parent / "benchmarks" / "run.py"
    asked = ("two_fsyncs_ms", "filter_of_a_lambda", "filtered_live_1", "offline_write")
    done = run(sys.executable, str(bench), *asked, cwd=tmp_path)
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {figure["figure"] for figure in figures} == set(asked)
    assert all(figure["value"] > 0 and figure["unit"] for figure in figures)


@pytest.mark.soak  # four starts of Ray
def test_two_clusters(tmp_path: Path) -> None:
    lines = run(sys.executable, str(EXAMPLES / "two_clusters.py"), cwd=tmp_path).stdout.splitlines()
    assert lines[0].startswith("1000 orders at east-")
    assert lines[2].startswith("1000 orders more at west-")
    assert lines[3:] == [f"{region}: 2000 of 2000 orders" for region in ("east", "west")]


@pytest.mark.covers("The replication chapters", "it is composable")
@pytest.mark.covers("The replication chapters", "the table, column for column")
@pytest.mark.slow
def test_three_regions(tmp_path: Path) -> None:
    arguments = ("--messages", "20000", "--seconds", "5")
    done = run(sys.executable, str(EXAMPLES / "three_regions.py"), *arguments, cwd=tmp_path)
    result = json.loads(done.stdout.strip().splitlines()[-1])["demo"]
    assert result["failover_gap_ms"] > 0
    assert result["seconds"] > 0
    audit = result.pop("audit")
    if shutil.which("java"):
        assert (audit["valid"], audit["lost"]) == (True, 0)
        changes = {"insert": result["aircraft"], "update": 1, "delete": 1}
        assert audit["changes"] == changes, "of the last flights, over the network"
        report = re.search(r"^report: (.*/audit\.html)$", done.stdout, re.MULTILINE)
        copies = f"{6 * result['published']:,} copies"
        assert report is not None and copies in Path(report[1]).read_text()
    else:
        assert audit is None and "no audit: Spark needs Java" in done.stdout
    del result["failover_gap_ms"], result["seconds"]
    # The last flights of aircraft besides, as many as have left since they were told.
    published = result["published"]
    assert published > 20_000 and 0 < result.pop("aircraft") <= published - 20_000
    assert result.pop("delays") > 10, "groups of the view over them"
    assert result == {
        "flights": 20_000,
        "published": published,
        "persisted": published,
        "instances": 6,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "different": 0,
        "different_delays": 0,
    }


@pytest.mark.covers("The replication chapters", "by hand, and back")
@pytest.mark.covers("The replication chapters", "it lasts until an upgrade")
@pytest.mark.slow
def test_up_publish_subscribe_status_events_downgrade_apply_down(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FILE)
    run(*RAYLAY, "up", "f.yaml", "--detach", cwd=tmp_path)
    try:
        run(*RAYLAY, "publish", "notes", cwd=tmp_path, text="one\ntwo\n")
        read = run(*RAYLAY, "subscribe", "notes", "--bookmark", "0", "--count", "2", cwd=tmp_path)
        assert read.stdout == "one\ntwo\n"
        assert "here-1" in run(*RAYLAY, "status", cwd=tmp_path).stdout
        watched(tmp_path)
        for line in run(*RAYLAY, "events", "--json", cwd=tmp_path).stdout.splitlines():
            assert json.loads(line)["instance"] in ("here-1", "here-2")
        by_hand(tmp_path)
        changed_file(tmp_path)
        one_by_one(tmp_path)
    finally:
        down = run(*RAYLAY, "down", cwd=tmp_path)
    assert "command is down" in down.stdout
    assert (tmp_path / "data" / "command" / "here-1" / "instance.json").exists()


def watched(tmp_path: Path) -> None:
    """`top`, here by Ray, and `ping`."""
    top = run(*RAYLAY, "top", cwd=tmp_path).stdout.splitlines()
    assert top[0].startswith("fabric command") and top[2].startswith("2 of 2 instances answer")
    assert any(line.split()[:4] == ["here-1", "→", "here-2", "sync"] for line in top), top
    found = run(*RAYLAY, "ping", "--topic", "notes", "--json", cwd=tmp_path).stdout.splitlines()
    told = {each["instance"]: each for each in map(json.loads, found)}
    assert set(told) == {"here-1", "here-2"}
    assert all(each["publish_to_ack"]["count"] == 10 for each in told.values())


def mode(tmp_path: Path) -> tuple[bool, bool]:
    """(sync, downgraded) of the link from here-1 to here-2, in a status of two ready instances."""
    status = json.loads(run(*RAYLAY, "status", "--json", cwd=tmp_path).stdout)
    found = {instance["name"]: instance for instance in status["instances"]}
    assert [(name, each["ready"]) for name, each in found.items()] == [
        ("here-1", True),
        ("here-2", True),
    ]
    to = found["here-1"]["destinations"]["here-2"]
    return to["sync"], to["downgraded"]


def by_hand(tmp_path: Path) -> None:
    """Downgrade and upgrade."""
    command = [*RAYLAY, "downgrade", "here-1", "here-2"]
    refused = attempt(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "MinSyncDestinations is 1" in refused.stderr and "Traceback" not in refused.stderr
    run(*command, "--force", cwd=tmp_path)
    assert mode(tmp_path) == (False, True)
    run(*RAYLAY, "upgrade", "here-1", "here-2", cwd=tmp_path)
    assert mode(tmp_path) == (True, False)


def changed_file(tmp_path: Path) -> None:
    """The file is changed and applied; again, which changes nothing; and so that it is refused."""
    (tmp_path / "f.yaml").write_text(FILE.replace("[notes]", "[notes, letters]"))
    applied = run(*RAYLAY, "apply", "f.yaml", cwd=tmp_path)
    assert applied.stdout.splitlines() == ["started: none", "restarted: here-1, here-2"]
    run(*RAYLAY, "publish", "letters", cwd=tmp_path, text="three\n")
    again = run(*RAYLAY, "apply", "f.yaml", cwd=tmp_path)
    assert again.stdout.splitlines() == ["started: none", "restarted: none"]
    (tmp_path / "f.yaml").write_text(FILE.replace("here: 2", "there: 1"))
    refused = attempt(*RAYLAY, "apply", "f.yaml", cwd=tmp_path)
    assert refused.returncode == 1
    assert "instance here-1 is not removed: here-2 would have 0 destinations" in refused.stderr


def one_by_one(tmp_path: Path) -> None:
    """A restart of all, in an order."""
    refused = attempt(*RAYLAY, "restart", "here-2", "there-1", cwd=tmp_path)
    assert refused.returncode == 1 and "there-1" in refused.stderr
    assert "Traceback" not in refused.stderr and not refused.stdout
    done = run(*RAYLAY, "restart", "here-2", "here-1", cwd=tmp_path)
    assert done.stdout.splitlines() == [f"here-{n}: restarted, caught up" for n in (2, 1)]


@pytest.mark.covers("Fabrics and tracing", "one trace shows publish")
@pytest.mark.covers("Fabrics and tracing", "`raylay up --detach` returns when the links")
@pytest.mark.slow
def test_one_trace_shows_the_whole_way_of_a_message(tmp_path: Path) -> None:
    """The published three-region table, as the README starts it, and one message through it."""
    run(*RAYLAY, "up", str(EXAMPLES / "three_regions.yaml"), "--detach", cwd=tmp_path)
    try:
        # Up means connected: nothing waits for a downgrade, and no link for another one.
        for instance in json.loads(run(*RAYLAY, "status", "--json", cwd=tmp_path).stdout)[
            "instances"
        ]:
            assert all(each["caught_up"] for each in instance["destinations"].values()), instance
        publish = ("publish", "flights/JFK", '{"flight": 1545}', "--group", "NewYork", "--trace")
        bookmark = run(*RAYLAY, *publish, cwd=tmp_path).stdout.split()[-1]
        subscribe = ("subscribe", "flights/.*", "--bookmark", "0", "--count", "1", "--group")
        for group in ("Chicago", "NewYork", "London"):
            assert run(*RAYLAY, *subscribe, group, cwd=tmp_path).stdout == '{"flight": 1545}\n'
        deadline_s = time.monotonic() + 60
        while not settled(json.loads(run(*RAYLAY, "status", "--json", cwd=tmp_path).stdout)):
            assert time.monotonic() < deadline_s, run(*RAYLAY, "status", cwd=tmp_path).stdout
    finally:
        run(*RAYLAY, "down", cwd=tmp_path)
    traces = str(tmp_path / "data" / "flights" / "traces")
    found = run(*RAYLAY, "trace", traces, "--message", bookmark, "--json", cwd=tmp_path).stdout
    (publish_span,) = json.loads(found)["spans"]
    assert publish_span["attributes"]["outcome"] == "persisted"
    ways = {" / ".join(way) for way in ways_of(publish_span)}
    commit = "publish / commit NewYork-1"
    assert {commit, "publish / persisted ack NewYork-1"} <= ways
    send = f"{commit} / link send NewYork-1 > NewYork-2"
    assert {send, f"{send} / remote commit NewYork-2", f"{send} / persisted ack NewYork-2"} <= ways
    for city in ("Chicago", "London"):
        # Across: by either instance of NewYork to the first of the other city, and on from there.
        across = [way for way in ways if way.endswith(f"/ remote commit {city}-1")]
        assert len(across) == 1 and across[0].startswith(commit), ways
        on = f"{across[0]} / link send {city}-1 > {city}-2"
        assert {on, f"{on} / remote commit {city}-2", f"{on} / persisted ack {city}-2"} <= ways
        assert any(way.endswith(f"/ persisted ack {city}-1") for way in ways), ways
    delivered = {way.split(" / ")[-1] for way in ways if "delivery" in way}
    assert delivered == {"delivery NewYork-1", "delivery Chicago-1", "delivery London-1"}


def settled(status: dict[str, Any]) -> bool:
    """Whether every destination has answered for everything."""
    return not any(
        destination["unacked"]
        for instance in status["instances"]
        for destination in instance["destinations"].values()
    )


def ways_of(span: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each span below this one with all that led to it, as names with their places."""
    attributes = span["attributes"]
    name = span["name"]
    if name != "publish":
        name += f" {attributes['instance']}"
    if "destination" in attributes:
        name += f" > {attributes['destination']}"
    way = (*before, name)
    yield way
    for child in span["children"]:
        yield from ways_of(child, way)
