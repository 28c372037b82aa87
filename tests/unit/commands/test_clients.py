"""`raylay connections`, `consumers` and `disconnect`: every client of a fabric, wherever it is."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands import clients
from raylay.services.commands.shared import printing
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import RegistryEntry, process_start

NAMES = ("here-1", "here-2", "away-1")


def connection(number: int, client: str, **values: Any) -> dict[str, Any]:
    return {
        "number": number, "client": client, "user": "", "address": f"10.0.0.1:{50_000 + number}",
        "transport": "client", "connected_us": 1_000_000 * number, "bytes_in": 0, "bytes_out": 0,
        "messages_in": 0, "messages_out": 0, "unsent_bytes": 0, "memory_bytes": 0,
        "offline_bytes": 0, "age_ms": 0, "subscriptions": 1, "state": "connected", **values,
    }  # fmt: skip


def consumer(client: str, **values: Any) -> dict[str, Any]:
    return {
        "queue": "work", "message_type": "json", "client": client, "number": 7, "user": "",
        "address": "10.0.0.1:5", "filter": "", "backlog": 5, "leases": 3,
        "oldest_lease_age_ms": 90_000, **values,
    }  # fmt: skip


class Attached:
    """A fabric of three instances, of which the last one does not answer."""

    looks = 0
    asked: ClassVar[list[Collection[str] | None]] = []
    told: list[tuple[str, str, str]]
    first: dict[str, list[dict[str, Any]]]
    later: dict[str, list[dict[str, Any]]]
    consumers: dict[str, list[dict[str, Any]]]

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        Attached.asked.append(only)
        rows = self.later if self.looks else self.first
        Attached.looks += 1
        return {
            "fabric": self.name,
            "instances": [
                *(
                    {
                        "name": name, "group": "here", "ready": True, "phase": "", "reason": "",
                        "pid": 1, "sessions": len(rows.get(name, ())),
                        "connections": rows.get(name, []),
                        "clients": [each["client"] for each in rows.get(name, ())],
                        "consumers": self.consumers.get(name, []),
                        "queues": {"work": {"topic": "work", "message_type": "json",
                                            "available_here": 40, "leases": 3,
                                            "age_of_oldest_lease_us": 90_000_000}},
                    }
                    for name in NAMES[:2]
                ),
                {"name": "away-1", "group": "away", "ready": False, "phase": "unknown",
                 "reason": "its process has ended"},
            ],
        }  # fmt: skip

    def control(self, name: str, call: str, *, client: str) -> str:
        self.told.append((name, call, client))
        return f"{client} is disconnected from {name}"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    for variable in ("RAY_ADDRESS", "RAYLAY_FABRIC", "RAYLAY_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Fabric, "attach", Attached)
    monkeypatch.setattr(clients, "RATE_S", 0.0)
    Attached.looks, Attached.told, Attached.consumers = 0, [], {}
    Attached.asked.clear()
    Attached.first = Attached.later = {
        "here-1": [connection(1, "desk"), connection(2, "feed")],
        "here-2": [connection(1, "screen"), connection(9, "feed")],
    }
    directory = tmp_path / "data"
    record_of(Fabric("orders").region("here", instances=2).settings(), directory).save()
    registry.register(
        RegistryEntry("orders", str(directory), "", os.getpid(), process_start(os.getpid()))
    )
    yield tmp_path


def raylay(*arguments: str, typed: str = "") -> Any:
    return CliRunner().invoke(app, list(arguments), input=typed)


@pytest.mark.covers("Administration", "`raylay connections` shows the clients of every instance")
def test_connections_are_shown_with_rates_and_those_for_which_most_waits_first() -> None:
    Attached.first = {"here-1": [connection(1, "desk", messages_out=100), connection(2, "feed")]}
    Attached.later = {
        "here-1": [
            connection(1, "desk", messages_out=100),
            connection(
                2, "feed", unsent_bytes=3072, memory_bytes=1024, offline_bytes=2048, state="offline"
            ),
            connection(3, "new"),
        ]
    }
    shown = raylay("connections")
    assert shown.exit_code == 0
    assert shown.stderr == "raylay: away-1 does not tell: its process has ended\n"
    rows = [line.split() for line in shown.stdout.splitlines() if "10.0.0.1" in line]
    assert [row[0] for row in rows] == ["feed", "desk", "new"]
    assert "3.0 KiB" in " ".join(rows[0]), "what is in memory and on disk is among what is unsent"
    assert rows[0][-1] == "offline"
    assert "user" not in shown.stdout, "nobody has one"
    told = [json.loads(line) for line in raylay("connections", "--json").stdout.splitlines()]
    assert told[0]["waiting_bytes"] == 3072 and told[0]["instance"] == "here-1"


def test_a_rate_is_of_two_looks_at_one_connection_in_one_life_of_its_instance() -> None:
    before = [
        {"name": "A", "pid": 1, "connections": [connection(1, "desk", messages_in=10)]},
        {"name": "B", "pid": 1, "connections": [connection(1, "feed", messages_in=10)]},
    ]
    after = [
        {"name": "A", "pid": 1, "connections": [connection(1, "desk", messages_in=30)]},
        {"name": "B", "pid": 2, "connections": [connection(1, "other", messages_in=30)]},
    ]
    desk, other = clients.connection_rows(before, after, 2.0)
    assert desk["rates"]["messages_in"] == 10.0
    assert set(other["rates"].values()) == {None}


def test_the_tables_fit_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "FILE_COLUMNS", 80)
    Attached.later = {
        "here-1": [connection(1, "order-service", user="amy", address="10.100.20.30:54321")],
    }
    Attached.consumers = {"here-1": [consumer("order-service", user="amy", filter="/price > 10")]}
    for arguments in (["connections"], ["consumers", "work"]):
        shown = raylay(*arguments).stdout
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown, "nothing is cut"


def test_without_a_client_that_is_said() -> None:
    Attached.first = Attached.later = {}
    assert raylay("connections").stdout == "no client is connected to fabric orders\n"


def test_connections_wait_once_for_an_instance_that_is_silent() -> None:
    shown = raylay("connections")
    assert shown.exit_code == 0 and f"raylay: {NAMES[2]} does not tell" in shown.stderr
    assert Attached.asked == [None, [*NAMES[:2]]]


def test_consumers_are_shown_with_what_they_hold() -> None:
    Attached.consumers = {
        "here-1": [
            consumer("billing", oldest_lease_age_ms=4_700),
            consumer("other", queue="another"),
        ],
        "here-2": [
            consumer("shipping", leases=None, oldest_lease_age_ms=None),
            consumer("idle", leases=0, oldest_lease_age_ms=None),
        ],
    }
    shown = raylay("consumers", "work")
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines() if "10.0.0.1" in line]
    assert rows == [
        ["billing", "here-1", "10.0.0.1:5", "3", "5", "4.7s"],
        ["shipping", "here-2", "10.0.0.1:5", "many", "5", "?"],
        ["idle", "here-2", "10.0.0.1:5", "0", "5", "-"],
    ]
    assert "here-1: 40 messages wait, 3 are leased, the oldest for 4.7s" in shown.stdout, (
        "the line agrees with the table"
    )
    assert "here-2: 40 messages wait, 3 are leased, the oldest for 90s" in shown.stdout
    told = [json.loads(line) for line in raylay("consumers", "work", "--json").stdout.splitlines()]
    assert [each["client"] for each in told] == ["billing", "shipping", "idle"]


def test_a_queue_without_consumers_and_a_queue_that_is_none() -> None:
    assert "nobody consumes queue work of fabric orders" in raylay("consumers", "work").stdout
    refused = raylay("consumers", "wrok")
    assert refused.exit_code == 1 and "no queue 'wrok'" in str(refused.exception)
    assert "work" in str(refused.exception)


@pytest.mark.covers("Administration", "`raylay connections` shows the clients of every instance")
def test_a_client_is_found_wherever_it_is() -> None:
    assert raylay("disconnect", "screen").stdout == "1 is disconnected from here-2\n"
    assert Attached.told == [("here-2", "disconnect", "1")]
    raylay("disconnect", "9")
    assert Attached.told[1:] == [("here-2", "disconnect", "9")], "by the number of its connection"


def test_an_instance_that_is_named_is_asked_alone() -> None:
    raylay("disconnect", "feed", "--instance", "here-1")
    assert Attached.told == [("here-1", "disconnect", "feed")] and not Attached.looks


def test_a_name_of_several_ends_none_without_a_choice() -> None:
    refused = raylay("disconnect", "feed")
    assert refused.exit_code == 1 and not Attached.told
    assert "2 connections" in str(refused.exception)
    assert "here-1" in str(refused.exception) and "--all" in str(refused.exception)
    assert raylay("disconnect", "feed", "--all").exit_code == 0
    assert Attached.told == [("here-1", "disconnect", "2"), ("here-2", "disconnect", "9")]


def test_on_a_terminal_it_asks_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "is_interactive", lambda: True)
    shown = raylay("disconnect", "feed", typed="7\n2\n")
    assert shown.exit_code == 0, shown.output
    assert "1970-01-01 00:00:09 UTC" in shown.stdout
    assert Attached.told == [("here-2", "disconnect", "9")]


def test_a_connection_that_is_another_one_after_the_answer_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "is_interactive", lambda: True)
    Attached.later = {**Attached.first, "here-2": [connection(9, "innocent")]}
    refused = raylay("disconnect", "feed", typed="2\n")
    assert refused.exit_code == 1 and not Attached.told
    assert "gone meanwhile" in str(refused.exception)


def test_nobody_of_that_name_is_said_with_the_closest_one_and_who_was_silent() -> None:
    refused = raylay("disconnect", "scren")
    assert refused.exit_code == 1 and not Attached.told
    said = str(refused.exception)
    assert "screen" in said and "away-1 does not tell" in said


def test_a_client_beyond_those_that_are_told_is_ended_by_its_name() -> None:
    status = {
        "fabric": "f",
        "instances": [{"name": "A", "connections": [], "clients": ["deep"]}],
    }
    assert clients._connected(status, "deep", "") == [
        {"instance": "A", "client": "deep", "number": None}
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0s"), (4.21, "4.2s"), (60, "60s"), (130, "2m"), (7200, "2h"), (200_000, "2d")],
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert clients.age_text(seconds) == text
