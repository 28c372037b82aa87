"""Rules of the engine of actions (services/actions/engine.py)."""

from __future__ import annotations

import pytest

from raylay.services.actions import message_triggers
from raylay.services.actions.engine import (
    DEPTH_MAX,
    EVENTS_MAX,
    RUN_BYTES,
    ActionEngine,
    StepRequest,
    StepResult,
)
from raylay.services.actions.message_triggers import ConditionTrigger, TriggerMessage
from raylay.services.actions.model import ActionDefinition, ActionModule, Occurrence

OK = StepResult(True)
WALL_US = 1_637_707_778_000_000
CONNECT = ActionModule("on", "connect-client")


def do(module: str, **options: str) -> ActionModule:
    return ActionModule("do", module, tuple(options.items()))


def check(condition: str) -> ActionModule:
    return ActionModule("if", "condition", (("Condition", condition),))


def echo(message: str) -> ActionModule:
    return do("echo-message", Message=message)


def action(name: str, *steps: ActionModule, on: ActionModule = CONNECT) -> ActionDefinition:
    return ActionDefinition(name, (on,), steps)


def engine(*actions: ActionDefinition, waiting_max: int = 1_000, **bounds: int) -> ActionEngine:
    return ActionEngine(
        actions,
        instance_name="london-1",
        seed_us=WALL_US,
        waiting_max=waiting_max,
        **bounds,
    )


def connected(name: str = "desk", depth: int = 0) -> Occurrence:
    return Occurrence("connect-client", {"AMPS_CLIENT_NAME": name}, depth=depth)


def taken(found: ActionEngine) -> StepRequest:
    asked = found.take()
    assert asked is not None
    return asked


def messages(found: ActionEngine) -> list[str]:
    """Performs all steps, and returns the messages of the echoes among them."""
    made = []
    while (asked := found.take()) is not None:
        made.append(asked.option("Message"))
        found.done(asked.run, OK, 0)
    return made


@pytest.mark.covers("Actions", "`If` and `Do` in their order; a step that fails ends its run")
def test_steps_come_in_order_each_after_the_result_of_the_last() -> None:
    made = engine(action("greet", echo("hello {{AMPS_CLIENT_NAME}}"), do("rotate-logs")))
    assert made.occurred(connected(), 5) == 1
    first = taken(made)
    assert (first.action, first.step, first.module, first.kind) == (
        "greet",
        0,
        "echo-message",
        "do",
    )
    assert first.options == (("Message", "hello desk"),)
    assert first.every("Message") == ("hello desk",)
    assert made.take() is None
    assert made.status()[0].step == "echo-message"
    made.done(first.run, OK, 6)
    second = taken(made)
    assert (second.step, second.module) == (1, "rotate-logs")
    assert not made.is_idle
    made.done(second.run, OK, 7)
    assert made.take() is None
    assert made.is_idle
    status = made.status()[0]
    assert (status.runs, status.failures, status.step) == (1, 0, "")
    assert status.last_run_us == WALL_US + 2


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_what_a_client_writes_changes_no_filter_pattern_topic_or_command() -> None:
    steps = (
        do(
            "delete-sow",
            Topic="^a/.*/{{AMPS_CLIENT_NAME}}",
            MessageType="json",
            Filter="/id = '{{AMPS_CLIENT_NAME}}'",
        ),
        do("execute-system", Command="echo {{AMPS_CLIENT_NAME}}"),
        do("remove-files", Age="0s", Pattern="{{AMPS_CLIENT_NAME}}.txt"),
    )
    made = engine(action("clean", *steps))
    made.occurred(connected("' OR '*"), 0)
    asked = taken(made)
    assert asked.option("Filter") == "/id = '\\' OR \\'*'"
    assert asked.option("Topic") == r"^a/.*/'\ OR\ '\*"
    made.done(asked.run, OK, 0)
    asked = taken(made)
    assert asked.option("Command") == 'echo "${ACTION_AMPS_CLIENT_NAME}"'
    assert asked.parameters == {"ACTION_AMPS_CLIENT_NAME": "' OR '*"}
    made.done(asked.run, OK, 0)
    assert taken(made).option("Pattern") == "' OR '[*].txt"


