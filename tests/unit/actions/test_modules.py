"""The table of modules of actions (services/actions/modules.py)."""

from __future__ import annotations

import re

import pytest

from raylay.services.actions.model import ActionModule
from raylay.services.actions.modules import (
    MODULES,
    ModuleDefinition,
    definition_of,
    named,
    of_kind,
)

DOCUMENTED = {
    "on": "schedule startup shutdown signal admin minidump connect-client disconnect-client "
    "logon-client offline-start offline-stop subscribe unsubscribe connect-incoming-replication "
    "disconnect-incoming-replication connect-replication disconnect-replication "
    "replication-resync-complete upgrade-replication downgrade-replication publish-message "
    "deliver-message message-affinity sow-expire-message sow-delete-message oof-message "
    "message-condition-timeout alert execute-event",
    "if": "condition file-system-usage",
    "do": "rotate-logs compress-files remove-files truncate-statistics vacuum-statistics "
    "archive-journal compress-journal remove-journal delete-sow compact-sow query-sow "
    "enable-authentication disable-authentication reset-authentication enable-entitlement "
    "disable-entitlement reset-entitlement enable-transport disable-transport publish-message "
    "downgrade-replication upgrade-replication extract-values translate-data increment-counter "
    "execute-event execute-system enable-proxied-transfer disable-proxied-transfer minidump "
    "shutdown nothing echo-message",
}
"""Modules of behaviour.md 8."""


@pytest.mark.parametrize("kind", ["on", "if", "do"])
def test_every_documented_module_is_there(kind: str) -> None:
    found = [each.module for each in of_kind(kind) if not each.own]  # type: ignore[arg-type]
    assert sorted(found) == sorted(DOCUMENTED[kind].split())


def test_each_has_its_names() -> None:
    found = named("do", "amps-action-do-publish-message")
    assert found is not None
    assert (found.documented_name, found.written_name) == (
        "amps-action-do-publish-message",
        "publish_message",
    )
    assert definition_of(ActionModule("do", "publish-message")) is found
    assert definition_of(ActionModule("if", "publish-message")) is None
    assert named("on", "amps-action-on-publish-mesage") is None
    assert named("on", "amps-action-do-publish-message") is None
    alert = MODULES["on", "alert"]
    assert [each.written_name for each in alert.options] == [
        *("topic", "message_type", "duration", "filter"),
        *("event_variable", "oof_event", "timeout_event"),
    ]
    assert alert.option("OOFEvent") is not None
    assert alert.option("OofEvent") is None


@pytest.mark.parametrize("module", MODULES.values(), ids=lambda each: each.documented_name)
def test_each_is_described(module: ModuleDefinition) -> None:
    assert re.fullmatch(r"[A-Z].*\.", module.note)
    names = [each.name for each in module.options]
    assert len(set(names)) == len(names)
    # Those that it needs stand first: so `If.condition("…")` and the table of the page have them.
    needed = [each.required for each in module.options]
    assert needed == sorted(needed, reverse=True)
    assert all((each.note and each.note[0] != each.note[0].upper()) or each.note[0] == "`"
               for each in module.options)  # fmt: skip
    assert set(module.one_of) <= set(names)
    for option in module.options:
        assert not option.choices or not option.default or option.default in option.choices
