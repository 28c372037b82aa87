"""services/drills/scenario.py: steps as data, their errors, and what their targets mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.drills.faults import line_of
from raylay.services.drills.scenario import (
    FAULTS,
    DrillScenario,
    FaultStep,
    Targets,
    built_in,
    find,
    load,
    parse,
)
from raylay.services.errors import ConfigurationError

pytestmark = pytest.mark.covers("Drills", "steps as data, their errors")


def a_step(**values: Any) -> FaultStep:
    return parse({"name": "x", "steps": [values]}, "x").steps[0]


# -- data ----------------------------------------------------------------------------------------
def test_every_fault_is_in_a_scenario_that_comes_with_raylay() -> None:
    used = {step.fault for scenario in built_in().values() for step in scenario.steps}
    assert used == set(FAULTS) - {"stop_link"}
    assert all(scenario.about for scenario in built_in().values())


def test_a_file_is_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "Two Cuts.yaml"
    path.write_text(
        "about: The cable fails twice.\n"
        "before: 2s\n"
        "load: {rate: 50, publishers: 2}\n"
        "steps:\n"
        "  - {at: 0s, fault: cut, target: Chicago <-> London, for: 10s}\n"
        "  - {at: 1500ms, fault: clock_jump, target: serving, offset: -2h, for: 3s}\n"
    )
    scenario = find(str(path))
    assert scenario == load(path)
    assert (scenario.name, scenario.load.publishers, scenario.before_ms) == ("two-cuts", 2, 2_000)
    assert scenario.steps[1].offset_ms == -7_200_000
    assert scenario.faults_ms == 10_000
    assert scenario.seconds == 2 + 10 + 8
    assert scenario.steps[1].sentence("A-1") == "clock of A-1 set by -2h for 3s"


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"fault": "kill"}, "step 2: no fault is called 'kill': there are kill_instance, "),
        ({"fault": "stop"}, "step 2: stop needs `for`, its duration, such as 10s"),
        ({"fault": "kill_link", "for": "3s"}, "kill_link happens at one moment: remove `for`"),
        ({"fault": "stop", "for": "5"}, "step 2, for: expected a time such as 500ms or 10s"),
        ({"fault": "stop", "for": "11m"}, "stop lasts 11m: at most 10m"),
        (
            {"fault": "stop", "for": "5s", "delay": "1ms"},
            "stop takes no `delay`; its options: none",
        ),
        ({"fault": "slow", "for": "5s"}, "slow needs one of delay, loss, bytes_per_s"),
        ({"fault": "slow", "for": "5s", "loss": 1.5}, "step 2, loss: "),
        ({"fault": "stop_gcs", "for": "5s", "target": "A"}, "stop_gcs has no target"),
        (
            {"fault": "stop", "lasts": "5s"},
            "step 2, lasts: this key is unknown here: expected at, ",
        ),
        ({"fault": "clock_jump", "for": "5s", "offset": "soon"}, "step 2, offset: "),
        ({"at": "1s"}, "step 2, fault: is missing"),
        ({"fault": "kill_link", "at": "9999999d"}, "step 2: `at` is 9999999d: at most 1d"),
        ({"fault": "kill_link", "at": "9" * 400 + "d"}, "step 2, at: this time is too long a nu"),
        ({"fault": "slow", "for": "5s", "delay": "9999d"}, "`delay` is 9999d: at most 1m"),
        ({"fault": "slow", "for": "5s", "loss": 0.9999999}, "step 2, loss: "),
        ({"fault": "slow", "for": "5s", "loss": "nan"}, "step 2, loss: "),
        ({"fault": "clock_jump", "for": "5s", "offset": "-25000d"}, "`offset` is 25000d: at most "),
        ({"fault": "clock_jump", "for": "5s", "offset": True}, "step 2, offset: expected a time"),
        ({"fault": "clock_jump", "for": "5s", "offset": 5}, "step 2, offset: expected a time"),
        ({"fault": "slow_consumer", "for": "5s", "memory": "much"}, "step 2, memory: "),
        ({"fault": "slow_consumer", "for": "5s", "delay": "1s"}, "its options: memory, disk"),
        ({"fault": "stop", "for": "5s", "disk": "1MB"}, "stop takes no `disk`; its options: none"),
    ],
)
def test_an_error_names_the_step_and_what_is_allowed(step: dict[str, Any], told: str) -> None:
    good = {"fault": "kill_link"}
    with pytest.raises(ConfigurationError) as found:
        parse({"name": "x", "steps": [good, step]}, "x.yaml")
    assert told in str(found.value)
    assert str(found.value).startswith("x.yaml: step 2")
    assert "\n" not in str(found.value), "one line for one mistake"


@pytest.mark.parametrize("name", ["slow-consumer", "kill-consumers"])
def test_faults_of_clients_need_clients_of_the_drill(name: str, targets: Targets) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"{name} hits clients of the drill's own: run it with `publishers` of at least 1",
    ):
        find(name).with_own_load()
    step = find(name).steps[0]
    values = {"name": "x", "load": {"publishers": 0}, "steps": [step.model_dump(by_alias=True)]}
    with pytest.raises(ConfigurationError, match=f"{step.fault} needs a load of the drill's own"):
        parse(values, "x")
    assert targets.resolve(step).region == "A"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"steps": {"fault": "kill_link"}}, "steps: expected a list of steps, such as"),
        ({"steps": []}, "steps: there are 0 steps: give 1 to 100"),
        ({"steps": [{"fault": "kill_link"}] * 20_000}, "steps: there are 20,000 steps: give 1 to"),
        (
            {"steps": [{"fault": "kill_link"}], "before": "9999999d"},
            "`before` is 9999999d: at most",
        ),
        ({"steps": [{"fault": "kill_link"}], "after": "2h"}, "`after` is 2h: at most 1h"),
    ],
)
def test_an_error_of_the_whole_says_what_is_allowed(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        parse({"name": "x", **values}, "x.yaml")
    assert str(found.value).startswith(f"x.yaml: {told}")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps:\n  - {fault: kill_link, at: 1s, at: 2s}\n", "at is given twice"),
        ("before: 1s\nsteps: []\nbefore: 2s\n", "before is given twice.*line 3"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_yaml_would_take_silently_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"x\.yaml.*{told}"):
        load(path)


@pytest.mark.parametrize("text", ["- a\n", "steps: 5\n", "steps: []\n", "a: [\n", "\x00"])
def test_a_file_that_is_no_scenario_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"x\.yaml"):
        load(path)


def test_a_slow_consumer_says_what_slow_clients_may_have() -> None:
    first, second = find("slow-consumer").steps
    assert first.sentence("A") == (
        "a subscriber in A reads nothing for 25s; slow clients may have 10MiB of memory"
    )
    assert second.sentence("A").endswith("may have 10MiB of memory and 6MiB on disk")
    plain = a_step(fault="slow_consumer", **{"for": "1s"})
    assert plain.sentence("A") == "a subscriber in A reads nothing for 1s"


def test_a_name_that_is_none_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'meteor'.*kill-instance, .*bad-day"):
        find("meteor")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        find("none.yaml")


def test_target_and_rate_can_be_chosen() -> None:
    scenario = find("kill-instance").with_target("B-2").with_rate(7.0)
    assert scenario.steps[0].target == "B-2"
    assert scenario.load.rate_per_s == 7.0
    with pytest.raises(ConfigurationError, match="rate"):
        scenario.with_rate(0.0)
    with pytest.raises(ConfigurationError, match="stop_gcs has no target"):
        find("stop-gcs").with_target("bogus")
    for each in built_in().values():
        if each.steps[0].kind.target != "none":
            changed = each.with_target("B-2")
            assert changed.steps[0].model_copy(update={"target": ""}) == each.steps[0].model_copy(
                update={"target": ""}
            )


# -- targets -------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def targets() -> Targets:
    builder = FabricBuilder("f")
    for region in ("A", "B", "C"):
        builder.region(region, 2)
    builder.connect_regions("async")
    return Targets(builder.settings(), "A-1")


@pytest.mark.parametrize(
    ("target", "name"),
    [("", "A-1"), ("serving", "A-1"), ("partner", "A-2"), ("C-2", "C-2")],
)
def test_an_instance(targets: Targets, target: str, name: str) -> None:
    hit = targets.resolve(a_step(fault="stop", target=target, **{"for": "1s"}))
    assert (hit.text, hit.instances) == (name, (name,))


def test_a_link(targets: Targets) -> None:
    hit = targets.resolve(a_step(fault="kill_link", target="partner -> serving"))
    assert hit.ways == (("A-2", "A-1", True),)
    assert hit.text == "A-2 to A-1"
    assert targets.resolve(a_step(fault="kill_link")).text == "A-1 to A-2"


def test_all_links_between_two_regions(targets: Targets) -> None:
    hit = targets.resolve(a_step(fault="cut", target="region 1 <-> C", **{"for": "1s"}))
    assert hit.both
    assert [way for way in hit.ways if way[2]] == [("A-1", "C", True), ("A-2", "C", True)]
    assert [way for way in hit.ways if not way[2]] == [("C-1", "A", False), ("C-2", "A", False)]


def test_one_way_and_the_rest(targets: Targets) -> None:
    hit = targets.resolve(a_step(fault="drop", target="B -> rest", **{"for": "1s"}))
    assert not hit.both
    assert {way[:2] for way in hit.ways if way[2]} == {
        (name, to) for name in ("B-1", "B-2") for to in ("A", "C")
    }
    assert {way[:2] for way in hit.ways if not way[2]} == {
        (name, "B") for name in ("A-1", "A-2", "C-1", "C-2")
    }


def test_the_host_of_a_region(targets: Targets) -> None:
    assert targets.resolve(a_step(fault="kill_node")).instances == ("A-1", "A-2")
    assert targets.resolve(a_step(fault="kill_node", target="B-1")).instances == ("B-1",)


@pytest.mark.parametrize(
    ("fault", "target", "told"),
    [
        (
            "stop",
            "X-9",
            r"stop: 'X-9' is not an instance of this fabric: A-1, .*regions are A, B, C",
        ),
        ("cut", "A", "does not name two sides"),
        ("cut", "A <-> A-1", "A-1 is on both sides"),
        ("cut", "region 4 <-> A", r"there is no region 4: this fabric has 3 \(A, B, C\)"),
        ("slow_consumer", "A-1", "'A-1' is not a region"),
        ("stop_link", "A-1 -> A-1", "on both"),
    ],
)
def test_a_target_that_is_not_there(targets: Targets, fault: str, target: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        targets.resolve(a_step(fault=fault, target=target, **{"for": "1s"}))


def test_who_is_alone_has_no_partner() -> None:
    builder = FabricBuilder("f").region("A", 1)
    with pytest.raises(ConfigurationError, match="A-1 is the only instance of its region"):
        Targets(builder.settings(), "A-1").resolve(a_step(fault="kill_link"))


# -- lines ---------------------------------------------------------------------------------------
def test_what_one_side_sends_is_lost_on_its_own_links_and_on_the_way_back_of_the_others() -> None:
    step = a_step(fault="drop", **{"for": "1s"})
    assert line_of(step, forward=True, both=False) == {
        "mode": "dropped",
        "out": True,
        "back": False,
    }
    assert line_of(step, forward=False, both=False) == {
        "mode": "dropped",
        "out": False,
        "back": True,
    }
    assert line_of(step, forward=False, both=True) == {"mode": "dropped", "out": True, "back": True}


def test_a_cut_of_one_way_leaves_the_other_way_alone() -> None:
    step = a_step(fault="cut", **{"for": "1s"})
    assert line_of(step, forward=True, both=False) == {"mode": "cut"}
    assert line_of(step, forward=False, both=False) == {}
    slow = a_step(fault="slow", delay="40ms", loss=0.01, **{"for": "1s"})
    assert line_of(slow, forward=False, both=True)["delay_ms"] == 40


def test_a_scenario_is_told_as_it_was_written() -> None:
    for scenario in built_in().values():
        again = DrillScenario.model_validate(scenario.model_dump(mode="json", by_alias=True))
        assert again == scenario
