"""services/admin/actions.py: a path names the control call that is authorized by that path."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin.actions import (
    BY_HTTP,
    AdminAction,
    action_at,
    action_of,
    actions_of,
    body_of,
    configured_paths,
    read_options,
)
from raylay.services.admin.requests import read_request
from raylay.services.admin.tree import Collection
from raylay.services.errors import ConfigurationError
from raylay.services.security.control import PATHS, path_of

NAMES = {
    "destination": "a/b", "queue": "json/jobs", "transport": "any", "segments": "17",
    "client": "7", "topic": "json/orders", "action": "recover", "reader": "lake",
}  # fmt: skip


def details_of(call: str) -> dict[str, str]:
    return {name: value for name, value in NAMES.items() if f"{{{name}}}" in PATHS[call]}


@pytest.mark.covers("Administration", "administrator's actions: each is the control call th")
@pytest.mark.parametrize("call", sorted(BY_HTTP))
def test_a_call_is_found_by_the_path_that_authorizes_it(call: str) -> None:
    details = details_of(call)
    path = path_of(call, details)
    steps = read_request(path, ()).steps
    assert steps[0] == "administrator"
    found = action_at(steps[1:])
    assert found == AdminAction(call, details)
    assert found.path == path and found.verb == PATHS[call].rpartition("/")[2].format(**details)
    assert found.name == next(iter(details.values()), "")
    assert action_of(path) == action_of(path.lstrip("/")) == found


@pytest.mark.parametrize(
    "path", ["", "replication", "replication/north", "replication/north/kill", "instance/stop",
             "replication/north/downgrade/more", "nothing/north/downgrade"],
)  # fmt: skip
def test_other_paths_name_no_action(path: str) -> None:
    assert action_at(path.split("/")) is None
    assert action_of(f"amps/administrator/{path}") is None
    assert action_of(f"amps/instance/{path}") is None


def test_a_path_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="below /amps/"):
        action_of("replication/north/downgrade")


@pytest.mark.parametrize(
    ("call", "body", "arguments"),
    [
        ("downgrade", None, {}),
        ("downgrade", {}, {}),
        ("downgrade", {"force": True}, {"force": True}),
        ("reset_entitlement", {"user": "bob"}, {"of_user": "bob"}),
        ("run_action", {}, {}),
        ("run_action", {"who": "amy", "t": ""}, {"parameters": {"who": "amy", "t": ""}}),
        ("admit", {"senders": ["a", "b"], "force": False}, {"senders": ["a", "b"], "force": False}),
    ],
)
def test_a_body_adds_arguments(call: str, body: object, arguments: dict[str, Any]) -> None:
    assert read_options(call, body) == arguments


@pytest.mark.parametrize(
    ("call", "body", "text"),
    [
        ("downgrade", [], "no JSON object"),
        ("downgrade", {"destination": "other"}, "it takes force"),
        ("upgrade", {"force": True}, "it takes no body"),
        ("downgrade", {"force": 1}, "must be true or false"),
        ("reset_entitlement", {"user": 7}, "must be a text"),
        ("reset_entitlement", {"user": "u" * 2_000}, "at most 1,024"),
        ("admit", {"senders": "a"}, "must be a list"),
        ("run_action", {"who": 7}, "parameter 'who' must be a text"),
        ("run_action", {"": "x"}, "must be a text"),
        ("run_action", {"who": "w" * 2_000}, "at most 1,024"),
        ("run_action", {str(number): "" for number in range(101)}, "takes 100 at most"),
        ("admit", {"senders": [1]}, "must be a list"),
        ("admit", {"senders": ["a"] * 2_000}, "must be a list"),
    ],
)
def test_another_body_is_refused(call: str, body: object, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        read_options(call, body)


@pytest.mark.covers("Administration", "administrator's actions: each is the control call th")
def test_all_that_there_is_to_do_is_listed() -> None:
    instance = {
        "clients": Collection("client", {"7": {"client_name": "billing"}}),
        "replication": Collection("destination", {"a/b": {}}),
        "transaction_log": {
            "journals": Collection(
                "journal",
                {"1": {"raylay": {"state": "sealed"}}, "9": {"raylay": {"state": "live"}}},
            )
        },
    }
    found: Any = actions_of(instance, lambda path: not path.endswith("a%2Fb/downgrade"))
    assert found["clients"].branches == {"7": {"disconnect": True}}
    assert found["replication"].branches == {
        "a/b": {"downgrade": False, "upgrade": True, "reconnect": True}
    }
    assert found["transaction_log"]["journals"].branches == {
        "1": {"compress": True, "archive": True, "remove": True}
    }
    assert found["queues"].branches == {}
    assert found["authorization"]["authentication"] == {"reset": True}
    assert found["diagnostics"] == {"dump": True} and found["instance"] == {"admit": True}


def test_an_instance_that_does_not_serve_offers_what_needs_nothing() -> None:
    found: Any = actions_of({}, lambda path: True)
    assert found["transaction_log"]["journals"].branches == {}
    assert found["authorization"]["entitlement"] == {"reset": True}


def test_actions_of_the_configuration_are_listed_by_their_paths() -> None:
    admin = {"kind": "on", "module": "admin"}
    configuration = {
        "actions": [
            {"name": "a", "on": [{**admin, "options": [["Path", "one"], ["Name", "One"]]}]},
            {"name": "b", "on": [{"kind": "on", "module": "startup", "options": []},
                                 {**admin, "options": [["Path", "two"]]},
                                 {**admin, "options": [["Path", "one"]]}]},
        ]
    }  # fmt: skip
    paths = configured_paths(configuration)
    assert paths == ["one", "two"] and configured_paths({}) == []
    found = actions_of({}, lambda path: path.endswith("/actions/one"), paths)
    assert found["actions"] == {"one": True, "two": False}
    assert body_of("run_action", {"action": "one", "parameters": {"who": "amy"}}) == {"who": "amy"}
    assert body_of("run_action", {"action": "one"}) == {}
