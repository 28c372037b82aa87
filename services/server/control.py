"""Authorization of control calls at this instance: each call that changes something is judged here,
and reported as an event. Without `admin` in the configuration everybody who can reach the instance
may make them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any

from raylay.services.errors import ControlRefused
from raylay.services.protocol.link.link_credentials import PASSWORD_BYTES_MAX, USER_BYTES_MAX
from raylay.services.security.control import (
    NOBODY,
    PATHS,
    ROOT,
    TRANSPORT,
    Caller,
    not_let_in,
    path_of,
    refusal,
)
from raylay.services.security.credentials import Challenge, Credentials, LogonDenied
from raylay.services.server.access import BUSY, AccessCheck, AccessGranted, access_check_of
from raylay.services.server.runtime import InstanceRuntime

SHOWN_MAX = 200
DRILL_KEPT_S = 30.0
_BY_PEOPLE = frozenset(PATHS) - {"drill", "place"}
"""Calls that are reported although no module is asked who makes them. The others come each second,
or from another instance."""
DRILLS_KEPT_MAX = 64
JUDGED_S_MAX = 12.0
"""Time, in seconds, that the modules have for an answer. Shorter than the caller's own timeout: the
caller would take silence for an instance that hangs, and go on."""
TOLD = frozenset(
    (
        *("destination", "queue", "transport", "segments", "moved", "kind", "of_user"),
        *("client", "topic", "reader"),
    )
)
"""Details of a call that its event has. Others could replace the caller's name in it."""


