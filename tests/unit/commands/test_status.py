"""`raylay status` and `list`: which fabrics they mean, and what stands in the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands import messages, status
from raylay.services.commands.shared import options
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.locks import StartLocks
from raylay.services.fabric.plan import record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import RegistryEntry, process_start

NOON_US = 1_795_953_600_000_000
TOPICS = [
    [
        ("orders", "json", count, 2048 * count, NOON_US, NOON_US + 61_000_000, count + 5),
        ("work", "json", 0, 6_246, 0, 0, 0),
    ]
    for count in (1_000, 3_000)
]
"""At the first and the second look."""
SUBSCRIBERS = {
    "orders": [
        {
            "client": "desk", "subscription": "1", "topic": "^fx/", "message_types": [],
            "bookmark": True, "delivered": 1200, "behind": 34_000, "unsent_bytes": 5,
        },
        {
            "client": "screen", "subscription": "1", "topic": "fx", "message_types": [],
            "kind": "paginated", "bookmark": False, "delivered": 7, "behind": None,
            "unsent_bytes": 0,
        },
    ]
}  # fmt: skip


class Attached:
    """A fabric that answers; the one called `silent` does not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.looks = 0
        topics = [Topic("orders", "json"), Topic("live", journaled=False)]
        self.declared = Fabric("f", topics=topics).region(name, instances=1).settings()

    def __enter__(self) -> Attached:
        if self.name == "silent":
            raise FabricError("its Ray does not answer")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        ready = self.name not in ("torn", "resting")
        instance: dict[str, Any] = {
            "name": f"{self.name}-1",
            "group": "near",
            "phase": {"torn": "catching_up", "resting": "stopped"}.get(self.name, ""),
            "is_stopped": self.name == "resting",
            "reason": "",
            "ready": ready,
        }
        instance["topics"] = TOPICS[min(self.looks, 1)]
        self.looks += 1
        instance["subscribers"] = SUBSCRIBERS.get(self.name, [])
        return {"fabric": self.name, "instances": [instance]}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No fabric runs, and none is asked in earnest."""
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    for variable in ("RAY_ADDRESS", "RAYLAY_FABRIC", "RAYLAY_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Fabric, "attach", Attached)
    yield tmp_path


def runs(place: Path, name: str) -> Path:
    """A fabric of this process; its directory."""
    directory = place / "kept" / name
    fabric = Fabric(name).region("near", instances=2).region("far", instances=1)
    record_of(fabric.settings(), directory).save()
    registry.register(
        RegistryEntry(name, str(directory), "", os.getpid(), process_start(os.getpid()))
    )
    return directory


def raylay(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_without_a_name_the_status_of_all_is_shown(place: Path) -> None:
    runs(place, "orders")
    runs(place, "trades")
    shown = raylay("status")
    assert shown.exit_code == 0
    assert "fabric orders" in shown.stdout and "fabric trades" in shown.stdout
    lines = raylay("status", "--json").stdout.splitlines()
    assert [json.loads(line)["fabric"] for line in lines] == ["orders", "trades"]


def test_one_that_does_not_answer_hides_no_other(place: Path) -> None:
    runs(place, "silent")
    runs(place, "trades")
    shown = raylay("status")
    assert shown.exit_code == 1 and "fabric trades" in shown.stdout
    assert shown.stderr == "raylay: fabric silent: its Ray does not answer\n"


def test_one_that_is_not_ready_makes_it_fail(place: Path) -> None:
    runs(place, "torn")
    assert raylay("status").exit_code == 1


def test_the_environment_names_the_fabric(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(place, "orders")
    runs(place, "trades")
    monkeypatch.setenv("RAYLAY_FABRIC", "trades")
    shown = raylay("status")
    assert "fabric trades" in shown.stdout and "fabric orders" not in shown.stdout
    shown = raylay("status", "--fabric", "orders")
    assert "fabric orders" in shown.stdout and "fabric trades" not in shown.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ((), ["a:1", "b:2"]),
        (("--server", "c:3"), ["c:3"]),
        (("--fabric", "orders"), "the fabric's own"),
    ],
)
def test_what_is_typed_counts_before_the_environment(
    typed: tuple[str, ...], expected: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []

    async def publish(options: dict[str, Any], *_: object, **__: object) -> None:
        used.append(options["servers"])
        raise FabricError("enough")

    runs(place, "orders")
    monkeypatch.setattr(messages, "publish_lines", publish)
    monkeypatch.setattr(messages, "running", lambda _: used.append("the fabric's own"))
    monkeypatch.setenv("RAYLAY_SERVER", "a:1 b:2")
    raylay("publish", "t", "{}", *typed)
    assert used == [expected]


@pytest.mark.parametrize(
    ("fabric", "servers", "meant"),
    [
        ("orders", ["a:1", "b:2"], ["a:1", "b:2"]),
        ("trades", ["a:1", "b:2"], None),
        ("trades", ["c:3"], ["c:3"]),
        ("", ["a:1", "b:2"], ["a:1", "b:2"]),
        ("trades", None, None),
    ],
)
def test_where_the_environment_names_both_it_means_the_servers(
    fabric: str, servers: list[str] | None, meant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fabric of the environment is not typed."""
    monkeypatch.setenv("RAYLAY_FABRIC", "orders")
    monkeypatch.setenv("RAYLAY_SERVER", "a:1 b:2")
    assert options.servers_meant(fabric, servers) == meant


