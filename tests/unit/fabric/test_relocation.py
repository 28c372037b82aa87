"""Moving an instance: whether, where to, what is at risk, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.config.instance import MOVED_ASIDE
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.cluster.nodes import ClusterNode, NodePlace, placed
from raylay.services.fabric.plan import (
    FabricRecord,
    data_directory,
    instance_config,
    record_of,
    replication_address,
)
from raylay.services.fabric.records.orphans import left_over_lines, orphaned_directories
from raylay.services.fabric.records.record import OrphanedDirectory, RecordedMove
from raylay.services.fabric.relocation import (
    Relocation,
    away_since,
    choose,
    due,
    incarnation_of,
    next_generation,
    parse_target,
    refusal,
    relocation_lines,
    risk,
    seen_alive,
    sources,
    too_soon,
    with_moves,
)
from raylay.services.server.data.salvage import SALVAGED_FILE

pytestmark = pytest.mark.covers("Moved instances", "whether and where to it is moved")

LABELS = {"region": "east", "host": "a"}
NODES = [
    ClusterNode(f"10.0.0.{at}", {"region": "east", "host": host})
    for at, host in enumerate("abc", 1)
]
PLACES = {
    "east-1": NodePlace(dict(LABELS), "10.0.0.1"),
    "east-2": NodePlace({"region": "east", "host": "b"}, "10.0.0.2"),
}


def settings(**sections: Any) -> FabricSettings:
    fabric = FabricBuilder("moving", **sections)
    fabric.region("east", instances=2)
    for name, place in PLACES.items():
        fabric.instance(name, node_labels=place.labels, host=place.address)
    return fabric.settings()


def status(name: str, ready: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": ready, **more}


def linked(name: str, connected: bool) -> dict[str, Any]:
    return {"to": {"peer": name, "connected": connected, "incarnation": "00ab"}}


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("c", {"host": "c"}),
        ("region=east", {"region": "east"}),
        ("region=east,host=c", {"region": "east", "host": "c"}),
    ],
)
def test_a_target_is_a_host_or_labels(text: str, labels: dict[str, str]) -> None:
    assert parse_target(text) == labels


@pytest.mark.parametrize("text", ["=c", "host=", "a,b", "host=a,"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="give a label as key=value"):
        parse_target(text)


def test_who_sees_it_alive() -> None:
    away = status("east-1", ready=False)
    assert (
        seen_alive("east-1", [away, status("east-2", destinations=linked("east-1", False))]) == []
    )
    assert seen_alive("east-1", [status("east-1")]) == ["it answers itself"]
    there = status("east-2", destinations=linked("east-1", True))
    assert seen_alive("east-1", [away, there]) == ["east-2 is connected to it"]
    back = status("east-2", upstreams=[{"name": "east-1"}])
    assert seen_alive("east-1", [away, back]) == ["it is connected to east-2"]


def test_it_is_moved_only_where_it_is_gone_and_can_be_filled_or_by_force() -> None:
    assert refusal("east-1", [], ["east-2"], force=False) == ""
    assert "is alive (it answers itself)" in refusal(
        "east-1", ["it answers itself"], ["east-2"], force=False
    )
    assert "no member of its group is ready" in refusal("east-1", [], [], force=False)
    assert refusal("east-1", ["it answers itself"], [], force=True) == ""
    ready = [status("east-1"), status("east-2")]
    assert sources(settings(), "east-1", ready) == ["east-2"]
    assert sources(settings(), "east-1", [status("east-2", ready=False)]) == []


def test_its_generation_is_above_all_that_anybody_knows() -> None:
    assert next_generation("east-1", 0, []) == 1
    told = [
        status("x", moved=[{"name": "east-1", "generation": 4}, {"name": "y", "generation": 9}])
    ]
    assert next_generation("east-1", 2, told) == 5
    assert (
        incarnation_of("east-1", [status("east-2", destinations=linked("east-1", False))]) == "00ab"
    )
    assert incarnation_of("east-1", [status("east-2")]) == ""
    others = status("west-1", destinations={"to": {"peer": "east-2", "incarnation": "00cd"}})
    unseen = status("west-2", destinations={"to": {"peer": "east-1", "incarnation": "0000"}})
    assert incarnation_of("east-1", [others, unseen]) == "", "of nobody else's"
    seen = status("east-2", destinations=linked("east-1", False))
    assert incarnation_of("east-1", [others, unseen, seen]) == "00ab"


def test_it_goes_to_another_node_of_its_region() -> None:
    chosen = choose(settings(), PLACES, NODES, "east-1", {})
    assert chosen == NodePlace({"region": "east", "host": "c"}, "10.0.0.3"), "the least used"
    assert choose(settings(), PLACES, NODES, "east-1", {"host": "b"}).address == "10.0.0.2"
    with pytest.raises(FabricError, match="no node has host=z, region=east"):
        choose(settings(), PLACES, NODES, "east-1", {"host": "z"})
    with pytest.raises(FabricError, match="no node has host=a, region=east"):
        choose(settings(), PLACES, NODES, "east-1", {"host": "a"})
    with pytest.raises(FabricError, match="is bound to no node"):
        choose(settings(), {}, NODES, "east-1", {})


def test_one_that_names_its_host_alone_stays_in_that_hosts_region() -> None:
    west = ClusterNode("10.0.1.1", {"region": "west", "host": "w"})
    alone = FabricBuilder("alone").instance("east-1", "east", node_labels={"host": "a"}).settings()
    placed_alone, places = placed(alone, {}, [*NODES, west])
    place = places["east-1"]
    assert (place.labels, place.region) == ({"host": "a"}, "east")
    assert placed(placed_alone, places, NODES) == (placed_alone, places), "and keeps it"
    chosen = choose(placed_alone, places, [west, *NODES], "east-1", {})
    assert chosen == NodePlace({"region": "east", "host": "b"}, "10.0.0.2")
    with pytest.raises(FabricError, match="no node has region=east"):
        choose(placed_alone, places, [west], "east-1", {})
    with pytest.raises(FabricError, match="no node has host=w, region=east"):
        choose(placed_alone, places, [west, *NODES], "east-1", {"host": "w"})


def test_nothing_moves_it_to_another_region() -> None:
    west = ClusterNode("10.0.1.1", {"region": "west", "host": "w"})
    with pytest.raises(FabricError, match=r"stays in its region, region=east, .* region=west is"):
        choose(settings(), PLACES, [*NODES, west], "east-1", {"region": "west"})
    same = choose(settings(), PLACES, [*NODES, west], "east-1", {"region": "east", "host": "b"})
    assert same.address == "10.0.0.2"
    # Other labels than the region's may be asked for anew.
    racks = [ClusterNode("10.0.0.9", {"region": "east", "host": "z", "rack": "8"})]
    before = {"east-1": NodePlace({"host": "a", "rack": "7"}, "10.0.0.1", "east")}
    assert choose(settings(), before, racks, "east-1", {"rack": "8"}).address == "10.0.0.9"


def test_one_of_no_region_is_moved_only_to_where_it_is_said() -> None:
    plain = [ClusterNode(f"10.0.0.{at}", {"host": host}) for at, host in enumerate("abc", 1)]
    places = {"east-1": NodePlace({"host": "a"}, "10.0.0.1")}
    with pytest.raises(FabricError, match="nothing says of which region its host, host=a, is"):
        choose(settings(), places, plain, "east-1", {})
    assert choose(settings(), places, plain, "east-1", {"host": "c"}).address == "10.0.0.3"


def test_what_is_at_risk_depends_on_who_its_acks_waited_for() -> None:
    assert "acks waited for east-2" in risk(settings(), "east-1", False)
    assert "from a downgrade" in risk(settings(downgrade_age="5s"), "east-1", False)
    assert "it sends what it took" in risk(settings(), "east-1", True)
    alone = FabricBuilder("alone")
    alone.region("east", instances=1)
    assert "all of them async" in risk(alone.settings(), alone.settings().instances[0].name, False)


def test_since_when_a_host_is_away() -> None:
    place = PLACES["east-1"]
    assert away_since(place, NODES, []) == ""
    gone = away_since(place, NODES[1:], [(NODES[0], 1_700_000_000_000)])
    assert gone == "its host a is away since 2023-11-14 22:13:20 UTC"
    assert away_since(place, NODES[1:], []) == "its host a is not in the cluster"


def test_the_policy_moves_who_is_away_for_long_and_nobody_else() -> None:
    now_ms = 1_000_000
    gone = {"there": None, "unknown": 0, "short": now_ms - 5_000, "long": now_ms - 600_000}
    assert due(gone, now_ms, 600_000) == ["long"]
    assert due(gone, now_ms, None) == [], "off by default"
    assert settings().relocate_after_ms is None
    assert settings(relocate_after="10m").relocate_after_ms == 600_000
    with pytest.raises(ConfigurationError):
        settings(relocate_after="0s")


def test_who_cannot_be_moved_keeps_nobody_else_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Fabric.of(settings(relocate_after="1s"))
    made.handle.record = record_of(made.declared, tmp_path)
    made.handle.record.nodes = PLACES
    asked: list[str] = []

    def relocate(name: str, moved: Callable[[Relocation], None]) -> Relocation:
        asked.append(name)
        former = OrphanedDirectory(name, 0, "10.0.0.1", {}, "/d", "10.0.0.1:7", 5)
        done = Relocation(name, 1, NodePlace({"host": "c"}, "10.0.0.3"), "nothing", former)
        if name == "east-1":
            raise FabricError("east-1 cannot be filled")
        moved(done)
        return done

    monkeypatch.setattr(made._relocator, "relocate", relocate)
    monkeypatch.setattr(made.handle, "refresh", lambda: None)
    monkeypatch.setattr("raylay.services.fabric.relocator.living_nodes", lambda: NODES[2:])
    dead = [(node, 1) for node in NODES[:2]]
    monkeypatch.setattr("raylay.services.fabric.relocator.dead_nodes", lambda: dead)
    told: list[Relocation] = []
    with pytest.raises(FabricError, match=r"^east-1 cannot be filled$"):
        made.relocate_due(told.append)
    assert asked == ["east-1", "east-2"] and [done.name for done in told] == ["east-2"]


def test_what_was_moved_is_said_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is not ready in time, what is left over and at risk is not lost."""
    waited_s: list[float] = []

    class Attached(Fabric):
        def relocate(self, name: str, *_: Any, **options: Any) -> Relocation:
            former = OrphanedDirectory(name, 0, "10.0.0.1", {}, "/d/east-1", "10.0.0.1:7", 5)
            place = NodePlace({"host": "c"}, "10.0.0.3")
            options["moved"](Relocation(name, 1, place, "nothing", former, ["east-2"]))
            waited_s.append(options["timeout_s"])
            raise FabricError(f"instance {name} is not ready after 900 s: it is being filled")

    monkeypatch.setattr(Fabric, "attach", lambda name: Attached(name))
    monkeypatch.setattr(
        "raylay.services.commands.admin.running", lambda name: SimpleNamespace(name="moving")
    )
    done = CliRunner().invoke(app, ["relocate", "east-1", "--timeout", "900"])
    assert isinstance(done.exception, FabricError) and waited_s == [900.0]
    assert "left over: /d/east-1 on 10.0.0.1" in done.output and "at risk" in done.output


