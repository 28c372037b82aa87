"""services/plugins/authenticators.py: user name and password of a link."""

from __future__ import annotations

import asyncio
import gc
import getpass
import time
from pathlib import Path

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.plugins.authenticators import DEFAULT, authenticator
from raylay.services.security.modules import ModuleConfig


def credentials(module: str, **options: str) -> tuple[str, str]:
    async def asked() -> tuple[str, str]:
        return await authenticator(ModuleConfig(module, options), "here").credentials(None)

    return asyncio.run(asked())


def test_passwords_from_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("from the file\r\n", encoding="utf-8")
    monkeypatch.setenv("LINK_PASSWORD", "from around")
    assert credentials(DEFAULT, User="a", PasswordFileName=str(path)) == ("a", "from the file")
    path.write_text(" spaces are of it \n", encoding="utf-8")
    given = credentials(DEFAULT, User="a", PasswordFileName=str(path))
    assert given == ("a", " spaces are of it ")
    given = credentials(DEFAULT, User="a", PasswordEnvironmentVariable="LINK_PASSWORD")
    assert given == ("a", "from around")
    assert credentials(DEFAULT, User="a", Password="plain") == ("a", "plain")
    assert credentials(DEFAULT) == (getpass.getuser(), "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"Password": "hush", "PasswordFileName": "b"}, "give one of"),
        ({"PasswordFileName": "/none"}, "/none cannot be read"),
        ({"PasswordEnvironmentVariable": "NOT_THERE"}, "no variable NOT_THERE"),
        ({"Pasword": "hush"}, "no option 'Pasword'"),
    ],
)
def test_passwords_that_there_are_not(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"here: .*{says}") as told:
        credentials(DEFAULT, **options)
    assert "hush" not in str(told.value)


def test_the_output_of_a_command() -> None:
    assert credentials("exec", Command="echo 'a b'", UserName="u") == ("u", "a b")
    assert (
        credentials("exec", Command="printf 12345678", UserName="u", MaxLength="8")[1] == "12345678"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"Command": "/none/such"}, "cannot be run"),
        ({"Command": "false"}, "false ended with 1"),
        ({"Command": "sh -c 'echo no ticket; exit 3'"}, "sh ended with 3"),
        ({"Command": "printf 123456789", "MaxLength": "8"}, "gives more than 8 bytes"),
        ({"Command": "yes"}, "gives more than 1024 bytes"),
        ({"Command": r"printf \\377"}, "gives no text in UTF-8"),
        ({"Command": "'"}, "Command cannot be read"),
        ({"Command": ""}, "needs the option 'Command'"),
        ({"Command": "a", "MaxLength": "0"}, "MaxLength is '0'"),
    ],
)
def test_a_command_that_gives_none(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"here: .*{says}"):
        credentials("exec", **options)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("command", ["yes", "sh -c 'sleep 30 & yes'", "sh -c 'sleep 30 & exit 3'"])
def test_a_command_that_says_too_much_or_leaves_somebody_behind(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Also where its output is never read to the end: nobody waits for that, and nothing of it is
    left open."""
    monkeypatch.setattr("raylay.services.plugins.authenticators.COMMAND_S_MAX", 0.5)
    for _ in range(5 if command == "yes" else 1):
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"more than 1024 bytes|did not end"):
            credentials("exec", Command=command)
        assert time.monotonic() - began < 25, "it was waited for"
    gc.collect()  # what was left open is found now


def test_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylay.services.plugins.authenticators.COMMAND_S_MAX", 0.2)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="sleep did not end within"):
        credentials("exec", Command="sleep 60")
    assert time.monotonic() - began < 30


def test_a_module_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match="no module 'kerberos'"):
        credentials("kerberos")