@pytest.mark.covers("Actions", "runs one at a time in an action, actions side by side; bounds")
def test_the_runs_of_an_action_come_one_at_a_time_in_order() -> None:
    made = engine(action("greet", echo("{{AMPS_CLIENT_NAME}}")))
    for name in ("a", "b", "c"):
        made.occurred(connected(name), 0)
    assert taken(made).option("Message") == "a"
    assert made.take() is None
    assert made.status()[0].waiting == 2
    made.done(1, OK, 0)
    assert messages(made) == ["b", "c"]


@pytest.mark.covers("Actions", "runs one at a time in an action, actions side by side; bounds")
def test_a_slow_step_holds_up_no_other_action() -> None:
    made = engine(action("slow", do("execute-system")), action("quick", echo("quick")))
    for _ in range(3):
        made.occurred(connected(), 0)
    assert taken(made).action == "slow"
    assert messages(made) == ["quick"] * 3


@pytest.mark.covers("Actions", "`If` and `Do` in their order; a step that fails ends its run")
def test_a_failing_step_ends_its_run_and_is_told() -> None:
    made = engine(action("copy", do("publish-message"), echo("behind it")))
    made.occurred(connected(), 0)
    made.done(taken(made).run, StepResult(False, "no such topic"), 0)
    assert made.take() is None
    (told,) = made.take_events()
    assert (told.kind, told.action) == ("step_failed", "copy")
    assert "step 1 (publish-message): no such topic" in told.text
    assert made.take_events() == []
    status = made.status()[0]
    assert (status.runs, status.failures) == (1, 1)
    assert status.last_error == "step 1 (publish-message): no such topic"
    made.occurred(connected(), 0)
    assert taken(made).module == "publish-message"


@pytest.mark.covers("Actions", "`If` and `Do` in their order; a step that fails ends its run")
def test_a_condition_that_is_not_true_ends_the_run_silently() -> None:
    made = engine(action("greet", check("'{{AMPS_CLIENT_NAME}}' LIKE '^desk'"), echo("hello")))
    made.occurred(connected("other"), 0)
    assert made.take() is None
    made.occurred(connected("desk-1"), 0)
    assert messages(made) == ["hello"]
    assert (made.status()[0].runs, made.status()[0].failures, made.take_events()) == (2, 0, [])


def test_a_condition_of_the_shell_ends_the_run_silently() -> None:
    full = ActionModule("if", "file-system-usage", (("Path", "/"), ("GreaterThan", "90%")))
    made = engine(action("guard", full, do("shutdown")))
    made.occurred(connected(), 0)
    asked = taken(made)
    assert (asked.kind, asked.module) == ("if", "file-system-usage")
    made.done(asked.run, StepResult(True, stop=True), 0)
    assert made.take() is None
    assert made.status()[0].failures == 0


def test_a_condition_that_is_no_expression_fails_its_step() -> None:
    made = engine(action("greet", check("nonsense ("), echo("hello")))
    made.occurred(connected(), 0)
    assert made.take() is None
    assert "step 1 (condition): column" in made.status()[0].last_error


def test_variables_of_a_result_are_there_for_the_steps_behind() -> None:
    made = engine(action("look", do("query-sow"), echo("{{FOUND}} {{AMPS_CLIENT_NAME}}")))
    made.occurred(connected(), 0)
    made.done(taken(made).run, StepResult(True, variables={"FOUND": "42"}), 0)
    asked = taken(made)
    assert asked.option("Message") == "42 desk"
    assert asked.variables == {"FOUND": "42", "AMPS_CLIENT_NAME": "desk"}