def moved(tmp_path: Path) -> tuple[FabricSettings, FabricRecord]:
    """What `Fabric.relocate` writes down."""
    record = record_of(settings(), tmp_path)
    record.nodes = {**PLACES, "east-1": NodePlace({"region": "east", "host": "c"}, "10.0.0.3")}
    record.moves["east-1"] = RecordedMove(2, "east-1.g2", ["east-2"])
    former = OrphanedDirectory(
        "east-1", 1, "10.0.0.1", dict(LABELS), "/d/east-1", "10.0.0.1:7", 5, "ab"
    )
    record.left_over.append(former)
    effective = with_moves(settings(), record.moves, record.nodes)
    record.settings = effective.to_json()
    return effective, record


def test_a_move_outlives_the_driver_and_what_the_file_says(tmp_path: Path) -> None:
    effective, record = moved(tmp_path)
    record.save()
    assert FabricRecord.load(tmp_path) == record
    instance = effective.instance("east-1")
    assert instance.host == "10.0.0.3" and instance.node_labels["host"] == "c"
    assert effective.instance("east-2") == settings().instance("east-2")
    assert data_directory(record, instance) == tmp_path / "east-1.g2"


def test_a_moved_instance_leaves_its_former_replication_address_behind(tmp_path: Path) -> None:
    _, record = moved(tmp_path)
    declared = settings().model_copy(
        update={
            "instances": tuple(
                each.model_copy(update={"replication_host": "10.9.0.1"})
                for each in settings().instances
            )
        }
    )
    effective = with_moves(declared, record.moves, record.nodes)
    instance, peer = effective.instances
    config = instance_config(effective, record, instance)
    assert [each.host for each in config.transports] == ["10.0.0.3", "10.0.0.3"]
    assert str(config.replication_transports[0].advertised).startswith("10.0.0.3:")
    assert peer.replication_host == "10.9.0.1"


