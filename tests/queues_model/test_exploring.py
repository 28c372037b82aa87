"""Production machines of queues in a tiny world: random schedules by seed, those made by hand, and
mistakes that both must catch."""

from __future__ import annotations

from typing import Any

import pytest

from queues_model.exploring import Ran, explore, play
from queues_model.instance import Rules
from queues_model.mistakes import MISTAKES
from queues_model.schedules import SCHEDULES, Schedule
from raylay.services.messages.records import Command

pytestmark = pytest.mark.covers("Queues", "in the simulator")

SEEDS = 24
MANY_SEEDS, MANY_WORLDS = (
    600,
    [
        {},
        {"at_most_once": True},
        {"group_local": True},
        {"one_never_returns": True},
        {"narrow": "messages", "trims": True},
        {"narrow": "messages", "one_never_returns": True},
        {"narrow": "all", "trims": True, "at_most_once": True},
        {"narrow": "all", "trims": True, "group_local": True},
    ],
)
CATCHING = {schedule.catches: schedule for schedule in reversed(SCHEDULES) if schedule.catches}


class Told(Rules):
    """Names of incarnations are told by links, as if nobody wrote a herald: the journals of
    schedules made by hand have what these say, and nothing else."""

    announces = False


def played(schedule: Schedule, rules: type[Rules]) -> Ran:
    """What comes of a schedule made by hand."""
    told = type(rules.__name__, (rules,), {"announces": False})
    return play(
        schedule.topology,
        schedule.steps,
        told(),
        final=schedule.final,
        dead=schedule.dead,
        proxy=schedule.proxy,
        at_most_once=schedule.at_most_once,
        initial_owner=schedule.initial_owner,
        narrow=schedule.narrow,
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=[each.name for each in SCHEDULES])
def test_a_schedule_made_by_hand(schedule: Schedule) -> None:
    ran = played(schedule, Rules)
    assert ran.violation == ""
    if schedule.catches:
        assert played(schedule, MISTAKES[schedule.catches].rules).violation


def test_random_schedules() -> None:
    kinds: set[str] = set()
    commands: set[int] = set()
    for seed in range(SEEDS):
        rules = Rules() if seed % 2 else Told()
        world: dict[str, Any] = {"at_most_once": seed % 8 == 3, "group_local": seed % 8 == 5}
        narrow = ("", "messages", "all")[seed % 3]
        ran = explore(seed, rules, narrow=narrow, trims=seed % 4 == 2, **world)
        assert ran.violation == "", f"seed {seed}: {ran.violation}"
        kinds.update(action[0] for action in ran.world.log)
        for instance in ran.world.instances.values():
            commands.update(run.payload[13] for run in instance.disk.runs)
    # They have what they are for.
    assert kinds >= {"crash", "restart", "qcrash", "fail", "cut", "losedisk", "cjoin", "pfail"}
    assert kinds >= {"deliver", "request", "ack", "cancel", "timer"}
    records = {Command.TRANSFER, Command.QUEUE_REMOVAL, Command.QUEUE_ACKNOWLEDGMENT}
    assert commands == records | {Command.PUBLISH}


def test_each_mistake_is_caught_by_a_schedule_made_by_hand_or_by_seeds() -> None:
    for name, mistake in MISTAKES.items():
        assert name in CATCHING or mistake.seeds, name
    assert set(CATCHING) <= set(MISTAKES)


@pytest.mark.slow
@pytest.mark.parametrize("world", MANY_WORLDS, ids=lambda world: "".join(world) or "plain")
def test_many_random_schedules(world: dict[str, Any]) -> None:
    for seed in range(10_000, 10_000 + MANY_SEEDS):
        ran = explore(seed, Rules() if seed % 2 else Told(), **world)
        assert ran.violation == "", f"seed {seed}: {ran.violation}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.seeds])
def test_random_schedules_catch(name: str) -> None:
    mistake = MISTAKES[name]
    for seed in range(mistake.seeds):
        if explore(seed, mistake.rules(), without=mistake.without, **mistake.worlds).violation:
            return
    pytest.fail(f"{name} is not caught by {mistake.seeds} seeds")