def test_the_variables_of_a_run_are_its_own() -> None:
    count = do("increment-counter", Key="clients", Value="AMPS_CLIENT_NAME")
    made = engine(action("count", count), action("greet", echo("{{AMPS_CLIENT_NAME}}")))
    told = {"AMPS_CLIENT_NAME": "desk"}
    made.occurred(Occurrence("connect-client", told), 0)
    assert messages(made) == ["desk"]
    assert told == {"AMPS_CLIENT_NAME": "desk"}


def test_a_function_cannot_change_what_other_actions_are_told() -> None:
    made = engine(action("call", do("call-function")), action("greet", echo("{{A}}")))
    told = {"A": "1"}
    made.occurred(Occurrence("connect-client", told), 0)
    taken(made).variables["A"] = "2"  # type: ignore[index]
    assert taken(made).option("Message") == "1"
    assert told == {"A": "1"}


def test_pure_steps_are_performed_without_the_shell() -> None:
    made = engine(
        action(
            "all",
            do("nothing"),
            do("extract-values", MessageType="json", Value="PRICE=/price", Data='{"price": 7}'),
            do("translate-data", Data="{{PRICE}}", Value="SIZE", Case="7=seven"),
            do("increment-counter", Key="{{SIZE}}", Value="COUNT"),
            echo("{{PRICE}} {{SIZE}} {{COUNT}} {{AMPS_INSTANCE_NAME}}"),
        )
    )
    made.occurred(connected(), 0)
    made.occurred(connected(), 0)
    assert messages(made) == ["7 seven 1 london-1", "7 seven 2 london-1"]


@pytest.mark.covers("Actions", "runs one at a time in an action, actions side by side; bounds")
def test_runs_beyond_the_bound_are_dropped_and_counted() -> None:
    made = engine(action("greet", echo("{{AMPS_CLIENT_NAME}}")), waiting_max=2)
    assert [made.occurred(connected(str(number)), 0) for number in range(5)] == [1, 1, 0, 0, 0]
    (told,) = made.take_events()
    assert (told.kind, told.action, told.count) == ("occurrences_dropped", "greet", 3)
    assert made.status()[0].dropped == 3
    assert messages(made) == ["0", "1"]
    assert made.take_events() == []
    assert made.occurred(connected("6"), 0) == 1


def watching(made: ActionEngine, *records: str, body: bytes = b"{}") -> ConditionTrigger:
    """A trigger with records whose time is up after a second each."""
    trigger = ConditionTrigger(LATE)
    for number, key in enumerate(records):
        message = TriggerMessage("publish", "orders", "json", body, key=key.encode())
        trigger.message(message, number * SECOND_US, WALL_US)
    return trigger


SECOND_US = 1_000_000
LATE = ActionModule(
    "on",
    "message-condition-timeout",
    (("Topic", "orders"), ("MessageType", "json"), ("Duration", "10s")),
)


def test_records_whose_time_is_up_begin_their_actions() -> None:
    made = engine(action("late", echo("{{AMPS_SOW_KEY}}"), on=LATE))
    trigger = watching(made, "1", "2")
    assert made.begin_due([trigger], 0) == 10 * SECOND_US
    assert made.take() is None
    assert made.begin_due([trigger], 10 * SECOND_US) == 11 * SECOND_US
    assert messages(made) == ["1"]
    assert made.begin_due([trigger], 11 * SECOND_US) is None
    assert messages(made) == ["2"]