def test_a_fabric_starts_without_a_moved_instance_or_who_filled_it(tmp_path: Path) -> None:
    _, record = moved(tmp_path)
    for gone, left in (("east-1", "east-2"), ("east-2", "east-1")):
        declared = FabricBuilder("moving").region("east", [left]).settings()
        record.save()
        again = record_of(declared, tmp_path)
        effective = with_moves(declared, again.moves, again.nodes)
        config = instance_config(effective, again, effective.instance(left))
        assert gone not in {name for name, *_ in config.placements}
        assert config.bootstrap is None
        assert again.moves["east-1"].generation == 2, "it is kept: a later one is above it"


def test_what_a_moved_instance_and_its_peers_are_started_with(tmp_path: Path) -> None:
    effective, record = moved(tmp_path)
    own = instance_config(effective, record, effective.instance("east-1"))
    peer = effective.instance("east-2")
    there = replication_address(record, peer)
    assert own.generation == 2
    assert own.bootstrap is not None and own.bootstrap.sources == (there,)
    assert own.announce_to == (there, "10.0.0.1:7"), "the others, and itself where it was"
    config = instance_config(effective, record, peer)
    assert config.generation == 0 and config.bootstrap is None
    assert config.announce_to == (replication_address(record, effective.instance("east-1")),)
    assert config.placements == own.placements
    ((name, generation, replication, client),) = config.placements
    assert (name, generation) == ("east-1", 2)
    assert replication.startswith("10.0.0.3:") and client.startswith("10.0.0.3:")


