"""Start, attachment and end of a fabric in this process."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError
from raylay.services.fabric.checks.open_transports import check_open
from raylay.services.fabric.clients import FabricClients
from raylay.services.fabric.cluster.head_process import keep_head
from raylay.services.fabric.cluster.nodes import NodePlace, labelled, placed
from raylay.services.fabric.cluster.ray_access import (
    HeadSilent,
    actor_state,
    adopt_auth_mode,
    await_process_end,
    is_here,
    join_ray,
    leave_ray,
    living_nodes,
    on_other_nodes,
    ray_module,
    refuse_open_ray,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.files import temporary_directory
from raylay.services.fabric.handle import FabricHandle, ignore_progress
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.locks import StartLocks
from raylay.services.fabric.plan import (
    FabricRecord,
    newest,
    record_of,
)
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.discovery import is_over, runs_already
from raylay.services.fabric.records.record_store import (
    entry_of,
    forget_record,
    live_names,
    record_text,
    remember,
    stored_record,
)
from raylay.services.fabric.relocation import with_moves
from raylay.services.security.control import Caller

HEAD_DIRECTORY = "head"
LINKS_TIMEOUT_S = 30.0
"""Seconds for which `start` waits for links. The links of a new fabric take seconds, because each
is a process."""
_LOG = logging.getLogger(__name__)


def running_record(name: str, address: str | None) -> tuple[FabricRecord, bool]:
    """Joins the Ray of a fabric that runs, as `Fabric.attach` does.

    Returns:
        the fabric's record, and whether this process was connected to no Ray before.
    """
    entry = registry.find(name)
    if entry is None and address is None:
        running = ", ".join(other.name for other in registry.running())
        raise FabricError(
            f"no fabric {name} runs here"
            + (f"; there are {running}" if running else "; start it with `raylay up FILE`")
        )
    where = address or (entry.address if entry else None)
    if entry is not None:
        adopt_auth_mode(entry.auth_mode)
    started_ray = join_ray(where)
    own = entry is not None and not entry.copied
    here = FabricRecord.load(entry.directory) if entry is not None and own else None
    # Another host's command may have changed the fabric since.
    record = newest(here, stored_record(name))
    if record is not None and record is not here:
        # For the next command, and no more: on a full disk this one goes on without.
        with suppress(FabricError):
            if own:
                record.save()
            else:
                remember(record)
    if record is None:
        if entry is not None and entry.copied:
            registry.unregister(name)
        if started_ray:
            leave_ray()
        raise FabricError(f"the Ray at {where} has no fabric {name}")
    return record, started_ray


class FabricLifecycle:
    """The part of this process in a fabric: it started it, or is attached to it.

    Args:
        handle: the fabric's.
        control: asks whether the fabric may be stopped.
        instances: handles of the fabric's instances.
        clients: the clients that this process made, whose traces end with the fabric.

    Attributes:
        owns: whether the fabric was started here, and so ends with this process.
    """

    def __init__(
        self,
        handle: FabricHandle,
        control: ControlClient,
        instances: InstanceHandles,
        clients: FabricClients,
    ) -> None:
        self._handle = handle
        self._control = control
        self._instances = instances
        self._clients = clients
        self.owns = False
        self._started_ray = False
        self._temporary = False
        self._locks: StartLocks | None = None

    def adopt(self, record: FabricRecord, started_ray: bool) -> None:
        """Takes over what `running_record` returned."""
        self._handle.record = record
        self._started_ray = started_ray

    def start(
        self,
        directory: str | Path | None,
        *,
        address: str | None,
        node_label: str,
        timeout_s: float,
        progress: Callable[[str], None] | None,
    ) -> None:
        """Starts every instance as `Fabric.start` does."""
        handle, instances = self._handle, self._instances
        settings = handle.declared
        if handle.actors:
            raise FabricError(f"fabric {handle.name} was started before")
        running = registry.find(handle.name)
        if running is not None and (running.copied or is_over(running)):
            running = None
        if running is not None and (address is None or running.host_pid):
            raise runs_already(handle.name, running.directory)
        self._temporary = directory is None
        place = Path(directory or temporary_directory(handle.name)).absolute()
        handle.settings = settings
        deadline_s = time.monotonic() + timeout_s
        self._locks = StartLocks(handle.name, place)
        tell = progress or ignore_progress
        # For drills that kill it, the head of a Ray that we begin remembers.
        head = place / HEAD_DIRECTORY if settings.drills == "allowed" else None
        try:
            before = FabricRecord.load(place)
            labels = node_label or any(each.node_labels for each in settings.instances)
            joins = address is not None or ray_module().is_initialized()
            if joins or labels or (before is not None and before.node_label):
                # First of all: where it runs already nothing may be written.
                self._started_ray = join_ray(address, start=address is None, head_directory=head)
                before = self._known_before(place, running, before)
            if before is not None:
                settings = with_moves(settings, before.moves, before.nodes)
            node_label = node_label or (before.node_label if before else "")
            if node_label:
                settings = labelled(settings, node_label)
            nodes: dict[str, NodePlace] = {}
            if any(instance.node_labels for instance in settings.instances):
                settings, nodes = placed(settings, before.nodes if before else {}, living_nodes())
                handle.settings = settings
            handle.record = record = record_of(settings, place, before)
            record.nodes, record.node_label = nodes, node_label
            check_open(settings, record)
            names = [each.name for each in settings.instances]
            instances.check_ports(settings, record, names)
            instances.check_tls(settings, record, names)
            tell("starting Ray" if address is None else f"joining Ray at {address}")
            self._started_ray |= join_ray(address, start=address is None, head_directory=head)
            refuse_open_ray(str(ray_module().get_runtime_context().gcs_address))
            for warning in instances.shared_hosts():
                _LOG.warning("fabric %s: %s", handle.name, warning)
            record.starting, record.restarting = [], {}
            record.stopped, record.drained = [], []
            handle.keep(record)
            self.owns = True
            tell(f"starting {len(settings.instances)} instances")
            for instance in settings.instances:
                instances.launch(instance)
            left_s = max(0.0, deadline_s - time.monotonic())
            instances.wait_ready(timeout_s=left_s, progress=tell)
            instances.settle()
            # The fabric runs without it, and `raylay head keep` says why there is none.
            with suppress(OSError):
                keep_head(place)
            registry.register(entry_of(record, self._started_ray and address is None))
            self._locks.started()
            left_s = max(0.0, deadline_s - time.monotonic())
            self._await_links(min(LINKS_TIMEOUT_S, left_s), tell)
        except BaseException:
            self._abandon()
            raise

    def _await_links(self, timeout_s: float, tell: Callable[[str], None]) -> None:
        """Waits for the links: the last step of `start`. The fabric runs without them: an operator
        mends a link."""
        try:
            self._instances.wait_connected(
                timeout_s, only=_links_that_clients_need(self._handle.declared), progress=tell
            )
        except FabricError as error:
            _LOG.warning(
                "fabric %s is up, but clients may have to wait %s", self._handle.name, error
            )

    def _known_before(
        self, place: Path, running: registry.RegistryEntry | None, here: FabricRecord | None
    ) -> FabricRecord | None:
        """Returns the newest record of the fabric in a directory: this host's, the head's, or that
        of a node that has instances. None: there is none.

        Raises:
            FabricError: the fabric runs on the Ray that this process has joined, or on another.
        """
        joined = str(ray_module().get_runtime_context().gcs_address)
        if running is not None and running.address != joined:
            raise runs_already(self._handle.name, running.directory)
        stored = stored_record(self._handle.name)
        if live_names(self._handle.name):
            raise runs_already(
                self._handle.name, stored.directory if stored is not None else joined
            )
        texts = on_other_nodes(record_text, self._handle.name, str(place))
        found = [FabricRecord.from_json(text, "what a node has") for text in texts if text]
        if stored is not None and stored.directory == str(place):
            found.append(stored)
        return newest(here, *found)

    def _abandon(self) -> None:
        """Ends, after a failed start, what was started, and leaves what was there before."""
        try:
            for name in list(self._handle.actors):
                self._instances.end(name)
            if self.owns:
                forget_record(self._handle.name)
        finally:
            self._finish()

    def stop(self, timeout_s: float) -> None:
        """Stops every instance as `Fabric.stop` does."""
        handle, instances = self._handle, self._instances
        if handle.record is None:
            return
        silent = False
        try:
            # Another process may have applied other settings.
            handle.refresh()
        except HeadSilent:
            if not self._started_ray:
                raise
            # Those that live hear what is said to them; the rest goes with this Ray.
            silent = True
        settings = FabricSettings.from_json(handle.record.settings)
        if not self.owns:
            self._control.authorize([each.name for each in settings.instances], "stop")
        ended: list[tuple[str, int]] = []
        asked: list[Any] = []
        ray = ray_module()
        for instance in settings.instances:
            known = handle.actors.get(instance.name)
            try:
                actor = known if silent else handle.actor(instance.name)
                state = actor_state(actor) if actor is not None and not silent else {}
            except HeadSilent:
                if not self._started_ray:
                    raise
                silent, state, actor = True, {}, known
            if actor is None:
                continue
            ended.append((str(state.get("node") or ""), int(state.get("pid") or 0)))
            asked.append(self._control.stop(actor, self.caller_at_the_end(instance.name), "stop"))
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
        for instance in settings.instances:
            if not silent:
                instances.end(instance.name)
        for node, pid in ended:
            if is_here(node):
                await_process_end(pid, timeout_s)
        registry.unregister(handle.name)
        if not silent:
            forget_record(handle.name)
        self._finish()

    def caller_at_the_end(self, name: str) -> Caller | None:
        """Returns the identity with which an instance is stopped: the fabric's key if the fabric
        ends with this process, so that any user may end it, and else the user's identity. None: the
        instance does not ask for one."""
        if not self.owns:
            return self._control.caller_for(name)
        return (
            Caller(fabric_key=self._handle.known()[1].key) if self._control.asks_for(name) else None
        )

    def _finish(self) -> None:
        """Forgets a fabric that has ended."""
        self._clients.close()
        record, self._handle.record = self._handle.record, None
        if record is not None and self._temporary:
            shutil.rmtree(record.directory, ignore_errors=True)
        self._let_go()

    def leave(self) -> None:
        """Disconnects from the fabric and lets it run on."""
        self._handle.record = None
        self._handle.actors.clear()
        self._let_go()

    def _let_go(self) -> None:
        if self._started_ray:
            leave_ray()
            self._started_ray = False
        if self._locks is not None:
            self._locks.release()
            self._locks = None


def _links_that_clients_need(settings: FabricSettings) -> list[tuple[str, str]]:
    """(instance, destination) of the links without which a client waits: those within a group, to
    which it may fail over, and those that acks wait for. Not those to another fabric."""
    own = {instance.name: instance.group for instance in settings.instances}
    return [
        (instance.name, destination.name)
        for instance, destination in settings.links()
        if any(name in own for name in destination.to)
        and (destination.sync or instance.group in map(own.get, destination.to))
    ]