@pytest.mark.covers("Actions", "On Message Condition Timeout")
def test_records_wait_in_their_trigger_while_their_action_is_busy() -> None:
    other = ActionModule("on", LATE.module, (*LATE.options, ("Filter", "/a = 1")))
    made = engine(
        action("late", echo("{{AMPS_SOW_KEY}}"), on=LATE),
        action("other", do("execute-system"), on=other),
        waiting_max=2,
    )
    trigger = watching(made, "1", "2", "3", "4")
    seen = []
    now_us = 20 * SECOND_US
    made.begin_due([trigger], now_us)
    while (asked := made.take()) is not None:
        # With nothing to wait for but a step no time is given, for which a timer would spin.
        assert made.begin_due([trigger], now_us) is None
        assert made.has_room(other)
        seen.append(asked.option("Message"))
        made.done(asked.run, OK, now_us)
        made.begin_due([trigger], now_us)
    assert seen == ["1", "2", "3", "4"]
    assert made.status()[0].dropped == 0


def test_records_do_not_wait_for_runs_that_end_without_the_shell() -> None:
    """Nothing else would ask for the others."""
    made = engine(action("late", check("1 = 2"), echo("x"), on=LATE), waiting_max=2)
    trigger = watching(made, *"12345")
    now_us = 20 * SECOND_US
    asked = 0
    while made.begin_due([trigger], now_us) is not None:
        assert made.take() is None
        asked += 1
    assert made.take() is None
    assert (made.status()[0].runs, asked) == (5, 2)


def test_records_wait_in_their_trigger_while_memory_is_short() -> None:
    made = engine(action("late", echo("{{AMPS_SOW_KEY}}"), on=LATE), waiting_bytes_max=20_000)
    trigger = watching(made, *"1234", body=b"x" * 9_000)
    made.begin_due([trigger], 20 * SECOND_US)
    assert made.status()[0].waiting == 1
    assert not made.has_room(LATE)
    made.take()
    assert made.has_room(LATE)


def test_records_that_cannot_be_watched_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_triggers, "TRACKED_MAX", 1)
    other = ActionModule("on", LATE.module, (*LATE.options, ("Filter", "/a = 1")))
    made = engine(action("late", echo("x"), on=LATE), action("other", echo("y"), on=other))
    trigger = watching(made, "1", "2", "3")
    made.begin_due([trigger], 0)
    made.begin_due([trigger], 0)
    (told,) = made.take_events()
    assert (told.kind, told.action, told.count) == ("occurrences_dropped", "late", 2)
    assert "not watched" in told.text
    assert [each.dropped for each in made.status()] == [2, 0]


def test_runs_beyond_the_bytes_are_dropped_and_counted() -> None:
    large = Occurrence("connect-client", {"DATA": "x" * 10_000})
    made = engine(action("greet", echo("hello")), waiting_bytes_max=30_000)
    assert [made.occurred(large, 0) for _ in range(4)] == [1, 1, 0, 0]
    waiting_bytes = made.status()[0].waiting_bytes
    assert 20_000 + 2 * RUN_BYTES < waiting_bytes < 30_000
    assert messages(made) == ["hello"] * 2
    assert made.status()[0].waiting_bytes == 0
    assert made.occurred(large, 0) == 1


@pytest.mark.covers("Actions", "runs one at a time in an action, actions side by side; bounds")
def test_a_flood_of_dropped_runs_is_one_event_a_second() -> None:
    made = engine(action("greet", echo("")), waiting_max=1)
    told = []
    for now_us in range(0, 3_000_000, 10_000):
        made.occurred(connected(), now_us)
        made.take()
        told += made.take_events()
    assert [each.count for each in told] == [1, 100, 100]


def test_an_action_that_floods_takes_no_other_actions_turn() -> None:
    guard = action("guard", do("shutdown"), on=ActionModule("on", "shutdown"))
    made = engine(action("flood", echo("hello")), guard, waiting_bytes_max=2_000)
    while made.occurred(connected(), 0):
        pass
    assert made.occurred(Occurrence("shutdown", {"AMPS_REASON": "x" * 10_000}), 0) == 1
    assert made.status()[1].dropped == 0


