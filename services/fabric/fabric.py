"""A fabric from a driver script: declare, start, attach, ask, break, stop.

    fabric = Fabric("flights", topics=[Topic("flights/.*", "json")], downgrade_age="5s")
    for city in ("Chicago", "NewYork", "London"):
        fabric.region(city, instances=2)        # a sync pair inside
    fabric.connect_regions("async")             # every instance to every other region
    with fabric.start():
        print(fabric.status())

Every method blocks; an asyncio program calls those that ask Ray through `asyncio.to_thread`.
Messages never pass through here: clients talk to instances, whose addresses `servers` gives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raylay.services.configuration.model import (
    FabricSettings,
)
from raylay.services.configuration.model import TopicSettings as _TopicSettings
from raylay.services.errors import FabricError
from raylay.services.fabric import registry
from raylay.services.fabric.apply import Apply
from raylay.services.fabric.check import shared_hosts
from raylay.services.fabric.clients import FabricClients
from raylay.services.fabric.discovery import is_over, runs_already
from raylay.services.fabric.files import temporary_directory
from raylay.services.fabric.locks import StartLocks
from raylay.services.fabric.node_calls import NodeCalls
from raylay.services.fabric.nodes import NodePlace, labelled, placed
from raylay.services.fabric.open_transports import check_open
from raylay.services.fabric.plan import (
    FabricRecord,
    newest,
    record_of,
)
from raylay.services.fabric.ray_access import (
    START_TIMEOUT_S_DEFAULT,
    STOP_TIMEOUT_S_DEFAULT,
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
from raylay.services.fabric.record_store import (
    _record_text,
    entry_of,
    forget_record,
    live_names,
    remember,
    stored_record,
)
from raylay.services.fabric.relocate import Relocate
from raylay.services.fabric.relocation import with_moves
from raylay.services.security.control import Caller

__all__ = ["HEAD_DIRECTORY", "Fabric", "Topic"]

HEAD_DIRECTORY = "head"
LINKS_TIMEOUT_S = 30.0
"""Time for which `start` waits for links. Those of a fresh fabric take seconds: each is a
process."""
_LOG = logging.getLogger(__name__)


def Topic(name: str, message_type: str = "*", *, journaled: bool = True) -> _TopicSettings:
    """A topic, or by a regular expression several, for `Fabric(topics=…)`. One that is not
    journaled is delivered to live subscribers only."""
    return _TopicSettings(name=name, message_type=message_type, journaled=journaled)


class Fabric(Apply, Relocate, FabricClients, NodeCalls):
    """The declaration of a fabric, and once it is started or attached to, its remote control."""

    # -- where fabrics come from -------------------------------------------------------------
    @classmethod
    def load(
        cls,
        *paths: str | Path,
        defines: Mapping[str, str] | None = None,
        name: str = "",
        ignore_unsupported: bool = False,
    ) -> Fabric:
        """The fabric that one YAML file declares, or the AMPSConfig files of its instances.

        Args:
            defines: values of `${VAR}` in AMPSConfig files, before those of the environment.
            name: of the fabric, for AMPSConfig files.
            ignore_unsupported: leave out what does not run yet, instead of refusing it.

        Raises:
            ConfigurationError: a file is wrong; names file and line.
        """
        from raylay.services.configuration.files import load_fabric  # late: all of AMPSConfig

        return cls.of(
            load_fabric(paths, defines=defines, name=name, ignore_unsupported=ignore_unsupported)
        )

    @classmethod
    def attach(
        cls, name: str, address: str | None = None, *, user_id: str = "", password: str = ""
    ) -> Fabric:
        """A fabric that runs: started by another process, which may have left.

        Args:
            name: of the fabric.
            address: of its Ray; not needed on the machine and for the user that started it.
            user_id, password: who controls it, as in `act_as`; empty: as the environment says.

        Raises:
            FabricError: no such fabric runs.
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
        fabric = cls.of(FabricSettings.from_json(record.settings))
        fabric._record = record
        fabric._started_ray = started_ray
        if user_id or password:
            fabric.act_as(user_id, password)
        return fabric

    # -- life --------------------------------------------------------------------------------
    def start(
        self,
        directory: str | Path | None = None,
        *,
        address: str | None = None,
        node_label: str = "",
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Starts every instance and returns when all are ready, and the links within each group and
        those that acks wait for have caught up: who publishes then is answered at once, and may
        fail over. A link that has not within 30 s is logged as a warning, with the reason.

        Args:
            directory: for data, ports and logs; what is there is used again. None: a temporary
                one, which goes with `stop`.
            address: of a running Ray, or `auto`; None: the Ray that this process is connected to,
                else one that is started here and ends with this process.
            node_label: instances that name no node go to those whose label of this name, `region`
                say, is their group.
            timeout_s: for all of it.
            progress: told in a few words what it does, while it goes on.

        Raises:
            ConfigurationError: the declaration is wrong.
            FabricError: an instance did not become ready, or no node is as it wants; names it and
                its reason. Nothing of the fabric is left running then.
        """
        settings = self._settings or self.settings()
        if self._handles:
            raise FabricError(f"fabric {self.name} was started before")
        running = registry.find(self.name)
        if running is not None and (running.copied or is_over(running)):
            running = None
        if running is not None and (address is None or running.host_pid):
            raise runs_already(self.name, running.directory)
        self._temporary = directory is None
        place = Path(directory or temporary_directory(self.name)).absolute()
        self._settings = settings
        deadline_s = time.monotonic() + timeout_s
        self._holds = StartLocks(self.name, place)
        self._tell = progress or self._tell
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
                self._settings = settings
            self._record = record = record_of(settings, place, before)
            record.nodes, record.node_label = nodes, node_label
            check_open(settings, record)
            self._check_ports(settings, record, [each.name for each in settings.instances])
            self._check_tls(settings, record, [each.name for each in settings.instances])
            self._tell("starting Ray" if address is None else f"joining Ray at {address}")
            self._started_ray |= join_ray(address, start=address is None, head_directory=head)
            refuse_open_ray(str(ray_module().get_runtime_context().gcs_address))
            for warning in self.shared_hosts():
                _LOG.warning("fabric %s: %s", self.name, warning)
            record.starting, record.restarting = [], []
            self._keep(record)
            self._owns = True
            self._tell(f"starting {len(settings.instances)} instances")
            for instance in settings.instances:
                self._launch(instance)
            self.wait_ready(timeout_s=max(0.0, deadline_s - time.monotonic()))
            self._settle()
            registry.register(entry_of(record, self._started_ray and address is None))
            self._holds.started()
            left_s = max(0.0, deadline_s - time.monotonic())
            self._await_links(min(LINKS_TIMEOUT_S, left_s))
        except BaseException:
            self._abandon()
            raise
        return self

    def shared_hosts(self) -> list[str]:
        """Says which members of a sync pair keep their data on the same host of the cluster, and
        what to do about it. Empty on a cluster of one host, where they cannot do otherwise.

        Raises:
            FabricError: The fabric was not started.
            HeadSilent: Ray's head does not answer.
        """
        settings, record = self._known()
        hosts = {node.address for node in living_nodes()}
        if len(hosts) < 2:
            return []
        here = str(ray_module().util.get_node_ip_address())
        host_of = {
            instance.name: record.nodes[instance.name].address
            if instance.name in record.nodes
            else here
            for instance in settings.instances
        }
        return [f"{each.explanation}; {each.repair}" for each in shared_hosts(settings, host_of)]

    def _await_links(self, timeout_s: float) -> None:
        """Waits for the links: the last step of `start`. The fabric runs without them: an operator
        mends a link."""
        try:
            self.wait_connected(timeout_s, only=self.links_that_clients_need())
        except FabricError as error:
            _LOG.warning("fabric %s is up, but clients may have to wait %s", self.name, error)

    def _known_before(
        self, place: Path, running: registry.RegistryEntry | None, here: FabricRecord | None
    ) -> FabricRecord | None:
        """The newest record of the fabric in a directory: this host's, the head's, or one of a
        node that has instances.

        Raises:
            FabricError: the fabric runs on the Ray that this process has joined, or on another.
        """
        joined = str(ray_module().get_runtime_context().gcs_address)
        if running is not None and running.address != joined:
            raise runs_already(self.name, running.directory)
        stored = stored_record(self.name)
        if live_names(self.name):
            raise runs_already(self.name, stored.directory if stored is not None else joined)
        texts = on_other_nodes(_record_text, self.name, str(place))
        found = [FabricRecord.from_json(text, "what a node has") for text in texts if text]
        if stored is not None and stored.directory == str(place):
            found.append(stored)
        return newest(here, *found)

    def _abandon(self) -> None:
        """Ends, after a failed start, what was started, and leaves what was there before."""
        try:
            for name in list(self._handles):
                self._end(name)
            if self._owns:
                forget_record(self.name)
        finally:
            self._finish()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S_DEFAULT) -> None:
        """Stops every instance: each first commits and sends what it took. A second call does
        nothing.

        Raises:
            FabricError: an instance refuses: nothing is stopped.
            HeadSilent: Ray's head does not answer, and the Ray is another one's: nothing is
                stopped. One that was begun here ends all the same.
        """
        if self._record is None:
            return
        silent = False
        try:
            # Another process may have applied other settings.
            self._refresh()
        except HeadSilent:
            if not self._started_ray:
                raise
            # Those that live hear what is said to them; the rest goes with this Ray.
            silent = True
        settings = FabricSettings.from_json(self._record.settings)
        if not self._owns:
            self.authorize([each.name for each in settings.instances], "stop")
        ended: list[tuple[str, int]] = []
        asked: list[Any] = []
        ray = ray_module()
        for instance in settings.instances:
            known = self._handles.get(instance.name)
            try:
                handle = known if silent else self._handle(instance.name)
                state = actor_state(handle) if handle is not None and not silent else {}
            except HeadSilent:
                if not self._started_ray:
                    raise
                silent, state, handle = True, {}, known
            if handle is None:
                continue
            ended.append((str(state.get("node") or ""), int(state.get("pid") or 0)))
            asked.append(self._stop(handle, self._said_at_the_end(instance.name), "stop"))
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
        for instance in settings.instances:
            if not silent:
                self._end(instance.name)
        for node, pid in ended:
            if is_here(node):
                await_process_end(pid, timeout_s)
        registry.unregister(self.name)
        if not silent:
            forget_record(self.name)
        self._finish()

    def _said_at_the_end(self, name: str) -> Caller | None:
        """Returns the identity for a stop: of a fabric that ends with this process nobody in
        particular, whoever ends that."""
        if not self._owns:
            return self._said_to(name)
        return Caller(fabric_key=self._known()[1].key) if self._asks_for(name) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops a fabric that was started here; leaves one that was attached to."""
        if self._owns:
            self.stop()
        else:
            self.leave()
