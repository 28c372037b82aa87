"""Modules in a configuration: as files and scripts name them, and as instances get them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.amps.show import shown_fabric
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.security.modules import ModuleConfig

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


@pytest.mark.covers("Configuration", "Authentication: the modules")
def test_the_nearest_module_counts(tmp_path: Path) -> None:
    found = configs(tmp_path)
    assert found["a"].authentication == ModuleConfig("passwords", {"File": str(tmp_path / "who")})
    assert found["a"].entitlement == ModuleConfig("permissions", {"File": "/etc/what"})
    assert found["b"].authentication == ModuleConfig("amps-default-no-authentication-module")
    _, inside = found["b"].client_transports
    assert inside.authentication == ModuleConfig("tokens", {"SecretFile": str(tmp_path / "s")})
    assert inside.entitlement is None, "that of the instance"


CONTROLLED = """
fabric: controlled
authentication: {module: passwords, options: {File: who}}
admin: {entitlement: {module: permissions, options: {File: control}}}
instances:
  a: {}
  b: {admin: {authentication: {module: tokens, options: {SecretFile: s}}}}
"""


def test_the_nearest_admin_counts_whole(tmp_path: Path) -> None:
    settings = parse(CONTROLLED)
    record = record_of(settings, tmp_path)
    a, b = (instance_config(settings, record, each) for each in settings.instances)
    hashes = ModuleConfig("passwords", {"File": str(tmp_path / "who")})
    permissions = ModuleConfig("permissions", {"File": str(tmp_path / "control")})
    assert a.for_control() == (hashes, permissions)
    assert b.for_control() == (ModuleConfig("tokens", {"SecretFile": str(tmp_path / "s")}), None)
    assert InstanceConfig.from_json(a.to_json()) == a
    builder = FabricBuilder("f", admin={"authentication": "passwords"}).instance("a")
    assert builder.settings().controlled() == ["a"]


@pytest.mark.parametrize(
    ("admin", "why"),
    [
        ("admin:", "admin names no module, and the instance has none"),
        ("admin: {authentication: certificates}", "admin cannot use the module certificates"),
    ],
)
def test_an_admin_that_keeps_nobody_out_or_everybody_is_refused(
    admin: str, why: str, tmp_path: Path
) -> None:
    settings = parse(f"fabric: f\ninstances: {{a: {{}}}}\n{admin}\n")
    with pytest.raises(ConfigurationError, match=f"a: {why}"):
        instance_config(settings, record_of(settings, tmp_path), settings.instances[0])


LINKS = """
fabric: linked
replication_authentication: {module: passwords, options: {File: who}}
authenticator: {module: exec, options: {Command: say}}
instances:
  a:
    bootstrap: {sources: [b], authenticator: copies}
    replication_entitlement: none
    replication_transport: {authentication: certificates}
    replication_transports: [{name: more, entitlement: amps-default-entitlement-module}]
  b: {authenticator: {module: exec, options: {Command: as b}}}
links:
  - {from: a, to: b, authenticator: {module: theirs, options: {PasswordFileName: pw}}}
  - {from: b, to: a}