@pytest.mark.covers("Actions", "On a Custom Event; Raise a Custom Event")
def test_an_event_begins_the_actions_that_wait_for_it() -> None:
    made = engine(
        action("first", do("execute-event", Event="late-{{AMPS_CLIENT_NAME}}"), echo("first")),
        action("second", echo("{{AMPS_CLIENT_NAME}}"), on=on_event("late-desk")),
        action("third", echo("third"), on=on_event("late-other")),
    )
    made.occurred(connected(), 0)
    assert messages(made) == ["first", "desk"]


def on_event(name: str) -> ActionModule:
    return ActionModule("on", "execute-event", (("Event", name),))


@pytest.mark.covers("Actions", "On a Custom Event; Raise a Custom Event")
def test_an_event_is_named_by_a_variable_too() -> None:
    raised = do("execute-event", EventVariable="AMPS_CLIENT_NAME")
    made = engine(
        action("first", raised, echo("first")),
        action("second", echo("second"), on=on_event("desk")),
    )
    made.occurred(connected(), 0)
    assert messages(made) == ["first", "second"]
    made.occurred(Occurrence("connect-client", {}), 0)
    assert messages(made) == ["first"]


@pytest.mark.covers("Actions", "loops end: over events, topics and other instances")
def test_a_loop_of_events_ends() -> None:
    again = do("execute-event", Event="again")
    made = engine(action("loop", echo("{{AMPS_CLIENT_NAME}}"), again, on=on_event("again")))
    made.occurred(Occurrence("execute-event", {"AMPS_EVENT": "again"}), 0)
    assert len(messages(made)) == DEPTH_MAX
    (told,) = made.take_events()
    assert (told.kind, told.action, told.count) == ("chain_stopped", "loop", 1)
    assert made.status()[0].chains_stopped == 1
    assert made.is_idle


@pytest.mark.covers("Actions", "loops end: over events, topics and other instances")
@pytest.mark.parametrize("kind", ["deliver-message", "sow-delete-message", "sow-expire-message"])
def test_a_loop_over_what_the_instance_tells_of_messages_ends(kind: str) -> None:
    of_type = {"Topic": "a", "MessageType": "json"}
    loop = ActionModule("on", kind, tuple(of_type.items()))
    made = engine(action("loop", do("publish-message", **of_type, Data="{}"), on=loop))
    published, correlation = 0, b"\xff"
    while published < 20:
        variables = {"AMPS_CORRELATION_ID": correlation.decode("utf-8", "surrogateescape")}
        if not made.occurred(Occurrence(kind, variables, "a", "json"), 0):
            break
        asked = taken(made)
        correlation = message_triggers.correlation_of(asked.depth)
        made.done(asked.run, OK, 0)
        published += 1
    assert published == DEPTH_MAX


def test_the_depth_of_a_step_counts_its_own_action() -> None:
    made = engine(action("copy", do("publish-message")))
    made.occurred(connected(depth=DEPTH_MAX - 1), 0)
    assert taken(made).depth == DEPTH_MAX
    assert made.occurred(connected(depth=DEPTH_MAX), 0) == 0


@pytest.mark.covers("Actions", "`If` and `Do` in their order; a step that fails ends its run")
def test_several_modules_that_wait_for_an_occurrence_begin_the_action_once() -> None:
    twice = ActionDefinition("greet", (CONNECT, CONNECT), (echo("hello"),))
    made = engine(twice)
    assert made.occurred(connected(), 0) == 1
    assert made.kinds == {"connect-client"}
    assert made.occurred(Occurrence("startup", {}), 0) == 0


def test_an_action_without_steps_ends_at_once() -> None:
    made = engine(action("empty"))
    made.occurred(connected(), 0)
    assert made.take() is None
    assert made.status()[0].runs == 1


