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

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raylay.services.client import Client, Server, SyncClient
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.files import load_fabric, refuse_not_running
from raylay.services.configuration.model import (
    DowngradeSettings,
    FabricSettings,
    InstanceSettings,
    JournalSettings,
)
from raylay.services.configuration.model import TopicSettings as _TopicSettings
from raylay.services.errors import FabricError
from raylay.services.fabric import registry, relocation
from raylay.services.fabric.left_over import left_over_status
from raylay.services.fabric.nodes import NodePlace, followed, labelled, placed
from raylay.services.fabric.plan import (
    Changes,
    FabricRecord,
    addresses_of,
    bring_up_to_date,
    changes,
    client_options,
    data_directory,
    instance_config,
    newest,
    record_of,
    replication_address,
    tracing_options,
)
from raylay.services.fabric.plan import servers as servers_of_group
from raylay.services.fabric.ray_access import (
    AUTH_VARIABLE,
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    HeadSilent,
    actor_state,
    adopt_auth_mode,
    ask_head,
    await_process_end,
    dead_nodes,
    first_line,
    is_here,
    join_ray,
    kill_on_node,
    leave_ray,
    living_nodes,
    on_node,
    on_other_nodes,
    ray_module,
    refuse_silent_head,
)
from raylay.services.fabric.record import LeftOver, Move
from raylay.services.fabric.relocation import Relocation, away_since, incarnation_of, with_moves
from raylay.services.fabric.travelling import known_as
from raylay.services.telemetry.tracing import ClientTracer, Tracing, start_tracing

STOP_TIMEOUT_S_DEFAULT = 15.0
HEAD_DIRECTORY = "head"
POLL_S = 0.05
FOLLOW_S = 0.25


def Topic(name: str, message_type: str = "*", *, journaled: bool = True) -> _TopicSettings:
    """A topic, or by a regular expression several, for `Fabric(topics=…)`."""
    return _TopicSettings(name=name, message_type=message_type, journaled=journaled)


