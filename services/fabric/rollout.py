"""A running fabric made what a new declaration says, and started anew one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from raylay.services.configuration.model import (
    FabricSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric.checks.open_transports import check_open
from raylay.services.fabric.cluster.nodes import labelled, placed
from raylay.services.fabric.cluster.ray_access import (
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    living_nodes,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.plan import (
    FabricChanges,
    bring_up_to_date,
    changes,
)
from raylay.services.fabric.planned_stop import links_between
from raylay.services.fabric.relocation import with_moves


@dataclass(slots=True)
class Progress:
    """The instances that an `apply` has done so far, and those that are left: they run as before,
    or not yet."""

    started: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Describes the progress, for a user who interrupts it."""
        if not (self.started or self.restarted or self.left):
            return "nothing was changed"
        told = "; ".join(
            f"{what}: {', '.join(names) or 'none'}"
            for what, names in (
                ("started", self.started),
                ("restarted", self.restarted),
                ("left", self.left),
            )
        )
        return f"{told}; the same command again goes on with what is left" if self.left else told


class Rollout:
    """Changes that go from instance to instance while clients go on.

    Args:
        handle: the fabric's.
        control: asks whether the change is allowed.
        instances: handles of the fabric's instances.
    """

    def __init__(
        self, handle: FabricHandle, control: ControlClient, instances: InstanceHandles
    ) -> None:
        self._handle = handle
        self._control = control
        self._instances = instances

    def apply(
        self,
        settings: FabricSettings,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        progress: Progress | None = None,
    ) -> FabricChanges:
        """Makes the running fabric what new settings of it say, as `Fabric.apply` does."""
        handle, instances = self._handle, self._instances
        handle.refresh()
        before, record = handle.known()
        wanted = replace(record)
        settings = with_moves(settings, record.moves, record.nodes)
        if record.node_label:
            settings = labelled(settings, record.node_label)
        if record.nodes:
            settings, wanted.nodes = placed(settings, record.nodes, living_nodes())
        bring_up_to_date(wanted, settings)
        check_open(settings, wanted)
        found = changes(record, wanted)
        unlaunched = [name for name in found.started if handle.actor(name) is None]
        instances.check_ports(settings, wanted, unlaunched)
        instances.check_tls(settings, wanted, [*found.started, *found.restarted])
        running = [each.name for each in before.instances if each.name not in unlaunched]
        self._control.authorize(running, "apply")
        # They still run with what they were started with.
        callers = {name: self._control.caller_for(name) for name in running}
        caught_up = {
            (status["name"], name)
            for status in instances.status()["instances"]
            for name, destination in status.get("destinations", {}).items()
            if destination.get("caught_up")
        }
        groups = set(before.groups())
        joining = [each for each in found.started if settings.instance(each).group in groups]
        handle.settings, handle.record = settings, wanted
        progress = progress or Progress()
        progress.left[:] = [*found.started, *found.restarted]

        def done(name: str, where: list[str]) -> None:
            progress.left.remove(name)
            where.append(name)

        wanted.starting, wanted.restarting = list(found.started), list(found.restarted)
        wanted.settled = [*dict.fromkeys([*record.settled, *joining])]
        handle.keep(wanted)
        for name in unlaunched:
            instances.launch(settings.instance(name))
        for name in found.started:
            if name not in joining:
                instances.wait_ready(name, timeout_s)
                done(name, progress.started)
        kept = [
            (instance.name, destination.name, {instance.name, *destination.to})
            for instance, destination in settings.links()
            if (instance.name, destination.name) in caught_up
        ]
        for name in found.restarted:
            instances.restart(name, timeout_s, caller=callers.get(name), call="apply")
            wanted.restarting.remove(name)
            handle.keep(wanted)
            done(name, progress.restarted)
            # With one that still runs as before, a check at connect may rightly refuse.
            pending = set(wanted.restarting)
            instances.wait_connected(timeout_s, only=[k[:2] for k in kept if not k[2] & pending])
        for name in joining:
            # Only now does its group know of it.
            instances.wait_ready(name, timeout_s)
            done(name, progress.started)
        wanted.starting = []
        instances.settle()
        # One that an interrupted apply had started before was running.
        progress.started[:] = unlaunched
        return FabricChanges(tuple(unlaunched), found.restarted)

    def restart(
        self,
        names: Iterable[str] = (),
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        done: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Restarts instances one after the other, as `Fabric.rolling_restart` does."""
        handle, instances = self._handle, self._instances
        named = list(names)
        for name in named:
            handle.declared.instance(name)
        stopped = handle.known()[1].stopped
        resting = [name for name in named if name in stopped]
        if resting:
            raise FabricError(
                f"{', '.join(resting)}: stopped, so nothing was restarted: `raylay start "
                f"{resting[0]}` starts it with the release that is installed"
            )
        wanted = named or [
            instance.name for instance in handle.declared.instances if instance.name not in stopped
        ]
        self._control.authorize(wanted, "restart")
        down = [status["name"] for status in instances.statuses(named) if not status["ready"]]
        for name in down:
            away = instances.host_away(name)
            if away:
                raise FabricError(f"instance {name} is not restarted: {away}: start that first")
            instances.restart(name, timeout_s, caller=self._control.caller_for(name))
            instances.wait_connected(timeout_s, only=self._links_between_ready(name))
            done(name)
        wanted = [name for name in wanted if name not in down]
        if not wanted:
            return
        instances.wait_connected(STATUS_TIMEOUT_S)
        for name in wanted:
            instances.restart(name, timeout_s, caller=self._control.caller_for(name))
            instances.wait_connected(timeout_s)
            done(name)

    def _links_between_ready(self, name: str) -> list[tuple[str, str]]:
        """Returns (instance, destination) of the links from and to an instance whose other side is
        ready, too: the others cannot catch up now."""
        settings, _ = self._handle.known()
        statuses = self._instances.statuses([each.name for each in settings.instances])
        ready = {status["name"] for status in statuses if status["ready"]}
        return links_between(settings, name, ready)