def test_left_over_directories_are_named_with_what_is_known(tmp_path: Path) -> None:
    effective, record = moved(tmp_path)
    former = tmp_path / "east-1"
    former.mkdir()
    record.left_over[0].directory = str(former)
    (line,) = left_over_lines(orphaned_directories(record, effective))
    assert line.startswith(f"left over of east-1: {former} on 10.0.0.1 (generation 1, ")
    assert "not known whether" in line and f"raylay journal salvage {former}" in line
    (former / SALVAGED_FILE).write_text('{"done": false, "lacking": 1200, "unreached": []}')
    assert "lacks 1,200 messages" in left_over_lines(orphaned_directories(record, effective))[0]
    (former / SALVAGED_FILE).write_text('{"done": false, "lacking": 7, "unreached": ["west-1"]}')
    (found,) = orphaned_directories(record, effective)
    assert (found["lacking"], found["unreached"]) == (None, ["west-1"]), "it may lack more"
    assert "not known whether" in left_over_lines([found])[0]
    (former / SALVAGED_FILE).write_text('{"done": true, "lacking": 0}')
    (found,) = orphaned_directories(record, effective)
    assert found["salvaged"] and "lacks nothing" in left_over_lines([found])[0]
    # One that the fabric never knew, beside its own.
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    for name in ("instance.json", "state.lmdb"):
        (stranger / name).write_text("{}")
    assert [each["name"] for each in orphaned_directories(record, effective)] == [
        "east-1",
        "stranger",
    ]


def found_beside(directory: Path, name: str, generation: int) -> None:
    directory.mkdir()
    said = {"name": name, "generation": generation}
    (directory / "instance.json").write_text(json.dumps(said))
    (directory / "state.lmdb").touch()


def test_what_was_never_moved_is_not_to_be_salvaged(tmp_path: Path) -> None:
    """A link of it is refused as `not_retired`: to be declared again is what brings it back."""
    effective, record = moved(tmp_path)
    record.left_over.clear()
    found_beside(tmp_path / "west-9", "west-9", 0)
    (found,) = orphaned_directories(record, effective)
    assert (found["name"], found["retired"]) == ("west-9", False)
    (line,) = left_over_lines([found])
    assert "salvage" not in line and "--forget" not in line
    assert f"raylay journal dump {tmp_path / 'west-9'}" in line and "raylay apply" in line
    # The advice holds: declared again, its directory is the instance's own.
    again = effective.instances[1].model_copy(update={"name": "west-9", "directory": ""})
    declared = effective.model_copy(update={"instances": (*effective.instances, again)})
    assert data_directory(record, again) == tmp_path / "west-9"
    assert orphaned_directories(record, declared) == []


def test_what_a_restoration_moved_aside_is_named_as_that(tmp_path: Path) -> None:
    effective, record = moved(tmp_path)
    record.left_over.clear()
    aside = tmp_path / f"west-1{MOVED_ASIDE}20260102T030405Z"
    found_beside(aside, "west-1", 0)
    (line,) = left_over_lines(orphaned_directories(record, effective))
    assert "`raylay restore` moved it aside" in line and f"raylay journal dump {aside}" in line
    assert "raylay apply" not in line


