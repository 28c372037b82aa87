"""A shell that keeps to the engine's word about late records: it asks when a timer says so, when a
message comes and when a step is done, and never else. Each record that stays begins one run."""

from __future__ import annotations

import heapq
import random
from itertools import count

import pytest

from raylay.services.actions.engine import ActionEngine, StepRequest, StepResult
from raylay.services.actions.message_triggers import TriggerMessage, message_triggers
from raylay.services.actions.model import ActionDefinition, ActionModule

SECOND_US = 1_000_000
WALL_US = 1_700_000_000 * SECOND_US
RECORDS = 60
TURNS_MAX = 50 * RECORDS

_ON = ActionModule(
    "on", "message-condition-timeout", (("Topic", "t"), ("MessageType", "json"), ("Duration", "5s"))
)
_EVEN = ActionModule("if", "condition", (("Condition", "{{AMPS_DATA}} % 2 = 0"),))
_COUNT = ActionModule("do", "increment-counter", (("Key", "late"), ("Value", "N")))
_SHELL = ActionModule("do", "publish-message", (("Data", "{{AMPS_DATA}}"),))
ACTIONS = {
    "shell": (_SHELL, _SHELL),
    "pure": (_COUNT,),
    "even": (_COUNT, _EVEN, _SHELL),
}


class Shell:
    """The process that performs the actions, with its timer and its steps."""

    def __init__(self, chance: random.Random, names: list[str]) -> None:
        self._chance = chance
        actions = tuple(ActionDefinition(name, (_ON,), ACTIONS[name]) for name in names)
        self.engine = ActionEngine(actions, instance_name="i", seed_us=WALL_US, waiting_max=3)
        (self.trigger,) = self.triggers = message_triggers(actions)
        self.now_us = 0
        self.timer_us: int | None = None
        self.performing: list[tuple[int, int, StepRequest]] = []
        self.published: dict[str, list[str]] = {name: [] for name in names}
        self.turns = 0
        self._numbers = count()

    def turn(self) -> None:
        self.turns += 1
        assert self.turns < TURNS_MAX, "the timer spins"
        self.timer_us = self.engine.begin_due(self.triggers, self.now_us)
        while (asked := self.engine.take()) is not None:
            ends_us = self.now_us + self._chance.choice((0, 10, SECOND_US))
            heapq.heappush(self.performing, (ends_us, next(self._numbers), asked))

    def arrives(self, kind: str, number: int, age_us: int = 0) -> None:
        message = TriggerMessage(
            kind,
            "t",
            "json",
            b"%d" % number,
            key=b"%d" % number,
            timestamp_us=WALL_US + self.now_us - age_us,
            reason="match" if kind == "oof" else "",
        )
        self.trigger.message(message, self.now_us, WALL_US + self.now_us)

    def wait(self, until_us: int) -> None:
        """Lets everything happen that the timer and the steps say, up to a time."""
        while True:
            times = [each for each in (self.timer_us,) if each is not None]
            times += [self.performing[0][0]] if self.performing else []
            if not times or min(times) > until_us:
                break
            self.now_us = max(self.now_us, min(times))
            if self.performing and self.performing[0][0] <= self.now_us:
                _, _, asked = heapq.heappop(self.performing)
                if asked.step == len(ACTIONS[asked.action]) - 1:
                    self.published[asked.action].append(asked.option("Data"))
                self.engine.done(asked.run, StepResult(True), self.now_us)
            self.turn()
        self.now_us = max(self.now_us, until_us)


@pytest.mark.covers("Actions", "On Message Condition Timeout")
@pytest.mark.parametrize("names", [["shell"], ["pure"], ["even"], ["even", "pure", "shell"]])
@pytest.mark.parametrize("seed", range(10))
def test_each_late_record_begins_one_run(names: list[str], seed: int) -> None:
    chance = random.Random(seed)
    shell = Shell(chance, names)
    # Some are late when the subscription begins, with one delivery; others come one by one.
    stays = list(range(RECORDS // 2))
    for number in stays:
        shell.arrives("sow", number, chance.randrange(3, 30) * SECOND_US)
    shell.turn()
    shell.wait(shell.now_us + 3600 * SECOND_US)
    assert {status.runs for status in shell.engine.status()} == {len(stays)}
    for number in range(RECORDS // 2, RECORDS):
        shell.wait(shell.now_us + chance.choice((0, 10, SECOND_US)))
        shell.arrives("publish", number)
        shell.turn()
        if chance.random() < 0.3:
            shell.wait(shell.now_us + chance.randrange(4 * SECOND_US))
            shell.arrives("oof", number)
            shell.turn()
        else:
            stays.append(number)
    shell.wait(shell.now_us + 3600 * SECOND_US)
    assert shell.engine.is_idle
    for status in shell.engine.status():
        assert (status.runs, status.dropped) == (len(stays), 0), status.name
    for name in names:
        wanted = [each for each in stays if name == "shell" or (name, each % 2) == ("even", 0)]
        assert sorted(map(int, shell.published[name])) == wanted
