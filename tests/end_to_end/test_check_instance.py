"""`raylay check instance`, the readiness probe of a pod, asks real instances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import argon2
from support.instance_processes import Servers, free_ports, single
from support.tls_files import Authority
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.config.instance import DestinationConfig, TransportConfig
from raylay.services.net.tls_config import TlsConfig
from raylay.services.security.modules import ModuleConfig


def probe(directory: Path) -> tuple[int, str]:
    """Runs the command. Returns its exit code and what it says."""
    done = CliRunner().invoke(app, ["check", "instance", str(directory), "--timeout", "5"])
    return done.exit_code, done.output


def test_a_host_without_an_instance_is_ready_for_one(tmp_path: Path) -> None:
    assert probe(tmp_path) == (0, "")


def test_an_instance_that_admits_clients_is_ready_until_it_ends(
    servers: Servers, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    server = single(
        servers, tmp_path, first=True, client_transports=(TransportConfig("client", port),)
    )
    assert probe(tmp_path) == (0, "solo: admits clients\n")
    assert probe(tmp_path / "solo") == (0, "solo: admits clients\n")
    server.kill()
    status, said = probe(tmp_path)
    assert status == 1
    assert said.startswith(f"solo: 127.0.0.1:{port} does not answer: ")


def test_an_instance_that_catches_up_is_not_ready(servers: Servers, tmp_path: Path) -> None:
    port, nobody = free_ports(2)
    away = DestinationConfig("to-B", "group", True, (f"127.0.0.1:{nobody}",))
    single(
        servers,
        tmp_path,
        client_transports=(TransportConfig("client", port),),
        replication_transports=(TransportConfig("replication", 0),),
        destinations=(away,),
    )
    status, said = probe(tmp_path)
    assert status == 1
    assert said.startswith("solo: solo waits to catch up with a peer of group group")


def test_a_guarded_instance_is_ready_without_a_password(servers: Servers, tmp_path: Path) -> None:
    """With TLS that asks for a certificate, and a module that turns the probe down."""
    authority = Authority(tmp_path, "ca")
    own = authority.issue("solo")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"amy:{argon2.PasswordHasher(1, 8, 1).hash('right')}\n")
    passwords.chmod(0o600)
    terms = TransportConfig(
        "first",
        authentication=ModuleConfig("passwords", {"File": str(passwords)}),
        tls=TlsConfig(own.certificate, own.key, authority.file, verify_client=True),
    )
    (port,) = free_ports(1)
    server = single(servers, tmp_path, first=True, client_transports=(replace(terms, port=port),))
    assert probe(tmp_path) == (0, "solo: admits clients\n")
    server.kill()
    assert probe(tmp_path)[0] == 1
