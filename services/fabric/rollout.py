"""A running fabric made what a new declaration says, and started anew one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from raylay.services.fabric.handle import FabricHandle, ignore_progress
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.maintenance import FabricMaintenance
from raylay.services.fabric.plan import (
    FabricChanges,
    FabricRecord,
    bring_up_to_date,
    changes,
    config_digest,
    instance_config,
)
from raylay.services.fabric.planned_stop import links_between
from raylay.services.fabric.relocation import with_moves


@dataclass(slots=True)
class Progress:
    """The instances that an `apply` or a rolling restart has done so far, and those that are left:
    they run as before, or not yet.

    Attributes:
        tell: called with a few words at each step that takes long.
        on_restart: called with the name of each instance that a rolling restart has brought back.
    """

    started: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    tell: Callable[[str], None] = ignore_progress
    on_restart: Callable[[str], None] = ignore_progress

    def line(self) -> str:
        """Describes the progress, for a user who interrupts it."""
        if not (self.started or self.restarted or self.removed or self.left):
            return "nothing was changed"
        told = "; ".join(
            f"{what}: {', '.join(names) or 'none'}"
            for what, names in (
                ("started", self.started),
                ("restarted", self.restarted),
                *((("removed", self.removed),) if self.removed else ()),
                ("left", self.left),
            )
        )
        return f"{told}; the same command again goes on with what is left" if self.left else told

    def restart_line(self) -> str:
        """Describes the progress of a rolling restart, for a user who interrupts it."""
        if not (self.restarted or self.left):
            return "nothing was restarted"
        told = f"restarted: {', '.join(self.restarted) or 'none'}"
        if not self.left:
            return told
        left = ", ".join(self.left)
        return f"{told}; left: {left}: `raylay restart {' '.join(self.left)}` goes on with them"


class Rollout:
    """Changes that go from instance to instance while clients go on.

    Args:
        handle: the fabric's.
        control: asks whether the change is allowed.
        instances: handles of the fabric's instances.
        maintenance: stops the instances that are removed.
    """

    def __init__(
        self,
        handle: FabricHandle,
        control: ControlClient,
        instances: InstanceHandles,
        maintenance: FabricMaintenance,
    ) -> None:
        self._handle = handle
        self._control = control
        self._instances = instances
        self._maintenance = maintenance

    def apply(
        self,
        settings: FabricSettings,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> FabricChanges:
        """Makes the running fabric what new settings of it say, as `Fabric.apply` does."""
        handle, instances = self._handle, self._instances
        progress = progress or Progress()
        handle.refresh()
        before, _ = handle.known()
        wanted_settings, wanted, found = self._planned(settings)
        unlaunched = [name for name in found.started if handle.actor(name) is None]
        instances.check_ports(wanted_settings, wanted, unlaunched)
        instances.check_tls(wanted_settings, wanted, [*found.started, *found.restarted])
        # Nobody has a message of one that Ray has never started, and it cannot be asked.
        unused = [name for name in found.removed if instances.is_unused(name)]
        silent = {*unlaunched, *unused}
        running = [each.name for each in before.instances if each.name not in silent]
        self._control.authorize(running, "apply")
        leaving = [name for name in found.removed if name not in unused]
        to_stop = self._check_removal(leaving, force=force)
        if dry_run:
            return replace(found, started=tuple(unlaunched))
        # They still run with what they were started with.
        callers = {name: self._control.caller_for(name) for name in running}
        progress.left[:] = [*found.removed, *found.started, *found.restarted]
        for name in unused:
            progress.tell(f"ending {name}, which has never run")
            instances.end(name)
        for name in to_stop:
            self._maintenance.stop(name, force=force, leaving=found.removed, progress=progress.tell)
        if to_stop:
            wanted_settings, wanted, found = self._planned(settings)
        settings, former = wanted_settings, handle.known()
        caught_up = {
            (status["name"], name)
            for status in instances.status()["instances"]
            for name, destination in status.get("destinations", {}).items()
            if destination.get("caught_up")
        }
        groups = set(before.groups())
        joining = [each for each in found.started if settings.instance(each).group in groups]
        handle.settings, handle.record = settings, wanted

        def done(name: str, where: list[str]) -> None:
            progress.left.remove(name)
            where.append(name)

        runs_with = {
            name: config_digest(instance_config(former[0], former[1], former[0].instance(name)))
            for name in found.restarted
        }
        wanted.starting = list(found.started)
        # An instance that an interrupted apply did not restart still has its former configuration.
        wanted.restarting = runs_with | {
            name: former[1].restarting[name]
            for name in found.restarted
            if name in former[1].restarting
        }
        wanted.settled = [*dict.fromkeys([*former[1].settled, *joining])]
        for kept in (wanted.stopped, wanted.drained, wanted.settled):
            kept[:] = [name for name in kept if name not in found.removed]
        handle.keep(wanted)
        for name in found.removed:
            done(name, progress.removed)
        self._begin(found.started, unlaunched, timeout_s, progress, former)
        for name in found.started:
            if name not in joining:
                instances.wait_ready(name, timeout_s)
                done(name, progress.started)
        links = [
            (instance.name, destination.name, {instance.name, *destination.to})
            for instance, destination in settings.links()
            if (instance.name, destination.name) in caught_up
        ]
        for name in found.restarted:
            progress.tell(f"restarting {name}")
            instances.restart(name, timeout_s, caller=callers.get(name), call="apply")
            del wanted.restarting[name]
            handle.keep(wanted)
            done(name, progress.restarted)
            # A link to an instance that still runs as before may be refused at connect, rightly.
            pending = set(wanted.restarting)
            instances.wait_connected(
                timeout_s, only=[each[:2] for each in links if not each[2] & pending]
            )
        for name in joining:
            progress.tell(f"waiting until {name} has caught up")
            # The instances of its group know of it since their restart, so it can become ready.
            instances.wait_ready(name, timeout_s)
            done(name, progress.started)
        wanted.starting = []
        instances.settle()
        # One that an interrupted apply had started before was running.
        progress.started[:] = unlaunched
        return replace(found, started=tuple(unlaunched))

    def _begin(
        self,
        started: Sequence[str],
        unlaunched: Sequence[str],
        timeout_s: float,
        progress: Progress,
        former: tuple[FabricSettings, FabricRecord],
    ) -> None:
        """Launches new instances, and waits until each has a process that answers: where Ray does
        not start one now, it might not start one for an instance that is restarted, either. Where
        one has none, takes all back.

        Args:
            former: settings and record of the fabric without them.

        Raises:
            FabricError: one has none within `timeout_s`.
        """
        handle, instances = self._handle, self._instances
        settings, record = handle.known()
        try:
            for name in unlaunched:
                progress.tell(f"starting {name}")
                instances.launch(settings.instance(name))
            for name in started:
                instances.wait_running(name, timeout_s)
        except BaseException as error:
            for name in unlaunched:
                instances.end(name)
            handle.settings = former[0]
            handle.keep(replace(former[1], number=record.number))
            progress.left.clear()
            progress.removed.clear()
            if isinstance(error, FabricError):
                raise FabricError(
                    f"{error}. No instance was restarted, and the fabric is as it was: apply the "
                    "file again when the reason is mended"
                ) from None
            raise

    def _planned(
        self, settings: FabricSettings
    ) -> tuple[FabricSettings, FabricRecord, FabricChanges]:
        """Returns the settings with the places of the instances, the record with them, and the
        changes that they mean for the running fabric. Changes nothing."""
        _, record = self._handle.known()
        wanted = replace(
            record, stopped=[*record.stopped], drained=[*record.drained], settled=[*record.settled]
        )
        settings = with_moves(settings, record.moves, record.nodes)
        if record.node_label:
            settings = labelled(settings, record.node_label)
        if record.nodes:
            settings, wanted.nodes = placed(settings, record.nodes, living_nodes())
        bring_up_to_date(wanted, settings)
        check_open(settings, wanted)
        return settings, wanted, changes(record, wanted)

    def _check_removal(self, names: Sequence[str], *, force: bool) -> list[str]:
        """Checks whether these instances may be removed, and returns those that are to be stopped
        before.

        Raises:
            FabricError: the others may lack messages of one.
        """
        record = self._handle.known()[1]
        to_stop: list[str] = []
        for name in names:
            if name not in record.stopped or self._handle.actor(name) is not None:
                self._maintenance.check(name, force=force, leaving=names, gone=to_stop)
                to_stop.append(name)
            elif name not in record.drained and not force:
                raise FabricError(
                    f"instance {name} is stopped, and not removed: other instances may lack "
                    f"messages that it has: `raylay start {name}`, and apply the file again; with "
                    "--force it is removed all the same"
                )
        return to_stop

    def restart(
        self,
        names: Iterable[str] = (),
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Restarts instances one after the other, as `Fabric.rolling_restart` does."""
        handle, instances = self._handle, self._instances
        progress = progress or Progress()
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
        progress.left[:] = [*down, *(name for name in wanted if name not in down)]

        def done(name: str) -> None:
            progress.left.remove(name)
            progress.restarted.append(name)
            progress.on_restart(name)

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