def test_a_stopped_fabric_is_told_with_the_command_that_starts_it(place: Path) -> None:
    registry.unregister("orders")
    runs(place, "orders")
    registry.unregister("orders")
    shown = raylay("status")
    assert shown.exit_code == 1, "nothing runs"
    command = "raylay up kept/orders"
    assert shown.stdout == (
        f"fabric orders is stopped; its data is in kept/orders: start it with `{command}`\n"
    )
    runs(place, "trades")
    assert raylay("status").exit_code == 0, "who stopped one knows it"
    assert "orders is stopped" in raylay("status").stdout
    shown = raylay("list")
    rows = [line.split() for line in shown.stdout.splitlines() if line.strip()][2:]
    assert rows[0][:6] == ["trades", "running", "near", "2,", "far", "1"]
    assert rows[1][:2] == ["orders", "stopped"]
    assert rows[1][-4:] == ["kept/orders", *command.split()]
    told = json.loads(raylay("list", "--json").stdout)
    assert [each["fabric"] for each in told] == ["trades", "orders"]
    assert told[1]["start"] == command and told[1]["regions"] == {"near": 2, "far": 1}


def test_a_fabric_that_is_starting_is_not_stopped(place: Path) -> None:
    runs(place, "orders")
    registry.unregister("orders")
    runs(place, "trades")
    holds = StartLocks("orders", Path("kept/orders").absolute())
    try:
        shown = raylay("status")
        assert "orders is stopped" not in shown.stdout
        assert f"fabric orders is starting, in {Path('kept/orders').absolute()}" in shown.stdout
        told = json.loads(raylay("list", "--json").stdout)
        assert [(each["fabric"], each["state"]) for each in told] == [
            ("trades", "running"),
            ("orders", "starting"),
        ]
        assert told[1]["start"] == "" and told[1]["regions"] == {"near": 2, "far": 1}
    finally:
        holds.release()
    told = json.loads(raylay("list", "--json").stdout)
    assert told[1]["state"] == "stopped"


def test_where_nothing_is_known_the_list_says_what_to_do() -> None:
    shown = raylay("list")
    assert shown.exit_code == 0 and "raylay up FILE" in shown.stdout


def test_the_help_explains_each_column() -> None:
    shown = raylay("status", "--help").stdout
    for column in (
        "state",
        "clients",
        "messages",
        "destination",
        "address",
        "mode",
        "unacked",
        "age",
    ):
        assert any(line.split()[:1] == [column] for line in shown.splitlines()), column


