"""The engine of actions: which runs begin, which step comes next, and what ends a run
(behaviour.md 8).

Pure: the process beside the instance tells it occurrences and the time, takes the steps that are to
be performed, and tells their results. Steps that need only variables are performed here.

    occurrence ─▶ waiting runs of each action ─▶ the action's one running run ─▶ take() ─▶ a step
                                                        ▲                                    │
                                                        └───────────── done(result) ◀────────┘

The runs of one action are performed one at a time, in the order of their occurrences; those of
several actions side by side. What waits is bounded: further occurrences are dropped and counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from raylay.services.actions.matching import OnMatcher
from raylay.services.actions.message_triggers import MessageTrigger, depth_of
from raylay.services.actions.model import (
    ActionDefinition,
    ActionModule,
    Occurrence,
    all_texts,
    last_text,
)
from raylay.services.actions.modules import definition_of
from raylay.services.actions.pure_steps import PureSteps, context_of
from raylay.services.actions.schedules import ScheduledActions
from raylay.services.actions.variables import (
    Lookup,
    expand,
    expand_command,
    expand_filter,
    expand_pattern,
    lookup,
)
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import Functions
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.messages.types.registry import MessageTypes

DEPTH_MAX = 8
"""Number of actions that may lead to one another: by custom events, or by messages that they
publish. A longer chain is taken for a loop."""
EVENTS_MAX = 1_000
"""Number of events that wait to be taken; of further ones only the number is kept."""
RUN_BYTES = 500
"""Approximate memory of a waiting run besides its variables."""
ERROR_CHARACTERS_MAX = 1_000
TELL_US = 1_000_000
"""Time, in microseconds, between two events of an action that tell what was not begun."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step that the shell performs.

    Attributes:
        run: number of the run, by which the result is told.
        action: name of the action.
        step: number of the step in its action, from 0.
        module: name of its module, without `amps-action-do-` or `amps-action-if-`.
        options: (name, text) of each option, with its variables expanded, in the written order.
        depth: number of actions that lead to what this step causes, its own action included.
        variables: all variables of the run but the built-in ones, for a function that the step
            calls.
        kind: `do` or `if`.
        parameters: parameters of the shell to which a command among the options refers.
    """

    run: int
    action: str
    step: int
    module: str
    options: tuple[tuple[str, str], ...]
    depth: int
    variables: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["if", "do"] = "do"
    parameters: Mapping[str, str] = field(default_factory=dict)

    def option(self, name: str, default: str = "") -> str:
        """Returns the last text that an option has."""
        return last_text(self.options, name, default)

    def every(self, name: str) -> tuple[str, ...]:
        """Returns all texts that an option has, in order."""
        return all_texts(self.options, name)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        ok: whether it was performed; otherwise its run ends.
        text: the reason why it was not, or a remark.
        variables: variables that it sets for the steps behind it.
        stop: whether the run ends without a failure: a condition that is not true.
    """

    ok: bool
    text: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    stop: bool = False


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that people should know of.

    Attributes:
        kind: `step_failed`, `occurrences_dropped` or `chain_stopped`.
        action: name of the action.
        text: sentence that says what happened, and what to do.
        count: number of times that it happened.
    """

    kind: Literal["step_failed", "occurrences_dropped", "chain_stopped"]
    action: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """The state of an action.

    Attributes:
        name: name of the action.
        runs: number of runs that have ended, failed ones included.
        failures: number of runs that ended because a step failed.
        dropped: number of occurrences that were dropped because too many runs waited, and of
            records that its trigger does not watch because there are too many.
        chains_stopped: number of occurrences that too many actions had led to.
        waiting, waiting_bytes: number of runs that wait, and their approximate memory.
        step: module of the step that the shell performs; empty: none.
        last_error: text of the last failure; empty: there was none.
        last_run_us: time at which the last run ended, microseconds since 1970; 0: none has.
    """

    name: str
    runs: int
    failures: int
    dropped: int
    chains_stopped: int
    waiting: int
    waiting_bytes: int
    step: str
    last_error: str
    last_run_us: int


class _Run:
    """One run of an action."""

    __slots__ = ("depth", "number", "size_bytes", "step", "variables")

    def __init__(
        self, number: int, variables: Mapping[str, str], depth: int, size_bytes: int
    ) -> None:
        self.number = number
        self.variables = variables
        self.depth = depth
        self.size_bytes = size_bytes
        self.step = 0


class _ActionState:
    """An action, its runs and its counts."""

    def __init__(self, definition: ActionDefinition) -> None:
        self.definition = definition
        self.waiting: deque[_Run] = deque()
        self.waiting_bytes = 0
        self.scheduled: _Run | None = None
        """The waiting run that a schedule began, if there is one."""
        self.current: _Run | None = None
        self.is_ready = False
        """Whether the action waits for its turn in the engine's list of those that can go on."""
        self.asked = ""
        self.runs = self.failures = self.dropped = self.chains_stopped = 0
        self.told_us: int | None = None
        self.untold_dropped = self.untold_untracked = self.untold_chains = 0
        self.last_error = ""
        self.last_run_us = 0


