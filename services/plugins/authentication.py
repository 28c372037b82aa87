"""The authentication modules: those built in, and those that are installed.

    amps-default-authentication-module       anybody; the name is not believed (AllowSpoofing)
    amps-implicit-authentication-module      anybody, also without saying a name
    amps-default-no-authentication-module    nobody
    passwords       a file of user names and Argon2 hashes (`raylay password`)
    tokens          JSON Web Tokens, signed with a secret or a key
    certificates    the name in the client's certificate, which the transport has verified

A package brings its own by an entry point of the group `raylay.authentication`:

    [project.entry-points."raylay.authentication"]
    directory = "my_package.directory:Directory"

It is called with the options of the configuration (a dict of texts) and gives an object with the
method `async authenticate(credentials)`, which answers by an `LogonAccepted`, a `LogonDenied` or a
`Challenge` (services/security/credentials.py). What it raises is taken for a `LogonDenied`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from raylay.services.errors import ConfigurationError
from raylay.services.plugins.loader import load_module
from raylay.services.plugins.watched_file import WatchedFile
from raylay.services.security.credentials import Answer, Credentials, LogonAccepted, LogonDenied
from raylay.services.security.logon_turns import LogonTurns, Turn
from raylay.services.security.modules import ModuleConfig

GROUP = "raylay.authentication"
DEFAULT = "amps-default-authentication-module"
IMPLICIT = "amps-implicit-authentication-module"
NOBODY = "amps-default-no-authentication-module"
HASHES_AT_ONCE = 2
"""Number of password hashes at once. Each takes 64 MiB of memory and some 50 ms of a processor:
further ones wait, so that a flood of logons takes neither from connected clients."""
HASHES_WAITING_MAX = 256
"""Number of logons that wait or are being checked. One more displaces one from the address with the
most."""
LEEWAY_S = 30
"""Largest allowed difference between the clocks of the token's issuer and of this host, in
seconds."""


class Authentication(Protocol):
    """Finds out who a client is. Owner: the instance; one for each transport that names a
    module."""

    async def authenticate(self, asked: Credentials) -> Answer:
        """Decides whether the client is who it claims to be. Called on the instance's loop:
        blocking work must run elsewhere."""


class DefaultAuthentication:
    """Admits everybody. Without `AllowSpoofing` the claimed name is not kept."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("AllowSpoofing", "RequireLogon", "RequireUsername"), where)
        # Raylay's protocol takes nothing before a logon, whatever this option says.
        config.truth("RequireLogon", True, where)
        self._keeps = config.truth("AllowSpoofing", False, where)
        self._requires = config.truth("RequireUsername", False, where)

    async def authenticate(self, asked: Credentials) -> Answer:
        if self._requires and not asked.user_id:
            return LogonDenied("it gave no user name, and RequireUsername is true")
        return LogonAccepted(asked.user_id if self._keeps else "")


class ImplicitAuthentication:
    """Admits everybody."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("AllowSpoofing",), where)
        self._keeps = config.truth("AllowSpoofing", False, where)

    async def authenticate(self, asked: Credentials) -> Answer:
        return LogonAccepted(asked.user_id if self._keeps else "")


class NoAuthentication:
    """Admits nobody."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options((), where)

    async def authenticate(self, asked: Credentials) -> Answer:
        return LogonDenied(f"{NOBODY} lets nobody in")