class Fabric(FabricBuilder):
    """The declaration of a fabric, and once it is started or attached to, its remote control."""

    def __init__(self, name: str, **sections: Any) -> None:
        """Declares an empty fabric; the arguments are those of `FabricBuilder`."""
        super().__init__(name, **sections)
        self.name = name
        self._settings: FabricSettings | None = None
        self._record: FabricRecord | None = None
        self._handles: dict[str, Any] = {}
        self._errands: dict[str, Any] = {}
        self._started_ray = False
        self._temporary = False
        self._owns = False
        self._tracing: Tracing | None = None

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
        return cls.of(
            load_fabric(paths, defines=defines, name=name, ignore_unsupported=ignore_unsupported)
        )

    @classmethod
    def of(cls, settings: FabricSettings) -> Fabric:
        """A fabric of settings that were checked before."""
        fabric = cls(settings.name)
        fabric._settings = settings
        return fabric

    @classmethod
    def attach(cls, name: str, address: str | None = None) -> Fabric:
        """A fabric that runs: started by another process, which may have left.

        Args:
            name: of the fabric.
            address: of its Ray; not needed on the machine and for the user that started it.

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
        record = newest(_stored_record(name), here)
        if record is not None and record is not here:
            if own:
                record.save()
            else:
                _remember(record)
        if record is None:
            if entry is not None and entry.copied:
                registry.unregister(name)
            if started_ray:
                leave_ray()
            raise FabricError(f"the Ray at {where} has no fabric {name}")
        fabric = cls.of(FabricSettings.from_json(record.settings))
        fabric._record = record
        fabric._started_ray = started_ray
        return fabric

    # -- life --------------------------------------------------------------------------------
    def start(
        self,
        directory: str | Path | None = None,
        *,
        address: str | None = None,
        node_label: str = "",
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
    ) -> Self:
        """Starts every instance and returns when all are ready.

        Args:
            directory: for data, ports and logs; what is there is used again. None: a temporary
                one, which goes with `stop`.
            address: of a running Ray, or `auto`; None: the Ray that this process is connected to,
                else one that is started here and ends with this process.
            node_label: instances that name no node go to those whose label of this name, `region`
                say, is their group.
            timeout_s: for all of it.

        Raises:
            ConfigurationError: the declaration is wrong.
            FabricError: an instance did not become ready, or no node is as it wants; names it and
                its reason. Nothing of the fabric is left running then.
        """
        settings = self._settings or self.settings()
        if self._settings is None:
            refuse_not_running(settings, f"fabric {self.name}")
        if self._handles:
            raise FabricError(f"fabric {self.name} was started before")
        running = registry.find(self.name)
        if running is not None and (running.copied or _is_over(running)):
            running = None
        if running is not None and (address is None or running.host_pid):
            raise _runs_already(self.name, running.directory)
        self._temporary = directory is None
        place = Path(directory or tempfile.mkdtemp(prefix=f"raylay-{self.name}-")).absolute()
        self._settings = settings
        deadline_s = time.monotonic() + timeout_s
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
            self._check_ports(settings, record, [each.name for each in settings.instances])
            self._started_ray |= join_ray(address, start=address is None, head_directory=head)
            record.starting, record.restarting = [], []
            self._keep(record)
            self._owns = True
            for instance in settings.instances:
                self._launch(instance)
            self.wait_ready(timeout_s=max(0.0, deadline_s - time.monotonic()))
            self._settle()
            registry.register(_entry(record, self._started_ray and address is None))
        except BaseException:
            self._abandon()
            raise
        return self

    def _known_before(
        self, place: Path, running: registry.Entry | None, here: FabricRecord | None
    ) -> FabricRecord | None:
        """The newest record of the fabric in a directory: this host's, the head's, or one of a
        node that has instances.

        Raises:
            FabricError: the fabric runs on the Ray that this process has joined, or on another.
        """
        joined = str(ray_module().get_runtime_context().gcs_address)
        if running is not None and running.address != joined:
            raise _runs_already(self.name, running.directory)
        stored = _stored_record(self.name)
        if _live_names(self.name):
            raise _runs_already(self.name, stored.directory if stored is not None else joined)
        texts = on_other_nodes(_record_text, self.name, str(place))
        found = [FabricRecord.from_json(text, "what a node has") for text in texts if text]
        if stored is not None and stored.directory == str(place):
            found.append(stored)
        return newest(here, *found)

    def _settle(self) -> None:
        """From now on an empty data directory is a lost disk."""
        settings, record = self._known()
        record.settled = [instance.name for instance in settings.instances]
        self._keep(record)
        for instance in settings.instances:
            self._write_config(instance)

    def _keep(self, record: FabricRecord) -> None:
        """Writes the record down, here and at the head.

        Raises:
            FabricError: another process has changed the fabric since this one looked; nothing is
                written. HeadSilent is one.
        """
        number = record.number + 1
        if _is_newer(_stored_record(self.name), number) or not _claim(self.name, number):
            raise FabricError(
                f"fabric {self.name} was changed by another command meanwhile: look at `raylay "
                "status`, and say it again"
            )
        record.number = number
        record.save()
        _store_record(record)
        self._record = record

    def _write_config(self, instance: InstanceSettings) -> None:
        settings, record = self._known()
        directory = data_directory(record, instance)
        config = instance_config(settings, record, instance)
        if instance.node_labels:
            told = (
                config.to_json(),
                str(directory),
                record.to_json(),
                _entry(record, holds_ray=False),
            )
            on_node(instance.node_labels, _save_config, *told)
        else:
            config.save(directory)

    def _launch(self, instance: InstanceSettings) -> None:
        from raylay.actors.launch import launch_instance

        _, record = self._known()
        self._write_config(instance)
        try:
            self._handles[instance.name] = launch_instance(
                instance.name,
                str(data_directory(record, instance)),
                namespace_of(self.name),
                instance.node_labels,
            )
        except ValueError as error:
            raise FabricError(
                f"instance {instance.name}: an actor of this name runs in {namespace_of(self.name)}"
                f" already: attach to the fabric, or stop it ({error})"
            ) from None

    def _check_ports(
        self, settings: FabricSettings, record: FabricRecord, names: Iterable[str]
    ) -> None:
        for instance in map(settings.instance, names):
            if instance.node_labels:
                continue
            ports = record.ports[instance.name]
            replication_host = instance.replication_host or instance.host
            for kind, host, port in (
                ("client", instance.host, ports.client),
                ("replication", replication_host, ports.replication),
                *(
                    (each.name, each.host or instance.host, each.port)
                    for each in instance.transports
                ),
            ):
                try:
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    with socket.socket(family, socket.SOCK_STREAM) as probe:
                        # As the instance does: a port that only waits to be forgotten is free.
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((host, port))
                except OSError as error:
                    raise FabricError(
                        f"instance {instance.name}: {kind} port {port} on {host}: {error.strerror}"
                    ) from None

    def _abandon(self) -> None:
        """After a failed start: ends what was started, leaves what was there before."""
        for name in list(self._handles):
            self._end(name)
        if self._owns:
            _forget_record(self.name)
        self._finish()

    def wait_ready(
        self, name: str | None = None, timeout_s: float = START_TIMEOUT_S_DEFAULT
    ) -> None:
        """Waits until one instance, or every one, admits clients.

        Raises:
            FabricError: one did not within `timeout_s`; names it and its reason.
        """
        settings, _ = self._known()
        waiting = [name] if name is not None else [i.name for i in settings.instances]
        deadline_s = time.monotonic() + timeout_s
        while True:
            reasons: dict[str, str] = {}
            left_s = max(0.1, deadline_s - time.monotonic())
            for status in self._statuses(waiting, min(STATUS_TIMEOUT_S, left_s)):
                if not status.get("ready"):
                    reasons[status["name"]] = str(status.get("reason") or status.get("phase"))
            if not reasons:
                return
            if time.monotonic() >= deadline_s:
                raise FabricError(
                    "; ".join(
                        f"instance {name} is not ready after {timeout_s:.0f} s: {reason}"
                        for name, reason in reasons.items()
                    )
                )
            waiting = list(reasons)
            time.sleep(POLL_S)

    def wait_connected(
        self,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        only: Collection[tuple[str, str]] | None = None,
    ) -> None:
        """Waits until every destination has caught up: from then on clients may fail over.

        Args:
            only: (instance, destination) of those that are meant; None: all.

        Raises:
            FabricError: one has not within `timeout_s`; names it and its reason.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            missing = [
                f"{status['name']} to {name}: {found.get('why') or 'not caught up'}"
                for status in self.status()["instances"]
                for name, found in status.get("destinations", {"": {}}).items()
                if not found.get("caught_up") and (only is None or (status["name"], name) in only)
            ]
            if not missing:
                return
            if time.monotonic() >= deadline_s:
                raise FabricError(f"after {timeout_s:.0f} s: {'; '.join(missing)}")
            time.sleep(POLL_S)

    def apply(
        self,
        declared: Fabric | FabricSettings,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
    ) -> Changes:
        """Makes this running fabric what a new declaration of it says: starts the instances that
        are new, then restarts those whose configuration changes and no others, one after the other,
        each when the links between those that are done have caught up again. Clients and what they
        publish go on meanwhile. A new member of a group that was there before first catches up with
        it. Returns what was done.

        Args:
            timeout_s: for each instance.

        Raises:
            ConfigurationError: the declaration is wrong; nothing is changed.
            FabricError: an instance would go or its data would lie elsewhere (nothing is changed);
                or an instance did not come back: those behind it run as before, and the same call
                goes on with them.
        """
        settings = declared.declared if isinstance(declared, Fabric) else declared
        self._refresh()
        before, record = self._known()
        wanted = replace(record)
        settings = with_moves(settings, record.moves, record.nodes)
        if record.node_label:
            settings = labelled(settings, record.node_label)
        if record.nodes:
            settings, wanted.nodes = placed(settings, record.nodes, living_nodes())
        bring_up_to_date(wanted, settings)
        found = changes(record, wanted)
        unlaunched = [name for name in found.started if self._handle(name) is None]
        self._check_ports(settings, wanted, unlaunched)
        caught_up = {
            (status["name"], name)
            for status in self.status()["instances"]
            for name, destination in status.get("destinations", {}).items()
            if destination.get("caught_up")
        }
        groups = set(before.groups())
        joining = [each for each in found.started if settings.instance(each).group in groups]
        self._settings, self._record = settings, wanted
        wanted.starting, wanted.restarting = list(found.started), list(found.restarted)
        wanted.settled = [*dict.fromkeys([*record.settled, *joining])]
        self._keep(wanted)
        for name in unlaunched:
            self._launch(settings.instance(name))
        for name in found.started:
            if name not in joining:
                self.wait_ready(name, timeout_s)
        kept = [
            (instance.name, destination.name, {instance.name, *destination.to})
            for instance, destination in settings.links()
            if (instance.name, destination.name) in caught_up
        ]
        for name in found.restarted:
            self.restart(name, timeout_s, graceful=True)
            wanted.restarting.remove(name)
            self._keep(wanted)
            # With one that still runs as before, a check at connect may rightly refuse.
            pending = set(wanted.restarting)
            self.wait_connected(timeout_s, only=[k[:2] for k in kept if not k[2] & pending])
        for name in joining:
            # Only now does its group know of it.
            self.wait_ready(name, timeout_s)
        wanted.starting = []
        self._settle()
        return found

    def stop(self, timeout_s: float = STOP_TIMEOUT_S_DEFAULT) -> None:
        """Stops every instance: each first commits and sends what it took. A second call does
        nothing.

        Raises:
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
            asked.append(handle.stop.remote())
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
            _forget_record(self.name)
        self._finish()

    def _end(self, name: str) -> None:
        handle = self._handle(name)
        self._handles.pop(name, None)
        if handle is not None:
            ray_module().kill(handle, no_restart=True)

    def _finish(self) -> None:
        if self._tracing is not None:
            self._tracing.close()
            self._tracing = None
        record, self._record = self._record, None
        if record is not None and self._temporary:
            shutil.rmtree(record.directory, ignore_errors=True)
        if self._started_ray:
            leave_ray()
            self._started_ray = False

    def leave(self) -> None:
        """Disconnects from the fabric and lets it run on."""
        self._record = None
        self._handles.clear()
        if self._started_ray:
            leave_ray()
            self._started_ray = False

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

    # -- asking ------------------------------------------------------------------------------
    @property
    def directory(self) -> Path:
        """The fabric's directory."""
        return Path(self._known()[1].directory)

    @property
    def declared(self) -> FabricSettings:
        """The checked settings."""
        return self._settings or self.settings()

    def data_directory(self, name: str) -> Path:
        """An instance's data directory."""
        settings, record = self._known()
        return data_directory(record, settings.instance(name))

    def status(self) -> dict[str, Any]:
        """How every instance is: what its own `status` says, or why it cannot be asked."""
        settings, record = self._known()
        return {
            "fabric": self.name,
            "directory": record.directory,
            "instances": self._statuses([instance.name for instance in settings.instances]),
            "left_over": left_over_status(record, settings),
        }

    def _statuses(
        self, names: Iterable[str], timeout_s: float = STATUS_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        settings, _ = self._known()
        ray = ray_module()
        asked: dict[str, Any] = {}
        for name in names:
            handle = self._handle(name)
            asked[name] = handle.status.remote() if handle is not None else None
        wanted = [ref for ref in asked.values() if ref is not None]
        if wanted:
            ray.wait(wanted, num_returns=len(wanted), timeout=timeout_s)
        found: list[dict[str, Any]] = []
        for name, ref in asked.items():
            base = {"name": name, "group": settings.instance(name).group, "ready": False}
            if ref is None:
                found.append({**base, "phase": "stopped", "reason": "no such actor runs"})
                continue
            try:
                told = ray.get(ref, timeout=0)
                found.append({**base, "phase": "", "reason": told.get("why", ""), **told})
            except ray.exceptions.RayError as error:
                try:
                    handle = self._handle(name)
                    state = actor_state(handle) if handle is not None else {}
                except HeadSilent as silent:
                    found.append({**base, "phase": "unknown", "reason": str(silent)})
                    continue
                reason = first_line(error)
                phase = str(state.get("state", "unknown")).lower()
                away = self._host_away(name) if phase != "alive" else ""
                if away:
                    phase, reason = "pending", away
                found.append({**base, "phase": phase, "reason": reason})
        return found

    def _host_away(self, name: str) -> str:
        """Since when the node that holds an instance's data is away; empty: it is not."""
        place = self._known()[1].nodes.get(name)
        return away_since(place, living_nodes(), dead_nodes()) if place is not None else ""

    def events(
        self, *, follow: bool = False, after_us: int = 0, stop: Callable[[], bool] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Events of all instances, oldest first: connects, downgrades, resyncs, conflicts, …

        Each has `instance`, `time_us` (microseconds since 1970), `event` and its details. An
        instance keeps its last 10,000 since its process started.

        Args:
            follow: go on with new ones for ever.
            after_us: only those after this time.
            stop: asked between rounds of `follow`.
        """
        settings, _ = self._known()
        ray = ray_module()
        cursors: dict[str, tuple[int, int]] = {}
        while True:
            asked: list[tuple[str, int, Any]] = []
            for instance in settings.instances:
                handle = self._handle(instance.name)
                if handle is None:
                    continue
                seen_pid, number = cursors.get(instance.name, (0, 0))
                pid = int(actor_state(handle).get("pid") or 0)
                # A new process counts from 1 again.
                asked.append((instance.name, pid, handle.events.remote(number * (pid == seen_pid))))
            refs = [ref for _, _, ref in asked]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=STATUS_TIMEOUT_S)
            batch: list[dict[str, Any]] = []
            for name, pid, ref in asked:
                try:
                    found = ray.get(ref, timeout=0)
                except ray.exceptions.RayError:
                    continue
                if found:
                    cursors[name] = (pid, found[-1]["number"])
                batch += [{"instance": name, **event} for event in found]
            batch.sort(key=lambda event: int(event["time_us"]))
            yield from (event for event in batch if event["time_us"] > after_us)
            if batch:
                continue
            if not follow or (stop is not None and stop()):
                return
            time.sleep(FOLLOW_S)

    # -- clients -----------------------------------------------------------------------------
    def servers(self, group: str | None = None) -> list[Server]:
        """The addresses for clients: of one group, or of all instances, in the order declared.

        Raises:
            ConfigurationError: there is no such group.
        """
        settings, record = self._known()
        return servers_of_group(settings, record, group)

    def client(self, name: str, *, group: str | None = None, **options: Any) -> Client:
        """A client of one group's instances; it is not connected yet (`async with`).

        Args:
            group: may be left out where the fabric has only one.
            options: of `Client`; the fabric's client section where they are not given.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return Client(name, **self._client_options(name, group, options))

    def sync_client(self, name: str, *, group: str | None = None, **options: Any) -> SyncClient:
        """The same for scripts without an event loop; it connects at once."""
        return SyncClient(name, **self._client_options(name, group, options))

    def _client_options(
        self, name: str, group: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings, record = self._known()
        made = client_options(settings, record, group or "", name)
        made["servers"] = self._resolver(made["group"])
        tracing = tracing_options(settings, record)
        if tracing.enabled:
            if self._tracing is None:
                self._tracing = start_tracing(f"clients-{os.getpid()}", tracing)
            made["sampling_ratio"] = tracing.sampling_ratio
            made["tracer"] = ClientTracer(self._tracing, name)
        return {**made, **options}

    def _resolver(self, group: str) -> Callable[[], list[Server]]:
        """Where the instances of a group are, looked up anew each time: one may be moved."""
        known = self._known()[1]

        def find() -> list[Server]:
            record = FabricRecord.load(known.directory) or known
            return servers_of_group(FabricSettings.from_json(record.settings), record, group)

        return find

    # -- breaking and mending ----------------------------------------------------------------
    def pid(self, name: str) -> int:
        """The process of an instance; 0 while it has none."""
        handle = self._handle(name)
        return int(actor_state(handle).get("pid") or 0) if handle is not None else 0

    def kill(self, name: str, *, restart: bool = True) -> int:
        """SIGKILL to the process of an instance. Returns its pid.

        Args:
            restart: Ray starts it again at once; else it stays away until `restart(name)`.

        Raises:
            FabricError: it does not run.
        """
        self.declared.instance(name)
        handle = self._handle(name)
        state = actor_state(handle) if handle is not None else {}
        pid = int(state.get("pid") or 0)
        if handle is None or not pid or state.get("state") != "ALIVE":
            raise FabricError(f"instance {name} does not run: {state.get('state', 'no actor')}")
        if not restart:
            self._handles.pop(name, None)
            ray_module().kill(handle, no_restart=True)
        kill_on_node(str(state.get("node") or ""), pid)
        return pid

    def kill_link(self, name: str, destination: str) -> int:
        """SIGKILL to the process of one link. Returns its pid.

        Raises:
            FabricError: there is no such link, or its process is not known.
        """
        self.declared.instance(name)
        found = self._statuses([name])[0].get("destinations", {}).get(destination)
        if found is None:
            raise FabricError(f"instance {name} has no destination {destination} now")
        pid = int(found.get("pid") or 0)
        if not pid:
            raise FabricError(f"link {destination} of {name} has no process now")
        handle = self._handle(name)
        node = str(actor_state(handle).get("node") or "") if handle is not None else ""
        kill_on_node(node, pid)
        return pid

    def restart(
        self, name: str, timeout_s: float = START_TIMEOUT_S_DEFAULT, *, graceful: bool = False
    ) -> None:
        """Ends an instance's process, if it has one, and returns when it is ready again.

        An instance whose data directory is gone starts empty and catches up with a peer of its
        group before it is ready.

        Args:
            graceful: it first commits and sends what it took, and says good-bye to its clients.

        Raises:
            FabricError: it did not become ready within `timeout_s`.
        """
        self._refresh()
        self._renew_addresses()
        settings, _ = self._known()
        instance = settings.instance(name)
        handle = self._handle(name)
        if handle is None:
            self._launch(instance)
        else:
            self._write_config(instance)
            state = actor_state(handle)
            if graceful:
                ray_module().wait([handle.stop.remote()], timeout=STOP_TIMEOUT_S_DEFAULT)
            ray_module().kill(handle, no_restart=False)
            if is_here(str(state.get("node") or "")):
                await_process_end(int(state.get("pid") or 0), timeout_s)
        self.wait_ready(name, timeout_s)

    def _renew_addresses(self) -> None:
        """Writes down where nodes are that came back with another address: clients look there."""
        settings, record = self._known()
        if not record.nodes:
            return
        found, nodes = followed(settings, record.nodes, living_nodes())
        if found == settings:
            return
        record.nodes, self._settings = nodes, found
        bring_up_to_date(record, found)
        self._keep(record)

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
                follow run as before; or the host of one is away.
        """
        named = list(names)
        for name in named:
            self.declared.instance(name)
        down = [status["name"] for status in self._statuses(named) if not status["ready"]]
        for name in down:
            away = self._host_away(name)
            if away:
                raise FabricError(f"instance {name} is not restarted: {away}: start that first")
            self.restart(name, timeout_s, graceful=True)
            self.wait_connected(timeout_s, only=self._links_between_ready(name))
            done(name)
        wanted = named or [instance.name for instance in self.declared.instances]
        wanted = [name for name in wanted if name not in down]
        if not wanted:
            return
        self.wait_connected(STATUS_TIMEOUT_S)
        for name in wanted:
            self.restart(name, timeout_s, graceful=True)
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

    def downgrade(self, name: str, destination: str, *, force: bool = False) -> None:
        """From now on acks of instance `name` do not wait for this destination.

        Args:
            force: also where fewer than MinSyncDestinations are left.

        Raises:
            FabricError: there is no such destination, the instance cannot be asked, or it refuses.
        """
        self._control(name, destination, "downgrade", force)

    def upgrade(self, name: str, destination: str) -> None:
        """Back to the configured sync.

        Raises:
            FabricError: there is no such destination, or the instance cannot be asked.
        """
        self._control(name, destination, "upgrade")

    def admit(self, name: str, *, force: bool = False) -> None:
        """Lets an instance with a new disk admit clients although no peer of its group has brought
        what it has: where that group does not come back.

        Args:
            force: also where a peer may hold messages that the instance lacks. They are lost to
                its clients unless that peer comes back.

        Raises:
            FabricError: the instance cannot be asked, or it refuses and says what may be missing.
        """
        senders = self.declared.replicating_to(name)
        self._ask(name, "admit", f"admit {name}", senders, force)

    def inject(self, name: str, kind: str, seconds: float, **options: Any) -> None:
        """Breaks something inside an instance for a drill, for so long; 0 seconds mend it. What can
        be broken says `raylay.services.server.injected`.

        Raises:
            FabricError: the fabric is not marked for drills, there is no such fault, or the
                instance cannot be asked.
        """
        self.declared.instance(name)
        self._ask(name, "inject", f"inject into {name}", kind, seconds, options)

    def client_options(self, name: str, *, group: str | None = None) -> dict[str, Any]:
        """Arguments of a `Client` of the fabric but its name: servers, group, the settings' client
        section, tracing.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return self._client_options(name, group, {})

    def ask(
        self, name: str, verb: str, *arguments: Any, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Any:
        """What one instance answers to a call of its actor: `status`, `events`, …

        Raises:
            FabricError: it does not run, does not answer in time, or refuses.
        """
        handle = self._handle(name)
        if handle is None:
            raise FabricError(f"instance {name} does not run")
        ray = ray_module()
        try:
            return ray.get(getattr(handle, verb).remote(*arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise FabricError(f"{verb} of {name}: {first_line(error)}") from None

    def on_node_of(
        self, name: str, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0
    ) -> Any:
        """What a function gives on the node of an instance: called here where that is this node,
        else by an actor there, which is begun at the first errand and needs no head for the next.

        Raises:
            FabricError: the node did not answer.
        """
        ray = ray_module()
        begun = name not in self._errands
        if begun:
            self._errands[name] = self._errands_on(name)
        actor = self._errands[name]
        if actor is None:
            return function(*arguments)
        try:
            return ray.get(actor.run.remote(function, *arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            if begun or not isinstance(error, ray.exceptions.RayActorError):
                raise FabricError(
                    f"the node of {name} did not do it: {first_line(error)}"
                ) from None
        # It ended with its host, which may be back.
        del self._errands[name]
        return self.on_node_of(name, function, *arguments, timeout_s=timeout_s)

    def _errands_on(self, name: str) -> Any:
        """What does errands on the node of an instance; None: this process."""
        handle = self._handle(name)
        node = str(actor_state(handle).get("node") or "") if handle is not None else ""
        if is_here(node):
            return None
        from raylay.actors.launch import launch_errands

        return launch_errands(node)

    def end_errands(self) -> None:
        """Ends what `on_node_of` began on other nodes; without a head it ends with this driver."""
        actors = [actor for actor in self._errands.values() if actor is not None]
        self._errands.clear()
        with suppress(HeadSilent):
            for actor in actors:
                ask_head(partial(ray_module().kill, actor))

    def relocate(
        self,
        name: str,
        to: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        moved: Callable[[Relocation], None] = lambda done: None,
    ) -> Relocation:
        """Moves an instance whose host is lost to another node of its region: under its name, with
        a new incarnation, filled from its group. What it was is retired for good, at once where
        others can be told, else when they are back. Its former data directory is left as it is.

        Args:
            to: labels of the node; None: the node of its region with the fewest instances.
            force: also where somebody still sees it alive (it is then stopped first), or where no
                member of its group is ready to fill it.
            timeout_s: until it is ready.
            moved: told what was done once it is written down, before the instance is started.

        Raises:
            FabricError: it is not moved, and why; or it is, and did not become ready in time.
        """
        self._refresh()
        settings, record = self._known()
        instance = settings.instance(name)
        statuses = self._statuses([each.name for each in settings.instances])
        alive = relocation.seen_alive(name, statuses)
        filled_by = relocation.sources(settings, name, statuses)
        refused = relocation.refusal(name, alive, filled_by, force=force)
        moved_us = max((each.at_us for each in record.left_over if each.name == name), default=0)
        refused = refused or relocation.too_soon(name, moved_us, time.time_ns() // 1000, force)
        if refused:
            raise FabricError(refused)
        place = relocation.choose(settings, record.nodes, living_nodes(), name, to or {})
        risk = relocation.risk(settings, name, bool(alive))
        mine = next(status for status in statuses if status["name"] == name)
        # Written down first: of two who move it at once, one is refused before anything is ended.
        left_over = self._move(instance, place, filled_by, statuses, mine.get("incarnation", ""))
        self._end_for_good(name, timeout_s)
        move = self._known()[1].moves[name]
        done = Relocation(name, move.generation, place, risk, left_over)
        self._tell_moved(done)
        moved(done)
        self._launch_again(self._known()[0].instance(name), timeout_s)
        self.wait_ready(name, timeout_s)
        for told in done.told:
            # Each node knows the fabric by name, and each directory its peers, for a restart.
            self._write_config(self._known()[0].instance(told))
        return done

    def _refresh(self) -> None:
        """Takes what other processes have changed meanwhile."""
        _, mine = self._known()
        record = _stored_record(self.name)
        if record is not None and record.number > mine.number:
            self._record, self._settings = record, FabricSettings.from_json(record.settings)
            # One that was moved is another actor now.
            self._handles.clear()

    def relocate_due(
        self, moved: Callable[[Relocation], None] = lambda done: None
    ) -> list[Relocation]:
        """Moves the instances whose host is away for longer than `relocate_after` of the settings.
        `raylay watch` calls it again and again.

        Args:
            moved: as in `relocate`, of each.

        Raises:
            FabricError: some cannot be moved, and why, a line each; the others are.
        """
        self._refresh()
        settings, record = self._known()
        living, dead = living_nodes(), dead_nodes()
        gone_ms = {
            name: relocation.gone_since_ms(place, living, dead)
            for name, place in record.nodes.items()
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

    def note_reunion(
        self, name: str, generation: int, *, reunited: bool, lacking: int | None
    ) -> bool:
        """Keeps what a reunion found of a left-over directory: then every host's status knows.

        Args:
            name: of the instance that it was, of this generation.
            reunited: the fabric lacks nothing of it.
            lacking: messages that it lacks; None: not known.

        Returns:
            whether the fabric's record has such a directory.

        Raises:
            FabricError: the record cannot be written now, and why.
        """
        self._refresh()
        record = self._known()[1]
        found = [e for e in record.left_over if (e.name, e.generation) == (name, generation)]
        for each in found:
            each.reunited, each.lacking, each.forgotten = reunited, lacking, False
        if found:
            self._keep(record)
        return bool(found)

    def forget_left_over(self, directory: str) -> LeftOver:
        """Leaves a left-over directory that was removed out of the status from now on.

        Raises:
            FabricError: it is still there, the fabric knows of none, or its record cannot be
                written now.
        """
        self._refresh()
        record = self._known()[1]
        known = [each for each in record.left_over if not each.forgotten]
        for each in known:
            if each.directory == directory:
                if Path(directory).exists():
                    raise FabricError(f"{directory} is still there: archive or remove it first")
                each.forgotten = True
                self._keep(record)
                return each
        raise FabricError(
            f"fabric {self.name} has no left-over directory {directory} in its record; it has "
            f"{', '.join(each.directory for each in known) or 'none'}"
        )

    def _end_for_good(self, name: str, timeout_s: float) -> None:
        handle = self._handle(name)
        if handle is None:
            return
        state = actor_state(handle)
        if state.get("state") == "ALIVE":
            ray_module().wait([handle.stop.remote()], timeout=STOP_TIMEOUT_S_DEFAULT)
        self._end(name)
        if is_here(str(state.get("node") or "")):
            await_process_end(int(state.get("pid") or 0), timeout_s)

    def _move(
        self,
        instance: InstanceSettings,
        place: NodePlace,
        filled_by: list[str],
        statuses: list[dict[str, Any]],
        incarnation: str,
    ) -> LeftOver:
        """Writes the move down: from then on a restart, and whoever asks for addresses, finds the
        instance there."""
        settings, record = self._known()
        name = instance.name
        before = record.moves.get(name)
        known = before.generation if before is not None else 0
        left_over = LeftOver(
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
        record.moves[name] = Move(generation, folder, filled_by)
        record.nodes = {**record.nodes, name: place}
        if place.address == instance.host:
            # On one machine what it was may hold its ports for as long as it does not know.
            del record.ports[name]
        self._settings = settings = with_moves(settings, record.moves, record.nodes)
        bring_up_to_date(record, settings)
        self._keep(record)
        return left_over

    def _tell_moved(self, done: Relocation) -> None:
        settings, record = self._known()
        told = [[done.name, done.generation, *addresses_of(record, settings.instance(done.name))]]
        ray = ray_module()
        asked = {}
        for each in settings.instances:
            handle = self._handle(each.name) if each.name != done.name else None
            if handle is not None:
                asked[each.name] = handle.placed.remote(told)
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
                self._launch(instance)
                return
            except FabricError as error:
                if "runs in" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)

    def _control(self, name: str, destination: str, verb: str, *options: bool) -> None:
        instance = self.declared.instance(name)
        if destination not in {known.name for known in instance.destinations}:
            raise FabricError(f"instance {name} has no destination {destination}")
        self._ask(name, verb, f"{verb} of {destination} at {name}", destination, *options)

    def _ask(self, name: str, verb: str, what: str, *arguments: Any) -> None:
        handle = self._handle(name)
        if handle is None:
            raise FabricError(f"instance {name} does not run")
        ray = ray_module()
        try:
            ray.get(getattr(handle, verb).remote(*arguments), timeout=STATUS_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            raise FabricError(f"{what}: {first_line(error)}") from None

    # -- helpers -----------------------------------------------------------------------------
    def _known(self) -> tuple[FabricSettings, FabricRecord]:
        if self._settings is None or self._record is None:
            raise FabricError(f"fabric {self.name} is not started: start it or attach to it")
        return self._settings, self._record

    def _handle(self, name: str) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            namespace = namespace_of(self.name)
            try:
                handle = ask_head(lambda: ray_module().get_actor(name, namespace=namespace))
            except ValueError:
                return None
            self._handles[name] = handle
        return handle


def namespace_of(fabric: str) -> str:
    """The Ray namespace of a fabric's actors."""
    return f"raylay-{fabric}"


def lookup(fabric: str, group: str) -> Callable[[], list[Server]]:
    """A look-up of servers by fabric name, for `Client(servers=lookup("flights", "London"))`.

    Asks no controller: it reads the fabric's own record on this machine, anew each time.

    Raises (when it is called):
        FabricError: no such fabric runs here.
    """

    def find() -> list[Server]:
        entry = registry.find(fabric)
        record = FabricRecord.load(entry.directory) if entry is not None else None
        if record is None:
            raise FabricError(f"no fabric {fabric} runs here")
        return servers_of_group(FabricSettings.from_json(record.settings), record, group)

    return find


def fetch(address: str) -> None:
    """Keeps here the records of the fabrics that run on the Ray at `address`: from then on they are
    found by name, and their clients need no Ray.

    Raises:
        FabricError: no Ray can be reached there.
    """
    started_ray = join_ray(address)
    try:
        for name in _stored_names():
            known = registry.find(name)
            record = _stored_record(name) if known is None or known.copied else None
            if record is not None:
                _remember(record)
    finally:
        if started_ray:
            leave_ray()


def find_running(name: str = "") -> registry.Entry:
    """The fabric of this name that runs here, or on the Ray that RAY_ADDRESS names; empty: the only
    one.

    Raises:
        FabricError: there is none, or several; says which.
    """
    entry = registry.find(name) if name else None
    address = os.environ.get("RAY_ADDRESS", "")
    if address and entry is None and (name or not registry.running()):
        fetch(address)
        entry = registry.find(name) if name else None
    if entry is not None:
        return entry
    running = registry.running()
    names = ", ".join(each.name for each in running) or "none; start one with `raylay up FILE`"
    if name:
        raise FabricError(f"no fabric {name} runs here; there are {names}")
    if len(running) != 1:
        raise FabricError(f"say which fabric with --fabric; there are {names}")
    return running[0]


def _remember(record: FabricRecord) -> None:
    _keep_copy(record, _entry(record, holds_ray=False))


def _keep_copy(record: FabricRecord, entry: registry.Entry) -> None:
    directory = registry.copy_directory(record.name)
    record.save(directory)
    registry.register(replace(entry, directory=str(directory), copied=True))


def _entry(record: FabricRecord, holds_ray: bool) -> registry.Entry:
    pid = os.getpid() if holds_ray else 0
    address = str(ray_module().get_runtime_context().gcs_address)
    return registry.Entry(
        record.name,
        record.directory,
        address,
        pid,
        registry.process_start(pid) if pid else 0,
        os.environ.get(AUTH_VARIABLE, ""),
    )


@known_as("raylay.services.fabric")
def _save_config(text: str, directory: str, record: str, entry: registry.Entry) -> None:
    """On the node of an instance: there the fabric is known by name, head or no head."""
    from raylay.services.server.config import InstanceConfig

    InstanceConfig.from_json(text).save(Path(directory))
    sent = FabricRecord.from_json(record, "what the driver sent")
    kept = FabricRecord.load(sent.directory)
    # Beside the data, which a start from any host uses again.
    if kept is None or (kept.name == sent.name and kept.number < sent.number):
        sent.save()
    known = registry.find(entry.name)
    if known is None or known.copied:
        _keep_copy(sent, entry)


@known_as("raylay.services.fabric")
def _record_text(name: str, directory: str) -> str:
    """On a node: the fabric's record in a directory; empty: none that can be read."""
    try:
        found = FabricRecord.load(directory)
    except FabricError:
        return ""
    return found.to_json() if found is not None and found.name == name else ""


def _runs_already(name: str, where: str) -> FabricError:
    return FabricError(
        f"fabric {name} runs already, in {where}: attach to it, apply to it what has changed, or "
        "stop it"
    )


def _is_over(entry: registry.Entry) -> bool:
    """Whether the Ray of a fabric ended without it: nothing listens where its head was."""
    try:
        refuse_silent_head("" if entry.host_pid else entry.address)
    except HeadSilent:
        return True
    return False


def _live_names(name: str) -> list[str]:
    """The actors of a fabric that the head knows as not ended."""
    found = ask_head(partial(ray_module().util.list_named_actors, all_namespaces=True))
    return [each["name"] for each in found if each["namespace"] == namespace_of(name)]


# -- the record in Ray's head, for drivers on other machines ---------------------------------
_KV_NAMESPACE = b"raylay"
_CLAIMS_NAMESPACE = b"raylay-claims"
CLAIM_S = 5.0


def _store_record(record: FabricRecord) -> None:
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(
        record.name.encode(), record.to_json().encode(), overwrite=True, namespace=_KV_NAMESPACE
    )


def _stored_record(name: str) -> FabricRecord | None:
    from ray.experimental import internal_kv

    text = ask_head(lambda: internal_kv._internal_kv_get(name.encode(), namespace=_KV_NAMESPACE))
    return FabricRecord.from_json(text.decode(), f"the record of {name}") if text else None


def _is_newer(stored: FabricRecord | None, number: int) -> bool:
    """Whether a record of this number, or of a later one, was written."""
    return stored is not None and stored.number >= number


def _claim(name: str, number: int) -> bool:
    """Whether the record of this number is ours to write: the head lets one of several have it.
    Who claimed it and did not write it within CLAIM_S has died."""
    from ray.experimental import internal_kv

    def put(each: int) -> bool:
        key = f"{name}#{each}".encode()
        return bool(
            internal_kv._internal_kv_put(key, b"", overwrite=False, namespace=_CLAIMS_NAMESPACE)
        )

    deadline_s = time.monotonic() + CLAIM_S
    while ask_head(partial(put, number)):
        if _is_newer(_stored_record(name), number):
            return False
        if time.monotonic() > deadline_s:
            return True
        time.sleep(POLL_S)
    # That of the record before stays until now: who has read that one still meets this one.
    before = f"{name}#{number - 1}".encode()
    internal_kv._internal_kv_del(before, namespace=_CLAIMS_NAMESPACE)
    return True


def _stored_names() -> list[str]:
    from ray.experimental import internal_kv

    keys = ask_head(lambda: internal_kv._internal_kv_list(b"", namespace=_KV_NAMESPACE))
    return sorted(key.decode() for key in keys)


def _forget_record(name: str) -> None:
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(name.encode(), namespace=_KV_NAMESPACE)
    for claim in internal_kv._internal_kv_list(f"{name}#".encode(), namespace=_CLAIMS_NAMESPACE):
        internal_kv._internal_kv_del(claim, namespace=_CLAIMS_NAMESPACE)


__all__ = [
    "Fabric",
    "Topic",
    "FabricSettings",
    "JournalSettings",
    "DowngradeSettings",
    "lookup",
    "namespace_of",
]
