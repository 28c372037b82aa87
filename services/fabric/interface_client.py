"""HTTP requests of this process to the administrator's interface of one instance: what the shell
asks when Ray's head is away."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.security.control import Caller

CONNECT_S = 3.0
ANSWER_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
SHOWN_MAX = 500


class InterfaceClient:
    """Asks one interface. Threads may use it at the same time: each request has a connection of
    its own.

    Args:
        address: `host:port`, or a URL with `http` or `https` and perhaps a path before the
            interface's own.
        caller: the user that asks; None: requests have no credentials.
        context: TLS context; None: that of the system's authorities, where the URL says `https`.

    Raises:
        ConfigurationError: the address is not valid.
    """

    def __init__(
        self, address: str, caller: Caller | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        scheme = "https" if context is not None else "http"
        parts = urlsplit(address if "://" in address else f"{scheme}://{address}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
            raise ConfigurationError(
                f"{address[:SHOWN_MAX]!r} is no address of an administrator's interface: give "
                "host:port, or http://host:port"
            )
        self._host, self._port, self._front = parts.hostname, port, parts.path.rstrip("/")
        self._context = context
        if parts.scheme == "https" and context is None:
            self._context = ssl.create_default_context()
        self._headers = _authorization(caller)
        self._session = ""
        """Cookie that stands for the password from the second request on: checking a password takes
        the interface more time than all else."""
        self.url = f"{parts.scheme}://{parts.netloc}{self._front}"
        """The interface's root, for people."""

    def listens(self) -> bool:
        """Returns whether something listens at the address."""
        try:
            socket.create_connection((self._host, self._port), CONNECT_S).close()
        except OSError:
            return False
        return True

    def get(self, path: str, timeout_s: float = ANSWER_S) -> Any:
        """Returns the JSON at a path, such as `/raylay/status.json`.

        Raises:
            InterfaceSilent: nothing listens there, or it does not answer in time.
            FabricError: it answers with an error, or with something else.
        """
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: dict[str, Any], timeout_s: float = ANSWER_S) -> Any:
        """Performs an action and returns the JSON of the answer. Raises as `get`."""
        return self._ask("POST", path, body or None, timeout_s)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        connection = self._connection()
        headers = {"X-Raylay": "1", "Accept": "application/json", **self._headers}
        if self._session:
            headers["Cookie"] = self._session
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            data = None if body is None else json.dumps(body)
            connection.request(method, self._front + path, data, headers)
            response = connection.getresponse()
            status, text = response.status, response.read(ANSWER_BYTES_MAX)
            cookie = response.getheader("Set-Cookie", "").partition(";")[0]
            self._session = cookie or self._session
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise InterfaceSilent(
                f"the administrator's interface at {self.url} does not answer: {why}"
            ) from None
        finally:
            connection.close()
        return self._read(status, text)

    def _connection(self) -> http.client.HTTPConnection:
        # A proxy of the environment is for the web: this class uses none.
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=CONNECT_S, context=self._context
        )

    def _read(self, status: int, text: bytes) -> Any:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if status == http.client.OK and found is not None:
            return found
        why = found.get("error") if isinstance(found, dict) else None
        if status == http.client.UNAUTHORIZED:
            raise FabricError(
                f"{self.url} does not let you in: {str(why)[:SHOWN_MAX]}. Give "
                "--user and --password-file, or RAYLAY_USER and RAYLAY_PASSWORD_FILE"
            )
        if why is None:
            raise FabricError(
                f"{self.url} answers {status}, and not as an administrator's interface: see "
                "whether another program listens there"
            )
        raise FabricError(str(why)[:4_000])


class InterfaceSilent(FabricError):
    """The error that an interface does not answer."""


def _authorization(caller: Caller | None) -> dict[str, str]:
    if caller is None or not (caller.user_id or caller.password):
        return {}
    if not caller.user_id:
        return {"Authorization": f"Bearer {caller.password}"}
    pair = f"{caller.user_id}:{caller.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
