"""Actions of a fabric: as YAML and scripts write them, what an instance gets, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from unit.configuration.amps.test_fabric import config_of

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.actions import Action
from raylay.services.configuration.amps.show import shown_fabric
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.replication.downgrade import AgeCheck
from raylay.services.replication.timetable import JournalAction, Occasion

HEAD = "fabric: f\ninstances: {A: {}}\n"


def actions_of(text: str, name: str = "A") -> tuple[ActionDefinition, ...]:
    """Returns the configuration of an instance, by way of all texts that the settings take on."""
    settings = parse(text, "f.yaml")
    settings = FabricSettings.from_json(settings.to_json())
    config = config_of(settings, name)
    assert InstanceConfig.from_json(config.to_json()) == config
    return config.actions


@pytest.mark.covers("Actions", "the same in YAML")
def test_an_action_as_a_file_has_it() -> None:
    (found,) = actions_of(
        f"""{HEAD}
actions:
- name: letters
  on:
  - sow_expire_message: {{topic: work, message_type: json, reason: "time_limit,max_cancels"}}
  - schedule: {{every: "Saturday at 11:00"}}
  do:
  - if_condition: {{condition: "'{{{{AMPS_REASON}}}}' = 'time_limit'"}}
  - extract_values: {{data: "{{{{AMPS_DATA}}}}", message_type: json, value: {{ID: /id, AT: /at}}}}
  - translate_data: {{data: "{{{{ID}}}}", value: SHORT, case: [1=one, 2=two], default: many}}
  - publish_message:
      topic: letters
      message_type: json
      data: '{{"id": "{{{{SHORT}}}}"}}'
      delta: false
  - shutdown
"""
    )
    assert found == ActionDefinition(
        "letters",
        (
            ActionModule(
                "on",
                "sow-expire-message",
                (("Topic", "work"), ("MessageType", "json"), ("Reason", "time_limit,max_cancels")),
            ),
            ActionModule("on", "schedule", (("Every", "Saturday at 11:00"),)),
        ),
        (
            ActionModule("if", "condition", (("Condition", "'{{AMPS_REASON}}' = 'time_limit'"),)),
            ActionModule(
                "do",
                "extract-values",
                (
                    ("Data", "{{AMPS_DATA}}"),
                    ("MessageType", "json"),
                    ("Value", "ID=/id"),
                    ("Value", "AT=/at"),
                ),
            ),
            ActionModule(
                "do",
                "translate-data",
                (
                    ("Data", "{{ID}}"),
                    ("Value", "SHORT"),
                    ("Case", "1=one"),
                    ("Case", "2=two"),
                    ("Default", "many"),
                ),
            ),
            ActionModule(
                "do",
                "publish-message",
                (
                    ("Topic", "letters"),
                    ("MessageType", "json"),
                    ("Data", '{"id": "{{SHORT}}"}'),
                    ("Delta", "false"),
                ),
            ),
            ActionModule("do", "shutdown"),
        ),
    )


def test_short_forms_and_names() -> None:
    found = actions_of(
        f"""{HEAD}
actions:
- {{on: startup, do: shutdown}}
- on: {{startup: , schedule: {{every: 1h, name: hourly}}}}
  do: {{echo_message: {{message: 5}}}}
- {{on: {{schedule: {{every: 1h, name: hourly}}}}, do: [rotate_logs]}}
- {{on: {{schedule: {{every: 1h, name: hourly}}}}, do: [rotate_logs]}}
"""
    )
    assert [each.name for each in found] == ["startup", "startup-2", "hourly", "hourly-2"]
    assert found[1].on == (
        ActionModule("on", "startup"),
        ActionModule("on", "schedule", (("Every", "1h"), ("Name", "hourly"))),
    )
    assert found[1].steps == (ActionModule("do", "echo-message", (("Message", "5"),)),)


def test_an_instance_may_have_its_own_or_none() -> None:
    text = """
