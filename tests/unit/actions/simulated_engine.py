"""A seeded simulation of the engine of actions beside a model of it.

Occurrences, schedules, slow, failing and repeated results, and restarts come in an order that the
seed draws. Each occurrence has an id, and each result of a step is a function of seed, id and step,
so that the model can say beforehand which steps each occurrence leads to, over the events of its
actions. `simulate` compares:

- every action has at most one step at the shell, and none waits while the shell has nothing of it;
- the steps of a run come in order, and end behind a failure, a stop or a condition that is false;
- runs come in the order of their occurrences;
- of each occurrence exactly the expected steps come, dropped ones and stopped chains aside;
- counters count the runs; what waits keeps its bound; all counts add up.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

from raylay.services.actions.engine import DEPTH_MAX, ActionEngine, StepRequest, StepResult
from raylay.services.actions.model import ActionDefinition, ActionModule, Occurrence

WAITING_MAX = 20
SECOND_US = 1_000_000
WALL_US = 1_700_000_000 * SECOND_US
TICK = "tick"
"""Id of the runs that a schedule begins."""


def _do(module: str, **options: str) -> ActionModule:
    return ActionModule("do", module, tuple(options.items()))


def _on(module: str, **options: str) -> ActionModule:
    return ActionModule("on", module, tuple(options.items()))


_SHELL = _do("publish-message", Data="{{ID}}")
_HAND_ON = _do("translate-data", Data="{{ID}}>", Value="ID")


def _raise(event: str) -> ActionModule:
    return _do("execute-event", Event=event)


ACTIONS = (
    ActionDefinition("plain", (_on("connect-client"),), (_SHELL, _SHELL)),
    ActionDefinition(
        "counted",
        (_on("connect-client"), _on("logon-client")),
        (_do("increment-counter", Key="runs", Value="COUNT"), _do("echo", Data="{{ID}} {{COUNT}}")),
    ),
    ActionDefinition(
        "guarded",
        (_on("logon-client"),),
        (_SHELL, ActionModule("if", "condition", (("Condition", "{{V}} >= 5"),)), _SHELL),
    ),
    ActionDefinition("raising", (_on("offline-start"),), (_SHELL, _HAND_ON, _raise("e"), _SHELL)),
    ActionDefinition("raised", (_on("execute-event", Event="e"),), (_SHELL, _HAND_ON, _raise("f"))),
    ActionDefinition(
        "looping", (_on("execute-event", Event="f"),), (_HAND_ON, _raise("f"), _SHELL)
    ),
    ActionDefinition("scheduled", (_on("schedule", Every="10s"),), (_SHELL,)),
)
STARTS = {
    "connect-client": ("plain", "counted"),
    "logon-client": ("counted", "guarded"),
    "offline-start": ("raising",),
    "e": ("raised",),
    "f": ("looping",),
}
NAMES = tuple(action.name for action in ACTIONS)


@dataclass
class _Life:
    """One start of the engine: what it was told, and what came of it."""

    engine: ActionEngine
    accepted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, int] = field(default_factory=dict)
    steps: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    at_shell: dict[str, StepRequest] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    counted: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)


class SimulatedEngine:
    """See the file's docstring."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._now_us = 0
        self._ids = 0
        self._life = self._begun()

    def run(self, steps: int) -> None:
        """Performs a number of random steps, then lets everything end, and compares."""
        choices = (
            [self._occurs] * 4
            + [self._take] * 4
            + [self._answer] * 5
            + [self._rings, self._repeats]
        )
        for _ in range(steps):
            self._now_us += self._random.randrange(SECOND_US)
            if self._random.random() < 0.002:
                self._compare(is_over=False)
                self._life = self._begun()
            self._random.choice(choices)()
            self._check_bounds()
        self._drain()
        self._compare(is_over=True)

    def _begun(self) -> _Life:
        engine = ActionEngine(
            ACTIONS, instance_name="london-1", seed_us=WALL_US, waiting_max=WAITING_MAX
        )
        engine.ring(self._now_us, WALL_US + self._now_us)
        return _Life(engine)

    # What happens.

    def _occurs(self) -> None:
        life = self._life
        kind = self._random.choice(("connect-client", "logon-client", "offline-start"))
        if kind == "offline-start" and self._random.random() < 0.7:
            return
        self._ids += 1
        name, value = f"o{self._ids}", self._random.randrange(10)
        before = {each.name: each.dropped for each in life.engine.status()}
        begun = life.engine.occurred(Occurrence(kind, {"ID": name, "V": str(value)}), self._now_us)
        after = {each.name: each.dropped for each in life.engine.status()}
        life.values[name] = value
        for action in STARTS[kind]:
            life.offered[action] += 1
            if after[action] == before[action]:
                life.accepted[action].append(name)
                begun -= 1
        assert begun == 0, "occurred() told another number of runs"

    def _rings(self) -> None:
        life = self._life
        waiting = _waiting(life)["scheduled"]
        if life.engine.ring(self._now_us, WALL_US + self._now_us):
            assert not waiting, "a schedule began a run while its last one waited"
            life.accepted["scheduled"].append(TICK)
            life.offered["scheduled"] += 1

    def _take(self) -> None:
        life = self._life
        asked = life.engine.take()
        if asked is None:
            for name, waiting in _waiting(life).items():
                assert not waiting or name in life.at_shell, f"{name} waits for nothing"
            return
        assert asked.action not in life.at_shell, f"two steps of {asked.action} at one time"
        life.at_shell[asked.action] = asked
        name, _, count = asked.option("Data").partition(" ")
        if count:
            life.counted.append(int(count))
        life.steps[asked.action].append((name or TICK, asked.step))
        assert 1 <= asked.depth <= DEPTH_MAX
        assert asked.depth == name.count(">") + 1 - (asked.action in ("raising", "looping")) * (
            asked.step > 1
        ), "a step has another depth than the number of actions before it"

    def _answer(self) -> None:
        life = self._life
        if not life.at_shell:
            return
        asked = life.at_shell.pop(self._random.choice(sorted(life.at_shell)))
        name = asked.option("Data").partition(" ")[0] or TICK
        result = self._result(asked.action, name, asked.step)
        life.answered.append(asked.run)
        life.engine.done(asked.run, result, self._now_us)

    def _repeats(self) -> None:
        life = self._life
        if life.answered:
            run = self._random.choice(life.answered)
            # It may be at the shell again, with its next step.
            if all(asked.run != run for asked in life.at_shell.values()):
                life.engine.done(run, StepResult(False, "told twice"), self._now_us)

    def _drain(self) -> None:
        life = self._life
        while True:
            asked = len(life.at_shell)
            self._take()
            if len(life.at_shell) == asked:
                if not asked:
                    break
                self._answer()

    # What must come of it.

    def _result(self, action: str, name: str, step: int) -> StepResult:
        drawn = zlib.crc32(f"{self._seed} {action} {name} {step}".encode()) % 10
        if name != TICK and drawn == 0:
            return StepResult(False, "drawn to fail")
        return StepResult(True, stop=name != TICK and drawn == 1, variables={"SET": name})

    def _ends(self, action: str, name: str, step: int) -> bool:
        result = self._result(action, name, step)
        return result.stop or not result.ok

    def _expected(self, life: _Life, action: str, name: str) -> list[tuple[str, int]]:
        """The steps for the shell of one run."""
        if action == "plain":
            return [(name, 0)] if self._ends(action, name, 0) else [(name, 0), (name, 1)]
        if action == "counted":
            return [(name, 1)]
        if action == "guarded":
            goes_on = not self._ends(action, name, 0) and life.values[name] >= 5
            return [(name, 0), (name, 2)] if goes_on else [(name, 0)]
        if action == "raising":
            return [(name, 0)] if self._ends(action, name, 0) else [(name, 0), (f"{name}>", 3)]
        if action == "looping":
            return [(f"{name}>", 2)]
        return [(name, 0)]

    def _runs(self, life: _Life) -> dict[str, list[str]]:
        """The ids of all runs of each action that is not begun by a schedule, over the events."""
        runs = {name: list(life.accepted[name]) for name in NAMES}
        for name in runs["raising"]:
            if not self._ends("raising", name, 0):
                runs["raised"].append(f"{name}>")
        for name in runs["raised"]:
            # A chain goes on until it is as long as it may be.
            if not self._ends("raised", name, 0):
                runs["looping"] += [name + ">" * (more + 1) for more in range(DEPTH_MAX - 2)]
        return runs

    def _compare(self, *, is_over: bool) -> None:
        life = self._life
        runs = self._runs(life)
        for status in life.engine.status():
            name = status.name
            told = life.steps[name]
            expected = [step for run in runs[name] for step in self._expected(life, name, run)]
            if name != "looping":
                # In order; a life that did not end has a beginning of it.
                assert told == expected[: len(told)], f"{name}: other steps than expected"
            else:
                assert not set(told) - set(expected), f"{name}: steps that nobody expects"
            if is_over:
                assert sorted(told) == sorted(expected), f"{name}: steps are missing"
                assert status.runs == len(runs[name]), f"{name}: another number of runs"
                assert (status.waiting, status.waiting_bytes, status.step) == (0, 0, "")
            if name in ("plain", "counted", "guarded", "raising"):
                assert status.dropped == life.offered[name] - len(life.accepted[name])
        assert life.counted == list(range(1, len(life.counted) + 1)), "a counter left one out"
        if is_over:
            self._compare_ends(runs)

    def _compare_ends(self, runs: dict[str, list[str]]) -> None:
        found = {each.name: each for each in self._life.engine.status()}
        failures = {
            name: sum(
                not self._result(name, *step).ok
                for run in runs[name]
                for step in self._expected(self._life, name, run)
            )
            for name in NAMES
        }
        assert {name: each.failures for name, each in found.items()} == failures
        loops = sum(not self._ends("raised", name, 0) for name in runs["raised"])
        assert found["looping"].chains_stopped == loops
        events = self._life.engine.take_events()
        stopped = sum(each.count for each in events if each.kind == "chain_stopped")
        dropped = sum(each.count for each in events if each.kind == "occurrences_dropped")
        failed = sum(each.count for each in events if each.kind == "step_failed")
        assert (stopped, failed) == (loops, sum(failures.values()))
        assert dropped == sum(each.dropped for each in found.values())
        assert self._life.engine.is_idle

    def _check_bounds(self) -> None:
        for name, waiting in _waiting(self._life).items():
            assert waiting <= WAITING_MAX, f"{name} has {waiting} runs waiting"


def _waiting(life: _Life) -> dict[str, int]:
    return {each.name: each.waiting for each in life.engine.status()}


def simulate(seed: int, steps: int = 400) -> None:
    """Runs one seed.

    Raises:
        AssertionError: engine and model differ.
    """
    SimulatedEngine(seed).run(steps)
