"""services/fabric/maintenance.py: in which order an instance is stopped and started, and what is
taken back where a stop is refused. The instances are none: each call is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import FabricError
from raylay.services.fabric.maintenance import FabricMaintenance
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date


class Noted:
    """A fabric's handle, control and instances in one: notes what is done to it."""

    def __init__(self, directory: Path) -> None:
        self.settings: Any = FabricBuilder("pair").region("near", instances=2).settings()
        self.record: Any = FabricRecord("pair", str(directory), self.settings.to_json())
        bring_up_to_date(self.record, self.settings)
        self.running = {"near-1", "near-2"}
        self.closed: set[str] = set()
        self.calls: list[str] = []
        self.lagging = [0]
        """Entries of near-2's log that near-1 has not stored, look by look; the last one stays."""
        self.fails_at: dict[str, BaseException] = {}
        self.away = ""
        parts: Any = self
        self.maintenance = FabricMaintenance(parts, parts, parts)

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails_at:
            raise self.fails_at[call]

    def refresh(self) -> None: ...

    def known(self) -> Any:
        return self.settings, self.record

    def keep(self, record: Any) -> None:
        self.note(f"record {' '.join(record.stopped) or 'nobody'}")

    def actor(self, name: str) -> Any:
        return name if name in self.running else None

    def statuses(self, names: Any, timeout_s: float = 0) -> list[dict[str, Any]]:
        lagging = self.lagging.pop(0) if len(self.lagging) > 1 else self.lagging[0]
        return [
            {
                "name": name,
                "ready": name in self.running,
                "next_txid": 101,
                "transports": [
                    {"name": "client", "kind": "client", "enabled": name not in self.closed},
                    {"name": "replication", "kind": "replication", "enabled": True},
                ],
                "destinations": {
                    to.name: {"caught_up": True, "stored_txid": 100 - lagging, "sync": True}
                    for instance, to in self.settings.links()
                    if instance.name == name
                },
            }
            for name in names
        ]

    def authorize(self, names: Any, call: str, **details: Any) -> None:
        self.note(f"authorize {call} of {' '.join(names)}")

    def caller_for(self, name: str) -> None: ...

    def host_away(self, name: str) -> str:
        return self.away

    def renew_addresses(self) -> None: ...

    def check_ports(self, *_: Any) -> None: ...

    def check_tls(self, *_: Any) -> None: ...

    def control(self, name: str, call: str, what: str = "", **arguments: Any) -> None:
        if call == "disable_transport":
            self.closed.add(name)
        elif call == "enable_transport":
            self.closed.discard(name)
        self.note(f"{call} of {name}")

    def write_config(self, instance: Any) -> None:
        self.note(f"config {instance.name}")

    def end_gracefully(self, name: str, caller: Any, call: str, timeout_s: float) -> None:
        self.note(f"end {name}")
        self.running.discard(name)

    def launch(self, instance: Any) -> None:
        self.note(f"launch {instance.name}")
        self.running.add(instance.name)

    def wait_ready(self, name: str, timeout_s: float) -> None:
        self.note(f"ready {name}")

    def wait_connected(self, timeout_s: float, *, only: Any, progress: Any) -> None:
        self.note(f"connected {len(only)}")

    def done(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("authorize")]


@pytest.fixture
def pair(tmp_path: Path) -> Noted:
    return Noted(tmp_path)


def test_a_stop_closes_waits_writes_down_downgrades_and_ends(pair: Noted) -> None:
    pair.lagging = [0, 0, 2, 1, 0]
    told: list[str] = []
    done = pair.maintenance.stop("near-2", progress=told.append)
    assert pair.done() == [
        "disable_transport of near-2",
        "record near-2",
        *("config near-1", "downgrade of near-1"),
        "end near-2",
    ]
    assert "near-2: near-1 has not stored the last 2 entries of its log" in told
    assert done.downgraded == (("near-1", "near-2"),) and done.directory.endswith("near-2")
    assert not done.untold and not done.lacking
    first = next(at for at, call in enumerate(pair.calls) if not call.startswith("authorize"))
    assert all(not call.startswith("authorize") for call in pair.calls[first:]), "all asked first"
    pair.calls.clear()
    assert pair.maintenance.stop("near-2").was_stopped and not pair.calls


