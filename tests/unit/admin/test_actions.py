"""services/admin/actions.py: a path names the control call that is authorized by that path."""

from __future__ import annotations

import pytest

from raylay.services.admin.actions import BY_HTTP, AdminAction, action_at
from raylay.services.admin.requests import read_request
from raylay.services.security.control import PATHS, path_of

NAMES = {"destination": "a/b", "queue": "jobs", "transport": "any", "segments": "17"}


@pytest.mark.parametrize("call", sorted(BY_HTTP))
def test_a_call_is_found_by_the_path_that_authorizes_it(call: str) -> None:
    details = {name: value for name, value in NAMES.items() if f"{{{name}}}" in PATHS[call]}
    steps = read_request(path_of(call, details), ()).steps
    assert steps[0] == "administrator"
    assert action_at(steps[1:]) == AdminAction(call, details)


@pytest.mark.parametrize(
    "path", ["", "replication", "replication/north", "replication/north/kill", "instance/stop",
             "replication/north/downgrade/more", "nothing/north/downgrade"],
)  # fmt: skip
def test_other_paths_name_no_action(path: str) -> None:
    assert action_at(path.split("/")) is None
