"""Actions of AMPSConfig files: what performs them, what is refused."""

from __future__ import annotations

import pytest
from unit.configuration.amps.test_fabric import (
    ARCHIVED,
    FILE,
    GROUP,
    document,
    started,
    started_of,
)

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.actions.modules import MODULES
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.configuration.amps.show import shown
from raylay.services.configuration.amps.support import findings
from raylay.services.errors import ConfigurationError


def module(name: str, **options: str | tuple[str, ...]) -> str:
    """The elements of a module, and its options."""
    inner = "".join(
        f"<{key}>{text}</{key}>"
        for key, given in options.items()
        for text in ((given,) if isinstance(given, str) else given)
    )
    return f"<Module>amps-action-{name}</Module>" + (f"<Options>{inner}</Options>" if inner else "")


def action(*elements: tuple[str, str]) -> str:
    """An action of its elements: the name of each, and what is in it."""
    return f"<Action>{''.join(f'<{tag}>{inner}</{tag}>' for tag, inner in elements)}</Action>"


def with_actions(*actions: str, text: str = FILE) -> str:
    return text.replace(GROUP, f"{GROUP}<Actions>{''.join(actions)}</Actions>", 1)


STARTUP = ("On", module("on-startup"))
NIGHTLY = ("On", module("on-schedule", Every="00:32"))
ECHO = ("Do", module("do-echo-message", Message="hello"))


@pytest.mark.covers("Actions", "configuration: modules")
def test_an_action_comes_through_in_order_with_all_its_ons() -> None:
    text = with_actions(
        action(
            ("On", module("on-publish-message", Topic="^orders", MessageType="json",
                          Filter="/a &lt; 1")),
            ("On", module("on-schedule", Every="1w", Name="weekly")),
            ("Do", module("do-extract-values", MessageType="json", Data="{{AMPS_DATA}}",
                          Value=("A=/a", "B=/b"))),
            ("If", module("if-condition", Condition="{{A}} = 0")),
            ("Do", module("do-publish-message", Topic="low", MessageType="json", Data="{{B}}")),
            ("If", module("if-file-system-usage", Path="/", GreaterThan="90%")),
            ("Do", module("do-shutdown")),
        ),
        action(STARTUP, ECHO),
    )  # fmt: skip
    config = started(text)
    assert config.actions == (
        ActionDefinition(
            "publish-message",
            (
                ActionModule(
                    "on",
                    "publish-message",
                    (("Topic", "^orders"), ("MessageType", "json"), ("Filter", "/a < 1")),
                ),
                ActionModule("on", "schedule", (("Every", "1w"), ("Name", "weekly"))),
            ),
            (
                ActionModule(
                    "do",
                    "extract-values",
                    (
                        ("MessageType", "json"),
                        ("Data", "{{AMPS_DATA}}"),
                        ("Value", "A=/a"),
                        ("Value", "B=/b"),
                    ),
                ),
                ActionModule("if", "condition", (("Condition", "{{A}} = 0"),)),
                ActionModule(
                    "do",
                    "publish-message",
                    (("Topic", "low"), ("MessageType", "json"), ("Data", "{{B}}")),
                ),
                ActionModule("if", "file-system-usage", (("Path", "/"), ("GreaterThan", "90%"))),
                ActionModule("do", "shutdown"),
            ),
        ),
        ActionDefinition(
            "startup",
            (ActionModule("on", "startup"),),
            (ActionModule("do", "echo-message", (("Message", "hello"),)),),
        ),
    )
    assert findings(document(text)) == []
    assert InstanceConfig.from_json(config.to_json()) == config
    again = load_amps("f.yaml", text=shown(document(text)), environment={})
    assert started_of(again).actions == config.actions, "the order of If and Do is kept"


@pytest.mark.covers("Actions", "downgrades and work on journal")
def test_what_an_instance_does_by_itself_needs_no_process() -> None:
    """One that only schedules downgrades or work on journal; with any other step, or another On,
    the whole action is one of the process beside it."""
    remove = ("Do", module("do-remove-journal", Age="30d"))
    upgrade = ("Do", module("do-upgrade-replication", Age="5s"))
    config = started(with_actions(action(NIGHTLY, remove, upgrade, ("Do", module("do-nothing")))))
    assert config.actions == ()
    assert [each.do for each in config.journal.actions] == ["remove"]
    assert [each.upgrade_age_ms for each in config.policy.looks] == [5_000]
    for elements in (
        (NIGHTLY, remove, ECHO),
        (NIGHTLY, STARTUP, remove),
        (NIGHTLY, ("Do", module("do-remove-journal", Age="{{AGE}}"))),
        (NIGHTLY, ("If", module("if-condition", Condition="1 = 1")), upgrade),
    ):
        config = started(with_actions(action(*elements)))
        assert len(config.actions) == 1
        assert len(config.actions[0].steps) == len(elements) - 1 - (STARTUP in elements)
        assert config.journal.actions == () and config.policy.looks == ()


ON_MINIDUMP = ("On", module("on-minidump"))


