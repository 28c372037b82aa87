"""`raylay certificates`: what it makes is what TLS here accepts."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.errors import ConfigurationError
from raylay.services.net.tls_authority import CertificateAuthority
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import check_certificate, client_context, server_context


def made(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["certificates", *arguments])


@pytest.mark.covers("Configuration", "a whole fabric with client certificates everywhere")
def test_what_is_made_serves_and_is_renewed_by_the_same_ca(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    names = ["--name", "here-1=host-a.example,10.0.0.5,::1", "--name", "desk"]
    done = made(str(place), *names)
    assert done.exit_code == 0 and "the CA, for `ca_file`" in done.output, done.output
    config = TlsConfig(
        str(place / "here-1.crt"), str(place / "here-1.key"), str(place / "ca.pem"),
        verify_client=True,
    )  # fmt: skip
    server_context(config, "t")
    found = check_certificate(config, "t")
    assert found is not None and found.common_name == "here-1"
    assert found.names == (
        "DNS:here-1", "DNS:host-a.example", "IP Address:10.0.0.5", "IP Address:0:0:0:0:0:0:0:1",
    )  # fmt: skip
    desk = TlsConfig(str(place / "desk.crt"), str(place / "desk.key"), str(place / "ca.pem"))
    client_context(desk, "t")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {
        "ca.pem": 0o644, "ca.key": 0o600, "here-1.crt": 0o644, "here-1.key": 0o600,
        "desk.crt": 0o644, "desk.key": 0o600,
    }  # fmt: skip
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    done = made(str(place), "--name", "desk", "--days", "10")
    assert done.exit_code == 0 and "the CA" not in done.output
    after = {path.name: path.read_bytes() for path in place.iterdir()}
    changed = {name for name, data in after.items() if data != before[name]}
    assert changed == {"desk.crt", "desk.key"}
    client_context(desk, "t")


def test_what_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ca", "", "../x", ".hidden", "a=", "a=b,", "=b"):
        done = made(str(tmp_path / "x"), "--name", name)
        assert isinstance(done.exception, ConfigurationError), name
    file = tmp_path / "file"
    file.write_text("x")
    assert "Not a directory" in str(made(str(file / "below"), "--name", "a").exception)
    place = tmp_path / "tls"
    authority = CertificateAuthority(place)
    with pytest.raises(ConfigurationError, match="give names in ASCII"):
        authority.issue("münchen", ())
    (place / "ca.key").write_text("damaged")
    assert "no CA that was made here" in str(made(str(place), "--name", "a").exception)
    (place / "ca.key").unlink()
    assert "ca.key is missing" in str(made(str(place), "--name", "a").exception)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    assert "pip install" in str(made(str(tmp_path / "y"), "--name", "a").exception)
