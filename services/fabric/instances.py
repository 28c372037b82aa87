"""The instances of a fabric that runs: started, asked, waited for, broken and mended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from raylay.services.configuration.model import (
    FabricSettings,
    InstanceSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric.control import JUDGED, ControlClient
from raylay.services.fabric.nodes import followed
from raylay.services.fabric.orphans import orphaned_directories
from raylay.services.fabric.plan import (
    FabricRecord,
    bring_up_to_date,
    data_directory,
    instance_config,
)
from raylay.services.fabric.ray_access import (
    POLL_S,
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    HeadSilent,
    actor_state,
    await_process_end,
    dead_nodes,
    first_line,
    is_here,
    kill_on_node,
    living_nodes,
    on_node,
    ray_module,
)
from raylay.services.fabric.record_store import (
    _save_config,
    entry_of,
    namespace_of,
)
from raylay.services.fabric.relocation import away_since
from raylay.services.fabric.transports import check_files
from raylay.services.security.control import Caller

FOLLOW_S = 0.25
LOOK_S_MAX = 0.25
"""Most time between two looks at instances that have not been ready, or caught up, for seconds."""


def _pauses_s() -> Iterator[float]:
    """Seconds between looks: short at first, longer where it takes long. Who looks twenty times a
    second at all of them while they start takes a tenth of their processor time."""
    pause_s = POLL_S
    while True:
        yield pause_s
        pause_s = min(LOOK_S_MAX, 1.2 * pause_s)


class InstanceHandles(ControlClient):
    """The actors of a fabric, one by one and all together."""

    def _write_config(self, instance: InstanceSettings) -> None:
        settings, record = self._known()
        directory = data_directory(record, instance)
        config = instance_config(settings, record, instance)
        if instance.node_labels:
            told = (
                config.to_json(),
                str(directory),
                record.to_json(),
                entry_of(record, holds_ray=False),
            )
            on_node(instance.node_labels, _save_config, *told)
            return
        try:
            config.save(directory)
        except OSError as error:
            raise FabricError(
                f"instance {instance.name}: {error.filename or directory} cannot be written: "
                f"{error.strerror}"
            ) from None

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
            clients, instances = instance.for_clients(), instance.for_instances()
            for kind, host, port in (
                ("client", clients[0].host, ports.client),
                *(("replication", each.host, ports.replication) for each in instances[:1]),
                *((each.name, each.host, each.port) for each in (*clients[1:], *instances[1:])),
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

    def _check_tls(
        self, settings: FabricSettings, record: FabricRecord, names: Iterable[str]
    ) -> None:
        """Looks into the files of those that run on this host.

        Raises:
            ConfigurationError: one cannot be used.
        """
        for instance in map(settings.instance, names):
            if not instance.node_labels:
                check_files(instance_config(settings, record, instance))

    def _end(self, name: str) -> None:
        handle = self._handle(name)
        self._handles.pop(name, None)
        if handle is not None:
            ray_module().kill(handle, no_restart=True)

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

    # -- asking ------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """Returns every instance's own `status`, or why it cannot be asked."""
        settings, record = self._known()
        return {
            "fabric": self.name,
            "directory": record.directory,
            "instances": self._statuses([instance.name for instance in settings.instances]),
            "left_over": orphaned_directories(record, settings),
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
        """Returns the time since when the node that holds an instance's data is away; empty: it is
        not."""
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

    def ask(
        self, name: str, verb: str, *arguments: Any, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Any:
        """Returns one instance's answer to a call of its actor: `status`, `events`, …

        Raises:
            FabricError: it does not run, does not answer in time, or refuses.
        """
        handle = self._handle(name)
        if handle is None:
            raise FabricError(f"instance {name} does not run")
        ray = ray_module()
        try:
            if verb in JUDGED:
                return ray.get(self._call(handle, name, verb, *arguments), timeout=timeout_s)
            return ray.get(getattr(handle, verb).remote(*arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise FabricError(f"{verb} of {name}: {first_line(error)}") from None

    def wait_ready(
        self, name: str | None = None, timeout_s: float = START_TIMEOUT_S_DEFAULT
    ) -> None:
        """Waits until one instance, or every one, admits clients.

        Raises:
            FabricError: one did not within `timeout_s`; names it and its reason.
        """
        settings, _ = self._known()
        waiting = [name] if name is not None else [i.name for i in settings.instances]
        count = len(waiting)
        pauses_s = _pauses_s()
        deadline_s = time.monotonic() + timeout_s
        while True:
            reasons: dict[str, str] = {}
            left_s = max(0.1, deadline_s - time.monotonic())
            for status in self._statuses(waiting, min(STATUS_TIMEOUT_S, left_s)):
                if not status.get("ready"):
                    reasons[status["name"]] = str(status.get("reason") or status.get("phase"))
            if len(reasons) < len(waiting):
                self._tell(f"{count - len(reasons)} of {count} instances are ready")
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
            time.sleep(next(pauses_s))

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
        told = -1
        pauses_s = _pauses_s()
        while True:
            missing = [
                f"{status['name']} to {name}: {found.get('why') or 'not caught up'}"
                for status in self.status()["instances"]
                for name, found in status.get("destinations", {"": {}}).items()
                if not found.get("caught_up") and (only is None or (status["name"], name) in only)
            ]
            if not missing:
                return
            if len(missing) != told:
                told = len(missing)
                meant = "links" if only is None else "links that clients need"
                self._tell(f"waiting for {told} {meant} to catch up")
            if time.monotonic() >= deadline_s:
                raise FabricError(f"after {timeout_s:.0f} s: {'; '.join(missing)}")
            time.sleep(next(pauses_s))

    def links_that_clients_need(self) -> list[tuple[str, str]]:
        """(instance, destination) of the links without which a client waits: those within a group,
        to which it may fail over, and those that acks wait for. Not those to another fabric."""
        settings = self.declared
        own = {instance.name: instance.group for instance in settings.instances}
        return [
            (instance.name, destination.name)
            for instance, destination in settings.links()
            if any(name in own for name in destination.to)
            and (destination.sync or instance.group in map(own.get, destination.to))
        ]

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
            FabricError: it does not run, or refuses.
        """
        self.declared.instance(name)
        self.authorize([name], "kill")
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
            FabricError: there is no such link, its process is not known, or the instance refuses.
        """
        self.declared.instance(name)
        self.authorize([name], "kill_link", destination=destination)
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
            FabricError: it did not become ready within `timeout_s`, or refuses.
        """
        self._refresh()
        self.authorize([name], "restart")
        self._restart(name, timeout_s, graceful=graceful, said=self._said_to(name))

    def _restart(
        self,
        name: str,
        timeout_s: float,
        *,
        graceful: bool = True,
        said: Caller | None,
        call: str = "restart",
    ) -> None:
        """Restarts an instance as `restart` does, for a caller that was asked.

        Args:
            said: who asks for it.
            call: what for.
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
                self._stop_gracefully(handle, said, call)
            ray_module().kill(handle, no_restart=False)
            if is_here(str(state.get("node") or "")):
                await_process_end(int(state.get("pid") or 0), timeout_s)
        self.wait_ready(name, timeout_s)

    def downgrade(self, name: str, destination: str, *, force: bool = False) -> None:
        """Lets acks of instance `name` no longer wait for this destination from now on.

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
        be broken says `raylay.services.server.fault_injection`.

        Raises:
            FabricError: the fabric is not marked for drills, there is no such fault, or the
                instance cannot be asked.
        """
        self.declared.instance(name)
        self._ask(name, "inject", f"inject into {name}", kind, seconds, options)

    def proxied(self, name: str, queue: str, *, on: bool = True) -> str:
        """Lets a queue of an instance take over messages of instances that it is not connected to,
        or no more. An instance that is only cut off may deliver them too: turn it on at one, and
        let no consumers use the others meanwhile. It holds over restarts of the instance.

        Returns:
            A sentence for people, with that risk.

        Raises:
            FabricError: there is no such queue, it is local, or the instance cannot be asked.
        """
        self.declared.instance(name)
        what = f"proxied transfer of {queue} at {name}"
        return str(self._ask(name, "proxied", what, queue, on))

    def switch_transport(self, name: str, transport: str, *, on: bool) -> str:
        """Enables or disables a transport for clients of an instance, until that is restarted: then
        it is as its configuration says. Whoever is connected by one that is disabled is told
        `transport_disabled`, and a client fails over.

        Returns:
            A sentence for people.

        Raises:
            FabricError: there is no such transport, its address cannot be listened on, or the
                instance cannot be asked: nothing was changed.
        """
        self.declared.instance(name)
        what = f"transport {transport} of {name}"
        return str(self._ask(name, "switch_transport", what, transport, on))

    def reset_entitlement(self, name: str, user: str = "") -> int:
        """Has an instance ask its modules anew what a user may do; without one, what everybody may
        of whom a module said so. Their sessions end, and their clients log on again.

        Returns:
            How many sessions ended.

        Raises:
            FabricError: the instance cannot be asked.
        """
        self.declared.instance(name)
        return int(self._ask(name, "reset_entitlement", f"entitlement at {name}", user))

    def _control(self, name: str, destination: str, verb: str, *options: bool) -> None:
        instance = self.declared.instance(name)
        if destination not in {known.name for known in instance.destinations}:
            raise FabricError(f"instance {name} has no destination {destination}")
        self._ask(name, verb, f"{verb} of {destination} at {name}", destination, *options)