"""


@pytest.mark.covers("Configuration", "Authenticator of outgoing links")
def test_the_nearest_module_counts_of_links_too(tmp_path: Path) -> None:
    settings = parse(LINKS)
    record = record_of(settings, tmp_path)
    a, b = (instance_config(settings, record, each) for each in settings.instances)
    hashes = ModuleConfig("passwords", {"File": str(tmp_path / "who")})
    for config in (a, b):
        assert config.replication_authentication == hashes and config.authentication is None
    assert a.replication_entitlement == ModuleConfig("none") and b.replication_entitlement is None
    first, more = a.replication_transports
    assert first.authentication == ModuleConfig("certificates") and first.entitlement is None
    assert more.entitlement == ModuleConfig("amps-default-entitlement-module")
    theirs = ModuleConfig("theirs", {"PasswordFileName": str(tmp_path / "pw")})
    own = ModuleConfig("exec", {"Command": "say"})
    (to_b,) = a.destinations
    assert to_b.authenticator == theirs and a.authenticator == own
    assert a.dialled_at(to_b.addresses[0])[1] == theirs
    assert a.dialled_at("elsewhere:1")[1] == own, "as the instance says"
    assert b.destinations[0].authenticator is None, "as the instance says"
    assert b.authenticator == ModuleConfig("exec", {"Command": "as b"})
    assert a.bootstrap is not None and a.bootstrap.authenticator == ModuleConfig("copies")
    for config in (a, b):
        assert InstanceConfig.from_json(config.to_json()) == config


ASKING = "fabric: f\nregions: {r: 2}\nreplication_authentication: {module: passwords}\n"


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (ASKING, 2),
        (ASKING + "authenticator: exec\n", 0),
        (ASKING + "instances: {r-1: {authenticator: exec}}\n", 1),
        (ASKING.replace("passwords", "certificates"), 0),
        (ASKING.replace("passwords", "amps-default-authentication-module"), 0),
        ("fabric: f\nregions: {r: 2}\n", 0),
    ],
)
def test_links_that_have_nothing_to_say_where_they_are_asked(text: str, warned: int) -> None:
    found = [
        each for each in check_settings(parse(text)).findings if each.kind == "no_authenticator"
    ]
    assert len(found) == warned and all(each.severity == "warning" for each in found)
    for each in found:
        assert f"destination {each.instances[1]} of {each.instances[0]}" in each.repair


def test_a_link_that_has_nothing_to_say_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "fabric: f\nregions: {a: 1, b: 1}\nconnect_regions: async\n"
        "replication_authentication: passwords\ninstances:\n  c:\nlinks:\n- {from: c, to: a-1}\n"
    )
    done = CliRunner().invoke(app, ["fabric", "check", str(file)])
    told = [line for line in done.output.splitlines() if "no_authenticator" in line]
    where = ("destination b of a-1", 3), ("destination a of b-1", 3), ("destination a-1 of c", 8)
    for line, (name, number) in zip(told, where, strict=True):
        assert line.startswith(f"warning no_authenticator: {file}:{number}: {name} has no"), line


def test_it_lies_in_the_data_directory(tmp_path: Path) -> None:
    for config in configs(tmp_path).values():
        assert InstanceConfig.from_json(config.to_json()) == config


def test_secrets_are_not_in_what_is_shown() -> None:
    settings = (
        FabricBuilder(
            "f", authentication={"module": "m", "options": {"Password": "hush", "User": "u"}}
        )
        .instance("a")
        .settings()
    )
    assert "hush" not in repr(settings.authentication) and "hush" not in repr(settings)
    assert "hush" not in shown_fabric(settings) and "User: u" in shown_fabric(settings)


@pytest.mark.parametrize("given", ["{}", "{module: ''}", "{module: a, option: {}}", "[a]"])
def test_what_is_no_module_is_refused_with_its_line(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"<text>:3: authentication"):
        parse(f"\nfabric: f\nauthentication: {given}\ninstances: {{a: {{}}}}\n")


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ("[{from: r-1, to: ['far:9107'], group: g, authenticator: exec}]", ["r-1"]),
        ("[{from: r-1, to: ['127.0.0.1:9107'], group: g, authenticator: exec}]", []),
        ("[{from: r-1, to: ['far:9107'], group: g}]", []),
        ("[{from: r-1, to: ['far:9107'], group: g, authenticator: exec, tls: {ca_file: ca}}]", []),
        ("[{from: r-1, to: r-2, authenticator: exec}]", ["r-1"]),
    ],
)
def test_a_password_that_goes_out_in_plain_text_is_warned_of(links: str, named: list[str]) -> None:
    text = (
        "fabric: f\nunauthenticated: allowed\ninstances: {r-1: {group: a}, r-2: {group: b, "
        f"host: 10.0.0.2}}}}\nlinks: {links}\n"
    )
    found = [e for e in check_settings(parse(text)).findings if e.kind == "plain_password"]
    assert [name for each in found for name in each.instances] == named
    assert all("without TLS: whoever sees the network" in each.explanation for each in found)


def test_a_link_to_an_instance_that_accepts_none_is_refused() -> None:
    text = "fabric: f\ninstances: {a: {accepts_links: false}, b: {}}\nlinks: [{from: b, to: a}]\n"
    with pytest.raises(ConfigurationError, match="a accepts no links: give it a replication"):
        parse(text)
