"""A fabric on Ray whose instances judge who controls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from argon2 import PasswordHasher

from raylay.services.commands import lifecycle
from raylay.services.drills.drill import Drill
from raylay.services.drills.drill_lock import clean
from raylay.services.drills.scenario import find
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.records import registry

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SECRET = "a-secret-that-is-nowhere-else"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
NAMES = ("here-1", "here-2")
ROOT = "/amps/administrator"


def declare(place: Path, *topics: str) -> Fabric:
    return Fabric(
        "controlled",
        topics=["orders", *topics],
        logs={"target": "file", "level": "developer"},
        tracing={"directory": "traces", "sampling_ratio": 1.0},
        drills="allowed",
        admin={
            "authentication": {"module": "passwords", "options": {"File": f"{place}/who"}},
            "entitlement": {"module": "permissions", "options": {"File": f"{place}/what"}},
        },
    ).region("here", 2)


def told(fabric: Fabric, event: str) -> list[tuple[str, str, str]]:
    found = [each for each in fabric.events() if each["event"] == event]
    return [(each["instance"], each["user"], each["path"]) for each in found]


@pytest.mark.covers("Configuration", "who may not control an instance changes nothing")
def test_instances_refuse_what_their_operators_do_not_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RAYLAY_USER", "RAYLAY_PASSWORD", "RAYLAY_PASSWORD_FILE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "who").write_text(f"amy:{CHEAP.hash(SECRET)}\neve:{CHEAP.hash(SECRET)}\n")
    (tmp_path / "what").write_text(
        json.dumps(
            {
                "amy": {"admin": [{"topic": f"{ROOT}/.*", "read": True}]},
                "eve": {"admin": [{"topic": f"{ROOT}/.*/(down|up)grade", "read": True}]},
            }
        )
    )
    with declare(tmp_path).start(tmp_path / "data") as owner:
        owner.wait_connected()
        pids = {name: owner.pid(name) for name in NAMES}
        nobody, eve, amy = (
            Fabric.attach("controlled"),
            Fabric.attach("controlled", user_id="eve", password=SECRET),
            Fabric.attach("controlled"),
        )
        amy.act_as("amy", SECRET)
        entry = registry.find("controlled")
        assert entry is not None
        attempts: list[tuple[Callable[[Fabric], Any], str]] = [
            (lambda fabric: fabric.kill("here-1"), "instance/kill"),
            (lambda fabric: fabric.kill_link("here-1", "here-2"), "replication/here-2/kill"),
            (lambda fabric: fabric.restart("here-1"), "instance/restart"),
            (lambda fabric: fabric.rolling_restart(), "instance/restart"),
            (lambda fabric: fabric.apply(declare(tmp_path, "more")), "instance/apply"),
            (lambda fabric: fabric.relocate("here-1", force=True), "placements/here-1/move"),
            (lambda fabric: fabric.stop(), "instance/stop"),
            (lambda fabric: fabric.switch_transport("here-1", "client", on=False), "client/dis"),
            (lambda fabric: fabric.reset_entitlement("here-1"), "entitlement/reset"),
            (lambda fabric: fabric.inject("here-1", "disk", 9.0), "instance/drill"),
            (lambda fabric: Drill(fabric, find("kill-instance")).run(), "instance/drill"),
            (clean, "instance/drill"),
        ]
        for who, user in ((nobody, "nobody in particular"), (eve, "eve")):
            for attempt, path in attempts:
                with pytest.raises(FabricError, match=rf"here-\d refuses.*{path}") as why:
                    attempt(who)
                assert user in str(why.value) and SECRET not in str(why.value)
        with pytest.raises(FabricError, match="nobody in particular"):
            lifecycle._ask_for_the_end(entry)
        assert {name: owner.pid(name) for name in NAMES} == pids
        assert all(each["ready"] for each in owner.status()["instances"])
        assert not told(owner, "control") and len(told(owner, "control_refused")) >= 24
        # What she may, she does; the environment says who as well as the handle.
        eve.downgrade("here-1", "here-2")
        monkeypatch.setenv("RAYLAY_USER", "eve")
        monkeypatch.setenv("RAYLAY_PASSWORD", SECRET)
        nobody.upgrade("here-1", "here-2")
        assert told(owner, "control") == [
            ("here-1", "eve", f"{ROOT}/replication/here-2/downgrade"),
            ("here-1", "eve", f"{ROOT}/replication/here-2/upgrade"),
        ]
        # What Ray does by itself asks nobody.
        assert amy.kill("here-2") == pids["here-2"]
        owner.wait_ready()
        owner.wait_connected()
        assert owner.pid("here-2") != pids["here-2"]
        done = amy.apply(declare(tmp_path, "more"))
        assert done.restarted == NAMES
        assert told(owner, "control_refused") == [], "they are new processes"
        assert SECRET not in json.dumps(ray.timeline(), default=str)
        nothing_has_it(tmp_path / "data")
        nothing_has_it(Path(ray._private.worker._global_node.get_session_dir_path()))
        eve.leave()
        with pytest.raises(FabricError, match=r"eve may not use .*instance/stop"):
            nobody.stop()
        assert all(each["ready"] for each in owner.status()["instances"])
        directory = owner.directory
    # The process that started it ends it without a word, and gracefully.
    for name in NAMES:
        log = "".join(path.read_text() for path in directory.rglob(f"*{name}*.log*"))
        assert f"{ROOT}/instance/stop" in log and "the fabric" in log, name
    nothing_has_it(tmp_path / "data")


def nothing_has_it(place: Path) -> None:
    """No file has the password: logs of instances and of Ray, events, traces, configurations."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
