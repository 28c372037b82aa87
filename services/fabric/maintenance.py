"""Single instances of a running fabric stopped and started again, on purpose and without a loss.

    fabric.maintenance.stop("NewYork-2")        # for the host's maintenance, say
    fabric.maintenance.start("NewYork-2")

A stop first closes the instance to clients, who fail over, and waits until its messages are at
others. Only then is it written down: up to that point the stop can be taken back. The record keeps
it: a stopped instance is not revived by Ray, `raylay restart` or `raylay watch`, and publishers at
the others do not wait for its acknowledgments, even if those others restart meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from raylay.services.config.transport import CLIENT_TRANSPORT
from raylay.services.errors import FabricError, RaylayError
from raylay.services.fabric.cluster.ray_access import (
    POLL_S,
    START_TIMEOUT_S_DEFAULT,
    STOP_TIMEOUT_S_DEFAULT,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.handle import FabricHandle, ignore_progress
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.plan import FabricRecord, data_directory
from raylay.services.fabric.planned_stop import (
    Link,
    PlannedStop,
    links_between,
    not_handed_over,
    plan_stop,
    queues_owned,
    waiting_links,
)

COUNTS_S = 1.5
"""Seconds after which the numbers of a queue's messages count everything that its instance had."""
DRAIN_TIMEOUT_S = 30.0
"""Seconds for which a stop waits until the messages of the instance are at other instances."""


@dataclass(frozen=True, slots=True)
class InstanceStop:
    """The result of a stop.

    Attributes:
        instance: name of the instance.
        directory: data directory of the instance, which is kept.
        was_stopped: whether it was stopped before, and nothing was done.
        downgraded: (instance, destination) of the links whose acks wait for it no more.
        untold: instances that could not be told, and learn of it when they restart.
        lacking: what other instances lack of its messages, a phrase each: only after a forced stop.
    """

    instance: str
    directory: str
    was_stopped: bool = False
    downgraded: tuple[Link, ...] = ()
    untold: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


