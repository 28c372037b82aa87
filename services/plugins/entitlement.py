"""The entitlement modules: those built in, and those that are installed.

    amps-default-entitlement-module       everything
    amps-default-no-entitlement-module    nothing
    permissions     a file of permissions documents (services/security/permissions.py), by user
    http            the document that a server answers with

A package brings its own by an entry point of the group `raylay.entitlement`. It is called with the
options of the configuration and gives an object with the method
`async permissions(user, client_name, address)` that gives such a document as a map, or None for
nobody. What it raises is taken for nothing being allowed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import yaml

from raylay.services.errors import ConfigurationError
from raylay.services.plugins.loader import load_installed
from raylay.services.plugins.watched_file import WatchedFile
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import (
    EVERYTHING,
    NOTHING,
    Permissions,
    read_permissions,
)

GROUP = "raylay.entitlement"
ALL = "amps-default-entitlement-module"
NONE = "amps-default-no-entitlement-module"
ANYBODY = "*"
ANSWER_BYTES_MAX = 4 * 1024 * 1024
CONNECTION_TIMEOUT_MS_DEFAULT = 2_000
REQUEST_TIMEOUT_MS_DEFAULT = 5_000
RETRIES_MAX = 10
TIMEOUT_MS_MAX = 600_000


class Entitlement(Protocol):
    """Says what a user may do. Owner: the instance; one for each transport that names a module."""

    async def permissions(self, user: str, client_name: str, address: str) -> Permissions:
        """Returns the permissions of a user.

        Raises:
            ConfigurationError: the permissions cannot be determined. Then nothing is allowed.
        """


class ConstantEntitlement:
    """Entitlement with the same permissions for everybody."""

    def __init__(self, found: Permissions, config: ModuleConfig, where: str) -> None:
        config.check_options((), where)
        self._found = found

    async def permissions(self, user: str, client_name: str, address: str) -> Permissions:
        return self._found


class _UniqueKeysLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys. YAML and JSON take the last one, so a copied line
    could silently give more than the first one says."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a map.

        Raises:
            ConstructorError: two of its keys are equal.
        """
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a name", key.start_mark
                )
            name = key.tag, str(key.value)
            if name in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is there twice", key.start_mark
                )
            keys.add(name)
        return super().construct_mapping(node, deep)


class FilePermissions:
    """A YAML or JSON file: a map from users to documents; `*` is for all other users.

    It is read again when it has changed.
    """

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(("File",), where, needs=("File",))
        self._where = where
        self.watched = WatchedFile(
            config.options["File"],
            "permissions",
            where,
            self._take,
            "until that is mended nobody new is let in, and who is in stays",
        )
        self._path = self.watched.path
        self._of_user: dict[str, Permissions] = {}
        self.watched.read()

    def _take(self, text: str) -> None:
        try:
            given = yaml.load(text, _UniqueKeysLoader)
        except yaml.constructor.ConstructorError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise ConfigurationError(
                f"{self._where}: {self._path}:{line}: {error.problem}"
            ) from None
        except RecursionError:
            raise ConfigurationError(f"{self._where}: {self._path} is nested too deeply") from None
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigurationError(
                f"{self._where}: {self._path} is neither YAML nor JSON: {error}"
            ) from None
        if not isinstance(given, Mapping) or not all(isinstance(user, str) for user in given):
            raise ConfigurationError(
                f"{self._where}: {self._path} is no map of users to what they may do"
            )
        self._of_user = {
            user: read_permissions(document, f"{self._path}: {user}")
            for user, document in given.items()
        }

    async def permissions(self, user: str, client_name: str, address: str) -> Permissions:
        await self.watched.look()
        found = self._of_user.get(user) if user != ANYBODY else None
        return found or self._of_user.get(ANYBODY, NOTHING)


