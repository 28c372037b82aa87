"""The credentials and the TLS files of a client whose program gives none: they come from the
environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from raylay.services.errors import ConfigurationError

USER_VARIABLE = "RAYLAY_USER"
PASSWORD_VARIABLE = "RAYLAY_PASSWORD"
PASSWORD_FILE_VARIABLE = "RAYLAY_PASSWORD_FILE"
CA_FILE_VARIABLE = "RAYLAY_CA_FILE"
CERTIFICATE_VARIABLE = "RAYLAY_CERTIFICATE"
PRIVATE_KEY_VARIABLE = "RAYLAY_PRIVATE_KEY"
_TLS_VARIABLES = (CA_FILE_VARIABLE, CERTIFICATE_VARIABLE, PRIVATE_KEY_VARIABLE)
PASSWORD_BYTES_MAX = 8_192
# A command puts its options, and those of its context, into the environment while it runs.
_NAMED_BY = f"--password-file, a context or {PASSWORD_FILE_VARIABLE} names it"


def credentials(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns `user_id` and `password` for a client, as far as the environment has them:
    `RAYLAY_USER`, and `RAYLAY_PASSWORD` or the file `RAYLAY_PASSWORD_FILE`.

    Raises:
        ConfigurationError: the file cannot be read, or both are given.
    """
    found = {}
    if environment.get(USER_VARIABLE):
        found["user_id"] = environment[USER_VARIABLE]
    path = environment.get(PASSWORD_FILE_VARIABLE)
    password = environment.get(PASSWORD_VARIABLE)
    if path and password:
        raise ConfigurationError(
            f"the environment has {PASSWORD_VARIABLE} and {PASSWORD_FILE_VARIABLE}: unset one"
        )
    if path:
        try:
            with Path(path).open("rb") as file:
                data = file.read(PASSWORD_BYTES_MAX + 1)
            password = data.rstrip(b"\r\n").decode()
        except OSError as error:
            raise ConfigurationError(
                f"the password file {path} cannot be read: {error.strerror}; {_NAMED_BY}"
            ) from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"the password file {path} is no UTF-8; {_NAMED_BY}") from None
        if len(data) > PASSWORD_BYTES_MAX:
            raise ConfigurationError(
                f"the password file {path} has more than {PASSWORD_BYTES_MAX} bytes; {_NAMED_BY}"
            )
    if password:
        found["password"] = password
    return found


def tls_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Returns the TLS settings of the environment, as `Client(tls=…)` takes them; None: there are
    none. They are `RAYLAY_CA_FILE`, `RAYLAY_CERTIFICATE` and `RAYLAY_PRIVATE_KEY`."""
    found = {
        variable.removeprefix("RAYLAY_").lower(): environment[variable]
        for variable in _TLS_VARIABLES
        if environment.get(variable)
    }
    return found or None