def test_subscribers_are_shown_with_how_far_behind_they_are(place: Path) -> None:
    runs(place, "orders")
    shown = raylay("subscribers")
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines() if line.strip()][3:]
    assert rows == [
        ["orders-1", "desk", "^fx/", "log", "1,200", "34,000", "5"],
        ["orders-1", "screen", "fx", "new,", "paginated", "7"],
    ]
    told = [json.loads(line) for line in raylay("subscribers", "--json").stdout.splitlines()]
    assert [each["behind"] for each in told] == [34_000, None]
    assert told[0]["instance"] == "orders-1"


def test_without_subscribers_that_is_said(place: Path) -> None:
    runs(place, "trades")
    assert raylay("subscribers").stdout == "no client subscribes to fabric trades\n"


def test_topics_are_shown_with_their_rate_and_who_journals_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(place, "orders")
    times_s = iter([10.0, 14.0])
    monkeypatch.setattr(
        status, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(times_s))
    )
    shown = raylay("topics")
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines() if line.strip()][3:]
    day = ["2026-11-29", "12:00:00", "2026-11-29", "12:01:01"]
    assert rows == [
        ["orders", "json", "3,000", "5.9", "MiB", *day, "500.0/s", "all"],
        ["live", "*", "0", "nobody"],
        # It has only records of a queue, which are no messages.
        ["work", "json", "0", "-", "nobody"],
    ]


def test_topics_wait_once_for_an_instance_that_is_silent(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Collection[str] | None] = []

    class OneSilent(Attached):
        def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
            asked.append(only)
            found = super().status()
            if only is None:
                found["instances"].append({"name": "orders-2", "phase": "unknown", "ready": False})
            return found

    runs(place, "orders")
    monkeypatch.setattr(Fabric, "attach", OneSilent)
    monkeypatch.setattr(status, "RATE_S", 0.001)
    assert raylay("topics").exit_code == 0
    assert asked == [None, ["orders-1"]]


HOSTILE = "[bold]x[/bold][link=http://a]y[/link][/]\x1b[2J\x9b31m\u202e\nforged"
PLAIN = "[bold]x[/bold][link=http://a]y[/link][/]\\x1b[2J\\x9b31m\\u202e\\nforged"


def test_a_table_takes_no_name_for_markup_or_a_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(place, "orders")
    row = {**SUBSCRIBERS["orders"][0], "client": HOSTILE, "topic": "[red]"}
    monkeypatch.setitem(SUBSCRIBERS, "orders", [row])
    shown = raylay("subscribers").stdout
    assert PLAIN in shown and "[red]" in shown
    told = raylay("subscribers", "--json").stdout
    assert json.loads(told)["client"] == HOSTILE and told[:-1].isprintable()


def test_the_status_takes_nothing_for_markup_or_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    destination = {"connected": False, "sync": True, "why": HOSTILE, "address": "[b]"}
    pool = {
        "pool": "p", "behind": 1, "offline": 1, "memory_bytes": 1, "memory_bytes_max": 2,
        "disk_bytes": 1, "disk_bytes_max": 2,
        "offline_clients": [{"client": HOSTILE, "unsent_bytes": 1, "age_ms": 1}],
    }  # fmt: skip
    instance = {
        "name": "A-1", "group": "A", "ready": False, "phase": "waits", "reason": "[b]for[/b]",
        "destinations": {"B": destination}, "capacity": [pool], "retention_held": HOSTILE,
    }  # fmt: skip
    status.print_status({"fabric": "[f]", "instances": [instance]}, False)
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() for line in lines)
    assert f"A-1 to B: {PLAIN}" in lines and f"A-1: retention waits: {PLAIN}" in lines
    assert any(PLAIN in line and "offline" in line for line in lines)
    assert any("[b]for[/b]" in line and "[b]" in line for line in lines)
    assert "fabric [f]" in "\n".join(lines)


