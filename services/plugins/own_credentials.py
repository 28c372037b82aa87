"""The credentials of an instance or a link for a logon at another instance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.security.modules import ModuleConfig

if TYPE_CHECKING:
    from raylay.services.plugins.authenticators import Authenticator

TEXT_BYTES_MAX = {"user name": 1_024, "password": 8_192}
"""Longest user name, and longest password, that a logon has room for
(protocol/link/link_credentials.py)."""


class OwnCredentials:
    """Asks the authenticator module, anew for each logon. Owner: the side that dials.

    Args:
        config: the authenticator module; None: the logon has no credentials.
        where: instance and destination, for reports.
    """

    def __init__(self, config: ModuleConfig | None, where: str) -> None:
        self._config = config
        self._where = f"{where}: authenticator"
        self._module: Authenticator | None = None

    async def say(self, challenge: tuple[str, str] | None = None) -> tuple[str, str]:
        """Returns user name and password.

        Args:
            challenge: user id and text from the other side's module; None: there is none yet.

        Raises:
            ConfigurationError: no credentials can be given; the error says why, without secrets.
        """
        if self._config is None:
            if challenge is not None:
                raise ConfigurationError(
                    f"{self._where}: there is none, and the other side asks for credentials"
                )
            return "", ""
        # Without credentials, the modules are not loaded.
        from raylay.services.plugins.authenticators import authenticator
        from raylay.services.security.credentials import Challenge

        if self._module is None:
            self._module = authenticator(self._config, self._where)
        try:
            asked = None if challenge is None else Challenge(*challenge)
            said = await self._module.credentials(asked)
        except (RaylayError, asyncio.CancelledError):
            raise
        except Exception as error:  # an installed module may name a secret
            raise ConfigurationError(
                f"{self._where}: module {self._config.module} failed: {type(error).__name__}"
            ) from None
        return self._checked(said)

    def _checked(self, said: object) -> tuple[str, str]:
        if not isinstance(said, tuple) or len(said) != 2:
            raise ConfigurationError(f"{self._where}: its module gives no user name and password")
        for (what, bytes_max), text in zip(TEXT_BYTES_MAX.items(), said, strict=True):
            problem = _problem(text, bytes_max)
            if problem:
                raise ConfigurationError(f"{self._where}: the {what} of its module {problem}")
        user, password = said
        return user, password


def _problem(text: object, bytes_max: int) -> str:
    if not isinstance(text, str):
        return "is no text"
    try:
        return f"has more than {bytes_max} bytes" if len(text.encode()) > bytes_max else ""
    except UnicodeEncodeError:
        return "is no text in UTF-8"
