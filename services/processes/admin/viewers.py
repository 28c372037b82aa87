"""The users of the administrator's interface: who sends a request, and what that user may see and
do. A password is checked once; a cookie stands for it in the requests that follow, since hashing a
password for each poll of a console would take more than the poll."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from raylay.services.processes.admin.instance_source import InstanceSource
from raylay.services.security.control import Caller
from raylay.services.security.permissions import Permissions

COOKIE = "raylay-session"
SESSION_S = 86_400.0
"""Time for which a cookie stands for a password: the documented `max-age`."""
SESSIONS_MAX = 1_000
HEADER_CHARACTERS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user who was let in.

    Attributes:
        caller: the credentials, for control calls: the instance judges each of them itself.
        permissions: None: everything is allowed.
    """

    user: str
    caller: Caller
    permissions: Permissions | None

    def may(self, path: str) -> bool:
        """Returns whether this user may read, or perform, what has this path (`/amps/host`)."""
        return self.permissions is None or self.permissions.controls(path)


@dataclass(frozen=True, slots=True)
class _ViewerSession:
    viewer: Viewer
    address: str
    until_s: float


class Viewers:
    """Sessions by their cookies.

    Owner: the process's event loop. With `SESSIONS_MAX` of them the one that was used longest ago
    ends.

    Args:
        instance: checks passwords.
        session_s: seconds for which a session lasts.
    """

    def __init__(
        self,
        instance: InstanceSource,
        session_s: float = SESSION_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance = instance
        self.session_s = session_s
        self._clock = clock
        self._sessions: OrderedDict[str, _ViewerSession] = OrderedDict()

    def of_cookie(self, token: str, address: str) -> Viewer | None:
        """Returns the user of a session; None: it has ended, or was begun from another address."""
        found = self._sessions.get(token)
        if found is None or found.address != address:
            return None
        if found.until_s <= self._clock():
            del self._sessions[token]
            return None
        self._sessions.move_to_end(token)
        return found.viewer

    async def log_on(self, caller: Caller, address: str) -> tuple[Viewer, str]:
        """Checks credentials and begins a session. Returns the user and the cookie's value.

        Raises:
            ControlRefused: this caller is not let in.
            FabricError: the instance is away.
        """
        user, permissions = await self._instance.identify(caller, address)
        viewer = Viewer(user, caller, permissions)
        token = secrets.token_urlsafe(32)
        self._sessions[token] = _ViewerSession(viewer, address, self._clock() + self.session_s)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return viewer, token

    def forget(self, user: str = "") -> None:
        """Ends the sessions of a user, or all of them, so that permissions are asked for anew."""
        if not user:
            self._sessions.clear()
            return
        # A module may know the user by another name than that of the logon: either will do.
        for token, each in [*self._sessions.items()]:
            if user in (each.viewer.user, each.viewer.caller.user_id):
                del self._sessions[token]


def read_authorization(header: str) -> Caller | None:
    """Reads an `Authorization` header: `Basic` with user and password, or `Bearer` with a token.

    Returns:
        None: the header holds neither.
    """
    # Bytes that are no UTF-8 come as half characters, which nothing can send on.
    if len(header) > HEADER_CHARACTERS_MAX or not header.isascii():
        return None
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return Caller("", rest.strip())
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(rest.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
    user, colon, password = text.partition(":")
    return Caller(user, password) if colon else None
