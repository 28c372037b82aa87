"""services/plugins/authentication.py: each module, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from argon2 import PasswordHasher
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from raylay.services.errors import ConfigurationError
from raylay.services.plugins import authentication as modules
from raylay.services.plugins import loader
from raylay.services.plugins.authentication import authentication
from raylay.services.security.credentials import (
    Answer,
    CertificateClaims,
    Credentials,
    LogonAccepted,
    LogonDenied,
)
from raylay.services.security.modules import ModuleConfig

pytestmark = pytest.mark.covers("Configuration", "Authentication: the modules")

SECRET = "s" * 32
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def answer(
    module: str, options: dict[str, str], user: str = "", password: str = "", **of: Any
) -> Answer:
    async def asked() -> Answer:
        made = authentication(ModuleConfig(module, options), "here")
        return await made.authenticate(Credentials("client", user, password, **of))

    return asyncio.run(asked())


def denied(found: Answer) -> str:
    assert isinstance(found, LogonDenied), found
    return found.why


def test_an_unknown_user_costs_as_much_as_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who is there could be told by the time that it takes. A hash is looked at in each."""
    file = tmp_path / "passwords"
    file.write_text(f"bob:{CHEAP.hash('right')}\n")
    looked: list[str] = []
    fits = modules.PasswordAuthentication._fits

    def counted(self: Any, kept: str, password: str) -> bool:
        looked.append(kept)
        return fits(self, kept, password)

    monkeypatch.setattr(modules.PasswordAuthentication, "_fits", counted)
    for user in ("bob", "nobody"):
        denied(answer("passwords", {"File": str(file)}, user, "wrong"))
    assert len(looked) == 2 and all(each.startswith("$argon2") for each in looked)


# -- the documented ones -------------------------------------------------------------------------
def test_anybody_is_let_in_and_no_name_is_believed() -> None:
    assert answer(modules.DEFAULT, {}, "bob") == LogonAccepted("")
    assert answer(modules.DEFAULT, {"AllowSpoofing": "true"}, "bob") == LogonAccepted("bob")
    assert answer(modules.IMPLICIT, {"AllowSpoofing": "true"}, "bob") == LogonAccepted("bob")
    assert answer(modules.IMPLICIT, {}, "bob") == LogonAccepted("")


def test_a_name_may_be_required() -> None:
    assert "RequireUsername" in denied(answer(modules.DEFAULT, {"RequireUsername": "true"}))
    assert answer(modules.DEFAULT, {"RequireUsername": "true"}, "bob") == LogonAccepted("")


def test_nobody_is_let_in() -> None:
    assert "lets nobody in" in denied(answer(modules.NOBODY, {}, "bob", "x"))


# -- passwords -----------------------------------------------------------------------------------
@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    path = tmp_path / "passwords"
    path.write_text(f"# who\n\nbob:{CHEAP.hash('right')}\n", encoding="utf-8")
    return path


def test_a_password_that_fits(passwords: Path) -> None:
    assert answer("passwords", {"File": str(passwords)}, "bob", "right") == LogonAccepted("bob")


@pytest.mark.parametrize(
    ("user", "password", "says"),
    [
        ("bob", "wrong", "does not match"),
        ("bob", "", "no password"),
        ("", "right", "no user name"),
        ("eve", "right", "does not have this user"),
        ("bob", "right\0", "does not match"),
    ],
)
def test_a_password_that_does_not(passwords: Path, user: str, password: str, says: str) -> None:
    assert says in denied(answer("passwords", {"File": str(passwords)}, user, password))


