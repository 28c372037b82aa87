"""The actions that a request begins (services/actions/requests.py)."""

from __future__ import annotations

import pytest

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.actions.requests import actions_at
from raylay.services.errors import ConfigurationError


def on_admin(path: str, *required: str) -> ActionModule:
    needs = tuple(("RequiredParameter", name) for name in required)
    return ActionModule("on", "admin", (("Path", path), *needs))


ACTIONS = (
    ActionDefinition("recover", (on_admin("again", "who", "why"), on_admin("again")), ()),
    ActionDefinition("tell", (ActionModule("on", "startup"), on_admin("again")), ()),
    ActionDefinition("other", (on_admin("else"),), ()),
)


def test_a_request_begins_all_actions_of_its_path() -> None:
    assert actions_at(ACTIONS, "again", {"who": "", "why": ""}, "A") == ["recover", "tell"]
    assert actions_at(ACTIONS, "else", {"more": ""}, "A") == ["other"]


@pytest.mark.covers("Actions", "On a REST Request")
def test_a_request_without_a_required_parameter_begins_nothing() -> None:
    with pytest.raises(ConfigurationError, match="recover of A needs the parameter 'why'"):
        actions_at(ACTIONS, "again", {"who": ""}, "A")


def test_another_path_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no action at 'nowhere': it has again, else"):
        actions_at(ACTIONS, "nowhere", {}, "A")
    with pytest.raises(ConfigurationError, match="it has none"):
        actions_at((), "x" * 10_000, {}, "A")
