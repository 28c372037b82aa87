"""Modules in a configuration: as files and scripts name them, and as instances get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.config import InstanceConfig

FILE = """
fabric: guarded
authentication: {module: passwords, options: {File: who}}
entitlement: {module: permissions, options: {File: /etc/what}}
instances:
  a: {}
  b:
    authentication: amps-default-no-authentication-module
    transports:
      - {name: inside, authentication: {module: tokens, options: {SecretFile: s}}}
"""


def configs(tmp_path: Path) -> dict[str, InstanceConfig]:
    settings = parse(FILE)
    record = record_of(settings, tmp_path)
    return {each.name: instance_config(settings, record, each) for each in settings.instances}


def test_the_nearest_module_counts(tmp_path: Path) -> None:
    found = configs(tmp_path)
    assert found["a"].authentication == ModuleConfig("passwords", {"File": str(tmp_path / "who")})
    assert found["a"].entitlement == ModuleConfig("permissions", {"File": "/etc/what"})
    assert found["b"].authentication == ModuleConfig("amps-default-no-authentication-module")
    (inside,) = found["b"].client_transports
    assert inside.authentication == ModuleConfig("tokens", {"SecretFile": str(tmp_path / "s")})
    assert inside.entitlement is None, "that of the instance"


def test_it_lies_in_the_data_directory(tmp_path: Path) -> None:
    for config in configs(tmp_path).values():
        assert InstanceConfig.from_json(config.to_json()) == config


def test_what_is_not_said_is_not_written() -> None:
    text = InstanceConfig("a", "g").to_json()
    assert "authentication" not in text and "entitlement" not in text


def test_secrets_are_not_in_what_is_shown() -> None:
    settings = (
        FabricBuilder(
            "f", authentication={"module": "m", "options": {"Password": "hush", "User": "u"}}
        )
        .instance("a")
        .settings()
    )
    assert "hush" not in repr(settings.authentication) and "hush" not in repr(settings)


@pytest.mark.parametrize("given", ["{}", "{module: ''}", "{module: a, option: {}}", "[a]"])
def test_what_is_no_module_is_refused_with_its_line(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"<text>:3: authentication"):
        parse(f"\nfabric: f\nauthentication: {given}\ninstances: {{a: {{}}}}\n")
