"""docs/security.md: its configuration and its permissions are ones, and say what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from raylay.services.configuration.yaml_file import parse
from raylay.services.plugins import authentication, entitlement
from raylay.services.security.permissions import Grant, read_permissions

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
FABRIC, PERMISSIONS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[:2]


def test_the_fabric_names_its_modules() -> None:
    settings = parse(FABRIC)
    assert settings.authentication is not None and settings.entitlement is not None
    assert settings.authentication.module == "passwords"
    assert settings.entitlement.module == "permissions"


def test_the_permissions_are_ones() -> None:
    given = yaml.safe_load(PERMISSIONS)
    amy, link = (read_permissions(given[user], user) for user in ("amy", "link-of-london"))
    assert amy.logon and amy.write(b"orders") == Grant(True, "/desk = 'fx'")
    assert amy.read(b"staff").select == "-/pay" and amy.read(b"prices/x").is_whole
    assert not amy.read(b"other").allowed
    assert link.replication_logon and not link.logon and link.replicates(b"orders")


@pytest.mark.parametrize("modules", [authentication._BUILT_IN, entitlement._BUILT_IN])
def test_every_module_is_named(modules: dict[str, object]) -> None:
    assert [name for name in modules if f"| `{name}` |" not in PAGE] == []


def test_the_operators_are_some() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (fabric,) = (each for each in blocks if each.startswith("fabric: controlled"))
    assert parse(fabric).controlled() == ["here-1", "here-2"]
    (users,) = (yaml.safe_load(each) for each in blocks if "night-script" in each)
    amy, script = (read_permissions(users[user], user) for user in ("amy", "night-script"))
    for path, may in (("instance/stop", False), ("replication/B/upgrade", True)):
        assert amy.controls(f"/amps/administrator/{path}")
        assert script.controls(f"/amps/administrator/{path}") is may
