"""services/configuration/admin.py: the administrator's access, of a fabric and of its instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import admin_address, instance_config, record_of


def configs(text: str, directory: Path) -> dict[str, InstanceConfig]:
    """Returns what each instance of a fabric is started with."""
    settings = parse(text)
    record = record_of(settings, directory)
    record.save()
    return {each.name: instance_config(settings, record, each) for each in settings.instances}


@pytest.mark.covers("Administration", "`admin` in YAML and Python, `Admin` of an AMPSConfig")
def test_a_fabric_enables_the_interface_of_all_and_an_instance_changes_its_own(
    tmp_path: Path,
) -> None:
    text = """
fabric: f
admin: {enabled: true, interval: 5s, retention: 2h, host_names: [console.example]}
instances:
  a: {}
  b: {admin: {port: 8085, interval: 1s, host: 0.0.0.0, advertised: "b.example:80"}}
  c: {admin: {enabled: false}}
"""
    found = configs(text, tmp_path)
    a, b, c = (found[name].interface for name in "abc")
    assert a is not None and b is not None and c is None
    assert (a.host, a.interval_ms, a.host_names) == ("127.0.0.1", 5_000, ("console.example",))
    assert a.port and a.retention_ms == 7_200_000
    assert (b.host, b.port, b.interval_ms) == ("0.0.0.0", 8085, 1_000)
    assert b.host_names == a.host_names, "what an instance leaves out is the fabric's"
    assert all(each.admin is None for each in found.values()), "nobody is asked"

    settings = parse(text)
    record = record_of(settings, tmp_path)
    addresses = [admin_address(settings, record, each) for each in settings.instances]
    assert addresses == [f"127.0.0.1:{a.port}", "b.example:80", ""]


def test_a_port_that_was_chosen_is_kept(tmp_path: Path) -> None:
    text = "fabric: f\nadmin: {enabled: true}\ninstances: {a: {}}\n"
    first = record_of(parse(text), tmp_path)
    first.save()
    assert record_of(parse(text), tmp_path).ports == first.ports
    # An instance that has no interface has no port for it.
    assert record_of(parse("fabric: f\ninstances: {a: {}}\n"), tmp_path).ports["a"].admin is None


@pytest.mark.covers("Administration", "`admin` in YAML and Python, `Admin` of an AMPSConfig")
def test_an_interface_beside_modules_of_clients_asks_them(tmp_path: Path) -> None:
    text = """
fabric: f
authentication: {module: passwords, options: {File: who}}
admin: {enabled: true}
instances: {a: {}}
"""
    found = configs(text, tmp_path)["a"]
    assert found.admin is not None, "else the interface would be open beside guarded transports"
    who, _ = found.for_control()
    assert who is not None and who.module == "passwords"
    assert parse(text).controlled() == ["a"]


@pytest.mark.parametrize(
    ("admin", "why"),
    [
        ("{enabled: true, interval: 100ms}", "interval"),
        ("{enabled: true, retention: 5s}", "retention 5000 ms is shorter than the interval"),
        ("{enabled: true, anonymous_paths: '('}", "anonymous_paths is no expression"),
        ("{enabled: true, headers: ['no header']}", "'no header' is no header"),
        ('{enabled: true, headers: ["a: b\\r\\nc: d"]}', "is no header"),
        ("{port: 99999}", "port"),
        ("{nonsense: 1}", "nonsense"),
    ],
)
def test_wrong_values_are_refused(admin: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=why.replace("(", r"\(")):
        configs(f"fabric: f\ninstances: {{a: {{}}}}\nadmin: {admin}\n", tmp_path)


def test_two_listeners_on_one_port_are_found() -> None:
    with pytest.raises(ConfigurationError, match="8085"):
        parse("fabric: f\ninstances: {a: {client_port: 8085, admin: {port: 8085}}}\n")


def test_the_start_values_survive_their_file(tmp_path: Path) -> None:
    config = InstanceConfig(
        "a", "g", interface=AdminInterfaceConfig(port=1, headers=("A: b",), get_actions=True)
    )
    config.save(tmp_path)
    assert InstanceConfig.load(tmp_path).interface == config.interface