def test_a_file_that_changed_is_read_again(passwords: Path) -> None:
    async def asked() -> list[Answer]:
        made = authentication(ModuleConfig("passwords", {"File": str(passwords)}), "here")
        before = await made.authenticate(Credentials("c", "amy", "new"))
        passwords.write_text(f"amy:{CHEAP.hash('new')}\n", encoding="utf-8")
        after = await made.authenticate(Credentials("c", "amy", "new"))
        gone = await made.authenticate(Credentials("c", "bob", "right"))
        passwords.write_text("broken", encoding="utf-8")
        kept = await made.authenticate(Credentials("c", "amy", "new"))
        return [before, after, gone, kept]

    before, after, gone, kept = asyncio.run(asked())
    assert isinstance(before, LogonDenied) and isinstance(gone, LogonDenied)
    assert after == kept == LogonAccepted("amy")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bob", "line 1 is no `user:hash`"),
        ("bob:plain-text", "line 1 is no"),
        ("\n:$argon2id$x", "line 2 is no"),
        ("bob:$argon2id$x\nbob:$argon2id$y", "line 2 has a user for the second time"),
    ],
)
def test_a_file_of_passwords_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"here: .*{says}") as told:
        answer("passwords", {"File": str(path)})
    assert "plain-text" not in str(told.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        answer("passwords", {"File": str(tmp_path / "none")})
    with pytest.raises(ConfigurationError, match="cannot be read: it is no text"):
        path.write_bytes(b"\xff")
        answer("passwords", {"File": str(path)})


def test_a_flood_of_logons_takes_no_more_than_its_turns(
    passwords: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many at once so few are computed at a time, and above a number nothing is computed."""
    monkeypatch.setattr(modules, "HASHES_WAITING_MAX", 8)
    now, most = [0], [0]

    def slow(self: Any, kept: str, password: str) -> bool:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.01)
        now[0] -= 1
        return False

    monkeypatch.setattr(modules.PasswordAuthentication, "_fits", slow)

    async def flood() -> list[Answer]:
        made = authentication(ModuleConfig("passwords", {"File": str(passwords)}), "here")
        asked = Credentials("c", "bob", "x")
        return await asyncio.gather(*(made.authenticate(asked) for _ in range(20)))

    answers = [denied(each) for each in asyncio.run(flood())]
    assert most[0] == modules.HASHES_AT_ONCE
    assert sum("wait for their password" in each for each in answers) == 12


def test_of_who_is_gone_nothing_is_computed(
    passwords: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what had begun."""
    may_end, begun = threading.Event(), []

    def waits(self: Any, kept: str, password: str) -> bool:
        begun.append(password)
        return may_end.wait(20)

    monkeypatch.setattr(modules.PasswordAuthentication, "_fits", waits)

    async def flood() -> list[Answer]:
        made, here = authentication(ModuleConfig("passwords", {"File": str(passwords)}), "h"), True
        asking = [
            asyncio.create_task(
                made.authenticate(Credentials("c", "bob", f"x{number}", still_waits=lambda: here))
            )
            for number in range(20)
        ]
        while len(begun) < modules.HASHES_AT_ONCE:
            await asyncio.sleep(0)
        here = False
        may_end.set()
        return await asyncio.gather(*asking)

    answers = asyncio.run(flood())
    assert len(begun) == modules.HASHES_AT_ONCE
    assert sum(isinstance(each, LogonAccepted) for each in answers) == modules.HASHES_AT_ONCE
    assert all("connection ended" in each.why for each in answers if isinstance(each, LogonDenied))


# -- tokens --------------------------------------------------------------------------------------
def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    given = {"sub": "bob", "exp": time.time() + 600, **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm)


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n", encoding="utf-8")
    return {"SecretFile": str(path)}


def test_a_token_that_holds(secret: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer("tokens", secret, "bob", token()) == LogonAccepted("bob")
    assert answer("tokens", secret, "", token()) == LogonAccepted("bob")
    monkeypatch.setenv("SIGNS", SECRET)
    assert answer("tokens", {"SecretEnvironmentVariable": "SIGNS"}, "", token()) == LogonAccepted(
        "bob"
    )
    wants = {**secret, "Audience": "raylay", "Issuer": "us", "UserClaim": "email"}
    given = token(aud="raylay", iss="us", email="b@x")
    assert answer("tokens", wants, "", given) == LogonAccepted("b@x")


@pytest.mark.parametrize(
    ("claims", "user", "says"),
    [
        ({"exp": 1}, "", "expired"),
        ({"exp": None}, "", "exp"),
        ({"sub": ""}, "", "no sub"),
        ({"sub": None}, "", "no sub"),
        ({}, "eve", "another user"),
        ({"nbf": 9_999_999_999}, "", "not yet valid"),
    ],
)
def test_a_token_that_does_not(
    secret: dict[str, str], claims: dict[str, Any], user: str, says: str
) -> None:
    assert says in denied(answer("tokens", secret, user, token(**claims)))


def test_a_token_of_another_key_or_of_none(secret: dict[str, str]) -> None:
    for given in (token("o" * 32), jwt.encode({"sub": "bob"}, None, algorithm="none"), "a.b.c", ""):
        denied(answer("tokens", secret, "", given))
    wants = {**secret, "Audience": "raylay"}
    denied(answer("tokens", wants, "", token(aud="others")))
    denied(answer("tokens", wants, "", token()))


def test_tokens_of_a_public_key(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    path = tmp_path / "key.pem"
    path.write_bytes(public)
    options = {"PublicKeyFile": str(path)}
    assert answer("tokens", options, "", token(key, "ES256")) == LogonAccepted("bob")
    other = ec.generate_private_key(ec.SECP256R1())
    denied(answer("tokens", options, "", token(other, "ES256")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs one of SecretFile"),
        ({"SecretFile": "a", "PublicKeyFile": "b"}, "needs one of"),
        ({"PublicKeyFile": "a", "Algorithms": "HS256"}, "HS256 does not go with PublicKeyFile"),
        ({"SecretFile": "a", "Algorithms": "none"}, "none does not go with"),
        ({"PublicKeyFile": "a", "Algorithms": "None"}, "None does not go with PublicKeyFile"),
        ({"SecretFile": "a", "Algorithms": "RS256"}, "RS256 does not go with SecretFile"),
        ({"SecretEnvironmentVariable": "NOT_THERE"}, "no variable NOT_THERE"),
        ({"SecretFile": "/none"}, "/none cannot be read"),
        ({"SecretFile": os.devnull}, "has 0 bytes: give at least 32"),
    ],
)
def test_tokens_that_cannot_be_read_so(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"here: .*{says}"):
        answer("tokens", options)


# -- certificates --------------------------------------------------------------------------------
def test_the_name_in_a_certificate() -> None:
    bears = CertificateClaims("bob", ("bob.example", "10.0.0.1"))
    assert answer("certificates", {}, certificate=bears) == LogonAccepted("bob")
    assert answer("certificates", {}, "bob", certificate=bears) == LogonAccepted("bob")
    other = {"Name": "AlternativeName"}
    assert answer("certificates", other, certificate=bears) == LogonAccepted("bob.example")
    assert answer("certificates", other, "10.0.0.1", certificate=bears) == LogonAccepted("10.0.0.1")
    assert "another name" in denied(answer("certificates", {}, "eve", certificate=bears))
    assert "VerifyClient" in denied(answer("certificates", {}, "bob"))
    denied(answer("certificates", {}, certificate=CertificateClaims()))
    with pytest.raises(ConfigurationError, match="CommonName or AlternativeName"):
        answer("certificates", {"Name": "Nick"})


# -- which there are -----------------------------------------------------------------------------
@pytest.mark.parametrize("module", [modules.DEFAULT, modules.IMPLICIT, modules.NOBODY, "passwords"])
def test_an_option_that_a_module_does_not_know(module: str) -> None:
    with pytest.raises(ConfigurationError, match="has no option 'Alow'"):
        answer(module, {"Alow": "1"})


def test_a_module_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match=r"no module 'pam': there are amps-.*passwords"):
        answer("pam", {})


class _Entry:
    name = "mine"
    value = "mine:Mine"

    def __init__(self, found: Any) -> None:
        self._found = found

    def load(self) -> Any:
        return self._found


def test_a_module_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        def __init__(self, options: dict[str, str]) -> None:
            assert options == {"a": "b"}

        async def authenticate(self, asked: Credentials) -> Answer:
            return LogonAccepted(asked.user_id.upper())

    found: list[Any] = [_Entry(Mine)]
    monkeypatch.setattr(loader, "entry_points", lambda **_: found)
    assert answer("mine", {"a": "b"}, "bob") == LogonAccepted("BOB")
    found[0] = _Entry(None)
    with pytest.raises(ConfigurationError, match="mine of the installed mine:Mine cannot be used"):
        answer("mine", {})
