"""The identity of a fabric's remote control, and the requests by which instances authorize calls
and moves from outside.

An instance with `admin` judges every call itself (services/server/control.py). What is done to it
by other means, a kill or a move, is asked for first, at all that are concerned: one that refuses
keeps it from all. One that does not run, or hangs, cannot be asked: to start or end it must be
possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylay.services.client.credentials import credentials
from raylay.services.errors import ConfigurationError, ControlRefused, FabricError
from raylay.services.fabric.cluster.ray_access import (
    STATUS_TIMEOUT_S,
    STOP_TIMEOUT_S_DEFAULT,
    HeadSilent,
    actor_state,
    first_line,
    ray_module,
)
from raylay.services.fabric.handle import FabricHandle
from raylay.services.security.control import Caller

JUDGED_TIMEOUT_S = 15.0
"""Timeout for calls about which an instance asks a module first: a server of permissions has 7
s."""


class ControlClient:
    """Calls the instances of a fabric in the name of one user.

    Args:
        handle: the fabric's.
    """

    def __init__(self, handle: FabricHandle) -> None:
        self._handle = handle
        self._user: Caller | None = None

    def act_as(self, user_id: str, password: str = "") -> None:
        """Makes calls as this user from now on, in place of the user that the environment names."""
        self._user = Caller(user_id, password)

    def authorize(self, names: Iterable[str], call: str, **details: Any) -> None:
        """Asks instances whether the user may have something done to them. Instances that have no
        `admin`, or cannot be asked now, are left out.

        Args:
            call: name of a call in `raylay.services.security.control.PATHS`.
            details: the names in its path.

        Raises:
            FabricError: some refuse, a line each.
            ConfigurationError: the user's name or password in the environment cannot be read.
        """
        ray = ray_module()
        asked: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            if not self.asks_for(name):
                continue
            caller, actor = self.caller_for(name), self._alive(name)
            if actor is not None:
                asked[name] = actor.authorize.remote(call, caller, details)
        if asked:
            ray.wait([*asked.values()], num_returns=len(asked), timeout=JUDGED_TIMEOUT_S)
        # One that answers by a failure of its own has not allowed it.
        refused = [text for ref in asked.values() if (text := refusal_of(ref, or_fails=True))]
        if refused:
            raise FabricError("\n".join(refused))

    def _alive(self, name: str) -> Any:
        """Returns the actor of an instance if the actor may answer; None: the instance has no
        actor, or the actor is not alive."""
        try:
            actor = self._handle.actor(name)
            if actor is None or actor_state(actor).get("state") != "ALIVE":
                return None
        except HeadSilent:
            # Whom this process has talked to before answers without a head.
            return self._handle.actors.get(name)
        return actor

    def asks_for(self, name: str) -> bool:
        """Returns whether the settings let an instance judge which users control it."""
        return name in self._handle.declared.controlled()

    def caller_for(self, name: str) -> Caller | None:
        """Returns the user's identity for an instance; None: the instance does not ask for an
        identity.

        Raises:
            ConfigurationError: the user's name or password in the environment cannot be read.
        """
        if self._user is not None or not self.asks_for(name):
            return self._user
        try:
            found = credentials()
        except ConfigurationError as error:
            raise ConfigurationError(f"to control {name}: {error}") from None
        return Caller(found.get("user_id", ""), found.get("password", ""))

    def call(self, actor: Any, name: str, call: str, **arguments: Any) -> Any:
        """Makes a control call, and returns Ray's reference to its answer.

        Args:
            call: name of the call in `raylay.services.server.control_calls.ControlCalls`.
            arguments: arguments of the call.
        """
        return actor.control.remote(call, arguments, self.caller_for(name))

    def stop(self, actor: Any, caller: Caller | None, call: str, **details: Any) -> Any:
        """Asks an instance to stop, and returns Ray's reference to its answer.

        Args:
            caller: identity of the user that stops the instance; None: none is asked for.
            call: name of the control call for which the instance stops.
        """
        return actor.stop.remote(call, details, caller)

    def stop_gracefully(self, actor: Any, caller: Caller | None, call: str, **details: Any) -> None:
        """Stops an instance as `stop` does, and waits for its end for a limited time.

        Raises:
            FabricError: it refuses.
        """
        ref = self.stop(actor, caller, call, **details)
        done, _ = ray_module().wait([ref], timeout=STOP_TIMEOUT_S_DEFAULT)
        if done:
            refused = refusal_of(ref)
            if refused:
                raise FabricError(refused)

    def control(
        self, name: str, call: str, what: str = "", timeout_s: float | None = None, **arguments: Any
    ) -> Any:
        """Makes a control call as `call` does, and returns its result.

        Args:
            what: the call, for people.
            timeout_s: None: as long as the instance needs where it asks a module first.

        Raises:
            FabricError: the instance does not run, does not answer in time, or refuses.
        """
        if timeout_s is None:
            timeout_s = JUDGED_TIMEOUT_S if self.asks_for(name) else STATUS_TIMEOUT_S
        actor = self._running(name)
        ref = self.call(actor, name, call, **arguments)
        return self._answer(ref, what or f"{call} of {name}", timeout_s)

    def ask(self, name: str, verb: str, *arguments: Any, timeout_s: float) -> Any:
        """Returns an instance's answer to a call that changes nothing, as `Fabric.ask` does."""
        ref = getattr(self._running(name), verb).remote(*arguments)
        return self._answer(ref, f"{verb} of {name}", timeout_s)

    def _running(self, name: str) -> Any:
        actor = self._handle.actor(name)
        if actor is None:
            raise FabricError(f"instance {name} does not run")
        return actor

    def _answer(self, ref: Any, what: str, timeout_s: float) -> Any:
        ray = ray_module()
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise FabricError(f"{what}: {first_line(error)}") from None


def refusal_of(ref: Any, *, or_fails: bool = False) -> str:
    """Returns why an instance refuses a call; empty: the instance does not refuse it, or cannot be
    asked now.

    Args:
        or_fails: whether any failure of the call counts as a refusal.
    """
    ray = ray_module()
    try:
        ray.get(ref, timeout=0)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if or_fails or isinstance(cause, ControlRefused | ConfigurationError):
            return first_line(error)
    except ray.exceptions.RayError:
        pass
    return ""