class PasswordAuthentication:
    """Passwords, of which a file has Argon2 hashes: `user:hash`, one a line.

    The file is read again when it has changed.
    """

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("File",), where, needs=("File",))
        self._where = where
        self.watched = WatchedFile(
            config.options["File"],
            "passwords",
            where,
            self._take,
            "until that is mended, the passwords of the last reading hold",
        )
        self._hasher = hasher()
        # An unknown name costs as much time as a known one.
        self._nobody = self._hasher.hash(os.urandom(16).hex())
        self._hashes: dict[str, str] = {}
        self._turns = LogonTurns(HASHES_AT_ONCE, HASHES_WAITING_MAX)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        """Waiting logons by number; each is told the reason why it is refused, or an empty text
        when it is its turn."""
        self.watched.read()

    def _take(self, text: str) -> None:
        self._hashes = read_passwords(text, f"{self._where}: {self.watched.path}")

    async def authenticate(self, asked: Credentials) -> Answer:
        if not asked.user_id or not asked.password:
            return LogonDenied("it gave no user name, or no password")
        loop, number, fits = asyncio.get_running_loop(), next(self._numbers), None
        waits = self._waiting[number] = loop.create_future()
        try:
            for turn in self._turns.came(number, asked.address, asked.user_id):
                self._tell(turn)
            self._go_on(loop)
            refusal = await waits
            if refusal:
                return LogonDenied(refusal, is_busy=True)
            try:
                await self.watched.look()
            except ConfigurationError as error:
                # Users in the file as it was last read are still valid.
                if not self._hashes:
                    return LogonDenied(str(error))
            if not asked.still_waits():
                # A client that connects and leaves at once must not cost a hash each time.
                return LogonDenied("the connection ended before the password was checked")
            known = self._hashes.get(asked.user_id)
            fits = await asyncio.to_thread(self._fits, known or self._nobody, asked.password)
            if known is None:
                fits = False
                return LogonDenied("the password file does not have this user")
            return (
                LogonAccepted(asked.user_id) if fits else LogonDenied("the password does not match")
            )
        finally:
            self._waiting.pop(number, None)
            self._turns.gone(number, loop.time(), fits)
            self._go_on(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while (turn := self._turns.next(loop.time())) is not None:
            self._tell(turn)

    def _tell(self, turn: Turn) -> None:
        waits = self._waiting.pop(turn.number, None)
        if waits is not None and not waits.done():
            waits.set_result(turn.refusal)

    def _fits(self, kept: str, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        try:
            return bool(self._hasher.verify(kept, password))
        except (VerificationError, InvalidHashError):
            return False


class TokenAuthentication:
    """JSON Web Tokens in place of passwords."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        options = config.options
        sources = ("SecretFile", "SecretEnvironmentVariable", "PublicKeyFile")
        config.check_options((*sources, "Algorithms", "Audience", "Issuer", "UserClaim"), where)
        given = [name for name in sources if options.get(name)]
        if len(given) != 1:
            raise ConfigurationError(
                f"{where}: module {config.module} needs one of {', '.join(sources)}"
            )
        self._jwt = _library("jwt", "PyJWT", where)
        is_public = given == ["PublicKeyFile"]
        default = "RS256,ES256,EdDSA" if is_public else "HS256"
        names = (options.get("Algorithms") or default).replace(",", " ").split()
        self._algorithms = names
        for name in names:
            # A public key must never be used as a shared secret.
            if name.startswith("HS") is is_public or name.lower() == "none":
                raise ConfigurationError(
                    f"{where}: {name} does not go with {given[0]}: an HS algorithm needs a secret, "
                    "all others a public key"
                )
        self._key = _secret_of(options, given[0], where)
        if not is_public and len(self._key) < 32:
            raise ConfigurationError(
                f"{where}: the secret of module {config.module} has {len(self._key)} bytes: give "
                "at least 32, by chance"
            )
        self._audience = options.get("Audience") or None
        self._issuer = options.get("Issuer") or None
        self._claim = options.get("UserClaim") or "sub"

    async def authenticate(self, asked: Credentials) -> Answer:
        if not asked.password:
            return LogonDenied("it gave no token")
        try:
            claims = self._jwt.decode(
                asked.password,
                self._key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp"], "verify_aud": self._audience is not None},
            )
        except Exception as error:  # the library raises errors of its own, and those of keys
            return LogonDenied(f"the token is not valid: {error}")
        user = claims.get(self._claim)
        if not isinstance(user, str) or not user:
            return LogonDenied(f"the token has no {self._claim}")
        if asked.user_id and asked.user_id != user:
            return LogonDenied("the token belongs to another user")
        return LogonAccepted(user)


class CertificateAuthentication:
    """The name in the certificate of the other side. The transport must verify it."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("Name",), where)
        self._name = config.options.get("Name") or "CommonName"
        if self._name not in ("CommonName", "AlternativeName"):
            raise ConfigurationError(
                f"{where}: Name is {self._name!r}: give CommonName or AlternativeName"
            )

    async def authenticate(self, asked: Credentials) -> Answer:
        if asked.certificate is None:
            return LogonDenied(
                "its connection has no verified certificate: the transport needs VerifyClient"
            )
        names: Iterable[str] = (asked.certificate.common_name,)
        if self._name == "AlternativeName":
            names = asked.certificate.names
        for name in names:
            if name and asked.user_id in ("", name):
                return LogonAccepted(name)
        return LogonDenied("its certificate bears another name")


_Make = Callable[[ModuleConfig, str], Authentication]
_BUILT_IN: Mapping[str, _Make] = {
    DEFAULT: DefaultAuthentication,
    IMPLICIT: ImplicitAuthentication,
    NOBODY: NoAuthentication,
    "passwords": PasswordAuthentication,
    "tokens": TokenAuthentication,
    "certificates": CertificateAuthentication,
}


def authentication(config: ModuleConfig, where: str) -> Authentication:
    """Returns the module that a configuration names. To be called on the loop that will use it.

    Raises:
        ConfigurationError: no module has that name, or it cannot be used with these options; the
            error says why.
    """
    return load_module(GROUP, config, where, _BUILT_IN)


def hasher() -> Any:
    """Returns the object that makes and verifies hashes of passwords.

    Raises:
        ConfigurationError: argon2-cffi is not installed.
    """
    return _library("argon2", "argon2-cffi", "passwords").PasswordHasher()


def read_passwords(text: str, where: str) -> dict[str, str]:
    """Returns the password hashes in a file of lines `user:hash`, by user.

    Args:
        text: the content of the file.
        where: the file, for error texts.

    Raises:
        ConfigurationError: a line is not of this form, or names a user for the second time. The
            error has the number of the line, and nothing of its content.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, kept = line.partition(":")
        if not colon or not user or not kept.startswith("$argon2"):
            raise ConfigurationError(
                f"{where}: line {number} is no `user:hash` with a hash of Argon2: write it by "
                "`raylay password`"
            )
        if user in found:
            raise ConfigurationError(f"{where}: line {number} has a user for the second time")
        found[user] = kept
    return found


def _library(module: str, package: str, where: str) -> Any:
    try:
        return __import__(module)
    except ImportError:
        raise ConfigurationError(
            f"{where}: {package} is not installed: pip install 'raylay[security]'"
        ) from None


def _secret_of(options: Mapping[str, str], name: str, where: str) -> bytes:
    value = options[name]
    if name == "SecretEnvironmentVariable":
        found = os.environ.get(value)
        if not found:
            raise ConfigurationError(f"{where}: the environment has no variable {value}")
        return found.encode()
    try:
        data = Path(value).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{where}: {value} cannot be read: {error.strerror}") from None
    return data.strip()
