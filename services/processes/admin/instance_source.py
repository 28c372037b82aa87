"""The interface by which the administrator's process asks its instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raylay.services.admin.resources import Snapshot
from raylay.services.security.control import Caller
from raylay.services.security.permissions import Permissions


class InstanceSource(Protocol):
    """See the file's docstring. Every method raises FabricError where the instance is away."""

    async def snapshot(self) -> Snapshot:
        """Returns the instance's values now."""

    async def status(self, events_after: int | None) -> dict[str, Any]:
        """Returns the instance's own status, as `raylay status` shows it, with the `events` behind
        a number; None: without events."""

    async def identify(self, caller: Caller, address: str) -> tuple[str, Permissions | None]:
        """Returns the user's name and permissions; None: everything is allowed.

        Raises:
            ControlRefused: this caller is not let in.
        """

    async def perform(self, call: str, caller: Caller, arguments: Mapping[str, Any]) -> Any:
        """Has the instance authorize and perform a control call; returns its result.

        Args:
            arguments: the names in the call's path, and its options.

        Raises:
            ControlRefused: the caller may not make this call.
            ConfigurationError: there is nothing of that name.
            RaylayError: it could not be done.
        """
