"""The instances of a fabric that runs: started, asked, waited for, broken and mended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from raylay.services.config.instance import INSTANCE_FILE
from raylay.services.configuration.model import (
    FabricSettings,
    InstanceSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric.admin_topology import save_topology, topology_text
from raylay.services.fabric.checks.check import shared_hosts
from raylay.services.fabric.cluster.nodes import followed
from raylay.services.fabric.cluster.ray_access import (
    POLL_S,
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    HeadSilent,
    actor_state,
    await_process_end,
    dead_nodes,
    first_line,
    head_address,
    is_here,
    kill_on_node,
    living_nodes,
    logs_directory,
    on_node,
    ray_module,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.event_follower import EventAnswer, EventCursors, follow_events
from raylay.services.fabric.handle import FabricHandle, ignore_progress
from raylay.services.fabric.plan import (
    FabricRecord,
    bring_up_to_date,
    data_directory,
    instance_config,
)
from raylay.services.fabric.planned_stop import links_at_rest
from raylay.services.fabric.records.orphans import has_data, orphaned_directories
from raylay.services.fabric.records.record_store import (
    entry_of,
    namespace_of,
    save_config,
)
from raylay.services.fabric.relocation import away_since
from raylay.services.fabric.silence import has_begun, silence
from raylay.services.fabric.transports import check_files
from raylay.services.security.control import Caller

RESTING = "stopped by `raylay stop`"
"""Reason for which a link is not connected whose destination is stopped."""
LOOK_S_MAX = 0.25
"""Most time between two looks at instances that have not been ready, or caught up, for seconds."""


def _pauses_s() -> Iterator[float]:
    """Seconds between looks: short at first, longer where it takes long. A caller that looked at
    all instances twenty times a second while they start would take a tenth of their processor
    time."""
    pause_s = POLL_S
    while True:
        yield pause_s
        pause_s = min(LOOK_S_MAX, 1.2 * pause_s)


class InstanceHandles:
    """The actors of a fabric's instances, one by one and all together.

    Args:
        handle: the fabric's.
        control: the client that asks the instances, and authorizes the calls that change them.
    """

    def __init__(self, handle: FabricHandle, control: ControlClient) -> None:
        self._handle = handle
        self._control = control

    # -- starting and ending -------------------------------------------------------------------
    def write_config(self, instance: InstanceSettings) -> None:
        """Writes the configuration of an instance, and the topology for its administrator's
        interface, into its data directory, on its node.

        Raises:
            FabricError: it cannot be written.
        """
        settings, record = self._handle.known()
        if record.restarting.get(instance.name):
            # From here on the instance may begin with the new configuration at any time.
            record.restarting[instance.name] = ""
            self._handle.keep(record)
        directory = data_directory(record, instance)
        config = instance_config(settings, record, instance)
        topology = topology_text(settings, record, instance, head_address())
        if instance.node_labels:
            told = (
                config.to_json(),
                str(directory),
                record.to_json(),
                entry_of(record, holds_ray=False),
                topology,
            )
            on_node(instance.node_labels, save_config, *told)
            return
        try:
            config.save(directory)
            save_topology(topology, directory)
        except OSError as error:
            raise FabricError(
                f"instance {instance.name}: {error.filename or directory} cannot be written: "
                f"{error.strerror}"
            ) from None

    def launch(self, instance: InstanceSettings) -> None:
        """Starts the actor of an instance, and does not wait until it is ready.

        Raises:
            FabricError: such an actor runs already.
        """
        from raylay.actors.launch import launch_instance

        _, record = self._handle.known()
        namespace = namespace_of(self._handle.name)
        self.write_config(instance)
        try:
            self._handle.actors[instance.name] = launch_instance(
                instance.name,
                str(data_directory(record, instance)),
                namespace,
                instance.node_labels,
            )
        except ValueError as error:
            raise FabricError(
                f"instance {instance.name}: an actor of this name runs in {namespace} already: "
                f"attach to the fabric, or stop it ({error})"
            ) from None

    def check_ports(
        self, settings: FabricSettings, record: FabricRecord, names: Iterable[str]
    ) -> None:
        """Checks that the ports are free, for each of the named instances that runs on this host.

        Raises:
            FabricError: one is taken; names it.
        """
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
                        # The instance sets this option, too: a port in TIME_WAIT is free.
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((host, port))
                except OSError as error:
                    raise FabricError(
                        f"instance {instance.name}: {kind} port {port} on {host}: {error.strerror}"
                    ) from None

    def check_tls(
        self, settings: FabricSettings, record: FabricRecord, names: Iterable[str]
    ) -> None:
        """Checks the TLS files of the instances that run on this host.

        Raises:
            ConfigurationError: one cannot be used.
        """
        for instance in map(settings.instance, names):
            if not instance.node_labels:
                check_files(instance_config(settings, record, instance))

    def end(self, name: str) -> None:
        """Ends the actor of an instance for good, if it has one."""
        actor = self._handle.actor(name)
        self._handle.actors.pop(name, None)
        if actor is not None:
            ray_module().kill(actor, no_restart=True)

    def end_gracefully(
        self, name: str, caller: Caller | None, call: str, timeout_s: float, **details: Any
    ) -> None:
        """Ends the actor of an instance for good, if it has one. The instance first commits and
        sends the messages that it has received, and tells its clients that it ends.

        Args:
            caller: identity of the user that ends the instance; None: none is asked for.
            call: name of the control call for which the instance ends; `details` are the names in
                its path.

        Raises:
            FabricError: it refuses.
        """
        actor = self._handle.actor(name)
        if actor is None:
            return
        state = actor_state(actor)
        if state.get("state") == "ALIVE":
            self._control.stop_gracefully(actor, caller, call, **details)
        self.end(name)
        if is_here(str(state.get("node") or "")):
            await_process_end(int(state.get("pid") or 0), timeout_s)

    def renew_addresses(self) -> None:
        """Writes down where nodes are that came back with another address: clients look there."""
        settings, record = self._handle.known()
        if not record.nodes:
            return
        found, nodes = followed(settings, record.nodes, living_nodes())
        if found == settings:
            return
        record.nodes, self._handle.settings = nodes, found
        bring_up_to_date(record, found)
        self._handle.keep(record)

    def settle(self) -> None:
        """Notes that from now on an empty data directory is a lost disk."""
        settings, record = self._handle.known()
        record.settled = [instance.name for instance in settings.instances]
        self._handle.keep(record)
        for instance in settings.instances:
            if instance.name not in record.stopped:
                self.write_config(instance)

    # -- asking ------------------------------------------------------------------------------
    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Returns every instance's own `status`, or why it cannot be asked. All are asked at once,
        and have `STATUS_TIMEOUT_S` together.

        Args:
            only: names of the instances that are asked; None: all.
        """
        settings, record = self._handle.known()
        names = [instance.name for instance in settings.instances]
        found = self.statuses([each for each in names if only is None or each in only])
        resting = links_at_rest(settings, record.stopped)
        for status in found:
            for name, destination in status.get("destinations", {}).items():
                if (status["name"], name) in resting and not destination.get("connected"):
                    destination["why"] = RESTING
        return {
            "fabric": self._handle.name,
            "directory": record.directory,
            "instances": found,
            "left_over": orphaned_directories(record, settings),
        }

    def statuses(
        self, names: Iterable[str], timeout_s: float = STATUS_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Returns the status of each of these instances, or why it cannot be asked."""
        settings, record = self._handle.known()
        ray = ray_module()
        asked: dict[str, Any] = {}
        for name in names:
            actor = self._handle.actor(name)
            asked[name] = actor.status.remote() if actor is not None else None
        wanted = [ref for ref in asked.values() if ref is not None]
        if wanted:
            ray.wait(wanted, num_returns=len(wanted), timeout=timeout_s)
        found: list[dict[str, Any]] = []
        why_silent = ""
        for name, ref in asked.items():
            base = {"name": name, "group": settings.instance(name).group, "ready": False}
            is_stopped = name in record.stopped
            if ref is None:
                reason = "" if is_stopped else "no such actor runs"
                told = {"phase": "stopped", "reason": reason, "is_stopped": is_stopped}
                found.append({**base, **told})
                continue
            try:
                told = ray.get(ref, timeout=0)
                found.append({**base, "phase": "", "reason": told.get("why", ""), **told})
            except ray.exceptions.RayError as error:
                try:
                    # A silent head is asked once, because each question waits for the time limit.
                    state = {} if why_silent else self._state_of(name)
                except HeadSilent as silent:
                    why_silent = str(silent)
                if why_silent:
                    found.append({**base, "phase": "unknown", "reason": why_silent})
                    continue
                if is_stopped and state.get("state") in (None, "DEAD"):
                    found.append({**base, "phase": "stopped", "reason": "", "is_stopped": True})
                    continue
                phase, reason = silence(
                    state,
                    is_late=isinstance(error, ray.exceptions.GetTimeoutError),
                    said=first_line(error),
                    logs=logs_directory(),
                    waited_s=timeout_s,
                    launched_ago_s=self._launched_ago_s(name),
                )
                away = self.host_away(name) if phase != "alive" else ""
                if away:
                    phase, reason = "pending", away
                found.append({**base, "phase": phase, "reason": reason})
        return found

    def _state_of(self, name: str) -> dict[str, Any]:
        actor = self._handle.actor(name)
        return actor_state(actor) if actor is not None else {}

    def _launched_ago_s(self, name: str) -> float | None:
        """Returns the seconds since the configuration of an instance was written, which is just
        before its first launch; None: it lies on another node."""
        settings, record = self._handle.known()
        instance = settings.instance(name)
        if instance.node_labels:
            return None
        try:
            written_s = (data_directory(record, instance) / INSTANCE_FILE).stat().st_mtime
        except OSError:
            return None
        return time.time() - written_s

    def is_unused(self, name: str) -> bool:
        """Returns whether an instance that was declared while the fabric ran has never opened its
        data directory, so that it has no messages. False, too: that is not known."""
        settings, record = self._handle.known()
        instance = settings.instance(name)
        directory = data_directory(record, instance)
        if name not in record.starting:
            return False
        if not instance.node_labels:
            return not has_data(str(directory))
        try:
            return not on_node(instance.node_labels, has_data, str(directory))
        except FabricError:
            return False

    def host_away(self, name: str) -> str:
        """Returns the time since when the node that holds an instance's data is away; empty: it is
        not."""
        place = self._handle.known()[1].nodes.get(name)
        return away_since(place, living_nodes(), dead_nodes()) if place is not None else ""

    def events(
        self, *, follow: bool = False, after_us: int = 0, stop: Callable[[], bool] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields what `Fabric.events` does."""
        settings, _ = self._handle.known()
        ray = ray_module()

        pending: dict[str, tuple[str, Any]] = {}

        def look(cursors: EventCursors) -> list[EventAnswer]:
            begun: list[Any] = []
            for instance in settings.instances:
                if instance.name in pending:
                    continue  # It was late, and is waited for once.
                actor = self._handle.actor(instance.name)
                if actor is None:
                    continue
                process = str(actor_state(actor).get("pid") or 0)
                number = cursors.number_for(instance.name, process)
                begun.append(actor.events.remote(number))
                pending[instance.name] = process, begun[-1]
            if begun:
                ray.wait(begun, num_returns=len(begun), timeout=STATUS_TIMEOUT_S)
            found: list[EventAnswer] = []
            for name, (process, ref) in [*pending.items()]:
                try:
                    events = ray.get(ref, timeout=0)
                except ray.exceptions.GetTimeoutError:
                    continue
                except ray.exceptions.RayError:
                    events = []
                del pending[name]
                if events:
                    found.append(EventAnswer(name, process, events))
            return found

        return follow_events(look, follow=follow, after_us=after_us, stop=stop)

    def wait_ready(
        self,
        name: str | None = None,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        """Waits until one instance, or every one that is not stopped, admits clients.

        Args:
            progress: called with the number of instances that do so, as text, when it changes.

        Raises:
            FabricError: an instance did not within `timeout_s`; the error names it and its reason.
        """
        settings, record = self._handle.known()
        running = [each.name for each in settings.instances if each.name not in record.stopped]
        self._wait(
            [name] if name is not None else running,
            lambda status: bool(status.get("ready")),
            "is not ready",
            timeout_s,
            progress,
        )

    def wait_running(self, name: str, timeout_s: float = START_TIMEOUT_S_DEFAULT) -> None:
        """Waits until an instance has a process that answers and has recovered its data. It need
        not admit clients: one that joins a group does so when its group knows of it.

        Raises:
            FabricError: it has none within `timeout_s`; the error names it and its reason.
        """
        self._wait([name], has_begun, "does not run", timeout_s)

    def _wait(
        self,
        waiting: list[str],
        is_there: Callable[[dict[str, Any]], bool],
        lacking: str,
        timeout_s: float,
        progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        """Waits until the status of each instance is as wanted.

        Args:
            is_there: tells of a status whether it is.
            lacking: the verb of the error's sentence on an instance whose status is not.
        """
        count = len(waiting)
        pauses_s = _pauses_s()
        deadline_s = time.monotonic() + timeout_s
        while True:
            reasons: dict[str, str] = {}
            left_s = max(0.1, deadline_s - time.monotonic())
            for status in self.statuses(waiting, min(STATUS_TIMEOUT_S, left_s)):
                if not is_there(status):
                    reasons[status["name"]] = str(status.get("reason") or status.get("phase"))
            if len(reasons) < len(waiting):
                progress(f"{count - len(reasons)} of {count} instances are ready")
            if not reasons:
                return
            if time.monotonic() >= deadline_s:
                raise FabricError(
                    "; ".join(
                        f"instance {name} {lacking} after {timeout_s:.0f} s: {reason}"
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
        progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        """Waits until every destination has caught up: from then on clients may fail over.

        Args:
            only: (instance, destination) of each destination to wait for; None: all but those that
                are at rest because an instance is stopped.
            progress: called with the number of destinations that have not caught up, as text, when
                it changes.

        Raises:
            FabricError: a destination has not within `timeout_s`; the error names it and its
                reason.
        """
        settings, record = self._handle.known()
        resting = links_at_rest(settings, record.stopped)
        deadline_s = time.monotonic() + timeout_s
        told = -1
        pauses_s = _pauses_s()
        while True:
            missing = [
                f"{status['name']} to {name}: {found.get('why') or 'not caught up'}"
                for status in self.status()["instances"]
                if only is not None or status["name"] not in record.stopped
                for name, found in status.get("destinations", {"": {}}).items()
                if not found.get("caught_up")
                and (
                    (status["name"], name) not in resting
                    if only is None
                    else (status["name"], name) in only
                )
            ]
            if not missing:
                return
            if len(missing) != told:
                told = len(missing)
                meant = f"{told} link{'' if told == 1 else 's'}"
                meant += "" if only is None else " that clients need"
                progress(f"waiting for {meant} to catch up")
            if time.monotonic() >= deadline_s:
                raise FabricError(f"after {timeout_s:.0f} s: {'; '.join(missing)}")
            time.sleep(next(pauses_s))

    def shared_hosts(self) -> list[str]:
        """Returns the sentences of `Fabric.shared_hosts`."""
        settings, record = self._handle.known()
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

    # -- breaking and mending ----------------------------------------------------------------
    def pid(self, name: str) -> int:
        """Returns the process of an instance; 0 while it has none."""
        actor = self._handle.actor(name)
        return int(actor_state(actor).get("pid") or 0) if actor is not None else 0

    def kill(self, name: str, *, restart: bool = True) -> int:
        """Kills the process of an instance as `Fabric.kill` does, and returns its pid."""
        self._handle.declared.instance(name)
        self._control.authorize([name], "kill")
        actor = self._handle.actor(name)
        state = actor_state(actor) if actor is not None else {}
        pid = int(state.get("pid") or 0)
        if actor is None or not pid or state.get("state") != "ALIVE":
            raise FabricError(f"instance {name} does not run: {state.get('state', 'no actor')}")
        if not restart:
            self._handle.actors.pop(name, None)
            ray_module().kill(actor, no_restart=True)
        kill_on_node(str(state.get("node") or ""), pid)
        return pid

    def kill_link(self, name: str, destination: str) -> int:
        """Kills the process of a link as `Fabric.kill_link` does, and returns its pid."""
        self._handle.declared.instance(name)
        self._control.authorize([name], "kill_link", destination=destination)
        found = self.statuses([name])[0].get("destinations", {}).get(destination)
        if found is None:
            raise FabricError(f"instance {name} has no destination {destination} now")
        pid = int(found.get("pid") or 0)
        if not pid:
            raise FabricError(f"link {destination} of {name} has no process now")
        actor = self._handle.actor(name)
        node = str(actor_state(actor).get("node") or "") if actor is not None else ""
        kill_on_node(node, pid)
        return pid

    def restart(
        self,
        name: str,
        timeout_s: float,
        *,
        graceful: bool = True,
        caller: Caller | None,
        call: str = "restart",
    ) -> None:
        """Ends an instance's process, if it has one, and returns when the instance is ready again.
        The caller has been authorized before.

        Args:
            graceful: whether the instance first commits and sends the messages that it has
                received, and tells its clients that it ends.
            caller: identity of the user that restarts the instance; None: none is asked for.
            call: name of the control call for which the instance is restarted.

        Raises:
            FabricError: it did not become ready within `timeout_s`, is stopped, or refuses.
        """
        self._handle.refresh()
        self.renew_addresses()
        settings, record = self._handle.known()
        instance = settings.instance(name)
        if name in record.stopped:
            raise FabricError(f"instance {name} is stopped: `raylay start {name}` starts it")
        actor = self._handle.actor(name)
        if actor is None:
            self.launch(instance)
        else:
            self.write_config(instance)
            state = actor_state(actor)
            if graceful:
                self._control.stop_gracefully(actor, caller, call)
            ray_module().kill(actor, no_restart=False)
            if is_here(str(state.get("node") or "")):
                await_process_end(int(state.get("pid") or 0), timeout_s)
        self.wait_ready(name, timeout_s)
