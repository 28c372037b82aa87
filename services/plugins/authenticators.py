"""The authenticator modules, which give the credentials of a link's logon.

    amps-default-authenticator-module    User (default: that of the operating system), and one of
                                         PasswordFileName, PasswordEnvironmentVariable, Password
    exec                                 the output of Command is the password; it is run at each
                                         logon. UserName, MaxLength (1024 bytes)

A package brings its own by an entry point of the group `raylay.authenticators`: called with the
options of the configuration, it gives an object with the method `async credentials(challenge)`,
which gives user name and password; `challenge` is None at first, then what the other side asked.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from raylay.services.errors import ConfigurationError
from raylay.services.plugins.loader import load_module
from raylay.services.security.credentials import Challenge
from raylay.services.security.modules import ModuleConfig

GROUP = "raylay.authenticators"
DEFAULT = "amps-default-authenticator-module"
PASSWORD_BYTES_MAX = 8_192
MAX_LENGTH_DEFAULT = 1_024
COMMAND_S_MAX = 10.0


class Authenticator(Protocol):
    """Gives the credentials of a link. Owner: the link."""

    async def credentials(self, challenge: Challenge | None) -> tuple[str, str]:
        """Returns user name and password for a logon.

        Raises:
            ConfigurationError: no credentials can be given; the error says why, without secrets.
        """


class DefaultAuthenticator:
    """A user name and a password, read anew for each logon."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        sources = ("PasswordFileName", "PasswordEnvironmentVariable", "Password")
        config.check_options(("User", *sources), where)
        given = [name for name in sources if config.options.get(name)]
        if len(given) > 1:
            raise ConfigurationError(f"{where}: give one of {' and '.join(given)}")
        self._where = where
        self._user = config.options.get("User") or ""
        self._source = given[0] if given else ""
        self._value = config.options.get(self._source, "")

    async def credentials(self, challenge: Challenge | None) -> tuple[str, str]:
        try:
            user = self._user or getpass.getuser()
        except (OSError, KeyError):
            raise ConfigurationError(f"{self._where}: give User: this process has none") from None
        return user, self._password()

    def _password(self) -> str:
        if self._source == "PasswordFileName":
            try:
                with Path(self._value).open("rb") as file:
                    data = file.read(PASSWORD_BYTES_MAX + 1)
            except OSError as error:
                raise ConfigurationError(
                    f"{self._where}: {self._value} cannot be read: {error.strerror}"
                ) from None
            return _text(data.rstrip(b"\r\n"), f"{self._where}: {self._value}", PASSWORD_BYTES_MAX)
        if self._source == "PasswordEnvironmentVariable":
            found = os.environ.get(self._value)
            if found is None:
                raise ConfigurationError(
                    f"{self._where}: the environment has no variable {self._value}"
                )
            return found
        return self._value


class ExecAuthenticator:
    """The output of a command, without its last line end."""

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("Command", "MaxLength", "UserName"), where, needs=("Command",))
        self._where = where
        try:
            self._command = shlex.split(config.options["Command"])
        except ValueError as error:
            raise ConfigurationError(f"{where}: Command cannot be read: {error}") from None
        self._user = config.options.get("UserName") or ""
        length = config.options.get("MaxLength") or str(MAX_LENGTH_DEFAULT)
        if not length.isdigit() or not 0 < int(length) <= PASSWORD_BYTES_MAX:
            raise ConfigurationError(
                f"{where}: MaxLength is {length!r}: give bytes, up to {PASSWORD_BYTES_MAX}"
            )
        self._bytes_max = int(length)

    async def credentials(self, challenge: Challenge | None) -> tuple[str, str]:
        user = self._user or getpass.getuser()
        name = self._command[0]
        reading, writing = os.pipe()
        # Our own pipe is closed when enough was read. A pipe of asyncio is read to its end, which
        # may never come: processes that the command has started may keep it open.
        with os.fdopen(reading, "rb", buffering=0) as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=writing,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                raise ConfigurationError(
                    f"{self._where}: {name} cannot be run: {error.strerror}"
                ) from None
            finally:
                os.close(writing)
            try:
                async with asyncio.timeout(COMMAND_S_MAX):
                    data = await _read(output, self._bytes_max + 3)
                    if len(data) <= self._bytes_max + 2:
                        await process.wait()
            except TimeoutError:
                raise ConfigurationError(
                    f"{self._where}: {name} did not end within {COMMAND_S_MAX:g} s"
                ) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        if process.returncode and len(data) <= self._bytes_max + 2:
            raise ConfigurationError(f"{self._where}: {name} ended with {process.returncode}")
        return user, _text(data.rstrip(b"\r\n"), f"{self._where}: {name}", self._bytes_max)


async def _read(output: IO[bytes], bytes_max: int) -> bytes:
    """Reads a program's output to its end, or up to a number of bytes."""
    stream = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), output
    )
    data = b""
    try:
        while len(data) < bytes_max and (more := await stream.read(bytes_max - len(data))):
            data += more
    finally:
        transport.close()
    return data


def _text(data: bytes, where: str, bytes_max: int) -> str:
    if len(data) > bytes_max:
        raise ConfigurationError(f"{where} gives more than {bytes_max} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where} gives no text in UTF-8") from None


_BUILT_IN: Mapping[str, Callable[[ModuleConfig, str], Authenticator]] = {
    DEFAULT: DefaultAuthenticator,
    "exec": ExecAuthenticator,
}


def authenticator(config: ModuleConfig, where: str) -> Authenticator:
    """Returns the module that a configuration names.

    Raises:
        ConfigurationError: no module has that name, or it cannot be used with these options; the
            error says why.
    """
    return load_module(GROUP, config, where, _BUILT_IN)
