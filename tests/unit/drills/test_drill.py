"""services/drills/drill.py and its command: what is refused before anything runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.configuration.yaml_file import load
from raylay.services.drills import drill as drill_module
from raylay.services.drills import faults, step_runner
from raylay.services.drills import head as head_faults
from raylay.services.drills.drill import MARK_FILE, Drill, DrillLock, clean
from raylay.services.drills.drill_run import unwhole
from raylay.services.drills.faults import FaultPlaces
from raylay.services.drills.head import HEAD_FILE, bring_head_back
from raylay.services.drills.loads.load import topic_for
from raylay.services.drills.scenario import FaultHit, FaultStep, built_in, find
from raylay.services.drills.step_runner import to_the_end
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.cluster.head_process import (
    HeadCommand,
    await_head,
    gcs_process,
    guard_gcs,
    is_durable,
    let_start,
)
from raylay.services.fabric.plan import FabricRecord, instance_config, record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import (
    REGISTRY_VARIABLE,
    RegistryEntry,
    process_start,
    register,
)

pytestmark = pytest.mark.covers("Drills", "what is refused before anything runs")

WAIT_S = 60.0


def declared(drills: Any = None, **sections: Any) -> Fabric:
    return Fabric("shops", drills=drills, **sections).region("near", instances=2)


def test_a_fabric_that_is_not_marked_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shops: this fabric is not marked"):
        Drill(declared(), find("kill-instance"))
    with pytest.raises(ConfigurationError, match="not marked"):
        Drill(declared("refused"), find("kill-instance"))


def test_a_wrong_target_is_told_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="'far-9' is not an instance of this fabric"):
        Drill(declared("allowed"), find("kill-instance").with_target("far-9"))


@pytest.mark.parametrize("mark", ["allowed", "refused"])
def test_the_mark_reaches_the_instances(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"fabric: f\nregions: {{A: 2}}\ndrills: {mark}\n")
    settings = load(path)
    record = record_of(settings, tmp_path)
    config = instance_config(settings, record, settings.instances[0])
    assert config.drills is (mark == "allowed")


def test_any_other_word_is_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("fabric: f\nregions: {A: 2}\ndrills: yes please\n")
    with pytest.raises(ConfigurationError, match=r"f\.yaml:3: drills: .*'refused' or 'allowed'"):
        load(path)


# -- one at a time -------------------------------------------------------------------------------
class Placed(Fabric):
    place: Path

    @property
    def directory(self) -> Path:
        return self.place


@pytest.fixture
def placed(tmp_path: Path) -> Placed:
    fabric = Placed("shops")
    fabric.place = tmp_path
    return fabric


def test_one_drill_at_a_time(placed: Placed) -> None:
    scenario = find("kill-link")
    with DrillLock(placed, "1", scenario):
        told = f"kill-link runs on shops already, as process {os.getpid()}"
        with pytest.raises(FabricError, match=told):
            DrillLock(placed, "2", scenario).__enter__()
    assert not (placed.place / MARK_FILE).exists()


def test_a_drill_that_was_killed_is_told_of(placed: Placed) -> None:
    told = {"pid": os.getpid(), "start": process_start(os.getpid()) + 1, "scenario": "bad-day"}
    (placed.place / MARK_FILE).write_text(json.dumps(told))
    with pytest.raises(FabricError, match="bad-day on shops did not end in good order"):
        DrillLock(placed, "2", find("kill-link")).__enter__()
    assert (placed.place / MARK_FILE).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_a_torn_mark_is_one_of_a_drill_that_was_killed(placed: Placed, text: str) -> None:
    """Who writes one makes it appear whole, so nobody else's is ever torn while its drill lives."""
    (placed.place / MARK_FILE).write_text(text)
    with pytest.raises(FabricError, match=r"unknown.* `raylay drill --clean --fabric shops`"):
        DrillLock(placed, "2", find("kill-link")).__enter__()
    assert [path.name for path in placed.place.iterdir()] == [MARK_FILE]


def test_a_drill_that_runs_is_not_cleaned_away(placed: Placed) -> None:
    allowed = Placed("shops", drills="allowed").region("near", instances=2)
    assert isinstance(allowed, Placed)
    allowed.place = placed.place
    with DrillLock(allowed, "1", find("kill-link")):
        with pytest.raises(FabricError, match="kill-link runs on shops already"):
            clean(allowed)
        assert (placed.place / MARK_FILE).exists()