def test_what_was_moved_is_to_be_salvaged_though_the_record_has_no_such_directory(
    tmp_path: Path,
) -> None:
    effective, record = moved(tmp_path)
    record.left_over.clear()
    former = tmp_path / "former"
    found_beside(former, "east-1", 1)
    (found,) = orphaned_directories(record, effective)
    assert (found["name"], found["generation"], found["retired"]) == ("east-1", 1, True)
    assert f"raylay journal salvage {former}" in left_over_lines([found])[0]
    (former / SALVAGED_FILE).write_text('{"done": true, "lacking": 0}')
    (line,) = left_over_lines(orphaned_directories(record, effective))
    assert "lacks nothing" in line and "--forget" not in line, "there is nothing to be forgotten"
    # Its instance of today, of which another record says where it lies.
    (former / SALVAGED_FILE).unlink()
    found_beside(tmp_path / "twin", "east-1", 2)
    known = {
        each["generation"]: each["retired"] for each in orphaned_directories(record, effective)
    }
    assert known == {1: True, 2: False}


def attached_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """A fabric with a moved instance, whose record is written here alone."""
    effective, record = moved(tmp_path)
    made = Fabric.of(effective)
    made.handle.record = record
    monkeypatch.setattr(made.handle, "refresh", lambda: None)
    monkeypatch.setattr(made.handle, "keep", lambda kept: kept.save())
    return made


def test_what_a_salvage_found_is_known_on_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = attached_to(tmp_path, monkeypatch)
    assert not fabric.note_salvage("east-1", 7, salvaged=True, lacking=0), "another generation"
    for salvaged, lacking, words in (
        (False, 1200, "lacks 1,200 messages"),
        (False, None, "not known whether"),
        (True, 0, "salvaged: the fabric lacks nothing of it; once it is removed"),
    ):
        assert fabric.note_salvage("east-1", 1, salvaged=salvaged, lacking=lacking)
        record = FabricRecord.load(tmp_path)
        assert record is not None
        (line,) = left_over_lines(orphaned_directories(record, fabric.declared))
        assert words in line


def test_a_left_over_directory_that_is_gone_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = attached_to(tmp_path, monkeypatch)
    monkeypatch.setattr(Fabric, "attach", lambda name: fabric)
    monkeypatch.setattr(fabric, "leave", lambda: None)
    monkeypatch.setattr(
        "raylay.services.fabric.find_running", lambda name: SimpleNamespace(name="moving")
    )
    former = tmp_path / "east-1"
    fabric.handle.known()[1].left_over[0].directory = str(former)
    former.mkdir()
    command = ["journal", "salvage", str(former), "--forget"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, FabricError) and "still there" in str(done.exception)
    former.rmdir()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and "has all its messages is unknown" in done.output
    record = FabricRecord.load(tmp_path)
    assert record is not None and orphaned_directories(record, fabric.declared) == []
    own = instance_config(fabric.declared, record, fabric.declared.instance("east-1"))
    assert "10.0.0.1:7" in own.announce_to, "it is told all the same, should it come back"
    with pytest.raises(FabricError, match=r"has no left-over directory .*; it has none"):
        fabric.forget_left_over(str(former))


def test_what_was_done_is_said_plainly() -> None:
    former = OrphanedDirectory("east-1", 0, "10.0.0.1", {}, "/d/east-1", "10.0.0.1:7", 5)
    place = NodePlace({"host": "c"}, "10.0.0.3")
    done = Relocation("east-1", 1, place, "nothing", former, ["east-2"], ["west-1"])
    lines = relocation_lines(done)
    assert lines[0] == "east-1 lives on host=c (10.0.0.3) as generation 1"
    assert lines[1] == "retired at east-2; west-1 will hear of it when back"
    assert "/d/east-1 on 10.0.0.1" in lines[2] and lines[3].endswith("alone: nothing")


def test_what_was_just_moved_is_not_moved_again() -> None:
    """Two operators, or one and the policy."""
    moved_us = 1_000_000_000
    assert "was moved 3 s ago" in too_soon("A-1", moved_us, moved_us + 3_500_000, False)
    assert too_soon("A-1", moved_us, moved_us + 3_500_000, True) == ""
    assert too_soon("A-1", moved_us, moved_us + 60_000_000, False) == ""
    assert too_soon("A-1", 0, moved_us, False) == ""
