"""Checks of actions (services/actions/checks.py)."""

from __future__ import annotations

import re

import pytest

from raylay.services.actions.checks import check_actions, endless, module_problems, refused_option
from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.actions.modules import TextKind
from raylay.services.errors import ConfigurationError

STARTUP = ActionModule("on", "startup")
ECHO = ActionModule("do", "echo-message", (("Message", "x"),))
CONDITION = ActionModule("if", "condition", (("Condition", "/a = 1"),))


def on(topic: str, *more: tuple[str, str]) -> ActionModule:
    return ActionModule("on", "publish-message", (("Topic", topic), ("MessageType", "json"), *more))


def publish(topic: str, message_type: str = "json") -> ActionModule:
    options = (("Topic", topic), ("MessageType", message_type), ("Data", "{}"))
    return ActionModule("do", "publish-message", options)


def event(kind: str, name: str) -> ActionModule:
    return ActionModule(kind, "execute-event", (("Event", name),))  # type: ignore[arg-type]


def action(
    name: str, start: ActionModule | tuple[ActionModule, ...], *steps: ActionModule
) -> ActionDefinition:
    return ActionDefinition(name, start if isinstance(start, tuple) else (start,), steps)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (ActionModule("on", "startups"), "startups is no On module: is startup meant"),
        (ActionModule("if", "never"), "expected one of condition, file-system-usage"),
        (ActionModule("do", "echo-message"), "amps-action-do-echo-message has no Message: give it"),
        (ActionModule("do", "echo-message", (("Message", "a"), ("Message", "b"))), "Message twice"),
        (ActionModule("do", "nothing", (("Age", "1d"),)), "Age is no option of .*: it has none"),
        (
            ActionModule("do", "echo-message", (("Message", "a"), ("Mesage", "b"))),
            "Mesage is no option of amps-action-do-echo-message: is Message meant",
        ),
        (
            ActionModule("do", "remove-journal", (("Age", "1d"), ("Pattern", "*"))),
            "Pattern is no option of amps-action-do-remove-journal: expected Age",
        ),
        (
            ActionModule("do", "remove-journal", (("Age", "soon"),)),
            "Age of amps-action-do-remove-journal: expected an interval",
        ),
        (ActionModule("do", "execute-event"), "needs either Event or EventVariable"),
        (
            ActionModule("do", "execute-event", (("Event", "a"), ("EventVariable", "B"))),
            "needs either Event or EventVariable",
        ),
        (
            ActionModule("if", "condition", (("Condition", "bad"),)),
            "Condition of amps-action-if-condition: the condition is bad",
        ),
        (
            ActionModule(
                "do", "extract-values", (("MessageType", "x"), ("Data", ""), ("Value", "A= bad "))
            ),
            "Value of amps-action-do-extract-values: the condition is bad",
        ),
        (publish("/AMPS/ClientStatus"), "topics that begin with /AMPS/ are the instance's own"),
        (
            ActionModule("do", "delete-sow", (*publish("x").options[:2], ("Filter", "bad"))),
            "Filter of amps-action-do-delete-sow: the filter is bad",
        ),
    ],
)
def test_what_is_wrong_with_a_module(use: ActionModule, told: str) -> None:
    (problem,) = module_problems(use, expression=told_bad)
    assert re.search(told, problem.text), problem.text


def test_what_may_be_repeated_and_what_has_variables() -> None:
    options = (("Data", "{{D}}"), ("Value", "V"), ("Case", "a=b"), ("Case", "c=d"))
    assert list(module_problems(ActionModule("do", "translate-data", options))) == []


def test_an_on_has_no_variables() -> None:
    """Nothing has set one before it, and the actions' process could not begin with the text."""
    (found,) = module_problems(ActionModule("on", "schedule", (("Every", "{{HOW_OFTEN}}"),)))
    assert found.option == "Every"
    assert "HOW_OFTEN is no variable yet: nothing sets one before an action begins" in found.text


def test_options_of_a_subscription_are_checked() -> None:
    assert list(module_problems(on("x", ("Options", "oof,select=[-/,+/a]")))) == []
    (found,) = module_problems(on("x", ("Options", "conflation=1s")))
    assert found.option == "Options"
    assert "Options has 'conflation': expected delta, no_empties" in found.text