def test_clean_takes_no_scenario() -> None:
    shown = CliRunner().invoke(app, ["drill", "shops", "--clean"])
    assert shown.exit_code == 2
    assert "`raylay drill --clean --fabric shops`" in shown.output + shown.stderr


def test_the_head_comes_back_before_a_fabric_is_joined_to_be_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path / "registry"))
    FabricRecord("shops", str(tmp_path / "place"), "{}").save()
    register(RegistryEntry("shops", str(tmp_path / "place"), "127.0.0.1:1"))
    calls: list[str] = []
    monkeypatch.setattr(head_faults, "bring_head_back", lambda path: [f"back of {path.name}"])

    def attach(name: str) -> Any:
        calls.append(name)
        raise FabricError("that is all")

    monkeypatch.setattr(Fabric, "attach", attach)
    shown = CliRunner().invoke(app, ["drill", "--clean", "--fabric", "shops"])
    assert calls == ["shops"] and "back of place" in shown.output
    (tmp_path / "place" / MARK_FILE).write_text(
        json.dumps({"pid": os.getpid(), "start": process_start(os.getpid()), "scenario": "x"})
    )
    shown = CliRunner().invoke(app, ["drill", "--clean", "--fabric", "shops"])
    assert shown.exit_code == 2 and "runs on shops already" in shown.output + shown.stderr
    assert "back of" not in shown.output


# -- interrupted ---------------------------------------------------------------------------------
class Slowly:
    """An injector one of whose calls goes on until it is let go."""

    def __init__(self, slow: str) -> None:
        self.slow = slow
        self.began, self.go_on = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        if name == self.slow:
            self.began.set()
            assert self.go_on.wait(60.0)
        self.calls.append(name)

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        self._call("inject")
        return []

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        self._call("renew")

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        self._call("heal")