def test_a_stop_that_is_refused_is_taken_back(pair: Noted) -> None:
    pair.lagging = [5]
    with pytest.raises(
        FabricError, match=r"near-1 has not stored the last 5 entries of its log.*--force"
    ):
        pair.maintenance.stop("near-2", timeout_s=0)
    assert pair.done() == ["disable_transport of near-2", "enable_transport of near-2"]
    assert pair.record.stopped == []
    forced = pair.maintenance.stop("near-2", timeout_s=0, force=True)
    assert forced.lacking == ("near-1 has not stored the last 5 entries of its log",)
    assert "near-2" not in pair.running


@pytest.mark.parametrize("call", ["disable_transport of near-2", "record near-2"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), FabricError("changed meanwhile")])
def test_up_to_the_record_a_stop_is_taken_back(
    pair: Noted, call: str, error: BaseException
) -> None:
    pair.fails_at = {call: error}
    with pytest.raises(type(error)):
        pair.maintenance.stop("near-2")
    assert pair.record.stopped == [] and not pair.closed and "near-2" in pair.running


def test_who_may_not_stop_it_changes_nothing(pair: Noted) -> None:
    pair.fails_at = {"authorize downgrade of near-1": FabricError("refused")}
    with pytest.raises(FabricError, match="refused"):
        pair.maintenance.stop("near-2")
    assert pair.done() == []


def test_a_peer_that_cannot_be_told_is_named(pair: Noted) -> None:
    pair.fails_at = {"downgrade of near-1": FabricError("silent")}
    done = pair.maintenance.stop("near-2")
    assert done.untold == ("near-1",) and "near-2" not in pair.running


def test_a_start_waits_for_its_links_before_anybody_waits_for_it(pair: Noted) -> None:
    pair.maintenance.stop("near-2")
    pair.closed.clear()
    pair.calls.clear()
    assert pair.maintenance.start("near-2") == []
    assert pair.done() == [
        *("launch near-2", "ready near-2", "connected 2", "record nobody"),
        *("config near-1", "upgrade of near-1", "config near-2"),
    ]
    with pytest.raises(FabricError, match="raylay restart near-2"):
        pair.maintenance.start("near-2")


def test_a_start_goes_on_behind_an_interrupt(pair: Noted) -> None:
    pair.maintenance.stop("near-2")
    pair.fails_at = {"connected 2": FabricError("not caught up")}
    with pytest.raises(FabricError):
        pair.maintenance.start("near-2")
    assert pair.record.stopped == ["near-2"], "nobody waits for it yet"
    pair.fails_at = {}
    pair.calls.clear()
    # The transports of one whose stop was interrupted are closed.
    pair.closed = {"near-2"}
    pair.maintenance.start("near-2")
    assert "launch near-2" not in pair.calls and not pair.closed
    assert pair.record.stopped == []


def test_one_whose_host_is_away_is_not_started(pair: Noted) -> None:
    pair.maintenance.stop("near-2")
    pair.away = "its host is away"
    with pytest.raises(FabricError, match="near-2 is not started: its host is away"):
        pair.maintenance.start("near-2")
    assert pair.record.stopped == ["near-2"]


def test_one_that_is_removed_hands_over_its_queues_too(
    pair: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raylay.services.fabric.maintenance.COUNTS_S", 0.0)
    left = [["queue work has 1 message that near-2 owns"], [], []]
    monkeypatch.setattr(
        "raylay.services.fabric.maintenance.queues_owned",
        lambda *_: left.pop(0) if left else [],
    )
    told: list[str] = []
    pair.maintenance.stop("near-2", leaving=["near-2"], progress=told.append)
    assert any("queue work" in each for each in told)
    assert pair.record.drained == ["near-2"]


def test_a_stop_notes_whether_everybody_has_everything(pair: Noted) -> None:
    pair.maintenance.stop("near-2")
    assert pair.record.drained == ["near-2"], "so that apply may remove it"
    pair.maintenance.start("near-2")
    assert pair.record.drained == []
    pair.lagging = [5]
    pair.maintenance.stop("near-2", timeout_s=0, force=True)
    assert pair.record.drained == []


def test_one_that_does_not_answer_is_stopped_by_force_at_once(pair: Noted) -> None:
    pair.running.discard("near-2")
    with pytest.raises(FabricError, match="it is not ready"):
        pair.maintenance.stop("near-2")
    pair.maintenance.stop("near-2", force=True)
    assert pair.record.stopped == ["near-2"] and pair.record.drained == []