class HttpPermissions:
    """The document that a web server has for a user.

    `ResourceURI` may have `{user}`, `{client}` and `{address}`; without, `/USER` is added to it.
    """

    def __init__(self, config: ModuleConfig, where: str) -> None:
        config.check_options(
            (
                "ResourceURI",
                "ConnectionTimeout",
                "RequestTimeout",
                "RetryCount",
                "HTTPHeader",
            ),
            where,
            needs=("ResourceURI",),
        )
        options = config.options
        self._where = where
        self._uri = options["ResourceURI"]
        if not self._uri.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{where}: ResourceURI is {self._uri!r}: give an http:// or https:// address"
            )
        self._connect_s = _milliseconds(
            options, "ConnectionTimeout", CONNECTION_TIMEOUT_MS_DEFAULT, where
        )
        self._request_s = _milliseconds(
            options, "RequestTimeout", REQUEST_TIMEOUT_MS_DEFAULT, where
        )
        retries = options.get("RetryCount") or "0"
        if not retries.isdigit() or int(retries) > RETRIES_MAX:
            raise ConfigurationError(
                f"{where}: RetryCount is {retries!r}: give a whole number up to {RETRIES_MAX}"
            )
        self._retries = int(retries)
        header = options.get("HTTPHeader") or ""
        name, colon, value = header.partition(":")
        if header and not colon:
            raise ConfigurationError(f"{where}: HTTPHeader is no `Name: value`")
        self._headers = {name.strip(): value.strip()} if header else {}

    async def permissions(self, user: str, client_name: str, address: str) -> Permissions:
        uri = self._resource({"user": user, "client": client_name, "address": address})
        why = ""
        for _ in range(self._retries + 1):
            try:
                return read_permissions(await self._asked(uri), f"{self._where}: {user}")
            except (OSError, ValueError, TimeoutError) as error:
                why = f"{type(error).__name__} {error}".strip()
        raise ConfigurationError(
            f"{self._where}: the server of permissions does not answer for {user or 'nobody'}: "
            f"{why}"
        )

    def _resource(self, values: Mapping[str, str]) -> str:
        """Fills values into `ResourceURI`.

        Raises:
            ConfigurationError: with these values it would be the resource of something else.
        """
        uri = self._uri if "{" in self._uri else f"{self._uri.rstrip('/')}/{{user}}"
        segments = uri.split("/")
        for at, segment in enumerate(segments):
            if "{" not in segment:
                continue
            for mark, value in values.items():
                if f"{{{mark}}}" not in segment:
                    continue
                try:
                    segment = segment.replace(f"{{{mark}}}", quote(value, safe=""))
                except UnicodeEncodeError:
                    raise ConfigurationError(
                        f"{self._where}: {value!r} cannot stand in the address of a resource"
                    ) from None
            # A server, or a proxy before it, takes these for the parent folder, quoted or not.
            if segment.partition("?")[0] in (".", ".."):
                raise ConfigurationError(
                    f"{self._where}: {values['user']!r}, client {values['client']!r}: its resource "
                    f"would end at {segment!r}, which is no name of one"
                )
            segments[at] = segment
        return "/".join(segments)

    async def _asked(self, uri: str) -> Any:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._request_s, sock_connect=self._connect_s)
        try:
            data = await self._read(
                aiohttp.ClientSession(timeout=timeout, headers=self._headers), uri
            )
        except aiohttp.ClientError as error:
            raise ValueError(f"{type(error).__name__} {error}") from None
        try:
            return {} if data is None else json.loads(data, object_pairs_hook=_unique)
        except RecursionError:
            raise ValueError("its answer is nested too deeply") from None

    async def _read(self, opened: Any, uri: str) -> bytes | None:
        """Returns the server's document for this user; None: there is none."""
        from yarl import URL

        async with (
            opened as session,
            session.get(URL(uri, encoded=True), allow_redirects=False) as answer,
        ):
            if answer.status in (401, 403, 404):
                return None
            if answer.status != 200:
                raise ValueError(f"it answers {answer.status}")
            data: bytes = await answer.content.read(ANSWER_BYTES_MAX + 1)
            # A long answer comes in several pieces.
            while len(data) <= ANSWER_BYTES_MAX:
                more = await answer.content.read(ANSWER_BYTES_MAX + 1 - len(data))
                if not more:
                    break
                data += more
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a map of an answer; duplicate keys are refused as in a file."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} is in its answer twice")
        found[key] = value
    return found


class InstalledEntitlement:
    """A module of an installed package, whose answers are checked."""

    def __init__(self, module: Any, where: str) -> None:
        self._module = module
        self._where = where

    async def permissions(self, user: str, client_name: str, address: str) -> Permissions:
        try:
            found = await self._module.permissions(user, client_name, address)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"{self._where}: the module failed for {user}: {type(error).__name__}: {error}"
            ) from error
        return NOTHING if found is None else read_permissions(found, f"{self._where}: {user}")


def entitlement(config: ModuleConfig, where: str) -> Entitlement:
    """Returns the module that a configuration names.

    Raises:
        ConfigurationError: no module has that name, or it cannot be used with these options; the
            error says why.
    """
    make = _BUILT_IN.get(config.module)
    if make is not None:
        return make(config, where)
    return InstalledEntitlement(load_installed(GROUP, config, where, _BUILT_IN), where)


_BUILT_IN: Mapping[str, Callable[[ModuleConfig, str], Entitlement]] = {
    ALL: lambda config, where: ConstantEntitlement(EVERYTHING, config, where),
    NONE: lambda config, where: ConstantEntitlement(NOTHING, config, where),
    "permissions": FilePermissions,
    "http": HttpPermissions,
}


def _milliseconds(options: Mapping[str, str], name: str, default_ms: int, where: str) -> float:
    text = options.get(name) or str(default_ms)
    digits = text.removesuffix("ms")
    if not digits.isdigit() or not 0 < int(digits) <= TIMEOUT_MS_MAX:
        raise ConfigurationError(
            f"{where}: {name} is {text!r}: give milliseconds, up to {TIMEOUT_MS_MAX}"
        )
    return int(digits) / 1000