@pytest.mark.covers("Actions", "On a Schedule")
def test_a_schedule_begins_its_action() -> None:
    hourly = ActionModule("on", "schedule", (("Every", "1h"),))
    made = engine(action("rotate", echo("{{AMPS_UNIX_TIMESTAMP}}"), on=hourly))
    assert made.next_due_us() == 0
    assert made.ring(0, WALL_US) == 0
    assert made.next_due_us() == 60_000_000
    assert made.ring(3_600_000_000, WALL_US + 3_600_000_000) == 1
    assert messages(made) == [str(WALL_US // 1_000_000 + 3_600)]


@pytest.mark.covers("Actions", "On a Schedule")
def test_a_schedule_whose_last_run_waits_begins_no_other() -> None:
    often = ActionModule("on", "schedule", (("Every", "1s"),))
    made = engine(action("rotate", echo("x"), on=often))
    second = 1_000_000
    made.ring(0, WALL_US)
    assert [made.ring(number * second, WALL_US) for number in (1, 2)] == [1, 0]
    asked = taken(made)
    assert [made.ring(number * second, WALL_US) for number in (3, 4)] == [1, 0]
    made.done(asked.run, OK, 0)
    assert messages(made) == ["x"]
    assert made.ring(5 * second, WALL_US) == 1


def test_without_a_schedule_nobody_needs_to_ring() -> None:
    assert engine(action("greet", echo("hello"))).next_due_us() is None


def test_a_result_that_nobody_waits_for_is_ignored() -> None:
    made = engine(action("greet", echo("{{AMPS_CLIENT_NAME}}")))
    made.done(1, StepResult(False, "late"), 0)
    made.occurred(connected("a"), 0)
    made.occurred(connected("b"), 0)
    first = taken(made)
    made.done(first.run, OK, 0)
    second = taken(made)
    made.done(first.run, StepResult(False, "late"), 0)
    assert made.status()[0].failures == 0
    made.done(second.run, OK, 0)
    assert made.status()[0].runs == 2


def test_events_that_nobody_takes_are_bounded() -> None:
    made = engine(action("copy", check("(")))
    for _ in range(EVENTS_MAX + 5):
        made.occurred(connected(), 0)
        assert made.take() is None
    told = made.take_events()
    assert len(told) == EVENTS_MAX + 1
    assert (told[-1].kind, told[-1].count) == ("step_failed", 5)


def test_the_time_is_that_of_the_seed_until_the_clock_is_told() -> None:
    made = engine(action("greet", echo("{{AMPS_UNIX_TIMESTAMP}}")))
    made.occurred(connected(), 77_000_000)
    assert messages(made) == [str(WALL_US // 1_000_000)]
    made = engine(action("greet", echo("{{AMPS_UNIX_TIMESTAMP}}")))
    made.ring(0, WALL_US + 5_000_000)
    made.occurred(connected(), 2_000_000)
    assert taken(made).option("Message") == str(WALL_US // 1_000_000 + 7)


def test_a_module_may_be_meant_by_an_occurrence() -> None:
    alert = ActionModule("on", "alert", (("Topic", "orders"), ("Filter", "/a > 1")))
    other = ActionModule("on", "alert", (("Topic", "orders"), ("Filter", "/a > 2")))
    made = engine(action("one", echo("one"), on=alert), action("two", echo("two"), on=other))
    made.occurred(Occurrence("alert", {}, "orders", on=other), 0)
    assert messages(made) == ["two"]


def test_an_error_without_a_text_is_told_by_its_kind() -> None:
    class Broken:
        def __getitem__(self, name: str) -> None:
            raise KeyError

    steps = (do("extract-values", MessageType="json", Data="{}", Value="A=/a"),)
    made = ActionEngine(
        (action("read", *steps),),
        instance_name="london-1",
        seed_us=0,
        types=Broken(),  # type: ignore[arg-type]
    )
    made.occurred(connected(), 0)
    assert made.take() is None
    assert "KeyError" in made.status()[0].last_error


def test_the_status_before_any_run_is_empty() -> None:
    made = engine(action("greet", echo("hello")))
    made.done(7, OK, 1)
    status = made.status()[0]
    assert (status.name, status.runs, status.last_run_us, status.last_error) == ("greet", 0, 0, "")