class FabricMaintenance:
    """Stops and starts single instances of a fabric that runs (`Fabric.maintenance`).

    Args:
        handle: the handle of the fabric.
        control: asks whether the change is allowed, and makes the calls.
        instances: the handles of the fabric's instances.
    """

    def __init__(
        self, handle: FabricHandle, control: ControlClient, instances: InstanceHandles
    ) -> None:
        self._handle = handle
        self._control = control
        self._instances = instances

    # -- stopping ------------------------------------------------------------------------------
    def stop(
        self,
        name: str,
        *,
        force: bool = False,
        leaving: Collection[str] = (),
        timeout_s: float = DRAIN_TIMEOUT_S,
        progress: Callable[[str], None] = ignore_progress,
    ) -> InstanceStop:
        """Stops one instance gracefully, until `start`, or until the fabric is started again. Its
        clients fail over, its messages are at others before it ends, and acks at the others stop
        waiting for it. A second call does nothing.

        Args:
            name: name of the instance.
            force: whether to stop it even where other instances may lack messages that it has, or
                clients find no other instance of its group.
            leaving: instances that `Fabric.apply` removes, if this one is one of them: every
                destination must then have all of its messages, and no shared queue one that it
                owns. Empty: it stays.
            timeout_s: seconds for which its links may take to catch up.
            progress: called with a few words at each step.

        Returns:
            the links that were downgraded, and where the data stays.

        Raises:
            ConfigurationError: there is no such instance.
            FabricError: it is not stopped, and why; nothing was changed.
        """
        handle, instances = self._handle, self._instances
        handle.refresh()
        settings, record = handle.known()
        directory = str(data_directory(record, settings.instance(name)))
        if name in record.stopped and handle.actor(name) is None:
            return InstanceStop(name, directory, was_stopped=True)
        if name in record.starting and not leaving:
            raise FabricError(
                f"instance {name} is not stopped: it is being started, and `raylay apply` "
                "completes that"
            )
        planned, transports = self.check(name, force=force, leaving=leaving)
        caller = self._control.caller_for(name)
        try:
            progress(f"closing {name} to clients")
            self._switch(name, "disable_transport", transports, tolerant=force)
            wait_s = timeout_s if planned.is_ready else 0.0
            lacking, last_txid = self._hand_over(name, leaving, wait_s, progress)
            if lacking and not force:
                raise FabricError(replace(planned, against=tuple(lacking)).refusal())
            _note(
                record, name, is_drained=not lacking and self._is_drained(name, leaving, last_txid)
            )
            handle.keep(record)
        except BaseException:
            _forget(record, name)
            self._switch(name, "enable_transport", transports, tolerant=True)
            raise
        progress(f"stopping {name}")
        untold = self._tell(planned.downgrades, "downgrade", force=True)
        instances.end_gracefully(name, caller, "stop", STOP_TIMEOUT_S_DEFAULT)
        return InstanceStop(
            name,
            directory,
            downgraded=planned.downgrades,
            untold=tuple(untold),
            lacking=tuple(lacking),
        )

    def check(
        self,
        name: str,
        *,
        force: bool = False,
        leaving: Collection[str] = (),
        gone: Collection[str] = (),
    ) -> tuple[PlannedStop, list[str]]:
        """Checks whether an instance may be stopped, and changes nothing.

        Args:
            force, leaving: as in `stop`.
            gone: instances that are stopped before it.

        Returns:
            the plan, and the names of the transports that are open to its clients.

        Raises:
            ConfigurationError: there is no such instance.
            FabricError: it may not be stopped, and why.
        """
        settings, record = self._handle.known()
        statuses = self._instances.statuses([each.name for each in settings.instances])
        planned = plan_stop(settings, name, [*record.stopped, *gone], statuses, leaving)
        if planned.against and not force:
            raise FabricError(planned.refusal())
        self._control.authorize([name], "stop")
        for peer, destination in planned.downgrades:
            self._control.authorize([peer], "downgrade", destination=destination)
        mine = next(each for each in statuses if each["name"] == name)
        transports = [each["name"] for each in _client_transports(mine)]
        for transport in transports:
            self._control.authorize([name], "disable_transport", transport=transport)
        return planned, transports

    def _hand_over(
        self,
        name: str,
        leaving: Collection[str],
        timeout_s: float,
        progress: Callable[[str], None],
    ) -> tuple[list[str], int]:
        """Waits until other instances have the messages of one that has been closed to clients.
        Returns what they still lack after that time, and the last transaction id of its log when it
        was closed."""
        deadline_s = time.monotonic() + timeout_s
        closed = self._instances.statuses([name])[0]
        up_to_txid = max(0, int(closed.get("next_txid", 0)) - 1)
        while True:
            lacking = self._lacking(name, leaving, up_to_txid)
            if not lacking and leaving:
                # Its queues count a moment later what came last.
                time.sleep(COUNTS_S)
                lacking = self._lacking(name, leaving, up_to_txid)
            if not lacking or time.monotonic() >= deadline_s:
                return lacking, up_to_txid
            progress(f"{name}: {lacking[0]}")
            time.sleep(POLL_S)

    def _is_drained(self, name: str, leaving: Collection[str], up_to_txid: int) -> bool:
        """Returns whether every other instance has everything of one that has been closed."""
        if not leaving:
            settings, _ = self._handle.known()
            if settings.queues_of(settings.instance(name)):
                time.sleep(COUNTS_S)
        return not self._lacking(name, leaving or [name], up_to_txid)

    def _lacking(self, name: str, leaving: Collection[str], up_to_txid: int) -> list[str]:
        """Returns what others lack of an instance now, a phrase each."""
        settings, record = self._handle.known()
        status = self._instances.statuses([name])[0]
        if not status.get("ready"):
            why = status.get("reason") or status.get("phase")
            return [f"it cannot be asked what the others lack of it: {why}"]
        lacking = not_handed_over(
            settings, name, record.stopped, status, leaving, up_to_txid=up_to_txid
        )
        return [*lacking, *(queues_owned(settings, name, status) if leaving else ())]

    def _switch(self, name: str, call: str, transports: Iterable[str], *, tolerant: bool) -> None:
        for transport in transports:
            try:
                self._control.control(
                    name, call, f"{call} {transport} of {name}", transport=transport
                )
            except RaylayError:
                if not tolerant:
                    raise

    def _tell(self, links: Iterable[Link], call: str, **options: bool) -> list[str]:
        """Downgrades or upgrades links, in their instances' configuration and at once. Returns the
        instances that could not be told."""
        settings, record = self._handle.known()
        untold: list[str] = []
        for instance in settings.instances:
            if instance.name in record.stopped:
                continue
            try:
                # Their interfaces show it, and a restart begins with it.
                self._instances.write_config(instance)
                for name, destination in links:
                    if name == instance.name:
                        what = f"{call} of {destination} at {name}"
                        self._control.control(name, call, what, destination=destination, **options)
            except FabricError:
                untold.append(instance.name)
        return untold

    # -- starting ------------------------------------------------------------------------------
    def start(
        self,
        name: str,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        progress: Callable[[str], None] = ignore_progress,
    ) -> list[str]:
        """Starts an instance that was stopped, and returns when it admits clients, its links have
        caught up, and acks at the others wait for it again.

        Args:
            name: name of the instance.
            timeout_s: seconds that each step may take.
            progress: called with a few words at each step.

        Returns:
            the instances that could not be told: they wait for its acks after a restart.

        Raises:
            ConfigurationError: there is no such instance.
            FabricError: it was not stopped by `stop`, or did not become ready or catch up in time;
                the same call goes on with it.
        """
        handle, instances = self._handle, self._instances
        handle.refresh()
        settings, record = handle.known()
        instance = settings.instance(name)
        if name not in record.stopped:
            raise FabricError(
                f"instance {name} was not stopped by `raylay stop`: `raylay restart {name}` starts "
                "one that is down"
            )
        if handle.actor(name) is None and (away := instances.host_away(name)):
            raise FabricError(
                f"instance {name} is not started: {away}: start that first, or if it is lost, "
                f"`raylay relocate {name}`"
            )
        upgrades = waiting_links(settings, name, record.stopped)
        for peer, destination in upgrades:
            self._control.authorize([peer], "upgrade", destination=destination)
        instances.renew_addresses()
        progress(f"starting {name}")
        if handle.actor(name) is None:
            instances.check_ports(settings, record, [name])
            instances.check_tls(settings, record, [name])
            instances.launch(instance)
        instances.wait_ready(name, timeout_s)
        # A stop that was interrupted may have closed it.
        closed = _client_transports(instances.statuses([name])[0], enabled=False)
        self._switch(name, "enable_transport", [each["name"] for each in closed], tolerant=False)
        statuses = instances.statuses([each.name for each in settings.instances])
        ready = [each["name"] for each in statuses if each["ready"]]
        instances.wait_connected(
            timeout_s, only=links_between(settings, name, ready), progress=progress
        )
        settings, record = handle.known()
        _forget(record, name)
        handle.keep(record)
        return self._tell(upgrades, "upgrade")


def _note(record: FabricRecord, name: str, *, is_drained: bool) -> None:
    _forget(record, name)
    record.stopped = [*record.stopped, name]
    if is_drained:
        record.drained = [*record.drained, name]


def _forget(record: FabricRecord, name: str) -> None:
    record.stopped = [each for each in record.stopped if each != name]
    record.drained = [each for each in record.drained if each != name]


def _client_transports(status: dict[str, Any], *, enabled: bool = True) -> list[dict[str, Any]]:
    """Returns the transports for clients of an instance that are enabled, or those that are not."""
    return [
        each
        for each in status.get("transports", ())
        if each.get("kind") == CLIENT_TRANSPORT and bool(each.get("enabled")) is enabled
    ]
