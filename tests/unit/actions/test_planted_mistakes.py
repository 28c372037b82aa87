"""Mistakes planted in the engine of actions and its triggers, each found by a test that names it.

A mistake replaces a piece of a method's source. Where the seeded simulation can see it, a seed
below `SEEDS` finds it; the others are found by the named test.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from unit.actions import (
    test_engine,
    test_late_records,
    test_matching,
    test_message_triggers,
    test_pure_steps,
    test_schedules,
    test_variables,
)
from unit.actions.simulated_engine import simulate

from raylay.services.actions import engine, matching, message_triggers, pure_steps, variables
from raylay.services.actions.schedules import ScheduledActions
from raylay.services.errors import ExpressionError

SEEDS = 20
FAILURES = (AssertionError, pytest.fail.Exception, ExpressionError, KeyError, ValueError)
"""Exceptions by which a test fails; the second is that of an error that does not come."""
Owner = Any


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        rule: the rule that it breaks.
        owner, name: class or module, and the function in it.
        before, after: the piece of its source, and what stands there instead.
        found_by: test that fails with it; None: the simulation.
    """

    rule: str
    owner: Owner
    name: str
    before: str
    after: str
    found_by: Callable[[], None] | None = None


def patched(test: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test(patch)


ENGINE = engine.ActionEngine
CONDITION = message_triggers.ConditionTrigger
MISTAKES = (
    # The simulation finds these.
    Mistake(
        "the runs of an action come one at a time",
        ENGINE,
        "_begin",
        "if state.current is None:",
        "state.current = None\n    if True:",
    ),
    Mistake(
        "runs come in the order of their occurrences",
        ENGINE,
        "_advance",
        "state.waiting.popleft()",
        "state.waiting.pop()",
    ),
    Mistake(
        "an action goes on when its run has ended",
        ENGINE,
        "done",
        "self._go_on(state)",
        "state.current and self._go_on(state)",
    ),
    Mistake(
        "an action whose pure steps end its run goes on",
        ENGINE,
        "_advance",
        "if state.waiting:\n        self._go_on",
        "if False:\n        self._go_on",
    ),
    Mistake(
        "a failing step ends its run",
        ENGINE,
        "_took",
        "if not result.ok or result.stop:",
        "if result.stop:",
    ),
    Mistake(
        "a condition that is not true ends its run",
        ENGINE,
        "_took",
        "if not result.ok or result.stop:",
        "if not result.ok:",
    ),
    Mistake(
        "what waits is bounded by its number",
        ENGINE,
        "_begin",
        "len(state.waiting) >= self._waiting_max",
        "len(state.waiting) > self._waiting_max",
    ),
    Mistake(
        "dropped occurrences are counted",
        ENGINE,
        "_begin",
        "state.untold_dropped += 1",
        "state.untold_dropped = 1",
    ),
    Mistake(
        "the memory of what waits is given back",
        ENGINE,
        "_advance",
        "state.waiting_bytes -= run.size_bytes",
        "pass",
    ),
    Mistake(
        "a chain of events ends",
        ENGINE,
        "_occurred",
        "occurrence.depth >= DEPTH_MAX",
        "occurrence.depth >= DEPTH_MAX + 3",
    ),
    Mistake(
        "each event makes its chain longer",
        ENGINE,
        "_step",
        "variables, depth=run.depth + 1",
        "variables, depth=run.depth or 1",
    ),
    Mistake(
        "a result that is told twice is ignored",
        ENGINE,
        "done",
        "self._asked.pop(run, None)",
        "self._asked.get(run)",
    ),
    Mistake(
        "a schedule whose last run waits begins no other",
        ENGINE,
        "ring",
        "state.scheduled is None and ",
        "",
    ),
    Mistake(
        "a schedule begins anew once its run has begun",
        ENGINE,
        "_advance",
        "state.scheduled = None",
        "pass",
        test_engine.test_a_schedule_whose_last_run_waits_begins_no_other,
    ),
    Mistake(
        "counters keep their count",
        pure_steps.PureSteps,
        "counted",
        "self._counters.get(key, 0) + 1",
        "1",
    ),
    # The named tests find these.
    Mistake(
        "the variables of a run are its own",
        ENGINE,
        "_advance",
        "run.variables = dict(run.variables)",
        "pass",
        test_engine.test_a_function_cannot_change_what_other_actions_are_told,
    ),
    Mistake(
        "an action for which nothing waits gets its run",
        ENGINE,
        "_begin",
        "if state.waiting and (",
        "if (",
        test_engine.test_an_action_that_floods_takes_no_other_actions_turn,
    ),
    Mistake(
        "what waits is bounded by its bytes",
        ENGINE,
        "_begin",
        "self._waiting_bytes + size_bytes > self._waiting_bytes_max",
        "False",
        test_engine.test_runs_beyond_the_bytes_are_dropped_and_counted,
    ),
    Mistake(
        "events that nobody takes are bounded",
        ENGINE,
        "_took",
        "len(self._events) < EVENTS_MAX",
        "True",
        test_engine.test_events_that_nobody_takes_are_bounded,
    ),
    Mistake(
        "several modules that wait for an occurrence begin the action once",
        ENGINE,
        "_occurred",
        "id(state) in seen or",
        "",
        test_engine.test_several_modules_that_wait_for_an_occurrence_begin_the_action_once,
    ),
    Mistake(
        "the depth of a step counts its own action",
        ENGINE,
        "_step",
        "depth=run.depth + 1,\n        variables",
        "depth=run.depth,\n        variables",
        test_engine.test_the_depth_of_a_step_counts_its_own_action,
    ),
    Mistake(
        "records do not wait for runs that end without the shell",
        ENGINE,
        "begin_due",
        "or self._ends_by_itself(trigger)",
        "",
        lambda: test_late_records.test_each_late_record_begins_one_run(["pure"], 0),
    ),
    Mistake(
        "a timer does not spin while a step is performed",
        ENGINE,
        "begin_due",
        "next_due_us > now_us or self._ends_by_itself(trigger)",
        "True",
        lambda: test_late_records.test_each_late_record_begins_one_run(["shell"], 0),
    ),
    Mistake(
        "late records are begun only where there is room",
        ENGINE,
        "has_room",
        "len(state.waiting) >= self._waiting_max or",
        "",
        lambda: test_late_records.test_each_late_record_begins_one_run(["shell"], 0),
    ),
    Mistake(
        "the clock that was told counts",
        ENGINE,
        "ring",
        "self._offset_us = wall_us - now_us",
        "pass",
        test_engine.test_the_time_is_that_of_the_seed_until_the_clock_is_told,
    ),
    Mistake(
        "what a variable holds is never expanded again",
        variables,
        "_reference",
        "written(find(text))",
        "written(expand(find(text), find))",
        test_variables.test_what_a_variable_holds_is_not_expanded_again,
    ),
    Mistake(
        "a variable in an expression is a value",
        variables,
        "_escaped",
        """.replace("'", "\\\\'")""",
        "",
        lambda: test_variables.test_a_variable_cannot_change_what_a_condition_asks(
            "'{{V}}' = 'x'", "a' = 'a' OR 'b"
        ),
    ),
    Mistake(
        "the backslash of a variable does not hide the quote behind it",
        variables,
        "_escaped",
        """.replace("\\\\", "\\\\\\\\")""",
        "",
        lambda: test_variables.test_a_variable_cannot_change_what_a_condition_asks(
            "'{{V}}' = 'x'", "\\' OR 1=1 OR 'a"
        ),
    ),
    Mistake(
        "what is no number is a text of its own",
        variables,
        "_value",
        "if number is not None:",
        "if number is None:\n        return text\n    if number is not None:",
        lambda: test_variables.test_a_variable_cannot_change_what_a_condition_asks(
            "{{V}} = 'x'", "1 = 1 OR 1"
        ),
    ),
    Mistake(
        "an option expands to a bounded text",
        variables,
        "_joined",
        "characters > EXPANDED_CHARACTERS_MAX",
        "False",
        test_variables.test_an_option_that_expands_to_too_much_is_refused,
    ),
    Mistake(
        "the first case that has the data wins",
        pure_steps.PureSteps,
        "translated",
        "break",
        "pass",
        test_pure_steps.test_the_first_case_that_has_the_data_translates_it,
    ),
    Mistake(
        "data without a case stay unless there is a default",
        pure_steps.PureSteps,
        "translated",
        'if step.every("Default") else data',
        "",
        test_pure_steps.test_data_without_a_case_stay_unless_there_is_a_default,
    ),
    Mistake(
        "the sides of a case are expanded by themselves",
        pure_steps.PureSteps,
        "translated",
        "case(text)",
        "case(expand(text, find))",
        test_pure_steps.test_a_variable_with_an_equals_sign_does_not_split_a_case,
    ),
    Mistake(
        "the topic of a SOW is a name",
        matching.OnMatcher,
        "_topic",
        "self.on.module not in TOPIC_PATTERNS",
        "False",
        test_matching.test_the_topic_of_a_sow_is_a_name,
    ),
    Mistake(
        "a message type that nobody knows fits",
        matching.OnMatcher,
        "_message_type",
        "not found or",
        "",
        test_matching.test_a_message_type_that_nobody_knows_fits,
    ),
    Mistake(
        "a message module begins by its own trigger",
        matching.OnMatcher,
        "__init__",
        "occurrence.on == on",
        "True",
        test_matching.test_a_message_module_begins_by_its_own_trigger,
    ),
    Mistake(
        "an action with several schedules that are due begins once",
        ScheduledActions,
        "due",
        "list(dict.fromkeys(found))",
        "found",
        test_schedules.test_an_action_with_several_schedules_is_due_once,
    ),
    Mistake(
        "a time of the day is looked at again soon",
        ScheduledActions,
        "next_due_us",
        "LOOK_US,",
        "10**15,",
        test_schedules.test_a_time_of_the_day_is_looked_at_again_each_minute,
    ),
    Mistake(
        "a record in the condition begins its action once",
        CONDITION,
        "due",
        "self._tracked[key] = None",
        "pass",
        test_message_triggers.test_a_record_that_stays_in_the_condition_begins_it_once,
    ),
    Mistake(
        "a record that leaves in time begins nothing",
        CONDITION,
        "_forget",
        "self._fresh.pop(key, None)",
        "pass",
        test_message_triggers.test_a_record_that_leaves_in_time_begins_nothing,
    ),
    Mistake(
        "a change within the condition does not prolong it",
        CONDITION,
        "message",
        "known.message = message",
        "known.message = message; known.due_us = now_us + self._duration_us",
        test_message_triggers.test_a_change_within_the_condition_does_not_prolong_it,
    ),
    Mistake(
        "a change within the condition gives its new data",
        CONDITION,
        "message",
        "known.message = message",
        "pass",
        test_message_triggers.test_a_change_within_the_condition_does_not_prolong_it,
    ),
    Mistake(
        "a record that is there counts from when it was published",
        CONDITION,
        "_track",
        "due_us -= max(0, wall_us - message.timestamp_us)",
        "pass",
        test_message_triggers.test_a_record_that_is_there_counts_from_when_it_was_published,
    ),
    Mistake(
        "a publisher's clock that is ahead does not prolong the time",
        CONDITION,
        "_track",
        "max(0, wall_us - message.timestamp_us)",
        "wall_us - message.timestamp_us",
        test_message_triggers.test_a_record_that_is_there_counts_from_when_it_was_published,
    ),
    Mistake(
        "a row that left and came back has its whole time",
        CONDITION,
        "_drop_gone",
        "is not self._rows[0][3]",
        "is None",
        test_message_triggers.test_a_row_that_left_is_not_due,
    ),
    Mistake(
        "no more are given than can be taken",
        CONDITION,
        "due",
        "len(found) < count_max",
        "True",
        test_message_triggers.test_no_more_are_given_than_can_be_taken,
    ),
    Mistake(
        "the memory of watched records is counted down",
        CONDITION,
        "_forget",
        "self._bytes -=",
        "_ =",
        lambda: patched(test_message_triggers.test_records_that_are_watched_are_bounded),
    ),
    Mistake(
        "an alert has one of its two events",
        CONDITION,
        "message",
        "if tracked is None or not self._is_alert:",
        "if not self._is_alert:",
        test_message_triggers.test_an_alert_has_one_of_its_two_events,
    ),
    Mistake(
        "a new subscription tells all records again",
        CONDITION,
        "restart",
        "self._tracked.clear()",
        "pass",
        test_message_triggers.test_a_new_subscription_tells_all_records_again,
    ),
    Mistake(
        "the record as it was is the last one",
        message_triggers.OofTrigger,
        "message",
        "self._keep(key, message.body)",
        "self._keep(key, previous or message.body)",
        test_message_triggers.test_the_record_as_it_was_is_kept_where_it_is_asked_for,
    ),
    Mistake(
        "a message of an action carries how many led to it",
        message_triggers,
        "_occurrence",
        "depth=depth_here(message)",
        "depth=0",
        test_message_triggers.test_a_message_of_an_action_carries_how_many_led_to_it,
    ),
)


def plant(monkeypatch: pytest.MonkeyPatch, mistake: Mistake) -> None:
    """Replaces a function by the same one with the mistake."""
    right = inspect.getattr_static(mistake.owner, mistake.name)
    source = textwrap.dedent(inspect.getsource(right))
    # Outside a class, super() does not know which.
    source = source.replace("super()", f"super({mistake.owner.__name__}, self)")
    assert source.count(mistake.before) == 1, f"{mistake.before!r} in {mistake.name}"
    module = sys.modules[right.__module__]
    code = compile(
        source.replace(mistake.before, mistake.after),
        f"<{mistake.rule}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    monkeypatch.setattr(mistake.owner, mistake.name, made[mistake.name])


@pytest.mark.parametrize("mistake", MISTAKES, ids=[each.rule for each in MISTAKES])
def test_a_planted_mistake_is_found(monkeypatch: pytest.MonkeyPatch, mistake: Mistake) -> None:
    plant(monkeypatch, mistake)
    with pytest.raises(FAILURES):
        if mistake.found_by is not None:
            mistake.found_by()
        else:
            for seed in range(SEEDS):
                simulate(seed)


@pytest.mark.covers("Actions", "runs one at a time in an action, actions side by side; bounds")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_engine_does_what_the_model_says(seed: int) -> None:
    simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("base", range(0, 1_000, 100))
def test_the_engine_does_what_the_model_says_for_many_seeds(base: int) -> None:
    for seed in range(base, base + 100):
        simulate(seed)
