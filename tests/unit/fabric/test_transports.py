"""TLS of a fabric: what is declared once holds for everything that says nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.tls_files import tls_files

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import (
    FabricRecord,
    InstancePorts,
    client_options,
    instance_config,
)
from raylay.services.fabric.transports import check_files
from raylay.services.net.tls_config import TlsConfig

FILE = """
fabric: f
tls: {certificate: "tls/{instance}.crt", private_key: "tls/{instance}.key", ca_file: tls/ca.pem}
instances:
  a: {client_port: 1, replication_port: 2}
  b:
    transports: [{name: inside, tls: false}, {name: own, tls: {certificate: /c, private_key: /k}}]
    replication_transports: [{name: more}]
  open: {tls: false}
  mixed: {replication_transport: {tls: false}, bootstrap: {sources: [a]}}
links:
  - {from: a, to: b}
  - {from: a, to: open}
  - {from: a, to: mixed}
  - {from: a, to: "elsewhere:9", group: other, name: far}
  - {from: a, to: "elsewhere:8", group: other, name: plain, tls: false}
  - {from: b, to: a, tls: {ca_file: other.pem, server_name: a.example}}
  - {from: open, to: a}
"""
OURS = TlsConfig("/d/tls/a.crt", "/d/tls/a.key", "/d/tls/ca.pem")


def configs(text: str) -> dict[str, InstanceConfig]:
    settings = parse(text)
    settings = FabricSettings.from_json(settings.to_json())
    ports = {each.name: InstancePorts(1, 2) for each in settings.instances}
    record = FabricRecord(settings.name, "/d", settings.to_json(), ports)
    made = {each.name: instance_config(settings, record, each) for each in settings.instances}
    return {name: InstanceConfig.from_json(each.to_json()) for name, each in made.items()}


@pytest.mark.covers("Configuration", "Transports with TLS")
def test_what_is_declared_once_holds_for_what_says_nothing_else() -> None:
    found = configs(FILE)
    a, b = found["a"], found["b"]
    assert {each.name: each.tls for each in a.transports} == {"client": OURS, "replication": OURS}
    tls = {each.name: each.tls for each in b.transports}
    b_tls = TlsConfig("/d/tls/b.crt", "/d/tls/b.key", "/d/tls/ca.pem")
    assert tls == {
        "client": b_tls,
        "inside": None,
        "own": TlsConfig("/c", "/k"),
        "replication": b_tls,
        "more": b_tls,
    }
    assert [each.tls for each in found["open"].transports] == [None, None]
    client, replication = found["mixed"].transports
    assert client.tls is not None and replication.tls is None


@pytest.mark.covers("Configuration", "Transports with TLS")
def test_links_dial_as_those_they_dial_listen() -> None:
    found = configs(FILE)
    dialled = {each.name: each.tls for each in found["a"].destinations}
    assert dialled == {"b": OURS, "open": None, "mixed": None, "far": OURS, "plain": None}
    (back,) = found["b"].destinations
    assert back.tls == TlsConfig(ca_file="/d/other.pem", server_name="a.example")
    (plain,) = found["open"].destinations
    assert plain.tls is None
    bootstrap = found["mixed"].bootstrap
    assert bootstrap is not None and bootstrap.tls is not None
    assert found["a"].announce_tls == OURS


@pytest.mark.parametrize(
    ("client", "wanted"),
    [
        ("", TlsConfig(ca_file="/d/tls/ca.pem")),
        ("client: {tls: false}", None),
        ("client: {tls: {ca_file: /mine, certificate: c, private_key: k}}",
         TlsConfig("/d/c", "/d/k", "/mine")),
    ],
)  # fmt: skip
def test_clients_of_the_fabric_know_its_ca(client: str, wanted: TlsConfig | None) -> None:
    settings = parse(f"{FILE}{client}\n")
    ports = {each.name: InstancePorts(1, 2) for each in settings.instances}
    record = FabricRecord(settings.name, "/d", settings.to_json(), ports)
    made: dict[str, Any] = client_options(settings, record, "a", "c")
    assert made["tls"] == wanted


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('private_key: "tls/{instance}.key", ', "", 3, "no private key"),
        ("ca_file: tls/ca.pem", "verify_client: true", 3, "no CA to do it by"),
        ("ca_file: tls/ca.pem", "protocols: [TLSv1.1]", 3, "speaks no TLSv1.1"),
        ("{name: inside, tls: false}", "{name: inside, tls: yes}", 7, "tls"),
        ("{name: inside, tls: false}", "{name: inside, tls: {key: x}}", 7, "key"),
        ("{name: inside, tls: false}", "{name: replication}", 6, "replication"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    old: str, new: str, line: int, words: str, tmp_path: Path
) -> None:
    assert old in FILE
    with pytest.raises(ConfigurationError, match=words) as caught:
        configs(FILE.replace(old, new, 1))
    if "yes" not in new and "replication" not in new:
        assert str(caught.value).startswith(f"<text>:{line}: ")


def _has_ray() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens or"
)
def test_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    made = tls_files()
    base = {"certificate": made.server.certificate, "private_key": made.server.key}
    expired = {"certificate": made.expired.certificate, "private_key": made.expired.key}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (expired, {}, "a: transport client: the certificate .* has expired: renew it"),
        (base | {"ca_file": "none.pem"}, {}, "a: destination b: the CA file .*/f/none.pem cannot"),
        (base, {"tls": {"ca_file": made.server.key}}, "a: destination b: .* no certificates as"),
    ]
    had_ray = _has_ray()  # of another test in this process
    for tls, link, words in cases:
        fabric = Fabric("f", tls=tls).instance("a").instance("b")
        fabric.destination("a", "b", **link)
        fabric.destination("b", "a")
        with pytest.raises(ConfigurationError, match=words):
            fabric.start(tmp_path / "f")
        assert _has_ray() is had_ray
        assert not (tmp_path / "f" / "fabric.json").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "authentication: {module: passwords, options: {File: /none}}",
            r"a: authentication, module passwords: File /none cannot be read: No such file",
        ),
        (
            "entitlement: {module: permissions, options: {File: /none}}",
            r"a: entitlement, module permissions: File /none cannot",
        ),
        (
            "authenticator: {module: amps-default-authenticator-module, "
            "options: {PasswordFileName: /none}}",
            r"a: authenticator, module .*: PasswordFileName /none cannot",
        ),
    ],
)
def test_files_of_modules_are_looked_at_before_anything_starts(given: str, told: str) -> None:
    """A missing one took two minutes of "starting 2 instances"."""
    text = f"fabric: f\n{given}\nunauthenticated: allowed\ninstances: {{a: {{}}}}\n"
    with pytest.raises(ConfigurationError, match=told):
        check_files(configs(text)["a"])
