"""A running fabric made what a new declaration says, and started anew one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from raylay.services.configuration.model import (
    FabricSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.nodes import labelled, placed
from raylay.services.fabric.open_transports import check_open
from raylay.services.fabric.plan import (
    FabricChanges,
    bring_up_to_date,
    changes,
)
from raylay.services.fabric.ray_access import (
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    living_nodes,
)
from raylay.services.fabric.relocation import with_moves


@dataclass(slots=True)
class Progress:
    """The instances that an `apply` has done so far, and those that are left: they run as before,
    or not yet."""

    started: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Describes the progress for who ends it in the middle."""
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


class Apply(InstanceHandles):
    """Changes that go from instance to instance while clients go on."""

    def apply(
        self,
        declared: FabricHandle | FabricSettings,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        progress: Progress | None = None,
    ) -> FabricChanges:
        """Makes this running fabric what a new declaration of it says: starts the instances that
        are new, then restarts those whose configuration changes and no others, one after the other,
        each when the links between those that are done have caught up again. Clients and what they
        publish go on meanwhile. A new member of a group that was there before first catches up with
        it. Returns what was done.

        Args:
            timeout_s: for each instance.
            progress: filled while it goes on, for who is interrupted.

        Raises:
            ConfigurationError: the declaration is wrong; nothing is changed.
            FabricError: an instance would go, its data would lie elsewhere, or one refuses (nothing
                is changed); or an instance did not come back: those behind it run as before, and
                the same call goes on with them.
        """
        settings = declared.declared if isinstance(declared, FabricHandle) else declared
        self._refresh()
        before, record = self._known()
        wanted = replace(record)
        settings = with_moves(settings, record.moves, record.nodes)
        if record.node_label:
            settings = labelled(settings, record.node_label)
        if record.nodes:
            settings, wanted.nodes = placed(settings, record.nodes, living_nodes())
        bring_up_to_date(wanted, settings)
        check_open(settings, wanted)
        found = changes(record, wanted)
        unlaunched = [name for name in found.started if self._handle(name) is None]
        self._check_ports(settings, wanted, unlaunched)
        self._check_tls(settings, wanted, [*found.started, *found.restarted])
        running = [each.name for each in before.instances if each.name not in unlaunched]
        self.authorize(running, "apply")
        # They still run with what they were started with.
        said = {name: self._said_to(name) for name in running}
        caught_up = {
            (status["name"], name)
            for status in self.status()["instances"]
            for name, destination in status.get("destinations", {}).items()
            if destination.get("caught_up")
        }
        groups = set(before.groups())
        joining = [each for each in found.started if settings.instance(each).group in groups]
        self._settings, self._record = settings, wanted
        progress = progress or Progress()
        progress.left[:] = [*found.started, *found.restarted]

        def done(name: str, where: list[str]) -> None:
            progress.left.remove(name)
            where.append(name)

        wanted.starting, wanted.restarting = list(found.started), list(found.restarted)
        wanted.settled = [*dict.fromkeys([*record.settled, *joining])]
        self._keep(wanted)
        for name in unlaunched:
            self._launch(settings.instance(name))
        for name in found.started:
            if name not in joining:
                self.wait_ready(name, timeout_s)
                done(name, progress.started)
        kept = [
            (instance.name, destination.name, {instance.name, *destination.to})
            for instance, destination in settings.links()
            if (instance.name, destination.name) in caught_up
        ]
        for name in found.restarted:
            self._restart(name, timeout_s, said=said.get(name), call="apply")
            wanted.restarting.remove(name)
            self._keep(wanted)
            done(name, progress.restarted)
            # With one that still runs as before, a check at connect may rightly refuse.
            pending = set(wanted.restarting)
            self.wait_connected(timeout_s, only=[k[:2] for k in kept if not k[2] & pending])
        for name in joining:
            # Only now does its group know of it.
            self.wait_ready(name, timeout_s)
            done(name, progress.started)
        wanted.starting = []
        self._settle()
        # One that an interrupted apply had started before was running.
        progress.started[:] = unlaunched
        return FabricChanges(tuple(unlaunched), found.restarted)

    def _settle(self) -> None:
        """Notes that from now on an empty data directory is a lost disk."""
        settings, record = self._known()
        record.settled = [instance.name for instance in settings.instances]
        self._keep(record)
        for instance in settings.instances:
            self._write_config(instance)

    def rolling_restart(
        self,
        names: Iterable[str] = (),
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        done: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Restarts instances one after the other, each when every link has caught up behind the one
        before: so a release that was installed meanwhile comes into use, while clients go on. Those
        that are named and not ready go first: links that wait for them are no reason to refuse.

        Args:
            names: in this order; empty: all, as declared.
            timeout_s: for each.
            done: told each that is back.

        Raises:
            ConfigurationError: there is no such instance; nothing was restarted.
            FabricError: links had not caught up, before the first one or behind another: those that
                follow run as before; or the host of one is away, or one refuses: then nothing was
                restarted.
        """
        named = list(names)
        for name in named:
            self.declared.instance(name)
        wanted = named or [instance.name for instance in self.declared.instances]
        self.authorize(wanted, "restart")
        down = [status["name"] for status in self._statuses(named) if not status["ready"]]
        for name in down:
            away = self._host_away(name)
            if away:
                raise FabricError(f"instance {name} is not restarted: {away}: start that first")
            self._restart(name, timeout_s, said=self._said_to(name))
            self.wait_connected(timeout_s, only=self._links_between_ready(name))
            done(name)
        wanted = [name for name in wanted if name not in down]
        if not wanted:
            return
        self.wait_connected(STATUS_TIMEOUT_S)
        for name in wanted:
            self._restart(name, timeout_s, said=self._said_to(name))
            self.wait_connected(timeout_s)
            done(name)

    def _links_between_ready(self, name: str) -> list[tuple[str, str]]:
        """(instance, destination) of the links from and to an instance whose other side is ready,
        too: the rest cannot catch up now."""
        settings, _ = self._known()
        statuses = self._statuses([each.name for each in settings.instances])
        ready = {status["name"] for status in statuses if status["ready"]}
        ends = [(each, to, {each.name, *to.to}) for each, to in settings.links()]
        return [(each.name, to.name) for each, to, both in ends if name in both and both <= ready]