class ControlAccess:
    """See the file's docstring. Owner: the instance's event loop. The modules are asked at each
    call, except that the permission for a drill's fault, which the drill renews every second, is
    kept for `DRILL_KEPT_S`."""

    def __init__(self, runtime: InstanceRuntime) -> None:
        self._runtime = runtime
        self._access_check: AccessCheck | None = None
        self._followers: list[Callable[[str], None]] = []
        self._drilling: dict[tuple[Caller, str], float] = {}
        """Times, by the loop's clock, until which a caller's permission to inject a kind of fault
        is kept."""

    def open(self) -> None:
        """Makes the modules, so that an instance's start reports what is wrong with them.

        Raises:
            ConfigurationError: a module cannot be used.
        """
        config = self._runtime.config
        if config.admin is None or self._access_check is not None:
            return
        self._access_check = access_check_of(self._runtime, *config.for_control(), TRANSPORT)

    async def allow(self, call: str, caller: Caller | None, **details: Any) -> None:
        """Returns if the caller may make a call, and reports that in an event.

        Args:
            call: the name of the call, one of `PATHS`.
            caller: the identity that the sender claims; None: the sender claims none.
            details: the names in the call's path, and other details for the event.

        Raises:
            ControlRefused: the caller may not make the call, or that cannot be judged.
            ConfigurationError: there is no such call, or a module cannot be used.
        """
        runtime = self._runtime
        if runtime.config.admin is None:
            if call in _BY_PEOPLE:
                # The user is not known, and the event reports the call all the same.
                runtime.report("control", user="", path=path_of(call, details), **_told(details))
            return
        self.open()
        path = path_of(call, details)
        caller = caller or NOBODY
        drills = caller, str(details.get("kind", ""))
        if call == "drill" and self._drilling.get(drills, 0.0) > runtime.loop.time():
            return
        if call == "stop" and self._is_own(caller):
            user, why = "the fabric", ""
        else:
            user, why = await self._judged_in_time(caller, path)
        told = _told(details)
        runtime.report(
            "control_refused" if why else "control",
            user=user[:SHOWN_MAX],
            path=path[:SHOWN_MAX],
            **told,
        )
        if why:
            raise ControlRefused(why)
        if call == "drill":
            if len(self._drilling) >= DRILLS_KEPT_MAX:
                self._drilling.clear()
            self._drilling[drills] = runtime.loop.time() + DRILL_KEPT_S

    async def identify(self, caller: Caller, address: str) -> dict[str, Any]:
        """Identifies a user of the administrator's interface.

        Args:
            caller: the identity that the sender claims.
            address: the sender's address, for the modules.

        Returns:
            `user`, and `admin`: the entries of the user's permissions for control calls, as
            (topic, whether it may be read); None: everything is allowed.

        Raises:
            ControlRefused: the caller is not let in, or that cannot be judged.
            ConfigurationError: a module cannot be used.
        """
        if self._runtime.config.admin is None:
            return {"user": "", "admin": None}
        self.open()
        found = await self._granted_in_time(caller, ROOT, address)
        if isinstance(found, str):
            self._runtime.report("control_refused", user=caller.user_id[:SHOWN_MAX], path=ROOT)
            raise ControlRefused(found)
        permissions = found.permissions
        return {
            "user": found.user,
            "admin": None
            if permissions is None
            else [(each.topic, each.read.is_whole) for each in permissions.admin],
        }

    @property
    def problem(self) -> str:
        """The problems of the modules' files, as a sentence for people; empty: there is none."""
        return "" if self._access_check is None else self._access_check.problem

    def keep_looking(self) -> None:
        """Has the modules' files read again, so that a broken file is reported before a call is
        refused because of it."""
        if self._access_check is not None:
            self._access_check.keep_looking()

    def forget(self, user: str = "") -> None:
        """Forgets the permissions kept for drills, and those that `follow` was called for: from now
        on they are judged anew, too.

        Args:
            user: the user whose permissions have changed; empty: those of all.
        """
        self._drilling.clear()
        for each in self._followers:
            each(user)

    def follow(self, forget: Callable[[str], None]) -> None:
        """Has a function called, with the user or an empty text, when permissions are reset."""
        self._followers.append(forget)

    def _is_own(self, caller: Caller) -> bool:
        """Returns whether the caller proves to be a process of the fabric, which stops its
        instances."""
        key = self._runtime.config.fabric_key
        return bool(key) and compare_digest(caller.fabric_key.encode(), key.encode())

    async def _judged_in_time(self, caller: Caller, path: str) -> tuple[str, str]:
        """Returns the caller's name as the modules know it, and the reason of a refusal; empty: the
        call is allowed."""
        found = await self._granted_in_time(caller, path)
        if isinstance(found, str):
            return caller.user_id, found
        return found.user, refusal(found.permissions, found.user, path, self._runtime.config.name)

    async def _granted_in_time(
        self, caller: Caller, path: str, address: str = ""
    ) -> AccessGranted | str:
        """Asks the modules as `_granted` does; refuses a call that is not judged in time."""
        try:
            async with asyncio.timeout(JUDGED_S_MAX):
                return await self._granted(caller, path, address)
        except TimeoutError:
            return (
                f"{self._runtime.config.name} refuses {path}: its modules have not answered within "
                f"{JUDGED_S_MAX:g} s; nothing was changed. See whether the server or the disk that "
                "they ask answers, and try again"
            )

    async def _granted(self, caller: Caller, path: str, address: str) -> AccessGranted | str:
        """Returns the caller's identity and permissions, or the reason why the caller is not let
        in."""
        name, access_check = self._runtime.config.name, self._access_check
        if access_check is None:
            return AccessGranted(caller.user_id, None)
        if _bytes(caller.user_id) > USER_BYTES_MAX or _bytes(caller.password) > PASSWORD_BYTES_MAX:
            return (
                f"{name} refuses {path}: a user id has up to {USER_BYTES_MAX} bytes and a password "
                f"or token up to {PASSWORD_BYTES_MAX}; nothing was changed"
            )
        found = await access_check.ask(
            Credentials(
                "",
                caller.user_id,
                caller.password,
                address=address,
                transport=TRANSPORT,
                is_control=True,
            )
        )
        if isinstance(found, LogonDenied):
            busy = f"{name} refuses {path}: {BUSY[1]}; nothing was changed"
            return busy if found.is_busy else not_let_in(caller.user_id, path, name)
        if isinstance(found, Challenge):
            return (
                f"{name} refuses {path}: its module answers by a challenge, which control calls "
                "cannot meet; nothing was changed. Give `admin` an authentication of its own"
            )
        return found


def _told(details: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(each)[:SHOWN_MAX] for key, each in details.items() if key in TOLD}


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