def test_an_event_forges_no_line_no_field_and_no_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(place, "orders")
    event = {
        "number": 1, "time_us": 1_500_000, "event": "logon_denied", "instance": "A-1",
        "client": f"desk user=admin {HOSTILE}", "reason": "auth",
    }  # fmt: skip
    monkeypatch.setattr(Attached, "events", lambda self, **_: iter([event]), raising=False)
    shown = raylay("events").stdout
    assert shown[:-1].isprintable()
    front = '1970-01-01 00:00:01.500 A-1            logon_denied client="desk user=admin [bold]x'
    assert shown.startswith(front) and shown.endswith('forged" reason=auth\n')
    told = raylay("events", "--json").stdout
    assert json.loads(told) == event and told[:-1].isprintable()


@pytest.mark.covers("Administration", "since when Ray's head is away")
def test_it_is_said_since_when_the_head_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    def instance(name: str, since_us: int | None) -> dict[str, Any]:
        return {
            "name": name, "group": "near", "phase": "", "reason": "", "ready": True,
            "head": {"address": "h:1", "away_since_us": since_us},
        }  # fmt: skip

    def told(*instances: dict[str, Any]) -> list[str]:
        status.print_status({"fabric": "f", "instances": [*instances]}, as_json=False)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("Ray's head")]

    assert told(instance("a", None), {**instance("b", None), "head": None}) == []
    (line,) = told(instance("a", 90_000_000), instance("b", 30_000_000), instance("c", None))
    assert line.startswith(
        "Ray's head at h:1 has not answered b and 1 more instance since 1970-01-01 00:00:30 UTC: "
    )
    (line,) = told(instance("a", 90_000_000))
    assert "has not answered a since" in line and "raylay head start" in line


def test_views_are_named_that_are_out_of_service_built_or_behind() -> None:
    views = {
        "json/full": {"refusal": "view full would take too much", "queue_depth": 0},
        "json/built": {"refusal": "", "built_percent": 41.6, "queue_depth": 0},
        "json/late": {"refusal": "", "queue_depth": 12_000},
        "json/fine": {"refusal": "", "queue_depth": 9},
    }
    slow = {"json/slow": {"refusal": "", "queue_depth": 12_000}}
    found = status.view_lines(
        [{"name": "a", "views": views, "conflated_topics": slow}, {"name": "b"}]
    )
    assert found == [
        "a: view full would take too much",
        "a: view json/built is 42 % built",
        "a: view json/late has 12,000 updates to apply",
    ]


def test_one_that_was_stopped_on_purpose_is_no_failure(place: Path) -> None:
    runs(place, "resting")
    found = CliRunner().invoke(app, ["status"])
    assert found.exit_code == 0, found.output
    assert "resting-1 is stopped: `raylay start resting-1` starts it" in found.output


def regions() -> list[dict[str, Any]]:
    found = []
    for region in ("Chicago", "NewYork", "London"):
        for number in (1, 2):
            others = [each for each in ("Chicago", "NewYork", "London") if each != region]
            address = "127.0.0.1:30907"
            link = {"connected": True, "sync": False, "address": address, "unacked": 1_234}
            found.append(
                {
                    "name": f"{region}-{number}", "group": region, "phase": "", "reason": "",
                    "ready": True, "sessions": 3, "messages": 336_776, "notes": 12,
                    "destinations": {
                        f"{region}-{3 - number}": {**link, "sync": True, "downgraded": True},
                        **{other: {**link, "age_ms": 1_500} for other in others},
                    },
                }
            )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (80, "address, notes, group, age"),
        (90, "address, notes, group"),
        (110, "address"),
        (140, ""),
    ],
)
def test_the_status_fits_the_terminal_and_says_what_it_leaves_out(
    width: int,
    left_out: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    status.print_status({"fabric": "flights", "instances": regions()}, as_json=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    table, _, note = shown.partition(f"{width} columns leave out ")
    assert note.partition(":")[0] == left_out
    lines = [line.rstrip() for line in table.splitlines()]
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "1,234" in line]
    assert len(rows) == 18, "one line for each destination"
    assert "NewYork-1" in table and "336,776" in table and "async (downgraded)" in table
