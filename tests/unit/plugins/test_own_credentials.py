"""services/plugins/own_credentials.py: what is said of itself, and what is not said at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.plugins import authenticators
from raylay.services.plugins.own_credentials import OwnCredentials
from raylay.services.security.credentials import Challenge
from raylay.services.security.modules import ModuleConfig

pytestmark = pytest.mark.covers("Configuration", "Authenticator of outgoing links")


def test_nothing_is_said_without_a_module() -> None:
    own = OwnCredentials(None, "A: destination B")
    assert asyncio.run(own.say()) == ("", "")
    with pytest.raises(ConfigurationError, match="A: destination B: authenticator: there is none"):
        asyncio.run(own.say(("", "what?")))


def test_a_password_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "password"
    options = {"User": "u", "PasswordFileName": str(path)}
    own = OwnCredentials(ModuleConfig(authenticators.DEFAULT, options), "A")
    with pytest.raises(ConfigurationError, match=r"A: authenticator: .*password cannot be read"):
        asyncio.run(own.say())
    path.write_text("one\n")
    assert asyncio.run(own.say()) == ("u", "one")
    path.write_text("two\n")
    assert asyncio.run(own.say()) == ("u", "two")


class Fake:
    def __init__(self, said: Any) -> None:
        self._said = said
        self.asked: list[Challenge | None] = []

    async def credentials(self, challenge: Challenge | None) -> Any:
        self.asked.append(challenge)
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


def own_with(module: Fake, monkeypatch: pytest.MonkeyPatch) -> OwnCredentials:
    monkeypatch.setattr(authenticators, "authenticator", lambda config, where: module)
    return OwnCredentials(ModuleConfig("theirs"), "A")


def test_a_challenge_reaches_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Fake(("u", "p"))
    own = own_with(module, monkeypatch)
    asyncio.run(own.say())
    asyncio.run(own.say(("v", "what?")))
    asyncio.run(own.say(("", "")))
    assert module.asked == [None, Challenge("v", "what?"), Challenge("", "")], "empty is asked, too"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (KeyError("hush"), "module theirs failed: KeyError"),
        ("hush", "gives no user name and password"),
        (("u", None), "the password of its module is no text"),
        (("u" * 1_025, "hush"), "the user name of its module has more than 1024 bytes"),
        (("u", "hush" * 2_049), "the password of its module has more than 8192 bytes"),
        (("u", "hush\ud800"), "the password of its module is no text in UTF-8"),
    ],
)
def test_what_a_module_must_not_give(said: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        asyncio.run(own_with(Fake(said), monkeypatch).say())
    assert "hush" not in str(caught.value)
