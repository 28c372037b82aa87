"""The modules of actions for scripts (services/configuration/action_modules.py)."""

from __future__ import annotations

import ast
import os.path
import subprocess
import sys

import pytest
from support.action_modules import FILE, text

from raylay import Action, Do, If, On
from raylay.services.actions.model import ActionModule
from raylay.services.configuration.actions import ActionSettings, function_path
from raylay.services.errors import ConfigurationError


def test_the_file_is_what_the_table_says() -> None:
    # Their trees, because the file is formatted.
    written = ast.dump(ast.parse(FILE.read_text(encoding="utf-8")))
    assert written == ast.dump(ast.parse(text())), "make action-modules"


@pytest.mark.covers("Actions", "the same in YAML")
def test_an_action_of_a_script() -> None:
    found = ActionSettings.model_validate(
        Action(
            [On.publish_message("^orders", "json", filter="/a < 1"), On.schedule(every="1h")],
            [
                Do.extract_values("json", {"A": "/a", "B": "/b"}, "{{AMPS_DATA}}"),
                If.condition("{{A}} = 0"),
                Do.publish_message(topic="low", message_type="json", data="{{B}}", delta=False),
                Do.remove_files("1d", "*.log", keep=3),
                Do.call_function(os.path.basename),
                Do.call_function("os.path:join"),
                Do.execute_event("low"),
            ],
            name="low",
        )
    )
    assert found.name == "low"
    assert [each.option("Every") for each in found.on] == ["", "1h"]
    assert found.on[0] == ActionModule(
        "on",
        "publish-message",
        (("Topic", "^orders"), ("MessageType", "json"), ("Filter", "/a < 1")),
    )
    assert [each.module for each in found.do] == [
        *("extract-values", "condition", "publish-message", "remove-files"),
        *("call-function", "call-function", "execute-event"),
    ]
    assert found.do[0].every("Value") == ("A=/a", "B=/b")
    assert found.do[2].option("Delta") == "false"
    assert found.do[3].option("Keep") == "3"
    assert [each.option("Function") for each in found.do[4:6]] == [
        "posixpath:basename",
        "os.path:join",
    ]


def test_a_wrong_option_is_told_where_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match="every of schedule: expected an interval"):
        On.schedule("never")
    with pytest.raises(ConfigurationError, match="condition of if_condition: "):
        If.condition("1 +")


class Called:
    """Something callable."""

    def __call__(self) -> None: ...


def test_a_function_that_instances_cannot_import_is_refused() -> None:
    def inside() -> None: ...

    for wrong in (inside, lambda: None, Called(), Called().__call__):
        with pytest.raises(ConfigurationError, match="cannot be imported by instances: define it"):
            Do.call_function(wrong)
    assert function_path(Called.__call__) == f"{__name__}:Called.__call__"


def test_a_function_of_the_script_itself_is_refused() -> None:
    script = "from raylay import Do\ndef mine(): ...\nDo.call_function(mine)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "the function mine cannot be imported by instances" in done.stderr
