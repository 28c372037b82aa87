"""Instances moved to another node when their host is lost, and what they leave there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylay.services.configuration.model import (
    InstanceSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric import relocation
from raylay.services.fabric.cluster.nodes import NodePlace
from raylay.services.fabric.cluster.ray_access import (
    POLL_S,
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    HeadSilent,
    dead_nodes,
    living_nodes,
    ray_module,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.plan import (
    addresses_of,
    bring_up_to_date,
    data_directory,
    replication_address,
)
from raylay.services.fabric.planned_stop import waiting_links
from raylay.services.fabric.records.record import OrphanedDirectory, RecordedMove
from raylay.services.fabric.relocation import Relocation, incarnation_of, with_moves


class Relocator:
    """Moves instances to other nodes; relocation.py decides which moves are allowed.

    Args:
        handle: the handle of the fabric.
        control: asks whether a move is allowed.
        instances: the handles of the fabric's instances.
    """

    def __init__(
        self, handle: FabricHandle, control: ControlClient, instances: InstanceHandles
    ) -> None:
        self._handle = handle
        self._control = control
        self._instances = instances

    def relocate(
        self,
        name: str,
        to: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        moved: Callable[[Relocation], None],
    ) -> Relocation:
        """Moves an instance whose host is lost, as `Fabric.relocate` does."""
        self._handle.refresh()
        settings, record = self._handle.known()
        instance = settings.instance(name)
        if name in record.stopped and not self._instances.host_away(name):
            raise FabricError(
                f"instance {name} is stopped, and not moved: `raylay start {name}` starts it"
            )
        upgrades = waiting_links(settings, name, record.stopped) if name in record.stopped else ()
        statuses = self._instances.statuses([each.name for each in settings.instances])
        alive = relocation.seen_alive(name, statuses)
        filled_by = relocation.sources(settings, name, statuses)
        refused = relocation.refusal(name, alive, filled_by, force=force)
        moved_us = max((each.at_us for each in record.left_over if each.name == name), default=0)
        refused = refused or relocation.too_soon(name, moved_us, time.time_ns() // 1000, force)
        if refused:
            raise FabricError(refused)
        # It too, where it lives: it is ended then.
        self._authorize_all("place", name)
        place = relocation.choose(settings, record.nodes, living_nodes(), name, to or {})
        risk = relocation.risk(settings, name, bool(alive))
        mine = next(status for status in statuses if status["name"] == name)
        # Written down first: of two who move it at once, one is refused before anything is ended.
        left_over = self._move(instance, place, filled_by, statuses, mine.get("incarnation", ""))
        self._end_for_good(name, timeout_s)
        move = self._handle.known()[1].moves[name]
        done = Relocation(name, move.generation, place, risk, left_over)
        self._tell_moved(done)
        moved(done)
        self._launch_again(self._handle.known()[0].instance(name), timeout_s)
        self._instances.wait_ready(name, timeout_s)
        for told in done.told:
            # Each node knows the fabric by name, and each directory its peers, for a restart.
            self._instances.write_config(self._handle.known()[0].instance(told))
        for peer, destination in upgrades:
            # It is not stopped any more. One that cannot be told begins with it at its restart.
            with suppress(FabricError):
                self._control.control(peer, "upgrade", destination=destination)
        return done

    def relocate_due(self, moved: Callable[[Relocation], None]) -> list[Relocation]:
        """Moves the instances whose host is away for long, as `Fabric.relocate_due` does."""
        self._handle.refresh()
        settings, record = self._handle.known()
        living, dead = living_nodes(), dead_nodes()
        gone_ms = {
            name: relocation.gone_since_ms(place, living, dead)
            for name, place in record.nodes.items()
            if name not in record.stopped
        }
        now_ms = time.time_ns() // 1_000_000
        names = relocation.due(gone_ms, now_ms, settings.relocate_after_ms)
        done: list[Relocation] = []
        errors: list[str] = []
        for name in names:
            try:
                done.append(self.relocate(name, moved=moved))
            except HeadSilent:
                raise
            except FabricError as error:
                errors.append(str(error))
        if errors:
            raise FabricError("\n".join(errors))
        return done

    def note_salvage(
        self, name: str, generation: int, *, salvaged: bool, lacking: int | None
    ) -> bool:
        """Records the result of a salvage of an orphaned directory, as `Fabric.note_salvage`
        does."""
        self._handle.refresh()
        self._authorize_all("note_salvage", name)
        record = self._handle.known()[1]
        found = [e for e in record.left_over if (e.name, e.generation) == (name, generation)]
        for each in found:
            each.salvaged, each.lacking, each.forgotten = salvaged, lacking, False
        if found:
            self._handle.keep(record)
        return bool(found)

    def forget_left_over(self, directory: str) -> OrphanedDirectory:
        """Leaves a directory that was removed out of the status, as `Fabric.forget_left_over`
        does."""
        self._handle.refresh()
        record = self._handle.known()[1]
        known = [each for each in record.left_over if not each.forgotten]
        for each in known:
            if each.directory == directory:
                if Path(directory).exists():
                    raise FabricError(f"{directory} is still there: archive or remove it first")
                self._authorize_all("forget", each.name)
                each.forgotten = True
                self._handle.keep(record)
                return each
        raise FabricError(
            f"fabric {self._handle.name} has no left-over directory {directory} in its record; it "
            f"has {', '.join(each.directory for each in known) or 'none'}"
        )

    def _authorize_all(self, call: str, moved: str) -> None:
        """Asks every instance whether a placement may be changed, because it concerns the whole
        fabric."""
        self._control.authorize(
            [each.name for each in self._handle.declared.instances], call, moved=moved
        )

    def _end_for_good(self, name: str, timeout_s: float) -> None:
        caller = self._control.caller_for(name)
        self._instances.end_gracefully(name, caller, "place", timeout_s, moved=name)

    def _move(
        self,
        instance: InstanceSettings,
        place: NodePlace,
        filled_by: list[str],
        statuses: list[dict[str, Any]],
        incarnation: str,
    ) -> OrphanedDirectory:
        """Writes the move down: from then on a restart, and every reader of the addresses, finds
        the instance there."""
        settings, record = self._handle.known()
        name = instance.name
        before = record.moves.get(name)
        known = before.generation if before is not None else 0
        left_over = OrphanedDirectory(
            name,
            known,
            instance.host,
            dict(instance.node_labels),
            str(data_directory(record, instance)),
            replication_address(record, instance),
            time.time_ns() // 1000,
            incarnation or incarnation_of(name, statuses),
        )
        generation = relocation.next_generation(name, known, statuses)
        folder = f"{instance.directory or name}.g{generation}"
        record.left_over.append(left_over)
        record.moves[name] = RecordedMove(generation, folder, filled_by)
        record.stopped = [each for each in record.stopped if each != name]
        record.drained = [each for each in record.drained if each != name]
        record.nodes = {**record.nodes, name: place}
        if place.address == instance.host:
            # On one machine what it was may hold its ports for as long as it does not know.
            del record.ports[name]
        self._handle.settings = settings = with_moves(settings, record.moves, record.nodes)
        bring_up_to_date(record, settings)
        self._handle.keep(record)
        return left_over

    def _tell_moved(self, done: Relocation) -> None:
        settings, record = self._handle.known()
        address, client_address = addresses_of(record, settings.instance(done.name))
        placement = {
            "moved": done.name,
            "generation": done.generation,
            "address": address,
            "client_address": client_address,
        }
        ray = ray_module()
        asked = {}
        for each in settings.instances:
            actor = self._handle.actor(each.name) if each.name != done.name else None
            if actor is not None:
                asked[each.name] = self._control.call(actor, each.name, "place", **placement)
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=STATUS_TIMEOUT_S)
        for name, ref in asked.items():
            try:
                ray.get(ref, timeout=0)
                done.told.append(name)
            except ray.exceptions.RayError:
                done.untold.append(name)

    def _launch_again(self, instance: InstanceSettings, timeout_s: float) -> None:
        """Ray gives the name of an actor free a moment after its end."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._instances.launch(instance)
                return
            except FabricError as error:
                if "runs in" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)