@pytest.mark.parametrize("slow", ["inject", "renew", "heal"])
def test_what_breaks_is_awaited_before_it_is_mended(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is interrupted twice."""
    asyncio.run(interrupted_twice(slow, monkeypatch))


async def interrupted_twice(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_runner, "RENEW_S", 0.01)
    injector = Slowly(slow)
    scenario = find("stop-gcs")
    crowd: Any = SimpleNamespace(serving="near-1", unacknowledged=0)
    settings = declared("allowed").declared
    runner = step_runner.StepRunner(scenario, settings, {"stop_gcs": injector}, crowd, print)
    (step, *_) = scenario.steps
    performing = asyncio.create_task(runner.run(1, step))
    if slow == "heal":
        while not injector.calls:
            await asyncio.sleep(0.01)
        performing.cancel()
    assert await asyncio.to_thread(injector.began.wait, 60.0)
    for _ in range(2):
        performing.cancel()
        await asyncio.sleep(0.05)
    assert not performing.done()
    injector.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await performing
    assert injector.calls[-1] == "heal" and injector.calls.count("heal") == 1
    assert slow in injector.calls


def test_an_error_behind_an_interrupt_is_none() -> None:
    def fail() -> None:
        raise FabricError("the drill was interrupted")

    with pytest.raises(FabricError):
        asyncio.run(to_the_end(fail))
    began = threading.Event()

    def late() -> None:
        began.set()
        time.sleep(0.1)
        fail()

    async def interrupted() -> None:
        running = asyncio.create_task(to_the_end(late))
        await asyncio.to_thread(began.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(interrupted())


def test_an_interrupted_drill_waits_for_no_instance() -> None:
    over = threading.Event()
    places = FaultPlaces(Asked("shops").region("near", instances=2), over)
    over.set()
    for wait in (places.running, lambda name: places.link_pid(name, "near-2")):
        Asked.answers = [FabricError("it is being started")]
        with pytest.raises(FabricError, match="the drill was interrupted"):
            wait("near-1")


# -- the load's topic ----------------------------------------------------------------------------
OURS = "raylay/drill"


@pytest.mark.parametrize(
    ("topics", "named", "expected"),
    [
        ([Topic("orders", "nvfix")], "", (OURS, "json")),
        ([Topic("live", journaled=False), Topic("flights/.*", "json")], "", (OURS, "json")),
        ([".*"], "", (OURS, "json")),
        ([Topic("orders", "nvfix")], "orders", ("orders", "nvfix")),
        ([Topic("flights/.*", "bson"), Topic("b")], "flights/7", ("flights/7", "bson")),
        ([".*"], "orders", ("orders", "json")),
    ],
)
def test_the_users_topics_get_a_drills_load_only_where_they_are_named(
    topics: Any, named: str, expected: tuple[str, str]
) -> None:
    assert topic_for(declared("allowed", topics=topics).settings(), named) == expected


@pytest.mark.parametrize(
    ("topics", "named", "wrong"),
    [
        ([Topic("orders")], "trades", "near-1 does not journal trades"),
        ([Topic("orders")], "o.*", "--topic o.* is a regular expression"),
        ([Topic("orders", journaled=False)], "", "and it journals no other topic either"),
    ],
)
def test_a_topic_that_is_not_journaled_proves_nothing(topics: Any, named: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(wrong)):
        topic_for(declared("allowed", topics=topics).settings(), named)


def test_the_load_is_of_a_type_that_the_ports_take() -> None:
    settings = declared("allowed").settings()
    only = [each.model_copy(update={"message_types": ("nvfix",)}) for each in settings.instances]
    settings = settings.model_copy(update={"instances": tuple(only)})
    assert topic_for(settings) == (OURS, "nvfix")


# -- what is whole -------------------------------------------------------------------------------
def test_what_is_not_as_it_should_be() -> None:
    to = {
        "connected": True, "caught_up": True, "unacked": 0, "sync": True, "safe": True,
        "configured_sync": True, "why": "", "unacked_examples": [],
    }  # fmt: skip
    good = {"ready": True, "pending": 0, "destinations": {"B": to}}
    assert unwhole({"A": good}) == []
    for key, value in (("connected", False), ("caught_up", False), ("unacked", 1), ("safe", False)):
        (wrong,) = unwhole({"A": {**good, "destinations": {"B": {**to, key: value}}}})
        assert wrong.startswith("A to B: ")
    assert unwhole({"A": {"ready": False, "reason": "no"}}) == ["A is not ready: no"]
    assert unwhole({"A": {**good, "pending": 3}}) == ["A has 3 ranges pending"]


# -- the head ------------------------------------------------------------------------------------
def test_a_head_that_keeps_nothing_is_not_killed() -> None:
    assert is_durable(["gcs_server", "--redis_address=127.0.0.1"], {})
    assert is_durable(["gcs_server"], {"RAY_gcs_storage": "rocksdb"})
    assert not is_durable(["gcs_server", "--redis_address="], {})
    assert not is_durable(["gcs_server"], {"RAY_gcs_storage": "memory"})
    with pytest.raises(FabricError, match="no GCS with port 1 runs on this host"):
        gcs_process(1)


LISTENS = (
    "import os, socket, sys, time\n"
    "it = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "open(sys.argv[2], 'a').write(os.environ['TOLD'] + '\\n')\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[HeadCommand]:
    """A GCS that is none; it ends with its raylet, which is `sleep`."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with subprocess.Popen(["sleep", "600"]) as raylet:
        command = [sys.executable, "-c", LISTENS, str(port), str(tmp_path / "began")]
        environment = {"PATH": os.environ["PATH"], "TOLD": "here"}
        try:
            yield HeadCommand(port, raylet.pid, command, environment)
        finally:
            raylet.kill()


def began(head: HeadCommand) -> int:
    path = Path(head.command[-1])
    return path.read_text().count("here\n") if path.exists() else 0


def test_the_guard_starts_the_head_when_the_drill_was_killed(head: HeadCommand) -> None:
    """A process that holds the guard's input, as the drill does, and is killed."""
    with subprocess.Popen(["sleep", "600"]) as killed:
        program = (
            "import os, sys, time; from raylay.services.fabric.cluster.head_process import *\n"
            f"guard_gcs(HeadCommand({head.port}, {head.raylet}, {head.command!r}, "
            f"{head.environment!r}), 600.0, {killed.pid})\n"
            "print('begun', flush=True); time.sleep(600)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as drill:
            assert drill.stdout is not None and drill.stdout.readline()
            killed.kill()  # and nobody waits for it: a zombie is no GCS
            assert not await_head(head.port, 0.5)
            drill.kill()
            drill.stdout.read()
        assert await_head(head.port, WAIT_S)
    assert began(head) == 1


def test_the_guard_starts_none_beside_one_that_lives(head: HeadCommand) -> None:
    """The drill died before it killed it."""
    guard = guard_gcs(head, 600.0, head.raylet)
    let_start(guard)
    assert guard.wait(WAIT_S) is not None
    assert not began(head)


def test_the_guard_starts_the_head_after_its_time(head: HeadCommand) -> None:
    guard = guard_gcs(head, 0.1, 0)
    assert await_head(head.port, WAIT_S)
    let_start(guard)


def test_a_killed_head_comes_back_when_the_step_is_over(
    head: HeadCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**head.environment, "RAY_gcs_storage": "rocksdb"}
    step = FaultStep.model_validate({"fault": "kill_gcs", "for": "60s"})
    with subprocess.Popen(["sleep", "600"]) as gcs:
        found = gcs.pid, head.command, environment
        monkeypatch.setattr(head_faults, "gcs_port", lambda: head.port)
        monkeypatch.setattr(head_faults, "gcs_process", lambda port: found)
        monkeypatch.setattr(head_faults, "raylet_pid", lambda port: head.raylet)
        fabric = SimpleNamespace(directory=tmp_path)
        places: Any = SimpleNamespace(fabric=fabric)
        killer = head_faults.HeadFault(places, kill=True)
        killer.inject(step, FaultHit(""))
        assert gcs.wait(WAIT_S) == -9 and (tmp_path / HEAD_FILE).exists() and not began(head)
    killer.heal(step, FaultHit(""))
    assert began(head) == 1 and not (tmp_path / HEAD_FILE).exists()


def test_what_a_killed_drill_and_its_guard_left_is_started_from_the_file(
    head: HeadCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_faults, "GUARD_S_MAX", 0.1)
    assert bring_head_back(tmp_path) == []
    head.keep(tmp_path / HEAD_FILE)
    path = tmp_path / HEAD_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert bring_head_back(tmp_path) == [f"Ray's GCS runs again, on port {head.port}"]
    assert began(head) == 1 and not path.exists()
    head.keep(tmp_path / HEAD_FILE)
    assert bring_head_back(tmp_path)
    assert began(head) == 1, "it runs"
    path.write_text("{")
    (told,) = bring_head_back(tmp_path)
    assert "cannot be read" in told


def test_what_was_put_aside_is_found(tmp_path: Path) -> None:
    for name in ("A-1", "A-1.lost-by-drill-7", "A-1.lost-by-drill-8", "A-10.lost-by-drill-7"):
        (tmp_path / name).mkdir()
    found = [Path(path).name for path in faults.lost_disks(tmp_path / "A-1")]
    assert found == ["A-1.lost-by-drill-7", "A-1.lost-by-drill-8"]


# -- the command ---------------------------------------------------------------------------------
def test_the_list_names_every_scenario() -> None:
    told = json.loads(CliRunner().invoke(app, ["drill", "--list", "--json"]).stdout)
    assert {each["scenario"] for each in told} == set(built_in())
    shown = CliRunner().invoke(app, ["drill", "--list"])
    assert shown.exit_code == 0
    assert "kill-instance" in shown.output and "bad-day" in shown.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a scenario"),
        (["meteor"], "no scenario is called 'meteor'"),
        (["kill-instance"], "no fabric runs here: start one"),
        (["kill-instance", "--fabric", "none"], "no fabric none runs here"),
        (["kill-instance", "--rate", "0"], "rate"),
    ],
)
def test_what_could_not_run_ends_with_2(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path))
    shown = CliRunner().invoke(app, ["drill", *arguments])
    assert shown.exit_code == 2
    assert told in shown.output + shown.stderr