@pytest.mark.covers("Actions", "what has no meaning here")
@pytest.mark.parametrize(
    ("elements", "refuses", "told", "steps"),
    [
        ((ON_MINIDUMP, ECHO), False, "On amps-action-on-minidump never happens: Python writes", 0),
        ((STARTUP, ON_MINIDUMP, ECHO), False, "never happens: Python writes no minidumps", 1),
        (
            (
                STARTUP,
                (
                    "On",
                    module(
                        "on-message-affinity",
                        MessageType="json",
                        ControlTopic="control",
                        DataTopic="orders",
                    ),
                ),
                ECHO,
            ),
            True,
            "amps-action-on-message-affinity does not run: records are not assigned to clients",
            1,
        ),
        ((STARTUP, ("Do", module("do-minidump")), ECHO), True, "do-minidump does not run: Pyth", 0),
        ((STARTUP, ECHO, ("Do", module("do-vacuum-statistics"))), False, "needs nothing here", 1),
        ((STARTUP, ("Do", module("do-vacuum-statistics"))), False, "needs nothing here", 0),
        (
            (
                STARTUP,
                (
                    "Do",
                    module(
                        "do-publish-message",
                        Topic="x",
                        MessageType="json",
                        Data="x",
                        UpdateOnly="true",
                    ),
                ),
                ECHO,
            ),
            True,
            "UpdateOnly true does not run: a publish creates a record where there is none",
            0,
        ),
        ((STARTUP, ECHO, ("Do", module("do-archive-journal", Age="1d"))), True, "nowhere to", 1),
    ],
)
def test_what_has_no_meaning_here_is_told(
    elements: tuple[tuple[str, str], ...], refuses: bool, told: str, steps: int
) -> None:
    text = with_actions(action(*elements))
    (finding,) = findings(document(text))
    assert told in finding.text
    assert finding.refuses is refuses
    if refuses:
        with pytest.raises(ConfigurationError, match="--ignore-unsupported"):
            fabric_of([document(text)])
    settings = fabric_of([document(text)], ignore_unsupported=True)
    found = settings.instances[0].actions or ()
    assert sum(len(each.do) for each in found) == steps


@pytest.mark.covers("Actions", "what has no meaning here")
def test_a_module_of_a_library_does_not_run() -> None:
    own = "<Modules><Module><Name>mine</Name><Library>libmine.so</Library></Module></Modules>"
    text = with_actions(action(STARTUP, ("Do", "<Module>mine</Module>"), ECHO))
    told = [each.text for each in findings(document(text.replace(GROUP, GROUP + own, 1)))]
    assert "mine is of a Library: no such module of actions runs" in told


def test_archiving_in_an_action_has_a_place() -> None:
    archive = ("Do", module("do-archive-journal", Age="1d"))
    text = with_actions(action(STARTUP, archive), text=ARCHIVED)
    assert findings(document(text)) == []
    assert [each.steps[0].module for each in started(text).actions] == ["archive-journal"]


@pytest.mark.covers("Actions", "configuration: modules")
@pytest.mark.parametrize(
    ("elements", "told"),
    [
        ((("On", module("on-startups")), ECHO),
         "amps-action-on-startups is no On module: is amps-action-on-startup meant"),
        ((STARTUP, ("If", module("if-conditions", Condition="1")), ECHO),
         "is amps-action-if-condition meant"),
        ((STARTUP, ("Do", module("do-call-function", Function="print"))),
         "Function of amps-action-do-call-function: expected package.module:function"),
        ((STARTUP, ("Do", module("do-echo-message"))), "has no Message: give it one"),
        ((STARTUP, ("Do", module("do-echo-message", Message="a", Mesage="b"))),
         "Mesage is no option of amps-action-do-echo-message: is Message meant"),
        ((("On", module("on-publish-message", Topic="a(", MessageType="json")), ECHO),
         "Topic of amps-action-on-publish-message: 'a(' cannot be used"),
        ((("On", module("on-publish-message", Topic="a", MessageType="json", Filter="/a =")), ECHO),
         "Filter of amps-action-on-publish-message: "),
        ((("On", module("on-schedule", Every="never")), ECHO), "'Saturday at 11:00', got 'never'"),
        ((("On", module("on-signal", Signal="SIGQUIT")), ECHO), "cannot be given another meaning"),
        ((("On", module("on-publish-message", Topic="a", MessageType="json")),
          ("Do", module("do-publish-message", Topic="a", MessageType="json", Data="x"))),
         "action publish-message starts publish-message, for ever"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(elements: tuple[tuple[str, str], ...], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        document(with_actions(action(*elements)))
    (problem,) = str(caught.value).splitlines()
    assert problem.startswith("f.xml:3: ")
    assert told in problem


@pytest.mark.covers("Actions", "configuration: modules")
def test_every_module_is_read() -> None:
    """One with all its options, in an element of its kind."""
    texts = {
        **{"interval": "1d", "schedule": "1h", "percent": "5%", "flag": "true", "number": "3"},
        **{"assignment": "A=/a", "case": "a=b", "signal": "SIGUSR1", "variable": "V"},
        **{"function": "os.path:join", "filter": "/a = 1", "condition": "/a = 1"},
    }
    for known in MODULES.values():
        options = {
            each.name: each.choices[0]
            if each.choices
            else "false"
            if each.refused
            else texts.get(each.text, "oof")  # A word that is an option of subscriptions, too.
            for each in known.options
            if each.name not in known.one_of[1:]
        }
        use = module(f"{known.kind}-{known.module}", **options)
        elements = {"on": ("On", use), "if": ("If", use), "do": ("Do", use)}
        made = [STARTUP, ECHO]
        if known.kind == "on":
            made[0] = elements["on"]
        else:
            made.insert(1, elements[known.kind])
        found = document(with_actions(action(*made), text=ARCHIVED))
        assert bool(known.refused or known.module == "vacuum-statistics") == bool(findings(found))