def told_bad(kind: TextKind, text: str) -> str:
    return f"the {kind} is bad" if text == "bad" else ""


def test_an_option_that_does_not_run_is_told() -> None:
    for text, told in (("true", "UpdateOnly true does not run: a publish creates"), ("false", "")):
        use = publish("x")
        use = ActionModule("do", "publish-message", (*use.options, ("UpdateOnly", text)))
        assert refused_option(use).startswith(told)
        assert bool(refused_option(use)) == bool(told)
    assert refused_option(ActionModule("do", "none", (("UpdateOnly", "true"),))) == ""
    assert refused_option(ActionModule("do", "publish-message", (("Update", "true"),))) == ""


def test_event_topics_may_be_read() -> None:
    options = (*publish("/AMPS/SOWStats").options[:2], ("CaptureData", "DATA"))
    assert list(module_problems(ActionModule("do", "query-sow", options))) == []
    assert list(module_problems(on("/AMPS/ClientStatus"))) == []


def test_all_is_told_at_once() -> None:
    wrong = (
        ActionDefinition("a", (), (ECHO,)),
        ActionDefinition("a", (STARTUP,), (CONDITION,)),
        action("b", STARTUP, ActionModule("do", "echo-mesage")),
    )
    with pytest.raises(ConfigurationError) as caught:
        check_actions(wrong, "A-1")
    assert str(caught.value).splitlines() == [
        "A-1: action a has no On: name what starts it",
        "A-1: action a has no Do: name what it does",
        "A-1: action b: echo-mesage is no Do module: is echo-message meant?",
        "A-1: 2 actions are called a: give each a name",
    ]
    check_actions((action("a", STARTUP, ECHO),), "A-1")


CIRCLES = [
    (action("a", on("x"), publish("x")),),
    (action("a", on("^x"), ECHO, publish("x/y")),),
    (action("a", (STARTUP, on("^x")), publish("{{AMPS_TOPIC}}")),),
    (action("a", on("x", ("MessageSource", "local")), publish("x")),),
    (action("a", event("on", "e"), event("do", "e")),),
    (action("a", on("x"), publish("y")), action("b", on("y"), publish("x"))),
    (
        action("a", on("x"), publish("y")),
        action("b", on("y"), event("do", "e")),
        action("c", event("on", "e"), publish("x")),
    ),
]


@pytest.mark.covers("Actions", "a circle of actions")
@pytest.mark.parametrize("actions", CIRCLES)
def test_actions_that_start_one_another_for_ever_are_refused(
    actions: tuple[ActionDefinition, ...],
) -> None:
    (told,) = endless(actions)
    assert told.startswith("action a starts ")
    assert "for ever: publish to another topic" in told
    with pytest.raises(ConfigurationError, match="for ever"):
        check_actions(actions, "A-1")


@pytest.mark.parametrize(
    "actions",
    [
        (action("a", on("x"), publish("y")),),
        (action("a", on("x"), publish("x", "fix")),),
        (action("a", on("x", ("Filter", "/a = 1")), publish("x")),),
        (action("a", on("x", ("MessageSource", "replicated")), publish("x")),),
        (action("a", on("x"), CONDITION, publish("x")),),
        (action("a", on("^x"), publish("{{TOPIC}}")),),
        (action("a", on("x("), publish("x")),),
        (action("a", on("x"), publish("y")), action("b", on("^z"), publish("{{AMPS_TOPIC}}y"))),
        (action("a", on("x"), publish("y")), action("b", on("y"), publish("z"))),
        (action("a", event("on", "e"), event("do", "f")),),
        (action("a", STARTUP, ActionModule("do", "execute-event")),),
    ],
)
def test_others_are_not(actions: tuple[ActionDefinition, ...]) -> None:
    assert endless(actions) == []


def test_a_circle_behind_another_action_is_told_once() -> None:
    actions = (
        action("in", on("w"), publish("x")),
        action("a", on("x"), publish("y")),
        action("b", on("y"), publish("x")),
    )
    (told,) = endless(actions)
    assert told.startswith("action a starts b, which starts a, for ever")
