"""`raylay password`: a file of hashes, and nothing of what is secret in it or on the screen."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest

from raylay.services.commands.security import password, show
from raylay.services.errors import ConfigurationError
from raylay.services.plugins.authentication import hasher, read_passwords


def given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_password_is_set_changed_and_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "who" / "passwords"
    for user, text in (("amy", "first one\n"), ("bob", "b" * 8), ("amy", "second one\n")):
        given(monkeypatch, text)
        password(user, path)
    assert capsys.readouterr().out == "amy is added\nbob is added\namy has a new password\n"
    kept = read_passwords(path.read_text(), "here")
    assert list(kept) == ["bob", "amy"] and "second" not in path.read_text()
    assert hasher().verify(kept["amy"], "second one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    password("bob", path, remove=True)
    assert list(read_passwords(path.read_text(), "here")) == ["amy"]
    with pytest.raises(ConfigurationError, match="does not have bob"):
        password("bob", path, remove=True)


def test_comments_stay_and_the_mode_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwords"
    path.write_text("# ours\n")
    path.chmod(0o640)
    given(monkeypatch, "long enough\n")
    password("amy", path)
    assert path.read_text().startswith("# ours\namy:$argon2id$")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_user_whose_name_begins_like_anothers_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "passwords"
    for user in ("amy2", "my", "amy", "amy"):
        given(monkeypatch, "long enough\n")
        password(user, path)
    assert list(read_passwords(path.read_text(), "here")) == ["amy2", "my", "amy"]
    password("amy", path, remove=True)
    assert list(read_passwords(path.read_text(), "here")) == ["amy2", "my"]


@pytest.mark.parametrize("user", ["", "a:b", " a", "#a"])
def test_names_that_cannot_be(tmp_path: Path, user: str) -> None:
    with pytest.raises(ConfigurationError, match="is not allowed as a user name"):
        password(user, tmp_path / "passwords")


def test_bad_input_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwords"
    path.write_text("nonsense\n")
    given(monkeypatch, "long enough\n")
    with pytest.raises(ConfigurationError, match="line 1 is no"):
        password("amy", path)
    path.write_text("")
    given(monkeypatch, "short\n")
    with pytest.raises(ConfigurationError, match="too short"):
        password("amy", path)
    assert path.read_text() == ""


def test_what_a_file_says_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(
        "amy: {logon: true, topic: [{topic: orders, read: '/a = 1', select: -/pay},"
        " {topic: '.*', write: true}]}\n"
    )
    with path.open("a") as file:
        file.write("ann: {admin: [{topic: '/amps/.*/stop', read: true}]}\n")
    show(path, "ann", ["/amps/administrator/instance/stop", "/amps/administrator/instance/kill"])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "/amps/administrator/instance/stop: yes",
        "/amps/administrator/instance/kill: no",
    ]
    show(path, "amy", ["orders", "quotes"])
    assert capsys.readouterr().out.splitlines() == [
        "log on: yes",
        "log on as a link: no",
        "orders: reads what passes /a = 1, the fields -/pay; writes nothing",
        "quotes: reads nothing; writes everything",
    ]


def test_an_entry_that_never_applies_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "permissions.yaml"
    path.write_text(
        'amy: {topic: [{topic: "orders.*", write: true}, {topic: orders/state, read: true}]}'
    )
    show(path, "amy", ["orders/state"])
    shown = capsys.readouterr()
    assert "orders/state: reads nothing; writes everything" in shown.out
    assert shown.err.startswith("raylay: warning: amy: topic[1]: the entry of 'orders/state' never")
