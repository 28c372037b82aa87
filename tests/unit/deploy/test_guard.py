"""guard.py of deploy/node: what the head makes, what another host gets, and that it stays."""

from __future__ import annotations

import importlib.util
import shutil
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from argon2.exceptions import VerifyMismatchError

from raylay.services.net.tls_hosts import problem
from raylay.services.plugins.authentication import hasher, read_passwords

FILE = Path(__file__).parents[3] / "deploy" / "node" / "guard.py"
HEAD, WORKER = "10.0.0.1", "10.0.0.7"
pytestmark = [
    pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no OpenSSH here"),
    pytest.mark.covers("Configuration", "`ray up` deployments come with certificates"),
]


def on(home: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a host with this home and address."""
    monkeypatch.setenv("HOME", str(home))
    spec = importlib.util.spec_from_file_location(f"guard of {home.name}", FILE)
    assert spec is not None and spec.loader is not None
    guard = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guard)
    run = guard._run

    def faked(*command: str) -> str:
        if command[0] == "hostname":
            return f"{address} fe80::1\n"
        if command[0] == "ssh-keyscan":
            return f"# {command[-1]}:22 SSH-2.0\n{command[-1]} ssh-ed25519 AAAA\n"
        return str(run(*command))

    monkeypatch.setattr(guard, "_run", faked)
    monkeypatch.setattr(guard, "PAUSE_S", 0)
    return guard


def files(place: Path) -> dict[str, bytes]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def signing(home: Path, peer: str) -> list[str]:
    """In the place of ssh: what the head runs when this address asks."""
    variables = (f"HOME={home}", f"SSH_CONNECTION={peer} 1024 {HEAD} 22")
    return ["env", *variables, sys.executable, str(FILE), "sign"]


def test_the_head_makes_what_is_missing_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".ssh").mkdir()
    allowed = tmp_path / ".ssh" / "authorized_keys"
    allowed.write_text("ssh-ed25519 AAAAmine me@desk\n")
    guard = on(tmp_path, HEAD, monkeypatch)
    assert guard.main(["head"]) == 0
    credentials = tmp_path / "raylay" / "credentials"
    for user, hashes in (("operator", "passwords"), ("links", "link-passwords")):
        password = (credentials / f"{user}-password").read_text().strip()
        kept = read_passwords((credentials / hashes).read_text(), hashes)
        assert list(kept) == [user] and hasher().verify(kept[user], password)
    documents = yaml.safe_load((credentials / "permissions.yaml").read_text())
    assert set(documents) == {"operator", "links"}
    assert documents["links"].get("logon") is None, "a link's password lets no client in"
    host = tmp_path / "raylay" / "host"
    assert not problem(host / "host.crt", host / "host.key", credentials / "ca.pem", [HEAD])
    mine, asking = allowed.read_text().splitlines()
    assert mine == "ssh-ed25519 AAAAmine me@desk"
    assert asking.startswith('restrict,command="~/raylay/venv/bin/python ~/raylay/deploy/guard.py')
    assert (credentials / "known-hosts").read_text() == "raylay-head ssh-ed25519 AAAA\n"
    before = files(tmp_path)
    made = (path for path in tmp_path.rglob("*") if path.is_file())
    private = [path for path in made if path.suffix not in (".pem", ".crt")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    said = capfd.readouterr()
    assert guard.main(["head"]) == 0
    assert files(tmp_path) == before, "a second time changes nothing"
    assert not [line for line in (said.out + said.err).splitlines() if "new cert" not in line]
    # Somebody took the operator out, and another one in: that stays.
    (credentials / "passwords").write_text("")
    assert guard.main(["head"]) == 0
    assert (credentials / "passwords").read_text() == ""


def test_a_password_that_is_made_anew_is_the_one_that_counts_also_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = on(tmp_path, HEAD, monkeypatch)
    assert guard.main(["head"]) == 0
    secret = tmp_path / "raylay" / "credentials" / "operator-password"
    hashes = secret.with_name("passwords")
    known, write = secret.read_text().strip(), guard.write_private_text
    for cut_after in (0, 1):
        secret.unlink()
        left = [None] * cut_after

        def cut(path: Path, text: str, left: list[None] = left) -> None:
            if not left:
                raise OSError("the power is cut")
            left.pop()
            write(path, text)

        monkeypatch.setattr(guard, "write_private_text", cut)
        assert guard.main(["head"]) == 1
        monkeypatch.setattr(guard, "write_private_text", write)
        assert guard.main(["head"]) == 0
        password = secret.read_text().strip()
        kept = read_passwords(hashes.read_text(), "passwords")["operator"]
        assert password != known and hasher().verify(kept, password)
        with pytest.raises(VerifyMismatchError):
            hasher().verify(kept, known)
        known = password
    secret.write_text("\n")  # no password is none that lets in
    assert guard.main(["head"]) == 0
    assert len(secret.read_text()) > 40


def test_lines_of_others_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    allowed = tmp_path / ".ssh" / "authorized_keys"
    mine = b"ssh-ed25519 AAAA caf\xe9\nssh-ed25519 BBBB two\xe2\x80\xa8words\n"
    allowed.write_bytes(mine)
    assert on(tmp_path, HEAD, monkeypatch).main(["head"]) == 0
    assert allowed.read_bytes().startswith(mine + b"restrict,command=")


def test_a_host_gets_a_certificate_for_where_it_is_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    head, other = tmp_path / "head", tmp_path / "other"
    for home in (head, other):
        home.mkdir()
    worker = on(other, WORKER, monkeypatch)
    assert worker.main(["worker", HEAD]) == 1
    assert "the head makes it" in capfd.readouterr().err
    assert on(head, HEAD, monkeypatch).main(["head"]) == 0
    shutil.copytree(head / "raylay" / "credentials", other / "raylay" / "credentials")
    asked: list[Any] = []

    def ask(head_address: str, address: str) -> list[str]:
        asked.append((head_address, address))
        return signing(head, WORKER)

    monkeypatch.setattr(worker, "_ask", ask)
    monkeypatch.setenv("HOME", str(other))
    assert worker.main(["worker", HEAD, WORKER]) == 0
    assert asked == [(HEAD, WORKER)]
    host = other / "raylay" / "host"
    ca = other / "raylay" / "credentials" / "ca.pem"
    assert not problem(host / "host.crt", host / "host.key", ca, [WORKER])
    assert not (other / "raylay" / "authority").exists()
    before = files(other)
    assert worker.main(["worker", HEAD, WORKER]) == 0
    assert len(asked) == 1 and files(other) == before, "a host that comes back asks nobody"


def test_a_host_without_an_answer_keeps_what_it_has_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    guard = on(tmp_path, HEAD, monkeypatch)
    assert guard.main(["head"]) == 0
    before = files(tmp_path)
    # Its address is another one now, and the head does not answer.
    moved = on(tmp_path, WORKER, monkeypatch)
    silent = ["sh", "-c", "echo no route >&2; exit 255"]
    monkeypatch.setattr(moved, "_ask", lambda *_: silent)
    monkeypatch.setattr(moved, "ATTEMPTS", 2)
    capfd.readouterr()
    assert moved.main(["worker", HEAD]) == 1
    said = capfd.readouterr().err
    assert "is good for" in said and "the head signed none: no route" in said
    assert "bash ~/raylay/deploy/start.sh" in said
    assert files(tmp_path) == before


def test_the_way_to_the_head_knows_whom_it_speaks_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = on(tmp_path, WORKER, monkeypatch)
    command = guard._ask(HEAD, WORKER)
    assert command[0] == "ssh" and command[-1].endswith(f"@{HEAD}")
    for option in ("StrictHostKeyChecking=yes", "BatchMode=yes", f"BindAddress={WORKER}"):
        assert option in command
    assert f"UserKnownHostsFile={tmp_path}/raylay/credentials/known-hosts" in command


def test_what_another_host_says_is_no_command_to_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    on(tmp_path, HEAD, monkeypatch)._tell("ssh failed: \x1b[2J\x9b31m\u202e")
    assert capfd.readouterr().err == "raylay: ssh failed: \\x1b[2J\\x9b31m\\u202e\n"