def test_a_file_of_a_fabric_that_is_not_marked_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path))
    path = tmp_path / "f.yaml"
    path.write_text("fabric: f\nregions: {A: 2}\n")
    shown = CliRunner().invoke(app, ["drill", "kill-link", "--fabric", str(path)])
    assert shown.exit_code == 2
    assert "fabric f: this fabric is not marked for drills" in shown.output + shown.stderr


# -- what is hit ---------------------------------------------------------------------------------
class Asked(Fabric):
    """Answers for its status what it is given, one after another."""

    answers: ClassVar[list[Any]] = []

    def on_node_of(self, name: str, function: Any, *arguments: Any, timeout_s: float = 60) -> Any:
        return 0, "elsewhere"

    def ask(self, name: str, verb: str, *arguments: Any, timeout_s: float = 5) -> Any:
        found = self.answers.pop(0)
        if isinstance(found, FabricError):
            raise found
        return found

    def control(self, name: str, call: str, *, timeout_s: Any = None, **arguments: Any) -> Any:
        return self.ask(name, call)


def test_a_link_that_is_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its instance does not answer, then has started, then has started it."""
    monkeypatch.setattr(faults, "POLL_S", 0.0)
    places = FaultPlaces(Asked("shops").region("near", instances=2))
    away, here = FabricError("it stands still"), {"destinations": {"near-2": {"pid": 7}}}
    Asked.answers = [away, {"destinations": {}}, {"destinations": {"near-2": {"pid": 0}}}, here]
    assert places.link_pid("near-1", "near-2") == 7 and not Asked.answers
    monkeypatch.setattr(faults, "RUNS_S_MAX", -1.0)
    for answer, told in ((away, "stands still"), ({}, "link near-2 of near-1 has no process now")):
        Asked.answers = [answer]
        with pytest.raises(FabricError, match=told):
            places.link_pid("near-1", "near-2")


@pytest.mark.parametrize("fault", ["stop", "full_disk"])
def test_an_instance_that_is_being_started_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """`bad-day` on a busy machine: SIGSTOP of one that had just been killed."""
    monkeypatch.setattr(faults, "POLL_S", 0.0)
    fabric = Asked("shops").region("near", instances=2)
    places = FaultPlaces(fabric)
    breaker = faults.StopProcess(places) if fault == "stop" else faults.InternalFault(places)
    Asked.answers = [FabricError("the actor is restarting"), {"pid": 7}, *["done"] * 99]
    step = FaultStep.model_validate({"fault": fault, "target": "near-1", "for": "5s"})
    hit = FaultHit(fault, instances=("near-1",))
    breaker.inject(step, hit)
    assert len(Asked.answers) == 99 - (fault == "full_disk")
    breaker.heal(step, hit)


# -- a fabric that is stopped meanwhile ----------------------------------------------------------
def test_a_fabric_that_is_stopped_ends_its_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_module, "REGISTERED_S", 0.0)
    entry = registry.RegistryEntry("shops", "/x", "127.0.0.1:1")
    found: list[registry.RegistryEntry | None] = [entry, entry, None]
    monkeypatch.setattr(registry, "find", lambda name: found.pop(0))
    drill = Drill(declared("allowed"), find("kill-link"))
    mended = []

    async def course() -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            mended.append(True)

    with pytest.raises(FabricError, match="fabric shops was stopped while the drill went on"):
        asyncio.run(drill._while_it_runs(course()))
    assert mended and not found


def test_a_drill_of_a_fabric_that_stays_ends_as_it_ends(tmp_path: Path) -> None:
    drill = Drill(declared("allowed"), find("kill-link"))

    async def course() -> Any:
        return 7

    assert asyncio.run(drill._while_it_runs(course())) == 7


# -- a disk that may be lost ---------------------------------------------------------------------
LINK = {
    "peer": "near-2", "group": "near", "connected": True, "caught_up": True, "sync": True,
    "unacked": 0,
}  # fmt: skip


def said(**link: Any) -> dict[str, Any]:
    far = {**LINK, "peer": "far-1", "group": "far", "sync": False, "unacked": 7}
    return {
        "name": "near-1", "group": "near", "pid": 7, "committed_txid": 9,
        "destinations": {"near-2": {**LINK, **link}, "far": far},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ({"connected": False}, "near-1 to near-2: connected False"),
        ({"caught_up": False}, "near-1 to near-2: caught_up False"),
        ({"sync": False}, "near-1 to near-2: sync False"),
        ({"unacked": 3}, "near-1 to near-2: unacked 3"),
        ({"peer": "far-2", "group": "far"}, "near-1 has no link to near-2"),
    ],
)
def test_a_disk_that_alone_has_what_was_acknowledged_is_not_taken(
    link: dict[str, Any], told: str
) -> None:
    """The links of the one that loses its disk tell what others lack; other regions do not."""
    assert faults.not_elsewhere(said(**link), ["near-2"]) == [told]
    assert faults.not_elsewhere(said(), ["near-2"]) == []


def test_a_disk_is_lost_only_when_the_region_has_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(faults, "POLL_S", 0.0)
    monkeypatch.setattr(faults, "RUNS_S_MAX", -1.0)
    monkeypatch.setattr(Asked, "data_directory", lambda *_: tmp_path / "near-1")
    places = FaultPlaces(Asked("shops").region("near", instances=2))
    places._here = dict.fromkeys(places.names, True)
    step = FaultStep.model_validate({"fault": "lose_disk", "target": "near-1"})
    back = {"destinations": {"near-1": {**LINK, "peer": "near-1"}}}
    Asked.answers = [said(sync=False), back, said(sync=False)]
    breaker = faults.LoseDisk(places, "1", lambda _: [])
    with pytest.raises(FabricError, match=r"near-1 acknowledged .*nothing was broken"):
        breaker.inject(step, FaultHit("near-1", instances=("near-1",)))
    assert not Asked.answers and not [*tmp_path.iterdir()]