fabric: f
actions: [{on: startup, do: nothing}]
instances:
  A: {}
  B: {actions: []}
  C: {actions: [{on: shutdown, do: nothing}]}
"""
    assert [[each.name for each in actions_of(text, name)] for name in "ABC"] == [
        ["startup"],
        [],
        ["shutdown"],
    ]


@pytest.mark.covers("Actions", "downgrades and work on journal")
def test_what_an_instance_does_by_itself_needs_no_process() -> None:
    settings = parse(
        f"""{HEAD}
journal: {{archive_directory: archive, actions: [{{do: compress, age: 1d, every: 1h}}]}}
actions:
- on: [{{schedule: {{every: "Saturday at 11:00"}}}}, {{schedule: {{every: 1w}}}}]
  do: [nothing, {{archive_journal: {{age: 7d}}}}, {{remove_journal: {{age: 30d}}}}]
- on: {{schedule: {{every: 15s}}}}
  do:
  - downgrade_replication: {{age: 30s, grace_period: 5m}}
  - upgrade_replication: {{age: 5s}}
- {{on: {{schedule: {{every: 1h}}}}, do: [{{remove_journal: {{age: 1d}}}}, shutdown]}}
"""
    )
    config = config_of(settings, "A")
    twice = (Occasion(at="Saturday at 11:00"), Occasion(7 * 86_400_000))
    assert config.journal.actions == (
        JournalAction("compress", 86_400_000, (Occasion(3_600_000),)),
        JournalAction("archive", 7 * 86_400_000, twice),
        JournalAction("remove", 30 * 86_400_000, twice),
    )
    assert config.policy.looks == (
        AgeCheck(30_000, None, (Occasion(15_000),), 300_000),
        AgeCheck(None, 5_000, (Occasion(15_000),), 0),
    )
    assert [[step.module for step in each.steps] for each in config.actions] == [
        ["remove-journal", "shutdown"]
    ]


def test_settings_are_shown_as_they_are_written() -> None:
    text = f"{HEAD}actions: [{{on: startup, do: [{{echo_message: {{message: hi}}}}, nothing]}}]\n"
    settings = parse(text, "f.yaml")
    shown = shown_fabric(settings)
    assert "echo_message:\n      message: hi" in shown
    assert settings.model_dump()["actions"][0]["on"] == ({"startup": {}},)


WRONG = [
    (
        "{on: startups, do: nothing}",
        3,
        "actions.0.on.0: startups is no On module: is startup meant",
    ),
    ("{on: startup, do: condition}", 3, "condition is no Do module"),
    ("{on: startup, do: if_conditon}", 3, "if_conditon is no Do module: is if_condition meant"),
    ("{on: startup, do: amps-action-do-nothing}", 3, "is nothing meant"),
    ("{on: startup, do: minidump}", 3, "minidump does not run: Python writes no minidumps"),
    ("{on: startup, do: echo_message}", 3, "echo_message has no message: give it one"),
    ("{on: startup, do: [{echo_message: {mesage: a}}]}", 3, "mesage is no option of echo_message"),
    ("{on: startup, do: [{echo_message: [a]}]}", 3, "expected the options of echo_message as keys"),
    ("{on: startup, do: [{echo_message: {message: }}]}", 3, "message: expected a text, got None"),
    (
        "{on: startup, do: [{remove_journal: {age: 5}}]}",
        3,
        "age of remove_journal: expected an int",
    ),
    ("{on: {schedule: {every: 11:00}}, do: nothing}", 3, "every: give the time in quotes: YAML"),
    ("{on: {schedule: {every: true}}, do: nothing}", 3, "every of schedule: expected an interval"),
    ("{on: startup, do: [{if_condition: {condition: '1 +'}}]}", 3, "condition of if_condition: "),
    (
        "{on: startup, do: [{if_condition: {condition: '{{A}} = {{B'}}]}",
        3,
        "condition of if_condition: ",
    ),
    (
        "{on: startup, do: [{extract_values: {message_type: json, data: x, value: {A: /a +}}}]}",
        3,
        "value of extract_values: ",
    ),
    (
        "{on: startup, do: [{publish_message: {topic: x, message_type: json, data: x, "
        "update_only: true}}]}",
        3,
        "publish_message: UpdateOnly true does not run",
    ),
    ("{on: startup, do: []}", 3, "actions.0.do: "),
    ("{on: startup}", 3, "actions.0.do: is missing"),
    ("{on: startup, do: [5]}", 3, "expected the name of one module"),
    ("{on: startup, do: [{nothing: , shutdown: }]}", 3, "expected the name of one module"),
    ("{on: startup, do: nothing, when: 5}", 3, "actions.0.when: this key is unknown here"),
    (
        "{name: a, on: {publish_message: {topic: x, message_type: json}}, "
        "do: {publish_message: {topic: x, message_type: json, data: y}}}",
        2,
        "instance A: action a starts a, for ever",
    ),
    (
        "{name: a, on: startup, do: nothing}, {name: a, on: startup, do: nothing}",
        2,
        "2 actions are",
    ),
    (
        "{name: a, on: shutdown, do: {archive_journal: {age: 1d}}}",
        2,
        "action a archives segments and there is no archive directory: give `archive_directory`",
    ),
]


@pytest.mark.covers("Actions", "the same in YAML")
@pytest.mark.parametrize(("text", "line", "told"), WRONG)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(f"{HEAD}actions: [{text}]\n", "f.yaml")
    (problem,) = str(caught.value).splitlines()
    assert problem.startswith(f"f.yaml:{line}: ")
    assert told in problem


@pytest.mark.covers("Actions", "the same in YAML")
def test_an_action_publishes_to_topics_that_its_instance_takes() -> None:
    def declared(topic: str, topics: str) -> str:
        return (
            f"fabric: f\ntopics: [{topics}]\ninstances: {{A: {{}}}}\nactions:\n- {{name: a, "
            f"on: startup, do: {{publish_message: {{topic: '{topic}', message_type: json, "
            "data: x}}}"
        )

    for topic, topics in (
        ("alerts", "orders, alerts"),
        ("alerts", "orders, {name: alerts, journaled: false}"),
        ("alerts/a", "orders, ^alerts/"),
        ("{{TOPIC}}", "orders"),
        ("alerts", "'.*'"),
    ):
        parse(declared(topic, topics))
    with pytest.raises(ConfigurationError, match="action a publishes to alert of type json, which"):
        parse(declared("alert", "orders, alerts"))
    with pytest.raises(ConfigurationError, match="does not take: declare that topic"):
        parse(declared("alerts", "{name: alerts, message_type: fix}"))


def test_a_script_declares_the_same() -> None:
    on = ActionModule("on", "startup")
    steps = [
        ActionModule("if", "condition", (("Condition", "1 = 1"),)),
        ActionModule("do", "nothing"),
    ]
    builder = FabricBuilder("f", actions=[Action(on, steps)])
    builder.instance("A")
    builder.instance("B", actions=[Action([on], steps[1], "own")])
    settings = builder.settings()
    assert config_of(settings, "A").actions == (ActionDefinition("startup", (on,), tuple(steps)),)
    assert config_of(settings, "B").actions == (ActionDefinition("own", (on,), (steps[1],)),)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (
            Action(ActionModule("do", "nothing"), ActionModule("do", "nothing")),
            "a module of On, got",
        ),
        (
            Action(ActionModule("on", "startup"), ActionModule("on", "startup")),
            "Do or a module of If",
        ),
        (Action(ActionModule("on", "startup"), ActionModule("do", "none")), "none is no Do module"),
    ],
)
def test_a_script_is_told_too(action: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        FabricBuilder("f", actions=[action])