class ActionEngine:
    """See the file's docstring.

    Owner: the process that performs the actions; one thread. Lifecycle: one start; what waits when
    it ends is lost, and counters begin at 0 again.

    Args:
        actions: the actions of the instance.
        instance_name: name of the instance, for the variable AMPS_INSTANCE_NAME.
        seed_us: time by the wall clock at which the engine is made, microseconds since 1970. `ring`
            tells it anew.
        waiting_max: number of runs of one action that may wait.
        waiting_bytes_max: memory of all waiting runs. An action for which nothing waits may have
            one more run, whatever the others have.
        types: message types, for the values of messages.
        functions: functions of expressions.

    Raises:
        ConfigurationError: a topic is no regular expression.
        ValueError: a schedule has no time.
    """

    def __init__(
        self,
        actions: tuple[ActionDefinition, ...],
        *,
        instance_name: str,
        seed_us: int,
        waiting_max: int = 1_000,
        waiting_bytes_max: int = 64 * 1024 * 1024,
        types: MessageTypeTable | None = None,
        functions: Functions = BUILT_IN,
    ) -> None:
        self._instance_name = instance_name
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._seed_us = seed_us
        self._offset_us: int | None = None
        """Wall clock minus steady clock."""
        self._now_us = 0
        self._steps = PureSteps(MessageTypes() if types is None else types, functions)
        self._schedules = ScheduledActions(actions)
        self._states = [_ActionState(action) for action in actions]
        self._matchers: dict[str, list[tuple[_ActionState, OnMatcher]]] = {}
        for state in self._states:
            for on in state.definition.on:
                self._matchers.setdefault(on.module, []).append((state, OnMatcher(on)))
        self._ready: deque[_ActionState] = deque()
        self._asked: dict[int, _ActionState] = {}
        self._runs = 0
        self._events: list[EngineEvent] = []
        self._events_lost = 0

    @property
    def kinds(self) -> frozenset[str]:
        """Returns the kinds of occurrences that begin an action: the modules of all `on`."""
        return frozenset(self._matchers)

    def occurred(self, occurrence: Occurrence, now_us: int) -> int:
        """Begins the actions that an occurrence starts.

        Args:
            now_us: time by the steady clock.

        Returns:
            the number of runs that begin, or wait for the earlier ones of their action.
        """
        self._at(now_us)
        # The depth of an occurrence about a message, such as its delivery, is in the message.
        correlation = occurrence.variables.get("AMPS_CORRELATION_ID", "")
        depth = depth_of(correlation.encode("utf-8", "replace"))
        if depth > occurrence.depth:
            occurrence = replace(occurrence, depth=depth)
        return self._occurred(occurrence)

    def ring(self, now_us: int, wall_us: int) -> int:
        """Begins the actions whose schedule is due; the first call marks the start.

        Args:
            now_us: time by the steady clock.
            wall_us: time by the wall clock, microseconds since 1970.

        Returns:
            the number of runs that begin or wait. A schedule that is due while its last run still
            waits begins no other.
        """
        self._now_us = now_us
        self._offset_us = wall_us - now_us
        begun = 0
        for number in self._schedules.due(now_us, wall_us):
            state = self._states[number]
            if state.scheduled is None and self._begin(state, {}, 0, 0):
                state.scheduled = state.waiting[-1]
                begun += 1
        return begun

    def next_due_us(self) -> int | None:
        """Returns the time by the steady clock at which `ring` is to be called; None: no action has
        a schedule."""
        return self._schedules.next_due_us()

    def take(self) -> StepRequest | None:
        """Returns the next step for the shell, which tells its result by `done`; None: there is
        none before the next occurrence or result."""
        while self._ready:
            state = self._ready.popleft()
            state.is_ready = False
            asked = self._advance(state)
            if asked is not None:
                return asked
        return None

    def done(self, run: int, result: StepResult, now_us: int) -> None:
        """Takes the result of a step. One of a run that waits for none is ignored."""
        self._at(now_us)
        state = self._asked.pop(run, None)
        if state is None or state.current is None:
            return
        state.asked = ""
        self._took(state, state.current, result)
        self._go_on(state)

    def take_events(self) -> list[EngineEvent]:
        """Returns what happened since the last call. Dropped occurrences and stopped chains are one
        event for each action, at most each `TELL_US`: a flood of messages is no flood of events."""
        found, self._events = self._events, []
        if self._events_lost:
            text = f"{self._events_lost:,} further steps failed, which are not told one by one"
            found.append(EngineEvent("step_failed", "", text, self._events_lost))
            self._events_lost = 0
        for state in self._states:
            name = state.definition.name
            if state.told_us is not None and self._now_us < state.told_us + TELL_US:
                continue
            if state.untold_dropped or state.untold_untracked or state.untold_chains:
                state.told_us = self._now_us
            if state.untold_dropped:
                text = (
                    f"{state.untold_dropped:,} occurrences did not begin the action {name}, "
                    f"because {self._waiting_max:,} of its runs, or {self._waiting_bytes_max:,} "
                    "bytes of all, wait already: its steps are slower than what starts it"
                )
                found.append(EngineEvent("occurrences_dropped", name, text, state.untold_dropped))
            if state.untold_untracked:
                text = (
                    f"{state.untold_untracked:,} records are not watched for the action {name}, "
                    "because as many as can be are: give it a narrower Filter"
                )
                found.append(EngineEvent("occurrences_dropped", name, text, state.untold_untracked))
            if state.untold_chains:
                text = (
                    f"the action {name} was not begun, because {DEPTH_MAX} actions had led to it "
                    "one by the other, which is taken for a loop: let no action publish, or raise "
                    "an event, that starts it again"
                )
                found.append(EngineEvent("chain_stopped", name, text, state.untold_chains))
            state.untold_dropped = state.untold_untracked = state.untold_chains = 0
        return found

    def status(self) -> tuple[ActionStatus, ...]:
        """Returns the state of each action, in the configured order."""
        return tuple(
            ActionStatus(
                name=state.definition.name,
                runs=state.runs,
                failures=state.failures,
                dropped=state.dropped,
                chains_stopped=state.chains_stopped,
                waiting=len(state.waiting),
                waiting_bytes=state.waiting_bytes,
                step=state.asked,
                last_error=state.last_error,
                last_run_us=state.last_run_us,
            )
            for state in self._states
        )

    def begin_due(self, triggers: Iterable[MessageTrigger], now_us: int) -> int | None:
        """Begins the actions of records whose time is up, as far as their runs have room: the
        others wait in their triggers, and none is lost.

        Returns:
            the time by the steady clock at which this is to be called again, which may have come;
            None: not before a message comes or a step is done. It is called after those, too.
        """
        self._at(now_us)
        next_us: list[int] = []
        for trigger in triggers:
            while self.has_room(trigger.on):
                found = trigger.due(now_us, 1)
                if not found:
                    break
                self._occurred(found[0])
            next_due_us = trigger.next_due_us()
            # A trigger that waits for a step of the shell is asked again when that step is done.
            # Runs that end without the shell make room in `take`, after which nobody asks.
            if next_due_us is not None and (next_due_us > now_us or self._ends_by_itself(trigger)):
                next_us.append(next_due_us)
            self._note_untracked(trigger)
        return min(next_us, default=None)

    def has_room(self, on: ActionModule) -> bool:
        """Returns whether all actions with an `on` module can take another occurrence, provided
        that the occurrence needs less than half of the memory for waiting runs."""
        is_full = self._waiting_bytes * 2 > self._waiting_bytes_max
        return not any(
            len(state.waiting) >= self._waiting_max or (is_full and state.waiting)
            for state, matcher in self._matchers.get(on.module, ())
            if matcher.on == on
        )

    @property
    def is_idle(self) -> bool:
        """Returns whether no run waits, and none is being performed."""
        return not any(state.waiting or state.current for state in self._states)

    def _ends_by_itself(self, trigger: MessageTrigger) -> bool:
        """Returns whether the next `take` lets a run of the trigger's actions go on."""
        return any(
            state.waiting and not state.asked
            for state, matcher in self._matchers.get(trigger.on.module, ())
            if matcher.on == trigger.on
        )

    def _note_untracked(self, trigger: MessageTrigger) -> None:
        count = trigger.take_untracked()
        if count:
            for state, matcher in self._matchers.get(trigger.on.module, ()):
                if matcher.on == trigger.on:
                    state.dropped += count
                    state.untold_untracked += count

    # Times.

    def _at(self, now_us: int) -> None:
        if self._offset_us is None:
            self._offset_us = self._seed_us - now_us
        self._now_us = now_us

    @property
    def _wall_us(self) -> int:
        return self._seed_us if self._offset_us is None else self._now_us + self._offset_us

    # Runs.

    def _occurred(self, occurrence: Occurrence) -> int:
        begun = 0
        seen: set[int] = set()
        size_bytes = -1
        for state, matcher in self._matchers.get(occurrence.kind, ()):
            # An occurrence begins an action once, even if several of its `on` modules match.
            if id(state) in seen or not matcher.matches(occurrence):
                continue
            seen.add(id(state))
            if occurrence.depth >= DEPTH_MAX:
                state.chains_stopped += 1
                state.untold_chains += 1
                continue
            if size_bytes < 0:
                size_bytes = _size_bytes(occurrence.variables)
            begun += self._begin(state, occurrence.variables, occurrence.depth, size_bytes)
        return begun

    def _begin(
        self, state: _ActionState, variables: Mapping[str, str], depth: int, size_bytes: int
    ) -> bool:
        size_bytes += RUN_BYTES
        if state.waiting and (
            len(state.waiting) >= self._waiting_max
            or self._waiting_bytes + size_bytes > self._waiting_bytes_max
        ):
            state.dropped += 1
            state.untold_dropped += 1
            return False
        self._runs += 1
        state.waiting.append(_Run(self._runs, variables, depth, size_bytes))
        state.waiting_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if state.current is None:
            self._go_on(state)
        return True

    def _go_on(self, state: _ActionState) -> None:
        if not state.is_ready:
            state.is_ready = True
            self._ready.append(state)

    def _advance(self, state: _ActionState) -> StepRequest | None:
        """Performs the steps of the current or the next run, up to the first for the shell."""
        run = state.current
        if run is None:
            if not state.waiting:
                return None
            run = state.current = state.waiting.popleft()
            if run is state.scheduled:
                state.scheduled = None
            state.waiting_bytes -= run.size_bytes
            self._waiting_bytes -= run.size_bytes
            run.variables = dict(run.variables)
            if not state.definition.steps:
                self._ended(state)
        while state.current is run:
            step = state.definition.steps[run.step]
            try:
                asked = self._step(state, run, step)
            except Exception as error:  # An installed message type or function may raise anything.
                self._took(state, run, StepResult(False, str(error) or type(error).__name__))
                continue
            if isinstance(asked, StepRequest):
                self._asked[run.number] = state
                state.asked = step.module
                return asked
            self._took(state, run, asked)
        # The other actions come first, however many runs of this one wait.
        if state.waiting:
            self._go_on(state)
        return None

    def _step(self, state: _ActionState, run: _Run, step: ActionModule) -> StepRequest | StepResult:
        find = lookup(run.variables, self._instance_name, self._wall_us)
        name = f"{step.kind}-{step.module}"
        if name == "do-nothing":
            return StepResult(True)
        if name in ("if-condition", "do-extract-values"):
            around = context_of(run.variables, self._instance_name, self._wall_us)
            if name == "if-condition":
                return StepResult(True, stop=not self._steps.is_true(step, find, around))
            return StepResult(True, variables=self._steps.extracted(step, find, around))
        if name == "do-translate-data":
            return StepResult(True, variables=self._steps.translated(step, find))
        if name == "do-increment-counter":
            return StepResult(True, variables=self._steps.counted(step, find))
        if name == "do-execute-event":
            event = expand(step.option("Event"), find) or find(step.option("EventVariable"))
            if event:
                variables = {**run.variables, "AMPS_EVENT": event}
                self._occurred(Occurrence("execute-event", variables, depth=run.depth + 1))
            return StepResult(True)
        options, parameters = _expanded(step, find)
        return StepRequest(
            run=run.number,
            action=state.definition.name,
            step=run.step,
            module=step.module,
            options=options,
            depth=run.depth + 1,
            variables=run.variables,
            kind="if" if step.kind == "if" else "do",
            parameters=parameters,
        )

    def _took(self, state: _ActionState, run: _Run, result: StepResult) -> None:
        if not result.ok:
            step = state.definition.steps[run.step]
            text = result.text[:ERROR_CHARACTERS_MAX]
            state.failures += 1
            state.last_error = f"step {run.step + 1} ({step.module}): {text}"
            if len(self._events) < EVENTS_MAX:
                name = state.definition.name
                self._events.append(
                    EngineEvent("step_failed", name, f"action {name}: {state.last_error}")
                )
            else:
                self._events_lost += 1
        if not result.ok or result.stop:
            self._ended(state)
            return
        if result.variables:
            run.variables = {**run.variables, **result.variables}
        run.step += 1
        if run.step >= len(state.definition.steps):
            self._ended(state)

    def _ended(self, state: _ActionState) -> None:
        state.current = None
        state.runs += 1
        state.last_run_us = self._wall_us


def _expanded(
    step: ActionModule, find: Lookup
) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """Returns the options of a step with their variables, and the parameters of its commands.

    Variables come from clients and messages: each kind of text takes them so that they cannot
    change what it asks for.
    """
    known = definition_of(step)
    options: list[tuple[str, str]] = []
    parameters: dict[str, str] = {}
    for key, text in step.options:
        definition = known.option(key) if known is not None else None
        kind = definition.text if definition is not None else "text"
        if kind == "filter":
            text = expand_filter(text, find)
        elif kind == "pattern":
            text = expand_pattern(text, find)
        elif kind == "topics":
            # A regular expression, in which a client's text means itself.
            text = expand(text, lambda name: re.escape(find(name)))
        elif kind == "command":
            text, parameters = expand_command(text, find)
        else:
            text = expand(text, find)
        options.append((key, text))
    return tuple(options), parameters


def _size_bytes(variables: Mapping[str, str]) -> int:
    return sum(len(name) + len(text) + 100 for name, text in variables.items())
